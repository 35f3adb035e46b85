/* SPDX-License-Identifier: Apache-2.0 */
/* linear on a CPU: y = x·wᵀ + bias (+ y).
 * contract: host/ops/; meaning: host/reference/linear.c.
 * For more than a few rows: a work-item owns PANEL outputs of up to MOST_ROWS rows. A step turns
 * PANEL_DEPTH inputs of its weights into a panel [input][output] of f32, and multiplies it with BLOCK
 * rows at a time; partial sums wait in y. A panel leaves room in the first cache for rows 4 KiB
 * apart. A few rows are a chain of one stage: linear_chain_cpu.cl. Options are those of a chain. */
#if !defined(WEIGHT) && defined(TYPE_A)
#define WEIGHT TYPE_A
#endif
#include "weights.clh"
#include "cpu.clh"

#define PANEL 32 /* two vectors */
#define PANEL_DEPTH 128
#define BLOCK 8
#define MOST_ROWS 256

#define LINEAR_PARAMS                                                                              \
    MATRIX_PARAMS(x), MATRIX_PARAMS(y), REF_PARAMS(const weight, w),                              \
        REF_PARAMS(const float, bias), uint n_rows, uint n_in, uint n_out, uint accumulate

#if STRIPS
/* Inputs of step `step` of the 16 outputs from `j` into half b of the panel; behind the last strip
 * that one again. */
static ONCE void pack(float16 (*panel)[2], int b, __global const weight *w, uint j, uint n_out,
                      uint n_in, uint step, uint depth) {
    const uint k = step * PANEL_DEPTH;
    __global const weight *strip = w + min(j, (n_out - 1) / STRIP * STRIP) * ROW_SIZE(n_in);
    for (uint i = 0; i < depth; i += 16) {
        float16 a[16];
        strip16(strip, 0, k + i, a);
        UNROLL for (int o = 0; o < 16; o++) panel[i + o][b] = a[o];
    }
}
#else
/* Elements i to i + 15 of a row. */
static inline float16 widened16(__global const weight *row, uint i) {
#if QUANTISED
    return weights16(row, i);
#else
    return widen16(row + i);
#endif
}

/* 16 x 16 elements, rows to columns: blocks of 8, 4, 2 and 1 change places across the diagonal. */
static inline void transpose(float16 *a) {
    UNROLL for (int i = 0; i < 8; i++) {
        const float16 p = a[i], q = a[i + 8];
        a[i] = (float16)(p.lo, q.lo);
        a[i + 8] = (float16)(p.hi, q.hi);
    }
    UNROLL for (int k = 0; k < 8; k++) {
        const int i = k % 4 + k / 4 * 8;
        const float16 p = a[i], q = a[i + 4];
        a[i] = (float16)(p.s0123, q.s0123, p.s89ab, q.s89ab);
        a[i + 4] = (float16)(p.s4567, q.s4567, p.scdef, q.scdef);
    }
    UNROLL for (int k = 0; k < 8; k++) {
        const int i = k % 2 + k / 2 * 4;
        const float16 p = a[i], q = a[i + 2];
        a[i] = (float16)(p.s01, q.s01, p.s45, q.s45, p.s89, q.s89, p.scd, q.scd);
        a[i + 2] = (float16)(p.s23, q.s23, p.s67, q.s67, p.sab, q.sab, p.sef, q.sef);
    }
    UNROLL for (int i = 0; i < 16; i += 2) {
        const float16 p = a[i], q = a[i + 1];
        a[i] = (float16)(p.s0, q.s0, p.s2, q.s2, p.s4, q.s4, p.s6, q.s6, p.s8, q.s8, p.sa, q.sa,
                         p.sc, q.sc, p.se, q.se);
        a[i + 1] = (float16)(p.s1, q.s1, p.s3, q.s3, p.s5, q.s5, p.s7, q.s7, p.s9, q.s9, p.sb, q.sb,
                             p.sd, q.sd, p.sf, q.sf);
    }
}

/* Inputs of step `step` of 16 outputs from `j` into half b of the panel; outputs past the end are the
 * last one again. */
