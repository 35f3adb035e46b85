/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments that the kernels of attend share. */
#include "host/opencl/opencl.h"

void tms_cl_attend_states(tms_cl_launch *l, const tms_attend *p, const tms_cl_states *s) {
    uint32_t dim = p->kv.head_dim;
    tms_cl_logit(l, &p->logit);
    tms_cl_u32(l, s->n_splits);
    const uint32_t heads = p->batch.n_heads;
    tms_cl_matrix(l, &s->out, s->n / heads * s->n_splits, (uint64_t)heads * dim);
    tms_cl_u64(l, s->n * dim);
    tms_cl_optional(l, s->lse, sizeof(cl_float), s->n * s->n_splits);
    tms_cl_u64(l, s->n);
}

void tms_cl_attend_lists(tms_cl_launch *l, const tms_attend *p) {
    uint64_t lanes = (uint64_t)p->batch.n_rows * p->batch.n_kv_heads;
    tms_cl_optional(l, p->lists.pages, sizeof(cl_int), lanes * p->lists.capacity);
    tms_cl_ref(l, p->lists.count, sizeof(cl_int), p->lists.pages.mem ? lanes : 0);
    tms_cl_u32(l, p->lists.capacity);
}

void tms_cl_attend_logits(tms_cl_launch *l, const tms_attend *p) {
    const uint64_t heads = (uint64_t)p->batch.n_rows * p->batch.n_heads;
    tms_cl_optional(l, p->logits, sizeof(cl_float), heads * p->logit_stride);
    tms_cl_u64(l, p->logit_stride);
}
