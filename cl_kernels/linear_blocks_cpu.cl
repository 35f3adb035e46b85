/* SPDX-License-Identifier: Apache-2.0 */
/* linear on a CPU for few rows and quantised weights: y = x·wᵀ + bias (+ y).
 * contract: host/ops.h; meaning: host/reference/linear.c.
 * A work-group takes runs of outputs from the queue. It turns DEPTH inputs of each row into 16-bit
 * integers, once for all its runs if there are no more inputs. */
#include "linear_cpu.clh"
#if !QUANTISED
#error "weights of single numbers have linear_few of linear_cpu.cl"
#endif
#include "linear_type_cpu.clh"

/* `run` outputs, at most MOST_RUN, are an item of the queue. */
__kernel ONE_ITEM void linear_blocks(MATRIX_PARAMS(x), MATRIX_PARAMS(y),
                                     REF_PARAMS(const weight, w), REF_PARAMS(const float, bias),
                                     uint n_rows, uint n_in, uint n_out, uint accumulate, uint run,
                                     QUEUE_PARAMS) {
    held here;
    uint first = n_in; /* of what is held */
    if (n_rows == 0) return;
    FOR_EACH_QUEUED(item) {
        const uint j = item * run, outputs = min(run, n_out - j);
        float sum[MOST_RUN][ROWS];
        for (uint o = 0; o < outputs; o++)
            for (int r = 0; r < ROWS; r++) sum[o][r] = 0.0f;
        for (uint k = 0; k < n_in; k += DEPTH) {
            const uint depth = min((uint)DEPTH, n_in - k);
            for (uint r = 0; r < ROWS && first != k; r++) /* past the end, the last row again */
                hold_row(&here, r, x + x_offset + min(r, n_rows - 1) * x_stride + k, 0, 1.0f,
                         depth);
            first = k;
            add_outputs(w + w_offset + j * ROW_BYTES(n_in) + ROW_BYTES(k), n_in, outputs, &here,
                        depth, sum);
        }
        for (uint o = 0; o < outputs; o++)
            for (uint r = 0; r < min(n_rows, (uint)ROWS); r++) {
                __global float *to = y + y_offset + r * y_stride + j + o;
                float start = accumulate ? *to : 0.0f;
                if (bias) start += bias[bias_offset + j + o];
                *to = start + sum[o][r];
            }
    }
    leave_queue(queue);
}
