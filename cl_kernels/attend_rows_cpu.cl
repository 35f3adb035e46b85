/* SPDX-License-Identifier: Apache-2.0 */
/* attend on a CPU, tiles of rows: out = Σ softmax(scale·q·k)·v over the slots that each row sees.
 * contract: host/backend.h; meaning: host/reference/attend.c.
 * Work split: a work-item owns one (tile of rows, query head). A row is a lane of two vectors of 16,
 * so softmax needs no sums across lanes and no row touches another. A loop step is KEYS slots:
 *   1. keys to f32;  2. logits, 8 keys x 2 vectors at a time;  3. what is seen, maxima, weights;
 *   4. values to f32;  5. weighted sums, 8 channels x 2 vectors at a time.
 * No lists. The pages are read in one run, in order: one split, whatever their number. */
#include "cpu.clh"

#ifndef SOFT_CAP
#define SOFT_CAP 0 /* 1: logits pass through cap·tanh(logit/cap) */
#endif
#ifndef INTERVALS
#define INTERVALS 0 /* 1: rows have intervals of positions */
#endif
#define TILE_ROWS 32 /* TMS_TILE_ROWS */
#define HALVES 2     /* vectors of 16 rows */
#define KEYS 64
#define BLOCK 8

typedef struct tile_state {
    float16 q[HEAD_DIM][HALVES];   /* times scale */
    float16 sum[HEAD_DIM][HALVES]; /* Σ exp(logit - top)·v */
    float16 weight[KEYS][HALVES];  /* logits, then exp(logit - top) */
    float16 rows[KEYS][VECS];      /* keys, then values, as f32 */
    float16 total[HALVES];         /* Σ exp(logit - top); NaN once a logit was not finite */
    float16 top[HALVES], old[HALVES];
    int16 visible[HALVES], low[HALVES], high[HALVES];
    int position[KEYS];
} tile_state;

/* 1, 4. Rows of slots first to first + n as f32, zeros up to a multiple of BLOCK. Returns 0 in lanes,
 * or NaN if an element is not finite. */
static inline float16 load_rows(tile_state *s, __global const element *rows,
                                ulong page_stride, ulong slot_stride, __global const int *table,
                                int first, int n) {
    float16 check = 0.0f;
    for (int i = 0; i < n; i++) {
        const int slot = first + i;
        __global const element *row =
            rows + table[slot / PAGE_SIZE] * page_stride + slot % PAGE_SIZE * slot_stride;
        UNROLL for (int j = 0; j < VECS; j++) {
            const float16 x = widen16(row + 16 * j);
            check = fma(x, (float16)(0.0f), check);
            s->rows[i][j] = x;
        }
    }
    for (int i = n; i % BLOCK; i++)
        for (int j = 0; j < VECS; j++) s->rows[i][j] = 0.0f;
    return check;
}

/* 2. */
static inline void tile_logits(tile_state *s, int n) {
    for (int first = 0; first < n; first += BLOCK) {
        const float *key = (const float *)s->rows[first];
        float16 dot[BLOCK][HALVES];
        UNROLL for (int i = 0; i < BLOCK; i++)
            UNROLL for (int b = 0; b < HALVES; b++) dot[i][b] = 0.0f;
        for (int d = 0; d < HEAD_DIM; d++)
            UNROLL for (int i = 0; i < BLOCK; i++) {
                const float16 x = key[i * HEAD_DIM + d];
                UNROLL for (int b = 0; b < HALVES; b++) dot[i][b] = fma(x, s->q[d][b], dot[i][b]);
            }
        UNROLL for (int i = 0; i < BLOCK; i++)
            UNROLL for (int b = 0; b < HALVES; b++) s->weight[first + i][b] = dot[i][b];
    }
}

/* Which rows see the slot, as -1 or 0. */
static inline int16 sees(const tile_state *s, int first, int i, int b) {
    int16 seen = s->visible[b] > first + i;
#if INTERVALS
    seen &= (s->low[b] <= s->position[i]) & (s->high[b] >= s->position[i]);
#endif
    return seen;
}

/* 3. */
static inline void tile_softmax(tile_state *s, int first, int n, float soft_cap) {
    for (int b = 0; b < HALVES; b++) {
        float16 top = s->top[b], total = 0.0f;
        for (int i = 0; i < n; i++) {
            const int16 seen = sees(s, first, i, b);
            float16 x = s->weight[i][b];
#if SOFT_CAP
            x = soft_cap * tanh(x / soft_cap);
#endif
            total = fma(seen ? x : (float16)(0.0f), (float16)(0.0f), total);
            x = seen ? x : (float16)(-INFINITY);
            top = x > top ? x : top;
            s->weight[i][b] = x;
        }
        /* Where nothing was seen so far, any finite reference keeps the weights at 0. */
        const float16 base = top == -INFINITY ? (float16)(0.0f) : top;
        const float16 old = exp16(s->top[b] - base);
        total = fma(s->total[b], old, total);
        for (int i = 0; i < n; i++) {
            const float16 x = exp16(s->weight[i][b] - base);
            total += x;
            s->weight[i][b] = x;
        }
        s->total[b] = total;
        s->old[b] = old;
        s->top[b] = top;
    }
}

