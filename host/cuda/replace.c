/* SPDX-License-Identifier: Apache-2.0 */
/* replace on CUDA: shape and launch of cuda_kernels/replace.cu. */
#include "host/cuda/cuda.h"

tamis_status tms_cu_replace(tms_device *dev, const tms_replace *p) {
    const tms_batch *b = &p->batch;
    const uint64_t lanes = (uint64_t)b->n_rows * b->n_kv_heads;
    tamis_status status = tms_cu_base_only(dev, "replace");
    if (status != TAMIS_OK) return status;
    tms_cu_launch l = tms_cu_begin(dev, "replace", "replace_slots");
    const cu_replace_args args = {
        .batch = tms_cu_batch(&l, b),
        .plane = tms_cu_reached(&l, "plane of positions", p->planes.positions, sizeof(int32_t),
                                b->n_rows),
        .scores =
            tms_cu_optional(&l, "plane of scores", p->planes.scores, sizeof(float), b->n_rows != 0),
        .turns = tms_cu_ref(&l, "turns", p->turns, sizeof(int32_t), lanes),
        .slots = tms_cu_ref(&l, "slots", p->slots, sizeof(int32_t), lanes),
        .changed = tms_cu_ref(&l, "changed", p->changed, sizeof(int32_t), lanes),
        .positions = tms_cu_ref(&l, "positions", p->positions, sizeof(int32_t), b->n_rows),
        .page_size = p->kv.page_size,
        .sinks = p->sinks,
        .recent = p->recent,
        .lifetime = p->lifetime && p->planes.scores.mem,
    };
    const tms_cu_grid grid = {.x = lanes, .y = 1, .z = 1, .threads = CU_REPLACE_THREADS};
    return tms_cu_run(&l, grid, &args);
}
