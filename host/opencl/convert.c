/* SPDX-License-Identifier: Apache-2.0 */
/* convert on OpenCL: launch of cl_kernels/convert.cl. */
#include "host/opencl/opencl.h"

tamis_status tms_cl_convert(tms_device *dev, const tms_convert *p) {
    tamis_status status = tms_cl_base_only(dev, "convert");
    if (status != TAMIS_OK) return status;
    tms_cl_launch l = tms_cl_begin(dev, "convert.cl", "convert_rows", "-DDTYPE=%d -DSOURCE=%d",
                                   (int)p->y_dtype, (int)p->x_dtype);
    tms_cl_ref(&l, p->x, tamis_dtype_size(p->x_dtype),
               tms_rows_extent(p->n_rows, p->x_stride, p->width));
    tms_cl_u64(&l, p->x_stride);
    tms_cl_ref(&l, p->y, tamis_dtype_size(p->y_dtype),
               tms_rows_extent(p->n_rows, p->y_stride, p->width));
    tms_cl_u64(&l, p->y_stride);
    tms_cl_u32(&l, p->n_rows);
    tms_cl_u32(&l, p->width);
    return tms_cl_run_items(&l, (uint64_t)p->n_rows * ((p->width + 15) / 16));
}
