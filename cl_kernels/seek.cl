/* SPDX-License-Identifier: Apache-2.0 */
/* seek: the first slot of a lane whose position is at least the row's; `visible` if there is none.
 * contract: host/ops/; meaning: host/reference/seek.c.
 * Work split: a work-item owns a (row, KV head). */
#include "common.clh"

__kernel GROUP_OF(WG_SIZE) void seek(BATCH_PARAMS, uint page_size, REF_PARAMS(const int, positions),
                                     REF_PARAMS(const int, least), REF_PARAMS(int, out),
                                     ulong row_stride, ulong out_head_stride) {
    FOR_EACH_ITEM(i, n_rows * n_kv_heads) {
        const uint row = i / n_kv_heads, head = i % n_kv_heads;
        __global const int *ids = table + table_offset +
                                  row_seq[row_seq_offset + row] * seq_stride + head * head_stride;
        const int wanted = least[least_offset + row];
        uint from = 0, end = (uint)visible[visible_offset + i];
        while (from < end) {
            const uint middle = from + (end - from) / 2;
            const ulong at = (ulong)ids[middle / page_size] * page_size + middle % page_size;
            if (positions[positions_offset + at] < wanted)
                from = middle + 1;
            else
                end = middle;
        }
        out[out_offset + row * row_stride + head * out_head_stride] = (int)from;
    }
}
