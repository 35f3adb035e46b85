/* SPDX-License-Identifier: Apache-2.0 */
/* The ops of the pipeline over a paged cache of the caller's. */
#include "lib/core/attention.h"
#include "lib/op_calls/check.h"

_Static_assert(TAMIS_TILE_ROWS == TMS_TILE_ROWS, "the contract's value");

/* Rows of all query heads. */
static tms_op_rows head_rows(const char *name, const tamis_rows *rows, const tamis_batch *b,
                             uint32_t head_dim) {
    return (tms_op_rows){name, rows, b->n_rows, (uint64_t)b->n_heads * head_dim};
}

/* Bytes of `each` f32 values for every (row, KV head), or for every (row, query head). */
static uint64_t owner_bytes(const tamis_batch *b, uint64_t each) {
    return tms_op_times((uint64_t)b->n_rows * b->n_kv_heads, tms_op_times(each, sizeof(float)));
}

static uint64_t head_bytes(const tamis_batch *b, uint64_t each) {
    return tms_op_times((uint64_t)b->n_rows * b->n_heads, tms_op_times(each, sizeof(float)));
}

static tms_logit logit_of(tms_op_call *c, const tamis_attention *a, const tamis_batch *b,
                          uint32_t head_dim) {
    const uint64_t sinks = b->n_rows ? tms_op_times(b->n_heads, sizeof(float)) : 0;
    if (c->status == TAMIS_OK) c->status = tms_attention_check(a, "attention: ", c->error);
    tms_op_zero(c, "tamis_attention", "sliding_window", a->sliding_window);
    tms_op_zero(c, "tamis_attention", "chunk", a->chunk);
    return tms_attention_logit(a, head_dim, tms_op_optional(c, "sinks", &a->sinks, sinks));
}

/* The stride that is given, else the least possible. It is never 0, which means a plane in some
 * fields of host/ops/. */
static uint64_t stride_or(uint64_t given, uint64_t least) {
    return given ? given : least ? least : 1;
}

static uint32_t entries(const tamis_batch *b, uint32_t slots) {
    return slots ? b->max_visible / slots : 0;
}

tamis_status tamis_op_bounds(tamis_context *context, const tamis_bounds_params *p,
                             tamis_error *error) {
    TMS_ENTER(context);
    TMS_OP_BEGIN(c, context, p, tamis_bounds_params);
    TMS_REQUIRE_RESERVED(&p->bounds, tamis_bounds);
    const bool spread = p->bounds.kind == TAMIS_BOUNDS_MEAN_STD;
    tms_op_one_of(&c, "bounds.kind", (int)p->bounds.kind, TAMIS_BOUNDS_MEAN);
    const tms_bounds run = {
        .kv = tms_op_kv(&c, &p->kv, p->n_kv_heads, p->n, true),
        .n = p->n,
        .n_kv_heads = p->n_kv_heads,
        .pages = tms_op_place(&c, "pages", &p->pages, (uint64_t)p->n * sizeof(int32_t)),
        .kind = p->bounds.kind,
        .width = spread && p->bounds.width == 0 ? 1 : p->bounds.width};
    if (c.status != TAMIS_OK) return c.status;
    return tms_run_bounds(context->dev, &run, error);
}

tamis_status tamis_op_score_pages(tamis_context *context, const tamis_score_pages_params *p,
                                  tamis_error *error) {
    TMS_ENTER(context);
    TMS_OP_BEGIN(c, context, p, tamis_score_pages_params);
    const tms_op_rows q = head_rows("q", &p->q, &p->batch, p->kv.head_dim);
    const uint32_t stride = p->stride ? p->stride : entries(&p->batch, p->kv.page_size);
    tms_op_one_of(&c, "group", (int)p->group, TAMIS_GROUP_SUM);
    const tms_score_pages run = {
        .kv = tms_op_kv(&c, &p->kv, p->batch.n_kv_heads, p->batch.n_rows, true),
        .batch = tms_op_batch(&c, &p->batch, p->kv.page_size, true),
        .q = tms_op_matrix(&c, &q),
        .group = p->group,
        .scores = tms_op_place(&c, "scores", &p->scores, owner_bytes(&p->batch, stride)),
        .stride = stride};
    if (c.status != TAMIS_OK) return c.status;
    return tms_run_score_pages(context->dev, &run, error);
}

/* All fields but the scratch. */
static tms_page_mass page_mass_of(tms_op_call *c, const tamis_page_mass_params *p) {
    const tms_op_rows q = head_rows("q", &p->q, &p->batch, p->kv.head_dim);
    const uint32_t stride = p->stride ? p->stride : entries(&p->batch, p->kv.page_size);
    tms_op_one_of(c, "group", (int)p->group, TAMIS_GROUP_SUM);
    return (tms_page_mass){
        .kv = tms_op_kv(c, &p->kv, p->batch.n_kv_heads, p->batch.n_rows, false),
        .batch = tms_op_batch(c, &p->batch, p->kv.page_size, true),
        .q = tms_op_matrix(c, &q),
        .group = p->group,
        .scores = tms_op_place(c, "scores", &p->scores, owner_bytes(&p->batch, stride)),
        .stride = stride,
        .logit = logit_of(c, &p->attention, &p->batch, p->kv.head_dim)};
}

