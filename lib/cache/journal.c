/* SPDX-License-Identifier: Apache-2.0 */
/* Journals: slots for what rows replace, and a sequence whose last rows have been undone. */
#include "lib/cache/cache.h"

tms_sequence *tms_journal_begin(tamis_cache *cache, tms_sequence *sequence) {
    if (!sequence->journal) sequence->journal = tms_sequence_new(cache, 1);
    if (sequence->journal) sequence->journal->trunk = sequence;
    return sequence->journal;
}

void tms_journal_end(tamis_cache *cache, tms_sequence *sequence) {
    tms_sequence *journal = tms_journal_of(sequence);
    for (uint32_t lane = 0; journal && lane < cache->n_lanes; lane++)
        tms_lane_shorten(cache, journal, lane, journal->lanes[lane].length);
    if (journal) tms_history_cut(journal, 0);
}

/* The history after the rows that stay. */
static void return_history(tms_sequence *sequence, const tms_past *before, uint32_t kept,
                           bool replaced) {
    const tms_past after = tms_history_give(sequence);
    tms_past now = *before;
    tms_history_cut(sequence, before->length + kept);
    now.length = before->length + kept;
    if (kept > 0) {
        now.given_up = 0;
        now.scored_by = after.scored_by;
        now.scored_newest = after.scored_newest;
        now.scored_to = after.scored_to == after.length ? now.length : after.scored_to;
    }
    tms_history_take(sequence, &now);
    sequence->stepped_from = before->length;
    if (replaced) tms_history_replaced(sequence);
}

void tms_journal_return(tamis_cache *cache, tms_sequence *sequence, const tms_past *before,
                        uint32_t kept) {
    bool replaced = false;
    for (uint32_t lane = 0; lane < cache->n_lanes; lane++) {
        const uint32_t grown = sequence->lanes[lane].grown, stays = grown < kept ? grown : kept;
        tms_lane_shorten(cache, sequence, lane, grown - stays);
        sequence->lanes[lane].grown = stays;
        replaced |= grown < kept;
    }
    return_history(sequence, before, kept, replaced);
}
