/* SPDX-License-Identifier: Apache-2.0 */
/* The ops that a model needs beside attention, on the caller's rows. */
#include "lib/op_calls/check.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

_Static_assert(TAMIS_FEW_ROWS == TMS_FEW_ROWS, "the contract's value");
_Static_assert(TAMIS_MOST_PARTS == TMS_MOST_PARTS, "the contract's value");
_Static_assert(TAMIS_MOST_STAGES == TMS_MOST_STAGES, "the contract's value");
_Static_assert(TAMIS_ROTATE_LIMIT == TMS_ROTATE_LIMIT, "the contract's value");

tamis_status tamis_op_linear(tamis_context *context, const tamis_linear_params *p,
                             tamis_error *error) {
    TMS_ENTER(context);
    TMS_OP_BEGIN(c, context, p, tamis_linear_params);
    const tms_op_rows x = {"x", &p->x, p->n_rows, p->n_in}, y = {"y", &p->y, p->n_rows, p->n_out};
    tms_op_above_0(&c, "n_in", p->n_in);
    tms_op_above_0(&c, "n_out", p->n_out);
    const tms_linear run = {
        .x = tms_op_matrix(&c, &x),
        .y = tms_op_matrix(&c, &y),
        .w = tms_op_weights(&c, &p->w, p->n_rows ? p->n_out : 0, p->n_in),
        .bias = tms_op_optional(&c, "bias", &p->bias, (uint64_t)p->n_out * sizeof(float)),
        .n_rows = p->n_rows,
        .n_in = p->n_in,
        .n_out = p->n_out,
        .accumulate = p->accumulate != 0,
        .build_rows = p->build_rows};
    tms_op_zero(&c, "tamis_linear_params", "reserved32", p->reserved32);
    tms_op_apart(&c, &x, &y);
    if (c.status != TAMIS_OK) return c.status;
    return tms_run_linear(context->dev, &run, error);
}

/* Checks that parts behind the last one are not set, so that none is forgotten and what is reserved
 * in them may get a meaning, too. */
static void check_no_part(tms_op_call *c, const tamis_linear_part *part, uint32_t i, uint32_t n) {
    if (part->n_out || part->w.buffer || part->y.buffer || part->bias.buffer || part->w.reserved ||
        part->reserved32)
        tms_op_refuse(c, TAMIS_E_ARGUMENT,
                      "part %" PRIu32 " is set, and there are %" PRIu32 " parts", i, n);
}

/* The rows that part i writes; with a gate part 1 writes none. */
static tms_op_rows part_rows(const tamis_linear_parts_params *p, uint32_t i) {
    static const char *const names[TAMIS_MOST_PARTS] = {"y of part 0", "y of part 1",
                                                        "y of part 2"};
    const uint32_t n_rows = p->gated && i > 0 ? 0 : p->n_rows;
    return (tms_op_rows){names[i], &p->parts[i].y, n_rows, p->parts[i].n_out};
}

static tms_linear_part part_of(tms_op_call *c, const tamis_linear_parts_params *p, uint32_t i) {
    const tamis_linear_part *part = &p->parts[i];
    const tms_op_rows x = {"x", &p->x, p->n_rows, p->n_in}, y = part_rows(p, i);
    tms_op_zero(c, "tamis_linear_part", "reserved32", part->reserved32);
    tms_op_above_0(c, "n_out of a part", part->n_out);
    if (p->gated && i > 0 && part->y.buffer)
        tms_op_refuse(c, TAMIS_E_ARGUMENT, "%s is given, and the parts are gated", y.name);
    const tms_linear_part run = {
        .w = tms_op_weights(c, &part->w, p->n_rows ? part->n_out : 0, p->n_in),
        .bias = tms_op_optional(c, "bias", &part->bias, (uint64_t)part->n_out * sizeof(float)),
        .y = tms_op_matrix(c, &y),
        .n_out = part->n_out};
    tms_op_apart(c, &x, &y);
    for (uint32_t other = 0; other < i; other++) {
        const tms_op_rows before = part_rows(p, other);
        tms_op_apart(c, &before, &y);
    }
    return run;
}

