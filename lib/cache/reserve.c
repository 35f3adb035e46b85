/* SPDX-License-Identifier: Apache-2.0 */
/* A step's pages: counted first, then taken, and taken back when the step is given up. */
#include "lib/cache/cache.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Makes the host's page lists long enough. Contents stay. */
static bool make_room(const tamis_cache *cache, tms_sequence *sequence, uint32_t rows) {
    uint32_t longest = 0;
    for (uint32_t lane = 0; lane < cache->n_lanes; lane++)
        if (sequence->lanes[lane].length > longest) longest = sequence->lanes[lane].length;
    uint32_t needed = tms_pages_of(cache, longest + rows), room = sequence->list_pages;
    if (needed <= room) return true;
    uint32_t grown = needed > 2 * room ? needed : 2 * room;
    int32_t *pages = calloc(cache->n_lanes, grown * sizeof *pages);
    if (!pages) return false;
    for (uint32_t lane = 0; lane < cache->n_lanes; lane++)
        memcpy(pages + (size_t)lane * grown, tms_lane_pages(sequence, lane), room * sizeof *pages);
    free(sequence->pages);
    sequence->pages = pages;
    sequence->list_pages = grown;
    return true;
}

/* Lets a lane go of its last page if that will be written and others hold it too: the lane must get
 * a copy. Of several such holders in one step the last may turn out to own the page. */
static bool let_go(const tamis_cache *cache, tms_pool *pool, tms_sequence *sequence,
                   uint32_t index) {
    tms_lane *lane = &sequence->lanes[index];
    lane->copied_from = -1;
    if (lane->length % cache->params.page_size == 0) return false;
    int32_t last = tms_lane_pages(sequence, index)[tms_pages_of(cache, lane->length) - 1];
    if (pool->pages.refs[last] == 1) return false;
    tms_pages_drop(&pool->pages, last);
    lane->copied_from = last;
    return true;
}

/* Undoes let_go for every lane of a pool. */
static void hold_again(const tamis_cache *cache, tms_pool *pool, const tms_growth *growth,
                       uint32_t count) {
    for (uint32_t index = tms_first_lane(cache, pool); index < tms_end_lane(cache, pool); index++)
        for (uint32_t i = 0; i < count; i++)
            if (growth[i].sequence->lanes[index].copied_from >= 0)
                tms_pages_hold(&pool->pages, growth[i].sequence->lanes[index].copied_from);
}

/* Pages of a pool that the step needs, after letting go of shared last pages. */
static uint64_t count_pages(const tamis_cache *cache, tms_pool *pool, const tms_growth *growth,
                            uint32_t count) {
    uint64_t needed = 0;
    for (uint32_t index = tms_first_lane(cache, pool); index < tms_end_lane(cache, pool); index++)
        for (uint32_t i = 0; i < count; i++) {
            uint32_t length = growth[i].sequence->lanes[index].length;
            needed += let_go(cache, pool, growth[i].sequence, index);
            needed += tms_pages_of(cache, length + growth[i].rows) - tms_pages_of(cache, length);
        }
    return needed;
}

/* Gives a lane its pages. True if the first of them is a copy, whose pair is then at `pair`. */
static bool extend(const tamis_cache *cache, tms_pool *pool, const tms_growth *growth,
                   uint32_t index, int32_t *pair) {
    tms_lane *lane = &growth->sequence->lanes[index];
    int32_t *list = tms_lane_pages(growth->sequence, index);
    uint32_t n = tms_pages_of(cache, lane->length);
    bool copied = lane->copied_from >= 0;
    if (copied) {
        list[n - 1] = tms_pages_take(&pool->pages, n > 1 ? list[n - 2] : -1);
        pair[0] = lane->copied_from;
        pair[1] = list[n - 1];
        growth->sequence->version++;
    }
    lane->length += growth->rows;
    for (uint32_t end = tms_pages_of(cache, lane->length); n < end; n++)
        list[n] = tms_pages_take(&pool->pages, n > 0 ? list[n - 1] : -1);
    return copied;
}

static void take_pages(tamis_cache *cache, const tms_growth *growth, uint32_t count,
                       const tms_copies *copies) {
    int32_t *pair = copies->pairs;
    for (uint32_t p = 0; p < cache->size.pools; p++) {
        tms_pool *pool = &cache->pools[p];
        copies->count[p] = 0;
        for (uint32_t index = tms_first_lane(cache, pool); index < tms_end_lane(cache, pool);
             index++)
            for (uint32_t i = 0; i < count; i++)
                if (extend(cache, pool, &growth[i], index, pair)) {
                    pair += 2;
                    copies->count[p]++;
                }
    }
}

static void mark(tamis_cache *cache, const tms_growth *growth, uint32_t count, bool open) {
    cache->step_open = open;
    for (uint32_t i = 0; i < count; i++)
        growth[i].sequence->in_step = open;
}

tamis_status tms_cache_reserve(tamis_cache *cache, const tms_growth *growth, uint32_t count,
                               const tms_copies *copies, tamis_error *error) {
    TMS_REQUIRE(!cache->step_open, TAMIS_E_STATE, "another step on the cache is open");
    TMS_REQUIRE(!cache->bounds_mixed, TAMIS_E_STATE,
                "tamis_cache_set_bounds failed half way to %s; it must be called again",
                tamis_bounds_name(cache->params.bounds.kind));
    for (uint32_t i = 0; i < count; i++)
        TMS_REQUIRE(make_room(cache, growth[i].sequence, growth[i].rows), TAMIS_E_NO_MEMORY,
                    "no host memory for the page lists of sequence %" PRIu64,
                    growth[i].sequence->id);
    for (uint32_t p = 0; p < cache->size.pools; p++) {
        tms_pool *pool = &cache->pools[p];
        uint64_t needed = count_pages(cache, pool, growth, count);
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

void tms_cache_commit(tamis_cache *cache, const tms_growth *growth, uint32_t count) {
    mark(cache, growth, count, false);
}

/* A lane gets the shared page back whose copy was never made. */
static void undo_copy(const tamis_cache *cache, tms_sequence *sequence, uint32_t index) {
    const tms_lane *lane = &sequence->lanes[index];
    if (lane->copied_from < 0) return;
    tms_pages *pages = &tms_cache_pool(cache, index / cache->params.n_kv_heads)->pages;
    int32_t *last = tms_lane_pages(sequence, index) + tms_pages_of(cache, lane->length) - 1;
    tms_pages_hold(pages, lane->copied_from);
    tms_pages_drop(pages, *last);
    *last = lane->copied_from;
    sequence->version++;
}

void tms_cache_rollback(tamis_cache *cache, const tms_growth *growth, uint32_t count, bool copied) {
    for (uint32_t i = 0; i < count; i++) {
        tms_sequence *sequence = growth[i].sequence;
        sequence->length -= growth[i].rows;
        for (uint32_t index = 0; index < cache->n_lanes; index++) {
            tms_lane_shorten(cache, sequence, index, growth[i].rows);
            if (!copied) undo_copy(cache, sequence, index);
        }
    }
    mark(cache, growth, count, false);
}
