/* SPDX-License-Identifier: Apache-2.0 */
/* Scores of slots by their values:
 *   value_score  y(l) = Σ a(l, s)·v_s over first <= s < end;  e(s) = Σ_l a(l, s)·(y(l)·v_s)
 *   value_norm   ‖v_s‖₂, or the mean over the group of Σ_o |Σ_c w[o][head*head_dim + c]·v_s[c]|
 * Contract: host/ops/, value_score and value_norm. */
#include "host/reference/convert.h"
#include "host/reference/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One (item, KV head): its page ids and its visible slots. */
typedef struct lane {
    const tms_kv *kv;
    const void *data;
    const int32_t *pages;
    uint32_t head, visible;
} lane;

static void load_value(const lane *l, uint32_t slot, float *v) {
    const tms_kv *kv = l->kv;
    tms_load_slot(kv, l->data, tms_value_of(kv, tms_slot_at(kv, l->pages, l->head, slot)), v);
}

/* The tables from which the lanes of a launch are found. */
typedef struct lanes {
    const tms_kv *kv;
    const tms_batch *batch;
    const void *data;
    const int32_t *visible, *row_seq, *table;
} lanes;

static lanes view_lanes(tms_views *views, const tms_kv *kv, const tms_batch *batch) {
    lanes all = {.kv = kv, .batch = batch};
    if (batch->n_rows == 0) return all;
    all.visible = tms_view_visible(views, batch);
    all.row_seq = tms_view(views, "row_seq", batch->row_seq, (uint64_t)batch->n_rows * 4);
    all.table = tms_view_rest(views, "table", batch->table);
    all.data = tms_view_rest(views, "kv data", kv->data);
    return all;
}

static lane lane_of(const lanes *all, uint64_t i) {
    const tms_batch *b = all->batch;
    const uint32_t head = (uint32_t)(i % b->n_kv_heads);
    return (lane){.kv = all->kv,
                  .data = all->data,
                  .pages = tms_lane(all->table, b->seq_stride, b->head_stride,
                                    all->row_seq[i / b->n_kv_heads], head),
                  .head = head,
                  .visible = (uint32_t)all->visible[i]};
}

/* ---- value_score ----------------------------------------------------------------------------- */

static double dot(const double *y, const float *v, uint32_t n) {
    double sum = 0;
    for (uint32_t d = 0; d < n; d++)
        sum += y[d] * v[d];
    return sum;
}

/* `y`: room for [n_lists][head_dim]. */
static void score_lane(const tms_value_score *p, const lane *l, const float *a,
                       const int32_t *limits, double *y, float *out) {
    const uint32_t dim = p->kv.head_dim;
    float v[TMS_MOST_HEAD_DIM];
    /* 1. Every list's output over the slots within its limits. */
    memset(y, 0, (size_t)p->n_lists * dim * sizeof *y);
    for (int32_t s = limits[0]; s < limits[1]; s++) {
        load_value(l, (uint32_t)s, v);
        for (uint64_t i = 0; i < p->n_lists; i++) {
            for (uint32_t d = 0; d < dim; d++)
                y[i * dim + d] += (double)a[i * p->stride + (uint32_t)s] * v[d];
        }
    }
    /* 2. Every slot's product with it. */
    for (uint32_t s = 0; s < l->visible; s++) {
        double e = 0;
        load_value(l, s, v);
        for (uint64_t i = 0; i < p->n_lists; i++)
            e += a[i * p->stride + s] * dot(y + i * dim, v, dim);
        out[s] = (float)e;
    }
}

static void require_limits(tms_views *views, const int32_t *limits, int32_t visible) {
    tms_views_require(views, limits[0] >= 0 && limits[0] <= visible,
                      "value_score: first is outside of the lane", limits[0]);
    tms_views_require(views, limits[1] >= 0 && limits[1] <= visible,
                      "value_score: end is outside of the lane", limits[1]);
}

