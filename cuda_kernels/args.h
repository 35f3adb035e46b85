/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of the CUDA kernels, one struct each, filled by host/cuda and taken by value. Strides
 * in elements, of q8 and k8v4 in bytes, pointers to the first element, absent memory NULL.
 * Meanings: host/ops/. */
#ifndef TAMIS_CUDA_ARGS_H
#define TAMIS_CUDA_ARGS_H

#include <stdint.h>

/* On the host a pointer into device memory is a number. */
#ifdef __cplusplus
#define CU_PTR(type) type *
#else
#define CU_PTR(type) uint64_t
#endif

typedef struct cu_kv {
    CU_PTR(void)
    rows; /* elements of the cache's dtype; 16-byte aligned, strides multiples of 16 bytes */
    uint64_t page_stride, head_stride, slot_stride, value_offset;
    uint32_t page_size, page_shift; /* page_size = 1 << page_shift */
    uint32_t dim, unused;           /* of a head */
    /* The V rows of dtypes without blocks, with strides of their own if they lie apart from K. Where
     * those are K's, value_offset leads to them, too. */
    CU_PTR(void) values;
    uint64_t values_page_stride, values_head_stride, values_slot_stride;
} cu_kv;

/* Kernels that are compiled for a head dim have its number in their names. Those with CU_ANY_DIM take
 * any up to that, from cu_kv, for heads whose dim has no kernels of its own. */
#define CU_ANY_DIM 512u
#define CU_DIM_OF(dim)                                                                             \
    ((dim) == 64u || (dim) == 80u || (dim) == 96u || (dim) == 128u || (dim) == 256u)

typedef struct cu_bounds_rows {
    CU_PTR(void) rows; /* alignment as cu_kv */
    uint64_t page_stride, head_stride;
} cu_bounds_rows;

typedef struct cu_batch {
    CU_PTR(const int32_t) tiles;
    CU_PTR(const int32_t) row_seq;
    CU_PTR(const int32_t) visible;
    CU_PTR(const int32_t) first; /* NULL: rows see from slot 0 on */
    CU_PTR(const int32_t) table;
    uint64_t seq_stride, head_stride;
    uint32_t n_rows, n_tiles, n_kv_heads, group;
} cu_batch;

typedef struct cu_matrix {
    CU_PTR(float) at;
    uint64_t stride;
} cu_matrix;

typedef struct cu_lists {
    CU_PTR(int32_t) pages;
    CU_PTR(int32_t) count;
    uint64_t capacity;
} cu_lists;

typedef struct cu_logit {
    float scale, soft_cap;
} cu_logit;

/* ---- rows ---- */

typedef struct cu_write_rows_args {
    cu_kv kv;
    cu_batch batch;
    CU_PTR(const void) k;
    CU_PTR(const void) v;
    CU_PTR(const int32_t) slots;
    CU_PTR(int32_t) position_plane; /* the planes may be NULL */
    CU_PTR(float) score_plane;
    CU_PTR(const int32_t) positions; /* of the rows */
    uint64_t k_stride, v_stride;
} cu_write_rows_args;

/* A warp takes a head of one row: of q, or of k with v. */
typedef struct cu_write_rotated_args {
    cu_write_rows_args write; /* of f32 rows */
    cu_matrix q, k;           /* k: where write.k is */
    CU_PTR(const int32_t) positions;
    CU_PTR(const float) table;
    CU_PTR(const float) q_norm; /* may be NULL */
    CU_PTR(const float) k_norm; /* may be NULL */
    uint32_t n_heads, head_dim, n_pairs, adjacent;
    float eps;
    uint32_t unused;
} cu_write_rotated_args;

/* A warp takes a head of one row. */
typedef struct cu_load_rows_args {
    cu_write_rows_args write;   /* k and v may be NULL */
    CU_PTR(const float) table;  /* NULL without a rotation */
    CU_PTR(const float) k_norm; /* NULL: K is not normalised */
    uint32_t head_dim, n_pairs; /* 0: K is not rotated */
    uint32_t adjacent;
    float eps;
} cu_load_rows_args;

