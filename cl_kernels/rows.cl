/* SPDX-License-Identifier: Apache-2.0 */
/* write_rows: K and V rows into slots of lanes; read_rows: out of them, widened to f32.
 * contract: host/ops/; meaning: host/reference/rows.c.
 * Work split: a work-item owns PUT channels of the K and the V row of one (row, KV head). With a
 * rotation it owns a head of one row, of q, or of k with v: what is summed, rotated and then written
 * is its own, and needs no barrier. */
#include "common.clh"
#include "rotate.clh"
#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif
#ifndef PAGE_SIZE
#define PAGE_SIZE 16
#endif
#define CHUNKS (HEAD_DIM / 16)
#define PUTS   ((HEAD_DIM + PUT - 1) / PUT)

/* Elements of a K and of a V row from channel c on: of f32, or of DTYPE, whose bits are copied. */
#define SECOND(row, c) (PUT_BOTH(c, HEAD_DIM) ? vload16(1, (row) + (c)) : (float16)(0.0f))
static ONCE void put(__global const float *k, __global const float *v, kv_row key, kv_row value,
                     uint c) {
    put_either(key, c, vload16(0, k + c), SECOND(k, c), PUT_BOTH(c, HEAD_DIM), false);
    put_either(value, c, vload16(0, v + c), SECOND(v, c), PUT_BOTH(c, HEAD_DIM), true);
}
static inline void copy(__global const element *k, __global const element *v, kv_row key,
                        kv_row value, uint c) {
    vstore16(vload16(0, k + c), 0, key.at + c);
    vstore16(vload16(0, v + c), 0, value.at + c);
}

/* The K and the V row of a slot of a lane, whose page begins at `page`. */
#define KEY_OF(page, slot) row_of(page, PAGE_SIZE, (slot) % PAGE_SIZE, arg.slot_stride)
#define VALUE_OF(page, slot)                                                                       \
    value_row_of((page) + arg.value_offset, PAGE_SIZE, (slot) % PAGE_SIZE, arg.slot_stride)

/* PUT channels from `channel` on of rows of k and v, which begin at elements of_k and of_v: f32, or
 * DTYPE if `as_is`. */
static inline void put_part(__global const uchar *k, ulong of_k, __global const uchar *v, ulong of_v,
                            uint as_is, kv_row key, kv_row value, uint channel) {
    if (as_is)
        copy((__global const element *)k + of_k, (__global const element *)v + of_v, key, value,
             channel);
    else
        put((__global const float *)k + of_k, (__global const float *)v + of_v, key, value,
            channel);
}

/* What kernels that write rows have. */
#define WRITE_NUMBERS                                                                              \
    KV_NUMBERS;                                                                                    \
    BATCH_NUMBERS;                                                                                 \
    MATRIX_NUMBERS(k);                                                                             \
    MATRIX_NUMBERS(v)
#define SLOT_NUMBERS ulong slots_at, position_plane_at, score_plane_at, positions_at
#define WRITE_MEMORY(row, slot)                                                                    \
    MEMORY(element, kv)                                                                            \
    BATCH_MEMORY MEMORY(row, k) MEMORY(const row, v) MEMORY(slot, slots)                           \
        MEMORY(int, position_plane) MEMORY(float, score_plane) MEMORY(const int, positions)
#define OPEN_WRITE(row, slot)                                                                      \
    OPEN(element, kv);                                                                             \
    OPEN_BATCH();                                                                                  \
    OPEN(row, k);                                                                                  \
    OPEN(const row, v);                                                                            \
    OPEN(slot, slots);                                                                             \
    OPEN(int, position_plane);                                                                     \
    OPEN(float, score_plane);                                                                      \
    OPEN(const int, positions)
/* And those that rotate them first. */
#define ROTATION_MEMORY                                                                            \
    MEMORY(float, q)                                                                               \
    MEMORY(const int, turns)                                                                       \
    MEMORY(const float, table_of_turns)                                                            \
    MEMORY(const float, q_norm)                                                                    \
    MEMORY(const float, k_norm)
#define ROTATION_NUMBERS                                                                           \
    MATRIX_NUMBERS(q);                                                                             \
    uint n_heads, n_pairs, adjacent;                                                               \
    ulong turns_at, table_of_turns_at, q_norm_at, k_norm_at;                                       \
    float eps
