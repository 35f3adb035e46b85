/* SPDX-License-Identifier: Apache-2.0 */
/* key_score: a score from a slot's key alone:
 *   NORM       ‖k‖₂
 *   COSINE     k·m / (‖k‖·‖m‖), m the mean of k/‖k‖ over the lane
 *   QUADRATIC  mean over the group of scale·μ·k + scale²/2·kᵀSk
 * Contract: host/ops/, key_score. Slots below visible; the others are not written. */
#include "host/reference/convert.h"
#include "host/reference/reference.h"

#include <math.h>

/* One (item, KV head): its page ids, the statistics of its group's queries, where scores go. */
typedef struct lane {
    const void *data;
    const int32_t *pages;
    const float *mu, *cov;
    float *out;
    uint32_t head, group, visible;
} lane;

static void load_key(const tms_kv *kv, const lane *l, uint32_t slot, float *k) {
    tms_load_slot(kv, l->data, tms_slot_at(kv, l->pages, l->head, slot), k);
}

static double norm(const float *k, uint32_t n) {
    return sqrt(tms_dot(k, k, n));
}

static void score_norm(const tms_kv *kv, const lane *l) {
    float k[TMS_MOST_HEAD_DIM];
    for (uint32_t s = 0; s < l->visible; s++) {
        load_key(kv, l, s, k);
        l->out[s] = (float)norm(k, kv->head_dim);
    }
}

static void score_cosine(const tms_kv *kv, const lane *l) {
    const uint32_t dim = kv->head_dim;
    float k[TMS_MOST_HEAD_DIM];
    double m[TMS_MOST_HEAD_DIM] = {0}, square = 0;
    /* 1. The sum of directions; its length cancels out. A key of norm 0 has none. */
    for (uint32_t s = 0; s < l->visible; s++) {
        load_key(kv, l, s, k);
        const double length = norm(k, dim);
        for (uint32_t d = 0; length != 0 && d < dim; d++)
            m[d] += k[d] / length;
    }
    for (uint32_t d = 0; d < dim; d++)
        square += m[d] * m[d];
    /* 2. Every key's cosine with it. */
    for (uint32_t s = 0; s < l->visible; s++) {
        double along = 0;
        load_key(kv, l, s, k);
        for (uint32_t d = 0; d < dim; d++)
            along += k[d] * m[d];
        const double length = norm(k, dim);
        l->out[s] = length == 0 || square == 0 ? 0 : (float)(along / (length * sqrt(square)));
    }
}

/* scale·μ·k + scale²/2·kᵀSk of one query head. */
static double expected(double scale, const float *mu, const float *cov, const float *k,
                       uint32_t dim) {
    double square = 0;
    for (uint32_t d = 0; d < dim; d++)
        square += k[d] * tms_dot(cov + (uint64_t)d * dim, k, dim);
    return scale * tms_dot(mu, k, dim) + scale * scale / 2 * square;
}

static void score_quadratic(const tms_kv *kv, const lane *l, double scale) {
    const uint32_t dim = kv->head_dim;
    float k[TMS_MOST_HEAD_DIM];
    for (uint32_t s = 0; s < l->visible; s++) {
        double score = 0;
        load_key(kv, l, s, k);
        for (uint64_t g = 0; g < l->group; g++)
            score += expected(scale, l->mu + g * dim, l->cov + g * dim * dim, k, dim);
        l->out[s] = (float)(score / l->group);
    }
}

tamis_status tms_reference_key_score(tms_device *dev, const tms_key_score *p) {
    const tms_kv *kv = &p->kv;
    const tms_batch *b = &p->batch;
    const uint64_t n = (uint64_t)b->n_rows * b->n_kv_heads, dim = kv->head_dim;
    const uint32_t group = b->n_heads / b->n_kv_heads;
    const uint64_t statistics = n && p->kind == TMS_KEY_QUADRATIC ? b->n_heads * dim * 4 : 0;
    tms_views views = tms_views_begin(dev);
    const float *mu = statistics ? tms_view(&views, "mu", p->mu, statistics) : NULL;
    const float *cov = statistics ? tms_view(&views, "cov", p->cov, statistics * dim) : NULL;
    float *out = tms_view(&views, "out", p->out, n * p->out_stride * 4);
    const int32_t *visible = tms_view_visible(&views, b);
    const int32_t *row_seq = tms_view(&views, "row_seq", b->row_seq, (uint64_t)b->n_rows * 4);
    const int32_t *table = n ? tms_view_rest(&views, "table", b->table) : NULL;
    const void *data = n ? tms_view_rest(&views, "kv data", kv->data) : NULL;
    if (views.status != TAMIS_OK) return views.status;
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t head = (uint32_t)(i % b->n_kv_heads);
        const lane l = {.data = data,
                        .pages = tms_lane(table, b->seq_stride, b->head_stride,
                                          row_seq[i / b->n_kv_heads], head),
                        .mu = mu ? mu + (uint64_t)head * group * dim : NULL,
                        .cov = cov ? cov + (uint64_t)head * group * dim * dim : NULL,
                        .out = out + i * p->out_stride,
                        .head = head,
                        .group = group,
                        .visible = (uint32_t)visible[i]};
        if (p->kind == TMS_KEY_NORM)
            score_norm(kv, &l);
        else if (p->kind == TMS_KEY_COSINE)
            score_cosine(kv, &l);
        else
            score_quadratic(kv, &l, p->scale);
    }
    return TAMIS_OK;
}
