/* SPDX-License-Identifier: Apache-2.0 */
/* A model with a store of chunks: recording them, and running prompts with them. */
#include "eval/blend_rig.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

const char *const blend_sinks[] = {"file", "bos", "none", NULL};
const char *const blend_schedules[] = {"falling", "flat", NULL};

/* ---- Opening --------------------------------------------------------------------------------- */

static tamis_status make_cache(blend_rig *rig, const blend_rig_params *p, tamis_error *error) {
    const uint32_t longest = p->prompt + p->answer,
                   stated = tamis_model_describe(rig->model)->context;
    tamis_cache_params cache = {.page_size = p->page_size,
                                .dtype = p->dtype,
                                .capacity_tokens =
                                    (uint64_t)p->sequences * (longest + p->page_size) +
                                    (uint64_t)p->forks * (p->answer + 2 * p->page_size)};
    if (longest > stated)
        return cli_error(error, TAMIS_E_ARGUMENT,
                         "a prompt takes up to %u tokens with what follows it; the model states a "
                         "context of %u",
                         longest, stated);
    tamis_model_cache_shape(rig->model, &cache);
    return tamis_cache_create(rig->context, &cache, &rig->cache, error);
}

static tamis_status make_runner(blend_rig *rig, const blend_rig_params *p, tamis_error *error) {
    const tamis_plan_params plan = {.max_rows = p->prompt,
                                    .max_context = p->prompt + p->answer,
                                    .load_dtypes = 1u << p->stored,
                                    .flags = p->asks ? TAMIS_PLAN_ROW_MASSES : 0};
    return tamis_runner_create(rig->model, rig->cache, &plan, &rig->runner, error);
}

static tamis_status set_sink(blend_rig *rig, const blend_rig_params *p, tamis_error *error) {
    const tamis_vocab_info *vocab = tamis_vocab_describe(tamis_model_vocab(rig->model));
    const bool wanted = p->sink == BLEND_SINK_BOS || (p->sink == BLEND_SINK_FILE && vocab->add_bos);
    rig->record.dtype = p->stored;
    rig->record.cache_dtype = p->dtype;
    if (!wanted) return TAMIS_OK;
    if (vocab->bos < 0)
        return cli_error(error, TAMIS_E_ARGUMENT, "--sink bos: the file names no such token");
    rig->sink[0] = vocab->bos;
    rig->record.sink = rig->sink;
    rig->record.n_sink = 1;
    return TAMIS_OK;
}

/* A store that holds the chunks of a prompt twice, so that none has to leave while one is added. */
static tamis_status make_store(blend_rig *rig, const blend_rig_params *p, tamis_error *error) {
    const tamis_chunk_shape shape = {.n_layers = rig->n_layers,
                                     .n_kv_heads = rig->n_kv_heads,
                                     .head_dim = rig->head_dim,
                                     .dtype = p->stored,
                                     .sink = rig->record.n_sink,
                                     .cache_dtype = p->dtype};
    const tamis_store_params store = {
        .memory_bytes = 2 * p->chunks * tamis_chunk_record_bytes(&shape, p->chunk_tokens)};
    return tamis_store_create(&store, &rig->store, error);
}

int blend_rig_open(blend_rig *rig, const char *command, const blend_rig_params *params) {
    tamis_error error = {0};
    *rig = (blend_rig){0};
    tamis_status status = cli_open(params->device, &rig->context, &error);
    if (status == TAMIS_OK) status = cli_load(rig->context, params->model, &rig->model, &error);
    if (status == TAMIS_OK) {
        const tamis_model_info *info = tamis_model_describe(rig->model);
        rig->n_vocab = info->n_vocab;
        rig->n_layers = info->n_layers;
        rig->n_kv_heads = info->n_kv_heads;
        rig->head_dim = info->head_dim;
        rig->out_width = info->n_heads * info->head_dim;
        status = make_cache(rig, params, &error);
    }
    if (status == TAMIS_OK) status = make_runner(rig, params, &error);
    if (status == TAMIS_OK) status = set_sink(rig, params, &error);
    if (status == TAMIS_OK) status = make_store(rig, params, &error);
    return status == TAMIS_OK ? CLI_OK : cli_fail(command, "%s", error.text);
}

void blend_rig_close(blend_rig *rig) {
    tamis_store_destroy(&rig->store);
    tamis_runner_destroy(&rig->runner);
    tamis_cache_destroy(&rig->cache);
    tamis_model_destroy(&rig->model);
    tamis_context_destroy(&rig->context);
}

/* ---- Arms ------------------------------------------------------------------------------------ */

blend_arm_text blend_arm_name(const blend_arm *arm) {
    blend_arm_text out;
    if (arm->share > 0)
        snprintf(out.text, sizeof(out.text), "%s at %u %%", arm->name, arm->share);
    else
        snprintf(out.text, sizeof(out.text), "%s", arm->name);
    return out;
}

