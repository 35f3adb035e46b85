/* SPDX-License-Identifier: Apache-2.0 */
/* compact: the kept slots of lanes to the front of a page list; copy_slots: slots to other slots.
 * contract: host/ops/; meaning: host/reference/compact.c.
 * Work split of compact: a block owns a part of one (item, KV head), see args.h; parts are
 * independent. It takes TILE kept slots at a time: all of them are in registers before any of them is
 * written. Later steps read only later slots, since a kept slot never moves to a later one. Of
 * copy_slots, where what is written is not read: a thread owns 16 bytes of the K and the V row of one
 * (row, KV head), and some of the words behind the rows; the first one also the planes. Rows of all
 * dtypes are bytes. */
#include "common.cuh"

#define HELD        8u /* pieces in a thread's registers */
#define ROWS        (CU_COMPACT_THREADS / CU_COMPACT_WIDE)
#define TILE        (ROWS * HELD)
#define NONE        0xffffffffu
#define HELD_WORDS  16u /* behind the rows, of a row */

/* Page and rest of a slot as one of two strides apart. */
DEVICE uint64_t place_of(const int32_t *pages, uint32_t page_shift, uint32_t slot,
                         uint64_t page_stride, uint64_t slot_stride) {
    const uint32_t rest = slot & ((1u << page_shift) - 1u);
    return (uint32_t)pages[slot >> page_shift] * page_stride + rest * slot_stride;
}

/* The K row, `value` 0, or the V row of slot 0 of page 0, and the words behind the rows of page 0,
 * which begin at `rows`. */
DEVICE char *moved_rows(const cu_moved &m, uint32_t head, uint32_t value) {
    return (char *)m.kv.rows +
           (head * m.kv.head_stride + (value ? m.kv.value_offset : 0)) * m.size;
}
DEVICE uint16_t *moved_words(const cu_moved &m, char *rows, uint32_t value) {
    return (uint16_t *)(rows + (m.stride[value] << m.kv.page_shift));
}

/* ---- compact --------------------------------------------------------------------------------- */

struct lane_args {
    const int32_t *pages, *to, *list;
    uint32_t n, granularity, visible, page_shift; /* n: slots that the list names */
};

/* The old slot of the j-th kept slot, NONE if there are fewer. */
DEVICE uint32_t source_of(const lane_args &l, uint32_t j) {
    if (j >= l.n) return NONE;
    const uint32_t slot = (uint32_t)l.list[j / l.granularity] * l.granularity + j % l.granularity;
    return slot < l.visible ? slot : NONE;
}

/* `rows`: the thread's piece of slot 0 of page 0; strides in bytes. All threads call it; those that
 * are not `live` only take part in the barriers. */
DEVICE void compact_rows(const lane_args &l, char *rows, bool live, uint64_t page_stride,
                         uint64_t slot_stride) {
    for (uint32_t first = threadIdx.x / CU_COMPACT_WIDE, tile = 0; tile < l.n; tile += TILE) {
        vec16 held[HELD];
        uint32_t kept = 0;
#pragma unroll
        for (uint32_t i = 0; i < HELD; i++) {
            const uint32_t from = live ? source_of(l, tile + i * ROWS + first) : NONE;
            if (from == NONE) continue;
            held[i] =
                load_16(rows + place_of(l.pages, l.page_shift, from, page_stride, slot_stride));
            kept |= 1u << i;
        }
        block_sync();
#pragma unroll
        for (uint32_t i = 0; i < HELD; i++) {
            const uint32_t j = tile + i * ROWS + first;
            if (kept >> i & 1u)
                store_16(rows + place_of(l.to, l.page_shift, j, page_stride, slot_stride), held[i]);
        }
    }
}

/* Up to HELD_WORDS of a row's `n` words behind the rows of K or V, the first one of slot 0 of page 0
 * at `words`; `page_stride` words lie between two pages. */
DEVICE void compact_words(const lane_args &l, uint16_t *words, uint32_t n, uint64_t page_stride,
                          uint32_t count) {
    for (uint32_t tile = 0; tile < l.n; tile += CU_COMPACT_THREADS) {
        const uint32_t j = tile + threadIdx.x, from = source_of(l, j);
        uint16_t held[HELD_WORDS];
#pragma unroll
        for (uint32_t i = 0; i < HELD_WORDS; i++)
            if (from != NONE && i < count)
                held[i] = words[place_of(l.pages, l.page_shift, from, page_stride, n) + i];
        block_sync();
#pragma unroll
        for (uint32_t i = 0; i < HELD_WORDS; i++)
            if (from != NONE && i < count)
                words[place_of(l.to, l.page_shift, j, page_stride, n) + i] = held[i];
    }
}

/* One of the planes, as bits. */
DEVICE void compact_plane(const lane_args &l, uint32_t *plane) {
    const uint64_t page_stride = 1u << l.page_shift;
    for (uint32_t tile = 0; tile < l.n; tile += CU_COMPACT_THREADS) {
        const uint32_t j = tile + threadIdx.x, from = source_of(l, j);
        uint32_t word = 0;
        if (from != NONE) word = plane[place_of(l.pages, l.page_shift, from, page_stride, 1)];
        block_sync();
        if (from != NONE) plane[place_of(l.to, l.page_shift, j, page_stride, 1)] = word;
    }
}

