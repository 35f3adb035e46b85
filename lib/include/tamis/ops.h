/* SPDX-License-Identifier: Apache-2.0 */
/* The ops on the caller's own buffers: what a model needs beside attention, and the pipeline for
 * whoever has a paged cache of his own. An engine over tamis_cache needs the first half at most;
 * lib/model is such an engine. */
#ifndef TAMIS_OPS_H
#define TAMIS_OPS_H

#include <tamis/buffer.h>
#include <tamis/cache.h>
#include <tamis/policy.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What holds for every tamis_op_* call:
 *
 * Enqueues and returns; a call behind it sees its results. The params struct may be reused at once;
 * buffers stay the caller's and must live until what is enqueued on them has run. A shape's first
 * launch compiles its kernels, which waits. A call with no rows (n_rows 0; n 0) does only that: its
 * buffers may be absent, its other sizes must be those of the launches to come.
 *
 * Errors: E_ARGUMENT (NULL; a buffer that is absent, of another context, or too small for the
 * shape; rows that must not overlap and do; a reserved field that is not 0), E_UNSUPPORTED (a shape
 * that the op or the device does not take), both with the offending value: then nothing is enqueued.
 * E_NO_MEMORY and E_DEVICE as everywhere. What lies in device memory is the caller's to get right:
 * page ids, tokens, indices, `visible` and tiles are read unchecked (the reference checks them).
 *
 * Places: offsets are bytes, multiples of 4. Strides are elements; a row stride of 0 means packed
 * rows. Activations are f32 and have that dtype. Tables are int32.
 *
 * Thread-safety: as the context. Graphs: what is compiled may be recorded (graph.h), but for linear
 * above TAMIS_FEW_ROWS rows, where a vendor's library may take memory.
 *
 * Arithmetic is fp32 in an order of each device's own; the reference sums in fp64. A product or sum
 * that leaves fp32's range gives infinity or NaN, which goes no further than the row and head. */

/* A place in device memory. buffer NULL: absent, where that is allowed. */
typedef struct tamis_place {
    tamis_buffer *buffer;
    uint64_t offset;
} tamis_place;

/* ---- What a model needs beside attention ----------------------------------------------------- */

/* linear: y[r][j] = Σ_i x[r][i]·w[j][i] + bias[j] (+ y[r][j] if accumulate).
 * Up to TAMIS_FEW_ROWS rows a matrix-vector kernel serves, which reads w once; above it a
 * matrix-matrix kernel or a vendor's library. The two may round a row differently: the one place
 * where its bits may depend on how many rows a launch has. w and rows of x at multiples of 16 bytes
 * with n_in a multiple of 8 are the fast case. */
#define TAMIS_FEW_ROWS 8
typedef struct tamis_linear_params {
    tamis_rows x, y;  /* f32 [n_rows][n_in], [n_rows][n_out]; y does not overlap x */
    tamis_rows w;     /* f32, f16 or bf16 [n_out][n_in], packed */
    tamis_place bias; /* f32 [n_out]; may be absent */
    uint32_t n_rows, n_in, n_out;
    int accumulate;
    uint64_t reserved[4]; /* 0, else E_ARGUMENT */
} tamis_linear_params;
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_op_linear(tamis_context *context,
                                                        const tamis_linear_params *params,
                                                        tamis_error *error);

/* norm: y = x / sqrt(mean(x²) + eps)·w, RMSNorm (arXiv 1910.07467). y may be x. */
typedef struct tamis_norm_params {
    tamis_rows x, y; /* f32 [n_rows][dim] */
    tamis_place w;   /* f32 [dim] */
    uint32_t n_rows, dim;
    float eps;
    uint32_t reserved32;  /* 0, as those that follow */
    uint64_t reserved[4]; /* 0, else E_ARGUMENT */
} tamis_norm_params;
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_op_norm(tamis_context *context,
                                                      const tamis_norm_params *params,
                                                      tamis_error *error);

