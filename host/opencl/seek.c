/* SPDX-License-Identifier: Apache-2.0 */
/* seek on OpenCL: shape and launch of cl_kernels/seek.cl. */
#include "host/opencl/opencl.h"

tamis_status tms_cl_seek(tms_device *dev, const tms_seek *p) {
    tamis_status status = tms_cl_base_only(dev, "seek");
    if (status != TAMIS_OK) return status;
    const uint64_t n = p->batch.n_rows, heads = p->batch.n_kv_heads;
    tms_cl_launch l = tms_cl_begin(dev, "seek.cl", "seek", "-DDTYPE=0");
    tms_cl_batch(&l, &p->batch);
    tms_cl_u32(&l, p->page_size);
    tms_cl_reached(&l, p->positions, sizeof(cl_int), n);
    tms_cl_ref(&l, p->least, sizeof(cl_int), n);
    tms_cl_ref(&l, p->out, sizeof(cl_int), tms_seek_extent(p));
    tms_cl_u64(&l, p->row_stride);
    tms_cl_u64(&l, p->head_stride);
    return tms_cl_run_items(&l, n * heads);
}
