/* SPDX-License-Identifier: Apache-2.0 */
/* The history of a sequence: cuts and forks, lost tokens, rows whose weights went to scores. Plans
 * ask it what they may assume of lanes and planes. */
#include "lib/cache/cache.h"

void tms_history_begin(tms_sequence *sequence) {
    sequence->cuts.n = 1;
    for (int keeper = 0; keeper < TMS_KEEPERS; keeper++)
        (void)tms_history_mark(sequence, (tms_keeper)keeper);
}

void tms_history_fork(tms_sequence *fork, const tms_sequence *parent) {
    fork->evicted_at = parent->evicted_at;
    fork->unordered = parent->unordered;
    fork->torn = parent->torn;
    fork->intact_from = parent->intact_from;
    fork->shortest = parent->shortest;
    fork->given_up = parent->given_up;
    fork->scored_by = parent->scored_by;
    fork->scored_newest = parent->scored_newest;
    fork->scored_to = parent->scored_to;
    fork->parent = parent->id;
    fork->forked_at = parent->length;
    fork->parent_cuts = parent->cuts;
}

static void forget_scores(tms_sequence *sequence) {
    sequence->scored_by = 0;
    sequence->scored_newest = false;
    sequence->scored_to = 0;
}

/* Sums keep the weights of rows that are truncated away. Scores that are the newest row's weights
 * become invalid when that row is truncated away. */
static void cut_scores(tms_sequence *sequence, uint32_t length) {
    if (length >= sequence->scored_to) return;
    if (sequence->scored_newest || length == 0)
        forget_scores(sequence);
    else
        sequence->scored_to = length;
}

void tms_history_cut(tms_sequence *sequence, uint32_t length) {
    sequence->length = length;
    sequence->cuts.n++;
    for (int keeper = 0; keeper < TMS_KEEPERS; keeper++)
        if (length < sequence->cuts.of[keeper].least) sequence->cuts.of[keeper].least = length;
    cut_scores(sequence, length);
}

uint64_t tms_history_mark(tms_sequence *sequence, tms_keeper keeper) {
    sequence->cuts.of[keeper].marked = sequence->cuts.n;
    sequence->cuts.of[keeper].least = UINT32_MAX;
    return sequence->cuts.n;
}

static uint32_t least_since(const tms_cuts *cuts, tms_keeper keeper, uint64_t mark) {
    if (cuts->n == mark) return UINT32_MAX;
    return cuts->of[keeper].marked <= mark ? cuts->of[keeper].least : 0;
}

uint32_t tms_history_cut_since(const tms_sequence *sequence, tms_keeper keeper, uint64_t mark) {
    return least_since(&sequence->cuts, keeper, mark);
}

uint32_t tms_history_parent_cut_since(const tms_sequence *fork, tms_keeper keeper, uint64_t mark) {
    return least_since(&fork->parent_cuts, keeper, mark);
}

bool tms_history_whole(const tms_sequence *sequence) {
    /* Where slots are recorded as torn, unordered or given up, lost tokens are recorded, too. */
    return sequence->evicted_at == 0;
}

void tms_history_evicted(tms_sequence *sequence, uint32_t tail) {
    uint32_t from = sequence->length > tail ? sequence->length - tail : 0;
    sequence->evicted_at = sequence->length;
    if (from > sequence->intact_from) sequence->intact_from = from;
}

void tms_history_replaced(tms_sequence *sequence) {
    tms_history_evicted(sequence, 0);
    sequence->unordered = true;
}

void tms_history_scored(tms_sequence *sequence, uint32_t by, bool newest, uint32_t rows,
                        bool whole) {
    const uint32_t first = whole ? sequence->length - rows : sequence->length;
    const bool goes_on = sequence->scored_by == by && sequence->scored_to == first;
    if (whole && (newest || first == 0 || goes_on)) {
        sequence->scored_by = by;
        sequence->scored_newest = newest;
        sequence->scored_to = sequence->length;
    } else if (newest || sequence->scored_by != by) {
        forget_scores(sequence); /* the plane now holds scores of mixed origin */
    }
}

uint32_t tms_history_scored_to(const tms_sequence *sequence, uint32_t by) {
    return sequence->scored_by == by ? sequence->scored_to : 0;
}
