/* SPDX-License-Identifier: Apache-2.0 */
/* A layer of the open step: what its launches take, its calls, what they have read. */
#include "lib/plan/launches.h"
#include "lib/plan/plan.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- Stages ---------------------------------------------------------------------------------- */

tamis_status tms_stage_start(const tms_setup *setup, tms_event **from) {
    *from = NULL;
    if (!setup->params.timing) return TAMIS_OK;
    return setup->dev->backend->event_record(setup->dev, true, from);
}

tamis_status tms_stage_stop(const tms_setup *setup, tms_event *from, tamis_status status,
                            double *us) {
    if (!from) return status;
    tms_device *dev = setup->dev;
    tms_event *to = NULL;
    double elapsed = 0;
    if (status == TAMIS_OK) status = dev->backend->event_record(dev, true, &to);
    if (status == TAMIS_OK) status = dev->backend->event_elapsed(dev, from, to, &elapsed);
    *us += elapsed;
    if (to) dev->backend->event_free(dev, to);
    dev->backend->event_free(dev, from);
    return status;
}

/* Makes a call of the device as TMS_TRY does; its time goes to the stage `stage`. */
#define TIME(plan, stage, call)                                                                    \
    do {                                                                                           \
        tms_event *from_ = NULL;                                                                   \
        TMS_TRY((plan)->setup.dev, tms_stage_start(&(plan)->setup, &from_));                       \
        status = (call);                                                                           \
        TMS_TRY((plan)->setup.dev,                                                                 \
                tms_stage_stop(&(plan)->setup, from_, status, &(plan)->times.stage));              \
    } while (0)
/* The same for an op. */
#define RUN(plan, stage, op, params) TIME(plan, stage, tms_run_##op((plan)->setup.dev, (params)))

/* ---- What the launches take ------------------------------------------------------------------ */

/* The step's rows of a layer. */
static tms_batch batch_of(const tamis_plan *plan, uint32_t layer) {
    const tms_step *step = &plan->step;
    const tms_setup *setup = &plan->setup;
    const tamis_cache_params *cache = &setup->cache->params;
    const uint64_t entry = (uint64_t)layer * step->n_rows * cache->n_kv_heads;
    return (tms_batch){.n_rows = step->n_rows,
                       .n_tiles = step->n_tiles,
                       .n_heads = cache->n_heads,
                       .n_kv_heads = cache->n_kv_heads,
                       .tiles = tms_step_table(step, step->at.tiles),
                       .row_seq = tms_step_table(step, step->at.row_seq),
                       .visible = tms_step_table(step, step->at.visible + entry),
                       .table = tms_page_table_layer(&plan->table, layer),
                       .seq_stride = (uint64_t)setup->cache->n_lanes * setup->max_pages,
                       .head_stride = setup->max_pages,
                       .max_visible = step->fixed ? setup->params.max_context
                                                  : step->layers[layer].max_visible,
                       .max_tile_rows = step->max_tile_rows};
}

/* The shapes of a layer's ops, without what the caller brings (k, v; q, out). */
static tms_write_rows write_of(const tamis_plan *plan, uint32_t layer) {
    const tms_step *step = &plan->step;
    const tamis_cache *cache = plan->setup.cache;
    const uint64_t entry = (uint64_t)layer * step->n_rows * cache->params.n_kv_heads;
    tms_write_rows write = {.kv = tms_cache_kv(cache, layer),
                            .batch = batch_of(plan, layer),
                            .slots = tms_step_table(step, step->at.slots + entry),
                            .planes = tms_cache_planes(cache, layer)};
    if (write.planes.positions.mem) write.positions = tms_step_table(step, step->at.positions);
    return write;
}

static tms_attend attend_of(const tamis_plan *plan, uint32_t layer) {
    const tms_setup *setup = &plan->setup;
    tms_attend attend = {.kv = tms_cache_kv(setup->cache, layer),
                         .batch = batch_of(plan, layer),
                         .scale = setup->params.scale,
                         .soft_cap = setup->params.soft_cap,
                         .scratch = {plan->launches.scratch, 0}};
    attend.max_pages = tms_pages_of(setup->cache, attend.batch.max_visible);
    if (setup->params.sliding_window) {
        attend.intervals = tms_step_table(&plan->step, plan->step.at.intervals);
        attend.positions = tms_cache_planes(setup->cache, layer).positions;
    }
    return attend;
}

