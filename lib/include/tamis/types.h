/* SPDX-License-Identifier: Apache-2.0 */
/* Types of elements and of weights, and the enumerations that several headers share. Values never
 * change. */
#ifndef TAMIS_TYPES_H
#define TAMIS_TYPES_H

#include <stddef.h>
#include <stdint.h>
#include <tamis/version.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Element types of caches, weights and activations, as X(name, value, text). Values never change; new
 * ones are added at the end.
 *
 * f32, f16 (IEEE binary16), bf16 (upper half of binary32).
 *
 * q8: 8 bits, of caches and of bounds alone: blocks of 32 neighbouring channels of a row, the last
 * of which may have 16. An element is d·q, exact in fp32: an f16 scale d of the block, an int8
 * q from -127 to 127. d is the smallest f16 for which 127·d is not below the block's largest
 * magnitude, and q·d the nearest to the element, of two equally near the one with the even q. A
 * block has d = 0 if its elements are below 2^-126 in magnitude, and d = NaN if one of them is
 * above 127·65504, infinite or NaN.
 *
 * k8v4: of caches alone: keys as in q8, values as in q4.
 *
 * q4: 4 bits, of caches alone: blocks of the same channels as in q8. An element is m + d·n, rounded
 * once to fp32: a minimum m and a scale d of the block, f16, and an integer n from 0 to 15. m
 * is the largest f16 that is not above the block's least element, +0 if that is below 2^-126 in
 * magnitude. With y the element less m, rounded to fp32, d is the smallest f16 for which 15·d
 * is not below the block's largest y, and d·n the nearest to y, of two equally near the one
 * with the even n. A block has d = 0 if all y are below 2^-126, and d = m = NaN if an element
 * is infinite or NaN, the least one below -65504 or a y above 15·65504. */
#define TAMIS_DTYPE_LIST(X)                                                                        \
    X(F32, 0, "f32")                                                                               \
    X(F16, 1, "f16")                                                                               \
    X(BF16, 2, "bf16")                                                                             \
    X(Q8, 3, "q8")                                                                                 \
    X(K8V4, 4, "k8v4")                                                                             \
    X(Q4, 5, "q4")

typedef enum tamis_dtype {
#define TAMIS_DTYPE_ENUM(name, value, text) TAMIS_##name = value,
    TAMIS_DTYPE_LIST(TAMIS_DTYPE_ENUM)
#undef TAMIS_DTYPE_ENUM
} tamis_dtype;

/* Bytes of one element; 0 for q8, k8v4 and q4, whose elements share scales, and for a value outside
 * the list. */
TAMIS_API size_t tamis_dtype_size(tamis_dtype dtype);
/* The text of the list; "unknown" outside it. */
TAMIS_API const char *tamis_dtype_name(tamis_dtype dtype);
/* Bytes that a row of K, or of V if `values` is not 0, of head_dim channels takes in a cache of this
 * dtype, with the numbers of its blocks; 0 outside the list. */
TAMIS_API size_t tamis_dtype_row_bytes(tamis_dtype dtype, int values, uint32_t head_dim);

/* Types of weight matrices: elements, or blocks of neighbouring elements of a row in GGUF's layout,
 * little-endian; as X(name, value, text), the text as GGUF names them. Values never change, new ones
 * are added at the end; the first three are those of tamis_dtype. An element is exact or rounded once
 * to fp32. With f16 d, dmin and m, and n the element's code:
 *   f32, f16, bf16   an element
 *   Q8_0     32 of 8 bits: d·n, n signed
 *   Q4_0     32 of 4 bits: d·(n - 8)
 *   Q4_1     32 of 4 bits: d·n + m
 *   Q5_0     32 of 5 bits: d·(n - 16)
 *   Q4_K     256 of 4 bits, sub-blocks of 32 with s and k of 6 bits: d·s·n - dmin·k
 *   Q6_K     256 of 6 bits, sub-blocks of 16 with s of 8 bits: d·s·(n - 32)
 *   Q5_1     32 of 5 bits: d·n + m
 *   Q5_K     256 of 5 bits, sub-blocks of 32 with s and k of 6 bits: d·s·n - dmin·k
 *   Q3_K     256 of 3 bits, sub-blocks of 16 with s of 6 bits: d·(s - 32)·(n - 4)
 *   Q2_K     256 of 2 bits, sub-blocks of 16 with s and k of 4 bits: d·s·n - dmin·k
 *   IQ4_NL   32 of 4 bits: d·v, v entry n of -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38,
 *            53, 69, 89, 113
 *   IQ4_XS   256 of 4 bits, sub-blocks of 32 with s of 6 bits: d·(s - 32)·v, v as in IQ4_NL
 *   MXFP4    32 of 4 bits: 2^(e - 128)·v, e of 8 bits, v entry n of 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2,
 *            -3, -4, -6, -8, -12 */
#define TAMIS_WEIGHT_LIST(X)                                                                       \
    X(F32, 0, "f32")                                                                               \
    X(F16, 1, "f16")                                                                               \
    X(BF16, 2, "bf16")                                                                             \
    X(Q8_0, 3, "Q8_0")                                                                             \
    X(Q4_0, 4, "Q4_0")                                                                             \
    X(Q4_1, 5, "Q4_1")                                                                             \
    X(Q5_0, 6, "Q5_0")                                                                             \
    X(Q4_K, 7, "Q4_K")                                                                             \
    X(Q6_K, 8, "Q6_K")                                                                             \
    X(Q5_1, 9, "Q5_1")                                                                             \
    X(Q5_K, 10, "Q5_K")                                                                            \
    X(Q3_K, 11, "Q3_K")                                                                            \
    X(Q2_K, 12, "Q2_K")                                                                            \
    X(IQ4_NL, 13, "IQ4_NL")                                                                        \
    X(IQ4_XS, 14, "IQ4_XS")                                                                        \
    X(MXFP4, 15, "MXFP4")

