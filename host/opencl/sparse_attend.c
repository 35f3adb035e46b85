/* SPDX-License-Identifier: Apache-2.0 */
/* sparse_attend on an OpenCL CPU device: which cases it takes, and the launch of
 * cl_kernels/sparse_attend_cpu.cl. */
#include "host/opencl/opencl.h"

/* Bytes that a core reads in about the time of two launches. */
#define LAUNCHES_BYTES (128u << 10)

/* Whether three launches are faster. A core selects and attends a whole lane either way, up to
 * TMS_CL_SPLIT_PAGES; in a launch of its own only the scoring of a lane is divided among cores.
 * This gains at most what cores that have no lane could read of bounds, and costs two launches
 * more. */
static bool is_worth_dividing(const tms_device *dev, const tms_sparse_attend *p, uint64_t lanes) {
    const tms_kv *kv = &p->score.kv;
    const uint64_t cores = dev->info.compute_units;
    const uint64_t idle = tms_divide_up(lanes, cores) * cores - lanes;
    const uint64_t pages = p->attend.batch.max_visible / kv->page_size;
    const uint64_t bytes = idle * pages * 2 * kv->head_dim * tamis_dtype_size(kv->dtype) / cores;
    return lanes < 2 * cores && bytes > LAUNCHES_BYTES;
}

const char *tms_cl_sparse_attend_refusal(tms_device *dev, const tms_sparse_attend *p) {
    const tms_batch *b = &p->attend.batch;
    uint64_t lanes = (uint64_t)b->n_rows * b->n_kv_heads;
    if (!tms_cl(dev)->cpu) return "the device is not a CPU";
    if (dev->form == TMS_FORM_BASE) return "there is no base form";
    if (dev->form == TMS_FORM_AUTO && dev->base_only) return dev->base_only;
    if (p->attend.intervals.mem) return "rows with intervals";
    if (p->attend.logits.mem) return "logits are asked for";
    if (p->attend.max_pages > TMS_CL_SPLIT_PAGES) return "lists of more than one split";
    if (!p->score.scores.mem) return "there are no scores";
    if (tms_select_is_wide(&p->select)) return "a wide selection";
    if (p->select.granularity != p->attend.kv.page_size) return "entries that are not pages";
    const char *refusal = tms_cl_cpu_shape_refusal(&p->attend.kv);
    if (refusal || dev->form != TMS_FORM_AUTO || lanes == 0) return refusal;
    return is_worth_dividing(dev, p, lanes) ? "too few lanes for the cores" : NULL;
}

tamis_status tms_cl_sparse_attend(tms_device *dev, const tms_sparse_attend *p) {
    const tms_attend *a = &p->attend;
    const tms_select *s = &p->select;
    const tms_batch *b = &a->batch;
    uint64_t lanes = (uint64_t)b->n_rows * b->n_kv_heads;
    uint64_t width = (uint64_t)b->n_heads * a->kv.head_dim;
    tms_cl_launch l =
        tms_cl_begin(dev, "sparse_attend_cpu.cl", "sparse_attend",
                     "-DDTYPE=%d -DHEAD_DIM=%u -DPAGE_SIZE=%u -DGROUP=%u -DSOFT_CAP=%d -DRULE=%d"
                     "%s",
                     a->kv.dtype, a->kv.head_dim, a->kv.page_size, b->n_heads / b->n_kv_heads,
                     a->soft_cap > 0, p->score.group, tms_cl_shape(dev));
    tms_cl_kv(&l, &a->kv, b->n_rows);
    tms_cl_bounds_of(&l, &p->score.kv, b->n_rows);
    tms_cl_batch(&l, b);
    tms_cl_matrix(&l, &a->q, b->n_rows, width);
    tms_cl_ref(&l, p->score.scores, sizeof(cl_float), lanes * p->score.stride);
    tms_cl_u32(&l, p->score.stride);
    tms_cl_u32(&l, s->k);
    tms_cl_u32(&l, s->sinks);
    tms_cl_u32(&l, s->recent);
    tms_cl_ref(&l, s->lists.pages, sizeof(cl_int), lanes * s->lists.capacity);
    tms_cl_ref(&l, s->lists.count, sizeof(cl_int), lanes);
    tms_cl_u32(&l, s->lists.capacity);
    tms_cl_f32(&l, a->scale);
    tms_cl_f32(&l, a->soft_cap);
    tms_cl_matrix(&l, &a->out, b->n_rows, width);
    tms_cl_optional(&l, a->lse, sizeof(cl_float), lanes * (b->n_heads / b->n_kv_heads));
    return tms_cl_run_queue(&l, (uint64_t)b->n_kv_heads * b->n_rows);
}
