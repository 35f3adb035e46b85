/* SPDX-License-Identifier: Apache-2.0 */
/* norm: y = x / sqrt(mean(x²) + eps) · w.
 * contract: host/ops/; meaning: host/reference/norm.c.
 * Work split: a work-group owns a row; its work-items take chunks of 16 channels in turn. */
#include "common.clh"

__kernel GROUP_OF(WG_SIZE) void norm_rows(MATRIX_PARAMS(x), MATRIX_PARAMS(y),
                                          REF_PARAMS(const float, w), uint n_rows, uint dim,
                                          float eps) {
    __local float scratch[WG_SIZE];
    const uint wi = (uint)get_local_id(0), row = (uint)get_group_id(0), chunks = dim / 16;
    if (row >= n_rows) return;
    __global const float *from = x + x_offset + row * x_stride;
    __global float *to = y + y_offset + row * y_stride;
    w += w_offset;
    /* 1. mean square */
    float16 squares = 0.0f;
    for (uint c = wi; c < chunks; c += WG_SIZE) {
        const float16 a = vload16(c, from);
        squares = fma(a, a, squares);
    }
    float rest = 0.0f;
    for (uint i = chunks * 16 + wi; i < dim; i += WG_SIZE)
        rest = fma(from[i], from[i], rest);
    const float scale = 1.0f / sqrt(group_sum(sum16(squares) + rest, scratch) / dim + eps);
    /* 2. scaled row */
    for (uint c = wi; c < chunks; c += WG_SIZE)
        vstore16(vload16(c, from) * scale * vload16(c, w), c, to);
    for (uint i = chunks * 16 + wi; i < dim; i += WG_SIZE)
        to[i] = from[i] * scale * w[i];
}
