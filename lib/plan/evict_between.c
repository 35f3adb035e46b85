/* SPDX-License-Identifier: Apache-2.0 */
/* Evicting between steps: the tables, memory and launches of one layer. */
#include "lib/plan/evict_between.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- Tables ---------------------------------------------------------------------------------- */

static uint64_t tiles_of(uint64_t window) {
    return tms_divide_up(window, TMS_TILE_ROWS);
}

static tms_between_layout lay_out(const tms_setup *setup) {
    const uint64_t heads = setup->cache->params.n_kv_heads, window = setup->needs.window;
    const uint64_t lanes = setup->cache->n_lanes, pages = heads * setup->max_pages;
    tms_between_layout at;
    uint64_t end = 0;
    at.visible = tms_arena_place(&end, lanes);
    at.budgets = tms_arena_place(&end, lanes);
    at.row_seq = tms_arena_place(&end, window + 1);
    at.now = tms_arena_place(&end, 2);
    at.spans = tms_arena_place(&end, 2);
    at.tiles = tms_arena_place(&end, 2 * tiles_of(window) + 2);
    at.end_shared = end;
    at.rows = tms_arena_place(&end, window * heads);
    at.by_head = tms_arena_place(&end, window * heads);
    at.least = tms_arena_place(&end, window);
    at.end_layer = end;
    at.first = tms_arena_place(&end, window * heads);
    at.first_by_head = tms_arena_place(&end, window * heads);
    at.limits = tms_arena_place(&end, 2 * heads);
    at.k_table = tms_arena_place(&end, heads);
    at.to = tms_arena_place(&end, pages);
    at.full = tms_arena_place(&end, pages);
    at.end = end;
    return at;
}

static tms_ref table(const tms_between *b, uint64_t at) {
    return tms_arena_ref(&b->tables, at);
}

/* ---- The layer ------------------------------------------------------------------------------- */

static uint32_t longest_of(const uint32_t *slots, uint32_t n) {
    uint32_t longest = 0;
    for (uint32_t i = 0; i < n; i++)
        if (slots[i] > longest) longest = slots[i];
    return longest;
}

static tms_batch items_of(const tms_between *b, uint32_t layer, uint32_t n_items,
                          uint32_t longest) {
    const tms_between_layout at = b->at;
    const tamis_cache_params *c = &b->setup->cache->params;
    tms_batch items = {.n_rows = n_items,
                       .n_heads = c->n_heads,
                       .n_kv_heads = c->n_kv_heads,
                       .row_seq = table(b, at.row_seq),
                       .visible = table(b, at.visible + (uint64_t)layer * c->n_kv_heads),
                       .max_visible = longest};
    tms_page_table_place(b->table, layer, &items);
    return items;
}

/* Part `part` of between.window: the window's queries in order, their outs, their lse. */
static tms_matrix window_rows(const tms_between *b, uint32_t part) {
    const tamis_cache_params *c = &b->setup->cache->params;
    uint64_t width = (uint64_t)c->n_heads * c->head_dim;
    uint64_t block = b->setup->needs.window * width * sizeof(float);
    return (tms_matrix){{b->window, part * block}, width};
}

static tms_batch window_batch(const tms_between *b, uint32_t layer, const tms_batch *items) {
    const tms_sight_kind *kind = tms_sight_of(b->sight, layer);
    const tms_between_layout at = b->at;
    const uint32_t window = items->n_rows ? b->setup->needs.window : 0;
    tms_batch rows = *items;
    rows.n_rows = window;
    rows.n_tiles = (uint32_t)tiles_of(window);
    rows.tiles = table(b, at.tiles);
    rows.visible = table(b, at.rows);
    rows.max_tile_rows = window < TMS_TILE_ROWS ? window : TMS_TILE_ROWS;
    if (!kind) return rows;
    rows.first = table(b, at.first);
    rows.max_seen = kind->most;
    return rows;
}

static tms_observe window_of(const tms_between *b, const tms_evicted_layer *layer) {
    return (tms_observe){.kv = layer->kv,
                         .batch = window_batch(b, layer->index, &layer->items),
                         .n_items = layer->items.n_rows,
                         .max_span = b->setup->needs.window,
                         .spans = table(b, b->at.spans),
                         .q = window_rows(b, 0),
                         .lse = window_rows(b, 2).ref,
                         .lse_stride = layer->items.n_heads,
                         .logit = tms_setup_logit(b->setup, layer->index)};
}

