/* SPDX-License-Identifier: Apache-2.0 */
/* Loads a model from a GGUF file, describes it, and turns text into tokens and back. */
#include "lib/model/model.h"
#include "lib/model/parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool tms_model_has_long(const tamis_model *model) {
    return model->rotations[TMS_ROTATION_LONG].factors && model->config.architecture->long_factors;
}

static bool uses(const tms_config *config, tms_rotation_kind kind, bool is_long) {
    for (uint32_t layer = 0; layer < config->n_layers; ++layer)
        if (tms_config_rotation(config, layer, is_long) == kind) return true;
    return false;
}

/* The divisors of a kind's frequencies; NULL: none. */
static tamis_status read_factors(const tamis_model *model, const tms_gguf *gguf,
                                 tms_rotation_kind kind, float **out, tamis_error *error) {
    float factors[TMS_MAX_HEAD_DIM / 2];
    bool present = false;
    const bool any = model->weights.rope_factors[TMS_FACTORS_LONG].tensor;
    const tms_rope_factors which = !any                        ? TMS_FACTORS_ALL
                                   : kind == TMS_ROTATION_LONG ? TMS_FACTORS_LONG
                                                               : TMS_FACTORS_SHORT;
    TMS_TRY(tms_weights_rope_factors(&model->weights, which, gguf, factors, &present, error));
    if (!present) return TAMIS_OK;
    const size_t bytes = model->config.n_rot / 2 * sizeof *factors;
    *out = malloc(bytes);
    TMS_REQUIRE(*out, TAMIS_E_NO_MEMORY, "no memory for %zu bytes", bytes);
    memcpy(*out, factors, bytes);
    return TAMIS_OK;
}

/* Frequencies of every kind; those of no rotation stay 0. */
static tamis_status read_frequencies(tamis_model *model, const tms_gguf *gguf, tamis_error *error) {
    const tms_config *config = &model->config;
    for (int kind = 0; kind < TMS_ROTATION_NONE; ++kind) {
        tms_rotated *r = &model->rotations[kind];
        TMS_TRY(read_factors(model, gguf, kind, &r->factors, error));
        tms_rope_frequencies(tms_config_rope(config, kind), config->n_rot, r->factors,
                             r->frequencies);
    }
    return TAMIS_OK;
}

/* The tables of the kinds that layers have, the long one only where it has factors of its own. */
static tamis_status make_rotations(tamis_model *model, tamis_error *error) {
    const tms_config *config = &model->config;
    for (int kind = 0; kind < TMS_ROTATIONS; ++kind) {
        tms_rotated *r = &model->rotations[kind];
        r->rotation =
            (tamis_rotation){.n_rot = config->n_rot, .pairing = config->architecture->pairing};
        if (!uses(config, kind, kind == TMS_ROTATION_LONG) ||
            (kind == TMS_ROTATION_LONG && !tms_model_has_long(model)))
            continue;
        TMS_TRY(tamis_buffer_create(model->context, tamis_rotation_bytes(config->n_rot),
                                    &r->rotation.table.buffer, error));
        TMS_TRY(tamis_rotation_write(&r->rotation, r->frequencies, error));
    }
    return TAMIS_OK;
}

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
    TMS_TRY(read_frequencies(model, gguf, error));
    TMS_TRY(check_shape(model, error));
    TMS_TRY(tms_weights_upload(&model->weights, gguf, model->context, watcher, user, error));
    TMS_TRY(tms_weights_prepare(&model->weights, &model->config, model->context, error));
    TMS_TRY(make_rotations(model, error));
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
    for (int kind = 0; kind < TMS_ROTATIONS; ++kind) {
        tamis_buffer_destroy(&model->rotations[kind].rotation.table.buffer);
        free(model->rotations[kind].factors);
    }
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
