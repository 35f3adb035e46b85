/* SPDX-License-Identifier: Apache-2.0 */
/* observe: value(slot) = join over the rows of a span of (join over the group of f(w)),
 * w = exp(logit - lse).
 * contract: host/ops/; meaning: host/reference/observe.c.
 * Work split: a block owns CU_OBSERVE_KEYS slots of one (item, KV head), whose keys it holds in
 * shared memory (but those of CU_ANY_DIM, which it reads again and again) while it goes through the
 * rows of the span, CU_OBSERVE_ROWS of one query head at a time: 8 rows per warp, 2 slots per warp
 * lane. With logits given a thread owns a slot. */
#include "common.cuh"
#include "logit.cuh"

#define OBSERVE_WARPS (CU_OBSERVE_THREADS / WARP)
#define WARP_ROWS     (CU_OBSERVE_ROWS / OBSERVE_WARPS)
#define SLOTS         (CU_OBSERVE_KEYS / WARP) /* of a lane */
enum { JOIN_SQUARES = 1, JOIN_MAX = 2 };       /* tamis_rows_join */
enum { RULE_MAX = 0, RULE_MEAN = 1 };          /* tamis_group_rule */

DEVICE float join_heads(const cu_observe_args &a, float joined, float w) {
    const float x = a.join == JOIN_SQUARES ? w * w : w;
    return a.rule == RULE_MAX ? larger(joined, x) : joined + x;
}
DEVICE float join_rows(const cu_observe_args &a, float joined, float x) {
    return a.join == JOIN_MAX ? larger(joined, x) : joined + x;
}
/* exp(logit - lse); a row that saw nothing gives 0. */
DEVICE float weight_of(float logit, float lse) {
    return expf(logit - (lse == -INFINITY ? INFINITY : lse));
}
/* The joined values of rows, and the rounding errors of the sum, so that the number of rows does
 * not matter. */
typedef struct running {
    float value, lost;
} running;

DEVICE void join_part(const cu_observe_args &a, running &all, float x) {
    const float sum = join_rows(a, all.value, x);
    if (a.join != JOIN_MAX) all.lost += x - (sum - all.value);
    all.value = sum;
}
/* The sum with its rounding errors added; an infinite sum stays as it is. */
DEVICE float whole_of(const running &all) {
    return is_finite(all.lost) ? all.value + all.lost : all.value;
}
/* The span of one (item, KV head). */
typedef struct span {
    uint32_t head, first, rows;
    uint64_t owner; /* item, KV head */
} span;

DEVICE span span_of(const cu_observe_args &a) {
    const uint32_t owner = blockIdx.x / a.blocks, heads = a.batch.n_kv_heads;
    const uint32_t item = owner / heads;
    return span{owner % heads, (uint32_t)a.spans[2 * item], (uint32_t)a.spans[2 * item + 1], owner};
}
DEVICE bool has_span(const cu_observe_args &a) {
    return blockIdx.x / a.blocks < (uint64_t)a.n_items * a.batch.n_kv_heads;
}
DEVICE uint32_t seen_by(const cu_observe_args &a, const span &s, uint32_t t) {
    return (uint32_t)a.batch.visible[(uint64_t)(s.first + t) * a.batch.n_kv_heads + s.head];
}
DEVICE uint32_t hidden_from(const cu_observe_args &a, const span &s, uint32_t t) {
    return first_seen(a.batch, (uint64_t)(s.first + t) * a.batch.n_kv_heads + s.head);
}
DEVICE float lse_of(const cu_observe_args &a, const span &s, uint32_t t, uint32_t g) {
    return a.lse[(s.first + t) * a.lse_stride + s.head * a.batch.group + g];
}
DEVICE void put_weight(const cu_observe_args &a, const span &s, uint32_t t, uint32_t g,
                       uint32_t slot, float w) {
    const uint64_t list = s.owner * a.max_span * a.batch.group + t * a.batch.group + g;
    a.tile[list * a.tile_stride + slot] = w;
}
DEVICE void put_value(const cu_observe_args &a, const span &s, uint32_t slot, float value) {
    uint64_t at = s.owner * a.value_stride + slot;
    if (a.value_stride == 0) {
        const int32_t page = lane_pages(a.batch, s.first, s.head)[slot >> a.kv.page_shift];
        at = ((uint64_t)page << a.kv.page_shift) + slot % a.kv.page_size;
    }
    a.values[at] = a.accumulate ? join_rows(a, a.values[at], value) : value;
}

