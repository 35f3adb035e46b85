/* SPDX-License-Identifier: Apache-2.0 */
/* pool_values: out(s) = the largest x(s + o), or Σ x(s + o) / width, |o| <= width/2.
 * contract: host/ops/; meaning: host/reference/pool.c.
 * Work split: in pool_values a thread takes a slot of a list, a.blocks blocks a list; in
 * pool_values_rescale a block owns a list. */
#include "common.cuh"

/* Values that take part in a list. */
DEVICE uint32_t pooled(const cu_pool_args &a, uint32_t list) {
    const uint32_t seen = (uint32_t)a.visible[list / a.n_lists];
    return seen > a.tail ? seen - a.tail : 0;
}

KERNEL(pool_values, CU_POOL_THREADS, cu_pool_args) {
    const uint32_t list = blockIdx.x / a.blocks;
    if (list >= a.lists) return;
    const uint32_t n = pooled(a, list), reach = a.width / 2;
    const uint32_t slot = blockIdx.x % a.blocks * CU_POOL_THREADS + threadIdx.x;
    if (slot >= n) return;
    const float *x = a.x + list * a.stride;
    const uint32_t end = n - slot > reach ? slot + reach + 1 : n;
    float all = a.kind == 0 ? -INFINITY : 0.0f;
    for (uint32_t s = slot > reach ? slot - reach : 0; s < end; s++) {
        if (a.kind != 0)
            all += x[s];
        else if (x[s] > all || x[s] != x[s])
            all = x[s]; /* a NaN stays: nothing is above it */
    }
    a.out[list * a.stride + slot] = a.kind == 0 ? all : all / (float)a.width;
}

typedef struct pool_shared {
    float before[CU_POOL_THREADS / WARP], after[CU_POOL_THREADS / WARP];
} pool_shared;

/* out times Σx / Σout of its list, where that is finite. */
KERNEL(pool_values_rescale, CU_POOL_THREADS, cu_pool_args) {
    SHARED(pool_shared, warps);
    const uint32_t list = blockIdx.x;
    if (list >= a.lists) return;
    const uint32_t n = pooled(a, list);
    const float *x = a.x + list * a.stride;
    float *out = a.out + list * a.stride;
    /* 1. both sums */
    float before = 0.0f, after = 0.0f;
    for (uint32_t s = threadIdx.x; s < n; s += CU_POOL_THREADS) {
        before += x[s];
        after += out[s];
    }
    before = block_sum(before, warps.before, CU_POOL_THREADS / WARP);
    const float factor = before / block_sum(after, warps.after, CU_POOL_THREADS / WARP);
    if ((float_to_bits(factor) & 0x7fffffffu) >= 0x7f800000u) return;
    /* 2. the list on the scale of its values */
    for (uint32_t s = threadIdx.x; s < n; s += CU_POOL_THREADS)
        out[s] *= factor;
}
