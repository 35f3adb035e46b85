/* SPDX-License-Identifier: Apache-2.0 */
/* take_lists: of a caller's lists the entries that are valid, ascending.
 * contract: host/ops/; meaning: host/reference/take_lists.c.
 * Work split: a thread owns a (row, KV head). */
#include "common.cuh"

KERNEL(take_lists, CU_TAKE_LISTS_THREADS, cu_take_lists_args) {
    const uint32_t heads = a.batch.n_kv_heads, size = a.granularity;
    FOR_EACH_ITEM(i, (uint64_t)a.batch.n_rows * heads) {
        const uint32_t row = (uint32_t)(i / heads), head = (uint32_t)(i % heads);
        const int32_t *lane = lane_pages(a.batch, row, head);
        const int32_t *from = a.raw.pages + i * a.raw.capacity;
        const uint64_t to = i * a.lists.capacity;
        const uint32_t seen = (uint32_t)a.batch.visible[i], first = first_seen(a.batch, i);
        const uint32_t end = seen / size + (seen % size != 0);
        /* 1. the count */
        const int32_t said = a.raw.count[i];
        const bool above = said > 0 && (uint32_t)said > a.raw.capacity;
        const uint32_t n = said < 0 ? 0 : above ? a.raw.capacity : (uint32_t)said;
        uint32_t missed = said < 0 || above, taken = 0;
        /* 2. the entries; none below `next` can be taken any more */
        uint32_t next = (first < seen ? first : seen) / size;
        for (uint32_t j = 0; j < n; j++) {
            const uint32_t entry = (uint32_t)from[j]; /* one below 0 is above all others */
            if (entry < next || entry >= end) {
                missed++;
                continue;
            }
            a.lists.pages[to + taken] = (int32_t)entry;
            if (a.ids)
                a.ids[to + taken] = lane[entry / a.page_size] * (int32_t)a.page_slots +
                                    (int32_t)(entry % a.page_size);
            taken++;
            next = entry + 1;
        }
        a.lists.count[i] = (int32_t)taken;
        /* 3. what was counted */
        if (missed) atomic_add(a.skipped, missed);
    }
}
