/* SPDX-License-Identifier: Apache-2.0 */
/* write_rows: K and V rows into slots of lanes; read_rows: out of them, widened to f32.
 * contract: host/ops/; meaning: host/reference/rows.c.
 * Work split: a work-item owns PUT channels of the K and the V row of one (row, KV head). With a
 * rotation it owns a head of one row, of q, or of k with v: what is summed, rotated and then written
 * is its own, and needs no barrier. */
#include "rows.clh"
#define CHUNKS (HEAD_DIM / 16)
#define PUTS   ((HEAD_DIM + PUT - 1) / PUT)

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

typedef struct rotated_numbers {
    WRITE_NUMBERS;
    SLOT_NUMBERS;
    ROTATION_NUMBERS;
    uint unused; /* Rusticl counts no padding behind the last field */
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
        /* 3. a key goes to its slot */
        if (is_k) PUT_ROTATED(row, head, at);
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
