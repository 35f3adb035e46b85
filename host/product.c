/* SPDX-License-Identifier: Apache-2.0 */
/* linear for many rows by a vendor's library. */
#include "host/product.h"

/* Weights are widened in pieces of at most this many elements. */
#define MOST_WIDE_ELEMENTS (16u << 20)
/* Rows of the product that is computed when a plan is built. */
#define WARM_ROWS 16u

/* Makes the workspace hold `elements` f32. Enqueued work still uses the old memory. */
static tamis_status reserve(tms_device *dev, tms_workspace *work, uint64_t elements) {
    const uint64_t bytes = elements * sizeof(float);
    if (work->bytes >= bytes) return TAMIS_OK;
    tms_mem *grown;
    tamis_status status = dev->backend->alloc(dev, bytes, &grown);
    if (status != TAMIS_OK) return status;
    dev->backend->free(dev, work->mem);
    *work = (tms_workspace){grown, bytes};
    return TAMIS_OK;
}

static uint32_t outputs_a_piece(const tms_linear *p) {
    const uint32_t least = p->w.layout == TAMIS_WEIGHT_STRIPS ? TAMIS_STRIP_ROWS : 1;
    const uint32_t fits = MOST_WIDE_ELEMENTS / p->n_in,
                   most = fits < least ? least : fits / least * least;
    return most < p->n_out ? most : p->n_out;
}

tamis_status tms_product_run(tms_device *dev, const tms_product *by, tms_workspace *work,
                             const tms_linear *p) {
    const bool wide = p->w.type == TAMIS_WEIGHT_F32;
    const uint32_t most = wide ? p->n_out : outputs_a_piece(p);
    const float keep = p->accumulate || p->bias.mem ? 1.0f : 0.0f;
    tamis_status status = wide ? TAMIS_OK : reserve(dev, work, (uint64_t)most * p->n_in);
    if (status == TAMIS_OK && p->bias.mem) status = by->start(dev, p);
    for (uint32_t first = 0; first < p->n_out && status == TAMIS_OK; first += most) {
        const uint32_t n = p->n_out - first < most ? p->n_out - first : most;
        const uint64_t skip = tms_matrix_bytes(&p->w, first, p->n_in);
        tms_ref w = {p->w.ref.mem, p->w.ref.offset + skip};
        if (!wide) {
            const tms_ref piece = {work->mem, 0};
            const tms_weight_matrix narrow = {w, p->w.type, p->w.layout};
            status = by->widen(dev, narrow, n, p->n_in, piece);
            w = piece;
        }
        if (status == TAMIS_OK) status = by->multiply(dev, p, w, first, n, keep);
    }
    return status;
}

tamis_status tms_product_prepare(tms_device *dev, const tms_product *by, tms_workspace *work,
                                 const tms_linear *p) {
    const uint64_t piece = (uint64_t)outputs_a_piece(p) * p->n_in;
    const uint64_t x = piece, y = x + WARM_ROWS * (uint64_t)p->n_in;
    const uint64_t all = y + WARM_ROWS * (uint64_t)p->n_out;
    tamis_status status = reserve(dev, work, all);
    const tms_ref at = {work->mem, 0};
    if (status == TAMIS_OK) status = dev->backend->fill(dev, at, 0, all * sizeof(float));
    if (status == TAMIS_OK && p->w.type != TAMIS_WEIGHT_F32)
        status = by->widen(dev, (tms_weight_matrix){at, p->w.type, p->w.layout}, 0, p->n_in, at);
    const tms_linear warm = {.x = {{at.mem, x * sizeof(float)}, p->n_in},
                             .y = {{at.mem, y * sizeof(float)}, p->n_out},
                             .w = {at, TAMIS_WEIGHT_F32},
                             .bias = {at.mem, 0},
                             .n_rows = WARM_ROWS,
                             .n_in = p->n_in,
                             .n_out = outputs_a_piece(p)};
    return status == TAMIS_OK ? tms_product_run(dev, by, work, &warm) : status;
}
