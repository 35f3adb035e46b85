/* SPDX-License-Identifier: Apache-2.0 */
/* value_score and value_norm on CUDA: shapes and launches of cuda_kernels/value.cu. */
#include "host/cuda/cuda.h"

static uint64_t owners_of(const tms_batch *b) {
    return (uint64_t)b->n_rows * b->n_kv_heads;
}

/* ---- value_score ----------------------------------------------------------------------------- */

/* Elements of scratch: sums [item][KV head][block][list][head_dim], then y without the blocks. */
typedef struct sums {
    uint32_t blocks;
    uint64_t n_parts, n_y;
} sums;

static sums sums_of(const tms_value_score *p) {
    const uint32_t blocks = (uint32_t)tms_divide_up(p->batch.max_visible, CU_SUM_SLOTS);
    sums s = {.blocks = blocks ? blocks : 1,
              .n_y = owners_of(&p->batch) * p->n_lists * p->kv.head_dim};
    s.n_parts = s.n_y * s.blocks;
    return s;
}

uint64_t tms_cu_value_score_scratch(tms_device *dev, const tms_value_score *p) {
    const sums s = sums_of(p);
    (void)dev;
    return (s.n_parts + s.n_y) * sizeof(float);
}

/* `each`: slots of a block; the blocks of all go to *n. */
static cu_value_score_args args_of(tms_cu_launch *l, const tms_value_score *p, uint32_t each,
                                   uint64_t *n) {
    const tms_batch *b = &p->batch;
    const sums s = sums_of(p);
    const uint64_t owners = owners_of(b);
    const uint64_t scratch = tms_cu_ref(l, "scratch", p->scratch, sizeof(float), s.n_parts + s.n_y);
    return (cu_value_score_args){
        .slots = tms_cu_slots(l, &p->kv, b, true, each, n),
        .a = tms_cu_ref(l, "a", p->a, sizeof(float), owners * p->n_lists * p->stride),
        .limits = tms_cu_ref(l, "limits", p->limits, sizeof(int32_t), owners * 2),
        .parts = scratch,
        .y = scratch + s.n_parts * sizeof(float),
        .out = tms_cu_ref(l, "out", p->out, sizeof(float), owners * p->out_stride),
        .stride = p->stride,
        .out_stride = p->out_stride,
        .n_lists = p->n_lists,
        .sum_blocks = s.blocks};
}

/* Σ a·v of every list and block. */
static tamis_status run_sums(tms_device *dev, const tms_value_score *p) {
    const uint64_t tasks = tms_divide_up(p->n_lists, CU_VALUE_LISTS) * (p->kv.head_dim / 8);
    uint64_t n;
    tms_cu_launch l =
        tms_cu_begin(dev, "value", "value_score_sums_%s", tms_cu_value_tag(p->kv.dtype));
    const cu_value_score_args args = args_of(&l, p, CU_SUM_SLOTS, &n);
    return tms_cu_run(&l,
                      (tms_cu_grid){.x = n,
                                    .y = tms_divide_up(tasks, CU_VALUE_THREADS),
                                    .z = 1,
                                    .threads = CU_VALUE_THREADS},
                      &args);
}

static tamis_status run_join(tms_device *dev, const tms_value_score *p) {
    uint64_t n;
    tms_cu_launch l = tms_cu_begin(dev, "value", "value_score_join");
    const cu_value_score_args args = args_of(&l, p, CU_SUM_SLOTS, &n);
    return tms_cu_run(&l, tms_cu_items(sums_of(p).n_y, CU_VALUE_THREADS), &args);
}

static tamis_status run_slots(tms_device *dev, const tms_value_score *p) {
    uint64_t n;
    tms_cu_launch l =
        tms_cu_begin(dev, "value", "value_score_slots_%s", tms_cu_value_tag(p->kv.dtype));
    const cu_value_score_args args = args_of(&l, p, CU_VALUE_SLOTS, &n);
    return tms_cu_run(&l, (tms_cu_grid){.x = n, .y = 1, .z = 1, .threads = CU_VALUE_THREADS},
                      &args);
}

tamis_status tms_cu_value_score(tms_device *dev, const tms_value_score *p) {
    tamis_status status = tms_cu_base_only(dev, "value_score");
    if (status == TAMIS_OK) status = run_sums(dev, p);
    if (status == TAMIS_OK) status = run_join(dev, p);
    return status == TAMIS_OK ? run_slots(dev, p) : status;
}

/* ---- value_norm ------------------------------------------------------------------------------ */

static cu_value_norm_args norm_args(tms_cu_launch *l, const tms_value_norm *p, uint32_t each,
                                    uint64_t *n) {
    const tms_batch *b = &p->batch;
    const bool projected = p->kind == TMS_VALUE_L1_PROJECTED;
    const uint64_t width = (uint64_t)b->n_heads * p->kv.head_dim;
    const uint64_t reached = projected && b->n_rows ? (p->n_out - 1) * p->w_stride + width : 0;
    return (cu_value_norm_args){
        .slots = tms_cu_slots(l, &p->kv, b, true, each, n),
        .w = projected ? tms_cu_ref(l, "w", p->w, tamis_dtype_size(p->w_dtype), reached) : 0,
        .out = tms_cu_ref(l, "out", p->out, sizeof(float), owners_of(b) * p->out_stride),
        .w_stride = p->w_stride,
        .out_stride = p->out_stride,
        .n_out = p->n_out,
        .w_dtype = p->w_dtype};
}

static tamis_status run_l2(tms_device *dev, const tms_value_norm *p) {
    uint64_t n;
    tms_cu_launch l = tms_cu_begin(dev, "value", "value_norm_l2_%s", tms_cu_value_tag(p->kv.dtype));
    const cu_value_norm_args args = norm_args(&l, p, CU_ROWS_SLOTS, &n);
    return tms_cu_run(&l, (tms_cu_grid){.x = n, .y = 1, .z = 1, .threads = CU_ROWS_THREADS}, &args);
}

static tamis_status run_projected(tms_device *dev, const tms_value_norm *p) {
    const uint32_t slots = CU_PROJECT_SLOTS(p->kv.head_dim);
    uint64_t n;
    tms_cu_launch l = tms_cu_begin(dev, "value", "value_norm_projected_s%u", slots);
    const cu_value_norm_args args = norm_args(&l, p, slots, &n);
    return tms_cu_run_projected(&l, n, p->kv.head_dim, &args);
}

tamis_status tms_cu_value_norm(tms_device *dev, const tms_value_norm *p) {
    tamis_status status = tms_cu_base_only(dev, "value_norm");
    if (status != TAMIS_OK) return status;
    return p->kind == TMS_VALUE_L2 ? run_l2(dev, p) : run_projected(dev, p);
}
