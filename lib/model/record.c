/* SPDX-License-Identifier: Apache-2.0 */
/* Puts the K and V of a chunk's tokens, computed by an ordinary forward pass, into a store. */
#include "lib/model/recording.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Ids --------------------------------------------------------------------------------------- */

static tamis_status check_params(const tamis_record_params *params, tamis_error *error) {
    TMS_REQUIRE(params, TAMIS_E_ARGUMENT, "params is NULL");
    TMS_REQUIRE(params->sink || params->n_sink == 0, TAMIS_E_ARGUMENT, "sink is NULL, n_sink is %u",
                params->n_sink);
    for (size_t i = 0; i < sizeof params->reserved / sizeof *params->reserved; ++i)
        TMS_REQUIRE(params->reserved[i] == 0, TAMIS_E_ARGUMENT,
                    "reserved[%zu] of tamis_record_params is %llu; it must be 0", i,
                    (unsigned long long)params->reserved[i]);
    return TAMIS_OK;
}

tamis_status tamis_record_id(tamis_model *model, const tamis_record_params *params,
                             const int32_t *tokens, uint32_t n_tokens, tamis_chunk_id *out,
                             tamis_error *error) {
    TMS_ENTER_MODEL(model);
    uint8_t key[16];
    TMS_REQUIRE(model, TAMIS_E_ARGUMENT, "model is NULL");
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out is NULL");
    TMS_TRY(check_params(params, error));
    const tms_config *config = &model->config;
    tamis_chunk_id id = {.tokens = tokens,
                         .n_tokens = n_tokens,
                         .shape = {.n_layers = config->n_layers,
                                   .n_kv_heads = config->n_kv_heads,
                                   .head_dim = config->head_dim,
                                   .dtype = params->dtype,
                                   .sink = params->n_sink,
                                   .cache_dtype = params->cache_dtype}};
    memcpy(id.salt, params->salt, sizeof id.salt);
    TMS_TRY(tamis_chunk_key(&id, key, error)); /* which checks it */
    TMS_TRY(tamis_model_fingerprint(model, id.fingerprint, error));
    TMS_TRY(tamis_fingerprint_extend(id.fingerprint, params->sink, params->n_sink, id.fingerprint,
                                     error));
    *out = id;
    return TAMIS_OK;
}

/* ---- The pass ---------------------------------------------------------------------------------- */

/* Takes the rows of the chunk out of a step's rows of a layer. */
static tamis_status take(void *user, uint32_t layer, uint32_t n_rows, tamis_error *error) {
    return tms_recording_take(user, layer, 0, n_rows, error);
}

/* Steps over the sink's tokens and the chunk's. */
static tamis_status run_steps(tms_recording *r, tamis_sequence sequence, const int32_t *tokens,
                              uint32_t count, tamis_error *error) {
    const uint32_t most = r->runner->limits.max_rows;
    for (r->done = 0; r->done < count;) {
        const uint32_t left = count - r->done, rows = left < most ? left : most;
        TMS_TRY(tms_run_rows(r->runner, sequence, r->done, tokens + r->done, rows, 0, error));
        r->done += rows;
    }
    return TAMIS_OK;
}

/* On a sequence of its own, without the caller's observer. */
static tamis_status run(tms_recording *r, const int32_t *tokens, uint32_t count,
                        tamis_error *error) {
    tamis_runner *runner = r->runner;
    const tamis_runner_observer observer = runner->observer;
    tamis_sequence sequence = 0;
    TMS_TRY(tamis_cache_add(runner->cache, &sequence, error));
    runner->observer = NULL;
    runner->tap = take;
    runner->tap_user = r;
    tamis_status status = run_steps(r, sequence, tokens, count, error);
    runner->tap = NULL;
    runner->tap_user = NULL;
    runner->observer = observer;
    /* A step that could not be taken back holds its sequence; the reason says so. */
    const tamis_status removed =
        tamis_cache_remove(runner->cache, sequence, status == TAMIS_OK ? error : NULL);
    return status == TAMIS_OK ? removed : status;
}

