/* SPDX-License-Identifier: Apache-2.0 */
/* THE CONTRACT, op by op: shapes with strides, dtypes, ties, bytes moved, tolerance; at the end the
 * list of all ops. How an op is called is in device.h, how devices are driven in backend.h. */
#ifndef TMS_OPS_H
#define TMS_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tamis/device.h>

/* ---- Types that ops share -------------------------------------------------------------------- */

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
 * q8 (tamis_dtype): strides and offsets are in bytes, and even. The int8 rows of a page's K lie
 * one behind another, slot_stride = head_dim; behind all page_size of them their scales, f16
 * [page_size][tms_q8_blocks]; V's the same. A pair of bounds is lo, hi, then one scale f16
 * [tms_q8_blocks] for blocks of both.
 * k8v4: K and bounds as in q8. A V row has TMS_V4_BYTES for each block: byte i holds n of the block's
 * channel i in its low half, of channel i + 16, 0 if there is none, in its high half. V rows lie one
 * behind another, and behind all page_size of them their minima and scales, f16
 * [page_size][tms_q8_blocks][m, d].
 * In the cache's own layout a page's K takes tms_keys_size, its V tms_values_size, a pair
 * tms_bounds_pair. */
typedef struct tms_kv {
    tms_ref data;
    tms_ref bounds;           /* may be absent where an op does not read or write bounds */
    tamis_dtype dtype;        /* of K and V */
    tamis_dtype bounds_dtype; /* where there are bounds: tms_key_dtype of K and V, or q8 */
    uint32_t page_size;       /* 8, 16, 32, 64 */
    uint32_t head_dim;        /* 64, 80, 96, 128, 256 */
    uint64_t page_stride, head_stride, slot_stride, value_offset;
    uint64_t bounds_page_stride, bounds_head_stride;
} tms_kv;

/* The dtype of the keys of a cache, which is also that of its bounds unless it is told otherwise: what
 * reads keys alone takes k8v4 for q8. */
static inline tamis_dtype tms_key_dtype(tamis_dtype dtype) {
    return dtype == TAMIS_K8V4 ? TAMIS_Q8 : dtype;
}
/* Channels of a block of q8 and k8v4, bytes that it takes in a V row of k8v4; blocks of a row. */
#define TMS_Q8_BLOCK 32u
#define TMS_V4_BYTES 16u
static inline uint32_t tms_q8_blocks(uint32_t head_dim) {
    return (head_dim + TMS_Q8_BLOCK - 1) / TMS_Q8_BLOCK;
}
/* Bytes of what strides and offsets of K and V, or of bounds, count: an element, or a byte of q8 and
 * k8v4. */
static inline size_t tms_kv_unit(tamis_dtype dtype) {
    return tms_key_dtype(dtype) == TAMIS_Q8 ? 1 : tamis_dtype_size(dtype);
}
/* In these units: K and V of a page in the cache's own layout, and the bounds of a page, in q8 up to
 * the next multiple of 16. */
