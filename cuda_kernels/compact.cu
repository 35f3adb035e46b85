/* SPDX-License-Identifier: Apache-2.0 */
/* compact: the kept slots of lanes to the front of a page list.
 * contract: host/ops/; meaning: host/reference/compact.c.
 * Work split: a block owns a part of one (item, KV head), see args.h; parts are independent. It
 * takes TILE kept slots at a time: all of them are in registers before any of them is written.
 * Later steps read only later slots, since a kept slot never moves to a later one. Rows of all
 * dtypes are bytes. */
#include "common.cuh"

#define HELD        8u /* pieces in a thread's registers */
#define ROWS        (CU_COMPACT_THREADS / CU_COMPACT_WIDE)
#define TILE        (ROWS * HELD)
#define NONE        0xffffffffu
#define HELD_WORDS  16u /* behind the rows, of a row */

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

/* Page and rest of a slot as one of two strides apart. */
DEVICE uint64_t place_of(const int32_t *pages, uint32_t page_shift, uint32_t slot,
                         uint64_t page_stride, uint64_t slot_stride) {
    const uint32_t rest = slot & ((1u << page_shift) - 1u);
    return (uint32_t)pages[slot >> page_shift] * page_stride + rest * slot_stride;
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
    const uint32_t owner = blockIdx.x, heads = a.batch.n_kv_heads, part = blockIdx.y;
    if (owner >= (uint64_t)a.batch.n_rows * heads) return;
    const uint32_t row = owner / heads, head = owner % heads;
    const lane_args l = {lane_pages(a.batch, row, head),
                         a.to + owner * a.to_stride,
                         a.lists.pages + owner * a.lists.capacity,
                         (uint32_t)a.lists.count[owner] * a.granularity,
                         a.granularity,
                         (uint32_t)a.batch.visible[owner],
                         a.kv.page_shift};
    const uint32_t slices = (a.pieces[0] + CU_COMPACT_WIDE - 1) / CU_COMPACT_WIDE;
    const uint32_t value = part < 2 * slices ? part >= slices : part > 2 * slices;
    const uint64_t first = head * a.kv.head_stride + (value ? a.kv.value_offset : 0);
    const uint64_t stride = a.stride[value];
    char *rows = (char *)a.kv.rows + first * a.size;
    if (part < 2 * slices) {
        const uint32_t piece = part % slices * CU_COMPACT_WIDE + threadIdx.x % CU_COMPACT_WIDE;
        compact_rows(l, rows + piece * 16, piece < a.pieces[value], a.kv.page_stride * a.size,
                     stride);
    } else if (a.size == 1 && part < 2 * slices + 2) {
        uint16_t *words = (uint16_t *)(rows + (stride << a.kv.page_shift));
        for (uint32_t i = 0; i < a.words[value]; i += HELD_WORDS)
            compact_words(l, words + i, a.words[value], a.kv.page_stride / sizeof(uint16_t),
                          a.words[value] - i);
    } else {
        if (a.positions) compact_plane(l, a.positions);
        if (a.scores) compact_plane(l, a.scores);
    }
}