static tms_sparse_attend sparse_of(const tamis_plan *plan, uint32_t layer) {
    const tms_setup *setup = &plan->setup;
    const tms_launches *launches = &plan->launches;
    const tms_reading *reading = &setup->reading;
    uint64_t entries = (uint64_t)setup->params.max_selected_rows * setup->cache->params.n_kv_heads;
    tms_sparse_attend p = {.attend = attend_of(plan, layer)};
    p.attend.lists = (tms_lists){.pages = {launches->lists, 0},
                                 .count = {launches->lists, entries * reading->k * sizeof(int32_t)},
                                 .capacity = reading->k};
    if (p.attend.max_pages > reading->k) p.attend.max_pages = reading->k;
    p.select = (tms_select){.batch = p.attend.batch,
                            .granularity = setup->cache->params.page_size,
                            .k = reading->k,
                            .sinks = reading->sinks,
                            .recent = reading->recent,
                            .lists = p.attend.lists};
    /* Lanes that stay at their length have tokens out of order. */
    if (setup->needs.in_place) {
        p.select.wide.positions = tms_cache_planes(setup->cache, layer).positions;
        p.select.wide.row_positions = tms_step_table(&plan->step, plan->step.at.positions);
        p.select.wide.page_size = setup->cache->params.page_size;
        p.select.scratch = (tms_ref){launches->scratch, 0};
    }
    p.score =
        (tms_score_pages){.kv = p.attend.kv, .batch = p.attend.batch, .group = reading->group};
    if (reading->scored) {
        p.score.scores = p.select.scores = (tms_ref){launches->scores, 0};
        p.score.stride = p.select.stride = setup->max_pages;
    }
    return p;
}

/* The same scores as p->score's, from keys. */
static tms_page_mass mass_of(const tamis_plan *plan, const tms_sparse_attend *p) {
    return (tms_page_mass){.kv = p->score.kv,
                           .batch = p->score.batch,
                           .q = p->score.q,
                           .group = p->score.group,
                           .scores = p->score.scores,
                           .stride = p->score.stride,
                           .scale = p->attend.scale,
                           .soft_cap = p->attend.soft_cap,
                           .scratch = {plan->launches.scratch, 0}};
}

