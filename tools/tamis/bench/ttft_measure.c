/* SPDX-License-Identifier: Apache-2.0 */
/* What `tamis bench ttft` measures: stores with all chunks, rounds of all arms, the layers of their
 * pipelines, requests at a rate. */
#include "bench/ttft.h"

#include <stdlib.h>
#include <string.h>

#define STEP_ROWS    512u /* of a prefill, as tamis run reads a prompt */
#define LEAST_SHARE  0.15 /* the controller's */
#define TIMED_PASSES 3u   /* whose layers are waited for; the median one counts */

const char *ttft_kind_name(ttft_kind kind) {
    static const char *const names[] = {"full", "all", "prefix", "reuse", "blend"};
    return names[kind];
}

/* ---- Making what is measured ----------------------------------------------------------------- */

static uint32_t most_tokens(const ttft *t) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < t->counts.count; i++) {
        const uint32_t n = ttft_prompt_tokens(&t->texts, t->counts.values[i]);
        most = n > most ? n : most;
    }
    return most;
}

static tamis_status make_runners(ttft *t, tamis_error *error) {
    const uint32_t most = most_tokens(t), stated = tamis_model_describe(t->model)->context;
    tamis_plan_params plan = {.max_context = most, .max_rows = STEP_ROWS};
    if (most > stated)
        return cli_error(error, TAMIS_E_ARGUMENT,
                         "a prompt has %u tokens; the model states a context of %u", most, stated);
    tamis_model_cache_shape(t->model, &t->shape);
    t->shape.capacity_tokens = most;
    tamis_status status = tamis_cache_create(t->device, &t->shape, &t->cache, error);
    if (status == TAMIS_OK)
        status = tamis_runner_create(t->model, t->cache, &plan, &t->in_steps, error);
    plan.max_rows = most;
    plan.load_dtypes = 1u << t->store_dtype;
    plan.flags = t->selector == TAMIS_BLEND_QUESTION ? TAMIS_PLAN_ROW_MASSES : 0;
    if (status == TAMIS_OK)
        status = tamis_runner_create(t->model, t->cache, &plan, &t->runner, error);
    if (status == TAMIS_OK) status = tamis_model_fingerprint(t->model, t->fingerprint, error);
    return status;
}

/* Puts those chunks of the pool that a store lacks into it. */
static tamis_status record(const ttft *t, tamis_store *store, const char *name,
                           tamis_error *error) {
    tamis_status status = TAMIS_OK;
    for (uint32_t i = 0; status == TAMIS_OK && i < t->texts.n_pool; i++) {
        const int32_t *tokens = t->texts.pool + (size_t)i * t->texts.chunk_tokens;
        tamis_chunk_id id;
        tamis_chunk *chunk = NULL;
        status = tamis_record_id(t->model, &t->record, tokens, t->texts.chunk_tokens, &id, error);
        if (status == TAMIS_OK) status = tamis_store_get(store, &id, &chunk, error);
        const bool there = chunk != NULL;
        tamis_chunk_release(&chunk);
        if (status != TAMIS_OK || there) continue;
        fprintf(stderr, "%s: recording chunk %u of %u\n", name, i + 1, t->texts.n_pool);
        status = tamis_runner_record(t->in_steps, store, &t->record, tokens, t->texts.chunk_tokens,
                                     error);
    }
    return status;
}

static const char *place_of(const ttft *t, tamis_tier tier) {
    if (tier == TAMIS_TIER_DISK) return t->folder;
    return tier == TAMIS_TIER_REDIS ? store_place_name(&t->server) : tamis_tier_name(tier);
}

/* A store of one tier: what is read from it comes from there each time. */
static tamis_status open_store(ttft *t, tamis_tier tier, tamis_error *error) {
    const tamis_store_params in_memory = {.memory_bytes = UINT64_MAX / 2},
                             on_disk = {.folder = t->folder};
    if (tier == TAMIS_TIER_REDIS) return store_open(&t->server, 0, true, &t->stores[tier], error);
    return tamis_store_create(tier == TAMIS_TIER_DISK ? &on_disk : &in_memory, &t->stores[tier],
                              error);
}

static tamis_status open_stores(ttft *t, tamis_error *error) {
    tamis_status status = TAMIS_OK;
    for (uint32_t i = 0; status == TAMIS_OK && i < t->n_sources; i++)
        if (t->stores[t->sources[i].tier] == NULL)
            status = open_store(t, t->sources[i].tier, error);
    for (int tier = 0; status == TAMIS_OK && tier < TAMIS_TIERS; tier++)
        if (t->stores[tier] != NULL)
            status = record(t, t->stores[tier], place_of(t, (tamis_tier)tier), error);
    return status;
}