typedef enum tamis_weight_type {
#define TAMIS_WEIGHT_ENUM(name, value, text) TAMIS_WEIGHT_##name = value,
    TAMIS_WEIGHT_LIST(TAMIS_WEIGHT_ENUM)
#undef TAMIS_WEIGHT_ENUM
} tamis_weight_type;

/* The text of the list; "unknown" outside it. */
TAMIS_API const char *tamis_weight_name(tamis_weight_type type);
/* Elements of a block: 1, 32 or 256; 0 outside the list. A row is a whole number of blocks. */
TAMIS_API uint32_t tamis_weight_block(tamis_weight_type type);
/* Bytes of a matrix [n_out][n_in] whose rows lie one behind another, of a row with n_out 1; 0 for a
 * type outside the list or an n_in that is no multiple of its block; UINT64_MAX for a size beyond 64
 * bits. */
TAMIS_API uint64_t tamis_weight_bytes(tamis_weight_type type, uint64_t n_out, uint64_t n_in);

/* How a matrix of weights lies in memory. Values never change; another layout gets a value of its
 * own.
 *   rows    one behind another, as in a GGUF file
 *   strips  of types with blocks: CPUs then read as many outputs at once as a vector has elements,
 *           and neighbouring work-items of GPUs neighbouring 16 bytes. 16 neighbouring rows are a strip; zeros fill the last one. A strip has block
 *           behind block of its 16 rows, each field after field, and of a field's units (f16,
 *           sub-scales of a byte, words of 4 bytes of codes or bits) the first of all rows, then the
 *           second of all rows, and so on. The word h of Q5_0 and Q5_1 has bit 4g + k at 8k + g.
 * Both have the same bytes for each row. */
typedef enum tamis_weight_layout {
    TAMIS_WEIGHT_ROWS = 0,
    TAMIS_WEIGHT_STRIPS = 1
} tamis_weight_layout;
#define TAMIS_STRIP_ROWS 16

/* Bytes of a matrix in a layout, for strips of n_out rounded up to 16; 0 for a layout outside the
 * list and for strips of a type without blocks, else as tamis_weight_bytes. */
TAMIS_API uint64_t tamis_weight_layout_bytes(tamis_weight_layout layout, tamis_weight_type type,
                                             uint64_t n_out, uint64_t n_in);

/* What the pair (lo, hi) of a full page holds, channel by channel. */
typedef enum tamis_bounds_kind {
    TAMIS_BOUNDS_MINMAX = 0, /* minimum and maximum of its keys (Quest, section 3.4) */
    TAMIS_BOUNDS_MEAN_STD =
        1,                /* mean - width·std and mean + width·std (UNIQUE, arXiv 2605.27740) */
    TAMIS_BOUNDS_MEAN = 2 /* the mean, twice: a centroid */
} tamis_bounds_kind;

/* How the scores of the query heads of a group become one score of their KV head's page. */
typedef enum tamis_group_rule {
    TAMIS_GROUP_MAX = 0,
    TAMIS_GROUP_MEAN = 1,
    TAMIS_GROUP_SUM = 2
} tamis_group_rule;

/* How the weights of several rows for one key are joined. */
typedef enum tamis_rows_join {
    TAMIS_ROWS_SUM = 0,
    TAMIS_ROWS_SQUARES = 1, /* the sum of squares */
    TAMIS_ROWS_MAX = 2
} tamis_rows_join;

/* What pooling makes of neighbouring slots. */
typedef enum tamis_pooling { TAMIS_POOL_MAX = 0, TAMIS_POOL_AVERAGE = 1 } tamis_pooling;

/* What a norm makes of a row x before it is multiplied with weights. */
typedef enum tamis_norm_kind {
    TAMIS_NORM_RMS = 0, /* x / sqrt(mean(x²) + eps): RMSNorm (arXiv 1910.07467) */
    TAMIS_NORM_LAYER =
        1, /* the same of x - mean(x): LayerNorm (arXiv 1607.06450), without its bias */
    TAMIS_NORM_NONE = 2 /* x */
} tamis_norm_kind;

/* Activations of a feed-forward: z·σ(k), σ(k) = 1 / (1 + exp(-k)). */
typedef enum tamis_activation {
    TAMIS_SILU = 0, /* k = z (arXiv 1606.08415, section 4; SwiGLU in arXiv 2002.05202) */
    TAMIS_GELU = 1 /* k = sqrt(8/π)·(z + 0.044715·z³): GELU by tanh (arXiv 1606.08415, section 2) */
} tamis_activation;

/* Which channels of a head are rotated together. */
typedef enum tamis_pairing {
    TAMIS_PAIR_HALF = 0,    /* (x[i], x[i + n_rot/2]) */
    TAMIS_PAIR_ADJACENT = 1 /* (x[2i], x[2i + 1]) */
} tamis_pairing;

/* No row of a step, where the index of one is asked. */
#define TAMIS_NO_ROW 0xFFFFFFFFu

#ifdef __cplusplus
}
#endif
#endif
