/* SPDX-License-Identifier: Apache-2.0 */
/* The call that says how much rows of the open step attend to its tokens. */
#include "lib/plan/plan.h"

#include <inttypes.h>

/* An open step of one sequence, all of whose keys are there. */
static tamis_status check_step(const tamis_plan *plan, uint32_t layer, tamis_error *error) {
    TMS_TRY(tms_plan_check_layer(plan, layer, error));
    TMS_REQUIRE((plan->setup.params.flags & TAMIS_PLAN_ROW_MASSES), TAMIS_E_STATE,
                "the plan was made without TAMIS_PLAN_ROW_MASSES: it weighs no rows");
    TMS_REQUIRE(plan->step.exact, TAMIS_E_STATE,
                "the step is not exact: only rows of exact steps are weighed");
    TMS_REQUIRE(plan->step.n_sequences == 1, TAMIS_E_STATE,
                "the step has %" PRIu32 " sequences: rows are weighed in steps of one",
                plan->step.n_sequences);
    return tms_plan_check_held(plan, layer, error);
}

tamis_status tamis_plan_row_masses(tamis_plan *plan, uint32_t layer, const tamis_rows *q,
                                   uint32_t last, double *mass, tamis_error *error) {
    TMS_ENTER(plan);
    tms_matrix rows;
    TMS_TRY(check_step(plan, layer, error));
    TMS_REQUIRE(mass, TAMIS_E_ARGUMENT, "mass is NULL");
    TMS_REQUIRE(last > 0 && last <= plan->step.n_rows, TAMIS_E_ARGUMENT,
                "last is %" PRIu32 "; the step has %" PRIu32 " rows", last, plan->step.n_rows);
    TMS_TRY(tms_rows_check(plan->setup.cache->context, q, "q", plan->step.n_rows,
                           tms_setup_width(&plan->setup), &rows.stride, error));
    TMS_REQUIRE(q->dtype == TAMIS_F32, TAMIS_E_ARGUMENT, "q is %s; it must be f32",
                tamis_dtype_name(q->dtype));
    rows.ref = (tms_ref){q->buffer->mem, q->offset};
    TIME(plan, observe_us, tms_masses_add(&plan->masses, layer, &rows, last, mass, error));
    return TAMIS_OK;
}
