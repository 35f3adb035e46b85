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
    /* [pages][page_size], 4 bytes a slot; NULL where the cache lacks the plane. */
    tms_mem *positions, *scores;
    uint32_t first_layer, n_layers;
    tms_pages pages;
} tms_pool;

/* The tokens of one (sequence, layer, KV head). Its list has ceil(length / page_size) pages. */
typedef struct tms_lane {
    uint32_t length; /* slots */
    uint32_t grown;  /* slots, by the latest reserve */
} tms_lane;

/* Cuts: tokens that were taken off a sequence's end. */
typedef struct tms_cuts {
    uint64_t n; /* from 1 on; grows with every cut */
    /* The least length that the sequence has had since n was `marked`; UINT32_MAX: not cut since. */
    uint64_t marked;
    uint32_t least;
} tms_cuts;

/* Lanes are numbered layer * n_kv_heads + KV head. */
typedef struct tms_sequence {
    tamis_sequence id;
    uint32_t length; /* tokens: the next position */
    /* What has happened to it, see history.c. */
    uint32_t evicted_at; /* length when a lane lost a token last; 0: none has */
    bool unordered;      /* some lane's slots are not in the order of their tokens */
    /* What the layers hold does not belong together: a call that chose among the slots of all of
     * them failed half way. */
    bool torn;
    /* Every lane ends with all tokens from that position on, in their order; at most evicted_at. */
    uint32_t intact_from;
    /* Not 0: lanes of so many slots may hold rows of a step that was given up, until the next step
     * under the same cap overwrites them. */
    uint32_t given_up;
    /* Whose scores stand in the plane of scores: those of `scored_by`, a number of the plan's, for
     * the weights of all rows below scored_to; of the newest of them alone, if scored_newest. */
    uint32_t scored_by; /* 0: nobody's */
    bool scored_newest;
    uint32_t scored_to;
    tms_cuts cuts;
    tamis_sequence parent; /* that it was forked from; 0: it was added */
    uint32_t forked_at;    /* the parent's length, */
    tms_cuts parent_cuts;  /* and its cuts, then */
    uint64_t version;      /* from 1 on; grows when an entry of a page list changes or goes */
    bool in_step;
    tms_lane *lanes; /* [n_lanes] */
    int32_t *pages;  /* [n_lanes][list_pages] */
    uint32_t list_pages;
} tms_sequence;

/* What one sequence gains in a step. A lane that has no room left below its cap for all of the rows
 * stays at it, and the step may overwrite any of its slots. */
typedef struct tms_growth {
    tms_sequence *sequence;
    uint32_t rows;
    uint32_t cap; /* slots that a lane may have; UINT32_MAX: no limit. Where it binds, rows is 1 */
    bool scores;  /* the step changes the scores of all slots: no page stays shared */
} tms_growth;

/* Copies that a reserve asks for before anything is written: pairs (from, to) of page ids, the
 * first pool's first. Room for tms_copies_room pairs; without caps, for every lane of every
 * sequence of the step. */
typedef struct tms_copies {
    int32_t *pairs;
    uint32_t *count; /* [pools] */
} tms_copies;

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
    tms_copies copies; /* of the latest reserve, for a rollback that finds them not made */
    /* Bounds of full pages are not those of their keys, or of another kind, since a call failed: no
     * step may begin before they have all been computed anew. */
    bool bounds_missing;
    uint64_t bounds_serial; /* from 1 on; grows with every change of what bounds hold */
};

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

/* Pages that no lane holds, of all pools. */
uint64_t tms_cache_free_pages(const tamis_cache *cache);

/* The pool of a layer. */
tms_pool *tms_cache_pool(const tamis_cache *cache, uint32_t layer);

/* A layer's memory as the ops see it. */
tms_kv tms_cache_kv(const tamis_cache *cache, uint32_t layer);

/* The planes of a layer's pages; those that the cache lacks are absent. */
tms_planes tms_cache_planes(const tamis_cache *cache, uint32_t layer);

/* A launch of bounds on a layer's pages, which are still to be given, with the cache's kind. */
tms_bounds tms_cache_bounds(const tamis_cache *cache, uint32_t layer);

/* E_STATE if bounds are missing. */
tamis_status tms_cache_check_bounds(const tamis_cache *cache, tamis_error *error);

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

/* ---- History of a sequence (history.c) ------------------------------------------------------- */

/* A new sequence's; a fork's, which goes on from its parent's. */
void tms_history_begin(tms_sequence *sequence);
void tms_history_fork(tms_sequence *fork, const tms_sequence *parent);

/* The sequence ends at `length`, at most its present one; its lanes are the caller's. */
void tms_history_cut(tms_sequence *sequence, uint32_t length);

/* A mark for those who remember rows of a sequence: asks for cuts from now on. Above 0. */
uint64_t tms_history_mark(tms_sequence *sequence);
/* The least length that the sequence has had since it gave the mark; 1: since it began. UINT32_MAX:
 * not cut since; 0: not known, another mark was given meanwhile. */
