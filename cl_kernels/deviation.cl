/* SPDX-License-Identifier: Apache-2.0 */
/* deviation: the sum of squares of what rows differ from the slots of their tokens by, and that of
 * the rows themselves.
 * contract: host/ops/; meaning: host/reference/deviation.c.
 * Work split: a work-group owns a row; its work-items take 16 channels of a head in turn. */
#include "common.clh"
#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif
#ifndef PAGE_SIZE
#define PAGE_SIZE 16
#endif
#define CHUNKS (HEAD_DIM / 16)

__kernel GROUP_OF(WG_SIZE) void deviation(KV_PARAMS, BATCH_PARAMS, MATRIX_PARAMS(x),
                                          REF_PARAMS(const int, slots), REF_PARAMS(float, out),
                                          REF_PARAMS(float, norms), uint values) {
    __local float scratch[WG_SIZE];
    const uint wi = (uint)get_local_id(0), row = (uint)get_group_id(0);
    if (row >= n_rows) return;
    float16 squares = 0.0f, of_x = 0.0f;
    for (uint i = wi; i < n_kv_heads * CHUNKS; i += WG_SIZE) {
        /* 1. the slot's place */
        const uint head = i / CHUNKS, channel = i % CHUNKS * 16;
        const int slot = slots[slots_offset + (ulong)row * n_kv_heads + head];
        const float16 here = vload16(0, x + x_offset + row * x_stride + head * HEAD_DIM + channel);
        of_x = fma(here, here, of_x);
        if (slot < 0) continue;
        const int page = table[table_offset + row_seq[row_seq_offset + row] * seq_stride +
                               head * head_stride + slot / PAGE_SIZE];
        __global element *held = kv + kv_offset + page * page_stride + head * kv_head_stride;
        if (values) held += value_offset;
        /* 2. the squares */
        const float16 apart =
            here -
            either16(either_row_of(held, PAGE_SIZE, slot % PAGE_SIZE, slot_stride, values), channel,
                     values);
        squares = fma(apart, apart, squares);
    }
    const float sum = group_sum(sum16(squares), scratch);
    if (wi == 0) out[out_offset + row] = isnan(sum) ? INFINITY : sum;
    if (!norms) return;
    const float norm = group_sum(sum16(of_x), scratch);
    if (wi == 0) norms[norms_offset + row] = isnan(norm) ? INFINITY : norm;
}