static inline uint64_t tms_keys_size(tamis_dtype dtype, uint32_t page_size, uint32_t head_dim) {
    const uint32_t scales = tms_key_dtype(dtype) == TAMIS_Q8 ? 2 * tms_q8_blocks(head_dim) : 0;
    return (uint64_t)page_size * (head_dim + scales);
}
static inline uint64_t tms_values_size(tamis_dtype dtype, uint32_t page_size, uint32_t head_dim) {
    if (dtype != TAMIS_K8V4) return tms_keys_size(dtype, page_size, head_dim);
    return (uint64_t)page_size * tms_q8_blocks(head_dim) * (TMS_V4_BYTES + 4);
}
static inline uint64_t tms_bounds_pair(tamis_dtype dtype, uint32_t head_dim) {
    const uint32_t scales = dtype == TAMIS_Q8 ? 2 * tms_q8_blocks(head_dim) : 0;
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
 *   visible  [n_rows][n_kv_heads]    the row sees this many first slots of its lane, 0 for none
 *   table    page ids: ordinal i of (sequence b, KV head h) at b*seq_stride + h*head_stride + i
 * n_rows == 0 is a valid launch of every op: it builds the kernels that the shape needs and
 * computes nothing; tables may be absent then. */
typedef struct tms_batch {
    uint32_t n_rows, n_tiles;
    uint32_t n_heads, n_kv_heads; /* group = n_heads / n_kv_heads, 1..16 */
    tms_ref tiles, row_seq, visible, table;
    uint64_t seq_stride, head_stride; /* elements of table */
    uint32_t max_visible; /* no entry of `visible` is larger; known to the host, sizes the launch */
    uint32_t max_tile_rows; /* no tile has more rows; 1 is a decode launch */
} tms_batch;

/* f32 rows of activations: element (row, i) at row*stride + i behind `ref`. */
typedef struct tms_matrix {
    tms_ref ref;
    uint64_t stride; /* elements */
} tms_matrix;

/* A packed matrix of weights [n_out][n_in] in GGUF's layout. The rows of a quantised type are whole
 * blocks: n_in is a multiple of tamis_weight_block(type). `ref` is at a multiple of 4 bytes; blocks
 * and rows behind it are at multiples of 2 alone. An element's value, by the block it lies in, with
 * f16 d, dmin and m widened exactly and everything else an integer:
 *   Q8_0   d·q                                   f16 d, int8 q[32]
 *   Q4_0   d·(n - 8)                             f16 d, 16 bytes of nibbles
 *   Q4_1   d·n + m                               f16 d, f16 m, 16 bytes of nibbles
 *   Q5_0   d·(n + 16h - 16)                      f16 d, 4 bytes of h, 16 bytes of nibbles
 *   Q4_K   d·s·n - dmin·m                        f16 d, f16 dmin, 12 bytes of (s, m), 128 of nibbles
 *   Q6_K   d·s·(n - 32)                          128 bytes of low nibbles, 64 of two high bits each,
 *                                                int8 s[16], f16 d
 * Nibbles of 16 bytes: byte i holds element i low, element i + 16 high. Bit i of h is of element i.
 * Q4_K: of 64 elements byte i of 32 holds element i low, i + 32 high. Pair j of 6-bit (s, m) is of
 * elements 32j to 32j + 31: for j < 4 the low 6 bits of bytes j and j + 4; else the low and the high
 * nibble of byte j + 4, with the two high bits of bytes j - 4 and j above them.
 * Q6_K: of 128 elements byte i of 64 holds element i low, i + 64 high; bits 2k and 2k + 1 of byte i
 * of 32 are the high ones of element i + 32k; s[j] is of elements 16j to 16j + 15.
 * In fp32 every product of these is exact, so an element is rounded once, by its last operation,
 * whatever the order, and has the same bits everywhere. */
typedef struct tms_weight_matrix {
    tms_ref ref;
    tamis_weight_type type;
} tms_weight_matrix;

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

/* ---- Ops on the cache ------------------------------------------------------------------------ */

/* rotate: RoPE on rows in place, f32 [n_rows][n_heads][head_dim] at row*stride.
 * Pair i (of n_rot/2) is rotated by the angle position*frequency_i:
 *   (a, b) -> (a·cos - b·sin, a·sin + b·cos).
 *   pairing half: (x[i], x[i + n_rot/2]); adjacent: (x[2i], x[2i + 1]); channels from n_rot on
 *              are not changed.
 *   positions  int32 [n_rows], 0 <= |position| < 2^20; a negative one rotates backwards, so that a
 *              difference of two positions re-rotates a cached key
 *   table      f32 [2][1024][n_rot/2][2], made by tms_rotate_table: (cos, sin) of j*frequency_i and
 *              of 1024*j*frequency_i; the angle's cos and sin follow by the addition theorem, so
 *              large positions lose no accuracy on any device.
 * Bytes: 2*4*n_rows*n_heads*n_rot.
 * Tolerance: |x| * 4e-7 absolute per pair norm (three fp32 roundings). */
typedef enum tms_pairing { TMS_PAIR_HALF = 0, TMS_PAIR_ADJACENT = 1 } tms_pairing;
typedef struct tms_rotate {
    tms_matrix x;
    uint32_t n_rows, n_heads, head_dim, n_rot;
    tms_pairing pairing;
    tms_ref positions, table;
} tms_rotate;

/* write_rows: writes K and V rows into given slots of lanes; append, replace and scatter are one
 * op.
 *   k, v   [n_rows][n_kv_heads][head_dim] at row*stride, dtype f32 or kv->dtype; f32 if that is q8 or
 *          k8v4
 *   slots  int32 [n_rows][n_kv_heads]: slot in the lane, < 0 skips; no two rows of a launch name
 *          one slot
 *   planes     in the planes that are given, a written slot gets its row's position and score 0
 *   positions  int32 [n_rows], only with a plane of positions
 *   rotation   n_rot 0: absent. Else the launch first changes the rows of k, and query rows q beside
 *              them, in place, those of skipped slots too: each head as norm does, dim = head_dim,
 *              where its weights are given; then as rotate does. dtype is then f32
 * Of `batch`: n_rows, n_kv_heads, row_seq, table and its strides; with a rotation n_heads. Rows of q, k
 * and v may lie between each other in one memory; with a rotation no two share an element.
 * Conversion from f32 rounds to nearest even; f16 overflow gives infinity, NaN stays NaN; q8 and
 * k8v4 as in tamis_dtype.
 * Bytes: rows read and written once; with a rotation q and k once more each way.
 * Tolerance: exact, bit for bit (NaN as NaN). With a rotation the bits are those of rotate on q and on k
 * followed by write_rows, on the same backend; with norms each head is within norm's tolerance
 * before it is rotated. */
typedef struct tms_rotation {
    tms_matrix q; /* f32 [n_rows][n_heads][head_dim] */
    uint32_t n_rot;
    tms_pairing pairing;
    tms_ref positions, table; /* as rotate's */
    tms_ref q_norm, k_norm;   /* f32 [head_dim]; may be absent */
    float eps;                /* of the norms */
} tms_rotation;
typedef struct tms_write_rows {
    tms_kv kv;
    tms_batch batch;
    tms_ref k, v, slots;
    uint64_t k_stride, v_stride; /* elements of `dtype` from row to row */
    tamis_dtype dtype;
    tms_planes planes;
    tms_ref positions;
    tms_rotation rotation;
} tms_write_rows;

/* load_rows: writes rows of K, of V or of both that have been stored, as write_rows does; normalises
 * and rotates K on its way.
 *   k, v       [n_rows][n_kv_heads][head_dim] at row*stride of dtype f32, f16 or bf16, whatever that
 *              of kv is; either may be absent: then what slots hold of it stays
 *   slots      as write_rows's
 *   planes     as write_rows's; only with k
 *   positions  int32 [n_rows], with a plane of positions or with n_rot
 *   n_rot      0: K rows are written as they are. Else they are widened to f32, rotated as rotate does
 *              by their positions, and rounded once; k itself is not changed
 *   table      as rotate's, with n_rot
 *   k_norm     f32 [head_dim]: each head of a K row is normalised first, as norm does with eps; may be
 *              absent
 * Of `batch`: n_rows, n_kv_heads, row_seq, table and its strides.
 * Bytes: rows read and written once. Tolerance: exact, bit for bit (NaN as NaN). A rotated K row has
 * the bits that write_rows gives, with the same rotation, for the same row widened to f32; with a norm
 * each head is within norm's tolerance before it is rotated. */
typedef struct tms_load_rows {
    tms_kv kv;
    tms_batch batch;
    tms_ref k, v, slots;
    uint64_t k_stride, v_stride; /* elements of `dtype` from row to row */
    tamis_dtype dtype;
    tms_planes planes;
    tms_ref positions;
    uint32_t n_rot;
    tms_pairing pairing;
    tms_ref table, k_norm;
    float eps; /* of the norm */
} tms_load_rows;

/* read_rows: reads K and V rows from given slots, widened to f32.
 *   seq, head, slot  int32 [n]: sequence index in table, KV head, slot
 *   k, v             f32 [n][head_dim]; either may be absent
 * Bytes: 2*n*head_dim*(size + 4). Tolerance: exact. */
typedef struct tms_read_rows {
    tms_kv kv;
    tms_ref table;
    uint64_t seq_stride, head_stride;
    uint32_t n;
    tms_ref seq, head, slot, k, v;
} tms_read_rows;

/* copy_pages: copies blocks of `bytes` (a multiple of 16) inside one memory: pairs int32 [n][2]
 * (from, to) of block indices. No block is both a source and a destination; destinations differ.
 * Exact. */
typedef struct tms_copy_pages {
    tms_ref data;
    uint64_t bytes;
    uint32_t n;
    tms_ref pairs;
} tms_copy_pages;

/* write_table: entries int32 [n][2] (index, value): data[index] = value, int32; indices differ.
 * Exact. */
typedef struct tms_write_table {
    tms_ref data;
    uint32_t n;
    tms_ref entries;
} tms_write_table;

/* bounds: a pair (lo, hi) from the page_size keys of each page, channel by channel, for each of
 * n_kv_heads heads (1 in the cache's own layout, where the page id determines the head).
 *   pages  int32 [n] page ids, all full pages; negative ids are skipped
 *   MINMAX    lo = min, hi = max (Quest, section 3.4): true bounds of a logit
 *   MEAN_STD  lo = mean - width·std, hi = mean + width·std, std over page_size, not page_size - 1
 *             (UNIQUE, arXiv 2605.27740); sums in fp32 in slot order, std from squares of
 *             differences to the mean, never below 0; where mean and width·std are finite in fp32,
 *             lo and hi are clamped to the dtype's largest finite value (f16: 65504), so that no
 *             infinity is stored
 *   MEAN      lo = hi = mean: a centroid
 * -0 and +0 are equal, either may be stored; a channel with a NaN key gets lo = hi = NaN, so that
 * its page scores NaN; infinite keys give what fp32 arithmetic gives.
 * Bounds in q8: what the kind gives in fp32 is rounded outward, lo down and hi up, so that true
 * bounds stay true; MEAN to nearest. The scale is that of a block of lo and hi together, as in
 * tamis_dtype: one NaN, infinite or too large value makes all of the block NaN.
 * Bytes: n*n_kv_heads*(page_size + 2)*head_dim*size. Tolerance: MINMAX exact (values); else
 * 2e-6 * (max|key| of the channel) * (1 + width) and the rounding to the dtype; in q8 a scale
 * that differs by one place, and one step of it. */
typedef enum tms_bounds_kind {
    TMS_BOUNDS_MINMAX = 0,
    TMS_BOUNDS_MEAN_STD = 1,
    TMS_BOUNDS_MEAN = 2
} tms_bounds_kind;
typedef struct tms_bounds {
    tms_kv kv;
    uint32_t n, n_kv_heads;
    tms_ref pages;
    tms_bounds_kind kind;
    float width; /* of MEAN_STD, >= 0 and finite */
} tms_bounds;

/* ---- Selection ------------------------------------------------------------------------------- */

typedef enum tms_group { TMS_GROUP_MAX = 0, TMS_GROUP_MEAN = 1, TMS_GROUP_SUM = 2 } tms_group;

/* score_pages: for each (row, KV head) and each full page it sees, ordinal i < visible / page_size:
 *   s_g(i) = sum_d max(q_gd·lo_id, q_gd·hi_id) per query head g of the group, fp32;
 *   score(i) = max, mean or sum of s_g over the group. A NaN product makes the score NaN.
 *   q       [n_rows][n_heads][head_dim] f32
 *   scores  f32 [n_rows][n_kv_heads][stride]; entries from visible/page_size on are not written
 * Source: Quest, section 3.4, Algorithm 1; the (lo, hi) form works for every kind of bounds.
 * Bytes: n_rows*n_kv_heads*pages*2*head_dim*size.
 * Tolerance: 1e-6 * sum_d |max term| (order of sums). */
typedef struct tms_score_pages {
    tms_kv kv;
    tms_batch batch;
    tms_matrix q;
    tms_group group;
    tms_ref scores;
    uint32_t stride;
} tms_score_pages;

/* page_mass: for each (row, KV head) and each full page it sees, the share of the true attention
 * that falls on the page; the selection oracle scores by it. It reads every key: not a fast path.
 *   m_g(i) = Σ exp(logit - lse_g) over the slots of page i, logits and lse_g (over all visible
 *   slots, the partial page included) as in attend;
 *   score(i) = max, mean or sum of m_g over the group.
 *   q       [n_rows][n_heads][head_dim] f32
 *   scores  f32 [n_rows][n_kv_heads][stride]; entries from visible/page_size on are not written
 * A NaN or infinite logit among the visible ones makes every score of that (row, KV head) NaN.
 * Masses below the range of fp32 are 0 and so equal; select then takes the newer page. No
 * intervals, no lists.
 * scratch: its size follows from n_rows, n_heads, n_kv_heads and stride, and is enough for launches
 * of smaller numbers; contents need not be kept.
 * Bytes: per (row, KV head) every visible K once per query head. Tolerance: 4e-6 * (1 + max|logit|)
 * absolute for MAX and MEAN, group times that for SUM. */
typedef struct tms_page_mass {
    tms_kv kv;
    tms_batch batch;
    tms_matrix q;
    tms_group group;
    tms_ref scores;
    uint32_t stride;
    float scale, soft_cap;
    tms_ref scratch;
} tms_page_mass;

/* select: exact, deterministic top-k. For each (row, KV head) over the entries of its lane, an
 * entry being `granularity` consecutive slots (a page, a chunk, a token):
 * n = ceil(visible / granularity) entries, of which the first floor(visible / granularity) have
 * scores.
 *   1. protected entries are taken: ordinals < ceil(sinks / granularity); ordinals >=
 *      floor(max(visible - recent, 0) / granularity) if recent > 0; and an entry without a score.
 *   2. the rest, up to k entries in all, by (score desc, ordinal desc); -0 = +0; NaN after
 *      everything, equal ones again by ordinal desc. If n <= k, all are taken. If more than k are
 *      protected, all of those are taken (lists must have the capacity; the check of a selection
 *      excludes this case).
 *   3. the list is ascending by ordinal.
 * scores absent: step 2 goes by ordinal desc alone (the newest), which is the selection window.
 * Selections of pages ask for recent >= 1, so that a row's own page is taken, full or not.
 *   scores  f32 as score_pages wrote them;  lists: capacity >= min(n, max(k, protected))
 * That is the plain selection. `wide` adds the following, each part zero or absent if not used:
 *   forced     lists of another select on the same entries, which are protected, too. That select
 *              has the same sinks and recent, or `lists` have room for the protected entries of
 *              both. Entries without room are an error of the reference and cut off elsewhere
 *   k_table    int32 [n_rows][n_kv_heads]: a lane takes floor(k_table·k_share / TMS_SHARE_ONE) in
 *              place of k; below 0 counts as 0. LANE scope only. k is its upper limit, by which the
 *              lists are sized
 *   scope ROW  the lanes of a row compete: `total` entries of all of them. 1. protected entries;
 *              2. of each lane the best `floor` others; 3. the rest up to `total` by (score desc,
 *              ordinal desc, KV head asc). More than `total` after step 2: all of those. k is not
 *              read. KV heads may be those of all layers of a sequence
 *   mass       > 0, LANE scope: step 2 ends early, as soon as the scores of the taken entries,
 *              protected ones included, sum to `mass`. Summed exactly, in integers: a score counts
 *              as floor(score·2^32), one below 0 or NaN as 0, one above 1024 as 1024
 *   positions  int32 plane [page id][page_size] with row_positions int32 [n_rows], the positions of
 *              the rows: slots need not be in the order of their tokens, and protection goes by
 *              position: position < sinks, or > row position - recent, for any visible slot of the
 *              entry, and the entry that holds the row's own position. LANE scope. k is then never
 *              exceeded: first come the own entry, those without score, sinks and forced, by
 *              ordinal desc; then recent ones, the one with the newest position first. scores
 *              absent: the rest by largest position desc. Positions are from 0 and below 2^22
 * At most 2^22 entries per lane, 2^32 - 1 in a row whose lanes compete. `tiles` may be absent; in
 * wide selections without positions row_seq and table, too.
 * scratch: only for wide launches; its size follows from n_rows, n_kv_heads, max_visible and
 * granularity, and is enough for launches of smaller numbers.
 * Bytes: 4*entries read once (device scratch aside). Tolerance: bit-equal lists everywhere. */
typedef enum tms_scope { TMS_SCOPE_LANE = 0, TMS_SCOPE_ROW = 1 } tms_scope;
#define TMS_SHARE_ONE 65536u
typedef struct tms_select_wide {
    tms_scope scope;
    uint32_t total, floor;
    tms_lists forced; /* pages.mem == NULL: none */
    tms_ref k_table;
    uint32_t k_share; /* of TMS_SHARE_ONE; 0 stands for TMS_SHARE_ONE */
    float mass;
    tms_ref positions, row_positions;
    uint32_t page_size; /* with positions */
} tms_select_wide;
typedef struct tms_select {
    tms_batch batch;
    uint32_t granularity;
    uint32_t k, sinks, recent;
    tms_ref scores;
    uint32_t stride;
    tms_lists lists;
    tms_select_wide wide;
    tms_ref scratch;
} tms_select;
/* Whether any part of `wide` is used. */
static inline bool tms_select_is_wide(const tms_select *p) {
    const tms_select_wide *w = &p->wide;
    return w->scope != TMS_SCOPE_LANE || w->forced.pages.mem || w->k_table.mem || w->mass > 0 ||
           w->positions.mem;
}

/* ---- Attention ------------------------------------------------------------------------------- */

/* attend: softmax attention of query rows over their lanes' slots.
 * Row r of KV head h sees the slots s < visible[r][h] that lie in the pages of its list (all pages
 * if lists are absent) and whose position p satisfies lo <= p <= hi of the row's interval.
 *   logit = scale·q·k; soft_cap > 0: logit = cap·tanh(logit/cap), finite for an infinite one;
 *   out = Σ softmax(logit)·v, lse = natural log of Σ exp(logit).
 *   q, out     [n_rows][n_heads][head_dim] f32; query head = h*group + g; they do not overlap
 *   lse        f32 [n_rows][n_heads], may be absent
 *   positions  int32 plane [page id][page_size], may be absent: position = slot
 *   intervals  int32 [n_rows][2] (lo, hi), may be absent: all positions
 *   logits     f32 [n_rows][n_heads][logit_stride], may be absent; only in launches with one row
 *              per tile: the logit of every slot of the pages that are read, NaN if it is not
 *              finite, -inf for slots < visible of those pages that the row does not see. Slots of
 *              other pages, and from visible on, are not written
 * A row that sees nothing: out = 0, lse = -inf. Keys are summed in splits that depend only on the
 * row's own list and are merged in order. So within one form the result of a row depends only on
 * the row and on whether it is alone in its tile, not on the other rows of the launch. There is one
 * exception: its last bits may change if another row of its tile sees a V that is not finite. A NaN
 * or infinite logit of a slot that the row sees gives NaN out for that (row, head). Weighted values
 * are summed in fp32 before they are normalized: if |v| exceeds FLT_MAX divided by the number of
 * slots seen, a sum may overflow to infinity or NaN.
 * scratch: its size follows from n_rows, n_heads, n_kv_heads, head_dim, page_size, dtype,
 * max_tile_rows, max_pages and whether there are lists, and is enough for launches of smaller
 * numbers of rows and pages; contents need not be kept.
 * Bytes: per (row, KV head) the seen pages' K and V once, not once per query head; for a tile of
 * rows once.
 * Tolerance, with T = max over the seen slots of Σ_d |scale·q_d·k_d|, whose rounding (8 units of
 * fp32) remains in a logit where the terms cancel:
 *   |out - ref| <= max|v| * (2e-6 * (1 + max|logit|) + 1e-6 * T)
 * for f32 accumulation of up to 1M keys in blocks; K, V are read exactly;
 *   lse: 2e-6 * (1 + |lse| + max|logit|) + 5e-7 * T;
 *   logits: 1e-6 * T. */
typedef struct tms_attend {
    tms_kv kv;
    tms_batch batch;
    tms_lists lists;    /* pages.mem == NULL: all pages */
    uint32_t max_pages; /* no list is longer; without lists ceil(max_visible / page_size) */
    tms_matrix q, out;
    tms_ref lse, positions, intervals;
    float scale, soft_cap;
    tms_ref scratch;
    tms_ref logits;
    uint64_t logit_stride; /* elements, >= max_visible */
} tms_attend;

/* sparse_attend: score_pages, select and attend in fewer launches than three, where that is faster.
 * Fields as in those ops: select.batch, score.batch and attend.batch are the same; attend.lists is
 * select.lists and is written too, equal bit for bit to the lists that select gives for the fused
 * scores. A backend may offer it for some shapes only: sparse_attend_refusal says why not, and the
 * caller then runs the three ops. The result is that of the three ops, except where scores that
 * differ within their tolerance change the selected pages. If `halfway` is not NULL and attend is a
 * launch of its own, *halfway gets a timed mark before it; the caller sets it to NULL before and
 * frees it. */
typedef struct tms_sparse_attend {
    tms_score_pages score;
    tms_select select;
    tms_attend attend;
    tms_event **halfway;
} tms_sparse_attend;

/* merge: states of the same rows into one. lse = log Σ exp(lse_i); out = Σ exp(lse_i - lse)·out_i.
 *   outs  f32 [n_parts][n][dim]; lses f32 [n_parts][n];
 *   out   f32 [n][dim]; lse f32 [n], may be absent
 * Parts with lse -inf add nothing, whatever their out holds; if all are -inf, out is 0 and lse
 * -inf. If only one part is not, it is copied bit for bit. Merged in part order. Tolerance: 1e-6 *
 * max|out_i|, lse 1e-6 * (1 + |lse|). */
typedef struct tms_merge {
    uint32_t n_parts, n, dim;
    tms_ref outs, lses, out, lse;
} tms_merge;

/* ---- Eviction -------------------------------------------------------------------------------- */

/* In these ops a row of `batch` is an item: one sequence, where visible[i][h] is the number of
 * slots of its lane of KV head h; tiles are not read. Only observe has query rows in its batch, and
 * items beside them. */

/* A value for every slot of lanes, f32, in one of two places:
 *   beside the cache  slot s of (item i, KV head h) at (i*n_kv_heads + h)*stride + s; stride > 0
 *   in a plane        at page id * page_size + s % page_size, the page id from the batch's table;
 *                     stride == 0 */
typedef struct tms_values {
    tms_ref ref;
    uint64_t stride; /* elements */
} tms_values;

/* observe: the attention weights that query rows give to each key of their lane.
 *   w(t, g, s) = exp(logit - lse) for the slots s < visible[t][h] of row t, 0 for later ones; g is
 *   a query head of the group of KV head h; logit as in attend (scale, soft cap).
 * Item i owns rows spans[i] = (first, number >= 1), all of one sequence; n(i, h) is the largest
 * visible[t][h] among them.
 *   q       [n_rows][n_heads][head_dim] f32
 *   lse     f32 [n_rows][lse_stride], n_heads of each row
 *   spans   int32 [n_items][2]; no span is longer than max_span
 *   logits  f32 [n_rows][n_heads][logit_stride], may be absent. If given, they are the logits, and
 *           neither q nor K is read; -inf adds nothing
 *   values  may be absent; in a plane only if no KV heads share pages. For s < n(i, h): join over
 *           the rows of (join over the group of f(w)). For SQUARES f(w) = w² and rows are summed,
 *           else f(w) = w. accumulate: joined with the values that are there. Other values are not
 *           written
 *   tile    may be absent: w itself, f32 [n_items][n_kv_heads][max_span*group][tile_stride], row t
 *           of the span and head g in list t*group + g, s < n(i, h); lists beyond the span are not
 *           written
 * A NaN logit or lse gives NaN, and so does an infinite logit of q and K; a row with an lse of -inf
 * saw nothing and gives 0. No two items of a launch write one value. No memory of rows x slots is
 * used but `tile`.
 * Bytes: per (item, KV head) K once for every 32 rows of the span.
 * Tolerance: with T as in attend, each w to w * (4e-6 * (1 + max|logit|) + 2e-6 * T) + 1e-37; joins
 * to the sum of those of their terms and 3e-7 * (1 + log2 terms) of the result. */
typedef enum tms_rows_join {
    TMS_ROWS_SUM = 0,
    TMS_ROWS_SQUARES = 1,
    TMS_ROWS_MAX = 2
} tms_rows_join;
typedef struct tms_observe {
    tms_kv kv;
    tms_batch batch; /* of query rows */
    uint32_t n_items, max_span;
    tms_ref spans;
    tms_matrix q;
    tms_ref lse;
    uint64_t lse_stride;
    float scale, soft_cap;
    tms_ref logits;
    uint64_t logit_stride;
    tms_rows_join rows;
    tms_group group;
    bool accumulate;
    tms_values values; /* a plane or beside the cache */
    tms_ref tile;
    uint64_t tile_stride;
} tms_observe;

/* pool_values: pooling along slots, stride 1, as many values out as in. The first n =
 * max(visible - tail, 0) values of each list are pooled; out is written below n.
 *   AVERAGE  out(s) = Σ x(s + o) / kernel, |o| <= kernel/2, over places in [0, n): values beyond
 *            the ends are zeros, and the divisor is always kernel (torch's default)
 *   MAX      the largest of the same
 *   keep_sum (AVERAGE): out times Σx / Σout of its list, 1 where that is not finite; x >= 0
 *   x, out   f32 [n_items][n_kv_heads][n_lists][stride], not overlapping; kernel odd
 * A NaN among the pooled values gives NaN. Bytes: 8 per value. Tolerance: MAX exact; AVERAGE 1e-6 *
 * (mean of |x| over the pooled places), keep_sum 3e-6 of the result + that. */
typedef enum tms_pooling { TMS_POOL_MAX = 0, TMS_POOL_AVERAGE = 1 } tms_pooling;
typedef struct tms_pool_values {
    tms_batch batch;
    uint32_t n_lists, tail, kernel;
    tms_pooling kind;
    bool keep_sum;
    tms_ref x, out;
    uint64_t stride;
} tms_pool_values;

/* value_score: how well the direction of slots' values agrees with the output's (AnDPro, Algorithm
 * 1).
 *   y(l) = Σ a(l, s)·v_s over first <= s < end,   e(s) = Σ_l a(l, s)·(y(l)·v_s) for s < visible
 * for each (item, KV head), l over its lists.
 *   a       f32 [n_items][n_kv_heads][n_lists][stride]
 *   limits  int32 [n_items][n_kv_heads][2] (first, end) in [0, visible]
 *   out     f32 [n_items][n_kv_heads][out_stride]
 * A NaN gives NaN; an infinite term gives an infinite or a NaN score.
 * scratch: its size follows from n_rows, n_kv_heads, n_lists, max_visible and head_dim, and is
 * enough for launches of smaller numbers.
 * Bytes: V twice and a twice. f32 accumulation in blocks.
 * Tolerance: 4e-6 * Σ_l |a(l, s)| * Σ_d |v_sd| * Σ_s' |a(l, s')·v_s'd|. */
typedef struct tms_value_score {
    tms_kv kv;
    tms_batch batch;
    uint32_t n_lists;
    tms_ref a, limits, out;
    uint64_t stride, out_stride;
    tms_ref scratch;
} tms_value_score;

/* value_norm: the norm of a slot's value, or of what it adds to the output, for s < visible.
 *   L2            ‖v_s‖₂
 *   L1_PROJECTED  mean over the heads of the group of ‖v_s·W_O[head]‖₁ =
 *                 Σ_o |Σ_c w[o][head*head_dim + c]·v_s[c]|   (CriticalKV, section 4)
 *   w    [n_out][w_stride] of `w_dtype`, head 0 of the batch at column 0: as linear's, so the
 *        output projection of a model as it is. Only for L1_PROJECTED
 *   out  f32 [n_items][n_kv_heads][out_stride]
 * L2 squares in fp32: components are from about 1e-18 to 1e18 in size, or 0 (bf16, f32).
 * Bytes: V once; w once for every 16 slots at least. Tolerance: 3e-6 * (1 + log2 n) relative to the
 * sum of the absolute terms, n = head_dim or n_out*head_dim. */
typedef enum tms_value_norm_kind {
    TMS_VALUE_L2 = 0,
    TMS_VALUE_L1_PROJECTED = 1
} tms_value_norm_kind;
typedef struct tms_value_norm {
    tms_kv kv;
    tms_batch batch;
    tms_value_norm_kind kind;
    tms_ref w;
    tamis_dtype w_dtype;
    uint64_t w_stride; /* elements */
    uint32_t n_out;
    tms_ref out;
    uint64_t out_stride;
} tms_value_norm;

/* key_score: a score from a slot's key alone, without queries, for s < visible.
 *   NORM       ‖k‖₂                                                        (arXiv 2406.11430)
 *   COSINE     k·m / (‖k‖·‖m‖), m = mean of k_j/‖k_j‖ over the lane's visible slots; keys of norm 0
 *              add nothing to m and score 0; if ‖m‖ is 0, all score 0        (KeyDiff, 2504.15364)
 *   QUADRATIC  mean over the group of scale·μ·k + scale²/2·kᵀSk             (ExpectedAttention,
 *              2510.00636), mu f32 [n_heads][head_dim], cov f32 [n_heads][head_dim][head_dim]
 *   out  f32 [n_items][n_kv_heads][out_stride]
 * scratch: its size follows from n_rows, n_kv_heads, max_visible and head_dim, and is enough for
 * launches of smaller numbers.
 * Bytes: K once, COSINE twice.
 * NORM and COSINE square in fp32: components are from about 1e-18 to 1e18 in size, or 0 (bf16,
 * f32). A key with a NaN gives NaN; with COSINE for all keys of its lane but those of norm 0.
 * Tolerance: NORM 2e-6 relative; COSINE 4e-6 / ‖m‖, absolute, as m is a sum of rounded terms of
 * size 1/n; QUADRATIC 4e-6 * the sum of the absolute terms. */
typedef enum tms_key_score_kind {
    TMS_KEY_NORM = 0,
    TMS_KEY_COSINE = 1,
    TMS_KEY_QUADRATIC = 2
} tms_key_score_kind;
typedef struct tms_key_score {
    tms_kv kv;
    tms_batch batch;
    tms_key_score_kind kind;
    tms_ref mu, cov;
    float scale;
    tms_ref out;
    uint64_t out_stride;
    tms_ref scratch;
} tms_key_score;

/* score_rows: what the keys of rows say by themselves, into the plane of scores at the slots that the
 * rows have been written to.
 *   score   -‖k‖₂ of the slot's key as the cache holds it                  (arXiv 2406.11430)
 *   slots   int32 [n_rows][n_kv_heads], as write_rows's: < 0 skips; no two rows of a launch name one
 *           slot
 *   scores  a plane, so only for caches whose page id fixes the head
 * Of `batch`: n_rows, n_kv_heads, row_seq, table and its strides. Rotation keeps norms: keys may be
 * rotated or not. The same number as key_score's NORM has, for single rows instead of whole lanes.
 * Squares are formed in fp32: of keys whose components are from about 1e-18 to 1e18 in size, or 0. A
 * larger one (f32, bf16) or an infinite one gives -inf, one with a NaN gives NaN; replace and select
 * let NaN go first and -inf next. Smaller ones lose digits, down to 0.
 * Bytes: keys once. Tolerance: 2e-6 relative. */
typedef struct tms_score_rows {
    tms_kv kv;
    tms_batch batch;
    tms_ref slots, scores;
} tms_score_rows;

/* deviation: how far rows are from what the slots of their tokens hold, by which tokens are chosen
 * to be computed anew (CacheBlend, arXiv 2405.16444, section 4.3):
 *   out     f32 [n_rows]: Σ over KV heads and channels of (x - the slot's)²; +infinity for a NaN, so
 *           that such a row comes first
 *   x       f32 [n_rows][n_kv_heads][head_dim] at row*stride: what the slots would hold, K or V
 *   values  whether the slots' V rows are compared, else their K rows
 *   slots   int32 [n_rows][n_kv_heads], as write_rows's: < 0 adds nothing
 * Of `batch`: n_rows, n_kv_heads, row_seq, table and its strides. Differences and squares are formed
 * in fp32: what leaves its range is infinite.
 * Bytes: rows and x once. Tolerance: 1e-5 relative. */
typedef struct tms_deviation {
    tms_kv kv;
    tms_batch batch;
    tms_matrix x;
    tms_ref slots, out;
    bool values;
} tms_deviation;

/* fuse: elementwise on the values of lanes, s < n = max(visible - tail, 0). out may be x or y.
 *   AXPBY           a·x + b·y;  without y: a·x + b
 *   MULTIPLY        (x + a)·y
 *   AT_LEAST_MEAN   max(x, a·mean of the lane's n values of x)           (DefensiveKV)
 *   LIFETIME        x / (now - position + 1), now int32 [n_items]         (H2O, normalised)
 *   MEAN_OF_HEADS   mean over the item's KV heads of x at s, to each of them; equal n     (TOVA)
 *   SHARE_OF_HEADS  x / Σ over the item's KV heads of x at s, 0 where that sum is 0; equal n
 *   CHUNK_SUM       out(c) = Σ x over the slots [c·chunk, (c + 1)·chunk) below n; out beside the
 *                   cache and not x
 *   LISTS_SUM, LISTS_MAX  out(s) = Σ or largest over lists l of x(l, s), x f32
 *                   [n_items][n_kv_heads][n_lists][x.stride], beside the cache, and not out
 * x, y, out: a plane or beside the cache, out in a plane only if no KV heads share pages; page_size
 * with planes. NaN: as fp32 arithmetic gives; a maximum over a NaN is NaN.
 * Bytes: 4 per value read and written. Tolerance: 1e-6 of the sum of the absolute terms; for
 * quotients 1e-6 of the result, for SHARE_OF_HEADS that times Σ|x| / |Σx|. */
typedef enum tms_fuse_kind {
    TMS_FUSE_AXPBY = 0,
    TMS_FUSE_MULTIPLY = 1,
    TMS_FUSE_AT_LEAST_MEAN = 2,
    TMS_FUSE_LIFETIME = 3,
    TMS_FUSE_MEAN_OF_HEADS = 4,
    TMS_FUSE_SHARE_OF_HEADS = 5,
    TMS_FUSE_CHUNK_SUM = 6,
    TMS_FUSE_LISTS_SUM = 7,
    TMS_FUSE_LISTS_MAX = 8
} tms_fuse_kind;
typedef struct tms_fuse {
    tms_batch batch;
    tms_fuse_kind kind;
    tms_values x, y, out; /* y.ref.mem == NULL: absent */
    float a, b;
    uint32_t tail, chunk, n_lists, page_size;
    tms_ref positions, now; /* of LIFETIME; positions is a plane */
} tms_fuse;

/* compact: moves the kept slots of lanes, in the order of their list, to the front of a page list.
 *   lists  entries of `granularity` slots, ascending, of (item, KV head), as select gives them;
 *          slots from visible on are skipped. The j-th kept slot goes to slot j of `to`
 *   to     int32 [n_items][n_kv_heads][to_stride] page ids, for as many slots as are kept. The page
 *          at an ordinal is the one that the lane has there already (in place), or one that no lane
 *          of the launch reads
 * Moves K, V and the planes that are given. Slots behind the kept ones are not written; the caller
 * must recompute bounds. In place is safe because a kept slot never moves to a later slot: pages of
 * a lane are filled in order, and the slots for a page are read before the page is written. It is
 * one launch: if it fails, nothing has moved.
 * Bytes: per kept slot 4*head_dim*size. Exact, bit for bit. */
typedef struct tms_compact {
    tms_kv kv;
    tms_planes planes;
    tms_batch batch;
    tms_lists lists;
    uint32_t granularity;
    tms_ref to;
    uint64_t to_stride;
} tms_compact;

/* replace: chooses a slot for a row in lanes that stay at their length. For each (row, KV head)
 * whose turn is not 0, slots[row][h] becomes the slot of the evicted token (the victim), into which
 * write_rows then writes the row. No token moves.
 *   turns      int32 [n_rows][n_kv_heads]; 0: the lane has grown for the row, nothing happens
 *   positions  int32 [n_rows], the rows' own, above those of all older tokens of their sequence
 *   slots      int32 [n_rows][n_kv_heads]
 *   changed    int32 [n_rows][n_kv_heads]: page id of the victim's slot if its page is full (lies
 *              below visible / page_size), for bounds; else, and without a turn, -1
 * Candidates are the slots below visible with sinks <= position < row position - recent; the victim
 * is the lowest of them by (score asc, position asc), NaN before everything, -0 = +0; lifetime: the
 * score divided by (row position - position), below 2^29, compared exactly: no quotient is rounded.
 * Without a plane of scores the lowest position. A slot whose position is >= the row's was written
 * by a cancelled step: such slots are victims before all others, the lowest position first. Without
 * a candidate the victim has the lowest position >= sinks; if there is none, it is the last slot,
 * visible - 1. Of equal positions the lower slot is the victim.
 * H2O with r recent tokens, the row's own included: as published, the oldest recent token, at row
 * position - r, is kept in any case: recent = r; with re-ranking it competes: recent = r - 1. TOVA:
 * recent 0. StreamingLLM: no scores.
 * `visible` counts the lane's slots as the row will see them. Bytes: 8 per slot. Exact. */
typedef struct tms_replace {
    tms_kv kv; /* checked like any other; its K and V are not read */
    tms_planes planes;
    tms_batch batch;
    tms_ref turns, slots, changed, positions;
    uint32_t sinks, recent;
    bool lifetime;
} tms_replace;

/* scatter_rows: y[index[r]] = x[r] for rows of `width` f32 elements; an index below 0 skips;
 * indices differ. x and y do not overlap. Exact. */
typedef struct tms_scatter_rows {
    tms_matrix x, y;
    uint32_t n_rows, width;
    tms_ref index; /* int32 [n_rows] */
} tms_scatter_rows;

/* ---- What a model needs ---------------------------------------------------------------------- */

/* linear: y[r][j] = Σ_i x[r][i]·w[j][i] + bias[j] (+ y[r][j] if accumulate).
 *   x, y f32 at row strides; w [n_out][n_in] of any type; bias f32 [n_out], may be absent. y must
 *   not overlap x.
 * Bytes with few rows: those of w. Up to TMS_FEW_ROWS rows a matrix-vector kernel runs, above
 * that a matrix-matrix kernel or a vendor's library. The two may round differently: beside
 * attend's tiles only here may a row's bits depend on the number of rows in a launch. They do not
 * depend on it up to TMS_FEW_ROWS, nor on CUDA between TMS_FEW_ROWS + 1 and 32 where matrix units
 * run: f16 or bf16, n_in a multiple of 8, w and rows of x at multiples of 16 bytes.
 * A vendor's library may allocate and free memory inside a launch, depending on the number of rows.
 * Tolerance: 2e-6 * sum_i |x_i|*|w_i| * (1 + log2 n_in), where |w_i| of Q4_1 and Q4_K is the sum of
 * the absolute values of w_i's two terms, since minima may be summed apart. Quantised types add
 * 1.6e-5 * sum over blocks of 32 inputs of (max |x_i| * sum |w_i|, without the minima): a backend
 * may round a block's inputs to 16 bits. Blocks whose largest input is below 2^-86 may then lose
 * digits or count as 0. An input above 2^100 or not finite, and a scale or minimum that is not
 * finite, may make their whole row, or output, NaN or infinite. */
#define TMS_FEW_ROWS 8
typedef struct tms_linear {
    tms_matrix x, y;
    tms_weight_matrix w;
    tms_ref bias;
    uint32_t n_rows, n_in, n_out;
    bool accumulate;
} tms_linear;

/* linear_parts: what norm, up to three linears of one input and activate give, in one launch, for
 * at most TMS_FEW_ROWS rows. With z = x, or norm's y of x with norm_w and eps if norm_w is there:
 *   part p   y_p[r][j] = Σ_i z[r][i]·w_p[j][i] + bias_p[j] (+ y_p[r][j] if accumulate), as linear,
 *            each of its own weight type
 *   gated    two parts of one n_out give y_0 = silu(part 0)·part 1; y of part 1 is not used, and
 *            accumulate must not be set.
 *   norm_w f32 [n_in]. No y overlaps x or another y. Parts from n_parts on are not read.
 * Bytes: those of the parts' w. A row's bits do not depend on the number of rows.
 * Tolerance of a part: linear's with z in the place of x, and 2e-6 * sum_i |z_i|*|w_i| more with a
 * norm. Gated, with the tolerances t0 and t1 of parts of a and b: 1.1*t0*(|b| + t1) +
 * |silu(a)|*t1 + 2e-6 relative + 1e-37, since |silu'| < 1.1. */
#define TMS_MOST_PARTS 3
typedef struct tms_linear_part {
    tms_weight_matrix w;
    tms_ref bias; /* f32 [n_out], may be absent */
    tms_matrix y;
    uint32_t n_out;
} tms_linear_part;
typedef struct tms_linear_parts {
    tms_matrix x;
    tms_ref norm_w;
    tms_linear_part parts[TMS_MOST_PARTS];
    uint32_t n_parts, n_rows, n_in;
    float eps;
    bool gated, accumulate;
} tms_linear_parts;

/* linear_chain: up to four stages, one after another; all have the same n_rows. A stage is
 * linear_parts, or linear if it has one part and no norm. It may read what stages before it wrote,
 * and write what they read. One launch on CPUs, if the stages have at most TMS_CHAIN_PARTS parts and
 * three types of weights together, else one for each; then those before one that fails have run.
 * Bytes and tolerance: those of the stages. Bits: those of the ops one after another on the same
 * device. */
#define TMS_MOST_STAGES 4
#define TMS_CHAIN_PARTS 7 /* out; gate and up; down; q, k and v */
typedef struct tms_linear_chain {
    tms_linear_parts stages[TMS_MOST_STAGES];
    uint32_t n_stages;
} tms_linear_chain;

/* norm: RMSNorm, y = x / sqrt(mean(x²) + eps) · w; w f32 [dim]; y may be x.
 * Tolerance: 2e-6 relative. Where Σ x² is above fp32's range, y of finite x may be 0; where it is
 * below it, digits may be lost unless eps hides them. */
typedef struct tms_norm {
    tms_matrix x, y;
    tms_ref w;
    uint32_t n_rows, dim;
    float eps;
} tms_norm;

/* activate: y = silu(gate)·up, silu(z) = z / (1 + exp(-z)); y may be gate or up. Tolerance: 2e-6
 * relative + 1e-37. */
typedef struct tms_activate {
    tms_matrix gate, up, y;
    uint32_t n_rows, dim;
} tms_activate;

/* embed: y[r] = row tokens[r] of w [n_vocab][dim], of any type, as f32. tokens int32 [n_rows], each
 * < n_vocab (the caller checks). Exact. */
typedef struct tms_embed {
    tms_ref tokens;
    tms_weight_matrix w;
    tms_matrix y;
    uint32_t n_rows, dim, n_vocab;
} tms_embed;

/* argmax: index of the largest of each row, int32 [n_rows]; ties the lowest index; NaN after
 * everything. Exact. */
typedef struct tms_argmax {
    tms_matrix x;
    uint32_t n_rows, dim;
    tms_ref out;
} tms_argmax;

/* ---- The list -------------------------------------------------------------------------------- */

/* Every op, as X(with, name). The table's fields, the calls and their checks (backend.h, checks.h),
 * the prototypes and the table of each backend, the checker's list and the calls that tests let
 * fail are made from these lists. The ops that no plan calls: */
#define TMS_MODEL_OPS(X, with)                                                                     \
    X(with, linear)                                                                                \
    X(with, linear_parts)                                                                          \
    X(with, linear_chain)                                                                          \
    X(with, norm)                                                                                  \
    X(with, activate)                                                                              \
    X(with, embed)                                                                                 \
    X(with, argmax)
/* The ops that every backend has. */
#define TMS_REQUIRED_OPS(X, with)                                                                  \
    X(with, write_rows)                                                                            \
    X(with, load_rows)                                                                             \
    X(with, read_rows)                                                                             \
    X(with, copy_pages)                                                                            \
    X(with, write_table)                                                                           \
    X(with, bounds)                                                                                \
    X(with, rotate)                                                                                \
    X(with, score_pages)                                                                           \
    X(with, page_mass)                                                                             \
    X(with, select)                                                                                \
    X(with, attend)                                                                                \
    X(with, merge)                                                                                 \
    X(with, observe)                                                                               \
    X(with, pool_values)                                                                           \
    X(with, value_score)                                                                           \
    X(with, value_norm)                                                                            \
    X(with, key_score)                                                                             \
    X(with, score_rows)                                                                            \
    X(with, deviation)                                                                             \
    X(with, fuse)                                                                                  \
    X(with, compact)                                                                               \
    X(with, replace)                                                                               \
    X(with, scatter_rows)                                                                          \
    TMS_MODEL_OPS(X, with)
/* The ops that a backend may lack. */
#define TMS_OPTIONAL_OPS(X, with) X(with, sparse_attend)
#define TMS_OPS(X, with)          TMS_REQUIRED_OPS(X, with) TMS_OPTIONAL_OPS(X, with)
/* The ops whose params have scratch memory. */
#define TMS_SCRATCH_OPS(X, with)                                                                   \
    X(with, page_mass)                                                                             \
    X(with, select)                                                                                \
    X(with, attend)                                                                                \
    X(with, value_score)                                                                           \
    X(with, key_score)

#endif
