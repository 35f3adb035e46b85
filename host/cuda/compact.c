/* SPDX-License-Identifier: Apache-2.0 */
/* compact on CUDA: shape and launch of cuda_kernels/compact.cu. */
#include "host/cuda/cuda.h"

tamis_status tms_cu_compact(tms_device *dev, const tms_compact *p) {
    const tms_batch *b = &p->batch;
    const uint64_t lanes = (uint64_t)b->n_rows * b->n_kv_heads, some = b->n_rows != 0;
    const uint32_t size = (uint32_t)tms_kv_unit(p->kv.dtype), dim = p->kv.head_dim;
    const tamis_dtype rows[] = {tms_key_dtype(p->kv.dtype), tms_value_dtype(p->kv.dtype)};
    const uint32_t numbers = tms_has_blocks(p->kv.dtype) ? 2 : 0; /* parts */
    const bool planes = p->planes.positions.mem || p->planes.scores.mem;
    tamis_status status = tms_cu_base_only(dev, "compact");
    if (status != TAMIS_OK) return status;
    tms_cu_launch l = tms_cu_begin(dev, "compact", "compact_slots");
    cu_compact_args args = {
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
    };
    for (int i = 0; i < 2; i++) {
        args.pieces[i] = tms_row_size(rows[i], dim) * size / 16;
        args.words[i] = tms_block_numbers(rows[i]) * tms_blocks(dim);
        args.stride[i] = numbers ? tms_row_size(rows[i], dim) : p->kv.slot_stride * size;
    }
    const uint64_t slices = tms_divide_up(args.pieces[0], CU_COMPACT_WIDE);
    const tms_cu_grid grid = {
        .x = lanes, .y = 2 * slices + numbers + planes, .z = 1, .threads = CU_COMPACT_THREADS};
    return tms_cu_run(&l, grid, &args);
}
