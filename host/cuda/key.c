/* SPDX-License-Identifier: Apache-2.0 */
/* key_score on CUDA: shapes and launches of cuda_kernels/key.cu. */
#include "host/cuda/cuda.h"

static uint64_t owners_of(const tms_key_score *p) {
    return (uint64_t)p->batch.n_rows * p->batch.n_kv_heads;
}

/* Elements of scratch: sums of directions [item][KV head][block][head_dim], then the means without
 * the blocks. */
typedef struct directions {
    uint32_t blocks;
    uint64_t n_sums, n_means;
} directions;

static directions directions_of(const tms_key_score *p) {
    const uint32_t blocks = (uint32_t)tms_divide_up(p->batch.max_visible, CU_SUM_SLOTS);
    directions d = {.blocks = blocks ? blocks : 1, .n_means = owners_of(p) * p->kv.head_dim};
    d.n_sums = d.n_means * d.blocks;
    return d;
}

uint64_t tms_cu_key_score_scratch(tms_device *dev, const tms_key_score *p) {
    const directions d = directions_of(p);
    (void)dev;
    return p->kind == TMS_KEY_COSINE ? (d.n_sums + d.n_means) * sizeof(float) : 0;
}

/* `each`: slots of a block; the blocks of all go to *n. */
static cu_key_score_args args_of(tms_cu_launch *l, const tms_key_score *p, uint32_t each,
                                 uint64_t *n) {
    const directions d = directions_of(p);
    const uint64_t dim = p->kv.head_dim, statistics = p->batch.n_rows ? p->batch.n_heads * dim : 0;
    const uint64_t scratch =
        p->kind == TMS_KEY_COSINE
            ? tms_cu_ref(l, "scratch", p->scratch, sizeof(float), d.n_sums + d.n_means)
            : 0;
    cu_key_score_args args = {
        .slots = tms_cu_slots(l, &p->kv, &p->batch, false, each, n),
        .sums = scratch,
        .means = scratch + d.n_sums * sizeof(float),
        .out = tms_cu_ref(l, "out", p->out, sizeof(float), owners_of(p) * p->out_stride),
        .out_stride = p->out_stride,
        .scale = p->scale,
        .sum_blocks = d.blocks};
    if (p->kind != TMS_KEY_QUADRATIC) return args;
    args.mu = tms_cu_ref(l, "mu", p->mu, sizeof(float), statistics);
    args.cov = tms_cu_ref(l, "cov", p->cov, sizeof(float), statistics * dim);
    return args;
}

/* A kernel that takes the cache's dtype, of which a block has `each` slots. */
static tamis_status run(tms_device *dev, const tms_key_score *p, const char *kernel,
                        uint32_t each) {
    uint64_t n;
    tms_cu_launch l = tms_cu_begin(dev, "key", "%s_%s", kernel, tms_cu_key_tag(p->kv.dtype));
    const cu_key_score_args args = args_of(&l, p, each, &n);
    return tms_cu_run(&l, (tms_cu_grid){.x = n, .y = 1, .z = 1, .threads = CU_ROWS_THREADS}, &args);
}

static tamis_status run_mean(tms_device *dev, const tms_key_score *p) {
    uint64_t n;
    tms_cu_launch l = tms_cu_begin(dev, "key", "key_score_mean");
    const cu_key_score_args args = args_of(&l, p, CU_SUM_SLOTS, &n);
    return tms_cu_run(
        &l, (tms_cu_grid){.x = owners_of(p), .y = 1, .z = 1, .threads = CU_ROWS_THREADS}, &args);
}

static tamis_status run_quadratic(tms_device *dev, const tms_key_score *p) {
    const uint32_t slots = CU_PROJECT_SLOTS(p->kv.head_dim);
    uint64_t n;
    tms_cu_launch l = tms_cu_begin(dev, "key", "key_score_quadratic_s%u", slots);
    const cu_key_score_args args = args_of(&l, p, slots, &n);
    return tms_cu_run_projected(&l, n, p->kv.head_dim, &args);
}

tamis_status tms_cu_key_score(tms_device *dev, const tms_key_score *p) {
    tamis_status status = tms_cu_base_only(dev, "key_score");
    if (status != TAMIS_OK) return status;
    if (p->kind == TMS_KEY_NORM) return run(dev, p, "key_score_norm", CU_ROWS_SLOTS);
    if (p->kind == TMS_KEY_QUADRATIC) return run_quadratic(dev, p);
    status = run(dev, p, "key_score_directions", CU_SUM_SLOTS);
    if (status == TAMIS_OK) status = run_mean(dev, p);
    return status == TAMIS_OK ? run(dev, p, "key_score_cosine", CU_ROWS_SLOTS) : status;
}
