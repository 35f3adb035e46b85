/* SPDX-License-Identifier: Apache-2.0 */
/* load_rows on CUDA: shapes and launches of cuda_kernels/load.cu. */
#include "host/cuda/cuda.h"

#define THREADS 256u
#define WARP    32u /* takes a head of a row */

tamis_status tms_cu_load_rows(tms_device *dev, const tms_load_rows *p) {
    tamis_status status = tms_cu_base_only(dev, "load_rows");
    if (status != TAMIS_OK) return status;
    const uint64_t n = p->batch.n_rows, heads = p->batch.n_kv_heads, dim = p->kv.head_dim;
    const uint64_t n_k = n ? (n - 1) * p->k_stride + heads * dim : 0;
    const uint64_t n_v = n ? (n - 1) * p->v_stride + heads * dim : 0;
    const uint64_t entries = n && p->n_rot ? 2ull * TMS_ROTATE_STEPS * p->n_rot : 0;
    const size_t size = tamis_dtype_size(p->dtype);
    tms_cu_launch l = tms_cu_begin(dev, "load", "load_rows_%s_%s", tamis_dtype_name(p->dtype),
                                   tamis_dtype_name(p->kv.dtype));
    const cu_load_rows_args args = {
        .write =
            {
                .kv = tms_cu_kv(&l, &p->kv, p->batch.n_rows),
                .batch = tms_cu_batch(&l, &p->batch),
                .k = tms_cu_optional(&l, "k", p->k, size, n_k),
                .v = tms_cu_optional(&l, "v", p->v, size, n_v),
                .slots = tms_cu_ref(&l, "slots", p->slots, sizeof(int32_t), n * heads),
                .position_plane = tms_cu_optional(&l, "plane of positions", p->planes.positions,
                                                  sizeof(int32_t), 0),
                .score_plane =
                    tms_cu_optional(&l, "plane of scores", p->planes.scores, sizeof(float), 0),
                .positions = tms_cu_optional(&l, "positions", p->positions, sizeof(int32_t), n),
                .k_stride = p->k_stride,
                .v_stride = p->v_stride,
            },
        .table = tms_cu_optional(&l, "table", p->table, sizeof(float), entries),
        .head_dim = p->kv.head_dim,
        .n_pairs = p->n_rot / 2,
        .adjacent = p->pairing == TAMIS_PAIR_ADJACENT,
        .k_norm = tms_cu_optional(&l, "k's norm", p->k_norm, sizeof(float), n ? dim : 0),
        .eps = p->eps,
    };
    return tms_cu_run(&l, tms_cu_items(n * heads * WARP, THREADS), &args);
}
