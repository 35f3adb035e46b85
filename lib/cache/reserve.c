/* SPDX-License-Identifier: Apache-2.0 */
/* The pages of a step: they are counted first, then taken, and freed again if the step is
 * cancelled. */
#include "lib/cache/cache.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The slots that a lane gains: its rows, but none above its cap. */
static uint32_t gain(const tms_growth *growth, uint32_t index) {
    uint32_t length = growth->sequence->lanes[index].length;
    uint32_t room = length < growth->cap ? growth->cap - length : 0;
    return growth->rows < room ? growth->rows : room;
}

/* Makes the lists long enough. */
static bool make_room(const tamis_cache *cache, const tms_growth *growth) {
    uint32_t longest = 0;
    for (uint32_t lane = 0; lane < cache->n_lanes; lane++) {
        const uint32_t length = growth->sequence->lanes[lane].length + gain(growth, lane);
        if (length > longest) longest = length;
    }
    return tms_sequence_make_room(cache, growth->sequence, longest);
}

/* The index of the first page of a lane that the step may write. If the lane stays at its cap, or
 * if the step changes scores, it is 0; else the index of the partial last page, or, if the last
 * page is full, of the page after it. */
static uint32_t first_written(const tamis_cache *cache, const tms_growth *growth, uint32_t index) {
    if (growth->scores || gain(growth, index) < growth->rows) return 0; /* no page is gone there */
    return growth->sequence->lanes[index].length / cache->params.page_size;
}

/* Releases those shared pages of a lane that the step will write. The lane must get copies of them;
 * until then its list holds their inverted ids (~id, below 0). If all holders of a page are in the
 * step, the last of them keeps it. Returns the number of copies. */
static uint32_t let_go(const tamis_cache *cache, tms_pages *pages, const tms_growth *growth,
                       uint32_t index) {
    int32_t *list = tms_lane_pages(growth->sequence, index);
    uint32_t end = tms_pages_of(cache, growth->sequence->lanes[index].length), n = 0;
    if (pages->n_shared == 0) return 0; /* so that steps at a cap do not look at every page */
    for (uint32_t o = first_written(cache, growth, index); o < end; o++) {
        if (pages->refs[list[o]] == 1) continue;
        tms_pages_drop(pages, list[o]);
        list[o] = ~list[o];
        n++;
    }
    return n;
}

/* Reverses let_go for every lane of a pool. */
static void hold_again(const tamis_cache *cache, tms_pool *pool, const tms_growth *growth,
                       uint32_t count) {
    for (uint32_t index = tms_first_lane(cache, pool); index < tms_end_lane(cache, pool); index++)
        for (uint32_t i = 0; i < count; i++) {
            int32_t *list = tms_lane_pages(growth[i].sequence, index);
            uint32_t end = tms_pages_of(cache, growth[i].sequence->lanes[index].length);
            for (uint32_t o = first_written(cache, &growth[i], index); o < end; o++) {
                if (list[o] >= 0) continue;
                list[o] = ~list[o];
                tms_pages_hold(&pool->pages, list[o]);
            }
        }
}

/* The number of pages of a pool that the step needs, after let_go; *copied of them are for copies
 * of shared pages. */
static uint64_t count_pages(const tamis_cache *cache, tms_pool *pool, const tms_growth *growth,
                            uint32_t count, uint32_t *copied) {
    uint64_t needed = 0;
    *copied = 0;
    for (uint32_t index = tms_first_lane(cache, pool); index < tms_end_lane(cache, pool); index++)
        for (uint32_t i = 0; i < count; i++) {
            uint32_t length = growth[i].sequence->lanes[index].length;
            uint32_t end = length + gain(&growth[i], index);
            *copied += let_go(cache, &pool->pages, &growth[i], index);
            needed += tms_pages_of(cache, end) - tms_pages_of(cache, length);
        }
    return needed + *copied;
}

tms_demand tms_cache_demand(tamis_cache *cache, const tms_growth *growth, uint32_t count) {
    tms_demand demand = {0};
    for (uint32_t p = 0; p < cache->size.pools; p++) {
        tms_pool *pool = &cache->pools[p];
        uint32_t copied = 0;
        uint64_t needed = count_pages(cache, pool, growth, count, &copied);
        hold_again(cache, pool, growth, count);
        demand.needed += needed;
        demand.copied += copied;
        if (needed > pool->pages.n_free) demand.missing += needed - pool->pages.n_free;
    }
    return demand;
}

/* Gives a lane new pages in the place of those that let_go released. Writes the pairs (from, to) at
 * `pair` and returns the address after the last of them. */
static int32_t *replace_shared(const tamis_cache *cache, tms_pages *pages, const tms_growth *growth,
                               uint32_t index, int32_t *pair) {
    int32_t *list = tms_lane_pages(growth->sequence, index);
    uint32_t n = tms_pages_of(cache, growth->sequence->lanes[index].length);
    for (uint32_t o = first_written(cache, growth, index); o < n; o++) {
        if (list[o] >= 0) continue;
        pair[0] = ~list[o];
        pair[1] = list[o] = tms_pages_take(pages, o > 0 ? list[o - 1] : -1);
        pair += 2;
        tms_changes_note(&growth->sequence->changes, o);
    }
    return pair;
}

static void extend(const tamis_cache *cache, tms_pages *pages, const tms_growth *growth,
                   uint32_t index) {
    tms_lane *lane = &growth->sequence->lanes[index];
    int32_t *list = tms_lane_pages(growth->sequence, index);
    uint32_t n = tms_pages_of(cache, lane->length);
    lane->grown = gain(growth, index);
    lane->length += lane->grown;
    for (uint32_t end = tms_pages_of(cache, lane->length); n < end; n++)
        list[n] = tms_pages_take(pages, n > 0 ? list[n - 1] : -1);
}

