/* SPDX-License-Identifier: Apache-2.0 */
/* value_score: y(l) = Σ a(l, s)·v_s over first <= s < end, e(s) = (Σ_l a(l, s)·y(l))·v_s;
 * value_norm: ‖v_s‖₂, or the mean over the group of Σ_o |Σ_c w[o][head*HEAD_DIM + c]·v_s[c]|.
 * contract: host/ops/; meaning: host/reference/value.c.
 * Work split: in value_score_sums the work-groups of one x share the sums of a block of KEYS slots
 * of one (item, KV head), and a work-item takes 16 channels of LISTS lists; value_score_join adds
 * the blocks. In value_score_slots a work-item takes RUN slots; in value_norm_l2 a slot; in
 * value_norm_projected a work-group takes SLOTS slots (project.clh). */
#define OF_VALUES 1
#include "project.clh"
#define LISTS 4
#define RUN   4
#define TERMS 32 /* lists of a sum that is formed anew */

/* The rows of the group's KV head, and of a slot. */
#define LANE_VALUES  (kv + kv_offset + OWNER % n_kv_heads * kv_head_stride + value_offset)
#define ROW_AT(slot) row_at(values, pages, slot, page_size, page_stride, slot_stride)

__kernel GROUP_OF(WG_SIZE) void value_score_sums(LANE_PARAMS, REF_PARAMS(const float, a),
                                                 ulong a_stride, uint n_lists,
                                                 REF_PARAMS(const int, limits),
                                                 REF_PARAMS(float, parts)) {
    if (OWNER >= n_rows * n_kv_heads) return;
    const uint task = (uint)get_group_id(1) * WG_SIZE + (uint)get_local_id(0);
    const uint list = task / CHUNKS * LISTS, channel = task % CHUNKS * 16;
    limits += limits_offset + OWNER * 2;
    const uint first = max((uint)limits[0], BLOCK * KEYS);
    const uint end = min((uint)limits[1], (BLOCK + 1) * KEYS);
    if (first >= end || list >= n_lists) return;
    __global const int *pages = LANE_PAGES;
    __global element *values = LANE_VALUES;
    __global const float *from[LISTS]; /* past the end, the last list again */
    float16 sum[LISTS];
    for (uint j = 0; j < LISTS; j++) {
        from[j] = a + a_offset + ((ulong)OWNER * n_lists + min(list + j, n_lists - 1)) * a_stride;
        sum[j] = 0.0f;
    }
    for (uint s = first; s < end;) {
        const uint stop = min(end, (s / page_size + 1) * page_size);
        float16 part[LISTS]; /* of a page */
        for (uint j = 0; j < LISTS; j++) part[j] = 0.0f;
        for (; s < stop; s++) {
            const float16 x = value16(ROW_AT(s), channel);
            for (uint j = 0; j < LISTS; j++) part[j] = fma(x, (float16)(from[j][s]), part[j]);
        }
        for (uint j = 0; j < LISTS; j++) sum[j] += part[j];
    }
    parts += parts_offset + ((ulong)get_group_id(0) * n_lists + list) * HEAD_DIM + channel;
    for (uint j = 0; j < LISTS && list + j < n_lists; j++)
        vstore16(sum[j], 0, parts + j * HEAD_DIM);
}

/* y of every list: its blocks in order. */
__kernel GROUP_OF(WG_SIZE) void value_score_join(uint n, uint n_lists, uint blocks,
                                                 REF_PARAMS(const int, limits),
                                                 REF_PARAMS(const float, parts),
                                                 REF_PARAMS(float, y)) {
    FOR_EACH_ITEM(i, n * CHUNKS) {
        const uint list = i / CHUNKS, owner = list / n_lists;
        const ulong within = (ulong)(list % n_lists) * HEAD_DIM + i % CHUNKS * 16;
        const uint first = (uint)limits[limits_offset + owner * 2];
        const uint end = (uint)limits[limits_offset + owner * 2 + 1];
        float16 sum = 0.0f;
        for (uint b = first / KEYS; first < end && b * KEYS < end; b++)
            sum += vload16(0, parts + parts_offset +
                                  ((ulong)owner * blocks + b) * n_lists * HEAD_DIM + within);
        vstore16(sum, 0, y + y_offset + (ulong)list * HEAD_DIM + i % CHUNKS * 16);
    }
}

