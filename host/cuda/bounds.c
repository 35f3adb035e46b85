/* SPDX-License-Identifier: Apache-2.0 */
/* bounds on CUDA: shape and launch of cuda_kernels/bounds.cu. */
#include "host/cuda/cuda.h"

#define THREADS  256u
#define CHANNELS 8u /* of a thread */

tamis_status tms_cu_bounds(tms_device *dev, const tms_bounds *p) {
    tamis_status status = tms_cu_base_only(dev, "bounds");
    if (status != TAMIS_OK) return status;
    const bool to_q8 = p->kv.bounds_dtype == TAMIS_Q8;
    const char *tag = tms_cu_key_tag(p->kv.dtype);
    tms_cu_launch l = to_q8 ? tms_cu_begin(dev, "bounds", "bounds_of_pages_%s_q8", tag)
                            : tms_cu_begin(dev, "bounds", "bounds_of_pages_%s_d%u", tag,
                                           tms_cu_dim_tag(p->kv.head_dim));
    const cu_bounds_args args = {
        .kv = tms_cu_kv(&l, &p->kv, p->n),
        .bounds = tms_cu_bounds_of(&l, &p->kv, p->n),
        .pages = tms_cu_ref(&l, "pages", p->pages, sizeof(int32_t), p->n),
        .n = p->n,
        .n_kv_heads = p->n_kv_heads,
        .kind = (uint32_t)p->kind,
        .width = p->width,
        .dim = p->kv.head_dim,
    };
    const uint32_t each = to_q8 ? CU_ROW_THREADS(p->kv.head_dim) : p->kv.head_dim / CHANNELS;
    return tms_cu_run(&l, tms_cu_items((uint64_t)p->n * p->n_kv_heads * each, THREADS), &args);
}
