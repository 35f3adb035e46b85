/* SPDX-License-Identifier: Apache-2.0 */
/* select, the wide forms: a lane's entries sorted by the full order, or those of all lanes of a
 * row.
 * Contract: host/ops/, select. Three classes, in this order: FIRST (sinks, forced, without a
 * score, the row's own, and without positions the recent ones), RECENT (with positions only),
 * OTHERS. */
#include "host/reference/reference.h"

#include <math.h>
#include <stdlib.h>

typedef enum entry_class { FIRST = 0, RECENT = 1, OTHERS = 2 } entry_class;

typedef struct candidate {
    entry_class class;
    float score;      /* 0 where there is none */
    int32_t position; /* the largest in the entry; 0 without positions */
    uint32_t ordinal, head;
} candidate;

/* The memory of a launch, indexed by (row, KV head) if no other index is given. */
typedef struct wide {
    const tms_select *p;
    const int32_t *visible, *row_seq, *table, *positions, *row_positions, *k_table;
    const int32_t *forced, *forced_count;
    const float *scores;
    int32_t *pages, *counts;
    uint64_t n_positions;
    uint32_t most;         /* entries of the longest lane */
    candidate *candidates; /* [n_kv_heads][most], of one row */
    unsigned char *taken;  /* as candidates */
} wide;

/* The total order, the better entry first. */
static int compare(const void *left, const void *right) {
    const candidate *a = left, *b = right;
    const int nan_a = isnan(a->score) != 0, nan_b = isnan(b->score) != 0;
    if (a->class != b->class) return a->class < b->class ? -1 : 1;
    if (a->class == OTHERS && nan_a != nan_b) return nan_a - nan_b;
    if (a->class == OTHERS && !nan_a && a->score != b->score) return a->score > b->score ? -1 : 1;
    if (a->class != FIRST && a->position != b->position) return a->position > b->position ? -1 : 1;
    if (a->ordinal != b->ordinal) return a->ordinal > b->ordinal ? -1 : 1;
    return (a->head > b->head) - (a->head < b->head);
}

/* Class and position of an entry by the positions of its visible slots. */
static candidate by_position(const wide *x, uint32_t row, uint32_t head, uint32_t ordinal) {
    const tms_select *p = x->p;
    const tms_batch *b = &p->batch;
    const uint32_t size = p->granularity, page_size = p->wide.page_size;
    const uint32_t visible = (uint32_t)x->visible[(uint64_t)row * b->n_kv_heads + head];
    const int32_t *lane = tms_lane(x->table, b->seq_stride, b->head_stride, x->row_seq[row], head);
    const int64_t now = x->row_positions[row];
    candidate c = {.class = OTHERS, .position = INT32_MIN, .ordinal = ordinal, .head = head};
    const uint64_t end = (uint64_t)(ordinal + 1) * size;
    for (uint64_t s = (uint64_t)ordinal * size; s < end && s < visible; s++) {
        const uint64_t at = (uint64_t)lane[s / page_size] * page_size + s % page_size;
        const int32_t position = x->positions[at];
        if (position > c.position) c.position = position;
        if (position < (int64_t)p->sinks || position == now) c.class = FIRST;
        if (p->recent && position > now - (int64_t)p->recent && c.class == OTHERS) c.class = RECENT;
    }
    return c;
}

static candidate by_slot(const wide *x, uint32_t row, uint32_t head, uint32_t ordinal) {
    const tms_select *p = x->p;
    const uint32_t size = p->granularity;
    const uint32_t visible = (uint32_t)x->visible[(uint64_t)row * p->batch.n_kv_heads + head];
    const uint32_t old = visible > p->recent ? visible - p->recent : 0;
    const bool first =
        ordinal < tms_divide_up(p->sinks, size) || (p->recent && ordinal >= old / size);
    return (candidate){.class = first ? FIRST : OTHERS, .ordinal = ordinal, .head = head};
}

