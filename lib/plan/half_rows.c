/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of half precision are widened to the plan's own before an attend, and rounded behind it. */
#include "lib/plan/half_rows.h"

static bool takes_half(const tms_half_rows *h) {
    return h->setup->params.flags & TAMIS_PLAN_HALF_ROWS;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

tamis_status tms_half_rows_create(tms_half_rows *h, tamis_error *error) {
    const uint64_t rows = 2ull * h->setup->params.max_rows;
    const uint64_t bytes = rows * tms_setup_width(h->setup) * sizeof(float);
    return tms_memory_take(h->setup->memory, takes_half(h) ? bytes : 0, &h->rows, error);
}

tamis_status tms_half_rows_warm(const tms_half_rows *h, tamis_error *error) {
    static const tamis_dtype halves[] = {TAMIS_F16, TAMIS_BF16};
    if (!takes_half(h)) return TAMIS_OK;
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++) {
        const tms_caller_rows none = {.dtype = halves[i]};
        TMS_TRY(tms_half_rows_read(h, &none, 0, 0, error));
        TMS_TRY(tms_half_rows_write(h, &none, 0, 0, error));
    }
    return TAMIS_OK;
}

void tms_half_rows_destroy(tms_half_rows *h) {
    tms_device_free(h->setup->dev, h->rows);
}

/* ---- Rows ------------------------------------------------------------------------------------ */

tamis_status tms_half_rows_check(const tms_half_rows *h, const char *name, const tamis_rows *rows,
                                 tamis_error *error) {
    TMS_REQUIRE(rows->dtype == TAMIS_F32 || takes_half(h), TAMIS_E_ARGUMENT,
                "%s is %s; in a plan without TAMIS_PLAN_HALF_ROWS it must be f32", name,
                tamis_dtype_name(rows->dtype));
    return TAMIS_OK;
}

tms_caller_rows tms_half_rows_of(const tms_half_rows *h, const tamis_rows *rows, uint64_t stride,
                                 bool is_out) {
    const tms_setup *setup = h->setup;
    const uint64_t width = tms_setup_width(setup), before = is_out ? setup->params.max_rows : 0;
    const tms_matrix given = {{rows->buffer->mem, rows->offset}, stride};
    const tms_matrix own = {{h->rows, before * width * sizeof(float)}, width};
    return (tms_caller_rows){given, rows->dtype == TAMIS_F32 ? given : own, rows->dtype};
}

/* Rows from the caller's to the plan's, or back. */
static tamis_status convert(const tms_half_rows *h, const tms_caller_rows *of, bool back,
                            uint32_t first, uint32_t n, tamis_error *error) {
    const uint64_t size = tamis_dtype_size(of->dtype);
    tms_ref theirs = of->given.ref, own = of->rows.ref;
    if (of->dtype == TAMIS_F32) return TAMIS_OK;
    theirs.offset += first * of->given.stride * size;
    own.offset += first * of->rows.stride * sizeof(float);
    const tms_convert p = {.x = back ? own : theirs,
                           .y = back ? theirs : own,
                           .x_dtype = back ? TAMIS_F32 : of->dtype,
                           .y_dtype = back ? of->dtype : TAMIS_F32,
                           .x_stride = back ? of->rows.stride : of->given.stride,
                           .y_stride = back ? of->given.stride : of->rows.stride,
                           .n_rows = n,
                           .width = (uint32_t)tms_setup_width(h->setup)};
    return tms_run_convert(h->setup->dev, &p, error);
}

tamis_status tms_half_rows_read(const tms_half_rows *h, const tms_caller_rows *q, uint32_t first,
                                uint32_t n, tamis_error *error) {
    return convert(h, q, false, first, n, error);
}

tamis_status tms_half_rows_write(const tms_half_rows *h, const tms_caller_rows *out, uint32_t first,
                                 uint32_t n, tamis_error *error) {
    return convert(h, out, true, first, n, error);
}
