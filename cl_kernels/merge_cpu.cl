/* SPDX-License-Identifier: Apache-2.0 */
/* merge on a CPU: lse = log Σ exp(lse_i), out = Σ exp(lse_i - lse)·out_i; the steps of merge.cl.
 * contract: host/ops/; meaning: host/reference/merge.c.
 * Parts are packed [part][row * n_heads + head][dim], dim a multiple of 16; out has a row stride.
 * Work split: a work-item owns one (row, head); its sums wait in out. */
#include "cpu.clh"

__kernel ONE_ITEM void merge_states(uint n_parts, uint n_rows, uint n_heads, uint dim,
                                       REF_PARAMS(const float, outs), REF_PARAMS(const float, lses),
                                       MATRIX_PARAMS(out), REF_PARAMS(float, lse)) {
    const ulong n = (ulong)n_rows * n_heads, state = get_group_id(0);
    if (state >= n) return;
    outs += outs_offset + state * dim;
    lses += lses_offset + state;
    out += out_offset + state / n_heads * out_stride + state % n_heads * dim;
    /* 1. live parts and the largest lse among them */
    uint live = 0, one = 0;
    float top = -INFINITY;
    for (uint part = 0; part < n_parts; part++) {
        const float l = lses[part * n];
        if (l == -INFINITY) continue;
        live++;
        one = part;
        top = fmax(top, l);
    }
    /* 2. a single live part passes through; none gives 0 and -inf */
    if (live <= 1) {
        for (uint d = 0; d < dim; d += 16)
            store_f32(live ? load_f32(outs + one * n * dim + d) : (float16)(0.0f), out + d);
        if (lse) lse[lse_offset + state] = live ? lses[one * n] : -INFINITY;
        return;
    }
    /* 3. the weighted sums; a NaN part makes them NaN */
    float total = 0.0f;
    for (uint part = 0, seen = 0; part < n_parts; part++) {
        const float l = lses[part * n];
        if (l == -INFINITY) continue;
        const float weight = exp(l - top);
        total += weight;
        for (uint d = 0; d < dim; d += 16) {
            const float16 x = load_f32(outs + part * n * dim + d);
            store_f32(seen ? fma((float16)(weight), x, load_f32(out + d)) : weight * x, out + d);
        }
        seen++;
    }
    for (uint d = 0; d < dim; d += 16)
        store_f32(load_f32(out + d) / total, out + d);
    if (lse) lse[lse_offset + state] = top + log(total);
}
