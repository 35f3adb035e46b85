/* SPDX-License-Identifier: Apache-2.0 */
/* linear_parts: up to three matrices with one input, normalised or not, gated or not, to which an
 * addend is added first or not.
 * contract: host/ops/; meaning: host/compose.c.
 * Work split: a block forms the norms of all rows once, then takes runs of CU_LINEAR_RUN outputs of
 * any part in turn, of both parts under a gate; its threads take chunks of 8 inputs in turn. The
 * type of a part's weights is chosen for a whole run. Every block forms the sum with the addend for
 * itself, and writes some of its channels. */
#include "activate.cuh"
#include "linear.cuh"

template <uint32_t ROWS> struct linear_parts_shared {
    float sums[ROWS][FEW_WARPS], squares[ROWS][FEW_WARPS];
    float of[FEW_WARPS][ROWS * CU_LINEAR_RUN];
};

/* The inputs of a launch: the rows as they are, or those of the sum that a block holds; normalised
 * where there are weights. */
template <uint32_t ROWS> struct prepared_inputs {
    few_inputs plain;
    const float *held; /* NULL: none */
    const float *norm; /* NULL: none */
    const float (&mean)[ROWS], (&scale)[ROWS];
    uint32_t n_in;
    float of_norm[CHUNK];
    template <bool WHOLE> DEVICE void begin(uint64_t at) {
        if (norm) load_chunk<WHOLE, float>(norm, at, n_in, of_norm);
    }
    template <bool WHOLE> DEVICE void load(uint32_t row, uint64_t at, float (&x)[CHUNK]) const {
        if (held)
            load_chunk<true, float>(held + min(row, plain.n_rows - 1) * CU_LINEAR_HELD(n_in), at,
                                    n_in, x);
        else
            plain.load<WHOLE>(row, at, x);
        if (!norm) return;
#pragma unroll
        for (uint32_t i = 0; i < CHUNK; i++)
            x[i] = (x[i] - mean[row]) * scale[row] * of_norm[i];
    }
};

template <uint32_t ROWS>
DEVICE void row_means(const few_inputs &of, linear_parts_shared<ROWS> &shared, float (&mean)[ROWS]) {
    float sums[ROWS] = {};
    for (uint32_t i = threadIdx.x; i < of.n_in; i += CU_LINEAR_FEW_THREADS) {
#pragma unroll
        for (uint32_t r = 0; r < ROWS; r++)
            sums[r] += of.x.at[min(r, of.n_rows - 1) * of.x.stride + i];
    }
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++)
        mean[r] = block_sum(sums[r], shared.sums[r], FEW_WARPS) / (float)of.n_in;
}

/* 1 / sqrt(mean(c²) + eps) of each row c less its mean, for every thread; rows beyond n_rows repeat the
 * last. */
template <uint32_t ROWS>
DEVICE void norm_scales(const few_inputs &of, float eps, linear_parts_shared<ROWS> &shared,
                        const float (&mean)[ROWS], float (&scale)[ROWS]) {
    float squares[ROWS] = {};
    for (uint32_t i = threadIdx.x; i < of.n_in; i += CU_LINEAR_FEW_THREADS) {
#pragma unroll
        for (uint32_t r = 0; r < ROWS; r++) {
            const float x = of.x.at[min(r, of.n_rows - 1) * of.x.stride + i] - mean[r];
            squares[r] = fmaf(x, x, squares[r]);
        }
    }
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++)
        scale[r] = 1.0f / sqrtf(block_sum(squares[r], shared.squares[r], FEW_WARPS) /
                                    (float)of.n_in +
                                eps);
}

/* What a norm subtracts from each row, and multiplies it by before the weights. */
template <uint32_t ROWS>
DEVICE void norm_of(const few_inputs &of, uint32_t kind, float eps,
                    linear_parts_shared<ROWS> &shared, float (&mean)[ROWS], float (&scale)[ROWS]) {
#pragma unroll
    for (uint32_t r = 0; r < ROWS; r++) {
        mean[r] = 0.0f;
        scale[r] = 1.0f;
    }
    if (kind == CU_NORM_LAYER) row_means<ROWS>(of, shared, mean);
    if (kind != CU_NORM_NONE) norm_scales<ROWS>(of, eps, shared, mean, scale);
}

