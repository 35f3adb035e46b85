/* SPDX-License-Identifier: Apache-2.0 */
/* linear_parts: up to three matrices with one input, normalised or not, gated or not.
 * contract: host/ops/; meaning: host/compose.c.
 * Work split: a block forms the norms of all rows once, then takes runs of CU_LINEAR_RUN outputs of
 * any part in turn, of both parts under a gate; its threads take chunks of 8 inputs in turn. The
 * type of a part's weights is chosen for a whole run. */
#include "activate.cuh"
#include "linear.cuh"

template <uint32_t ROWS> struct linear_parts_shared {
    float sums[ROWS][FEW_WARPS], squares[ROWS][FEW_WARPS];
    float of[FEW_WARPS][ROWS * CU_LINEAR_RUN];
};

template <uint32_t ROWS>
DEVICE void row_means(const cu_linear_parts_args &a, linear_parts_shared<ROWS> &shared,
                      float (&mean)[ROWS]) {
    float sums[ROWS] = {};
    for (uint32_t i = threadIdx.x; i < a.n_in; i += CU_LINEAR_FEW_THREADS) {
#pragma unroll
        for (uint32_t r = 0; r < ROWS; r++)
            sums[r] += a.x.at[min(r, a.n_rows - 1) * a.x.stride + i];
    }
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++)
        mean[r] = block_sum(sums[r], shared.sums[r], FEW_WARPS) / (float)a.n_in;
}

/* 1 / sqrt(mean(c²) + eps) of each row c less its mean, for every thread; rows beyond n_rows repeat the
 * last. */
template <uint32_t ROWS>
DEVICE void norm_scales(const cu_linear_parts_args &a, linear_parts_shared<ROWS> &shared,
                        const float (&mean)[ROWS], float (&scale)[ROWS]) {
    float squares[ROWS] = {};
    for (uint32_t i = threadIdx.x; i < a.n_in; i += CU_LINEAR_FEW_THREADS) {
#pragma unroll
        for (uint32_t r = 0; r < ROWS; r++) {
            const float x = a.x.at[min(r, a.n_rows - 1) * a.x.stride + i] - mean[r];
            squares[r] = fmaf(x, x, squares[r]);
        }
    }
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++)
        scale[r] = 1.0f / sqrtf(block_sum(squares[r], shared.squares[r], FEW_WARPS) /
                                    (float)a.n_in +
                                a.eps);
}

template <typename T, uint32_t ROWS>
DEVICE void multiply_part(const cu_linear_parts_args &a, const cu_linear_part &part,
                          const float (&mean)[ROWS], const float (&scale)[ROWS], uint32_t first,
                          float (&sum)[ROWS * CU_LINEAR_RUN]) {
    const few_inputs in = {a.x, a.n_rows, a.n_in};
    const normalised<ROWS> norm = {a.norm, mean, scale, {}};
    const bool whole = a.n_in % CHUNK == 0 && (is_quantised<T>() || aligned_16(part.w)) &&
                       aligned_16(a.x.at) && aligned_16(a.norm) &&
                       (a.n_rows == 1 || a.x.stride % 4 == 0);
    if (whole)
        multiply<true, T, ROWS>(in, norm, part.w, part.n_out, first, sum);
    else
        multiply<false, T, ROWS>(in, norm, part.w, part.n_out, first, sum);
}

/* Outputs of a part from `first` on, with the bias: thread r * CU_LINEAR_RUN + o gets output o of
 * row r. */
template <uint32_t ROWS>
DEVICE float outputs_of(const cu_linear_parts_args &a, const cu_linear_part &part,
                        const float (&mean)[ROWS], const float (&scale)[ROWS], uint32_t first,
                        linear_parts_shared<ROWS> &shared) {
    constexpr uint32_t N = ROWS * CU_LINEAR_RUN;
    float sum[N] = {};
    switch (part.type) {
#define PART_OF(type, tag)                                                                         \
    case CU_WEIGHT_##tag:                                                                          \
        multiply_part<type, ROWS>(a, part, mean, scale, first, sum);                                     \
        break;
        PART_OF(float, F32)
        PART_OF(f16, F16)
        PART_OF(bf16, BF16)
        FOR_EACH_QUANTISED(PART_OF)
    }
    const float share = warp_sums(sum);
    block_sync(); /* the shares of the outputs before have been read */
    if (lane_id() % (WARP / N) == 0) shared.of[warp_id()][lane_id() / (WARP / N)] = share;
    block_sync();
    if (threadIdx.x >= N) return 0.0f;
    float all = shared.of[0][threadIdx.x];
#pragma unroll
    for (uint32_t w = 1; w < FEW_WARPS; w++)
        all += shared.of[w][threadIdx.x];
    const uint32_t j = first + threadIdx.x % CU_LINEAR_RUN;
    return part.bias && j < part.n_out ? all + part.bias[j] : all;
}

template <uint32_t ROWS> DEVICE void linear_parts(const cu_linear_parts_args &a) {
    SHARED(linear_parts_shared<ROWS>, shared);
    if (a.n_rows == 0) return;
    /* 1. what normalises each row */
    float mean[ROWS] = {}, scale[ROWS] = {};
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++)
        scale[r] = 1.0f;
    if (a.norm && a.norm_kind == CU_NORM_LAYER) row_means<ROWS>(a, shared, mean);
    if (a.norm && a.norm_kind != CU_NORM_NONE) norm_scales<ROWS>(a, shared, mean, scale);
    const uint32_t runs[] = {(a.parts[0].n_out + CU_LINEAR_RUN - 1) / CU_LINEAR_RUN,
                             (a.parts[1].n_out + CU_LINEAR_RUN - 1) / CU_LINEAR_RUN,
                             (a.parts[2].n_out + CU_LINEAR_RUN - 1) / CU_LINEAR_RUN};
    const uint32_t items = a.gated ? runs[0] : runs[0] + runs[1] + runs[2];
    for (uint32_t item = blockIdx.x; item < items; item += gridDim.x) {
        const uint32_t p = (item >= runs[0]) + (item >= runs[0] + runs[1]);
        const uint32_t run = item - (p > 0 ? runs[0] : 0) - (p > 1 ? runs[1] : 0);
        const cu_linear_part &part = a.parts[p];
        /* 2. products, with the bias; 3. the gate */
        const uint32_t first = run * CU_LINEAR_RUN;
        const uint32_t paired = a.gated && a.n_parts == 2;
        float y = 0.0f, up = 1.0f;
#pragma unroll 1 /* twice the code takes twice the time to compile */
        for (uint32_t second = 0; second <= paired; second++)
            (second ? up : y) =
                outputs_of<ROWS>(a, a.parts[p + second], mean, scale, first, shared);
        if (a.gated) y = gated(y, up, a.activation);
        const uint32_t r = threadIdx.x / CU_LINEAR_RUN, j = first + threadIdx.x % CU_LINEAR_RUN;
        if (r < ROWS && r < a.n_rows && j < part.n_out) {
            float *to = part.y.at + r * part.y.stride + j;
            *to = a.accumulate ? *to + y : y;
        }
    }
}

#define LINEAR_PARTS(rows)                                                                         \
    KERNEL(linear_parts_r##rows, CU_LINEAR_FEW_THREADS, cu_linear_parts_args) {                    \
        linear_parts<rows>(a);                                                                     \
    }
LINEAR_PARTS(1)
LINEAR_PARTS(2)
LINEAR_PARTS(4)
LINEAR_PARTS(8)
