/* SPDX-License-Identifier: Apache-2.0 */
/* compact on OpenCL: shape and launch of cl_kernels/compact.cl. */
#include "host/opencl/opencl.h"

#define WIDE 64u /* channels of a work-group */

tamis_status tms_cl_compact(tms_device *dev, const tms_compact *p) {
    const tms_batch *b = &p->batch;
    const uint64_t lanes = (uint64_t)b->n_rows * b->n_kv_heads;
    const bool planes = p->planes.positions.mem || p->planes.scores.mem;
    tamis_status status = tms_cl_base_only(dev, "compact");
    if (status != TAMIS_OK) return status;
    /* Bits are copied, so f16 and bf16 take the same kernel. */
    const tamis_dtype dtype = p->kv.dtype == TAMIS_BF16 ? TAMIS_F16 : p->kv.dtype;
    const uint64_t rows = 2 * tms_divide_up(p->kv.head_dim, WIDE);
    const uint64_t scales = tms_has_blocks(dtype) ? 2 : 0;
    tms_cl_launch l = tms_cl_begin(dev, "compact.cl", "compact_slots", "-DDTYPE=%d", (int)dtype);
    tms_cl_kv(&l, &p->kv, b->n_rows);
    tms_cl_batch(&l, b);
    tms_cl_u32(&l, p->kv.page_size);
    tms_cl_u32(&l, p->kv.head_dim);
    tms_cl_ref(&l, p->lists.pages, sizeof(cl_int), lanes * p->lists.capacity);
    tms_cl_ref(&l, p->lists.count, sizeof(cl_int), lanes);
    tms_cl_u32(&l, p->lists.capacity);
    tms_cl_u32(&l, p->granularity);
    tms_cl_ref(&l, p->to, sizeof(cl_int), lanes * p->to_stride);
    tms_cl_u64(&l, p->to_stride);
    tms_cl_optional(&l, p->planes.positions, sizeof(cl_int), b->n_rows != 0);
    tms_cl_optional(&l, p->planes.scores, sizeof(cl_float), b->n_rows != 0);
    return tms_cl_run_groups(&l, TMS_CL_WG_SIZE, lanes, rows + scales + planes);
}
