/* SPDX-License-Identifier: Apache-2.0 */
/* One forward pass of a Llama-family model over the rows of a plan's step. */
#include "lib/model/model.h"

static tamis_place place_of(const tamis_runner *runner, tms_activation which) {
    return (tamis_place){.buffer = runner->buffers[which]};
}

static tamis_rows rows_of(const tamis_runner *runner, tms_activation which) {
    return (tamis_rows){.buffer = runner->buffers[which], .dtype = TAMIS_F32};
}

static tamis_place weight_place(const tms_weight *weight) {
    return (tamis_place){.buffer = weight->buffer};
}

static tamis_weight_matrix weight_matrix(const tms_weight *weight) {
    return (tamis_weight_matrix){
        .buffer = weight->buffer, .layout = weight->layout, .type = weight->type};
}

/* A matrix of the model between two activations: y = W x, with the bias where the layer has it. */
typedef struct projection {
    const tms_weight *w, *bias; /* bias may be NULL */
    tms_activation x, y;
    uint32_t n_in, n_out;
    bool accumulate;
} projection;

static tamis_status project(const tamis_runner *runner, const projection *p, uint32_t n_rows,
                            tamis_error *error) {
    const tamis_linear_params params = {.x = rows_of(runner, p->x),
                                        .y = rows_of(runner, p->y),
                                        .w = weight_matrix(p->w),
                                        .bias = {.buffer = p->bias ? p->bias->buffer : NULL},
                                        .n_rows = n_rows,
                                        .n_in = p->n_in,
                                        .n_out = p->n_out,
                                        .accumulate = p->accumulate,
                                        .build_rows = runner->build_rows};
    return tamis_op_linear(runner->model->context, &params, error);
}

static tamis_linear_part part_of(const tamis_runner *runner, const projection *p) {
    return (tamis_linear_part){.w = weight_matrix(p->w),
                               .bias = {.buffer = p->bias ? p->bias->buffer : NULL},
                               .y = rows_of(runner, p->y),
                               .n_out = p->n_out};
}

/* The rows of the residual stream from `first` on. */
static tamis_status normalise(const tamis_runner *runner, const tms_weight *w, uint32_t first,
                              uint32_t n_rows, tamis_error *error) {
    const tms_config *config = &runner->model->config;
    tamis_norm_params params = {.x = rows_of(runner, TMS_X),
                                .y = rows_of(runner, TMS_NORMED),
                                .w = weight_place(w),
                                .n_rows = n_rows,
                                .dim = config->dim,
                                .eps = config->norm_eps};
    params.x.offset = (uint64_t)first * config->dim * sizeof(float);
    return tamis_op_norm(runner->model->context, &params, error);
}

/* Matrices that read the residual stream normalised, from row `first` on. Only prompts put what is
 * normalised into TMS_NORMED, the x of every part. */
typedef struct normed {
    const tms_weight *norm;
    uint32_t first, n_parts;
    bool gated; /* silu of part 0 times part 1 goes to part 0's rows */
    projection parts[TAMIS_MOST_PARTS];
} normed;

static tamis_linear_parts_params few_of(const tamis_runner *runner, const normed *p,
                                        uint32_t n_rows) {
    const tms_config *config = &runner->model->config;
    tamis_linear_parts_params params = {.x = rows_of(runner, TMS_X),
                                        .norm_w = weight_place(p->norm),
                                        .n_parts = p->n_parts,
                                        .n_rows = n_rows,
                                        .n_in = config->dim,
                                        .eps = config->norm_eps,
                                        .gated = p->gated,
                                        .build_rows = runner->build_rows};
    params.x.offset = (uint64_t)p->first * config->dim * sizeof(float);
    for (uint32_t i = 0; i < p->n_parts; i++) {
        params.parts[i] = part_of(runner, &p->parts[i]);
        if (i > 0 && p->gated) params.parts[i].y = (tamis_rows){0};
    }
    return params;
}

/* In one launch. */
static tamis_status project_few(const tamis_runner *runner, const normed *p, uint32_t n_rows,
                                tamis_error *error) {
    const tamis_linear_parts_params params = few_of(runner, p, n_rows);
    return tamis_op_linear_parts(runner->model->context, &params, error);
}

static tamis_status project_many(const tamis_runner *runner, const normed *p, uint32_t n_rows,
                                 tamis_error *error) {
    TMS_TRY(normalise(runner, p->norm, p->first, n_rows, error));
    for (uint32_t i = 0; i < p->n_parts; i++)
        TMS_TRY(project(runner, &p->parts[i], n_rows, error));
    if (!p->gated) return TAMIS_OK;
    const tamis_rows gate = rows_of(runner, p->parts[0].y);
    const tamis_activate_params activate = {.gate = gate,
                                            .up = rows_of(runner, p->parts[1].y),
                                            .y = gate,
                                            .n_rows = n_rows,
                                            .dim = p->parts[0].n_out};
    return tamis_op_activate(runner->model->context, &activate, error);
}

