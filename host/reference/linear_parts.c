/* SPDX-License-Identifier: Apache-2.0 */
/* linear_parts: norm, up to three linears of what it gives, and activate.
 * Contract: host/ops/, linear_parts. It is those ops, one after another; what lies between them is
 * in scratch memory. Without rows nothing is written. */
#include "host/reference/reference.h"

#include <stdlib.h>

/* Packed f32 rows. */
static tamis_status take_rows(tms_device *dev, uint32_t n_rows, uint32_t width, tms_mem *out) {
    out->bytes = (uint64_t)n_rows * width * sizeof(float);
    out->data = out->bytes ? malloc(out->bytes) : NULL;
    if (out->data || out->bytes == 0) return TAMIS_OK;
    return tms_device_fail(dev, TAMIS_E_NO_MEMORY, "linear_parts: no memory for %u rows of %u",
                           n_rows, width);
}

static tamis_status normalise(tms_device *dev, const tms_linear_parts *p, tms_matrix z) {
    const tms_norm norm = {
        .x = p->x, .y = z, .w = p->norm_w, .n_rows = p->n_rows, .dim = p->n_in, .eps = p->eps};
    return tms_reference_norm(dev, &norm);
}

static tamis_status multiply(tms_device *dev, const tms_linear_parts *p, uint32_t part,
                             tms_matrix x, tms_matrix y) {
    const tms_linear linear = {.x = x,
                               .y = y,
                               .w = p->parts[part].w,
                               .bias = p->parts[part].bias,
                               .n_rows = p->n_rows,
                               .n_in = p->n_in,
                               .n_out = p->parts[part].n_out,
                               .accumulate = p->accumulate};
    return tms_reference_linear(dev, &linear);
}

static tamis_status gate(tms_device *dev, const tms_linear_parts *p, tms_matrix up) {
    const tms_matrix y = p->parts[0].y;
    const tms_activate activate = {
        .gate = y, .up = up, .y = y, .n_rows = p->n_rows, .dim = p->parts[0].n_out};
    return tms_reference_activate(dev, &activate);
}

tamis_status tms_reference_linear_parts(tms_device *dev, const tms_linear_parts *p) {
    tms_mem normed = {0}, up = {0};
    tms_matrix z = p->x;
    const tms_matrix of_up = {{&up, 0}, p->parts[0].n_out};
    tamis_status status = TAMIS_OK;
    /* 1. The rows as every part reads them. */
    if (p->norm_w.mem) {
        z = (tms_matrix){{&normed, 0}, p->n_in};
        status = take_rows(dev, p->n_rows, p->n_in, &normed);
        if (status == TAMIS_OK) status = normalise(dev, p, z);
    }
    /* 2. The parts. */
    if (status == TAMIS_OK && p->gated) status = take_rows(dev, p->n_rows, p->parts[0].n_out, &up);
    for (uint32_t i = 0; i < p->n_parts && status == TAMIS_OK; i++)
        status = multiply(dev, p, i, z, p->gated && i == 1 ? of_up : p->parts[i].y);
    /* 3. The gate. */
    if (status == TAMIS_OK && p->gated) status = gate(dev, p, of_up);
    free(normed.data);
    free(up.data);
    return status;
}
