/* SPDX-License-Identifier: Apache-2.0 */
/* merge: states of the same rows into one: lse = log Σ exp(lse_i), out = Σ exp(lse_i - lse)·out_i.
 * contract: host/ops/; meaning: host/reference/merge.c.
 * Parts are packed [part][row * n_heads + head][dim]; out has a row stride.
 * Work split: a work-item owns one channel of one (row, head); loops go over parts in order. */
#include "common.clh"

__kernel GROUP_OF(WG_SIZE) void merge_states(uint n_parts, uint n_rows, uint n_heads, uint dim,
                                             REF_PARAMS(const float, outs),
                                             REF_PARAMS(const float, lses), MATRIX_PARAMS(out),
                                             REF_PARAMS(float, lse)) {
    const uint n = n_rows * n_heads;
    FOR_EACH_ITEM(i, n * dim) {
        const uint state = i / dim, channel = i % dim;
        __global const float *part_lse = lses + lses_offset + state;
        __global const float *part_out = outs + outs_offset + i;
        /* 1. live parts (lse not -inf) and the largest lse among them */
        uint live = 0, one = 0;
        float top = -INFINITY;
        for (uint part = 0; part < n_parts; part++) {
            const float l = part_lse[(ulong)part * n];
            if (l == -INFINITY) continue;
            live++;
            one = part;
            top = fmax(top, l);
        }
        /* 2. a single live part is copied; none gives 0 and -inf */
        float value = live ? part_out[(ulong)one * n * dim] : 0.0f;
        float joint = live ? part_lse[(ulong)one * n] : -INFINITY;
        /* 3. the sum of weights, 4. and the weighted outs; a NaN part makes them NaN */
        if (live > 1) {
            float total = 0.0f, sum = 0.0f;
            for (uint part = 0; part < n_parts; part++) {
                const float l = part_lse[(ulong)part * n];
                if (l == -INFINITY) continue;
                const float weight = exp(l - top);
                total += weight;
                sum = fma(weight, part_out[(ulong)part * n * dim], sum);
            }
            value = sum / total;
            joint = top + log(total);
        }
        out[out_offset + state / n_heads * out_stride + state % n_heads * dim + channel] = value;
        if (lse && channel == 0) lse[lse_offset + state] = joint;
    }
}
