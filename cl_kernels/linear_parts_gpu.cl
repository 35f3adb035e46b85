/* SPDX-License-Identifier: Apache-2.0 */
/* linear_parts, the form of GPUs, which is linear's, too: up to three matrices with one input, gated or
 * not, which is normalised where the program is NORMED, and to which an addend is added first where it
 * ADDS.
 * contract: host/ops/; meaning: host/compose.c.
 * Work split: a work-group owns a strip of a part, or 4 rows of it, of both parts under a gate. A
 * work-item adds up 4 outputs of all rows of x: it takes units of inputs in turn, the words of a strip
 * or 8 inputs in rows, of which neighbouring work-items read neighbouring 16 bytes. The work-items'
 * shares are added in their order, once, by local memory. The squares of what is normalised are added
 * beside the products, which are scaled at last. Every work-group adds the addend as it reads, and
 * writes a share of the channels of the sum. The parts' kinds are TYPE_A, TYPE_B and TYPE_C, which may
 * be equal. */
#ifndef TYPE_A
#define TYPE_A 0 /* tms_cl_kind */
#define TYPE_B 23
#define TYPE_C 0
#define ADDS   1
#define NORMED 1
#endif
#ifndef ROWS
#define ROWS 1 /* rows of a launch, at most */
#endif
#define LANES  4
#define WEIGHT TYPE_A
#include "weights.clh"
#include "activate.clh"
#define STAGES 1
#define PARTS 3
#include "linear_parts.clh"
/* What is in an array by a constant alone is in registers. */
#define UNROLL  _Pragma("unroll")
#define IN_TURN _Pragma("unroll 1")

/* Of the kind WEIGHT: groups of 4 inputs in a unit, and how far apart they are; units that a work-item
 * reads before it goes on. */
#define GROUPS (STRIPS ? OF_EACH(1, 2, 2, 2, 2, 4, 2, 2, 4, 4, 2, 2, 2) : 2)
#define APART  (STRIPS ? OF_EACH(4, 16, 16, 16, 32, 32, 16, 32, 32, 32, 16, 16, 16) : 4)
#define AHEAD  (ROWS > 1 || WEIGHT_BLOCK > 32 ? 1 : 8 / GROUPS)
#define quad4     OF_TYPE(quad4)
#define add_unit  OF_TYPE(add_unit)
#define add_input OF_TYPE(add_input)
#define add_share OF_TYPE(add_share)
/* Work-items side by side that have outputs of a part, 4 each; outputs of a work-group. Shares are added
 * for TOGETHER rows at a time, in TURNS, so that a work-item writes one output of each turn. */
#define QUADS_OF(p)   ((p)->type >> 4 ? STRIP / 4 : 1)
#define OUTPUTS_OF(p) (4 * QUADS_OF(p))
#define TOGETHER      (ROWS < WG_SIZE / STRIP ? ROWS : WG_SIZE / STRIP)
#define TURNS         (ROWS / TOGETHER)

/* Rows: where each of them begins, and what it is normalised by. Of several rows this is read where it is
 * used, hence volatile: kept in registers across the loop over the inputs, it would make compilers spill.
 * One row begins where `at` does. */
#if ROWS > 1
#define OF_ROWS(type) volatile __local const type *
#else
#define OF_ROWS(type) __local const type *
#endif
typedef struct rows_of {
    __global const float *at;
    OF_ROWS(uint) starts; /* rows beyond the last repeat it */
#if NORMED
    OF_ROWS(float) means; /* what is subtracted before the squares */
#endif
#if ADDS
    uint adds; /* a constant: what is normalised and added follows */
    __global const float *addend;
    OF_ROWS(uint) addend_starts;
    __global const float *addend_w;
    OF_ROWS(float) addend_means;
    OF_ROWS(float) addend_scales;
#endif
} rows_of;
#define START_OF(starts, r) (ROWS > 1 ? (starts)[r] : 0)

static inline float4 load4(__global const float *p) {
#if ALIGNED
    return *(__global const float4 *)p;
#else
    return vload4(0, p);
#endif
}

/* Inputs i to i + 3 of a row, i a multiple of 4, and input i. With an explicit fma, so that a sum has the
 * same bits wherever it is formed. */
static inline float4 input4(const rows_of *rows, uint r, uint i) {
    const float4 x = load4(rows->at + START_OF(rows->starts, r) + i);
#if ADDS
    if (rows->adds) {
        const float4 a = load4(rows->addend + START_OF(rows->addend_starts, r) + i);
        return fma((a - rows->addend_means[r]) * rows->addend_scales[r],
                   load4(rows->addend_w + i), x);
    }
#endif
    return x;
}
static inline float input1(const rows_of *rows, uint r, uint i) {
    const float x = rows->at[START_OF(rows->starts, r) + i];
#if ADDS
    if (rows->adds) {
        const float a = rows->addend[START_OF(rows->addend_starts, r) + i];
        return fma((a - rows->addend_means[r]) * rows->addend_scales[r], rows->addend_w[i], x);
    }
#endif
    return x;
}