static tamis_status put(const tms_recording *r, tamis_store *store, uint32_t tiers,
                        tamis_error *error) {
    const tamis_chunk_planes planes = {.id = r->id,
                                       .k = (const void *const *)r->planes,
                                       .v = (const void *const *)r->planes + r->id.shape.n_layers,
                                       .tiers = tiers};
    return tamis_store_put(store, &planes, error);
}

/* The sink's tokens and the chunk's, one after another; the caller frees them. */
static tamis_status join(const tms_recording *r, const int32_t *sink, int32_t **out,
                         tamis_error *error) {
    const uint32_t n = r->id.n_tokens;
    const size_t count = (size_t)r->n_sink + n;
    *out = malloc(count * sizeof **out);
    TMS_REQUIRE(*out, TAMIS_E_NO_MEMORY, "no memory for %zu tokens", count);
    if (r->n_sink) memcpy(*out, sink, r->n_sink * sizeof **out);
    memcpy(*out + r->n_sink, r->id.tokens, n * sizeof **out);
    return TAMIS_OK;
}

static tamis_status check_limits(const tamis_runner *runner, const tamis_record_params *params,
                                 uint32_t n_tokens, tamis_error *error) {
    const tamis_plan_params *limits = &runner->limits;
    tamis_cache_params cache;
    tamis_cache_get_params(runner->cache, &cache);
    TMS_TRY(tms_check_as_model(runner, error));
    TMS_TRY(tms_check_one_rotation(runner, "a stored chunk", NULL, error));
    TMS_REQUIRE(params->cache_dtype == cache.dtype, TAMIS_E_ARGUMENT,
                "cache_dtype of the record is %d (%s); the runner's cache is %s",
                (int)params->cache_dtype, tamis_dtype_name(params->cache_dtype),
                tamis_dtype_name(cache.dtype));
    TMS_REQUIRE(n_tokens <= limits->max_context && params->n_sink <= limits->max_context - n_tokens,
                TAMIS_E_ARGUMENT, "the chunk has %u tokens behind a sink of %u; max_context is %u",
                n_tokens, params->n_sink, limits->max_context);
    if (params->n_sink > 0) TMS_TRY(tms_check_tokens(runner, params->sink, params->n_sink, error));
    return TAMIS_OK;
}

/* Checks the call, and makes the id of the tokens. */
static tamis_status prepare(tms_recording *r, tamis_runner *runner, const tamis_store *store,
                            const tamis_record_params *params, const int32_t *tokens,
                            uint32_t n_tokens, tamis_error *error) {
    TMS_REQUIRE(runner, TAMIS_E_ARGUMENT, "runner is NULL");
    TMS_REQUIRE(store, TAMIS_E_ARGUMENT, "store is NULL");
    TMS_TRY(check_params(params, error));
    TMS_TRY(tms_check_tokens(runner, tokens, n_tokens, error));
    TMS_TRY(check_limits(runner, params, n_tokens, error));
    const tms_config *config = &runner->model->config;
    *r = (tms_recording){
        .runner = runner, .width = config->n_kv_heads * config->head_dim, .n_sink = params->n_sink};
    TMS_TRY(tamis_record_id(runner->model, params, tokens, n_tokens, &r->id, error));
    r->n_rows = n_tokens;
    return TAMIS_OK;
}

tamis_status tamis_runner_record(tamis_runner *runner, tamis_store *store,
                                 const tamis_record_params *params, const int32_t *tokens,
                                 uint32_t n_tokens, tamis_error *error) {
    TMS_ENTER_RUNNER(runner);
    tms_recording r;
    int32_t *all = NULL;
    TMS_TRY(prepare(&r, runner, store, params, tokens, n_tokens, error));
    tamis_status status = join(&r, params->sink, &all, error);
    if (status == TAMIS_OK) status = tms_recording_open(&r, error);
    if (status == TAMIS_OK) status = run(&r, all, r.n_sink + n_tokens, error);
    if (status == TAMIS_OK) status = put(&r, store, params->tiers, error);
    tms_recording_close(&r);
    free(all);
    return status;
}

/* ---- What a sequence holds ------------------------------------------------------------------- */

