/* SPDX-License-Identifier: Apache-2.0 */
/* observe on a CPU: value(slot) = join over the rows of a span of (join over the group of f(w)),
 * w = exp(logit - lse).
 * contract: host/ops/; meaning: host/reference/observe.c.
 * Work split: an item of the queue is RUN slots of one (item, KV head), KEYS at a time. A slot is
 * an element of HALVES vectors, so that joins need no sums across elements. A block of keys is
 * transposed once and used for all rows of the span, ROWS rows of one query head at a time:
 *   1. logits;  2. weights, 0 where a row does not see;  3. joined over the group;  4. and rows.
 * With LOGITS step 1 is a load. */
#include "logit.clh"
#include "weigh_cpu.clh"

#ifndef LOGITS
#define LOGITS 0
#endif
#ifndef RUN
#define RUN 128
#endif
#define HALVES 2 /* vectors of 16 slots */
#define KEYS   (16 * HALVES)
#define ROWS   4
#define PART   32 /* rows that are summed before their sum is added to the total */
/* Vectors of sums at a time: 4 x 2 registers in either case. */
#if WIDE
#define STEP 2
#else
#define STEP 1
#endif
#define FOR_HALVES(b) UNROLL for (int b = 0; b < HALVES; b++)
#define FOR_BLOCK(r, i)                                                                            \
    UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int i = 0; i < STEP; i++)

/* The span of one (item, KV head). Row t, head g of the group: source at t*row_stride +
 * g*head_stride, its q or its logits. */
typedef struct span {
    __global const int *visible, *hidden, *ids; /* hidden: NULL if nothing is */
    __global const float *lse, *source;
    __global float *tile; /* of the first list, or NULL */
    ulong row_stride, head_stride, lse_stride, tile_stride;
    int rows, visible_stride;
    uint group, join, rule;
    logit_rule logit;
} span;

/* KEYS slots. */
typedef struct key_block {
#if !LOGITS
    float16 keys[HEAD_DIM][HALVES]; /* times scale */
#endif
    float16 weight[ROWS][HALVES]; /* logits, then exp(logit - lse), of one query head */
    float16 joined[ROWS][HALVES]; /* over the group */
    float16 part[HALVES], value[HALVES]; /* joined over PART rows, over all before those */
    float16 lost[HALVES];                /* rounding errors of the sums in `value` */
    int first, slots;
} key_block;

/* A row of KEYS floats of which the first `slots` may be touched. */
static inline void load_part(__global const float *from, int slots, float16 *to) {
    if (slots >= KEYS)
        FOR_HALVES(b) to[b] = load_f32(from + 16 * b);
    else
        for (int i = 0; i < slots; i++) ((float *)to)[i] = from[i];
}
static inline void store_part(const float16 *from, int slots, __global float *to) {
    if (slots >= KEYS)
        FOR_HALVES(b) store_f32(from[b], to + 16 * b);
    else
        for (int i = 0; i < slots; i++) to[i] = ((const float *)from)[i];
}

#if LOGITS
/* 1. */
static inline void block_logits(key_block *k, const span *s, int t, int count, uint g) {
    for (int r = 0; r < count; r++)
        load_part(s->source + (ulong)(t + r) * s->row_stride + g * s->head_stride + k->first,
                  k->slots, k->weight[r]);
}
#else
/* scale·k, one slot per element; zeros behind the last. */
static ONCE void turn_keys(key_block *k, const span *s, __global element *rows,
                           ulong page_stride, ulong slot_stride, uint page_size, float scale) {
    for (int i = 0; i < KEYS; i++) {
        float16 key[VECS];
        const uint slot = k->first + min(i, k->slots - 1);
        widen_row(row_of(rows + s->ids[slot / page_size] * page_stride, page_size,
                         slot % page_size, slot_stride),
                  false, key);
        UNROLL for (int j = 0; j < VECS; j++)
            key[j] = i < k->slots ? scale * key[j] : (float16)(0.0f);
        for (int d = 0; d < HEAD_DIM; d++) ((float *)k->keys[d])[i] = ((const float *)key)[d];
    }
}

/* 1. Rows from `count` on repeat the last. A logit that is not finite becomes NaN. */
static inline void block_logits(key_block *k, const span *s, int t, int count, uint g) {
    __global const float *q[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++)
        q[r] = s->source + (ulong)(t + min(r, count - 1)) * s->row_stride + g * s->head_stride;
    for (int b = 0; b < HALVES; b += STEP) {
        float16 dot[ROWS][STEP];
        FOR_BLOCK(r, i) dot[r][i] = 0.0f;
        for (int d = 0; d < HEAD_DIM; d++)
            FOR_BLOCK(r, i) dot[r][i] = fma((float16)(q[r][d]), k->keys[d][b + i], dot[r][i]);
        FOR_BLOCK(r, i) {
            const float16 x = capped16(s->logit, dot[r][i]);
            k->weight[r][b + i] = fma(x, (float16)(0.0f), x);
        }
    }
}
#endif

/* The first slot that row t of the span sees. */
static inline int first_of(const span *s, int t) {
    return s->hidden ? s->hidden[t * s->visible_stride] : 0;
}

