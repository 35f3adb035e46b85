/* SPDX-License-Identifier: Apache-2.0 */
/* copy_pages and write_table on CUDA: launches of cuda_kernels/pages.cu. */
#include "host/cuda/cuda.h"

#define THREADS 256u
#define PIECE   16u /* bytes of a thread */

tamis_status tms_cu_copy_pages(tms_device *dev, const tms_copy_pages *p) {
    tamis_status status = tms_cu_base_only(dev, "copy_pages");
    if (status != TAMIS_OK) return status;
    tms_cu_launch l = tms_cu_begin(dev, "pages", "copy_pages");
    const cu_copy_pages_args args = {
        .data = tms_cu_reached(&l, "data", p->data, sizeof(int32_t), p->n),
        .pairs = tms_cu_ref(&l, "pairs", p->pairs, sizeof(int32_t), 2 * (uint64_t)p->n),
        .bytes = p->bytes,
        .n = p->n,
    };
    if (l.status == TAMIS_OK && args.data % PIECE)
        return tms_device_fail(dev, TAMIS_E_UNSUPPORTED,
                               "copy_pages: data at address 0x%llx: must be a multiple of %u bytes",
                               (unsigned long long)args.data, PIECE);
    return tms_cu_run(&l, tms_cu_items(p->n * (p->bytes / PIECE), THREADS), &args);
}

tamis_status tms_cu_write_table(tms_device *dev, const tms_write_table *p) {
    tamis_status status = tms_cu_base_only(dev, "write_table");
    if (status != TAMIS_OK) return status;
    tms_cu_launch l = tms_cu_begin(dev, "pages", "write_table");
    const cu_write_table_args args = {
        .data = tms_cu_reached(&l, "data", p->data, sizeof(int32_t), p->n),
        .entries = tms_cu_ref(&l, "entries", p->entries, sizeof(int32_t), 2 * (uint64_t)p->n),
        .n = p->n,
    };
    return tms_cu_run(&l, tms_cu_items(p->n, THREADS), &args);
}
