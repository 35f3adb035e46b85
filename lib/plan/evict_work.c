/* SPDX-License-Identifier: Apache-2.0 */
/* One layer of one sequence that is evicted from: its tables on the device, and the memory and
 * launches that scores are made with. */
#include "lib/plan/plan.h"

static uint64_t tiles_of(uint64_t window) {
    return tms_divide_up(window, TMS_TILE_ROWS);
}

tms_work_layout tms_plan_lay_out_work(const tamis_plan *plan) {
    uint64_t heads = plan->cache->params.n_kv_heads, window = plan->eviction.asked.window;
    uint64_t lanes = plan->cache->n_lanes, pages = heads * plan->max_pages;
    tms_work_layout at = {.visible = 0};
    at.budgets = tms_align_ints(lanes);
    at.row_seq = at.budgets + tms_align_ints(lanes);
    at.now = at.row_seq + tms_align_ints(window + 1);
    at.spans = at.now + tms_align_ints(2);
    at.tiles = at.spans + tms_align_ints(2);
    at.end_shared = at.rows = at.tiles + tms_align_ints(2 * tiles_of(window) + 2);
    at.by_head = at.rows + tms_align_ints(window * heads);
    at.end_layer = at.limits = at.by_head + tms_align_ints(window * heads);
    at.k_table = at.limits + tms_align_ints(2 * heads);
    at.to = at.k_table + tms_align_ints(heads);
    at.bounds = at.to + tms_align_ints(pages);
    at.end = at.bounds + tms_align_ints(pages);
    return at;
}

static tms_ref table(const tamis_plan *plan, uint64_t at) {
    return (tms_ref){plan->eviction.tables, at * sizeof(int32_t)};
}

tms_ref tms_plan_to_table(const tamis_plan *plan) {
    return table(plan, plan->eviction.at.to);
}

tms_ref tms_plan_bounds_table(const tamis_plan *plan) {
    return table(plan, plan->eviction.at.bounds);
}

/* ---- Uploads --------------------------------------------------------------------------------- */

tamis_status tms_plan_send_sequence(tamis_plan *plan, const tms_sequence *sequence, uint32_t row) {
    const tms_work_layout at = plan->eviction.at;
    uint32_t window = plan->eviction.asked.window;
    int32_t *host = plan->eviction.host;
    for (uint32_t lane = 0; lane < plan->cache->n_lanes; lane++) {
        host[at.visible + lane] = (int32_t)sequence->lanes[lane].length;
        host[at.budgets + lane] = (int32_t)plan->eviction.budgets[lane];
    }
    for (uint32_t i = 0; i < window + 1; i++)
        host[at.row_seq + i] = (int32_t)row;
    host[at.now] = (int32_t)sequence->length - 1;
    host[at.now + 1] = (int32_t)sequence->length;
    host[at.spans] = 0;
    host[at.spans + 1] = (int32_t)window;
    for (uint32_t first = 0, t = 0; first < window; first += TMS_TILE_ROWS, t++) {
        uint32_t left = window - first;
        host[at.tiles + 2 * t] = (int32_t)first;
        host[at.tiles + 2 * t + 1] = (int32_t)(left < TMS_TILE_ROWS ? left : TMS_TILE_ROWS);
    }
    return tms_plan_send(plan, table(plan, 0), host, at.end_shared * sizeof *host);
}

tamis_status tms_plan_send_layer(tamis_plan *plan, const tms_sequence *sequence, uint32_t layer) {
    const tms_work_layout at = plan->eviction.at;
    uint32_t window = plan->eviction.asked.window, heads = plan->cache->params.n_kv_heads;
    int32_t *host = plan->eviction.host;
    if (window == 0) return TAMIS_OK;
    for (uint32_t h = 0; h < heads; h++)
        for (uint32_t t = 0; t < window; t++) {
            uint32_t length = sequence->lanes[layer * heads + h].length, later = window - 1 - t;
            int32_t sees = length > later ? (int32_t)(length - later) : 0;
            host[at.rows + t * heads + h] = sees;
            host[at.by_head + h * window + t] = sees;
        }
    return tms_plan_send(plan, table(plan, at.rows), host + at.rows,
                         (at.end_layer - at.rows) * sizeof *host);
}

