/* SPDX-License-Identifier: Apache-2.0 */
/* Compaction of a sequence's lanes between steps: the pages to which kept slots move, and the page
 * lists afterwards. */
#include "lib/cache/cache.h"

#include <inttypes.h>

/* The number of pages at a lane's front that other lanes hold too. */
static uint32_t count_shared(const tamis_cache *cache, const tms_pages *pages,
                             const tms_sequence *sequence, uint32_t lane, uint32_t slots) {
    const int32_t *list = tms_lane_pages(sequence, lane);
    uint32_t length = sequence->lanes[lane].length, n = 0;
    uint32_t end = tms_pages_of(cache, slots < length ? slots : length);
    for (uint32_t o = 0; o < end; o++)
        n += pages->refs[list[o]] > 1;
    return n;
}

/* The number of new pages that consecutive lanes need: as many as they share, but no more than
 * their slots can fill. */
static uint64_t count_fresh(const tamis_cache *cache, const tms_pages *pages,
                            const tms_sequence *sequence, const tms_keeping *keeping,
                            uint32_t first, uint32_t end) {
    const uint64_t partial = cache->params.page_size - 1u;
    uint64_t shared = 0, slots = keeping->together ? keeping->together[first / keeping->run] : 0;
    for (uint32_t lane = first; lane < end; lane++)
        shared += count_shared(cache, pages, sequence, lane, keeping->most[lane]);
    if (!keeping->together) return shared;
    const uint64_t filled = (slots + (end - first) * partial) / cache->params.page_size;
    return shared < filled ? shared : filled;
}

tamis_status tms_cache_compact_check(const tamis_cache *cache, const tms_sequence *sequence,
                                     const tms_keeping *keeping, tamis_error *error) {
    for (uint32_t p = 0; p < cache->size.pools; p++) {
        const tms_pool *pool = &cache->pools[p];
        uint64_t needed = 0;
        for (uint32_t first = tms_first_lane(cache, pool), end; first < tms_end_lane(cache, pool);
             first = end) {
            end = (first / keeping->run + 1) * keeping->run;
            if (end > tms_end_lane(cache, pool)) end = tms_end_lane(cache, pool);
            needed += count_fresh(cache, &pool->pages, sequence, keeping, first, end);
        }
        TMS_REQUIRE(needed <= pool->pages.n_free, TAMIS_E_FULL,
                    "the eviction needs copies of %" PRIu64 " shared pages in layers %" PRIu32
                    " to %" PRIu32 ", for which %" PRIu32 " are free",
                    needed, pool->first_layer, pool->first_layer + pool->n_layers - 1,
                    pool->pages.n_free);
    }
    return TAMIS_OK;
}

void tms_cache_compact_pages(tamis_cache *cache, tms_sequence *sequence, uint32_t layer,
                             const uint32_t *kept, int32_t *to, uint64_t stride) {
    tms_pages *pages = &tms_cache_pool(cache, layer)->pages;
    uint32_t heads = cache->params.n_kv_heads;
    for (uint32_t h = 0; h < heads; h++, to += stride) {
        const int32_t *list = tms_lane_pages(sequence, layer * heads + h);
        uint32_t n = tms_pages_of(cache, kept[h]);
        for (uint32_t o = 0; o < n; o++) {
            /* A lane that keeps all stays as it is. */
            bool stays =
                pages->refs[list[o]] == 1 || kept[h] == sequence->lanes[layer * heads + h].length;
            to[o] = stays ? list[o] : tms_pages_take(pages, o > 0 ? to[o - 1] : -1);
        }
    }
}

/* Drops a page; 1 if it became free. */
static uint64_t let_go(tms_pages *pages, int32_t page) {
    tms_pages_drop(pages, page);
    return pages->refs[page] == 0;
}

void tms_cache_compact_commit(tamis_cache *cache, tms_sequence *sequence, uint32_t layer,
                              const uint32_t *kept, const int32_t *to, uint64_t stride,
                              uint64_t *returned) {
    tms_pages *pages = &tms_cache_pool(cache, layer)->pages;
    uint32_t heads = cache->params.n_kv_heads;
    for (uint32_t h = 0; h < heads; h++, to += stride) {
        tms_lane *lane = &sequence->lanes[layer * heads + h];
        int32_t *list = tms_lane_pages(sequence, layer * heads + h);
        uint32_t n = tms_pages_of(cache, kept[h]), end = tms_pages_of(cache, lane->length);
        for (uint32_t o = 0; o < end; o++) {
            if (o >= n || to[o] != list[o]) {
                tms_changes_note(&sequence->changes, o);
                *returned += let_go(pages, list[o]);
            }
            if (o < n) list[o] = to[o];
        }
        if (kept[h] < lane->length) sequence->evicted_at = sequence->length;
        lane->length = kept[h];
    }
}

void tms_cache_compact_undo(tamis_cache *cache, tms_sequence *sequence, uint32_t layer,
                            const uint32_t *kept, const int32_t *to, uint64_t stride) {
    tms_pages *pages = &tms_cache_pool(cache, layer)->pages;
    uint32_t heads = cache->params.n_kv_heads;
    for (uint32_t h = 0; h < heads; h++, to += stride) {
        const int32_t *list = tms_lane_pages(sequence, layer * heads + h);
        uint32_t n = tms_pages_of(cache, kept[h]);
        for (uint32_t o = 0; o < n; o++)
            if (to[o] != list[o]) tms_pages_drop(pages, to[o]);
    }
}
