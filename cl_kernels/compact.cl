/* SPDX-License-Identifier: Apache-2.0 */
/* compact: the kept slots of lanes to the front of a page list; copy_slots: slots to other slots.
 * contract: host/ops/; meaning: host/reference/compact.c.
 * Work split of compact: a work-group owns a part of one (item, KV head): WIDE channels of K, or of V,
 * the scales of either, or the planes; parts are independent. It takes TILE kept slots at a time: all
 * of them are in registers before any of them is written. Later steps read only later slots, since
 * a kept slot never moves to a later one. Of copy_slots, where what is written is not read: a work-item
 * owns CHUNK elements of the K and the V row of one (row, KV head), the first ones also numbers of
 * their blocks, the first of all the planes. */
#include "common.clh"
#define CHUNK 16 /* elements of an item */
#define WIDE  64
#define HELD  4 /* rows in an item's registers */
#define ROWS  (WG_SIZE / (WIDE / CHUNK))
#define TILE  (ROWS * HELD)
#define NONE  0xffffffffu

typedef element16 chunk;

/* Where a slot lies, the first one of page 0 being at 0. */
static inline ulong place_of(__global const int *pages, uint page_shift, uint slot,
                             ulong page_stride, ulong slot_stride) {
    const uint rest = slot & ((1u << page_shift) - 1);
    return (ulong)pages[slot >> page_shift] * page_stride + rest * slot_stride;
}

/* How rows of K, or of V, lie: the first one of page 0, elements of a row, from row to row, and 16-bit
 * numbers of a row's blocks, which lie behind all rows of a page. */
typedef struct side {
    __global element *rows;
    uint width, numbers;
    ulong stride;
} side;

/* `first`: the K row of slot 0 of page 0. */
static inline side side_of(bool values, __global element *first, ulong value_offset, uint head_dim,
                           ulong slot_stride) {
    const bool q4 = values ? VALUES_Q4 : KEYS_Q4;
    const uint blocks = Q8_BLOCKS_OF(head_dim), width = q4 ? blocks * Q4_BYTES : head_dim;
    return (side){.rows = values ? first + value_offset : first,
                  .width = width,
                  .numbers = HAS_BLOCKS ? blocks * (q4 ? 2 : 1) : 0,
                  .stride = q4 ? width : slot_stride};
}

#if HAS_BLOCKS
/* The numbers of slot 0 of page 0. */
static inline __global element *numbers_of(const side *s, uint page_shift) {
    return s->rows + ((ulong)s->width << page_shift);
}
#endif

/* ---- compact --------------------------------------------------------------------------------- */

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

/* Where a slot of the lane lies, and where one of what it becomes. */
static inline ulong old_place(const lane *l, uint slot, ulong page_stride, ulong slot_stride) {
    return place_of(l->pages, l->page_shift, slot, page_stride, slot_stride);
}
static inline ulong new_place(const lane *l, uint slot, ulong page_stride, ulong slot_stride) {
    return place_of(l->to, l->page_shift, slot, page_stride, slot_stride);
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
            held[i] = vload16(0, rows + old_place(l, from, page_stride, slot_stride));
            live |= 1u << i;
        }
        barrier(CLK_GLOBAL_MEM_FENCE);
        for (uint i = 0; i < HELD; i++) {
            if (!(live >> i & 1u)) continue;
            const uint j = first + i * ROWS;
            vstore16(held[i], 0, rows + new_place(l, j, page_stride, slot_stride));
        }
    }
}

