/* SPDX-License-Identifier: Apache-2.0 */
/* Read bandwidth on CPUs: of memory in one piece, and of the pages of lanes in the orders in which
 * attention could read them. Sums of all that is read. */
#include "cpu.clh"

#ifndef STREAMS
#define STREAMS 4
#endif
#ifndef AHEAD
#define AHEAD 0 /* 0: no prefetch */
#endif
#ifndef K_BYTES
#define K_BYTES 4096 /* of a page; a multiple of 16 */
#endif
#ifndef V_BYTES
#define V_BYTES 4096
#endif
#ifndef ROW
#define ROW 256 /* bytes of a page before those of the next one; a multiple of 64 */
#endif
#ifndef SPLIT_PAGES
#define SPLIT_PAGES 512 /* TMS_CL_SPLIT_PAGES */
#endif

typedef uint uint16_at4 __attribute__((ext_vector_type(16), aligned(4)));
typedef uint uint4_at4 __attribute__((ext_vector_type(4), aligned(4)));

static inline uint total_of(uint16 sum) {
    const uint8 a = sum.lo + sum.hi;
    const uint4 b = a.lo + a.hi;
    return (b.x + b.y) + (b.z + b.w);
}

/* `n` blocks of 64 bytes, each read once; a work-item reads a run of its own as STREAMS streams
 * side by side, prefetching AHEAD blocks on. */
__kernel ONE_ITEM void read_run(REF_PARAMS(const uint, from), ulong n, REF_PARAMS(uint, out)) {
    const ulong stream = n / get_global_size(0) / STREAMS;
    __global const uint *p = from + from_offset + 16 * stream * STREAMS * get_global_id(0);
    uint16 sum[STREAMS];
    UNROLL for (int s = 0; s < STREAMS; s++) sum[s] = 0;
    for (ulong i = 0; i < stream; i++)
        UNROLL for (int s = 0; s < STREAMS; s++) {
            __global const uint *at = p + 16 * (i + s * stream);
            sum[s] += *(__global const uint16_at4 *)at;
            if (AHEAD) PREFETCH_TO(2, at + 16 * AHEAD);
        }
    UNROLL for (int s = 1; s < STREAMS; s++) sum[0] += sum[s];
    /* Nobody reads the sum; the store keeps the compiler from removing the loop. */
    if (total_of(sum[0]) == 0x5ca1ab1e) out[out_offset] = 1;
}

/* ---- Pages ----------------------------------------------------------------------------------- */

#define WIDEST 16 /* pages in turn */

/* What an item reads: the pages ids[0..n), K at `keys`, V value_offset further on. While a page is
 * read, the same place of the page `ahead` entries on is prefetched; 0: none is. */
typedef struct page_list {
    __global const uchar *keys;
    ulong page_stride, value_offset;
    __global const int *ids;
    int n, ahead;
} page_list;

static inline __global const uchar *page_at(const page_list *p, int i) {
    return p->keys + p->ids[min(i, p->n - 1)] * p->page_stride;
}

/* `bytes` bytes, those of K or, `offset` further on, of V, of `width` pages from `first` on: a row of
 * each in turn. */
static inline ALWAYS uint16 read_rows(uint16 sum, const page_list *p, int first, int width,
                                      ulong offset, int bytes, bool fetch) {
    const int whole = bytes / 64 * 64;
    __global const uchar *at[WIDEST], *next[WIDEST];
    UNROLL for (int t = 0; t < width; t++) {
        at[t] = page_at(p, first + t) + offset;
        next[t] = page_at(p, first + t + p->ahead) + offset;
    }
    for (int i = 0; i < whole; i += ROW)
        UNROLL for (int t = 0; t < width; t++)
            UNROLL for (int j = i; j < i + ROW; j += 64) {
                if (whole % ROW && j >= whole) break;
                sum += *(__global const uint16_at4 *)(at[t] + j);
                if (fetch) PREFETCH_TO(2, next[t] + j);
            }
    for (int i = whole; i < bytes; i += 16)
        UNROLL for (int t = 0; t < width; t++)
            sum.s0123 += *(__global const uint4_at4 *)(at[t] + i);
    return sum;
}

/* K of `step` pages, then their V, `width` of the pages in turn; what is left of the list, page
 * after page. */
static inline ALWAYS uint16 read_steps(const page_list *p, int step, int width, bool fetch) {
    uint16 sum = 0;
    int first = 0;
    for (; first + step <= p->n; first += step) {
        for (int t = 0; t < step; t += width)
            sum = read_rows(sum, p, first + t, width, 0, K_BYTES, fetch);
        for (int t = 0; t < step; t += width)
            sum = read_rows(sum, p, first + t, width, p->value_offset, V_BYTES, fetch);
    }
    for (int t = first; t < p->n; t++) sum = read_rows(sum, p, t, 1, 0, K_BYTES, fetch);
    for (int t = first; t < p->n; t++)
        sum = read_rows(sum, p, t, 1, p->value_offset, V_BYTES, fetch);
    return sum;
}

/* Pages that an order reads before the next ones; `order` is a tms_page_reading. */
static inline int step_of(uint order) {
    const int steps[] = {1, 4, 4, 8, 16};
    return steps[order];
}

/* tms_page_read of host/device.h: every page of every lane once. The queue's items are those of
 * attend_cpu.cl: pieces of splits. */
__kernel ONE_ITEM void read_pages(REF_PARAMS(const uchar, kv), ulong page_stride,
                                  ulong value_offset, REF_PARAMS(const int, table),
                                  REF_PARAMS(const int, count), uint capacity, uint order,
                                  uint ahead, uint n_lanes, uint pieces, uint piece_pages,
                                  REF_PARAMS(uint, out), QUEUE_PARAMS) {
    FOR_EACH_QUEUED(item) {
        const uint lane = item / pieces % n_lanes;
        const int at = item % pieces * piece_pages;
        const int first = item / pieces / n_lanes * SPLIT_PAGES + at;
        const page_list list = {
            kv + kv_offset, page_stride, value_offset,
            table + table_offset + (ulong)lane * capacity + first,
            min(count[count_offset + lane] - first, min((int)piece_pages, SPLIT_PAGES - at)),
            ahead * step_of(order)};
        if (list.n <= 0) continue;
        uint16 sum = 0;
        switch (2 * order + (ahead > 0)) {
        case 0: sum = read_steps(&list, 1, 1, false); break;
        case 1: sum = read_steps(&list, 1, 1, true); break;
        case 2: sum = read_steps(&list, 4, 1, false); break;
        case 3: sum = read_steps(&list, 4, 1, true); break;
        case 4: sum = read_steps(&list, 4, 4, false); break;
        case 5: sum = read_steps(&list, 4, 4, true); break;
        case 6: sum = read_steps(&list, 8, 8, false); break;
        case 7: sum = read_steps(&list, 8, 8, true); break;
        case 8: sum = read_steps(&list, 16, 16, false); break;
        case 9: sum = read_steps(&list, 16, 16, true); break;
        }
        atomic_add(out + out_offset, total_of(sum));
    }
    leave_queue(queue, 0);
}