/* 2. Weights of one query head of `count` rows, 3. joined over the group. */
static inline void block_weights(key_block *k, const span *s, int t, int count, uint g) {
    for (int r = 0; r < count; r++) {
        const float base = base_of(s->lse[(ulong)(t + r) * s->lse_stride + g]);
        const int seen = s->visible[(t + r) * s->visible_stride] - k->first;
        const int hidden = first_of(s, t + r) - k->first;
        FOR_HALVES(b) {
            const float16 w =
                weight_of(k->weight[r][b], base, hidden - 16 * b, seen - 16 * b);
            const float16 x = s->join == JOIN_SQUARES ? w * w : w;
            k->weight[r][b] = w;
            k->joined[r][b] = join_group(k->joined[r][b], x, s->rule);
        }
        if (s->tile)
            store_part(k->weight[r], k->slots,
                       s->tile + ((ulong)(t + r) * s->group + g) * s->tile_stride + k->first);
    }
}

static inline float16 join_rows(float16 joined, float16 x, uint join) {
    return join == JOIN_MAX ? larger16(joined, x) : joined + x;
}

static inline void join_part(key_block *k, uint join) {
    FOR_HALVES(b) {
        const float16 sum = join_rows(k->value[b], k->part[b], join);
        if (join != JOIN_MAX) k->lost[b] += k->part[b] - (sum - k->value[b]);
        k->value[b] = sum;
        k->part[b] = 0.0f;
    }
}

/* The values of the block's slots over the whole span. An infinite sum stays as it is. */
static ONCE void block_values(key_block *k, const span *s) {
    FOR_HALVES(b) k->value[b] = k->lost[b] = k->part[b] = 0.0f;
    for (int t = 0; t < s->rows; t += ROWS) {
        const int count = min(ROWS, s->rows - t);
        int most = 0, least = INT_MAX; /* that rows see no slot from there on, or before */
        for (int r = 0; r < count; r++) {
            most = max(most, s->visible[(t + r) * s->visible_stride]);
            least = min(least, first_of(s, t + r));
        }
        if ((most > k->first && least < k->first + k->slots) || s->tile) {
            UNROLL for (int r = 0; r < ROWS; r++) FOR_HALVES(b) k->joined[r][b] = 0.0f;
            for (uint g = 0; g < s->group; g++) {
                block_logits(k, s, t, count, g);
                block_weights(k, s, t, count, g);
            }
            /* 4. */
            const float share = s->rule == RULE_MEAN ? s->group : 1.0f;
            for (int r = 0; r < count; r++)
                FOR_HALVES(b)
                    k->part[b] = join_rows(k->part[b], k->joined[r][b] / share, s->join);
        }
        if ((t + ROWS) % PART == 0 || t + ROWS >= s->rows) join_part(k, s->join);
    }
    FOR_HALVES(b) k->value[b] += isfinite(k->lost[b]) ? k->lost[b] : (float16)(0.0f);
}

static ONCE void put_values(const key_block *k, const span *s, __global float *values,
                            ulong value_stride, int page_size, bool accumulate) {
    for (int i = 0; i < k->slots; i++) {
        const int slot = k->first + i;
        __global float *to =
            values + (value_stride
                          ? slot
                          : (ulong)s->ids[slot / page_size] * page_size + slot % page_size);
        const float x = ((const float *)k->value)[i], old = accumulate ? *to : 0.0f;
        *to = s->join != JOIN_MAX ? old + x : isnan(old) || old > x ? old : x;
    }
}

__kernel ONE_ITEM void observe_run(
#if LOGITS
    BATCH_PARAMS, OBSERVE_PARAMS, REF_PARAMS(const float, source), ulong row_stride,
    ulong source_stride,
#else
    KV_PARAMS, BATCH_PARAMS, OBSERVE_PARAMS, REF_PARAMS(const float, source), ulong row_stride,
    ulong source_stride, LOGIT_PARAMS,
#endif
    uint runs, QUEUE_PARAMS) {
    key_block k;
    FOR_EACH_QUEUED(queued) {
        const uint owner = queued / runs, head = owner % n_kv_heads, item = owner / n_kv_heads;
        const int first = spans[spans_offset + 2 * item];
        const span s = {
            .visible = visible + visible_offset + (ulong)first * n_kv_heads + head,
            .hidden = first_seen ? first_seen + first_seen_offset + (ulong)first * n_kv_heads + head
                                 : first_seen,
            .ids = table + table_offset + row_seq[row_seq_offset + first] * seq_stride +
                   head * head_stride,
            .lse = lse + lse_offset + first * lse_stride + head * group,
            .source = source + source_offset + first * row_stride + head * group * source_stride,
            .tile = tile ? tile + tile_offset + (ulong)owner * max_span * group * tile_stride
                         : tile,
            .row_stride = row_stride,
            .head_stride = source_stride,
            .lse_stride = lse_stride,
            .tile_stride = tile_stride,
            .rows = spans[spans_offset + 2 * item + 1],
            .visible_stride = (int)n_kv_heads,
            .group = group,
            .join = join,
            .rule = rule,
#if !LOGITS
            .logit = LOGIT_RULE,
#endif
        };
        int begin = INT_MAX, end = 0; /* what the rows see between them */
        for (int t = 0; t < s.rows; t++) {
            begin = min(begin, first_of(&s, t));
            end = max(end, s.visible[t * s.visible_stride]);
        }
        end = min(end, (int)(queued % runs + 1) * RUN);
        for (k.first = (int)(queued % runs) * RUN; k.first < end; k.first += KEYS) {
            k.slots = min(KEYS, end - k.first);
#if !LOGITS
            if (s.tile || begin < k.first + k.slots)
                turn_keys(&k, &s, kv + kv_offset + head * kv_head_stride, page_stride,
                          slot_stride, page_size, logit_scale);
#endif
            block_values(&k, &s);
            if (values)
                put_values(&k, &s, values + values_offset + owner * value_stride, value_stride,
                           (int)page_size, accumulate);
        }
    }
    leave_queue(queue, 0);
}