/* ---- The work -------------------------------------------------------------------------------- */

static uint32_t longest_of(const uint32_t *slots, uint32_t n) {
    uint32_t longest = 0;
    for (uint32_t i = 0; i < n; i++)
        if (slots[i] > longest) longest = slots[i];
    return longest;
}

static tms_batch items_of(const tamis_plan *plan, uint32_t layer, uint32_t n_items,
                          uint32_t longest) {
    const tms_work_layout at = plan->eviction.at;
    const tamis_cache_params *c = &plan->cache->params;
    uint64_t heads = c->n_kv_heads, lists = plan->max_pages;
    return (tms_batch){.n_rows = n_items,
                       .n_heads = c->n_heads,
                       .n_kv_heads = c->n_kv_heads,
                       .row_seq = table(plan, at.row_seq),
                       .visible = table(plan, at.visible + layer * heads),
                       .table = {plan->table, layer * heads * lists * sizeof(int32_t)},
                       .seq_stride = plan->cache->n_lanes * lists,
                       .head_stride = lists,
                       .max_visible = longest};
}

/* The window's queries in order, their outs and lse, in eviction.window. */
static tms_matrix window_rows(const tamis_plan *plan, uint32_t part) {
    const tamis_cache_params *c = &plan->cache->params;
    uint64_t width = (uint64_t)c->n_heads * c->head_dim;
    uint64_t block = plan->eviction.asked.window * width * sizeof(float);
    return (tms_matrix){{plan->eviction.window, part * block}, width};
}

static tms_batch window_batch(const tamis_plan *plan, const tms_batch *items) {
    const tms_work_layout at = plan->eviction.at;
    const uint32_t window = items->n_rows ? plan->eviction.asked.window : 0;
    tms_batch rows = *items;
    rows.n_rows = window;
    rows.n_tiles = (uint32_t)tiles_of(window);
    rows.tiles = table(plan, at.tiles);
    rows.visible = table(plan, at.rows);
    rows.max_tile_rows = window < TMS_TILE_ROWS ? window : TMS_TILE_ROWS;
    return rows;
}

static tms_observe window_of(const tamis_plan *plan, const tms_evicted_layer *work) {
    return (tms_observe){.kv = work->kv,
                         .batch = window_batch(plan, &work->items),
                         .n_items = work->items.n_rows,
                         .max_span = plan->eviction.asked.window,
                         .spans = table(plan, plan->eviction.at.spans),
                         .q = window_rows(plan, 0),
                         .lse = window_rows(plan, 2).ref,
                         .lse_stride = work->items.n_heads,
                         .scale = plan->params.scale,
                         .soft_cap = plan->params.soft_cap};
}

/* Lists of the layer: kept (0) or forced (1). */
static tms_lists lists_of(const tamis_plan *plan, uint32_t layer, uint32_t which) {
    const tamis_cache_params *c = &plan->cache->params;
    uint64_t lanes = tms_plan_layers_at_once(plan) * c->n_kv_heads,
             capacity = plan->params.max_context;
    uint64_t first = plan->eviction.asked.across ? (uint64_t)layer * c->n_kv_heads : 0;
    uint64_t pages = which * lanes * capacity, counts = 2 * lanes * capacity + which * lanes;
    return (tms_lists){
        .pages = {plan->eviction.lists, (pages + first * capacity) * sizeof(int32_t)},
        .count = {plan->eviction.lists, (counts + first) * sizeof(int32_t)},
        .capacity = plan->params.max_context};
}

static void place_values(const tamis_plan *plan, tms_evicted_layer *work) {
    const tms_eviction_needs *asked = &plan->eviction.asked;
    uint64_t block = work->n_kv_heads * work->stride * sizeof(float);
    uint64_t tile = (uint64_t)asked->window * work->group * work->stride * sizeof(float);
    uint64_t at_once = tms_plan_layers_at_once(plan);
    for (uint32_t i = 0; i < asked->n_values; i++) {
        uint64_t at = i > 0 ? at_once + i - 1 : asked->across ? work->index : 0;
        work->values[i] = (tms_ref){plan->eviction.values, at * block};
    }
    for (uint32_t i = 0; i < asked->n_weights; i++)
        work->weights[i] = (tms_ref){plan->eviction.tiles, i * tile};
}