/* The sequence holds all of its tokens, in every lane, and they are enough. */
static tamis_status check_held(const tms_recording *r, tamis_sequence sequence,
                               tamis_error *error) {
    uint32_t length = 0, evicted_at = 0;
    TMS_TRY(tamis_cache_length(r->runner->cache, sequence, &length, &evicted_at, error));
    TMS_REQUIRE(length >= r->n_sink && length - r->n_sink >= r->id.n_tokens, TAMIS_E_ARGUMENT,
                "%u tokens behind a sink of %u; the sequence has %u", r->id.n_tokens, r->n_sink,
                length);
    TMS_REQUIRE(evicted_at == 0, TAMIS_E_STATE,
                "the sequence has lost tokens: it was evicted from at a length of %u", evicted_at);
    return TAMIS_OK;
}

/* Takes the rotation off rows of K of one head, from a position on, and then their norm's weights;
 * a norm of what is left gives it back. */
static void undo(const tamis_runner *runner, const float *norm, uint32_t position, uint32_t n,
                 float *k) {
    const tms_config *config = &runner->model->config;
    const double *frequencies = tms_runner_rotated(runner, 0)->frequencies; /* all are alike */
    const uint32_t pairs = config->n_rot / 2;
    const bool halves = config->architecture->pairing == TAMIS_PAIR_HALF;
    const uint32_t step = halves ? 1 : 2, partner = halves ? pairs : 1;
    for (uint32_t row = 0; row < n; ++row, k += config->head_dim) {
        for (uint32_t i = 0; i < pairs; ++i) {
            const double angle = (double)(position + row) * frequencies[i];
            const double a = k[i * step], b = k[i * step + partner];
            k[i * step] = (float)(a * cos(angle) + b * sin(angle));
            k[i * step + partner] = (float)(b * cos(angle) - a * sin(angle));
        }
        for (uint32_t d = 0; norm && d < config->head_dim; ++d)
            k[d] = norm[d] == 0 ? 0 : k[d] / norm[d];
    }
}

/* Rows of one head among those of all. */
static void spread(const tms_recording *r, uint32_t head, const float *from, uint32_t n,
                   float *rows) {
    const uint32_t dim = r->id.shape.head_dim;
    for (uint32_t row = 0; row < n; ++row)
        memcpy(rows + (uint64_t)row * r->width + head * dim, from + (uint64_t)row * dim,
               dim * sizeof *from);
}

/* What taking rows out of a sequence works with. */
typedef struct held_rows {
    tamis_sequence sequence;
    uint32_t most;  /* rows at a time: max_rows */
    float *of_head; /* [most][head_dim] */
    float *norm;    /* [head_dim], of a layer */
} held_rows;

/* Rows [first, first + n) of the chunk: K (part 0) or V of a layer. */
static tamis_status take_held(const tms_recording *r, const held_rows *h, uint32_t layer, int part,
                              const float *norm, uint32_t first, uint32_t n, tamis_error *error) {
    static const char *const names[] = {"K", "V"};
    uint8_t *plane = r->planes[part * r->id.shape.n_layers + layer];
    float *rows = r->wide ? r->wide : (float *)plane + (uint64_t)first * r->width;
    const uint32_t at = r->n_sink + first;
    for (uint32_t head = 0; head < r->id.shape.n_kv_heads; ++head) {
        float *k = part == 0 ? h->of_head : NULL, *v = part == 0 ? NULL : h->of_head;
        TMS_TRY(tamis_cache_read(r->runner->cache, h->sequence, layer, head, at, n, k, v, error));
        if (k) undo(r->runner, norm, at, n, k);
        spread(r, head, h->of_head, n, rows);
    }
    return tms_recording_put_rows(r, names[part], layer, plane, first, rows, n, error);
}

static tamis_status take_layer(const tms_recording *r, const held_rows *h, uint32_t layer,
                               tamis_error *error) {
    tamis_buffer *weights = r->runner->model->weights.layers[layer].weights[TMS_ATTN_K_NORM].buffer;
    const float *norm = weights ? h->norm : NULL;
    if (weights)
        TMS_TRY(
            tamis_buffer_read(weights, 0, h->norm, r->id.shape.head_dim * sizeof *h->norm, error));
    for (uint32_t first = 0, n; first < r->id.n_tokens; first += n) {
        n = r->id.n_tokens - first < h->most ? r->id.n_tokens - first : h->most;
        TMS_TRY(take_held(r, h, layer, 0, norm, first, n, error));
        TMS_TRY(take_held(r, h, layer, 1, norm, first, n, error));
    }
    return TAMIS_OK;
}

