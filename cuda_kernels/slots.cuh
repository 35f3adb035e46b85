/* SPDX-License-Identifier: Apache-2.0 */
/* For value.cu and key.cu: blocks that share the slots of a KV lane, rows of slots by warps, and
 * products of a tile of cached rows with rows of weights.
 * A block keeps the rows of SLOTS slots (CU_PROJECT_SLOTS) in shared memory as f32, [channel][slot],
 * and brings CU_PROJECT_ROWS rows of weights, CU_PROJECT_DEPTH channels at a time; a thread takes
 * EDGE slots and EDGE rows of weights. */
#ifndef TAMIS_CUDA_SLOTS_CUH
#define TAMIS_CUDA_SLOTS_CUH

#include "common.cuh"

/* The lane, (item, KV head), whose slots this block shares, and which block of it this is. */
typedef struct slot_lane {
    uint32_t owner, head, block, seen; /* seen: 0 beyond the last lane */
    const int32_t *pages;
} slot_lane;

DEVICE slot_lane lane_of(const cu_slots &s) {
    slot_lane l = {blockIdx.x / s.blocks, 0, blockIdx.x % s.blocks, 0, nullptr};
    if (l.owner >= (uint64_t)s.batch.n_rows * s.batch.n_kv_heads) return l;
    l.head = l.owner % s.batch.n_kv_heads;
    l.seen = (uint32_t)s.batch.visible[l.owner];
    l.pages = lane_pages(s.batch, l.owner / s.batch.n_kv_heads, l.head);
    return l;
}

/* The row of a slot, of K or, `from` = value_offset on, of V. */
template <typename T>
DEVICE kv_row<T> slot_row(const cu_slots &s, const slot_lane &l, uint32_t slot, uint64_t from) {
    return kv_rows<T>::of(s.kv, l.pages[slot >> s.kv.page_shift], l.head,
                          slot & (s.kv.page_size - 1), from);
}

/* ---- Rows by warps --------------------------------------------------------------------------- */

/* A side of a warp takes a row, 8 channels per warp lane at a time: lanes of a side. */
DEVICE uint32_t side_lanes(const cu_slots &s) {
    return CU_ROW_LANES(s.dim);
}

#define SIDE_TURNS CU_ROW_TURNS(CU_ANY_DIM) /* most of a row */

/* take(turn, x) gets the lane's channels of a row, 8 at a time; nothing without a row. */
template <typename T, typename F>
DEVICE void for_each_chunk(const cu_slots &s, const kv_row<T> &row, F take) {
#pragma unroll
    for (uint32_t turn = 0; turn < SIDE_TURNS; turn++) {
        const uint32_t channel = (turn * WARP + lane_id() % side_lanes(s)) * 8;
        float x[8];
        if (!row.at || channel >= s.dim) continue;
        load_8(row, channel, x);
        take(turn, x);
    }
}

/* The sum over the warp lanes of a side; all of them get it. */
DEVICE float side_sum(const cu_slots &s, float x) {
    for (uint32_t mask = side_lanes(s) / 2; mask > 0; mask /= 2)
        x += shuffle_xor(x, mask);
    return x;
}

DEVICE float dot_8(const float (&x)[8], const float (&y)[8]) {
    float sum = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        sum = fmaf(x[i], y[i], sum);
    return sum;
}

/* The square of a row's norm, by a side. */
template <typename T> DEVICE float side_square(const cu_slots &s, const kv_row<T> &row) {
    float sum = 0.0f;
    for_each_chunk(s, row, [&](uint32_t, const float(&x)[8]) { sum += dot_8(x, x); });
    return side_sum(s, sum);
}

/* The slots from `first` to `end` that the sides of a block of CU_ROWS_THREADS take in turn; every
 * lane of a warp passes as often, also where its slot is beyond the end. */
#define FOR_EACH_ROW(slot, s, first, end)                                                          \
    for (uint32_t sides_ = WARP / side_lanes(s), base_ = (first) + warp_id() * sides_,             \
                  slot = base_ + lane_id() / side_lanes(s);                                        \
         base_ < (end);                                                                            \
         base_ += CU_ROWS_THREADS / WARP * sides_, slot += CU_ROWS_THREADS / WARP * sides_)

/* ‖row‖₂ of the block's slots, of K or, `from` channels on, of V, to `out` of its lane. */
template <typename T>
DEVICE void slot_norms(const cu_slots &s, uint64_t from, float *out, uint64_t out_stride) {
    const slot_lane l = lane_of(s);
    const uint32_t first = l.block * CU_ROWS_SLOTS, end = min(l.seen, first + CU_ROWS_SLOTS);
    FOR_EACH_ROW(slot, s, first, end) {
        const float square =
            side_square(s, slot < end ? slot_row<T>(s, l, slot, from) : kv_row<T>{});
        if (slot < end && lane_id() % side_lanes(s) == 0)
            out[l.owner * out_stride + slot] = sqrtf(square);
    }
}

/* ---- Products with weights ------------------------------------------------------------------- */

#define EDGE 8u
#define TURN (CU_PROJECT_ROWS / EDGE) /* threads of the same slots */
static_assert(CU_PROJECT_THREADS(64u) == TURN * (64u / EDGE), "a thread a square");

