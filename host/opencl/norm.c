/* SPDX-License-Identifier: Apache-2.0 */
/* norm on OpenCL. Base form: cl_kernels/norm.cl; CPU form: norm_cpu.cl, an item for a row. */
#include "host/opencl/opencl.h"

tamis_status tms_cl_norm(tms_device *dev, const tms_norm *p) {
    bool cpu;
    const tamis_status status = tms_cl_choose(dev, "norm", NULL, &cpu);
    if (status != TAMIS_OK) return status;
    tms_cl_launch l =
        cpu ? tms_cl_begin(dev, "norm_cpu.cl", "norm_rows", "-DDTYPE=0")
            : tms_cl_begin(dev, "norm.cl", "norm_rows", "-DDTYPE=0 -DKIND=%d -DACCUMULATE=%d",
                           (int)p->kind, p->accumulate);
    tms_cl_matrix(&l, &p->x, p->n_rows, p->dim);
    tms_cl_matrix(&l, &p->y, p->n_rows, p->dim);
    tms_cl_matrix(&l, &p->to, p->accumulate ? p->n_rows : 0, p->dim);
    tms_cl_ref(&l, p->w, sizeof(cl_float), p->n_rows ? p->dim : 0);
    tms_cl_u32(&l, p->n_rows);
    tms_cl_u32(&l, p->dim);
    tms_cl_f32(&l, p->eps);
    if (!cpu) return tms_cl_run_groups(&l, TMS_CL_WG_SIZE, p->n_rows, 1);
    tms_cl_u32(&l, p->kind);
    tms_cl_u32(&l, p->accumulate);
    return tms_cl_run_groups(&l, 1, p->n_rows < TMS_CL_NARROW ? p->n_rows : TMS_CL_NARROW, 1);
}
