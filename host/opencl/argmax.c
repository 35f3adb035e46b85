/* SPDX-License-Identifier: Apache-2.0 */
/* argmax on OpenCL. Base form: cl_kernels/argmax.cl; CPU form: argmax_cpu.cl, an item for a row. */
#include "host/opencl/opencl.h"

tamis_status tms_cl_argmax(tms_device *dev, const tms_argmax *p) {
    bool cpu;
    const tamis_status status = tms_cl_choose(dev, "argmax", NULL, &cpu);
    if (status != TAMIS_OK) return status;
    tms_cl_launch l =
        tms_cl_begin(dev, cpu ? "argmax_cpu.cl" : "argmax.cl", "argmax_rows", "-DDTYPE=0");
    tms_cl_matrix(&l, &p->x, p->n_rows, p->dim);
    tms_cl_u32(&l, p->n_rows);
    tms_cl_u32(&l, p->dim);
    tms_cl_ref(&l, p->out, sizeof(cl_int), p->n_rows);
    return tms_cl_run_groups(&l, cpu ? 1 : TMS_CL_WG_SIZE, p->n_rows, 1);
}