/* The share of work-item wi of the sum of the n inputs of a row less their mean, or of the squares. */
static ONCE float share_of(const rows_of *rows, uint r, float mean, uint n, bool squared,
                           uint wi) {
    float4 sums = 0.0f;
    for (uint step = 0; step < (n / 4 + WG_SIZE - 1) / WG_SIZE; step++) {
        const uint i = (step * WG_SIZE + wi) * 4;
        const float4 x = i + 4 <= n ? input4(rows, r, i) - mean : (float4)(0.0f);
        sums = fma(x, squared ? x : (float4)(1.0f), sums);
    }
    const uint i = n / 4 * 4 + wi;
    const float x = i < n ? input1(rows, r, i) - mean : 0.0f;
    return fma(x, squared ? x : 1.0f, (sums.x + sums.y) + (sums.z + sums.w));
}

#include "linear_type_gpu.clh"
#if TYPE_B != TYPE_A
#undef WEIGHT
#define WEIGHT TYPE_B
#include "weights_type.clh"
#include "linear_type_gpu.clh"
#endif
#if TYPE_C != TYPE_A && TYPE_C != TYPE_B
#undef WEIGHT
#define WEIGHT TYPE_C
#include "weights_type.clh"
#include "linear_type_gpu.clh"
#endif

/* A work-item's share of outputs j to j + 3 of all rows, and of the squares of what is normalised. */
static inline void multiply(const part *p, uint j, uint slice, uint slices, const stage *s,
                            const rows_of *rows, float4 *sums, float *squares) {
#undef WEIGHT
#define WEIGHT TYPE_C
#if TYPE_C != TYPE_A && TYPE_C != TYPE_B
    if (p->type == WEIGHT) {
        add_share(p, j, slice, slices, s, rows, sums, squares);
        return;
    }
#endif
#undef WEIGHT
#define WEIGHT TYPE_B
#if TYPE_B != TYPE_A
    if (p->type == WEIGHT) {
        add_share(p, j, slice, slices, s, rows, sums, squares);
        return;
    }
#endif
#undef WEIGHT
#define WEIGHT TYPE_A
    add_share(p, j, slice, slices, s, rows, sums, squares);
}

/* Sums over the work-items of `share`, which may ask for the row r, and what is made of each `total`,
 * into `to`. */
#define SUM_ROWS(to, share, made)                                                                  \
    do {                                                                                           \
        float total = 0.0f;                                                                        \
        for (uint r = 0; r < ROWS; r++) shares[r * WG_SIZE + wi] = (share);                        \
        barrier(CLK_LOCAL_MEM_FENCE);                                                              \
        for (uint i = 0; i < WG_SIZE; i++) total += shares[wi % ROWS * WG_SIZE + i];               \
        if (wi < ROWS) (to)[wi] = (made);                                                          \
        barrier(CLK_LOCAL_MEM_FENCE);                                                              \
    } while (0)

typedef struct parts_numbers {
    CHAIN_NUMBERS;
    ulong addend_w_at;
    ulong addend_kind; /* as wide as the struct is aligned: Rusticl does not count what pads it */
} parts_numbers;

