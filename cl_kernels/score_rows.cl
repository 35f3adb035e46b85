/* SPDX-License-Identifier: Apache-2.0 */
/* score_rows: -‖k‖₂ of the keys that rows have been written to, into the plane of scores.
 * contract: host/ops/; meaning: host/reference/score_rows.c.
 * Work split: a work-item takes a (row, KV head). */
#include "common.clh"
#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif
#ifndef PAGE_SIZE
#define PAGE_SIZE 16
#endif

__kernel GROUP_OF(WG_SIZE) void score_rows(KV_PARAMS, BATCH_PARAMS, REF_PARAMS(const int, slots),
                                         REF_PARAMS(float, scores)) {
    FOR_EACH_ITEM(i, n_rows * n_kv_heads) {
        /* 1. the slot's place */
        const uint head = i % n_kv_heads, row = i / n_kv_heads;
        const int slot = slots[slots_offset + i];
        if (slot < 0) continue;
        const int page = table[table_offset + row_seq[row_seq_offset + row] * seq_stride +
                               head * head_stride + slot / PAGE_SIZE];
        __global element *keys = kv + kv_offset + page * page_stride + head * kv_head_stride;
        /* 2. the key's norm, the largest last */
        scores[scores_offset + (ulong)page * PAGE_SIZE + slot % PAGE_SIZE] =
            -norm_of(row_of(keys, PAGE_SIZE, slot % PAGE_SIZE, slot_stride), HEAD_DIM, false);
    }
}