/* An arm without a source, which asks none, gets that of the first. */
static tamis_store *store_of(const ttft *t, const ttft_source *source) {
    return t->stores[source != NULL ? source->tier : t->sources[0].tier];
}

static tamis_status make_blend(const ttft *t, const ttft_arm *arm, bool timing, tamis_blend **out,
                               tamis_error *error) {
    const tamis_blend_selector selectors[] = {TAMIS_BLEND_ALL, TAMIS_BLEND_ALL, TAMIS_BLEND_NONE,
                                              TAMIS_BLEND_NONE, t->selector};
    tamis_blend_params params = {.selector = selectors[arm->kind],
                                 .dtype = t->store_dtype,
                                 .sink = t->texts.sink,
                                 .n_sink = t->texts.n_sink,
                                 .flags = timing ? TAMIS_BLEND_TIMING : 0};
    if (params.selector == TAMIS_BLEND_NONE) params.check_layer = TAMIS_BLEND_NO_CHECK;
    if (arm->kind == TTFT_BLEND) params.share = arm->share;
    if (arm->source != NULL && arm->source->bytes_per_s > 0) {
        params.reader = ttft_read_throttled;
        params.reader_user = arm->source;
    }
    memcpy(params.fingerprint, t->fingerprint, sizeof(params.fingerprint));
    return tamis_runner_blend_create(t->runner, store_of(t, arm->source), &params, out, error);
}

/* ---- One prompt ------------------------------------------------------------------------------ */

static tamis_status read_prompt(const ttft *t, const ttft_arm *arm, tamis_blend *blend,
                                const ttft_prompt *prompt, tamis_sequence sequence,
                                tamis_error *error) {
    int32_t next = 0;
    if (arm->kind == TTFT_FULL)
        return tamis_runner_prefill(t->in_steps, sequence, prompt->tokens, prompt->n_tokens, &next,
                                    error);
    return tamis_runner_blend(t->runner, sequence, blend,
                              arm->kind == TTFT_PREFIX ? prompt->prefix : prompt->parts,
                              prompt->n_parts, &next, error);
}

/* What one prompt counted: the difference of two looks. */
static tamis_blend_stats between(const tamis_blend_stats *before, const tamis_blend_stats *after) {
    tamis_blend_stats of = *after;
    of.parts_found -= before->parts_found;
    of.parts_missed -= before->parts_missed;
    of.parts_damaged -= before->parts_damaged;
    of.parts_failed -= before->parts_failed;
    of.restarts -= before->restarts;
    of.tokens_exact -= before->tokens_exact;
    of.tokens_hit -= before->tokens_hit;
    of.tokens_fresh -= before->tokens_fresh;
    of.tokens_selected -= before->tokens_selected;
    of.bytes_read -= before->bytes_read;
    of.read_us -= before->read_us;
    of.wait_us -= before->wait_us;
    return of;
}

/* Calls of a source's store that failed so far. A server that fails is a miss to the blend. */
static uint64_t failed_calls(const ttft *t, const ttft_arm *arm) {
    tamis_store_stats stats;
    tamis_store_get_stats(store_of(t, arm->source), &stats);
    return stats.failed;
}

/* A prompt whose chunks are not all there measures something else. */
static tamis_status check_found(const ttft *t, const ttft_arm *arm, const tamis_blend_stats *s,
                                uint64_t failed, tamis_error *error) {
    if (s->parts_missed + s->parts_damaged + s->parts_failed + s->restarts == 0) return TAMIS_OK;
    return cli_error(error, TAMIS_E_STATE,
                     "%s from %s: %llu chunks missed, %llu damaged, %llu not read, %llu calls to "
                     "%s failed: nothing can be said of its time",
                     ttft_kind_name(arm->kind), arm->source->name,
                     (unsigned long long)s->parts_missed, (unsigned long long)s->parts_damaged,
                     (unsigned long long)s->parts_failed, (unsigned long long)failed,
                     place_of(t, arm->source->tier));
}

/* From an empty sequence to the first token; `stats` (or NULL): what was counted meanwhile. Fails
 * unless all chunks came from where the arm takes them. */