/* The rows with the normalised addend: all of them to `held` if it is there, zeros behind them, and this
 * block's share of the channels to the sum. */
template <uint32_t ROWS>
DEVICE void add_up(const cu_linear_parts_args &a, linear_parts_shared<ROWS> &shared, float *held) {
    const few_inputs addend = {a.addend, a.n_rows, a.n_in};
    const uint32_t width = CU_LINEAR_HELD(a.n_in), all = gridDim.x * CU_LINEAR_FEW_THREADS;
    const uint32_t own = blockIdx.x * CU_LINEAR_FEW_THREADS;
    float mean[ROWS], scale[ROWS];
    norm_of<ROWS>(addend, a.addend_kind, a.eps, shared, mean, scale);
    for (uint32_t i = threadIdx.x; i < width; i += CU_LINEAR_FEW_THREADS) {
        const bool there = i < a.n_in, writes = there && (i - threadIdx.x) % all == own;
        if (!held && !writes) continue;
#pragma unroll
        for (uint32_t r = 0; r < ROWS; r++) {
            if (r >= a.n_rows) break;
            float sum = 0.0f;
            if (there)
                sum = fmaf((a.addend.at[r * a.addend.stride + i] - mean[r]) * scale[r], a.addend_w[i],
                           a.x.at[r * a.x.stride + i]);
            if (held) held[r * width + i] = sum;
            if (writes) a.sum.at[r * a.sum.stride + i] = sum;
        }
    }
    block_sync();
}

template <typename T, uint32_t ROWS>
DEVICE void multiply_part(const cu_linear_parts_args &a, const cu_linear_part &part,
                          const float *held, const float (&mean)[ROWS], const float (&scale)[ROWS],
                          uint32_t first, float (&sum)[ROWS * CU_LINEAR_RUN]) {
    const prepared_inputs<ROWS> in = {{a.x, a.n_rows, a.n_in}, held, a.norm, mean, scale, a.n_in,
                                      {}};
    const bool whole = a.n_in % CHUNK == 0 && (is_quantised<T>() || aligned_16(part.w)) &&
                       aligned_16(a.x.at) && aligned_16(a.norm) &&
                       (a.n_rows == 1 || a.x.stride % 4 == 0);
    if (whole)
        multiply<true, T, ROWS>(in, part.w, part.n_out, first, sum);
    else
        multiply<false, T, ROWS>(in, part.w, part.n_out, first, sum);
}

/* Outputs of a part from `first` on, with the bias: thread r * CU_LINEAR_RUN + o gets output o of
 * row r. */
template <uint32_t ROWS>
DEVICE float outputs_of(const cu_linear_parts_args &a, const cu_linear_part &part,
                        const float *held, const float (&mean)[ROWS], const float (&scale)[ROWS],
                        uint32_t first, linear_parts_shared<ROWS> &shared) {
    constexpr uint32_t N = ROWS * CU_LINEAR_RUN;
    float sum[N] = {};
    switch (part.type) {
#define PART_OF(type, tag)                                                                         \
    case CU_WEIGHT_##tag:                                                                          \
        multiply_part<type, ROWS>(a, part, held, mean, scale, first, sum);                         \
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
    DYNAMIC_SHARED(float, room);
    float *const held = a.addend.at && a.n_parts ? room : nullptr;
    if (a.n_rows == 0) return;
    /* 1. the sum with the addend; what normalises each row */
    float mean[ROWS], scale[ROWS];
    if (a.addend.at) add_up<ROWS>(a, shared, held);
    const cu_matrix rows = {held ? held : a.x.at, held ? CU_LINEAR_HELD(a.n_in) : a.x.stride};
    norm_of<ROWS>({rows, a.n_rows, a.n_in}, a.norm ? a.norm_kind : CU_NORM_NONE, a.eps, shared, mean,
                  scale);
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
                outputs_of<ROWS>(a, a.parts[p + second], held, mean, scale, first, shared);
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
