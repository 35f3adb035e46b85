/* SPDX-License-Identifier: Apache-2.0 */
/* linear: y[r][j] = Σ_i x[r][i]·w[j][i] + bias[j] (+ y[r][j]); w is packed [n_out][n_in], of any
 * type.
 * contract: host/ops/; meaning: host/reference/linear.c.
 * Work split: with few rows a block owns CU_LINEAR_RUN outputs and all rows, its threads take
 * chunks of 8 inputs in turn; with many, a block owns a square of rows and outputs and goes through
 * the inputs by panels in shared memory. widen and start serve the products of cuBLAS. */
#include "linear.cuh"

/* ---- Few rows -------------------------------------------------------------------------------- */

template <typename T, uint32_t ROWS> DEVICE void linear_rows(const cu_linear_args &a) {
    constexpr uint32_t N = ROWS * CU_LINEAR_RUN;
    struct parts {
        float of[FEW_WARPS][N];
    };
    SHARED(parts, shared);
    const uint32_t first = blockIdx.x * CU_LINEAR_RUN;
    if (a.n_rows == 0) return;
    /* 1. and 2. weights as f32 and their products with the rows of x */
    float sum[N];
#pragma unroll
    for (uint32_t i = 0; i < N; i++)
        sum[i] = 0.0f;
    const bool whole = a.n_in % CHUNK == 0 && (is_quantised<T>() || aligned_16(a.w)) &&
                       aligned_16(a.x.at) &&
                       (a.n_rows == 1 || a.x.stride % 4 == 0);
    const few_inputs in = {a.x, a.n_rows, a.n_in};
    if (whole)
        multiply<true, T, ROWS>(in, a.w, a.n_out, first, sum);
    else
        multiply<false, T, ROWS>(in, a.w, a.n_out, first, sum);
    const float part = warp_sums(sum);
    if (lane_id() % (WARP / N) == 0) shared.of[warp_id()][lane_id() / (WARP / N)] = part;
    block_sync();
    /* 3. the sums over the warps, with bias and what is there */
    const uint32_t r = threadIdx.x / CU_LINEAR_RUN, j = first + threadIdx.x % CU_LINEAR_RUN;
    if (r >= ROWS || r >= a.n_rows || j >= a.n_out) return;
    float all = shared.of[0][threadIdx.x];
#pragma unroll
    for (uint32_t w = 1; w < FEW_WARPS; w++)
        all += shared.of[w][threadIdx.x];
    float *to = a.y.at + r * a.y.stride + j;
    if (a.bias) all += a.bias[j];
    *to = a.accumulate ? *to + all : all;
}

#define LINEAR_ROWS(type, tag)                                                                     \
    KERNEL(linear_rows_##tag##_r1, CU_LINEAR_FEW_THREADS, cu_linear_args) {                        \
        linear_rows<type, 1>(a);                                                                   \
    }                                                                                              \
    KERNEL(linear_rows_##tag##_r2, CU_LINEAR_FEW_THREADS, cu_linear_args) {                        \
        linear_rows<type, 2>(a);                                                                   \
    }                                                                                              \
    KERNEL(linear_rows_##tag##_r4, CU_LINEAR_FEW_THREADS, cu_linear_args) {                        \
        linear_rows<type, 4>(a);                                                                   \
    }                                                                                              \
    KERNEL(linear_rows_##tag##_r8, CU_LINEAR_FEW_THREADS, cu_linear_args) {                        \
        linear_rows<type, 8>(a);                                                                   \
    }
FOR_EACH_WEIGHT(LINEAR_ROWS)

/* ---- Many rows ------------------------------------------------------------------------------- */

#define DEPTH 16u                  /* inputs of a panel */
#define SIDE  4u                   /* rows and outputs of a thread */
#define PITCH (CU_LINEAR_TILE + 4) /* keeps 16-byte alignment, spreads the banks */
#define SHARE (CU_LINEAR_TILE * DEPTH / CU_LINEAR_TILE_THREADS) /* elements a thread brings */

struct linear_panel {
    vec16 of[DEPTH][PITCH / 4]; /* [input][row or output] */
};
struct linear_panels {
    linear_panel x, w;
};

/* The thread's share of the panel of inputs from `at` on, of rows `first` to `first + 64` of n,
 * whose rows have `stride` elements; 0 outside. */
template <typename T>
DEVICE void fetch(const void *rows, uint64_t stride, uint32_t first, uint32_t n, uint64_t at,
                  uint32_t n_in, float (&part)[SHARE]) {
    const uint64_t i = at + threadIdx.x % DEPTH;
#pragma unroll
    for (uint32_t s = 0; s < SHARE; s++) {
        const uint64_t r = (uint64_t)first + threadIdx.x / DEPTH + s * (CU_LINEAR_TILE / SHARE);
        part[s] =
            r < n && i < n_in ? weights<T>::one(weights<T>::row(rows, r, stride), i) : 0.0f;
    }
}

