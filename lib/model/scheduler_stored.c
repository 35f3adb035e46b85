/* SPDX-License-Identifier: Apache-2.0 */
/* Beginnings of prompts out of a store: which of its pages hold a request's tokens, and their K and V
 * into the cache. */
#include "lib/model/scheduler.h"

#include <stdlib.h>
#include <string.h>
#include <tamis/record.h>

/* ---- Opening ----------------------------------------------------------------------------------- */

static tamis_status check(const tamis_scheduler *scheduler, tamis_error *error) {
    const tamis_runner *runner = scheduler->runner;
    const tamis_dtype dtype = scheduler->params.store_dtype;
    const uint32_t loaded = runner->limits.load_dtypes;
    TMS_TRY(tms_check_as_model(runner, error));
    TMS_TRY(tms_check_one_rotation(runner, "a store", NULL, error));
    TMS_REQUIRE((uint32_t)dtype < 32 && loaded >> dtype & 1, TAMIS_E_ARGUMENT,
                "store_dtype is %d (%s), which is not in the plan's load_dtypes 0x%x", (int)dtype,
                tamis_dtype_name(dtype), loaded);
    return TAMIS_OK;
}

tamis_status tms_stored_open(tamis_scheduler *scheduler, tamis_error *error) {
    tamis_model *model = scheduler->runner->model;
    const tamis_scheduler_params *p = &scheduler->params;
    const tamis_chunk_shape shape = {.n_layers = model->config.n_layers,
                                     .n_kv_heads = model->config.n_kv_heads,
                                     .head_dim = model->config.head_dim,
                                     .dtype = p->store_dtype};
    uint8_t fingerprint[16];
    if (!p->store) return TAMIS_OK;
    TMS_TRY(check(scheduler, error));
    TMS_TRY(tamis_model_fingerprint(model, fingerprint, error)); /* which is slow once */
    scheduler->row_bytes = tamis_chunk_plane_bytes(&shape, 1);
    for (int i = 0; i < 2; i++) {
        scheduler->planes[i] = malloc(p->store_tokens * scheduler->row_bytes);
        TMS_REQUIRE(scheduler->planes[i], TAMIS_E_NO_MEMORY, "no memory for a page of %u tokens",
                    p->store_tokens);
        TMS_TRY(tamis_buffer_create(model->context, p->max_rows * scheduler->row_bytes,
                                    &scheduler->rows[i], error));
    }
    return TAMIS_OK;
}

void tms_stored_close(tamis_scheduler *scheduler) {
    for (int i = 0; i < 2; i++) {
        tamis_buffer_destroy(&scheduler->rows[i]);
        free(scheduler->planes[i]);
    }
}

/* ---- Finding pages ----------------------------------------------------------------------------- */

void tms_stored_release(tms_request *request) {
    for (uint32_t i = 0; i < request->stored.n; i++)
        tamis_chunk_release(&request->stored.pages[i]);
    free(request->stored.pages);
    request->stored = (tms_stored){0};
}

tamis_status tms_stored_id(const tamis_scheduler *scheduler, const tms_request *request,
                           uint32_t first, tamis_chunk_id *id, tamis_error *error) {
    const uint32_t page = scheduler->params.store_tokens;
    tamis_record_params params = {.dtype = scheduler->params.store_dtype};
    tamis_cache_params cache;
    size_t n_pages = 0;
    tamis_cache_get_params(scheduler->runner->cache, &cache);
    params.cache_dtype = cache.dtype;
    memcpy(params.salt, request->salt, sizeof params.salt);
    TMS_TRY(tamis_record_id(scheduler->runner->model, &params, request->tokens, request->n_prompt,
                            id, error));
    if (first == 0) return TAMIS_OK;
    uint8_t(*keys)[16] = calloc(first, sizeof *keys);
    TMS_REQUIRE(keys, TAMIS_E_NO_MEMORY, "no memory for the keys of %u pages", first);
    id->n_tokens = first * page;
    const tamis_status status = tamis_prefix_keys(id, page, keys, first, &n_pages, error);
    memcpy(id->parent, keys[first - 1], sizeof id->parent);
    id->tokens += first * page;
    id->n_tokens = request->n_prompt - first * page;
    free(keys);
    return status;
}

tamis_status tms_stored_find(tamis_scheduler *scheduler, tms_request *request, tamis_error *error) {
    tms_stored *stored = &request->stored;
    if (!scheduler->params.store) return TAMIS_OK;
    const uint32_t page = scheduler->params.store_tokens, n = request->n_prompt / page;
    const uint32_t first = request->n_done / page;
    if (first >= n || (stored->asked && stored->first <= first)) return TAMIS_OK;
    tms_stored_release(request);
    tamis_chunk_id id;
    TMS_TRY(tms_stored_id(scheduler, request, first, &id, error));
    stored->pages = calloc(n - first, sizeof(tamis_chunk *));
    TMS_REQUIRE(stored->pages, TAMIS_E_NO_MEMORY, "no memory for %u pages", n - first);
    size_t found = 0;
    const tamis_status status = tamis_store_get_prefix(scheduler->params.store, &id, page,
                                                       stored->pages, n - first, &found, error);
    stored->first = first;
    stored->n = (uint32_t)found;
    stored->asked = status == TAMIS_OK || status == TAMIS_E_IO;
    scheduler->stats.store_failed += status == TAMIS_E_IO;
    return stored->asked ? TAMIS_OK : status;
}

