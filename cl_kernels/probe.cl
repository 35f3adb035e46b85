/* SPDX-License-Identifier: Apache-2.0 */
/* Read bandwidth on GPUs: of memory in one piece, and of the pages of lanes. Sums of all that is
 * read; neighbouring work-items read neighbouring vectors. */
#include "common.clh"

static inline uint total_of(uint4 a) {
    return (a.x + a.y) + (a.z + a.w);
}

/* `n` blocks of 64 bytes, each read once. */
__kernel GROUP_OF(WG_SIZE) void read_strided(REF_PARAMS(const uint, from), ulong n,
                                           REF_PARAMS(uint, out)) {
    const ulong items = get_global_size(0);
    uint4 a = 0, b = 0;
    from += from_offset;
    ulong i = get_global_id(0);
    for (; i + items < 4 * n; i += 2 * items) {
        a += vload4(i, from);
        b += vload4(i + items, from);
    }
    if (i < 4 * n) a += vload4(i, from);
    /* Nobody reads the sum; the store keeps the compiler from removing the loop. */
    if (total_of(a + b) == 0x5ca1ab1e) out[out_offset] = 1;
}

/* tms_page_read of host/device.h: every page of every lane once, a page for a work-group at a time,
 * K and V side by side, vectors of 16 bytes. */
__kernel GROUP_OF(WG_SIZE) void read_pages(REF_PARAMS(const uchar, kv), ulong page_stride,
                                         ulong value_offset, REF_PARAMS(const int, table),
                                         REF_PARAMS(const int, count), uint capacity, uint n_lanes,
                                         uint max_pages, uint k_vectors, uint v_vectors,
                                         REF_PARAMS(uint, out)) {
    const ulong n = (ulong)n_lanes * max_pages;
    uint4 a = 0, b = 0;
    for (ulong i = get_group_id(0); i < n; i += get_num_groups(0)) {
        const ulong lane = i / max_pages, ordinal = i % max_pages;
        if ((int)ordinal >= count[count_offset + lane]) continue;
        __global const uchar *page =
            kv + kv_offset + table[table_offset + lane * capacity + ordinal] * page_stride;
        for (uint j = get_local_id(0); j < max(k_vectors, v_vectors); j += WG_SIZE) {
            if (j < k_vectors) a += vload4(j, (__global const uint *)page);
            if (j < v_vectors) b += vload4(j, (__global const uint *)(page + value_offset));
        }
    }
    atomic_add(out + out_offset, total_of(a + b));
}
