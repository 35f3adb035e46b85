/* SPDX-License-Identifier: Apache-2.0 */
/* One forward pass of a Llama-family model over the rows of a plan's step. */
#include "lib/model/model.h"

static tms_ref ref_of(const tamis_runner *runner, tms_activation which) {
    return (tms_ref){runner->buffers[which]->mem, 0};
}

static tms_matrix matrix_of(const tamis_runner *runner, tms_activation which, uint64_t width) {
    return (tms_matrix){ref_of(runner, which), width};
}

static tamis_rows rows_of(const tamis_runner *runner, tms_activation which) {
    return (tamis_rows){.buffer = runner->buffers[which], .dtype = TAMIS_F32};
}

static tms_ref weight_ref(const tms_weight *weight) {
    return (tms_ref){weight->mem, 0};
}

/* y = W x, with the bias where the layer has it. */
static tamis_status project(tamis_runner *runner, const tms_weight *w, const tms_weight *bias,
                            tms_matrix x, tms_matrix y, uint32_t n_rows, bool accumulate) {
    tms_device *dev = runner->model->context->dev;
    const tms_linear params = {.x = x,
                               .y = y,
                               .w = weight_ref(w),
                               .bias = bias ? weight_ref(bias) : (tms_ref){NULL, 0},
                               .dtype = w->dtype,
                               .n_rows = n_rows,
                               .n_in = (uint32_t)x.stride,
                               .n_out = (uint32_t)y.stride,
                               .accumulate = accumulate};
    return tms_run_linear(dev, &params);
}

static tamis_status normalise(tamis_runner *runner, const tms_weight *w, tms_matrix x, tms_matrix y,
                              uint32_t n_rows) {
    tms_device *dev = runner->model->context->dev;
    const tms_norm params = {.x = x,
                             .y = y,
                             .w = weight_ref(w),
                             .n_rows = n_rows,
                             .dim = runner->model->config.dim,
                             .eps = runner->model->config.norm_eps};
    return tms_run_norm(dev, &params);
}

static tamis_status rotate(tamis_runner *runner, tms_matrix x, uint32_t n_rows, uint32_t n_heads) {
    const tamis_model *model = runner->model;
    tms_device *dev = model->context->dev;
    const tms_rotate params = {.x = x,
                               .n_rows = n_rows,
                               .n_heads = n_heads,
                               .head_dim = model->config.head_dim,
                               .n_rot = model->config.n_rot,
                               .pairing = model->config.pairing,
                               .positions = ref_of(runner, TMS_POSITIONS),
                               .table = {model->rotate_table, 0}};
    return tms_run_rotate(dev, &params);
}

static tamis_status observe(tamis_runner *runner, const tamis_attention_rows *rows,
                            tamis_error *error) {
    if (!runner->observer) return TAMIS_OK;
    tamis_status status = runner->observer(runner->observer_user, rows);
    TMS_REQUIRE(status == TAMIS_OK, status, "the observer ended the step in layer %u with %s",
                rows->layer, tamis_status_name(status));
    return TAMIS_OK;
}

/* Keys and values into the cache, then the queries over it. */
static tamis_status read_cache(tamis_runner *runner, uint32_t layer, uint32_t n_rows,
                               tamis_error *error) {
    const tamis_attention_rows rows = {.layer = layer,
                                       .n_rows = n_rows,
                                       .q = rows_of(runner, TMS_Q),
                                       .k = rows_of(runner, TMS_K),
                                       .v = rows_of(runner, TMS_V),
                                       .out = rows_of(runner, TMS_ATTENDED)};
    tamis_status status = tamis_plan_write(runner->plan, layer, &rows.k, &rows.v, error);
    if (status == TAMIS_OK)
        status = tamis_plan_attend(runner->plan, layer, &rows.q, &rows.out, error);
    return status == TAMIS_OK ? observe(runner, &rows, error) : status;
}