tms_evicted_layer tms_plan_work(const tamis_plan *plan, uint32_t layer, uint32_t n_items) {
    const tms_work_layout at = plan->eviction.at;
    const tms_plan_eviction *e = &plan->eviction;
    const tamis_cache_params *c = &plan->cache->params;
    uint32_t lane = layer * c->n_kv_heads;
    uint32_t longest = n_items ? longest_of(e->slots + lane, c->n_kv_heads) : 0;
    tms_evicted_layer work = {.dev = plan->dev,
                              .eviction = &plan->params.eviction,
                              .index = layer,
                              .n_kv_heads = c->n_kv_heads,
                              .group = c->n_heads / c->n_kv_heads,
                              .longest = longest,
                              .slots = e->slots + lane,
                              .budgets = e->budgets + lane,
                              .budget_table = table(plan, at.budgets + lane),
                              .kv = tms_cache_kv(plan->cache, layer),
                              .planes = tms_cache_planes(plan->cache, layer),
                              .items = items_of(plan, layer, n_items, longest),
                              .stride = e->stride,
                              .limits = table(plan, at.limits),
                              .k_table = table(plan, at.k_table),
                              .now = table(plan, at.now),
                              .scratch = {e->scratch, 0},
                              .kept = lists_of(plan, layer, 0),
                              .forced = lists_of(plan, layer, 1),
                              .trace = e->trace,
                              .trace_user = e->trace_user,
                              .trace_scores = e->trace_scores};
    const tms_output *output = e->outputs ? &e->outputs[layer] : NULL;
    work.window = window_of(plan, &work);
    work.window_visible = table(plan, at.by_head);
    work.value_norm = (tms_value_norm){.kv = work.kv,
                                       .batch = work.items,
                                       .kind = TMS_VALUE_L1_PROJECTED,
                                       .w = output ? output->w : (tms_ref){NULL, 0},
                                       .w_dtype = output ? output->dtype : TAMIS_F32,
                                       .w_stride = output ? output->stride : 0,
                                       .n_out = output ? output->n_rows : 0};
    place_values(plan, &work);
    return work;
}

/* Copies ring rows of positions [first, end), which follow each other in the ring, to `to`. */
static tamis_status copy_rows(tamis_plan *plan, uint32_t layer, uint32_t row, uint32_t first,
                              uint32_t end, tms_ref to) {
    const tamis_cache_params *c = &plan->cache->params;
    uint32_t window = plan->eviction.asked.window;
    uint64_t bytes = (uint64_t)c->n_heads * c->head_dim * sizeof(float);
    uint64_t ring = ((uint64_t)layer * plan->params.max_sequences + row) * window;
    tms_ref from = {plan->eviction.ring, (ring + first % window) * bytes};
    if (first == end) return TAMIS_OK;
    return plan->dev->backend->copy(plan->dev, to, from, (end - first) * bytes);
}

tamis_status tms_plan_attend_window(tamis_plan *plan, const tms_evicted_layer *work, uint32_t row,
                                    uint32_t length) {
    uint32_t window = plan->eviction.asked.window, first = length - window;
    /* The ring's place 0 comes again at this position. */
    uint32_t wrap = first % window ? first + window - first % window : length;
    tms_matrix q = window_rows(plan, 0);
    tms_ref rest = q.ref;
    rest.offset += (wrap - first) * q.stride * sizeof(float);
    tms_attend attend = tms_plan_attend_all(plan, work->index);
    attend.batch = work->window.batch;
    attend.max_pages = tms_pages_of(plan->cache, attend.batch.max_visible);
    attend.q = q;
    attend.out = window_rows(plan, 1);
    attend.lse = work->window.lse;
    attend.scratch = work->scratch;
    attend.intervals.mem = attend.positions.mem = NULL;
    tamis_status status = copy_rows(plan, work->index, row, first, wrap, q.ref);
    if (status == TAMIS_OK) status = copy_rows(plan, work->index, row, wrap, length, rest);
    return status == TAMIS_OK ? tms_run_attend(plan->dev, &attend) : status;
}
