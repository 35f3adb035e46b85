/* SPDX-License-Identifier: Apache-2.0 */
/* linear: y[r][j] = Σ_i x[r][i]·w[j][i] + bias[j] (+ y[r][j]), for few rows.
 * contract: host/ops/; meaning: host/reference/linear.c.
 * Work split: a work-group owns outputs j in turn and all rows; its work-items take chunks of 8
 * inputs in turn. widen and start serve the matrix-matrix form, whose product a library
 * computes. */
#include "weights.clh"
#ifndef ROWS
#define ROWS 1 /* rows of a launch, at most */
#endif

__kernel GROUP_OF(WG_SIZE) void linear_rows(MATRIX_PARAMS(x), MATRIX_PARAMS(y),
                                            REF_PARAMS(const weight, w),
                                            REF_PARAMS(const float, bias), uint n_rows, uint n_in,
                                            uint n_out, uint accumulate) {
    __local float scratch[WG_SIZE];
    const uint wi = (uint)get_local_id(0), chunks = n_in / 8;
    x += x_offset;
    if (n_rows == 0) return;
    for (uint j = (uint)get_group_id(0); j < n_out; j += (uint)get_num_groups(0)) {
        /* 1. and 2. the work-item's share of weights and products; rows beyond n_rows repeat the
         * last */
        __global const weight *row = w + w_offset + j * ROW_SIZE(n_in);
        float8 sum[ROWS];
        float rest[ROWS];
        for (uint r = 0; r < ROWS; r++) {
            sum[r] = 0.0f;
            rest[r] = 0.0f;
        }
        for (uint c = wi; c < chunks; c += WG_SIZE) {
            const float8 a = weights8(row, c * 8);
            for (uint r = 0; r < ROWS; r++)
                sum[r] = fma(a, vload8(c, x + min(r, n_rows - 1) * x_stride), sum[r]);
        }
        for (uint i = chunks * 8 + wi; i < n_in; i += WG_SIZE)
            for (uint r = 0; r < ROWS; r++)
                rest[r] = fma(weight1(row, i), x[min(r, n_rows - 1) * x_stride + i], rest[r]);
        /* 3. the sums over the work-items, with bias and, if accumulate, the old y */
        for (uint r = 0; r < ROWS; r++) {
            float all = group_sum(sum8(sum[r]) + rest[r], scratch);
            if (wi == 0 && r < n_rows) {
                __global float *to = y + y_offset + r * y_stride + j;
                all += bias ? bias[bias_offset + j] : 0.0f;
                *to = accumulate ? *to + all : all;
            }
        }
    }
}

/* n_out rows of w as f32. A work-item owns 16 inputs of LANES rows of a strip; without strips, 16
 * elements. */
__kernel GROUP_OF(WG_SIZE) void widen(REF_PARAMS(const weight, w), REF_PARAMS(float, wide),
                                      uint n_out, uint n_in) {
    w += w_offset;
    wide += wide_offset;
#if STRIPS
    const uint chunks = n_in / 16;
    FOR_EACH_ITEM(item, (n_out + LANES - 1) / LANES * chunks) {
        const uint row = item / chunks * LANES, i = item % chunks * 16;
        lanes(float) columns[16];
        strip16(w + row / STRIP * STRIP * ROW_SIZE(n_in), row % STRIP, i, columns);
        for (uint k = 0; k < 16; k++)
            for (uint r = 0; r < LANES; r++)
                if (row + r < n_out)
                    wide[(ulong)(row + r) * n_in + i + k] = ((const float *)&columns[k])[r];
    }
#else
    const uint n = n_out * n_in, chunks = (n + 15) / 16;
    FOR_EACH_ITEM(i, chunks) {
        const uint first = i * 16;
        if (first + 16 <= n) {
            vstore16(weights16(w, first), 0, wide + first);
        } else {
            for (uint c = first; c < n; c++)
                wide[c] = weight1(w, c);
        }
    }
#endif
}

/* What the product is added to: the bias, or y with the bias. */
__kernel GROUP_OF(WG_SIZE) void start(MATRIX_PARAMS(y), REF_PARAMS(const float, bias), uint n_rows,
                                      uint n_out, uint accumulate) {
    FOR_EACH_ITEM(i, n_rows * n_out) {
        __global float *to = y + y_offset + i / n_out * y_stride + i % n_out;
        *to = (accumulate ? *to : 0.0f) + bias[bias_offset + i % n_out];
    }
}
