/* SPDX-License-Identifier: Apache-2.0 */
/* norm: y_i = c_i / sqrt(mean(c²) + eps) · w_i (+ to_i), c = x or x - mean(x); or y_i = x_i · w_i
 * (+ to_i). Contract: host/ops/, norm. y may be x or to: means are computed before the row is written. Without
 * rows nothing is written. */
#include "host/reference/convert.h"
#include "host/reference/reference.h"

#include <math.h>

void tms_norm_row(const float *x, const float *w, uint32_t dim, float eps, float *y) {
    /* 1. The root of the mean square. */
    const double root = sqrt(tms_dot(x, x, dim) / dim + eps);
    /* 2. Every element scaled. */
    for (uint32_t i = 0; i < dim; i++)
        y[i] = (float)(x[i] / root * w[i]);
}

/* What a row is shifted and multiplied by before the weights. */
typedef struct shift_scale {
    double shift, scale;
} shift_scale;

static shift_scale of_row(const float *x, const tms_norm *p) {
    double sum = 0, squares = 0;
    if (p->kind == TAMIS_NORM_NONE) return (shift_scale){0, 1};
    for (uint32_t i = 0; i < p->dim && p->kind == TAMIS_NORM_LAYER; i++)
        sum += x[i];
    const double mean = sum / p->dim;
    for (uint32_t i = 0; i < p->dim; i++)
        squares += (x[i] - mean) * (x[i] - mean);
    return (shift_scale){-mean, 1 / sqrt(squares / p->dim + p->eps)};
}

tamis_status tms_reference_norm(tms_device *dev, const tms_norm *p) {
    tms_views views = tms_views_begin(dev);
    const float *x = tms_view_matrix(&views, "x", p->x, p->n_rows, p->dim);
    float *y = tms_view_matrix(&views, "y", p->y, p->n_rows, p->dim);
    const float *to = tms_view_matrix(&views, "to", p->to, p->accumulate ? p->n_rows : 0, p->dim);
    const float *w = tms_view(&views, "w", p->w, p->n_rows ? (uint64_t)p->dim * 4 : 0);
    if (views.status != TAMIS_OK) return views.status;
    for (uint64_t r = 0; r < p->n_rows; r++) {
        /* 1. What the row is shifted and multiplied by. */
        const float *from = x + r * p->x.stride;
        const float *added = p->accumulate ? to + r * p->to.stride : NULL;
        float *out = y + r * p->y.stride;
        const shift_scale of = of_row(from, p);
        /* 2. Every element. */
        for (uint32_t i = 0; i < p->dim; i++)
            out[i] = (float)((from[i] + of.shift) * of.scale * w[i] + (added ? added[i] : 0));
    }
    return TAMIS_OK;
}