static tamis_status sample(const ttft *t, const ttft_arm *arm, tamis_blend *blend,
                           const ttft_prompt *prompt, double *seconds, tamis_blend_stats *stats,
                           tamis_error *error) {
    tamis_sequence sequence = 0;
    double cached = 0;
    tamis_blend_stats before = {.prompts = 0}, after = {.prompts = 0}, counted;
    const uint64_t failed = failed_calls(t, arm);
    tamis_blend_get_stats(blend, &before);
    tamis_status status = tamis_cache_add(t->cache, &sequence, error);
    if (status != TAMIS_OK) return status;
    if (arm->source != NULL && arm->source->dropped) {
        status = ttft_drop(t->folder, &cached, error);
        if (cached > arm->source->cached) arm->source->cached = cached;
    }
    if (status == TAMIS_OK) status = tamis_context_wait(t->device, error);
    const double start = cli_seconds();
    if (status == TAMIS_OK) status = read_prompt(t, arm, blend, prompt, sequence, error);
    *seconds = cli_seconds() - start;
    tamis_blend_get_stats(blend, &after);
    counted = between(&before, &after);
    if (stats != NULL) *stats = counted;
    if (status == TAMIS_OK)
        status = check_found(t, arm, &counted, failed_calls(t, arm) - failed, error);
    const tamis_status removed =
        tamis_cache_remove(t->cache, sequence, status == TAMIS_OK ? error : NULL);
    return status == TAMIS_OK ? removed : status;
}

/* ---- Layers ---------------------------------------------------------------------------------- */

/* Share of a layer's multiplications, attention aside, that gives q, k and v. */
static double share_of_qkv(const tamis_model_info *m) {
    const double heads = (double)m->n_heads * m->head_dim, kv = (double)m->n_kv_heads * m->head_dim;
    return (heads + 2 * kv) / (2 * heads + 2 * kv + 3.0 * m->ff_dim);
}

static void sum_layers(const ttft *t, ttft_cell *cell) {
    const tamis_model_info *model = tamis_model_describe(t->model);
    const double qkv = share_of_qkv(model);
    /* Where a question asks, its rows are computed once more. */
    double rows = cell->ask_us > 0 ? (double)model->n_layers * (double)cell->stats.tokens_fresh : 0;
    cell->pipeline_us = cell->overlapped_us = cell->serial_us = cell->ask_us;
    for (uint32_t i = 0; i < model->n_layers; i++) {
        const tamis_blend_layer_stats *of = &cell->layers[i];
        const double busy = of->load_us + of->compute_us;
        cell->pipeline_us += of->wait_us + busy;
        cell->overlapped_us += of->read_us > busy ? of->read_us : busy;
        cell->serial_us += of->read_us + busy;
        rows += qkv * of->rows_computed + (1 - qkv) * of->rows_attended;
    }
    cell->fraction = rows / ((double)model->n_layers * cell->n_tokens);
}

/* One pass; its layers are kept if fewer than half of the passes were faster. */
static tamis_status time_layers(const ttft *t, ttft_cell *cell, const ttft_prompt *prompt,
                                tamis_error *error) {
    const uint32_t n_layers = tamis_model_describe(t->model)->n_layers;
    const size_t bytes = n_layers * sizeof(*cell->layers);
    double seconds[TIMED_PASSES], sorted[TIMED_PASSES], asks[TIMED_PASSES], asked = 0;
    tamis_blend *blend = NULL;
    tamis_blend_layer_stats *passes = malloc(TIMED_PASSES * bytes);
    if (passes == NULL) return cli_no_memory(error);
    tamis_status status = make_blend(t, cell->arm, true, &blend, error);
    for (uint32_t i = 0; status == TAMIS_OK && i < TIMED_PASSES; i++) {
        tamis_blend_stats all;
        status = sample(t, cell->arm, blend, prompt, &seconds[i], NULL, error);
        tamis_blend_get_stats(blend, &all);
        asks[i] = all.ask_us - asked;
        asked = all.ask_us;
        for (uint32_t layer = 0; status == TAMIS_OK && layer < n_layers; layer++)
            status =
                tamis_blend_get_layer_stats(blend, layer, &passes[i * n_layers + layer], error);
    }
    if (status == TAMIS_OK) {
        memcpy(sorted, seconds, sizeof(sorted));
        const double median = bench_median(sorted, TIMED_PASSES);
        for (uint32_t i = 0; i < TIMED_PASSES; i++)
            if (seconds[i] == median) {
                memcpy(cell->layers, passes + i * n_layers, bytes);
                cell->ask_us = asks[i];
            }
        sum_layers(t, cell);
    }
    tamis_blend_destroy(&blend);
    free(passes);
    return status;
}

