/* SPDX-License-Identifier: Apache-2.0 */
/* merge: states of the same rows into one: lse = log Σ exp(lse_i), out = Σ exp(lse_i - lse)·out_i.
 * contract: host/backend.h; meaning: host/reference/merge.c.
 * Parts are packed [part][row * n_heads + head][dim]; out has a row stride.
 * Work split: an item owns one channel of one (row, head); loops go over parts in order. */
#include "common.clh"

__kernel GROUP_OF(LANES) void merge_states(uint n_parts, uint n_rows, uint n_heads, uint dim,
                                           REF_PARAMS(const float, outs),
                                           REF_PARAMS(const float, lses), MATRIX_PARAMS(out),
                                           REF_PARAMS(float, lse)) {
    const uint n = n_rows * n_heads;
    FOR_EACH_ITEM(i, n * dim) {
        const uint state = i / dim, channel = i % dim;
        __global const float *part_lse = lses + lses_offset + state;
        __global const float *part_out = outs + outs_offset + i;
        /* 1. the largest lse; the first NaN stays out of it and meets the sums */
        float top = -INFINITY;
        for (uint part = 0; part < n_parts; part++)
            top = fmax(top, part_lse[(ulong)part * n]);
        /* 2. weighted sums over the parts that saw something; the weight of a lone one is 1 */
        float total = 0.0f, sum = 0.0f;
        for (uint part = 0; part < n_parts; part++) {
            const float l = part_lse[(ulong)part * n];
            if (l == -INFINITY)
                continue;
            const float weight = l == top ? 1.0f : exp(l - top);
            total += weight;
            sum = fma(weight, part_out[(ulong)part * n * dim], sum);
        }
        /* 3. the state */
        out[out_offset + state / n_heads * out_stride + state % n_heads * dim + channel] =
            total == 0.0f ? 0.0f : sum / total;
        if (lse && channel == 0)
            lse[lse_offset + state] = total == 0.0f ? -INFINITY : top + log(total);
    }
}
