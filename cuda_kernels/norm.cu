/* SPDX-License-Identifier: Apache-2.0 */
/* norm: y = c / sqrt(mean(c²) + eps) · w (+ to), c = x or x - mean(x); or y = x · w (+ to).
 * contract: host/ops/; meaning: host/reference/norm.c.
 * Work split: a block owns a row; its threads take channels in turn, one by one, so that the order
 * of the sum is the same wherever a row begins. */
#include "common.cuh"

#define THREADS 256u
#define AT_ONCE 4u /* elements that a thread loads at once */

struct norm_shared {
    float sums[THREADS / WARP], squares[THREADS / WARP];
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
    const float *added = a.to.at ? a.to.at + row * a.to.stride : nullptr;
    float *to = a.y.at + row * a.y.stride;
    float x[AT_ONCE], w[AT_ONCE], sums = 0.0f, squares = 0.0f, mean = 0.0f;
    /* 1. mean, 2. mean square */
    for (uint32_t i = threadIdx.x; i < a.dim && a.kind == CU_NORM_LAYER; i += THREADS)
        sums += from[i];
    if (a.kind == CU_NORM_LAYER)
        mean = block_sum(sums, shared.sums, THREADS / WARP) / (float)a.dim;
    for (uint32_t i = threadIdx.x; i < a.dim; i += AT_ONCE * THREADS) {
        take(from, i, a.dim, x);
#pragma unroll
        for (uint32_t j = 0; j < AT_ONCE; j++) {
            const float c = i + j * THREADS < a.dim ? x[j] - mean : 0.0f;
            squares = fmaf(c, c, squares);
        }
    }
    const float root = sqrtf(block_sum(squares, shared.squares, THREADS / WARP) / (float)a.dim + a.eps);
    const float scale = a.kind == CU_NORM_NONE ? 1.0f : 1.0f / root;
    /* 3. scaled row */
    for (uint32_t i = threadIdx.x; i < a.dim; i += AT_ONCE * THREADS) {
        take(from, i, a.dim, x);
        take(a.w, i, a.dim, w);
#pragma unroll
        for (uint32_t j = 0; j < AT_ONCE; j++)
            if (i + j * THREADS < a.dim) {
                const float y = (x[j] - mean) * scale * w[j];
                to[i + j * THREADS] = added ? added[i + j * THREADS] + y : y;
            }
    }
}