/* ---- Cells ----------------------------------------------------------------------------------- */

static tamis_status take_rounds(const ttft *t, ttft_cell *cells, const ttft_prompt *prompt,
                                tamis_error *error) {
    tamis_status status = TAMIS_OK;
    double warm = 0;
    for (uint32_t a = 0; status == TAMIS_OK && a < t->n_arms; a++) /* not counted */
        status = sample(t, cells[a].arm, cells[a].arm->blend, prompt, &warm, NULL, error);
    for (uint32_t r = 0; status == TAMIS_OK && r < t->repeat; r++) {
        fprintf(stderr, "%u chunks: round %u of %u\n", cells->n_chunks, r + 1, t->repeat);
        for (uint32_t a = 0; status == TAMIS_OK && a < t->n_arms; a++) {
            ttft_cell *cell = &cells[a];
            status = sample(t, cell->arm, cell->arm->blend, prompt, &cell->seconds[r], &cell->stats,
                            error);
        }
    }
    return status;
}

/* Ratios are taken within a round, whose samples are close in time. */
static void summarise(const ttft *t, ttft_cell *cells) {
    for (uint32_t a = t->n_arms; a-- > 0;) { /* full, which is sorted, last */
        ttft_cell *cell = &cells[a];
        double ratios[1000];
        for (uint32_t r = 0; r < t->repeat; r++)
            ratios[r] = cells[0].seconds[r] / cell->seconds[r];
        cell->speedup = bench_median(ratios, t->repeat);
        cell->median = bench_median(cell->seconds, t->repeat);
        cell->lowest = cell->seconds[0];
        cell->highest = cell->seconds[t->repeat - 1];
    }
}

static tamis_status measure_count(const ttft *t, ttft_cell *cells, tamis_error *error) {
    ttft_prompt prompt;
    tamis_status status = ttft_prompt_make(&t->texts, cells->n_chunks, UINT32_MAX, &prompt, error);
    if (status != TAMIS_OK) return status;
    status = take_rounds(t, cells, &prompt, error);
    if (status == TAMIS_OK) summarise(t, cells);
    for (uint32_t a = 0; status == TAMIS_OK && a < t->n_arms; a++) {
        cells[a].n_tokens = prompt.n_tokens;
        cells[a].fraction = 1;
        if (cells[a].arm->kind != TTFT_FULL) status = time_layers(t, &cells[a], &prompt, error);
    }
    ttft_prompt_free(&prompt);
    return status;
}

/* ---- Arms ------------------------------------------------------------------------------------ */

/* The controller's share for a source, by the second of two prompts with the most chunks under the
 * least one; that one stays where a prompt has no tokens to choose from. */
static tamis_status choose_share(const ttft *t, ttft_arm *arm, tamis_error *error) {
    tamis_blend *blend = NULL;
    tamis_blend_costs costs;
    ttft_prompt prompt;
    double seconds = 0;
    uint32_t most = 0;
    for (uint32_t i = 0; i < t->counts.count; i++)
        most = t->counts.values[i] > most ? t->counts.values[i] : most;
    tamis_status status = ttft_prompt_make(&t->texts, most, UINT32_MAX, &prompt, error);
    if (status != TAMIS_OK) return status;
    arm->chosen = true;
    arm->share = LEAST_SHARE;
    status = make_blend(t, arm, true, &blend, error);
    for (int i = 0; status == TAMIS_OK && i < 2; i++)
        status = sample(t, arm, blend, &prompt, &seconds, NULL, error);
    if (status == TAMIS_OK) status = tamis_blend_get_costs(blend, &costs, error);
    if (status == TAMIS_OK && costs.hits > 0)
        status = tamis_blend_share(&costs, &arm->share, error);
    if (status == TAMIS_OK)
        fprintf(
            stderr,
            "%s: share %.3g %%: reading takes %.2f us for a token in a layer, computing %.2f us "
            "for a row\n",
            arm->source->name, 100 * arm->share, costs.load_us, costs.compute_us);
    tamis_blend_destroy(&blend);
    ttft_prompt_free(&prompt);
    return status;
}

