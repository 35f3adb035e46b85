/* SPDX-License-Identifier: Apache-2.0 */
/* The probes on CUDA, by the kernels of cuda_kernels/probe.cu: the best read bandwidth of several
 * kernels and grids, and the pages of lanes. */
#include "host/cuda/cuda.h"
#include <stdlib.h>

#define RUNS    7
#define THREADS 256u
#define VECTOR  16u /* bytes that a thread reads at once */

/* A shape of the probe: vectors that a thread loads at once, blocks for each compute unit. */
typedef struct probe_form {
    uint32_t ahead, blocks;
} probe_form;

static tamis_status read_once(tms_device *dev, probe_form form, tms_ref from, uint64_t bytes,
                              tms_ref sink) {
    tms_cu_launch l = tms_cu_begin(dev, "probe", "read_lanes_%u", form.ahead);
    const cu_probe_args args = {
        .from = tms_cu_ref(&l, "memory to read", from, VECTOR, bytes / VECTOR),
        .sink = tms_cu_ref(&l, "sink", sink, sizeof(uint32_t), 1),
        .n = bytes / VECTOR,
    };
    const uint64_t blocks = (uint64_t)form.blocks * dev->info.compute_units;
    return tms_cu_run(&l, (tms_cu_grid){.x = blocks, .threads = THREADS}, &args);
}

static tamis_status timed(tms_device *dev, probe_form form, tms_ref from, uint64_t bytes,
                          tms_ref sink, double *us) {
    tms_event *begin = NULL, *end = NULL;
    tamis_status status = tms_cu_event_record(dev, true, &begin);
    if (status == TAMIS_OK) status = read_once(dev, form, from, bytes, sink);
    if (status == TAMIS_OK) status = tms_cu_event_record(dev, true, &end);
    if (status == TAMIS_OK) status = tms_cu_event_elapsed(dev, begin, end, us);
    tms_cu_event_free(dev, begin);
    tms_cu_event_free(dev, end);
    return status;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of RUNS runs after one that warms up. */
static tamis_status median(tms_device *dev, probe_form form, tms_ref from, uint64_t bytes,
                           tms_ref sink, double *us) {
    double samples[RUNS + 1];
    for (int i = 0; i <= RUNS; i++) {
        tamis_status status = timed(dev, form, from, bytes, sink, &samples[i]);
        if (status != TAMIS_OK) return status;
    }
    qsort(samples + 1, RUNS, sizeof *samples, ascending);
    *us = samples[1 + RUNS / 2];
    return TAMIS_OK;
}

tamis_status tms_cu_read_bandwidth(tms_device *dev, tms_ref from, uint64_t bytes,
                                   double *gb_per_s) {
    static const probe_form forms[] = {{4, 8}, {4, 16}, {4, 32}, {8, 8}, {8, 16}};
    tms_mem *sink;
    tamis_status status = tms_cu_alloc(dev, sizeof(uint32_t), &sink);
    if (status != TAMIS_OK) return status;
    *gb_per_s = 0;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        double us, rate;
        status = median(dev, forms[i], from, bytes, (tms_ref){sink, 0}, &us);
        if (status != TAMIS_OK) break;
        rate = (double)(bytes / VECTOR * VECTOR) / us / 1e3;
        if (rate > *gb_per_s) *gb_per_s = rate;
    }
    tms_cu_free(dev, sink);
    return status;
}

/* ---- Pages ----------------------------------------------------------------------------------- */

#define PAGE_THREADS 128u
#define PAGE_BLOCKS  16u /* for each compute unit */

tamis_status tms_cu_read_pages(tms_device *dev, const tms_page_read *p) {
    const uint64_t unit = tms_kv_unit(p->kv.dtype);
    const uint64_t keys = tms_key_bytes(p->kv.dtype, p->kv.page_size, p->kv.head_dim);
    const uint64_t values = tms_value_bytes(p->kv.dtype, p->kv.page_size, p->kv.head_dim);
    const uint64_t pages = (uint64_t)p->n_lanes * p->max_pages;
    const uint64_t blocks = (uint64_t)PAGE_BLOCKS * dev->info.compute_units;
    tms_cu_launch l = tms_cu_begin(dev, "probe", "read_pages");
    const cu_page_read_args args = {
        .kv = tms_cu_reached(&l, "kv", p->kv.data, VECTOR, p->n_lanes),
        .table = tms_cu_ref(&l, "table", p->table, 4, (uint64_t)p->n_lanes * p->capacity),
        .count = tms_cu_ref(&l, "count", p->count, 4, p->n_lanes),
        .sink = tms_cu_ref(&l, "sink", p->sink, 4, 1),
        .page_stride = p->kv.page_stride * unit,
        .value_offset = p->kv.value_offset * unit,
        .n_lanes = p->n_lanes,
        .capacity = p->capacity,
        .max_pages = p->max_pages,
        .k_vectors = (uint32_t)(keys / VECTOR),
        .v_vectors = (uint32_t)(values / VECTOR),
    };
    return tms_cu_run(
        &l, (tms_cu_grid){.x = pages < blocks ? pages : blocks, .threads = PAGE_THREADS}, &args);
}

bool tms_cu_orders_pages(tms_device *dev) {
    (void)dev;
    return false;
}
