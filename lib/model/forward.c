/* SPDX-License-Identifier: Apache-2.0 */
/* One forward pass over the rows of a plan's step. What an architecture has, and in which order, follows
 * from its row of the table and from its tensors. */
#include "lib/model/model.h"

uint64_t tms_activation_width(const tamis_model *model, tms_activation which) {
    const tms_config *config = &model->config;
    switch (which) {
    case TMS_X:
    case TMS_NORMED:
        return config->dim;
    case TMS_ADDEND:
        return tms_forward_has_addend(model) ? config->dim : 0;
    case TMS_Q:
    case TMS_ATTENDED:
        return (uint64_t)config->n_heads * config->head_dim;
    case TMS_K:
    case TMS_V:
        return (uint64_t)config->n_kv_heads * config->head_dim;
    case TMS_GATE:
        return config->ff_dim;
    case TMS_UP:
        return config->architecture->plain_ffn ? 0 : config->ff_dim;
    case TMS_LOGITS:
        return model->info.n_vocab;
    default:
        return 1;
    }
}

static tamis_place place_of(const tamis_runner *runner, tms_activation which) {
    return (tamis_place){.buffer = runner->buffers[which]};
}

/* An activation's rows from `first` on. */
static tamis_rows rows_from(const tamis_runner *runner, tms_activation which, uint32_t first) {
    return (tamis_rows){.buffer = runner->buffers[which],
                        .offset =
                            first * tms_activation_width(runner->model, which) * sizeof(float),
                        .dtype = TAMIS_F32};
}

static tamis_rows rows_of(const tamis_runner *runner, tms_activation which) {
    return rows_from(runner, which, 0);
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
    const tms_weight *w;
    tamis_buffer *bias; /* may be NULL */
    tms_activation x, y;
    uint32_t n_in, n_out;
    bool accumulate;
    uint32_t left_out; /* rows of x before the bundle's that y has not */
} projection;

static tamis_rows y_of(const tamis_runner *runner, const projection *p, tms_bundle rows) {
    return rows_from(runner, p->y, rows.first - p->left_out);
}

static tamis_status project(const tamis_runner *runner, const projection *p, tms_bundle rows,
                            tamis_error *error) {
    const tamis_linear_params params = {.x = rows_from(runner, p->x, rows.first),
                                        .y = y_of(runner, p, rows),
                                        .w = weight_matrix(p->w),
                                        .bias = {.buffer = p->bias},
                                        .n_rows = rows.n,
                                        .n_in = p->n_in,
                                        .n_out = p->n_out,
                                        .accumulate = p->accumulate,
                                        .build_rows = runner->build_rows};
    return tamis_op_linear(runner->model->context, &params, error);
}

static tamis_linear_part part_of(const tamis_runner *runner, const projection *p, tms_bundle rows) {
    return (tamis_linear_part){.w = weight_matrix(p->w),
                               .bias = {.buffer = p->bias},
                               .y = y_of(runner, p, rows),
                               .n_out = p->n_out};
}

/* A norm of whole rows: y = norm of x, or added to y. */
typedef struct row_norm {
    tms_activation x, y;
    tamis_buffer *w;
    uint32_t dim;
    tamis_norm_kind kind;
    bool accumulate;
} row_norm;

static tamis_status norm_rows(const tamis_runner *runner, const row_norm *n, tms_bundle rows,
                              tamis_error *error) {
    const tamis_norm_params params = {.x = rows_from(runner, n->x, rows.first),
                                      .y = rows_from(runner, n->y, rows.first),
                                      .w = {.buffer = n->w},
                                      .n_rows = rows.n,
                                      .dim = n->dim,
                                      .eps = runner->model->config.norm_eps,
                                      .kind = n->kind,
                                      .accumulate = n->accumulate};
    return tamis_op_norm(runner->model->context, &params, error);
}

/* Rows of the residual stream. */
static tamis_status normalise(const tamis_runner *runner, const tms_weight *w, tms_bundle rows,
                              tamis_error *error) {
    const tms_config *config = &runner->model->config;
    const tamis_norm_params params = {.x = rows_from(runner, TMS_X, rows.first),
                                      .y = rows_from(runner, TMS_NORMED, rows.first),
                                      .w = weight_place(w),
                                      .n_rows = rows.n,
                                      .dim = config->dim,
                                      .eps = config->norm_eps,
                                      .kind = config->architecture->norm};
    return tamis_op_norm(runner->model->context, &params, error);
}

