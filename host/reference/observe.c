/* SPDX-License-Identifier: Apache-2.0 */
/* observe: the attention weights that the query rows of a span give to each key of their lane:
 *   w(t, g, s) = exp(logit - lse) for first <= s < visible of row t, 0 for other slots;
 *   value(s) = join over the rows of (join over the group of f(w)), f(w) = w or w².
 * Contract: host/ops/, observe. Slots below the largest visible of the span; the others are not
 * written. A logit of q and K that is NaN or infinite in fp32 counts as NaN; a row with an lse of
 * -inf saw nothing and gives 0. */
#include "host/reference/convert.h"
#include "host/reference/logit.h"
#include "host/reference/reference.h"

#include <math.h>

/* What a launch reads and writes. */
typedef struct operands {
    const void *data;
    const float *q, *lse, *logits;
    const int32_t *spans, *visible, *first, *row_seq, *table;
    float *values, *tile;
} operands;

/* One (item, KV head): the rows of its span and the page ids of its lane. */
typedef struct lane {
    uint32_t item, head, first, rows, n;
    const int32_t *pages;
} lane;

/* 1. The logit of a slot with one query head. */
static double logit_of(const tms_observe *p, const operands *o, uint64_t row, uint32_t query_head,
                       uint32_t slot, const float *k) {
    const uint32_t dim = p->kv.head_dim;
    if (o->logits) return o->logits[(row * p->batch.n_heads + query_head) * p->logit_stride + slot];
    return tms_logit_of(&p->logit, o->q + row * p->q.stride + (uint64_t)query_head * dim, k, dim);
}

/* 2. The weight that one query head of a row gives to a slot. */
static double weight_of(const tms_observe *p, const operands *o, const lane *l, uint32_t t,
                        uint32_t g, uint32_t slot, const float *k) {
    const uint64_t row = l->first + t;
    const uint32_t head = l->head * (p->batch.n_heads / p->batch.n_kv_heads) + g;
    const double lse = o->lse[row * p->lse_stride + head];
    const uint64_t owner = row * p->batch.n_kv_heads + l->head;
    const uint32_t visible = (uint32_t)o->visible[owner];
    if (slot >= visible || slot < tms_first_slot(o->first, owner, visible)) return 0;
    return exp(logit_of(p, o, row, head, slot, k) - (lse == -INFINITY ? INFINITY : lse));
}

/* 3. One row's weights, joined over the group. */
static double row_value(const tms_observe *p, const operands *o, const lane *l, uint32_t t,
                        uint32_t slot, const float *k) {
    const uint32_t group = p->batch.n_heads / p->batch.n_kv_heads;
    double value = 0;
    for (uint32_t g = 0; g < group; g++) {
        const uint64_t list =
            ((uint64_t)l->item * p->batch.n_kv_heads + l->head) * p->max_span * group +
            (uint64_t)t * group + g;
        double w = weight_of(p, o, l, t, g, slot, k);
        if (o->tile) o->tile[list * p->tile_stride + slot] = (float)w;
        if (p->rows == TAMIS_ROWS_SQUARES) w *= w;
        value = p->group == TAMIS_GROUP_MAX ? tms_larger(value, w) : value + w;
    }
    return p->group == TAMIS_GROUP_MEAN ? value / group : value;
}

/* 4. Joins the rows, and, if accumulate, the old value. */
static void observe_slot(const tms_observe *p, const operands *o, const lane *l, uint32_t slot) {
    const tms_kv *kv = &p->kv;
    const int32_t page = o->logits && p->values.stride ? 0 : l->pages[slot / kv->page_size];
    const uint64_t beside =
        ((uint64_t)l->item * p->batch.n_kv_heads + l->head) * p->values.stride + slot;
    const uint64_t at =
        p->values.stride ? beside : (uint64_t)page * kv->page_size + slot % kv->page_size;
    float k[TMS_MOST_HEAD_DIM];
    double value = p->accumulate && o->values ? o->values[at] : 0;
    if (!o->logits)
        tms_load_slot(kv, o->data, tms_key_at(kv, page, l->head, slot % kv->page_size), k);
    for (uint32_t t = 0; t < l->rows; t++) {
        const double w = row_value(p, o, l, t, slot, k);
        value = p->rows == TAMIS_ROWS_MAX ? tms_larger(value, w) : value + w;
    }
    if (o->values) o->values[at] = (float)value;
}