typedef struct cu_read_rows_args {
    cu_kv kv;
    CU_PTR(const int32_t) table;
    CU_PTR(const int32_t) seq;
    CU_PTR(const int32_t) head;
    CU_PTR(const int32_t) slot;
    CU_PTR(float) k;
    CU_PTR(float) v;
    uint64_t seq_stride, head_stride;
    uint64_t n;
} cu_read_rows_args;

/* ---- scatter ---- */

typedef struct cu_scatter_rows_args {
    cu_matrix x, y;
    CU_PTR(const int32_t) index;
    uint32_t n_rows, width;
} cu_scatter_rows_args;

/* ---- convert ---- */

typedef struct cu_convert_args {
    CU_PTR(const void) x;
    CU_PTR(void) y;
    uint64_t x_stride, y_stride;
    uint32_t n_rows, width;
} cu_convert_args;

/* ---- pages ---- */

typedef struct cu_copy_pages_args {
    CU_PTR(void) data;
    CU_PTR(const int32_t) pairs;
    uint64_t bytes; /* of a block */
    uint64_t n;
} cu_copy_pages_args;

typedef struct cu_write_table_args {
    CU_PTR(int32_t) data;
    CU_PTR(const int32_t) entries;
    uint64_t n;
} cu_write_table_args;

/* ---- bounds, rotate ---- */

typedef struct cu_bounds_args {
    cu_kv kv;
    cu_bounds_rows bounds;
    CU_PTR(const int32_t) pages;
    uint32_t n, n_kv_heads, kind;
    float width;
    uint32_t dim, unused;
} cu_bounds_args;

typedef struct cu_rotate_args {
    cu_matrix x;
    CU_PTR(const int32_t) positions;
    CU_PTR(const float) table;
    uint32_t n_rows, n_heads, head_dim, n_pairs, adjacent, unused;
} cu_rotate_args;

/* ---- score, mass, select ---- */

/* Warp lanes that take a row of `dim` channels, 8 each: a power of two, some may be idle. Of longer
 * rows than a warp takes at once each has CU_ROW_TURNS times 8. */
#define CU_ROW_LANES(dim) ((dim) <= 64 ? 8u : (dim) <= 128 ? 16u : 32u)
#define CU_ROW_TURNS(dim) ((dim) <= 256 ? 1u : 2u)
/* Where a thread has 8 channels and rows do not share a warp's blocks: threads of a row. */
#define CU_ROW_THREADS(dim) (CU_ROW_LANES(dim) * CU_ROW_TURNS(dim))

/* A turn: a warp scores CU_SCORE_STEPS times as many pages at once as its warp lanes hold. */
#define CU_SCORE_THREADS   256u
#define CU_SCORE_STEPS     4u
#define CU_SCORE_TURN(dim) (CU_SCORE_STEPS * (32u / CU_ROW_LANES(dim)))
/* Dynamic shared memory: 2*heads*dim floats, the positive and negative parts of the queries, of a
 * group with at most CU_SCORE_GROUP query heads of all. Kernels for CU_ANY_DIM, which take larger
 * ones too, have CU_SCORE_HEADS at a time. */
#define CU_SCORE_GROUP 16u
#define CU_SCORE_HEADS 8u
typedef struct cu_score_args {
    cu_kv kv;
    cu_bounds_rows bounds;
    cu_batch batch;
    cu_matrix q;
    CU_PTR(float) scores;
    uint64_t stride;
    uint32_t rule, blocks; /* tamis_group_rule; blocks a (row, KV head) */
} cu_score_args;

#define CU_MASS_THREADS 256u

typedef struct cu_mass_args {
    cu_kv kv;
    cu_batch batch;
    cu_matrix q;
    CU_PTR(float) logs; /* [row][query head][log_stride]: log-masses of pages */
    CU_PTR(float) lse;  /* [row][query head] */
    CU_PTR(const float) sinks; /* may be NULL */
    CU_PTR(float) scores;
    uint64_t log_stride, stride;
    cu_logit logit;
    uint32_t rule, unused;
} cu_mass_args;