/* A lane's entries, sorted; returns their number. */
static uint32_t sort_lane(const wide *x, uint32_t row, uint32_t head, candidate *out) {
    const tms_select *p = x->p;
    const uint64_t lane = (uint64_t)row * p->batch.n_kv_heads + head;
    const uint32_t visible = (uint32_t)x->visible[lane];
    const uint32_t n = (uint32_t)tms_divide_up(visible, p->granularity);
    for (uint32_t i = 0; i < n; i++) {
        out[i] = x->positions ? by_position(x, row, head, i) : by_slot(x, row, head, i);
        if (i >= visible / p->granularity)
            out[i].class = FIRST;
        else if (x->scores)
            out[i].score = x->scores[lane * p->stride + i];
        if (x->scores && out[i].class == OTHERS) out[i].position = 0;
    }
    for (int32_t i = 0; x->forced && i < x->forced_count[lane]; i++)
        out[x->forced[lane * p->wide.forced.capacity + (uint32_t)i]].class = FIRST;
    qsort(out, n, sizeof *out, compare);
    return n;
}

/* A score in units of 2^-32. */
static uint64_t units(float score) {
    if (!(score > 0)) return 0;
    return (uint64_t)ldexp(score < 1024 ? score : 1024, 32);
}

static uint32_t k_of(const wide *x, uint64_t lane) {
    const tms_select *p = x->p;
    const uint32_t share = p->wide.k_share ? p->wide.k_share : TMS_SHARE_ONE;
    if (!x->k_table) return p->k;
    const uint64_t k =
        x->k_table[lane] > 0 ? (uint64_t)x->k_table[lane] * share / TMS_SHARE_ONE : 0;
    return k < p->k ? (uint32_t)k : p->k;
}

/* Scope LANE: 1. protected entries, with positions at most k; 2. the best others up to k entries in
 * all, or up to the mass. */
static void choose_of_lane(const wide *x, uint32_t row, uint32_t head) {
    const uint64_t lane = (uint64_t)row * x->p->batch.n_kv_heads + head;
    const uint64_t need = tms_select_need(x->p);
    const uint32_t k = k_of(x, lane);
    const uint32_t n = sort_lane(x, row, head, x->candidates);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        const candidate *c = x->candidates + i;
        const bool reached = c->class == OTHERS && need && sum >= need;
        x->taken[c->ordinal] = i < k ? !reached : !x->positions && c->class == FIRST;
        if (x->taken[c->ordinal]) sum += units(c->score);
    }
}

/* Scope ROW: 1. protected entries; 2. of each lane the best `floor` others; 3. the best of the rest
 * up to `total`. */
static void choose_of_row(const wide *x, uint32_t row) {
    const tms_select_wide *w = &x->p->wide;
    uint64_t count = 0, rest = 0;
    for (uint32_t h = 0; h < x->p->batch.n_kv_heads; h++) {
        candidate *lane = x->candidates + (uint64_t)h * x->most;
        const uint32_t n = sort_lane(x, row, h, lane);
        for (uint32_t i = 0, others = 0; i < n; i++) {
            const bool take = lane[i].class == FIRST || others++ < w->floor;
            x->taken[(uint64_t)h * x->most + lane[i].ordinal] = take;
            count += take;
            if (!take) x->candidates[rest++] = lane[i];
        }
    }
    qsort(x->candidates, rest, sizeof *x->candidates, compare);
    for (uint64_t i = 0; i < rest; i++)
        x->taken[(uint64_t)x->candidates[i].head * x->most + x->candidates[i].ordinal] =
            count + i < w->total;
}

/* The list of a lane, ascending. */
static tamis_status write_list(tms_device *dev, const wide *x, uint64_t lane,
                               const unsigned char *taken) {
    const tms_select *p = x->p;
    const uint32_t n = (uint32_t)tms_divide_up((uint32_t)x->visible[lane], p->granularity);
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        count += taken[i];
    if (count > p->lists.capacity)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "select: %u entries in a list of %u", count,
                               p->lists.capacity);
    int32_t *list = x->pages + lane * p->lists.capacity;
    for (uint32_t i = 0; i < n; i++) {
        if (taken[i]) *list++ = (int32_t)i;
    }
    x->counts[lane] = (int32_t)count;
    return TAMIS_OK;
}

/* Checks that forced lists name existing entries. */
static void check_forced(tms_views *views, const wide *x) {
    const tms_select *p = x->p;
    const uint64_t lanes = (uint64_t)p->batch.n_rows * p->batch.n_kv_heads;
    const uint32_t capacity = p->wide.forced.capacity;
    for (uint64_t lane = 0; x->forced && views->status == TAMIS_OK && lane < lanes; lane++) {
        const int32_t count = x->forced_count[lane];
        const uint32_t n = (uint32_t)tms_divide_up((uint32_t)x->visible[lane], p->granularity);
        tms_views_require(views, count >= 0 && (uint32_t)count <= capacity,
                          "select: forced entries beyond the list", count);
        for (int32_t i = 0; views->status == TAMIS_OK && i < count; i++) {
            const int32_t entry = x->forced[lane * capacity + (uint32_t)i];
            tms_views_require(views, entry >= 0 && (uint32_t)entry < n,
                              "select: a forced entry that the lane has not", entry);
        }
    }
}