/* Lists of the layer: kept (0) or forced (1). */
static tms_lists lists_of(const tms_between *b, uint32_t layer, uint32_t which) {
    const tamis_cache_params *c = &b->setup->cache->params;
    uint64_t lanes = tms_between_layers_at_once(b->setup) * c->n_kv_heads,
             capacity = b->setup->params.max_context;
    uint64_t first = b->setup->needs.across ? (uint64_t)layer * c->n_kv_heads : 0;
    uint64_t pages = which * lanes * capacity, counts = 2 * lanes * capacity + which * lanes;
    return (tms_lists){.pages = {b->lists, (pages + first * capacity) * sizeof(int32_t)},
                       .count = {b->lists, (counts + first) * sizeof(int32_t)},
                       .capacity = b->setup->params.max_context};
}

static void place_values(const tms_between *b, tms_evicted_layer *layer) {
    const tms_eviction_needs *asked = &b->setup->needs;
    uint64_t block = layer->n_kv_heads * layer->stride * sizeof(float);
    uint64_t row = (uint64_t)asked->window * layer->group * layer->stride * sizeof(float);
    uint64_t at_once = tms_between_layers_at_once(b->setup);
    for (uint32_t i = 0; i < asked->n_values; i++) {
        uint64_t at = i > 0 ? at_once + i - 1 : asked->across ? layer->index : 0;
        layer->values[i] = (tms_ref){b->values, at * block};
    }
    for (uint32_t i = 0; i < asked->n_weights; i++)
        layer->weights[i] = (tms_ref){b->weights, i * row};
}

tms_evicted_layer tms_between_layer(const tms_between *b, uint32_t index, uint32_t n_items) {
    const tms_between_layout at = b->at;
    const tamis_cache_params *c = &b->setup->cache->params;
    uint32_t lane = index * c->n_kv_heads;
    uint32_t longest = n_items ? longest_of(b->slots + lane, c->n_kv_heads) : 0;
    tms_evicted_layer layer = {.dev = b->setup->dev,
                               .eviction = &b->setup->params.eviction,
                               .index = index,
                               .n_kv_heads = c->n_kv_heads,
                               .group = c->n_heads / c->n_kv_heads,
                               .longest = longest,
                               .slots = b->slots + lane,
                               .budgets = b->budgets + lane,
                               .budget_table = table(b, at.budgets + lane),
                               .kv = tms_cache_kv(b->setup->cache, index),
                               .planes = tms_cache_planes(b->setup->cache, index),
                               .items = items_of(b, index, n_items, longest),
                               .stride = b->stride,
                               .limits = table(b, at.limits),
                               .k_table = table(b, at.k_table),
                               .now = table(b, at.now),
                               .scratch = {b->scratch, 0},
                               .kept = lists_of(b, index, 0),
                               .forced = lists_of(b, index, 1),
                               .trace = b->trace,
                               .trace_user = b->trace_user,
                               .trace_scores = b->trace_scores};
    const tms_output *output = b->outputs ? &b->outputs[index] : NULL;
    layer.window = window_of(b, &layer);
    layer.window_visible = table(b, at.by_head);
    if (layer.window.batch.first.mem) layer.window_first = table(b, at.first_by_head);
    layer.value_norm = (tms_value_norm){.kv = layer.kv,
                                        .batch = layer.items,
                                        .kind = TMS_VALUE_L1_PROJECTED,
                                        .w = output ? output->w : (tms_ref){NULL, 0},
                                        .w_dtype = output ? output->dtype : TAMIS_F32,
                                        .w_stride = output ? output->stride : 0,
                                        .n_out = output ? output->n_rows : 0};
    place_values(b, &layer);
    return layer;
}

/* ---- Uploads --------------------------------------------------------------------------------- */

