/* SPDX-License-Identifier: Apache-2.0 */
/* score_pages on CUDA: shape and launch of cuda_kernels/score.cu. */
#include "host/cuda/selection.h"

/* Blocks that a multiprocessor has at once (KERNEL_TWICE). */
#define BLOCKS_AT_ONCE 2u
/* Blocks per lane if there are more lanes than blocks at once. */
#define OF_MANY_LANES 4u
/* Least pages per block. */
#define FEWEST_PAGES 32u

/* Blocks per lane. In all there are as many as run at once: they wait for memory together once, not
 * wave after wave, and share its bandwidth. With many lanes there are several waves, in which
 * blocks that begin or select overlap with blocks that read. */
static uint32_t blocks_of(const tms_device *dev, const tms_score_pages *p) {
    const uint64_t lanes = (uint64_t)p->batch.n_rows * p->batch.n_kv_heads;
    const uint64_t at_once = (uint64_t)BLOCKS_AT_ONCE * dev->info.compute_units;
    /* Of more lanes than that the last ones do not make a wave of whole lanes. */
    const uint64_t each = lanes > at_once ? OF_MANY_LANES : at_once / (lanes ? lanes : 1);
    const uint64_t worth =
        tms_divide_up(tms_batch_full_entries(&p->batch, p->kv.page_size), FEWEST_PAGES);
    const uint64_t blocks = worth < each ? worth : each;
    return blocks ? (uint32_t)blocks : 1;
}

cu_score_args tms_cu_score_args(tms_cu_launch *l, const tms_score_pages *p) {
    const tms_batch *b = &p->batch;
    const uint64_t n = (uint64_t)b->n_rows * b->n_kv_heads * p->stride;
    return (cu_score_args){
        .kv = tms_cu_kv(l, &p->kv, 0),
        .bounds = tms_cu_bounds_of(l, &p->kv, b->n_rows),
        .batch = tms_cu_batch(l, b),
        .q = tms_cu_matrix(l, "q", &p->q, b->n_rows, (uint64_t)b->n_heads * p->kv.head_dim),
        .scores = tms_cu_ref(l, "scores", p->scores, sizeof(float), n),
        .stride = p->stride,
        .rule = p->group,
        .blocks = blocks_of(l->dev, p),
    };
}

uint32_t tms_cu_score_tag(const tms_score_pages *p) {
    const bool large = p->batch.n_heads / p->batch.n_kv_heads > CU_SCORE_GROUP;
    return large ? CU_ANY_DIM : tms_cu_dim_tag(p->kv.head_dim);
}

uint32_t tms_cu_score_shared(const tms_score_pages *p) {
    const uint32_t group = p->batch.n_heads / p->batch.n_kv_heads;
    const bool any = tms_cu_score_tag(p) == CU_ANY_DIM;
    const uint32_t heads = any && group > CU_SCORE_HEADS ? CU_SCORE_HEADS : group;
    return 2 * heads * p->kv.head_dim * (uint32_t)sizeof(float);
}

tamis_status tms_cu_score_pages(tms_device *dev, const tms_score_pages *p) {
    tamis_status status = tms_cu_base_only(dev, "score_pages");
    if (status != TAMIS_OK) return status;
    tms_cu_launch l = tms_cu_begin(dev, "score", "score_pages_%s_d%u",
                                   tamis_dtype_name(p->kv.bounds_dtype), tms_cu_score_tag(p));
    const cu_score_args args = tms_cu_score_args(&l, p);
    const tms_cu_grid grid = {.x = (uint64_t)p->batch.n_rows * args.blocks,
                              .y = p->batch.n_kv_heads,
                              .z = 1,
                              .threads = CU_SCORE_THREADS,
                              .shared = tms_cu_score_shared(p)};
    return tms_cu_run(&l, grid, &args);
}
