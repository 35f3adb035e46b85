/* SPDX-License-Identifier: Apache-2.0 */
/* observe: value(slot) = join over the rows of a span of (join over the group of f(w)),
 * w = exp(logit - lse).
 * contract: host/ops/; meaning: host/reference/observe.c.
 * Work split: a work-group owns some slots of one (item, KV head) and goes through the rows of the
 * span. A launch takes rows part_begin to part_end, since the length of a work-item's loops is limited
 * (by a GPU's watchdog; by llvmpipe, which ends a loop silently after 65,535 iterations).
 * observe_rows computes logits from keys: it owns KEYS slots, whose keys it reads once. TEAM
 * neighbouring work-items hold 8 channels each of a key, TURNS times, and share its logits with ROWS
 * rows of one query head by local memory; then each work-item weighs PAIRS of (row, key).
 * observe_logits reads logits: a work-item owns a slot. */
#include "common.clh"
#include "logit.clh"
#include "observe.clh"
#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif
#define ROWS   8
#define TURNS  2
#define TEAM   (HEAD_DIM / 8 / TURNS)
#define SIDE   (WG_SIZE / TEAM) /* keys that are held side by side */
#define HELD   2                /* keys of a work-item */
#define KEYS   (HELD * SIDE)
#define PAIRS  ((ROWS * KEYS + WG_SIZE - 1) / WG_SIZE)
#define STRIDE (TEAM + 1) /* shares of a logit begin at different banks of local memory */

#define PART_PARAMS uint part_begin, uint part_end, uint blocks

static inline float join_heads(float joined, float w, uint join, uint rule) {
    const float x = join == JOIN_SQUARES ? w * w : w;
    return rule == RULE_MAX ? larger(joined, x) : joined + x;
}
static inline float join_rows(float joined, float x, uint join) {
    return join == JOIN_MAX ? larger(joined, x) : joined + x;
}

/* Joins the values of some rows; *lost accumulates the rounding errors of the sum, so that the
 * number of rows does not matter. */
static inline void join_part(float *value, float *lost, float x, uint join) {
    const float sum = join_rows(*value, x, join);
    if (join != JOIN_MAX) *lost += x - (sum - *value);
    *value = sum;
}
/* The sum with its rounding errors added; an infinite sum stays as it is. */
static inline float whole_of(float value, float lost) {
    return isfinite(lost) ? value + lost : value;
}

/* The largest of `rows` entries of visible, `stride` apart. */
static inline uint largest(__global const int *visible, uint rows, uint stride,
                           __local int *scratch) {
    const uint wi = (uint)get_local_id(0);
    int most = 0;
    for (uint t = 0; t < rows; t += WG_SIZE)
        if (t + wi < rows) most = max(most, visible[(ulong)(t + wi) * stride]);
    scratch[wi] = most;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = 0; i < WG_SIZE; i++)
        most = max(most, scratch[i]);
    return (uint)most;
}

/* Whether row t of a span, whose entries of visible and of first_seen are `stride` apart, sees a slot.
 * hidden: NULL if nothing is hidden. */
static inline bool sees(__global const int *visible, __global const int *hidden, uint t,
                        uint stride, uint slot) {
    const ulong at = (ulong)t * stride;
    return slot < (uint)visible[at] && (!hidden || slot >= (uint)hidden[at]);
}

/* Where a slot's value lies; ids are the lane's pages. */
static inline ulong value_at(ulong lane, ulong stride, __global const int *ids, uint page_size,
                             uint slot) {
    return stride ? lane * stride + slot
                  : (ulong)ids[slot / page_size] * page_size + slot % page_size;
}

/* The work-item's channels of the keys that it holds; in the place of slots from `n` on the last one, so
 * that loads need not wait for a condition. */
static inline void hold_keys(float8 key[HELD][TURNS], __global element *keys,
                             __global const int *table, ulong page_stride, ulong slot_stride,
                             ulong channel_stride, uint page_size, uint begin, uint n) {
    const uint side = (uint)get_local_id(0) / TEAM, mate = (uint)get_local_id(0) % TEAM;
    for (uint h = 0; h < HELD; h++) {
        const uint slot = min(begin + h * SIDE + side, n - 1);
        const kv_row row = KEYS_SPREAD(row_of(keys + table[slot / page_size] * page_stride,
                                              page_size, slot % page_size, slot_stride));
        for (uint t = 0; t < TURNS; t++)
            key[h][t] = row8(row, (t * TEAM + mate) * 8);
    }
}

