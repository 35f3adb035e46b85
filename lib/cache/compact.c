/* SPDX-License-Identifier: Apache-2.0 */
/* Compaction of a sequence's lanes between steps: the pages that kept slots move to, and the lists
 * afterwards. */
#include "lib/cache/cache.h"

#include <inttypes.h>

/* Pages at a lane's front that others hold too. */
static uint32_t count_shared(const tamis_cache *cache, const tms_pages *pages,
                             const tms_sequence *sequence, uint32_t lane, uint32_t slots) {
    const int32_t *list = tms_lane_pages(sequence, lane);
    uint32_t length = sequence->lanes[lane].length, n = 0;
    uint32_t end = tms_pages_of(cache, slots < length ? slots : length);
    for (uint32_t o = 0; o < end; o++)
        n += pages->refs[list[o]] > 1;
    return n;
}

tamis_status tms_cache_compact_check(const tamis_cache *cache, const tms_sequence *sequence,
                                     const uint32_t *most, tamis_error *error) {
    for (uint32_t p = 0; p < cache->size.pools; p++) {
        const tms_pool *pool = &cache->pools[p];
        uint64_t needed = 0;
        for (uint32_t lane = tms_first_lane(cache, pool); lane < tms_end_lane(cache, pool); lane++)
            needed += count_shared(cache, &pool->pages, sequence, lane, most[lane]);
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
            bool own = pages->refs[list[o]] == 1;
            to[o] = own ? list[o] : tms_pages_take(pages, o > 0 ? to[o - 1] : -1);
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
            if (o >= n || to[o] != list[o]) *returned += let_go(pages, list[o]);
            if (o < n) list[o] = to[o];
        }
        if (kept[h] < lane->length) sequence->evicted_at = sequence->length;
        lane->length = kept[h];
    }
    sequence->version++;
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
