/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of a plan and the needs of its policies. They are constant once the plan is
 * made. */
#ifndef TMS_PLAN_SETUP_H
#define TMS_PLAN_SETUP_H

#include "lib/cache/cache.h"
#include "lib/core/attention.h"
#include "lib/evict/evict.h"
#include "lib/plan/arena.h"
#include "lib/select/select.h"
#include <tamis/plan.h>

typedef struct tms_setup {
    tamis_cache *cache;
    tms_device *dev;
    tms_memory *memory;
    tamis_plan_params params; /* with defaults filled in */
    tms_reading reading;      /* what the selection needs; k is at most max_pages */
    tms_eviction_needs needs; /* what the eviction needs */
    uint32_t longest;         /* slots that a lane may have */
    uint32_t max_pages;       /* the same in pages */
    tamis_layer *layers;      /* [n_layers] with defaults filled in; full: also dense layers */
    bool sunk;                /* some layer has sinks, which are copied: */
    tms_mem *sinks;           /* f32 [n_layers][n_heads] */
} tms_setup;

/* Most slots that a lane may have in a step, UINT32_MAX: no limit. */
static inline uint32_t tms_setup_cap(const tms_setup *setup, bool exact) {
    return setup->needs.in_place && !exact ? setup->params.eviction.budget : UINT32_MAX;
}

/* What a layer makes of q·k, and whether its rows may read the pages of lists. */
static inline tms_logit tms_setup_logit(const tms_setup *setup, uint32_t layer) {
    const tamis_attention *attention = &setup->layers[layer].attention;
    const tamis_cache_params *cache = &setup->cache->params;
    const uint64_t at = (uint64_t)layer * cache->n_heads * sizeof(float);
    const tms_ref sinks = {attention->sinks.buffer ? setup->sinks : NULL, at};
    return tms_attention_logit(attention, cache->head_dim, sinks);
}
static inline bool tms_setup_lists(const tms_setup *setup, uint32_t layer) {
    return setup->reading.listed && !setup->layers[layer].full;
}

/* The most entries of a list: pages, or tokens where a plan takes lists of them. */
static inline uint32_t tms_setup_entries(const tms_setup *setup) {
    const uint32_t budget = setup->params.selection.budget;
    if (!(setup->params.flags & TAMIS_PLAN_TOKEN_LISTS)) return setup->reading.k;
    return budget < setup->longest ? budget : setup->longest;
}

/* Whether no earlier layer takes the same kernels. */
static inline bool tms_setup_is_first(const tms_setup *setup, uint32_t layer) {
    const tamis_layer *of = &setup->layers[layer];
    for (uint32_t i = 0; i < layer; i++) {
        const tamis_layer *other = &setup->layers[i];
        if (tms_attention_alike(&other->attention, &of->attention) && !other->full == !of->full)
            return false;
    }
    return true;
}

/* The number of elements of one row's queries, of all heads. */
static inline uint64_t tms_setup_width(const tms_setup *setup) {
    return (uint64_t)setup->cache->params.n_heads * setup->cache->params.head_dim;
}

#endif
