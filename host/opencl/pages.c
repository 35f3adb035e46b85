/* SPDX-License-Identifier: Apache-2.0 */
/* copy_pages and write_table on OpenCL: launches of cl_kernels/pages.cl. */
#include "host/opencl/opencl.h"

tamis_status tms_cl_copy_pages(tms_device *dev, const tms_copy_pages *p) {
    tamis_status status = tms_cl_base_only(dev, "copy_pages");
    if (status != TAMIS_OK) return status;
    if (p->bytes > UINT32_MAX)
        return tms_device_fail(dev, TAMIS_E_UNSUPPORTED,
                               "copy_pages: blocks of %llu bytes: must be below 4 GiB",
                               (unsigned long long)p->bytes);
    tms_cl_launch l = tms_cl_begin(dev, "pages.cl", "copy_pages", "-DDTYPE=0");
    tms_cl_reached(&l, p->data, sizeof(cl_uint), p->n);
    tms_cl_u32(&l, (uint32_t)(p->bytes / 4));
    tms_cl_u32(&l, p->n);
    tms_cl_ref(&l, p->pairs, sizeof(cl_int), 2 * (uint64_t)p->n);
    return tms_cl_run_items(&l, p->n * (p->bytes / 16));
}

tamis_status tms_cl_write_table(tms_device *dev, const tms_write_table *p) {
    tamis_status status = tms_cl_base_only(dev, "write_table");
    if (status != TAMIS_OK) return status;
    tms_cl_launch l = tms_cl_begin(dev, "pages.cl", "write_table", "-DDTYPE=0");
    tms_cl_reached(&l, p->data, sizeof(cl_int), p->n);
    tms_cl_u32(&l, p->n);
    tms_cl_ref(&l, p->entries, sizeof(cl_int), 2 * (uint64_t)p->n);
    return tms_cl_run_items(&l, p->n);
}
