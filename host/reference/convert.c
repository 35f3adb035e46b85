/* SPDX-License-Identifier: Apache-2.0 */
/* convert: rows of one dtype to rows of another.
 * Contract: host/ops/, convert. Exact, or rounded to nearest even. */
#include "host/reference/convert.h"
#include "host/reference/reference.h"

/* Rows of elements of `size` bytes, which may begin at any element; views begin at multiples of 4 bytes. */
static void *view_rows(tms_views *views, const char *name, tms_ref ref, uint64_t elements,
                       uint64_t size) {
    const uint64_t before = ref.offset % 4 / size * size;
    ref.offset -= before;
    unsigned char *at = tms_view(views, name, ref, before + elements * size);
    return at ? at + before : NULL;
}

tamis_status tms_reference_convert(tms_device *dev, const tms_convert *p) {
    tms_views views = tms_views_begin(dev);
    if (p->n_rows == 0) return views.status;
    const uint64_t n_x = tms_rows_extent(p->n_rows, p->x_stride, p->width);
    const uint64_t n_y = tms_rows_extent(p->n_rows, p->y_stride, p->width);
    const void *x = view_rows(&views, "x", p->x, n_x, tamis_dtype_size(p->x_dtype));
    void *y = view_rows(&views, "y", p->y, n_y, tamis_dtype_size(p->y_dtype));
    for (uint64_t r = 0; views.status == TAMIS_OK && r < p->n_rows; r++)
        for (uint32_t i = 0; i < p->width; i++) {
            float element;
            tms_load_row(p->x_dtype, x, r * p->x_stride + i, 1, &element);
            tms_store_row(p->y_dtype, y, r * p->y_stride + i, 1, &element);
        }
    return views.status;
}