/* Matrices that read the residual stream, which is in TMS_X but where advance_few says otherwise,
 * normalised where the model has a norm there. Only prompts put what is normalised into TMS_NORMED. */
typedef struct normed {
    const tms_weight *norm;
    uint32_t n_parts;
    bool gated; /* the activation of part 0, times part 1 if there is one, goes to part 0's rows */
    projection parts[TAMIS_MOST_PARTS];
} normed;

static tamis_linear_parts_params few_of(const tamis_runner *runner, const normed *p,
                                        tms_bundle rows) {
    const tms_config *config = &runner->model->config;
    tamis_linear_parts_params params = {.x = rows_from(runner, TMS_X, rows.first),
                                        .norm_w = weight_place(p->norm),
                                        .n_parts = p->n_parts,
                                        .n_rows = rows.n,
                                        .n_in = config->dim,
                                        .eps = config->norm_eps,
                                        .gated = p->gated,
                                        .build_rows = runner->build_rows,
                                        .norm_kind = config->architecture->norm,
                                        .activation = p->gated ? config->architecture->activation
                                                               : TAMIS_SILU};
    for (uint32_t i = 0; i < p->n_parts; i++) {
        params.parts[i] = part_of(runner, &p->parts[i], rows);
        if (i > 0 && p->gated) params.parts[i].y = (tamis_rows){0};
    }
    return params;
}

/* In one launch. */
static tamis_status project_few(const tamis_runner *runner, const normed *p, tms_bundle rows,
                                tamis_error *error) {
    const tamis_linear_parts_params params = few_of(runner, p, rows);
    return tamis_op_linear_parts(runner->model->context, &params, error);
}

static tamis_status project_many(const tamis_runner *runner, const normed *p, tms_bundle rows,
                                 tamis_error *error) {
    const bool norms = p->norm->buffer != NULL;
    if (norms) TMS_TRY(normalise(runner, p->norm, rows, error));
    for (uint32_t i = 0; i < p->n_parts; i++) {
        projection part = p->parts[i];
        part.x = norms ? TMS_NORMED : TMS_X;
        TMS_TRY(project(runner, &part, rows, error));
    }
    if (!p->gated) return TAMIS_OK;
    const tamis_rows gate = rows_from(runner, p->parts[0].y, rows.first);
    tamis_activate_params activate = {.gate = gate,
                                      .y = gate,
                                      .n_rows = rows.n,
                                      .dim = p->parts[0].n_out,
                                      .activation = runner->model->config.architecture->activation};
    if (p->n_parts == 2) activate.up = rows_from(runner, p->parts[1].y, rows.first);
    return tamis_op_activate(runner->model->context, &activate, error);
}

/* Whether these rows, or without any those that kernels are built for, are few. */
static bool are_few(const tamis_runner *runner, uint32_t n_rows) {
    return (n_rows ? n_rows : runner->build_rows) <= TAMIS_FEW_ROWS;
}