static void check_no_addend(tms_op_call *c, const tamis_linear_parts_params *p) {
    const char *set = p->addend.buffer     ? "addend"
                      : p->sum.buffer      ? "sum"
                      : p->addend_w.buffer ? "addend_w"
                      : p->addend_kind     ? "addend_kind"
                                           : NULL;
    if (set) tms_op_refuse(c, TAMIS_E_ARGUMENT, "%s is given, and adds is 0", set);
}

/* The addend of parts, or of none. */
static void set_addend(tms_op_call *c, const tamis_linear_parts_params *p, tms_linear_parts *run) {
    const tms_op_rows x = {"x", &p->x, p->n_rows, p->n_in};
    const tms_op_rows addend = {"addend", &p->addend, p->n_rows, p->n_in};
    const tms_op_rows sum = {"sum", &p->sum, p->n_rows, p->n_in};
    const uint64_t bytes = p->n_rows ? (uint64_t)p->n_in * sizeof(float) : 0;
    run->addend = tms_op_matrix(c, &addend);
    run->sum = tms_op_matrix(c, &sum);
    run->addend_w = tms_op_place(c, "addend_w", &p->addend_w, bytes);
    run->addend_kind = p->addend_kind;
    if (p->n_parts) {
        tms_op_apart(c, &x, &sum);
        tms_op_apart(c, &addend, &sum);
    }
    for (uint32_t i = 0; i < p->n_parts && i < TAMIS_MOST_PARTS; i++) {
        const tms_op_rows y = part_rows(p, i);
        tms_op_apart(c, &addend, &y);
        tms_op_apart(c, &sum, &y);
    }
}

/* A stage without parts. */
static void check_norm_alone(tms_op_call *c, const tamis_linear_parts_params *p) {
    tms_op_zero(c, "tamis_linear_parts_params", "gated", (uint32_t)p->gated);
    if (!p->adds) tms_op_refuse(c, TAMIS_E_ARGUMENT, "there are neither parts nor an addend");
    if (p->norm_w.buffer)
        tms_op_refuse(c, TAMIS_E_ARGUMENT, "norm_w is given, and there are no parts");
    if (p->x.buffer && !p->accumulate)
        tms_op_refuse(c, TAMIS_E_ARGUMENT, "x is given, and a norm without accumulate has none");
}

static tms_linear_parts parts_of(tms_op_call *c, const tamis_linear_parts_params *p) {
    const bool reads_x = p->n_parts || p->accumulate;
    const tms_op_rows x = {"x", &p->x, reads_x ? p->n_rows : 0, p->n_in};
    const uint64_t bytes = p->n_rows ? (uint64_t)p->n_in * sizeof(float) : 0;
    tms_op_zero(c, "tamis_linear_parts_params", "reserved32", p->reserved32);
    tms_op_above_0(c, "n_in", p->n_in);
    tms_linear_parts run = {.x = tms_op_matrix(c, &x),
                            .norm_w = tms_op_optional(c, "norm_w", &p->norm_w, bytes),
                            .n_parts = p->n_parts,
                            .n_rows = p->n_rows,
                            .n_in = p->n_in,
                            .eps = p->eps,
                            .gated = p->gated != 0,
                            .accumulate = p->accumulate != 0,
                            .adds = p->adds != 0,
                            .norm_kind = p->norm_kind,
                            .activation = p->activation,
                            .build_rows = p->build_rows};
    if (p->norm_kind && !p->norm_w.buffer && p->n_rows)
        tms_op_refuse(c, TAMIS_E_ARGUMENT, "norm_kind is %d, and norm_w is absent",
                      (int)p->norm_kind);
    if (p->activation && !p->gated)
        tms_op_refuse(c, TAMIS_E_ARGUMENT, "activation is %d, and the parts are not gated",
                      (int)p->activation);
    for (uint32_t i = 0; i < TAMIS_MOST_PARTS; i++) {
        if (i < p->n_parts)
            run.parts[i] = part_of(c, p, i);
        else
            check_no_part(c, &p->parts[i], i, p->n_parts);
    }
    if (p->adds)
        set_addend(c, p, &run);
    else
        check_no_addend(c, p);
    return run;
}

tamis_status tamis_op_linear_parts(tamis_context *context, const tamis_linear_parts_params *p,
                                   tamis_error *error) {
    TMS_ENTER(context);
    TMS_OP_BEGIN(c, context, p, tamis_linear_parts_params);
    const tms_linear_parts run = parts_of(&c, p);
    if (c.status != TAMIS_OK) return c.status;
    return tms_run_linear_parts(context->dev, &run, error);
}

