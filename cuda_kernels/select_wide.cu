/* SPDX-License-Identifier: Apache-2.0 */
/* select, the wide forms: forced entries, a k for each lane, lanes of a row that compete, a mass,
 * protection by position.
 * contract: host/ops/; meaning: host/reference/select_wide.c.
 * Every entry has a 64-bit key that is unique in its lane (in scope ROW: in its row). The upper
 * word orders by class: entries that are always taken, then recent positions, then scores, NaN
 * lowest. The lower word is the ordinal and, in scope ROW, the KV head, the lower the better. The
 * upper words are in scratch. The last key wanted is found by passes of a radix histogram from the
 * highest byte down; all entries with this key or a higher one are taken.
 * Work split: a block owns one (row, KV head). Scope LANE is the kernel select_wide_lanes alone. In
 * scope ROW select_wide_lanes makes keys and floors, then each launch of select_wide_pass adds a
 * byte's histogram of all lanes of a row, and select_wide_lists writes the lists. Sums are of
 * integers, so the lists do not depend on the order of threads. */
#include "common.cuh"

#define BINS    CU_WIDE_BINS
#define PASSES  CU_WIDE_PASSES
#define FIRST   0xffffffffu /* upper words: of what is taken first, */
#define RECENT  0xff800001u /* the least above that of +infinity, */
#define HIGHEST 0x7ffffd    /* and how far above it recent positions reach */

/* ---- Keys ------------------------------------------------------------------------------------ */

/* The keys of a lane: of entry i, upper[i] and i*step + tail. */
struct lane_keys {
    uint32_t *upper;
    uint32_t n, step, tail;
};

DEVICE uint64_t key_at(const lane_keys &keys, uint32_t i) {
    return (uint64_t)keys.upper[i] << 32 | (i * keys.step + keys.tail);
}

/* A score in units of 2^-32, from its ordered key: 0 if it is not positive, at most 1024. */
DEVICE uint64_t units(uint32_t key) {
    if (key <= 0x80000000u) return 0;
    return (uint64_t)(fminf(bits_to_float(key & 0x7fffffffu), 1024.0f) * 4294967296.0f);
}

/* The upper word of a full entry by the positions of its slots; `plain` is that of its score. */
DEVICE uint32_t upper_by_position(const cu_select_wide_args &a, uint32_t row, uint32_t head,
                                  uint32_t entry, uint32_t plain) {
    const int32_t *lane = lane_pages(a.batch, row, head);
    const int64_t now = a.row_positions[row];
    uint32_t ordinal = entry * a.granularity / a.page_size;
    uint32_t slot = entry * a.granularity % a.page_size;
    int32_t newest = INT32_MIN;
    bool first = false;
    for (uint32_t i = 0; i < a.granularity; i++) {
        const int32_t position = a.positions[(uint64_t)lane[ordinal] * a.page_size + slot];
        newest = max(newest, position);
        first = first || position < (int64_t)a.sinks || position == now;
        if (++slot == a.page_size) {
            slot = 0;
            ordinal++;
        }
    }
    const uint32_t rank = (uint32_t)min(max(newest, 0), HIGHEST);
    if (first) return FIRST;
    if (a.recent && newest > now - (int64_t)a.recent) return RECENT + rank;
    return a.scores ? plain : 1 + rank;
}

/* ---- The cut: an entry is taken if its key's `passes` highest bytes are at least those of prefix.
 * `left` entries are still wanted of those whose keys begin with prefix; 0: all of them are. Fewer
 * are taken if their scores sum to `need` before; need 0: no mass is wanted. ----------- */

struct cut {
    uint64_t prefix, need;
    uint32_t left, passes;
};

struct wide_shared {
    uint32_t bins[BINS], low[BINS], high[BINS]; /* entries; their scores' sum, in two words */
    uint64_t need;
    uint32_t bin, left;
    uint32_t places[CU_WIDE_THREADS / WARP];
};

DEVICE cut cut_of(uint32_t want, uint32_t n, uint64_t need) {
    if (want == 0) return cut{~(uint64_t)0, 0, 0, PASSES};
    return cut{0, need, want == n && need == 0 ? 0 : want, 0};
}

DEVICE uint64_t mask_of(uint32_t passes) {
    return passes ? ~(uint64_t)0 << (64 - 8 * passes) : 0;
}

DEVICE bool takes(const cut &c, uint64_t key) {
    return (key & mask_of(c.passes)) >= c.prefix;
}

