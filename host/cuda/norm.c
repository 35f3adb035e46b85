/* SPDX-License-Identifier: Apache-2.0 */
/* norm on CUDA: launch of cuda_kernels/norm.cu. */
#include "host/cuda/cuda.h"

#define THREADS 256u /* as in the kernel */

tamis_status tms_cu_norm(tms_device *dev, const tms_norm *p) {
    tamis_status status = tms_cu_base_only(dev, "norm");
    if (status != TAMIS_OK) return status;
    tms_cu_launch l = tms_cu_begin(dev, "norm", "norm_rows");
    cu_norm_args args = {
        .x = tms_cu_matrix(&l, "x", &p->x, p->n_rows, p->dim),
        .y = tms_cu_matrix(&l, "y", &p->y, p->n_rows, p->dim),
        .w = tms_cu_ref(&l, "w", p->w, sizeof(float), p->n_rows ? p->dim : 0),
        .n_rows = p->n_rows,
        .dim = p->dim,
        .eps = p->eps,
        .kind = p->kind,
    };
    if (p->accumulate) args.to = tms_cu_matrix(&l, "to", &p->to, p->n_rows, p->dim);
    return tms_cu_run(&l, (tms_cu_grid){.x = p->n_rows, .threads = THREADS}, &args);
}