/* Checks that every visible slot lies in a page of the plane. */
static void check_pages(tms_views *views, const wide *x) {
    const tms_batch *b = &x->p->batch;
    const uint32_t size = x->p->wide.page_size;
    for (uint32_t l = 0; x->positions && l < b->n_rows * b->n_kv_heads; l++) {
        const int32_t *lane = tms_lane(x->table, b->seq_stride, b->head_stride,
                                       x->row_seq[l / b->n_kv_heads], l % b->n_kv_heads);
        for (uint32_t i = 0; i < tms_divide_up((uint32_t)x->visible[l], size); i++)
            tms_views_require(views,
                              lane[i] >= 0 && ((uint64_t)lane[i] + 1) * size <= x->n_positions,
                              "select: a page id beyond the plane of positions", lane[i]);
    }
}

static wide view(tms_views *views, const tms_select *p) {
    const tms_batch *b = &p->batch;
    const tms_select_wide *w = &p->wide;
    const uint64_t lanes = (uint64_t)b->n_rows * b->n_kv_heads;
    const bool paged = lanes && w->positions.mem, forced = lanes && w->forced.pages.mem;
    wide x = {.p = p, .most = (uint32_t)tms_divide_up(b->max_visible, p->granularity)};
    x.visible = tms_view_visible(views, b);
    x.pages = tms_view(views, "lists", p->lists.pages, lanes * p->lists.capacity * 4);
    x.counts = tms_view(views, "counts", p->lists.count, lanes * 4);
    if (lanes) {
        x.scores = tms_view_optional(views, "scores", p->scores, lanes * p->stride * 4);
        x.k_table = tms_view_optional(views, "k_table", w->k_table, lanes * 4);
    }
    if (forced) {
        x.forced = tms_view(views, "forced lists", w->forced.pages, lanes * w->forced.capacity * 4);
        x.forced_count = tms_view(views, "forced counts", w->forced.count, lanes * 4);
    }
    if (paged) {
        x.row_seq = tms_view(views, "row_seq", b->row_seq, (uint64_t)b->n_rows * 4);
        x.table = tms_view_rest(views, "table", b->table);
        x.positions = tms_view_rest(views, "positions", w->positions);
        x.row_positions = tms_view(views, "row positions", w->row_positions, b->n_rows * 4ull);
        if (views->status == TAMIS_OK)
            x.n_positions = (w->positions.mem->bytes - w->positions.offset) / 4;
    }
    if (views->status == TAMIS_OK) check_forced(views, &x);
    if (views->status == TAMIS_OK) check_pages(views, &x);
    return x;
}

static tamis_status choose_row(tms_device *dev, const wide *x, uint32_t row) {
    const uint32_t n_heads = x->p->batch.n_kv_heads;
    const bool competes = x->p->wide.scope == TMS_SCOPE_ROW;
    tamis_status status = TAMIS_OK;
    if (competes) choose_of_row(x, row);
    for (uint32_t h = 0; status == TAMIS_OK && h < n_heads; h++) {
        if (!competes) choose_of_lane(x, row, h);
        status = write_list(dev, x, (uint64_t)row * n_heads + h,
                            x->taken + (competes ? (uint64_t)h * x->most : 0));
    }
    return status;
}

tamis_status tms_reference_select_wide(tms_device *dev, const tms_select *p) {
    tms_views views = tms_views_begin(dev);
    if (views.status != TAMIS_OK) return views.status;
    wide x = view(&views, p);
    if (views.status != TAMIS_OK) return views.status;
    const size_t entries = (size_t)p->batch.n_kv_heads * x.most + 1;
    x.candidates = malloc(entries * sizeof *x.candidates);
    x.taken = malloc(entries);
    if (!x.candidates || !x.taken)
        views.status =
            tms_device_fail(dev, TAMIS_E_NO_MEMORY, "select: no memory for %zu entries", entries);
    for (uint32_t row = 0; views.status == TAMIS_OK && row < p->batch.n_rows; row++)
        views.status = choose_row(dev, &x, row);
    free(x.taken);
    free(x.candidates);
    return views.status;
}
