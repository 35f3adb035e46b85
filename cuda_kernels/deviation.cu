/* SPDX-License-Identifier: Apache-2.0 */
/* deviation: the sum of squares of what rows differ from the slots of their tokens by, and that of
 * the rows themselves.
 * contract: host/ops/; meaning: host/reference/deviation.c.
 * Work split: a block owns a row; its threads take 8 channels of a head in turn. */
#include "common.cuh"

struct deviation_shared {
    float sums[CU_DEVIATION_THREADS / WARP];
};

template <typename T> DEVICE void deviation(const cu_deviation_args &a) {
    SHARED(deviation_shared, shared);
    const uint32_t row = blockIdx.x, heads = a.batch.n_kv_heads, chunks = a.dim / 8;
    if (row >= a.batch.n_rows) return;
    float squares = 0.0f, of_x = 0.0f;
    for (uint32_t i = threadIdx.x; i < heads * chunks; i += CU_DEVIATION_THREADS) {
        /* 1. the slot's place */
        const uint32_t head = i / chunks, channel = i % chunks * 8;
        const int32_t slot = a.slots[(uint64_t)row * heads + head];
        const float *from = a.x.at + row * a.x.stride + (uint64_t)head * a.dim + channel;
#pragma unroll
        for (uint32_t c = 0; c < 8; c++)
            of_x = fmaf(from[c], from[c], of_x);
        if (slot < 0) continue;
        const int32_t page = lane_pages(a.batch, row, head)[(uint32_t)slot >> a.kv.page_shift];
        const kv_row<T> held =
            kv_rows<T>::of(a.kv, page, head, (uint32_t)slot & (a.kv.page_size - 1),
                           a.values ? a.kv.value_offset : 0);
        /* 2. the squares */
        float old[8];
        load_8(held, channel, old);
#pragma unroll
        for (uint32_t c = 0; c < 8; c++) {
            const float apart = from[c] - old[c];
            squares = fmaf(apart, apart, squares);
        }
    }
    const float sum = block_sum(squares, shared.sums, CU_DEVIATION_THREADS / WARP);
    if (threadIdx.x == 0) a.out[row] = is_nan(sum) ? INFINITY : sum;
    if (!a.norms) return;
    block_sync(); /* the sums are read no more */
    const float norm = block_sum(of_x, shared.sums, CU_DEVIATION_THREADS / WARP);
    if (threadIdx.x == 0) a.norms[row] = is_nan(norm) ? INFINITY : norm;
}

#define DEVIATION(type, tag)                                                                       \
    KERNEL(deviation_##tag, CU_DEVIATION_THREADS, cu_deviation_args) {                             \
        deviation<type>(a);                                                                        \
    }
FOR_EACH_ROW_TYPE(DEVIATION)
