/* SPDX-License-Identifier: Apache-2.0 */
/* scatter_rows: y[index[r]] = x[r], rows of f32.
 * Contract: host/ops/, scatter_rows. An index below 0 skips its row; one whose row does not lie
 * inside y fails the launch before anything is written. */
#include "host/reference/reference.h"

#include <string.h>

/* Rows of y that lie in its memory. */
static uint64_t rows_of(const tms_matrix *y, uint32_t width) {
    const uint64_t n = (y->ref.mem->bytes - y->ref.offset) / sizeof(float);
    return n < width ? 0 : (n - width) / y->stride + 1;
}

tamis_status tms_reference_scatter_rows(tms_device *dev, const tms_scatter_rows *p) {
    tms_views views = tms_views_begin(dev);
    if (p->n_rows == 0) return views.status;
    const float *x = tms_view_matrix(&views, "x", p->x, p->n_rows, p->width);
    const int32_t *index = tms_view(&views, "index", p->index, (uint64_t)p->n_rows * 4);
    float *y = tms_view_rest(&views, "y", p->y.ref);
    for (uint32_t r = 0; views.status == TAMIS_OK && r < p->n_rows; r++)
        tms_views_require(&views, index[r] < 0 || (uint64_t)index[r] < rows_of(&p->y, p->width),
                          "scatter_rows: y has no such row", index[r]);
    for (uint64_t r = 0; views.status == TAMIS_OK && r < p->n_rows; r++) {
        if (index[r] < 0) continue;
        memcpy(y + (uint64_t)index[r] * p->y.stride, x + r * p->x.stride, p->width * sizeof(float));
    }
    return views.status;
}
