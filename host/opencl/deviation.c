/* SPDX-License-Identifier: Apache-2.0 */
/* deviation on OpenCL: shapes and launches of cl_kernels/deviation.cl. */
#include "host/opencl/opencl.h"

tamis_status tms_cl_deviation(tms_device *dev, const tms_deviation *p) {
    tamis_status status = tms_cl_base_only(dev, "deviation");
    if (status != TAMIS_OK) return status;
    const uint32_t n = p->batch.n_rows, heads = p->batch.n_kv_heads;
    tms_cl_launch l =
        tms_cl_begin(dev, "deviation.cl", "deviation", "-DDTYPE=%d -DHEAD_DIM=%u -DPAGE_SIZE=%u",
                     (int)p->kv.dtype, p->kv.head_dim, p->kv.page_size);
    tms_cl_kv(&l, &p->kv, n);
    tms_cl_batch(&l, &p->batch);
    tms_cl_matrix(&l, &p->x, n, (uint64_t)heads * p->kv.head_dim);
    tms_cl_ref(&l, p->slots, sizeof(cl_int), (uint64_t)n * heads);
    tms_cl_ref(&l, p->out, sizeof(cl_float), n);
    tms_cl_optional(&l, p->norms, sizeof(cl_float), n);
    tms_cl_u32(&l, p->values);
    return tms_cl_run_groups(&l, TMS_CL_WG_SIZE, n, 1);
}
