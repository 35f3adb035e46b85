/* SPDX-License-Identifier: Apache-2.0 */
/* seek: the first slot of a lane whose position is at least the row's; `visible` if there is none.
 * contract: host/ops/; meaning: host/reference/seek.c.
 * Work split: a thread owns a (row, KV head). */
#include "common.cuh"

KERNEL(seek, CU_SEEK_THREADS, cu_seek_args) {
    const uint32_t heads = a.batch.n_kv_heads;
    FOR_EACH_ITEM(i, (uint64_t)a.batch.n_rows * heads) {
        const uint32_t row = (uint32_t)(i / heads), head = (uint32_t)(i % heads);
        const int32_t *ids = lane_pages(a.batch, row, head), wanted = a.least[row];
        uint32_t from = 0, end = (uint32_t)a.batch.visible[i];
        while (from < end) {
            const uint32_t middle = from + (end - from) / 2;
            const uint64_t at = (uint64_t)ids[middle / a.page_size] * a.page_size;
            if (a.positions[at + middle % a.page_size] < wanted)
                from = middle + 1;
            else
                end = middle;
        }
        a.out[row * a.row_stride + head * a.head_stride] = (int32_t)from;
    }
}
