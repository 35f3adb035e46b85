/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of the ops on the cache: rotating, writing, loading and reading rows, copying slots and
 * pages, bounds. */
#ifndef TMS_OPS_ROWS_H
#define TMS_OPS_ROWS_H

#include "host/ops/types.h"

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
typedef struct tms_rotate {
    tms_matrix x;
    uint32_t n_rows, n_heads, head_dim, n_rot;
    tamis_pairing pairing;
    tms_ref positions, table;
} tms_rotate;

/* write_rows: writes K and V rows into given slots of lanes; append, replace and scatter are one
 * op.
 *   k, v   [n_rows][n_kv_heads][head_dim] at row*stride, dtype f32 or kv->dtype; f32 if that has
 *          blocks
 *   slots  int32 [n_rows][n_kv_heads]: slot in the lane, < 0 skips; no two rows of a launch name
 *          one slot
 *   planes     in the planes that are given, a written slot gets its row's position and score 0
 *   positions  int32 [n_rows], only with a plane of positions
 *   rotation   of write_rotated alone; here n_rot is 0
 * Of `batch`: n_rows, n_kv_heads, row_seq, table and its strides. Rows of k and v may lie between each
 * other in one memory.
 * Conversion from f32 rounds to nearest even; f16 overflow gives infinity, NaN stays NaN; q8,
 * k8v4 and q4 as in tamis_dtype.
 * Bytes: rows read and written once. Tolerance: exact, bit for bit (NaN as NaN).
 *
 * write_rotated: the same with a rotation, n_rot > 0. The launch first changes the rows of k, and query
 * rows q beside them, in place, those of skipped slots too: each head as norm does, dim = head_dim,
 * where its weights are given; then as rotate does. dtype is f32. Of `batch` also n_heads. No two of
 * the rows of q, k and v share an element.
 * Bytes: as write_rows, q and k once more each way. Tolerance: the bits are those of rotate on q and on
 * k followed by write_rows, on the same backend; with norms each head is within norm's tolerance
 * before it is rotated. */
typedef struct tms_rotation {
    tms_matrix q; /* f32 [n_rows][n_heads][head_dim] */
    uint32_t n_rot;
    tamis_pairing pairing;
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
typedef tms_write_rows tms_write_rotated;

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
    tamis_pairing pairing;
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

/* copy_slots: copies slots of lanes to slots of lanes of the same KV head, bit for bit: K, V and the
 * planes that are given.
 *   from    int32 [n_rows][n_kv_heads]: slots of the row's sequence, batch.row_seq
 *   to_seq  int32 [n_rows]: index in table of the sequence that is copied to, which may be the row's own
 *   to      int32 [n_rows][n_kv_heads]: slots of that sequence. Where a slot of `from` or `to` is < 0,
 *           nothing is copied
 *   planes  those of the cache that are to be copied, too
 * Of `batch`: n_rows, n_kv_heads, row_seq, table and its strides. A launch writes no slot twice, and
 * none that it reads; it may read a slot several times. Bounds do not change: the caller recomputes
 * those of full pages into which a slot was copied.
 * Bytes: rows read and written once, 4*head_dim*size a copy. Exact, bit for bit. */
typedef struct tms_copy_slots {
    tms_kv kv;
    tms_planes planes;
    tms_batch batch;
    tms_ref to_seq, from, to;
} tms_copy_slots;

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
typedef struct tms_bounds {
    tms_kv kv;
    uint32_t n, n_kv_heads;
    tms_ref pages;
    tamis_bounds_kind kind;
    float width; /* of MEAN_STD, >= 0 and finite */
} tms_bounds;

#endif
