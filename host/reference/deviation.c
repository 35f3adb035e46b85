/* SPDX-License-Identifier: Apache-2.0 */
/* deviation: the sum of squares of what rows differ from the slots of their tokens by, and that of
 * the rows themselves.
 *   slot s of a lane lies at slot s % page_size of its page of ordinal s / page_size.
 * Contract: host/ops/, deviation. A slot below 0 adds nothing to the first. */
#include "host/reference/convert.h"
#include "host/reference/reference.h"

#include <math.h>

/* What deviation reads and writes. */
typedef struct operands {
    const void *data;
    const float *x;
    const int32_t *slots, *row_seq, *table;
    float *out, *norms;
} operands;

static operands view_operands(tms_views *views, const tms_deviation *p) {
    const uint64_t n = p->batch.n_rows, heads = p->batch.n_kv_heads;
    operands o = {0};
    if (n == 0) return o;
    o.data = tms_view_rest(views, "kv data", p->kv.data);
    o.x = tms_view(views, "x", p->x.ref, ((n - 1) * p->x.stride + heads * p->kv.head_dim) * 4);
    o.slots = tms_view(views, "slots", p->slots, n * heads * 4);
    o.row_seq = tms_view(views, "row_seq", p->batch.row_seq, n * 4);
    o.table = tms_view_rest(views, "table", p->batch.table);
    o.out = tms_view(views, "out", p->out, n * 4);
    if (p->norms.mem) o.norms = tms_view(views, "norms", p->norms, n * 4);
    return o;
}

/* Of one head, with x there. */
static double of_slot(const tms_deviation *p, const operands *o, int32_t seq, uint32_t head,
                      uint32_t slot, const float *x) {
    const tms_kv *kv = &p->kv;
    float held[TMS_MOST_HEAD_DIM];
    double sum = 0;
    /* 1. The row in the slot. */
    const int32_t *lane = tms_lane(o->table, p->batch.seq_stride, p->batch.head_stride, seq, head);
    const tms_row key = tms_slot_at(kv, lane, head, slot);
    tms_load_slot(kv, o->data, p->values ? tms_value_of(kv, key) : key, held);
    /* 2. The squares. */
    for (uint32_t d = 0; d < kv->head_dim; d++) {
        const double apart = (double)x[d] - held[d];
        sum += apart * apart;
    }
    return sum;
}

static double norm_of(const float *x, uint32_t n) {
    double sum = 0;
    for (uint32_t d = 0; d < n; d++)
        sum += (double)x[d] * x[d];
    return sum;
}

static float number_or_most(double sum) {
    return isnan(sum) ? INFINITY : (float)sum;
}

tamis_status tms_reference_deviation(tms_device *dev, const tms_deviation *p) {
    const uint32_t heads = p->batch.n_kv_heads;
    tms_views views = tms_views_begin(dev);
    const operands o = view_operands(&views, p);
    for (uint64_t r = 0; views.status == TAMIS_OK && r < p->batch.n_rows; r++) {
        double sum = 0, norm = 0;
        for (uint32_t h = 0; h < heads; h++) {
            const int32_t slot = o.slots[r * heads + h]; /* a negative one is skipped */
            const float *x = o.x + r * p->x.stride + (uint64_t)h * p->kv.head_dim;
            if (slot >= 0) sum += of_slot(p, &o, o.row_seq[r], h, (uint32_t)slot, x);
            norm += norm_of(x, p->kv.head_dim);
        }
        o.out[r] = number_or_most(sum);
        if (o.norms) o.norms[r] = number_or_most(norm);
    }
    return views.status;
}
