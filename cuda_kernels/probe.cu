/* SPDX-License-Identifier: Apache-2.0 */
/* Read bandwidth: of memory in one piece, and of the pages of lanes. Sums of all that is read;
 * neighbouring threads read neighbouring vectors of 16 bytes. */
#include "common.cuh"

DEVICE void add(vec16 &sum, const vec16 &u) {
#pragma unroll
    for (int w = 0; w < 4; w++)
        sum.word[w] += u.word[w];
}

DEVICE uint32_t total_of(const vec16 &sum) {
    return sum.word[0] + sum.word[1] + sum.word[2] + sum.word[3];
}

/* `n` vectors, each read once; a thread loads COUNT of them at once. */
template <uint32_t COUNT> DEVICE void read_lanes(const cu_probe_args &a) {
    const vec16 *from = (const vec16 *)a.from;
    const uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    vec16 sum = {};
    for (; i + (COUNT - 1) * step < a.n; i += COUNT * step) {
        vec16 u[COUNT];
#pragma unroll
        for (uint32_t j = 0; j < COUNT; j++)
            u[j] = load_16(from + i + j * step);
#pragma unroll
        for (uint32_t j = 0; j < COUNT; j++)
            add(sum, u[j]);
    }
    for (; i < a.n; i += step)
        add(sum, load_16(from + i));
    /* Nobody reads the sum; the store keeps the compiler from removing the loop. */
    if (total_of(sum) == 0x5ca1ab1eu) *a.sink = 1;
}

#define READ_LANES(count)                                                                          \
    KERNEL(read_lanes_##count, 256, cu_probe_args) {                                               \
        read_lanes<count>(a);                                                                      \
    }
READ_LANES(4)
READ_LANES(8)

/* tms_page_read of host/device.h: every page of every lane once, a page for a block at a time, K
 * and V side by side. */
KERNEL(read_pages, 128, cu_page_read_args) {
    const uint64_t n = (uint64_t)a.n_lanes * a.max_pages;
    vec16 sum = {};
    for (uint64_t i = blockIdx.x; i < n; i += gridDim.x) {
        const uint64_t lane = i / a.max_pages, ordinal = i % a.max_pages;
        if (ordinal >= (uint64_t)a.count[lane]) continue;
        const uint8_t *page = a.kv + a.table[lane * a.capacity + ordinal] * a.page_stride;
        const vec16 *keys = (const vec16 *)page, *values = (const vec16 *)(page + a.value_offset);
#pragma unroll 4
        for (uint32_t j = threadIdx.x; j < max(a.k_vectors, a.v_vectors); j += blockDim.x) {
            vec16 k = {}, v = {};
            if (j < a.k_vectors) k = load_16(keys + j);
            if (j < a.v_vectors) v = load_16(values + j);
            add(sum, k);
            add(sum, v);
        }
    }
    atomic_add(a.sink, total_of(sum));
}
