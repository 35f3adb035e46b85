/* SPDX-License-Identifier: Apache-2.0 */
/* bounds: lo = min, hi = max over the keys of a full page, channel by channel; NaN if a key is NaN.
 * contract: host/backend.h; meaning: host/reference/bounds.c.
 * Work split: an item owns 16 channels of one (page, KV head); a loop step reads one slot. */
#include "common.clh"
#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif
#ifndef PAGE_SIZE
#define PAGE_SIZE 16
#endif
#define CHUNKS (HEAD_DIM / 16)

__kernel GROUP_OF(LANES) void bounds_of_pages(KV_PARAMS, BOUNDS_PARAMS, uint n, uint n_kv_heads,
                                              REF_PARAMS(const int, pages)) {
    FOR_EACH_ITEM(i, n * n_kv_heads * CHUNKS) {
        const uint channel = i % CHUNKS * 16, head = i / CHUNKS % n_kv_heads;
        const int page = pages[pages_offset + i / CHUNKS / n_kv_heads];
        __global const element *key =
            kv + kv_offset + page * page_stride + head * kv_head_stride + channel;
        /* 1. both begin as the first key */
        float16 lo = load16(key), hi = lo;
        int16 nan = isnan(lo);
        /* 2. every other key widens them; a NaN is kept apart */
        for (uint slot = 1; slot < PAGE_SIZE; slot++) {
            const float16 x = load16(key + slot * slot_stride);
            lo = fmin(lo, x);
            hi = fmax(hi, x);
            nan |= isnan(x);
        }
        /* 3. the lo row, then the hi row */
        const float16 none = (float16)(NAN);
        __global element *to = bounds + bounds_offset + page * bounds_page_stride +
                               head * bounds_head_stride + channel;
        store16(select(lo, none, nan), to);
        store16(select(hi, none, nan), to + HEAD_DIM);
    }
}
