/* SPDX-License-Identifier: Apache-2.0 */
/* seek on CUDA: shape and launch of cuda_kernels/seek.cu. */
#include "host/cuda/cuda.h"

tamis_status tms_cu_seek(tms_device *dev, const tms_seek *p) {
    tamis_status status = tms_cu_base_only(dev, "seek");
    if (status != TAMIS_OK) return status;
    const uint64_t n = p->batch.n_rows, heads = p->batch.n_kv_heads;
    tms_cu_launch l = tms_cu_begin(dev, "seek", "seek");
    const cu_seek_args args = {
        .batch = tms_cu_batch(&l, &p->batch),
        .positions = tms_cu_reached(&l, "positions", p->positions, sizeof(int32_t), n),
        .least = tms_cu_ref(&l, "least", p->least, sizeof(int32_t), n),
        .out = tms_cu_ref(&l, "out", p->out, sizeof(int32_t), tms_seek_extent(p)),
        .row_stride = p->row_stride,
        .head_stride = p->head_stride,
        .page_size = p->page_size,
    };
    return tms_cu_run(&l, tms_cu_items(n * heads, CU_SEEK_THREADS), &args);
}