tamis_status blend_arm_open(const blend_rig *rig, const blend_settings *settings, blend_arm *arm,
                            tamis_error *error) {
    tamis_blend_params params = {.selector = arm->selector,
                                 .check_layer =
                                     arm->unchecked ? TAMIS_BLEND_NO_CHECK : settings->check_layer,
                                 .dtype = rig->record.dtype,
                                 .n_sink = rig->record.n_sink,
                                 .sink = rig->record.sink};
    if (arm->selector == TAMIS_BLEND_FIRST)
        params.first = (uint32_t)(((uint64_t)arm->share * settings->chunk_tokens + 99) / 100);
    else if (arm->share > 0) {
        params.share = arm->share / 100.0;
        params.schedule = settings->schedule;
    }
    if (settings->estimate && !arm->unchecked && arm->selector != TAMIS_BLEND_ALL)
        params.bound = INFINITY; /* which nothing exceeds but what is not finite */
    if (arm->selector == TAMIS_BLEND_RANDOM) params.seed = settings->seed;
    tamis_status status = tamis_model_fingerprint(rig->model, params.fingerprint, error);
    if (status != TAMIS_OK) return status;
    return tamis_runner_blend_create(rig->runner, rig->store, &params, &arm->blend, error);
}

/* ---- Prompts --------------------------------------------------------------------------------- */

uint32_t blend_prompt_context(const blend_rig *rig, const blend_prompt *prompt) {
    return rig->record.n_sink + prompt->n_chunks * prompt->chunk_tokens;
}

uint32_t blend_prompt_hits(const blend_rig *rig, const blend_prompt *prompt) {
    return rig->record.n_sink + prompt->chunk_tokens;
}

tamis_status blend_record(const blend_rig *rig, const blend_prompt *prompt, tamis_error *error) {
    tamis_status status = TAMIS_OK;
    for (uint32_t c = 0; status == TAMIS_OK && c < prompt->n_chunks; c++)
        status = tamis_runner_record(rig->runner, rig->store, &rig->record,
                                     prompt->chunks + (size_t)c * prompt->chunk_tokens,
                                     prompt->chunk_tokens, error);
    return status;
}

static uint32_t make_parts(const blend_rig *rig, const blend_arm *arm, const blend_prompt *prompt,
                           tamis_blend_part parts[BLEND_CHUNKS_MAX + 2]) {
    uint32_t n = 0;
    parts[n++] = (tamis_blend_part){.tokens = rig->sink, .n_tokens = rig->record.n_sink};
    for (uint32_t c = 0; c < prompt->n_chunks; c++)
        parts[n++] = (tamis_blend_part){.tokens = prompt->chunks + (size_t)c * prompt->chunk_tokens,
                                        .n_tokens = prompt->chunk_tokens,
                                        .stored = !arm->prefix || c == 0};
    parts[n++] = (tamis_blend_part){.tokens = prompt->suffix, .n_tokens = prompt->n_suffix};
    return n;
}

/* Every chunk that is looked up must be found: what is missing would be computed, and the figures
 * would be those of another arm. */
static tamis_status check_found(const blend_arm *arm, const tamis_blend_stats *before,
                                const tamis_blend_stats *after, tamis_error *error) {
    const uint64_t missed = after->parts_missed - before->parts_missed +
                            (after->parts_damaged - before->parts_damaged) +
                            (after->parts_failed - before->parts_failed);
    if (missed == 0) return TAMIS_OK;
    return cli_error(error, TAMIS_E_STATE, "%s: the store has lost %" PRIu64 " of the chunks",
                     blend_arm_name(arm).text, missed);
}

tamis_status blend_run(const blend_rig *rig, const blend_arm *arm, const blend_prompt *prompt,
                       tamis_sequence *out, int32_t *next, blend_cost *cost, tamis_error *error) {
    tamis_blend_part parts[BLEND_CHUNKS_MAX + 2];
    tamis_blend_stats before;
    const uint32_t n_parts = make_parts(rig, arm, prompt, parts);
    const double rows = (double)(blend_prompt_context(rig, prompt) + prompt->n_suffix);
    tamis_blend_get_stats(arm->blend, &before);
    tamis_status status = tamis_cache_add(rig->cache, out, error);
    if (status != TAMIS_OK) return status;
    const double start = cli_seconds();
    status = tamis_runner_blend(rig->runner, *out, arm->blend, parts, n_parts, next, error);
    cost->seconds = cli_seconds() - start;
    if (status != TAMIS_OK) return status;
    tamis_blend_get_stats(arm->blend, &cost->last);
    cost->rows = (double)(cost->last.rows_computed - before.rows_computed) / (rows * rig->n_layers);
    cost->left = cost->last.left;
    return check_found(arm, &before, &cost->last, error);
}

tamis_status blend_follow(const blend_rig *rig, const blend_prompt *prompt, tamis_sequence from,
                          tamis_sequence *out, int32_t *next, tamis_error *error) {
    tamis_status status = tamis_cache_fork(rig->cache, from, out, error);
    if (status != TAMIS_OK) return status;
    status = tamis_cache_truncate(rig->cache, *out, blend_prompt_context(rig, prompt), error);
    if (status == TAMIS_OK)
        status =
            tamis_runner_prefill(rig->runner, *out, prompt->suffix, prompt->n_suffix, next, error);
    return status;
}
