/* SPDX-License-Identifier: Apache-2.0 */
/* activate on CUDA: launch of cuda_kernels/activate.cu. */
#include "host/cuda/cuda.h"

#define THREADS 256u

tamis_status tms_cu_activate(tms_device *dev, const tms_activate *p) {
    tamis_status status = tms_cu_base_only(dev, "activate");
    if (status != TAMIS_OK) return status;
    tms_cu_launch l = tms_cu_begin(dev, "activate", "activate_rows");
    const cu_activate_args args = {
        .gate = tms_cu_matrix(&l, "gate", &p->gate, p->n_rows, p->dim),
        .up = p->up.ref.mem ? tms_cu_matrix(&l, "up", &p->up, p->n_rows, p->dim) : (cu_matrix){0},
        .y = tms_cu_matrix(&l, "y", &p->y, p->n_rows, p->dim),
        .n_rows = p->n_rows,
        .dim = p->dim,
        .activation = p->activation,
    };
    return tms_cu_run(&l, tms_cu_items((uint64_t)p->n_rows * p->dim, THREADS), &args);
}
