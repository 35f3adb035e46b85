/* SPDX-License-Identifier: Apache-2.0 */
/* rotate on CUDA: shape and launch of cuda_kernels/rotate.cu. */
#include "host/cuda/cuda.h"

#define THREADS 256u

tamis_status tms_cu_rotate(tms_device *dev, const tms_rotate *p) {
    tamis_status status = tms_cu_base_only(dev, "rotate");
    if (status != TAMIS_OK) return status;
    const uint32_t n_pairs = p->n_rot / 2;
    const uint64_t entries = p->n_rows ? 4ull * TMS_ROTATE_STEPS * n_pairs : 0;
    tms_cu_launch l = tms_cu_begin(dev, "rotate", "rotate_rows");
    const cu_rotate_args args = {
        .x = tms_cu_matrix(&l, "x", &p->x, p->n_rows, (uint64_t)p->n_heads * p->head_dim),
        .positions = tms_cu_ref(&l, "positions", p->positions, sizeof(int32_t), p->n_rows),
        .table = tms_cu_ref(&l, "table", p->table, sizeof(float), entries),
        .n_rows = p->n_rows,
        .n_heads = p->n_heads,
        .head_dim = p->head_dim,
        .n_pairs = n_pairs,
        .adjacent = p->pairing == TAMIS_PAIR_ADJACENT,
    };
    return tms_cu_run(&l, tms_cu_items((uint64_t)p->n_rows * p->n_heads * n_pairs, THREADS), &args);
}