tamis_status tamis_op_page_mass_scratch(tamis_context *context, const tamis_page_mass_params *p,
                                        uint64_t *bytes, tamis_error *error) {
    TMS_ENTER(context);
    TMS_OP_BEGIN(c, context, p, tamis_page_mass_params);
    TMS_REQUIRE(bytes, TAMIS_E_ARGUMENT, "bytes is NULL");
    c.measured = true;
    const tms_page_mass run = page_mass_of(&c, p);
    tms_device *dev = context->dev;
    if (c.status == TAMIS_OK) *bytes = tms_page_mass_scratch(dev, &run);
    return c.status;
}

tamis_status tamis_op_page_mass(tamis_context *context, const tamis_page_mass_params *p,
                                tamis_error *error) {
    TMS_ENTER(context);
    TMS_OP_BEGIN(c, context, p, tamis_page_mass_params);
    tms_page_mass run = page_mass_of(&c, p);
    tms_device *dev = context->dev;
    if (c.status == TAMIS_OK)
        run.scratch = tms_op_place(&c, "scratch", &p->scratch, tms_page_mass_scratch(dev, &run));
    if (c.status != TAMIS_OK) return c.status;
    return tms_run_page_mass(dev, &run, error);
}

tamis_status tamis_op_select(tamis_context *context, const tamis_select_params *p,
                             tamis_error *error) {
    TMS_ENTER(context);
    TMS_OP_BEGIN(c, context, p, tamis_select_params);
    const tamis_batch *b = &p->batch;
    const uint32_t stride = p->stride ? p->stride : entries(b, p->granularity);
    tms_op_zero(&c, "tamis_select_params", "reserved32", p->reserved32);
    tms_op_above_0(&c, "granularity", p->granularity);
    const tms_select run = {
        .batch = tms_op_batch(&c, b, 0, false),
        .granularity = p->granularity,
        .k = p->k,
        .sinks = p->sinks,
        .recent = p->recent,
        .scores = tms_op_optional(&c, "scores", &p->scores, owner_bytes(b, stride)),
        .stride = stride,
        .lists = tms_op_lists(&c, &p->lists, (uint64_t)b->n_rows * b->n_kv_heads, false)};
    if (c.status != TAMIS_OK) return c.status;
    return tms_run_select(context->dev, &run, error);
}

/* All fields but the scratch. */
static tms_attend attend_of(tms_op_call *c, const tamis_attend_params *p) {
    const tamis_batch *b = &p->batch;
    const uint64_t logit_stride = stride_or(p->logit_stride, b->max_visible), n = b->n_rows;
    const tms_op_rows q = head_rows("q", &p->q, b, p->kv.head_dim);
    const tms_op_rows out = head_rows("out", &p->out, b, p->kv.head_dim);
    tms_op_zero(c, "tamis_attend_params", "reserved32", p->reserved32);
    tms_attend run = {.kv = tms_op_kv(c, &p->kv, b->n_kv_heads, b->n_rows, false),
                      .batch = tms_op_batch(c, b, p->kv.page_size, true),
                      .lists = tms_op_lists(c, &p->lists, n * b->n_kv_heads, true),
                      .max_pages = p->max_pages,
                      .q = tms_op_matrix(c, &q),
                      .out = tms_op_matrix(c, &out),
                      .lse = tms_op_optional(c, "lse", &p->lse, head_bytes(b, 1)),
                      .logit = logit_of(c, &p->attention, &p->batch, p->kv.head_dim),
                      .logits =
                          tms_op_optional(c, "logits", &p->logits, head_bytes(b, logit_stride)),
                      .logit_stride = logit_stride};
    tms_op_apart(c, &q, &out);
    if (run.max_pages == 0 && c->status == TAMIS_OK)
        run.max_pages = run.lists.pages.mem
                            ? run.lists.capacity
                            : (uint32_t)tms_divide_up(b->max_visible, p->kv.page_size);
    return run;
}

tamis_status tamis_op_attend_scratch(tamis_context *context, const tamis_attend_params *p,
                                     uint64_t *bytes, tamis_error *error) {
    TMS_ENTER(context);
    TMS_OP_BEGIN(c, context, p, tamis_attend_params);
    TMS_REQUIRE(bytes, TAMIS_E_ARGUMENT, "bytes is NULL");
    c.measured = true;
    const tms_attend run = attend_of(&c, p);
    tms_device *dev = context->dev;
    if (c.status == TAMIS_OK) *bytes = tms_attend_scratch(dev, &run);
    return c.status;
}

