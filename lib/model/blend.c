/* SPDX-License-Identifier: Apache-2.0 */
/* A prompt with stored chunks: the layers of a forward pass whose rows become fewer. */
#include "lib/model/model.h"
#include <tamis/blend_model.h>

#include <stdlib.h>
#include <string.h>

/* ---- Making a blend -------------------------------------------------------------------------- */

static tamis_status check_params(const tamis_blend_params *p, tamis_error *error) {
    TMS_REQUIRE(p, TAMIS_E_ARGUMENT, "params is NULL");
    const tamis_rotation *r = &p->rotation;
    TMS_REQUIRE(
        !r->table.buffer && r->n_rot == 0 && r->pairing == 0 && !p->k_norms && p->eps == 0,
        TAMIS_E_ARGUMENT,
        "a rotation (n_rot %u, pairing %d), k_norms or eps %g is given; they are the model's",
        r->n_rot, (int)r->pairing, (double)p->eps);
    return TAMIS_OK;
}

/* The rows of a buffer whose places are in TMS_TOKENS, into another one of the same width. */
static tamis_status gather(tamis_runner *runner, tms_activation from, tms_activation to,
                           uint32_t dim, uint32_t n_before, uint32_t n, tamis_error *error) {
    const tamis_embed_params embed = {
        .tokens = {.buffer = runner->buffers[TMS_TOKENS]},
        .w = {.buffer = runner->buffers[from], .type = TAMIS_WEIGHT_F32},
        .y = {.buffer = runner->buffers[to], .dtype = TAMIS_F32},
        .n_rows = n,
        .dim = dim,
        .n_vocab = n_before};
    return tamis_op_embed(runner->model->context, &embed, error);
}

/* Builds what gathering needs, and the parts of layers. */
static tamis_status warm(tamis_runner *runner, tamis_error *error) {
    const tms_config *config = &runner->model->config;
    const uint32_t heads = config->n_heads * config->head_dim;
    TMS_TRY(tms_forward_build_parts(runner, error));
    TMS_TRY(gather(runner, TMS_X, TMS_NORMED, config->dim, 1, 0, error));
    return gather(runner, TMS_Q, TMS_ATTENDED, heads, 1, 0, error);
}

tamis_status tamis_runner_blend_create(tamis_runner *runner, tamis_store *store,
                                       const tamis_blend_params *params, tamis_blend **out,
                                       tamis_error *error) {
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out is NULL");
    *out = NULL;
    TMS_ENTER_RUNNER(runner);
    TMS_REQUIRE(runner, TAMIS_E_ARGUMENT, "runner is NULL");
    TMS_TRY(check_params(params, error));
    const tms_rotated *rotated = NULL;
    TMS_TRY(tms_check_as_model(runner, error));
    TMS_TRY(tms_check_one_rotation(runner, "a blend", &rotated, error));
    TMS_TRY(warm(runner, error));
    const tamis_model *model = runner->model;
    const tms_config *config = &model->config;
    tamis_place *norms = calloc(config->n_layers, sizeof *norms);
    TMS_REQUIRE(norms, TAMIS_E_NO_MEMORY, "no memory for %u norms", config->n_layers);
    for (uint32_t layer = 0; layer < config->n_layers; ++layer)
        norms[layer].buffer = model->weights.layers[layer].weights[TMS_ATTN_K_NORM].buffer;
    tamis_blend_params own = *params;
    own.rotation = rotated->rotation;
    own.k_norms = norms;
    own.eps = config->norm_eps;
    const tamis_status status = tamis_blend_create(runner->plan, store, &own, out, error);
    free(norms);
    return status;
}

/* ---- Running it ------------------------------------------------------------------------------ */

/* A prompt on its way. */
typedef struct blending {
    tamis_runner *runner;
    tamis_blend *blend;
    uint32_t first;   /* position of row 0 */
    uint32_t n_rows;  /* of the prompt */
    uint32_t n_before; /* rows with which the layer began */
    int32_t *tokens;  /* [n_rows] */
    int32_t *numbers; /* [n_rows] for uploads */
} blending;

/* One number for each row: its token or its position. */
static tamis_status upload(const blending *b, tms_activation which, uint32_t n,
                           tamis_error *error) {
    return tamis_buffer_write(b->runner->buffers[which], 0, b->numbers, n * sizeof *b->numbers,
                              error);
}

static tamis_status upload_positions(const blending *b, const uint32_t *rows, uint32_t n,
                                     tamis_error *error) {
    for (uint32_t i = 0; i < n; ++i)
        b->numbers[i] = (int32_t)(b->first + rows[i]);
    return upload(b, TMS_POSITIONS, n, error);
}

/* The rows with which layer 0 begins. */
static tamis_status embed_rows(const blending *b, const uint32_t *rows, uint32_t n,
                               tamis_error *error) {
    for (uint32_t i = 0; i < n; ++i)
        b->numbers[i] = b->tokens[rows[i]];
    TMS_TRY(upload(b, TMS_TOKENS, n, error));
    TMS_TRY(upload_positions(b, rows, n, error));
    return tms_forward_embed(b->runner, n, error);
}

static tamis_status project(void *user, uint32_t layer, const uint32_t *rows, uint32_t n,
                            tamis_rows *v, tamis_error *error) {
    blending *b = user;
    if (layer == 0) TMS_TRY(embed_rows(b, rows, n, error));
    b->n_before = n;
    *v = (tamis_rows){.buffer = b->runner->buffers[TMS_V], .dtype = TAMIS_F32};
    return tms_forward_qkv(b->runner, layer, (tms_bundle){0, n}, error);
}

