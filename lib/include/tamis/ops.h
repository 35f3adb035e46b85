/* SPDX-License-Identifier: Apache-2.0 */
/* The ops on the caller's own buffers: what a model needs beside attention, and the pipeline for
 * an engine that has a paged cache of its own. An engine that uses tamis_cache needs at most the
 * first half; lib/model is such an engine. */
#ifndef TAMIS_OPS_H
#define TAMIS_OPS_H

#include <tamis/buffer.h>
#include <tamis/cache.h>
#include <tamis/layer.h>
#include <tamis/policy.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What holds for every tamis_op_* call:
 *
 * The call enqueues and returns; later calls see its results. The params struct may be reused at
 * once; buffers stay the caller's and must live until what is enqueued on them has run. A shape's
 * first launch compiles its kernels, which waits. A call with no rows (n_rows 0; n 0) only
 * compiles: its buffers may be absent, its other sizes must be those of the launches to come. Where
 * other numbers of rows take other kernels, build_rows then says for how many they are compiled (0:
 * for any number); of a chain that of its first stage.
 *
 * Errors: E_ARGUMENT (NULL; a buffer that is absent, of another context, or too small for the
 * shape; rows that must not overlap and do; a reserved field that is not 0), E_UNSUPPORTED (a shape
 * that the op or the device does not take), both with the offending value: then nothing is
 * enqueued. E_NO_MEMORY and E_DEVICE as everywhere. The caller is responsible for what is in device
 * memory: page ids, lists, tokens, indices, `visible` and tiles are read unchecked, and wrong ones
 * reach outside the buffers. (The reference checks tokens, the indices of scatter, `visible`,
 * rotate's positions and observe's spans, not page ids, row_seq, lists and tiles.)
 *
 * Places: offsets are in bytes, multiples of 4. Strides are in elements; a row stride of 0 means
 * packed rows. Activations are f32, which their `dtype` must say. Tables are int32.
 *
 * Thread-safety: as the context. Graphs: a launch whose kernels are compiled may be recorded
 * (graph.h), except linear above TAMIS_FEW_ROWS rows, where a vendor's library may allocate memory.
 *
 * Arithmetic is fp32, in an order that differs between devices; the reference sums in fp64. A
 * product or sum that leaves fp32's range gives infinity or NaN, which affects no other row or
 * head. */

/* ---- What a model needs beside attention ----------------------------------------------------- */

/* linear: y[r][j] = Σ_i x[r][i]·w[j][i] + bias[j] (+ y[r][j] if accumulate).
 * Up to TAMIS_FEW_ROWS rows a matrix-vector kernel runs, which reads w once; above that a
 * matrix-matrix kernel or a vendor's library. The two may round a row differently: only here may a
 * row's bits depend on the number of rows in a launch. The fast case is w and rows of x at
 * multiples of 16 bytes, with n_in a multiple of 8. A row of w of a quantised type is a whole
 * number of blocks. Its inputs may be rounded to 16 bits, each within 1.6e-5 of the largest of the
 * 32 that lie together; inputs above 2^100 may count as infinite, below 2^-86 as 0. */
#define TAMIS_FEW_ROWS 8
typedef struct tamis_linear_params {
    tamis_rows x, y;       /* f32 [n_rows][n_in], [n_rows][n_out]; y does not overlap x */
    tamis_weight_matrix w; /* [n_out][n_in] of any type */
    tamis_place bias;      /* f32 [n_out]; may be absent */
    uint32_t n_rows, n_in, n_out;
    int accumulate;
    uint32_t build_rows;  /* read without rows alone */
    uint32_t reserved32;  /* 0, else E_ARGUMENT */
    uint64_t reserved[3]; /* 0, else E_ARGUMENT */
} tamis_linear_params;
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_op_linear(tamis_context *context,
                                                        const tamis_linear_params *params,
                                                        tamis_error *error);

