/* SPDX-License-Identifier: Apache-2.0 */
/* load_rows: writes stored rows of K, of V or of both into slots of lanes; K is normalised and
 * rotated on its way.
 *   slot s of a lane lies at slot s % page_size of its page of ordinal s / page_size.
 * Contract: host/ops/, load_rows. A slot below 0 writes nothing. */
#include "host/reference/convert.h"
#include "host/reference/reference.h"

#include <stdlib.h>

/* What load_rows reads and writes. */
typedef struct operands {
    void *data;
    const void *k, *v; /* NULL: absent */
    const int32_t *slots, *row_seq, *table, *positions;
    const float *turns, *norm; /* norm may be absent */
    int32_t *position_plane;
    float *score_plane;
} operands;

static operands view_operands(tms_views *views, const tms_load_rows *p) {
    const uint64_t n = p->batch.n_rows, heads = p->batch.n_kv_heads;
    const uint64_t width = heads * p->kv.head_dim, size = tamis_dtype_size(p->dtype);
    operands o = {0};
    if (n == 0) return o;
    o.data = tms_view_rest(views, "kv data", p->kv.data);
    o.k = tms_view_optional(views, "k", p->k, ((n - 1) * p->k_stride + width) * size);
    o.v = tms_view_optional(views, "v", p->v, ((n - 1) * p->v_stride + width) * size);
    o.slots = tms_view(views, "slots", p->slots, n * heads * 4);
    o.row_seq = tms_view(views, "row_seq", p->batch.row_seq, n * 4);
    o.table = tms_view_rest(views, "table of pages", p->batch.table);
    o.positions = tms_view_optional(views, "positions", p->positions, n * 4);
    if (p->n_rot)
        o.turns = tms_view(views, "table", p->table, 2ull * TMS_ROTATE_STEPS * p->n_rot * 4);
    o.norm = tms_view_optional(views, "k's norm", p->k_norm, 4ull * p->kv.head_dim);
    if (p->planes.positions.mem)
        o.position_plane = tms_view_rest(views, "plane of positions", p->planes.positions);
    if (p->planes.scores.mem)
        o.score_plane = tms_view_rest(views, "plane of scores", p->planes.scores);
    for (uint64_t r = 0; views->status == TAMIS_OK && p->n_rot && r < n; r++)
        tms_views_require(views, labs((long)o.positions[r]) < (long)TMS_ROTATE_LIMIT,
                          "load_rows: the table ends before position", o.positions[r]);
    return o;
}

static void load_slot(const tms_load_rows *p, const operands *o, uint64_t r, uint32_t h,
                      uint32_t slot) {
    const tms_kv *kv = &p->kv;
    float row[TMS_MOST_HEAD_DIM];
    /* 1. The slot's place. */
    const int32_t *lane =
        tms_lane(o->table, p->batch.seq_stride, p->batch.head_stride, o->row_seq[r], h);
    const tms_row to = tms_slot_at(kv, lane, h, slot);
    const uint64_t column = (uint64_t)h * kv->head_dim;
    const uint64_t in_plane = tms_plane_at(lane, kv->page_size, slot);
    /* 2. The K row, normalised and rotated, and the V row. */
    if (o->k) {
        tms_load_row(p->dtype, o->k, r * p->k_stride + column, kv->head_dim, row);
        if (o->norm) tms_norm_row(row, o->norm, kv->head_dim, p->eps, row);
        if (p->n_rot) tms_turn_head(o->turns, o->positions[r], p->n_rot, p->pairing, row);
        tms_store_slot(kv, o->data, to, row);
    }
    if (o->v) {
        tms_load_row(p->dtype, o->v, r * p->v_stride + column, kv->head_dim, row);
        tms_store_slot(kv, o->data, tms_value_of(kv, to), row);
    }
    /* 3. The planes that are given. */
    if (o->position_plane) o->position_plane[in_plane] = o->positions[r];
    if (o->score_plane) o->score_plane[in_plane] = 0;
}

tamis_status tms_reference_load_rows(tms_device *dev, const tms_load_rows *p) {
    const uint32_t heads = p->batch.n_kv_heads;
    tms_views views = tms_views_begin(dev);
    const operands o = view_operands(&views, p);
    for (uint64_t r = 0; views.status == TAMIS_OK && r < p->batch.n_rows; r++)
        for (uint32_t h = 0; h < heads; h++) {
            const int32_t slot = o.slots[r * heads + h]; /* a negative one is skipped */
            if (slot >= 0) load_slot(p, &o, r, h, (uint32_t)slot);
        }
    return views.status;
}
