/* SPDX-License-Identifier: Apache-2.0 */
/* copy_pages and write_table: copy whole pages inside one memory, write entries of a table.
 *   copy_pages   block to = block from, for each pair (from, to)
 *   write_table  data[index] = value, for each pair (index, value)
 * Contract: host/ops/, copy_pages and write_table. No block is both source and destination and
 * destinations differ, so the order does not matter. */
#include "host/reference/reference.h"

#include <string.h>

tamis_status tms_reference_copy_pages(tms_device *dev, const tms_copy_pages *p) {
    tms_views views = tms_views_begin(dev);
    unsigned char *data = p->n ? tms_view_rest(&views, "copy_pages: data", p->data) : NULL;
    const int32_t *pairs = tms_view(&views, "copy_pages: pairs", p->pairs, (uint64_t)p->n * 8);
    if (views.status != TAMIS_OK) return views.status;
    const uint64_t blocks = p->n ? (p->data.mem->bytes - p->data.offset) / p->bytes : 0;
    for (uint64_t i = 0; i < (uint64_t)p->n * 2; i++)
        tms_views_require(&views, pairs[i] >= 0 && (uint64_t)pairs[i] < blocks,
                          "copy_pages: no such block", pairs[i]);
    for (uint64_t i = 0; views.status == TAMIS_OK && i < p->n; i++)
        memcpy(data + (uint64_t)pairs[2 * i + 1] * p->bytes,
               data + (uint64_t)pairs[2 * i] * p->bytes, p->bytes);
    return views.status;
}

tamis_status tms_reference_write_table(tms_device *dev, const tms_write_table *p) {
    tms_views views = tms_views_begin(dev);
    int32_t *data = p->n ? tms_view_rest(&views, "write_table: data", p->data) : NULL;
    const int32_t *entries =
        tms_view(&views, "write_table: entries", p->entries, (uint64_t)p->n * 8);
    if (views.status != TAMIS_OK) return views.status;
    const uint64_t size = p->n ? (p->data.mem->bytes - p->data.offset) / 4 : 0;
    for (uint64_t i = 0; i < p->n; i++)
        tms_views_require(&views, entries[2 * i] >= 0 && (uint64_t)entries[2 * i] < size,
                          "write_table: no such index", entries[2 * i]);
    for (uint64_t i = 0; views.status == TAMIS_OK && i < p->n; i++)
        data[entries[2 * i]] = entries[2 * i + 1];
    return views.status;
}