/* linear_parts: what norm, up to three linears of one input and activate give, in one launch, for
 * at most TAMIS_FEW_ROWS rows. With z = x, or norm's y of x where norm_w is given, and with adds x +
 * norm's y of addend in the place of x:
 *   part p   y_p[r][j] = Σ_i z[r][i]·w_p[j][i] + bias_p[j] (+ y_p[r][j] if accumulate), each with
 *            its own weight type;
 *   gated    one part gives y_0 = act(part 0), two of one n_out y_0 = act(part 0)·part 1, with the
 *            activation act; part 1 has no y, and accumulate must be 0;
 *   adds     sum = x + norm's y of addend. Where a model normalises or scales what a product adds to its
 *            residual stream, who reads the stream next adds it on the way, and the stream goes on in
 *            sum. Without adds, addend, addend_w and sum must be absent and addend_kind 0.
 * In a decode step it takes the place of norm, q, k and v, or of norm, gate, up and activate. What
 * is said of linear holds for each part. Parts from n_parts on must be zero. */
#define TAMIS_MOST_PARTS 3
typedef struct tamis_linear_part {
    tamis_weight_matrix w; /* [n_out][n_in] of any type */
    tamis_place bias;      /* f32 [n_out]; may be absent */
    tamis_rows y;          /* f32 [n_rows][n_out]; overlaps neither x nor the y of another part */
    uint32_t n_out;
    uint32_t reserved32; /* 0, else E_ARGUMENT */
} tamis_linear_part;
typedef struct tamis_linear_parts_params {
    tamis_rows x;       /* f32 [n_rows][n_in] */
    tamis_place norm_w; /* f32 [n_in]; may be absent */
    tamis_linear_part parts[TAMIS_MOST_PARTS];
    uint32_t n_parts, n_rows, n_in;
    float eps; /* of the norm */
    int gated, accumulate;
    uint32_t build_rows; /* read without rows alone */
    tamis_norm_kind norm_kind;
    tamis_activation activation; /* of gated parts; else 0 */
    int adds;
    tamis_rows addend;    /* f32 [n_rows][n_in]; no y overlaps it */
    tamis_rows sum;       /* f32 [n_rows][n_in]; overlaps neither x, addend nor a y */
    tamis_place addend_w; /* f32 [n_in] */
    tamis_norm_kind addend_kind;
    uint32_t reserved32;  /* 0, else E_ARGUMENT */
    uint64_t reserved[2]; /* 0, else E_ARGUMENT */
} tamis_linear_parts_params;
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_op_linear_parts(
    tamis_context *context, const tamis_linear_parts_params *params, tamis_error *error);

/* linear_chain: up to eight linear_parts, the stages, one after another; a stage may read what those
 * before it wrote, and write what they read. All stages have the same n_rows. Same bits as
 * linear_parts stage by stage; as linear where a stage has one part and neither norm, gate nor addend.
 * A stage with adds and no parts is norm: sum = norm's y of addend (+ x if accumulate, else x is
 * absent), and sum may be x or addend. In a decode step it takes a layer from its attention to the next
 * one's: out; gate and up; down; q, k and v; where a model has them, norms between. On a CPU whose cores
 * all run at a time it is one launch, if there are at most eight stages, those with parts and an addend
 * counted twice, of 7 parts and three types of weights together; elsewhere one for each stage, and where
 * one of them fails with E_NO_MEMORY or E_DEVICE, those before it have run. Stages from n_stages on are
 * not read. An error's text names the stage. */
#define TAMIS_MOST_STAGES 8
typedef struct tamis_linear_chain_params {
    const tamis_linear_parts_params *stages; /* host memory, [n_stages] */
    uint32_t n_stages;                       /* 1 to 8 */
    uint32_t reserved32;                     /* 0, else E_ARGUMENT */
    uint64_t reserved[4];                    /* 0, else E_ARGUMENT */
} tamis_linear_chain_params;
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_op_linear_chain(
    tamis_context *context, const tamis_linear_chain_params *params, tamis_error *error);

/* norm: y = kind(x)·w (+ y if accumulate), e.g. RMSNorm. y may be x. Where a row's Σ x² is above
 * fp32's range, its y may be 0. */
typedef struct tamis_norm_params {
    tamis_rows x, y; /* f32 [n_rows][dim] */
    tamis_place w;   /* f32 [dim] */
    uint32_t n_rows, dim;
    float eps; /* not read if kind is TAMIS_NORM_NONE */
    tamis_norm_kind kind;
    int accumulate;
    uint32_t reserved32;  /* 0, else E_ARGUMENT */
    uint64_t reserved[3]; /* 0, else E_ARGUMENT */
} tamis_norm_params;
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_op_norm(tamis_context *context,
                                                      const tamis_norm_params *params,
                                                      tamis_error *error);

