/* SPDX-License-Identifier: Apache-2.0 */
/* deviation on CUDA: shapes and launches of cuda_kernels/deviation.cu. */
#include "host/cuda/cuda.h"

tamis_status tms_cu_deviation(tms_device *dev, const tms_deviation *p) {
    tamis_status status = tms_cu_base_only(dev, "deviation");
    if (status != TAMIS_OK) return status;
    const uint32_t n = p->batch.n_rows, heads = p->batch.n_kv_heads;
    tms_cu_launch l =
        tms_cu_begin(dev, "deviation", "deviation_%s",
                     p->values ? tms_cu_value_tag(p->kv.dtype) : tms_cu_key_tag(p->kv.dtype));
    const cu_deviation_args args = {
        .kv = tms_cu_kv(&l, &p->kv, n),
        .batch = tms_cu_batch(&l, &p->batch),
        .x = tms_cu_matrix(&l, "x", &p->x, n, (uint64_t)heads * p->kv.head_dim),
        .slots = tms_cu_ref(&l, "slots", p->slots, sizeof(int32_t), (uint64_t)n * heads),
        .out = tms_cu_ref(&l, "out", p->out, sizeof(float), n),
        .norms = p->norms.mem ? tms_cu_ref(&l, "norms", p->norms, sizeof(float), n) : 0,
        .dim = p->kv.head_dim,
        .values = p->values,
    };
    return tms_cu_run(&l, (tms_cu_grid){.x = n, .threads = CU_DEVIATION_THREADS}, &args);
}