/* 5. */
static inline void tile_values(tile_state *s, int n) {
    for (int d = 0; d < HEAD_DIM; d += BLOCK) {
        const float *value = (const float *)s->rows + d;
        float16 sum[BLOCK][HALVES];
        UNROLL for (int i = 0; i < BLOCK; i++)
            UNROLL for (int b = 0; b < HALVES; b++) sum[i][b] = 0.0f;
        for (int key = 0; key < n; key++)
            UNROLL for (int i = 0; i < BLOCK; i++) {
                const float16 x = value[key * HEAD_DIM + i];
                UNROLL for (int b = 0; b < HALVES; b++)
                    sum[i][b] = fma(x, s->weight[key][b], sum[i][b]);
            }
        UNROLL for (int i = 0; i < BLOCK; i++)
            UNROLL for (int b = 0; b < HALVES; b++)
                s->sum[d + i][b] = fma(s->sum[d + i][b], s->old[b], sum[i][b]);
    }
}

/* 5 for values that are not all finite: a weight of 0 would spoil rows that do not see them. */
static inline void tile_values_guarded(tile_state *s, int first, int n) {
    for (int d = 0; d < HEAD_DIM; d++)
        for (int b = 0; b < HALVES; b++) {
            float16 sum = s->sum[d][b] * s->old[b];
            for (int key = 0; key < n; key++) {
                const float16 x = ((const float *)s->rows[key])[d];
                sum = sees(s, first, key, b) ? fma(x, s->weight[key][b], sum) : sum;
            }
            s->sum[d][b] = sum;
        }
}

/* positions and intervals may be NULL; singles: tiles of one row are served too. */
__kernel GROUP_OF(1) void attend_tiles(
    KV_PARAMS, BATCH_PARAMS, MATRIX_PARAMS(q), REF_PARAMS(const int, tiles), uint n_tiles,
    uint singles, REF_PARAMS(const int, positions), REF_PARAMS(const int, intervals), float scale,
    float soft_cap, MATRIX_PARAMS(out), REF_PARAMS(float, lse)) {
    tile_state s;
    const uint n_heads = n_kv_heads * GROUP, query_head = (uint)get_group_id(0);
    const uint tile = (uint)get_group_id(1), head = query_head / GROUP;
    if (tile >= n_tiles)
        return;
    const int row0 = tiles[tiles_offset + 2 * tile], rows = tiles[tiles_offset + 2 * tile + 1];
    if (rows == 1 && !singles)
        return;
    int last = 0;
    for (int r = 0; r < TILE_ROWS; r++) {
        const int row = row0 + min(r, rows - 1);
        const int seen = r < rows ? visible[visible_offset + row * n_kv_heads + head] : 0;
        __global const float *from = q + q_offset + row * q_stride + (ulong)query_head * HEAD_DIM;
        ((int *)s.visible)[r] = seen;
        last = max(last, seen);
#if INTERVALS
        ((int *)s.low)[r] = intervals[intervals_offset + 2 * row];
        ((int *)s.high)[r] = intervals[intervals_offset + 2 * row + 1];
#endif
        for (int d = 0; d < HEAD_DIM; d++)
            ((float *)s.q[d])[r] = r < rows ? scale * from[d] : 0.0f;
    }
    for (int b = 0; b < HALVES; b++) {
        s.total[b] = 0.0f;
        s.top[b] = -INFINITY;
        for (int d = 0; d < HEAD_DIM; d++) s.sum[d][b] = 0.0f;
    }

    table += table_offset + row_seq[row_seq_offset + row0] * seq_stride + head * head_stride;
    kv += kv_offset + head * kv_head_stride;
    for (int first = 0; first < last; first += KEYS) {
        const int n = min(KEYS, last - first);
#if INTERVALS
        for (int i = 0; i < n; i++) {
            const int slot = first + i, id = table[slot / PAGE_SIZE];
            s.position[i] =
                positions ? positions[positions_offset + (ulong)id * PAGE_SIZE + slot % PAGE_SIZE]
                          : slot;
        }
#endif
        load_rows(&s, kv, page_stride, slot_stride, table, first, n);
        tile_logits(&s, n);
        tile_softmax(&s, first, n, soft_cap);
        const float16 check =
            load_rows(&s, kv + value_offset, page_stride, slot_stride, table, first, n);
        if (sum16(check) == 0.0f)
            tile_values(&s, n);
        else
            tile_values_guarded(&s, first, n);
    }

    for (int b = 0; b < HALVES; b++)
        for (int d = 0; d < HEAD_DIM; d++)
            s.sum[d][b] = s.total[b] == 0.0f ? (float16)(0.0f) : s.sum[d][b] / s.total[b];
    for (int r = 0; r < rows; r++) {
        __global float *to = out + out_offset + (row0 + r) * out_stride + (ulong)query_head * HEAD_DIM;
        for (int d = 0; d < HEAD_DIM; d++) to[d] = ((const float *)s.sum[d])[r];
        const float total = ((const float *)s.total)[r];
        if (lse)
            lse[lse_offset + (ulong)(row0 + r) * n_heads + query_head] =
                total == 0.0f ? -INFINITY : ((const float *)s.top)[r] + log(total);
    }
}