/* A rotation of heads by positions (RoPE). `table` is as tamis_rotation_write wrote it for n_rot. */
typedef struct tamis_rotation {
    uint32_t n_rot; /* first channels of a head that are rotated, even, at most 512; 0: head_dim */
    tamis_pairing pairing;
    tamis_place table;
} tamis_rotation;

/* rotate: RoPE (arXiv 2104.09864) on rows in place. Pair i turns by position·frequency_i:
 *   (a, b) -> (a·cos - b·sin, a·sin + b·cos).
 * A negative position rotates backwards, so that a rotated key is moved by a difference of
 * positions. */
#define TAMIS_ROTATE_LIMIT (1u << 20) /* absolute values of positions are below it */
typedef struct tamis_rotate_params {
    tamis_rows x; /* f32 [n_rows][n_heads][head_dim] */
    uint32_t n_rows, n_heads, head_dim;
    uint32_t reserved32; /* 0, else E_ARGUMENT */
    tamis_rotation rotation;
    tamis_place positions; /* int32 [n_rows] */
    uint64_t reserved[4];  /* 0, else E_ARGUMENT */
} tamis_rotate_params;
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_op_rotate(tamis_context *context,
                                                        const tamis_rotate_params *params,
                                                        tamis_error *error);
/* Bytes of rotate's table for n_rot channels. */
TAMIS_API uint64_t tamis_rotation_bytes(uint32_t n_rot);
/* Writes the rotation's table: cos and sin of j and of 1024·j times each frequency, j below 1024. The
 * device joins them by the addition theorem, so that large positions lose no accuracy. frequencies
 * [n_rot/2], in radians per position; n_rot may not be 0 here. Enqueues, as tamis_buffer_write.
 * Errors: E_ARGUMENT, E_NO_MEMORY, E_DEVICE. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_rotation_write(const tamis_rotation *rotation,
                                                             const double *frequencies,
                                                             tamis_error *error);

/* The same for a rotation that also multiplies the channels that it rotates by `magnitude`, as YaRN and
 * LongRoPE do. A scale of attention does that where all channels are rotated; where some are not, this
 * does. Whatever turns a rotated key once more would multiply it once more. Errors: those, and
 * E_ARGUMENT for a magnitude that is not finite. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_rotation_write_scaled(const tamis_rotation *rotation,
                                                                    const double *frequencies,
                                                                    double magnitude,
                                                                    tamis_error *error);

/* activate: y = activation(gate)·up, without up activation(gate). y may be gate or up. */
typedef struct tamis_activate_params {
    tamis_rows gate, up, y; /* f32 [n_rows][dim]; up may be absent */
    uint32_t n_rows, dim;
    tamis_activation activation;
    uint32_t reserved32;  /* 0, else E_ARGUMENT */
    uint64_t reserved[3]; /* 0, else E_ARGUMENT */
} tamis_activate_params;
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_op_activate(tamis_context *context,
                                                          const tamis_activate_params *params,
                                                          tamis_error *error);

/* embed: y[r] = scale · row tokens[r] of w as f32: each element exactly, or rounded once (Q4_1, Q4_K);
 * its product with a scale other than 1 is rounded again. */
typedef struct tamis_embed_params {
    tamis_place tokens;    /* int32 [n_rows], each below n_vocab */
    tamis_weight_matrix w; /* [n_vocab][dim] of any type */
    tamis_rows y;          /* f32 [n_rows][dim] */
    uint32_t n_rows, dim, n_vocab;
    float scale;          /* 0 means 1 */
    uint64_t reserved[4]; /* 0, else E_ARGUMENT */
} tamis_embed_params;
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_op_embed(tamis_context *context,
                                                       const tamis_embed_params *params,
                                                       tamis_error *error);

/* argmax: the index of the largest of each row; of equal ones the lowest; NaN after everything. */
typedef struct tamis_argmax_params {
    tamis_rows x;    /* f32 [n_rows][dim] */
    tamis_place out; /* int32 [n_rows] */
    uint32_t n_rows, dim;
    uint64_t reserved[4]; /* 0, else E_ARGUMENT */
} tamis_argmax_params;
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_op_argmax(tamis_context *context,
                                                        const tamis_argmax_params *params,
                                                        tamis_error *error);

