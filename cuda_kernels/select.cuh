/* SPDX-License-Identifier: Apache-2.0 */
/* The list of one (row, KV head), for select.cu and sparse_attend.cu: a block finds the key of the
 * last entry wanted by passes of a radix histogram, then writes the ordinals in order.
 *
 * Keys (ordered_key) of the first entries are kept in dynamic shared memory, as many as fit; those
 * of the others are computed again from their scores. Counts are sums of integers, so the list does
 * not depend on the order of threads. */
#ifndef TAMIS_SELECT_CUH
#define TAMIS_SELECT_CUH
#include "common.cuh"

#define SELECT_BINS  256u
#define SELECT_WARPS (CU_SELECT_THREADS / WARP)

typedef struct select_shared {
    uint32_t bins[SELECT_BINS];
    uint32_t above[SELECT_WARPS], equal[SELECT_WARPS]; /* of each warp's share */
    uint32_t bin, left, bin_count;                     /* of the last pass */
} select_shared;
static_assert(sizeof(select_shared) <= CU_SELECT_SHARED, "the host counts on it");

/* Entries [from, n), of which [low, high) are not protected; `wanted` of these are taken. */
typedef struct select_range {
    uint32_t from, low, high, n, wanted;
} select_range;

/* Entries with (key & mask) above prefix are taken, and of the `equal` ones the newest `left`. */
typedef struct select_cut {
    uint32_t prefix, mask, equal, left;
} select_cut;

/* scores NULL: all keys are equal. */
typedef struct select_keys {
    const float *scores;
    const uint32_t *kept; /* of `n_kept` entries from `low` on */
    uint32_t low, n_kept;
} select_keys;

DEVICE uint32_t key_of(const select_keys &keys, uint32_t i) {
    if (!keys.scores) return 0;
    return i - keys.low < keys.n_kept ? keys.kept[i - keys.low] : ordered_key(keys.scores[i]);
}

DEVICE uint32_t sum_of_warp(uint32_t x) {
#pragma unroll
    for (uint32_t mask = WARP / 2; mask > 0; mask /= 2)
        x += shuffle_xor(x, mask);
    return x;
}

/* 1. What is protected: [from, low) and [high, n); how many of the rest are wanted. */
DEVICE select_range range_of(const cu_select_args &a, uint32_t hidden, uint32_t seen) {
    const uint32_t size = a.granularity, full = seen / size, n = full + (seen % size != 0);
    const uint32_t newest = a.recent ? (seen > a.recent ? seen - a.recent : 0) / size : n;
    const uint32_t from = min(hidden, seen) / size;
    const uint32_t low = max(from, min(a.sinks / size + (a.sinks % size != 0), n));
    const uint32_t high = max(low, min(newest, full));
    const uint32_t fixed = low - from + (n - high);
    return select_range{from, low, high, n, min(a.k > fixed ? a.k - fixed : 0, high - low)};
}

/* The highest bin that has, with those above it, `left` entries or more; one warp. A lane owns 8
 * bins, the first lane the highest. */
DEVICE void find_bin(select_shared &s, uint32_t left) {
    const uint32_t lane = lane_id(), top = SELECT_BINS - 1 - 8 * lane;
    uint32_t mine = 0;
    for (uint32_t i = 0; i < 8; i++)
        mine += s.bins[top - i];
    uint32_t upto = mine; /* and of the lanes before */
    for (uint32_t step = 1; step < WARP; step *= 2) {
        const uint32_t other = shuffle(upto, (lane - step) % WARP);
        if (lane >= step) upto += other;
    }
    uint32_t before = upto - mine;
    if (before >= left || upto < left) return;
    uint32_t bin = top;
    while (before + s.bins[bin] < left)
        before += s.bins[bin--];
    s.bin = bin;
    s.left = left - before;
    s.bin_count = s.bins[bin];
}

/* 2a. The key of the last entry wanted, from its highest byte down, until all entries that begin as
 * it does are wanted. */
DEVICE select_cut find_cut(const select_keys &keys, const select_range &r, select_shared &s) {
    select_cut cut = {0, 0, r.high - r.low, r.wanted};
    for (uint32_t shift = 32; keys.scores && shift > 0 && cut.equal > cut.left;) {
        shift -= 8;
        for (uint32_t i = threadIdx.x; i < SELECT_BINS; i += blockDim.x)
            s.bins[i] = 0;
        block_sync();
#pragma unroll 2
        for (uint32_t i = r.low + threadIdx.x; i < r.high; i += blockDim.x) {
            const uint32_t key = key_of(keys, i);
            if ((key & cut.mask) == cut.prefix)
                atomic_add(&s.bins[key >> shift & (SELECT_BINS - 1)], 1);
        }
        block_sync();
        if (warp_id() == 0) find_bin(s, cut.left);
        block_sync();
        cut.prefix |= s.bin << shift;
        cut.mask |= (SELECT_BINS - 1) << shift;
        cut.equal = s.bin_count;
        cut.left = s.left;
    }
    return cut;
}

