/* SPDX-License-Identifier: Apache-2.0 */
/* write_rows and read_rows: write K and V rows into slots of lanes, and read them.
 *   slot s of a lane lies at slot s % page_size of its page of ordinal s / page_size.
 * Contract: host/ops/, write_rows and read_rows. A slot below 0 writes nothing. Rows of the
 * cache's dtype are copied bit for bit; f32 rows are rounded to nearest even. In the planes a
 * written slot gets its row's position and score 0. write_rotated is norm and rotate before that (host/compose.c). */
#include "host/compose.h"
#include "host/reference/convert.h"
#include "host/reference/reference.h"

#include <stdlib.h>

static void write_row(const tms_kv *kv, void *data, tms_row to, tamis_dtype dtype, const void *rows,
                      uint64_t from) {
    if (dtype == kv->dtype) {
        const size_t size = tamis_dtype_size(dtype);
        const uint64_t at = to.page + to.slot * kv->slot_stride;
        memcpy((char *)data + at * size, (const char *)rows + from * size, kv->head_dim * size);
    } else {
        tms_store_slot(kv, data, to, (const float *)rows + from);
    }
}

/* What write_rows reads and writes. */
typedef struct operands {
    void *data;
    const void *k, *v;
    const int32_t *slots, *row_seq, *table, *positions;
    int32_t *position_plane;
    float *score_plane;
} operands;

static operands view_operands(tms_views *views, const tms_write_rows *p) {
    const uint64_t n = p->batch.n_rows, heads = p->batch.n_kv_heads;
    const uint64_t width = heads * p->kv.head_dim, size = tamis_dtype_size(p->dtype);
    operands o = {0};
    if (n == 0) return o;
    o.data = tms_view_rest(views, "kv data", p->kv.data);
    o.k = tms_view(views, "k", p->k, ((n - 1) * p->k_stride + width) * size);
    o.v = tms_view(views, "v", p->v, ((n - 1) * p->v_stride + width) * size);
    o.slots = tms_view(views, "slots", p->slots, n * heads * 4);
    o.row_seq = tms_view(views, "row_seq", p->batch.row_seq, n * 4);
    o.table = tms_view_rest(views, "table", p->batch.table);
    if (p->planes.positions.mem) {
        o.position_plane = tms_view_rest(views, "plane of positions", p->planes.positions);
        o.positions = tms_view(views, "positions", p->positions, n * 4);
    }
    if (p->planes.scores.mem)
        o.score_plane = tms_view_rest(views, "plane of scores", p->planes.scores);
    return o;
}

static void write_slot(const tms_write_rows *p, const operands *o, uint64_t r, uint32_t h,
                       uint32_t slot) {
    const tms_kv *kv = &p->kv;
    /* 1. The slot's place. */
    const int32_t *lane =
        tms_lane(o->table, p->batch.seq_stride, p->batch.head_stride, o->row_seq[r], h);
    const tms_row to = tms_slot_at(kv, lane, h, slot);
    const uint64_t column = (uint64_t)h * kv->head_dim;
    const uint64_t in_plane = tms_plane_at(lane, kv->page_size, slot);
    /* 2. The K row and the V row. */
    write_row(kv, o->data, to, p->dtype, o->k, r * p->k_stride + column);
    write_row(kv, o->data, tms_value_of(kv, to), p->dtype, o->v, r * p->v_stride + column);
    /* 3. The planes that are given. */
    if (o->position_plane) o->position_plane[in_plane] = o->positions[r];
    if (o->score_plane) o->score_plane[in_plane] = 0;
}

/* Positions that the table does not reach, before anything is changed. */
static void check_positions(tms_views *views, const tms_write_rotated *p) {
    const uint64_t bytes = p->batch.n_rows * 4ull;
    const int32_t *at = tms_view(views, "positions", p->rotation.positions, bytes);
    for (uint64_t r = 0; views->status == TAMIS_OK && r < bytes / 4; r++)
        tms_views_require(views, labs((long)at[r]) < (long)TMS_ROTATE_LIMIT,
                          "rotate: the table ends before position", at[r]);
}

tamis_status tms_reference_write_rows(tms_device *dev, const tms_write_rows *p) {
    const uint32_t heads = p->batch.n_kv_heads;
    tms_views views = tms_views_begin(dev);
    const operands o = view_operands(&views, p);
    if (views.status != TAMIS_OK) return views.status;
    for (uint64_t r = 0; r < p->batch.n_rows; r++) {
        for (uint32_t h = 0; h < heads; h++) {
            const int32_t slot = o.slots[r * heads + h]; /* a negative one is skipped */
            if (slot >= 0) write_slot(p, &o, r, h, (uint32_t)slot);
        }
    }
    return TAMIS_OK;
}

tamis_status tms_reference_write_rotated(tms_device *dev, const tms_write_rotated *p) {
    tms_views views = tms_views_begin(dev);
    check_positions(&views, p);
    return views.status == TAMIS_OK ? tms_compose_write_rotated(dev, p) : views.status;
}

tamis_status tms_reference_read_rows(tms_device *dev, const tms_read_rows *p) {
    const tms_kv *kv = &p->kv;
    const uint32_t n = p->n;
    const uint64_t bytes = (uint64_t)n * kv->head_dim * 4;
    tms_views views = tms_views_begin(dev);
    const void *data = n ? tms_view_rest(&views, "kv data", kv->data) : NULL;
    const int32_t *table = n ? tms_view_rest(&views, "table", p->table) : NULL;
    const int32_t *seq = tms_view(&views, "seq", p->seq, (uint64_t)n * 4);
    const int32_t *head = tms_view(&views, "head", p->head, (uint64_t)n * 4);
    const int32_t *slot = tms_view(&views, "slot", p->slot, (uint64_t)n * 4);
    float *k = tms_view_optional(&views, "k", p->k, bytes);
    float *v = tms_view_optional(&views, "v", p->v, bytes);
    if (views.status != TAMIS_OK) return views.status;
    for (uint64_t i = 0; i < n; i++) {
        /* 1. The slot's place. */
        const int32_t *lane =
            tms_lane(table, p->seq_stride, p->head_stride, seq[i], (uint32_t)head[i]);
        const tms_row key = tms_slot_at(kv, lane, (uint32_t)head[i], (uint32_t)slot[i]);
        /* 2. Both rows, widened. */
        if (k) tms_load_slot(kv, data, key, k + i * kv->head_dim);
        if (v) tms_load_slot(kv, data, tms_value_of(kv, key), v + i * kv->head_dim);
    }
    return TAMIS_OK;
}
