/* SPDX-License-Identifier: Apache-2.0 */
/* attend on a CPU, tiles of rows: out = Σ softmax(scale·q·k)·v over the slots that each row sees.
 * contract: host/ops/; meaning: host/reference/attend.c.
 * Work split: an item of the queue is one (tile of rows, query head, split of SPLIT_PAGES pages). A
 * row is an element of two vectors of 16, so softmax needs no sums across elements. A loop step is
 * KEYS slots:
 *   1. keys to f32;  2. logits, 4 keys x 2 vectors at a time;  3. what is seen, maxima, weights;
 *   4. values to f32;  5. weighted sums, 8 channels x 2 vectors at a time.
 * Every sum is formed in the order of attend_cpu.clh (segments of SEGMENT_PAGES, tiles of 64 slots,
 * 16 partial sums of a dot product and of the weights, values slot by slot of all pages), so a row
 * has the same bits in either form.
 * With several splits `out` and `lse` are their states, which merge joins. No lists. */
#include "cpu.clh"
#include "logit.clh"

#ifndef SPLIT_PAGES
#define SPLIT_PAGES 512 /* TMS_CL_SPLIT_PAGES */
#endif
#ifndef HIDING
#define HIDING 0 /* 1: first slots may be hidden from rows */
#endif
#define TILE_ROWS 32 /* TMS_TILE_ROWS */
#define HALVES 2     /* vectors of 16 rows */
#define KEYS (4 * PAGE_SIZE)
#define SEGMENT (16 * PAGE_SIZE) /* slots of TMS_CL_SEGMENT_PAGES */
#define BLOCK 4    /* keys of step 2 */
#define CHANNELS 8 /* of step 5 */
#define FOR_BLOCK(i, b)                                                                            \
    UNROLL for (int i = 0; i < BLOCK; i++) UNROLL for (int b = 0; b < HALVES; b++)

/* sum, total and top are of the segment, whole, whole_total and whole_top of those before it. */
typedef struct tile_state {
    float16 q[HEAD_DIM][HALVES];      /* times scale */
    float16 sum[HEAD_DIM][HALVES];    /* Σ exp(logit - top)·v */
    float16 whole[HEAD_DIM][HALVES];
    float16 weight[KEYS][HALVES];     /* logits, then exp(logit - top) */
    float16 rows[KEYS][VECS];         /* keys, then values, as f32 */
    float16 total[PAGE_SIZE][HALVES]; /* Σ exp(logit - top) of every 16th slot; NaN once a logit was
                                         not finite */
    float16 whole_total[PAGE_SIZE][HALVES];
    float16 top[HALVES], old[HALVES], whole_top[HALVES];
    int16 visible[HALVES], hidden[HALVES]; /* first slots that a row sees, and does not see */
} tile_state;

/* 1, 4. Rows of slots first to first + n as f32, of V if `value`, zeros up to a multiple of BLOCK.
 * Returns 0; some element is NaN if an element of the rows is not finite. */
static ONCE float16 load_rows(tile_state *s, page_rows rows, __global const int *table, int first,
                              int n, bool value) {
    float16 check = 0.0f;
    for (int i = 0; i < n; i++) {
        const int slot = first + i;
        const kv_row row =
            either_row_of(rows.rows + table[slot / PAGE_SIZE] * rows.page_stride, PAGE_SIZE,
                          slot % PAGE_SIZE, rows.slot_stride, value);
        widen_row(row, value, s->rows[i]);
        UNROLL for (int j = 0; j < VECS; j++)
            check = fma(s->rows[i][j], (float16)(0.0f), check);
    }
    for (int i = n; i % BLOCK; i++)
        for (int j = 0; j < VECS; j++) s->rows[i][j] = 0.0f;
    return check;
}

