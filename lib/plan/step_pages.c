/* SPDX-License-Identifier: Apache-2.0 */
/* What a step would take of the cache's pages, before it begins. */
#include "lib/plan/plan.h"

tamis_status tamis_plan_step_pages(tamis_plan *plan, const tamis_step *step, tamis_step_pages *out,
                                   tamis_error *error) {
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out is NULL");
    tamis_status status = tms_plan_check_step(plan, step, error);
    if (status == TAMIS_OK) status = tms_cache_check_bounds(plan->cache, error);
    if (status != TAMIS_OK) return status;
    const tms_demand demand = tms_cache_demand(plan->cache, plan->step.growth, step->count);
    *out = (tamis_step_pages){.needed = demand.needed,
                              .copied = demand.copied,
                              .free = tms_cache_free_pages(plan->cache),
                              .missing = demand.missing};
    return TAMIS_OK;
}
