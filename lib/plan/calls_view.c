/* SPDX-License-Identifier: Apache-2.0 */
/* The beginning of a step over a view. */
#include "lib/plan/plan.h"

#include <inttypes.h>

/* Checks the sequences and puts them into the step; how many of them are not exact. */
static tamis_status collect(tamis_plan *plan, const tamis_view_step *in, uint32_t *n_selected,
                            tamis_error *error) {
    uint64_t all = 0, selected = 0;
    *n_selected = tms_step_count_selected(in->count, in->exact, in->exact_from);
    for (uint32_t i = 0; i < in->count; i++) {
        const uint32_t rows = in->rows ? in->rows[i] : 1;
        const bool exact = i >= *n_selected;
        TMS_TRY(tms_step_check_own_rows(&plan->setup, i, rows, exact, error));
        TMS_TRY(tms_viewing_take(&plan->viewing, in, i, rows, &plan->step.sequences[i], error));
        plan->step.growth[i] =
            (tms_growth){.sequence = plan->step.sequences[i], .rows = rows, .cap = UINT32_MAX};
        all += rows;
        selected += exact ? 0 : rows;
        TMS_TRY(tms_step_check_rows(&plan->setup, i + 1, all, error));
    }
    return tms_step_check_selected(&plan->setup, selected, error);
}

static tamis_status check_view_step(tamis_plan *plan, const tamis_view_step *in,
                                    uint32_t *n_selected, tamis_error *error) {
    TMS_REQUIRE(plan, TAMIS_E_ARGUMENT, "plan is NULL");
    TMS_REQUIRE(in, TAMIS_E_ARGUMENT, "step is NULL");
    TMS_REQUIRE_RESERVED(in, tamis_view_step);
    TMS_REQUIRE(in->reserved32 == 0, TAMIS_E_ARGUMENT,
                "reserved32 of tamis_view_step is %" PRIu32 "; it must be 0", in->reserved32);
    TMS_REQUIRE(plan->setup.cache->view, TAMIS_E_ARGUMENT,
                "the plan's cache is no view: tamis_plan_step_begin opens its steps");
    TMS_REQUIRE(!plan->setup.cache->step_open, TAMIS_E_STATE, "a step on the view is open");
    TMS_TRY(tms_step_check_count(&plan->setup, in->count, error));
    TMS_TRY(tms_viewing_check(in, error));
    TMS_TRY(tms_step_check_mixed(&plan->setup, in->count, in->exact, in->exact_from, error));
    return collect(plan, in, n_selected, error);
}

tamis_status tamis_plan_view_begin(tamis_plan *plan, const tamis_view_step *in,
                                   tamis_error *error) {
    TMS_ENTER(plan);
    uint32_t n_selected = 0;
    TMS_TRY(check_view_step(plan, in, &n_selected, error));
    TMS_TRY(tms_view_open_step(plan->setup.cache, error));
    plan->step.n_sequences = in->count;
    tms_trees_count(&plan->trees, plan->step.growth, in->count);
    plan->templates.attended = false;
    const tamis_status status = tms_plan_send_step(plan, n_selected, in->count - n_selected, error);
    if (status == TAMIS_OK)
        plan->step.open = true;
    else
        tms_cache_rollback(plan->setup.cache, plan->step.growth, in->count, true);
    return status;
}
