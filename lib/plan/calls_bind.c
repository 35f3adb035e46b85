/* SPDX-License-Identifier: Apache-2.0 */
/* What callers bind to a plan beside its numbers: output projections, rotation, budgets of
 * heads. */
#include "lib/plan/plan.h"

#include <inttypes.h>
#include <string.h>

static tamis_status check_bind(const tamis_plan *plan, bool fits, const char *what,
                               tamis_error *error) {
    TMS_REQUIRE(plan, TAMIS_E_ARGUMENT, "plan is NULL");
    TMS_REQUIRE(!plan->step.open, TAMIS_E_STATE, "the plan has an open step");
    TMS_REQUIRE(fits, TAMIS_E_ARGUMENT, "eviction %s takes no %s", plan->setup.needs.entry->name,
                what);
    return TAMIS_OK;
}

tamis_status tamis_plan_bind_output(tamis_plan *plan, uint32_t layer, const tamis_rows *w,
                                    uint32_t n_rows, tamis_error *error) {
    TMS_ENTER(plan);
    TMS_TRY(check_bind(plan, plan && plan->setup.needs.output, "output projection", error));
    const tamis_cache_params *p = &plan->setup.cache->params;
    uint64_t stride = 0, width = (uint64_t)p->n_heads * p->head_dim;
    TMS_REQUIRE(layer < p->n_layers, TAMIS_E_ARGUMENT, "layer %" PRIu32 " is not below %" PRIu32,
                layer, p->n_layers);
    TMS_REQUIRE(n_rows > 0, TAMIS_E_ARGUMENT, "the output projection has no rows");
    TMS_TRY(tms_rows_check(plan->setup.cache->context, w, "w", n_rows, width, &stride, error));
    tms_life *before = plan->between.outputs[layer].held;
    tms_hold(&w->buffer->life);
    plan->between.outputs[layer] =
        (tms_output){{w->buffer->mem, w->offset}, w->dtype, stride, n_rows, &w->buffer->life};
    tms_let_go(before);
    return TAMIS_OK;
}

tamis_status tamis_plan_bind_rotation(tamis_plan *plan, const tamis_rotation *rotation,
                                      tamis_error *error) {
    TMS_ENTER(plan);
    TMS_TRY(check_bind(plan, plan && plan->setup.needs.rotation, "rotation", error));
    TMS_REQUIRE(rotation, TAMIS_E_ARGUMENT, "rotation is NULL");
    tms_reindex *reindex = &plan->reindex;
    uint32_t n_rot;
    tms_ref table;
    TMS_TRY(tms_plan_check_turns(plan, rotation, &n_rot, &table, error));
    reindex->n_rot = n_rot;
    reindex->rotation = table;
    reindex->pairing = rotation->pairing;
    tms_life *before = reindex->held;
    reindex->held = &rotation->table.buffer->life;
    tms_hold(reindex->held);
    tms_let_go(before);
    return TAMIS_OK;
}

tamis_status tamis_plan_bind_budgets(tamis_plan *plan, const uint32_t *budgets,
                                     tamis_error *error) {
    TMS_ENTER(plan);
    TMS_TRY(
        check_bind(plan, plan && plan->setup.needs.head_budgets, "budgets of single heads", error));
    tms_between *b = &plan->between;
    for (uint32_t lane = 0; budgets && lane < plan->setup.cache->n_lanes; lane++) {
        tamis_eviction one = plan->setup.params.eviction;
        one.budget = budgets[lane];
        TMS_REQUIRE(one.budget > 0, TAMIS_E_ARGUMENT, "the budget of lane %" PRIu32 " is 0", lane);
        TMS_TRY(tamis_eviction_check(&one, error));
    }
    b->has_bound = budgets != NULL;
    if (budgets) memcpy(b->bound, budgets, plan->setup.cache->n_lanes * sizeof *budgets);
    return TAMIS_OK;
}