__kernel GROUP_OF(WG_SIZE) void linear_parts_gpu(STAGE_MEMORY(0) PART_MEMORY(0) PART_MEMORY(1)
                                                     PART_MEMORY(2) MEMORY(const float, addend_w)
                                                         const parts_numbers arg) {
    /* Declared as floats, not as vectors: of an array of vectors read as floats, Mesa 22.3 drops what
     * has a constant index behind the first vector. */
    __local float shares[4 * TOGETHER * WG_SIZE] __attribute__((aligned(16)));
    __local uint starts[ROWS];
#if ADDS
    __local uint addend_starts[ROWS];
    __local float addend_means[ROWS], addend_scales[ROWS];
#endif
#if NORMED
    __local float means[ROWS], scales[ROWS]; /* what is subtracted; what outputs are multiplied by */
#endif
    __local float4 *scratch = (__local float4 *)shares;
    const uint n_rows = min(arg.n_rows, (uint)ROWS), wi = (uint)get_local_id(0);
    const stage s = STAGE(arg.stages[0], 0);
    const part second = PART(arg.parts[1], 1), third = PART(arg.parts[2], 2);
    const uint n_in = s.n_in;
    const uint paired = s.gated && s.parts == 2;
    part p = PART(arg.parts[0], 0);
    rows_of rows = {.at = s.x, .starts = starts};
    if (n_rows == 0) return;
    if (wi < ROWS) {
        const uint row = min(wi, n_rows - 1);
        starts[wi] = row * (uint)s.x_stride;
#if ADDS
        addend_starts[wi] = row * (uint)s.addend_stride;
#endif
#if NORMED
        means[wi] = 0.0f;
#endif
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#if ADDS
    /* 1. the addend, and this work-group's share of the sum */
    const rows_of addend = {.at = s.addend, .starts = addend_starts};
    const bool centred = arg.addend_kind == NORM_LAYER, scaled = arg.addend_kind != NORM_NONE;
    SUM_ROWS(addend_means, centred ? share_of(&addend, r, 0.0f, n_in, false, wi) : 0.0f,
             total / n_in);
    SUM_ROWS(addend_scales,
             scaled ? share_of(&addend, r, addend_means[r], n_in, true, wi) : 0.0f,
             scaled ? 1.0f / sqrt(total / n_in + s.eps) : 1.0f);
    OPEN(const float, addend_w);
    rows.adds = 1;
    rows.addend = s.addend;
    rows.addend_starts = addend_starts;
    rows.addend_w = addend_w;
    rows.addend_means = addend_means;
    rows.addend_scales = addend_scales;
    for (uint i = (uint)get_global_id(0); i < n_in; i += (uint)get_global_size(0))
        for (uint r = 0; r < n_rows; r++) s.sum[r * s.sum_stride + i] = input1(&rows, r, i);
#endif
#if NORMED
    /* 2. what is subtracted */
    if (s.norm_kind == NORM_LAYER)
        SUM_ROWS(means, share_of(&rows, r, 0.0f, n_in, false, wi), total / n_in);
    rows.means = means;
#endif
    /* 3. the outputs of this work-group */
    uint item = (uint)get_group_id(0);
    if (!s.gated && item >= (p.n_out + OUTPUTS_OF(&p) - 1) / OUTPUTS_OF(&p)) {
        item -= (p.n_out + OUTPUTS_OF(&p) - 1) / OUTPUTS_OF(&p);
        p = second;
        if (item >= (p.n_out + OUTPUTS_OF(&p) - 1) / OUTPUTS_OF(&p)) {
            item -= (p.n_out + OUTPUTS_OF(&p) - 1) / OUTPUTS_OF(&p);
            p = third;
        }
    }
    const uint quads = QUADS_OF(&p), outputs = 4 * quads; /* of both parts under a gate */
    const uint own_row = min(wi / outputs, TOGETHER - 1u); /* of a turn */
    float z[TURNS], up[TURNS]; /* sums of both parts */
    part of = p;
    for (uint k = 0; k <= paired; k++) {
        float4 sums[ROWS];
        float squares[ROWS];
        UNROLL for (uint r = 0; r < ROWS; r++) {
            sums[r] = 0.0f;
            squares[r] = 0.0f;
        }
        /* 4. products */
        multiply(&of, item * outputs + wi % quads * 4, wi / quads, WG_SIZE / quads, &s, &rows,
                 sums, squares);
#if NORMED
        SUM_ROWS(scales, wi % quads == 0 ? squares[r] : 0.0f,
                 s.norm_kind != NORM_NONE ? 1.0f / sqrt(total / n_in + s.eps) : 1.0f);
#endif
        UNROLL for (uint t = 0; t < TURNS; t++) {
            UNROLL for (uint r = 0; r < TOGETHER; r++)
                scratch[r * WG_SIZE + wi] = sums[t * TOGETHER + r];
            barrier(CLK_LOCAL_MEM_FENCE);
            float sum = 0.0f;
            for (uint i = 0; i < WG_SIZE / quads; i++)
                sum += shares[(own_row * WG_SIZE + i * quads) * 4 + wi % outputs];
            up[t] = sum;
            z[t] = k ? z[t] : sum;
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        of = second;
    }
    /* 5. what is added, and the gate */
    const uint j = item * outputs + wi % outputs;
    if (j >= p.n_out || wi / outputs >= TOGETHER) return;
    const float add_up = paired && second.bias ? second.bias[j] : 0.0f;
    UNROLL for (uint t = 0; t < TURNS; t++) {
        const uint r = t * TOGETHER + wi / outputs;
        if (r < n_rows) {
            __global float *to = p.y + r * p.y_stride + j;
            float start = s.accumulate ? *to : 0.0f;
            if (p.bias) start += p.bias[j];
#if NORMED
            const float scale = scales[r];
#else
            const float scale = 1.0f;
#endif
            const float whole = fma(z[t], scale, start);
            const float factor = paired ? fma(up[t], scale, add_up) : 1.0f;
            *to = s.gated ? gate1(whole, factor, s.activation) : whole;
        }
    }
}
