/* SPDX-License-Identifier: Apache-2.0 */
/* activate on OpenCL: launch of cl_kernels/activate.cl. */
#include "host/opencl/opencl.h"

tamis_status tms_cl_activate(tms_device *dev, const tms_activate *p) {
    tamis_status status = tms_cl_base_only(dev, "activate");
    if (status != TAMIS_OK) return status;
    tms_cl_launch l = tms_cl_begin(dev, "activate.cl", "activate_rows", "-DDTYPE=0");
    tms_cl_matrix(&l, &p->gate, p->n_rows, p->dim);
    tms_cl_matrix(&l, p->up.ref.mem ? &p->up : &p->gate, p->n_rows, p->dim);
    tms_cl_matrix(&l, &p->y, p->n_rows, p->dim);
    tms_cl_u32(&l, p->n_rows);
    tms_cl_u32(&l, p->dim);
    tms_cl_u32(&l, p->up.ref.mem != NULL);
    tms_cl_u32(&l, p->activation);
    return tms_cl_run_items(&l, (uint64_t)p->n_rows * ((p->dim + 15) / 16));
}
