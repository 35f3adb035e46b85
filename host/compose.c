/* SPDX-License-Identifier: Apache-2.0 */
#include "host/compose.h"

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Takes at least twice what there is. Smaller memory stays, since a graph may have recorded it. */
static tamis_status grow(tms_device *dev, uint64_t bytes) {
    tms_composed *work = &dev->composed;
    if (bytes < 2 * work->bytes) bytes = 2 * work->bytes;
    tms_mem *mem = NULL;
    const tamis_status status = dev->backend->alloc(dev, bytes, &mem);
    if (status != TAMIS_OK) return status;
    work->mems[work->n++] = mem;
    work->bytes = bytes;
    return TAMIS_OK;
}

/* Packed f32 rows behind each other: *first [n_rows][a], *second [n_rows][b]. Sized for as many rows as
 * such launches may have. */
static tamis_status take_rows(tms_device *dev, uint64_t a, uint64_t b, tms_matrix *first,
                              tms_matrix *second) {
    const uint64_t at = tms_divide_up(a * TMS_FEW_ROWS, 16) * 16; /* rows begin at 64 bytes */
    const uint64_t bytes = (at + b * TMS_FEW_ROWS) * sizeof(float);
    tms_composed *work = &dev->composed;
    const tamis_status status = bytes > work->bytes ? grow(dev, bytes) : TAMIS_OK;
    if (status != TAMIS_OK) return status;
    tms_mem *mem = work->n ? work->mems[work->n - 1] : NULL;
    *first = (tms_matrix){{mem, 0}, a};
    *second = (tms_matrix){{mem, at * sizeof(float)}, b};
    return TAMIS_OK;
}

void tms_compose_end(tms_device *dev) {
    for (uint32_t i = 0; i < dev->composed.n; i++)
        dev->backend->free(dev, dev->composed.mems[i]);
    dev->composed = (tms_composed){0};
}

/* ---- linear_parts ---------------------------------------------------------------------------- */

static tamis_status multiply(tms_device *dev, const tms_linear_parts *p, uint32_t part,
                             tms_matrix x, tms_matrix y) {
    const tms_linear linear = {.x = x,
                               .y = y,
                               .w = p->parts[part].w,
                               .bias = p->parts[part].bias,
                               .n_rows = p->n_rows,
                               .n_in = p->n_in,
                               .n_out = p->parts[part].n_out,
                               .accumulate = p->accumulate,
                               .build_rows = p->build_rows};
    return dev->backend->linear(dev, &linear);
}

static tamis_status gate(tms_device *dev, const tms_linear_parts *p, tms_matrix up) {
    const tms_matrix y = p->parts[0].y;
    const tms_activate activate = {.gate = y,
                                   .up = p->n_parts == 2 ? up : (tms_matrix){{NULL, 0}, 0},
                                   .y = y,
                                   .n_rows = p->n_rows,
                                   .dim = p->parts[0].n_out,
                                   .activation = p->activation};
    return dev->backend->activate(dev, &activate);
}

static tamis_status run_norm(tms_device *dev, const tms_linear_parts *p) {
    const tms_norm norm = tms_norm_of(p);
    return dev->backend->norm(dev, &norm);
}

/* linear_parts without an addend. */
static tamis_status compose_parts(tms_device *dev, const tms_linear_parts *p) {
    tms_matrix z = p->x, normed, up;
    const bool norms = p->norm_w.mem || p->n_rows == 0;
    tamis_status status =
        take_rows(dev, norms ? p->n_in : 0, p->gated ? p->parts[0].n_out : 0, &normed, &up);
    /* 1. The rows as every part reads them. */
    if (status == TAMIS_OK && norms) {
        const tms_norm norm = {.x = p->x,
                               .y = normed,
                               .w = p->norm_w,
                               .n_rows = p->n_rows,
                               .dim = p->n_in,
                               .eps = p->eps,
                               .kind = p->norm_kind};
        status = dev->backend->norm(dev, &norm);
        z = normed;
    }
    /* 2. The parts. 3. The gate. */
    for (uint32_t i = 0; i < p->n_parts && status == TAMIS_OK; i++)
        status = multiply(dev, p, i, z, p->gated && i == 1 ? up : p->parts[i].y);
    return status == TAMIS_OK && p->gated ? gate(dev, p, up) : status;
}