/* Dot products of BLOCK keys with all rows over every 16th channel, from `key` and `q` on. */
static inline ALWAYS void partial_dots(const float *key, const float16 (*q)[HALVES],
                                       float16 dot[BLOCK][HALVES]) {
    FOR_BLOCK(i, b) dot[i][b] = 0.0f;
    UNROLL for (int j = 0; j < VECS; j++)
        FOR_BLOCK(i, b)
            dot[i][b] = fma((float16)(key[i * HEAD_DIM + 16 * j]), q[16 * j][b], dot[i][b]);
}

/* 2. The 16 partial sums are added as by fold4 and fold16: those 8 apart, 4 apart, 2 apart, 1. */
static ONCE void tile_logits(tile_state *s, int n) {
    for (int first = 0; first < n; first += BLOCK) {
        float16 quarter[4][BLOCK][HALVES];
        for (int c = 0; c < 4; c++) {
            const float *key = (const float *)s->rows[first] + c;
            float16 x[BLOCK][HALVES], y[BLOCK][HALVES], z[BLOCK][HALVES];
            partial_dots(key, s->q + c, x);
            partial_dots(key + 8, s->q + c + 8, y);
            FOR_BLOCK(i, b) x[i][b] += y[i][b];
            partial_dots(key + 4, s->q + c + 4, y);
            partial_dots(key + 12, s->q + c + 12, z);
            FOR_BLOCK(i, b) quarter[c][i][b] = x[i][b] + (y[i][b] + z[i][b]);
        }
        FOR_BLOCK(i, b)
            s->weight[first + i][b] =
                (quarter[0][i][b] + quarter[2][i][b]) + (quarter[1][i][b] + quarter[3][i][b]);
    }
}

/* Which rows see the slot, as -1 or 0. */
static inline int16 sees(const tile_state *s, int first, int i, int b) {
    int16 seen = s->visible[b] > first + i;
#if HIDING
    seen &= s->hidden[b] <= first + i;
#endif
    return seen;
}

/* 3. */
static ONCE void tile_softmax(tile_state *s, int first, int n, logit_rule rule) {
    for (int b = 0; b < HALVES; b++) {
        float16 top = s->top[b], check = 0.0f;
        for (int i = 0; i < n; i++) {
            const int16 seen = sees(s, first, i, b);
            float16 x = capped16(rule, s->weight[i][b]);
            check = fma(seen ? x : (float16)(0.0f), (float16)(0.0f), check);
            x = seen ? x : (float16)(-INFINITY);
            top = x > top ? x : top;
            s->weight[i][b] = x;
        }
        /* Where nothing was seen so far, any finite reference keeps the weights at 0. */
        const float16 base = top == -INFINITY ? (float16)(0.0f) : top;
        const float16 old = exp16(s->top[b] - base);
        for (int i = 0; i < PAGE_SIZE; i++) s->total[i][b] = fma(s->total[i][b], old, check);
        for (int i = 0; i < n; i++) {
            const float16 x = exp16(s->weight[i][b] - base);
            s->total[i % PAGE_SIZE][b] += x;
            s->weight[i][b] = x;
        }
        s->old[b] = old;
        s->top[b] = top;
    }
    for (int d = 0; d < HEAD_DIM; d++)
        for (int b = 0; b < HALVES; b++) s->sum[d][b] *= s->old[b];
}

/* Every 16th of the first n slots, then those after them. */
#define FOR_EACH_SLOT(key, n)                                                                      \
    for (int at = 0; at < PAGE_SIZE; at++)                                                         \
        for (int key = at; key < (n); key += PAGE_SIZE)

/* 5. */
static ONCE void tile_values(tile_state *s, int n) {
    for (int d = 0; d < HEAD_DIM; d += CHANNELS) {
        float16 sum[CHANNELS][HALVES];
        UNROLL for (int i = 0; i < CHANNELS; i++)
            UNROLL for (int b = 0; b < HALVES; b++) sum[i][b] = 0.0f;
        FOR_EACH_SLOT(key, n) {
            const float *value = (const float *)s->rows[key] + d;
            UNROLL for (int i = 0; i < CHANNELS; i++)
                UNROLL for (int b = 0; b < HALVES; b++)
                    sum[i][b] = fma((float16)(value[i]), s->weight[key][b], sum[i][b]);
        }
        UNROLL for (int i = 0; i < CHANNELS; i++)
            UNROLL for (int b = 0; b < HALVES; b++) s->sum[d + i][b] += sum[i][b];
    }
}

