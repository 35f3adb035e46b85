/* SPDX-License-Identifier: Apache-2.0 */
/* sink on CUDA: launch of cuda_kernels/sink.cu. It has one form, which is launched behind all forms of
 * attend. */
#include "host/cuda/cuda.h"

tamis_status tms_cu_sink(tms_device *dev, const tms_sink *p) {
    const uint64_t states = (uint64_t)p->n_rows * p->n_heads;
    tms_cu_launch l = tms_cu_begin(dev, "sink", "sink_states");
    const cu_sink_args args = {
        .out = tms_cu_matrix(&l, "out", &p->out, p->n_rows, (uint64_t)p->n_heads * p->dim),
        .lse = tms_cu_ref(&l, "lse", p->lse, sizeof(float), states),
        .sinks = tms_cu_ref(&l, "sinks", p->sinks, sizeof(float), states ? p->n_heads : 0),
        .n_rows = p->n_rows,
        .n_heads = p->n_heads,
        .dim = p->dim,
    };
    const tms_cu_grid grid = {.x = tms_divide_up(states, CU_SINK_THREADS / 32),
                              .y = 1,
                              .z = 1,
                              .threads = CU_SINK_THREADS};
    return tms_cu_run(&l, grid, &args);
}
