/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of K and V, as a forward pass makes them, in the planes of records. */
#include "lib/model/recording.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Narrower types ---------------------------------------------------------------------------- */

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Finite f32 to f16, to nearest even; infinity where f16 does not hold it. */
static uint16_t narrow_f16(float value) {
    const uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* from 65520 on */
    if (size < 0x38800000u)                                     /* below 2^-14: in steps of 2^-24 */
        return (uint16_t)(sign | (uint32_t)lrintf(fabsf(value) * 0x1p24f));
    return (uint16_t)(sign | ((size - 0x38000000u + 0xfffu + (size >> 13 & 1)) >> 13));
}

/* Finite f32 to bf16, to nearest even; infinity where bf16 does not hold it. */
static uint16_t narrow_bf16(float value) {
    const uint32_t bits = bits_of(value);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

/* Whether `to` holds a finite value. */
static bool narrow(tamis_dtype dtype, float value, uint16_t *to) {
    const bool half = dtype == TAMIS_F16;
    *to = half ? narrow_f16(value) : narrow_bf16(value);
    return (*to & 0x7fffu) < (half ? 0x7c00u : 0x7f80u);
}

/* ---- Planes ------------------------------------------------------------------------------------ */

tamis_status tms_recording_put_rows(const tms_recording *r, const char *name, uint32_t layer,
                                    uint8_t *plane, uint32_t first, const float *rows, uint32_t n,
                                    tamis_error *error) {
    const tamis_dtype dtype = r->id.shape.dtype;
    uint16_t *to = (uint16_t *)plane + (uint64_t)first * r->width;
    for (uint64_t i = 0; i < (uint64_t)n * r->width; ++i) {
        const bool held =
            isfinite(rows[i]) && (dtype == TAMIS_F32 || narrow(dtype, rows[i], &to[i]));
        TMS_REQUIRE(
            held, TAMIS_E_UNSUPPORTED,
            "%s of layer %u has %g at token %llu of the chunk, which a record of %s does not "
            "take",
            name, layer, (double)rows[i], (unsigned long long)(first + i / r->width),
            tamis_dtype_name(dtype));
    }
    return TAMIS_OK;
}

tamis_status tms_recording_take(const tms_recording *r, uint32_t layer, uint32_t row,
                                uint32_t n_rows, tamis_error *error) {
    static const char *const names[] = {"K", "V"};
    static const tms_activation which[] = {TMS_K, TMS_V};
    const uint32_t skip = r->n_sink > r->done ? r->n_sink - r->done : 0;
    if (skip >= n_rows) return TAMIS_OK;
    const uint32_t n = n_rows - skip, first = r->done + skip - r->n_sink;
    const uint64_t bytes = (uint64_t)r->width * sizeof(float), from = (row + skip) * bytes;
    for (int part = 0; part < 2; ++part) {
        tamis_buffer *made = r->runner->buffers[which[part]];
        uint8_t *plane = r->planes[part * r->id.shape.n_layers + layer];
        float *rows = r->wide ? r->wide : (float *)plane + (uint64_t)first * r->width;
        TMS_TRY(tamis_buffer_read(made, from, rows, n * bytes, error));
        TMS_TRY(tms_recording_put_rows(r, names[part], layer, plane, first, rows, n, error));
    }
    return TAMIS_OK;
}

void tms_recording_close(tms_recording *r) {
    for (uint32_t i = 0; r->planes && i < 2 * r->id.shape.n_layers; ++i)
        free(r->planes[i]);
    free(r->planes);
    free(r->wide);
}

tamis_status tms_recording_open(tms_recording *r, tamis_error *error) {
    const tamis_chunk_shape *shape = &r->id.shape;
    const uint64_t bytes = tamis_chunk_plane_bytes(shape, r->n_rows);
    const uint64_t step = (uint64_t)r->runner->limits.max_rows * r->width * sizeof(float);
    bool all = (r->planes = calloc(2 * (size_t)shape->n_layers, sizeof *r->planes)) != NULL;
    for (uint32_t i = 0; all && i < 2 * shape->n_layers; ++i)
        all = (r->planes[i] = malloc(bytes)) != NULL;
    if (all && shape->dtype != TAMIS_F32) all = (r->wide = malloc(step)) != NULL;
    TMS_REQUIRE(all, TAMIS_E_NO_MEMORY, "no memory for %u planes of %llu bytes",
                2 * shape->n_layers, (unsigned long long)bytes);
    return TAMIS_OK;
}

/* ---- Pages of a prefix -------------------------------------------------------------------------- */

/* Puts a page of the prefix; `planes` has room for those of a page. */
static tamis_status put_page(const tms_recording *r, tamis_store *store, uint32_t tiers,
                             size_t page, uint32_t page_tokens, const uint8_t (*keys)[16],
                             const void **planes, tamis_error *error) {
    const uint32_t n_layers = r->id.shape.n_layers;
    const uint64_t from =
        (page - r->first_page) * tamis_chunk_plane_bytes(&r->id.shape, page_tokens);
    tamis_chunk_planes out = {.id = r->id, .k = planes, .v = planes + n_layers, .tiers = tiers};
    for (uint32_t i = 0; i < 2 * n_layers; ++i)
        planes[i] = r->planes[i] + from;
    out.id.tokens += page * page_tokens;
    out.id.n_tokens = page_tokens;
    if (page > 0) memcpy(out.id.parent, keys[page - 1], sizeof out.id.parent);
    return tamis_store_put(store, &out, error);
}

tamis_status tms_recording_put_pages(const tms_recording *r, tamis_store *store, uint32_t tiers,
                                     size_t found, size_t n_pages, uint32_t page_tokens,
                                     uint32_t *n_stored, tamis_error *error) {
    const void **planes = calloc(2 * (size_t)r->id.shape.n_layers, sizeof *planes);
    uint8_t(*keys)[16] = calloc(n_pages, sizeof *keys);
    tamis_status status;
    if (!planes || !keys)
        status = tms_model_fail(error, TAMIS_E_NO_MEMORY, "no memory for the keys of %zu pages",
                                n_pages);
    else
        status = tamis_prefix_keys(&r->id, page_tokens, keys, n_pages, &n_pages, error);
    for (size_t page = found; status == TAMIS_OK && page < n_pages; ++page) {
        status = put_page(r, store, tiers, page, page_tokens, keys, planes, error);
        *n_stored += status == TAMIS_OK;
    }
    free(keys);
    free(planes);
    return status;
}