#define CU_SELECT_THREADS 512u /* select alone; with scores a block has CU_SCORE_THREADS */
#define CU_SELECT_SHARED  2048u /* bytes of static shared memory, at most */

typedef struct cu_select_args {
    cu_batch batch;
    CU_PTR(const float) scores; /* NULL: by ordinal */
    uint64_t stride;
    cu_lists lists;
    uint32_t granularity, k, sinks, recent;
    uint32_t cached, unused; /* keys that the dynamic shared memory holds */
} cu_select_args;

/* The wide forms. Tallies of a row of competing KV lanes, in words: histograms of the keys' bytes
 * [CU_WIDE_PASSES][CU_WIDE_BINS]; the cut before each pass, four words; the entries that each lane
 * has already. */
#define CU_WIDE_THREADS 1024u
#define CU_WIDE_FEW     4096u /* entries, up to which a block has CU_WIDE_BINS threads */
#define CU_WIDE_PASSES  8u
#define CU_WIDE_BINS    256u
#define CU_WIDE_CUTS    (CU_WIDE_PASSES * CU_WIDE_BINS)
#define CU_WIDE_TAKEN   (CU_WIDE_CUTS + 4u * CU_WIDE_PASSES)

typedef struct cu_select_wide_args {
    cu_batch batch; /* row_seq and table with positions only */
    CU_PTR(const float) scores; /* NULL: by ordinal, or by position */
    uint64_t stride;
    cu_lists lists, forced;
    CU_PTR(const int32_t) k_table;
    CU_PTR(const int32_t) positions;
    CU_PTR(const int32_t) row_positions;
    CU_PTR(uint32_t) upper; /* [rows][KV heads][key_stride] */
    CU_PTR(uint32_t) tallies; /* [rows][tally_stride] */
    uint64_t key_stride, tally_stride;
    uint64_t need; /* in units of 2^-32, 0: no mass */
    uint32_t granularity, k, sinks, recent, k_share, page_size;
    uint32_t competes, total, floor, pass;
} cu_select_wide_args;

/* score and select in one launch: the last block of a (row, KV head) to score selects. */
typedef struct cu_score_select_args {
    cu_score_args score;
    cu_select_args select;
    CU_PTR(uint32_t) tickets; /* [rows][KV heads], 0 between launches */
} cu_score_select_args;

/* ---- compact, copy_slots, replace ---- */

/* What both that move slots take. */
typedef struct cu_moved {
    cu_kv kv;
    cu_batch batch;
    CU_PTR(uint32_t) positions; /* the planes may be NULL */
    CU_PTR(uint32_t) scores;
    /* Of a row of K and of V: bytes from row to row, pieces of 16 bytes, words of 16 bits behind the
     * rows. */
    uint64_t stride[2];
    uint32_t pieces[2], words[2];
    uint32_t size, unused; /* bytes of an element, 1 where there are blocks */
} cu_moved;

/* A block takes a part of a lane: CU_COMPACT_WIDE pieces of 16 bytes of every row of K, or of V, what
 * lies behind the rows of K, or of V, or the planes. */
#define CU_COMPACT_THREADS 256u
#define CU_COMPACT_WIDE    8u

typedef struct cu_compact_args {
    cu_moved moved;
    cu_lists lists;
    CU_PTR(const int32_t) to;
    uint64_t to_stride;
    uint32_t granularity, unused;
} cu_compact_args;

/* A thread takes a piece of the K and of the V row of a slot. */
typedef struct cu_copy_slots_args {
    cu_moved moved;
    CU_PTR(const int32_t) to_seq;
    CU_PTR(const int32_t) from;
    CU_PTR(const int32_t) to;
} cu_copy_slots_args;

#define CU_REPLACE_THREADS 256u

