/* SPDX-License-Identifier: Apache-2.0 */
/* The calls on stored rows of a layer of the open step: loading them, and how far computed rows are
 * from them. */
#include "lib/plan/plan.h"

#include <inttypes.h>

/* ---- Load ------------------------------------------------------------------------------------- */

/* An open step and a layer for which the plan's kernels have been built. */
static tamis_status check_loading(const tamis_plan *plan, uint32_t layer, tamis_error *error) {
    TMS_TRY(tms_plan_check_layer(plan, layer, error));
    TMS_REQUIRE(plan->setup.params.load_dtypes, TAMIS_E_STATE,
                "the plan was made with load_dtypes 0: it loads no rows and compares none");
    TMS_REQUIRE(plan->step.exact, TAMIS_E_STATE,
                "the step is not exact: only exact steps take loaded rows");
    return tms_plan_check_lines(plan, error);
}

/* A layer that takes loads now, and rows of the step. */
static tamis_status check_range(const tamis_plan *plan, uint32_t layer, uint32_t first, uint32_t n,
                                tamis_error *error) {
    TMS_REQUIRE(!plan->step.layers[layer].written, TAMIS_E_STATE,
                "layer %" PRIu32 " has been written in this step already", layer);
    TMS_REQUIRE(!plan->step.layers[layer].attended, TAMIS_E_STATE,
                "layer %" PRIu32 " has been attended in this step already", layer);
    TMS_REQUIRE(n > 0, TAMIS_E_ARGUMENT, "no rows are to be loaded");
    TMS_REQUIRE((uint64_t)first + n <= plan->step.n_begun, TAMIS_E_ARGUMENT,
                "%" PRIu32 " rows from row %" PRIu32 ": past the %" PRIu32
                " with which the step was begun",
                n, first, plan->step.n_begun);
    return TAMIS_OK;
}

/* The caller's rows of K or of V, into what the launch takes. */
static tamis_status check_stored(const tamis_plan *plan, const tamis_rows *rows, const char *what,
                                 uint32_t n, tms_ref *ref, uint64_t *stride, tamis_error *error) {
    const tamis_cache_params *p = &plan->setup.cache->params;
    TMS_TRY(tms_rows_check(plan->setup.cache->context, rows, what, n,
                           (uint64_t)p->n_kv_heads * p->head_dim, stride, error));
    TMS_REQUIRE(plan->setup.params.load_dtypes >> rows->dtype & 1, TAMIS_E_ARGUMENT,
                "%s is %s, which is not in the plan's load_dtypes %" PRIu32, what,
                tamis_dtype_name(rows->dtype), plan->setup.params.load_dtypes);
    *ref = (tms_ref){rows->buffer->mem, rows->offset};
    return TAMIS_OK;
}

/* The positions of rows [first, first + n) must be in reach of the table. */
static tamis_status check_positions(const tms_step *step, uint32_t first, uint32_t n,
                                    tamis_error *error) {
    for (uint32_t i = 0, row = 0; i < step->n_sequences; i++) {
        const uint32_t rows = step->growth[i].rows;
        const uint32_t end = row + rows < first + n ? row + rows : first + n;
        const uint32_t next = step->sequences[i]->length - rows + (end - row);
        TMS_REQUIRE(end <= first || row >= first + n || next <= TAMIS_ROTATE_LIMIT,
                    TAMIS_E_ARGUMENT,
                    "row %" PRIu32 " is at position %" PRIu32 ": K is rotated by less than %u",
                    end - 1, next - 1, TAMIS_ROTATE_LIMIT);
        row += rows;
    }
    return TAMIS_OK;
}

/* All that does not depend on the step's tables. */
static tamis_status check_rows(const tamis_plan *plan, uint32_t first, uint32_t n,
                               const tamis_stored_rows *rows, tms_load_rows *load,
                               tamis_error *error) {
    const bool k = rows->k.buffer, v = rows->v.buffer;
    TMS_REQUIRE(k || v, TAMIS_E_ARGUMENT, "neither k nor v is there");
    TMS_REQUIRE(!k || !v || rows->k.dtype == rows->v.dtype, TAMIS_E_ARGUMENT, "k is %s but v is %s",
                tamis_dtype_name(rows->k.dtype), tamis_dtype_name(rows->v.dtype));
    load->dtype = k ? rows->k.dtype : rows->v.dtype;
    if (v) TMS_TRY(check_stored(plan, &rows->v, "v", n, &load->v, &load->v_stride, error));
    if (!k) return TAMIS_OK;
    TMS_TRY(check_stored(plan, &rows->k, "k", n, &load->k, &load->k_stride, error));
    TMS_TRY(check_positions(&plan->step, first, n, error));
    load->pairing = rows->rotation.pairing;
    load->eps = rows->eps;
    if (rows->k_norm.buffer)
        TMS_TRY(tms_place_check(plan->setup.cache->context, &rows->k_norm, "k_norm",
                                plan->setup.cache->params.head_dim * sizeof(float), &load->k_norm,
                                error));
    return tms_plan_check_turns(plan, &rows->rotation, &load->n_rot, &load->table, error);
}