static void take_pages(tamis_cache *cache, const tms_growth *growth, uint32_t count,
                       const tms_copies *copies) {
    int32_t *pair = copies->pairs;
    for (uint32_t p = 0; p < cache->size.pools; p++) {
        tms_pool *pool = &cache->pools[p];
        for (uint32_t index = tms_first_lane(cache, pool); index < tms_end_lane(cache, pool);
             index++)
            for (uint32_t i = 0; i < count; i++) {
                if (copies->count[p] > 0)
                    pair = replace_shared(cache, &pool->pages, &growth[i], index, pair);
                extend(cache, &pool->pages, &growth[i], index);
            }
    }
    cache->copies = *copies;
}

uint64_t tms_copies_room(const tamis_cache *cache, uint32_t sequences, uint32_t max_context) {
    return (uint64_t)sequences * cache->n_lanes * tms_pages_of(cache, max_context);
}

static void mark(tamis_cache *cache, const tms_growth *growth, uint32_t count, bool open) {
    cache->step_open = open;
    for (uint32_t i = 0; i < count; i++)
        growth[i].sequence->in_step = open;
}

tamis_status tms_cache_reserve(tamis_cache *cache, const tms_growth *growth, uint32_t count,
                               const tms_copies *copies, tamis_error *error) {
    TMS_REQUIRE(!cache->step_open, TAMIS_E_STATE, "another step on the cache is open");
    TMS_TRY(tms_cache_check_bounds(cache, error));
    for (uint32_t i = 0; i < count; i++)
        TMS_REQUIRE(make_room(cache, &growth[i]), TAMIS_E_NO_MEMORY,
                    "no host memory for the page lists of sequence %" PRIu64,
                    growth[i].sequence->id);
    for (uint32_t p = 0; p < cache->size.pools; p++) {
        tms_pool *pool = &cache->pools[p];
        uint64_t needed = count_pages(cache, pool, growth, count, &copies->count[p]);
        if (needed <= pool->pages.n_free) continue;
        for (uint32_t undo = 0; undo <= p; undo++)
            hold_again(cache, &cache->pools[undo], growth, count);
        return tms_error_set(error, TAMIS_E_FULL,
                             "the step needs %" PRIu64 " pages in layers %" PRIu32 " to %" PRIu32
                             ", of which %" PRIu32 " are free",
                             needed, pool->first_layer, pool->first_layer + pool->n_layers - 1,
                             pool->pages.n_free);
    }
    take_pages(cache, growth, count, copies);
    for (uint32_t i = 0; i < count; i++)
        growth[i].sequence->length += growth[i].rows;
    mark(cache, growth, count, true);
    return TAMIS_OK;
}

/* Whether some lane had no room for all rows of the step. */
static bool lane_stayed(const tamis_cache *cache, const tms_growth *growth) {
    bool stayed = false;
    for (uint32_t index = 0; index < cache->n_lanes; index++)
        stayed |= growth->sequence->lanes[index].grown < growth->rows;
    return stayed;
}

void tms_cache_commit(tamis_cache *cache, const tms_growth *growth, uint32_t count) {
    for (uint32_t i = 0; i < count && !cache->view; i++) {
        if (lane_stayed(cache, &growth[i])) tms_history_replaced(growth[i].sequence);
        growth[i].sequence->given_up = 0;
        growth[i].sequence->stepped_from = growth[i].sequence->length - growth[i].rows;
    }
    mark(cache, growth, count, false);
}

/* Gives a lane back the shared pages whose copies were never made. `pair` points to the first of
 * the lane's pairs; pairs are in the order in which pages were taken. Returns the first pair of the
 * next lane. */
static const int32_t *undo_copies(const tamis_cache *cache, tms_pages *pages,
                                  tms_sequence *sequence, uint32_t index, const int32_t *pair,
                                  const int32_t *end) {
    int32_t *list = tms_lane_pages(sequence, index);
    uint32_t n = tms_pages_of(cache, sequence->lanes[index].length);
    for (uint32_t o = sequence->lanes[index].gone; o < n && pair < end; o++) {
        if (list[o] != pair[1]) continue;
        tms_pages_hold(pages, pair[0]);
        tms_pages_drop(pages, pair[1]);
        list[o] = pair[0];
        pair += 2;
        tms_changes_note(&sequence->changes, o);
    }
    return pair;
}

static void give_shared_back(tamis_cache *cache, const tms_growth *growth, uint32_t count) {
    const int32_t *pair = cache->copies.pairs;
    for (uint32_t p = 0; p < cache->size.pools; p++) {
        tms_pool *pool = &cache->pools[p];
        const int32_t *end = pair + 2 * (size_t)cache->copies.count[p];
        for (uint32_t index = tms_first_lane(cache, pool); index < tms_end_lane(cache, pool);
             index++)
            for (uint32_t i = 0; i < count; i++)
                pair = undo_copies(cache, &pool->pages, growth[i].sequence, index, pair, end);
    }
}

void tms_cache_rollback(tamis_cache *cache, const tms_growth *growth, uint32_t count, bool copied) {
    for (uint32_t i = 0; i < count && !cache->view; i++) {
        tms_sequence *sequence = growth[i].sequence;
        tms_history_cut(sequence, sequence->length - growth[i].rows);
        for (uint32_t index = 0; index < cache->n_lanes; index++) {
            tms_lane_shorten(cache, sequence, index, sequence->lanes[index].grown);
            sequence->lanes[index].grown = 0;
        }
    }
    if (!copied) give_shared_back(cache, growth, count);
    mark(cache, growth, count, false);
}
