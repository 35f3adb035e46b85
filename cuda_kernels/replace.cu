/* SPDX-License-Identifier: Apache-2.0 */
/* replace: the slot of a lane into which a row is written.
 * contract: host/ops/; meaning: host/reference/replace.c.
 * Work split: a block owns one (row, KV head); a thread takes every CU_REPLACE_THREADS-th slot. */
#include "common.cuh"

/* The numbers by which slots are compared: `order` is that of scores and comes first (STALE below
 * all, RECENT above all but NEVER), `life` is the number by which the score is divided. */
struct token {
    uint32_t order, life;
    int32_t position;
    uint32_t slot;
};
#define STALE  0u
#define RECENT 0xfffffffeu
#define NEVER  0xffffffffu

#define AT_ONCE 4u /* slots that a thread reads before it compares them */

struct replace_shared {
    token lowest[CU_REPLACE_THREADS / WARP];
};

/* Compares x·2^shift with y: -1, 0 or 1 if it is smaller, equal or larger. x > 0, y < 2^63. */
DEVICE int compare_scaled(uint64_t x, uint64_t y, uint32_t shift) {
    const uint64_t high = shift < 64 ? y >> shift : 0;
    if (x != high) return x < high ? -1 : 1;
    return high << shift != y ? -1 : 0;
}

DEVICE uint32_t mantissa_of(uint32_t magnitude) {
    return (magnitude & 0x7fffffu) | (magnitude >> 23 ? 0x800000u : 0);
}

/* Magnitudes (bits of an f32) over lives, as integers: no quotient is rounded. */
DEVICE int compare_quotients(uint32_t x, uint32_t x_life, uint32_t y, uint32_t y_life) {
    const int shift = (int)max(x >> 23, 1u) - (int)max(y >> 23, 1u);
    const uint64_t a = (uint64_t)mantissa_of(x) * y_life, b = (uint64_t)mantissa_of(y) * x_life;
    return shift >= 0 ? compare_scaled(a, b, (uint32_t)shift)
                      : -compare_scaled(b, a, (uint32_t)-shift);
}

/* Whether it is the order of a score that changes when it is divided by a life: neither 0 nor
 * infinite. */
DEVICE bool divides(uint32_t order) {
    return order > 0x00800000u && order <= 0xff800000u && order != 0x80000001u;
}

DEVICE int compare_scores(const token &x, const token &y) {
    const bool positive = x.order > 0x80000000u;
    if (x.life == y.life || !divides(x.order) || !divides(y.order) ||
        positive != (y.order > 0x80000000u))
        return x.order == y.order ? 0 : x.order < y.order ? -1 : 1;
    return positive
               ? compare_quotients(x.order - 0x80000001u, x.life, y.order - 0x80000001u, y.life)
               : compare_quotients(0x80000000u - y.order, y.life, 0x80000000u - x.order, x.life);
}

DEVICE bool is_lower(const token &x, const token &y) {
    const int order = compare_scores(x, y);
    if (order) return order < 0;
    return x.position != y.position ? x.position < y.position : x.slot < y.slot;
}

DEVICE token token_of(const cu_replace_args &a, int32_t position, float score, uint32_t slot,
                      int32_t now) {
    if (position >= now) return {STALE, 1, position, slot};
    if (position < 0 || (uint32_t)position < a.sinks) return {NEVER, 1, 0, 0};
    const uint32_t life = (uint32_t)(now - position);
    if (life <= a.recent) return {RECENT, 1, position, slot};
    return {1 + (a.scores ? ordered_key(score) : 0), a.lifetime ? life : 1, position, slot};
}

/* The lowest of a warp's; every lane gets it. */
DEVICE token warp_lowest(token lowest) {
#pragma unroll
    for (uint32_t mask = WARP / 2; mask > 0; mask /= 2) {
        const token other = {shuffle_xor(lowest.order, mask), shuffle_xor(lowest.life, mask),
                             shuffle_xor(lowest.position, mask), shuffle_xor(lowest.slot, mask)};
        if (is_lower(other, lowest)) lowest = other;
    }
    return lowest;
}

KERNEL(replace_slots, CU_REPLACE_THREADS, cu_replace_args) {
    SHARED(replace_shared, shared);
    const uint32_t owner = blockIdx.x, heads = a.batch.n_kv_heads;
    if (owner >= (uint64_t)a.batch.n_rows * heads) return;
    if (!a.turns[owner]) {
        if (threadIdx.x == 0) a.changed[owner] = -1;
        return;
    }
    const uint32_t row = owner / heads, visible = (uint32_t)a.batch.visible[owner];
    const int32_t *pages = lane_pages(a.batch, row, owner % heads);
    const int32_t now = a.positions[row];

    /* 1. the lowest of this thread's slots, 2. of the warp's */
    token lowest = {NEVER, 1, 0, 0};
    for (uint32_t first = threadIdx.x; first < visible; first += AT_ONCE * CU_REPLACE_THREADS) {
        int32_t position[AT_ONCE];
        float score[AT_ONCE];
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            const uint32_t slot = min(first + i * CU_REPLACE_THREADS, visible - 1);
            const uint64_t page = (uint32_t)pages[slot / a.page_size];
            position[i] = a.plane[page * a.page_size + slot % a.page_size];
            score[i] = a.scores ? a.scores[page * a.page_size + slot % a.page_size] : 0.0f;
        }
#pragma unroll
        for (uint32_t i = 0; i < AT_ONCE; i++) { /* the last slot again changes nothing */
            const uint32_t slot = min(first + i * CU_REPLACE_THREADS, visible - 1);
            const token t = token_of(a, position[i], score[i], slot, now);
            if (is_lower(t, lowest)) lowest = t;
        }
    }
    lowest = warp_lowest(lowest);
    if (lane_id() == 0) shared.lowest[warp_id()] = lowest;
    block_sync();
    if (threadIdx.x > 0) return;

    /* 3. of the block's */
    for (uint32_t w = 1; w < CU_REPLACE_THREADS / WARP; w++)
        if (is_lower(shared.lowest[w], lowest)) lowest = shared.lowest[w];
    const int32_t slot = lowest.order == NEVER ? (int32_t)visible - 1 : (int32_t)lowest.slot;
    const uint32_t page = (uint32_t)slot / a.page_size;
    a.slots[owner] = slot;
    a.changed[owner] = slot >= 0 && page < visible / a.page_size ? pages[page] : -1;
}