tamis_status tms_reference_value_score(tms_device *dev, const tms_value_score *p) {
    const uint64_t n = (uint64_t)p->batch.n_rows * p->batch.n_kv_heads;
    tms_views views = tms_views_begin(dev);
    const lanes all = view_lanes(&views, &p->kv, &p->batch);
    const float *a = tms_view(&views, "a", p->a, n * p->n_lists * p->stride * 4);
    const int32_t *limits = tms_view(&views, "limits", p->limits, n * 8);
    float *out = tms_view(&views, "out", p->out, n * p->out_stride * 4);
    for (uint64_t i = 0; views.status == TAMIS_OK && i < n; i++)
        require_limits(&views, limits + 2 * i, all.visible[i]);
    if (views.status != TAMIS_OK || n == 0) return views.status;
    double *y = malloc((size_t)p->n_lists * p->kv.head_dim * sizeof *y);
    if (!y)
        return tms_device_fail(dev, TAMIS_E_NO_MEMORY, "value_score: no memory for %u lists",
                               p->n_lists);
    for (uint64_t i = 0; i < n; i++) {
        const lane l = lane_of(&all, i);
        score_lane(p, &l, a + i * p->n_lists * p->stride, limits + 2 * i, y,
                   out + i * p->out_stride);
    }
    free(y);
    return TAMIS_OK;
}

/* ---- value_norm ------------------------------------------------------------------------------ */

enum { BLOCK = 32 }; /* slots for which a row of w is widened once */

/* The norms of up to BLOCK slots under the projections of a group. `w`: its first column. */
static void norm_projected(const tms_value_norm *p, const float (*v)[TMS_MOST_HEAD_DIM], uint32_t n,
                           const void *w, uint64_t column, float *out) {
    const uint32_t group = p->batch.n_heads / p->batch.n_kv_heads, dim = p->kv.head_dim;
    double sums[BLOCK] = {0};
    float row[TMS_MOST_HEAD_DIM];
    for (uint32_t g = 0; g < group; g++) {
        for (uint64_t o = 0; o < p->n_out; o++) {
            tms_load_row(p->w_dtype, w, o * p->w_stride + column + (uint64_t)g * dim, dim, row);
            for (uint32_t s = 0; s < n; s++)
                sums[s] += fabs(tms_dot(row, v[s], dim));
        }
    }
    for (uint32_t s = 0; s < n; s++)
        out[s] = (float)(sums[s] / group);
}

static void norm_lane(const tms_value_norm *p, const lane *l, const void *w, float *out) {
    const uint32_t dim = p->kv.head_dim, group = p->batch.n_heads / p->batch.n_kv_heads;
    float v[BLOCK][TMS_MOST_HEAD_DIM];
    for (uint32_t first = 0; first < l->visible; first += BLOCK) {
        const uint32_t n = l->visible - first < BLOCK ? l->visible - first : BLOCK;
        /* 1. The values of a block of slots. */
        for (uint32_t s = 0; s < n; s++)
            load_value(l, first + s, v[s]);
        /* 2. Their norms. */
        if (p->kind == TMS_VALUE_L1_PROJECTED)
            norm_projected(p, v, n, w, (uint64_t)l->head * group * dim, out + first);
        for (uint32_t s = 0; p->kind == TMS_VALUE_L2 && s < n; s++)
            out[first + s] = (float)sqrt(tms_dot(v[s], v[s], dim));
    }
}

/* Bytes from the first to the last element of w. */
static uint64_t projection_bytes(const tms_value_norm *p) {
    const uint64_t width = (uint64_t)p->batch.n_heads * p->kv.head_dim;
    return ((p->n_out - 1) * p->w_stride + width) * tamis_dtype_size(p->w_dtype);
}

tamis_status tms_reference_value_norm(tms_device *dev, const tms_value_norm *p) {
    const uint64_t n = (uint64_t)p->batch.n_rows * p->batch.n_kv_heads;
    tms_views views = tms_views_begin(dev);
    const lanes all = view_lanes(&views, &p->kv, &p->batch);
    float *out = tms_view(&views, "out", p->out, n * p->out_stride * 4);
    const void *w = n && p->kind == TMS_VALUE_L1_PROJECTED
                        ? tms_view(&views, "w", p->w, projection_bytes(p))
                        : NULL;
    for (uint64_t i = 0; views.status == TAMIS_OK && i < n; i++) {
        const lane l = lane_of(&all, i);
        norm_lane(p, &l, w, out + i * p->out_stride);
    }
    return views.status;
}
