/* SPDX-License-Identifier: Apache-2.0 */
/* The plan's parameters, the counters of its steps, and the times of their stages. */
#include "lib/plan/plan.h"

#include <string.h>

void tamis_plan_get_counters(const tamis_plan *plan, tamis_plan_counters *out) {
    TMS_ENTER_WAITING(plan);
    if (plan && out) *out = plan->counters;
}

void tamis_plan_reset_counters(tamis_plan *plan) {
    TMS_ENTER_WAITING(plan);
    if (!plan) return;
    memset(&plan->counters, 0, sizeof plan->counters);
    memset(&plan->times, 0, sizeof plan->times);
}

void tamis_plan_get_times(const tamis_plan *plan, tamis_plan_times *out) {
    TMS_ENTER_WAITING(plan);
    if (plan && out) *out = plan->times;
}

void tamis_plan_get_params(const tamis_plan *plan, tamis_plan_params *out) {
    if (plan && out) *out = plan->setup.params;
}

tamis_cache *tamis_plan_cache(const tamis_plan *plan) {
    return plan ? plan->setup.cache : NULL;
}
