/* SPDX-License-Identifier: Apache-2.0 */
/* argmax on OpenCL: launch of cl_kernels/argmax.cl. */
#include "host/opencl/opencl.h"

static tamis_status run(tms_device *dev, const tms_argmax *p) {
    tms_cl_launch l = tms_cl_begin(dev, "argmax.cl", "argmax_rows", "-DDTYPE=0");
    tms_cl_matrix(&l, &p->x, p->n_rows, p->dim);
    tms_cl_u32(&l, p->n_rows);
    tms_cl_u32(&l, p->dim);
    tms_cl_ref(&l, p->out, sizeof(cl_int), p->n_rows);
    return tms_cl_run_narrow(&l, TMS_CL_WG_SIZE, p->n_rows);
}

tamis_status tms_cl_argmax(tms_device *dev, const tms_argmax *p) {
    const uint32_t most = tms_cl_narrow(dev, TMS_CL_WG_SIZE);
    tms_argmax part = *p;
    tamis_status status = tms_cl_base_only(dev, "argmax");
    for (uint32_t left = p->n_rows; status == TAMIS_OK; left -= part.n_rows) {
        part.n_rows = left < most ? left : most;
        status = run(dev, &part);
        part.x.ref.offset += part.n_rows * part.x.stride * sizeof(cl_float);
        part.out.offset += part.n_rows * sizeof(cl_int);
        if (left <= most) break;
    }
    return status;
}
