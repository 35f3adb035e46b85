/* SPDX-License-Identifier: Apache-2.0 */
/* norm on OpenCL: launch of cl_kernels/norm.cl. */
#include "host/opencl/opencl.h"

static tamis_status run(tms_device *dev, const tms_norm *p) {
    tms_cl_launch l = tms_cl_begin(dev, "norm.cl", "norm_rows", "-DDTYPE=0");
    tms_cl_matrix(&l, &p->x, p->n_rows, p->dim);
    tms_cl_matrix(&l, &p->y, p->n_rows, p->dim);
    tms_cl_ref(&l, p->w, sizeof(cl_float), p->n_rows ? p->dim : 0);
    tms_cl_u32(&l, p->n_rows);
    tms_cl_u32(&l, p->dim);
    tms_cl_f32(&l, p->eps);
    return tms_cl_run_narrow(&l, TMS_CL_WG_SIZE, p->n_rows);
}

tamis_status tms_cl_norm(tms_device *dev, const tms_norm *p) {
    const uint32_t most = tms_cl_narrow(dev, TMS_CL_WG_SIZE);
    tms_norm part = *p;
    tamis_status status = tms_cl_base_only(dev, "norm");
    for (uint32_t left = p->n_rows; status == TAMIS_OK; left -= part.n_rows) {
        part.n_rows = left < most ? left : most;
        status = run(dev, &part);
        part.x.ref.offset += part.n_rows * part.x.stride * sizeof(cl_float);
        part.y.ref.offset += part.n_rows * part.y.stride * sizeof(cl_float);
        if (left <= most) break;
    }
    return status;
}
