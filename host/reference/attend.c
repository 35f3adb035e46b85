/* SPDX-License-Identifier: Apache-2.0 */
/* attend: softmax attention of a row's query heads over the slots that it sees in a lane's pages:
 *   logit by host/reference/logit.h;  lse = ln Σ exp(logit);  out = Σ exp(logit - lse)·v.
 * Contract: host/ops/, attend. Seen: first <= slot < visible, page in the list (or no lists).
 * Nothing seen: out 0, lse -inf. A logit that is NaN or infinite in fp32 counts as NaN and makes out
 * and lse of that (row, head) NaN. There is one running state per head, in slot order. If logits are
 * wanted, they are written for every slot that the row sees. */
#include "host/reference/convert.h"
#include "host/reference/logit.h"
#include "host/reference/reference.h"

#include <math.h>

/* The softmax so far: Σ exp(logit - max) and Σ exp(logit - max)·v. */
typedef struct running {
    double max, sum, out[TMS_MOST_HEAD_DIM];
} running;

/* Query heads of a group whose states are kept at a time. */
enum { HEADS = 16 };

/* What a launch reads and writes. */
typedef struct operands {
    tms_kv apart;              /* V, if it lies apart */
    const void *data, *values; /* the latter NULL if V does not */
    const float *q;
    float *out, *lse, *logits;
    const int32_t *visible, *row_seq, *table, *pages, *count, *first;
} operands;

/* Adds one slot to a head's state. */
static void add(running *state, double logit, const float *v, uint32_t head_dim) {
    if (!(logit <= state->max)) { /* a new largest, or a NaN, which then stays */
        const double shrink = exp(state->max - logit);
        state->max = logit;
        state->sum *= shrink;
        for (uint32_t d = 0; d < head_dim; d++)
            state->out[d] *= shrink;
    }
    const double weight = exp(logit - state->max);
    state->sum += weight;
    for (uint32_t d = 0; d < head_dim; d++)
        state->out[d] += weight * v[d];
}

/* Writes the logit of a slot, if logits are wanted. */
static void keep(const tms_attend *p, const operands *o, uint64_t row, uint32_t query_head,
                 uint32_t slot, double logit) {
    const uint64_t at = (row * p->batch.n_heads + query_head) * p->logit_stride + slot;
    if (o->logits) o->logits[at] = (float)logit;
}

/* `n` query heads of a KV head from query head `first` on. */
typedef struct heads {
    uint32_t head, first, n;
} heads;

/* Adds the seen slots of one page to the heads' states. */
static void add_page(const tms_attend *p, const operands *o, uint64_t row, const heads *h,
                     const int32_t *lane, uint32_t ordinal, running *states) {
    const tms_kv *kv = &p->kv;
    const uint32_t dim = kv->head_dim, size = kv->page_size;
    const uint64_t index = row * p->batch.n_kv_heads + h->head;
    const uint32_t visible = (uint32_t)o->visible[index], begin = ordinal * size;
    const uint32_t hidden = tms_first_slot(o->first, index, visible);
    const uint32_t first = hidden > begin ? hidden - begin : 0; /* in the page */
    const uint32_t last = visible - begin < size ? visible - begin : size;
    const float *q = o->q + row * p->q.stride + (uint64_t)h->first * dim;
    const int32_t page = lane[ordinal];
    float k[TMS_MOST_HEAD_DIM], v[TMS_MOST_HEAD_DIM];
    for (uint32_t s = first; s < last; s++) {
        const tms_row key = tms_key_at(kv, page, h->head, s);
        tms_load_slot(kv, o->data, key, k);
        if (o->values)
            tms_load_slot(&o->apart, o->values, tms_key_at(&o->apart, page, h->head, s), v);
        else
            tms_load_slot(kv, o->data, tms_value_of(kv, key), v);
        /* 2. Its logit with every query head, and the softmax so far. */
        for (uint32_t g = 0; g < h->n; g++) {
            const double logit = tms_logit_of(&p->logit, q + g * dim, k, dim);
            keep(p, o, row, h->first + g, begin + s, logit);
            add(&states[g], logit, v, dim);
        }
    }
}

