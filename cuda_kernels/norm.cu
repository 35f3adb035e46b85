/* SPDX-License-Identifier: Apache-2.0 */
/* norm: y = x / sqrt(mean(x²) + eps) · w.
 * contract: host/ops/; meaning: host/reference/norm.c.
 * Work split: a block owns a row; its threads take channels in turn, one by one, so that the order
 * of the sum is the same wherever a row begins. */
#include "common.cuh"

#define THREADS 256u
#define AT_ONCE 4u /* elements that a thread loads at once */

struct norm_shared {
    float sums[THREADS / WARP];
};

/* Elements i, i + THREADS, ... of n; 0 beyond them. No branch stands between the loads; what is read
 * in the place of those beyond is the thread's own, which nobody else writes to in place. */
DEVICE void take(const float *from, uint32_t i, uint32_t n, float (&x)[AT_ONCE]) {
#pragma unroll
    for (uint32_t j = 0; j < AT_ONCE; j++)
        x[j] = from[i + j * THREADS < n ? i + j * THREADS : i];
#pragma unroll
    for (uint32_t j = 0; j < AT_ONCE; j++)
        x[j] = i + j * THREADS < n ? x[j] : 0.0f;
}

KERNEL(norm_rows, THREADS, cu_norm_args) {
    SHARED(norm_shared, shared);
    const uint32_t row = blockIdx.x;
    if (row >= a.n_rows) return;
    const float *from = a.x.at + row * a.x.stride;
    float *to = a.y.at + row * a.y.stride;
    float x[AT_ONCE], w[AT_ONCE], squares = 0.0f;
    /* 1. mean square */
    for (uint32_t i = threadIdx.x; i < a.dim; i += AT_ONCE * THREADS) {
        take(from, i, a.dim, x);
#pragma unroll
        for (uint32_t j = 0; j < AT_ONCE; j++)
            squares = fmaf(x[j], x[j], squares);
    }
    const float sum = block_sum(squares, shared.sums, THREADS / WARP);
    const float scale = 1.0f / sqrtf(sum / (float)a.dim + a.eps);
    /* 2. scaled row */
    for (uint32_t i = threadIdx.x; i < a.dim; i += AT_ONCE * THREADS) {
        take(from, i, a.dim, x);
        take(a.w, i, a.dim, w);
#pragma unroll
        for (uint32_t j = 0; j < AT_ONCE; j++)
            if (i + j * THREADS < a.dim) to[i + j * THREADS] = x[j] * scale * w[j];
    }
}
