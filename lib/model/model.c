/* SPDX-License-Identifier: Apache-2.0 */
/* Loads a model from a GGUF file, describes it, and turns text into tokens and back. */
#include "lib/model/model.h"
#include "lib/model/parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The type of most parameters in matrices. */
static tamis_weight_type main_type(const tms_weights *weights) {
    int most = 0;
    for (int type = 1; type < TMS_WEIGHT_TYPES; ++type)
        if (weights->matrix_parameters[type] > weights->matrix_parameters[most]) most = type;
    return (tamis_weight_type)most;
}

static void fill_info(tamis_model *model) {
    const tms_config *config = &model->config;
    tamis_model_info *info = &model->info;
    *info = (tamis_model_info){.n_layers = config->n_layers,
                               .n_heads = config->n_heads,
                               .n_kv_heads = config->n_kv_heads,
                               .head_dim = config->head_dim,
                               .dim = config->dim,
                               .ff_dim = config->ff_dim,
                               .n_vocab = model->vocab.info.n_tokens,
                               .context = config->context,
                               .type = main_type(&model->weights),
                               .sliding_window = config->sliding_window,
                               .n_local_layers = config->n_local,
                               .parameters = model->weights.parameters,
                               .weight_bytes = model->weights.bytes};
    snprintf(info->architecture, sizeof info->architecture, "%s", config->architecture->info.name);
    memcpy(info->name, config->name, sizeof info->name);
    memcpy(info->tensors_of_type, model->weights.tensors, sizeof model->weights.tensors);
}

/* Whether a cache takes the model's shape: asked before minutes of loading. */
static tamis_status check_shape(const tamis_model *model, tamis_error *error) {
    tamis_cache_params shape = {.capacity_tokens = 1};
    tamis_cache_size size;
    tamis_model_cache_shape(model, &shape);
    return tamis_cache_measure(model->context, &shape, &size, error);
}

/* Everything is checked before anything is copied to the device. */
static tamis_status load(tamis_model *model, const tms_gguf *gguf, tamis_model_watcher watcher,
                         void *user, tamis_error *error) {
    TMS_TRY(tms_config_read(gguf, &model->config, error));
    TMS_TRY(tms_vocab_read(gguf, &model->vocab, error));
    TMS_TRY(
        tms_weights_find(gguf, &model->config, model->vocab.info.n_tokens, &model->weights, error));
    if (model->config.architecture->parallel)
        model->config.parallel = !model->weights.layers[0].weights[TMS_FFN_NORM].tensor;
    TMS_TRY(tms_rotations_read(model, gguf, error));
    TMS_TRY(check_shape(model, error));
    TMS_TRY(tms_weights_upload(&model->weights, gguf, model->context, watcher, user, error));
    TMS_TRY(tms_weights_prepare(&model->weights, &model->config, model->context, error));
    TMS_TRY(tms_rotations_make(model, error));
    fill_info(model);
    return TAMIS_OK;
}

tamis_status tamis_model_load(tamis_context *context, const char *path,
                              const tamis_model_params *params, tamis_model **out,
                              tamis_error *error) {
    const tamis_model_params none = {0}, *p = params ? params : &none;
    tms_gguf gguf;
    tamis_error reason = {0};
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out is NULL");
    *out = NULL;
    TMS_REQUIRE(context, TAMIS_E_ARGUMENT, "context is NULL");
    TMS_REQUIRE(path, TAMIS_E_ARGUMENT, "path is NULL");
    __attribute__((cleanup(tms_model_leave))) tamis_context *entered = NULL;
    TMS_TRY(tamis_context_enter(context, error));
    entered = context;
    for (size_t i = 0; i < sizeof p->reserved / sizeof *p->reserved; i++)
        TMS_REQUIRE(p->reserved[i] == 0, TAMIS_E_ARGUMENT,
                    "reserved of tamis_model_params is %llu; it must be 0",
                    (unsigned long long)p->reserved[i]);
    tamis_model *model = calloc(1, sizeof *model);
    TMS_REQUIRE(model, TAMIS_E_NO_MEMORY, "no memory for a model");
    model->context = context;
    atomic_init(&model->holders, 1);
    tamis_status status = tms_gguf_open(path, &gguf, &reason);
    if (status == TAMIS_OK) status = load(model, &gguf, p->watcher, p->user, &reason);
    tms_gguf_close(&gguf);
    if (status != TAMIS_OK) {
        tamis_model_destroy(&model);
        return tms_model_fail(error, status, "%.200s: %s", path, reason.text);
    }
    *out = model;
    return TAMIS_OK;
}

void tms_model_hold(tamis_model *model) {
    atomic_fetch_add(&model->holders, 1);
}

void tms_model_let_go(tamis_model *model) {
    if (atomic_fetch_sub(&model->holders, 1) > 1) return;
    tms_weights_free(&model->weights);
    tms_vocab_free(&model->vocab);
    tms_rotations_free(model);
    free(model);
}

tamis_status tms_model_enter(const tamis_model *model, tamis_context **entered,
                             tamis_error *error) {
    *entered = NULL;
    if (!model) return TAMIS_OK;
    TMS_TRY(tamis_context_enter(model->context, error));
    *entered = model->context;
    TMS_REQUIRE(!atomic_load(&model->closed), TAMIS_E_STATE, "the model has been destroyed");
    return TAMIS_OK;
}

void tms_model_leave(tamis_context **entered) {
    if (*entered) tamis_context_leave(*entered);
}

void tamis_model_destroy(tamis_model **model) {
    if (!model || !*model) return;
    atomic_store(&(*model)->closed, true);
    tms_model_let_go(*model);
    *model = NULL;
}

const tamis_model_info *tamis_model_describe(const tamis_model *model) {
    return model ? &model->info : NULL;
}

void tamis_model_cache_shape(const tamis_model *model, tamis_cache_params *params) {
    if (!model || !params) return;
    params->n_layers = model->config.n_layers;
    params->n_heads = model->config.n_heads;
    params->n_kv_heads = model->config.n_kv_heads;
    params->head_dim = model->config.head_dim;
}

const tamis_vocab *tamis_model_vocab(const tamis_model *model) {
    return model ? &model->vocab : NULL;
}
