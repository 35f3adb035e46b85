/* SPDX-License-Identifier: Apache-2.0 */
/* compact and copy_slots on OpenCL: shapes and launches of cl_kernels/compact.cl. */
#include "host/opencl/opencl.h"

#define WIDE  64u /* channels of a work-group */
#define CHUNK 16u /* channels of a work-item */

/* Bits are copied, so f16 and bf16 take the same kernel. */
static tms_cl_launch begin(tms_device *dev, const char *kernel, const tms_kv *kv) {
    const tamis_dtype dtype = kv->dtype == TAMIS_BF16 ? TAMIS_F16 : kv->dtype;
    return tms_cl_begin(dev, "compact.cl", kernel, "-DDTYPE=%d", (int)dtype);
}

/* What both kernels take first, and last. */
static void set_slots(tms_cl_launch *l, const tms_kv *kv, const tms_batch *b) {
    tms_cl_kv(l, kv, b->n_rows);
    tms_cl_batch(l, b);
    tms_cl_u32(l, kv->page_size);
    tms_cl_u32(l, kv->head_dim);
}

static void set_planes(tms_cl_launch *l, const tms_planes *planes, const tms_batch *b) {
    tms_cl_optional(l, planes->positions, sizeof(cl_int), b->n_rows != 0);
    tms_cl_optional(l, planes->scores, sizeof(cl_float), b->n_rows != 0);
}

tamis_status tms_cl_compact(tms_device *dev, const tms_compact *p) {
    const tms_batch *b = &p->batch;
    const uint64_t lanes = (uint64_t)b->n_rows * b->n_kv_heads;
    const bool planes = p->planes.positions.mem || p->planes.scores.mem;
    tamis_status status = tms_cl_base_only(dev, "compact");
    if (status != TAMIS_OK) return status;
    const uint64_t rows = 2 * tms_divide_up(p->kv.head_dim, WIDE);
    const uint64_t scales = tms_has_blocks(p->kv.dtype) ? 2 : 0;
    tms_cl_launch l = begin(dev, "compact_slots", &p->kv);
    set_slots(&l, &p->kv, b);
    tms_cl_ref(&l, p->lists.pages, sizeof(cl_int), lanes * p->lists.capacity);
    tms_cl_ref(&l, p->lists.count, sizeof(cl_int), lanes);
    tms_cl_u32(&l, p->lists.capacity);
    tms_cl_u32(&l, p->granularity);
    tms_cl_ref(&l, p->to, sizeof(cl_int), lanes * p->to_stride);
    tms_cl_u64(&l, p->to_stride);
    set_planes(&l, &p->planes, b);
    return tms_cl_run_groups(&l, TMS_CL_WG_SIZE, lanes, rows + scales + planes);
}

tamis_status tms_cl_copy_slots(tms_device *dev, const tms_copy_slots *p) {
    const tms_batch *b = &p->batch;
    const uint64_t lanes = (uint64_t)b->n_rows * b->n_kv_heads;
    const tamis_status status = tms_cl_base_only(dev, "copy_slots");
    if (status != TAMIS_OK) return status;
    tms_cl_launch l = begin(dev, "copy_slots", &p->kv);
    set_slots(&l, &p->kv, b);
    tms_cl_ref(&l, p->to_seq, sizeof(cl_int), b->n_rows);
    tms_cl_ref(&l, p->from, sizeof(cl_int), lanes);
    tms_cl_ref(&l, p->to, sizeof(cl_int), lanes);
    set_planes(&l, &p->planes, b);
    return tms_cl_run_items(&l, lanes * (p->kv.head_dim / CHUNK));
}
