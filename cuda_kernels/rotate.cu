/* SPDX-License-Identifier: Apache-2.0 */
/* rotate: (a, b) -> (a·cos - b·sin, a·sin + b·cos) of angle position·frequency_i, in place.
 * contract: host/ops/; meaning: host/reference/rotate.c.
 * Work split: a thread owns one pair of channels of one (row, head). */
#include "rotate.cuh"

KERNEL(rotate_rows, 256, cu_rotate_args) {
    const uint32_t n_pairs = a.n_pairs, n_heads = a.n_heads;
    FOR_EACH_ITEM(i, (uint64_t)a.n_rows * n_heads * n_pairs) {
        const uint64_t lane = i / n_pairs;
        const uint32_t head = lane % n_heads, row = lane / n_heads;
        turn_pair(a.x.at + row * a.x.stride + (uint64_t)head * a.head_dim, a.table,
                  a.positions[row], i % n_pairs, n_pairs, a.adjacent != 0);
    }
}