/* One row of these heads, HEADS at most. */
static void attend_heads(const tms_attend *p, const operands *o, uint64_t row, const heads *h) {
    const tms_batch *batch = &p->batch;
    const uint32_t dim = p->kv.head_dim, size = p->kv.page_size;
    const uint64_t index = row * batch->n_kv_heads + h->head;
    const int32_t *lane =
        tms_lane(o->table, batch->seq_stride, batch->head_stride, o->row_seq[row], h->head);
    const int32_t *list = o->pages ? o->pages + index * p->lists.capacity : NULL;
    const uint32_t visible = (uint32_t)o->visible[index];
    const uint32_t n = list ? (uint32_t)o->count[index] : visible / size + (visible % size != 0);
    running states[HEADS];
    for (uint32_t g = 0; g < h->n; g++)
        states[g] = (running){.max = -INFINITY};
    /* 1. Every page of the list that begins before the row's limit. */
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t ordinal = list ? (uint32_t)list[i] : i;
        if ((uint64_t)ordinal * size < visible) add_page(p, o, row, h, lane, ordinal, states);
    }
    /* 3. The states as results; nothing seen leaves sum 0 and max -inf. */
    for (uint32_t g = 0; g < h->n; g++) {
        const uint32_t query_head = h->first + g;
        float *out = o->out + row * p->out.stride + (uint64_t)query_head * dim;
        const double sum = states[g].sum;
        for (uint32_t d = 0; d < dim; d++)
            out[d] = sum == 0 ? 0 : (float)(states[g].out[d] / sum);
        if (o->lse) o->lse[row * batch->n_heads + query_head] = (float)(states[g].max + log(sum));
    }
}

/* One row of one KV head. */
static void attend_lane(const tms_attend *p, const operands *o, uint64_t row, uint32_t head) {
    const uint32_t group = p->batch.n_heads / p->batch.n_kv_heads;
    for (uint32_t g = 0; g < group; g += HEADS) {
        const heads h = {head, head * group + g, group - g < HEADS ? group - g : HEADS};
        attend_heads(p, o, row, &h);
    }
}

/* Pointers to all that the launch touches. */
static operands view_operands(tms_views *views, const tms_attend *p) {
    const tms_batch *batch = &p->batch;
    const uint64_t n = batch->n_rows, lanes = n * batch->n_kv_heads;
    const uint64_t width = (uint64_t)batch->n_heads * p->kv.head_dim;
    operands o = {0};
    if (n == 0) return o;
    o.data = tms_view_rest(views, "kv data", p->kv.data);
    o.apart = tms_values_apart(&p->kv);
    if (p->kv.apart.data.mem) o.values = tms_view_rest(views, "values", o.apart.data);
    o.q = tms_view_matrix(views, "q", p->q, batch->n_rows, width);
    o.out = tms_view_matrix(views, "out", p->out, batch->n_rows, width);
    o.lse = tms_view_optional(views, "lse", p->lse, n * batch->n_heads * 4);
    o.logits =
        tms_view_optional(views, "logits", p->logits, n * batch->n_heads * p->logit_stride * 4);
    o.visible = tms_view_visible(views, batch);
    o.row_seq = tms_view(views, "row_seq", batch->row_seq, n * 4);
    o.table = tms_view_rest(views, "table", batch->table);
    o.pages = tms_view_optional(views, "lists", p->lists.pages, lanes * p->lists.capacity * 4);
    o.count = o.pages ? tms_view(views, "counts", p->lists.count, lanes * 4) : NULL;
    o.first = tms_view_first(views, batch);
    return o;
}

tamis_status tms_reference_attend(tms_device *dev, const tms_attend *p) {
    tms_views views = tms_views_begin(dev);
    const operands o = view_operands(&views, p);
    for (uint64_t row = 0; views.status == TAMIS_OK && row < p->batch.n_rows; row++) {
        for (uint32_t head = 0; head < p->batch.n_kv_heads; head++)
            attend_lane(p, &o, row, head);
    }
    return views.status;
}
