/* SPDX-License-Identifier: Apache-2.0 */
/* linear_parts: up to three matrices with one input, normalised or not, gated or not, to which an
 * addend is added first where the program ADDS.
 * contract: host/ops/; meaning: host/compose.c.
 * Work split: a work-group forms the norms of all rows once, then owns outputs j of any part in
 * turn, of both parts under a gate; its work-items take chunks of 8 inputs in turn. Every work-group
 * adds the addend as it reads, and writes a share of the channels of the sum. The parts' types are
 * TYPE_A, TYPE_B and TYPE_C, which may be equal. */
#ifndef TYPE_A
#define TYPE_A 0 /* tamis_weight_type */
#define TYPE_B 7
#define TYPE_C 0
#define ADDS 1
#endif
#ifndef ROWS
#define ROWS 1 /* rows of a launch, at most */
#endif
#define WEIGHT TYPE_A
#include "weights.clh"
#include "activate.clh"
#define STAGES 1
#define PARTS 3
#include "linear_parts.clh"
#if TYPE_B != TYPE_A
#undef WEIGHT
#define WEIGHT TYPE_B
#include "weights_type.clh"
#endif
#if TYPE_C != TYPE_A && TYPE_C != TYPE_B
#undef WEIGHT
#define WEIGHT TYPE_C
#include "weights_type.clh"
#endif

/* Weights i to i + 7 of output j, and one of them. */
#define ROW_HERE ((__global const weight *)(p->w + j * ROW_BYTES(n_in)))
static inline float8 part8(const part *p, uint j, uint n_in, uint i) {
#undef WEIGHT
#define WEIGHT TYPE_C
#if TYPE_C != TYPE_A && TYPE_C != TYPE_B
    if (p->type == WEIGHT) return weights8(ROW_HERE, i);
#endif
#undef WEIGHT
#define WEIGHT TYPE_B
#if TYPE_B != TYPE_A
    if (p->type == WEIGHT) return weights8(ROW_HERE, i);
#endif
#undef WEIGHT
#define WEIGHT TYPE_A
    return weights8(ROW_HERE, i);
}
static inline float part1(const part *p, uint j, uint n_in, uint i) {
#undef WEIGHT
#define WEIGHT TYPE_C
#if TYPE_C != TYPE_A && TYPE_C != TYPE_B
    if (p->type == WEIGHT) return weight1(ROW_HERE, i);
#endif
#undef WEIGHT
#define WEIGHT TYPE_B
#if TYPE_B != TYPE_A
    if (p->type == WEIGHT) return weight1(ROW_HERE, i);
#endif
#undef WEIGHT
#define WEIGHT TYPE_A
    return weight1(ROW_HERE, i);
}

/* The functions give a work-item's share, and the kernel itself adds up. Where they added up, PoCL
 * 3.1 let threads share the scratch, and sums of one work-group got into another's. */

/* Rows, of which those beyond the last repeat it. */
typedef struct rows_of {
    __global const float *at;
    ulong stride;
    uint n_rows;
#if ADDS
    __global const float *addend; /* what is normalised and added; may be NULL */
    ulong addend_stride;
    __global const float *addend_w;
    __local const float2 *norms; /* mean and scale of the addend's rows */
#endif
} rows_of;

/* Inputs c * 8 to c * 8 + 7 of a row, and input i. With an explicit fma, so that a sum has the same bits
 * wherever it is formed. */
static inline float8 input8(const rows_of *rows, uint r, uint c) {
    const float8 x = vload8(c, rows->at + min(r, rows->n_rows - 1) * rows->stride);
#if ADDS
    if (rows->addend) {
        const float8 a = vload8(c, rows->addend + min(r, rows->n_rows - 1) * rows->addend_stride);
        return fma((a - rows->norms[r].x) * rows->norms[r].y, vload8(c, rows->addend_w), x);
    }
#endif
    return x;
}
static inline float input1(const rows_of *rows, uint r, uint i) {
    const float x = rows->at[min(r, rows->n_rows - 1) * rows->stride + i];
#if ADDS
    if (rows->addend) {
        const float a = rows->addend[min(r, rows->n_rows - 1) * rows->addend_stride + i];
        return fma((a - rows->norms[r].x) * rows->norms[r].y, rows->addend_w[i], x);
    }
#endif
    return x;
}

/* The sum of the n inputs of a row. */
static inline float sum_of(const rows_of *rows, uint r, uint n) {
    const uint wi = (uint)get_local_id(0);
    float8 sums = 0.0f;
    float rest = 0.0f;
    for (uint c = wi; c < n / 8; c += WG_SIZE) sums += input8(rows, r, c);
    for (uint i = n / 8 * 8 + wi; i < n; i += WG_SIZE) rest += input1(rows, r, i);
    return sum8(sums) + rest;
}

/* The squares of the n inputs of a row less their mean. */
static inline float squares_of(const rows_of *rows, uint r, float mean, uint n) {
    const uint wi = (uint)get_local_id(0);
    float8 squares = 0.0f;
    float rest = 0.0f;
    for (uint c = wi; c < n / 8; c += WG_SIZE) {
        const float8 a = input8(rows, r, c) - mean;
        squares = fma(a, a, squares);
    }
    for (uint i = n / 8 * 8 + wi; i < n; i += WG_SIZE) {
        const float a = input1(rows, r, i) - mean;
        rest = fma(a, a, rest);
    }
    return sum8(squares) + rest;
}

/* What a norm of this kind subtracts from row r and multiplies it by before the weights, as mean and
 * scale: 0 and 1 without one. */