/* scatter_rows: y[index[r]] = x[r], exactly; an index below 0 skips its row. */
typedef struct tamis_scatter_rows_params {
    tamis_rows x, y;   /* f32 [n_rows][width], [n_rows_y][width], not overlapping */
    tamis_place index; /* int32 [n_rows], each below n_rows_y, no two of them equal from 0 on */
    uint32_t n_rows, n_rows_y, width;
    uint32_t reserved32;  /* 0, else E_ARGUMENT */
    uint64_t reserved[4]; /* 0, else E_ARGUMENT */
} tamis_scatter_rows_params;
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_op_scatter_rows(
    tamis_context *context, const tamis_scatter_rows_params *params, tamis_error *error);

/* convert: y = x, rows of one dtype to rows of another or of the same: exact where y can hold x, else
 * rounded to nearest even; f16 overflow gives infinity, NaN stays NaN. */
typedef struct tamis_convert_params {
    tamis_rows x, y; /* f32, f16 or bf16 [n_rows][width], each of its own dtype, not overlapping */
    uint32_t n_rows, width;
    uint64_t reserved[4]; /* 0, else E_ARGUMENT */
} tamis_convert_params;
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_op_convert(tamis_context *context,
                                                         const tamis_convert_params *params,
                                                         tamis_error *error);

/* ---- The pipeline over a cache of the caller's ----------------------------------------------- */

/* The caller writes K and V himself and describes their layout. The rest of a decode step over them
 * is: bounds of the pages that became full; score_pages, select, attend for the step's rows.
 *
 * The layout of K and V in a page. */
typedef enum tamis_kv_layout {
    TAMIS_KV_OWN = 0,    /* [page][K, V][slot][dim]: a page is of one KV head, as in tamis_cache */
    TAMIS_KV_NHD = 1,    /* [page][K, V][slot][KV head][dim] */
    TAMIS_KV_HND = 2,    /* [page][K, V][KV head][slot][dim] */
    TAMIS_KV_STRIDES = 3 /* as the strides say */
} tamis_kv_layout;

/* V rows that do not lie value_offset behind their K rows: they are in a buffer of their own, or in the same one
 * with strides of their own. With page p, KV head h, slot s of the page, in elements:
 *   channel c of a V row at  p·page_stride + h·head_stride + s·slot_stride + c·channel_stride.
 * Values that lie transposed have a slot_stride of 1. A call without rows builds the kernels for values
 * apart if data is given. */
typedef struct tamis_kv_values {
    tamis_place data;
    uint64_t page_stride, head_stride, slot_stride;
    uint64_t channel_stride; /* 0 means 1 */
    uint64_t reserved[4];    /* 0, else E_ARGUMENT */
} tamis_kv_values;

/* Pages of K and V, and their bounds. With page p, KV head h, slot s of the page, in elements:
 *   K row at  p·page_stride + h·head_stride + s·slot_stride,   V row value_offset further on;
 *   lo row at p·bounds_page_stride + h·bounds_head_stride,     hi row head_dim further on.
 * Channel c of a K row is c·channel_stride further on, of a V row too.
 *
 * Supported: one page list for all KV heads or one per head (tamis_batch); NHD and HND; K and V
 * together in a page, in two halves of one buffer ([K, V][page]…: TAMIS_KV_STRIDES) or in two buffers
 * (values); contiguous rows that are not paged, as consecutive pages; one slot a page; channels apart.
 * CUDA needs rows that begin at multiples of 16 bytes, and adjacent channels, else E_UNSUPPORTED. On a
 * CPU through OpenCL pages of 16 slots with adjacent channels are the fast case. Not supported: keys in
 * blocks of x channels; values of another width than keys; 8-bit and quantised elements; page ids of 64
 * bits. */
