/* SPDX-License-Identifier: Apache-2.0 */
/* compact on CUDA: shape and launch of cuda_kernels/compact.cu. */
#include "host/cuda/cuda.h"

tamis_status tms_cu_compact(tms_device *dev, const tms_compact *p) {
    const tms_batch *b = &p->batch;
    const uint64_t lanes = (uint64_t)b->n_rows * b->n_kv_heads, some = b->n_rows != 0;
    const uint32_t size = (uint32_t)tms_kv_unit(p->kv.dtype);
    const uint32_t pieces = p->kv.head_dim * size / 16;
    const bool scaled = tms_key_dtype(p->kv.dtype) == TAMIS_Q8,
               four_bits = p->kv.dtype == TAMIS_K8V4;
    const uint32_t words = scaled ? tms_q8_blocks(p->kv.head_dim) : 0;
    const uint32_t scales = scaled ? 2 : 0; /* parts */
    const bool planes = p->planes.positions.mem || p->planes.scores.mem;
    tamis_status status = tms_cu_base_only(dev, "compact");
    if (status != TAMIS_OK) return status;
    tms_cu_launch l = tms_cu_begin(dev, "compact", "compact_slots");
    const cu_compact_args args = {
        .kv = tms_cu_kv(&l, &p->kv, b->n_rows),
        .batch = tms_cu_batch(&l, b),
        .lists = tms_cu_lists(&l, &p->lists, lanes),
        .to = tms_cu_ref(&l, "to", p->to, sizeof(int32_t), lanes * p->to_stride),
        .positions =
            tms_cu_optional(&l, "plane of positions", p->planes.positions, sizeof(int32_t), some),
        .scores = tms_cu_optional(&l, "plane of scores", p->planes.scores, sizeof(float), some),
        .to_stride = p->to_stride,
        .granularity = p->granularity,
        .size = size,
        .pieces = {pieces, four_bits ? tms_v4_row(p->kv.head_dim) / 16 : pieces},
        .words = {words, four_bits ? 2 * words : words},
        .value_stride = four_bits ? tms_v4_row(p->kv.head_dim) : p->kv.slot_stride * size,
    };
    const tms_cu_grid grid = {.x = lanes,
                              .y = 2 * tms_divide_up(pieces, CU_COMPACT_WIDE) + scales + planes,
                              .z = 1,
                              .threads = CU_COMPACT_THREADS};
    return tms_cu_run(&l, grid, &args);
}