/* The same for values that are not all finite: multiplied by a weight of 0 they would give NaN in
 * the rows that do not see them. `first`: the slot at which the tile starts. */
static ONCE void tile_values_guarded(tile_state *s, int first, int n) {
    for (int d = 0; d < HEAD_DIM; d++)
        for (int b = 0; b < HALVES; b++) {
            float16 sum = 0.0f;
            FOR_EACH_SLOT(key, n) {
                const float16 x = ((const float *)s->rows[key])[d];
                sum = sees(s, first, key, b) ? fma(x, s->weight[key][b], sum) : sum;
            }
            s->sum[d][b] += sum;
        }
}

/* What the rows are and may see; past the tile's rows, nothing. Returns the slots [s0, s1) outside of
 * which none of them sees any. hidden: first_seen where it is, which is `stride` a row as visible. */
static ONCE int2 tile_begin(tile_state *s, int rows, __global const float *q, ulong q_stride,
                             float scale, __global const int *visible,
                             __global const int *hidden, uint stride) {
    int2 within = (int2)(INT_MAX, 0);
    for (int r = 0; r < TILE_ROWS; r++) {
        const bool live = r < rows;
        const int seen = live ? visible[(ulong)r * stride] : 0;
        int2 own = (int2)(0, seen);
        ((int *)s->visible)[r] = seen;
#if HIDING
        own.s0 = live ? hidden[(ulong)r * stride] : 0;
        ((int *)s->hidden)[r] = own.s0;
#endif
        if (live) within = (int2)(min(within.s0, own.s0), max(within.s1, own.s1));
        for (int d = 0; d < HEAD_DIM; d++)
            ((float *)s->q[d])[r] = live ? scale * q[r * q_stride + d] : 0.0f;
    }
    for (int b = 0; b < HALVES; b++) {
        s->whole_top[b] = -INFINITY;
        for (int i = 0; i < PAGE_SIZE; i++) s->whole_total[i][b] = 0.0f;
        for (int d = 0; d < HEAD_DIM; d++) s->whole[d][b] = 0.0f;
    }
    return within;
}

static ONCE void segment_begin(tile_state *s) {
    for (int b = 0; b < HALVES; b++) {
        s->top[b] = -INFINITY;
        for (int i = 0; i < PAGE_SIZE; i++) s->total[i][b] = 0.0f;
        for (int d = 0; d < HEAD_DIM; d++) s->sum[d][b] = 0.0f;
    }
}

/* As attend_join of attend_cpu.clh. */
static ONCE void segment_join(tile_state *s) {
    for (int b = 0; b < HALVES; b++) {
        const float16 top = s->top[b], before = s->whole_top[b];
        const float16 highest = top > before ? top : before;
        const float16 base = highest == -INFINITY ? (float16)(0.0f) : highest;
        const float16 old = exp16(before - base), new = exp16(top - base);
        for (int i = 0; i < PAGE_SIZE; i++)
            s->whole_total[i][b] = fma(s->total[i][b], new, s->whole_total[i][b] * old);
        for (int d = 0; d < HEAD_DIM; d++) {
            const float16 joined = fma(s->sum[d][b], new, s->whole[d][b] * old);
            s->whole[d][b] = top == -INFINITY ? s->whole[d][b] : joined;
        }
        s->whole_top[b] = highest;
    }
}

