/* SPDX-License-Identifier: Apache-2.0 */
/* compact: the kept slots of lanes to the front of a page list.
 * contract: host/ops/; meaning: host/reference/compact.c.
 * Work split: a work-group owns a part of one (item, KV head): WIDE channels of K, or of V, the
 * scales of either, or the planes; parts are independent. It takes TILE kept slots at a time: all
 * of them are in registers before any of them is written. Later steps read only later slots, since
 * a kept slot never moves to a later one. */
#include "common.clh"
#define CHUNK 16 /* elements of an item */
#define WIDE  64
#define HELD  4 /* rows in an item's registers */
#define ROWS  (WG_SIZE / (WIDE / CHUNK))
#define TILE  (ROWS * HELD)
#define NONE  0xffffffffu

typedef element16 chunk;

typedef struct lane {
    __global const int *pages, *to, *list;
    uint count, granularity, visible, page_shift;
} lane;

/* The old slot of the j-th kept slot, NONE if there are fewer. */
static inline uint source_of(const lane *l, uint j) {
    const uint entry = l->granularity == 1 ? j : j / l->granularity;
    if (entry >= l->count) return NONE;
    const uint rest = j - entry * l->granularity;
    const uint slot = (uint)l->list[entry] * l->granularity + rest;
    return slot < l->visible ? slot : NONE;
}

/* Where a slot lies, the first one of page 0 being at 0. */
static inline ulong place_of(const lane *l, __global const int *pages, uint slot, ulong page_stride,
                             ulong slot_stride) {
    const uint rest = slot & ((1u << l->page_shift) - 1);
    return (ulong)pages[slot >> l->page_shift] * page_stride + rest * slot_stride;
}

/* `rows`: the work-item's chunk of slot 0 of page 0; NULL: the work-item only takes part in
 * barriers. */
static void compact_rows(const lane *l, __global element *rows, ulong page_stride,
                         ulong slot_stride) {
    const uint row = (uint)get_local_id(0) / (WIDE / CHUNK);
    for (uint first = row, tile = 0; tile < l->count * l->granularity;
         first += TILE, tile += TILE) {
        chunk held[HELD];
        uint live = 0;
        for (uint i = 0; i < HELD; i++) {
            const uint from = rows ? source_of(l, first + i * ROWS) : NONE;
            if (from == NONE) continue;
            held[i] = vload16(0, rows + place_of(l, l->pages, from, page_stride, slot_stride));
            live |= 1u << i;
        }
        barrier(CLK_GLOBAL_MEM_FENCE);
        for (uint i = 0; i < HELD; i++) {
            if (!(live >> i & 1u)) continue;
            const uint j = first + i * ROWS;
            vstore16(held[i], 0, rows + place_of(l, l->to, j, page_stride, slot_stride));
        }
    }
}

#if HAS_BLOCKS
#define MOST_SCALES 32 /* of a row: pairs of 16 blocks */
/* What lies behind all rows of K or V, `n` numbers a row; rows of `row_bytes` begin at `first` of page
 * 0. */
static void compact_scales(const lane *l, __global element *first, ulong page_stride,
                           uint row_bytes, uint n) {
    __global element *scales = first + ((ulong)row_bytes << l->page_shift);
    for (uint tile = 0; tile < l->count * l->granularity; tile += WG_SIZE) {
        const uint j = tile + (uint)get_local_id(0), from = source_of(l, j);
        ushort held[MOST_SCALES];
        if (from != NONE) {
            __global const ushort *of = (__global const ushort *)(
                scales + place_of(l, l->pages, from, page_stride, 2 * n));
            for (uint b = 0; b < n; b++) held[b] = of[b];
        }
        barrier(CLK_GLOBAL_MEM_FENCE);
        if (from != NONE) {
            __global ushort *of =
                (__global ushort *)(scales + place_of(l, l->to, j, page_stride, 2 * n));
            for (uint b = 0; b < n; b++) of[b] = held[b];
        }
    }
}
#endif

/* One of the planes, as bits. */
static void compact_plane(const lane *l, __global uint *plane) {
    const ulong page_stride = 1u << l->page_shift;
    for (uint tile = 0; tile < l->count * l->granularity; tile += WG_SIZE) {
        const uint j = tile + (uint)get_local_id(0), from = source_of(l, j);
        uint word = 0;
        if (from != NONE) word = plane[place_of(l, l->pages, from, page_stride, 1)];
        barrier(CLK_GLOBAL_MEM_FENCE);
        if (from != NONE) plane[place_of(l, l->to, j, page_stride, 1)] = word;
    }
}

__kernel GROUP_OF(WG_SIZE) void compact_slots(KV_PARAMS, BATCH_PARAMS, uint page_size,
                                              uint head_dim, REF_PARAMS(const int, lists),
                                              REF_PARAMS(const int, count), uint capacity,
                                              uint granularity, REF_PARAMS(const int, to),
                                              ulong to_stride, REF_PARAMS(uint, positions),
                                              REF_PARAMS(uint, scores)) {
    const uint owner = (uint)get_group_id(0), part = (uint)get_group_id(1);
    if (owner >= n_rows * n_kv_heads) return;
    const uint row = owner / n_kv_heads, head = owner % n_kv_heads;
    const lane l = {.pages = table + table_offset + row_seq[row_seq_offset + row] * seq_stride +
                             head * head_stride,
                    .to = to + to_offset + owner * to_stride,
                    .list = lists + lists_offset + (ulong)owner * capacity,
                    .count = (uint)count[count_offset + owner],
                    .granularity = granularity,
                    .visible = (uint)visible[visible_offset + owner],
                    .page_shift = 31 - clz(page_size)};
    const uint slices = (head_dim + WIDE - 1) / WIDE;
    kv += kv_offset + head * kv_head_stride;
    /* Whether the part is of V; elements of a row, and from row to row. */
    const bool values = part < 2 * slices ? part >= slices : part > 2 * slices;
    const bool q4 = values ? VALUES_Q4 : KEYS_Q4;
    const uint width = q4 ? Q8_BLOCKS_OF(head_dim) * Q4_BYTES : head_dim;
    const ulong stride = q4 ? width : slot_stride;
    if (values) kv += value_offset;
    if (part < 2 * slices) {
        const uint channel = part % slices * WIDE + (uint)get_local_id(0) % (WIDE / CHUNK) * CHUNK;
        compact_rows(&l, channel < width ? kv + channel : 0, page_stride, stride);
#if HAS_BLOCKS
    } else if (part < 2 * slices + 2) {
        compact_scales(&l, kv, page_stride, width, Q8_BLOCKS_OF(head_dim) * (q4 ? 2 : 1));
#endif
    } else {
        if (positions) compact_plane(&l, positions + positions_offset);
        if (scores) compact_plane(&l, scores + scores_offset);
    }
}
