/* SPDX-License-Identifier: Apache-2.0 */
/* attend on OpenCL: the choice of form, shape and launch of cl_kernels/attend.cl. */
#include "host/opencl/opencl.h"

/* Splits of a launch, at least 1. */
static uint32_t splits_of(const tms_attend *p) {
    const uint32_t pages = p->max_pages;
    const uint32_t splits = pages / TMS_CL_SPLIT_PAGES + (pages % TMS_CL_SPLIT_PAGES != 0);
    return splits ? splits : 1;
}

uint64_t tms_cl_attend_scratch(tms_device *dev, const tms_attend *p) {
    (void)dev;
    uint64_t splits = splits_of(p);
    uint64_t states = splits * p->batch.n_rows * p->batch.n_heads;
    return splits > 1 ? states * (p->kv.head_dim + 1) * sizeof(float) : 0;
}

static tms_cl_states states_of(const tms_attend *p) {
    uint64_t width = (uint64_t)p->batch.n_heads * p->kv.head_dim;
    tms_cl_states s = {splits_of(p),
                       (uint64_t)p->batch.n_rows * p->batch.n_heads, p->out, p->lse};
    if (s.n_splits > 1) {
        uint64_t outs = s.n_splits * p->batch.n_rows * width * sizeof(float);
        s.out = (tms_matrix){p->scratch, width};
        s.lse = (tms_ref){p->scratch.mem, p->scratch.offset + outs};
    }
    return s;
}

void tms_cl_attend_states(tms_cl_launch *l, const tms_attend *p, const tms_cl_states *s) {
    uint32_t dim = p->kv.head_dim;
    tms_cl_f32(l, p->scale);
    tms_cl_f32(l, p->soft_cap);
    tms_cl_u32(l, s->n_splits);
    tms_cl_matrix(l, &s->out, (uint64_t)p->batch.n_rows * s->n_splits,
                  (uint64_t)p->batch.n_heads * dim);
    tms_cl_u64(l, s->n * dim);
    tms_cl_optional(l, s->lse, sizeof(cl_float), s->n * s->n_splits);
    tms_cl_u64(l, s->n);
}

void tms_cl_attend_lists(tms_cl_launch *l, const tms_attend *p) {
    uint64_t lanes = (uint64_t)p->batch.n_rows * p->batch.n_kv_heads;
    tms_cl_optional(l, p->lists.pages, sizeof(cl_int), lanes * p->lists.capacity);
    tms_cl_ref(l, p->lists.count, sizeof(cl_int), p->lists.pages.mem ? lanes : 0);
    tms_cl_u32(l, p->lists.capacity);
}

static tamis_status run_base(tms_device *dev, const tms_attend *p, const tms_cl_states *s) {
    const tms_batch *b = &p->batch;
    tms_cl_launch l = tms_cl_begin(
        dev, "attend.cl", "attend_rows",
        "-DDTYPE=%d -DHEAD_DIM=%u -DPAGE_SIZE=%u -DGROUP=%u -DSPLIT_PAGES=%d", p->kv.dtype,
        p->kv.head_dim, p->kv.page_size, b->n_heads / b->n_kv_heads, TMS_CL_SPLIT_PAGES);
    tms_cl_kv(&l, &p->kv, b->n_rows);
    tms_cl_batch(&l, b);
    tms_cl_matrix(&l, &p->q, b->n_rows, (uint64_t)b->n_heads * p->kv.head_dim);
    tms_cl_attend_lists(&l, p);
    tms_cl_optional(&l, p->positions, sizeof(cl_int), 0);
    tms_cl_optional(&l, p->intervals, sizeof(cl_int), 2ull * b->n_rows);
    tms_cl_attend_states(&l, p, s);
    return tms_cl_run_groups(&l, TMS_CL_LANES, (uint64_t)b->n_rows * s->n_splits, b->n_kv_heads);
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
    tms_cl_states s = states_of(p);
    status = cpu ? tms_cl_attend_cpu(dev, p, &s) : run_base(dev, p, &s);
    if (status != TAMIS_OK || s.n_splits == 1) return status;
    return tms_cl_merge_states(dev, s.n_splits, p->batch.n_rows, p->batch.n_heads, p->kv.head_dim,
                               s.out.ref, s.lse, &p->out, p->lse);
}
