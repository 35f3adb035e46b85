/* SPDX-License-Identifier: Apache-2.0 */
/* linear: y[r][j] = Σ_i x[r][i]·w[j][i] + bias[j] (+ y[r][j] if accumulate).
 * Contract: host/ops/, linear. w is [n_out][n_in] of any type; bias may be absent.
 * Each weight row is widened once and multiplied with all rows of x. Without rows nothing is
 * written. */
#include "host/reference/convert.h"
#include "host/reference/reference.h"
#include "host/reference/weights.h"

#include <stdlib.h>

tamis_status tms_reference_linear(tms_device *dev, const tms_linear *p) {
    const uint64_t n_in = p->n_in, n_out = p->n_out;
    tms_views views = tms_views_begin(dev);
    const float *x = tms_view_matrix(&views, "x", p->x, p->n_rows, n_in);
    float *y = tms_view_matrix(&views, "y", p->y, p->n_rows, n_out);
    const void *w =
        tms_view(&views, "w", p->w.ref, p->n_rows ? tms_matrix_bytes(&p->w, n_out, n_in) : 0);
    const float *bias = tms_view_optional(&views, "bias", p->bias, n_out * 4);
    if (views.status != TAMIS_OK || p->n_rows == 0) return views.status;
    float *weights = malloc(n_in * sizeof *weights);
    if (!weights)
        return tms_device_fail(dev, TAMIS_E_NO_MEMORY, "linear: no memory for a row of %u",
                               p->n_in);
    for (uint64_t j = 0; j < n_out; j++) {
        /* 1. One row of weights as f32. */
        tms_load_weights(&p->w, w, j, p->n_in, weights);
        for (uint64_t r = 0; r < p->n_rows; r++) {
            /* 2. Its product with a row of x, 3. bias and what is there. */
            float *at = y + r * p->y.stride + j;
            double sum = tms_dot(x + r * p->x.stride, weights, p->n_in);
            sum += bias ? bias[j] : 0;
            sum += p->accumulate ? *at : 0;
            *at = (float)sum;
        }
    }
    free(weights);
    return TAMIS_OK;
}
