/* SPDX-License-Identifier: Apache-2.0 */
/* merge on OpenCL: the choice of form and launch of cl_kernels/merge.cl or merge_cpu.cl, which take
 * the same arguments, for the op and for the splits of attend. */
#include "host/opencl/opencl.h"

tamis_status tms_cl_merge_states(tms_device *dev, uint32_t n_parts, uint32_t n_rows,
                                 uint32_t n_heads, uint32_t dim, tms_ref outs, tms_ref lses,
                                 const tms_matrix *out, tms_ref lse) {
    uint64_t states = (uint64_t)n_rows * n_heads;
    bool cpu;
    tamis_status status =
        tms_cl_choose(dev, "merge", dim % 16 ? "dim is not a multiple of 16" : NULL, &cpu);
    if (status != TAMIS_OK) return status;
    tms_cl_launch l =
        tms_cl_begin(dev, cpu ? "merge_cpu.cl" : "merge.cl", "merge_states", "-DDTYPE=0");
    tms_cl_u32(&l, n_parts);
    tms_cl_u32(&l, n_rows);
    tms_cl_u32(&l, n_heads);
    tms_cl_u32(&l, dim);
    tms_cl_ref(&l, outs, sizeof(cl_float), n_parts * states * dim);
    tms_cl_ref(&l, lses, sizeof(cl_float), n_parts * states);
    tms_cl_matrix(&l, out, n_rows, (uint64_t)n_heads * dim);
    tms_cl_optional(&l, lse, sizeof(cl_float), states);
    return cpu ? tms_cl_run_groups(&l, 1, states, 1) : tms_cl_run_items(&l, states * dim);
}

tamis_status tms_cl_merge(tms_device *dev, const tms_merge *p) {
    tms_matrix out = {p->out, p->dim};
    return tms_cl_merge_states(dev, p->n_parts, p->n, 1, p->dim, p->outs, p->lses, &out, p->lse);
}
