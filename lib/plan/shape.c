/* SPDX-License-Identifier: Apache-2.0 */
/* The open step's ops: which tables, memory and sizes each launch gets. */
#include "lib/plan/plan.h"

tms_batch tms_step_batch(const tamis_plan *plan, uint32_t layer) {
    const tms_step *step = &plan->step;
    const tamis_cache_params *cache = &plan->cache->params;
    uint64_t heads = cache->n_kv_heads, lists = plan->max_pages;
    return (tms_batch){
        .n_rows = step->n_rows,
        .n_tiles = step->n_tiles,
        .n_heads = cache->n_heads,
        .n_kv_heads = cache->n_kv_heads,
        .tiles = tms_step_table(plan, step->at.tiles),
        .row_seq = tms_step_table(plan, step->at.row_seq),
        .visible = tms_step_table(plan, step->at.visible + layer * step->n_rows * heads),
        .table = {plan->table, layer * heads * lists * sizeof(int32_t)},
        .seq_stride = plan->cache->n_lanes * lists,
        .head_stride = lists,
        .max_visible = step->fixed ? plan->params.max_context : step->layers[layer].max_visible,
        .max_tile_rows = step->max_tile_rows};
}

tms_write_rows tms_plan_write_rows(const tamis_plan *plan, uint32_t layer) {
    const tms_step *step = &plan->step;
    uint64_t row = plan->cache->params.n_kv_heads;
    tms_write_rows write = {.kv = tms_cache_kv(plan->cache, layer),
                            .batch = tms_step_batch(plan, layer),
                            .slots =
                                tms_step_table(plan, step->at.slots + layer * step->n_rows * row)};
    write.planes = tms_cache_planes(plan->cache, layer);
    if (write.planes.positions.mem) write.positions = tms_step_table(plan, step->at.positions);
    return write;
}

tms_attend tms_plan_attend_all(const tamis_plan *plan, uint32_t layer) {
    const tamis_plan_params *p = &plan->params;
    tms_attend attend = {.kv = tms_cache_kv(plan->cache, layer),
                         .batch = tms_step_batch(plan, layer),
                         .scale = p->scale,
                         .soft_cap = p->soft_cap,
                         .scratch = {plan->scratch, 0}};
    attend.max_pages = tms_pages_of(plan->cache, attend.batch.max_visible);
    if (p->sliding_window) {
        attend.intervals = tms_step_table(plan, plan->step.at.intervals);
        attend.positions = tms_cache_planes(plan->cache, layer).positions;
    }
    return attend;
}

tms_sparse_attend tms_plan_attend_listed(const tamis_plan *plan, uint32_t layer) {
    const tms_reading *reading = &plan->reading;
    uint64_t entries = (uint64_t)plan->params.max_selected_rows * plan->cache->params.n_kv_heads;
    tms_sparse_attend p = {.attend = tms_plan_attend_all(plan, layer)};
    p.attend.lists = (tms_lists){.pages = {plan->lists, 0},
                                 .count = {plan->lists, entries * reading->k * sizeof(int32_t)},
                                 .capacity = reading->k};
    if (p.attend.max_pages > reading->k) p.attend.max_pages = reading->k;
    p.select = (tms_select){.batch = p.attend.batch,
                            .granularity = plan->cache->params.page_size,
                            .k = reading->k,
                            .sinks = reading->sinks,
                            .recent = reading->recent,
                            .lists = p.attend.lists};
    /* Lanes that stay at their length have tokens out of order. */
    if (plan->eviction.asked.in_place) {
        p.select.wide.positions = tms_cache_planes(plan->cache, layer).positions;
        p.select.wide.row_positions = tms_step_table(plan, plan->step.at.positions);
        p.select.wide.page_size = plan->cache->params.page_size;
        p.select.scratch = (tms_ref){plan->scratch, 0};
    }
    p.score =
        (tms_score_pages){.kv = p.attend.kv, .batch = p.attend.batch, .group = reading->group};
    if (reading->scored) {
        p.score.scores = p.select.scores = (tms_ref){plan->scores, 0};
        p.score.stride = p.select.stride = plan->max_pages;
    }
    return p;
}

bool tms_plan_fuses(const tamis_plan *plan, const tms_sparse_attend *p) {
    tms_device *dev = plan->dev;
    const tms_backend *backend = dev->backend;
    return plan->reading.scored == TMS_SCORE_BOUNDS && !plan->params.separate &&
           backend->sparse_attend && !tms_select_is_wide(&p->select) &&
           (!backend->sparse_attend_refusal || !backend->sparse_attend_refusal(dev, p));
}
