/* SPDX-License-Identifier: Apache-2.0 */
/* bounds on OpenCL: shape and launch of cl_kernels/bounds.cl. */
#include "host/opencl/opencl.h"

tamis_status tms_cl_bounds(tms_device *dev, const tms_bounds *p) {
    tamis_status status = tms_cl_base_only(dev, "bounds");
    if (status != TAMIS_OK) return status;
    const tms_kv keys = tms_cl_keys(&p->kv);
    tms_cl_launch l = tms_cl_begin_kv(dev, "bounds.cl", "bounds_of_pages", &keys);
    const uint32_t items =
        p->kv.bounds_dtype == TAMIS_Q8 ? tms_blocks(p->kv.head_dim) : p->kv.head_dim / 16;
    tms_cl_kv(&l, &keys, p->n);
    tms_cl_bounds_of(&l, &p->kv, p->n);
    tms_cl_u32(&l, p->n);
    tms_cl_u32(&l, p->n_kv_heads);
    tms_cl_ref(&l, p->pages, sizeof(cl_int), p->n);
    tms_cl_u32(&l, p->kind);
    tms_cl_f32(&l, p->width);
    return tms_cl_run_items(&l, (uint64_t)p->n * p->n_kv_heads * items);
}