typedef struct tamis_kv {
    tamis_place data;
    tamis_place bounds;     /* may be absent for attend, page_mass and observe */
    tamis_dtype dtype;      /* of K, V and bounds */
    tamis_kv_layout layout; /* bounds: [page][lo, hi][dim] for OWN, [page][KV head][lo, hi][dim] for
                               NHD and HND */
    uint32_t page_size;     /* slots: a power of two from 1 to 256 */
    uint32_t head_dim;      /* 64, 80, 96, 112, 128, 160, 192, 256 or 512 */
    uint32_t n_pages;       /* page ids are below it */
    uint32_t reserved32;    /* 0, else E_ARGUMENT */
    /* With TAMIS_KV_STRIDES; else 0. */
    uint64_t page_stride, head_stride, slot_stride;
    uint64_t value_offset; /* 0 where there are values */
    uint64_t bounds_page_stride, bounds_head_stride;
    uint64_t channel_stride; /* 0 means 1 */
    const tamis_kv_values
        *values;          /* host memory, read by the call; NULL: value_offset says where V is */
    uint64_t reserved[2]; /* 0, else E_ARGUMENT */
} tamis_kv;

/* The most rows that a tile may have. */
#define TAMIS_TILE_ROWS 32

/* The query rows of a launch and what they see.
 * A tile is up to TAMIS_TILE_ROWS rows that read the same pages together: adjacent rows of one
 * sequence, by ascending position. In decode each tile has one row. */
typedef struct tamis_batch {
    uint32_t n_rows;
    uint32_t n_heads, n_kv_heads; /* query heads: n_kv_heads times the group, group 1 to 64 */
    uint32_t n_sequences;         /* 0 means 1 */
    uint32_t n_tiles;             /* 0 means n_rows */
    uint32_t max_tile_rows;       /* no tile has more rows; 0 means 1 */
    uint32_t max_visible;         /* no entry of `visible` is larger; sizes the launch */
    uint32_t max_seen; /* no row sees more slots of a lane; 0 means max_visible; sizes the launch */
    tamis_place tiles;   /* [n_tiles][2]: (first row, number of rows); every row is in one tile. Not
                            read by select and observe */
    tamis_place row_seq; /* [n_rows]: the row's sequence, below n_sequences */
    tamis_place visible; /* [n_rows][n_kv_heads]: the row sees no slot of its lane from this one on */
    /* [n_rows][n_kv_heads]: the row sees no slot before this one, from 0 on, as under a sliding window.
     * May be absent: 0. Read by score_pages, page_mass, select, attend and observe. */
    tamis_place first;
    /* Page ids: the i-th page of (sequence b, KV head h) is at b·seq_stride + h·head_stride + i.
     * head_stride 0: one list for all heads. seq_stride may be 0 if there is one sequence. Every
     * list has room for the pages of max_visible slots. */
    tamis_place table;
    uint64_t seq_stride, head_stride;
    uint64_t reserved[4]; /* 0, else E_ARGUMENT */
} tamis_batch;

/* Pages chosen for each (row, KV head): ordinals in its page list, strictly ascending. */
typedef struct tamis_lists {
    tamis_place pages; /* [n_rows][n_kv_heads][capacity]; absent: every page */
    tamis_place count; /* [n_rows][n_kv_heads] */
    uint32_t capacity;
    uint32_t reserved32; /* 0, else E_ARGUMENT */
} tamis_lists;

/* bounds: the pair (lo, hi) of full pages, from all page_size keys of each, for every KV head of
 * the page (layout OWN: n_kv_heads is 1). See tamis_bounds for the kinds; a channel with a NaN key
 * gets NaN. */
typedef struct tamis_bounds_params {
    tamis_kv kv;
    tamis_place pages; /* int32 [n] page ids; negative ones are skipped */
    uint32_t n, n_kv_heads;
    tamis_bounds bounds;
    uint64_t reserved[4]; /* 0, else E_ARGUMENT */
} tamis_bounds_params;
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_op_bounds(tamis_context *context,
                                                        const tamis_bounds_params *params,
                                                        tamis_error *error);

/* score_pages: the score of every full page of which a row sees a slot,
 *   Σ_d max(q_d·lo_d, q_d·hi_d)                                       (Quest, section 3.4),
 * joined over the query heads of the group by `group`. A NaN product makes the score NaN. Scores of
 * other pages are not written. */
