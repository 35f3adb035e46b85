/* SPDX-License-Identifier: Apache-2.0 */
/* linear_parts: up to three matrices with one input, normalised or not, gated or not.
 * contract: host/ops/; meaning: host/compose.c.
 * Work split: a work-group forms the norms of all rows once, then owns outputs j of any part in
 * turn, of both parts under a gate; its work-items take chunks of 8 inputs in turn. The parts'
 * types are TYPE_A, TYPE_B and TYPE_C, which may be equal. */
#ifndef TYPE_A
#define TYPE_A 0 /* tamis_weight_type */
#define TYPE_B 7
#define TYPE_C 0
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

/* The sum of n elements of x. */
static inline float sum_of(__global const float *x, uint n) {
    const uint wi = (uint)get_local_id(0);
    float8 sums = 0.0f;
    float rest = 0.0f;
    for (uint c = wi; c < n / 8; c += WG_SIZE) sums += vload8(c, x);
    for (uint i = n / 8 * 8 + wi; i < n; i += WG_SIZE) rest += x[i];
    return sum8(sums) + rest;
}

/* The squares of n elements of x less their mean. */
static inline float squares_of(__global const float *x, float mean, uint n) {
    const uint wi = (uint)get_local_id(0);
    float8 squares = 0.0f;
    float rest = 0.0f;
    for (uint c = wi; c < n / 8; c += WG_SIZE) {
        const float8 a = vload8(c, x) - mean;
        squares = fma(a, a, squares);
    }
    for (uint i = n / 8 * 8 + wi; i < n; i += WG_SIZE)
        rest = fma(x[i] - mean, x[i] - mean, rest);
    return sum8(squares) + rest;
}

/* The products of output j of all rows; rows beyond n_rows repeat the last. */
static inline void multiply(const part *p, uint j, const stage *s, const float *means,
                            const float *scales, uint n_rows, float *out) {
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
            sum[r] = fma(
                a,
                (vload8(c, s->x + min(r, n_rows - 1) * s->x_stride) - means[r]) * scales[r] * of_norm,
                sum[r]);
    }
    for (uint i = chunks * 8 + wi; i < n_in; i += WG_SIZE) {
        const float a = part1(p, j, n_in, i), of_norm = s->norm ? s->norm[i] : 1.0f;
        for (uint r = 0; r < ROWS; r++)
            out[r] =
                fma(a, (s->x[min(r, n_rows - 1) * s->x_stride + i] - means[r]) * scales[r] * of_norm,
                    out[r]);
    }
    for (uint r = 0; r < ROWS; r++)
        out[r] += sum8(sum[r]);
}

typedef struct parts_numbers {
    CHAIN_NUMBERS;
} parts_numbers;

__kernel GROUP_OF(WG_SIZE) void linear_parts(STAGE_MEMORY(0) PART_MEMORY(0) PART_MEMORY(1)
                                                 PART_MEMORY(2) const parts_numbers arg) {
    __local float scratch[WG_SIZE];
    const uint n_rows = arg.n_rows;
    const stage s = STAGE(arg.stages[0], 0);
    const part first = PART(arg.parts[0], 0), second = PART(arg.parts[1], 1),
               third = PART(arg.parts[2], 2);
    const uint two = first.n_out + second.n_out; /* outputs of two parts */
    const uint items = s.gated ? first.n_out : two + third.n_out;
    const uint paired = s.gated && s.parts == 2;
    const uint normed = s.norm && s.norm_kind != NORM_NONE;
    float means[ROWS], scales[ROWS];
    if (n_rows == 0) return;
    /* 1. what normalises each row */
    for (uint r = 0; r < ROWS; r++) {
        __global const float *x = s.x + min(r, n_rows - 1) * s.x_stride;
        const uint centred = normed && s.norm_kind == NORM_LAYER;
        means[r] = group_sum(centred ? sum_of(x, s.n_in) : 0.0f, scratch) / s.n_in;
        const float squares = normed ? squares_of(x, means[r], s.n_in) : 0.0f;
        const float mean_square = group_sum(squares, scratch) / s.n_in;
        scales[r] = normed ? 1.0f / sqrt(mean_square + s.eps) : 1.0f;
    }
    for (uint item = (uint)get_group_id(0); item < items; item += (uint)get_num_groups(0)) {
        part p = first;
        uint j = item;
        float z[ROWS], up[ROWS];
        if (item >= two) {
            p = third;
            j = item - two;
        } else if (item >= first.n_out) {
            p = second;
            j = item - first.n_out;
        }
        /* 2. products */
        multiply(&p, j, &s, means, scales, n_rows, z);
        if (paired) multiply(&second, j, &s, means, scales, n_rows, up);
        for (uint r = 0; r < ROWS; r++) {
            z[r] = group_sum(z[r], scratch);
            up[r] = paired ? group_sum(up[r], scratch) : 1.0f;
        }
        /* 3. what is added, and the gate */
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