typedef struct cu_replace_args {
    cu_batch batch;
    CU_PTR(const int32_t) plane;
    CU_PTR(const float) scores; /* NULL: by position */
    CU_PTR(const int32_t) turns;
    CU_PTR(int32_t) slots;
    CU_PTR(int32_t) changed;
    CU_PTR(const int32_t) positions;
    uint32_t page_size, sinks, recent, lifetime;
} cu_replace_args;

/* ---- attend, merge ---- */

/* Decode: a row's entries fall into splits of a multiple of CU_ATTEND_SPLIT tokens, a warp each,
 * and splits into chunks, a block each. A block serves up to CU_ATTEND_HEADS query heads of a KV
 * head. */
#define CU_ATTEND_WARPS  4u  /* splits a chunk */
#define CU_ATTEND_CHUNKS 32u /* most chunks per row; a warp lane each when they are merged */
#define CU_ATTEND_SPLIT  32u /* a page if that is more */
#define CU_ATTEND_HEADS  8u
#define CU_ATTEND_LONG   4u   /* of heads with CU_ANY_DIM, whose sums take more registers */
#define CU_ATTEND_AGAIN  256u /* tokens of a partial sum in fp32; a multiple of a page */
/* The form for matrix units. Keys are copied to shared memory in stages, CU_ATTEND_KEYS rows of K,
 * then as many of V (twice as many where a tile of rows shares them, followed by their positions).
 * If the stride of rows, in elements of 2 bytes, is a multiple of 64, rows are permuted; else they
 * are padded. Each warp of a tile has CU_ATTEND_WARP_ROWS (row, query head), a block at most
 * CU_ATTEND_TILE_WARPS warps. */
#define CU_ATTEND_KEYS            16u
#define CU_ATTEND_ROW(dim)        ((dim) == 64u || (dim) == 128u ? (dim) : (dim) + 8u)
#define CU_ATTEND_TILE_ROW(dim)   ((dim) + 8u)
#define CU_ATTEND_STAGES(dim)     ((dim) > 128u ? 2u : 3u)
#define CU_ATTEND_STAGE(dim)      (2u * CU_ATTEND_KEYS * CU_ATTEND_ROW(dim) * 2u)
#define CU_ATTEND_TILE_STAGE(dim) (2u * CU_ATTEND_KEYS * 2u * CU_ATTEND_TILE_ROW(dim) * 2u)
/* Bytes of a warp's third parts of q, where registers do not hold them (bf16; f16 has none). */
#define CU_ATTEND_THIRDS(dim) ((dim) > 128u ? (dim) / 8u * 32u * 4u : 0u)
#define CU_ATTEND_DECODE_KEYS(dim)                                                                 \
    (CU_ATTEND_WARPS * CU_ATTEND_STAGES(dim) * CU_ATTEND_STAGE(dim))
#define CU_ATTEND_DECODE_SHARED(dim)                                                               \
    (CU_ATTEND_DECODE_KEYS(dim) + CU_ATTEND_WARPS * CU_ATTEND_THIRDS(dim))
#define CU_ATTEND_TILE_SHARED(dim, warps)                                                          \
    (CU_ATTEND_STAGES(dim) * CU_ATTEND_TILE_STAGE(dim) + (warps) * CU_ATTEND_THIRDS(dim))
#define CU_Q8_BLOCKS(dim) (((dim) + 31u) / 32u) /* of a row of q8 or of q4 */
/* The same where rows have blocks: of a stage K, then V, each rows and behind all of them what is of
 * their blocks. Rows of q8 begin 32 bytes more than a multiple of 64 behind each other, so that four
 * of them share no bank, rows of q4 an odd number of times 16 bytes. */
#define CU_ATTEND_Q8_ROW(dim)     ((dim) / 64u * 64u + 32u)
#define CU_ATTEND_Q8_NUMBERS(dim) (CU_Q8_BLOCKS(dim) * 2u) /* behind a row, in bytes */
#define CU_ATTEND_Q8_SIDE(dim)                                                                     \
    (CU_ATTEND_KEYS * (CU_ATTEND_Q8_ROW(dim) + CU_ATTEND_Q8_NUMBERS(dim))) /* K or V of a stage */
