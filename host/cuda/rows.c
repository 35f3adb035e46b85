/* SPDX-License-Identifier: Apache-2.0 */
/* write_rows and read_rows on CUDA: shapes and launches of cuda_kernels/rows.cu. */
#include "host/cuda/cuda.h"

#define THREADS  256u
#define CHANNELS 8u /* of a thread */
#define WARP     32u

/* Elements of `n` rows of `width` from the first to the end of the last. */
static uint64_t reach(uint64_t n, uint64_t stride, uint64_t width) {
    return n ? (n - 1) * stride + width : 0;
}

/* The kernel's arguments but those of a rotation. */
static cu_write_rows_args write_args(tms_cu_launch *l, const tms_write_rows *p) {
    const tms_batch *b = &p->batch;
    const uint64_t lanes = (uint64_t)b->n_rows * b->n_kv_heads,
                   width = (uint64_t)b->n_kv_heads * p->kv.head_dim;
    const size_t size = tamis_dtype_size(p->dtype);
    return (cu_write_rows_args){
        .kv = tms_cu_kv(l, &p->kv, b->n_rows),
        .batch = tms_cu_batch(l, b),
        .k = tms_cu_ref(l, "k", p->k, size, reach(b->n_rows, p->k_stride, width)),
        .v = tms_cu_ref(l, "v", p->v, size, reach(b->n_rows, p->v_stride, width)),
        .slots = tms_cu_ref(l, "slots", p->slots, sizeof(int32_t), lanes),
        .position_plane =
            tms_cu_optional(l, "plane of positions", p->planes.positions, sizeof(int32_t), 0),
        .score_plane = tms_cu_optional(l, "plane of scores", p->planes.scores, sizeof(float), 0),
        .positions = tms_cu_optional(l, "positions", p->positions, sizeof(int32_t), b->n_rows),
        .k_stride = p->k_stride,
        .v_stride = p->v_stride,
    };
}

tamis_status tms_cu_write_rotated(tms_device *dev, const tms_write_rotated *p) {
    const tamis_status status = tms_cu_base_only(dev, "write_rotated");
    if (status != TAMIS_OK) return status;
    const tms_rotation *rotation = &p->rotation;
    const uint64_t n = p->batch.n_rows, heads = p->batch.n_heads, dim = p->kv.head_dim;
    const uint64_t entries = n ? 2ull * TMS_ROTATE_STEPS * rotation->n_rot : 0;
    const tms_matrix k = {p->k, p->k_stride};
    tms_cu_launch l = tms_cu_begin(dev, "rows", "write_rotated_%s", tamis_dtype_name(p->kv.dtype));
    const cu_write_rotated_args args = {
        .write = write_args(&l, p),
        .q = tms_cu_matrix(&l, "q", &rotation->q, n, heads * dim),
        .k = tms_cu_matrix(&l, "k", &k, n, p->batch.n_kv_heads * dim),
        .positions =
            tms_cu_ref(&l, "the rotation's positions", rotation->positions, sizeof(int32_t), n),
        .table = tms_cu_ref(&l, "the rotation's table", rotation->table, sizeof(float), entries),
        .q_norm = tms_cu_optional(&l, "q's norm", rotation->q_norm, sizeof(float), dim),
        .k_norm = tms_cu_optional(&l, "k's norm", rotation->k_norm, sizeof(float), dim),
        .n_heads = p->batch.n_heads,
        .head_dim = p->kv.head_dim,
        .n_pairs = rotation->n_rot / 2,
        .adjacent = rotation->pairing == TAMIS_PAIR_ADJACENT,
        .eps = rotation->eps,
    };
    return tms_cu_run(&l, tms_cu_items(n * (heads + p->batch.n_kv_heads) * WARP, THREADS), &args);
}

tamis_status tms_cu_write_rows(tms_device *dev, const tms_write_rows *p) {
    const uint64_t lanes = (uint64_t)p->batch.n_rows * p->batch.n_kv_heads;
    tamis_status status = tms_cu_base_only(dev, "write_rows");
    if (status != TAMIS_OK) return status;
    tms_cu_launch l =
        p->dtype == TAMIS_F32
            ? tms_cu_begin(dev, "rows", "write_rows_%s_d%u", tamis_dtype_name(p->kv.dtype),
                           tms_cu_dim_tag(p->kv.head_dim))
            : tms_cu_begin(dev, "rows", "copy_rows_16_d%u", tms_cu_dim_tag(p->kv.head_dim));
    const cu_write_rows_args args = write_args(&l, p);
    const uint32_t dim = p->kv.head_dim;
    const uint32_t each = tms_has_blocks(p->kv.dtype) ? CU_ROW_THREADS(dim) : dim / CHANNELS;
    return tms_cu_run(&l, tms_cu_items(lanes * each, THREADS), &args);
}

tamis_status tms_cu_read_rows(tms_device *dev, const tms_read_rows *p) {
    tamis_status status = tms_cu_base_only(dev, "read_rows");
    if (status != TAMIS_OK) return status;
    const uint64_t n = (uint64_t)p->n * p->kv.head_dim;
    tms_cu_launch l = tms_cu_begin(dev, "rows", "read_rows_%s_d%u", tamis_dtype_name(p->kv.dtype),
                                   tms_cu_dim_tag(p->kv.head_dim));
    const cu_read_rows_args args = {
        .kv = tms_cu_kv(&l, &p->kv, p->n),
        .table = tms_cu_reached(&l, "table", p->table, sizeof(int32_t), p->n),
        .seq = tms_cu_ref(&l, "seq", p->seq, sizeof(int32_t), p->n),
        .head = tms_cu_ref(&l, "head", p->head, sizeof(int32_t), p->n),
        .slot = tms_cu_ref(&l, "slot", p->slot, sizeof(int32_t), p->n),
        .k = tms_cu_optional(&l, "k", p->k, sizeof(float), n),
        .v = tms_cu_optional(&l, "v", p->v, sizeof(float), n),
        .seq_stride = p->seq_stride,
        .head_stride = p->head_stride,
        .n = p->n,
    };
    return tms_cu_run(&l, tms_cu_items(n / CHANNELS, THREADS), &args);
}