#define OPEN_ROTATION()                                                                            \
    OPEN(float, q);                                                                                \
    OPEN(const int, turns);                                                                        \
    OPEN(const float, table_of_turns);                                                             \
    OPEN(const float, q_norm);                                                                     \
    OPEN(const float, k_norm)

typedef struct write_numbers {
    WRITE_NUMBERS;
    uint as_is;
    SLOT_NUMBERS;
} write_numbers;

/* Offsets of k and v are of bytes. */
__kernel GROUP_OF(WG_SIZE) void write_rows(WRITE_MEMORY(uchar, const int)
                                               const write_numbers arg) {
    const uint n_kv_heads = arg.n_kv_heads;
    OPEN_WRITE(uchar, const int);
    FOR_EACH_ITEM(i, arg.n_rows * n_kv_heads * PUTS) {
        /* 1. the slot's place */
        const uint channel = i % PUTS * PUT;
        const uint lane = i / PUTS, head = lane % n_kv_heads, row = lane / n_kv_heads;
        const int slot = slots[lane];
        if (slot < 0) continue;
        const int page = IDS_OF(row, head)[slot / PAGE_SIZE];
        __global element *to = kv + page * arg.page_stride + head * arg.kv_head_stride;
        /* 2. both rows */
        put_part(k, row * arg.k_stride + head * HEAD_DIM, v, row * arg.v_stride + head * HEAD_DIM,
                 arg.as_is, KEY_OF(to, slot), VALUE_OF(to, slot), channel);
        /* 3. the planes that there are */
        const ulong in_plane = (ulong)page * PAGE_SIZE + slot % PAGE_SIZE;
        if (channel == 0 && position_plane) position_plane[in_plane] = positions[row];
        if (channel == 0 && score_plane) score_plane[in_plane] = 0.0f;
    }
}

/* 16 pairs of channels from `pair` on, and one. */
static inline void turn_pairs_16(__global float *head, __global const float *low,
                                 __global const float *high, int position, uint pair, uint n_pairs,
                                 uint adjacent) {
    __global float *first = head + (adjacent ? 2 * pair : pair);
    __global float *second = adjacent ? first + 16 : first + n_pairs;
    const float16 l = vload16(0, low + 2 * pair), m = vload16(1, low + 2 * pair);
    const float16 h = vload16(0, high + 2 * pair), i = vload16(1, high + 2 * pair);
    const float16 u = vload16(0, first), w = vload16(0, second);
    float16 a = adjacent ? (float16)(u.even, w.even) : u;
    float16 b = adjacent ? (float16)(u.odd, w.odd) : w;
    turn_16((float16)(l.even, m.even), (float16)(l.odd, m.odd), (float16)(h.even, i.even),
            (float16)(h.odd, i.odd), position, &a, &b);
    if (adjacent) {
        vstore16((float16)(a.s0, b.s0, a.s1, b.s1, a.s2, b.s2, a.s3, b.s3, a.s4, b.s4, a.s5, b.s5,
                           a.s6, b.s6, a.s7, b.s7),
                 0, first);
        vstore16((float16)(a.s8, b.s8, a.s9, b.s9, a.sa, b.sa, a.sb, b.sb, a.sc, b.sc, a.sd, b.sd,
                           a.se, b.se, a.sf, b.sf),
                 0, second);
    } else {
        vstore16(a, 0, first);
        vstore16(b, 0, second);
    }
}
static inline void turn_pair(__global float *head, __global const float *low,
                             __global const float *high, int position, uint pair, uint n_pairs,
                             uint adjacent) {
    const uint first = adjacent ? 2 * pair : pair, second = adjacent ? first + 1 : pair + n_pairs;
    float a = head[first], b = head[second];
    turn_1(low[2 * pair], low[2 * pair + 1], high[2 * pair], high[2 * pair + 1], position, &a, &b);
    head[first] = a;
    head[second] = b;
}

