/* SPDX-License-Identifier: Apache-2.0 */
/* embed on OpenCL: launch of cl_kernels/embed.cl. */
#include "host/opencl/linear.h"

/* A CPU device has it in a program with others that read weights. */
static tms_cl_launch begin(tms_device *dev, uint32_t kind) {
    if (dev->base_only)
        return tms_cl_begin(dev, "embed.cl", "embed_rows", "-DWEIGHT=%u -DLANES=4", kind);
    const tms_cl_kinds kinds = {{kind, kind, kind}};
    return tms_cl_begin_weights(dev, "embed.cl", "embed_rows", &kinds, 1, false);
}

tamis_status tms_cl_embed(tms_device *dev, const tms_embed *p) {
    tamis_status status = tms_cl_base_only(dev, "embed");
    if (status != TAMIS_OK) return status;
    tms_cl_launch l = begin(dev, tms_cl_kind(&p->w));
    tms_cl_ref(&l, p->tokens, sizeof(cl_int), p->n_rows);
    tms_cl_weights(&l, &p->w, p->n_rows ? p->n_vocab : 0, p->dim);
    tms_cl_matrix(&l, &p->y, p->n_rows, p->dim);
    tms_cl_u32(&l, p->n_rows);
    tms_cl_u32(&l, p->dim);
    tms_cl_f32(&l, p->scale);
    return tms_cl_run_items(&l, (uint64_t)p->n_rows * ((p->dim + 15) / 16));
}
