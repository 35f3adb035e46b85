/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences: add, fork, truncate, remove; a seat for one that is restored. */
#include "lib/cache/cache.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

tms_sequence *tms_cache_find(const tamis_cache *cache, tamis_sequence id) {
    uint32_t index = (uint32_t)(id & TMS_UNLISTED);
    if (index >= cache->sequence_capacity) return NULL;
    tms_sequence *sequence = cache->sequences[index];
    return sequence && sequence->id == id ? sequence : NULL;
}

/* A free entry of the cache's array; UINT32_MAX if memory or the number of entries runs out. */
static uint32_t free_index(tamis_cache *cache) {
    uint32_t n = cache->sequence_capacity, index = 0;
    while (index < n && cache->sequences[index])
        index++;
    if (index < n) return index;
    uint32_t grown = n ? 2 * n : 8;
    if (grown > TMS_UNLISTED) return UINT32_MAX;
    tms_sequence **sequences = realloc(cache->sequences, grown * sizeof *sequences);
    if (!sequences) return UINT32_MAX;
    memset(sequences + n, 0, (grown - n) * sizeof *sequences);
    cache->sequences = sequences;
    cache->sequence_capacity = grown;
    return index;
}

/* An empty sequence, listed. */
static tms_sequence *new_sequence(tamis_cache *cache, uint32_t list_pages) {
    const uint32_t index = free_index(cache);
    tms_sequence *sequence = index < UINT32_MAX ? tms_sequence_new(cache, list_pages) : NULL;
    if (!sequence) return NULL;
    sequence->id = sequence->id - TMS_UNLISTED + index;
    cache->sequences[index] = sequence;
    cache->n_sequences++;
    return sequence;
}

tamis_status tamis_cache_add(tamis_cache *cache, tamis_sequence *out, tamis_error *error) {
    TMS_ENTER(cache);
    TMS_REQUIRE(cache, TAMIS_E_ARGUMENT, "cache is NULL");
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out is NULL");
    TMS_TRY(tms_view_refuse(cache, "tamis_cache_add", error));
    tms_sequence *sequence = new_sequence(cache, 4);
    TMS_REQUIRE(sequence, TAMIS_E_NO_MEMORY, "no host memory for a sequence beside %" PRIu32,
                cache->n_sequences);
    *out = sequence->id;
    return TAMIS_OK;
}

tamis_status tms_cache_find_still(const tamis_cache *cache, tamis_sequence id, tms_sequence **out,
                                  tamis_error *error) {
    TMS_REQUIRE(cache, TAMIS_E_ARGUMENT, "cache is NULL");
    *out = tms_cache_find(cache, id);
    TMS_REQUIRE(*out, TAMIS_E_ARGUMENT, "the cache has no sequence %" PRIu64, id);
    TMS_REQUIRE(!(*out)->in_step, TAMIS_E_STATE, "sequence %" PRIu64 " is in an open step", id);
    return TAMIS_OK;
}

tamis_status tms_cache_find_idle(const tamis_cache *cache, tamis_sequence id, tms_sequence **out,
                                 tamis_error *error) {
    TMS_TRY(tms_cache_find_still(cache, id, out, error));
    const tms_tree *tree = tms_tree_of(*out);
    TMS_REQUIRE(
        !(*out)->lost, TAMIS_E_STATE,
        "what sequence %" PRIu64
        " holds is not known since a call of the device failed that was to undo rows: it can only "
        "be removed",
        id);
    TMS_REQUIRE(!tree, TAMIS_E_STATE,
                "sequence %" PRIu64 " has a tree of %" PRIu32
                " rows: tamis_plan_keep_path chooses among them first",
                id, tree->n_rows);
    TMS_REQUIRE(!tms_journal_of(*out), TAMIS_E_STATE,
                "it is not known yet which of the last %" PRIu32 " rows of sequence %" PRIu64
                " stay: tamis_plan_keep_path says so first",
                (*out)->journal->length, id);
    return TAMIS_OK;
}

tamis_status tamis_cache_fork(tamis_cache *cache, tamis_sequence parent, tamis_sequence *out,
                              tamis_error *error) {
    TMS_ENTER(cache);
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out is NULL");
    tms_sequence *from = NULL;
    TMS_TRY(tms_cache_find_idle(cache, parent, &from, error));
    tms_sequence *to = new_sequence(cache, from->list_pages);
    TMS_REQUIRE(to, TAMIS_E_NO_MEMORY, "no host memory for a fork of sequence %" PRIu64, parent);
    memcpy(to->lanes, from->lanes, cache->n_lanes * sizeof *to->lanes);
    memcpy(to->pages, from->pages, (size_t)cache->n_lanes * from->list_pages * sizeof *to->pages);
    to->length = from->length;
    tms_history_fork(to, from);
    for (uint32_t lane = 0; lane < cache->n_lanes; lane++) {
        tms_pages *pages = &tms_cache_pool(cache, lane / cache->params.n_kv_heads)->pages;
        uint32_t n = tms_pages_of(cache, to->lanes[lane].length);
        for (uint32_t i = to->lanes[lane].gone; i < n; i++)
            tms_pages_hold(pages, tms_lane_pages(to, lane)[i]);
    }
    *out = to->id;
    return TAMIS_OK;
}

