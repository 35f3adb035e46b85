/* SPDX-License-Identifier: Apache-2.0 */
/* sink on OpenCL: launch of cl_kernels/sink.cl. It has one form, which is launched behind all forms of
 * attend. */
#include "host/opencl/opencl.h"

tamis_status tms_cl_sink(tms_device *dev, const tms_sink *p) {
    const uint64_t states = (uint64_t)p->n_rows * p->n_heads;
    tms_cl_launch l = tms_cl_begin(dev, "sink.cl", "sink_states", "-DDTYPE=0");
    tms_cl_u32(&l, (uint32_t)states);
    tms_cl_u32(&l, p->n_heads);
    tms_cl_u32(&l, p->dim);
    tms_cl_matrix(&l, &p->out, p->n_rows, (uint64_t)p->n_heads * p->dim);
    tms_cl_ref(&l, p->lse, sizeof(cl_float), states);
    tms_cl_ref(&l, p->sinks, sizeof(cl_float), states ? p->n_heads : 0);
    return tms_cl_run_groups(&l, TMS_CL_WG_SIZE, states, 1);
}