tamis_status tms_compose_linear_parts(tms_device *dev, const tms_linear_parts *p) {
    if (!p->adds) return compose_parts(dev, p);
    const tms_linear_parts of_sum = tms_linear_of_sum(p);
    const tamis_status status = run_norm(dev, p);
    return status == TAMIS_OK ? compose_parts(dev, &of_sum) : status;
}

/* ---- linear_chain ---------------------------------------------------------------------------- */

/* Whether the stage is a linear, which is then *out. */
static bool is_linear(const tms_linear_parts *p, tms_linear *out) {
    *out = (tms_linear){.x = p->x,
                        .y = p->parts[0].y,
                        .w = p->parts[0].w,
                        .bias = p->parts[0].bias,
                        .n_rows = p->n_rows,
                        .n_in = p->n_in,
                        .n_out = p->parts[0].n_out,
                        .accumulate = p->accumulate,
                        .build_rows = p->build_rows};
    return p->n_parts == 1 && !p->norm_w.mem && !p->gated && !p->adds;
}

tamis_status tms_compose_linear_chain(tms_device *dev, const tms_linear_chain *p) {
    tamis_status status = TAMIS_OK;
    tms_linear linear;
    for (uint32_t i = 0; i < p->n_stages && status == TAMIS_OK; i++) {
        const tms_linear_parts *stage = &p->stages[i];
        if (stage->n_parts == 0)
            status = run_norm(dev, stage);
        else if (is_linear(stage, &linear))
            status = dev->backend->linear(dev, &linear);
        else if (dev->backend->linear_parts)
            status = dev->backend->linear_parts(dev, stage);
        else
            status = tms_compose_linear_parts(dev, stage);
    }
    return status;
}

/* ---- write_rotated --------------------------------------------------------------------------- */

/* A norm of each head, in place. Rows that are packed are one launch; else there is one for each row
 * or for each head, whichever are fewer. */
static tamis_status norm_heads(tms_device *dev, const tms_write_rotated *p, tms_matrix x,
                               uint32_t n_heads, tms_ref weights) {
    const uint32_t n_rows = p->batch.n_rows, dim = p->kv.head_dim;
    const bool packed = n_rows <= 1 || x.stride == (uint64_t)n_heads * dim;
    const bool by_row = packed || n_rows < n_heads;
    const uint32_t launches = packed ? 1 : by_row ? n_rows : n_heads;
    const bool has = weights.mem || n_rows == 0; /* a launch without rows builds the kernel */
    tamis_status status = TAMIS_OK;
    for (uint64_t i = 0; has && i < launches && status == TAMIS_OK; i++) {
        const uint64_t from = by_row ? i * x.stride : i * dim;
        const tms_matrix of = {{x.ref.mem, x.ref.offset + from * sizeof(float)},
                               by_row ? dim : x.stride};
        const uint32_t n = packed ? n_rows * n_heads : by_row ? n_heads : n_rows;
        const tms_norm norm = {
            .x = of, .y = of, .w = weights, .n_rows = n, .dim = dim, .eps = p->rotation.eps};
        status = dev->backend->norm(dev, &norm);
    }
    return status;
}

/* The heads of the rows of x: norm where there are weights, then rotate, in place. */
static tamis_status turn_rows(tms_device *dev, const tms_write_rotated *p, tms_matrix x,
                              uint32_t n_heads, tms_ref weights) {
    const tms_rotate rotate = {.x = x,
                               .n_rows = p->batch.n_rows,
                               .n_heads = n_heads,
                               .head_dim = p->kv.head_dim,
                               .n_rot = p->rotation.n_rot,
                               .pairing = p->rotation.pairing,
                               .positions = p->rotation.positions,
                               .table = p->rotation.table};
    const tamis_status status = norm_heads(dev, p, x, n_heads, weights);
    return status == TAMIS_OK ? dev->backend->rotate(dev, &rotate) : status;
}

tamis_status tms_compose_write_rotated(tms_device *dev, const tms_write_rotated *p) {
    const tms_matrix k = {p->k, p->k_stride};
    tms_write_rows write = *p;
    write.rotation = (tms_rotation){0};
    tamis_status status = turn_rows(dev, p, p->rotation.q, p->batch.n_heads, p->rotation.q_norm);
    if (status == TAMIS_OK) status = turn_rows(dev, p, k, p->batch.n_kv_heads, p->rotation.k_norm);
    return status == TAMIS_OK ? dev->backend->write_rows(dev, &write) : status;
}