/* The slot from which on no row of the span sees any, over a block. */
DEVICE uint32_t most_seen(const cu_observe_args &a, const span &s, uint32_t *shared) {
    block_sync();
    if (threadIdx.x == 0) *shared = 0;
    block_sync();
    for (uint32_t t = threadIdx.x; t < s.rows; t += blockDim.x)
        atomic_max(shared, seen_by(a, s, t));
    block_sync();
    return *shared;
}

/* Whether one of these rows sees one of the `slots` slots from `begin` on. */
DEVICE bool any_sees(const cu_observe_args &a, const span &s, uint32_t first, uint32_t end,
                     uint32_t begin, uint32_t slots, uint32_t *shared) {
    block_sync();
    if (threadIdx.x == 0) *shared = 0;
    block_sync();
    for (uint32_t t = first + threadIdx.x; t < end; t += blockDim.x)
        if (hidden_from(a, s, t) < begin + slots && begin < seen_by(a, s, t))
            atomic_max(shared, 1);
    block_sync();
    return *shared != 0;
}

typedef struct observe_shared {
    uint32_t most;
    float sums[OBSERVE_WARPS][CU_OBSERVE_KEYS]; /* of a warp's rows */
    running all[CU_OBSERVE_KEYS]; /* of all rows so far, each of one thread: registers are few */
} observe_shared;

/* The block's keys, 16 bytes at a time; what lies behind the last slot is left alone. */
template <typename T, uint32_t DIM>
DEVICE void stage_keys(const cu_observe_args &a, const span &s, uint32_t begin, uint32_t n,
                       unsigned char *keys) {
    constexpr uint32_t VECTORS = ROW_BYTES<T, DIM> / 16, STEP = DIM * sizeof(T) + 16;
    const int32_t *ids = lane_pages(a.batch, s.first, s.head);
    for (uint32_t i = threadIdx.x; i < CU_OBSERVE_KEYS * VECTORS; i += CU_OBSERVE_THREADS) {
        const uint32_t slot = begin + i / VECTORS, part = i % VECTORS;
        if (slot >= n) break;
        const T *row =
            key_of<T>(a.kv, ids[slot >> a.kv.page_shift], s.head, slot % a.kv.page_size).at;
        store_16(keys + i / VECTORS * STEP + part * 16,
                 load_16((const unsigned char *)row + part * 16));
    }
}

/* In shared memory a row has DIM elements' room and 16 bytes more: enough for what its blocks have
 * behind a page's rows. */
template <typename T, uint32_t DIM> DEVICE kv_row<T> staged_key(const unsigned char *row) {
    if constexpr (BLOCK_NUMBERS<T> > 0)
        return kv_row<T>{(const T *)row, (const f16 *)(row + ROW_BYTES<T, DIM>)};
    else
        return kv_row<T>{(const T *)row};
}
template <typename T, uint32_t DIM>
DEVICE void stage_numbers(const cu_observe_args &a, const span &s, uint32_t begin, uint32_t n,
                          unsigned char *keys) {
    constexpr uint32_t NUMBERS = CU_Q8_BLOCKS(DIM) * BLOCK_NUMBERS<T>, STEP = DIM + 16;
    static_assert(ROW_BYTES<T, DIM> + 2 * NUMBERS <= STEP, "a row and its numbers fit");
    const int32_t *ids = lane_pages(a.batch, s.first, s.head);
    for (uint32_t i = threadIdx.x; i < CU_OBSERVE_KEYS * NUMBERS; i += CU_OBSERVE_THREADS) {
        const uint32_t slot = begin + i / NUMBERS, number = i % NUMBERS;
        if (slot >= n) break;
        const kv_row<T> row =
            key_of<T>(a.kv, ids[slot >> a.kv.page_shift], s.head, slot % a.kv.page_size);
        unsigned char *to = keys + i / NUMBERS * STEP + ROW_BYTES<T, DIM>;
        ((f16 *)to)[number] = row.scales[number];
    }
}

