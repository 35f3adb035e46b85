/* SPDX-License-Identifier: Apache-2.0 */
/* score_rows on CUDA: shapes and launches of cuda_kernels/score_rows.cu. */
#include "host/cuda/cuda.h"

tamis_status tms_cu_score_rows(tms_device *dev, const tms_score_rows *p) {
    tamis_status status = tms_cu_base_only(dev, "score_rows");
    if (status != TAMIS_OK) return status;
    const uint64_t n = (uint64_t)p->batch.n_rows * p->batch.n_kv_heads;
    tms_cu_launch l = tms_cu_begin(dev, "score_rows", "score_rows_%s", tms_cu_key_tag(p->kv.dtype));
    const cu_score_rows_args args = {
        .rows = {.kv = tms_cu_kv(&l, &p->kv, p->batch.n_rows),
                 .batch = tms_cu_batch(&l, &p->batch),
                 .blocks = 1,
                 .dim = p->kv.head_dim,
                 .dtype = p->kv.dtype},
        .slots = tms_cu_ref(&l, "slots", p->slots, sizeof(int32_t), n),
        .scores = tms_cu_reached(&l, "plane of scores", p->scores, sizeof(float), n)};
    const tms_cu_grid grid = {
        .x = tms_divide_up(n, CU_ROWS_SLOTS), .y = 1, .z = 1, .threads = CU_ROWS_THREADS};
    return tms_cu_run(&l, grid, &args);
}