#define CU_ATTEND_Q4_ROW(dim)     (CU_Q8_BLOCKS(dim) * 16u | 16u)
#define CU_ATTEND_Q4_NUMBERS(dim) (CU_Q8_BLOCKS(dim) * 4u)
#define CU_ATTEND_Q4_SIDE(dim)                                                                     \
    (CU_ATTEND_KEYS * (CU_ATTEND_Q4_ROW(dim) + CU_ATTEND_Q4_NUMBERS(dim)))
/* `stage`: of both sides. */
#define CU_ATTEND_SIDES_DECODE_SHARED(dim, stage)                                                  \
    (CU_ATTEND_WARPS * CU_ATTEND_STAGES(dim) * (stage))
#define CU_ATTEND_SIDES_TILE_STAGE(stage) (2u * (stage))
#define CU_ATTEND_SIDES_TILE_SHARED(dim, stage)                                                    \
    (CU_ATTEND_STAGES(dim) * CU_ATTEND_SIDES_TILE_STAGE(stage))
#define CU_ATTEND_WARP_ROWS(dim) ((dim) > 128u ? 8u : 16u)
#define CU_ATTEND_TILE_WARPS     8u
/* The slots of a tile are divided into pieces, one per block, which begin at multiples of
 * CU_ATTEND_PIECE. A launch has at most CU_ATTEND_CHUNKS pieces; a second kernel, with
 * CU_ATTEND_JOIN_WARPS warps per block and one (row, query head) per warp, joins their states and
 * that of the pieces before. */
#define CU_ATTEND_PIECE      2048u
#define CU_ATTEND_JOIN_WARPS 8u

/* States of chunks wait in `states`: [row of the launch][KV head][chunk][group][head_dim + 2], sums
 * of weighted values, then the largest logit and the sum of weights; the last block of a (row, KV
 * head, tile of query heads) merges them in order. Of tiles of more than one piece: [tile of the
 * launch][KV head][chunk][(row, query head)][head_dim + 2], a chunk being a piece of the launch,
 * and the last one, where there are more pieces than a launch has, all those before. */
typedef struct cu_attend_args {
    cu_kv kv;
    cu_batch batch;
    cu_matrix q, out;
    cu_lists lists; /* pages NULL: all pages */
    CU_PTR(float) lse;
    CU_PTR(float) logits; /* [row][query head][logit_stride] */
    uint64_t logit_stride;
    CU_PTR(float) states;
    CU_PTR(uint32_t) tickets; /* [row of the launch][KV head][tile of query heads] */
    cu_logit logit;
    uint32_t first, n;  /* rows of this launch; tiles with by_tile and in the tile kernels */
    uint32_t chunks;    /* states a (row, KV head) or (tile, KV head) */
    uint32_t by_tile;   /* 1: only rows that are a tile of their own */
    uint32_t piece;     /* the first of the launch */
    uint32_t tile_rows; /* (row, query head) of a tile and KV head, at most */
} cu_attend_args;

typedef struct cu_merge_args {
    CU_PTR(const float) outs;
    CU_PTR(const float) lses;
    CU_PTR(float) out;
    CU_PTR(float) lse;
    uint32_t n_parts, n, dim, unused;
} cu_merge_args;

#define CU_SINK_THREADS 128u

typedef struct cu_sink_args {
    cu_matrix out;
    CU_PTR(float) lse;
    CU_PTR(const float) sinks;
    uint32_t n_rows, n_heads, dim, unused;
} cu_sink_args;

/* ---- pool, value, key ---- */

#define CU_POOL_THREADS 256u

typedef struct cu_pool_args {
    CU_PTR(const int32_t) visible;
    CU_PTR(const float) x;
    CU_PTR(float) out;
    uint64_t stride;
    uint32_t lists, n_lists; /* in all, and of a lane */
    uint32_t tail, width, kind;
    uint32_t blocks; /* of a list */
} cu_pool_args;

