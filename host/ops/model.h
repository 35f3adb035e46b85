/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of the ops that a model needs beside attention. */
#ifndef TMS_OPS_MODEL_H
#define TMS_OPS_MODEL_H

#include "host/ops/types.h"

/* linear: y[r][j] = Σ_i x[r][i]·w[j][i] + bias[j] (+ y[r][j] if accumulate).
 *   x, y f32 at row strides; w [n_out][n_in] of any type; bias f32 [n_out], may be absent. y must
 *   not overlap x.
 *   build_rows: read without rows alone: so many rows have the launches that kernels are built for; 0
 *   any number.
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
    uint32_t build_rows;
} tms_linear;

/* Whether a launch takes the kernel for `first` to `last` rows or, without rows, is to build it:
 * build_rows is the number of rows of the launches to come, 0 any number. */
static inline bool tms_takes_rows(uint32_t n_rows, uint32_t build_rows, uint32_t first,
                                  uint32_t last) {
    const uint32_t rows = n_rows ? n_rows : build_rows;
    return rows == 0 || (first <= rows && rows <= last);
}

/* linear_parts: what norm, up to three linears of one input and activate give, in one launch, for
 * at most TMS_FEW_ROWS rows. With z = x, or norm's y of x with norm_kind, norm_w and eps if norm_w is
 * there, and with adds x + norm's y of addend, with addend_kind, addend_w and eps, in the place of x:
 *   part p   y_p[r][j] = Σ_i z[r][i]·w_p[j][i] + bias_p[j] (+ y_p[r][j] if accumulate), as linear,
 *            each of its own weight type
 *   gated    one part gives y_0 = act(part 0), two of one n_out y_0 = act(part 0)·part 1, with act
 *            as in activate; y of part 1 is not used, and accumulate must not be set.
 *   adds     sum = x + norm's y of addend. What a product adds to a residual stream is normalised and
 *            added by who reads the stream next, and the stream goes on in sum.
 *   norm_w, addend_w f32 [n_in]. No y overlaps x or another y; sum overlaps neither x, addend nor a y,
 *   and no y addend. Parts from n_parts on are not read, nor addend, addend_w and sum without adds.
 * Bytes: those of the parts' w. A row's bits, those of sum among them, do not depend on the number of
 * rows.
 * Tolerance of sum: norm's. Of a part: linear's with z in the place of x, 2e-6 * sum_i |z_i|*|w_i| more
 * with a norm, and with adds what changes of sum within its tolerance change. Gated, with the tolerances
 * t0 and t1 of parts of a and b, or b = 1 and t1 = 0: 1.13*t0*(|b| + t1) + |act(a)|*t1 + activate's,
 * since |act'| < 1.13. */
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
    bool gated, accumulate, adds;
    tamis_norm_kind norm_kind, addend_kind;
    tamis_activation activation;
    uint32_t build_rows; /* as linear's */
    tms_matrix addend, sum;
    tms_ref addend_w;
} tms_linear_parts;

/* linear_chain: up to eight stages, one after another; all have the same n_rows. A stage is
 * linear_parts, or linear if it has one part and neither norm, gate nor addend, or norm if it has no
 * part: sum = norm's y of addend (+ x if accumulate) (tms_norm_of). It may read what stages before it
 * wrote, and write what they read. One launch on CPUs, if there are at most TMS_MOST_STAGES stages, one
 * with parts and an addend counted twice, TMS_CHAIN_PARTS parts and three types of weights, else one for
 * each; then those before one that fails have run.
 * Bytes and tolerance: those of the stages. Bits: those of the ops one after another on the same
 * device. */
#define TMS_MOST_STAGES 8
#define TMS_CHAIN_PARTS 7 /* out; gate and up; down; q, k and v */
typedef struct tms_linear_chain {
    tms_linear_parts stages[TMS_MOST_STAGES];
    uint32_t n_stages;
} tms_linear_chain;

/* norm: y = c / sqrt(mean(c²) + eps) · w (+ to if accumulate); w f32 [dim]; y may be x or to. c is x, of
 * kind LAYER x - mean(x); of kind NONE y = x · w (+ to).
 * Tolerance: 2e-6 relative, with c = x - mean(x) 4e-6 * (|x| + |mean(x)|) for c more; accumulated, 2e-7
 * of the sum more. Where Σ c² is above fp32's range, y of finite x may be 0; where it is below it,
 * digits may be lost unless eps hides them. */
typedef struct tms_norm {
    tms_matrix x, y, to; /* to: read if accumulate alone */
    tms_ref w;
    uint32_t n_rows, dim;
    float eps;
    tamis_norm_kind kind;
    bool accumulate;
} tms_norm;

/* The norm that a stage without parts is, or the one of the addend of another stage. */
static inline tms_norm tms_norm_of(const tms_linear_parts *p) {
    return (tms_norm){.x = p->addend,
                      .y = p->sum,
                      .to = p->x,
                      .w = p->addend_w,
                      .n_rows = p->n_rows,
                      .dim = p->n_in,
                      .eps = p->eps,
                      .kind = p->addend_kind,
                      .accumulate = p->accumulate || p->n_parts};
}
/* The stage behind that norm. */
static inline tms_linear_parts tms_linear_of_sum(const tms_linear_parts *p) {
    tms_linear_parts of = *p;
    of.x = p->sum;
    of.adds = false;
    return of;
}

/* activate: y = act(gate)·up, or act(gate) if up is absent; act(z) = z / (1 + exp(-k)), SILU k = z,
 * GELU k = sqrt(8/π)·(z + 0.044715·z³); y may be gate or up. Tolerance: 2e-6 relative, of GELU 4e-7 *
 * |k| more, + 1e-37. */
typedef struct tms_activate {
    tms_matrix gate, up, y;
    uint32_t n_rows, dim;
    tamis_activation activation;
} tms_activate;

/* embed: y[r] = scale · row tokens[r] of w [n_vocab][dim], of any type, as f32. tokens int32 [n_rows],
 * each < n_vocab (the caller checks). Exact; rounded once if scale is not 1. */
typedef struct tms_embed {
    tms_ref tokens;
    tms_weight_matrix w;
    tms_matrix y;
    uint32_t n_rows, dim, n_vocab;
    float scale;
} tms_embed;

/* convert: y = x, rows of one dtype to rows of another or of the same. Exact where y can hold x, else
 * rounded to nearest even: f16 overflow gives infinity, NaN stays NaN. x and y do not overlap.
 *   x, y   [n_rows][width] at row*stride, of dtype f32, f16 or bf16, each of its own
 * Rows may begin at any element. Bytes: rows read and written once. Tolerance: exact, bit for bit (NaN as
 * NaN). */
typedef struct tms_convert {
    tms_ref x, y;
    tamis_dtype x_dtype, y_dtype;
    uint64_t x_stride, y_stride; /* elements */
    uint32_t n_rows, width;
} tms_convert;

/* argmax: index of the largest of each row, int32 [n_rows]; ties the lowest index; NaN after
 * everything. Exact. */
typedef struct tms_argmax {
    tms_matrix x;
    uint32_t n_rows, dim;
    tms_ref out;
} tms_argmax;

#endif
