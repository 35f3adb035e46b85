/* SPDX-License-Identifier: Apache-2.0 */
/* argmax on a CPU; what it gives is that of argmax.cl.
 * contract: host/ops/; meaning: host/reference/argmax.c.
 * Work split: a work-item owns a row. Each of 16 lanes has the first of its largest keys. */
#include "cpu.clh"

__kernel ONE_ITEM void argmax_rows(MATRIX_PARAMS(x), uint n_rows, uint dim, REF_PARAMS(int, out)) {
    const uint row = (uint)get_group_id(0);
    if (row >= n_rows) return;
    __global const float *from = x + x_offset + row * x_stride;
    uint16 keys = 0;
    int16 indices = INT_MAX; /* of lanes without elements */
    uint i = 0;
    for (; i + 16 <= dim; i += 16) {
        const uint16 k = ordered_keys(load_f32(from + i));
        const int16 before = (k > keys) | (indices == INT_MAX);
        keys = before ? k : keys;
        indices = before ? (int)i + LANE16 : indices;
    }
    uint best = 0;
    int index = INT_MAX;
    for (uint lane = 0; lane < 16; lane++) {
        const uint k = ((const uint *)&keys)[lane];
        const int at = ((const int *)&indices)[lane];
        if (k > best || (k == best && at < index)) {
            best = k;
            index = at;
        }
    }
    for (; i < dim; i++) {
        const uint k = ordered_key(from[i]);
        if (k > best || index == INT_MAX) {
            best = k;
            index = (int)i;
        }
    }
    out[out_offset + row] = index;
}