static ONCE void turn_head(__global float *head, __global const float *table, int position,
                           uint n_pairs, uint adjacent) {
    __global const float *low = LOW_ROW(table, position, n_pairs);
    __global const float *high = HIGH_ROW(table, position, n_pairs);
    uint pair = 0;
    for (; pair + 16 <= n_pairs; pair += 16)
        turn_pairs_16(head, low, high, position, pair, n_pairs, adjacent);
    for (; pair < n_pairs; pair++)
        turn_pair(head, low, high, position, pair, n_pairs, adjacent);
}

static ONCE void norm_head(__global float *head, __global const float *w, float eps) {
    float16 squares = 0.0f;
    for (uint c = 0; c < CHUNKS; c++) {
        const float16 x = vload16(c, head);
        squares = fma(x, x, squares);
    }
    const float scale = 1.0f / sqrt(sum16(squares) / HEAD_DIM + eps);
    for (uint c = 0; c < CHUNKS; c++)
        vstore16(vload16(c, head) * scale * vload16(c, w), c, head);
}

typedef struct rotated_numbers {
    WRITE_NUMBERS;
    SLOT_NUMBERS;
    ROTATION_NUMBERS;
} rotated_numbers;

__kernel GROUP_OF(WG_SIZE) void write_rotated(WRITE_MEMORY(float, const int) ROTATION_MEMORY
                                                  const rotated_numbers arg) {
    const uint n_heads = arg.n_heads, n_kv_heads = arg.n_kv_heads;
    const uint heads = n_heads + n_kv_heads; /* of a row */
    OPEN_WRITE(float, const int);
    OPEN_ROTATION();
    FOR_EACH_ITEM(i, arg.n_rows * heads) {
        const uint row = i / heads;
        const bool is_k = i % heads >= n_heads;
        const uint head = is_k ? i % heads - n_heads : i % heads;
        __global float *at = is_k ? k + row * arg.k_stride : q + row * arg.q_stride;
        at += head * HEAD_DIM;
        /* 1. the head is normalised */
        if (is_k && k_norm) norm_head(at, k_norm, arg.eps);
        if (!is_k && q_norm) norm_head(at, q_norm, arg.eps);
        /* 2. and rotated */
        turn_head(at, table_of_turns, turns[row], arg.n_pairs, arg.adjacent);
        if (!is_k) continue;
        /* 3. a key goes to its slot, with the value and what the planes hold */
        const int slot = slots[row * n_kv_heads + head];
        if (slot < 0) continue;
        const int page = IDS_OF(row, head)[slot / PAGE_SIZE];
        __global element *to = kv + page * arg.page_stride + head * arg.kv_head_stride;
        __global const float *value = v + row * arg.v_stride + head * HEAD_DIM;
        for (uint c = 0; c < HEAD_DIM; c += PUT)
            put(at, value, KEY_OF(to, slot), VALUE_OF(to, slot), c);
        const ulong in_plane = (ulong)page * PAGE_SIZE + slot % PAGE_SIZE;
        if (position_plane) position_plane[in_plane] = positions[row];
        if (score_plane) score_plane[in_plane] = 0.0f;
    }
}

typedef struct read_numbers {
    KV_NUMBERS;
    ulong table_at, seq_stride, head_stride;
    uint n;
    ulong seq_at, head_at, slot_at, k_at, v_at;
} read_numbers;

__kernel GROUP_OF(WG_SIZE) void read_rows(
    MEMORY(element, kv) MEMORY(const int, table) MEMORY(const int, seq) MEMORY(const int, head)
    MEMORY(const int, slot) MEMORY(float, k) MEMORY(float, v) const read_numbers arg) {
    OPEN(element, kv);
    OPEN(const int, table);
    OPEN(const int, seq);
    OPEN(const int, head);
    OPEN(const int, slot);
    OPEN(float, k);
    OPEN(float, v);
    FOR_EACH_ITEM(i, arg.n * CHUNKS) {
        const uint channel = i % CHUNKS * 16, row = i / CHUNKS;
        const int s = slot[row], h = head[row];
        const int page = table[seq[row] * arg.seq_stride + h * arg.head_stride + s / PAGE_SIZE];
        __global element *from = kv + page * arg.page_stride + h * arg.kv_head_stride;
        const ulong to = (ulong)row * HEAD_DIM + channel;
        if (k) vstore16(row16(KEY_OF(from, s), channel), 0, k + to);
        if (v) vstore16(value16(VALUE_OF(from, s), channel), 0, v + to);
    }
}