/* KV lanes, each of whose slots `blocks` blocks share. */
typedef struct cu_slots {
    cu_kv kv;
    cu_batch batch;
    uint32_t blocks, dim;
    uint32_t dtype, unused; /* tamis_dtype of the rows, which is not k8v4 */
} cu_slots;

#define CU_SUM_SLOTS    512u /* slots of a block, whose sums are formed separately */
#define CU_ROWS_THREADS 256u /* of a block that takes rows one by one */
#define CU_ROWS_SLOTS   128u /* slots of it */

#define CU_VALUE_THREADS 128u
#define CU_VALUE_LISTS   4u                      /* of a thread that sums */
#define CU_VALUE_SLOTS   (4u * CU_VALUE_THREADS) /* of a block that scores */

typedef struct cu_value_score_args {
    cu_slots slots;
    CU_PTR(const float) a;
    CU_PTR(const int32_t) limits;
    CU_PTR(float) parts; /* [item][KV head][sum_blocks][list][dim] */
    CU_PTR(float) y;     /* [item][KV head][list][dim] */
    CU_PTR(float) out;
    uint64_t stride, out_stride;
    uint32_t n_lists, sum_blocks;
} cu_value_score_args;

/* Products of a tile of cached rows with rows of weights: slots and weights of a block, channels of
 * a panel of weights, bytes of dynamic shared memory. */
#define CU_PROJECT_SLOTS(dim)     ((dim) <= 256u ? 64u : 32u)
#define CU_PROJECT_THREADS(slots) (2u * (slots))
#define CU_PROJECT_ROWS           128u
#define CU_PROJECT_DEPTH          16u
#define CU_PROJECT_PITCH          (CU_PROJECT_ROWS + 4u)
#define CU_PROJECT_SHARED(dim)                                                                     \
    (4u * ((dim)*CU_PROJECT_SLOTS(dim) + CU_PROJECT_DEPTH * CU_PROJECT_PITCH))

typedef struct cu_value_norm_args {
    cu_slots slots;
    CU_PTR(const void) w;
    CU_PTR(float) out;
    uint64_t w_stride, out_stride;
    uint32_t n_out, w_dtype;
} cu_value_norm_args;

typedef struct cu_key_score_args {
    cu_slots slots;
    CU_PTR(const float) mu;
    CU_PTR(const float) cov;
    CU_PTR(float) sums;  /* [item][KV head][sum_blocks][dim] */
    CU_PTR(float) means; /* [item][KV head][dim] */
    CU_PTR(float) out;
    uint64_t out_stride;
    float scale;
    uint32_t sum_blocks;
} cu_key_score_args;

typedef struct cu_score_rows_args {
    cu_slots rows; /* blocks share all (row, KV head), of which each has a slot */
    CU_PTR(const int32_t) slots;
    CU_PTR(float) scores; /* the plane */
} cu_score_rows_args;

#define CU_SEEK_THREADS 128u

typedef struct cu_seek_args {
    cu_batch batch;
    CU_PTR(const int32_t) positions; /* the plane */
    CU_PTR(const int32_t) least;
    CU_PTR(int32_t) out;
    uint64_t row_stride, head_stride;
    uint32_t page_size, unused;
} cu_seek_args;

#define CU_TAKE_LISTS_THREADS 128u

typedef struct cu_take_lists_args {
    cu_batch batch;
    cu_lists raw, lists;
    CU_PTR(int32_t) ids; /* NULL: none */
    CU_PTR(uint32_t) skipped;
    uint32_t granularity, page_size, page_slots, unused;
} cu_take_lists_args;

#define CU_DEVIATION_THREADS 128u

typedef struct cu_deviation_args {
    cu_kv kv;
    cu_batch batch;
    cu_matrix x;
    CU_PTR(const int32_t) slots;
    CU_PTR(float) out;
    CU_PTR(float) norms;  /* may be NULL */
    uint32_t dim, values; /* values: of V, else of K */
} cu_deviation_args;

