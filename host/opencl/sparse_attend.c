/* SPDX-License-Identifier: Apache-2.0 */
/* sparse_attend on an OpenCL CPU device: which cases it takes, and the launch of
 * cl_kernels/sparse_attend_cpu.cl. */
#include "host/opencl/opencl.h"

/* A run of pages that is scored by one core has at least so many, a multiple of the pages that the
 * kernel scores together. */
#define RUN_PAGES   64u
#define RUNS_A_CORE 4u

/* Runs of a lane's pages that are scored one by one; 0 if lanes stay whole. */
typedef struct score_runs {
    uint32_t n, pages;
} score_runs;

static score_runs runs_of(const tms_device *dev, const tms_sparse_attend *p, uint64_t lanes) {
    const uint32_t cores = dev->info.compute_units;
    const uint64_t pages = tms_batch_entries(&p->attend.batch, p->score.kv.page_size);
    if (lanes == 0 || lanes > tms_cl_most_shared_lanes(cores)) return (score_runs){0};
    const uint64_t least = tms_divide_up(pages, tms_divide_up(RUNS_A_CORE * cores, lanes));
    const uint32_t run = (uint32_t)tms_divide_up(least, RUN_PAGES) * RUN_PAGES;
    return run ? (score_runs){(uint32_t)tms_divide_up(pages, run), run}
               : (score_runs){1, RUN_PAGES};
}

const char *tms_cl_sparse_attend_refusal(tms_device *dev, const tms_sparse_attend *p) {
    const char *refusal = tms_cl_no_cpu_form(dev);
    if (refusal) return refusal;
    if (p->attend.logits.mem) return "logits are asked for";
    if (p->attend.max_pages > TMS_CL_SPLIT_PAGES) return "lists of more than one split";
    if (!p->score.scores.mem) return "there are no scores";
    if (tms_select_is_wide(&p->select)) return "a wide selection";
    if (p->select.granularity != p->attend.kv.page_size) return "entries that are not pages";
    return tms_cl_attend_cpu_refusal(&p->attend);
}

/* write: rows that are written first, or NULL. */
static tamis_status launch(tms_device *dev, const tms_sparse_attend *p,
                           const tms_write_rotated *write) {
    const tms_attend *a = &p->attend;
    const tms_select *s = &p->select;
    const tms_batch *b = &a->batch;
    uint64_t lanes = (uint64_t)b->n_rows * b->n_kv_heads;
    uint64_t width = (uint64_t)b->n_heads * a->kv.head_dim;
    tms_cl_launch l = tms_cl_begin(
        dev, "sparse_attend_cpu.cl", "sparse_attend",
        "-DDTYPE=%d -DBOUNDS_DTYPE=%d -DHEAD_DIM=%u -DPAGE_SIZE=%u "
        "-DGROUP=%u -DRULE=%d -DHIDING=%d%s%s%s%s%s",
        a->kv.dtype, p->score.kv.bounds_dtype, a->kv.head_dim, a->kv.page_size,
        b->n_heads / b->n_kv_heads, p->score.group, b->first.mem != NULL,
        write ? " -DWRITES=1" : "", tms_cl_layout_option(&a->kv), tms_cl_logit_option(&a->logit),
        tms_cl_shape(dev),
        tms_cl_settings(dev, TAMIS_SETTING_OF_SPARSE, &a->kv, b->n_heads / b->n_kv_heads));
    tms_cl_gather(&l);
    tms_cl_kv(&l, &a->kv, b->n_rows);
    tms_cl_bounds_of(&l, &p->score.kv, b->n_rows);
    tms_cl_batch(&l, b);
    tms_cl_matrix(&l, &a->q, b->n_rows, width);
    if (write) tms_cl_own_rows(&l, write);
    tms_cl_ref(&l, p->score.scores, sizeof(cl_float), lanes * p->score.stride);
    tms_cl_u32(&l, p->score.stride);
    tms_cl_u32(&l, s->k);
    tms_cl_u32(&l, s->sinks);
    tms_cl_u32(&l, s->recent);
    tms_cl_ref(&l, s->lists.pages, sizeof(cl_int), lanes * s->lists.capacity);
    tms_cl_ref(&l, s->lists.count, sizeof(cl_int), lanes);
    tms_cl_u32(&l, s->lists.capacity);
    tms_cl_logit(&l, &a->logit);
    tms_cl_matrix(&l, &a->out, b->n_rows, width);
    tms_cl_optional(&l, a->lse, sizeof(cl_float), lanes * (b->n_heads / b->n_kv_heads));
    const score_runs runs = runs_of(dev, p, lanes);
    const tms_cl_pieces pieces = tms_cl_pieces_of(dev, lanes, a->max_pages);
    tms_cl_u32(&l, runs.n);
    tms_cl_u32(&l, runs.pages);
    tms_cl_attend_pieces(&l, a, lanes, &pieces, a->scratch);
    return tms_cl_run_queue(&l, lanes * (runs.n + pieces.n));
}

tamis_status tms_cl_sparse_attend(tms_device *dev, const tms_sparse_attend *p) {
    return launch(dev, p, NULL);
}

const char *tms_cl_write_sparse_attend_refusal(tms_device *dev, const tms_write_sparse_attend *p) {
    return tms_cl_sparse_attend_refusal(dev, &p->sparse);
}

tamis_status tms_cl_write_sparse_attend(tms_device *dev, const tms_write_sparse_attend *p) {
    return launch(dev, &p->sparse, &p->write);
}