/* rotate: RoPE (arXiv 2104.09864) on rows in place. Pair i turns by position·frequency_i:
 *   (a, b) -> (a·cos - b·sin, a·sin + b·cos).
 * A negative position turns back, so that the difference of two positions moves a rotated key. */
typedef enum tamis_pairing {
    TAMIS_PAIR_HALF = 0,    /* (x[i], x[i + n_rot/2]) */
    TAMIS_PAIR_ADJACENT = 1 /* (x[2i], x[2i + 1]) */
} tamis_pairing;
#define TAMIS_ROTATE_LIMIT (1u << 20) /* positions lie below it in size */
typedef struct tamis_rotate_params {
    tamis_rows x; /* f32 [n_rows][n_heads][head_dim] */
    uint32_t n_rows, n_heads, head_dim;
    uint32_t n_rot; /* first channels of a head that are rotated, even, at most 256; 0: head_dim */
    tamis_pairing pairing;
    uint32_t reserved32;   /* 0, as those that follow */
    tamis_place positions; /* int32 [n_rows] */
    tamis_place table;     /* that tamis_rotation_write has written for n_rot */
    uint64_t reserved[4];  /* 0, else E_ARGUMENT */
} tamis_rotate_params;
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_op_rotate(tamis_context *context,
                                                        const tamis_rotate_params *params,
                                                        tamis_error *error);
/* Bytes of the table of rotate for n_rot channels. */
TAMIS_API uint64_t tamis_rotation_bytes(uint32_t n_rot);
/* Writes it: cos and sin of j and of 1024·j times each frequency, j below 1024, which the addition
 * theorem joins on the device, so that large positions lose nothing. frequencies [n_rot/2], radians
 * a position. Enqueues, as tamis_buffer_write. Errors: E_ARGUMENT, E_NO_MEMORY, E_DEVICE. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_rotation_write(const tamis_place *table,
                                                             const double *frequencies,
                                                             uint32_t n_rot, tamis_error *error);

/* activate: y = silu(gate)·up, silu(z) = z / (1 + exp(-z)) (SwiGLU, arXiv 2002.05202). y may be gate
 * or up. */
typedef struct tamis_activate_params {
    tamis_rows gate, up, y; /* f32 [n_rows][dim] */
    uint32_t n_rows, dim;
    uint64_t reserved[4]; /* 0, else E_ARGUMENT */
} tamis_activate_params;
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_op_activate(tamis_context *context,
                                                          const tamis_activate_params *params,
                                                          tamis_error *error);

/* embed: y[r] = row tokens[r] of w, as f32, exactly. */
typedef struct tamis_embed_params {
    tamis_place tokens; /* int32 [n_rows], each below n_vocab */
    tamis_rows w;       /* f32, f16 or bf16 [n_vocab][dim], packed */
    tamis_rows y;       /* f32 [n_rows][dim] */
    uint32_t n_rows, dim, n_vocab;
    uint32_t reserved32;  /* 0, as those that follow */
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
    uint32_t reserved32;  /* 0, as those that follow */
    uint64_t reserved[4]; /* 0, else E_ARGUMENT */
} tamis_scatter_rows_params;
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_op_scatter_rows(
    tamis_context *context, const tamis_scatter_rows_params *params, tamis_error *error);

/* ---- The pipeline over a cache of the caller's ----------------------------------------------- */

/* The caller writes K and V himself and says where they lie. The rest of a decode step over them is
 *   bounds of the pages that became full; score_pages, select, attend for the step's rows.
 *
 * How K and V of a page lie. The channels of a row are adjacent in all of them. */
typedef enum tamis_kv_layout {
    TAMIS_KV_OWN = 0,    /* [page][K, V][slot][dim]: a page is of one KV head, as in tamis_cache */
    TAMIS_KV_NHD = 1,    /* [page][K, V][slot][KV head][dim] */
    TAMIS_KV_HND = 2,    /* [page][K, V][KV head][slot][dim] */
    TAMIS_KV_STRIDES = 3 /* as the strides say */
} tamis_kv_layout;

