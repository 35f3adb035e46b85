/* SPDX-License-Identifier: Apache-2.0 */
/* rotate: (a, b) -> (a·cos - b·sin, a·sin + b·cos) of angle position·frequency_i, in place.
 * contract: host/ops/; meaning: host/reference/rotate.c.
 * Work split: a work-item owns one pair of channels of one (row, head). */
#include "common.clh"
#include "rotate.clh"
#ifndef PAIRING
#define PAIRING 0 /* tamis_pairing: 0 half, 1 adjacent */
#endif

__kernel GROUP_OF(WG_SIZE) void rotate_rows(MATRIX_PARAMS(x), uint n_rows, uint n_heads,
                                            uint head_dim, uint n_pairs,
                                            REF_PARAMS(const int, positions),
                                            REF_PARAMS(const float, table)) {
    FOR_EACH_ITEM(i, n_rows * n_heads * n_pairs) {
        const uint pair = i % n_pairs, head = i / n_pairs % n_heads, row = i / n_pairs / n_heads;
        /* 1. cos and sin of the two parts of the position's angle */
        const int position = positions[positions_offset + row];
        const float2 low = vload2(pair, LOW_ROW(table + table_offset, position, n_pairs));
        const float2 high = vload2(pair, HIGH_ROW(table + table_offset, position, n_pairs));
        /* 2. the pair, by their sum */
        const uint first = PAIRING ? 2 * pair : pair, second = PAIRING ? first + 1 : pair + n_pairs;
        __global float *at = x + x_offset + row * x_stride + (ulong)head * head_dim;
        float a = at[first], b = at[second];
        turn_1(low.x, low.y, high.x, high.y, position, &a, &b);
        at[first] = a;
        at[second] = b;
    }
}