/* Enqueues a load whose rows have been checked. */
static tamis_status enqueue_load(tamis_plan *plan, uint32_t layer, uint32_t first, uint32_t n,
                                 tms_load_rows load, tamis_error *error) {
    const uint32_t parts = (load.k.mem ? TMS_HELD_K : 0) | (load.v.mem ? TMS_HELD_V : 0);
    const bool scored = load.k.mem && plan->setup.needs.feed == TMS_FEED_KEYS;
    tms_write_rows write;
    tms_loads_lose(&plan->loads, layer, first, n, parts);
    TMS_TRY(tms_loads_place(&plan->loads, layer, first, n, &write, error));
    load.kv = write.kv;
    load.batch = write.batch;
    load.slots = write.slots;
    load.positions = write.positions;
    if (load.k.mem) load.planes = write.planes;
    RUN(plan, write_us, load_rows, &load);
    if (scored) TIME(plan, observe_us, tms_in_step_score_rows(&plan->in_step, &write, error));
    plan->step.layers[layer].fed |= scored;
    tms_loads_hold(&plan->loads, layer, first, n, parts);
    plan->counters.rows_loaded += n;
    return TAMIS_OK;
}

tamis_status tamis_plan_load_rows(tamis_plan *plan, uint32_t layer, uint32_t first_row,
                                  uint32_t n_rows, const tamis_stored_rows *rows,
                                  tamis_error *error) {
    TMS_ENTER(plan);
    tms_load_rows load = {.n_rot = 0};
    TMS_TRY(check_loading(plan, layer, error));
    TMS_REQUIRE(rows, TAMIS_E_ARGUMENT, "rows is NULL");
    TMS_REQUIRE_RESERVED(rows, tamis_stored_rows);
    TMS_REQUIRE(rows->reserved32 == 0, TAMIS_E_ARGUMENT,
                "reserved32 of tamis_stored_rows is %" PRIu32 "; it must be 0", rows->reserved32);
    TMS_TRY(check_range(plan, layer, first_row, n_rows, error));
    TMS_TRY(check_rows(plan, first_row, n_rows, rows, &load, error));
    return enqueue_load(plan, layer, first_row, n_rows, load, error);
}

/* ---- Deviation -------------------------------------------------------------------------------- */

/* Where one number for each of the step's rows goes, which share no bytes with x. */
static tamis_status check_out(const tamis_plan *plan, const tamis_rows *x, uint64_t stride,
                              const char *name, const tamis_place *out, tms_ref *ref,
                              tamis_error *error) {
    const tamis_cache_params *p = &plan->setup.cache->params;
    const uint64_t n = plan->step.n_rows, bytes = n * sizeof(float);
    const uint64_t end =
        x->offset + ((n - 1) * stride + (uint64_t)p->n_kv_heads * p->head_dim) * sizeof(float);
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "%s is NULL", name);
    TMS_TRY(tms_place_check(plan->setup.cache->context, out, name, bytes, ref, error));
    TMS_REQUIRE(x->buffer != out->buffer || end <= out->offset || out->offset + bytes <= x->offset,
                TAMIS_E_ARGUMENT,
                "rows and %s overlap: bytes %" PRIu64 " to %" PRIu64 " and %" PRIu64 " to %" PRIu64
                " of one buffer",
                name, x->offset, end - 1, out->offset, out->offset + bytes - 1);
    return TAMIS_OK;
}

/* The slots of the step's rows; where some hold nothing to compare, from tables of their own. */
static tamis_status place_rows(const tamis_plan *plan, uint32_t layer, uint32_t parts,
                               tms_deviation *deviation, tamis_error *error) {
    tms_write_rows write = tms_template_write(&plan->templates, layer);
    const char *lacks;
    uint32_t row;
    if (!plan->step.layers[layer].written &&
        tms_loads_lacking(&plan->loads, layer, TMS_ROWS_PRESENT, parts, &row, &lacks))
        TMS_TRY(tms_loads_place_held(&plan->loads, layer, parts, &write, error));
    deviation->kv = write.kv;
    deviation->batch = write.batch;
    deviation->slots = write.slots;
    return TAMIS_OK;
}

tamis_status tamis_plan_row_deviations(tamis_plan *plan, uint32_t layer, const tamis_rows *rows,
                                       int values, const tamis_place *out, const tamis_place *norms,
                                       tamis_error *error) {
    TMS_ENTER(plan);
    tms_deviation deviation = {.values = values};
    uint64_t *stride = &deviation.x.stride;
    TMS_TRY(check_loading(plan, layer, error));
    const tamis_cache_params *p = &plan->setup.cache->params;
    TMS_TRY(tms_rows_check(plan->setup.cache->context, rows, "rows", plan->step.n_rows,
                           (uint64_t)p->n_kv_heads * p->head_dim, stride, error));
    TMS_REQUIRE(rows->dtype == TAMIS_F32, TAMIS_E_ARGUMENT, "rows is %s; it must be f32",
                tamis_dtype_name(rows->dtype));
    TMS_TRY(check_out(plan, rows, *stride, "out", out, &deviation.out, error));
    if (norms) TMS_TRY(check_out(plan, rows, *stride, "norms", norms, &deviation.norms, error));
    const uint64_t bytes = plan->step.n_rows * sizeof(float);
    TMS_REQUIRE(!norms || norms->buffer != out->buffer || norms->offset + bytes <= out->offset ||
                    out->offset + bytes <= norms->offset,
                TAMIS_E_ARGUMENT,
                "out and norms overlap: %" PRIu64 " bytes at %" PRIu64 " and at %" PRIu64
                " of one buffer",
                bytes, out->offset, norms->offset);
    TMS_TRY(place_rows(plan, layer, values ? TMS_HELD_V : TMS_HELD_K, &deviation, error));
    deviation.x.ref = (tms_ref){rows->buffer->mem, rows->offset};
    return tms_run_deviation(plan->setup.dev, &deviation, error);
}
