/* SPDX-License-Identifier: Apache-2.0 */
/* pool_values: pooling along the slots of each list, stride 1:
 *   MAX      out(s) = the largest x(s + o), |o| <= kernel/2;
 *   AVERAGE  out(s) = Σ x(s + o) / kernel, zeros beyond the ends.
 * Contract: host/ops/, pool_values. A list's first max(visible - tail, 0) values are pooled and
 * written. keep_sum rescales a list to its old sum. A NaN among the pooled values gives NaN. */
#include "host/reference/reference.h"

#include <math.h>

/* The pooled value of one slot in a list of n values. */
static double pool_window(const tms_pool_values *p, const float *x, uint32_t n, uint32_t slot) {
    const uint32_t reach = p->kernel / 2, first = slot > reach ? slot - reach : 0;
    const uint32_t end = n - slot > reach ? slot + reach + 1 : n;
    double pooled = p->kind == TAMIS_POOL_MAX ? x[first] : 0;
    for (uint32_t s = first; s < end; s++) {
        if (p->kind == TAMIS_POOL_AVERAGE)
            pooled += x[s];
        else if (x[s] > pooled || isnan(x[s]))
            pooled = x[s]; /* a NaN stays: nothing is above it */
    }
    return p->kind == TAMIS_POOL_AVERAGE ? pooled / p->kernel : pooled;
}

/* The factor of keep_sum. */
static double factor_of(const tms_pool_values *p, const float *x, uint32_t n) {
    double before = 0, after = 0;
    if (!p->keep_sum) return 1;
    for (uint32_t s = 0; s < n; s++) {
        before += x[s];
        after += pool_window(p, x, n, s);
    }
    return isfinite(before / after) ? before / after : 1;
}

tamis_status tms_reference_pool_values(tms_device *dev, const tms_pool_values *p) {
    const tms_batch *batch = &p->batch;
    const uint64_t lanes = (uint64_t)batch->n_rows * batch->n_kv_heads;
    const uint64_t lists = lanes * p->n_lists;
    tms_views views = tms_views_begin(dev);
    const int32_t *visible = tms_view_visible(&views, batch);
    const float *x = tms_view(&views, "x", p->x, lists * p->stride * 4);
    float *out = tms_view(&views, "out", p->out, lists * p->stride * 4);
    if (views.status != TAMIS_OK) return views.status;
    for (uint64_t l = 0; l < lists; l++) {
        const float *from = x + l * p->stride;
        float *to = out + l * p->stride;
        const uint32_t seen = (uint32_t)visible[l / p->n_lists];
        const uint32_t n = seen > p->tail ? seen - p->tail : 0;
        /* 1. The factor by which the list is rescaled. */
        const double factor = factor_of(p, from, n);
        /* 2. Every slot. */
        for (uint32_t s = 0; s < n; s++)
            to[s] = (float)(pool_window(p, from, n, s) * factor);
    }
    return TAMIS_OK;
}
