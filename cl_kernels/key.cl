/* SPDX-License-Identifier: Apache-2.0 */
/* key_score: ‖k‖₂; k·m / (‖k‖·‖m‖), m the mean of k/‖k‖ over the lane; or the mean over the group
 * of scale·μ·k + scale²/2·kᵀSk.
 * contract: host/ops/; meaning: host/reference/key.c.
 * Work split: in key_score_norm and key_score_cosine a work-item takes a slot; in
 * key_score_directions a work-group sums a block of KEYS slots; in key_score_mean a work-group owns
 * an (item, KV head); in key_score_quadratic a work-group takes SLOTS slots (project.clh). */
#include "project.clh"
#define PARTS (WG_SIZE / CHUNKS) /* work-items for the same 16 channels, which share the slots */

/* The rows of the group's KV head, and of a slot. */
#define LANE_KEYS    (kv + kv_offset + OWNER % n_kv_heads * kv_head_stride)
#define ROW_AT(slot) row_at(keys, pages, slot, page_size, page_stride, slot_stride)

__kernel GROUP_OF(WG_SIZE) void key_score_norm(LANE_PARAMS, REF_PARAMS(float, out),
                                               ulong out_stride) {
    if (OWNER >= n_rows * n_kv_heads) return;
    const uint slot = BLOCK * WG_SIZE + (uint)get_local_id(0);
    if (slot >= (uint)visible[visible_offset + OWNER]) return;
    __global const int *pages = LANE_PAGES;
    __global element *keys = LANE_KEYS;
    out[out_offset + OWNER * out_stride + slot] = norm_of(ROW_AT(slot), HEAD_DIM, false);
}

/* Σ k/‖k‖ over the block, to sums [item][KV head][block][HEAD_DIM]. */
__kernel GROUP_OF(WG_SIZE) void key_score_directions(LANE_PARAMS, REF_PARAMS(float, sums)) {
    __local float factors[KEYS];
    __local float16 parts[WG_SIZE];
    if (OWNER >= n_rows * n_kv_heads) return;
    const uint seen = (uint)visible[visible_offset + OWNER], first = BLOCK * KEYS;
    if (first >= seen) return;
    const uint wi = (uint)get_local_id(0), n = min(seen - first, (uint)KEYS);
    const uint chunk = wi % CHUNKS, part = wi / CHUNKS;
    __global const int *pages = LANE_PAGES;
    __global element *keys = LANE_KEYS;
    /* 1. 1/‖k‖; a key of norm 0 adds nothing */
    for (uint s = wi; s < n; s += WG_SIZE) {
        const float norm = norm_of(ROW_AT(first + s), HEAD_DIM, false);
        factors[s] = norm == 0.0f ? 0.0f : 1.0f / norm;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    /* 2. the work-item's channels of its share of the slots */
    float16 sum = 0.0f;
    for (uint s = part; part < PARTS && s < n; s += PARTS)
        sum = fma(row16(ROW_AT(first + s), chunk * 16), (float16)(factors[s]), sum);
    parts[wi] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    /* 3. over the shares, in order */
    if (wi >= CHUNKS) return;
    for (uint i = 1; i < PARTS; i++) sum += parts[i * CHUNKS + wi];
    vstore16(sum, 0, sums + sums_offset + (ulong)get_group_id(0) * HEAD_DIM + wi * 16);
}

/* m / ‖m‖, to means [item][KV head][HEAD_DIM]; 0 where ‖m‖ is 0. */
__kernel GROUP_OF(WG_SIZE) void key_score_mean(uint n, uint blocks, REF_PARAMS(const int, visible),
                                               REF_PARAMS(const float, sums),
                                               REF_PARAMS(float, means)) {
    __local float scratch[WG_SIZE];
    const uint owner = (uint)get_group_id(0), wi = (uint)get_local_id(0);
    if (owner >= n) return;
    const uint seen = (uint)visible[visible_offset + owner];
    float m[(HEAD_DIM + WG_SIZE - 1) / WG_SIZE], squares = 0.0f;
    for (uint d = wi; d < HEAD_DIM; d += WG_SIZE) {
        float sum = 0.0f;
        for (uint b = 0; b * KEYS < seen; b++)
            sum += sums[sums_offset + ((ulong)owner * blocks + b) * HEAD_DIM + d];
        m[d / WG_SIZE] = sum;
        squares = fma(sum, sum, squares);
    }
    squares = group_sum(squares, scratch);
    const float factor = squares == 0.0f ? 0.0f : 1.0f / sqrt(squares);
    for (uint d = wi; d < HEAD_DIM; d += WG_SIZE)
        means[means_offset + (ulong)owner * HEAD_DIM + d] = m[d / WG_SIZE] * factor;
}

__kernel GROUP_OF(WG_SIZE) void key_score_cosine(LANE_PARAMS, REF_PARAMS(float, out),
                                                 ulong out_stride, REF_PARAMS(const float, means)) {
    if (OWNER >= n_rows * n_kv_heads) return;
    const uint slot = BLOCK * WG_SIZE + (uint)get_local_id(0);
    if (slot >= (uint)visible[visible_offset + OWNER]) return;
    __global const int *pages = LANE_PAGES;
    __global element *keys = LANE_KEYS;
    const kv_row key = ROW_AT(slot);
    float16 along = 0.0f;
    means += means_offset + (ulong)OWNER * HEAD_DIM;
    for (uint c = 0; c < HEAD_DIM; c += 16)
        along = fma(row16(key, c), vload16(0, means + c), along);
    const float norm = norm_of(key, HEAD_DIM, false);
    out[out_offset + OWNER * out_stride + slot] = norm == 0.0f ? 0.0f : sum16(along) / norm;
}

__kernel GROUP_OF(WG_SIZE) void key_score_quadratic(LANE_PARAMS, REF_PARAMS(float, out),
                                                    ulong out_stride, REF_PARAMS(const float, mu),
                                                    REF_PARAMS(const float, cov), float scale,
                                                    uint heads) {
    __local float16 tile[HEAD_DIM * SIDES];
    if (OWNER >= n_rows * n_kv_heads) return;
    const uint seen = (uint)visible[visible_offset + OWNER], first = BLOCK * SLOTS;
    if (first >= seen) return;
    const uint end = min(seen, first + SLOTS);
    const uint wi = (uint)get_local_id(0), side = wi % SIDES;
    load_tile(tile, LANE_KEYS, LANE_PAGES, first, end, page_size, page_stride, slot_stride);
    /* k·(scale·μ + scale²/2·Sk), four channels at a time */
    float16 sum = 0.0f;
    for (uint task = wi / SIDES; task < heads * (HEAD_DIM / 4); task += TURN) {
        const uint head = OWNER % n_kv_heads * heads + task / (HEAD_DIM / 4);
        const uint channel = task % (HEAD_DIM / 4) * 4;
        const ulong at = (ulong)head * HEAD_DIM + channel; /* a row of cov, an element of mu */
        __global const float *rows[4];
        float16 sums[4];
        for (uint j = 0; j < 4; j++) rows[j] = cov + cov_offset + (at + j) * HEAD_DIM;
        project(tile + side, rows, sums);
        for (uint j = 0; j < 4; j++) {
            const float16 k = tile[(channel + j) * SIDES + side];
            sum = fma(k, scale * mu[mu_offset + at + j] + 0.5f * scale * scale * sums[j], sum);
        }
    }
    join_turn(tile, sum, 1.0f / heads, first, end, out + out_offset + OWNER * out_stride);
}
