/* SPDX-License-Identifier: Apache-2.0 */
/* The cache from the inside: pools, sequences with their lanes, and what a plan's step does to
 * them. */
#ifndef TMS_CACHE_H
#define TMS_CACHE_H

#include "lib/cache/pages.h"
#include "lib/core/core.h"
#include <tamis/cache.h>

/* Memory that consecutive layers share; page ids are flat within it. */
typedef struct tms_pool {
    tms_mem *data;   /* [pages][K, V][page_size][head_dim] */
    tms_mem *bounds; /* [pages][lo, hi][head_dim] */
    uint32_t first_layer, n_layers;
    tms_pages pages;
} tms_pool;

/* The tokens of one (sequence, layer, KV head). Its list has ceil(length / page_size) pages. */
typedef struct tms_lane {
    uint32_t length;     /* slots */
    int32_t copied_from; /* the shared page that the latest reserve replaced by a copy, or -1 */
} tms_lane;

/* Lanes are numbered layer * n_kv_heads + KV head. */
typedef struct tms_sequence {
    tamis_sequence id;
    uint32_t length;  /* tokens: the next position */
    uint64_t version; /* from 1 on; grows when an entry of a page list changes or goes */
    bool in_step;
    tms_lane *lanes; /* [n_lanes] */
    int32_t *pages;  /* [n_lanes][list_pages] */
    uint32_t list_pages;
} tms_sequence;

struct tamis_cache {
    tamis_context *context;
    tamis_cache_params params; /* with defaults filled in */
    tamis_cache_size size;
    uint32_t n_lanes; /* of one sequence */
    tms_pool *pools;  /* [size.pools] */
    /* An id is serial * 2^24 + index in `sequences`; free entries are NULL. */
    tms_sequence **sequences;
    uint32_t n_sequences, sequence_capacity;
    uint64_t serial;
    bool step_open;
    bool bounds_mixed; /* a change of what bounds hold did not get through: no step may begin */
    uint64_t bounds_serial; /* from 1 on; grows with every change of what bounds hold */
};

/* What one sequence gains in a step. */
typedef struct tms_growth {
    tms_sequence *sequence;
    uint32_t rows;
} tms_growth;

/* Copies that a reserve asks for before anything is written: pairs (from, to) of page ids, the
 * first pool's first. Room for every lane of every sequence of the step. */
typedef struct tms_copies {
    int32_t *pairs;
    uint32_t *count; /* [pools] */
} tms_copies;

/* Checks the parameters and says what they would take; `params` gets its defaults filled in. */
tamis_status tms_cache_measure(const tms_device *dev, tamis_cache_params *params,
                               tamis_cache_size *size, tamis_error *error);

/* Layers [*first, *first + result) belong to pool `pool`. */
uint32_t tms_pool_layers(const tamis_cache_params *params, uint32_t n_pools, uint32_t pool,
                         uint32_t *first);

/* NULL if there is no such sequence. */
tms_sequence *tms_cache_find(const tamis_cache *cache, tamis_sequence id);

/* Finds a sequence that no open step works on. E_ARGUMENT, E_STATE. */
tamis_status tms_cache_find_idle(const tamis_cache *cache, tamis_sequence id, tms_sequence **out,
                                 tamis_error *error);

/* Frees the host's part of a sequence, not its pages; accepts NULL. */
void tms_sequence_free(tms_sequence *sequence);

/* The pool of a layer. */
tms_pool *tms_cache_pool(const tamis_cache *cache, uint32_t layer);

/* A layer's memory as the ops see it. */
tms_kv tms_cache_kv(const tamis_cache *cache, uint32_t layer);

/* A launch of bounds on a layer's pages, which are still to be given, with the cache's kind. */
tms_bounds tms_cache_bounds(const tamis_cache *cache, uint32_t layer);

/* Checks a kind and width; fills in the default width, 0 for kinds that have none. E_ARGUMENT. */
tamis_status tms_bounds_fill(tamis_bounds *bounds, tamis_error *error);

/* Lanes [first, end) of a sequence lie in a pool. */
static inline uint32_t tms_first_lane(const tamis_cache *cache, const tms_pool *pool) {
    return pool->first_layer * cache->params.n_kv_heads;
}
static inline uint32_t tms_end_lane(const tamis_cache *cache, const tms_pool *pool) {
    return (pool->first_layer + pool->n_layers) * cache->params.n_kv_heads;
}

static inline uint32_t tms_pages_of(const tamis_cache *cache, uint32_t slots) {
    return slots / cache->params.page_size + (slots % cache->params.page_size != 0);
}

static inline int32_t *tms_lane_pages(const tms_sequence *sequence, uint32_t lane) {
    return sequence->pages + (size_t)lane * sequence->list_pages;
}

/* Takes `slots` off the end of a lane; pages without a slot left go back. */
void tms_lane_shorten(tamis_cache *cache, tms_sequence *sequence, uint32_t lane, uint32_t slots);

/* Opens the cache's one step: every lane of every sequence grows by its rows and owns each page
 * that it will write. E_FULL, E_NO_MEMORY, or E_STATE if a step is open or bounds are mixed: then
 * nothing has changed. */
tamis_status tms_cache_reserve(tamis_cache *cache, const tms_growth *growth, uint32_t count,
                               const tms_copies *copies, tamis_error *error);

/* Closes the step and keeps what it wrote. */
void tms_cache_commit(tamis_cache *cache, const tms_growth *growth, uint32_t count);

/* Closes the step and takes its rows away. `copied` tells whether the copies have been enqueued; if
 * not, the lanes get the pages back that they shared, which only the call that reserved may ask. */
void tms_cache_rollback(tamis_cache *cache, const tms_growth *growth, uint32_t count, bool copied);

#endif