uint32_t tms_stored_reach(const tamis_scheduler *scheduler, const tms_request *request) {
    const tms_stored *stored = &request->stored;
    if (stored->n == 0) return request->n_done;
    const uint32_t end = (stored->first + stored->n) * scheduler->params.store_tokens;
    const uint32_t most = request->n_prompt - 1; /* the last one is run, for its logits */
    const uint32_t reach = end < most ? end : most;
    return reach > request->n_done ? reach : request->n_done;
}

/* ---- Loading pages ----------------------------------------------------------------------------- */

/* A page that cannot be read, and what follows it, is computed. */
static void cut(tms_stored *stored, uint32_t n) {
    while (stored->n > n)
        tamis_chunk_release(&stored->pages[--stored->n]);
}

/* Rows of a layer to the device: of n behind those that the sequence holds. */
static tamis_status upload(tamis_scheduler *scheduler, tms_request *request, uint32_t layer,
                           uint32_t n, tamis_error *error) {
    const uint32_t page = scheduler->params.store_tokens;
    const uint64_t bytes = scheduler->row_bytes;
    tms_stored *stored = &request->stored;
    for (uint32_t row = 0, rows; row < n; row += rows) {
        const uint32_t at = request->n_done + row, skip = at % page, left = n - row;
        const uint32_t place = at / page - stored->first;
        rows = page - skip < left ? page - skip : left;
        const tamis_status status = tamis_chunk_read(
            stored->pages[place], layer, scheduler->planes[0], scheduler->planes[1], error);
        if (status == TAMIS_E_DAMAGED || status == TAMIS_E_IO) cut(stored, place);
        if (status != TAMIS_OK) return status;
        for (int i = 0; i < 2; i++)
            TMS_TRY(tamis_buffer_write(scheduler->rows[i], row * bytes,
                                       scheduler->planes[i] + skip * bytes, rows * bytes, error));
    }
    return TAMIS_OK;
}

static tamis_status load_layers(tamis_scheduler *scheduler, tms_request *request, uint32_t n,
                                tamis_error *error) {
    const tamis_runner *runner = scheduler->runner;
    const tms_config *config = &runner->model->config;
    const tamis_dtype dtype = scheduler->params.store_dtype;
    for (uint32_t layer = 0; layer < config->n_layers; layer++) {
        const tamis_stored_rows rows = {
            .k = {.buffer = scheduler->rows[0], .dtype = dtype},
            .v = {.buffer = scheduler->rows[1], .dtype = dtype},
            .rotation = tms_runner_rotated(runner, layer)->rotation,
            .k_norm.buffer = runner->model->weights.layers[layer].weights[TMS_ATTN_K_NORM].buffer,
            .eps = config->norm_eps};
        TMS_TRY(upload(scheduler, request, layer, n, error));
        TMS_TRY(tamis_plan_load_rows(runner->plan, layer, 0, n, &rows, error));
    }
    return TAMIS_OK;
}

/* One exact step of n rows. After a failure the sequence is as it was. */
static tamis_status load_step(tamis_scheduler *scheduler, tms_request *request, uint32_t n,
                              tamis_error *error) {
    tamis_plan *plan = scheduler->runner->plan;
    const tamis_step step = {.sequences = &request->sequence, .rows = &n, .count = 1, .exact = 1};
    TMS_TRY(tamis_plan_step_begin(plan, &step, error));
    tamis_status status = load_layers(scheduler, request, n, error);
    if (status == TAMIS_OK) status = tamis_plan_step_end(plan, error);
    if (status != TAMIS_OK) TMS_TRY(tamis_plan_step_cancel(plan, error));
    return status;
}

tamis_status tms_stored_load(tamis_scheduler *scheduler, tms_request *request, uint32_t most,
                             uint32_t *loaded, tamis_error *error) {
    *loaded = 0;
    for (uint32_t n; (n = tms_stored_reach(scheduler, request) - request->n_done) > 0;) {
        tamis_error own = {TAMIS_OK, ""};
        if (n > most) n = most;
        const tamis_status status = load_step(scheduler, request, n, &own);
        const bool cannot_read = status == TAMIS_E_DAMAGED || status == TAMIS_E_IO;
        scheduler->stats.store_failed += cannot_read;
        if (cannot_read) continue; /* with fewer pages */
        TMS_REQUIRE(status == TAMIS_OK, status, "%s", own.text);
        request->n_done += n;
        scheduler->stats.tokens_stored += n;
        *loaded = n;
        break;
    }
    if (tms_stored_reach(scheduler, request) == request->n_done) tms_stored_release(request);
    return TAMIS_OK;
}
