/* SPDX-License-Identifier: Apache-2.0 */
/* select on CUDA, the wide forms: shapes and launches of cuda_kernels/select_wide.cu, one in scope
 * LANE, ten in a row in scope ROW. */
#include "host/cuda/cuda.h"

/* Parts of scratch, in words: the upper words of all keys, then the tallies of each row. */
typedef struct parts {
    uint64_t owners, key_stride, n_keys, tally_stride, n_tallies;
} parts;

static parts parts_of(const tms_select *p) {
    const tms_batch *b = &p->batch;
    parts s = {.owners = (uint64_t)b->n_rows * b->n_kv_heads,
               .key_stride = tms_divide_up(b->max_visible, p->granularity),
               .tally_stride = CU_WIDE_TAKEN + b->n_kv_heads};
    s.n_keys = s.owners * s.key_stride;
    s.n_tallies = b->n_rows * s.tally_stride;
    return s;
}

uint64_t tms_cu_select_scratch(tms_device *dev, const tms_select *p) {
    (void)dev;
    if (!tms_select_is_wide(p)) return 0;
    const parts s = parts_of(p);
    return (s.n_keys + s.n_tallies) * sizeof(uint32_t);
}

/* The tables of pages are for positions alone. */
static cu_batch batch_of(tms_cu_launch *l, const tms_batch *b) {
    const uint64_t n = b->n_rows;
    return (cu_batch){
        .row_seq = tms_cu_optional(l, "row_seq", b->row_seq, sizeof(int32_t), n),
        .visible = tms_cu_ref(l, "visible", b->visible, sizeof(int32_t), n * b->n_kv_heads),
        .table = tms_cu_optional(l, "table", b->table, sizeof(int32_t), n != 0),
        .seq_stride = b->seq_stride,
        .head_stride = b->head_stride,
        .n_rows = b->n_rows,
        .n_kv_heads = b->n_kv_heads,
        .group = b->n_heads / b->n_kv_heads,
    };
}

static cu_select_wide_args args_of(tms_cu_launch *l, const tms_select *p, const parts *s) {
    const tms_select_wide *w = &p->wide;
    const uint64_t n = p->batch.n_rows;
    const uint64_t scratch =
        tms_cu_ref(l, "scratch", p->scratch, sizeof(uint32_t), s->n_keys + s->n_tallies);
    const tms_lists none = {0};
    return (cu_select_wide_args){
        .batch = batch_of(l, &p->batch),
        .scores = tms_cu_optional(l, "scores", p->scores, sizeof(float), s->owners * p->stride),
        .stride = p->stride,
        .lists = tms_cu_lists(l, &p->lists, s->owners),
        .forced = tms_cu_lists(l, w->forced.pages.mem ? &w->forced : &none, s->owners),
        .k_table = tms_cu_optional(l, "k_table", w->k_table, sizeof(int32_t), s->owners),
        .positions = tms_cu_optional(l, "positions", w->positions, sizeof(int32_t), n != 0),
        .row_positions = tms_cu_optional(l, "row positions", w->row_positions, sizeof(int32_t), n),
        .upper = scratch,
        .tallies = scratch + s->n_keys * sizeof(uint32_t),
        .key_stride = s->key_stride,
        .tally_stride = s->tally_stride,
        .need = tms_select_need(p),
        .granularity = p->granularity,
        .k = p->k,
        .sinks = p->sinks,
        .recent = p->recent,
        .k_share = w->k_share ? w->k_share : TMS_SHARE_ONE,
        .page_size = w->page_size,
        .competes = w->scope == TMS_SCOPE_ROW,
        .total = w->total,
        .floor = w->floor,
    };
}

/* Few entries keep few threads busy. */
static tamis_status run(tms_device *dev, const tms_select *p, const parts *s, const char *kernel,
                        uint32_t pass) {
    tms_cu_launch l = tms_cu_begin(dev, "select_wide", "%s", kernel);
    cu_select_wide_args args = args_of(&l, p, s);
    args.pass = pass;
    const tms_cu_grid grid = {.x = s->owners,
                              .y = 1,
                              .z = 1,
                              .threads =
                                  s->key_stride > CU_WIDE_FEW ? CU_WIDE_THREADS : CU_WIDE_BINS};
    return tms_cu_run(&l, grid, &args);
}

tamis_status tms_cu_select_wide(tms_device *dev, const tms_select *p) {
    tamis_status status = tms_cu_base_only(dev, "select, wide");
    if (status != TAMIS_OK) return status;
    const parts s = parts_of(p);
    status = run(dev, p, &s, "select_wide_lanes", 0);
    if (p->wide.scope == TMS_SCOPE_LANE) return status;
    for (uint32_t pass = 0; status == TAMIS_OK && pass < CU_WIDE_PASSES; pass++)
        status = run(dev, p, &s, "select_wide_pass", pass);
    return status == TAMIS_OK ? run(dev, p, &s, "select_wide_lists", 0) : status;
}
