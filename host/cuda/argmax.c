/* SPDX-License-Identifier: Apache-2.0 */
/* argmax on CUDA: launch of cuda_kernels/argmax.cu. */
#include "host/cuda/cuda.h"

#define THREADS 1024u /* as in the kernel */

tamis_status tms_cu_argmax(tms_device *dev, const tms_argmax *p) {
    tamis_status status = tms_cu_base_only(dev, "argmax");
    if (status != TAMIS_OK) return status;
    tms_cu_launch l = tms_cu_begin(dev, "argmax", "argmax_rows");
    const cu_argmax_args args = {
        .x = tms_cu_matrix(&l, "x", &p->x, p->n_rows, p->dim),
        .out = tms_cu_ref(&l, "out", p->out, sizeof(int32_t), p->n_rows),
        .n_rows = p->n_rows,
        .dim = p->dim,
    };
    return tms_cu_run(&l, (tms_cu_grid){.x = p->n_rows, .threads = THREADS}, &args);
}