/* Whether these rows, or without any those that kernels are built for, are few. */
static bool are_few(const tamis_runner *runner, uint32_t n_rows) {
    return (n_rows ? n_rows : runner->build_rows) <= TAMIS_FEW_ROWS;
}

static tamis_status project_normed(const tamis_runner *runner, const normed *p, uint32_t n_rows,
                                   tamis_error *error) {
    return are_few(runner, n_rows) ? project_few(runner, p, n_rows, error)
                                   : project_many(runner, p, n_rows, error);
}

static tamis_status observe(tamis_runner *runner, const tamis_attention_rows *rows,
                            tamis_error *error) {
    if (!runner->observer) return TAMIS_OK;
    tamis_error own = {TAMIS_OK, ""};
    const tamis_status status = runner->observer(runner->observer_user, rows, &own);
    TMS_REQUIRE(status == TAMIS_OK, status, "the observer ended the step in layer %u with %s%s%s",
                rows->layer, tamis_status_name(status), own.text[0] ? ": " : "", own.text);
    return TAMIS_OK;
}

static tamis_attention_rows attention_rows(const tamis_runner *runner, uint32_t layer,
                                           uint32_t n_rows) {
    return (tamis_attention_rows){.layer = layer,
                                  .n_rows = n_rows,
                                  .q = rows_of(runner, TMS_Q),
                                  .k = rows_of(runner, TMS_K),
                                  .v = rows_of(runner, TMS_V),
                                  .out = rows_of(runner, TMS_ATTENDED)};
}

static tamis_rotated_rows rotated_rows(const tamis_runner *runner, uint32_t layer) {
    const tamis_model *model = runner->model;
    const tms_weight *w = model->weights.layers[layer].weights;
    return (tamis_rotated_rows){.q = rows_of(runner, TMS_Q),
                                .k = rows_of(runner, TMS_K),
                                .v = rows_of(runner, TMS_V),
                                .rotation = model->rotation,
                                .positions = place_of(runner, TMS_POSITIONS),
                                .q_norm = weight_place(&w[TMS_ATTN_Q_NORM]),
                                .k_norm = weight_place(&w[TMS_ATTN_K_NORM]),
                                .eps = model->config.norm_eps};
}

tamis_status tms_forward_write(tamis_runner *runner, uint32_t layer, tamis_error *error) {
    const tamis_rotated_rows rotated = rotated_rows(runner, layer);
    return tamis_plan_write_rotated(runner->plan, layer, &rotated, error);
}

tamis_status tms_forward_attend(tamis_runner *runner, uint32_t layer, tamis_error *error) {
    const tamis_rows q = rows_of(runner, TMS_Q), out = rows_of(runner, TMS_ATTENDED);
    return tamis_plan_attend(runner->plan, layer, &q, &out, error);
}

/* Heads of queries and keys normalised, where the model has norms for them, and rotated; keys and
 * values into the cache; then the queries over it. */
static tamis_status read_cache(tamis_runner *runner, uint32_t layer, uint32_t n_rows,
                               tamis_error *error) {
    const tamis_attention_rows rows = attention_rows(runner, layer, n_rows);
    if (runner->tap) TMS_TRY(runner->tap(runner->tap_user, layer, n_rows, error));
    if (!runner->observer) { /* else it sees q and k as they are when they are rotated */
        const tamis_rotated_rows rotated = rotated_rows(runner, layer);
        return tamis_plan_write_attend(runner->plan, layer, &rotated, &rows.out, error);
    }
    TMS_TRY(tms_forward_write(runner, layer, error));
    TMS_TRY(tms_forward_attend(runner, layer, error));
    return observe(runner, &rows, error);
}

/* ---- The products of a layer ----------------------------------------------------------------- */

static normed qkv_of(const tamis_runner *runner, uint32_t layer) {
    const tms_config *config = &runner->model->config;
    const tms_weight *w = runner->model->weights.layers[layer].weights;
    const uint32_t dim = config->dim, heads = config->n_heads * config->head_dim;
    const uint32_t kv_heads = config->n_kv_heads * config->head_dim;
    return (normed){
        .norm = &w[TMS_ATTN_NORM],
        .n_parts = 3,
        .parts = {{&w[TMS_ATTN_Q], &w[TMS_ATTN_Q_BIAS], TMS_NORMED, TMS_Q, dim, heads, false},
                  {&w[TMS_ATTN_K], &w[TMS_ATTN_K_BIAS], TMS_NORMED, TMS_K, dim, kv_heads, false},
                  {&w[TMS_ATTN_V], &w[TMS_ATTN_V_BIAS], TMS_NORMED, TMS_V, dim, kv_heads, false}}};
}

