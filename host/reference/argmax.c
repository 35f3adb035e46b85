/* SPDX-License-Identifier: Apache-2.0 */
/* argmax: the index of the largest element of each row.
 * Contract: host/ops/, argmax. Ties take the lowest index (-0 ties with +0); a NaN comes after
 * everything, so a row of NaN gives 0. */
#include "host/reference/reference.h"

#include <math.h>

tamis_status tms_reference_argmax(tms_device *dev, const tms_argmax *p) {
    tms_views views = tms_views_begin(dev);
    const float *x = tms_view_matrix(&views, "x", p->x, p->n_rows, p->dim);
    int32_t *out = tms_view(&views, "out", p->out, (uint64_t)p->n_rows * 4);
    if (views.status != TAMIS_OK) return views.status;
    for (uint64_t r = 0; r < p->n_rows; r++) {
        const float *row = x + r * p->x.stride;
        uint32_t best = 0;
        for (uint32_t i = 1; i < p->dim; i++) {
            if (row[i] > row[best] || (isnan(row[best]) && !isnan(row[i]))) best = i;
        }
        out[r] = (int32_t)best;
    }
    return TAMIS_OK;
}