/* Puts the number of the stage in front of the reason. */
static void name_stage(tms_op_call *c, uint32_t stage) {
    char reason[sizeof c->error->text];
    if (c->status == TAMIS_OK || !c->error) return;
    snprintf(reason, sizeof reason, "%s", c->error->text);
    snprintf(c->error->text, sizeof c->error->text, "stage %" PRIu32 ": %.200s", stage, reason);
}

tamis_status tamis_op_linear_chain(tamis_context *context, const tamis_linear_chain_params *p,
                                   tamis_error *error) {
    TMS_ENTER(context);
    TMS_OP_BEGIN(c, context, p, tamis_linear_chain_params);
    tms_linear_chain run = {.n_stages = p->n_stages};
    tms_op_zero(&c, "tamis_linear_chain_params", "reserved32", p->reserved32);
    if (p->n_stages == 0 || p->n_stages > TAMIS_MOST_STAGES)
        tms_op_refuse(&c, TAMIS_E_ARGUMENT, "n_stages is %" PRIu32 ": there may be 1 to %d",
                      p->n_stages, TAMIS_MOST_STAGES);
    else if (!p->stages)
        tms_op_refuse(&c, TAMIS_E_ARGUMENT, "stages is NULL");
    for (uint32_t i = 0; i < p->n_stages && c.status == TAMIS_OK; i++) {
        const tamis_linear_parts_params *stage = &p->stages[i];
        for (uint32_t k = 0; k < sizeof stage->reserved / sizeof *stage->reserved; k++)
            tms_op_zero(&c, "tamis_linear_parts_params", "reserved", stage->reserved[k]);
        if (stage->n_parts == 0) check_norm_alone(&c, stage);
        run.stages[i] = parts_of(&c, stage);
        name_stage(&c, i);
    }
    if (c.status != TAMIS_OK) return c.status;
    return tms_run_linear_chain(context->dev, &run, error);
}

tamis_status tamis_op_norm(tamis_context *context, const tamis_norm_params *p, tamis_error *error) {
    TMS_ENTER(context);
    TMS_OP_BEGIN(c, context, p, tamis_norm_params);
    const tms_op_rows x = {"x", &p->x, p->n_rows, p->dim}, y = {"y", &p->y, p->n_rows, p->dim};
    const uint64_t bytes = p->n_rows ? (uint64_t)p->dim * sizeof(float) : 0;
    tms_op_zero(&c, "tamis_norm_params", "reserved32", p->reserved32);
    tms_op_above_0(&c, "dim", p->dim);
    const tms_matrix to = tms_op_matrix(&c, &y);
    const tms_norm run = {.x = tms_op_matrix(&c, &x),
                          .y = to,
                          .to = to,
                          .w = tms_op_place(&c, "w", &p->w, bytes),
                          .n_rows = p->n_rows,
                          .dim = p->dim,
                          .eps = p->eps,
                          .kind = p->kind,
                          .accumulate = p->accumulate != 0};
    if (c.status != TAMIS_OK) return c.status;
    return tms_run_norm(context->dev, &run, error);
}

uint64_t tamis_rotation_bytes(uint32_t n_rot) {
    return (uint64_t)2 * TMS_ROTATE_STEPS * n_rot * sizeof(float); /* [2][steps][n_rot/2][2] */
}

static void check_rotation(tms_op_call *c, uint32_t n_rot, uint32_t most) {
    if (n_rot == 0 || n_rot % 2 || n_rot > most)
        tms_op_refuse(c, TAMIS_E_ARGUMENT,
                      "n_rot is %" PRIu32 ": an even number from 2 to %" PRIu32, n_rot, most);
}

tamis_status tamis_rotation_write(const tamis_rotation *rotation, const double *frequencies,
                                  tamis_error *error) {
    return tamis_rotation_write_scaled(rotation, frequencies, 1, error);
}