tamis_status tms_between_send_sequence(const tms_between *b, const tms_sequence *sequence,
                                       uint32_t row, tamis_error *error) {
    const tms_between_layout at = b->at;
    uint32_t window = b->setup->needs.window;
    int32_t *host = b->tables.host;
    for (uint32_t lane = 0; lane < b->setup->cache->n_lanes; lane++) {
        host[at.visible + lane] = (int32_t)sequence->lanes[lane].length;
        host[at.budgets + lane] = (int32_t)b->budgets[lane];
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
    return tms_arena_send(&b->tables, b->setup->dev, 0, at.end_shared, error);
}

/* Uploads how many slots the window's rows, of which `end` is the position after the last, see in the
 * layer's lanes. */
static tamis_status send_rows(const tms_between *b, const tms_evicted_layer *layer, uint32_t end,
                              tamis_error *error) {
    const tms_sight_kind *kind = tms_sight_of(b->sight, layer->index);
    const tms_between_layout at = b->at;
    uint32_t window = b->setup->needs.window, heads = layer->n_kv_heads;
    int32_t *host = b->tables.host;
    for (uint32_t h = 0; h < heads; h++)
        for (uint32_t t = 0; t < window; t++) {
            uint32_t length = layer->slots[h], later = window - 1 - t;
            int32_t sees = length > later ? (int32_t)(length - later) : 0;
            host[at.rows + t * heads + h] = sees;
            host[at.by_head + h * window + t] = sees;
        }
    for (uint32_t t = 0; t < window; t++)
        host[at.least + t] =
            kind && end + t >= window ? (int32_t)tms_sight_least(kind, end + t - window) : 0;
    return tms_arena_send(&b->tables, b->setup->dev, at.rows, at.end_layer, error);
}

/* Looks up from which slots on the window's rows see. */
static tamis_status seek_rows(const tms_between *b, const tms_evicted_layer *layer,
                              tamis_error *error) {
    const tms_batch *rows = &layer->window.batch;
    const tms_ref least = table(b, b->at.least);
    if (!tms_sight_of(b->sight, layer->index)) return TAMIS_OK;
    TMS_TRY(tms_sight_seek(b->sight, layer->index, rows, least, table(b, b->at.first),
                           layer->n_kv_heads, 1, error));
    return tms_sight_seek(b->sight, layer->index, rows, least, table(b, b->at.first_by_head), 1,
                          b->setup->needs.window, error);
}

tamis_status tms_between_send_layer(const tms_between *b, const tms_sequence *sequence,
                                    uint32_t ring, const tms_evicted_layer *layer,
                                    tamis_error *error) {
    const tms_setup *setup = b->setup;
    const tms_batch *rows = &layer->window.batch;
    const tms_attend attend = {.kv = layer->kv,
                               .batch = *rows,
                               .q = layer->window.q,
                               .out = window_rows(b, 1),
                               .lse = layer->window.lse,
                               .logit = tms_setup_logit(setup, layer->index),
                               .max_pages = tms_pages_of(setup->cache, rows->max_visible),
                               .scratch = layer->scratch};
    if (setup->needs.window == 0) return TAMIS_OK;
    TMS_TRY(send_rows(b, layer, sequence->length, error));
    TMS_TRY(seek_rows(b, layer, error));
    TMS_TRY(tms_query_rings_unroll(b->rings, layer->index, ring, sequence->length, attend.q.ref,
                                   error));
    return tms_run_attend(setup->dev, &attend, error);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Scratch of the ops that score and select, at the largest. */
static uint64_t scratch_bytes(const tms_between *b) {
    const tms_setup *setup = b->setup;
    const tms_evicted_layer layer = tms_between_layer(b, 0, 1);
    const uint32_t window = setup->needs.window, longest = setup->params.max_context;
    tms_select select = {.batch = layer.items, .granularity = 1, .k = longest};
    select.batch.max_visible = longest;
    select.batch.n_kv_heads *= tms_between_layers_at_once(setup);
    select.batch.n_heads = select.batch.n_kv_heads;
    select.wide.scope = TMS_SCOPE_ROW;
    tms_value_score value = {.kv = layer.kv,
                             .batch = tms_layer_head_items(&layer, 0),
                             .n_lists = window * layer.group,
                             .stride = layer.stride,
                             .out_stride = layer.stride};
    value.batch.max_visible = longest;
    tms_attend attend = {.kv = layer.kv,
                         .batch = layer.items,
                         .logit = tms_setup_logit(setup, 0),
                         .max_pages = setup->max_pages};
    attend.batch.n_rows = attend.batch.n_tiles = window;
    attend.batch.max_visible = longest;
    attend.batch.max_tile_rows = TMS_TILE_ROWS;
    uint64_t bytes[] = {tms_select_scratch(setup->dev, &select),
                        setup->needs.n_weights ? tms_value_score_scratch(setup->dev, &value) : 0,
                        window ? tms_attend_scratch(setup->dev, &attend) : 0};
    uint64_t most = 0;
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++)
        if (bytes[i] > most) most = bytes[i];
    return most;
}

static tamis_status take_device(tms_between *b, tamis_error *error) {
    const tms_setup *setup = b->setup;
    const tms_eviction_needs *needs = &setup->needs;
    const tamis_cache_params *c = &setup->cache->params;
    uint64_t heads = c->n_kv_heads, group = c->n_heads / c->n_kv_heads, window = needs->window;
    uint64_t at_once = tms_between_layers_at_once(setup);
    uint64_t values = (at_once + needs->n_values - 1) * heads * b->stride;
    uint64_t weights = needs->n_weights * window * group * b->stride;
    uint64_t lists = 2 * at_once * heads * (setup->params.max_context + 1ull);
    uint64_t rows = window * (2 * tms_setup_width(setup) + c->n_heads);
    TMS_TRY(tms_memory_take(setup->memory, values * sizeof(float), &b->values, error));
    TMS_TRY(tms_memory_take(setup->memory, weights * sizeof(float), &b->weights, error));
    TMS_TRY(tms_memory_take(setup->memory, lists * sizeof(int32_t), &b->lists, error));
    TMS_TRY(tms_memory_take(setup->memory, rows * sizeof(float), &b->window, error));
    return tms_memory_take(setup->memory, scratch_bytes(b), &b->scratch, error);
}

static tamis_status take_host(tms_between *b, tamis_error *error) {
    const tms_setup *setup = b->setup;
    size_t lanes = setup->cache->n_lanes, layers = setup->cache->params.n_layers;
    b->outputs = tms_memory_host(setup->memory, layers, sizeof *b->outputs);
    b->layer_budgets = tms_memory_host(setup->memory, layers, sizeof *b->layer_budgets);
    b->bound = tms_memory_host(setup->memory, lanes, sizeof *b->bound);
    b->slots = tms_memory_host(setup->memory, lanes, sizeof *b->slots);
    b->budgets = tms_memory_host(setup->memory, lanes, sizeof *b->budgets);
    b->most = tms_memory_host(setup->memory, lanes, sizeof *b->most);
    b->kept = tms_memory_host(setup->memory, lanes, sizeof *b->kept);
    b->together = tms_memory_host(setup->memory, layers, sizeof *b->together);
    TMS_REQUIRE(b->outputs && b->layer_budgets && b->bound && b->slots && b->budgets && b->most &&
                    b->kept && b->together,
                TAMIS_E_NO_MEMORY, "no host memory to evict from %zu lanes", lanes);
    return TAMIS_OK;
}

tamis_status tms_between_create(tms_between *b, tamis_error *error) {
    const tms_setup *setup = b->setup;
    if (!setup->needs.active) return TAMIS_OK;
    TMS_REQUIRE(setup->needs.window <= setup->params.max_context, TAMIS_E_ARGUMENT,
                "window %" PRIu32 " exceeds max_context %" PRIu32, setup->needs.window,
                setup->params.max_context);
    b->stride = tms_align_ints(setup->params.max_context);
    b->at = lay_out(setup);
    TMS_TRY(tms_arena_create(&b->tables, setup->memory, b->at.end, "evicting", error));
    TMS_TRY(take_host(b, error));
    return take_device(b, error);
}

void tms_between_destroy(tms_between *b) {
    tms_device *dev = b->setup->dev;
    tms_mem *memories[] = {b->window, b->values, b->weights, b->lists, b->scratch};
    for (size_t i = 0; i < sizeof memories / sizeof *memories; i++)
        tms_device_free(dev, memories[i]);
    tms_arena_destroy(&b->tables, dev);
    for (uint32_t i = 0; b->outputs && i < b->setup->cache->params.n_layers; i++)
        tms_let_go(b->outputs[i].held);
    void *hosts[] = {b->outputs, b->layer_budgets, b->bound,    b->slots,       b->budgets,
                     b->most,    b->kept,          b->together, b->trace_scores};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++)
        free(hosts[i]);
}

