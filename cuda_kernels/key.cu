/* SPDX-License-Identifier: Apache-2.0 */
/* key_score: ‖k‖₂; k·m / (‖k‖·‖m‖), m the mean of k/‖k‖ over the lane; or the mean over the group
 * of scale·μ·k + scale²/2·kᵀSk.
 * contract: host/ops/; meaning: host/reference/key.c.
 * Work split: in key_score_norm and key_score_cosine a warp takes rows; in key_score_directions a
 * block sums CU_SUM_SLOTS slots; in key_score_mean a block owns an (item, KV head); in
 * key_score_quadratic a block takes a tile of slots (slots.cuh). */
#include "slots.cuh"

#define KEY_WARPS (CU_ROWS_THREADS / WARP)

typedef struct key_shared {
    float factors[CU_SUM_SLOTS]; /* 1/‖k‖ */
    float parts[CU_ROWS_THREADS][8];
} key_shared;

/* Σ k/‖k‖ over the block's slots. */
template <typename T> DEVICE void directions(const cu_key_score_args &a) {
    SHARED(key_shared, shared);
    const slot_lane l = lane_of(a.slots);
    const uint32_t first = l.block * CU_SUM_SLOTS, end = min(l.seen, first + CU_SUM_SLOTS);
    if (first >= l.seen) return;
    /* 1. 1/‖k‖; a key of norm 0 adds nothing */
    FOR_EACH_ROW(slot, a.slots, first, end) {
        const float norm = sqrtf(
            side_square(a.slots, slot < end ? slot_row<T>(a.slots, l, slot, 0) : kv_row<T>{}));
        if (slot < end && lane_id() % side_lanes(a.slots) == 0)
            shared.factors[slot - first] = norm == 0.0f ? 0.0f : 1.0f / norm;
    }
    block_sync();
    /* 2. the thread's channels of its share of the slots */
    const uint32_t chunks = a.slots.dim / 8, shares = CU_ROWS_THREADS / chunks;
    const uint32_t chunk = threadIdx.x % chunks, share = threadIdx.x / chunks;
    float sum[8] = {};
    for (uint32_t slot = first + share; share < shares && slot < end; slot += shares) {
        const float factor = shared.factors[slot - first];
        float x[8];
        load_8(slot_row<T>(a.slots, l, slot, 0), chunk * 8, x);
#pragma unroll
        for (uint32_t c = 0; c < 8; c++)
            sum[c] = fmaf(x[c], factor, sum[c]);
    }
#pragma unroll
    for (uint32_t c = 0; c < 8; c++)
        shared.parts[threadIdx.x][c] = sum[c];
    block_sync();
    /* 3. over the shares, in order */
    for (uint32_t d = threadIdx.x; d < a.slots.dim; d += CU_ROWS_THREADS) {
        float all = 0.0f;
        for (uint32_t i = 0; i < shares; i++)
            all += shared.parts[i * chunks + d / 8][d % 8];
        a.sums[(uint64_t)blockIdx.x * a.slots.dim + d] = all;
    }
}

#define MEAN_TURNS (CU_ANY_DIM / CU_ROWS_THREADS)

typedef struct mean_shared {
    float warps[KEY_WARPS];
} mean_shared;

/* m / ‖m‖; 0 where ‖m‖ is 0. */
KERNEL(key_score_mean, CU_ROWS_THREADS, cu_key_score_args) {
    SHARED(mean_shared, shared);
    const uint32_t owner = blockIdx.x, dim = a.slots.dim;
    if (owner >= (uint64_t)a.slots.batch.n_rows * a.slots.batch.n_kv_heads) return;
    const uint32_t seen = (uint32_t)a.slots.batch.visible[owner];
    float sums[MEAN_TURNS] = {}, squares = 0.0f; /* of the thread's channels */
#pragma unroll
    for (uint32_t i = 0; i < MEAN_TURNS; i++) {
        const uint32_t d = i * CU_ROWS_THREADS + threadIdx.x;
        for (uint32_t b = 0; d < dim && b * CU_SUM_SLOTS < seen; b++)
            sums[i] += a.sums[((uint64_t)owner * a.sum_blocks + b) * dim + d];
        squares += sums[i] * sums[i];
    }
    const float square = block_sum(squares, shared.warps, KEY_WARPS);
#pragma unroll
    for (uint32_t i = 0; i < MEAN_TURNS; i++) {
        const uint32_t d = i * CU_ROWS_THREADS + threadIdx.x;
        if (d < dim)
            a.means[(uint64_t)owner * dim + d] = square == 0.0f ? 0.0f : sums[i] / sqrtf(square);
    }
}