tamis_status tamis_rotation_write_scaled(const tamis_rotation *rotation, const double *frequencies,
                                         double magnitude, tamis_error *error) {
    const tamis_place *table = rotation ? &rotation->table : NULL;
    TMS_ENTER(table ? table->buffer : NULL);
    TMS_REQUIRE(table && table->buffer, TAMIS_E_ARGUMENT, "table is absent");
    const uint32_t n_rot = rotation->n_rot;
    const uint64_t bytes = tamis_rotation_bytes(n_rot);
    TMS_REQUIRE(frequencies, TAMIS_E_ARGUMENT, "frequencies is NULL");
    TMS_REQUIRE(isfinite(magnitude), TAMIS_E_ARGUMENT, "magnitude is %g", magnitude);
    tms_op_call c = {table->buffer->context, false, TAMIS_OK, error};
    check_rotation(&c, n_rot, INT32_MAX);
    for (uint32_t i = 0; c.status == TAMIS_OK && i < n_rot / 2; i++)
        if (!isfinite(frequencies[i]))
            tms_op_refuse(&c, TAMIS_E_ARGUMENT, "frequency %" PRIu32 " is %g", i, frequencies[i]);
    const tms_ref to = tms_op_place(&c, "table", table, bytes);
    if (c.status != TAMIS_OK) return c.status;
    float *host = malloc(bytes);
    TMS_REQUIRE(host, TAMIS_E_NO_MEMORY, "no host memory for a table of %" PRIu32 " channels",
                n_rot);
    tms_rotate_table(frequencies, n_rot, host);
    for (uint64_t i = 0; i < bytes / sizeof *host / 2; i++) /* of j; those of 1024·j turn these */
        host[i] = (float)(host[i] * magnitude);
    const tamis_status status = tms_device_write(c.context->dev, to, host, bytes, error);
    free(host);
    return status;
}

tamis_status tamis_op_rotate(tamis_context *context, const tamis_rotate_params *p,
                             tamis_error *error) {
    TMS_ENTER(context);
    TMS_OP_BEGIN(c, context, p, tamis_rotate_params);
    const tamis_rotation *rotation = &p->rotation;
    const uint32_t n_rot = rotation->n_rot ? rotation->n_rot : p->head_dim;
    const tms_op_rows x = {"x", &p->x, p->n_rows, (uint64_t)p->n_heads * p->head_dim};
    const uint64_t positions = (uint64_t)p->n_rows * sizeof(int32_t);
    tms_op_zero(&c, "tamis_rotate_params", "reserved32", p->reserved32);
    tms_op_above_0(&c, "n_heads", p->n_heads);
    tms_op_one_of(&c, "pairing", (int)rotation->pairing, TAMIS_PAIR_ADJACENT);
    check_rotation(&c, n_rot, p->head_dim < TMS_MOST_HEAD_DIM ? p->head_dim : TMS_MOST_HEAD_DIM);
    const tms_rotate run = {.x = tms_op_matrix(&c, &x),
                            .n_rows = p->n_rows,
                            .n_heads = p->n_heads,
                            .head_dim = p->head_dim,
                            .n_rot = n_rot,
                            .pairing = rotation->pairing,
                            .positions = tms_op_place(&c, "positions", &p->positions, positions),
                            .table = tms_op_place(&c, "table", &rotation->table,
                                                  p->n_rows ? tamis_rotation_bytes(n_rot) : 0)};
    if (c.status != TAMIS_OK) return c.status;
    return tms_run_rotate(context->dev, &run, error);
}

tamis_status tamis_op_activate(tamis_context *context, const tamis_activate_params *p,
                               tamis_error *error) {
    TMS_ENTER(context);
    TMS_OP_BEGIN(c, context, p, tamis_activate_params);
    const tms_op_rows gate = {"gate", &p->gate, p->n_rows, p->dim};
    const tms_op_rows up = {"up", &p->up, p->n_rows, p->dim}, y = {"y", &p->y, p->n_rows, p->dim};
    tms_op_zero(&c, "tamis_activate_params", "reserved32", p->reserved32);
    tms_op_above_0(&c, "dim", p->dim);
    const tms_activate run = {.gate = tms_op_matrix(&c, &gate),
                              .up = p->up.buffer ? tms_op_matrix(&c, &up)
                                                 : (tms_matrix){{NULL, 0}, 0},
                              .y = tms_op_matrix(&c, &y),
                              .n_rows = p->n_rows,
                              .dim = p->dim,
                              .activation = p->activation};
    if (c.status != TAMIS_OK) return c.status;
    return tms_run_activate(context->dev, &run, error);
}

