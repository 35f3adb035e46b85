/* SPDX-License-Identifier: Apache-2.0 */
/* score_rows on OpenCL: shapes and launches of cl_kernels/score_rows.cl. */
#include "host/opencl/opencl.h"

tamis_status tms_cl_score_rows(tms_device *dev, const tms_score_rows *p) {
    tamis_status status = tms_cl_base_only(dev, "score_rows");
    if (status != TAMIS_OK) return status;
    const uint64_t n = (uint64_t)p->batch.n_rows * p->batch.n_kv_heads;
    tms_cl_launch l =
        tms_cl_begin(dev, "score_rows.cl", "score_rows", "-DDTYPE=%d -DHEAD_DIM=%u -DPAGE_SIZE=%u",
                     (int)tms_key_dtype(p->kv.dtype), p->kv.head_dim, p->kv.page_size);
    tms_cl_kv(&l, &p->kv, p->batch.n_rows);
    tms_cl_batch(&l, &p->batch);
    tms_cl_ref(&l, p->slots, sizeof(cl_int), n);
    tms_cl_reached(&l, p->scores, sizeof(cl_float), n);
    return tms_cl_run_items(&l, n);
}
