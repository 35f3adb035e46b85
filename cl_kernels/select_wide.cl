/* SPDX-License-Identifier: Apache-2.0 */
/* select, the wide forms: forced entries, a k for each lane, lanes of a row that compete, a mass,
 * protection by position.
 * contract: host/ops/; meaning: host/reference/select_wide.c.
 * Every entry has a 64-bit key that is unique in its lane (in scope ROW: in its row). The upper
 * word orders by class: entries that are always taken, then recent positions, then scores, NaN
 * lowest. The lower word is the ordinal and, in scope ROW, the KV head, the lower the better. The
 * upper words are in scratch. The last key wanted is found by passes of a radix histogram from the
 * highest byte down; all entries with this key or a higher one are taken.
 * Work split: a work-group owns one (row, KV head). Scope LANE is the kernel select_wide_lanes
 * alone. In scope ROW select_wide_lanes makes keys and floors, then each launch of select_wide_pass
 * adds a byte's histogram of all lanes of a row, and select_wide_lists writes the lists. */
#define WG_SIZE 256
#include "common.clh"
#include "select_wide.clh"
#define BINS   256 /* one per work-item */
#define PASSES 8

/* ---- Keys ---- */

/* The keys of a lane: of entry i, upper[i] and i*step + tail. */
typedef struct lane_keys {
    __global uint *upper;
    uint n, step, tail;
} lane_keys;

static inline ulong key_at(lane_keys keys, uint i) {
    return (ulong)keys.upper[i] << 32 | (i * keys.step + keys.tail);
}

/* A score in units of 2^-32, from its ordered key: 0 if it is not positive, at most 1024. */
static inline ulong units(uint key) {
    if (key <= 0x80000000u) return 0;
    return convert_ulong(fmin(as_float(key & 0x7fffffffu), 1024.0f) * 4294967296.0f);
}

/* 1. Upper words: scores, and what is protected; forced may be NULL. */
static inline void make_keys(lane_rules l, lane_keys keys, __global const int *forced,
                             uint n_forced) {
    const uint wi = (uint)get_local_id(0);
    const uint2 ends = ends_of(l);
    for (uint i = wi; i < l.n; i += WG_SIZE) {
        uint key = l.scores && i < l.full ? ordered_key(l.scores[i]) : 1;
        if (i >= l.full || (!l.positions && (i < ends.x || i >= ends.y)))
            key = FIRST;
        else if (l.positions)
            key = word_by_position(l, i, key);
        keys.upper[i] = key;
    }
    barrier(CLK_GLOBAL_MEM_FENCE);
    for (uint j = wi; j < n_forced; j += WG_SIZE)
        keys.upper[forced[j]] = FIRST;
    barrier(CLK_GLOBAL_MEM_FENCE);
}

/* ---- The cut: an entry is taken if its key's `passes` highest bytes are at least those of prefix.
 * `left` entries are still wanted of those whose keys begin with prefix; 0: all of them are. Fewer
 * are taken if their scores sum to `need` before; need 0: no mass is wanted. ---- */

typedef struct cut {
    ulong prefix, need;
    uint left, passes;
} cut;

/* The local memory of a work-group, an array of words (PoCL 3.1 may let two threads share a __local
 * struct): entries by byte, their scores' sums in two words, the place of each work-item's share of
 * the list, and what one work-item finds for all. */
#define SHARED_WORDS (4 * BINS + 4)
#define BINS_OF(s)   (s)
#define LOW_OF(s)    ((s) + BINS)
#define HIGH_OF(s)   ((s) + 2 * BINS)
#define PLACES_OF(s) ((s) + 3 * BINS)
#define FOUND_OF(s)  ((s) + 4 * BINS) /* byte, left, need in two words */

static inline cut cut_of(uint want, uint n, ulong need) {
    cut c = {0, need, want, 0};
    if (want == 0) c = (cut){~0ul, 0, 0, PASSES};
    if (want == n && need == 0) c.left = 0;
    return c;
}

