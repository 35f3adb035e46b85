/* SPDX-License-Identifier: Apache-2.0 */
/* The steps that scores of evictions are made of. */
#include "lib/evict/evict.h"

static tms_values beside(const tms_eviction_work *work, uint32_t index) {
    return (tms_values){work->values[index], work->stride};
}

tms_select tms_work_budget(const tms_eviction_work *work, uint32_t recent, uint32_t values,
                           tms_lists lists) {
    tms_select select = {.batch = work->items,
                         .granularity = 1,
                         .k = work->budgets[0],
                         .sinks = work->eviction->sinks,
                         .recent = recent,
                         .scores = work->values[values],
                         .stride = (uint32_t)work->stride,
                         .lists = lists,
                         .scratch = work->scratch};
    for (uint32_t h = 1; h < work->n_kv_heads; h++) {
        if (work->budgets[h] != work->budgets[0]) select.wide.k_table = work->budget_table;
        if (work->budgets[h] > select.k) select.k = work->budgets[h];
    }
    return select;
}

tms_select tms_work_budget_by_position(const tms_eviction_work *work, uint32_t recent,
                                       uint32_t values, tms_lists lists) {
    tms_select select = tms_work_budget(work, recent, values, lists);
    /* Seen from the next token, so that the newest one is not protected as the row's own. */
    if (recent > 0) select.recent++;
    select.wide.positions = work->planes.positions;
    select.wide.row_positions = work->now;
    select.wide.row_positions.offset += sizeof(int32_t);
    select.wide.page_size = work->kv.page_size;
    return select;
}

void tms_work_share(const tms_eviction_work *work, tms_select *select, float share) {
    const uint32_t beside = work->budgets[0] - work->eviction->window;
    const uint32_t own = tms_eviction_floor(share, beside), most = beside - work->eviction->sinks;
    select->wide.scope = TMS_SCOPE_ROW;
    select->wide.total = tms_eviction_saturated((uint64_t)work->n_kv_heads * work->budgets[0]);
    select->wide.floor = own < most ? own : most; /* so that the total is never exceeded */
}

/* Hands the select's scores to the trace, without those that it has none of. */
static tamis_status show(tms_eviction_work *work, const tms_select *select) {
    tms_device *dev = work->dev;
    uint64_t bytes = (uint64_t)select->batch.n_kv_heads * select->stride * sizeof(float);
    uint32_t stage = work->stage++;
    if (!work->trace || !select->scores.mem) return TAMIS_OK;
    tamis_status status = dev->backend->read(dev, select->scores, work->trace_scores, bytes);
    if (status == TAMIS_OK)
        work->trace(work->trace_user, work->layer, stage, work->trace_scores, select->stride,
                    select->granularity);
    return status;
}

tamis_status tms_work_select(tms_eviction_work *work, const tms_select *select) {
    tamis_status status = show(work, select);
    return status == TAMIS_OK ? tms_run_select(work->dev, select) : status;
}

tamis_status tms_work_observe(tms_eviction_work *work, uint32_t to) {
    tms_observe observe = work->window;
    observe.rows = TMS_ROWS_SUM;
    observe.group = TMS_GROUP_MEAN;
    observe.values = beside(work, to);
    return tms_run_observe(work->dev, &observe);
}

tamis_status tms_work_pooled(tms_eviction_work *work, uint32_t to, uint32_t spare) {
    const tamis_eviction *e = work->eviction;
    const tms_pool_values pool = {.batch = work->items,
                                  .n_lists = 1,
                                  .tail = e->window,
                                  .kernel = e->kernel,
                                  .kind = (tms_pooling)e->pooling,
                                  .x = work->values[spare],
                                  .out = work->values[to],
                                  .stride = work->stride};
    tamis_status status = tms_work_observe(work, spare);
    return status == TAMIS_OK ? tms_run_pool_values(work->dev, &pool) : status;
}

tamis_status tms_work_plane(tms_eviction_work *work, uint32_t to, bool lifetime) {
    tms_fuse fuse = tms_work_fuse(work, lifetime ? TMS_FUSE_LIFETIME : TMS_FUSE_AXPBY, to, to, to);
    fuse.x = (tms_values){work->planes.scores, 0};
    fuse.y.ref.mem = NULL;
    fuse.a = 1;
    fuse.positions = work->planes.positions;
    fuse.now = work->now;
    return tms_run_fuse(work->dev, &fuse);
}

tamis_status tms_work_norms(tms_eviction_work *work, uint32_t to) {
    tms_value_norm norm = work->value_norm;
    norm.out = work->values[to];
    norm.out_stride = work->stride;
    return tms_run_value_norm(work->dev, &norm);
}

tms_fuse tms_work_fuse(const tms_eviction_work *work, tms_fuse_kind kind, uint32_t x, uint32_t y,
                       uint32_t to) {
    return (tms_fuse){.batch = work->items,
                      .kind = kind,
                      .x = beside(work, x),
                      .y = beside(work, y),
                      .out = beside(work, to),
                      .page_size = work->kv.page_size};
}

tms_batch tms_work_head_items(const tms_eviction_work *work, uint32_t head) {
    tms_batch items = work->items;
    items.n_kv_heads = 1;
    items.n_heads = work->group;
    items.visible.offset += head * sizeof(int32_t);
    items.table.offset += head * items.head_stride * sizeof(int32_t);
    return items;
}

tms_ref tms_work_head_values(const tms_eviction_work *work, uint32_t index, uint32_t head) {
    tms_ref values = work->values[index];
    values.offset += head * work->stride * sizeof(float);
    return values;
}

tamis_status tms_work_head_tile(tms_eviction_work *work, uint32_t head, uint32_t tile) {
    tms_observe observe = work->window;
    tms_batch *rows = &observe.batch;
    rows->n_kv_heads = 1;
    rows->n_heads = work->group;
    rows->visible = work->window_visible;
    rows->visible.offset += (uint64_t)head * rows->n_rows * sizeof(int32_t);
    rows->table.offset += head * rows->head_stride * sizeof(int32_t);
    observe.q.ref.offset += (uint64_t)head * work->group * work->kv.head_dim * sizeof(float);
    observe.lse.offset += (uint64_t)head * work->group * sizeof(float);
    observe.tile = work->tiles[tile];
    observe.tile_stride = work->stride;
    return tms_run_observe(work->dev, &observe);
}

tamis_status tms_work_head_pool(tms_eviction_work *work, uint32_t head, uint32_t from, uint32_t to,
                                uint32_t tail, bool keep_sum) {
    const tms_pool_values pool = {.batch = tms_work_head_items(work, head),
                                  .n_lists = work->eviction->window * work->group,
                                  .tail = tail,
                                  .kernel = work->eviction->kernel,
                                  .kind = (tms_pooling)work->eviction->pooling,
                                  .keep_sum = keep_sum,
                                  .x = work->tiles[from],
                                  .out = work->tiles[to],
                                  .stride = work->stride};
    return tms_run_pool_values(work->dev, &pool);
}
