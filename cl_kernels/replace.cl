/* SPDX-License-Identifier: Apache-2.0 */
/* replace: the slot of a lane into which a row is written.
 * contract: host/ops/; meaning: host/reference/replace.c.
 * Work split: a work-group owns one (row, KV head); a work-item takes every WG_SIZE-th slot. */
#include "common.clh"

/* The numbers by which slots are compared: x orders scores and comes first (STALE below all, RECENT
 * above all but NEVER), y is the life by which the score is divided, z the position, w the slot. */
typedef uint4 token;
#define STALE  0u
#define RECENT 0xfffffffeu
#define NEVER  0xffffffffu

/* Compares x·2^shift with y: -1, 0 or 1 if it is smaller, equal or larger. x > 0, y < 2^63. */
static inline int compare_scaled(ulong x, ulong y, uint shift) {
    const ulong high = shift < 64 ? y >> shift : 0;
    if (x != high) return x < high ? -1 : 1;
    return high << shift != y ? -1 : 0;
}

/* Magnitudes (bits of an f32) over lives, as integers: no quotient is rounded. */
static inline int compare_quotients(uint a, uint a_life, uint b, uint b_life) {
    const int a_exponent = max(a >> 23, 1u), b_exponent = max(b >> 23, 1u);
    const ulong x = (ulong)((a & 0x7fffffu) | (a >> 23 ? 0x800000u : 0)) * b_life;
    const ulong y = (ulong)((b & 0x7fffffu) | (b >> 23 ? 0x800000u : 0)) * a_life;
    const int shift = a_exponent - b_exponent;
    return shift >= 0 ? compare_scaled(x, y, shift) : -compare_scaled(y, x, -shift);
}

/* Whether x is the order of a score that changes when it is divided by a life: neither 0 nor
 * infinite. */
static inline bool divides(uint x) {
    return x > 0x00800000u && x <= 0xff800000u && x != 0x80000001u;
}

static inline int compare_scores(token a, token b) {
    const bool positive = a.x > 0x80000000u;
    if (a.y == b.y || !divides(a.x) || !divides(b.x) || positive != (b.x > 0x80000000u))
        return a.x == b.x ? 0 : a.x < b.x ? -1 : 1;
    return positive ? compare_quotients(a.x - 0x80000001u, a.y, b.x - 0x80000001u, b.y)
                    : compare_quotients(0x80000000u - b.x, b.y, 0x80000000u - a.x, a.y);
}

static inline bool is_lower(token a, token b) {
    const int order = compare_scores(a, b);
    if (order) return order < 0;
    return a.z != b.z ? (int)a.z < (int)b.z : a.w < b.w;
}

__kernel GROUP_OF(WG_SIZE) void replace_slots(BATCH_PARAMS, uint page_size, uint sinks, uint recent,
                                              uint lifetime, REF_PARAMS(const int, plane),
                                              REF_PARAMS(const float, scores),
                                              REF_PARAMS(const int, turns), REF_PARAMS(int, slots),
                                              REF_PARAMS(int, changed),
                                              REF_PARAMS(const int, positions)) {
    __local token lowest_of[WG_SIZE];
    const uint wi = (uint)get_local_id(0), owner = (uint)get_group_id(0);
    if (owner >= n_rows * n_kv_heads) return;
    if (!turns[turns_offset + owner]) {
        if (wi == 0) changed[changed_offset + owner] = -1;
        return;
    }
    const uint row = owner / n_kv_heads, head = owner % n_kv_heads;
    const uint seen = (uint)visible[visible_offset + owner];
    const uint page_shift = 31 - clz(page_size);
    const int now = positions[positions_offset + row];
    __global const int *pages =
        table + table_offset + row_seq[row_seq_offset + row] * seq_stride + head * head_stride;

    /* 1. the lowest of this work-item's slots */
    token lowest = (token)(NEVER, 1, 0, 0);
    for (uint slot = wi; slot < seen; slot += WG_SIZE) {
        const ulong at =
            ((ulong)pages[slot >> page_shift] << page_shift) | (slot & (page_size - 1));
        const int position = plane[plane_offset + at];
        token t = (token)(STALE, 1, as_uint(position), slot);
        if (position < now) {
            if (position < 0 || (uint)position < sinks) continue;
            const uint life = (uint)(now - position);
            if (life <= recent)
                t.x = RECENT;
            else
                t.x = 1 + (scores ? ordered_key(scores[scores_offset + at]) : 0);
            if (lifetime) t.y = life;
        }
        if (is_lower(t, lowest)) lowest = t;
    }

    /* 2. the lowest of all */
    lowest_of[wi] = lowest;
    for (uint half_way = WG_SIZE / 2; half_way > 0; half_way /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (wi < half_way && is_lower(lowest_of[wi + half_way], lowest_of[wi]))
            lowest_of[wi] = lowest_of[wi + half_way];
    }
    if (wi > 0) return;
    lowest = lowest_of[0];
    const int slot = lowest.x == NEVER ? (int)seen - 1 : (int)lowest.w;
    const bool full = slot >= 0 && slot >> page_shift < seen >> page_shift;
    slots[slots_offset + owner] = slot;
    changed[changed_offset + owner] = full ? pages[slot >> page_shift] : -1;
}
