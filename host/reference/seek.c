/* SPDX-License-Identifier: Apache-2.0 */
/* seek: the first slot of a lane whose position is at least the row's; `visible` if there is none.
 * Contract: host/ops/, seek. Positions ascend along a lane. */
#include "host/reference/reference.h"

tamis_status tms_reference_seek(tms_device *dev, const tms_seek *p) {
    const tms_batch *b = &p->batch;
    const uint64_t n = b->n_rows, heads = b->n_kv_heads;
    tms_views views = tms_views_begin(dev);
    if (n == 0) return views.status;
    const int32_t *visible = tms_view_visible(&views, b);
    const int32_t *row_seq = tms_view(&views, "row_seq", b->row_seq, n * 4);
    const int32_t *table = tms_view_rest(&views, "table", b->table);
    const int32_t *positions = tms_view_rest(&views, "positions", p->positions);
    const int32_t *least = tms_view(&views, "least", p->least, n * 4);
    int32_t *out = tms_view(&views, "out", p->out, tms_seek_extent(p) * 4);
    for (uint64_t i = 0; views.status == TAMIS_OK && i < n * heads; i++) {
        const uint64_t row = i / heads;
        const uint32_t head = (uint32_t)(i % heads), size = p->page_size;
        const int32_t *lane = tms_lane(table, b->seq_stride, b->head_stride, row_seq[row], head);
        /* All slots before `from` lie below the row's least position, none from `end` on does. */
        uint32_t from = 0, end = (uint32_t)visible[i];
        while (from < end) {
            const uint32_t middle = from + (end - from) / 2;
            if (positions[(uint64_t)lane[middle / size] * size + middle % size] < least[row])
                from = middle + 1;
            else
                end = middle;
        }
        out[row * p->row_stride + head * p->head_stride] = (int32_t)from;
    }
    return views.status;
}
