/* SPDX-License-Identifier: Apache-2.0 */
/* fuse: elementwise on the values of lanes, for the slots s < n = max(visible - tail, 0); the kinds
 * are those of host/ops/, fuse. Values lie in a plane or beside the cache. A NaN gives NaN, also
 * in a maximum. */
#include "host/reference/reference.h"

#include <math.h>

/* What a launch reads and writes. */
typedef struct operands {
    const float *x, *y;
    float *out;
    const int32_t *visible, *row_seq, *table, *positions, *now;
} operands;

/* One (item, KV head) and its n. */
typedef struct lane {
    uint32_t item, head, n;
    const int32_t *pages; /* NULL: no values lie in a plane */
} lane;

static lane lane_of(const tms_fuse *p, const operands *o, uint32_t item, uint32_t head) {
    const tms_batch *b = &p->batch;
    const uint32_t visible = (uint32_t)o->visible[(uint64_t)item * b->n_kv_heads + head];
    lane l = {.item = item, .head = head, .n = visible > p->tail ? visible - p->tail : 0};
    if (o->table)
        l.pages = tms_lane(o->table, b->seq_stride, b->head_stride, o->row_seq[item], head);
    return l;
}

/* 1. Place of a slot's value. */
static uint64_t value_at(const tms_fuse *p, const tms_values *v, const lane *l, uint32_t slot) {
    if (v->stride == 0) return tms_plane_at(l->pages, p->page_size, slot);
    return ((uint64_t)l->item * p->batch.n_kv_heads + l->head) * v->stride + slot;
}

static double x_of(const tms_fuse *p, const operands *o, const lane *l, uint32_t slot) {
    return o->x[value_at(p, &p->x, l, slot)];
}

static double mean_of(const tms_fuse *p, const operands *o, const lane *l) {
    double sum = 0;
    for (uint32_t s = 0; s < l->n; s++)
        sum += x_of(p, o, l, s);
    return sum / l->n;
}

/* Over the KV heads of the lane's item. */
static double sum_of_heads(const tms_fuse *p, const operands *o, const lane *l, uint32_t slot) {
    double sum = 0;
    for (uint32_t h = 0; h < p->batch.n_kv_heads; h++) {
        const lane other = lane_of(p, o, l->item, h);
        sum += x_of(p, o, &other, slot);
    }
    return sum;
}

static double join_lists(const tms_fuse *p, const operands *o, const lane *l, uint32_t slot) {
    const uint64_t first = ((uint64_t)l->item * p->batch.n_kv_heads + l->head) * p->n_lists;
    double joined = p->kind == TMS_FUSE_LISTS_MAX ? -INFINITY : 0;
    for (uint32_t i = 0; i < p->n_lists; i++) {
        const double x = o->x[(first + i) * p->x.stride + slot];
        joined = p->kind == TMS_FUSE_LISTS_MAX ? tms_larger(joined, x) : joined + x;
    }
    return joined;
}

/* 2. The new value of a slot. `whole`: the lane's mean, or the sum over the heads, if the kind uses
 * one. */
static double fused(const tms_fuse *p, const operands *o, const lane *l, uint32_t slot,
                    double whole) {
    switch (p->kind) {
    case TMS_FUSE_AXPBY:
        return p->a * x_of(p, o, l, slot) +
               p->b * (o->y ? (double)o->y[value_at(p, &p->y, l, slot)] : 1);
    case TMS_FUSE_MULTIPLY:
        return (x_of(p, o, l, slot) + p->a) * o->y[value_at(p, &p->y, l, slot)];
    case TMS_FUSE_AT_LEAST_MEAN:
        return tms_larger(x_of(p, o, l, slot), p->a * whole);
    case TMS_FUSE_LIFETIME:
        return x_of(p, o, l, slot) / ((double)o->now[l->item] -
                                      o->positions[tms_plane_at(l->pages, p->page_size, slot)] + 1);
    case TMS_FUSE_MEAN_OF_HEADS:
        return whole / p->batch.n_kv_heads;
    case TMS_FUSE_SHARE_OF_HEADS:
        return whole == 0 ? 0 : x_of(p, o, l, slot) / whole;
    case TMS_FUSE_LISTS_SUM:
    case TMS_FUSE_LISTS_MAX:
        return join_lists(p, o, l, slot);
    case TMS_FUSE_CHUNK_SUM:
        break;
    }
    return 0;
}

static bool joins_heads(const tms_fuse *p) {
    return p->kind == TMS_FUSE_MEAN_OF_HEADS || p->kind == TMS_FUSE_SHARE_OF_HEADS;
}

