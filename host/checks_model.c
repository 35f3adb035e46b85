/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of the contract for the ops that a model needs beside attention. */
#include "host/base/weights.h"
#include "host/checks.h"

#include <math.h>
#include <stdio.h>

tamis_status tms_check_rotate(tms_device *dev, const tms_rotate *p) {
    tamis_status status = tms_check_rotated(dev, "rotate", p->n_rot, p->head_dim);
    if (status != TAMIS_OK || p->n_rows == 0) return status;
    status =
        tms_check_matrix(dev, "rotate", "x", &p->x, p->n_rows, (uint64_t)p->n_heads * p->head_dim);
    if (status == TAMIS_OK) status = tms_check_there(dev, "rotate", "positions", p->positions);
    return status == TAMIS_OK ? tms_check_there(dev, "rotate", "table", p->table) : status;
}

/* Checks the type and the place of weights with rows of `width` elements; n_rows: of the launch. */
static tamis_status check_weights(tms_device *dev, const char *op, const tms_weight_matrix *w,
                                  uint32_t width, uint32_t n_rows) {
    const uint32_t block = tamis_weight_block(w->type);
    if (block == 0)
        return tms_device_fail(dev, TAMIS_E_UNSUPPORTED, "%s: weight type %d is unknown", op,
                               (int)w->type);
    if (!tms_weight_layout_fits(w->layout, w->type))
        return tms_device_fail(dev, TAMIS_E_UNSUPPORTED, "%s: no layout %d of %s weights", op,
                               (int)w->layout, tamis_weight_name(w->type));
    if (w->layout != TAMIS_WEIGHT_ROWS && !dev->backend->weight_layout)
        return tms_device_fail(dev, TAMIS_E_UNSUPPORTED,
                               "%s: weights in strips: the backend %s reads rows alone", op,
                               dev->backend->name);
    if (width % block)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "%s: rows of %u %s weights: not a multiple of its blocks of %u", op,
                               width, tamis_weight_name(w->type), block);
    if (w->ref.offset % 4)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "%s: weights at byte %llu: not a multiple of 4", op,
                               (unsigned long long)w->ref.offset);
    return n_rows ? tms_check_there(dev, op, "w", w->ref) : TAMIS_OK;
}

tamis_status tms_check_linear(tms_device *dev, const tms_linear *p) {
    if (p->n_in == 0 || p->n_out == 0)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "linear: %u inputs, %u outputs", p->n_in,
                               p->n_out);
    tamis_status status = tms_check_matrix(dev, "linear", "x", &p->x, p->n_rows, p->n_in);
    if (status == TAMIS_OK)
        status = tms_check_matrix(dev, "linear", "y", &p->y, p->n_rows, p->n_out);
    return status == TAMIS_OK ? check_weights(dev, "linear", &p->w, p->n_in, p->n_rows) : status;
}

static tamis_status check_part(tms_device *dev, const tms_linear_parts *p, uint32_t i) {
    static const char *const names[TMS_MOST_PARTS] = {"y of part 0", "y of part 1", "y of part 2"};
    const tms_linear_part *part = &p->parts[i];
    if (part->n_out == 0 || (p->gated && part->n_out != p->parts[0].n_out))
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "linear_parts: %u outputs of part %u%s",
                               part->n_out, i, p->gated ? ", gated" : "");
    tamis_status status = TAMIS_OK;
    if (i == 0 || !p->gated)
        status = tms_check_matrix(dev, "linear_parts", names[i], &part->y, p->n_rows, part->n_out);
    return status == TAMIS_OK ? check_weights(dev, "linear_parts", &part->w, p->n_in, p->n_rows)
                              : status;
}

/* Checks a kind of norm, and an activation. */
static tamis_status check_kinds(tms_device *dev, const char *op, tamis_norm_kind norm,
                                tamis_activation activation) {
    if ((unsigned)norm > TAMIS_NORM_NONE)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "%s: norm kind %d is unknown", op, (int)norm);
    if ((unsigned)activation > TAMIS_GELU)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "%s: activation %d is unknown", op,
                               (int)activation);
    return TAMIS_OK;
}

static tamis_status check_addend(tms_device *dev, const tms_linear_parts *p) {
    tamis_status status = check_kinds(dev, "linear_parts", p->addend_kind, TAMIS_SILU);
    if (status == TAMIS_OK)
        status = tms_check_matrix(dev, "linear_parts", "addend", &p->addend, p->n_rows, p->n_in);
    if (status == TAMIS_OK)
        status = tms_check_matrix(dev, "linear_parts", "sum", &p->sum, p->n_rows, p->n_in);
    return status == TAMIS_OK && p->n_rows
               ? tms_check_there(dev, "linear_parts", "addend_w", p->addend_w)
               : status;
}

tamis_status tms_check_linear_parts(tms_device *dev, const tms_linear_parts *p) {
    if (p->n_rows > TMS_FEW_ROWS)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "linear_parts: %u rows: at most %d",
                               p->n_rows, TMS_FEW_ROWS);
    if (p->n_parts == 0 || p->n_parts > TMS_MOST_PARTS || (p->gated && p->n_parts > 2))
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "linear_parts: %u parts%s: must be 1 to %d, where gated 1 or 2",
                               p->n_parts, p->gated ? ", gated" : "", TMS_MOST_PARTS);
    if (p->gated && p->accumulate)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "linear_parts: gated, and accumulates");
    if (p->n_in == 0) return tms_device_fail(dev, TAMIS_E_ARGUMENT, "linear_parts: 0 inputs");
    tamis_status status = check_kinds(dev, "linear_parts", p->norm_kind, p->activation);
    if (status == TAMIS_OK)
        status = tms_check_matrix(dev, "linear_parts", "x", &p->x, p->n_rows, p->n_in);
    if (status == TAMIS_OK && p->adds) status = check_addend(dev, p);
    for (uint32_t i = 0; i < p->n_parts && status == TAMIS_OK; i++)
        status = check_part(dev, p, i);
    return status;
}

