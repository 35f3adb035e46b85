/* SPDX-License-Identifier: Apache-2.0 */
/* rotate: (a, b) -> (a·cos - b·sin, a·sin + b·cos) of angle position·frequency_i, in place.
 * contract: host/ops.h; meaning: host/reference/rotate.c.
 * Work split: a thread owns one pair of channels of one (row, head). */
#include "common.cuh"

#define STEPS 1024u /* TMS_ROTATE_STEPS */

KERNEL(rotate_rows, 256, cu_rotate_args) {
    const uint32_t n_pairs = a.n_pairs, n_heads = a.n_heads;
    FOR_EACH_ITEM(i, (uint64_t)a.n_rows * n_heads * n_pairs) {
        const uint64_t lane = i / n_pairs;
        const uint32_t pair = i % n_pairs, head = lane % n_heads, row = lane / n_heads;
        /* 1. cos and sin of the two parts of the position's angle, and of their sum */
        const int32_t position = a.positions[row];
        const uint32_t far = position < 0 ? -position : position;
        const float *low = a.table + ((uint64_t)(far % STEPS) * n_pairs + pair) * 2;
        const float *high = a.table + ((uint64_t)(STEPS + far / STEPS) * n_pairs + pair) * 2;
        const float c = high[0] * low[0] - high[1] * low[1];
        const float s = high[1] * low[0] + high[0] * low[1];
        const float turn = position < 0 ? -s : s;
        /* 2. the pair */
        const uint32_t first = a.adjacent ? 2 * pair : pair;
        const uint32_t second = a.adjacent ? first + 1 : pair + n_pairs;
        float *at = a.x.at + row * a.x.stride + (uint64_t)head * a.head_dim;
        const float x = at[first], y = at[second];
        at[first] = x * c - y * turn;
        at[second] = x * turn + y * c;
    }
}