static tamis_status write(void *user, uint32_t layer, tamis_error *error) {
    return tms_forward_write(((blending *)user)->runner, layer, error);
}

static void swap(tamis_runner *runner, tms_activation a, tms_activation b) {
    tamis_buffer *buffer = runner->buffers[a];
    runner->buffers[a] = runner->buffers[b];
    runner->buffers[b] = buffer;
}

/* Brings queries and hidden states of the rows that stay to the front. They change places with
 * buffers that are as wide and not in use. */
static tamis_status gather_rows(const blending *b, const uint32_t *rows, const uint32_t *places,
                                uint32_t n, tamis_error *error) {
    const tms_config *config = &b->runner->model->config;
    const uint32_t heads = config->n_heads * config->head_dim;
    for (uint32_t i = 0; i < n; ++i)
        b->numbers[i] = (int32_t)places[i];
    TMS_TRY(upload(b, TMS_TOKENS, n, error));
    TMS_TRY(gather(b->runner, TMS_X, TMS_NORMED, config->dim, b->n_before, n, error));
    TMS_TRY(gather(b->runner, TMS_Q, TMS_ATTENDED, heads, b->n_before, n, error));
    swap(b->runner, TMS_X, TMS_NORMED);
    swap(b->runner, TMS_Q, TMS_ATTENDED);
    return upload_positions(b, rows, n, error);
}

static tamis_status keep(void *user, uint32_t layer, const uint32_t *rows, const uint32_t *places,
                         uint32_t n, tamis_rows *q, tamis_error *error) {
    const blending *b = user;
    (void)layer;
    if (places) TMS_TRY(gather_rows(b, rows, places, n, error));
    *q = (tamis_rows){.buffer = b->runner->buffers[TMS_Q], .dtype = TAMIS_F32};
    return TAMIS_OK;
}

static tamis_status finish(void *user, uint32_t layer, uint32_t n, tamis_error *error) {
    tamis_runner *runner = ((blending *)user)->runner;
    const tms_bundle rows = {0, n}, last = {n - 1, 1};
    TMS_TRY(tms_forward_attend(runner, layer, error));
    TMS_TRY(tms_forward_out(runner, layer, rows, error));
    TMS_TRY(tms_forward_feed(runner, layer, rows, error));
    if (layer + 1 < runner->model->config.n_layers) return TAMIS_OK;
    return tms_forward_head(runner, &last, 1, error);
}

static tamis_status check_parts(blending *b, const tamis_blend_part *parts, uint32_t n_parts,
                                tamis_error *error) {
    uint64_t n = 0;
    TMS_REQUIRE(parts || n_parts == 0, TAMIS_E_ARGUMENT, "parts is NULL");
    for (uint32_t p = 0; p < n_parts; ++p) {
        if (parts[p].n_tokens > 0)
            TMS_TRY(tms_check_tokens(b->runner, parts[p].tokens, parts[p].n_tokens, error));
        n += parts[p].n_tokens;
    }
    const tamis_plan_params *limits = &b->runner->limits;
    TMS_REQUIRE(n > 0 && n <= limits->max_rows, TAMIS_E_ARGUMENT,
                "the prompt has %llu tokens; max_rows is %u", (unsigned long long)n,
                limits->max_rows);
    b->n_rows = (uint32_t)n;
    return TAMIS_OK;
}

static tamis_status run(blending *b, tamis_sequence sequence, const tamis_blend_part *parts,
                        uint32_t n_parts, tamis_error *error) {
    b->tokens = malloc(b->n_rows * sizeof *b->tokens);
    b->numbers = malloc(b->n_rows * sizeof *b->numbers);
    TMS_REQUIRE(b->tokens && b->numbers, TAMIS_E_NO_MEMORY, "no memory for %u tokens", b->n_rows);
    for (uint32_t p = 0, at = 0; p < n_parts; ++p) {
        if (parts[p].n_tokens == 0) continue;
        memcpy(b->tokens + at, parts[p].tokens, parts[p].n_tokens * sizeof *b->tokens);
        at += parts[p].n_tokens;
    }
    const tamis_blend_engine engine = {b, project, write, keep, finish, {0}};
    return tamis_blend_run(b->blend, sequence, parts, n_parts, &engine, error);
}

tamis_status tamis_runner_blend(tamis_runner *runner, tamis_sequence sequence, tamis_blend *blend,
                                const tamis_blend_part *parts, uint32_t n_parts, int32_t *next,
                                tamis_error *error) {
    TMS_ENTER_RUNNER(runner);
    TMS_REQUIRE(runner, TAMIS_E_ARGUMENT, "runner is NULL");
    TMS_REQUIRE(blend, TAMIS_E_ARGUMENT, "blend is NULL");
    TMS_REQUIRE(tamis_blend_plan(blend) == runner->plan, TAMIS_E_ARGUMENT,
                "the blend was made for another plan than the runner's");
    blending b = {.runner = runner, .blend = blend};
    runner->n_outputs = 0;
    TMS_TRY(tamis_cache_length(runner->cache, sequence, &b.first, NULL, error));
    TMS_TRY(check_parts(&b, parts, n_parts, error));
    const tamis_status status = run(&b, sequence, parts, n_parts, error);
    free(b.tokens);
    free(b.numbers);
    if (status != TAMIS_OK) return status;
    TMS_TRY(tms_read_next(runner, 1, next, error));
    return tms_evict_prompt(runner, sequence, error);
}
