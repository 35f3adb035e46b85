/* SPDX-License-Identifier: Apache-2.0 */
/* norm: y = c / sqrt(mean(c²) + eps) · w (+ to), c = x or x - mean(x); or y = x · w (+ to).
 * contract: host/ops/; meaning: host/reference/norm.c.
 * Work split: a work-group owns a row; its work-items take chunks of 16 channels in turn. */
#include "common.clh"
#ifndef KIND
#define KIND 1 /* tamis_norm_kind */
#define ACCUMULATE 1
#endif
/* KIND and ACCUMULATE are the program's: where the kernel was told them, PoCL 3.1 ran the last loops for
 * work-items that have no part in them. */

__kernel GROUP_OF(WG_SIZE) void norm_rows(MATRIX_PARAMS(x), MATRIX_PARAMS(y), MATRIX_PARAMS(to),
                                          REF_PARAMS(const float, w), uint n_rows, uint dim,
                                          float eps) {
    __local float scratch[WG_SIZE];
    const uint wi = (uint)get_local_id(0), row = (uint)get_group_id(0), chunks = dim / 16;
    if (row >= n_rows) return;
    __global const float *from = x + x_offset + row * x_stride;
    __global float *out = y + y_offset + row * y_stride;
    float mean = 0.0f, scale = 1.0f;
    w += w_offset;
    /* 1. mean */
#if KIND == NORM_LAYER
    float16 sums = 0.0f;
    float of_rest = 0.0f;
    for (uint c = wi; c < chunks; c += WG_SIZE) sums += vload16(c, from);
    for (uint i = chunks * 16 + wi; i < dim; i += WG_SIZE) of_rest += from[i];
    mean = group_sum(sum16(sums) + of_rest, scratch) / dim;
#endif
    /* 2. mean square */
#if KIND != NORM_NONE
    float16 squares = 0.0f;
    float rest = 0.0f;
    for (uint c = wi; c < chunks; c += WG_SIZE) {
        const float16 a = vload16(c, from) - mean;
        squares = fma(a, a, squares);
    }
    for (uint i = chunks * 16 + wi; i < dim; i += WG_SIZE)
        rest = fma(from[i] - mean, from[i] - mean, rest);
    scale = 1.0f / sqrt(group_sum(sum16(squares) + rest, scratch) / dim + eps);
#endif
    /* 3. scaled row */
    for (uint c = wi; c < chunks; c += WG_SIZE) {
        float16 z = (vload16(c, from) - mean) * scale * vload16(c, w);
#if ACCUMULATE
        z += vload16(c, to + to_offset + row * to_stride);
#endif
        vstore16(z, c, out);
    }
    for (uint i = chunks * 16 + wi; i < dim; i += WG_SIZE) {
        float z = (from[i] - mean) * scale * w[i];
#if ACCUMULATE
        z += to[to_offset + row * to_stride + i];
#endif
        out[i] = z;
    }
}