KERNEL(compact_slots, CU_COMPACT_THREADS, cu_compact_args) {
    const cu_moved &m = a.moved;
    const uint32_t owner = blockIdx.x, heads = m.batch.n_kv_heads, part = blockIdx.y;
    if (owner >= (uint64_t)m.batch.n_rows * heads) return;
    const uint32_t row = owner / heads, head = owner % heads;
    const lane_args l = {lane_pages(m.batch, row, head),
                         a.to + owner * a.to_stride,
                         a.lists.pages + owner * a.lists.capacity,
                         (uint32_t)a.lists.count[owner] * a.granularity,
                         a.granularity,
                         (uint32_t)m.batch.visible[owner],
                         m.kv.page_shift};
    const uint32_t slices = (m.pieces[0] + CU_COMPACT_WIDE - 1) / CU_COMPACT_WIDE;
    const uint32_t value = part < 2 * slices ? part >= slices : part > 2 * slices;
    char *rows = moved_rows(m, head, value);
    if (part < 2 * slices) {
        const uint32_t piece = part % slices * CU_COMPACT_WIDE + threadIdx.x % CU_COMPACT_WIDE;
        compact_rows(l, rows + piece * 16, piece < m.pieces[value], m.kv.page_stride * m.size,
                     m.stride[value]);
    } else if (m.size == 1 && part < 2 * slices + 2) {
        uint16_t *words = moved_words(m, rows, value);
        for (uint32_t i = 0; i < m.words[value]; i += HELD_WORDS)
            compact_words(l, words + i, m.words[value], m.kv.page_stride / sizeof(uint16_t),
                          m.words[value] - i);
    } else {
        if (m.positions) compact_plane(l, m.positions);
        if (m.scores) compact_plane(l, m.scores);
    }
}

/* ---- copy_slots ------------------------------------------------------------------------------ */

/* A slot, and the page ids of its lane. */
struct slot_at {
    const int32_t *pages;
    uint32_t page_shift, slot;
};

DEVICE uint64_t place_at(const slot_at &a, uint64_t page_stride, uint64_t slot_stride) {
    return place_of(a.pages, a.page_shift, a.slot, page_stride, slot_stride);
}

/* What the thread of `part`, one of `parts`, owns of a row of K or V and of the words behind the rows. */
DEVICE void copy_part(const cu_moved &m, uint32_t head, uint32_t value, const slot_at &from,
                      const slot_at &to, uint32_t part, uint32_t parts) {
    const uint64_t page_bytes = m.kv.page_stride * m.size, words = m.words[value];
    char *rows = moved_rows(m, head, value);
    if (part < m.pieces[value])
        store_16(rows + part * 16 + place_at(to, page_bytes, m.stride[value]),
                 load_16(rows + part * 16 + place_at(from, page_bytes, m.stride[value])));
    if (part >= words) return;
    const uint16_t *old = moved_words(m, rows, value) + place_at(from, page_bytes / 2, words);
    uint16_t *copied = moved_words(m, rows, value) + place_at(to, page_bytes / 2, words);
    for (uint32_t i = part; i < words; i += parts)
        copied[i] = old[i];
}

/* One of the planes, as bits. */
DEVICE void copy_plane(uint32_t *plane, const slot_at &from, const slot_at &to) {
    const uint64_t page_stride = 1u << from.page_shift;
    plane[place_at(to, page_stride, 1)] = plane[place_at(from, page_stride, 1)];
}

KERNEL(copy_slots, CU_COMPACT_THREADS, cu_copy_slots_args) {
    const cu_moved &m = a.moved;
    const uint32_t heads = m.batch.n_kv_heads, parts = m.pieces[0];
    FOR_EACH_ITEM(i, (uint64_t)m.batch.n_rows * heads * parts) {
        const uint32_t part = i % parts;
        const uint64_t owner = i / parts;
        const uint32_t row = owner / heads, head = owner % heads;
        const int32_t old_slot = a.from[owner], new_slot = a.to[owner];
        if (old_slot < 0 || new_slot < 0) continue;
        /* 1. both slots' places */
        const slot_at old = {lane_pages(m.batch, row, head), m.kv.page_shift, (uint32_t)old_slot};
        const slot_at copied = {m.batch.table + a.to_seq[row] * m.batch.seq_stride +
                                    head * m.batch.head_stride,
                                m.kv.page_shift, (uint32_t)new_slot};
        /* 2. K, V and planes */
        for (uint32_t value = 0; value < 2; value++)
            copy_part(m, head, value, old, copied, part, parts);
        if (part == 0 && m.positions) copy_plane(m.positions, old, copied);
        if (part == 0 && m.scores) copy_plane(m.scores, old, copied);
    }
}
