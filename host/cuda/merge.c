/* SPDX-License-Identifier: Apache-2.0 */
/* merge on CUDA: launch of cuda_kernels/merge.cu. */
#include "host/cuda/cuda.h"

#define THREADS 256u

tamis_status tms_cu_merge(tms_device *dev, const tms_merge *p) {
    tamis_status status = tms_cu_base_only(dev, "merge");
    if (status != TAMIS_OK) return status;
    const uint64_t n = p->n, states = p->n_parts * n;
    tms_cu_launch l = tms_cu_begin(dev, "merge", "merge_states");
    const cu_merge_args args = {
        .outs = tms_cu_ref(&l, "outs", p->outs, sizeof(float), states * p->dim),
        .lses = tms_cu_ref(&l, "lses", p->lses, sizeof(float), states),
        .out = tms_cu_ref(&l, "out", p->out, sizeof(float), n * p->dim),
        .lse = tms_cu_optional(&l, "lse", p->lse, sizeof(float), n),
        .n_parts = p->n_parts,
        .n = p->n,
        .dim = p->dim,
    };
    return tms_cu_run(&l, tms_cu_items(n * p->dim, THREADS), &args);
}
