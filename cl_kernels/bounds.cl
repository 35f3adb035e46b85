/* SPDX-License-Identifier: Apache-2.0 */
/* bounds: a pair (lo, hi) of the keys of a full page, channel by channel: min and max, mean
 * -/+ width standard deviations, or the mean twice; NaN if a key is NaN.
 * contract: host/ops/; meaning: host/reference/bounds.c.
 * Work split: a work-item owns 16 channels of one (page, KV head), of q8 a block; a loop step reads
 * 16 channels of one slot. The kind is an argument, so that one program serves a cache whose kind
 * changes. */
#include "bounds.clh"
#ifndef PAGE_SIZE
#define PAGE_SIZE 16
#endif
#define OWNED (BOUNDS_Q8 ? Q8_BLOCK : 16) /* channels; the last block may have fewer */
#define ITEMS ((HEAD_DIM + OWNED - 1) / OWNED)

/* The largest finite bound. */
#define MOST_BOUND (BOUNDS_Q8 ? Q8_MOST * 65504.0f : MOST)

/* tamis_bounds_kind */
#define MINMAX 0
#define MEAN   2

/* 16 channels of the keys of one (page, KV head). */
typedef struct page_keys {
    __global element *rows;
    ulong slot_stride, channel_stride;
    uint channel;
} page_keys;

static inline float16 load_key16(const page_keys *keys, uint slot) {
    const ulong channel_stride = keys->channel_stride;
    return row16(KEYS_SPREAD(row_of(keys->rows, PAGE_SIZE, slot, keys->slot_stride)),
                 keys->channel);
}

static inline void min_and_max(const page_keys *keys, float16 *lo, float16 *hi) {
    /* 1. both begin as the first key */
    float16 least = load_key16(keys, 0), most = least;
    int16 nan = isnan(least);
    /* 2. every other key widens them; NaN is recorded separately */
    for (uint slot = 1; slot < PAGE_SIZE; slot++) {
        const float16 x = load_key16(keys, slot);
        least = fmin(least, x);
        most = fmax(most, x);
        nan |= isnan(x);
    }
    *lo = select(least, (float16)(NAN), nan);
    *hi = select(most, (float16)(NAN), nan);
}

static inline float16 mean_of(const page_keys *keys) {
    float16 sum = load_key16(keys, 0);
    for (uint slot = 1; slot < PAGE_SIZE; slot++) sum += load_key16(keys, slot);
    return sum * (1.0f / PAGE_SIZE);
}

/* From the squares of differences to the mean, which are never below 0. */
static inline float16 std_of(const page_keys *keys, float16 mean) {
    float16 squares = 0.0f;
    for (uint slot = 0; slot < PAGE_SIZE; slot++) {
        const float16 off = load_key16(keys, slot) - mean;
        squares += off * off;
    }
    return sqrt(squares * (1.0f / PAGE_SIZE));
}

static ONCE void pair_of(const page_keys *keys, uint kind, float width, float16 *lo,
                         float16 *hi) {
    if (kind == MINMAX) {
        min_and_max(keys, lo, hi);
        return;
    }
    const float16 mean = mean_of(keys);
    *lo = *hi = mean;
    if (kind == MEAN) return;
    const float16 spread = width * std_of(keys, mean);
    const int16 finite = isfinite(mean) & isfinite(spread);
    *lo = select(mean - spread, fmax(mean - spread, -MOST_BOUND), finite);
    *hi = select(mean + spread, fmin(mean + spread, MOST_BOUND), finite);
}

#if BOUNDS_Q8
/* A block of a pair from `channel` on: `n` times 16 channels of lo and of hi with one scale. */
static inline void store_block(const float16 *lo, const float16 *hi, uint n, bool outward,
                               __global bound_element *pair, uint channel) {
    float most = 0.0f;
    for (uint i = 0; i < n; i++) most = larger(most, larger(q8_largest(lo[i]), q8_largest(hi[i])));
    const ushort scale = block_scale(most, Q8_MOST);
    const float d = q8_widen(scale);
    __global char *to = pair + channel;
    for (uint i = 0; i < n; i++, to += 16) {
        vstore16(convert_char16(outward ? q8_below16(lo[i], d) : q8_nearest16(lo[i], d)), 0, to);
        vstore16(convert_char16(outward ? q8_above16(hi[i], d) : q8_nearest16(hi[i], d)), 0,
                 to + HEAD_DIM);
    }
    ((__global ushort *)(pair + 2 * HEAD_DIM))[channel / Q8_BLOCK] = scale;
}
#endif

/* OWNED channels of a page's pair, from keys.channel on. */
static inline void put_bounds(page_keys keys, __global bound_element *pair, uint kind,
                              float width) {
    const uint channel = keys.channel, parts = min((uint)OWNED, HEAD_DIM - channel) / 16;
    float16 lo[OWNED / 16], hi[OWNED / 16];
    for (uint part = 0; part < parts; part++, keys.channel += 16)
        pair_of(&keys, kind, width, &lo[part], &hi[part]);
#if BOUNDS_Q8
    store_block(lo, hi, parts, kind != MEAN, pair, channel);
#else
    store16(lo[0], pair + channel);
    store16(hi[0], pair + HEAD_DIM + channel);
#endif
}

__kernel GROUP_OF(WG_SIZE) void bounds_of_pages(KV_PARAMS, BOUNDS_PARAMS, uint n, uint n_kv_heads,
                                                REF_PARAMS(const int, pages), uint kind,
                                                float width) {
    FOR_EACH_ITEM(i, n * n_kv_heads * ITEMS) {
        const uint channel = i % ITEMS * OWNED, head = i / ITEMS % n_kv_heads;
        const int page = pages[pages_offset + i / ITEMS / n_kv_heads];
        if (page < 0) continue;
        put_bounds((page_keys){kv + kv_offset + page * page_stride + head * kv_head_stride,
                               slot_stride, CHANNEL_STRIDE, channel},
                   bounds + bounds_offset + page * bounds_page_stride + head * bounds_head_stride,
                   kind, width);
    }
}