/* Pages of K and V, and bounds beside them. With page p, KV head h, slot s of the page, in elements:
 *   K row at  p·page_stride + h·head_stride + s·slot_stride,   V row value_offset further on;
 *   lo row at p·bounds_page_stride + h·bounds_head_stride,     hi row head_dim further on.
 *
 * Taken: one page list for all KV heads or one a head (tamis_batch), NHD and HND, K and V side by
 * side in a page or in two halves of one buffer ([K, V][page]…: TAMIS_KV_STRIDES), and rows that are
 * not paged, as pages that follow each other. CUDA takes rows that begin at multiples of 16 bytes.
 * Not taken: K and V in two buffers; channels apart from each other (keys transposed or in blocks
 * of x channels); values as wide as keys are not; 8-bit and quantised elements; page ids of 64
 * bits. */
typedef struct tamis_kv {
    tamis_place data;
    tamis_place bounds;     /* may be absent for attend, page_mass and observe */
    tamis_dtype dtype;      /* of K, V and bounds */
    tamis_kv_layout layout; /* bounds: [page][lo, hi][dim] for OWN, [page][KV head][lo, hi][dim] for
                               NHD and HND */
    uint32_t page_size;     /* slots: 8, 16, 32 or 64 */
    uint32_t head_dim;      /* 64, 80, 96, 128 or 256 */
    uint32_t n_pages;       /* page ids are below it */
    uint32_t reserved32;    /* 0, as those that follow */
    /* With TAMIS_KV_STRIDES; else 0. */
    uint64_t page_stride, head_stride, slot_stride, value_offset;
    uint64_t bounds_page_stride, bounds_head_stride;
    uint64_t reserved[4]; /* 0, else E_ARGUMENT */
} tamis_kv;

/* Most rows of a tile. */
#define TAMIS_TILE_ROWS 32

/* The query rows of a launch and what they see.
 * A tile is up to TAMIS_TILE_ROWS rows that read the same pages together: adjacent rows of one
 * sequence, by ascending position. Decode is one row a tile. */