template <typename T> DEVICE void cosines(const cu_key_score_args &a) {
    const slot_lane l = lane_of(a.slots);
    const uint32_t first = l.block * CU_ROWS_SLOTS, end = min(l.seen, first + CU_ROWS_SLOTS);
    const float *mean = a.means + (uint64_t)l.owner * a.slots.dim;
    float m[SIDE_TURNS][8] = {};
#pragma unroll
    for (uint32_t i = 0; i < SIDE_TURNS * 8; i++) {
        const uint32_t d = (i / 8 * WARP + lane_id() % side_lanes(a.slots)) * 8 + i % 8;
        if (first < end && d < a.slots.dim) m[i / 8][i % 8] = mean[d];
    }
    FOR_EACH_ROW(slot, a.slots, first, end) {
        float squares = 0.0f, products = 0.0f;
        for_each_chunk(a.slots, slot < end ? slot_row<T>(a.slots, l, slot, 0) : kv_row<T>{},
                       [&](uint32_t turn, const float(&x)[8]) {
                           squares += dot_8(x, x);
                           products += dot_8(x, m[turn]);
                       });
        const float norm = sqrtf(side_sum(a.slots, squares));
        const float along = side_sum(a.slots, products);
        if (slot < end && lane_id() % side_lanes(a.slots) == 0)
            a.out[l.owner * a.out_stride + slot] = norm == 0.0f ? 0.0f : along / norm;
    }
}

#define KEY_SCORE(type, tag)                                                                       \
    KERNEL(key_score_norm_##tag, CU_ROWS_THREADS, cu_key_score_args) {                             \
        slot_norms<type>(a.slots, 0, a.out, a.out_stride);                                         \
    }                                                                                              \
    KERNEL(key_score_directions_##tag, CU_ROWS_THREADS, cu_key_score_args) {                       \
        directions<type>(a);                                                                       \
    }                                                                                              \
    KERNEL(key_score_cosine_##tag, CU_ROWS_THREADS, cu_key_score_args) {                           \
        cosines<type>(a);                                                                          \
    }
FOR_EACH_ROW_TYPE(KEY_SCORE)

template <uint32_t SLOTS> DEVICE void quadratic(const cu_key_score_args &a, float *tile) {
    const uint32_t dim = a.slots.dim, group = a.slots.batch.group;
    float *panel = tile + dim * SLOTS;
    const slot_lane l = lane_of(a.slots);
    const uint32_t first = l.block * SLOTS;
    if (first >= l.seen) return;
    load_tile<SLOTS>(a.slots, l, 0, first, l.seen, tile);
    /* k·(scale·μ + scale²/2·Sk) */
    float sums[EDGE] = {};
    for (uint32_t g = 0; g < group; g++) {
        const uint64_t head = l.head * group + g;
        const float *mu = a.mu + head * dim;
        const weight_rows cov = {a.cov + head * dim * dim, dim, 0, dim};
        for (uint32_t row = 0; row < dim; row += CU_PROJECT_ROWS) {
            float products[EDGE][EDGE];
            project<SLOTS>(tile, panel, dim, cov, row, products);
            for (uint32_t j = 0; j < EDGE; j++) {
                const uint32_t d = row + edge_row() + j;
                if (d >= dim) break;
                float k[EDGE];
                load_edge(tile + d * SLOTS + edge_slot(), k);
                const float along = a.scale * mu[d], half = 0.5f * a.scale * a.scale;
#pragma unroll
                for (uint32_t i = 0; i < EDGE; i++)
                    sums[i] = fmaf(k[i], fmaf(half, products[i][j], along), sums[i]);
            }
        }
    }
    join_turn<SLOTS>(panel, sums, 1.0f / (float)group, first, l.seen, a.out + l.owner * a.out_stride);
}

#define KEY_SCORE_QUADRATIC(slots)                                                                 \
    KERNEL(key_score_quadratic_s##slots, CU_PROJECT_THREADS(slots), cu_key_score_args) {           \
        DYNAMIC_SHARED(float, tile);                                                               \
        quadratic<slots>(a, tile);                                                                 \
    }
KEY_SCORE_QUADRATIC(64) KEY_SCORE_QUADRATIC(32)
