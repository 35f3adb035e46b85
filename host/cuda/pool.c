/* SPDX-License-Identifier: Apache-2.0 */
/* pool_values on CUDA: shapes and launches of cuda_kernels/pool.cu. */
#include "host/cuda/cuda.h"

static cu_pool_args args_of(tms_cu_launch *l, const tms_pool_values *p) {
    const tms_batch *b = &p->batch;
    const uint64_t lanes = (uint64_t)b->n_rows * b->n_kv_heads, lists = lanes * p->n_lists;
    const uint32_t n = b->max_visible > p->tail ? b->max_visible - p->tail : 0;
    const uint32_t blocks = (uint32_t)tms_divide_up(n, CU_POOL_THREADS);
    return (cu_pool_args){.visible = tms_cu_ref(l, "visible", b->visible, sizeof(int32_t), lanes),
                          .x = tms_cu_ref(l, "x", p->x, sizeof(float), lists * p->stride),
                          .out = tms_cu_ref(l, "out", p->out, sizeof(float), lists * p->stride),
                          .stride = p->stride,
                          .lists = (uint32_t)lists,
                          .n_lists = p->n_lists,
                          .tail = p->tail,
                          .width = p->kernel,
                          .kind = p->kind,
                          .blocks = blocks ? blocks : 1};
}

static tamis_status run(tms_device *dev, const tms_pool_values *p, const char *kernel, bool whole) {
    tms_cu_launch l = tms_cu_begin(dev, "pool", "%s", kernel);
    const cu_pool_args args = args_of(&l, p);
    const uint64_t blocks = (uint64_t)args.lists * (whole ? 1 : args.blocks);
    return tms_cu_run(&l, (tms_cu_grid){.x = blocks, .y = 1, .z = 1, .threads = CU_POOL_THREADS},
                      &args);
}

tamis_status tms_cu_pool_values(tms_device *dev, const tms_pool_values *p) {
    tamis_status status = tms_cu_base_only(dev, "pool_values");
    if (status == TAMIS_OK) status = run(dev, p, "pool_values", false);
    return status == TAMIS_OK && p->keep_sum ? run(dev, p, "pool_values_rescale", true) : status;
}
