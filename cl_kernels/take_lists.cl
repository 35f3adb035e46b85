/* SPDX-License-Identifier: Apache-2.0 */
/* take_lists: of a caller's lists the entries that are valid, ascending.
 * contract: host/ops/; meaning: host/reference/take_lists.c.
 * Work split: a work-item owns a (row, KV head). */
#include "common.clh"

__kernel GROUP_OF(WG_SIZE) void take_lists(BATCH_PARAMS, uint granularity,
                                           REF_PARAMS(const int, raw),
                                           REF_PARAMS(const int, raw_count), uint raw_capacity,
                                           REF_PARAMS(int, lists), REF_PARAMS(int, count),
                                           uint capacity, REF_PARAMS(int, ids), uint page_size,
                                           uint page_slots, REF_PARAMS(uint, skipped)) {
    FOR_EACH_ITEM(i, n_rows * n_kv_heads) {
        const uint row = i / n_kv_heads, head = i % n_kv_heads;
        __global const int *lane = table + table_offset +
                                   row_seq[row_seq_offset + row] * seq_stride + head * head_stride;
        __global const int *from = raw + raw_offset + (ulong)i * raw_capacity;
        __global int *list = lists + lists_offset + (ulong)i * capacity;
        __global int *of_list = ids + ids_offset + (ulong)i * capacity;
        const uint seen = (uint)visible[visible_offset + i], first = FIRST_SEEN(i);
        const uint end = seen / granularity + (seen % granularity != 0);
        /* 1. the count */
        const int said = raw_count[raw_count_offset + i];
        const uint n = said < 0 ? 0 : min((uint)said, raw_capacity);
        uint missed = said < 0 || (uint)said > raw_capacity, taken = 0;
        /* 2. the entries; none below `next` can be taken any more */
        uint next = min(first, seen) / granularity;
        for (uint j = 0; j < n; j++) {
            const uint entry = (uint)from[j]; /* one below 0 is above all others */
            if (entry < next || entry >= end) {
                missed++;
                continue;
            }
            list[taken] = (int)entry;
            if (ids)
                of_list[taken] = lane[entry / page_size] * (int)page_slots + (int)(entry % page_size);
            taken++;
            next = entry + 1;
        }
        count[count_offset + i] = (int)taken;
        /* 3. what was counted */
        if (missed) atomic_add(skipped + skipped_offset, missed);
    }
}
