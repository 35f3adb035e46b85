/* SPDX-License-Identifier: Apache-2.0 */
/* convert on CUDA: launch of cuda_kernels/convert.cu. */
#include "host/cuda/cuda.h"

#define THREADS 256u

tamis_status tms_cu_convert(tms_device *dev, const tms_convert *p) {
    tamis_status status = tms_cu_base_only(dev, "convert");
    if (status != TAMIS_OK) return status;
    const uint64_t n_x = tms_rows_extent(p->n_rows, p->x_stride, p->width);
    const uint64_t n_y = tms_rows_extent(p->n_rows, p->y_stride, p->width);
    tms_cu_launch l = tms_cu_begin(dev, "convert", "convert_%s_%s", tamis_dtype_name(p->x_dtype),
                                   tamis_dtype_name(p->y_dtype));
    const cu_convert_args args = {
        .x = tms_cu_ref(&l, "x", p->x, tamis_dtype_size(p->x_dtype), n_x),
        .y = tms_cu_ref(&l, "y", p->y, tamis_dtype_size(p->y_dtype), n_y),
        .x_stride = p->x_stride,
        .y_stride = p->y_stride,
        .n_rows = p->n_rows,
        .width = p->width,
    };
    return tms_cu_run(&l, tms_cu_items((uint64_t)p->n_rows * p->width, THREADS), &args);
}