DEVICE void add_units(uint32_t *low, uint32_t *high, uint64_t x) {
    const uint32_t before = atomic_add(low, (uint32_t)x);
    const uint32_t more = (uint32_t)(x >> 32) + (before + (uint32_t)x < before);
    if (more) atomic_add(high, more);
}

DEVICE uint64_t sum_in(const wide_shared &s, uint32_t bin) {
    return (uint64_t)s.high[bin] << 32 | s.low[bin];
}

DEVICE void clear(wide_shared &s) {
    for (uint32_t i = threadIdx.x; i < BINS; i += blockDim.x)
        s.bins[i] = s.low[i] = s.high[i] = 0;
    block_sync();
}

/* The histogram of the cut's next byte. */
DEVICE void count_keys(const cut &c, const lane_keys &keys, wide_shared &s) {
    const uint32_t shift = 56 - 8 * c.passes;
    const uint64_t mask = mask_of(c.passes);
    clear(s);
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < keys.n; i += blockDim.x) {
        const uint64_t key = key_at(keys, i);
        if ((key & mask) != c.prefix) continue;
        const uint32_t bin = (uint32_t)(key >> shift) % BINS, upper = (uint32_t)(key >> 32);
        atomic_add(&s.bins[bin], 1);
        if (c.need && upper < RECENT) add_units(&s.low[bin], &s.high[bin], units(upper));
    }
    block_sync();
}

/* The highest bin that has, with those above it, what is wanted; one warp. A warp lane owns 8 bins,
 * the first lane the highest. */
DEVICE void find_bin(const cut &c, wide_shared &s) {
    const uint32_t lane = lane_id();
    uint32_t bin = BINS - 1 - 8 * lane, mine = 0;
    uint64_t my_sum = 0;
    for (uint32_t i = 0; i < 8; i++) {
        mine += s.bins[bin - i];
        my_sum += sum_in(s, bin - i);
    }
    uint32_t upto = mine; /* and of the lanes before */
    uint64_t upto_sum = my_sum;
    for (uint32_t step = 1; step < WARP; step *= 2) {
        const uint32_t other = shuffle(upto, (lane - step) % WARP);
        const uint32_t low = shuffle((uint32_t)upto_sum, (lane - step) % WARP);
        const uint32_t high = shuffle((uint32_t)(upto_sum >> 32), (lane - step) % WARP);
        if (lane >= step) {
            upto += other;
            upto_sum += (uint64_t)high << 32 | low;
        }
    }
    uint32_t before = upto - mine;
    uint64_t before_sum = upto_sum - my_sum;
    if (before >= c.left || (c.need && before_sum >= c.need)) return;
    if (upto < c.left && !(c.need && upto_sum >= c.need)) return;
    while (before + s.bins[bin] < c.left && !(c.need && before_sum + sum_in(s, bin) >= c.need)) {
        before += s.bins[bin];
        before_sum += sum_in(s, bin--);
    }
    const bool enough = c.need && before_sum + sum_in(s, bin) >= c.need;
    s.bin = bin;
    s.left = before + s.bins[bin] == c.left && !enough ? 0 : c.left - before;
    s.need = c.need ? c.need - before_sum : 0;
}

/* Extends the cut by the byte whose histogram is there. */
DEVICE cut narrow_cut(const cut &c, wide_shared &s) {
    if (warp_id() == 0) find_bin(c, s);
    block_sync();
    return cut{c.prefix | (uint64_t)s.bin << (56 - 8 * c.passes), s.need, s.left, c.passes + 1};
}

/* The cut of a lane by itself. Bytes that no ordinal has are 0 in all keys. */
DEVICE cut find_cut(cut c, const lane_keys &keys, wide_shared &s) {
    while (c.left > 0 && c.passes < PASSES) {
        const uint32_t shift = 56 - 8 * c.passes;
        if (shift > 0 && shift < 32 && (keys.n - 1) >> shift == 0) {
            c.passes++;
        } else {
            count_keys(c, keys, s);
            c = narrow_cut(c, s);
        }
    }
    return c;
}

/* The list of lane `owner`, ascending. A warp's share of the entries is consecutive, it takes 32 of
 * them at once. */