tamis_status tamis_op_attend(tamis_context *context, const tamis_attend_params *p,
                             tamis_error *error) {
    TMS_ENTER(context);
    TMS_OP_BEGIN(c, context, p, tamis_attend_params);
    tms_attend run = attend_of(&c, p);
    tms_device *dev = context->dev;
    if (c.status == TAMIS_OK)
        run.scratch = tms_op_place(&c, "scratch", &p->scratch, tms_attend_scratch(dev, &run));
    if (c.status != TAMIS_OK) return c.status;
    return tms_run_attend(dev, &run, error);
}

tamis_status tamis_op_merge(tamis_context *context, const tamis_merge_params *p,
                            tamis_error *error) {
    TMS_ENTER(context);
    TMS_OP_BEGIN(c, context, p, tamis_merge_params);
    const uint64_t lse = (uint64_t)p->n * sizeof(float), out = tms_op_times(lse, p->dim);
    tms_op_zero(&c, "tamis_merge_params", "reserved32", p->reserved32);
    tms_op_above_0(&c, "dim", p->dim);
    tms_op_above_0(&c, "n_parts", p->n_parts);
    const tms_merge run = {
        .n_parts = p->n_parts,
        .n = p->n,
        .dim = p->dim,
        .outs = tms_op_place(&c, "outs", &p->outs, tms_op_times(out, p->n_parts)),
        .lses = tms_op_place(&c, "lses", &p->lses, tms_op_times(lse, p->n_parts)),
        .out = tms_op_place(&c, "out", &p->out, out),
        .lse = tms_op_optional(&c, "lse", &p->lse, lse)};
    if (c.status != TAMIS_OK) return c.status;
    return tms_run_merge(context->dev, &run, error);
}

/* Bytes that observe writes: `each` f32 values per (item, KV head). */
static uint64_t item_bytes(const tamis_observe_params *p, uint64_t each) {
    const uint64_t lanes = (uint64_t)p->n_items * p->batch.n_kv_heads;
    return tms_op_times(lanes, tms_op_times(each, sizeof(float)));
}

static tms_observe observe_of(tms_op_call *c, const tamis_observe_params *p) {
    const tamis_batch *b = &p->batch;
    const uint64_t n = b->n_rows, slots = b->max_visible;
    const uint64_t logits = stride_or(p->logit_stride, slots);
    const uint64_t values = stride_or(p->value_stride, slots);
    const uint64_t tile = stride_or(p->tile_stride, slots);
    const uint64_t lse = stride_or(p->lse_stride, b->n_heads);
    const uint64_t lse_floats = n ? tms_op_plus(tms_op_times(n - 1, lse), b->n_heads) : 0;
    const uint64_t lists =
        (uint64_t)p->max_span * (b->n_heads / (b->n_kv_heads ? b->n_kv_heads : 1));
    tms_op_rows q = head_rows("q", &p->q, b, p->kv.head_dim);
    if (p->logits.buffer) q.n_rows = 0; /* not read */
    return (tms_observe){
        .kv = tms_op_kv(c, &p->kv, b->n_kv_heads, b->n_rows, false),
        .batch = tms_op_batch(c, b, p->kv.page_size, false),
        .n_items = p->n_items,
        .max_span = p->max_span,
        .spans = tms_op_place(c, "spans", &p->spans, 2ull * p->n_items * sizeof(int32_t)),
        .q = tms_op_matrix(c, &q),
        .lse = tms_op_place(c, "lse", &p->lse, tms_op_times(lse_floats, sizeof(float))),
        .lse_stride = lse,
        .logit = logit_of(c, &p->attention, &p->batch, p->kv.head_dim),
        .logits = tms_op_optional(c, "logits", &p->logits, head_bytes(b, logits)),
        .logit_stride = logits,
        .rows = p->rows,
        .group = p->group,
        .accumulate = p->accumulate != 0,
        .values = {tms_op_optional(c, "values", &p->values, item_bytes(p, values)), values},
        .tile = tms_op_optional(c, "tile", &p->tile, item_bytes(p, tms_op_times(lists, tile))),
        .tile_stride = tile};
}

tamis_status tamis_op_observe(tamis_context *context, const tamis_observe_params *p,
                              tamis_error *error) {
    TMS_ENTER(context);
    TMS_OP_BEGIN(c, context, p, tamis_observe_params);
    tms_op_zero(&c, "tamis_observe_params", "reserved32", p->reserved32);
    tms_op_one_of(&c, "group", (int)p->group, TAMIS_GROUP_SUM);
    tms_op_one_of(&c, "rows", (int)p->rows, TAMIS_ROWS_MAX);
    const tms_observe run = observe_of(&c, p);
    if (c.status != TAMIS_OK) return c.status;
    return tms_run_observe(context->dev, &run, error);
}
