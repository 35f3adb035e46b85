/* SPDX-License-Identifier: Apache-2.0 */
/* score_rows: -‖k‖₂ of the keys that rows have been written to, into the plane of scores.
 *   slot s of a lane lies at slot s % page_size of its page of ordinal s / page_size.
 * Contract: host/ops/, score_rows. A slot below 0 scores nothing. */
#include "host/reference/convert.h"
#include "host/reference/reference.h"

#include <math.h>

/* What score_rows reads and writes. */
typedef struct operands {
    const void *data;
    const int32_t *slots, *row_seq, *table;
    float *scores;
} operands;

static operands view_operands(tms_views *views, const tms_score_rows *p) {
    const uint64_t n = p->batch.n_rows;
    operands o = {0};
    if (n == 0) return o;
    o.data = tms_view_rest(views, "kv data", p->kv.data);
    o.slots = tms_view(views, "slots", p->slots, n * p->batch.n_kv_heads * 4);
    o.row_seq = tms_view(views, "row_seq", p->batch.row_seq, n * 4);
    o.table = tms_view_rest(views, "table", p->batch.table);
    o.scores = tms_view_rest(views, "plane of scores", p->scores);
    return o;
}

static void score_slot(const tms_score_rows *p, const operands *o, int32_t seq, uint32_t head,
                       uint32_t slot) {
    const tms_kv *kv = &p->kv;
    const tms_batch *b = &p->batch;
    float k[TMS_MOST_HEAD_DIM];
    /* 1. The slot's place. */
    const int32_t *lane = tms_lane(o->table, b->seq_stride, b->head_stride, seq, head);
    const int32_t page = lane[slot / kv->page_size];
    const uint32_t rest = slot % kv->page_size;
    /* 2. The key's norm, the largest last. Its square is a number of fp32, or infinite. */
    tms_load_slot(kv, o->data, tms_key_at(kv, page, head, rest), k);
    const float square = (float)tms_dot(k, k, kv->head_dim);
    o->scores[(uint64_t)page * kv->page_size + rest] = -sqrtf(square);
}

tamis_status tms_reference_score_rows(tms_device *dev, const tms_score_rows *p) {
    const uint32_t heads = p->batch.n_kv_heads;
    tms_views views = tms_views_begin(dev);
    const operands o = view_operands(&views, p);
    for (uint64_t r = 0; views.status == TAMIS_OK && r < p->batch.n_rows; r++) {
        for (uint32_t h = 0; h < heads; h++) {
            const int32_t slot = o.slots[r * heads + h]; /* a negative one is skipped */
            if (slot >= 0) score_slot(p, &o, o.row_seq[r], h, (uint32_t)slot);
        }
    }
    return views.status;
}