static tamis_status project_normed(const tamis_runner *runner, const normed *p, tms_bundle rows,
                                   tamis_error *error) {
    return are_few(runner, rows.n) ? project_few(runner, p, rows, error)
                                   : project_many(runner, p, rows, error);
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
                                .rotation = tms_runner_rotated(runner, layer)->rotation,
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
static tamis_status write_and_attend(tamis_runner *runner, uint32_t layer, uint32_t n_rows,
                                     tamis_error *error) {
    const tamis_attention_rows rows = attention_rows(runner, layer, n_rows);
    if (!runner->observer) { /* else it sees q and k as they are when they are rotated */
        const tamis_rotated_rows rotated = rotated_rows(runner, layer);
        return tamis_plan_write_attend(runner->plan, layer, &rotated, &rows.out, error);
    }
    TMS_TRY(tms_forward_write(runner, layer, error));
    TMS_TRY(tms_forward_attend(runner, layer, error));
    return observe(runner, &rows, error);
}

/* With the taps before it and behind it. */
static tamis_status read_cache(tamis_runner *runner, uint32_t layer, uint32_t n_rows,
                               tamis_error *error) {
    if (runner->tap) TMS_TRY(runner->tap(runner->tap_user, layer, n_rows, error));
    TMS_TRY(write_and_attend(runner, layer, n_rows, error));
    if (!runner->attended_tap) return TAMIS_OK;
    return runner->attended_tap(runner->attended_user, layer, n_rows, error);
}

/* ---- The products of a layer ----------------------------------------------------------------- */

static const tms_layer *layer_of(const tamis_runner *runner, uint32_t layer) {
    return &runner->model->weights.layers[layer];
}

static projection of_stream(const tamis_runner *runner, uint32_t layer, tms_layer_weight matrix,
                            tms_activation y) {
    const tms_layer *of = layer_of(runner, layer);
    const tms_weight *w = &of->weights[matrix];
    return (projection){.w = w,
                        .bias = tms_layer_bias(of, matrix),
                        .x = TMS_NORMED,
                        .y = y,
                        .n_in = (uint32_t)w->n_in,
                        .n_out = (uint32_t)w->n_out};
}

static normed qkv_of(const tamis_runner *runner, uint32_t layer) {
    return (normed){.norm = &layer_of(runner, layer)->weights[TMS_ATTN_NORM],
                    .n_parts = 3,
                    .parts = {of_stream(runner, layer, TMS_ATTN_Q, TMS_Q),
                              of_stream(runner, layer, TMS_ATTN_K, TMS_K),
                              of_stream(runner, layer, TMS_ATTN_V, TMS_V)}};
}

/* Rows of queries or keys normalised as wholes, in place; without weights: they are not. */
static row_norm of_row(const tamis_runner *runner, uint32_t layer, tms_layer_weight norm,
                       tms_activation rows) {
    const tms_weight *w = &layer_of(runner, layer)->weights[norm];
    return (row_norm){rows, rows, w->buffer, (uint32_t)w->n_in, TAMIS_NORM_RMS, false};
}

static row_norm q_norm_of(const tamis_runner *runner, uint32_t layer) {
    return of_row(runner, layer, TMS_ATTN_Q_ROW_NORM, TMS_Q);
}

static row_norm k_norm_of(const tamis_runner *runner, uint32_t layer) {
    return of_row(runner, layer, TMS_ATTN_K_ROW_NORM, TMS_K);
}

bool tms_forward_has_addend(const tamis_model *model) {
    const uint32_t posts = 1u << TMS_POST_ATTN_NORM | 1u << TMS_POST_FFN_NORM;
    return model->config.architecture->required & posts || model->config.residual_scale != 1;
}

/* A matrix whose rows are added to the residual stream, or to TMS_ADDEND where they are normalised or
 * scaled first. */
static projection to_stream(const tamis_runner *runner, uint32_t layer, tms_layer_weight matrix,
                            tms_activation x) {
    const tms_layer *of = layer_of(runner, layer);
    const tms_weight *w = &of->weights[matrix];
    const bool directly = !tms_forward_has_addend(runner->model);
    return (projection){.w = w,
                        .bias = tms_layer_bias(of, matrix),
                        .x = x,
                        .y = directly ? TMS_X : TMS_ADDEND,
                        .n_in = (uint32_t)w->n_in,
                        .n_out = (uint32_t)w->n_out,
                        .accumulate = directly};
}

static projection out_of(const tamis_runner *runner, uint32_t layer) {
    return to_stream(runner, layer, TMS_ATTN_OUTPUT, TMS_ATTENDED);
}

static projection down_of(const tamis_runner *runner, uint32_t layer) {
    return to_stream(runner, layer, TMS_FFN_DOWN, TMS_GATE);
}

/* TMS_ADDEND to the residual stream, by the norm behind a product or the residual scale; without
 * weights: it is not used. */
static row_norm addend_of(const tamis_runner *runner, uint32_t layer, tms_layer_weight norm) {
    const tms_weights *weights = &runner->model->weights;
    tamis_buffer *w = weights->layers[layer].weights[norm].buffer;
    return (row_norm){TMS_ADDEND,
                      TMS_X,
                      w ? w : weights->residual_scale,
                      runner->model->config.dim,
                      w ? runner->model->config.architecture->norm : TAMIS_NORM_NONE,
                      true};
}

static normed gate_up_of(const tamis_runner *runner, uint32_t layer) {
    const tms_weight *w = layer_of(runner, layer)->weights;
    const bool own_norm = w[TMS_FFN_NORM].buffer || !runner->model->config.parallel;
    normed of = {.norm = own_norm ? &w[TMS_FFN_NORM] : &w[TMS_ATTN_NORM],
                 .n_parts = 2,
                 .gated = true,
                 .parts = {of_stream(runner, layer, TMS_FFN_GATE, TMS_GATE),
                           of_stream(runner, layer, TMS_FFN_UP, TMS_UP)}};
    if (!runner->model->config.architecture->plain_ffn) return of;
    of.n_parts = 1;
    of.parts[0] = of_stream(runner, layer, TMS_FFN_UP, TMS_GATE);
    return of;
}

static tamis_status norm_if(const tamis_runner *runner, row_norm norm, tms_bundle rows,
                            tamis_error *error) {
    return norm.w ? norm_rows(runner, &norm, rows, error) : TAMIS_OK;
}

tamis_status tms_forward_qkv(tamis_runner *runner, uint32_t layer, tms_bundle rows,
                             tamis_error *error) {
    const normed qkv = qkv_of(runner, layer);
    TMS_TRY(project_normed(runner, &qkv, rows, error));
    TMS_TRY(norm_if(runner, q_norm_of(runner, layer), rows, error));
    return norm_if(runner, k_norm_of(runner, layer), rows, error);
}

/* x += post(W_o · attention(norm(x))). Where attention and feed-forward read the same x, the latter
 * does so before. */
tamis_status tms_forward_out(tamis_runner *runner, uint32_t layer, tms_bundle rows,
                             tamis_error *error) {
    const projection out = out_of(runner, layer);
    const normed gate_up = gate_up_of(runner, layer);
    if (runner->model->config.parallel) TMS_TRY(project_normed(runner, &gate_up, rows, error));
    TMS_TRY(project(runner, &out, rows, error));
    return norm_if(runner, addend_of(runner, layer, TMS_POST_ATTN_NORM), rows, error);
}

/* x += post(W_down · (act(W_gate · norm(x)) ⊙ W_up · norm(x))) */
tamis_status tms_forward_feed(tamis_runner *runner, uint32_t layer, tms_bundle rows,
                              tamis_error *error) {
    const normed gate_up = gate_up_of(runner, layer);
    const projection down = down_of(runner, layer);
    if (!runner->model->config.parallel) TMS_TRY(project_normed(runner, &gate_up, rows, error));
    TMS_TRY(project(runner, &down, rows, error));
    return norm_if(runner, addend_of(runner, layer, TMS_POST_FFN_NORM), rows, error);
}

/* ---- The same in one launch ------------------------------------------------------------------ */

/* What the residual stream is still to get is added by the stage that reads it next, which goes on in the
 * other of TMS_X and TMS_NORMED: work-groups that read x and the addend do not wait for each other. */
_Static_assert(TAMIS_MOST_STAGES >= 7, "four products; norms of an addend, of queries and of keys");
typedef struct chain {
    const tamis_runner *runner;
    tamis_linear_parts_params stages[TAMIS_MOST_STAGES];
    uint32_t n;
    tms_bundle rows;
    tms_activation stream;   /* where the residual stream is */
    const row_norm *pending; /* what it is still to get, or NULL */
} chain;

static tamis_linear_parts_params *add_stage(chain *c, const tamis_linear_parts_params *stage) {
    c->stages[c->n] = *stage;
    return &c->stages[c->n++];
}

static void add_product(chain *c, const projection *p) {
    add_stage(c, &(tamis_linear_parts_params){.x = rows_from(c->runner, p->x, c->rows.first),
                                              .parts = {part_of(c->runner, p, c->rows)},
                                              .n_parts = 1,
                                              .n_rows = c->rows.n,
                                              .n_in = p->n_in,
                                              .accumulate = p->accumulate,
                                              .build_rows = c->runner->build_rows});
}

static void set_addend(const chain *c, tamis_linear_parts_params *stage, const row_norm *norm,
                       tms_activation sum) {
    stage->adds = 1;
    stage->addend = rows_from(c->runner, norm->x, c->rows.first);
    stage->addend_w.buffer = norm->w;
    stage->addend_kind = norm->kind;
    stage->sum = rows_from(c->runner, sum, c->rows.first);
}

/* The addend that the stage is to add to the residual stream. */
static void add_pending(chain *c, tamis_linear_parts_params *stage) {
    stage->x = rows_from(c->runner, c->stream, c->rows.first);
    if (!c->pending) return;
    c->stream = c->stream == TMS_X ? TMS_NORMED : TMS_X;
    set_addend(c, stage, c->pending, c->stream);
    c->pending = NULL;
}

static void add_normed(chain *c, const normed *p) {
    const tamis_linear_parts_params stage = few_of(c->runner, p, c->rows);
    add_pending(c, add_stage(c, &stage));
}

/* A stage that is a norm alone. */
static tamis_linear_parts_params *add_norm(chain *c, uint32_t dim) {
    return add_stage(c, &(tamis_linear_parts_params){.n_rows = c->rows.n,
                                                     .n_in = dim,
                                                     .eps = c->runner->model->config.norm_eps,
                                                     .build_rows = c->runner->build_rows});
}

static void add_in_place(chain *c, const row_norm *norm) {
    if (norm->w) set_addend(c, add_norm(c, norm->dim), norm, norm->y);
}

/* Puts off what is added to the residual stream. */
static void add_later(chain *c, const row_norm *norm) {
    if (norm->w) c->pending = norm;
}

/* Adds it where no stage is to read the stream before the next addend comes, or before the head does. */
static void add_now(chain *c) {
    if (!c->pending) return;
    tamis_linear_parts_params *stage = add_norm(c, c->pending->dim);
    stage->accumulate = 1;
    add_pending(c, stage);
}

/* From the attended rows of a layer to q, k and v of the next, if there is one: one op. */
static tamis_status advance_few(const tamis_runner *runner, uint32_t layer, tms_bundle rows,
                                tamis_error *error) {
    const bool last = layer + 1 == runner->model->config.n_layers;
    const bool parallel = runner->model->config.parallel;
    const uint32_t next = last ? 0 : layer + 1;
    const projection out = out_of(runner, layer), down = down_of(runner, layer);
    const normed gate_up = gate_up_of(runner, layer), qkv = qkv_of(runner, next);
    const row_norm post_attn = addend_of(runner, layer, TMS_POST_ATTN_NORM);
    const row_norm post_ffn = addend_of(runner, layer, TMS_POST_FFN_NORM);
    const row_norm q_norm = q_norm_of(runner, next), k_norm = k_norm_of(runner, next);
    chain c = {.runner = runner, .rows = rows, .stream = TMS_X};
    if (parallel) add_normed(&c, &gate_up);
    add_product(&c, &out);
    add_later(&c, &post_attn);
    if (parallel)
        add_now(&c);
    else
        add_normed(&c, &gate_up);
    add_product(&c, &down);
    add_later(&c, &post_ffn);
    if (last) {
        add_now(&c);
    } else {
        add_normed(&c, &qkv);
        add_in_place(&c, &q_norm);
        add_in_place(&c, &k_norm);
    }
    const tamis_linear_chain_params params = {.stages = c.stages, .n_stages = c.n};
    return tamis_op_linear_chain(runner->model->context, &params, error);
}

static tamis_status advance_many(tamis_runner *runner, uint32_t layer, tms_bundle rows,
                                 tamis_error *error) {
    TMS_TRY(tms_forward_out(runner, layer, rows, error));
    TMS_TRY(tms_forward_feed(runner, layer, rows, error));
    if (layer + 1 == runner->model->config.n_layers) return TAMIS_OK;
    return tms_forward_qkv(runner, layer + 1, rows, error);
}

static tamis_status advance(tamis_runner *runner, uint32_t layer, tms_bundle rows,
                            tamis_error *error) {
    return are_few(runner, rows.n) ? advance_few(runner, layer, rows, error)
                                   : advance_many(runner, layer, rows, error);
}

/* ---- The ends -------------------------------------------------------------------------------- */

static tamis_status make_logits(const tamis_runner *runner, tms_bundle rows, uint32_t to,
                                tamis_error *error) {
    const tamis_model *model = runner->model;
    const tms_weights *weights = &model->weights;
    const tms_weight *output = weights->output.buffer ? &weights->output : &weights->embed;
    tamis_buffer *bias =
        weights->output_folded ? weights->output_folded : weights->output_bias.buffer;
    const normed logits = {.norm = &weights->output_norm,
                           .n_parts = 1,
                           .parts = {{.w = output,
                                      .bias = bias,
                                      .x = TMS_NORMED,
                                      .y = TMS_LOGITS,
                                      .n_in = model->config.dim,
                                      .n_out = model->info.n_vocab,
                                      .left_out = rows.first - to}}};
    return project_normed(runner, &logits, rows, error);
}

/* Logits and their largest entries, of the output rows alone. */
tamis_status tms_forward_head(tamis_runner *runner, const tms_bundle *outputs, uint32_t n,
                              tamis_error *error) {
    uint32_t n_outputs = 0;
    for (uint32_t i = 0; i < n; n_outputs += outputs[i++].n)
        TMS_TRY(make_logits(runner, outputs[i], n_outputs, error));
    const tamis_argmax_params argmax = {.x = rows_of(runner, TMS_LOGITS),
                                        .out = place_of(runner, TMS_NEXT),
                                        .n_rows = n_outputs,
                                        .dim = runner->model->info.n_vocab};
    return tamis_op_argmax(runner->model->context, &argmax, error);
}

tamis_status tms_forward_embed(tamis_runner *runner, uint32_t n_rows, tamis_error *error) {
    const tamis_model *model = runner->model;
    const tamis_embed_params embed = {.tokens = place_of(runner, TMS_TOKENS),
                                      .w = weight_matrix(&model->weights.embed),
                                      .y = rows_of(runner, TMS_X),
                                      .n_rows = n_rows,
                                      .dim = model->config.dim,
                                      .n_vocab = model->info.n_vocab,
                                      .scale = model->config.embed_scale};
    return tamis_op_embed(model->context, &embed, error);
}

/* From each layer's attended rows to the next layer's, bundle by bundle. */
static tamis_status advance_all(tamis_runner *runner, uint32_t layer, const tms_pass *pass,
                                tamis_error *error) {
    for (uint32_t i = 0; i < pass->n_bundles; i++)
        TMS_TRY(advance(runner, layer, pass->bundles[i], error));
    return TAMIS_OK;
}

tamis_status tms_forward_pass(tamis_runner *runner, const tms_pass *pass, tamis_error *error) {
    TMS_TRY(tms_forward_embed(runner, pass->n_rows, error));
    for (uint32_t i = 0; i < pass->n_bundles; i++)
        TMS_TRY(tms_forward_qkv(runner, 0, pass->bundles[i], error));
    for (uint32_t layer = 0; layer < runner->model->config.n_layers; ++layer) {
        TMS_TRY(read_cache(runner, layer, pass->n_rows, error));
        TMS_TRY(advance_all(runner, layer, pass, error));
    }
    if (pass->n_outputs == 0) return TAMIS_OK;
    return tms_forward_head(runner, pass->outputs, pass->n_outputs, error);
}

/* ---- Kernels --------------------------------------------------------------------------------- */

/* Numbers of rows that take the same kernels: 1; up to TAMIS_FEW_ROWS; more. As a bit; none: 0. */
static uint32_t kind_of(uint32_t n_rows) {
    if (n_rows == 0) return 0;
    return n_rows == 1 ? 1 : n_rows <= TAMIS_FEW_ROWS ? 2 : 4;
}

/* No rows: what builds kernels. */
static const tms_bundle none = {0, 0};

static tamis_status build_layers(tamis_runner *runner, tamis_error *error) {
    TMS_TRY(tms_forward_embed(runner, 0, error));
    TMS_TRY(tms_forward_qkv(runner, 0, none, error));
    for (uint32_t layer = 0; layer < runner->model->config.n_layers; ++layer)
        TMS_TRY(advance(runner, layer, none, error));
    return TAMIS_OK;
}

tamis_status tms_forward_build_parts(tamis_runner *runner, tamis_error *error) {
    static const uint32_t kinds[] = {1, TAMIS_FEW_ROWS, TAMIS_FEW_ROWS + 1};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        runner->build_rows = kinds[i];
        for (uint32_t layer = 0; layer < runner->model->config.n_layers; ++layer) {
            TMS_TRY(tms_forward_qkv(runner, layer, none, error));
            TMS_TRY(tms_forward_out(runner, layer, none, error));
            TMS_TRY(tms_forward_feed(runner, layer, none, error));
        }
    }
    return tamis_context_wait(runner->model->context, error);
}

tamis_status tms_forward_build(tamis_runner *runner, uint32_t n_rows, uint32_t n_outputs,
                               tamis_error *error) {
    const uint32_t rows = kind_of(n_rows) & ~runner->built;
    const uint32_t outputs = kind_of(n_outputs) & ~runner->built_outputs;
    if (!rows && !outputs) return TAMIS_OK;
    runner->build_rows = n_rows;
    if (rows) TMS_TRY(build_layers(runner, error));
    runner->build_rows = n_outputs;
    if (outputs) TMS_TRY(tms_forward_head(runner, &none, 1, error));
    TMS_TRY(tamis_context_wait(runner->model->context, error));
    runner->built |= rows;
    runner->built_outputs |= outputs;
    return TAMIS_OK;
}
