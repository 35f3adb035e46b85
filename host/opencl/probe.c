/* SPDX-License-Identifier: Apache-2.0 */
/* The probes on OpenCL, by the kernels of cl_kernels/probe.cl or probe_cpu.cl: the best read
 * bandwidth, and the pages of lanes. */
#include "host/opencl/opencl.h"
#include <stdlib.h>

#define RUNS        7
#define BLOCK_BYTES 64u
/* Work-items of a run for each core: enough for an even share of the work. */
#define RUNS_A_CORE 8u
#define GPU_GROUPS  4096u

/* A kernel of the probe: streams == 0 is read_strided, else read_run with these constants. */
typedef struct probe_form {
    uint32_t streams, ahead;
} probe_form;

/* Work-items of read_run: at least 8 blocks for each, one for each of up to 8 streams. */
static uint64_t runs_of(const tms_device *dev, uint64_t blocks) {
    uint64_t runs = (uint64_t)RUNS_A_CORE * dev->info.compute_units;
    return runs < blocks / 8 ? runs : blocks / 8;
}

static tamis_status read_once(tms_device *dev, probe_form form, tms_ref from, uint64_t blocks,
                              tms_ref sink) {
    tms_cl_launch l = form.streams
                          ? tms_cl_begin(dev, "probe_cpu.cl", "read_run", "-DSTREAMS=%u -DAHEAD=%u",
                                         form.streams, form.ahead)
                          : tms_cl_begin(dev, "probe.cl", "read_strided", "-DDTYPE=0");
    tms_cl_ref(&l, from, sizeof(cl_uint), blocks * (BLOCK_BYTES / sizeof(cl_uint)));
    tms_cl_u64(&l, blocks);
    tms_cl_ref(&l, sink, sizeof(cl_uint), 1);
    return form.streams ? tms_cl_run_groups(&l, 1, runs_of(dev, blocks), 1)
                        : tms_cl_run_groups(&l, TMS_CL_WG_SIZE, GPU_GROUPS, 1);
}