static tamis_status take_sequence(const tms_recording *r, tamis_sequence sequence,
                                  tamis_error *error) {
    const uint64_t dim = r->id.shape.head_dim;
    held_rows h = {.sequence = sequence, .most = r->runner->limits.max_rows};
    h.of_head = malloc(h.most * dim * sizeof *h.of_head);
    h.norm = malloc(dim * sizeof *h.norm);
    tamis_status status = TAMIS_OK;
    if (!h.of_head || !h.norm)
        status = tms_model_fail(error, TAMIS_E_NO_MEMORY, "no memory for %u rows", h.most);
    for (uint32_t layer = 0; status == TAMIS_OK && layer < r->id.shape.n_layers; ++layer)
        status = take_layer(r, &h, layer, error);
    free(h.of_head);
    free(h.norm);
    return status;
}

tamis_status tamis_runner_record_sequence(tamis_runner *runner, tamis_store *store,
                                          const tamis_record_params *params,
                                          tamis_sequence sequence, const int32_t *tokens,
                                          uint32_t n_tokens, tamis_error *error) {
    TMS_ENTER_RUNNER(runner);
    tms_recording r;
    TMS_TRY(prepare(&r, runner, store, params, tokens, n_tokens, error));
    TMS_TRY(check_held(&r, sequence, error));
    tamis_status status = tms_recording_open(&r, error);
    if (status == TAMIS_OK) status = take_sequence(&r, sequence, error);
    if (status == TAMIS_OK) status = put(&r, store, params->tiers, error);
    tms_recording_close(&r);
    return status;
}

/* ---- Prefixes -------------------------------------------------------------------------------- */

/* How many pages the store has, from the first on. What cannot be read counts as missing. */
static tamis_status count_pages(const tms_recording *r, tamis_store *store, uint32_t page_tokens,
                                size_t n_pages, size_t *found, tamis_error *error) {
    tamis_chunk **chunks = calloc(n_pages, sizeof *chunks);
    TMS_REQUIRE(chunks, TAMIS_E_NO_MEMORY, "no memory for %zu pages", n_pages);
    const tamis_status status =
        tamis_store_get_prefix(store, &r->id, page_tokens, chunks, n_pages, found, error);
    for (size_t i = 0; i < *found; ++i)
        tamis_chunk_release(&chunks[i]);
    free(chunks);
    return status == TAMIS_E_IO ? TAMIS_OK : status;
}

tamis_status tamis_runner_record_prefix(tamis_runner *runner, tamis_store *store,
                                        const tamis_record_params *params, const int32_t *tokens,
                                        uint32_t n_tokens, uint32_t page_tokens, uint32_t *n_stored,
                                        tamis_error *error) {
    TMS_ENTER_RUNNER(runner);
    tms_recording r;
    uint32_t stored = 0;
    size_t found = 0;
    TMS_REQUIRE(page_tokens > 0, TAMIS_E_ARGUMENT, "page_tokens is 0");
    TMS_REQUIRE(!params || params->n_sink == 0, TAMIS_E_ARGUMENT,
                "n_sink of a prefix is %u: all that stands before a page is the prefix's",
                params ? params->n_sink : 0);
    TMS_TRY(prepare(&r, runner, store, params, tokens, n_tokens, error));
    const size_t n_pages = n_tokens / page_tokens;
    r.id.n_tokens = r.n_rows = (uint32_t)n_pages * page_tokens;
    if (n_stored) *n_stored = 0;
    if (n_pages == 0) return TAMIS_OK;
    TMS_TRY(count_pages(&r, store, page_tokens, n_pages, &found, error));
    if (found == n_pages) return TAMIS_OK;
    tamis_status status = tms_recording_open(&r, error);
    if (status == TAMIS_OK) status = run(&r, tokens, r.id.n_tokens, error);
    if (status == TAMIS_OK)
        status = tms_recording_put_pages(&r, store, params->tiers, found, n_pages, page_tokens,
                                         &stored, error);
    tms_recording_close(&r);
    if (n_stored) *n_stored = stored;
    return status;
}
