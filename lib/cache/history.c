/* SPDX-License-Identifier: Apache-2.0 */
/* The history of a sequence: cuts and forks, lost tokens, rows whose weights went to scores. Plans
 * ask it what they may assume of lanes and planes. */
#include "lib/cache/cache.h"

#include <inttypes.h>

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
    fork->stepped_from = parent->length;
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
    if (length < sequence->stepped_from) sequence->stepped_from = length;
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

/* ---- Saved ----------------------------------------------------------------------------------- */

tms_past tms_history_give(const tms_sequence *sequence) {
    return (tms_past){.length = sequence->length,
                      .evicted_at = sequence->evicted_at,
                      .intact_from = sequence->intact_from,
                      .shortest = sequence->shortest,
                      .given_up = sequence->given_up,
                      .unordered = sequence->unordered,
                      .scored_newest = sequence->scored_newest,
                      .scored_by = sequence->scored_by,
                      .scored_to = sequence->scored_to};
}

void tms_history_take(tms_sequence *sequence, const tms_past *past) {
    sequence->length = sequence->stepped_from = past->length;
    sequence->evicted_at = past->evicted_at;
    sequence->intact_from = past->intact_from;
    sequence->shortest = past->shortest;
    sequence->given_up = past->given_up;
    sequence->unordered = past->unordered;
    sequence->scored_newest = past->scored_newest;
    sequence->scored_by = past->scored_by;
    sequence->scored_to = past->scored_to;
}

/* What the numbers say of each other. */
static tamis_status check_past(const tamis_cache *cache, const tms_past *past, tamis_error *error) {
    TMS_REQUIRE(past->evicted_at <= past->length && past->scored_to <= past->length &&
                    past->shortest <= past->length,
                TAMIS_E_FORMAT,
                "a saved sequence of %" PRIu32 " tokens was evicted from at %" PRIu32
                ", has scores of %" PRIu32 " and cannot be shorter than %" PRIu32,
                past->length, past->evicted_at, past->scored_to, past->shortest);
    TMS_REQUIRE(past->intact_from <= past->evicted_at, TAMIS_E_FORMAT,
                "a saved sequence was evicted from at %" PRIu32 ", but is intact from %" PRIu32
                " on",
                past->evicted_at, past->intact_from);
    TMS_REQUIRE(!past->unordered || past->evicted_at > 0, TAMIS_E_FORMAT,
                "a saved sequence has slots out of order, but was never evicted from");
    TMS_REQUIRE(
        past->evicted_at == 0 || cache->params.planes & TAMIS_PLANE_POSITIONS, TAMIS_E_FORMAT,
        "a saved sequence was evicted from at %" PRIu32 ", but its cache had planes %" PRIu32,
        past->evicted_at, cache->params.planes);
    return TAMIS_OK;
}

static tamis_status check_lane(const tamis_cache *cache, const tms_past *past, uint32_t index,
                               const tms_lane *lane, tamis_error *error) {
    const uint64_t gone = (uint64_t)lane->gone * cache->params.page_size;
    TMS_REQUIRE(lane->length <= past->length && lane->length >= past->length - past->intact_from,
                TAMIS_E_FORMAT,
                "lane %" PRIu32 " of a saved sequence holds %" PRIu32 " of %" PRIu32
                " tokens, which are intact from %" PRIu32 " on",
                index, lane->length, past->length, past->intact_from);
    TMS_REQUIRE(
        gone == 0 || (gone <= lane->length && gone <= past->shortest && cache->params.planes == 0),
        TAMIS_E_FORMAT,
        "lane %" PRIu32 " of a saved sequence, of %" PRIu32 " tokens, has given back %" PRIu64
        "; it cannot be shorter than %" PRIu32 ", and its cache had planes %" PRIu32,
        index, lane->length, gone, past->shortest, cache->params.planes);
    return TAMIS_OK;
}

tamis_status tms_history_check(const tamis_cache *cache, const tms_past *past,
                               const tms_lane *lanes, tamis_error *error) {
    bool gone = false;
    TMS_TRY(check_past(cache, past, error));
    for (uint32_t i = 0; i < cache->n_lanes; i++) {
        TMS_TRY(check_lane(cache, past, i, &lanes[i], error));
        gone |= lanes[i].gone > 0;
    }
    TMS_REQUIRE(gone == (past->shortest > 0), TAMIS_E_FORMAT,
                "a saved sequence cannot be shorter than %" PRIu32 ", and %s", past->shortest,
                gone ? "has given pages back" : "has given no page back");
    return TAMIS_OK;
}