/* 3. Every slot of a lane. */
static void fuse_lane(const tms_fuse *p, const operands *o, const lane *l) {
    const double whole = p->kind == TMS_FUSE_AT_LEAST_MEAN ? mean_of(p, o, l) : 0;
    for (uint32_t s = 0; s < l->n; s++)
        o->out[value_at(p, &p->out, l, s)] = (float)fused(p, o, l, s, whole);
}

/* The same of an item whose heads are joined, all heads at a slot before the next: out may be x. */
static void fuse_heads(const tms_fuse *p, const operands *o, uint32_t item) {
    const lane first = lane_of(p, o, item, 0);
    for (uint32_t s = 0; s < first.n; s++) {
        const double whole = sum_of_heads(p, o, &first, s);
        for (uint32_t h = 0; h < p->batch.n_kv_heads; h++) {
            const lane l = lane_of(p, o, item, h);
            o->out[value_at(p, &p->out, &l, s)] = (float)fused(p, o, &l, s, whole);
        }
    }
}

static void sum_chunks(const tms_fuse *p, const operands *o, const lane *l) {
    for (uint32_t c = 0; (uint64_t)c * p->chunk < l->n; c++) {
        double sum = 0;
        for (uint32_t s = c * p->chunk; s < l->n && s - c * p->chunk < p->chunk; s++)
            sum += x_of(p, o, l, s);
        o->out[value_at(p, &p->out, l, c)] = (float)sum;
    }
}

/* Values of n slots a lane, `lists` of them. */
static float *view_values(tms_views *views, const tms_fuse *p, const char *name,
                          const tms_values *v, uint64_t lists) {
    const uint64_t n = (uint64_t)p->batch.n_rows * p->batch.n_kv_heads * lists;
    return v->stride ? tms_view(views, name, v->ref, n * v->stride * 4)
                     : tms_view_rest(views, name, v->ref);
}

/* Pointers to all that the launch touches. */
static operands view_operands(tms_views *views, const tms_fuse *p) {
    const bool lists = p->kind == TMS_FUSE_LISTS_SUM || p->kind == TMS_FUSE_LISTS_MAX;
    const uint64_t n = p->batch.n_rows;
    operands o = {0};
    o.visible = tms_view_visible(views, &p->batch);
    o.x = view_values(views, p, "x", &p->x, lists ? p->n_lists : 1);
    o.out = view_values(views, p, "out", &p->out, 1);
    if (tms_fuse_reads_y(p)) o.y = view_values(views, p, "y", &p->y, 1);
    if (p->kind == TMS_FUSE_LIFETIME) {
        o.positions = tms_view_rest(views, "positions", p->positions);
        o.now = tms_view(views, "now", p->now, n * 4);
    }
    if (tms_fuse_is_paged(p)) {
        o.row_seq = tms_view(views, "row_seq", p->batch.row_seq, n * 4);
        o.table = tms_view_rest(views, "table", p->batch.table);
    }
    return o;
}

/* Lanes that are joined must be equally long. */
static void check_lanes(tms_views *views, const tms_fuse *p, const operands *o) {
    const uint32_t heads = p->batch.n_kv_heads;
    for (uint64_t i = 0; views->status == TAMIS_OK && i < (uint64_t)p->batch.n_rows * heads; i++) {
        const lane l = lane_of(p, o, (uint32_t)(i / heads), (uint32_t)(i % heads));
        const lane first = lane_of(p, o, l.item, 0);
        tms_views_require(views, l.n == first.n,
                          "fuse: slots of a lane that is not as long as its item's first", l.n);
    }
}

tamis_status tms_reference_fuse(tms_device *dev, const tms_fuse *p) {
    const tms_batch *b = &p->batch;
    tms_views views = tms_views_begin(dev);
    if (b->n_rows == 0) return views.status;
    const operands o = view_operands(&views, p);
    if (views.status == TAMIS_OK && joins_heads(p)) check_lanes(&views, p, &o);
    for (uint64_t i = 0; views.status == TAMIS_OK && i < (uint64_t)b->n_rows * b->n_kv_heads; i++) {
        const lane l = lane_of(p, &o, (uint32_t)(i / b->n_kv_heads), (uint32_t)(i % b->n_kv_heads));
        if (p->kind == TMS_FUSE_CHUNK_SUM)
            sum_chunks(p, &o, &l);
        else if (!joins_heads(p))
            fuse_lane(p, &o, &l);
        else if (l.head == 0)
            fuse_heads(p, &o, l.item);
    }
    return views.status;
}
