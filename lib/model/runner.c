/* SPDX-License-Identifier: Apache-2.0 */
/* A runner: its plan, whose layers attend as the model's, and the buffers of its activations. */
#include "lib/model/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static tamis_status check_shapes(const tamis_model *model, const tamis_cache *cache,
                                 const tamis_plan_params *params, tamis_error *error) {
    tamis_cache_params have, want = {0};
    tamis_cache_get_params(cache, &have);
    tamis_model_cache_shape(model, &want);
    TMS_REQUIRE(model->context == tamis_cache_context(cache), TAMIS_E_ARGUMENT,
                "model and cache are of two contexts");
    TMS_REQUIRE(have.n_layers == want.n_layers && have.n_heads == want.n_heads &&
                    have.n_kv_heads == want.n_kv_heads && have.head_dim == want.head_dim,
                TAMIS_E_ARGUMENT,
                "the cache has %u layers, %u heads, %u KV heads, head dim %u; the model has %u, "
                "%u, %u, %u",
                have.n_layers, have.n_heads, have.n_kv_heads, have.head_dim, want.n_layers,
                want.n_heads, want.n_kv_heads, want.head_dim);
    TMS_REQUIRE(!params->layers, TAMIS_E_ARGUMENT,
                "layers are given; those of a runner attend as the model's");
    TMS_REQUIRE(params->max_context <= model->info.context, TAMIS_E_ARGUMENT,
                "max_context is %u; the model's context is %u", params->max_context,
                model->info.context);
    TMS_REQUIRE(params->max_context <= TAMIS_ROTATE_LIMIT, TAMIS_E_UNSUPPORTED,
                "max_context is %u; positions below %u can be rotated", params->max_context,
                TAMIS_ROTATE_LIMIT);
    return TAMIS_OK;
}

static tamis_status make_buffers(tamis_runner *runner, tamis_error *error) {
    const tamis_plan_params *limits = &runner->limits;
    const size_t n = limits->max_rows;
    runner->max_outputs = limits->max_selected_rows > limits->max_sequences
                              ? limits->max_selected_rows
                              : limits->max_sequences;
    runner->tokens = calloc(n, sizeof *runner->tokens);
    runner->positions = calloc(n, sizeof *runner->positions);
    runner->parents = calloc(n, sizeof *runner->parents);
    runner->bundles = calloc(n, sizeof *runner->bundles);
    runner->outs = calloc(n, sizeof *runner->outs);
    runner->sequences = calloc(limits->max_sequences, sizeof *runner->sequences);
    runner->rows = calloc(limits->max_sequences, sizeof *runner->rows);
    TMS_REQUIRE(runner->tokens && runner->positions && runner->parents && runner->bundles &&
                    runner->outs && runner->sequences && runner->rows,
                TAMIS_E_NO_MEMORY, "no memory for the tables of %zu rows", n);
    for (int i = 0; i < TMS_ACTIVATIONS; ++i) {
        const bool of_outputs = i == TMS_LOGITS || i == TMS_NEXT;
        const uint64_t rows = of_outputs ? runner->max_outputs : limits->max_rows,
                       width = tms_activation_width(runner->model, i);
        if (width == 0) continue;
        TMS_TRY(tamis_buffer_create(runner->model->context, rows * width * 4, &runner->buffers[i],
                                    error));
    }
    return TAMIS_OK;
}

/* 0, 1, 2, ... for widen_output. */
static tamis_status count_rows(tamis_runner *runner, tamis_error *error) {
    const uint32_t n = runner->model->config.dim;
    const uint64_t bytes = (uint64_t)n * sizeof(int32_t);
    runner->outputs = calloc(runner->model->config.n_layers, sizeof *runner->outputs);
    int32_t *rows = malloc(bytes);
    tamis_status status = TAMIS_OK;
    if (!runner->outputs || !rows)
        status = tms_model_fail(error, TAMIS_E_NO_MEMORY, "no memory for %u rows", n);
    for (uint32_t i = 0; i < n && status == TAMIS_OK; ++i)
        rows[i] = (int32_t)i;
    if (status == TAMIS_OK)
        status = tamis_buffer_create(runner->model->context, bytes, &runner->output_rows, error);
    if (status == TAMIS_OK) status = tamis_buffer_write(runner->output_rows, 0, rows, bytes, error);
    free(rows);
    return status;
}

/* The output projection of a layer as the plan takes it. One in blocks is widened to f32 by
 * `embed`, whose rows are those of a matrix; the runner owns that. */
