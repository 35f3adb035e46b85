/* SPDX-License-Identifier: Apache-2.0 */
/* What has happened to a sequence: cuts and forks, tokens that went, rows that gave scores. Plans
 * ask it what they may take for granted of lanes and planes. */
#include "lib/cache/cache.h"

void tms_history_begin(tms_sequence *sequence) {
    sequence->edits = sequence->low_since = 1;
    sequence->low = UINT32_MAX;
}

void tms_history_fork(tms_sequence *fork, const tms_sequence *parent) {
    fork->evicted_at = parent->evicted_at;
    fork->unordered = parent->unordered;
    fork->torn = parent->torn;
    fork->intact_from = parent->intact_from;
    fork->given_up = parent->given_up;
    fork->fed_by = parent->fed_by;
    fork->fed_newest = parent->fed_newest;
    fork->fed_to = parent->fed_to;
    fork->parent = parent->id;
    fork->forked_at = parent->length;
    fork->parent_edits = parent->edits;
    fork->parent_low_since = parent->low_since;
    fork->parent_low = parent->low;
}

static void forget_scores(tms_sequence *sequence) {
    sequence->fed_by = TAMIS_EVICT_NONE;
    sequence->fed_newest = false;
    sequence->fed_to = 0;
}

/* Sums keep what the rows gave that are taken away. The newest row's weights are worth nothing
 * without that row. */
static void cut_scores(tms_sequence *sequence, uint32_t length) {
    if (length >= sequence->fed_to) return;
    if (sequence->fed_newest || length == 0)
        forget_scores(sequence);
    else
        sequence->fed_to = length;
}

void tms_history_cut(tms_sequence *sequence, uint32_t length) {
    sequence->length = length;
    sequence->edits++;
    if (length < sequence->low) sequence->low = length;
    cut_scores(sequence, length);
}

uint32_t tms_history_least(const tms_sequence *sequence, uint64_t then) {
    if (sequence->edits == then) return UINT32_MAX;
    return sequence->low_since <= then ? sequence->low : 0;
}

uint32_t tms_history_parents_least(const tms_sequence *fork, uint64_t then) {
    if (fork->parent_edits == then) return UINT32_MAX;
    return fork->parent_low_since <= then ? fork->parent_low : 0;
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

void tms_history_fed(tms_sequence *sequence, tamis_eviction_kind kind, bool newest, uint32_t rows,
                     bool whole) {
    const uint32_t first = whole ? sequence->length - rows : sequence->length;
    const bool goes_on = sequence->fed_by == kind && sequence->fed_to == first;
    if (whole && (newest || first == 0 || goes_on)) {
        sequence->fed_by = kind;
        sequence->fed_newest = newest;
        sequence->fed_to = sequence->length;
    } else if (newest || sequence->fed_by != kind) {
        forget_scores(sequence); /* what stands there now is of no one kind */
    }
}

uint32_t tms_history_fed_to(const tms_sequence *sequence, tamis_eviction_kind kind) {
    return sequence->fed_by == kind ? sequence->fed_to : 0;
}
