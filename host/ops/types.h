/* SPDX-License-Identifier: Apache-2.0 */
/* What ops share: places in memory, K and V with their bounds, rows and their lanes, weights, lists.
 * What is said here of ranges holds for every op. */
#ifndef TMS_OPS_TYPES_H
#define TMS_OPS_TYPES_H

#include "host/base/dtype.h"
#include "host/base/shape.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tms_mem tms_mem;     /* device memory; each backend has its own */
typedef struct tms_event tms_event; /* a point in the queue */

/* A place in device memory: `offset` is in bytes. mem == NULL: absent, where that is allowed. */
typedef struct tms_ref {
    tms_mem *mem;
    uint64_t offset;
} tms_ref;

/* Paged K and V, and their bounds. In elements of `dtype`, with page id p, KV head h, slot s:
 *   K row at  p*page_stride + h*head_stride + s*slot_stride,   V row value_offset further on;
 *   lo row at p*bounds_page_stride + h*bounds_head_stride,     hi row head_dim further on.
 * The cache's own layout: page_stride = 2*page_size*head_dim, head_stride = 0,
 * slot_stride = head_dim, value_offset = page_size*head_dim, bounds_page_stride = 2*head_dim,
 * bounds_head_stride = 0. A caller's cache with one page list for all heads has head strides and a
 * list head stride of 0. A backend may refuse (E_UNSUPPORTED) rows that do not all begin at
 * multiples of 16 bytes.
 * A caller's K and V, of f32, f16 or bf16, may also lie as follows, which ops that only read them take
 * (bounds, score_pages, page_mass, attend, sparse_attend, observe); a backend may refuse it:
 *   apart           V rows at strides of their own, in other memory or in the same; value_offset is 0;
 *   channel_stride  channel c of a K row c*channel_stride further on, of a V row too, or by that of
 *                   `apart`;
 *   page_size       any power of two up to 256.
 * q8 (tamis_dtype): strides and offsets are in bytes, and even. The int8 rows of a page's K lie
 * one behind another, slot_stride = head_dim; behind all page_size of them their scales, f16
 * [page_size][tms_blocks]; V's the same. A pair of bounds is lo, hi, then one scale f16
 * [tms_blocks] for blocks of both.
 * q4: strides and offsets as in q8, slot_stride = head_dim too, though a row has 16 bytes for
 * each block: byte i holds n of channel i in its low half and of channel i + 16 in its high half (0
 * where a block has 16 channels). Rows of K lie one behind another, and behind all page_size of
 * them their minima and scales, f16 [page_size][tms_blocks][m, d]; V's the same.
 * k8v4: K as in q8, V as in q4. Bounds of q4 and k8v4 are those of q8.
 * In the cache's own layout a page's K takes tms_keys_size, its V tms_values_size, a pair
 * tms_bounds_pair. */
typedef struct tms_apart {
    tms_ref data; /* mem NULL: V rows are where value_offset says */
    uint64_t page_stride, head_stride, slot_stride, channel_stride; /* the last: 0 means 1 */
} tms_apart;
typedef struct tms_kv {
    tms_ref data;
    tms_ref bounds;           /* may be absent where an op does not read or write bounds */
    tamis_dtype dtype;        /* of K and V */
    tamis_dtype bounds_dtype; /* where there are bounds: tms_bounds_dtype of K and V, or q8 */
    uint32_t page_size;       /* 8, 16, 32, 64; where K and V are only read see above */
    uint32_t head_dim;        /* TMS_HEAD_DIMS */
    uint64_t page_stride, head_stride, slot_stride, value_offset;
    uint64_t bounds_page_stride, bounds_head_stride;
    uint64_t channel_stride; /* 0 means 1 */
    tms_apart apart;
} tms_kv;

/* Whether the channels of a row of K, and of V, are adjacent. */
static inline bool tms_channels_adjacent(const tms_kv *kv) {
    return kv->channel_stride <= 1 && kv->apart.channel_stride <= 1;
}

/* In units: page_size such rows with what lies behind them. */
static inline uint64_t tms_rows_size(tamis_dtype dtype, uint32_t page_size, uint32_t head_dim) {
    const uint32_t numbers = tms_block_numbers(dtype) * tms_blocks(head_dim);
    return (uint64_t)page_size * (tms_row_size(dtype, head_dim) + 2 * numbers);
}
/* In units: K and V of a page in the cache's own layout. */
static inline uint64_t tms_keys_size(tamis_dtype dtype, uint32_t page_size, uint32_t head_dim) {
    return tms_rows_size(tms_key_dtype(dtype), page_size, head_dim);
}
static inline uint64_t tms_values_size(tamis_dtype dtype, uint32_t page_size, uint32_t head_dim) {
    return tms_rows_size(tms_value_dtype(dtype), page_size, head_dim);
}
/* In bytes: the same. */
static inline uint64_t tms_key_bytes(tamis_dtype dtype, uint32_t page_size, uint32_t head_dim) {
    return tms_keys_size(dtype, page_size, head_dim) * tms_kv_unit(dtype);
}
static inline uint64_t tms_value_bytes(tamis_dtype dtype, uint32_t page_size, uint32_t head_dim) {
    return tms_values_size(dtype, page_size, head_dim) * tms_kv_unit(dtype);
}
/* In units: the bounds of a page, where they have blocks up to the next multiple of 16. */
static inline uint64_t tms_bounds_pair(tamis_dtype dtype, uint32_t head_dim) {
    const uint32_t scales = 2 * tms_block_numbers(dtype) * tms_blocks(head_dim);
    return 2ull * head_dim + (scales + 15) / 16 * 16;
}

