/* SPDX-License-Identifier: Apache-2.0 */
/* attend on OpenCL: the choice of form, shape and launch of cl_kernels/attend.cl. */
#include "host/opencl/opencl.h"

/* States of the splits, packed [split][row][head]: outs of head_dim, then the lses. */
uint64_t tms_cl_attend_scratch(tms_device *dev, const tms_attend *p) {
    (void)dev;
    uint64_t splits = tms_attend_splits(p->max_pages);
    uint64_t states = splits * p->batch.n_rows * p->batch.n_heads;
    return splits > 1 ? states * (p->kv.head_dim + 1) * sizeof(float) : 0;
}

static tamis_status run_base(tms_device *dev, const tms_attend *p) {
    const tms_batch *b = &p->batch;
    uint32_t n_splits = tms_attend_splits(p->max_pages), dim = p->kv.head_dim;
    uint64_t states = (uint64_t)b->n_rows * b->n_heads;
    uint64_t lanes = (uint64_t)b->n_rows * b->n_kv_heads;
    tms_matrix out = p->out;
    tms_ref lse = p->lse;
    if (n_splits > 1) {
        out = (tms_matrix){p->scratch, (uint64_t)b->n_heads * dim};
        lse =
            (tms_ref){p->scratch.mem, p->scratch.offset + n_splits * states * dim * sizeof(float)};
    }
    tms_cl_launch l = tms_cl_begin(
        dev, "attend.cl", "attend_rows",
        "-DDTYPE=%d -DHEAD_DIM=%u -DPAGE_SIZE=%u -DGROUP=%u -DSPLIT_PAGES=%d", p->kv.dtype, dim,
        p->kv.page_size, b->n_heads / b->n_kv_heads, TMS_SPLIT_PAGES);
    tms_cl_kv(&l, &p->kv);
    tms_cl_batch(&l, b);
    tms_cl_matrix(&l, &p->q, b->n_rows, (uint64_t)b->n_heads * dim);
    tms_cl_optional(&l, p->lists.pages, sizeof(cl_int), lanes * p->lists.capacity);
    tms_cl_optional(&l, p->lists.count, sizeof(cl_int), lanes);
    tms_cl_u32(&l, p->lists.capacity);
    tms_cl_optional(&l, p->positions, sizeof(cl_int), 0);
    tms_cl_optional(&l, p->intervals, sizeof(cl_int), 2ull * b->n_rows);
    tms_cl_f32(&l, p->scale);
    tms_cl_f32(&l, p->soft_cap);
    tms_cl_u32(&l, n_splits);
    tms_cl_matrix(&l, &out, (uint64_t)b->n_rows * (n_splits > 1 ? n_splits : 1),
                  (uint64_t)b->n_heads * dim);
    tms_cl_u64(&l, states * dim);
    tms_cl_optional(&l, lse, sizeof(cl_float), states * n_splits);
    tms_cl_u64(&l, states);
    tamis_status status =
        tms_cl_run_groups(&l, TMS_CL_LANES, (uint64_t)b->n_rows * n_splits, b->n_kv_heads);
    if (status != TAMIS_OK || n_splits == 1) return status;
    return tms_cl_merge_states(dev, n_splits, b->n_rows, b->n_heads, dim, out.ref, lse, &p->out,
                               p->lse);
}

static tamis_status check(tms_device *dev, const tms_attend *p) {
    const tms_batch *b = &p->batch;
    tamis_status status = tms_check_kv(dev, &p->kv);
    if (status == TAMIS_OK) status = tms_check_batch(dev, b);
    if (status != TAMIS_OK) return status;
    uint32_t all = (b->max_visible + p->kv.page_size - 1) / p->kv.page_size;
    if (b->n_rows && !p->lists.pages.mem && p->max_pages < all)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "attend: max_pages is %u and a lane may have %u pages", p->max_pages,
                               all);
    if (p->lists.pages.mem && p->max_pages > p->lists.capacity)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "attend: max_pages is %u and lists hold %u",
                               p->max_pages, p->lists.capacity);
    return TAMIS_OK;
}

tamis_status tms_cl_attend(tms_device *dev, const tms_attend *p) {
    bool cpu;
    tamis_status status = check(dev, p);
    if (status == TAMIS_OK)
        status = tms_cl_choose(dev, "attend", tms_cl_attend_cpu_refusal(p), &cpu);
    if (status != TAMIS_OK) return status;
    return cpu ? tms_cl_attend_cpu(dev, p) : run_base(dev, p);
}