static inline ulong mask_of(uint passes) {
    return passes ? ~0ul << (64 - 8 * passes) : 0;
}

static inline bool takes(cut c, ulong key) {
    return (key & mask_of(c.passes)) >= c.prefix;
}

static inline void add_units(__local uint *low, __local uint *high, ulong x) {
    const uint before = atomic_add(low, (uint)x);
    const uint carry = before + (uint)x < before;
    if ((uint)(x >> 32) + carry) atomic_add(high, (uint)(x >> 32) + carry);
}

/* The histogram of the cut's next byte. */
static inline void count_keys(cut c, lane_keys keys, __local uint *s) {
    const uint wi = (uint)get_local_id(0), shift = 56 - 8 * c.passes;
    const ulong mask = mask_of(c.passes);
    BINS_OF(s)[wi] = LOW_OF(s)[wi] = HIGH_OF(s)[wi] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = wi; i < keys.n; i += WG_SIZE) {
        const ulong key = key_at(keys, i);
        if ((key & mask) != c.prefix) continue;
        const uint bin = (uint)(key >> shift) & (BINS - 1), upper = (uint)(key >> 32);
        atomic_inc(&BINS_OF(s)[bin]);
        if (c.need && upper < RECENT) add_units(&LOW_OF(s)[bin], &HIGH_OF(s)[bin], units(upper));
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

/* Extends the cut by the byte whose histogram is there. */
static inline cut narrow(cut c, __local uint *s) {
    if (get_local_id(0) == 0) {
        uint bin = BINS, left = c.left;
        ulong need = c.need, sum;
        bool enough;
        do {
            bin--;
            sum = (ulong)HIGH_OF(s)[bin] << 32 | LOW_OF(s)[bin];
            enough = need && sum >= need;
            if (bin == 0 || enough || BINS_OF(s)[bin] >= left) break;
            left -= BINS_OF(s)[bin];
            need -= need ? sum : 0;
        } while (true);
        FOUND_OF(s)[0] = bin;
        FOUND_OF(s)[1] = BINS_OF(s)[bin] == left && !enough ? 0 : left;
        FOUND_OF(s)[2] = (uint)need;
        FOUND_OF(s)[3] = (uint)(need >> 32);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    c.prefix |= (ulong)FOUND_OF(s)[0] << (56 - 8 * c.passes);
    c.passes++;
    c.left = FOUND_OF(s)[1];
    c.need = (ulong)FOUND_OF(s)[3] << 32 | FOUND_OF(s)[2];
    return c;
}

/* The cut of a lane by itself. Bytes that no ordinal has are 0 in all keys. */
static inline cut find_cut(cut c, lane_keys keys, __local uint *s) {
    while (c.left > 0 && c.passes < PASSES) {
        const uint shift = 56 - 8 * c.passes;
        if (shift > 0 && shift < 32 && (keys.n - 1) >> shift == 0) {
            c.passes++;
        } else {
            count_keys(c, keys, s);
            c = narrow(c, s);
        }
    }
    return c;
}

/* The list, ascending; a work-item owns consecutive entries. Returns its length. */
static inline uint write_list(cut c, lane_keys keys, __global int *list, uint capacity,
                              __local uint *s) {
    const uint wi = (uint)get_local_id(0), share = (keys.n + WG_SIZE - 1) / WG_SIZE;
    const uint first = min(wi * share, keys.n), last = min(first + share, keys.n);
    uint n = 0;
    for (uint i = first; i < last; i++)
        n += takes(c, key_at(keys, i));
    PLACES_OF(s)[wi] = n;
    for (uint step = 1; step < WG_SIZE; step *= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        const uint before = wi >= step ? PLACES_OF(s)[wi - step] : 0;
        barrier(CLK_LOCAL_MEM_FENCE);
        PLACES_OF(s)[wi] += before;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    uint at = PLACES_OF(s)[wi] - n;
    for (uint i = first; i < last; i++) {
        if (takes(c, key_at(keys, i)) && at < capacity) list[at++] = (int)i;
    }
    return min(PLACES_OF(s)[WG_SIZE - 1], capacity);
}

/* ---- Of one lane ---- */

/* 2. How many are protected; *sum is the sum of their scores if a mass is wanted. */
static inline uint count_protected(lane_rules l, lane_keys keys, bool mass, __local uint *s,
                                   ulong *sum) {
    const uint wi = (uint)get_local_id(0);
    uint mine = 0;
    ulong my_sum = 0;
    BINS_OF(s)[wi] = LOW_OF(s)[wi] = HIGH_OF(s)[wi] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = wi; i < l.n; i += WG_SIZE) {
        if (keys.upper[i] < RECENT) continue;
        mine++;
        if (mass && i < l.full) my_sum += units(ordered_key(l.scores[i]));
    }
    if (mine) atomic_add(&BINS_OF(s)[0], mine);
    if (my_sum) add_units(&LOW_OF(s)[0], &HIGH_OF(s)[0], my_sum);
    barrier(CLK_LOCAL_MEM_FENCE);
    const uint n = BINS_OF(s)[0];
    *sum = (ulong)HIGH_OF(s)[0] << 32 | LOW_OF(s)[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    return n;
}

/* Tallies of each row of competing lanes: histograms [PASSES][BINS]; the cut before each pass, four
 * words; the entries that each lane has already. */
#define CUTS_AT  (PASSES * BINS)
#define TAKEN_AT (CUTS_AT + 4 * PASSES)

/* 3. Scope ROW: the best others up to the floor join what is taken first. */
static inline void raise_floor(lane_keys keys, uint fixed, uint floor_of, uint head,
                               __global uint *tallies, __local uint *s) {
    const uint wi = (uint)get_local_id(0), want = fixed + min(floor_of, keys.n - fixed);
    if (want > fixed) {
        const cut c = find_cut(cut_of(want, keys.n, 0), keys, s);
        for (uint i = wi; i < keys.n; i += WG_SIZE) {
            if (takes(c, key_at(keys, i))) keys.upper[i] = FIRST;
        }
    }
    for (uint i = wi; head == 0 && i < PASSES * BINS; i += WG_SIZE)
        tallies[i] = 0;
    if (wi == 0) tallies[TAKEN_AT + head] = want;
}

__kernel GROUP_OF(WG_SIZE) void select_wide_lanes(WIDE_PARAMS) {
    __local uint s[SHARED_WORDS];
    const uint owner = (uint)get_group_id(0);
    if (owner >= n_rows * n_kv_heads) return;
    LANE_OF_PARAMS(owner);
    const lane_keys keys = {upper + upper_offset + (ulong)owner * key_stride, l.n, 1, 0};
    make_keys(l, keys, forced, n_forced);
    ulong sum;
    const uint fixed = count_protected(l, keys, need != 0, s, &sum);
    if (competes) {
        raise_floor(keys, fixed, floor_of, owner % n_kv_heads,
                    tallies + tallies_offset + (ulong)(owner / n_kv_heads) * tally_stride, s);
        return;
    }
    /* 4. scope LANE: up to k, or to the mass */
    uint want = min(positions ? k : max(k, fixed), l.n);
    if (need && sum >= need) want = min(want, fixed);
    need = need && want > fixed ? need - sum : 0;
    const cut c = find_cut(cut_of(want, l.n, need), keys, s);
    const uint length =
        write_list(c, keys, pages + pages_offset + (ulong)owner * capacity, capacity, s);
    if (get_local_id(0) == 0) count[count_offset + owner] = (int)length;
}

/* ---- Of the lanes of a row ---- */

/* The cut before pass `passes`, from the tallies of those before; one group of the row keeps it. */
static inline cut row_cut(uint passes, __global uint *tallies, __global const int *row_visible,
                          uint granularity, uint n_heads, uint total, bool keep, __local uint *s) {
    const uint wi = (uint)get_local_id(0);
    __global uint *cuts = tallies + CUTS_AT;
    cut c;
    if (passes == 0) {
        BINS_OF(s)[wi] = 0;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint h = wi; h < n_heads; h += WG_SIZE) {
            const uint seen = (uint)row_visible[h];
            atomic_add(&BINS_OF(s)[0], tallies[TAKEN_AT + h]);
            atomic_add(&BINS_OF(s)[1], seen / granularity + (seen % granularity != 0));
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        c = cut_of(min(max(total, BINS_OF(s)[0]), BINS_OF(s)[1]), BINS_OF(s)[1], 0);
        barrier(CLK_LOCAL_MEM_FENCE);
    } else {
        __global const uint *last = cuts + 4 * (passes - 1);
        c = (cut){(ulong)last[0] << 32 | last[1], 0, last[2], last[3]};
        if (c.left > 0) {
            BINS_OF(s)[wi] = tallies[(passes - 1) * BINS + wi];
            LOW_OF(s)[wi] = HIGH_OF(s)[wi] = 0;
            barrier(CLK_LOCAL_MEM_FENCE);
            c = narrow(c, s);
        }
    }
    if (keep && wi == 0) {
        cuts[4 * passes] = (uint)(c.prefix >> 32);
        cuts[4 * passes + 1] = (uint)c.prefix;
        cuts[4 * passes + 2] = c.left;
        cuts[4 * passes + 3] = c.passes;
    }
    return c;
}

__kernel GROUP_OF(WG_SIZE) void select_wide_pass(uint n_rows, uint n_kv_heads,
                                                 REF_PARAMS(const int, visible), uint granularity,
                                                 uint total, REF_PARAMS(uint, upper),
                                                 uint key_stride, REF_PARAMS(uint, tallies),
                                                 uint tally_stride, uint pass) {
    __local uint s[SHARED_WORDS];
    const uint wi = (uint)get_local_id(0), owner = (uint)get_group_id(0);
    if (owner >= n_rows * n_kv_heads) return;
    const uint row = owner / n_kv_heads, head = owner % n_kv_heads;
    visible += visible_offset + row * n_kv_heads;
    tallies += tallies_offset + (ulong)row * tally_stride;
    const cut c = row_cut(pass, tallies, visible, granularity, n_kv_heads, total, head == 0, s);
    if (c.left == 0) return;
    const uint seen = (uint)visible[head], n = seen / granularity + (seen % granularity != 0);
    const lane_keys keys = {upper + upper_offset + (ulong)owner * key_stride, n, n_kv_heads,
                            n_kv_heads - 1 - head};
    count_keys(c, keys, s);
    if (s[wi]) atomic_add(tallies + pass * BINS + wi, s[wi]);
}

__kernel GROUP_OF(WG_SIZE) void select_wide_lists(uint n_rows, uint n_kv_heads,
                                                  REF_PARAMS(const int, visible), uint granularity,
                                                  uint total, REF_PARAMS(uint, upper),
                                                  uint key_stride, REF_PARAMS(uint, tallies),
                                                  uint tally_stride, REF_PARAMS(int, pages),
                                                  REF_PARAMS(int, count), uint capacity) {
    __local uint s[SHARED_WORDS];
    const uint owner = (uint)get_group_id(0);
    if (owner >= n_rows * n_kv_heads) return;
    const uint row = owner / n_kv_heads, head = owner % n_kv_heads;
    visible += visible_offset + row * n_kv_heads;
    tallies += tallies_offset + (ulong)row * tally_stride;
    const cut c = row_cut(PASSES, tallies, visible, granularity, n_kv_heads, total, false, s);
    const uint seen = (uint)visible[head], n = seen / granularity + (seen % granularity != 0);
    const lane_keys keys = {upper + upper_offset + (ulong)owner * key_stride, n, n_kv_heads,
                            n_kv_heads - 1 - head};
    const uint length =
        write_list(c, keys, pages + pages_offset + (ulong)owner * capacity, capacity, s);
    if (get_local_id(0) == 0) count[count_offset + owner] = (int)length;
}