/* 2b. Where each warp's share of the entries begins in the list, 3. and the list. A share is
 * consecutive, a warp takes 32 entries of it at once. */
DEVICE void write_list(const select_keys &keys, const select_range &r, const select_cut &cut,
                       select_shared &s, int32_t *list) {
    const uint32_t warps = blockDim.x / WARP, lane = lane_id(), older = (1u << lane) - 1;
    const uint32_t share = ((r.high - r.low) / warps / WARP + 1) * WARP;
    const uint32_t first = min(r.low + warp_id() * share, r.high),
                   last = min(first + share, r.high);
    uint32_t above = 0, equal = 0;
#pragma unroll 4
    for (uint32_t i = first + lane; i < last; i += WARP) {
        const uint32_t key = key_of(keys, i) & cut.mask;
        above += key > cut.prefix;
        equal += key == cut.prefix;
    }
    above = sum_of_warp(above);
    equal = sum_of_warp(equal);
    if (lane == 0) {
        s.above[warp_id()] = above;
        s.equal[warp_id()] = equal;
    }
    block_sync();
    const uint32_t skip = cut.equal - cut.left; /* the oldest of the equal ones */
    above = 0;
    equal = 0;
    for (uint32_t w = 0; w < warp_id(); w++) {
        above += s.above[w];
        equal += s.equal[w];
    }
    for (uint32_t base = first; base < last; base += WARP) {
        const uint32_t i = base + lane, key = i < last ? key_of(keys, i) & cut.mask : 0;
        const bool is_above = i < last && key > cut.prefix,
                   is_equal = i < last && key == cut.prefix;
        const uint32_t aboves = warp_ballot(is_above), equals = warp_ballot(is_equal);
        if ((aboves | equals) == 0) continue; /* most of them */
        const uint32_t rank = equal + popcount(equals & older);
        const uint32_t kept = rank > skip ? rank - skip : 0;
        if (is_above || (is_equal && rank >= skip))
            list[r.low - r.from + above + popcount(aboves & older) + kept] = (int32_t)i;
        above += popcount(aboves);
        equal += popcount(equals);
    }
    for (uint32_t i = r.from + threadIdx.x; i < r.low; i += blockDim.x)
        list[i - r.from] = (int32_t)i;
    for (uint32_t i = r.high + threadIdx.x; i < r.n; i += blockDim.x)
        list[r.low - r.from + r.wanted + (i - r.high)] = (int32_t)i;
}

/* The first n keys; other threads read them behind the barriers of find_cut alone. The loads of a
 * thread are under way together; those beyond n read the last. */
DEVICE void keep_keys(const float *scores, uint32_t n, uint32_t *kept) {
    for (uint32_t base = threadIdx.x; base < n; base += 8 * blockDim.x) {
        float x[8];
#pragma unroll
        for (uint32_t u = 0; u < 8; u++)
            x[u] = scores[min(base + u * blockDim.x, n - 1)];
#pragma unroll
        for (uint32_t u = 0; u < 8; u++)
            if (base + u * blockDim.x < n) kept[base + u * blockDim.x] = ordered_key(x[u]);
    }
}

/* The list of one (row, KV head), which sees `seen` slots; `kept` has room for a.cached keys. */
DEVICE void select_of(const cu_select_args &a, uint64_t owner, uint32_t seen, select_shared &s,
                      uint32_t *kept) {
    const select_range r = range_of(a, first_seen(a.batch, owner), seen);
    const bool choice = a.scores && r.wanted > 0 && r.wanted < r.high - r.low;
    const select_keys keys = {choice ? a.scores + owner * a.stride : NULL, kept, r.low,
                              min(a.cached, r.high - r.low)};
    if (choice) keep_keys(keys.scores + r.low, keys.n_kept, kept);
    const select_cut cut = find_cut(keys, r, s);
    write_list(keys, r, cut, s, a.lists.pages + owner * a.lists.capacity);
    if (threadIdx.x == 0) a.lists.count[owner] = (int32_t)(r.low - r.from + r.wanted + (r.n - r.high));
}

#endif