/* Planes: 4 bytes for every slot of the cache's pages, [page id][page_size], without a head stride:
 * they exist only in caches whose page id determines the head. Either may be absent. */
typedef struct tms_planes {
    tms_ref positions; /* int32: the token's index in the text */
    tms_ref scores;    /* f32: the scores that an eviction keeps from step to step */
} tms_planes;

/* The most rows that a tile may have. */
#define TMS_TILE_ROWS 32

/* The query rows of one launch and the lanes they belong to, all tables in device memory, int32.
 *   tiles    [n_tiles][2]            (first row, number of rows 1..TMS_TILE_ROWS); the tiles cover
 *                                    every row once; rows of a tile are of one sequence, by
 *                                    ascending position
 *   row_seq  [n_rows]                index of the row's sequence in `table`
 *   visible  [n_rows][n_kv_heads]    the row sees no slot of its lane from this one on, 0: none
 *   first    [n_rows][n_kv_heads]    the row sees no slot before this one, from 0 on, which may lie
 *                                    beyond `visible`; may be absent: 0. Only what makes or takes a
 *                                    logit and what chooses pages for it goes by it: score_pages,
 *                                    page_mass, select that is not wide, attend, sparse_attend,
 *                                    observe
 *   table    page ids: ordinal i of (sequence b, KV head h) at b*seq_stride + h*head_stride + i
 * n_rows == 0 is a valid launch of every op: it builds the kernels that the shape needs and
 * computes nothing; tables may be absent then. */
typedef struct tms_batch {
    uint32_t n_rows, n_tiles;
    uint32_t n_heads, n_kv_heads; /* group = n_heads / n_kv_heads, 1..TMS_MOST_GROUP */
    tms_ref tiles, row_seq, visible, first, table;
    uint64_t seq_stride, head_stride; /* elements of table */
    uint32_t max_visible; /* no entry of `visible` is larger; known to the host, sizes the launch */
    uint32_t max_seen; /* no row sees more slots of a lane; 0: max_visible. No bit depends on it */
    uint32_t max_tile_rows; /* no tile has more rows; 1 is a decode launch */
} tms_batch;

/* n / by, rounded up. */
static inline uint64_t tms_divide_up(uint64_t n, uint64_t by) {
    return n / by + (n % by != 0);
}

/* Elements from the first of rows of `width` elements to behind their last. */
static inline uint64_t tms_rows_extent(uint64_t n_rows, uint64_t stride, uint64_t width) {
    return n_rows ? (n_rows - 1) * stride + width : 0;
}

/* The most entries of `granularity` slots of which a row sees a slot. */
static inline uint32_t tms_batch_entries(const tms_batch *b, uint32_t granularity) {
    const uint32_t all = b->max_visible / granularity + (b->max_visible % granularity != 0);
    if (!b->first.mem || b->max_seen == 0) return all;
    /* What is seen may begin with the last slot of an entry. */
    const uint32_t touched = (b->max_seen + granularity - 2) / granularity + 1;
    return touched < all ? touched : all;
}

/* The most of these that are full, which alone have scores. */
static inline uint32_t tms_batch_full_entries(const tms_batch *b, uint32_t granularity) {
    const uint32_t full = b->max_visible / granularity, all = tms_batch_entries(b, granularity);
    return full < all ? full : all;
}

/* What a dot product of a query and a key becomes, in attend and in whatever weighs slots as attend
 * does: logit = scale·q·k; soft_cap > 0: cap·tanh(logit/cap), finite for an infinite one. A logit of
 * a slot that a row sees counts as NaN unless it is finite in fp32.
 * sinks, f32 [n_heads], may be absent: a further logit of each query head, which is in the sum of the
 * softmax and has no value (sink, below attend). */
typedef struct tms_logit {
    float scale, soft_cap;
    tms_ref sinks;
} tms_logit;

/* f32 rows of activations: element (row, i) at row*stride + i behind `ref`. */
typedef struct tms_matrix {
    tms_ref ref;
    uint64_t stride; /* elements */
} tms_matrix;

