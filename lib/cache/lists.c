/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences in the host's memory: their page lists, which grow, and lanes that become shorter. */
#include "lib/cache/cache.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Sequences that the process has had, in all caches, so that no two of them ever have one id: a
 * cache does not know the handles of another, nor of one that was destroyed. */
static _Atomic uint64_t serial;

/* ---- Memory ---------------------------------------------------------------------------------- */

static void free_tree(tms_tree *tree) {
    if (!tree) return;
    for (uint32_t i = 1; i < tree->n_made; i++)
        tms_sequence_free(tree->branches[i]);
    free(tree->branches);
    free(tree->parent);
    free(tree->depth);
    free(tree->branch);
    free(tree);
}

void tms_sequence_free(tms_sequence *sequence) {
    if (!sequence) return;
    free_tree(sequence->tree);
    tms_sequence_free(sequence->journal);
    free(sequence->lanes);
    free(sequence->pages);
    free(sequence);
}

tms_sequence *tms_sequence_new(const tamis_cache *cache, uint32_t list_pages) {
    tms_sequence *sequence = calloc(1, sizeof *sequence);
    if (!sequence) return NULL;
    sequence->lanes = calloc(cache->n_lanes, sizeof *sequence->lanes);
    sequence->pages = calloc(cache->n_lists, list_pages * sizeof *sequence->pages);
    if (!sequence->lanes || !sequence->pages) {
        tms_sequence_free(sequence);
        return NULL;
    }
    tms_changes_begin(&sequence->changes);
    tms_history_begin(sequence);
    sequence->list_pages = list_pages;
    sequence->one_list = cache->view != NULL;
    sequence->id = (atomic_fetch_add(&serial, 1) + 1) << 24 | TMS_UNLISTED;
    return sequence;
}

bool tms_sequence_make_room(const tamis_cache *cache, tms_sequence *sequence, uint32_t longest) {
    const uint32_t room = sequence->list_pages, needed = tms_pages_of(cache, longest);
    if (needed <= room) return true;
    uint32_t grown = needed > 2 * room ? needed : 2 * room;
    int32_t *pages = calloc(cache->n_lists, grown * sizeof *pages);
    if (!pages) return false;
    for (uint32_t lane = 0; lane < cache->n_lists; lane++)
        memcpy(pages + (size_t)lane * grown, tms_lane_pages(sequence, lane), room * sizeof *pages);
    free(sequence->pages);
    sequence->pages = pages;
    sequence->list_pages = grown;
    return true;
}

/* ---- Shorter lanes --------------------------------------------------------------------------- */

void tms_lane_shorten(tamis_cache *cache, tms_sequence *sequence, uint32_t lane, uint32_t slots) {
    tms_pages *pages = &tms_cache_pool(cache, lane / cache->params.n_kv_heads)->pages;
    const int32_t *list = tms_lane_pages(sequence, lane);
    uint32_t n = tms_pages_of(cache, sequence->lanes[lane].length);
    sequence->lanes[lane].length -= slots;
    uint32_t kept = tms_pages_of(cache, sequence->lanes[lane].length);
    if (kept < sequence->lanes[lane].gone) kept = sequence->lanes[lane].gone; /* it is removed */
    if (n > kept) tms_changes_note(&sequence->changes, kept);
    while (n > kept)
        tms_pages_drop(pages, list[--n]);
}

void tms_lane_give_back(tamis_cache *cache, tms_sequence *sequence, uint32_t lane, uint32_t slot,
                        uint32_t shortest) {
    tms_pages *pages = &tms_cache_pool(cache, lane / cache->params.n_kv_heads)->pages;
    const int32_t *list = tms_lane_pages(sequence, lane);
    const uint32_t end = slot / cache->params.page_size;
    uint32_t *gone = &sequence->lanes[lane].gone;
    if (end <= *gone) return;
    while (*gone < end)
        tms_pages_drop(pages, list[(*gone)++]);
    if (shortest > sequence->shortest) sequence->shortest = shortest;
}

void tms_sequence_shorten(tamis_cache *cache, tms_sequence *sequence, uint32_t length) {
    for (uint32_t lane = 0; lane < cache->n_lanes; lane++)
        tms_lane_shorten(cache, sequence, lane, sequence->length - length);
    tms_history_cut(sequence, length);
}
