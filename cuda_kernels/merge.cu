/* SPDX-License-Identifier: Apache-2.0 */
/* merge: states of the same rows into one: lse = log Σ exp(lse_i), out = Σ exp(lse_i - lse)·out_i.
 * contract: host/ops/; meaning: host/reference/merge.c.
 * Work split: a thread owns one channel of one state; loops go over parts in order. */
#include "common.cuh"

KERNEL(merge_states, 256, cu_merge_args) {
    FOR_EACH_ITEM(i, (uint64_t)a.n * a.dim) {
        const uint64_t state = i / a.dim, part_size = (uint64_t)a.n * a.dim;
        const float *part_lse = a.lses + state, *part_out = a.outs + i;
        /* 1. live parts and the largest lse among them */
        uint32_t live = 0;
        uint64_t one = 0;
        float top = -INFINITY;
        for (uint64_t part = 0; part < a.n_parts; part++) {
            const float l = part_lse[part * a.n];
            if (l == -INFINITY) continue;
            live++;
            one = part;
            top = fmaxf(top, l);
        }
        /* 2. a single live part passes through; none gives 0 and -inf */
        float value = live ? part_out[one * part_size] : 0.0f;
        float joint = live ? part_lse[one * a.n] : -INFINITY;
        /* 3. the sum of weights, 4. and the weighted outs; a NaN part makes them NaN */
        if (live > 1) {
            float total = 0.0f, sum = 0.0f;
            for (uint64_t part = 0; part < a.n_parts; part++) {
                const float l = part_lse[part * a.n];
                if (l == -INFINITY) continue;
                const float weight = expf(l - top);
                total += weight;
                sum = fmaf(weight, part_out[part * part_size], sum);
            }
            value = sum / total;
            joint = top + logf(total);
        }
        a.out[i] = value;
        if (a.lse && i % a.dim == 0) a.lse[state] = joint;
    }
}