/* x += W_o · attention(norm(x)) */
static tamis_status attention(tamis_runner *runner, uint32_t layer, uint32_t n_rows,
                              tamis_error *error) {
    const tms_config *config = &runner->model->config;
    const tms_weight *w = runner->model->weights.layers[layer].weights;
    tms_device *dev = runner->model->context->dev;
    uint64_t heads = (uint64_t)config->n_heads * config->head_dim;
    uint64_t kv_heads = (uint64_t)config->n_kv_heads * config->head_dim;
    tms_matrix x = matrix_of(runner, TMS_X, config->dim);
    tms_matrix normed = matrix_of(runner, TMS_NORMED, config->dim);
    tms_matrix q = matrix_of(runner, TMS_Q, heads), k = matrix_of(runner, TMS_K, kv_heads);
    tms_matrix v = matrix_of(runner, TMS_V, kv_heads);
    tms_matrix attended = matrix_of(runner, TMS_ATTENDED, heads);
    tamis_status status;
    TMS_TRY(dev, normalise(runner, &w[TMS_ATTN_NORM], x, normed, n_rows));
    TMS_TRY(dev, project(runner, &w[TMS_ATTN_Q], &w[TMS_ATTN_Q_BIAS], normed, q, n_rows, false));
    TMS_TRY(dev, project(runner, &w[TMS_ATTN_K], &w[TMS_ATTN_K_BIAS], normed, k, n_rows, false));
    TMS_TRY(dev, project(runner, &w[TMS_ATTN_V], &w[TMS_ATTN_V_BIAS], normed, v, n_rows, false));
    TMS_TRY(dev, rotate(runner, q, n_rows, config->n_heads));
    TMS_TRY(dev, rotate(runner, k, n_rows, config->n_kv_heads));
    if (n_rows > 0 && (status = read_cache(runner, layer, n_rows, error)) != TAMIS_OK) goto fail;
    TMS_TRY(dev, project(runner, &w[TMS_ATTN_OUTPUT], NULL, attended, x, n_rows, true));
fail:
    return status;
}

/* x += W_down · (silu(W_gate · norm(x)) ⊙ W_up · norm(x)) */
static tamis_status feed_forward(tamis_runner *runner, uint32_t layer, uint32_t n_rows,
                                 tamis_error *error) {
    const tms_config *config = &runner->model->config;
    const tms_weight *w = runner->model->weights.layers[layer].weights;
    tms_device *dev = runner->model->context->dev;
    tms_matrix x = matrix_of(runner, TMS_X, config->dim);
    tms_matrix normed = matrix_of(runner, TMS_NORMED, config->dim);
    tms_matrix gate = matrix_of(runner, TMS_GATE, config->ff_dim);
    tms_matrix up = matrix_of(runner, TMS_UP, config->ff_dim);
    const tms_activate activate = {gate, up, gate, n_rows, config->ff_dim};
    tamis_status status;
    TMS_TRY(dev, normalise(runner, &w[TMS_FFN_NORM], x, normed, n_rows));
    TMS_TRY(dev, project(runner, &w[TMS_FFN_GATE], NULL, normed, gate, n_rows, false));
    TMS_TRY(dev, project(runner, &w[TMS_FFN_UP], NULL, normed, up, n_rows, false));
    TMS_TRY(dev, tms_run_activate(dev, &activate));
    TMS_TRY(dev, project(runner, &w[TMS_FFN_DOWN], NULL, gate, x, n_rows, true));
fail:
    return status;
}

/* Logits and their largest entries, of the output rows alone. */
static tamis_status head(tamis_runner *runner, uint32_t first_output, uint32_t n_outputs,
                         tamis_error *error) {
    const tamis_model *model = runner->model;
    const tms_weights *weights = &model->weights;
    tms_device *dev = model->context->dev;
    uint32_t dim = model->config.dim;
    tms_matrix x = matrix_of(runner, TMS_X, dim), normed = matrix_of(runner, TMS_NORMED, dim);
    tms_matrix logits = matrix_of(runner, TMS_LOGITS, model->info.n_vocab);
    const tms_argmax argmax = {logits, n_outputs, model->info.n_vocab, ref_of(runner, TMS_NEXT)};
    tamis_status status;
    x.ref.offset = (uint64_t)first_output * dim * sizeof(float);
    TMS_TRY(dev, normalise(runner, &weights->output_norm, x, normed, n_outputs));
    TMS_TRY(dev, project(runner, weights->output.mem ? &weights->output : &weights->embed, NULL,
                         normed, logits, n_outputs, false));
    TMS_TRY(dev, tms_run_argmax(dev, &argmax));
fail:
    return status;
}

tamis_status tms_forward_pass(tamis_runner *runner, uint32_t n_rows, uint32_t first_output,
                              uint32_t n_outputs, tamis_error *error) {
    const tamis_model *model = runner->model;
    tms_device *dev = model->context->dev;
    const tms_embed embed = {.tokens = ref_of(runner, TMS_TOKENS),
                             .w = weight_ref(&model->weights.embed),
                             .dtype = model->weights.embed.dtype,
                             .y = matrix_of(runner, TMS_X, model->config.dim),
                             .n_rows = n_rows,
                             .dim = model->config.dim,
                             .n_vocab = model->info.n_vocab};
    tamis_status status;
    TMS_TRY(dev, tms_run_embed(dev, &embed));
    for (uint32_t layer = 0; layer < model->config.n_layers && status == TAMIS_OK; ++layer) {
        status = attention(runner, layer, n_rows, error);
        if (status == TAMIS_OK) status = feed_forward(runner, layer, n_rows, error);
    }
    if (status == TAMIS_OK && (n_outputs > 0 || n_rows == 0))
        status = head(runner, first_output, n_outputs, error);
fail:
    return status;
}