static projection out_of(const tamis_runner *runner, uint32_t layer) {
    const tms_config *config = &runner->model->config;
    const tms_weight *w = runner->model->weights.layers[layer].weights;
    const uint32_t heads = config->n_heads * config->head_dim;
    return (projection){&w[TMS_ATTN_OUTPUT],
                        &w[TMS_ATTN_OUTPUT_BIAS],
                        TMS_ATTENDED,
                        TMS_X,
                        heads,
                        config->dim,
                        true};
}

static normed gate_up_of(const tamis_runner *runner, uint32_t layer) {
    const tms_config *config = &runner->model->config;
    const tms_weight *w = runner->model->weights.layers[layer].weights;
    const uint32_t dim = config->dim, ff_dim = config->ff_dim;
    return (normed){
        .norm = &w[TMS_FFN_NORM],
        .n_parts = 2,
        .gated = true,
        .parts = {
            {&w[TMS_FFN_GATE], &w[TMS_FFN_GATE_BIAS], TMS_NORMED, TMS_GATE, dim, ff_dim, false},
            {&w[TMS_FFN_UP], &w[TMS_FFN_UP_BIAS], TMS_NORMED, TMS_UP, dim, ff_dim, false}}};
}

static projection down_of(const tamis_runner *runner, uint32_t layer) {
    const tms_config *config = &runner->model->config;
    const tms_weight *w = runner->model->weights.layers[layer].weights;
    return (projection){&w[TMS_FFN_DOWN], &w[TMS_FFN_DOWN_BIAS], TMS_GATE, TMS_X,
                        config->ff_dim,   config->dim,           true};
}

tamis_status tms_forward_qkv(tamis_runner *runner, uint32_t layer, uint32_t n_rows,
                             tamis_error *error) {
    const normed qkv = qkv_of(runner, layer);
    return project_normed(runner, &qkv, n_rows, error);
}

/* x += W_o · attention(norm(x)) */
tamis_status tms_forward_out(tamis_runner *runner, uint32_t layer, uint32_t n_rows,
                             tamis_error *error) {
    const projection out = out_of(runner, layer);
    return project(runner, &out, n_rows, error);
}

/* x += W_down · (silu(W_gate · norm(x)) ⊙ W_up · norm(x)) */
tamis_status tms_forward_feed(tamis_runner *runner, uint32_t layer, uint32_t n_rows,
                              tamis_error *error) {
    const normed gate_up = gate_up_of(runner, layer);
    const projection down = down_of(runner, layer);
    TMS_TRY(project_normed(runner, &gate_up, n_rows, error));
    return project(runner, &down, n_rows, error);
}

static tamis_linear_parts_params sum_of(const tamis_runner *runner, const projection *p,
                                        uint32_t n_rows) {
    return (tamis_linear_parts_params){.x = rows_of(runner, p->x),
                                       .parts = {part_of(runner, p)},
                                       .n_parts = 1,
                                       .n_rows = n_rows,
                                       .n_in = p->n_in,
                                       .accumulate = p->accumulate,
                                       .build_rows = runner->build_rows};
}

/* From the attended rows of a layer to q, k and v of the next, if there is one: one op. */
static tamis_status advance_few(const tamis_runner *runner, uint32_t layer, uint32_t n_rows,
                                tamis_error *error) {
    const bool last = layer + 1 == runner->model->config.n_layers;
    const projection out = out_of(runner, layer), down = down_of(runner, layer);
    const normed gate_up = gate_up_of(runner, layer), qkv = qkv_of(runner, last ? 0 : layer + 1);
    const tamis_linear_parts_params stages[] = {
        sum_of(runner, &out, n_rows), few_of(runner, &gate_up, n_rows),
        sum_of(runner, &down, n_rows), few_of(runner, &qkv, n_rows)};
    const tamis_linear_chain_params params = {.stages = stages, .n_stages = last ? 3 : 4};
    return tamis_op_linear_chain(runner->model->context, &params, error);
}

static tamis_status advance_many(tamis_runner *runner, uint32_t layer, uint32_t n_rows,
                                 tamis_error *error) {
    TMS_TRY(tms_forward_out(runner, layer, n_rows, error));
    TMS_TRY(tms_forward_feed(runner, layer, n_rows, error));
    if (layer + 1 == runner->model->config.n_layers) return TAMIS_OK;
    return tms_forward_qkv(runner, layer + 1, n_rows, error);
}