static tamis_status timed(tms_device *dev, probe_form form, tms_ref from, uint64_t blocks,
                          tms_ref sink, double *us) {
    tms_event *begin = NULL, *end = NULL;
    tamis_status status = tms_cl_event_record(dev, true, &begin);
    if (status == TAMIS_OK) status = read_once(dev, form, from, blocks, sink);
    if (status == TAMIS_OK) status = tms_cl_event_record(dev, true, &end);
    if (status == TAMIS_OK) status = tms_cl_event_elapsed(dev, begin, end, us);
    tms_cl_event_free(dev, begin);
    tms_cl_event_free(dev, end);
    return status;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of RUNS runs after one that warms up. */
static tamis_status median(tms_device *dev, probe_form form, tms_ref from, uint64_t blocks,
                           tms_ref sink, double *us) {
    double samples[RUNS + 1];
    for (int i = 0; i <= RUNS; i++) {
        tamis_status status = timed(dev, form, from, blocks, sink, &samples[i]);
        if (status != TAMIS_OK) return status;
    }
    qsort(samples + 1, RUNS, sizeof *samples, ascending);
    *us = samples[1 + RUNS / 2];
    return TAMIS_OK;
}

tamis_status tms_cl_read_bandwidth(tms_device *dev, tms_ref from, uint64_t bytes,
                                   double *gb_per_s) {
    static const probe_form forms[] = {{0, 0}, {1, 0}, {4, 0}, {4, 64}, {8, 0}};
    size_t first = tms_cl(dev)->cpu ? 1 : 0,
           end = tms_cl(dev)->cpu ? sizeof forms / sizeof *forms : 1;
    /* A multiple of `unit`, so that runs have equal length in every form. */
    uint64_t blocks = bytes / BLOCK_BYTES, unit = 8 * runs_of(dev, blocks);
    blocks = blocks / unit * unit;
    tms_mem *sink;
    tamis_status status = tms_cl_alloc(dev, BLOCK_BYTES, &sink);
    *gb_per_s = 0;
    for (size_t i = first; i < end && status == TAMIS_OK; i++) {
        double us, rate;
        status = median(dev, forms[i], from, blocks, (tms_ref){sink, 0}, &us);
        if (status != TAMIS_OK) break;
        rate = (double)(blocks * BLOCK_BYTES) / us / 1e3;
        if (rate > *gb_per_s) *gb_per_s = rate;
    }
    tms_cl_free(dev, sink);
    return status;
}

/* ---- Pages ----------------------------------------------------------------------------------- */

static uint32_t key_bytes(const tms_kv *kv) {
    return (uint32_t)tms_key_bytes(kv->dtype, kv->page_size, kv->head_dim);
}
static uint32_t value_bytes(const tms_kv *kv) {
    return (uint32_t)tms_value_bytes(kv->dtype, kv->page_size, kv->head_dim);
}

/* Bytes of a row of K as far as whole cache lines go, and one line of several short ones. */
static uint32_t row_bytes(const tms_kv *kv) {
    const uint32_t bytes = tms_row_size(tms_key_dtype(kv->dtype), kv->head_dim) *
                           (uint32_t)tms_kv_unit(kv->dtype);
    return bytes < BLOCK_BYTES ? BLOCK_BYTES : bytes / BLOCK_BYTES * BLOCK_BYTES;
}

static void page_args(tms_cl_launch *l, const tms_page_read *p) {
    const uint64_t unit = tms_kv_unit(p->kv.dtype);
    tms_cl_reached(l, p->kv.data, 1, p->n_lanes);
    tms_cl_u64(l, p->kv.page_stride * unit);
    tms_cl_u64(l, p->kv.value_offset * unit);
    tms_cl_ref(l, p->table, sizeof(cl_int), (uint64_t)p->n_lanes * p->capacity);
    tms_cl_ref(l, p->count, sizeof(cl_int), p->n_lanes);
    tms_cl_u32(l, p->capacity);
}

/* The splits and pieces are those of attend_cpu.c. */
static tamis_status read_pages_cpu(tms_device *dev, const tms_page_read *p) {
    const uint64_t splits = tms_divide_up(p->max_pages, TMS_CL_SPLIT_PAGES);
    const tms_cl_pieces pieces = tms_cl_pieces_of(dev, p->n_lanes * splits, p->max_pages);
    tms_cl_launch l =
        tms_cl_begin(dev, "probe_cpu.cl", "read_pages", "-DK_BYTES=%u -DV_BYTES=%u -DROW=%u",
                     key_bytes(&p->kv), value_bytes(&p->kv), row_bytes(&p->kv));
    page_args(&l, p);
    tms_cl_u32(&l, p->reading);
    tms_cl_u32(&l, p->ahead);
    tms_cl_u32(&l, p->n_lanes);
    tms_cl_u32(&l, pieces.n);
    tms_cl_u32(&l, pieces.n > 1 ? pieces.segments * TMS_CL_SEGMENT_PAGES : TMS_CL_SPLIT_PAGES);
    tms_cl_ref(&l, p->sink, sizeof(cl_uint), 1);
    return tms_cl_run_queue(&l, p->n_lanes * splits * pieces.n);
}

/* Groups stride over all pages. */
static tamis_status read_pages_gpu(tms_device *dev, const tms_page_read *p) {
    const uint64_t pages = (uint64_t)p->n_lanes * p->max_pages;
    tms_cl_launch l = tms_cl_begin(dev, "probe.cl", "read_pages", "-DDTYPE=0");
    page_args(&l, p);
    tms_cl_u32(&l, p->n_lanes);
    tms_cl_u32(&l, p->max_pages);
    tms_cl_u32(&l, key_bytes(&p->kv) / 16);
    tms_cl_u32(&l, value_bytes(&p->kv) / 16);
    tms_cl_ref(&l, p->sink, sizeof(cl_uint), 1);
    return tms_cl_run_groups(&l, TMS_CL_WG_SIZE, pages < GPU_GROUPS ? pages : GPU_GROUPS, 1);
}

bool tms_cl_orders_pages(tms_device *dev) {
    return tms_cl(dev)->cpu && dev->form != TMS_FORM_BASE;
}

tamis_status tms_cl_read_pages(tms_device *dev, const tms_page_read *p) {
    return tms_cl_orders_pages(dev) ? read_pages_cpu(dev, p) : read_pages_gpu(dev, p);
}
