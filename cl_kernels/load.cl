/* SPDX-License-Identifier: Apache-2.0 */
/* load_rows: stored rows of K, of V or of both into slots of lanes; K is normalised and
 * rotated on its way.
 * contract: host/ops/; meaning: host/reference/load.c.
 * Work split: a work-item owns a head of one row, which it rotates in memory of its own. */
#include "common.clh"
#include "rotate.clh"
#include "source.clh"
#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif
#ifndef PAGE_SIZE
#define PAGE_SIZE 16
#endif
static inline void take_head(__global const source *from, float *head) {
    for (uint c = 0; c < HEAD_DIM; c += 16)
        vstore16(take16(from + c), 0, head + c);
}
static inline void put_head(const float *head, kv_row to, bool value) {
    for (uint c = 0; c < HEAD_DIM; c += PUT) {
        const bool both = PUT_BOTH(c, HEAD_DIM);
        const float16 x = vload16(0, head + c), y = both ? vload16(1, head + c) : (float16)(0.0f);
        put_either(to, c, x, y, both, value);
    }
}

static inline void turn_head(float *head, __global const float *table, int position, uint n_pairs,
                             uint adjacent) {
    __global const float *low = LOW_ROW(table, position, n_pairs);
    __global const float *high = HIGH_ROW(table, position, n_pairs);
    for (uint pair = 0; pair < n_pairs; pair++) {
        const uint first = adjacent ? 2 * pair : pair,
                   second = adjacent ? first + 1 : pair + n_pairs;
        float a = head[first], b = head[second];
        turn_1(low[2 * pair], low[2 * pair + 1], high[2 * pair], high[2 * pair + 1], position, &a,
               &b);
        head[first] = a;
        head[second] = b;
    }
}

static inline void norm_head(float *head, __global const float *w, float eps) {
    float16 squares = 0.0f;
    for (uint c = 0; c < HEAD_DIM / 16; c++) {
        const float16 x = vload16(c, head);
        squares = fma(x, x, squares);
    }
    const float scale = 1.0f / sqrt(sum16(squares) / HEAD_DIM + eps);
    for (uint c = 0; c < HEAD_DIM / 16; c++)
        vstore16(vload16(c, head) * scale * vload16(c, w), c, head);
}

__kernel GROUP_OF(WG_SIZE) void load_rows(KV_PARAMS, BATCH_PARAMS, REF_PARAMS(const source, k),
                                          ulong k_stride, REF_PARAMS(const source, v),
                                          ulong v_stride, REF_PARAMS(const int, slots),
                                          REF_PARAMS(int, position_plane),
                                          REF_PARAMS(float, score_plane),
                                          REF_PARAMS(const int, positions), uint n_pairs,
                                          uint adjacent, REF_PARAMS(const float, turns),
                                          REF_PARAMS(const float, k_norm), float eps) {
    FOR_EACH_ITEM(i, n_rows * n_kv_heads) {
        /* 1. the slot's place */
        const uint head = i % n_kv_heads, row = i / n_kv_heads;
        const int slot = slots[slots_offset + i];
        if (slot < 0) continue;
        const int page = table[table_offset + row_seq[row_seq_offset + row] * seq_stride +
                               head * head_stride + slot / PAGE_SIZE];
        __global element *to = kv + kv_offset + page * page_stride + head * kv_head_stride;
        /* 2. the K row, normalised and rotated, and the V row */
        float x[HEAD_DIM];
        if (k) {
            take_head(k + k_offset + row * k_stride + head * HEAD_DIM, x);
            if (k_norm) norm_head(x, k_norm + k_norm_offset, eps);
            if (n_pairs)
                turn_head(x, turns + turns_offset, positions[positions_offset + row], n_pairs,
                          adjacent);
            put_head(x, row_of(to, PAGE_SIZE, slot % PAGE_SIZE, slot_stride), false);
        }
        if (v) {
            take_head(v + v_offset + row * v_stride + head * HEAD_DIM, x);
            put_head(x, value_row_of(to + value_offset, PAGE_SIZE, slot % PAGE_SIZE, slot_stride),
                     true);
        }
        /* 3. the planes that there are */
        const ulong in_plane = (ulong)page * PAGE_SIZE + slot % PAGE_SIZE;
        if (position_plane)
            position_plane[position_plane_offset + in_plane] = positions[positions_offset + row];
        if (score_plane) score_plane[score_plane_offset + in_plane] = 0.0f;
    }
}