DEVICE void write_list(const cut &c, const lane_keys &keys, const cu_lists &lists, uint32_t owner,
                       wide_shared &s) {
    const uint32_t warps = blockDim.x / WARP, lane = lane_id(), older = (1u << lane) - 1;
    const uint32_t share = (keys.n / warps / WARP + 1) * WARP;
    const uint32_t first = min(warp_id() * share, keys.n), last = min(first + share, keys.n);
    int32_t *list = lists.pages + owner * lists.capacity;
    uint32_t mine = 0;
    for (uint32_t base = first; base < last; base += WARP)
        mine += popcount(
            warp_ballot(base + lane < last && takes(c, key_at(keys, min(base + lane, last - 1)))));
    if (lane == 0) s.places[warp_id()] = mine;
    block_sync();
    uint32_t at = 0, all = 0;
    for (uint32_t w = 0; w < warps; w++) {
        at += w < warp_id() ? s.places[w] : 0;
        all += s.places[w];
    }
    for (uint32_t base = first; base < last; base += WARP) {
        const uint32_t i = base + lane;
        const bool taken = i < last && takes(c, key_at(keys, min(i, last - 1)));
        const uint32_t ballot = warp_ballot(taken), place = at + popcount(ballot & older);
        if (taken && place < lists.capacity) list[place] = (int32_t)i;
        at += popcount(ballot);
    }
    if (threadIdx.x == 0) lists.count[owner] = (int32_t)min((uint64_t)all, lists.capacity);
}

/* ---- Of one lane ----------------------------------------------------------------------------- */

/* The KV lane of a block. */
struct wide_lane {
    uint32_t owner, row, head, seen, full;
    lane_keys keys;
};

DEVICE wide_lane lane_of(const cu_select_wide_args &a, bool competes) {
    wide_lane l;
    l.owner = blockIdx.x;
    l.row = l.owner / a.batch.n_kv_heads;
    l.head = l.owner % a.batch.n_kv_heads;
    l.seen = (uint32_t)a.batch.visible[l.owner];
    l.full = l.seen / a.granularity;
    l.keys.upper = a.upper + l.owner * a.key_stride;
    l.keys.n = l.full + (l.seen % a.granularity != 0);
    l.keys.step = competes ? a.batch.n_kv_heads : 1;
    l.keys.tail = competes ? a.batch.n_kv_heads - 1 - l.head : 0;
    return l;
}

/* 1. Upper words: scores, and what is protected. */
DEVICE void make_keys(const cu_select_wide_args &a, const wide_lane &l) {
    const uint32_t size = a.granularity, low = a.sinks / size + (a.sinks % size != 0);
    const uint32_t high = a.recent ? (l.seen > a.recent ? l.seen - a.recent : 0) / size : l.keys.n;
    const float *scores = a.scores + l.owner * a.stride;
    for (uint32_t i = threadIdx.x; i < l.keys.n; i += blockDim.x) {
        uint32_t key = a.scores && i < l.full ? ordered_key(scores[i]) : 1;
        if (i >= l.full || (!a.positions && (i < low || i >= high)))
            key = FIRST;
        else if (a.positions)
            key = upper_by_position(a, l.row, l.head, i, key);
        l.keys.upper[i] = key;
    }
    block_sync();
    if (a.forced.pages) {
        const int32_t *forced = a.forced.pages + l.owner * a.forced.capacity;
        const uint32_t n = (uint32_t)a.forced.count[l.owner];
        for (uint32_t j = threadIdx.x; j < n; j += blockDim.x)
            l.keys.upper[forced[j]] = FIRST;
    }
    block_sync();
}

/* 2. How many are protected; *sum is the sum of their scores if a mass is wanted. */
DEVICE uint32_t count_protected(const cu_select_wide_args &a, const wide_lane &l, wide_shared &s,
                                uint64_t *sum) {
    uint32_t mine = 0;
    uint64_t my_sum = 0;
    clear(s);
    for (uint32_t i = threadIdx.x; i < l.keys.n; i += blockDim.x) {
        if (l.keys.upper[i] < RECENT) continue;
        mine++;
        if (a.need && i < l.full) my_sum += units(ordered_key(a.scores[l.owner * a.stride + i]));
    }
    if (mine) atomic_add(&s.bins[0], mine);
    if (my_sum) add_units(&s.low[0], &s.high[0], my_sum);
    block_sync();
    const uint32_t n = s.bins[0];
    *sum = sum_in(s, 0);
    block_sync();
    return n;
}

/* 3. Scope ROW: the best others up to the floor join what is taken first. */
DEVICE void raise_floor(const cu_select_wide_args &a, const wide_lane &l, uint32_t fixed,
                        wide_shared &s) {
    const uint32_t want = fixed + min(a.floor, l.keys.n - fixed);
    uint32_t *tallies = a.tallies + l.row * a.tally_stride;
    if (want > fixed) {
        const cut c = find_cut(cut_of(want, l.keys.n, 0), l.keys, s);
        for (uint32_t i = threadIdx.x; i < l.keys.n; i += blockDim.x)
            if (takes(c, key_at(l.keys, i))) l.keys.upper[i] = FIRST;
    }
    for (uint32_t i = threadIdx.x; l.head == 0 && i < PASSES * BINS; i += blockDim.x)
        tallies[i] = 0;
    if (threadIdx.x == 0) tallies[CU_WIDE_TAKEN + l.head] = want;
}