static tamis_status widen_output(tamis_runner *runner, uint32_t layer, tamis_rows *rows,
                                 tamis_error *error) {
    const tamis_model *model = runner->model;
    const tms_weight *w = &model->weights.layers[layer].weights[TMS_ATTN_OUTPUT];
    const uint32_t width = model->config.n_heads * model->config.head_dim;
    const uint64_t bytes = (uint64_t)model->config.dim * width * sizeof(float);
    *rows = (tamis_rows){.buffer = w->buffer, .dtype = (tamis_dtype)w->type};
    if (tamis_weight_block(w->type) == 1) return TAMIS_OK;
    if (!runner->outputs) TMS_TRY(count_rows(runner, error));
    TMS_TRY(tamis_buffer_create(model->context, bytes, &runner->outputs[layer], error));
    *rows = (tamis_rows){.buffer = runner->outputs[layer], .dtype = TAMIS_F32};
    const tamis_embed_params embed = {
        .tokens = {.buffer = runner->output_rows},
        .w = {.buffer = w->buffer, .layout = w->layout, .type = w->type},
        .y = *rows,
        .n_rows = model->config.dim,
        .dim = width,
        .n_vocab = model->config.dim};
    return tamis_op_embed(model->context, &embed, error);
}

/* Binds to the plan what its eviction needs of the model. */
static tamis_status bind_model(tamis_runner *runner, tamis_error *error) {
    const tamis_model *model = runner->model;
    const tms_config *config = &model->config;
    const uint32_t needs = tamis_eviction_needs(&runner->limits.eviction);
    for (uint32_t layer = 0; needs & TAMIS_NEEDS_OUTPUT && layer < config->n_layers; ++layer) {
        tamis_rows rows;
        TMS_TRY(widen_output(runner, layer, &rows, error));
        TMS_TRY(tamis_plan_bind_output(runner->plan, layer, &rows, config->dim, error));
    }
    const tms_rotated *rotated = NULL;
    if (!(needs & TAMIS_NEEDS_ROTATION)) return TAMIS_OK;
    TMS_TRY(tms_check_one_rotation(runner, "the eviction", &rotated, error));
    return tamis_plan_bind_rotation(runner->plan, &rotated->rotation, error);
}

static bool is_long(const tamis_model *model, const tamis_plan_params *params) {
    return tms_model_has_long(model) && params->max_context > model->config.rope.original_context;
}

/* How a layer attends: the caller's parameters with the model's own in the place of zeros. A sliding
 * window that no text of this plan outgrows is none. */
static tamis_attention attention_of(const tamis_model *model, const tamis_plan_params *params,
                                    uint32_t layer) {
    const tms_config *config = &model->config;
    const tms_rotation_kind kind = tms_config_rotation(config, layer, is_long(model, params));
    const bool whole = config->n_rot == config->head_dim;
    const double magnitude = whole ? tms_config_magnitude(config, kind) : 1;
    const double plain =
        config->attn_scale != 0 ? (double)config->attn_scale : 1 / sqrt(config->head_dim);
    tamis_attention own = params->attention;
    if (own.scale == 0 && (magnitude != 1 || config->attn_scale != 0))
        own.scale = (float)(magnitude * magnitude * plain);
    if (own.soft_cap == 0) own.soft_cap = config->attn_cap;
    if (tms_config_is_local(config, layer) && config->sliding_window < params->max_context &&
        (own.sliding_window == 0 || config->sliding_window < own.sliding_window))
        own.sliding_window = config->sliding_window;
    return own;
}

/* Where some layers are local and some are not, a selection chooses in the latter: the former read no
 * more than their window in any case. */
static tamis_layer layer_of(const tamis_model *model, const tamis_plan_params *params,
                            uint32_t layer) {
    const tms_config *config = &model->config;
    const tamis_attention attention = attention_of(model, params, layer);
    const bool local = tms_config_is_mixed(config) && attention.sliding_window &&
                       tms_config_is_local(config, layer);
    return (tamis_layer){.attention = attention, .full = local};
}

tamis_status tamis_model_layers(const tamis_model *model, const tamis_plan_params *params,
                                tamis_layer *layers, tamis_error *error) {
    TMS_REQUIRE(model, TAMIS_E_ARGUMENT, "model is NULL");
    TMS_REQUIRE(params, TAMIS_E_ARGUMENT, "params is NULL");
    TMS_REQUIRE(layers, TAMIS_E_ARGUMENT, "layers is NULL");
    for (uint32_t layer = 0; layer < model->config.n_layers; ++layer)
        layers[layer] = layer_of(model, params, layer);
    return TAMIS_OK;
}