/* ---- linear, linear_parts, norm, activate, embed, argmax ---- */

#define CU_LINEAR_RUN          4u   /* outputs of a block with few rows */
#define CU_LINEAR_FEW_THREADS  128u /* of that block */
#define CU_LINEAR_TILE         64u  /* rows, and outputs, of a block with many */
#define CU_LINEAR_TILE_THREADS 256u /* of that block */
#define CU_LINEAR_ITEM_THREADS 256u /* of a block that widens or starts */
/* The form for matrix units: outputs and threads of a block, inputs that it takes at a time, and
 * its shared memory in bytes, by the rows of the kernel. */
#define CU_LINEAR_MMA_ROWS    32u /* most */
#define CU_LINEAR_MMA_OUTPUTS 128u
#define CU_LINEAR_MMA_STAGE   128u
#define CU_LINEAR_MMA_THREADS 512u
#define CU_LINEAR_MMA_SHARED(rows)                                                                 \
    ((rows) * (4u * 4u * (CU_LINEAR_MMA_OUTPUTS + 8u) + 4u) + 16u)

typedef struct cu_linear_args {
    cu_matrix x, y;
    CU_PTR(const void) w;
    CU_PTR(const float) bias;
    uint32_t n_rows, n_in, n_out, accumulate;
} cu_linear_args;

/* Values of tamis_weight_type. */
#define CU_WEIGHT_F32    0
#define CU_WEIGHT_F16    1
#define CU_WEIGHT_BF16   2
#define CU_WEIGHT_Q8_0   3
#define CU_WEIGHT_Q4_0   4
#define CU_WEIGHT_Q4_1   5
#define CU_WEIGHT_Q5_0   6
#define CU_WEIGHT_Q4_K   7
#define CU_WEIGHT_Q6_K   8
#define CU_WEIGHT_Q5_1   9
#define CU_WEIGHT_Q5_K   10
#define CU_WEIGHT_Q3_K   11
#define CU_WEIGHT_Q2_K   12
#define CU_WEIGHT_IQ4_NL 13
#define CU_WEIGHT_IQ4_XS 14
#define CU_WEIGHT_MXFP4  15

#define CU_LINEAR_PARTS 3
typedef struct cu_linear_part {
    cu_matrix y;
    CU_PTR(const void) w;
    CU_PTR(const float) bias;
    uint32_t n_out, type;
} cu_linear_part;

/* Parts that are absent have no outputs. The addend may be absent, and with it sum and addend_w. If
 * there are parts behind it, blocks hold the rows of the sum, CU_LINEAR_HELD(n_in) floats each, in
 * shared memory: CU_LINEAR_MOST_HELD together. */
#define CU_LINEAR_HELD(n_in) (((n_in) + 7u) / 8u * 8u)
#define CU_LINEAR_MOST_HELD  12288u
typedef struct cu_linear_parts_args {
    cu_matrix x, addend, sum;
    CU_PTR(const float) addend_w;
    CU_PTR(const float) norm;
    cu_linear_part parts[CU_LINEAR_PARTS];
    uint32_t n_rows, n_in, gated, accumulate;
    float eps;
    uint32_t n_parts;
    uint32_t norm_kind, addend_kind, activation, unused; /* as tamis_norm_kind, tamis_activation */
} cu_linear_parts_args;

/* Each block of the grid's y takes `range` inputs. If there are several, their partial sums are in
 * `states` [range][row][n_out]. */
typedef struct cu_linear_mma_args {
    cu_linear_args linear;
    CU_PTR(float) states;
    CU_PTR(uint32_t) tickets; /* one per block of outputs */
    uint32_t range, unused;
} cu_linear_mma_args;

typedef struct cu_widen_args {
    CU_PTR(const void) from;
    CU_PTR(float) to;
    uint64_t n;
} cu_widen_args;

typedef struct cu_norm_args {
    cu_matrix x, y, to; /* to: where it is added */
    CU_PTR(const float) w;
    uint32_t n_rows, dim;
    float eps;
    uint32_t kind; /* as tamis_norm_kind */
} cu_norm_args;

