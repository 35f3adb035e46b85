/* SPDX-License-Identifier: Apache-2.0 */
/* select: the protected entries of a lane, and of the rest the best by (score desc, ordinal desc),
 * k in all, ascending.
 * contract: host/ops.h; meaning: host/reference/select.c.
 * The k-th key is found by four passes of a radix histogram over the unprotected entries
 * [low, high); of the entries equal to it all but the first `skip` are taken, the newest.
 * Work split: a group owns one (row, KV head); from step 2b on a lane owns consecutive entries. */
#define LANES 256
#include "common.clh"
#ifndef SCORED
#define SCORED 1 /* 0: no scores, all entries are equal */
#endif
#define BINS 256

static inline uint key_of(__global const float *scores, uint i) {
#if SCORED
    return ordered_key(scores[i]);
#else
    return 1;
#endif
}

__kernel GROUP_OF(LANES) void select_entries(BATCH_PARAMS, uint granularity, uint k, uint sinks,
                                             uint recent, REF_PARAMS(const float, scores),
                                             uint score_stride, REF_PARAMS(int, pages),
                                             REF_PARAMS(int, count), uint capacity) {
    __local uint bins[BINS];
    __local uint found, wanted_of, equal_of;
    __local uint above[LANES], equal[LANES];
    const uint lane = (uint)get_local_id(0), owner = (uint)get_group_id(0);
    if (owner >= n_rows * n_kv_heads) return;
    scores += scores_offset + (ulong)owner * score_stride;
    pages += pages_offset + (ulong)owner * capacity;

    /* 1. what is protected: [0, low) and [high, n); how many of the rest are wanted */
    const uint seen = (uint)visible[visible_offset + owner];
    const uint full = seen / granularity, n = full + (seen % granularity != 0);
    const uint newest = recent ? (seen > recent ? seen - recent : 0) / granularity : n;
    const uint low = min(sinks / granularity + (sinks % granularity != 0), n);
    const uint high = max(low, min(newest, full));
    const uint fixed = low + (n - high);
    const uint wanted = min(k > fixed ? k - fixed : 0, high - low);

    /* 2a. the key of the last entry wanted, from its highest byte to its lowest */
    uint prefix = 0, mask = 0;
    if (lane == 0) wanted_of = wanted;
    for (int shift = 24; shift >= 0; shift -= 8) {
        bins[lane] = 0;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint i = low + lane; i < high; i += LANES) {
            const uint key = key_of(scores, i);
            if ((key & mask) == prefix) atomic_inc(&bins[key >> shift & (BINS - 1)]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lane == 0) {
            uint bin = BINS - 1, left = wanted_of;
            while (bin > 0 && bins[bin] < left)
                left -= bins[bin--];
            found = bin;
            equal_of = bins[bin];
            wanted_of = left;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        prefix |= found << shift;
        mask |= (uint)(BINS - 1) << shift;
    }
    const uint skip = equal_of - wanted_of;

    /* 2b. counts of each lane's entries above and equal, then their sums over the lanes before */
    const uint share = (high - low + LANES - 1) / LANES;
    const uint first = min(low + lane * share, high), last = min(first + share, high);
    uint n_above = 0, n_equal = 0;
    for (uint i = first; i < last; i++) {
        const uint key = key_of(scores, i);
        n_above += key > prefix;
        n_equal += key == prefix;
    }
    above[lane] = n_above;
    equal[lane] = n_equal;
    for (uint step = 1; step < LANES; step *= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        const uint a = lane >= step ? above[lane - step] : 0;
        const uint e = lane >= step ? equal[lane - step] : 0;
        barrier(CLK_LOCAL_MEM_FENCE);
        above[lane] += a;
        equal[lane] += e;
    }
    uint before_above = above[lane] - n_above, before_equal = equal[lane] - n_equal;

    /* 3. the list */
    for (uint i = first; i < last; i++) {
        const uint key = key_of(scores, i);
        const uint kept_equal = before_equal > skip ? before_equal - skip : 0;
        if (key > prefix || (key == prefix && before_equal >= skip))
            pages[low + before_above + kept_equal] = (int)i;
        before_above += key > prefix;
        before_equal += key == prefix;
    }
    for (uint i = lane; i < low; i += LANES)
        pages[i] = (int)i;
    for (uint i = high + lane; i < n; i += LANES)
        pages[low + wanted + (i - high)] = (int)i;
    if (lane == 0) count[count_offset + owner] = (int)(fixed + wanted);
}