/* Spans of rows of the batch, all of one sequence. */
static void check_spans(tms_views *views, const tms_observe *p, const operands *o) {
    for (uint64_t i = 0; views->status == TAMIS_OK && i < p->n_items; i++) {
        const int64_t first = o->spans[2 * i], rows = o->spans[2 * i + 1];
        tms_views_require(views, rows >= 1 && rows <= p->max_span,
                          "observe: rows of a span, which must be 1 to max_span", rows);
        tms_views_require(views, first >= 0 && first + rows <= p->batch.n_rows,
                          "observe: first row of a span that does not lie in the batch", first);
        for (int64_t t = 1; views->status == TAMIS_OK && t < rows; t++)
            tms_views_require(views, o->row_seq[first + t] == o->row_seq[first],
                              "observe: a span with a row of another sequence", first + t);
    }
}

/* Pointers to all that the launch touches. */
static operands view_operands(tms_views *views, const tms_observe *p) {
    const tms_batch *b = &p->batch;
    const uint64_t n = b->n_rows, lanes = (uint64_t)p->n_items * b->n_kv_heads;
    const uint64_t lists = (uint64_t)p->n_items * b->n_heads * p->max_span;
    operands o = {0};
    o.visible = tms_view_visible(views, b);
    o.first = tms_view_first(views, b);
    o.row_seq = tms_view(views, "row_seq", b->row_seq, n * 4);
    o.table = tms_view_rest(views, "table", b->table);
    o.spans = tms_view(views, "spans", p->spans, (uint64_t)p->n_items * 8);
    o.lse = tms_view(views, "lse", p->lse, ((n - 1) * p->lse_stride + b->n_heads) * 4);
    o.logits = tms_view_optional(views, "logits", p->logits, n * b->n_heads * p->logit_stride * 4);
    o.tile = tms_view_optional(views, "tile", p->tile, lists * p->tile_stride * 4);
    if (p->values.ref.mem)
        o.values = p->values.stride
                       ? tms_view(views, "values", p->values.ref, lanes * p->values.stride * 4)
                       : tms_view_rest(views, "values", p->values.ref);
    if (p->logits.mem) return o;
    o.data = tms_view_rest(views, "kv data", p->kv.data);
    o.q = tms_view_matrix(views, "q", p->q, b->n_rows, (uint64_t)b->n_heads * p->kv.head_dim);
    return o;
}

static void observe_lane(const tms_observe *p, const operands *o, uint32_t item, uint32_t head) {
    const tms_batch *b = &p->batch;
    lane l = {.item = item,
              .head = head,
              .first = (uint32_t)o->spans[2 * item],
              .rows = (uint32_t)o->spans[2 * item + 1]};
    l.pages = tms_lane(o->table, b->seq_stride, b->head_stride, o->row_seq[l.first], head);
    for (uint32_t t = 0; t < l.rows; t++) {
        const uint32_t visible =
            (uint32_t)o->visible[(uint64_t)(l.first + t) * b->n_kv_heads + head];
        l.n = visible > l.n ? visible : l.n;
    }
    for (uint32_t slot = 0; slot < l.n; slot++)
        observe_slot(p, o, &l, slot);
}

tamis_status tms_reference_observe(tms_device *dev, const tms_observe *p) {
    tms_views views = tms_views_begin(dev);
    if (p->batch.n_rows == 0 || p->n_items == 0) return views.status;
    const operands o = view_operands(&views, p);
    if (views.status == TAMIS_OK) check_spans(&views, p, &o);
    for (uint32_t item = 0; views.status == TAMIS_OK && item < p->n_items; item++) {
        for (uint32_t head = 0; head < p->batch.n_kv_heads; head++)
            observe_lane(p, &o, item, head);
    }
    return views.status;
}