static ONCE void pack(float16 (*panel)[2], int b, __global const weight *w, uint j, uint n_out,
                      uint n_in, uint step, uint depth) {
    const uint k = step * PANEL_DEPTH; /* which the compiler sees to begin a block of weights */
    __global const weight *from[16];
    for (int o = 0; o < 16; o++)
        from[o] = w + min(j + o, n_out - 1) * ROW_SIZE(n_in);
    uint i = 0;
    for (; i + 16 <= depth; i += 16) {
        float16 a[16];
#if !QUANTISED
        UNROLL
#endif
        for (int o = 0; o < 16; o++) a[o] = widened16(from[o], k + i);
        transpose(a);
        UNROLL for (int o = 0; o < 16; o++) panel[i + o][b] = a[o];
    }
    for (; i < depth; i++)
        for (int o = 0; o < 16; o++) ((float *)&panel[i][b])[o] = weight1(from[o], k + i);
}

#endif

/* The first `n` <= 16 of a vector of memory. */
static inline float16 load_part(__global const float *p, int n) {
    float16 x = 0.0f;
    if (n >= 16) return load_f32(p);
    for (int i = 0; i < n; i++) ((float *)&x)[i] = p[i];
    return x;
}
static inline void store_part(float16 x, __global float *p, int n) {
    if (n >= 16)
        store_f32(x, p);
    else
        for (int i = 0; i < n; i++) p[i] = ((const float *)&x)[i];
}

/* Adds the products of up to BLOCK rows of x, of `depth` inputs each, with the panel to their first
 * n_out outputs in y, or sets these. bias may be NULL. */
static ONCE void multiply_panel(const float16 (*panel)[2], __global const float *x, ulong x_stride,
                          __global float *y, ulong y_stride, __global const float *bias, int rows,
                          uint depth, int n_out, bool add) {
    float16 sum[BLOCK][2];
    __global const float *from[BLOCK]; /* past the end, the last row again */
    UNROLL for (int i = 0; i < BLOCK; i++) {
        from[i] = x + min(i, rows - 1) * x_stride;
        UNROLL for (int b = 0; b < 2; b++) sum[i][b] = 0.0f;
    }
    for (uint d = 0; d < depth; d++)
        UNROLL for (int i = 0; i < BLOCK; i++)
            UNROLL for (int b = 0; b < 2; b++)
                sum[i][b] = fma((float16)(from[i][d]), panel[d][b], sum[i][b]);
    for (int i = 0; i < min(rows, BLOCK); i++)
        for (int b = 0; b < 2; b++) {
            const int n = n_out - 16 * b;
            __global float *to = y + i * y_stride + 16 * b;
            if (n <= 0) continue;
            float16 start = add ? load_part(to, n) : (float16)(0.0f);
            if (bias) start += load_part(bias + 16 * b, n);
            store_part(start + sum[i][b], to, n);
        }
}

__kernel ONE_ITEM void linear_many(LINEAR_PARAMS) {
    float16 panel[PANEL_DEPTH][2];
    const uint j = (uint)get_group_id(1) * PANEL, row0 = (uint)get_group_id(0) * MOST_ROWS;
    if (row0 >= n_rows) return;
    const uint rows = min(n_rows - row0, (uint)MOST_ROWS);
    x += x_offset + row0 * x_stride;
    y += y_offset + row0 * y_stride + j;
    w += w_offset;
    for (uint k = 0; k < n_in; k += PANEL_DEPTH) {
        const uint depth = min((uint)PANEL_DEPTH, n_in - k);
        __global const float *added = bias && k == 0 ? bias + bias_offset + j : (__global float *)0;
        for (int b = 0; b < 2; b++) pack(panel, b, w, j + 16 * b, n_out, n_in, k / PANEL_DEPTH, depth);
        for (uint r = 0; r < rows; r += BLOCK)
            multiply_panel(panel, x + r * x_stride + k, x_stride, y + r * y_stride, y_stride, added,
                     (int)(rows - r), depth, (int)(n_out - j), k || accumulate);
    }
}