DEVICE void put(linear_panel &panel, const float (&part)[SHARE]) {
#pragma unroll
    for (uint32_t s = 0; s < SHARE; s++) {
        const uint32_t r = threadIdx.x / DEPTH + s * (CU_LINEAR_TILE / SHARE);
        panel.of[threadIdx.x % DEPTH][r / 4].word[r % 4] = float_to_bits(part[s]);
    }
}

DEVICE void multiply_panels(const linear_panels &shared, float (&sum)[SIDE][SIDE]) {
#pragma unroll
    for (uint32_t d = 0; d < DEPTH; d++) {
        const vec16 x = load_16(&shared.x.of[d][threadIdx.x / (CU_LINEAR_TILE / SIDE)]);
        const vec16 w = load_16(&shared.w.of[d][threadIdx.x % (CU_LINEAR_TILE / SIDE)]);
#pragma unroll
        for (uint32_t r = 0; r < SIDE; r++)
#pragma unroll
            for (uint32_t o = 0; o < SIDE; o++)
                sum[r][o] = fmaf(bits_to_float(x.word[r]), bits_to_float(w.word[o]), sum[r][o]);
    }
}

template <typename T> DEVICE void linear_tile(const cu_linear_args &a) {
    SHARED(linear_panels, shared);
    const uint32_t first_row = blockIdx.y * CU_LINEAR_TILE, first = blockIdx.x * CU_LINEAR_TILE;
    if (a.n_rows == 0) return;
    float x[SHARE], w[SHARE], sum[SIDE][SIDE] = {};
    fetch<float>(a.x.at, a.x.stride, first_row, a.n_rows, 0, a.n_in, x);
    fetch<T>(a.w, a.n_in, first, a.n_out, 0, a.n_in, w);
    for (uint64_t at = 0; at < a.n_in; at += DEPTH) {
        /* 1. a panel of x, and of weights as f32; the next one comes while this one is used */
        put(shared.x, x);
        put(shared.w, w);
        block_sync();
        fetch<float>(a.x.at, a.x.stride, first_row, a.n_rows, at + DEPTH, a.n_in, x);
        fetch<T>(a.w, a.n_in, first, a.n_out, at + DEPTH, a.n_in, w);
        /* 2. their products */
        multiply_panels(shared, sum);
        block_sync();
    }
    /* 3. bias and what is there */
#pragma unroll
    for (uint32_t i = 0; i < SIDE * SIDE; i++) {
        const uint32_t r = first_row + threadIdx.x / (CU_LINEAR_TILE / SIDE) * SIDE + i / SIDE;
        const uint32_t j = first + threadIdx.x % (CU_LINEAR_TILE / SIDE) * SIDE + i % SIDE;
        if (r >= a.n_rows || j >= a.n_out) continue;
        float *to = a.y.at + r * a.y.stride + j;
        const float all = sum[i / SIDE][i % SIDE] + (a.bias ? a.bias[j] : 0.0f);
        *to = a.accumulate ? *to + all : all;
    }
}

#define LINEAR_TILE(type, tag)                                                                     \
    KERNEL(linear_tile_##tag, CU_LINEAR_TILE_THREADS, cu_linear_args) {                            \
        linear_tile<type>(a);                                                                      \
    }
FOR_EACH_WEIGHT(LINEAR_TILE)

/* ---- For cuBLAS ------------------------------------------------------------------------------ */

/* n elements of w as f32, whole blocks of a quantised type; `to` is aligned. */
template <typename T> DEVICE void widen_all(const cu_widen_args &a) {
    const auto *from = weights<T>::row(a.from, 0, a.n);
    const uint64_t chunks = is_quantised<T>() || aligned_16(from) ? a.n / CHUNK : 0;
    FOR_EACH_ITEM(c, chunks) {
        float x[CHUNK];
        weights<T>::load(from, c * CHUNK, x);
        store_8(x, a.to + c * CHUNK);
    }
    FOR_EACH_ITEM(i, a.n - chunks * CHUNK) {
        a.to[chunks * CHUNK + i] = weights<T>::one(from, chunks * CHUNK + i);
    }
}
#define LINEAR_WIDEN(type, tag)                                                                    \
    KERNEL(linear_widen_##tag, CU_LINEAR_ITEM_THREADS, cu_widen_args) {                            \
        widen_all<type>(a);                                                                        \
    }
LINEAR_WIDEN(f16, f16)
LINEAR_WIDEN(bf16, bf16)
FOR_EACH_QUANTISED(LINEAR_WIDEN)

/* What the product is added to: the bias, or y with the bias. */
KERNEL(linear_start, CU_LINEAR_ITEM_THREADS, cu_linear_args) {
    const uint64_t j = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (j >= a.n_out) return;
    for (uint32_t r = blockIdx.y; r < a.n_rows; r += gridDim.y) {
        float *to = a.y.at + r * a.y.stride + j;
        *to = (a.accumulate ? *to : 0.0f) + a.bias[j];
    }
}