static tamis_status add_arm(ttft *t, ttft_kind kind, ttft_source *source, double share,
                            tamis_error *error) {
    ttft_arm *arm = &t->arms[t->n_arms++];
    *arm = (ttft_arm){.kind = kind, .source = source, .share = share};
    if (kind == TTFT_FULL) return TAMIS_OK;
    if (kind == TTFT_BLEND && share == 0) {
        const tamis_status status = choose_share(t, arm, error);
        if (status != TAMIS_OK) return status;
    }
    return make_blend(t, arm, false, &arm->blend, error);
}

static tamis_status make_arms(ttft *t, tamis_error *error) {
    tamis_status status = add_arm(t, TTFT_FULL, NULL, 0, error);
    if (status == TAMIS_OK) status = add_arm(t, TTFT_ALL, NULL, 0, error);
    for (uint32_t i = 0; status == TAMIS_OK && i < t->n_sources; i++) {
        ttft_source *source = &t->sources[i];
        status = add_arm(t, TTFT_PREFIX, source, 0, error);
        if (status == TAMIS_OK) status = add_arm(t, TTFT_REUSE, source, 0, error);
        for (uint32_t s = 0; status == TAMIS_OK && s < t->n_shares; s++)
            status = add_arm(t, TTFT_BLEND, source, t->shares[s], error);
    }
    return status;
}

static tamis_status make_cells(ttft *t, tamis_error *error) {
    const uint32_t n_layers = tamis_model_describe(t->model)->n_layers;
    t->cells = calloc((size_t)t->counts.count * t->n_arms, sizeof(*t->cells));
    if (t->cells == NULL) return cli_no_memory(error);
    for (uint32_t i = 0; i < t->counts.count; i++)
        for (uint32_t a = 0; a < t->n_arms; a++) {
            ttft_cell *cell = &t->cells[t->n_cells++];
            *cell = (ttft_cell){.arm = &t->arms[a],
                                .n_chunks = t->counts.values[i],
                                .seconds = calloc(t->repeat, sizeof(double)),
                                .layers = calloc(n_layers, sizeof(*cell->layers))};
            if (cell->seconds == NULL || cell->layers == NULL) return cli_no_memory(error);
        }
    return TAMIS_OK;
}

/* ---- Requests -------------------------------------------------------------------------------- */

/* How long each arm takes for each request: [arm][request]. */
static tamis_status take_requests(const ttft *t, double *seconds, tamis_error *error) {
    tamis_status status = TAMIS_OK;
    for (uint32_t i = 0; status == TAMIS_OK && i < t->n_requests; i++) {
        ttft_prompt prompt;
        fprintf(stderr, "request %u of %u\n", i + 1, t->n_requests);
        status = ttft_prompt_make(&t->texts, t->counts.values[0], i, &prompt, error);
        if (status != TAMIS_OK) break;
        for (uint32_t a = 0; status == TAMIS_OK && a < t->n_arms; a++)
            status = sample(t, &t->arms[a], t->arms[a].blend, &prompt,
                            &seconds[a * t->n_requests + i], NULL, error);
        ttft_prompt_free(&prompt);
    }
    return status;
}

static tamis_status measure_rates(ttft *t, tamis_error *error) {
    const size_t n = (size_t)t->n_arms * t->n_requests;
    if (t->n_rates == 0) return TAMIS_OK;
    double *seconds = calloc(n + t->n_requests, sizeof(*seconds));
    t->queues = calloc((size_t)t->n_arms * t->n_rates, sizeof(*t->queues));
    tamis_status status = seconds != NULL && t->queues != NULL ? TAMIS_OK : cli_no_memory(error);
    if (status == TAMIS_OK) status = take_requests(t, seconds, error);
    for (uint32_t r = 0; status == TAMIS_OK && r < t->n_rates; r++)
        for (uint32_t a = 0; a < t->n_arms; a++) {
            ttft_queue *queue = &t->queues[t->n_queues++];
            queue->arm = &t->arms[a];
            ttft_serve(seconds + (size_t)a * t->n_requests, t->n_requests, t->rates[r],
                       t->texts.seed, seconds + n, queue);
        }
    free(seconds);
    return status;
}

tamis_status ttft_measure(ttft *t, tamis_error *error) {
    tamis_status status = make_runners(t, error);
    if (status == TAMIS_OK) status = open_stores(t, error);
    if (status == TAMIS_OK) status = make_arms(t, error);
    if (status == TAMIS_OK) status = make_cells(t, error);
    for (uint32_t i = 0; status == TAMIS_OK && i < t->counts.count; i++)
        status = measure_count(t, &t->cells[i * t->n_arms], error);
    if (status == TAMIS_OK) status = measure_rates(t, error);
    return status;
}