typedef struct tamis_batch {
    uint32_t n_rows;
    uint32_t n_heads, n_kv_heads; /* query heads: n_kv_heads times the group, group 1 to 16 */
    uint32_t n_sequences;         /* 0 means 1 */
    uint32_t n_tiles;             /* 0 means n_rows */
    uint32_t max_tile_rows;       /* no tile has more rows; 0 means 1 */
    uint32_t max_visible;         /* no entry of `visible` is larger; sizes the launch */
    uint32_t reserved32;          /* 0, as those that follow */
    tamis_place tiles;   /* [n_tiles][2]: (first row, number of rows); every row is in one. Not read
                            by select and observe */
    tamis_place row_seq; /* [n_rows]: the row's sequence, below n_sequences */
    tamis_place visible; /* [n_rows][n_kv_heads]: leading slots of its lane that the row sees */
    /* Page ids: the i-th page of (sequence b, KV head h) at b·seq_stride + h·head_stride + i.
     * head_stride 0: one list for all heads. seq_stride may be 0 if there is one sequence. Every
     * list has room for max_visible slots. */
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

/* bounds: the pair (lo, hi) of full pages, from all page_size keys of each, for every KV head of the
 * page (layout OWN: n_kv_heads is 1). See tamis_bounds for the kinds; a channel with a NaN key gets
 * NaN. */
typedef struct tamis_bounds_params {
    tamis_kv kv;
    tamis_place pages; /* int32 [n] page ids; one below 0 is passed over */
    uint32_t n, n_kv_heads;
    tamis_bounds bounds;
    uint64_t reserved[4]; /* 0, else E_ARGUMENT */
} tamis_bounds_params;
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_op_bounds(tamis_context *context,
                                                        const tamis_bounds_params *params,
                                                        tamis_error *error);

/* score_pages: of every full page that a row sees, by the group's rule over its query heads
 *   Σ_d max(q_d·lo_d, q_d·hi_d)                                       (Quest, section 3.4).
 * A NaN product makes the score NaN. Scores of the partial page and behind it are left alone. */
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

/* page_mass: the same place for the share of the row's attention that falls on the page; reads every
 * key. A NaN or infinite logit makes all scores of that (row, KV head) NaN. */
typedef struct tamis_page_mass_params {
    tamis_kv kv;
    tamis_batch batch;
    tamis_rows q;
    tamis_place scores;
    uint32_t stride; /* 0 means max_visible / page_size */
    tamis_group_rule group;
    float scale;          /* of q·k; 0 means 1/sqrt(head_dim) */
    float soft_cap;       /* as attend's */
    tamis_place scratch;  /* of tamis_op_page_mass_scratch bytes; need not be kept */
    uint64_t reserved[4]; /* 0, else E_ARGUMENT */
} tamis_page_mass_params;
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_op_page_mass(tamis_context *context,
                                                           const tamis_page_mass_params *params,
                                                           tamis_error *error);
/* Bytes of scratch, which may be 0, for launches of up to these n_rows, n_heads, n_kv_heads,
 * max_visible and stride. Buffers may be absent. Enqueues nothing. */
TAMIS_API TAMIS_MUST_CHECK tamis_status
tamis_op_page_mass_scratch(tamis_context *context, const tamis_page_mass_params *params,
                           uint64_t *bytes, tamis_error *error);

/* select: for each (row, KV head) the best `k` of the entries that it sees, an entry being
 * `granularity` consecutive slots; floor(visible / granularity) of them have scores.
 *   1. Taken unasked: the entries that hold one of the first `sinks` or last `recent` slots, and a
 *      partial entry, which has no score.
 *   2. Of the others the best, up to k in all, by (score desc, ordinal desc): of equal ones the
 *      newer; -0 equals +0; NaN comes last. At most k entries: all of them.
 *   3. The list comes out ascending.
 * Without scores step 2 takes the newest. Lists are equal bit for bit on every device. recent 0
 * leaves a full newest page to its score: ask for 1, as plans do, and a row sees its own token. */
typedef struct tamis_select_params {
    tamis_batch batch;    /* of its table only the place is looked at */
    uint32_t granularity; /* the page size, to attend the lists */
    uint32_t k, sinks, recent;
    tamis_place scores;   /* f32 [n_rows][n_kv_heads][stride]; may be absent */
    uint32_t stride;      /* 0 means max_visible / granularity */
    uint32_t reserved32;  /* 0, as those that follow */
    tamis_lists lists;    /* capacity for k, or for what is taken unasked if that is more */
    uint64_t reserved[4]; /* 0, else E_ARGUMENT */
} tamis_select_params;
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_op_select(tamis_context *context,
                                                        const tamis_select_params *params,
                                                        tamis_error *error);

/* attend: softmax attention of rows over what they see of the pages in their lists.
 *   logit = scale·q·k; soft_cap > 0: cap·tanh(logit/cap);
 *   out = Σ softmax(logit)·v, lse = ln Σ exp(logit).
 * A row that sees nothing: out 0, lse -inf. A NaN or infinite logit gives NaN for that row and head.
 * Results depend on the row and its list, and on whether it is alone in its tile, on nothing else of
 * the launch. */
typedef struct tamis_attend_params {
    tamis_kv kv;
    tamis_batch batch;
    tamis_lists lists;
    uint32_t max_pages;    /* no list is longer; 0 means capacity, or all pages without lists */
    uint32_t reserved32;   /* 0, as those that follow */
    tamis_rows q, out;     /* f32 [n_rows][n_heads][head_dim], not overlapping */
    tamis_place lse;       /* f32 [n_rows][n_heads]; may be absent */
    tamis_place positions; /* int32 [n_pages][page_size], of each slot; may be absent: its place */
    tamis_place
        intervals; /* int32 [n_rows][2]: positions (lo, hi) that the row sees, both included;
                              may be absent: all */
    float scale, soft_cap; /* scale 0 means 1/sqrt(head_dim); soft_cap 0 means none */
    tamis_place scratch;   /* of tamis_op_attend_scratch bytes; need not be kept */
    /* f32 [n_rows][n_heads][logit_stride], may be absent; only with one row a tile: logits of the
     * slots of the pages that are read, -inf for those that the row does not see. */
    tamis_place logits;
    uint64_t logit_stride; /* 0 means max_visible */
    uint64_t reserved[4];  /* 0, else E_ARGUMENT */
} tamis_attend_params;
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_op_attend(tamis_context *context,
                                                        const tamis_attend_params *params,
                                                        tamis_error *error);
/* Bytes of scratch, which may be 0, for launches of up to these n_rows, n_heads, max_tile_rows and
 * max_pages (max_visible without lists). Buffers may be absent, but for lists.pages: whether it is
 * there tells whether there are lists. Enqueues nothing. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_op_attend_scratch(tamis_context *context,
                                                                const tamis_attend_params *params,
                                                                uint64_t *bytes,
                                                                tamis_error *error);

/* merge: states (out, lse) of the same rows, over different keys, into one:
 *   lse = ln Σ exp(lse_i);  out = Σ exp(lse_i - lse)·out_i.
 * A part with lse -inf adds nothing; one live part passes through bit for bit; none gives out 0 and
 * lse -inf. Merged in the order of the parts (FlashAttention's rescaling, arXiv 2205.14135). */
typedef struct tamis_merge_params {
    tamis_place outs, lses; /* f32 [n_parts][n][dim], [n_parts][n] */
    tamis_place out;        /* f32 [n][dim] */
    tamis_place lse;        /* f32 [n]; may be absent */
    uint32_t n_parts;
    uint32_t n; /* states: rows times query heads */
    uint32_t dim;
    uint32_t reserved32;  /* 0, as those that follow */
    uint64_t reserved[4]; /* 0, else E_ARGUMENT */
} tamis_merge_params;
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_op_merge(tamis_context *context,
                                                       const tamis_merge_params *params,
                                                       tamis_error *error);

/* How rows join what they give to a key. */
typedef enum tamis_rows_join {
    TAMIS_ROWS_SUM = 0,
    TAMIS_ROWS_SQUARES = 1, /* the sum of squares */
    TAMIS_ROWS_MAX = 2
} tamis_rows_join;

/* observe: what query rows weigh each key of their lane, by which evictions score tokens.
 *   w = exp(logit - lse) for the slots that the row sees, else 0; logit as attend's, of q and K or
 *   from `logits`, lse as attend has written it.
 * An item is a sequence with `number` rows from `first` on; for every slot that one of them sees
 *   values = join over its rows of (group rule over the group's heads of w, or of w² for SQUARES),
 * added to what is there (MAX: the larger of both) if accumulate. A NaN logit or lse gives NaN; a
 * row with lse -inf gives 0. Values behind what an item sees are left alone. */
typedef struct tamis_observe_params {
    tamis_kv kv;
    tamis_batch batch;
    uint32_t n_items;
    uint32_t max_span;   /* no span is longer */
    tamis_place spans;   /* [n_items][2]: (first, number >= 1), rows of one sequence */
    tamis_rows q;        /* f32 [n_rows][n_heads][head_dim]; not read with logits */
    tamis_place lse;     /* f32 [n_rows][lse_stride] */
    uint64_t lse_stride; /* 0 means n_heads */
    float scale, soft_cap;
    tamis_place logits;    /* f32 [n_rows][n_heads][logit_stride]; may be absent */
    uint64_t logit_stride; /* 0 means max_visible */
    tamis_rows_join rows;
    tamis_group_rule group;
    int accumulate;
    uint32_t reserved32; /* 0, as those that follow */
    tamis_place
        values; /* f32 [n_items][n_kv_heads][value_stride]; absent only if there is a tile */
    uint64_t value_stride; /* 0 means max_visible */
    /* w itself, f32 [n_items][n_kv_heads][max_span·group][tile_stride], row t of the span and head g
     * of the group in list t·group + g; may be absent. */
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