/* The state of the tile's rows; lse may be NULL. */
static ONCE void tile_end(tile_state *s, int rows, __global float *out, ulong out_stride,
                          __global float *lse, uint lse_stride) {
    for (int r = 0; r < rows; r++) {
        float16 totals;
        for (int i = 0; i < PAGE_SIZE; i++)
            ((float *)&totals)[i] = ((const float *)s->whole_total[i])[r];
        const float total = sum16(totals);
        for (int d = 0; d < HEAD_DIM; d++)
            out[r * out_stride + d] =
                total == 0.0f ? 0.0f : ((const float *)s->whole[d])[r] / total;
        if (lse)
            lse[(ulong)r * lse_stride] =
                total == 0.0f ? -INFINITY : ((const float *)s->whole_top)[r] + log(total);
    }
}

typedef struct tiles_numbers {
    KV_NUMBERS;
    BATCH_NUMBERS;
    MATRIX_NUMBERS(q);
    ulong tiles_at;
    uint n_tiles;
    logit_rule logit;
    uint n_splits;
    MATRIX_NUMBERS(out);
    ulong out_split_stride, lse_at, lse_split_stride;
    QUEUE_NUMBERS;
} tiles_numbers;

/* Tiles of one row are left to attend_cpu.cl. */
__kernel ONE_ITEM void attend_tiles(
    KV_MEMORY BATCH_MEMORY MEMORY(float, q) MEMORY(const int, tiles) MEMORY(float, out)
    MEMORY(float, lse) MEMORY(int, queue) const tiles_numbers arg) {
    const uint n_items = arg.n_items, n_kv_heads = arg.n_kv_heads, n_splits = arg.n_splits;
    const uint n_heads = n_kv_heads * GROUP;
    tile_state s;
    OPEN_NUMBERED_KV();
    OPEN_BATCH();
    OPEN(float, q);
    OPEN(const int, tiles);
    OPEN(float, out);
    OPEN(float, lse);
    OPEN(int, queue);
    FOR_EACH_QUEUED(item) {
        const uint query_head = item % n_heads, head = query_head / GROUP;
        const uint split = item / n_heads % n_splits, tile = item / n_heads / n_splits;
        const uint row = tiles[2 * tile];
        const int rows = tiles[2 * tile + 1];
        if (rows == 1) continue;
        const ulong owner = (ulong)row * n_kv_heads + head;
        const int2 within = tile_begin(
            &s, rows, q + row * arg.q_stride + (ulong)query_head * HEAD_DIM, arg.q_stride,
            arg.logit.scale, visible + owner, first_seen ? first_seen + owner : first_seen,
            n_kv_heads);
        const int begin = split * SPLIT_PAGES * PAGE_SIZE;
        const int end = min(within.s1, begin + SPLIT_PAGES * PAGE_SIZE);
        const int start = max(begin, within.s0 / KEYS * KEYS);

        __global const int *ids = IDS_OF(row, head);
        const page_rows keys = {kv + head * arg.kv_head_stride, arg.page_stride, arg.slot_stride};
        const page_rows values = VALUES_BESIDE(keys, head);
        for (int first = start; first < end; first += KEYS) {
            const int n = min(KEYS, end - first);
            if (first == start || (first - begin) % SEGMENT == 0) segment_begin(&s);
            load_rows(&s, keys, ids, first, n, false);
            tile_logits(&s, n);
            tile_softmax(&s, first, n, arg.logit);
            const float16 check = load_rows(&s, values, ids, first, n, true);
            if (sum16(check) == 0.0f)
                tile_values(&s, n);
            else
                tile_values_guarded(&s, first, n);
            if ((first + KEYS - begin) % SEGMENT == 0 || first + KEYS >= end) segment_join(&s);
        }
        const ulong first_lse = split * arg.lse_split_stride + (ulong)row * n_heads + query_head;
        tile_end(&s, rows,
                 out + split * arg.out_split_stride + row * arg.out_stride +
                     (ulong)query_head * HEAD_DIM,
                 arg.out_stride, lse ? lse + first_lse : lse, n_heads);
    }
    leave_queue(queue, 0);
}
