/* SPDX-License-Identifier: Apache-2.0 */
/* scatter_rows on CUDA: launch of cuda_kernels/scatter.cu. */
#include "host/cuda/cuda.h"

#define THREADS 256u

tamis_status tms_cu_scatter_rows(tms_device *dev, const tms_scatter_rows *p) {
    tamis_status status = tms_cu_base_only(dev, "scatter_rows");
    if (status != TAMIS_OK) return status;
    tms_cu_launch l = tms_cu_begin(dev, "scatter", "scatter_rows");
    const cu_scatter_rows_args args = {
        .x = tms_cu_matrix(&l, "x", &p->x, p->n_rows, p->width),
        .y = {.at = tms_cu_reached(&l, "y", p->y.ref, sizeof(float), p->n_rows),
              .stride = p->y.stride},
        .index = tms_cu_ref(&l, "index", p->index, sizeof(int32_t), p->n_rows),
        .n_rows = p->n_rows,
        .width = p->width,
    };
    return tms_cu_run(&l, tms_cu_items((uint64_t)p->n_rows * p->width, THREADS), &args);
}
