/* SPDX-License-Identifier: Apache-2.0 */
/* score_rows: -‖k‖₂ of the keys that rows have been written to, into the plane of scores.
 * contract: host/ops/; meaning: host/reference/score_rows.c.
 * Work split: a side of a warp takes a (row, KV head), a block CU_ROWS_SLOTS of them (slots.cuh). */
#include "slots.cuh"

template <typename T> DEVICE void score_rows(const cu_score_rows_args &a) {
    const cu_kv &kv = a.rows.kv;
    const cu_batch &batch = a.rows.batch;
    const uint32_t n = batch.n_rows * batch.n_kv_heads, first = blockIdx.x * CU_ROWS_SLOTS;
    const uint32_t end = min(n, first + CU_ROWS_SLOTS);
    FOR_EACH_ROW(i, a.rows, first, end) {
        /* 1. the slot's place */
        const uint32_t head = i % batch.n_kv_heads, row = i / batch.n_kv_heads;
        const int32_t slot = i < end ? a.slots[i] : -1;
        const int32_t page =
            slot < 0 ? 0 : lane_pages(batch, row, head)[(uint32_t)slot >> kv.page_shift];
        const uint32_t rest = (uint32_t)slot & (kv.page_size - 1);
        /* 2. the key's norm, the largest last */
        const float square = side_square(
            a.rows, slot < 0 ? kv_row<T>{} : kv_rows<T>::of(kv, page, head, rest, 0));
        if (slot >= 0 && lane_id() % side_lanes(a.rows) == 0)
            a.scores[((uint64_t)page << kv.page_shift) + rest] = -sqrtf(square);
    }
}

#define SCORE_ROWS(type, tag)                                                                      \
    KERNEL(score_rows_##tag, CU_ROWS_THREADS, cu_score_rows_args) {                                \
        score_rows<type>(a);                                                                       \
    }
FOR_EACH_ROW_TYPE(SCORE_ROWS)
