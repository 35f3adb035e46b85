/* SPDX-License-Identifier: Apache-2.0 */
/* score_pages on OpenCL: the choice of form, shape and launch of cl_kernels/score.cl. */
#include "host/opencl/opencl.h"

static tamis_status run_base(tms_device *dev, const tms_score_pages *p) {
    const tms_batch *b = &p->batch;
    uint32_t group = b->n_heads / b->n_kv_heads, full = tms_batch_full_entries(b, p->kv.page_size);
    uint32_t pages_a_block = TMS_CL_WG_SIZE / (p->kv.head_dim / 16);
    uint32_t blocks = full ? (full + pages_a_block - 1) / pages_a_block : 1;
    uint64_t n = (uint64_t)b->n_rows * b->n_kv_heads * p->stride;
    tms_cl_launch l =
        tms_cl_begin(dev, "score.cl", "score_pages",
                     "-DDTYPE=%d -DBOUNDS_DTYPE=%d -DHEAD_DIM=%u -DPAGE_SIZE=%u -DGROUP=%u "
                     "-DRULE=%d -DALIGNED=%d",
                     tms_bounds_dtype(p->kv.dtype), p->kv.bounds_dtype, p->kv.head_dim,
                     p->kv.page_size, group, p->group, tms_cl_bounds_aligned(dev, &p->kv));
    tms_cl_bounds_of(&l, &p->kv, b->n_rows);
    tms_cl_batch(&l, b);
    tms_cl_matrix(&l, &p->q, b->n_rows, (uint64_t)b->n_heads * p->kv.head_dim);
    tms_cl_ref(&l, p->scores, sizeof(cl_float), n);
    tms_cl_u32(&l, p->stride);
    tms_cl_u32(&l, blocks);
    return tms_cl_run_groups(&l, TMS_CL_WG_SIZE, (uint64_t)b->n_rows * blocks, b->n_kv_heads);
}

/* Full pages of a work-item of the CPU form. */
#define RUN_PAGES 256u

static tamis_status run_cpu(tms_device *dev, const tms_score_pages *p) {
    const tms_batch *b = &p->batch;
    uint32_t full = tms_batch_full_entries(b, p->kv.page_size), runs = (full + RUN_PAGES - 1) / RUN_PAGES;
    uint64_t n = (uint64_t)b->n_rows * b->n_kv_heads * p->stride;
    const uint32_t group = b->n_heads / b->n_kv_heads;
    const uint32_t ahead = *tms_settings_at(&dev->settings, TAMIS_SETTING_OF_SPARSE, p->kv.dtype,
                                            group, TAMIS_SETTING_SCORE_AHEAD);
    tms_cl_launch l =
        tms_cl_begin(dev, "score_cpu.cl", "score_pages",
                     "-DDTYPE=%d -DBOUNDS_DTYPE=%d -DHEAD_DIM=%u -DPAGE_SIZE=%u "
                     "-DGROUP=%u -DRULE=%d -DRUN_PAGES=%u -DSCORE_AHEAD=%u",
                     tms_bounds_dtype(p->kv.dtype), p->kv.bounds_dtype, p->kv.head_dim,
                     p->kv.page_size, group, p->group, RUN_PAGES, ahead);
    tms_cl_bounds_of(&l, &p->kv, b->n_rows);
    tms_cl_batch(&l, b);
    tms_cl_matrix(&l, &p->q, b->n_rows, (uint64_t)b->n_heads * p->kv.head_dim);
    tms_cl_ref(&l, p->scores, sizeof(cl_float), n);
    tms_cl_u32(&l, p->stride);
    return tms_cl_run_groups(&l, 1, (uint64_t)b->n_kv_heads * runs, b->n_rows);
}

tamis_status tms_cl_score_pages(tms_device *dev, const tms_score_pages *p) {
    bool cpu;
    tamis_status status =
        tms_cl_choose(dev, "score_pages", tms_cl_cpu_shape_refusal(&p->kv, &p->batch), &cpu);
    if (status != TAMIS_OK) return status;
    return cpu ? run_cpu(dev, p) : run_base(dev, p);
}
