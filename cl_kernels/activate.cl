/* SPDX-License-Identifier: Apache-2.0 */
/* activate: y = act(gate)·up; up is gate where it is absent.
 * contract: host/ops/; meaning: host/reference/activate.c.
 * Work split: a work-item owns 16 channels of one row, the last one of a row the rest. */
#include "activate.clh"
#include "common.clh"

__kernel GROUP_OF(WG_SIZE) void activate_rows(MATRIX_PARAMS(gate), MATRIX_PARAMS(up),
                                              MATRIX_PARAMS(y), uint n_rows, uint dim,
                                              uint has_up, uint activation) {
    const uint chunks = (dim + 15) / 16;
    FOR_EACH_ITEM(i, n_rows * chunks) {
        const uint row = i / chunks, first = i % chunks * 16;
        __global const float *g = gate + gate_offset + row * gate_stride;
        __global const float *u = up + up_offset + row * up_stride;
        __global float *to = y + y_offset + row * y_stride;
        if (first + 16 <= dim) {
            const float16 by = has_up ? vload16(0, u + first) : (float16)(1.0f);
            vstore16(gate16(vload16(0, g + first), by, activation), 0, to + first);
        } else {
            for (uint c = first; c < dim; c++)
                to[c] = gate1(g[c], has_up ? u[c] : 1.0f, activation);
        }
    }
}
