/* SPDX-License-Identifier: Apache-2.0 */
/* take_lists on OpenCL: launch of cl_kernels/take_lists.cl. */
#include "host/opencl/opencl.h"

tamis_status tms_cl_take_lists(tms_device *dev, const tms_take_lists *p) {
    tamis_status status = tms_cl_base_only(dev, "take_lists");
    if (status != TAMIS_OK) return status;
    const uint64_t owners = (uint64_t)p->batch.n_rows * p->batch.n_kv_heads;
    tms_cl_launch l = tms_cl_begin(dev, "take_lists.cl", "take_lists", "-DDTYPE=0");
    tms_cl_batch(&l, &p->batch);
    tms_cl_u32(&l, p->granularity);
    tms_cl_ref(&l, p->raw.pages, sizeof(cl_int), owners * p->raw.capacity);
    tms_cl_ref(&l, p->raw.count, sizeof(cl_int), owners);
    tms_cl_u32(&l, p->raw.capacity);
    tms_cl_ref(&l, p->lists.pages, sizeof(cl_int), owners * p->lists.capacity);
    tms_cl_ref(&l, p->lists.count, sizeof(cl_int), owners);
    tms_cl_u32(&l, p->lists.capacity);
    tms_cl_optional(&l, p->ids, sizeof(cl_int), owners * p->lists.capacity);
    tms_cl_u32(&l, p->page_size);
    tms_cl_u32(&l, p->page_slots);
    tms_cl_ref(&l, p->skipped, sizeof(cl_int), owners ? 1 : 0);
    return tms_cl_run_items(&l, owners);
}