/* Whether one launch takes the place of score_pages, select and attend. */
static bool fuses(const tamis_plan *plan, const tms_sparse_attend *p) {
    tms_device *dev = plan->setup.dev;
    const tms_backend *backend = dev->backend;
    return plan->setup.reading.scored == TMS_SCORE_BOUNDS && !plan->setup.params.separate &&
           backend->sparse_attend && !tms_select_is_wide(&p->select) &&
           (!backend->sparse_attend_refusal || !backend->sparse_attend_refusal(dev, p));
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static uint64_t mass_scratch_bytes(const tamis_plan *plan) {
    if (plan->setup.reading.scored != TMS_SCORE_MASS) return 0;
    tms_sparse_attend listed = sparse_of(plan, 0);
    listed.score.batch.n_rows = plan->setup.params.max_selected_rows;
    tms_page_mass mass = mass_of(plan, &listed);
    return tms_page_mass_scratch(plan->setup.dev, &mass);
}

/* Scratch of the select that lists pages: where lanes stay at their length, one of the wide forms.
 */
static uint64_t list_scratch_bytes(const tamis_plan *plan) {
    if (!plan->setup.reading.listed) return 0;
    tms_select select = sparse_of(plan, 0).select;
    select.batch.n_rows = plan->setup.params.max_selected_rows;
    select.batch.max_visible = plan->setup.params.max_context;
    return tms_select_scratch(plan->setup.dev, &select);
}

/* Scratch of the largest attend: decode rows or prefill tiles, over all pages; of page_mass and of
 * select. */
static uint64_t scratch_bytes(const tamis_plan *plan) {
    const tms_setup *setup = &plan->setup;
    uint64_t most = larger(mass_scratch_bytes(plan), list_scratch_bytes(plan));
    tms_attend attend = attend_of(plan, 0);
    attend.max_pages = setup->max_pages;
    attend.batch.n_rows = attend.batch.n_tiles = setup->params.max_rows;
    attend.batch.max_visible = setup->params.max_context;
    for (uint32_t rows = 1; rows <= TMS_TILE_ROWS; rows *= TMS_TILE_ROWS) {
        attend.batch.max_tile_rows = rows;
        most = larger(most, tms_attend_scratch(setup->dev, &attend));
    }
    return most;
}

tamis_status tms_launches_create(tamis_plan *plan, tamis_error *error) {
    const tms_setup *setup = &plan->setup;
    const tms_reading *reading = &setup->reading;
    tms_launches *launches = &plan->launches;
    const size_t sequences = setup->params.max_sequences;
    /* Lists, and rows of scores, of the largest step that is not exact. */
    const uint64_t entries =
        (uint64_t)setup->params.max_selected_rows * setup->cache->params.n_kv_heads;
    const uint64_t scores = entries * setup->max_pages, lists = entries * (reading->k + 1ull);
    const bool random = reading->scored == TMS_SCORE_RANDOM;
    launches->serials = calloc(sequences + 1, sizeof *launches->serials);
    if (random) launches->score_host = calloc(scores, sizeof *launches->score_host);
    TMS_REQUIRE(launches->serials && (launches->score_host || !random), TAMIS_E_NO_MEMORY,
                "no host memory for the launches of %zu sequences", sequences);
    tamis_status status =
        tms_memory_take(setup->dev, scratch_bytes(plan), &launches->scratch, error);
    if (status == TAMIS_OK && reading->listed)
        status = tms_memory_take(setup->dev, lists * sizeof(int32_t), &launches->lists, error);
    if (status == TAMIS_OK && reading->scored)
        status = tms_memory_take(setup->dev, scores * sizeof(float), &launches->scores, error);
    return status;
}

void tms_launches_destroy(tms_launches *launches, tms_device *dev) {
    tms_mem *memories[] = {launches->scores, launches->lists, launches->scratch};
    for (size_t i = 0; i < sizeof memories / sizeof *memories; i++)
        dev->backend->free(dev, memories[i]);
    free(launches->score_host);
    free(launches->serials);
}

/* ---- Kernels --------------------------------------------------------------------------------- */

/* The device begins to collect times with the first stage. */
static tamis_status warm_times(const tamis_plan *plan, tamis_error *error) {
    tms_event *from = NULL;
    double us = 0;
    tamis_status status = tms_stage_start(&plan->setup, &from);
    return tms_forward(plan->setup.dev, tms_stage_stop(&plan->setup, from, status, &us), error);
}

/* Launches the ops that come before attending, empty. */
static tamis_status warm_writes(tamis_plan *plan, tamis_error *error) {
    const tms_setup *setup = &plan->setup;
    tms_device *dev = setup->dev;
    const tms_ref tables = tms_step_table(&plan->step, 0);
    tamis_status status = TAMIS_OK;
    tms_write_rows write = write_of(plan, 0);
    tms_bounds bounds = {.kv = write.kv, .n_kv_heads = 1, .pages = tables};
    tms_copy_pages copy = {
        .data = write.kv.data, .bytes = setup->cache->size.page_bytes, .pairs = tables};
    write.k_stride = write.v_stride =
        (uint64_t)setup->cache->params.n_kv_heads * setup->cache->params.head_dim;
    write.dtype = TAMIS_F32;
    TMS_TRY(dev, tms_run_write_rows(dev, &write));
    write.dtype = setup->cache->params.dtype;
    TMS_TRY(dev, tms_run_write_rows(dev, &write));
    TMS_TRY(dev, tms_run_bounds(dev, &bounds));
    TMS_TRY(dev, tms_run_copy_pages(dev, &copy));
fail:
    return status;
}

/* Launches the ways to attend tiles of the step's size, empty. */
static tamis_status warm_attends(tamis_plan *plan, tamis_error *error) {
    const tms_reading *reading = &plan->setup.reading;
    tms_device *dev = plan->setup.dev;
    tamis_status status = TAMIS_OK;
    uint64_t width = tms_setup_width(&plan->setup);
    tms_attend all = attend_of(plan, 0);
    all.q.stride = all.out.stride = width;
    TMS_TRY(dev, tms_run_attend(dev, &all));
    if (!reading->listed) return TAMIS_OK;
    tms_sparse_attend listed = sparse_of(plan, 0);
    listed.score.q.stride = listed.attend.q.stride = listed.attend.out.stride = width;
    if (fuses(plan, &listed)) TMS_TRY(dev, tms_run_sparse_attend(dev, &listed));
    tms_page_mass mass = mass_of(plan, &listed);
    if (reading->scored == TMS_SCORE_BOUNDS) TMS_TRY(dev, tms_run_score_pages(dev, &listed.score));
    if (reading->scored == TMS_SCORE_MASS) TMS_TRY(dev, tms_run_page_mass(dev, &mass));
    TMS_TRY(dev, tms_run_select(dev, &listed.select));
    TMS_TRY(dev, tms_run_attend(dev, &listed.attend));
fail:
    return status;
}

/* Launches what the eviction adds to decode steps and to others, empty. */
static tamis_status warm_eviction(tamis_plan *plan, tamis_error *error) {
    tms_device *dev = plan->setup.dev;
    tamis_status status = TAMIS_OK;
    tms_write_rows write = write_of(plan, 0);
    tms_attend attend = attend_of(plan, 0);
    tms_ref changed = {NULL, 0};
    attend.q.stride = attend.out.stride = tms_setup_width(&plan->setup);
    for (int exact = 0; exact <= 1; exact++) {
        tms_attend observed = attend;
        plan->step.exact = exact;
        if (plan->setup.needs.in_place)
            TMS_TRY(dev, tms_in_step_take_slots(plan, 0, &write, &changed));
        TMS_TRY(dev, tms_in_step_ask_weights(plan, false, &observed));
        TMS_TRY(dev, tms_run_attend(dev, &observed));
        TMS_TRY(dev, tms_in_step_use_weights(plan, 0, &observed));
    }
    if (plan->setup.needs.rotation) TMS_TRY(dev, tms_reindex_attend(plan, 0, &attend));
fail:
    return status;
}

tamis_status tms_launches_warm(tamis_plan *plan, tamis_error *error) {
    tms_device *dev = plan->setup.dev;
    tamis_status status = warm_times(plan, error);
    if (status == TAMIS_OK) status = warm_writes(plan, error);
    plan->step.layers[0].max_visible = plan->setup.params.max_context;
    for (uint32_t rows = 1; rows <= TMS_TILE_ROWS && status == TAMIS_OK; rows *= TMS_TILE_ROWS) {
        plan->step.max_tile_rows = rows;
        status = warm_attends(plan, error);
    }
    if (status == TAMIS_OK && plan->setup.needs.active) status = warm_eviction(plan, error);
    return status != TAMIS_OK ? status : tms_forward(dev, dev->backend->wait(dev), error);
}

/* ---- Write ------------------------------------------------------------------------------------ */

static tamis_status check_layer(const tamis_plan *plan, uint32_t layer, tamis_error *error) {
    TMS_REQUIRE(plan, TAMIS_E_ARGUMENT, "plan is NULL");
    TMS_REQUIRE(plan->step.open, TAMIS_E_STATE, "the plan has no open step");
    TMS_REQUIRE(layer < plan->setup.cache->params.n_layers, TAMIS_E_ARGUMENT,
                "layer %" PRIu32 " is not below %" PRIu32, layer,
                plan->setup.cache->params.n_layers);
    return TAMIS_OK;
}

static tamis_status check_write(const tamis_plan *plan, const tamis_rows *k, const tamis_rows *v,
                                tms_write_rows *write, tamis_error *error) {
    const tamis_cache_params *p = &plan->setup.cache->params;
    const tamis_context *context = plan->setup.cache->context;
    uint64_t width = (uint64_t)p->n_kv_heads * p->head_dim;
    tamis_status status =
        tms_rows_check(context, k, "k", plan->step.n_rows, width, &write->k_stride, error);
    if (status == TAMIS_OK)
        status = tms_rows_check(context, v, "v", plan->step.n_rows, width, &write->v_stride, error);
    if (status != TAMIS_OK) return status;
    TMS_REQUIRE(k->dtype == v->dtype, TAMIS_E_ARGUMENT, "k is %s but v is %s",
                tamis_dtype_name(k->dtype), tamis_dtype_name(v->dtype));
    TMS_REQUIRE(k->dtype == TAMIS_F32 || k->dtype == p->dtype, TAMIS_E_ARGUMENT,
                "k and v are %s; a cache of %s takes that or f32", tamis_dtype_name(k->dtype),
                tamis_dtype_name(p->dtype));
    write->k = (tms_ref){k->buffer->mem, k->offset};
    write->v = (tms_ref){v->buffer->mem, v->offset};
    write->dtype = k->dtype;
    return TAMIS_OK;
}

static void count_written(tamis_plan *plan, uint32_t layer) {
    plan->step.layers[layer].begun = plan->step.layers[layer].written = true;
    plan->counters.rows_written += plan->step.n_rows;
    plan->counters.pages_bounded += plan->step.layers[layer].n_filled;
    plan->counters.tokens_replaced += plan->step.layers[layer].n_staying;
}

tamis_status tamis_plan_write(tamis_plan *plan, uint32_t layer, const tamis_rows *k,
                              const tamis_rows *v, tamis_error *error) {
    tamis_status status = check_layer(plan, layer, error);
    if (status != TAMIS_OK) return status;
    tms_step_layer *state = &plan->step.layers[layer];
    TMS_REQUIRE(!state->written, TAMIS_E_STATE,
                "layer %" PRIu32 " has been written in this step already", layer);
    tms_write_rows write = write_of(plan, layer);
    status = check_write(plan, k, v, &write, error);
    if (status != TAMIS_OK) return status;
    tms_bounds bounds = tms_cache_bounds(plan->setup.cache, layer);
    bounds.n = state->n_bounded;
    bounds.pages = tms_step_table(&plan->step, plan->step.at.filled + state->filled);
    tms_ref changed = {NULL, 0}; /* pages whose tokens are replaced */
    state->begun = true;
    if (state->n_staying > 0)
        TIME(plan, replace_us, tms_in_step_take_slots(plan, layer, &write, &changed));
    RUN(plan, write_us, write_rows, &write);
    if (bounds.n > 0) RUN(plan, bounds_us, bounds, &bounds);
    if (state->n_staying > 0) {
        bounds.n = plan->step.n_rows * write.batch.n_kv_heads;
        bounds.pages = changed;
        RUN(plan, bounds_us, bounds, &bounds);
    }
    if (plan->step.fixed)
        plan->launches.serials[plan->step.n_rows] = plan->setup.cache->bounds_serial;
    count_written(plan, layer);
fail:
    return status;
}

/* ---- Attend ----------------------------------------------------------------------------------- */

/* Whether the layer's rows go through lists; *path is the counter of rows that the answer feeds. */
static bool is_listed(tamis_plan *plan, uint32_t layer, uint64_t **path) {
    tamis_plan_counters *c = &plan->counters;
    uint32_t n = tms_pages_of(plan->setup.cache, plan->step.layers[layer].max_visible);
    *path = &c->rows_selected;
    if (plan->step.exact)
        *path = &c->rows_exact;
    else if (!plan->setup.reading.listed || layer < plan->setup.params.selection.dense_layers)
        *path = &c->rows_full;
    else if (n <= plan->setup.reading.k && !plan->step.fixed)
        *path = &c->rows_short;
    return *path == &c->rows_selected;
}

/* Bytes [first, end) from the first to the last element of rows that have been checked. */
typedef struct byte_range {
    uint64_t first, end;
} byte_range;

static byte_range range_of(const tamis_rows *rows, uint64_t n, uint64_t stride, uint64_t width) {
    return (byte_range){rows->offset, rows->offset + ((n - 1) * stride + width) * sizeof(float)};
}

static tamis_status check_attend(const tamis_plan *plan, const tamis_rows *q, const tamis_rows *out,
                                 tms_matrix *q_rows, tms_matrix *out_rows, tamis_error *error) {
    const tamis_context *context = plan->setup.cache->context;
    const tamis_cache_params *p = &plan->setup.cache->params;
    uint64_t width = (uint64_t)p->n_heads * p->head_dim;
    uint32_t n = plan->step.n_rows;
    tamis_status status = tms_rows_check(context, q, "q", n, width, &q_rows->stride, error);
    if (status == TAMIS_OK)
        status = tms_rows_check(context, out, "out", n, width, &out_rows->stride, error);
    if (status != TAMIS_OK) return status;
    TMS_REQUIRE(q->dtype == TAMIS_F32, TAMIS_E_ARGUMENT, "q is %s; it must be f32",
                tamis_dtype_name(q->dtype));
    TMS_REQUIRE(out->dtype == TAMIS_F32, TAMIS_E_ARGUMENT, "out is %s; it must be f32",
                tamis_dtype_name(out->dtype));
    byte_range from = range_of(q, n, q_rows->stride, width);
    byte_range to = range_of(out, n, out_rows->stride, width);
    TMS_REQUIRE(q->buffer != out->buffer || from.end <= to.first || to.end <= from.first,
                TAMIS_E_ARGUMENT,
                "q and out overlap: bytes %" PRIu64 " to %" PRIu64 " and %" PRIu64 " to %" PRIu64
                " of one buffer",
                from.first, from.end - 1, to.first, to.end - 1);
    q_rows->ref = (tms_ref){q->buffer->mem, q->offset};
    out_rows->ref = (tms_ref){out->buffer->mem, out->offset};
    return TAMIS_OK;
}

/* Adds what the attend of a layer read to the counters. */
static void count_read(tamis_plan *plan, uint32_t layer, bool listed, bool fused) {
    const tamis_cache *cache = plan->setup.cache;
    tamis_plan_counters *c = &plan->counters;
    uint64_t k = plan->setup.reading.k, read = 0, full = 0, bounded = 0, massed = 0;
    if (fused) c->rows_fused += plan->step.n_rows;
    if (plan->step.exact) return;
    for (uint32_t row = 0; row < plan->step.n_rows; row++)
        for (uint32_t h = 0; h < cache->params.n_kv_heads; h++) {
            uint32_t visible =
                tms_step_visible(&plan->step, layer, row, h, cache->params.n_kv_heads);
            uint64_t n = tms_pages_of(cache, visible);
            full += n;
            read += listed && n > k ? k : n;
            if (listed && plan->setup.reading.scored == TMS_SCORE_BOUNDS)
                bounded += visible / cache->params.page_size;
            if (listed && plan->setup.reading.scored == TMS_SCORE_MASS) massed += n;
        }
    c->kv_bytes_read += read * cache->size.page_bytes;
    c->kv_bytes_full += full * cache->size.page_bytes;
    /* Half a page is keys. */
    c->bounds_bytes_read +=
        bounded * cache->size.bounds_bytes + massed * (cache->size.page_bytes / 2);
}

static void count_attended(tamis_plan *plan, uint32_t layer, bool listed, bool fused) {
    count_read(plan, layer, listed, fused);
    plan->launches.attended = true;
    plan->launches.listed = listed;
    plan->launches.attended_layer = layer;
}

static void fill_random(const tamis_plan *plan, uint32_t layer, uint32_t stride) {
    const tms_step *step = &plan->step;
    const tamis_cache_params *cache = &plan->setup.cache->params;
    float *scores = plan->launches.score_host;
    for (uint32_t i = 0, row = 0; i < step->n_sequences; i++) {
        uint32_t rows = step->growth[i].rows, first = step->growth[i].sequence->length - rows;
        for (uint32_t j = 0; j < rows; j++, row++)
            for (uint32_t h = 0; h < cache->n_kv_heads; h++, scores += stride) {
                uint32_t n =
                    tms_step_visible(step, layer, row, h, cache->n_kv_heads) / cache->page_size;
                for (uint32_t o = 0; o < n; o++)
                    scores[o] = tms_selection_random_score(plan->setup.params.selection.seed, layer,
                                                           first + j, h, o);
            }
    }
}

/* Enqueues random scores for p->select, whose stride it sets. Returns the device's status. */
static tamis_status send_random(tamis_plan *plan, uint32_t layer, tms_sparse_attend *p) {
    uint64_t entries = (uint64_t)p->select.batch.n_rows * p->select.batch.n_kv_heads;
    /* Packed to this step's longest lane, so that as few bytes as possible are sent. */
    p->select.stride = p->select.batch.max_visible / p->select.granularity;
    fill_random(plan, layer, p->select.stride);
    return tms_memory_send(plan->setup.dev, p->select.scores, plan->launches.score_host,
                           entries * p->select.stride * sizeof *plan->launches.score_host);
}

static tamis_status score(tamis_plan *plan, uint32_t layer, tms_sparse_attend *p,
                          tamis_error *error) {
    tamis_status status = TAMIS_OK;
    tms_page_mass mass = mass_of(plan, p);
    switch (plan->setup.reading.scored) {
    case TMS_SCORE_NONE:
        break;
    case TMS_SCORE_BOUNDS:
        RUN(plan, score_us, score_pages, &p->score);
        break;
    case TMS_SCORE_MASS:
        RUN(plan, score_us, page_mass, &mass);
        break;
    case TMS_SCORE_RANDOM:
        TIME(plan, score_us, send_random(plan, layer, p));
        break;
    }
fail:
    return status;
}

/* Its two parts are timed apart where they are launched apart. Device's status. */
static tamis_status run_fused(tamis_plan *plan, tms_sparse_attend *p) {
    tms_device *dev = plan->setup.dev;
    tms_event *from = NULL, *halfway = NULL;
    double selected = 0;
    tamis_status status = tms_stage_start(&plan->setup, &from);
    if (status != TAMIS_OK) return status;
    if (from) p->halfway = &halfway;
    status = tms_run_sparse_attend(dev, p);
    p->halfway = NULL;
    if (status == TAMIS_OK && halfway)
        status = dev->backend->event_elapsed(dev, from, halfway, &selected);
    plan->times.fused_select_us += selected;
    if (halfway) dev->backend->event_free(dev, halfway);
    return tms_stage_stop(&plan->setup, from, status, &plan->times.fused_us);
}

static tamis_status run_listed(tamis_plan *plan, uint32_t layer, tms_sparse_attend *p, bool fused,
                               tamis_error *error) {
    tamis_status status = TAMIS_OK;
    if (fused) return tms_forward(plan->setup.dev, run_fused(plan, p), error);
    status = score(plan, layer, p, error);
    if (status != TAMIS_OK) return status;
    RUN(plan, select_us, select, &p->select);
    RUN(plan, attend_us, attend, &p->attend);
fail:
    return status;
}

tamis_status tamis_plan_attend(tamis_plan *plan, uint32_t layer, const tamis_rows *q,
                               const tamis_rows *out, tamis_error *error) {
    tamis_status status = check_layer(plan, layer, error);
    if (status != TAMIS_OK) return status;
    tms_step *step = &plan->step;
    TMS_REQUIRE(step->layers[layer].written, TAMIS_E_STATE,
                "layer %" PRIu32 " has not been written in this step", layer);
    TMS_REQUIRE(plan->setup.needs.feed != TMS_FEED_SUM || !step->layers[layer].fed, TAMIS_E_STATE,
                "layer %" PRIu32 " has been attended in this step already: %s would count its rows "
                "twice",
                layer, plan->setup.needs.entry->name);
    tms_matrix q_rows, out_rows;
    status = check_attend(plan, q, out, &q_rows, &out_rows, error);
    if (status != TAMIS_OK) return status;
    uint64_t *path = NULL;
    bool listed = is_listed(plan, layer, &path), fused = false;
    tms_sparse_attend p = {.attend = attend_of(plan, layer)};
    if (listed) {
        p = sparse_of(plan, layer);
        p.score.q = q_rows;
    }
    p.attend.q = q_rows;
    p.attend.out = out_rows;
    plan->launches.attended = false;
    if (tms_in_step_observes(plan))
        TIME(plan, observe_us, tms_in_step_ask_weights(plan, listed, &p.attend));
    if (listed) {
        fused = fuses(plan, &p);
        status = run_listed(plan, layer, &p, fused, error);
        if (status != TAMIS_OK) return status;
    } else if (plan->setup.needs.rotation) {
        TIME(plan, attend_us, tms_reindex_attend(plan, layer, &p.attend));
    } else {
        RUN(plan, attend_us, attend, &p.attend);
    }
    step->layers[layer].fed = plan->setup.needs.feed != TMS_FEED_NONE;
    if (tms_in_step_observes(plan))
        TIME(plan, observe_us, tms_in_step_use_weights(plan, layer, &p.attend));
    step->layers[layer].attended = true;
    *path += step->n_rows;
    count_attended(plan, layer, listed, fused);
fail:
    return status;
}

/* Where the tables lie follows from the number of rows; what bounds hold is in their launch. */
static tamis_status check_replayed(const tamis_plan *plan, tamis_error *error) {
    const tms_step *step = &plan->step;
    TMS_REQUIRE(plan->setup.params.fixed_launches, TAMIS_E_STATE,
                "the plan has no fixed_launches: a graph of one step does not serve another");
    TMS_REQUIRE(!step->exact, TAMIS_E_STATE, "the step is exact: it has no fixed launches");
    for (uint32_t layer = 0; layer < plan->setup.cache->params.n_layers; layer++)
        TMS_REQUIRE(!step->layers[layer].written, TAMIS_E_STATE,
                    "layer %" PRIu32 " has been written in this step already", layer);
    TMS_REQUIRE(plan->launches.serials[step->n_rows] != 0, TAMIS_E_STATE,
                "no step with %" PRIu32 " sequences was called layer by layer: no graph serves it",
                step->n_rows);
    TMS_REQUIRE(plan->launches.serials[step->n_rows] == plan->setup.cache->bounds_serial,
                TAMIS_E_STATE,
                "what bounds hold has changed since a step with %" PRIu32
                " sequences was called layer by layer: an older graph would compute the old ones",
                step->n_rows);
    return TAMIS_OK;
}

tamis_status tamis_plan_step_replayed(tamis_plan *plan, tamis_error *error) {
    tamis_status status = check_layer(plan, 0, error);
    if (status == TAMIS_OK) status = check_replayed(plan, error);
    if (status != TAMIS_OK) return status;
    for (uint32_t layer = 0; layer < plan->setup.cache->params.n_layers; layer++) {
        uint64_t *path = NULL;
        bool listed = is_listed(plan, layer, &path);
        tms_sparse_attend p = sparse_of(plan, layer);
        *path += plan->step.n_rows;
        count_written(plan, layer);
        count_attended(plan, layer, listed, listed && fuses(plan, &p));
    }
    return TAMIS_OK;
}

/* ---- What was read ---------------------------------------------------------------------------- */

static tamis_status read_list(const tamis_plan *plan, uint32_t row, uint32_t kv_head,
                              uint32_t *pages, uint32_t capacity, uint32_t *count,
                              tamis_error *error) {
    tms_device *dev = plan->setup.dev;
    tms_lists lists = sparse_of(plan, plan->launches.attended_layer).select.lists;
    uint64_t entry = (uint64_t)row * plan->setup.cache->params.n_kv_heads + kv_head;
    uint32_t n = 0;
    tamis_status status = TAMIS_OK;
    lists.count.offset += entry * sizeof n;
    lists.pages.offset += entry * lists.capacity * sizeof *pages;
    TMS_TRY(dev, dev->backend->read(dev, lists.count, &n, sizeof n));
    uint32_t copied = n < capacity ? n : capacity;
    if (copied > 0)
        TMS_TRY(dev, dev->backend->read(dev, lists.pages, pages, copied * sizeof *pages));
    *count = n;
fail:
    return status;
}

tamis_status tamis_plan_read_selected(tamis_plan *plan, uint32_t row, uint32_t kv_head,
                                      uint32_t *pages, uint32_t capacity, uint32_t *count,
                                      tamis_error *error) {
    TMS_REQUIRE(plan, TAMIS_E_ARGUMENT, "plan is NULL");
    TMS_REQUIRE(count, TAMIS_E_ARGUMENT, "count is NULL");
    TMS_REQUIRE(pages || capacity == 0, TAMIS_E_ARGUMENT, "pages is NULL but capacity is %" PRIu32,
                capacity);
    TMS_REQUIRE(plan->launches.attended, TAMIS_E_STATE, "no layer has been attended in this step");
    TMS_REQUIRE(row < plan->step.n_rows, TAMIS_E_ARGUMENT,
                "row %" PRIu32 " is not below the step's %" PRIu32, row, plan->step.n_rows);
    TMS_REQUIRE(kv_head < plan->setup.cache->params.n_kv_heads, TAMIS_E_ARGUMENT,
                "kv_head %" PRIu32 " is not below %" PRIu32, kv_head,
                plan->setup.cache->params.n_kv_heads);
    if (plan->launches.listed) return read_list(plan, row, kv_head, pages, capacity, count, error);
    *count = tms_pages_of(plan->setup.cache,
                          tms_step_visible(&plan->step, plan->launches.attended_layer, row, kv_head,
                                           plan->setup.cache->params.n_kv_heads));
    for (uint32_t i = 0; i < *count && i < capacity; i++)
        pages[i] = i;
    return TAMIS_OK;
}