tamis_status tms_sequence_truncate(tamis_cache *cache, tms_sequence *s, uint32_t length,
                                   tamis_error *error) {
    const tamis_sequence sequence = s->id;
    TMS_REQUIRE(length <= s->length, TAMIS_E_ARGUMENT,
                "length %" PRIu32 " exceeds the %" PRIu32 " tokens of sequence %" PRIu64, length,
                s->length, sequence);
    TMS_REQUIRE(length >= s->evicted_at, TAMIS_E_STATE,
                "sequence %" PRIu64 " cannot go back to %" PRIu32 " tokens: tokens before %" PRIu32
                " have been evicted",
                sequence, length, s->evicted_at);
    TMS_REQUIRE(length >= s->shortest, TAMIS_E_STATE,
                "sequence %" PRIu64 " cannot go back to %" PRIu32 " tokens: the row at position %" PRIu32
                " would see tokens whose pages were given back; from %" PRIu32 " on it can",
                sequence, length, length, s->shortest);
    tms_sequence_shorten(cache, s, length);
    return TAMIS_OK;
}

tamis_status tamis_cache_truncate(tamis_cache *cache, tamis_sequence sequence, uint32_t length,
                                  tamis_error *error) {
    TMS_ENTER(cache);
    tms_sequence *s = NULL;
    TMS_TRY(tms_cache_find_idle(cache, sequence, &s, error));
    return tms_sequence_truncate(cache, s, length, error);
}

void tms_sequence_remove(tamis_cache *cache, tms_sequence *sequence) {
    tms_branches_end(cache, sequence);
    tms_journal_end(cache, sequence);
    for (uint32_t lane = 0; lane < cache->n_lanes; lane++)
        tms_lane_shorten(cache, sequence, lane, sequence->lanes[lane].length);
    cache->sequences[sequence->id & TMS_UNLISTED] = NULL;
    cache->n_sequences--;
    tms_sequence_free(sequence);
}

tamis_status tamis_cache_remove(tamis_cache *cache, tamis_sequence sequence, tamis_error *error) {
    TMS_ENTER(cache);
    tms_sequence *s = NULL;
    TMS_TRY(tms_cache_find_still(cache, sequence, &s, error));
    tms_sequence_remove(cache, s);
    return TAMIS_OK;
}

/* ---- Restored -------------------------------------------------------------------------------- */

/* Whether each pool has the pages of such lanes. */
static tamis_status check_room(const tamis_cache *cache, const tms_lane *lanes,
                               tamis_error *error) {
    for (uint32_t p = 0; p < cache->size.pools; p++) {
        const tms_pool *pool = &cache->pools[p];
        uint64_t needed = 0;
        for (uint32_t i = tms_first_lane(cache, pool); i < tms_end_lane(cache, pool); i++)
            needed += tms_pages_of(cache, lanes[i].length) - lanes[i].gone;
        TMS_REQUIRE(needed <= pool->pages.n_free, TAMIS_E_FULL,
                    "the saved sequence needs %" PRIu64 " pages in layers %" PRIu32 " to %" PRIu32
                    ", of which %" PRIu32 " are free",
                    needed, pool->first_layer, pool->first_layer + pool->n_layers - 1,
                    pool->pages.n_free);
    }
    return TAMIS_OK;
}

/* Takes the pages of a lane; entries of those that are gone stay 0. */
static void seat_lane(tamis_cache *cache, tms_sequence *sequence, uint32_t index,
                      const tms_lane *lane) {
    tms_pages *pages = &tms_cache_pool(cache, index / cache->params.n_kv_heads)->pages;
    int32_t *list = tms_lane_pages(sequence, index);
    const uint32_t end = tms_pages_of(cache, lane->length);
    for (uint32_t o = lane->gone; o < end; o++)
        list[o] = tms_pages_take(pages, o > lane->gone ? list[o - 1] : -1);
    sequence->lanes[index] = (tms_lane){.length = lane->length, .gone = lane->gone};
}

tamis_status tms_cache_seat(tamis_cache *cache, const tms_lane *lanes, tms_sequence **out,
                            tamis_error *error) {
    uint32_t longest = 1;
    TMS_TRY(tms_view_refuse(cache, "tamis_plan_restore", error));
    for (uint32_t i = 0; i < cache->n_lanes; i++)
        if (lanes[i].length > longest) longest = lanes[i].length;
    TMS_TRY(check_room(cache, lanes, error));
    tms_sequence *sequence = new_sequence(cache, tms_pages_of(cache, longest));
    TMS_REQUIRE(sequence, TAMIS_E_NO_MEMORY, "no host memory for a saved sequence beside %" PRIu32,
                cache->n_sequences);
    for (uint32_t i = 0; i < cache->n_lanes; i++)
        seat_lane(cache, sequence, i, &lanes[i]);
    sequence->in_step = true;
    *out = sequence;
    return TAMIS_OK;
}

tamis_status tamis_cache_length(const tamis_cache *cache, tamis_sequence sequence, uint32_t *length,
                                uint32_t *evicted_at, tamis_error *error) {
    TMS_ENTER(cache);
    TMS_REQUIRE(cache, TAMIS_E_ARGUMENT, "cache is NULL");
    const tms_sequence *s = tms_cache_find(cache, sequence);
    TMS_REQUIRE(s, TAMIS_E_ARGUMENT, "the cache has no sequence %" PRIu64, sequence);
    if (length) *length = s->length;
    if (evicted_at) *evicted_at = s->evicted_at;
    return TAMIS_OK;
}