#define NORM_OF(rows, r, normed, kind, n, eps, mean, scale)                                        \
    do {                                                                                           \
        const uint scaled = (normed) && (kind) != NORM_NONE;                                       \
        const float sums = scaled && (kind) == NORM_LAYER ? sum_of(rows, r, n) : 0.0f;             \
        mean = group_sum(sums, scratch) / (n);                                                     \
        const float squares = scaled ? squares_of(rows, r, mean, n) : 0.0f;                        \
        const float mean_square = group_sum(squares, scratch) / (n);                               \
        scale = scaled ? 1.0f / sqrt(mean_square + (eps)) : 1.0f;                                  \
    } while (0)

/* The products of output j of all rows. */
static inline void multiply(const part *p, uint j, const stage *s, const rows_of *rows,
                            const float *means, const float *scales, float *out) {
    const uint wi = (uint)get_local_id(0), n_in = s->n_in, chunks = n_in / 8;
    float8 sum[ROWS];
    for (uint r = 0; r < ROWS; r++) {
        sum[r] = 0.0f;
        out[r] = 0.0f;
    }
    for (uint c = wi; c < chunks; c += WG_SIZE) {
        const float8 a = part8(p, j, n_in, c * 8);
        const float8 of_norm = s->norm ? vload8(c, s->norm) : (float8)(1.0f);
        for (uint r = 0; r < ROWS; r++)
            sum[r] = fma(a, (input8(rows, r, c) - means[r]) * scales[r] * of_norm, sum[r]);
    }
    for (uint i = chunks * 8 + wi; i < n_in; i += WG_SIZE) {
        const float a = part1(p, j, n_in, i), of_norm = s->norm ? s->norm[i] : 1.0f;
        for (uint r = 0; r < ROWS; r++)
            out[r] = fma(a, (input1(rows, r, i) - means[r]) * scales[r] * of_norm, out[r]);
    }
    for (uint r = 0; r < ROWS; r++)
        out[r] += sum8(sum[r]);
}

typedef struct parts_numbers {
    CHAIN_NUMBERS;
    ulong addend_w_at;
    ulong addend_kind; /* as wide as the struct is aligned: Rusticl does not count what pads it */
} parts_numbers;

__kernel GROUP_OF(WG_SIZE) void linear_parts(STAGE_MEMORY(0) PART_MEMORY(0) PART_MEMORY(1)
                                                 PART_MEMORY(2) MEMORY(const float, addend_w)
                                                     const parts_numbers arg) {
    __local float scratch[WG_SIZE];
    const uint n_rows = arg.n_rows;
    const stage s = STAGE(arg.stages[0], 0);
    const part first = PART(arg.parts[0], 0), second = PART(arg.parts[1], 1),
               third = PART(arg.parts[2], 2);
    const uint two = first.n_out + second.n_out; /* outputs of two parts */
    const uint items = s.gated ? first.n_out : two + third.n_out;
    const uint paired = s.gated && s.parts == 2;
    __local float2 norms[ROWS]; /* mean and scale: in registers clang would spill for RDNA 2 */
#if ADDS
    __local float2 addend_norms[ROWS];
#endif
    if (n_rows == 0) return;
#if ADDS
    /* 1. the addend, and this work-group's share of the sum */
    const rows_of addend = {.at = s.addend, .stride = s.addend_stride, .n_rows = n_rows};
    for (uint r = 0; r < ROWS; r++) {
        float mean, scale;
        NORM_OF(&addend, r, true, arg.addend_kind, s.n_in, s.eps, mean, scale);
        if (get_local_id(0) == 0) addend_norms[r] = (float2)(mean, scale);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    OPEN(const float, addend_w);
    const rows_of rows = {s.x, s.x_stride, n_rows, s.addend, s.addend_stride,
                          addend_w, addend_norms};
    for (uint i = (uint)get_global_id(0); i < s.n_in; i += (uint)get_global_size(0))
        for (uint r = 0; r < min(n_rows, (uint)ROWS); r++)
            s.sum[r * s.sum_stride + i] = input1(&rows, r, i);
#else
    const rows_of rows = {s.x, s.x_stride, n_rows};
#endif
    /* 2. what normalises each row */
    for (uint r = 0; r < ROWS; r++) {
        float mean, scale;
        NORM_OF(&rows, r, s.norm, s.norm_kind, s.n_in, s.eps, mean, scale);
        if (get_local_id(0) == 0) norms[r] = (float2)(mean, scale);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint item = (uint)get_group_id(0); item < items; item += (uint)get_num_groups(0)) {
        part p = first;
        uint j = item;
        float z[ROWS], up[ROWS], means[ROWS], scales[ROWS];
        for (uint r = 0; r < ROWS; r++) { /* PoCL 3.1 fails where functions are given norms itself */
            means[r] = norms[r].x;
            scales[r] = norms[r].y;
        }
        if (item >= two) {
            p = third;
            j = item - two;
        } else if (item >= first.n_out) {
            p = second;
            j = item - first.n_out;
        }
        /* 3. products */
        multiply(&p, j, &s, &rows, means, scales, z);
        if (paired) multiply(&second, j, &s, &rows, means, scales, up);
        for (uint r = 0; r < ROWS; r++) {
            z[r] = group_sum(z[r], scratch);
            up[r] = paired ? group_sum(up[r], scratch) : 1.0f;
        }
        /* 4. what is added, and the gate */
        if (get_local_id(0) == 0) {
            const float add_up = paired && second.bias ? second.bias[j] : 0.0f;
            for (uint r = 0; r < min(n_rows, (uint)ROWS); r++) {
                __global float *to = p.y + r * p.y_stride + j;
                float start = s.accumulate ? *to : 0.0f;
                if (p.bias) start += p.bias[j];
                *to = s.gated ? gate1(start + z[r], up[r] + add_up, s.activation) : start + z[r];
            }
        }
    }
}