/* The thread's first slot of the tile and first row of weights. */
DEVICE uint32_t edge_slot() {
    return threadIdx.x / TURN * EDGE;
}
DEVICE uint32_t edge_row() {
    return threadIdx.x % TURN * EDGE;
}

/* Rows first to `end` of a lane, `from` channels on, into the tile; zeros behind them. */
template <uint32_t SLOTS, typename T>
DEVICE void load_tile_of(const cu_slots &s, const slot_lane &l, uint64_t from, uint32_t first,
                         uint32_t end, float *tile) {
    for (uint32_t i = threadIdx.x; i < SLOTS * s.dim / 8; i += CU_PROJECT_THREADS(SLOTS)) {
        const uint32_t slot = i % SLOTS, channel = i / SLOTS * 8;
        float x[8] = {};
        if (first + slot < end) load_8(slot_row<T>(s, l, first + slot, from), channel, x);
#pragma unroll
        for (uint32_t c = 0; c < 8; c++)
            tile[(channel + c) * SLOTS + slot] = x[c];
    }
}
template <uint32_t SLOTS>
DEVICE void load_tile(const cu_slots &s, const slot_lane &l, uint64_t from, uint32_t first,
                      uint32_t end, float *tile) {
#define LOAD_TILE(type, tag)                                                                       \
    if (s.dtype == NUMBER_OF<type>) load_tile_of<SLOTS, type>(s, l, from, first, end, tile);
    FOR_EACH_ROW_TYPE(LOAD_TILE)
#undef LOAD_TILE
}

/* Rows of weights: row r, channel c at at[r*stride + c]. */
typedef struct weight_rows {
    const void *at;
    uint64_t stride;
    uint32_t dtype, n;
} weight_rows;

/* A panel [channel][row] of rows from `first` and channels from `from` on; zeros past the end. */
template <uint32_t SLOTS, typename W>
DEVICE void load_panel_of(const weight_rows &w, uint32_t first, uint32_t from, float *panel) {
    const uint32_t channel = threadIdx.x % CU_PROJECT_DEPTH;
#pragma unroll 4
    for (uint32_t r = threadIdx.x / CU_PROJECT_DEPTH; r < CU_PROJECT_ROWS;
         r += CU_PROJECT_THREADS(SLOTS) / CU_PROJECT_DEPTH)
        panel[channel * CU_PROJECT_PITCH + r] =
            first + r < w.n ? widen(((const W *)w.at)[(first + r) * w.stride + from + channel])
                            : 0.0f;
}
template <uint32_t SLOTS>
DEVICE void load_panel(const weight_rows &w, uint32_t first, uint32_t from, float *panel) {
#define LOAD_PANEL(type, tag)                                                                      \
    if (w.dtype == NUMBER_OF<type>) load_panel_of<SLOTS, type>(w, first, from, panel);
    FOR_EACH_TYPE(LOAD_PANEL)
#undef LOAD_PANEL
}

DEVICE void load_edge(const float *p, float (&x)[EDGE]) {
    load_8(p, x);
}

/* sums[i][j] = Σ_c tile[c][edge_slot() + i]·w[first + edge_row() + j][c]. The whole block calls it;
 * the tile is there after the first barrier. */
template <uint32_t SLOTS>
DEVICE void project(const float *tile, float *panel, uint32_t dim, const weight_rows &w,
                    uint32_t first, float (&sums)[EDGE][EDGE]) {
#pragma unroll
    for (uint32_t i = 0; i < EDGE * EDGE; i++)
        sums[i / EDGE][i % EDGE] = 0.0f;
    for (uint32_t from = 0; from < dim; from += CU_PROJECT_DEPTH) {
        block_sync(); /* the panel before may still be read */
        load_panel<SLOTS>(w, first, from, panel);
        block_sync();
        if (first + edge_row() >= w.n) continue;
#pragma unroll 4
        for (uint32_t c = 0; c < CU_PROJECT_DEPTH; c++) {
            float x[EDGE], y[EDGE];
            load_edge(tile + (from + c) * SLOTS + edge_slot(), x);
            load_edge(panel + c * CU_PROJECT_PITCH + edge_row(), y);
#pragma unroll
            for (uint32_t i = 0; i < EDGE; i++)
#pragma unroll
                for (uint32_t j = 0; j < EDGE; j++)
                    sums[i][j] = fmaf(x[i], y[j], sums[i][j]);
        }
    }
}

/* Writes the threads' sums of each slot, in order, times `factor`, to out[first] to out[end]. The
 * panel is overwritten. */
template <uint32_t SLOTS>
DEVICE void join_turn(float *panel, const float (&sums)[EDGE], float factor, uint32_t first,
                      uint32_t end, float *out) {
    static_assert(TURN * SLOTS <= CU_PROJECT_DEPTH * CU_PROJECT_PITCH,
                  "the panel holds");
    block_sync();
#pragma unroll
    for (uint32_t i = 0; i < EDGE; i++)
        panel[threadIdx.x % TURN * SLOTS + edge_slot() + i] = sums[i];
    block_sync();
    const uint32_t slot = threadIdx.x;
    if (slot >= SLOTS || first + slot >= end) return;
    float all = 0.0f;
    for (uint32_t t = 0; t < TURN; t++)
        all += panel[t * SLOTS + slot];
    out[first + slot] = all * factor;
}

#endif