/* ---- Kernels --------------------------------------------------------------------------------- */

/* Runs the kind's `score` and its select on an empty layer. */
static tamis_status warm_score(tms_between *b, tms_evicted_layer *layer, tamis_error *error) {
    *layer = tms_between_layer(b, 0, 0);
    TMS_TRY(b->setup->needs.entry->score(layer, error));
    return tms_run_select(b->setup->dev, &layer->select, error);
}

tamis_status tms_between_warm(tms_between *b, tamis_error *error) {
    const tms_setup *setup = b->setup;
    const bool head_budgets = setup->needs.head_budgets;
    uint32_t *budgets = b->budgets;
    tms_evicted_layer layer;
    if (!setup->needs.active) return TAMIS_OK;
    for (uint32_t lane = 0; lane < setup->cache->n_lanes; lane++)
        budgets[lane] = setup->params.eviction.budget;
    /* Budgets of single heads lead to other parameters of select. */
    budgets[0] -= head_budgets;
    if (head_budgets) TMS_TRY(warm_score(b, &layer, error));
    budgets[0] = setup->params.eviction.budget;
    TMS_TRY(warm_score(b, &layer, error));
    tms_compact compact = {.kv = layer.kv,
                           .planes = layer.planes,
                           .batch = layer.items,
                           .lists = layer.kept,
                           .granularity = layer.select.granularity,
                           .to = table(b, b->at.to),
                           .to_stride = setup->max_pages};
    return tms_run_compact(setup->dev, &compact, error);
}
