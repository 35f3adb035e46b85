/* SPDX-License-Identifier: Apache-2.0 */
/* compact and copy_slots on CUDA: shapes and launches of cuda_kernels/compact.cu. */
#include "host/cuda/cuda.h"

static cu_moved moved_of(tms_cu_launch *l, const tms_kv *kv, const tms_planes *planes,
                         const tms_batch *b) {
    const uint64_t some = b->n_rows != 0;
    const uint32_t size = (uint32_t)tms_kv_unit(kv->dtype), dim = kv->head_dim;
    const tamis_dtype rows[] = {tms_key_dtype(kv->dtype), tms_value_dtype(kv->dtype)};
    cu_moved m = {
        .kv = tms_cu_kv(l, kv, b->n_rows),
        .batch = tms_cu_batch(l, b),
        .positions =
            tms_cu_optional(l, "plane of positions", planes->positions, sizeof(int32_t), some),
        .scores = tms_cu_optional(l, "plane of scores", planes->scores, sizeof(float), some),
        .size = size,
    };
    for (int i = 0; i < 2; i++) {
        const uint32_t width = tms_row_size(rows[i], dim);
        m.stride[i] = tms_has_blocks(kv->dtype) ? width : kv->slot_stride * size;
        m.pieces[i] = width * size / 16;
        m.words[i] = tms_block_numbers(rows[i]) * tms_blocks(dim);
    }
    return m;
}

tamis_status tms_cu_compact(tms_device *dev, const tms_compact *p) {
    const tms_batch *b = &p->batch;
    const uint64_t lanes = (uint64_t)b->n_rows * b->n_kv_heads;
    const uint32_t numbers = tms_has_blocks(p->kv.dtype) ? 2 : 0; /* parts */
    const bool planes = p->planes.positions.mem || p->planes.scores.mem;
    tamis_status status = tms_cu_base_only(dev, "compact");
    if (status != TAMIS_OK) return status;
    tms_cu_launch l = tms_cu_begin(dev, "compact", "compact_slots");
    const cu_compact_args args = {
        .moved = moved_of(&l, &p->kv, &p->planes, b),
        .lists = tms_cu_lists(&l, &p->lists, lanes),
        .to = tms_cu_ref(&l, "to", p->to, sizeof(int32_t), lanes * p->to_stride),
        .to_stride = p->to_stride,
        .granularity = p->granularity,
    };
    const uint64_t slices = tms_divide_up(args.moved.pieces[0], CU_COMPACT_WIDE);
    const tms_cu_grid grid = {
        .x = lanes, .y = 2 * slices + numbers + planes, .z = 1, .threads = CU_COMPACT_THREADS};
    return tms_cu_run(&l, grid, &args);
}

tamis_status tms_cu_copy_slots(tms_device *dev, const tms_copy_slots *p) {
    const tms_batch *b = &p->batch;
    const uint64_t lanes = (uint64_t)b->n_rows * b->n_kv_heads;
    const tamis_status status = tms_cu_base_only(dev, "copy_slots");
    if (status != TAMIS_OK) return status;
    tms_cu_launch l = tms_cu_begin(dev, "compact", "copy_slots");
    const cu_copy_slots_args args = {
        .moved = moved_of(&l, &p->kv, &p->planes, b),
        .to_seq = tms_cu_ref(&l, "to_seq", p->to_seq, sizeof(int32_t), b->n_rows),
        .from = tms_cu_ref(&l, "from", p->from, sizeof(int32_t), lanes),
        .to = tms_cu_ref(&l, "to", p->to, sizeof(int32_t), lanes),
    };
    return tms_cu_run(&l, tms_cu_items(lanes * args.moved.pieces[0], CU_COMPACT_THREADS), &args);
}
