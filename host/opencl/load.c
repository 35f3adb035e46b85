/* SPDX-License-Identifier: Apache-2.0 */
/* load_rows on OpenCL: shapes and launches of cl_kernels/load.cl. */
#include "host/opencl/opencl.h"

tamis_status tms_cl_load_rows(tms_device *dev, const tms_load_rows *p) {
    tamis_status status = tms_cl_base_only(dev, "load_rows");
    if (status != TAMIS_OK) return status;
    const uint64_t n = p->batch.n_rows, heads = p->batch.n_kv_heads;
    const uint64_t width = heads * p->kv.head_dim, last = n ? n - 1 : 0;
    const size_t size = tamis_dtype_size(p->dtype);
    tms_cl_launch l = tms_cl_begin(
        dev, "load.cl", "load_rows", "-DDTYPE=%d -DHEAD_DIM=%u -DPAGE_SIZE=%u -DSOURCE=%d",
        (int)p->kv.dtype, p->kv.head_dim, p->kv.page_size, (int)p->dtype);
    tms_cl_kv(&l, &p->kv, p->batch.n_rows);
    tms_cl_batch(&l, &p->batch);
    tms_cl_optional(&l, p->k, size, n ? last * p->k_stride + width : 0);
    tms_cl_u64(&l, p->k_stride);
    tms_cl_optional(&l, p->v, size, n ? last * p->v_stride + width : 0);
    tms_cl_u64(&l, p->v_stride);
    tms_cl_ref(&l, p->slots, sizeof(cl_int), n * heads);
    tms_cl_optional(&l, p->planes.positions, sizeof(cl_int), 0);
    tms_cl_optional(&l, p->planes.scores, sizeof(cl_float), 0);
    tms_cl_optional(&l, p->positions, sizeof(cl_int), n);
    tms_cl_u32(&l, p->n_rot / 2);
    tms_cl_u32(&l, p->pairing == TAMIS_PAIR_ADJACENT);
    tms_cl_optional(&l, p->table, sizeof(cl_float),
                    n && p->n_rot ? 2ull * TMS_ROTATE_STEPS * p->n_rot : 0);
    tms_cl_optional(&l, p->k_norm, sizeof(cl_float), p->kv.head_dim);
    tms_cl_f32(&l, p->eps);
    return tms_cl_run_items(&l, n * heads);
}