/* The keys of the lane's slots, staged or, of CU_ANY_DIM, in the cache; past the end, the last one. */
template <typename T, uint32_t DIM>
DEVICE void keys_of(const cu_observe_args &a, const span &s, uint32_t begin, uint32_t n,
                    const unsigned char *keys, kv_row<T> (&rows)[SLOTS]) {
#pragma unroll
    for (uint32_t j = 0; j < SLOTS; j++) {
        const uint32_t i = lane_id() + j * WARP;
        if constexpr (DIM == CU_ANY_DIM) {
            const uint32_t slot = min(begin + i, n - 1);
            const int32_t *ids = lane_pages(a.batch, s.first, s.head);
            rows[j] = key_of<T>(a.kv, ids[slot >> a.kv.page_shift], s.head, slot % a.kv.page_size);
        } else {
            rows[j] = staged_key<T, DIM>(keys + i * (DIM * sizeof(T) + 16));
        }
    }
}

/* scale·q of one query head of the rows t to t + CU_OBSERVE_ROWS; 0 beyond the span. */
DEVICE void stage_queries(const cu_observe_args &a, const span &s, uint32_t dim, uint32_t t,
                          uint32_t g, float *queries) {
    const float *q = a.q.at + (uint64_t)(s.head * a.batch.group + g) * dim;
    for (uint32_t i = threadIdx.x; i < CU_OBSERVE_ROWS * dim; i += CU_OBSERVE_THREADS) {
        const uint32_t r = t + i / dim;
        queries[i] = r < s.rows ? a.logit.scale * q[(s.first + r) * a.q.stride + i % dim] : 0.0f;
    }
}

/* Dot products of the warp's rows and the lane's slots. */
template <typename T>
DEVICE void dot_rows(const kv_row<T> (&keys)[SLOTS], uint32_t dim, const float *queries,
                     float (&dot)[WARP_ROWS][SLOTS]) {
#pragma unroll
    for (uint32_t r = 0; r < WARP_ROWS; r++)
#pragma unroll
        for (uint32_t j = 0; j < SLOTS; j++)
            dot[r][j] = 0.0f;
#pragma unroll 2
    for (uint32_t c = 0; c < dim; c += 8) {
        float k[SLOTS][8];
#pragma unroll
        for (uint32_t j = 0; j < SLOTS; j++)
            load_8(keys[j], c, k[j]);
#pragma unroll
        for (uint32_t r = 0; r < WARP_ROWS; r++) {
            float x[8];
            load_8(queries + (warp_id() * WARP_ROWS + r) * dim + c, x);
#pragma unroll
            for (uint32_t j = 0; j < SLOTS; j++)
#pragma unroll
                for (uint32_t i = 0; i < 8; i++)
                    dot[r][j] = fmaf(x[i], k[j][i], dot[r][j]);
        }
    }
}

/* What the warps' rows give to the thread's slot, and those before. */
DEVICE void join_warps(const cu_observe_args &a, observe_shared &shared) {
    float sum = shared.sums[0][threadIdx.x];
    for (uint32_t w = 1; w < OBSERVE_WARPS; w++)
        sum = join_rows(a, sum, shared.sums[w][threadIdx.x]);
    join_part(a, shared.all[threadIdx.x], sum);
}