/* Checks the width of rows in which int32 indices are used. */
static tamis_status check_dim(tms_device *dev, const char *op, uint32_t dim) {
    if (dim > 0 && dim <= INT32_MAX) return TAMIS_OK;
    return tms_device_fail(dev, TAMIS_E_ARGUMENT, "%s: dim %u: must be 1 to %d", op, dim,
                           INT32_MAX);
}

tamis_status tms_check_norm(tms_device *dev, const tms_norm *p) {
    tamis_status status = check_dim(dev, "norm", p->dim);
    if (status == TAMIS_OK) status = check_kinds(dev, "norm", p->kind, TAMIS_SILU);
    if (status == TAMIS_OK) status = tms_check_matrix(dev, "norm", "x", &p->x, p->n_rows, p->dim);
    if (status == TAMIS_OK) status = tms_check_matrix(dev, "norm", "y", &p->y, p->n_rows, p->dim);
    if (status == TAMIS_OK && p->accumulate)
        status = tms_check_matrix(dev, "norm", "to", &p->to, p->n_rows, p->dim);
    return status == TAMIS_OK && p->n_rows ? tms_check_there(dev, "norm", "w", p->w) : status;
}

/* Puts the number of the stage in front of the reason. */
static void name_stage(tms_device *dev, uint32_t stage) {
    char reason[sizeof dev->error.text];
    snprintf(reason, sizeof reason, "%s", dev->error.text);
    snprintf(dev->error.text, sizeof dev->error.text, "linear_chain: stage %u: %.200s", stage,
             reason);
}

/* Checks a stage without parts. */
static tamis_status check_norm_alone(tms_device *dev, const tms_linear_parts *p) {
    const tms_norm norm = tms_norm_of(p);
    if (p->n_rows > TMS_FEW_ROWS || !p->adds || p->gated)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "a norm alone of %u rows: at most %d%s%s",
                               p->n_rows, TMS_FEW_ROWS, p->adds ? "" : ", without an addend",
                               p->gated ? ", gated" : "");
    return tms_check_norm(dev, &norm);
}

tamis_status tms_check_linear_chain(tms_device *dev, const tms_linear_chain *p) {
    if (p->n_stages == 0 || p->n_stages > TMS_MOST_STAGES)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "linear_chain: %u stages: must be 1 to %d",
                               p->n_stages, TMS_MOST_STAGES);
    tamis_status status = TAMIS_OK;
    for (uint32_t i = 0; i < p->n_stages && status == TAMIS_OK; i++) {
        if (p->stages[i].n_rows != p->stages[0].n_rows)
            return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                                   "linear_chain: %u rows of stage %u: stage 0 has %u",
                                   p->stages[i].n_rows, i, p->stages[0].n_rows);
        const tms_linear_parts *stage = &p->stages[i];
        status =
            stage->n_parts == 0 ? check_norm_alone(dev, stage) : tms_check_linear_parts(dev, stage);
        if (status != TAMIS_OK) name_stage(dev, i);
    }
    return status;
}

tamis_status tms_check_activate(tms_device *dev, const tms_activate *p) {
    tamis_status status = check_kinds(dev, "activate", TAMIS_NORM_RMS, p->activation);
    if (status == TAMIS_OK)
        status = tms_check_matrix(dev, "activate", "gate", &p->gate, p->n_rows, p->dim);
    if (status == TAMIS_OK && p->up.ref.mem)
        status = tms_check_matrix(dev, "activate", "up", &p->up, p->n_rows, p->dim);
    return status == TAMIS_OK ? tms_check_matrix(dev, "activate", "y", &p->y, p->n_rows, p->dim)
                              : status;
}

tamis_status tms_check_embed(tms_device *dev, const tms_embed *p) {
    if (!isfinite(p->scale))
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "embed: scale %g", (double)p->scale);
    tamis_status status = check_weights(dev, "embed", &p->w, p->dim, p->n_rows);
    if (status != TAMIS_OK || p->n_rows == 0) return status;
    status = tms_check_there(dev, "embed", "tokens", p->tokens);
    return status == TAMIS_OK ? tms_check_matrix(dev, "embed", "y", &p->y, p->n_rows, p->dim)
                              : status;
}

tamis_status tms_check_convert(tms_device *dev, const tms_convert *p) {
    tamis_status status = tms_check_dtype(dev, "convert", p->x_dtype);
    if (status == TAMIS_OK) status = tms_check_dtype(dev, "convert", p->y_dtype);
    if (status == TAMIS_OK) status = check_dim(dev, "convert", p->width);
    if (status != TAMIS_OK || p->n_rows == 0) return status;
    if (p->n_rows > 1 && (p->x_stride < p->width || p->y_stride < p->width))
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "convert: rows of %u elements at strides of %llu and %llu", p->width,
                               (unsigned long long)p->x_stride, (unsigned long long)p->y_stride);
    status = tms_check_there(dev, "convert", "x", p->x);
    return status == TAMIS_OK ? tms_check_there(dev, "convert", "y", p->y) : status;
}

tamis_status tms_check_argmax(tms_device *dev, const tms_argmax *p) {
    tamis_status status = check_dim(dev, "argmax", p->dim);
    if (status == TAMIS_OK) status = tms_check_matrix(dev, "argmax", "x", &p->x, p->n_rows, p->dim);
    return status == TAMIS_OK && p->n_rows ? tms_check_there(dev, "argmax", "out", p->out) : status;
}
