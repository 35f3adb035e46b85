/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of a plan and the needs of its policies. They are constant once the plan is
 * made. */
#ifndef TMS_PLAN_SETUP_H
#define TMS_PLAN_SETUP_H

#include "lib/cache/cache.h"
#include "lib/evict/evict.h"
#include "lib/select/select.h"
#include <tamis/plan.h>

typedef struct tms_setup {
    tamis_cache *cache;
    tms_device *dev;
    tamis_plan_params params; /* with defaults filled in */
    tms_reading reading;      /* what the selection needs; k is at most max_pages */
    tms_eviction_needs needs; /* what the eviction needs */
    uint32_t max_pages;       /* of a lane */
} tms_setup;

/* Most slots that a lane may have in a step, UINT32_MAX: no limit. */
static inline uint32_t tms_setup_cap(const tms_setup *setup, bool exact) {
    return setup->needs.in_place && !exact ? setup->params.eviction.budget : UINT32_MAX;
}

static inline tms_logit tms_setup_logit(const tms_setup *setup) {
    return (tms_logit){setup->params.scale, setup->params.soft_cap};
}

/* The number of elements of one row's queries, of all heads. */
static inline uint64_t tms_setup_width(const tms_setup *setup) {
    return (uint64_t)setup->cache->params.n_heads * setup->cache->params.head_dim;
}

#endif
