/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels of linear and linear_parts share: the products of few rows with CU_LINEAR_RUN
 * outputs, by a block of CU_LINEAR_FEW_THREADS threads, and loads of 8 inputs. */
#ifndef TAMIS_CUDA_LINEAR_CUH
#define TAMIS_CUDA_LINEAR_CUH

#include "weights.cuh"

#define CHUNK     8u
#define FEW_WARPS (CU_LINEAR_FEW_THREADS / WARP)

DEVICE bool aligned_16(const void *p) {
    return (uint64_t)p % 16 == 0;
}

/* Elements `first` to `first + 8` of a row of n, zeros behind its end. Rows of quantised weights
 * are of whole chunks, at any address. */
template <bool WHOLE, typename T>
DEVICE void load_chunk(const typename weights<T>::unit *row, uint64_t first, uint64_t n,
                       float (&x)[CHUNK]) {
    if (WHOLE || is_quantised<T>()) {
        weights<T>::load(row, first, x);
    } else {
#pragma unroll
        for (uint32_t i = 0; i < CHUNK; i++)
            x[i] = first + i < n ? weights<T>::one(row, first + i) : 0.0f;
    }
}

/* The rows of a launch, 8 inputs at a time; those beyond the last repeat it. linear_parts has another
 * struct with the same functions: begin is called once for the inputs from `at` on, load for each row. */
struct few_inputs {
    cu_matrix x;
    uint32_t n_rows, n_in;
    template <bool WHOLE> DEVICE void begin(uint64_t) {}
    template <bool WHOLE> DEVICE void load(uint32_t row, uint64_t at, float (&to)[CHUNK]) const {
        load_chunk<WHOLE, float>((const float *)x.at + min(row, n_rows - 1) * x.stride, at, n_in, to);
    }
};

/* Steps 1 and 2 for a thread: its share of the products of outputs from `first` on, in
 * sum[r * RUN + o]. Outputs beyond the last repeat it. WHOLE: all rows are aligned and of whole chunks;
 * the order of the sums is the same. */
template <bool WHOLE, typename T, uint32_t ROWS, typename INPUTS>
DEVICE void multiply(INPUTS in, const void *all, uint32_t n_out, uint32_t first,
                     float (&sum)[ROWS * CU_LINEAR_RUN]) {
    const uint32_t chunks = in.n_in / CHUNK + (in.n_in % CHUNK != 0);
    const typename weights<T>::unit *w[CU_LINEAR_RUN];
#pragma unroll
    for (uint32_t o = 0; o < CU_LINEAR_RUN; o++)
        w[o] = weights<T>::row(all, min(first + o, n_out - 1), in.n_in);
#pragma unroll(ROWS == 1 ? 2 : 1)
    for (uint32_t c = threadIdx.x; c < chunks; c += CU_LINEAR_FEW_THREADS) {
        const uint64_t at = (uint64_t)c * CHUNK;
        float wide[CU_LINEAR_RUN][CHUNK];
#pragma unroll
        for (uint32_t o = 0; o < CU_LINEAR_RUN; o++)
            load_chunk<WHOLE, T>(w[o], at, in.n_in, wide[o]);
        in.template begin<WHOLE>(at);
#pragma unroll
        for (uint32_t r = 0; r < ROWS; r++) {
            float x[CHUNK];
            in.template load<WHOLE>(r, at, x);
#pragma unroll
            for (uint32_t o = 0; o < CU_LINEAR_RUN; o++)
#pragma unroll
                for (uint32_t i = 0; i < CHUNK; i++)
                    sum[r * CU_LINEAR_RUN + o] =
                        fmaf(x[i], wide[o][i], sum[r * CU_LINEAR_RUN + o]);
        }
    }
}

/* N <= WARP sums over a warp: lane l gets number l / (WARP / N). A lane halves what it carries
 * while it can. Whatever N is, the terms of a sum meet in the same order. */
template <uint32_t N> DEVICE float warp_sums(float (&sum)[N]) {
    uint32_t n = N;
#pragma unroll
    for (uint32_t mask = WARP / 2; mask > 0; mask /= 2) {
        const bool upper = lane_id() & mask;
        const uint32_t half = n / 2;
        if (half == 0) sum[0] += shuffle_xor(sum[0], mask);
#pragma unroll
        for (uint32_t i = 0; i < N / 2; i++) {
            if (i >= half) break;
            const float away = upper ? sum[i] : sum[i + half];
            sum[i] = (upper ? sum[i + half] : sum[i]) + shuffle_xor(away, mask);
        }
        n = half == 0 ? 1 : half;
    }
    return sum[0];
}

#endif
