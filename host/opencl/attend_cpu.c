/* SPDX-License-Identifier: Apache-2.0 */
/* attend on an OpenCL CPU device: which rows take cl_kernels/attend_cpu.cl and which
 * cl_kernels/attend_rows_cpu.cl, and their launches. */
#include "host/opencl/opencl.h"

const char *tms_cl_cpu_shape_refusal(const tms_kv *kv) {
    if (kv->head_dim != 64 && kv->head_dim != 128) return "the head dim is not 64 or 128";
    return kv->page_size != 16 ? "the page size is not 16" : NULL;
}

const char *tms_cl_attend_cpu_refusal(const tms_attend *p) {
    if (p->lists.pages.mem && p->intervals.mem) return "lists together with intervals";
    return tms_cl_cpu_shape_refusal(&p->kv);
}

static tms_cl_launch begin(tms_device *dev, const tms_attend *p, const char *file,
                           const char *kernel) {
    const tms_batch *b = &p->batch;
    tms_cl_launch l = tms_cl_begin(
        dev, file, kernel,
        "-DDTYPE=%d -DHEAD_DIM=%u -DPAGE_SIZE=%u -DGROUP=%u -DSOFT_CAP=%d -DINTERVALS=%d",
        p->kv.dtype, p->kv.head_dim, p->kv.page_size, b->n_heads / b->n_kv_heads, p->soft_cap > 0,
        p->intervals.mem != NULL);
    tms_cl_kv(&l, &p->kv);
    tms_cl_batch(&l, b);
    tms_cl_matrix(&l, &p->q, b->n_rows, (uint64_t)b->n_heads * p->kv.head_dim);
    return l;
}

/* Rows one by one: every row, or only those that are a tile of their own. */
static tamis_status run_single(tms_device *dev, const tms_attend *p, bool by_tile) {
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
    tms_cl_launch l = begin(dev, p, "attend_cpu.cl", "attend_single");
    tms_cl_optional(&l, by_tile ? b->tiles : (tms_ref){0}, sizeof(cl_int), 2ull * b->n_tiles);
    tms_cl_u32(&l, b->n_tiles);
    tms_cl_optional(&l, p->lists.pages, sizeof(cl_int), lanes * p->lists.capacity);
    tms_cl_optional(&l, p->lists.count, sizeof(cl_int), lanes);
    tms_cl_u32(&l, p->lists.capacity);
    tms_cl_f32(&l, p->scale);
    tms_cl_f32(&l, p->soft_cap);
    tms_cl_u32(&l, n_splits);
    tms_cl_matrix(&l, &out, (uint64_t)b->n_rows * n_splits, (uint64_t)b->n_heads * dim);
    tms_cl_u64(&l, states * dim);
    tms_cl_optional(&l, lse, sizeof(cl_float), states * n_splits);
    tms_cl_u64(&l, states);
    tamis_status status = tms_cl_run_groups(&l, 1, (uint64_t)b->n_kv_heads * n_splits,
                                            by_tile ? b->n_tiles : b->n_rows);
    if (status != TAMIS_OK || n_splits == 1) return status;
    return tms_cl_merge_states(dev, n_splits, b->n_rows, b->n_heads, dim, out.ref, lse, &p->out,
                               p->lse);
}

/* Tiles of more than one row, or all of them. */
static tamis_status run_tiles(tms_device *dev, const tms_attend *p, bool singles) {
    const tms_batch *b = &p->batch;
    tms_cl_launch l = begin(dev, p, "attend_rows_cpu.cl", "attend_tiles");
    tms_cl_optional(&l, b->tiles, sizeof(cl_int), 2ull * b->n_tiles);
    tms_cl_u32(&l, b->n_tiles);
    tms_cl_u32(&l, singles);
    tms_cl_optional(&l, p->positions, sizeof(cl_int), 0);
    tms_cl_optional(&l, p->intervals, sizeof(cl_int), 2ull * b->n_rows);
    tms_cl_f32(&l, p->scale);
    tms_cl_f32(&l, p->soft_cap);
    tms_cl_matrix(&l, &p->out, b->n_rows, (uint64_t)b->n_heads * p->kv.head_dim);
    tms_cl_optional(&l, p->lse, sizeof(cl_float), (uint64_t)b->n_rows * b->n_heads);
    return tms_cl_run_groups(&l, 1, b->n_heads, b->n_tiles);
}

/* A row that is a tile of its own goes the same way whatever else is in the launch. The tiles come
 * last: the merge of single rows also writes theirs, as rows that saw nothing. */
tamis_status tms_cl_attend_cpu(tms_device *dev, const tms_attend *p) {
    if (p->intervals.mem) return run_tiles(dev, p, true);
    if (p->lists.pages.mem || p->batch.max_tile_rows == 1) return run_single(dev, p, false);
    tamis_status status = run_single(dev, p, true);
    return status == TAMIS_OK ? run_tiles(dev, p, false) : status;
}