/* The plan of layers that attend as the model's. */
static tamis_status make_plan(tamis_runner *runner, const tamis_plan_params *params,
                              tamis_error *error) {
    const uint32_t n = runner->model->config.n_layers;
    tamis_plan_params own = *params;
    bool alike = true;
    tamis_layer *layers = calloc(n, sizeof *layers);
    TMS_REQUIRE(layers, TAMIS_E_NO_MEMORY, "no memory for %u layers", n);
    for (uint32_t layer = 0; layer < n; ++layer) {
        layers[layer] = layer_of(runner->model, params, layer);
        alike = alike && memcmp(&layers[layer], &layers[0], sizeof *layers) == 0;
    }
    own.flags |= TAMIS_PLAN_ROTATED;
    own.attention = alike ? layers[0].attention : (tamis_attention){0};
    own.layers = alike ? NULL : layers;
    const tamis_status status = tamis_plan_create(runner->cache, &own, &runner->plan, error);
    free(layers);
    return status;
}

/* The plan, what it and the forward pass need, and the kernels of decode steps. */
static tamis_status make(tamis_runner *runner, const tamis_plan_params *params,
                         tamis_error *error) {
    static const tamis_attention nothing;
    runner->as_model = memcmp(&params->attention, &nothing, sizeof nothing) == 0;
    runner->is_long = is_long(runner->model, params);
    TMS_TRY(make_plan(runner, params, error));
    tamis_plan_get_params(runner->plan, &runner->limits);
    TMS_TRY(bind_model(runner, error));
    TMS_TRY(make_buffers(runner, error));
    return tms_forward_build(runner, 1, 1, error);
}

tamis_status tamis_runner_create(tamis_model *model, tamis_cache *cache,
                                 const tamis_plan_params *params, tamis_runner **out,
                                 tamis_error *error) {
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out is NULL");
    *out = NULL;
    TMS_ENTER_MODEL(model);
    TMS_REQUIRE(model, TAMIS_E_ARGUMENT, "model is NULL");
    TMS_REQUIRE(cache, TAMIS_E_ARGUMENT, "cache is NULL");
    TMS_REQUIRE(params, TAMIS_E_ARGUMENT, "params is NULL");
    TMS_TRY(check_shapes(model, cache, params, error));
    TMS_REQUIRE(params->selection.kind != TAMIS_SELECT_CALLER, TAMIS_E_UNSUPPORTED,
                "selection caller: a runner has no lists of the caller's");
    tamis_runner *runner = calloc(1, sizeof *runner);
    TMS_REQUIRE(runner, TAMIS_E_NO_MEMORY, "no memory for a runner");
    tms_model_hold(model);
    runner->model = model;
    runner->cache = cache;
    const tamis_status status = make(runner, params, error);
    if (status != TAMIS_OK) tamis_runner_destroy(&runner);
    *out = runner;
    return status;
}

void tamis_runner_destroy(tamis_runner **runner) {
    if (!runner || !*runner) return;
    if ((*runner)->known_as) *(*runner)->known_as = NULL;
    tamis_plan_destroy(&(*runner)->plan);
    for (uint32_t i = 0; (*runner)->outputs && i < (*runner)->model->config.n_layers; ++i)
        tamis_buffer_destroy(&(*runner)->outputs[i]);
    free((*runner)->outputs);
    tamis_buffer_destroy(&(*runner)->output_rows);
    for (int i = 0; i < TMS_ACTIVATIONS; ++i)
        tamis_buffer_destroy(&(*runner)->buffers[i]);
    free((*runner)->tokens);
    free((*runner)->positions);
    free((*runner)->parents);
    free((*runner)->bundles);
    free((*runner)->outs);
    free((*runner)->sequences);
    free((*runner)->rows);
    tms_model_let_go((*runner)->model);
    free(*runner);
    *runner = NULL;
}

tamis_status tamis_runner_build(tamis_runner *runner, uint32_t n_rows, uint32_t n_outputs,
                                tamis_error *error) {
    TMS_ENTER_RUNNER(runner);
    TMS_REQUIRE(runner, TAMIS_E_ARGUMENT, "runner is NULL");
    const tamis_plan_params *limits = &runner->limits;
    TMS_REQUIRE(n_rows > 0 && n_rows <= limits->max_rows, TAMIS_E_ARGUMENT, "n_rows is %u: 1 to %u",
                n_rows, limits->max_rows);
    TMS_REQUIRE(n_outputs <= n_rows && n_outputs <= runner->max_outputs, TAMIS_E_ARGUMENT,
                "n_outputs is %u, of %u rows; a step has at most %u", n_outputs, n_rows,
                runner->max_outputs);
    return tms_forward_build(runner, n_rows, n_outputs, error);
}

tamis_plan *tamis_runner_plan(tamis_runner *runner) {
    return runner ? runner->plan : NULL;
}

void tamis_runner_observe(tamis_runner *runner, tamis_runner_observer observer, void *user) {
    if (!runner) return;
    runner->observer = observer;
    runner->observer_user = user;
}

void tamis_runner_watch(tamis_runner *runner, tamis_runner_watcher watcher, void *user) {
    if (!runner) return;
    runner->watcher = watcher;
    runner->watcher_user = user;
}
