/* SPDX-License-Identifier: Apache-2.0 */
/* embed on CUDA: launch of cuda_kernels/embed.cu. */
#include "host/cuda/cuda.h"

#define THREADS 256u

tamis_status tms_cu_embed(tms_device *dev, const tms_embed *p) {
    tamis_status status = tms_cu_base_only(dev, "embed");
    if (status != TAMIS_OK) return status;
    tms_cu_launch l = tms_cu_begin(dev, "embed", "embed_rows_%s", tamis_weight_name(p->w.type));
    const cu_embed_args args = {
        .tokens = tms_cu_ref(&l, "tokens", p->tokens, sizeof(int32_t), p->n_rows),
        .w = tms_cu_weights(&l, &p->w, p->n_rows ? p->n_vocab : 0, p->dim),
        .y = tms_cu_matrix(&l, "y", &p->y, p->n_rows, p->dim),
        .n_rows = p->n_rows,
        .dim = p->dim,
        .scale = p->scale,
    };
    return tms_cu_run(&l, tms_cu_items((uint64_t)p->n_rows * p->dim, THREADS), &args);
}
