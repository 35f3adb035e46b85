/* SPDX-License-Identifier: Apache-2.0 */
/* The common steps of the scores of evictions. */
#include "lib/evict/evict.h"

static tms_values beside(const tms_evicted_layer *layer, uint32_t index) {
    return (tms_values){layer->values[index], layer->stride};
}

tms_select tms_layer_budget(const tms_evicted_layer *layer, uint32_t recent, uint32_t values,
                            tms_lists lists) {
    tms_select select = {.batch = layer->items,
                         .granularity = 1,
                         .k = layer->budgets[0],
                         .sinks = layer->eviction->sinks,
                         .recent = recent,
                         .scores = layer->values[values],
                         .stride = (uint32_t)layer->stride,
                         .lists = lists,
                         .scratch = layer->scratch};
    for (uint32_t h = 1; h < layer->n_kv_heads; h++) {
        if (layer->budgets[h] != layer->budgets[0]) select.wide.k_table = layer->budget_table;
        if (layer->budgets[h] > select.k) select.k = layer->budgets[h];
    }
    return select;
}

tms_select tms_layer_budget_by_position(const tms_evicted_layer *layer, uint32_t recent,
                                        uint32_t values, tms_lists lists) {
    tms_select select = tms_layer_budget(layer, recent, values, lists);
    /* The row's position is that of the next token, so that the newest one is not protected as the
     * row's own token. So recent counts one more. */
    if (recent > 0) select.recent++;
    select.wide.positions = layer->planes.positions;
    select.wide.row_positions = layer->now;
    select.wide.row_positions.offset += sizeof(int32_t);
    select.wide.page_size = layer->kv.page_size;
    return select;
}

void tms_layer_share(const tms_evicted_layer *layer, tms_select *select, float share) {
    const uint32_t beside = layer->budgets[0] - layer->eviction->window;
    const uint32_t own = tms_eviction_floor(share, beside), most = beside - layer->eviction->sinks;
    select->wide.scope = TMS_SCOPE_ROW;
    select->wide.total = tms_eviction_saturated((uint64_t)layer->n_kv_heads * layer->budgets[0]);
    select->wide.floor = own < most ? own : most; /* so that the total is never exceeded */
}

/* Gives the select's scores to the trace, only for the slots that have scores. */
static tamis_status show(tms_evicted_layer *layer, const tms_select *select, tamis_error *error) {
    uint64_t bytes = (uint64_t)select->batch.n_kv_heads * select->stride * sizeof(float);
    uint32_t stage = layer->stage++;
    if (!layer->trace || !select->scores.mem) return TAMIS_OK;
    TMS_TRY(tms_device_read(layer->dev, select->scores, layer->trace_scores, bytes, error));
    layer->trace(layer->trace_user, layer->index, stage, layer->trace_scores, select->stride,
                 select->granularity);
    return TAMIS_OK;
}

tamis_status tms_layer_select(tms_evicted_layer *layer, const tms_select *select,
                              tamis_error *error) {
    TMS_TRY(show(layer, select, error));
    return tms_run_select(layer->dev, select, error);
}

tamis_status tms_layer_observe(tms_evicted_layer *layer, uint32_t to, tamis_error *error) {
    tms_observe observe = layer->window;
    observe.rows = TAMIS_ROWS_SUM;
    observe.group = TAMIS_GROUP_MEAN;
    observe.values = beside(layer, to);
    return tms_run_observe(layer->dev, &observe, error);
}

tamis_status tms_layer_pooled(tms_evicted_layer *layer, uint32_t to, uint32_t spare,
                              tamis_error *error) {
    const tamis_eviction *e = layer->eviction;
    const tms_pool_values pool = {.batch = layer->items,
                                  .n_lists = 1,
                                  .tail = e->window,
                                  .kernel = e->kernel,
                                  .kind = e->pooling,
                                  .x = layer->values[spare],
                                  .out = layer->values[to],
                                  .stride = layer->stride};
    TMS_TRY(tms_layer_observe(layer, spare, error));
    return tms_run_pool_values(layer->dev, &pool, error);
}

tamis_status tms_layer_plane(tms_evicted_layer *layer, uint32_t to, bool lifetime,
                             tamis_error *error) {
    tms_fuse fuse =
        tms_layer_fuse(layer, lifetime ? TMS_FUSE_LIFETIME : TMS_FUSE_AXPBY, to, to, to);
    fuse.x = (tms_values){layer->planes.scores, 0};
    fuse.y.ref.mem = NULL;
    fuse.a = 1;
    fuse.positions = layer->planes.positions;
    fuse.now = layer->now;
    return tms_run_fuse(layer->dev, &fuse, error);
}

tamis_status tms_layer_norms(tms_evicted_layer *layer, uint32_t to, tamis_error *error) {
    tms_value_norm norm = layer->value_norm;
    norm.out = layer->values[to];
    norm.out_stride = layer->stride;
    return tms_run_value_norm(layer->dev, &norm, error);
}

tms_fuse tms_layer_fuse(const tms_evicted_layer *layer, tms_fuse_kind kind, uint32_t x, uint32_t y,
                        uint32_t to) {
    return (tms_fuse){.batch = layer->items,
                      .kind = kind,
                      .x = beside(layer, x),
                      .y = beside(layer, y),
                      .out = beside(layer, to),
                      .page_size = layer->kv.page_size};
}

tms_batch tms_layer_head_items(const tms_evicted_layer *layer, uint32_t head) {
    tms_batch items = layer->items;
    items.n_kv_heads = 1;
    items.n_heads = layer->group;
    items.visible.offset += head * sizeof(int32_t);
    items.table.offset += head * items.head_stride * sizeof(int32_t);
    return items;
}

tms_ref tms_layer_head_values(const tms_evicted_layer *layer, uint32_t index, uint32_t head) {
    tms_ref values = layer->values[index];
    values.offset += head * layer->stride * sizeof(float);
    return values;
}

tamis_status tms_layer_head_weights(tms_evicted_layer *layer, uint32_t head, uint32_t to,
                                    tamis_error *error) {
    tms_observe observe = layer->window;
    tms_batch *rows = &observe.batch;
    rows->n_kv_heads = 1;
    rows->n_heads = layer->group;
    rows->visible = layer->window_visible;
    rows->visible.offset += (uint64_t)head * rows->n_rows * sizeof(int32_t);
    rows->first = layer->window_first;
    rows->first.offset += (uint64_t)head * rows->n_rows * sizeof(int32_t);
    rows->table.offset += head * rows->head_stride * sizeof(int32_t);
    observe.q.ref.offset += (uint64_t)head * layer->group * layer->kv.head_dim * sizeof(float);
    observe.lse.offset += (uint64_t)head * layer->group * sizeof(float);
    observe.tile = layer->weights[to];
    observe.tile_stride = layer->stride;
    return tms_run_observe(layer->dev, &observe, error);
}

tamis_status tms_layer_head_pooled(tms_evicted_layer *layer, uint32_t head, uint32_t from,
                                   uint32_t to, uint32_t tail, bool keep_sum, tamis_error *error) {
    const tms_pool_values pool = {.batch = tms_layer_head_items(layer, head),
                                  .n_lists = layer->eviction->window * layer->group,
                                  .tail = tail,
                                  .kernel = layer->eviction->kernel,
                                  .kind = layer->eviction->pooling,
                                  .keep_sum = keep_sum,
                                  .x = layer->weights[from],
                                  .out = layer->weights[to],
                                  .stride = layer->stride};
    return tms_run_pool_values(layer->dev, &pool, error);
}