/* A matrix of weights [n_out][n_in] in one of the layouts of tamis/types.h. The rows of a quantised
 * type are whole blocks: n_in is a multiple of tamis_weight_block(type). `ref` is at a multiple of 4
 * bytes; blocks and rows behind it are at multiples of 2 alone, of MXFP4 at any byte, strips at
 * multiples of 16. A backend
 * may lack strips, and answers E_UNSUPPORTED then. An element's value, by the block it lies in, with
 * f16 d, dmin and m widened exactly and everything else an integer:
 *   Q8_0   d·q                                   f16 d, int8 q[32]
 *   Q4_0   d·(n - 8)                             f16 d, 16 bytes of nibbles
 *   Q4_1   d·n + m                               f16 d, f16 m, 16 bytes of nibbles
 *   Q5_0   d·(n + 16h - 16)                      f16 d, 4 bytes of h, 16 bytes of nibbles
 *   Q4_K   d·s·n - dmin·m                        f16 d, f16 dmin, 12 bytes of (s, m), 128 of nibbles
 *   Q6_K   d·s·(n - 32)                          128 bytes of low nibbles, 64 of two high bits each,
 *                                                int8 s[16], f16 d
 *   Q5_1   d·(n + 16h) + m                       f16 d, f16 m, 4 bytes of h, 16 bytes of nibbles
 *   Q5_K   d·s·(n + 16h) - dmin·m                f16 d, f16 dmin, 12 bytes of (s, m), 32 of h, 128 of
 *                                                nibbles
 *   Q3_K   d·(s - 32)·(n + 4h - 4)               32 bytes of h, 64 of two bits each, 12 of s, f16 d
 *   Q2_K   d·s·n - dmin·m                        16 bytes of (s, m), 64 of two bits each, f16 d,
 *                                                f16 dmin
 *   IQ4_NL d·v[n]                                f16 d, 16 bytes of nibbles
 *   IQ4_XS d·(s - 32)·v[n]                       f16 d, 16 high bits of s, 4 bytes of low nibbles of s,
 *                                                8 times 16 bytes of nibbles
 *   MXFP4  2^(e - 128)·v[n]                      byte e, 16 bytes of nibbles
 * Nibbles of 16 bytes: byte i holds element i low, element i + 16 high. Bit i of h is of element i.
 * Q4_K: of 64 elements byte i of 32 holds element i low, i + 32 high. Pair j of 6-bit (s, m) is of
 * elements 32j to 32j + 31: for j < 4 the low 6 bits of bytes j and j + 4; else the low and the high
 * nibble of byte j + 4, with the two high bits of bytes j - 4 and j above them.
 * Q6_K: of 128 elements byte i of 64 holds element i low, i + 64 high; bits 2k and 2k + 1 of byte i
 * of 32 are the high ones of element i + 32k; s[j] is of elements 16j to 16j + 15.
 * Q5_K: as Q4_K; bit j of byte i of h is of element 32j + i.
 * Q3_K, Q2_K: of 128 elements bits 2k and 2k + 1 of byte i of 32 are n of element i + 32k; h as in
 * Q5_K. Scale j is of elements 16j to 16j + 15. Of Q3_K its low four bits are those of byte j % 8, low
 * for j < 8, else high; its high two are bits 2(j / 4) and 2(j / 4) + 1 of byte 8 + j % 4. Of Q2_K s is
 * the low and m the high nibble of byte j.
 * IQ4_XS: s of elements 32j to 32j + 31 has its low four bits in byte j / 2, low for even j, its high
 * two in bits 2j and 2j + 1. v: the tables of tamis/types.h.
 * In fp32 every product of these is exact, or of MXFP4 too large and infinite, so an element is rounded
 * once, by its last operation, whatever the order, and has the same bits everywhere. */
typedef struct tms_weight_matrix {
    tms_ref ref;
    tamis_weight_type type;
    tamis_weight_layout layout;
} tms_weight_matrix;

static inline uint64_t tms_matrix_bytes(const tms_weight_matrix *w, uint64_t n_out, uint64_t n_in) {
    return tamis_weight_layout_bytes(w->layout, w->type, n_out, n_in);
}

/* Whether the elements are single numbers; then `type` has the value of their tamis_dtype. */
static inline bool tms_weight_is_float(tamis_weight_type type) {
    return type == TAMIS_WEIGHT_F32 || type == TAMIS_WEIGHT_F16 || type == TAMIS_WEIGHT_BF16;
}
/* Bytes of what a kernel's pointer to weights counts: an element, or one byte of a block. */
static inline size_t tms_weight_unit(tamis_weight_type type) {
    return tms_weight_is_float(type) ? tamis_dtype_size((tamis_dtype)type) : 1;
}

/* Page lists chosen for each (row, KV head): int32 ordinals, strictly ascending.
 *   pages  [n_rows][n_kv_heads][capacity]
 *   count  [n_rows][n_kv_heads]            entries of each list */
typedef struct tms_lists {
    tms_ref pages, count;
    uint32_t capacity;
} tms_lists;

/* Range. Products are formed and summed in fp32, in an order that differs between backends; the
 * reference uses fp64. Where a product, or a sum of some of the terms, leaves fp32's range, the
 * result may be an infinity or NaN, even if the exact result, which the reference gives, is finite.
 * Finite inputs alone do not exclude this; a sum of the terms' absolute values below FLT_MAX does.
 * Such a result is then treated as what it is, a logit as not finite, a score as NaN. It affects
 * only the values that are joined with it, not other rows and heads. */

#endif
