/* SPDX-License-Identifier: Apache-2.0 */
/* observe: value(slot) = join over the rows of a span of (join over the group of f(w)),
 * w = exp(logit - lse).
 * contract: host/ops/; meaning: host/reference/observe.c.
 * Work split: a work-group owns WG_SIZE slots of one (item, KV head), each work-item one slot, and
 * goes through the rows of the span. A launch takes rows part_begin to part_end, since the length
 * of a work-item's loops is limited (by a GPU's watchdog; by llvmpipe, which ends a loop silently
 * after 65,535 iterations). observe_rows computes logits from keys, for ROWS rows of one query head
 * at a time, whose q are in local memory; observe_logits reads logits. */
#include "common.clh"
#include "logit.clh"
#include "observe.clh"
#ifndef MOST_DIM
#define MOST_DIM 256 /* channels of a head */
#endif
#define ROWS         8
#define FOR_EACH_ROW _Pragma("unroll") for (uint r = 0; r < ROWS; r++)

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

__kernel GROUP_OF(WG_SIZE) void observe_rows(KV_PARAMS, BATCH_PARAMS, OBSERVE_PARAMS,
                                             MATRIX_PARAMS(q), uint head_dim, LOGIT_PARAMS,
                                             PART_PARAMS) {
    __local float query[ROWS][MOST_DIM];
    __local float dots[ROWS][WG_SIZE], joined[ROWS][WG_SIZE]; /* of the work-item's slot */
    __local int scratch[WG_SIZE];
    const uint wi = (uint)get_local_id(0), head = (uint)get_group_id(1);
    const uint begin = (uint)get_group_id(0) % blocks * WG_SIZE, slot = begin + wi;
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
    q += q_offset + first * q_stride + (ulong)head * group * head_dim;
    const ulong owner = (ulong)item * n_kv_heads + head;
    const bool live = slot < n;
    __global element *keys = kv + kv_offset + head * kv_head_stride;
    if (live) keys += table[slot / page_size] * page_stride;
    const kv_row key = row_of(keys, page_size, slot % page_size, slot_stride);

    float value = 0.0f, lost = 0.0f;
    for (uint t = part_begin; t < end; t += ROWS) {
        const uint count = min(end - t, (uint)ROWS);
        uint most = 0, least = UINT_MAX; /* that rows see no slot from there on, or before */
        for (uint r = 0; r < count; r++) {
            const ulong at = (ulong)(t + r) * n_kv_heads;
            most = max(most, (uint)visible[at]);
            least = min(least, first_seen ? (uint)first_seen[at] : 0u);
            joined[r][wi] = 0.0f;
        }
        /* they see no slot of the group's */
        if ((most <= begin || least >= begin + WG_SIZE) && !tile) continue;
        for (uint g = 0; g < group; g++) {
            /* 1. the logits of the work-item's slot with one query head of each row */
            barrier(CLK_LOCAL_MEM_FENCE);
            for (uint r = 0; r < ROWS; r++)
                for (uint d = wi; d < head_dim; d += WG_SIZE)
                    query[r][d] = logit_scale * q[min(t + r, end - 1) * q_stride + g * head_dim + d];
            barrier(CLK_LOCAL_MEM_FENCE);
            if (!live) continue;
            float4 dot4[ROWS];
            FOR_EACH_ROW dot4[r] = 0.0f;
            for (uint c = 0; c < head_dim; c += 8) {
                const float8 k = row8(key, c);
                FOR_EACH_ROW {
                    const float8 x = vload8(0, query[r] + c);
                    dot4[r] = fma(x.lo, k.lo, fma(x.hi, k.hi, dot4[r]));
                }
            }
            FOR_EACH_ROW {
                const float2 pair = dot4[r].lo + dot4[r].hi;
                dots[r][wi] = pair.x + pair.y;
            }
            /* 2. their weights, 3. joined over the group */
            for (uint r = 0; r < count; r++) {
                const bool seen = sees(visible, first_seen, t + r, n_kv_heads, slot);
                const ulong list = owner * max_span * group + (t + r) * group + g;
                const float logit = logit_of(LOGIT_RULE, dots[r][wi]);
                const float base = base_of(lse[(t + r) * lse_stride + g]);
                const float w = seen ? exp(logit - base) : 0.0f;
                if (tile) tile[tile_offset + list * tile_stride + slot] = w;
                joined[r][wi] = join_heads(joined[r][wi], w, join, rule);
            }
        }
        /* 4. joined over these rows, then with those before */
        float sum = 0.0f;
        for (uint r = 0; r < count; r++)
            sum = join_rows(sum, rule == RULE_MEAN ? joined[r][wi] / group : joined[r][wi],
                            join);
        join_part(&value, &lost, sum, join);
    }
    if (!live || !values) return;
    values += values_offset + value_at(owner, value_stride, table, page_size, slot);
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
