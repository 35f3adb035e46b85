/* SPDX-License-Identifier: Apache-2.0 */
/* replace: the slot of a lane into which a row is written.
 * contract: host/ops/; meaning: host/reference/replace.c; the order of tokens: replace.clh.
 * Work split: a work-group owns one (row, KV head); a work-item takes every WG_SIZE-th slot. */
#include "replace.clh"

__kernel GROUP_OF(WG_SIZE) void replace_slots(BATCH_PARAMS, uint page_size, uint sinks, uint recent,
                                              uint lifetime, REF_PARAMS(const int, plane),
                                              REF_PARAMS(const float, scores),
                                              REF_PARAMS(const int, turns), REF_PARAMS(int, slots),
                                              REF_PARAMS(int, changed),
                                              REF_PARAMS(const int, positions)) {
    __local token lowest_of[WG_SIZE];
    const uint wi = (uint)get_local_id(0), owner = (uint)get_group_id(0);
    if (owner >= n_rows * n_kv_heads) return;
    if (!turns[turns_offset + owner]) {
        if (wi == 0) changed[changed_offset + owner] = -1;
        return;
    }
    const uint row = owner / n_kv_heads, head = owner % n_kv_heads;
    const uint seen = (uint)visible[visible_offset + owner];
    const uint page_shift = 31 - clz(page_size);
    const int now = positions[positions_offset + row];
    __global const int *pages =
        table + table_offset + row_seq[row_seq_offset + row] * seq_stride + head * head_stride;

    /* 1. the lowest of this work-item's slots */
    token lowest = NO_TOKEN;
    for (uint slot = wi; slot < seen; slot += WG_SIZE) {
        const ulong at =
            ((ulong)pages[slot >> page_shift] << page_shift) | (slot & (page_size - 1));
        const int position = plane[plane_offset + at];
        const float score = scores ? scores[scores_offset + at] : NAN;
        const token t = token_of(position, score, slot, now, sinks, recent, lifetime);
        if (is_lower(t, lowest)) lowest = t;
    }

    /* 2. the lowest of all */
    lowest_of[wi] = lowest;
    for (uint half_way = WG_SIZE / 2; half_way > 0; half_way /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (wi < half_way && is_lower(lowest_of[wi + half_way], lowest_of[wi]))
            lowest_of[wi] = lowest_of[wi + half_way];
    }
    if (wi > 0) return;
    lowest = lowest_of[0];
    const int slot = victim_slot(lowest, seen);
    const bool full = slot >= 0 && slot >> page_shift < seen >> page_shift;
    slots[slots_offset + owner] = slot;
    changed[changed_offset + owner] = full ? pages[slot >> page_shift] : -1;
}
