/* SPDX-License-Identifier: Apache-2.0 */
/* observe on CUDA: shapes and launches of cuda_kernels/observe.cu. */
#include "host/cuda/cuda.h"

/* With logits given neither q nor K is read. */
static cu_observe_args args_of(tms_cu_launch *l, const tms_observe *p, uint32_t blocks) {
    const tms_batch *b = &p->batch;
    const bool logits = p->logits.mem;
    const uint64_t n = b->n_rows ? p->n_items : 0, rows = n ? b->n_rows : 0;
    const uint64_t lists = n * b->n_heads * p->max_span, f32 = sizeof(float);
    const cu_kv shape = {.page_size = p->kv.page_size,
                         .page_shift = (uint32_t)__builtin_ctz(p->kv.page_size)};
    return (cu_observe_args){
        .kv = logits ? shape : tms_cu_kv(l, &p->kv, rows),
        .batch = tms_cu_batch(l, b),
        .spans = tms_cu_ref(l, "spans", p->spans, sizeof(int32_t), 2 * n),
        .q = logits ? (cu_matrix){0}
                    : tms_cu_matrix(l, "q", &p->q, (uint32_t)rows,
                                    (uint64_t)b->n_heads * p->kv.head_dim),
        .lse = tms_cu_ref(l, "lse", p->lse, f32, tms_rows_extent(rows, p->lse_stride, b->n_heads)),
        .logits = tms_cu_optional(l, "logits", p->logits, f32, rows * b->n_heads * p->logit_stride),
        .values =
            tms_cu_optional(l, "values", p->values.ref, f32, n * b->n_kv_heads * p->values.stride),
        .tile = tms_cu_optional(l, "tile", p->tile, f32, lists * p->tile_stride),
        .lse_stride = p->lse_stride,
        .logit_stride = p->logit_stride,
        .value_stride = p->values.stride,
        .tile_stride = p->tile_stride,
        .logit = tms_cu_logit(&p->logit),
        .n_items = (uint32_t)n,
        .max_span = p->max_span,
        .join = p->rows,
        .rule = p->group,
        .accumulate = p->accumulate,
        .blocks = blocks,
    };
}

tamis_status tms_cu_observe(tms_device *dev, const tms_observe *p) {
    tamis_status status = tms_cu_base_only(dev, "observe");
    if (status != TAMIS_OK) return status;
    const bool logits = p->logits.mem;
    const uint32_t dim = p->kv.head_dim, row = dim * (uint32_t)tms_kv_unit(p->kv.dtype);
    const uint32_t tag = tms_cu_dim_tag(dim);
    tms_cu_launch l = logits ? tms_cu_begin(dev, "observe", "observe_logits")
                             : tms_cu_begin(dev, "observe", "observe_rows_%s_d%u",
                                            tms_cu_key_tag(p->kv.dtype), tag);
    const uint64_t shares =
        tms_divide_up(p->batch.max_visible, logits ? CU_OBSERVE_THREADS : CU_OBSERVE_KEYS);
    const cu_observe_args args = args_of(&l, p, shares ? (uint32_t)shares : 1);
    const tms_cu_grid grid = {.x = (uint64_t)args.n_items * p->batch.n_kv_heads * args.blocks,
                              .y = 1,
                              .z = 1,
                              .threads = CU_OBSERVE_THREADS,
                              .shared = logits              ? 0
                                        : tag == CU_ANY_DIM ? CU_OBSERVE_QUERIES(dim)
                                                            : CU_OBSERVE_SHARED(dim, row)};
    return tms_cu_run(&l, grid, &args);
}
