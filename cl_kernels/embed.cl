/* SPDX-License-Identifier: Apache-2.0 */
/* embed: y[r] = scale · row tokens[r] of w, widened to f32.
 * contract: host/ops/; meaning: host/reference/embed.c.
 * Work split: a work-item owns 16 channels of one row, the last one of a row the rest. */
#include "weights.clh"

__kernel GROUP_OF(WG_SIZE) void embed_rows(REF_PARAMS(const int, tokens),
                                           REF_PARAMS(const weight, w), MATRIX_PARAMS(y),
                                           uint n_rows, uint dim, float scale) {
    const uint chunks = (dim + 15) / 16;
    FOR_EACH_ITEM(i, n_rows * chunks) {
        const uint row = i / chunks, first = i % chunks * 16;
        const uint token = (uint)tokens[tokens_offset + row];
        __global float *to = y + y_offset + row * y_stride;
#if STRIPS
        __global const weight *strip = w + w_offset + token / STRIP * STRIP * ROW_SIZE(dim);
        lanes(float) columns[16]; /* of LANES rows of the strip */
        strip16(strip, token % STRIP / LANES * LANES, first, columns);
        for (uint c = first; c < first + 16; c++)
            to[c] = ((const float *)&columns[c - first])[token % LANES] * scale;
#else
        __global const weight *from = w + w_offset + token * ROW_SIZE(dim);
        if (first + 16 <= dim) {
            vstore16(weights16(from, first) * scale, 0, to + first);
        } else {
            for (uint c = first; c < dim; c++)
                to[c] = weight1(from, c) * scale;
        }
#endif
    }
}
