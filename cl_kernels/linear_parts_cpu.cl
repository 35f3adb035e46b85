/* SPDX-License-Identifier: Apache-2.0 */
/* linear_parts on a CPU: up to three matrices with one input, normalised or not, gated or not.
 * contract: host/ops.h; meaning: host/reference/linear_parts.c.
 * A work-group takes runs of outputs of any part from the queue. It normalises the rows once, or
 * DEPTH inputs of them at a time if there are more, as it holds them. The parts' types are TYPE_A,
 * TYPE_B and TYPE_C, which may be equal. */
#ifndef TYPE_A
#define TYPE_A 0 /* tamis_weight_type */
#define TYPE_B 7
#define TYPE_C 0
#endif
#define WEIGHT TYPE_A
#define HOLD_INTEGERS (TYPE_A > 2 || TYPE_B > 2 || TYPE_C > 2)
#define HOLD_FLOATS (TYPE_A <= 2 || TYPE_B <= 2 || TYPE_C <= 2)
#include "linear_cpu.clh"
#include "activate.clh"
#include "linear_parts.clh"
#include "linear_type_cpu.clh"
#if TYPE_B != TYPE_A
#undef WEIGHT
#define WEIGHT TYPE_B
#include "weights_type.clh"
#include "linear_type_cpu.clh"
#endif
#if TYPE_C != TYPE_A && TYPE_C != TYPE_B
#undef WEIGHT
#define WEIGHT TYPE_C
#include "weights_type.clh"
#include "linear_type_cpu.clh"
#endif

/* 1 / sqrt(mean(x²) + eps) */
static inline float norm_scale(__global const float *x, uint n, float eps) {
    float16 squares = 0.0f;
    float rest = 0.0f;
    uint i = 0;
    for (; i + 16 <= n; i += 16) {
        const float16 a = load_f32(x + i);
        squares = fma(a, a, squares);
    }
    for (; i < n; i++) rest = fma(x[i], x[i], rest);
    return 1.0f / sqrt((sum16(squares) + rest) / n + eps);
}

/* Adds the products of outputs j to j + outputs with the inputs k to k + depth, which are held. */
static inline void add_part(const part *p, uint j, uint outputs, uint n_in, uint k, uint depth,
                            const held *x, float (*sum)[ROWS]) {
#undef WEIGHT
#define WEIGHT TYPE_C
#if TYPE_C != TYPE_A && TYPE_C != TYPE_B
    if (p->type == WEIGHT) {
        add_outputs(p->w + j * ROW_BYTES(n_in) + ROW_BYTES(k), n_in, outputs, x, depth, sum);
        return;
    }
#endif
#undef WEIGHT
#define WEIGHT TYPE_B
#if TYPE_B != TYPE_A
    if (p->type == WEIGHT) {
        add_outputs(p->w + j * ROW_BYTES(n_in) + ROW_BYTES(k), n_in, outputs, x, depth, sum);
        return;
    }
#endif
#undef WEIGHT
#define WEIGHT TYPE_A
    add_outputs(p->w + j * ROW_BYTES(n_in) + ROW_BYTES(k), n_in, outputs, x, depth, sum);
}

/* The outputs of a row, with the bias; zeros behind the last up to a multiple of 16. */
static inline void take_row(const part *p, uint j, uint outputs, float (*sum)[ROWS], uint r,
                            float *out) {
    for (uint o = 0; o < outputs; o++) out[o] = sum[o][r];
    for (uint o = outputs; o % 16; o++) out[o] = 0.0f;
    if (!p->bias) return;
    for (uint o = 0; o < outputs; o++) out[o] += p->bias[j + o];
}

/* `run` outputs, at most MOST_RUN, are an item of the queue; with a gate they are of both parts. */
__kernel ONE_ITEM void linear_parts(MATRIX_PARAMS(x), REF_PARAMS(const float, norm), float eps,
                                    uint gated, uint n_rows, uint n_in, PART_PARAMS(0),
                                    PART_PARAMS(1), PART_PARAMS(2), uint run, QUEUE_PARAMS) {
    const part parts[3] = {PART(0), PART(1), PART(2)};
    held here;
    float scales[ROWS]; /* of the rows' norms */
    uint first = n_in;  /* of what is held */
    if (n_rows == 0) return;
    x += x_offset;
    if (norm) norm += norm_offset;
    for (uint r = 0; r < ROWS; r++) /* past the end, the last row again */
        scales[r] = norm ? norm_scale(x + min(r, n_rows - 1) * x_stride, n_in, eps) : 1.0f;
    FOR_EACH_QUEUED(item) {
        uint p = 0, at = item;
        for (uint runs; at >= (runs = (parts[p].n_out + run - 1) / run); p++) at -= runs;
        const uint j = at * run, outputs = min(run, parts[p].n_out - j);
        float sum[2][MOST_RUN][ROWS];
        for (uint o = 0; o < outputs; o++)
            for (uint r = 0; r < ROWS; r++) sum[0][o][r] = sum[1][o][r] = 0.0f;
        for (uint k = 0; k < n_in; k += DEPTH) {
            const uint depth = min((uint)DEPTH, n_in - k);
            for (uint r = 0; r < ROWS && first != k; r++)
                hold_row(&here, r, x + min(r, n_rows - 1) * x_stride + k, norm ? norm + k : 0,
                         scales[r], depth);
            first = k;
            for (uint second = 0; second <= gated; second++)
                add_part(&parts[p + second], j, outputs, n_in, k, depth, &here, sum[second]);
        }
        for (uint r = 0; r < min(n_rows, (uint)ROWS); r++) {
            float y[MOST_RUN], up[MOST_RUN];
            take_row(&parts[p], j, outputs, sum[0], r, y);
            if (gated) take_row(&parts[1], j, outputs, sum[1], r, up);
            for (uint o = 0; o < outputs && gated; o += 16) {
                const float16 z = *(const float16_at4 *)(y + o);
                *(float16_at4 *)(y + o) =
                    gated16(z, exp16(-0.5f * fabs(z)), *(const float16_at4 *)(up + o));
            }
            for (uint o = 0; o < outputs; o++)
                parts[p].y[r * parts[p].y_stride + j + o] = y[o];
        }
    }
    leave_queue(queue);
}