typedef struct tamis_score_pages_params {
    tamis_kv kv;
    tamis_batch batch;
    tamis_rows q;       /* f32 [n_rows][n_heads][head_dim] */
    tamis_place scores; /* f32 [n_rows][n_kv_heads][stride] */
    uint32_t stride;    /* 0 means max_visible / page_size */
    tamis_group_rule group;
    uint64_t reserved[4]; /* 0, else E_ARGUMENT */
} tamis_score_pages_params;
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_op_score_pages(tamis_context *context,
                                                             const tamis_score_pages_params *params,
                                                             tamis_error *error);

/* page_mass: as score_pages, but the score is the share of the row's attention that falls on the
 * page; reads every key. A NaN or infinite logit makes all scores of that (row, KV head) NaN. */
typedef struct tamis_page_mass_params {
    tamis_kv kv;
    tamis_batch batch;
    tamis_rows q;
    tamis_place scores;
    uint32_t stride; /* 0 means max_visible / page_size */
    tamis_group_rule group;
    tamis_attention attention; /* as attend's */
    tamis_place scratch;  /* of tamis_op_page_mass_scratch bytes; need not be kept */
    uint64_t reserved[4]; /* 0, else E_ARGUMENT */
} tamis_page_mass_params;
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_op_page_mass(tamis_context *context,
                                                           const tamis_page_mass_params *params,
                                                           tamis_error *error);
/* Bytes of scratch, which may be 0, for launches whose n_rows, n_heads, n_kv_heads, max_visible and
 * stride are at most these. Buffers may be absent. Errors: E_ARGUMENT, as the launch. Enqueues
 * nothing. */
TAMIS_API TAMIS_MUST_CHECK tamis_status
tamis_op_page_mass_scratch(tamis_context *context, const tamis_page_mass_params *params,
                           uint64_t *bytes, tamis_error *error);

/* select: for each (row, KV head) the best `k` of the entries of which it sees a slot, an entry being
 * `granularity` consecutive slots; floor(visible / granularity) of them have scores.
 *   1. Always taken: the entries that hold one of the first `sinks` or last `recent` slots, and a
 *      partial entry, which has no score.
 *   2. Of the others the best, up to k in all, by (score desc, ordinal desc), where the ordinal is
 *      the entry's index: of equal scores the newer wins; -0 equals +0; NaN comes last. If there
 *      are at most k entries, all are taken.
 *   3. The list is ascending.
 * Without scores step 2 takes the newest. Lists are equal bit for bit on every device. With recent
 * 0 a full newest page competes by its score. Set it to 1, as plans do, so that a row always sees
 * its own token. */
typedef struct tamis_select_params {
    tamis_batch batch;    /* the contents of its table are not read */
    uint32_t granularity; /* the page size, to attend the lists */
    uint32_t k, sinks, recent;
    tamis_place scores;   /* f32 [n_rows][n_kv_heads][stride]; may be absent */
    uint32_t stride;      /* 0 means max_visible / granularity */
    uint32_t reserved32;  /* 0, else E_ARGUMENT */
    tamis_lists lists;    /* capacity for k, or for the entries that are always taken if more */
    uint64_t reserved[4]; /* 0, else E_ARGUMENT */
} tamis_select_params;
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_op_select(tamis_context *context,
                                                        const tamis_select_params *params,
                                                        tamis_error *error);

/* attend: softmax attention of rows over the slots that they see in the pages of their lists.
 *   logit as tamis_attention says (layer.h);
 *   out = Σ softmax(logit)·v, lse = ln Σ exp(logit), over the slots and, without a value, the sink.
 * States that are to be merged: only one of them may have the sinks. Sinks need lse.
 * A row that sees nothing: out 0, lse -inf. A NaN or infinite logit gives NaN for that row and
 * head. Results depend on the row, on its list, and on whether it is alone in its tile; on nothing
 * else in the launch. */
typedef struct tamis_attend_params {
    tamis_kv kv;
    tamis_batch batch;
    tamis_lists lists;
    uint32_t max_pages;    /* no list is longer; 0 means capacity, or all pages without lists */
    uint32_t reserved32;   /* 0, else E_ARGUMENT */
    tamis_rows q, out;     /* f32 [n_rows][n_heads][head_dim], not overlapping */
    tamis_place lse;       /* f32 [n_rows][n_heads]; may be absent where there are no sinks */
    /* Its sliding_window and chunk must be 0: the batch's `first` says from where on rows see. */
    tamis_attention attention;
    tamis_place scratch;   /* of tamis_op_attend_scratch bytes; need not be kept */
    /* f32 [n_rows][n_heads][logit_stride], may be absent; only with one row a tile: logits of the
     * slots that the row sees. Others may become -inf or stay as they are. */
    tamis_place logits;
    uint64_t logit_stride; /* 0 means max_visible */
    uint64_t reserved[4];  /* 0, else E_ARGUMENT */
} tamis_attend_params;
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_op_attend(tamis_context *context,
                                                        const tamis_attend_params *params,
                                                        tamis_error *error);
