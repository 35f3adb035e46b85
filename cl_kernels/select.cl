/* SPDX-License-Identifier: Apache-2.0 */
/* select: the protected entries of a lane, and of the rest the best by (score desc, ordinal desc),
 * k in all, ascending.
 * contract: host/ops/; meaning: host/reference/select.c.
 * The k-th key is found by four passes of a radix histogram over the unprotected entries
 * [low, high); of the entries equal to it all but the first `skip` are taken, the newest.
 * Work split: a work-group owns one (row, KV head); from step 2b on a work-item owns consecutive
 * entries. */
#define WG_SIZE 256
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

__kernel GROUP_OF(WG_SIZE) void select_entries(BATCH_PARAMS, uint granularity, uint k, uint sinks,
                                               uint recent, REF_PARAMS(const float, scores),
                                               uint score_stride, REF_PARAMS(int, pages),
                                               REF_PARAMS(int, count), uint capacity) {
    __local uint bins[BINS];
    __local uint found, wanted_of, equal_of;
    __local uint above[WG_SIZE], equal[WG_SIZE];
    const uint wi = (uint)get_local_id(0), owner = (uint)get_group_id(0);
    if (owner >= n_rows * n_kv_heads) return;
    scores += scores_offset + (ulong)owner * score_stride;
    pages += pages_offset + (ulong)owner * capacity;

    /* 1. protected are [from, low) and [high, n); how many of the rest are wanted */
    const uint seen = (uint)visible[visible_offset + owner];
    const uint full = seen / granularity, n = full + (seen % granularity != 0);
    const uint from = min(FIRST_SEEN(owner), seen) / granularity;
    const uint newest = recent ? (seen > recent ? seen - recent : 0) / granularity : n;
    const uint low = max(from, min(sinks / granularity + (sinks % granularity != 0), n));
    const uint high = max(low, min(newest, full));
    const uint sunk = low - from, fixed = sunk + (n - high);
    const uint wanted = min(k > fixed ? k - fixed : 0, high - low);

    /* 2a. the key of the last entry wanted, from its highest byte to its lowest */
    uint prefix = 0, mask = 0;
    if (wi == 0) wanted_of = wanted;
    for (int shift = 24; shift >= 0; shift -= 8) {
        bins[wi] = 0;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint i = low + wi; i < high; i += WG_SIZE) {
            const uint key = key_of(scores, i);
            if ((key & mask) == prefix) atomic_inc(&bins[key >> shift & (BINS - 1)]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        if (wi == 0) {
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

    /* 2b. counts of each work-item's entries above and equal, then the sums over those before it */
    const uint share = (high - low + WG_SIZE - 1) / WG_SIZE;
    const uint first = min(low + wi * share, high), last = min(first + share, high);
    uint n_above = 0, n_equal = 0;
    for (uint i = first; i < last; i++) {
        const uint key = key_of(scores, i);
        n_above += key > prefix;
        n_equal += key == prefix;
    }
    above[wi] = n_above;
    equal[wi] = n_equal;
    for (uint step = 1; step < WG_SIZE; step *= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        const uint a = wi >= step ? above[wi - step] : 0;
        const uint e = wi >= step ? equal[wi - step] : 0;
        barrier(CLK_LOCAL_MEM_FENCE);
        above[wi] += a;
        equal[wi] += e;
    }
    uint before_above = above[wi] - n_above, before_equal = equal[wi] - n_equal;

    /* 3. the list */
    for (uint i = first; i < last; i++) {
        const uint key = key_of(scores, i);
        const uint kept_equal = before_equal > skip ? before_equal - skip : 0;
        if (key > prefix || (key == prefix && before_equal >= skip))
            pages[sunk + before_above + kept_equal] = (int)i;
        before_above += key > prefix;
        before_equal += key == prefix;
    }
    for (uint i = from + wi; i < low; i += WG_SIZE)
        pages[i - from] = (int)i;
    for (uint i = high + wi; i < n; i += WG_SIZE)
        pages[sunk + wanted + (i - high)] = (int)i;
    if (wi == 0) count[count_offset + owner] = (int)(fixed + wanted);
}