tamis_status tamis_op_embed(tamis_context *context, const tamis_embed_params *p,
                            tamis_error *error) {
    TMS_ENTER(context);
    TMS_OP_BEGIN(c, context, p, tamis_embed_params);
    const tms_op_rows y = {"y", &p->y, p->n_rows, p->dim};
    const uint64_t tokens = (uint64_t)p->n_rows * sizeof(int32_t);
    tms_op_above_0(&c, "dim", p->dim);
    tms_op_above_0(&c, "n_vocab", p->n_vocab);
    const tms_embed run = {.tokens = tms_op_place(&c, "tokens", &p->tokens, tokens),
                           .w = tms_op_weights(&c, &p->w, p->n_rows ? p->n_vocab : 0, p->dim),
                           .y = tms_op_matrix(&c, &y),
                           .n_rows = p->n_rows,
                           .dim = p->dim,
                           .n_vocab = p->n_vocab,
                           .scale = p->scale == 0 ? 1 : p->scale};
    if (c.status != TAMIS_OK) return c.status;
    return tms_run_embed(context->dev, &run, error);
}

tamis_status tamis_op_argmax(tamis_context *context, const tamis_argmax_params *p,
                             tamis_error *error) {
    TMS_ENTER(context);
    TMS_OP_BEGIN(c, context, p, tamis_argmax_params);
    const tms_op_rows x = {"x", &p->x, p->n_rows, p->dim};
    tms_op_above_0(&c, "dim", p->dim);
    const tms_argmax run = {
        .x = tms_op_matrix(&c, &x),
        .n_rows = p->n_rows,
        .dim = p->dim,
        .out = tms_op_place(&c, "out", &p->out, (uint64_t)p->n_rows * sizeof(int32_t))};
    if (c.status != TAMIS_OK) return c.status;
    return tms_run_argmax(context->dev, &run, error);
}

tamis_status tamis_op_scatter_rows(tamis_context *context, const tamis_scatter_rows_params *p,
                                   tamis_error *error) {
    TMS_ENTER(context);
    TMS_OP_BEGIN(c, context, p, tamis_scatter_rows_params);
    const tms_op_rows x = {"x", &p->x, p->n_rows, p->width};
    const tms_op_rows y = {"y", &p->y, p->n_rows ? p->n_rows_y : 0, p->width};
    const uint64_t indices = (uint64_t)p->n_rows * sizeof(int32_t);
    tms_op_zero(&c, "tamis_scatter_rows_params", "reserved32", p->reserved32);
    tms_op_above_0(&c, "width", p->width);
    if (p->n_rows) tms_op_above_0(&c, "n_rows_y", p->n_rows_y);
    const tms_scatter_rows run = {.x = tms_op_matrix(&c, &x),
                                  .y = tms_op_matrix(&c, &y),
                                  .n_rows = p->n_rows,
                                  .width = p->width,
                                  .index = tms_op_place(&c, "index", &p->index, indices)};
    tms_op_apart(&c, &x, &y);
    if (c.status != TAMIS_OK) return c.status;
    return tms_run_scatter_rows(context->dev, &run, error);
}

tamis_status tamis_op_convert(tamis_context *context, const tamis_convert_params *p,
                              tamis_error *error) {
    TMS_ENTER(context);
    TMS_OP_BEGIN(c, context, p, tamis_convert_params);
    const tms_op_rows x = {"x", &p->x, p->n_rows, p->width};
    const tms_op_rows y = {"y", &p->y, p->n_rows, p->width};
    tms_op_above_0(&c, "width", p->width);
    const tms_matrix from = tms_op_any_rows(&c, &x), to = tms_op_any_rows(&c, &y);
    const tms_convert run = {.x = from.ref,
                             .y = to.ref,
                             .x_dtype = p->x.dtype,
                             .y_dtype = p->y.dtype,
                             .x_stride = from.stride,
                             .y_stride = to.stride,
                             .n_rows = p->n_rows,
                             .width = p->width};
    tms_op_apart(&c, &x, &y);
    if (c.status != TAMIS_OK) return c.status;
    return tms_run_convert(context->dev, &run, error);
}