template <typename T, uint32_t DIM> DEVICE void observe_rows(const cu_observe_args &a) {
    SHARED(observe_shared, shared);
    DYNAMIC_SHARED(unsigned char, keys);
    constexpr bool STAGED = DIM != CU_ANY_DIM;
    const uint32_t dim = dim_of<DIM>(a.kv);
    float *queries = (float *)(keys + (STAGED ? CU_OBSERVE_KEYS_OF(DIM * sizeof(T)) : 0));
    if (!has_span(a)) return;
    const span s = span_of(a);
    const uint32_t begin = blockIdx.x % a.blocks * CU_OBSERVE_KEYS, group = a.batch.group;
    const uint32_t n = most_seen(a, s, &shared.most);
    if (begin >= n) return;
    if constexpr (STAGED) {
        if (a.tile || any_sees(a, s, 0, s.rows, begin, CU_OBSERVE_KEYS, &shared.most)) {
            stage_keys<T, DIM>(a, s, begin, n, keys);
            if constexpr (BLOCK_NUMBERS<T> > 0) stage_numbers<T, DIM>(a, s, begin, n, keys);
        }
    }
    kv_row<T> mine[SLOTS];
    keys_of<T, DIM>(a, s, begin, n, keys, mine);
    const bool owns = threadIdx.x < CU_OBSERVE_KEYS; /* slot begin + threadIdx.x */
    if (owns) shared.all[threadIdx.x] = running{0.0f, 0.0f};
    for (uint32_t base = 0; base < s.rows; base += CU_OBSERVE_ROWS) {
        const uint32_t end = s.rows - base < CU_OBSERVE_ROWS ? s.rows : base + CU_OBSERVE_ROWS;
        if (!a.tile && !any_sees(a, s, base, end, begin, CU_OBSERVE_KEYS, &shared.most)) continue;
        float joined[WARP_ROWS][SLOTS] = {};
        for (uint32_t g = 0; g < group; g++) {
            /* 1. logits with one query head of each row */
            float dot[WARP_ROWS][SLOTS];
            block_sync();
            stage_queries(a, s, dim, base, g, queries);
            block_sync();
            dot_rows(mine, dim, queries, dot);
            /* 2. their weights, 3. joined over the group */
#pragma unroll
            for (uint32_t r = 0; r < WARP_ROWS; r++) {
                const uint32_t t = base + warp_id() * WARP_ROWS + r;
                if (t >= end) continue;
                const uint32_t seen = seen_by(a, s, t), hidden = hidden_from(a, s, t);
                const float lse = lse_of(a, s, t, g);
#pragma unroll
                for (uint32_t j = 0; j < SLOTS; j++) {
                    const uint32_t slot = begin + lane_id() + j * WARP;
                    const bool sees = hidden <= slot && slot < seen;
                    const float w = sees ? weight_of(logit_of(a.logit, dot[r][j]), lse) : 0.0f;
                    if (a.tile && slot < n) put_weight(a, s, t, g, slot, w);
                    joined[r][j] = join_heads(a, joined[r][j], w);
                }
            }
        }
        /* 4. joined over the warp's rows, over the warps and with the rows before */
#pragma unroll
        for (uint32_t j = 0; j < SLOTS; j++) {
            float sum = 0.0f;
#pragma unroll
            for (uint32_t r = 0; r < WARP_ROWS; r++)
                sum = join_rows(a, sum,
                                a.rule == RULE_MEAN ? joined[r][j] / (float)group : joined[r][j]);
            shared.sums[warp_id()][lane_id() + j * WARP] = sum;
        }
        block_sync();
        if (owns) join_warps(a, shared);
    }
    const uint32_t slot = begin + threadIdx.x;
    if (a.values && owns && slot < n) put_value(a, s, slot, whole_of(shared.all[threadIdx.x]));
}

#define OBSERVE_ROWS(type, tag, dim)                                                               \
    KERNEL(observe_rows_##tag##_d##dim, CU_OBSERVE_THREADS, cu_observe_args) {                     \
        observe_rows<type, dim>(a);                                                                \
    }
FOR_EACH_ROW_TYPE_AND_DIM(OBSERVE_ROWS)

KERNEL(observe_logits, CU_OBSERVE_THREADS, cu_observe_args) {
    SHARED(uint32_t, most);
    if (!has_span(a)) return;
    const span s = span_of(a);
    const uint32_t slot = blockIdx.x % a.blocks * CU_OBSERVE_THREADS + threadIdx.x;
    const uint32_t group = a.batch.group;
    const uint64_t n_heads = (uint64_t)a.batch.n_kv_heads * group;
    if (slot >= most_seen(a, s, &most)) return;
    const float *logits = a.logits + (s.first * n_heads + s.head * group) * a.logit_stride + slot;
    running all = {0.0f, 0.0f};
    for (uint32_t base = 0; base < s.rows; base += CU_OBSERVE_ROWS) {
        const uint32_t end = s.rows - base < CU_OBSERVE_ROWS ? s.rows : base + CU_OBSERVE_ROWS;
        float sum = 0.0f;
        for (uint32_t t = base; t < end; t++) {
            const bool seen = hidden_from(a, s, t) <= slot && slot < seen_by(a, s, t);
            float joined = 0.0f;
            for (uint32_t g = 0; g < group; g++) {
                float w = 0.0f;
                if (seen)
                    w = weight_of(logits[(t * n_heads + g) * a.logit_stride], lse_of(a, s, t, g));
                if (a.tile) put_weight(a, s, t, g, slot, w);
                joined = join_heads(a, joined, w);
            }
            sum = join_rows(a, sum, a.rule == RULE_MEAN ? joined / (float)group : joined);
        }
        join_part(a, all, sum);
    }
    if (a.values) put_value(a, s, slot, whole_of(all));
}
