/* SPDX-License-Identifier: Apache-2.0 */
/* norm: RMSNorm, y_i = x_i / sqrt(mean(x²) + eps) · w_i.
 * Contract: host/ops/, norm. y may be x: the mean is computed before the row is written. Without
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

tamis_status tms_reference_norm(tms_device *dev, const tms_norm *p) {
    tms_views views = tms_views_begin(dev);
    const float *x = tms_view_matrix(&views, "x", p->x, p->n_rows, p->dim);
    float *y = tms_view_matrix(&views, "y", p->y, p->n_rows, p->dim);
    const float *w = tms_view(&views, "w", p->w, p->n_rows ? (uint64_t)p->dim * 4 : 0);
    if (views.status != TAMIS_OK) return views.status;
    for (uint64_t r = 0; r < p->n_rows; r++)
        tms_norm_row(x + r * p->x.stride, w, p->dim, p->eps, y + r * p->y.stride);
    return TAMIS_OK;
}
