/* SPDX-License-Identifier: Apache-2.0 */
/* select on a CPU, the wide forms of scope LANE without a mass.
 * contract: host/ops/; meaning: host/reference/select_wide.c.
 * The order of entries is in scratch as words. The least word taken is found by bisection, words
 * counted 16 at a time; of those equal to it the oldest are skipped.
 * Work split: a work-item owns one (row, KV head). */
#include "cpu.clh"
#include "select_wide.clh"

/* How many of n words are at least `least`. */
static inline uint count_words(__global const uint *words, uint n, uint least) {
    int16 counts = 0;
    uint i = 0;
    for (; i + 16 <= n; i += 16)
        counts -= vload16(0, words + i) >= least;
    const int8 a = counts.lo + counts.hi;
    const int4 b = a.lo + a.hi;
    uint count = (uint)((b.x + b.y) + (b.z + b.w));
    for (; i < n; i++)
        count += words[i] >= least;
    return count;
}

/* word_by_position where entries and pages are whole eights of slots. */
static inline uint word_by_eights(lane_rules l, uint entry, uint plain) {
    const int8 sinks = (int)min(l.sinks, (uint)INT_MAX);
    int8 newest = INT_MIN, first = 0;
    const uint begin = entry * l.granularity;
    for (uint s = begin; s < begin + l.granularity; s += 8) {
        const ulong page = (ulong)l.pages[s / l.page_size];
        const int8 x = vload8(0, l.positions + page * l.page_size + s % l.page_size);
        newest = max(newest, x);
        first |= (x < sinks) | (x == l.now);
    }
    const int4 a = max(newest.lo, newest.hi);
    return word_of(l, max(max(a.x, a.y), max(a.z, a.w)), any(first), plain);
}

/* 1. The words: scores, and what is protected. */
static ONCE void make_words(lane_rules l, __global uint *words) {
    uint i = 0;
    for (; l.scores && i + 16 <= l.full; i += 16)
        vstore16(ordered_keys(vload16(0, l.scores + i)), 0, words + i);
    for (; i < l.full; i++)
        words[i] = l.scores ? ordered_key(l.scores[i]) : 1;
    if (l.full < l.n) words[l.full] = FIRST;
    if (l.positions) {
        const bool eights = l.granularity % 8 == 0 && l.page_size % 8 == 0;
        for (i = 0; i < l.full; i++)
            words[i] = eights ? word_by_eights(l, i, words[i]) : word_by_position(l, i, words[i]);
    } else {
        const uint2 ends = ends_of(l);
        for (i = 0; i < ends.x; i++)
            words[i] = FIRST;
        for (i = ends.y; i < l.n; i++)
            words[i] = FIRST;
    }
}

/* 3. Ordinals of the `want` first of n words, ascending, as many as `room` holds. */
static ONCE uint list_first(__global const uint *words, uint n, uint want, uint room,
                            __global int *list) {
    if (want == 0) return 0;
    /* At least `want` words are >= low, fewer are >= high. */
    ulong low = 0, high = 1ul << 32;
    uint at_low = n;
    while (at_low != want && high - low > 1) {
        const ulong middle = (low + high) >> 1;
        const uint count = count_words(words, n, (uint)middle);
        if (count >= want) {
            low = middle;
            at_low = count;
        } else {
            high = middle;
        }
    }
    const uint length = min(want, room);
    uint pass = at_low - want, taken = 0;
    for (uint i = 0; taken < length; i++) {
        const bool tied = words[i] == (uint)low;
        list[taken] = (int)i;
        taken += words[i] >= (uint)low && !(tied && pass > 0);
        pass -= tied && pass > 0;
    }
    return length;
}

__kernel ONE_ITEM void select_wide_lanes(WIDE_PARAMS) {
    const uint owner = (uint)get_group_id(0);
    if (owner >= n_rows * n_kv_heads) return;
    LANE_OF_PARAMS(owner);
    __global uint *words = upper + upper_offset + (ulong)owner * key_stride;
    make_words(l, words);
    for (uint j = 0; j < n_forced; j++)
        words[forced[j]] = FIRST;
    /* 2. how many: with positions at most k; without, all protected entries even if more than k */
    if (!positions) k = max(k, count_words(words, l.n, RECENT));
    count[count_offset + owner] = (int)list_first(words, l.n, min(k, l.n), capacity,
                                                  pages + pages_offset + (ulong)owner * capacity);
}