/* Bytes of scratch, which may be 0, for launches whose n_rows, max_tile_rows and max_pages (without
 * lists max_visible) are at most these, with the same heads, head_dim, page_size and dtype. Buffers
 * may be absent, except lists.pages, which says whether there are lists. Errors: E_ARGUMENT, as the
 * launch. Enqueues nothing. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_op_attend_scratch(tamis_context *context,
                                                                const tamis_attend_params *params,
                                                                uint64_t *bytes,
                                                                tamis_error *error);

/* merge: states (out, lse) of the same rows, over different keys, into one:
 *   lse = ln Σ exp(lse_i);  out = Σ exp(lse_i - lse)·out_i.
 * A part with lse -inf adds nothing. If only one part has another lse, it is copied bit for bit; if
 * none has, out is 0 and lse -inf. Merged in the order of the parts (FlashAttention's rescaling,
 * arXiv
 * 2205.14135). */
typedef struct tamis_merge_params {
    tamis_place outs, lses; /* f32 [n_parts][n][dim], [n_parts][n] */
    tamis_place out;        /* f32 [n][dim] */
    tamis_place lse;        /* f32 [n]; may be absent */
    uint32_t n_parts;
    uint32_t n; /* states: rows times query heads */
    uint32_t dim;
    uint32_t reserved32;  /* 0, else E_ARGUMENT */
    uint64_t reserved[4]; /* 0, else E_ARGUMENT */
} tamis_merge_params;
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_op_merge(tamis_context *context,
                                                       const tamis_merge_params *params,
                                                       tamis_error *error);

/* observe: the attention weights of query rows for each key of their lane, from which evictions
 * compute the scores of tokens.
 *   w = exp(logit - lse) for the slots that the row sees, else 0; logit as attend's, of q and K or
 *   from `logits`, lse as attend has written it.
 * An item is a sequence with `number` rows from `first` on; for every slot that one of them sees
 *   values = join over its rows of (group rule over the group's heads of w, or of w² for SQUARES),
 * If accumulate, they are added to the values that are there (MAX: the larger of both is taken). A
 * NaN logit or lse gives NaN; a row with lse -inf gives 0. Values of later slots are not
 * written. */
typedef struct tamis_observe_params {
    tamis_kv kv;
    tamis_batch batch;
    uint32_t n_items;
    uint32_t max_span;   /* no span is longer */
    tamis_place spans;   /* [n_items][2]: (first, number >= 1), rows of one sequence */
    tamis_rows q;        /* f32 [n_rows][n_heads][head_dim]; not read with logits */
    tamis_place lse;     /* f32 [n_rows][lse_stride] */
    uint64_t lse_stride; /* 0 means n_heads */
    tamis_attention attention; /* as attend's */
    tamis_place logits;    /* f32 [n_rows][n_heads][logit_stride]; may be absent */
    uint64_t logit_stride; /* 0 means max_visible */
    tamis_rows_join rows;
    tamis_group_rule group;
    int accumulate;
    uint32_t reserved32; /* 0, else E_ARGUMENT */
    tamis_place
        values; /* f32 [n_items][n_kv_heads][value_stride]; absent only if there is a tile */
    uint64_t value_stride; /* 0 means max_visible */
    /* w itself, f32 [n_items][n_kv_heads][max_span·group][tile_stride], row t of the span and head
     * g of the group in list t·group + g; may be absent. */
    tamis_place tile;
    uint64_t tile_stride; /* 0 means max_visible */
    uint64_t reserved[4]; /* 0, else E_ARGUMENT */
} tamis_observe_params;
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_op_observe(tamis_context *context,
                                                         const tamis_observe_params *params,
                                                         tamis_error *error);

#ifdef __cplusplus
}
#endif
#endif