KERNEL_WIDE(select_wide_lanes, CU_WIDE_THREADS, cu_select_wide_args) {
    SHARED(wide_shared, s);
    if (blockIdx.x >= (uint64_t)a.batch.n_rows * a.batch.n_kv_heads) return;
    const wide_lane l = lane_of(a, false);
    uint64_t sum;
    make_keys(a, l);
    const uint32_t fixed = count_protected(a, l, s, &sum);
    if (a.competes) {
        raise_floor(a, l, fixed, s);
        return;
    }
    /* 4. Scope LANE: up to k, or to the mass. */
    uint32_t k = a.k;
    if (a.k_table)
        k = (uint32_t)min((uint64_t)k, (uint64_t)max(a.k_table[l.owner], 0) * a.k_share >> 16);
    uint32_t want = min(a.positions ? k : max(k, fixed), l.keys.n);
    if (a.need && sum >= a.need) want = min(want, fixed);
    const uint64_t need = a.need && want > fixed ? a.need - sum : 0;
    write_list(find_cut(cut_of(want, l.keys.n, need), l.keys, s), l.keys, a.lists, l.owner, s);
}

/* ---- Of the lanes of a row ------------------------------------------------------------------- */

/* The cut before anything is known of the keys. */
DEVICE cut first_row_cut(const cu_select_wide_args &a, uint32_t row, const uint32_t *tallies,
                         wide_shared &s) {
    const int32_t *visible = a.batch.visible + row * a.batch.n_kv_heads;
    clear(s);
    for (uint32_t h = threadIdx.x; h < a.batch.n_kv_heads; h += blockDim.x) {
        const uint32_t seen = (uint32_t)visible[h], size = a.granularity;
        atomic_add(&s.bins[0], tallies[CU_WIDE_TAKEN + h]);
        atomic_add(&s.bins[1], seen / size + (seen % size != 0));
    }
    block_sync();
    const uint32_t taken = s.bins[0], all = s.bins[1];
    block_sync();
    return cut_of(min(max(a.total, taken), all), all, 0);
}

/* The cut before pass `pass`, from what those before have tallied. */
DEVICE cut row_cut(const cu_select_wide_args &a, uint32_t pass, uint32_t row, wide_shared &s) {
    const uint32_t *tallies = a.tallies + row * a.tally_stride;
    if (pass == 0) return first_row_cut(a, row, tallies, s);
    const uint32_t *last = tallies + CU_WIDE_CUTS + 4 * (pass - 1);
    const cut c = {(uint64_t)last[0] << 32 | last[1], 0, last[2], last[3]};
    if (c.left == 0) return c;
    for (uint32_t i = threadIdx.x; i < BINS; i += blockDim.x) {
        s.bins[i] = tallies[(pass - 1) * BINS + i];
        s.low[i] = s.high[i] = 0;
    }
    block_sync();
    return narrow_cut(c, s);
}

KERNEL(select_wide_pass, CU_WIDE_THREADS, cu_select_wide_args) {
    SHARED(wide_shared, s);
    if (blockIdx.x >= (uint64_t)a.batch.n_rows * a.batch.n_kv_heads) return;
    const wide_lane l = lane_of(a, true);
    uint32_t *tallies = a.tallies + l.row * a.tally_stride;
    const cut c = row_cut(a, a.pass, l.row, s);
    if (l.head == 0 && threadIdx.x == 0) {
        uint32_t *kept = tallies + CU_WIDE_CUTS + 4 * a.pass;
        kept[0] = (uint32_t)(c.prefix >> 32);
        kept[1] = (uint32_t)c.prefix;
        kept[2] = c.left;
        kept[3] = c.passes;
    }
    if (c.left == 0) return;
    count_keys(c, l.keys, s);
    for (uint32_t i = threadIdx.x; i < BINS; i += blockDim.x)
        if (s.bins[i]) atomic_add(tallies + a.pass * BINS + i, s.bins[i]);
}

KERNEL(select_wide_lists, CU_WIDE_THREADS, cu_select_wide_args) {
    SHARED(wide_shared, s);
    if (blockIdx.x >= (uint64_t)a.batch.n_rows * a.batch.n_kv_heads) return;
    const wide_lane l = lane_of(a, true);
    write_list(row_cut(a, PASSES, l.row, s), l.keys, a.lists, l.owner, s);
}