/* The work-item's shares of the logits of its keys with ROWS rows. */
static inline void share_logits(float8 key[HELD][TURNS], __local const float *query,
                                __local float *shares) {
    const uint side = (uint)get_local_id(0) / TEAM, mate = (uint)get_local_id(0) % TEAM;
    for (uint r = 0; r < ROWS; r++) {
        float4 dot4[HELD];
        for (uint h = 0; h < HELD; h++)
            dot4[h] = 0.0f;
        for (uint t = 0; t < TURNS; t++) {
            const float8 x = vload8(0, query + r * HEAD_DIM + (t * TEAM + mate) * 8);
            for (uint h = 0; h < HELD; h++)
                dot4[h] = fma(x.lo, key[h][t].lo, fma(x.hi, key[h][t].hi, dot4[h]));
        }
        if (side < SIDE)
            for (uint h = 0; h < HELD; h++) {
                const float2 pair = dot4[h].lo + dot4[h].hi;
                shares[(r * KEYS + h * SIDE + side) * STRIDE + mate] = pair.x + pair.y;
            }
    }
}

__kernel GROUP_OF(WG_SIZE) void observe_rows(KV_PARAMS, BATCH_PARAMS, OBSERVE_PARAMS,
                                             MATRIX_PARAMS(q), LOGIT_PARAMS, PART_PARAMS) {
    __local float query[ROWS * HEAD_DIM], shares[ROWS * KEYS * STRIDE], of_rows[ROWS][KEYS];
    __local int scratch[WG_SIZE];
    const uint wi = (uint)get_local_id(0), head = (uint)get_group_id(1);
    const uint begin = (uint)get_group_id(0) % blocks * KEYS;
    const uint item = (uint)get_group_id(0) / blocks;
    if (item >= n_spans) return;
    const uint first = spans[spans_offset + 2 * item], rows = spans[spans_offset + 2 * item + 1];
    visible += visible_offset + (ulong)first * n_kv_heads + head;
    if (first_seen) first_seen += first_seen_offset + (ulong)first * n_kv_heads + head;
    const uint n = largest(visible, rows, n_kv_heads, scratch);
    const uint end = min(rows, part_end); /* what is written follows from all rows */
    if (begin >= n || part_begin >= end) return;
    table += table_offset + row_seq[row_seq_offset + first] * seq_stride + head * head_stride;
    lse += lse_offset + first * lse_stride + head * group;
    q += q_offset + first * q_stride + (ulong)head * group * HEAD_DIM;
    const ulong owner = (ulong)item * n_kv_heads + head;
    float8 key[HELD][TURNS];
    hold_keys(key, kv + kv_offset + head * kv_head_stride, table, page_stride, slot_stride,
              CHANNEL_STRIDE, page_size, begin, n);

    float value = 0.0f, lost = 0.0f; /* of slot begin + wi, where wi < KEYS */
    for (uint t = part_begin; t < end; t += ROWS) {
        const uint count = min(end - t, (uint)ROWS);
        uint most = 0, least = UINT_MAX; /* that rows see no slot from there on, or before */
        for (uint r = 0; r < count; r++) {
            const ulong at = (ulong)(t + r) * n_kv_heads;
            most = max(most, (uint)visible[at]);
            least = min(least, first_seen ? (uint)first_seen[at] : 0u);
        }
        /* they see no slot of the group's */
        if ((most <= begin || least >= begin + KEYS) && !tile) continue;
        float joined[PAIRS];
        for (uint i = 0; i < PAIRS; i++)
            joined[i] = 0.0f;
        for (uint g = 0; g < group; g++) {
            /* 1. the logits of the keys with one query head of each row, in shares */
            for (uint d = wi; d < ROWS * HEAD_DIM; d += WG_SIZE)
                query[d] = logit_scale * q[min(t + d / HEAD_DIM, end - 1) * q_stride +
                                           g * HEAD_DIM + d % HEAD_DIM];
            barrier(CLK_LOCAL_MEM_FENCE);
            share_logits(key, query, shares);
            barrier(CLK_LOCAL_MEM_FENCE);
            /* 2. their weights, 3. joined over the group */
            for (uint i = 0; i < PAIRS; i++) {
                const uint pair = i * WG_SIZE + wi, r = pair / KEYS, slot = begin + pair % KEYS;
                if (r >= count || slot >= n) continue;
                float dot = 0.0f;
                for (uint m = 0; m < TEAM; m++)
                    dot += shares[pair * STRIDE + m];
                const bool seen = sees(visible, first_seen, t + r, n_kv_heads, slot);
                const ulong list = owner * max_span * group + (t + r) * group + g;
                const float base = base_of(lse[(t + r) * lse_stride + g]);
                const float w = seen ? exp(logit_of(LOGIT_RULE, dot) - base) : 0.0f;
                if (tile) tile[tile_offset + list * tile_stride + slot] = w;
                joined[i] = join_heads(joined[i], w, join, rule);
            }
        }
        /* 4. joined over these rows, then with those before */
        for (uint i = 0; i < PAIRS; i++)
            if (i * WG_SIZE + wi < ROWS * KEYS)
                of_rows[(i * WG_SIZE + wi) / KEYS][(i * WG_SIZE + wi) % KEYS] =
                    rule == RULE_MEAN ? joined[i] / group : joined[i];
        barrier(CLK_LOCAL_MEM_FENCE);
        if (wi < KEYS) {
            float sum = 0.0f;
            for (uint r = 0; r < count; r++)
                sum = join_rows(sum, of_rows[r][wi], join);
            join_part(&value, &lost, sum, join);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (wi >= KEYS || begin + wi >= n || !values) return;
    values += values_offset + value_at(owner, value_stride, table, page_size, begin + wi);
    value = whole_of(value, lost);
    *values = accumulate || part_begin ? join_rows(*values, value, join) : value;
}

__kernel GROUP_OF(WG_SIZE) void observe_logits(BATCH_PARAMS, OBSERVE_PARAMS,
                                               REF_PARAMS(const float, logits), ulong logit_stride,
                                               PART_PARAMS) {
    __local int scratch[WG_SIZE];
    const uint head = (uint)get_group_id(1), n_heads = n_kv_heads * group;
    const uint slot = (uint)get_group_id(0) % blocks * WG_SIZE + (uint)get_local_id(0);
    const uint item = (uint)get_group_id(0) / blocks;
    if (item >= n_spans) return;
    const uint first = spans[spans_offset + 2 * item], rows = spans[spans_offset + 2 * item + 1];
    visible += visible_offset + (ulong)first * n_kv_heads + head;
    if (first_seen) first_seen += first_seen_offset + (ulong)first * n_kv_heads + head;
    const uint n = largest(visible, rows, n_kv_heads, scratch), end = min(rows, part_end);
    if (part_begin >= end) return;
    table += table_offset + row_seq[row_seq_offset + first] * seq_stride + head * head_stride;
    lse += lse_offset + first * lse_stride + head * group;
    logits += logits_offset + ((ulong)first * n_heads + head * group) * logit_stride + slot;
    const ulong owner = (ulong)item * n_kv_heads + head;
    float value = 0.0f, lost = 0.0f;
    for (uint t = part_begin; t < end && slot < n; t += ROWS) {
        float sum = 0.0f;
        for (uint r = t; r < min(end, t + ROWS); r++) {
            const bool seen = sees(visible, first_seen, r, n_kv_heads, slot);
            float joined = 0.0f;
            for (uint g = 0; g < group; g++) {
                const float logit = seen ? logits[((ulong)r * n_heads + g) * logit_stride] : 0.0f;
                const float w = seen ? exp(logit - base_of(lse[r * lse_stride + g])) : 0.0f;
                const ulong list = owner * max_span * group + r * group + g;
                if (tile) tile[tile_offset + list * tile_stride + slot] = w;
                joined = join_heads(joined, w, join, rule);
            }
            sum = join_rows(sum, rule == RULE_MEAN ? joined / group : joined, join);
        }
        join_part(&value, &lost, sum, join);
    }
    if (slot >= n || !values) return;
    values += values_offset + value_at(owner, value_stride, table, page_size, slot);
    value = whole_of(value, lost);
    *values = accumulate || part_begin ? join_rows(*values, value, join) : value;
}