#if HAS_BLOCKS
#define MOST_SCALES 32 /* of a row: pairs of 16 blocks */
/* What lies behind all rows of K or V. */
static void compact_scales(const lane *l, const side *s, ulong page_stride) {
    __global element *scales = numbers_of(s, l->page_shift);
    const uint n = s->numbers;
    for (uint tile = 0; tile < l->count * l->granularity; tile += WG_SIZE) {
        const uint j = tile + (uint)get_local_id(0), from = source_of(l, j);
        ushort held[MOST_SCALES];
        if (from != NONE) {
            __global const ushort *of = (__global const ushort *)(
                scales + old_place(l, from, page_stride, 2 * n));
            for (uint b = 0; b < n; b++) held[b] = of[b];
        }
        barrier(CLK_GLOBAL_MEM_FENCE);
        if (from != NONE) {
            __global ushort *of =
                (__global ushort *)(scales + new_place(l, j, page_stride, 2 * n));
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
        if (from != NONE) word = plane[old_place(l, from, page_stride, 1)];
        barrier(CLK_GLOBAL_MEM_FENCE);
        if (from != NONE) plane[new_place(l, j, page_stride, 1)] = word;
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
    const bool values = part < 2 * slices ? part >= slices : part > 2 * slices;
    const side s =
        side_of(values, kv + kv_offset + head * kv_head_stride, value_offset, head_dim, slot_stride);
    if (part < 2 * slices) {
        const uint channel = part % slices * WIDE + (uint)get_local_id(0) % (WIDE / CHUNK) * CHUNK;
        compact_rows(&l, channel < s.width ? s.rows + channel : 0, page_stride, s.stride);
#if HAS_BLOCKS
    } else if (part < 2 * slices + 2) {
        compact_scales(&l, &s, page_stride);
#endif
    } else {
        if (positions) compact_plane(&l, positions + positions_offset);
        if (scores) compact_plane(&l, scores + scores_offset);
    }
}

/* ---- copy_slots ------------------------------------------------------------------------------ */

/* A slot, and the page ids of its lane. */
typedef struct slot_at {
    __global const int *pages;
    uint page_shift, slot;
} slot_at;

static inline ulong place_at(const slot_at *a, ulong page_stride, ulong slot_stride) {
    return place_of(a->pages, a->page_shift, a->slot, page_stride, slot_stride);
}

/* What the work-item of `part`, one of `parts`, owns of a row and of its blocks' numbers. */
static void copy_part(const side *s, const slot_at *from, const slot_at *to, uint part, uint parts,
                      ulong page_stride) {
    __global element *rows = s->rows + part * CHUNK;
    if (part * CHUNK < s->width)
        vstore16(vload16(0, rows + place_at(from, page_stride, s->stride)), 0,
                 rows + place_at(to, page_stride, s->stride));
#if HAS_BLOCKS
    __global element *numbers = numbers_of(s, from->page_shift);
    __global const ushort *old =
        (__global const ushort *)(numbers + place_at(from, page_stride, 2 * s->numbers));
    __global ushort *copied =
        (__global ushort *)(numbers + place_at(to, page_stride, 2 * s->numbers));
    for (uint i = part; i < s->numbers; i += parts) copied[i] = old[i];
#endif
}

/* One of the planes, as bits. */
static void copy_plane(__global uint *plane, const slot_at *from, const slot_at *to) {
    const ulong page_stride = 1u << from->page_shift;
    plane[place_at(to, page_stride, 1)] = plane[place_at(from, page_stride, 1)];
}

__kernel GROUP_OF(WG_SIZE) void copy_slots(KV_PARAMS, BATCH_PARAMS, uint page_size, uint head_dim,
                                           REF_PARAMS(const int, to_seq),
                                           REF_PARAMS(const int, from), REF_PARAMS(const int, to),
                                           REF_PARAMS(uint, positions), REF_PARAMS(uint, scores)) {
    const uint parts = head_dim / CHUNK, page_shift = 31 - clz(page_size);
    FOR_EACH_ITEM(i, n_rows * n_kv_heads * parts) {
        const uint part = i % parts, owner = i / parts;
        const uint row = owner / n_kv_heads, head = owner % n_kv_heads;
        const int old_slot = from[from_offset + owner], new_slot = to[to_offset + owner];
        if (old_slot < 0 || new_slot < 0) continue;
        /* 1. both slots' places */
        __global const int *lists = table + table_offset + head * head_stride;
        const slot_at old = {lists + row_seq[row_seq_offset + row] * seq_stride, page_shift,
                             (uint)old_slot};
        const slot_at copied = {lists + to_seq[to_seq_offset + row] * seq_stride, page_shift,
                                (uint)new_slot};
        /* 2. K, V and planes */
        __global element *first = kv + kv_offset + head * kv_head_stride;
        const side keys = side_of(false, first, value_offset, head_dim, slot_stride);
        const side values = side_of(true, first, value_offset, head_dim, slot_stride);
        copy_part(&keys, &old, &copied, part, parts, page_stride);
        copy_part(&values, &old, &copied, part, parts, page_stride);
        if (part == 0 && positions) copy_plane(positions + positions_offset, &old, &copied);
        if (part == 0 && scores) copy_plane(scores + scores_offset, &old, &copied);
    }
}