#define CU_NORM_LAYER 1u
#define CU_NORM_NONE  2u
#define CU_GELU       1u

typedef struct cu_activate_args {
    cu_matrix gate, up, y; /* up may be absent */
    uint32_t n_rows, dim;
    uint32_t activation, unused; /* as tamis_activation */
} cu_activate_args;

typedef struct cu_embed_args {
    CU_PTR(const int32_t) tokens;
    CU_PTR(const void) w;
    cu_matrix y;
    uint32_t n_rows, dim;
    float scale;
    uint32_t unused;
} cu_embed_args;

typedef struct cu_argmax_args {
    cu_matrix x;
    CU_PTR(int32_t) out;
    uint32_t n_rows, dim;
} cu_argmax_args;

/* ---- observe, fuse ---- */

/* A block takes CU_OBSERVE_KEYS slots, two per warp lane, and CU_OBSERVE_ROWS rows at a time, 8 per
 * warp. Dynamic shared memory: its keys, rows of the cache's dtype 16 bytes apart, unless dims are
 * CU_ANY_DIM, then the queries. */
#define CU_OBSERVE_THREADS      128u
#define CU_OBSERVE_KEYS         64u
#define CU_OBSERVE_ROWS         32u
#define CU_OBSERVE_KEYS_OF(row) (CU_OBSERVE_KEYS * ((row) + 16u)) /* bytes; row: bytes of one */
#define CU_OBSERVE_QUERIES(dim)     (CU_OBSERVE_ROWS * (dim) * (uint32_t)sizeof(float))
#define CU_OBSERVE_SHARED(dim, row) (CU_OBSERVE_KEYS_OF(row) + CU_OBSERVE_QUERIES(dim))

typedef struct cu_observe_args {
    cu_kv kv;
    cu_batch batch;
    CU_PTR(const int32_t) spans; /* [n_items][2] */
    cu_matrix q;
    CU_PTR(const float) lse;
    CU_PTR(const float) logits; /* NULL: from q and K */
    CU_PTR(float) values;       /* may be NULL; value_stride 0: a plane */
    CU_PTR(float) tile;         /* may be NULL */
    uint64_t lse_stride, logit_stride, value_stride, tile_stride;
    cu_logit logit;
    uint32_t n_items, max_span, join, rule, accumulate;
    uint32_t blocks; /* that share the slots of an (item, KV head) */
} cu_observe_args;

#define CU_FUSE_THREADS 256u
#define CU_FUSE_PART    32u /* terms that are summed before their sum is added to the total */

typedef struct cu_fuse_args {
    cu_batch batch; /* row_seq and table NULL where nothing lies in a plane */
    CU_PTR(const float) x;
    CU_PTR(const float) y; /* may be NULL */
    CU_PTR(float) out;
    CU_PTR(const int32_t) positions;
    CU_PTR(const int32_t) now;
    uint64_t x_stride, y_stride, out_stride; /* 0: a plane */
    float a, b;
    uint32_t kind, tail, chunk, n_lists, page_size;
    uint32_t blocks; /* that share the slots of a lane, or of an item */
} cu_fuse_args;

/* ---- probe ---- */

typedef struct cu_probe_args {
    CU_PTR(const void) from;
    CU_PTR(uint32_t) sink; /* one word, for sums that nobody reads */
    uint64_t n;            /* vectors of 16 bytes */
} cu_probe_args;

typedef struct cu_page_read_args {
    CU_PTR(const uint8_t) kv;
    CU_PTR(const int32_t) table; /* page ids [lane][capacity] */
    CU_PTR(const int32_t) count; /* [lane] */
    CU_PTR(uint32_t) sink;
    uint64_t page_stride, value_offset; /* bytes */
    uint32_t n_lanes, capacity, max_pages;
    uint32_t k_vectors, v_vectors, unused; /* of 16 bytes, of a page */
} cu_page_read_args;

#endif
