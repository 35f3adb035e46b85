/* SPDX-License-Identifier: Apache-2.0 */
/* pool_values: out(s) = the largest x(s + o), or Σ x(s + o) / width, |o| <= width/2.
 * contract: host/ops/; meaning: host/reference/pool.c.
 * Work split: in pool_values a work-item takes 16 slots of a list, `blocks` work-groups share a
 * list; in pool_values_rescale a work-group owns a list. */
#include "common.clh"
#ifndef KIND
#define KIND 0 /* tamis_pooling: 0 max, 1 average */
#endif

/* The 16 values from `at` on of a list of n; beyond its ends values that do not change a maximum or
 * sum. */
static inline float16 load_within(__global const float *x, int at, int n) {
    if (at >= 0 && at + 16 <= n) return vload16(0, x + at);
    float part[16];
    for (int i = 0; i < 16; i++)
        part[i] = at + i >= 0 && at + i < n ? x[at + i] : KIND == 0 ? -INFINITY : 0.0f;
    return vload16(0, part);
}
static inline void store_within(float16 values, __global float *x, int at, int n) {
    float part[16];
    if (at + 16 <= n) {
        vstore16(values, 0, x + at);
        return;
    }
    vstore16(values, 0, part);
    for (int i = 0; at + i < n; i++) x[at + i] = part[i];
}

__kernel GROUP_OF(WG_SIZE) void pool_values(REF_PARAMS(const int, visible), uint lists,
                                            uint n_lists, uint tail, uint width,
                                            REF_PARAMS(const float, x), REF_PARAMS(float, out),
                                            ulong stride, uint blocks) {
    const uint list = (uint)get_group_id(0) / blocks;
    if (list >= lists) return;
    const int n = visible[visible_offset + list / n_lists] - (int)tail;
    const int reach = min((int)(width / 2), n);
    const int slot = ((int)((uint)get_group_id(0) % blocks) * WG_SIZE + (int)get_local_id(0)) * 16;
    if (slot >= n) return;
    x += x_offset + list * stride;
    out += out_offset + list * stride;
    float16 pooled = KIND == 0 ? (float16)(-INFINITY) : (float16)(0.0f);
    for (int at = slot - reach; at <= slot + reach; at++) {
        const float16 v = load_within(x, at, n);
        if (KIND == 0)
            pooled = v > pooled || isnan(v) ? v : pooled; /* a NaN stays: nothing is above it */
        else
            pooled += v;
    }
    store_within(KIND == 0 ? pooled : pooled / (float)width, out, slot, n);
}

/* out times Σx / Σout of its list, where that is finite. */
__kernel GROUP_OF(WG_SIZE) void pool_values_rescale(REF_PARAMS(const int, visible), uint lists,
                                                    uint n_lists, uint tail,
                                                    REF_PARAMS(const float, x),
                                                    REF_PARAMS(float, out), ulong stride) {
    __local float scratch[WG_SIZE];
    const uint list = (uint)get_group_id(0);
    if (list >= lists) return;
    const int n = visible[visible_offset + list / n_lists] - (int)tail;
    const int first = (int)get_local_id(0) * 16;
    x += x_offset + list * stride;
    out += out_offset + list * stride;
    /* 1. both sums */
    float before = 0.0f, after = 0.0f;
    for (int s = first; s < n; s += WG_SIZE * 16) {
        before += sum16(load_within(x, s, n));
        after += sum16(load_within(out, s, n));
    }
    before = group_sum(before, scratch);
    const float factor = before / group_sum(after, scratch);
    /* 2. the list on the scale of its values; PoCL 3.1 fails with vectors of it behind a barrier */
    if (!isfinite(factor)) return;
    for (int s = first; s < n; s += WG_SIZE * 16)
        for (int i = s; i < min(s + 16, n); i++) out[i] *= factor;
}