static tamis_status advance(tamis_runner *runner, uint32_t layer, uint32_t n_rows,
                            tamis_error *error) {
    return are_few(runner, n_rows) ? advance_few(runner, layer, n_rows, error)
                                   : advance_many(runner, layer, n_rows, error);
}

/* Logits and their largest entries, of the output rows alone. */
tamis_status tms_forward_head(tamis_runner *runner, uint32_t first_output, uint32_t n_outputs,
                              tamis_error *error) {
    const tamis_model *model = runner->model;
    const tms_weights *weights = &model->weights;
    const tms_weight *output = weights->output.buffer ? &weights->output : &weights->embed;
    const uint32_t dim = model->config.dim, n_vocab = model->info.n_vocab;
    const normed logits = {.norm = &weights->output_norm,
                           .first = first_output,
                           .n_parts = 1,
                           .parts = {{output, NULL, TMS_NORMED, TMS_LOGITS, dim, n_vocab, false}}};
    const tamis_argmax_params argmax = {.x = rows_of(runner, TMS_LOGITS),
                                        .out = place_of(runner, TMS_NEXT),
                                        .n_rows = n_outputs,
                                        .dim = n_vocab};
    TMS_TRY(project_normed(runner, &logits, n_outputs, error));
    return tamis_op_argmax(model->context, &argmax, error);
}

tamis_status tms_forward_embed(tamis_runner *runner, uint32_t n_rows, tamis_error *error) {
    const tamis_model *model = runner->model;
    const tamis_embed_params embed = {.tokens = place_of(runner, TMS_TOKENS),
                                      .w = weight_matrix(&model->weights.embed),
                                      .y = rows_of(runner, TMS_X),
                                      .n_rows = n_rows,
                                      .dim = model->config.dim,
                                      .n_vocab = model->info.n_vocab};
    return tamis_op_embed(model->context, &embed, error);
}

tamis_status tms_forward_pass(tamis_runner *runner, uint32_t n_rows, uint32_t first_output,
                              uint32_t n_outputs, tamis_error *error) {
    TMS_TRY(tms_forward_embed(runner, n_rows, error));
    TMS_TRY(tms_forward_qkv(runner, 0, n_rows, error));
    for (uint32_t layer = 0; layer < runner->model->config.n_layers; ++layer) {
        TMS_TRY(read_cache(runner, layer, n_rows, error));
        TMS_TRY(advance(runner, layer, n_rows, error));
    }
    return n_outputs ? tms_forward_head(runner, first_output, n_outputs, error) : TAMIS_OK;
}

/* ---- Kernels --------------------------------------------------------------------------------- */

/* Numbers of rows that take the same kernels: 1; up to TAMIS_FEW_ROWS; more. As a bit. */
static uint32_t kind_of(uint32_t n_rows) {
    return n_rows == 1 ? 1 : n_rows <= TAMIS_FEW_ROWS ? 2 : 4;
}

static tamis_status build_layers(tamis_runner *runner, tamis_error *error) {
    TMS_TRY(tms_forward_embed(runner, 0, error));
    TMS_TRY(tms_forward_qkv(runner, 0, 0, error));
    for (uint32_t layer = 0; layer < runner->model->config.n_layers; ++layer)
        TMS_TRY(advance(runner, layer, 0, error));
    return TAMIS_OK;
}

tamis_status tms_forward_build_parts(tamis_runner *runner, tamis_error *error) {
    static const uint32_t kinds[] = {1, TAMIS_FEW_ROWS, TAMIS_FEW_ROWS + 1};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        runner->build_rows = kinds[i];
        for (uint32_t layer = 0; layer < runner->model->config.n_layers; ++layer) {
            TMS_TRY(tms_forward_qkv(runner, layer, 0, error));
            TMS_TRY(tms_forward_out(runner, layer, 0, error));
            TMS_TRY(tms_forward_feed(runner, layer, 0, error));
        }
    }
    return tamis_context_wait(runner->model->context, error);
}

tamis_status tms_forward_build(tamis_runner *runner, uint32_t n_rows, uint32_t n_outputs,
                               tamis_error *error) {
    const uint32_t rows = kind_of(n_rows) & ~runner->built;
    const uint32_t outputs = n_outputs ? kind_of(n_outputs) & ~runner->built_outputs : 0;
    if (!rows && !outputs) return TAMIS_OK;
    runner->build_rows = n_rows;
    if (rows) TMS_TRY(build_layers(runner, error));
    runner->build_rows = n_outputs;
    if (outputs) TMS_TRY(tms_forward_head(runner, 0, 0, error));
    TMS_TRY(tamis_context_wait(runner->model->context, error));
    runner->built |= rows;
    runner->built_outputs |= outputs;
    return TAMIS_OK;
}
