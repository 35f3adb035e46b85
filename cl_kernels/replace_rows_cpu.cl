/* SPDX-License-Identifier: Apache-2.0 */
/* replace_rows on a CPU: rows take the slots of evicted tokens, bounds of their pages follow.
 * contract: host/ops/; meaning: host/reference/replace.c, rows.c, bounds.c.
 * Work split: an item of the queue is a (row, KV head), or a query head of a row that is to be
 * rotated. Whatever a lane's row needs is done by the core that has its item, step after step. */
#include "bounds.cl"
#include "cpu.clh"
#include "replace.clh"
#include "rows.clh"

/* A lane and its row. */
typedef struct staying_lane {
    __global const int *pages, *positions;
    __global const float *scores; /* NULL: none */
    uint seen, sinks, recent, lifetime;
    int now; /* the row's position */
} staying_lane;

/* The tokens of 16 neighbouring slots, as token_of gives one; lives are 1. */
typedef struct tokens {
    uint16 order;
    int16 position, slot;
} tokens;

static inline tokens tokens_at(const staying_lane *l, ulong at, uint slot) {
    const int16 position = as_int16(load_f32((__global const float *)l->positions + at));
    const uint16 order = l->scores ? 1 + ordered_keys(load_f32(l->scores + at)) : (uint16)(1);
    const int16 kept = (position < 0) | (as_uint16(position) < l->sinks);
    const uint16 young = as_uint16(l->now - position) <= l->recent ? (uint16)(RECENT) : order;
    const uint16 there = kept ? (uint16)(NEVER) : young;
    return (tokens){position >= l->now ? (uint16)(STALE) : there, position, LANE16 + (int)slot};
}

/* The lowest token of each 16th slot, then of all, where lives do not count. */
static ONCE token lowest_token(const staying_lane *l) {
    tokens lowest = {NEVER, INT_MAX, INT_MAX};
    for (uint slot = 0; slot < l->seen; slot += 16) {
        const tokens t = tokens_at(
            l, (ulong)l->pages[slot / PAGE_SIZE] * PAGE_SIZE + slot % PAGE_SIZE, slot);
        const int16 first = (t.order < lowest.order) |
                            ((t.order == lowest.order) & (t.position < lowest.position));
        const int16 lower = first & (t.slot < (int)l->seen);
        lowest.order = lower ? t.order : lowest.order;
        lowest.position = lower ? t.position : lowest.position;
        lowest.slot = lower ? t.slot : lowest.slot;
    }
    token all = NO_TOKEN;
    for (int i = 0; i < 16; i++) {
        const token t = {((const uint *)&lowest.order)[i], 1,
                         ((const uint *)&lowest.position)[i], ((const uint *)&lowest.slot)[i]};
        if (is_lower(t, all)) all = t;
    }
    return all;
}

/* The same where they do. */
static ONCE token lowest_by_life(const staying_lane *l) {
    token lowest = NO_TOKEN;
    for (uint slot = 0; slot < l->seen; slot++) {
        const ulong at = (ulong)l->pages[slot / PAGE_SIZE] * PAGE_SIZE + slot % PAGE_SIZE;
        const token t = token_of(l->positions[at], l->scores ? l->scores[at] : NAN, slot, l->now,
                                 l->sinks, l->recent, l->lifetime);
        if (is_lower(t, lowest)) lowest = t;
    }
    return lowest;
}

/* by_score: whether victims are found by the plane of scores, which may be there for others;
 * as_is: rows of DTYPE, else f32; n_pairs: 0 without a rotation. */
typedef struct replace_numbers {
    WRITE_NUMBERS;
    uint as_is;
    SLOT_NUMBERS;
    ROTATION_NUMBERS;
    uint sinks, recent, by_score, lifetime;
    ulong staying_at, changed_at;
    BOUNDS_NUMBERS;
    uint kind;
    float width;
    QUEUE_NUMBERS;
} replace_numbers;

__kernel ONE_ITEM void replace_rows(
    WRITE_MEMORY(uchar, int) ROTATION_MEMORY MEMORY(const int, staying) MEMORY(int, changed)
    MEMORY(bound_element, bounds) MEMORY(int, queue) const replace_numbers arg) {
    const uint n_items = arg.n_items, n_kv_heads = arg.n_kv_heads;
    const uint lanes = arg.n_rows * n_kv_heads;
    OPEN_WRITE(uchar, int);
    OPEN_ROTATION();
    OPEN(const int, staying);
    OPEN(int, changed);
    OPEN(bound_element, bounds);
    OPEN(int, queue);
    FOR_EACH_QUEUED(i) {
        const bool is_k = i < lanes;
        const uint heads = is_k ? n_kv_heads : arg.n_heads, of = is_k ? i : i - lanes;
        const uint row = of / heads, head = of % heads;
        /* 1. the head is normalised and rotated */
        __global float *at = is_k ? (__global float *)k + row * arg.k_stride : q + row * arg.q_stride;
        at += head * HEAD_DIM;
        __global const float *norm = is_k ? k_norm : q_norm;
        if (arg.n_pairs && norm) norm_head(at, norm, arg.eps);
        if (arg.n_pairs) turn_head(at, table_of_turns, turns[row], arg.n_pairs, arg.adjacent);
        if (!is_k) continue;
        /* 2. the victim's slot is the row's */
        const uint seen = (uint)visible[i];
        const staying_lane lane = {.pages = IDS_OF(row, head),
                                   .positions = position_plane,
                                   .scores = arg.by_score ? score_plane : 0,
                                   .seen = seen,
                                   .sinks = arg.sinks,
                                   .recent = arg.recent,
                                   .lifetime = arg.lifetime,
                                   .now = positions[row]};
        const bool stays = staying[i] != 0;
        if (stays)
            slots[i] =
                victim_slot(arg.lifetime ? lowest_by_life(&lane) : lowest_token(&lane), seen);
        const int slot = slots[i];
        changed[i] = -1;
        if (slot < 0) continue;
        /* 3. key and value go there, with what the planes hold */
        const int page = lane.pages[slot / PAGE_SIZE];
        __global element *to = kv + page * arg.page_stride + head * arg.kv_head_stride;
        for (uint channel = 0; channel < HEAD_DIM; channel += PUT)
            put_part(k, row * arg.k_stride + head * HEAD_DIM, v,
                     row * arg.v_stride + head * HEAD_DIM, arg.as_is, KEY_OF(to, slot),
                     VALUE_OF(to, slot), channel);
        const ulong in_plane = (ulong)page * PAGE_SIZE + slot % PAGE_SIZE;
        position_plane[in_plane] = lane.now;
        if (score_plane) score_plane[in_plane] = 0.0f;
        /* 4. bounds of a full page */
        if (!stays || (uint)slot / PAGE_SIZE >= seen / PAGE_SIZE) continue;
        changed[i] = page;
        for (uint channel = 0; channel < HEAD_DIM; channel += OWNED)
            put_bounds((page_keys){to, arg.slot_stride, 1, channel},
                       bounds + page * arg.bounds_page_stride + head * arg.bounds_head_stride,
                       arg.kind, arg.width);
    }
    leave_queue(queue, 0);
}
