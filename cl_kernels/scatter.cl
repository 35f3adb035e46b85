/* SPDX-License-Identifier: Apache-2.0 */
/* scatter_rows: y[index[r]] = x[r], rows of f32.
 * contract: host/ops/; meaning: host/reference/scatter.c.
 * Work split: a work-item owns 16 elements of one row, the last one of a row the rest. */
#include "common.clh"

__kernel GROUP_OF(WG_SIZE) void scatter_rows(MATRIX_PARAMS(x), MATRIX_PARAMS(y),
                                             REF_PARAMS(const int, index), uint n_rows,
                                             uint width) {
    const uint chunks = (width + 15) / 16;
    FOR_EACH_ITEM(i, n_rows * chunks) {
        const uint row = i / chunks, first = i % chunks * 16;
        const int target = index[index_offset + row];
        if (target < 0) continue;
        __global const float *from = x + x_offset + row * x_stride + first;
        __global float *to = y + y_offset + target * y_stride + first;
        if (first + 16 <= width) {
            vstore16(vload16(0, from), 0, to);
        } else {
            for (uint c = 0; c < width - first; c++)
                to[c] = from[c];
        }
    }
}