__kernel GROUP_OF(WG_SIZE) void value_score_slots(LANE_PARAMS, REF_PARAMS(const float, a),
                                                  ulong a_stride, uint n_lists,
                                                  REF_PARAMS(const float, y),
                                                  REF_PARAMS(float, out), ulong out_stride) {
    if (OWNER >= n_rows * n_kv_heads) return;
    const uint seen = (uint)visible[visible_offset + OWNER];
    const uint slot = (BLOCK * WG_SIZE + (uint)get_local_id(0)) * RUN;
    if (slot >= seen) return;
    __global const int *pages = LANE_PAGES;
    __global element *values = LANE_VALUES;
    kv_row rows[RUN]; /* past the end, the last slot again */
    __global const float *weights[RUN];
    float e[RUN];
    for (uint j = 0; j < RUN; j++) {
        const uint s = min(slot + j, seen - 1);
        rows[j] = ROW_AT(s);
        weights[j] = a + a_offset + (ulong)OWNER * n_lists * a_stride + s;
        e[j] = 0.0f;
    }
    y += y_offset + (ulong)OWNER * n_lists * HEAD_DIM;
    for (uint first = 0; first < n_lists; first += TERMS)
        for (uint channel = 0; channel < HEAD_DIM; channel += 16) {
            float16 sum[RUN]; /* Σ a·y of the channels */
            for (uint j = 0; j < RUN; j++) sum[j] = 0.0f;
            for (uint l = first; l < min(first + TERMS, n_lists); l++) {
                const float16 x = vload16(0, y + (ulong)l * HEAD_DIM + channel);
                for (uint j = 0; j < RUN; j++)
                    sum[j] = fma(x, (float16)(weights[j][l * a_stride]), sum[j]);
            }
            for (uint j = 0; j < RUN; j++) e[j] += sum16(sum[j] * value16(rows[j], channel));
        }
    for (uint j = 0; j < RUN && slot + j < seen; j++)
        out[out_offset + OWNER * out_stride + slot + j] = e[j];
}

__kernel GROUP_OF(WG_SIZE) void value_norm_l2(LANE_PARAMS, REF_PARAMS(float, out),
                                              ulong out_stride) {
    if (OWNER >= n_rows * n_kv_heads) return;
    const uint slot = BLOCK * WG_SIZE + (uint)get_local_id(0);
    if (slot >= (uint)visible[visible_offset + OWNER]) return;
    __global const int *pages = LANE_PAGES;
    __global element *values = LANE_VALUES;
    out[out_offset + OWNER * out_stride + slot] = norm_of(ROW_AT(slot), HEAD_DIM, true);
}

__kernel GROUP_OF(WG_SIZE) void value_norm_projected(LANE_PARAMS, REF_PARAMS(float, out),
                                                     ulong out_stride, REF_PARAMS(const weight, w),
                                                     ulong w_stride, uint n_out, uint heads) {
    __local float16 tile[HEAD_DIM * SIDES];
    if (OWNER >= n_rows * n_kv_heads) return;
    const uint seen = (uint)visible[visible_offset + OWNER], first = BLOCK * SLOTS;
    if (first >= seen) return;
    const uint end = min(seen, first + SLOTS);
    const uint wi = (uint)get_local_id(0), quads = (n_out + 3) / 4;
    load_tile(tile, LANE_VALUES, LANE_PAGES, first, end, page_size, page_stride, slot_stride);
    float16 sum = 0.0f;
    for (uint task = wi / SIDES; task < heads * quads; task += TURN) {
        const uint head = OWNER % n_kv_heads * heads + task / quads, output = task % quads * 4;
        __global const weight *rows[4]; /* past the end, the last output again */
        float16 sums[4];
        for (uint j = 0; j < 4; j++)
            rows[j] = w + w_offset + min(output + j, n_out - 1) * w_stride + head * HEAD_DIM;
        project(tile + wi % SIDES, rows, sums);
        for (uint j = 0; j < 4; j++)
            if (output + j < n_out) sum += fabs(sums[j]);
    }
    join_turn(tile, sum, 1.0f / heads, first, end, out + out_offset + OWNER * out_stride);
}