uint32_t tms_history_cut_since(const tms_sequence *sequence, uint64_t mark);
/* The same of a fork's parent, up to the fork; since then it may have been cut again. */
uint32_t tms_history_parent_cut_since(const tms_sequence *fork, uint64_t mark);

/* Between steps, lanes have lost tokens, but none of their last `tail` ones. */
void tms_history_evicted(tms_sequence *sequence, uint32_t tail);
/* In a step the newest row, or one that was given up, has overwritten tokens of lanes. */
void tms_history_replaced(tms_sequence *sequence);

/* The latest `rows` rows gave their weights to the plane of scores, by the plan's number `by`;
 * `whole`: in every layer, and they stay. newest: in place of what was there, else added to it. */
void tms_history_scored(tms_sequence *sequence, uint32_t by, bool newest, uint32_t rows,
                        bool whole);
/* Positions below the result have scores by that number. */
uint32_t tms_history_scored_to(const tms_sequence *sequence, uint32_t by);

/* ---- Steps ----------------------------------------------------------------------------------- */

/* Takes `slots` off the end of a lane; pages without a slot left go back. */
void tms_lane_shorten(tamis_cache *cache, tms_sequence *sequence, uint32_t lane, uint32_t slots);

/* Pairs that a step under a cap may copy: every page of every lane of so many sequences, whose
 * lanes have at most `max_context` slots. */
uint64_t tms_copies_room(const tamis_cache *cache, uint32_t sequences, uint32_t max_context);

/* Opens the cache's one step: every lane of every sequence grows by its rows, or up to its cap, and
 * owns each page that it will write: all of them where it stays at the cap. E_FULL, E_NO_MEMORY, or
 * E_STATE if a step is open or bounds are missing: then nothing has changed. */
tamis_status tms_cache_reserve(tamis_cache *cache, const tms_growth *growth, uint32_t count,
                               const tms_copies *copies, tamis_error *error);

/* What a step would take of the pages of all pools. */
typedef struct tms_demand {
    uint64_t needed, copied; /* copied are among the needed */
    uint64_t missing;        /* the pools' shortages, each by itself */
} tms_demand;

/* What tms_cache_reserve would take now. Nothing has changed when it returns. */
tms_demand tms_cache_demand(tamis_cache *cache, const tms_growth *growth, uint32_t count);

/* Closes the step and keeps what it wrote. Where a lane stayed at its cap, tokens have gone. */
void tms_cache_commit(tamis_cache *cache, const tms_growth *growth, uint32_t count);

/* Closes the step and takes its rows away. `copied` tells whether the copies have been enqueued; if
 * not, the lanes get the pages back that they shared, which only the call that reserved may ask. If
 * rows were written, lanes at their cap have lost a token: tms_history_replaced is the caller's. */
void tms_cache_rollback(tamis_cache *cache, const tms_growth *growth, uint32_t count, bool copied);

/* Compaction, between steps: the kept slots of one sequence's lanes move to the front, layer after
 * layer. Pages that other sequences hold too are not written: their place in the lane gets a fresh
 * page, unless the lane keeps all. The order is check, once; then for each layer pages, the
 * device's compact, commit or undo.
 *   kept  [n_kv_heads] slots that a layer's lanes keep, at most their length
 *   to    [n_kv_heads][stride] page ids for as many slots */

/* Bounds of what lanes will keep. */
typedef struct tms_keeping {
    const uint32_t *most; /* [n_lanes] slots of a lane that loses some; 0: it loses none */
    /* Slots of each run of `run` lanes in all, [n_lanes / run]; NULL: no other bound than most. */
    const uint64_t *together;
    uint32_t run;
} tms_keeping;

/* E_FULL if the fresh pages for the most are not there; changes nothing. */
tamis_status tms_cache_compact_check(const tamis_cache *cache, const tms_sequence *sequence,
                                     const tms_keeping *keeping, tamis_error *error);

/* Fills `to`: a lane's own pages stay in their place, fresh ones are taken where it shares. The
 * lists do not change yet. */
void tms_cache_compact_pages(tamis_cache *cache, tms_sequence *sequence, uint32_t layer,
                             const uint32_t *kept, int32_t *to, uint64_t stride);

/* The device has the kept slots in the pages of `to`: they are the lanes' lists from now on. Adds
 * to *returned the pages that became free. */
void tms_cache_compact_commit(tamis_cache *cache, tms_sequence *sequence, uint32_t layer,
                              const uint32_t *kept, const int32_t *to, uint64_t stride,
                              uint64_t *returned);

/* In place of a commit: gives the fresh pages back. */
void tms_cache_compact_undo(tamis_cache *cache, tms_sequence *sequence, uint32_t layer,
                            const uint32_t *kept, const int32_t *to, uint64_t stride);

#endif
