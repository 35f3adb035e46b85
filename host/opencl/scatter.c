/* SPDX-License-Identifier: Apache-2.0 */
/* scatter_rows on OpenCL: launch of cl_kernels/scatter.cl. */
#include "host/opencl/opencl.h"

tamis_status tms_cl_scatter_rows(tms_device *dev, const tms_scatter_rows *p) {
    tamis_status status = tms_cl_base_only(dev, "scatter_rows");
    if (status != TAMIS_OK) return status;
    tms_cl_launch l = tms_cl_begin(dev, "scatter.cl", "scatter_rows", "-DDTYPE=0");
    tms_cl_matrix(&l, &p->x, p->n_rows, p->width);
    tms_cl_reached(&l, p->y.ref, sizeof(cl_float), p->n_rows);
    tms_cl_u64(&l, p->y.stride);
    tms_cl_ref(&l, p->index, sizeof(cl_int), p->n_rows);
    tms_cl_u32(&l, p->n_rows);
    tms_cl_u32(&l, p->width);
    return tms_cl_run_items(&l, (uint64_t)p->n_rows * ((p->width + 15) / 16));
}
