/* SPDX-License-Identifier: Apache-2.0 */
/* replace: the slot of a lane into which a row is written: a stale one, else a candidate, else a
 * recent one.
 *   stale       position >= the row's
 *   candidate   sinks <= position < the row's - recent
 *   recent      sinks <= position, not among those
 * Contract: host/ops/, replace. Scores over unequal lives are compared by products, each score
 * times the other's life, which fp64 holds exactly (24 + 29 bits): no quotient is rounded. */
#include "host/reference/reference.h"

#include <math.h>

typedef enum rank { RANK_STALE, RANK_CANDIDATE, RANK_RECENT, RANK_NEVER } rank;

/* A slot's token and the numbers by which it is compared. */
typedef struct token {
    rank rank;
    uint32_t slot;
    int32_t position;
    double score, life;
} token;

/* The planes of a lane, and its row. */
typedef struct lane {
    const int32_t *pages, *positions;
    const float *scores; /* may be NULL */
    uint32_t visible;
    int32_t row_position;
} lane;

static token token_at(const tms_replace *p, const lane *l, uint32_t slot) {
    const uint64_t at = tms_plane_at(l->pages, p->kv.page_size, slot);
    const int64_t position = l->positions[at], life = l->row_position - position;
    token t = {.slot = slot, .position = l->positions[at], .life = 1};
    t.rank = life <= 0             ? RANK_STALE
             : position < p->sinks ? RANK_NEVER
             : life <= p->recent   ? RANK_RECENT
                                   : RANK_CANDIDATE;
    if (t.rank != RANK_CANDIDATE || !l->scores) return t;
    t.score = l->scores[at];
    if (p->lifetime) t.life = (double)life;
    return t;
}

/* By rank, then score / life with NaN first, then position; equal positions by slot. */
static bool is_lower(const token *a, const token *b) {
    const double x = a->score * b->life, y = b->score * a->life;
    if (a->rank != b->rank) return a->rank < b->rank;
    if (isnan(x) != isnan(y)) return isnan(x);
    if (!isnan(x) && x != y) return x < y;
    return a->position != b->position ? a->position < b->position : a->slot < b->slot;
}

static int32_t find_victim(const tms_replace *p, const lane *l) {
    token lowest = {.rank = RANK_NEVER};
    for (uint32_t slot = 0; slot < l->visible; slot++) {
        const token t = token_at(p, l, slot);
        if (t.rank != RANK_NEVER && is_lower(&t, &lowest)) lowest = t;
    }
    return lowest.rank == RANK_NEVER ? (int32_t)l->visible - 1 : (int32_t)lowest.slot;
}

tamis_status tms_reference_replace(tms_device *dev, const tms_replace *p) {
    const tms_batch *batch = &p->batch;
    const uint32_t n = batch->n_rows, heads = batch->n_kv_heads, page = p->kv.page_size;
    const uint64_t lanes = (uint64_t)n * heads;
    tms_views views = tms_views_begin(dev);
    if (views.status != TAMIS_OK || n == 0) return views.status;
    const int32_t *plane = tms_view_rest(&views, "plane of positions", p->planes.positions);
    const float *scores = NULL;
    if (p->planes.scores.mem) scores = tms_view_rest(&views, "plane of scores", p->planes.scores);
    const int32_t *visible = tms_view_visible(&views, batch);
    const int32_t *row_seq = tms_view(&views, "row_seq", batch->row_seq, (uint64_t)n * 4);
    const int32_t *table = tms_view_rest(&views, "table", batch->table);
    const int32_t *positions = tms_view(&views, "positions", p->positions, (uint64_t)n * 4);
    const int32_t *turns = tms_view(&views, "turns", p->turns, lanes * 4);
    int32_t *slots = tms_view(&views, "slots", p->slots, lanes * 4);
    int32_t *changed = tms_view(&views, "changed", p->changed, lanes * 4);
    if (views.status != TAMIS_OK) return views.status;
    for (uint64_t i = 0; i < lanes; i++) {
        changed[i] = -1;
        if (turns[i] == 0) continue;
        const lane l = {.pages = tms_lane(table, batch->seq_stride, batch->head_stride,
                                          row_seq[i / heads], (uint32_t)(i % heads)),
                        .positions = plane,
                        .scores = scores,
                        .visible = (uint32_t)visible[i],
                        .row_position = positions[i / heads]};
        /* 1. The victim's slot is the row's. */
        slots[i] = find_victim(p, &l);
        /* 2. The bounds of a full page must be computed anew. */
        if (slots[i] >= 0 && (uint32_t)slots[i] / page < l.visible / page)
            changed[i] = l.pages[(uint32_t)slots[i] / page];
    }
    return TAMIS_OK;
}
