/* SPDX-License-Identifier: Apache-2.0 */
/* The driver of a prompt: takes an engine through the layers of its model. */
#include "lib/blend/blend.h"

static tamis_status check_engine(const tamis_blend_engine *engine, tamis_error *error) {
    TMS_REQUIRE(engine, TAMIS_E_ARGUMENT, "engine is NULL");
    TMS_REQUIRE(engine->project && engine->write && engine->keep && engine->finish,
                TAMIS_E_ARGUMENT, "%s of the engine is NULL",
                !engine->project ? "project"
                : !engine->write ? "write"
                : !engine->keep  ? "keep"
                                 : "finish");
    return tms_reserved_check(engine->reserved, 4, "tamis_blend_engine", error);
}

static tamis_status run_layer(tamis_blend *blend, const tamis_blend_engine *engine, uint32_t layer,
                              bool *restarted, tamis_error *error) {
    tms_blend_rows rows, stay;
    tamis_rows v = {0}, q = {0};
    TMS_TRY(tms_blend_layer(blend, layer, &rows, restarted, error));
    if (*restarted) return TAMIS_OK;
    TMS_TRY(engine->project(engine->user, layer, rows.rows, rows.n, &v, error));
    TMS_TRY(tms_blend_compare(blend, layer, &v, error));
    TMS_TRY(engine->write(engine->user, layer, error));
    TMS_TRY(tms_blend_select(blend, layer, &stay, error));
    TMS_TRY(engine->keep(engine->user, layer, stay.rows, stay.places, stay.n, &q, error));
    TMS_TRY(tms_blend_observe(blend, layer, &q, restarted, error));
    if (*restarted) return TAMIS_OK;
    return engine->finish(engine->user, layer, stay.n, error);
}

static tamis_status run_layers(tamis_blend *blend, const tamis_blend_engine *engine,
                               tamis_error *error) {
    for (uint32_t layer = 0; layer < blend->shape.n_layers;) {
        bool restarted = false;
        TMS_TRY(run_layer(blend, engine, layer, &restarted, error));
        layer = restarted ? 0 : layer + 1;
    }
    return tms_blend_end(blend, error);
}

tamis_status tamis_blend_run(tamis_blend *blend, tamis_sequence sequence,
                             const tamis_blend_part *parts, uint32_t n_parts,
                             const tamis_blend_engine *engine, tamis_error *error) {
    TMS_ENTER(blend);
    TMS_REQUIRE(blend, TAMIS_E_ARGUMENT, "blend is NULL");
    TMS_TRY(check_engine(engine, error));
    TMS_TRY(tms_blend_begin(blend, sequence, parts, n_parts, error));
    const tamis_status status = run_layers(blend, engine, error);
    if (status != TAMIS_OK) tms_blend_cancel(blend);
    return status;
}
