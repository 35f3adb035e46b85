/* SPDX-License-Identifier: Apache-2.0 */
/* The driver of a prompt: takes an engine through the layers of its model. */
#include "lib/blend/blend.h"

#include <inttypes.h>

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

/* What a call of the engine answered: the reason is its own, or says at least which call it was. */
static tamis_status answered(tamis_status status, tamis_error *own, const char *call,
                             uint32_t layer, tamis_error *error) {
    if (status != TAMIS_OK && own->text[0]) return tms_error_set(error, status, "%s", own->text);
    TMS_REQUIRE(status == TAMIS_OK, status, "%s of the engine answered %s in layer %" PRIu32, call,
                tamis_status_name(status), layer);
    *own = (tamis_error){TAMIS_OK, ""};
    return TAMIS_OK;
}

static tamis_status run_layer(tamis_blend *blend, const tamis_blend_engine *engine, uint32_t layer,
                              bool *restarted, tamis_error *error) {
    tms_blend_rows rows, stay;
    tamis_rows v = {0}, q = {0};
    tamis_error own = {TAMIS_OK, ""};
    void *user = engine->user;
    tamis_status status;
    TMS_TRY(tms_blend_layer(blend, layer, &rows, restarted, error));
    if (*restarted) return TAMIS_OK;
    status = engine->project(user, layer, rows.rows, rows.n, &v, &own);
    TMS_TRY(answered(status, &own, "project", layer, error));
    TMS_TRY(tms_blend_compare(blend, layer, &v, error));
    status = engine->write(user, layer, &own);
    TMS_TRY(answered(status, &own, "write", layer, error));
    TMS_TRY(tms_blend_select(blend, layer, &stay, error));
    status = engine->keep(user, layer, stay.rows, stay.places, stay.n, &q, &own);
    TMS_TRY(answered(status, &own, "keep", layer, error));
    TMS_TRY(tms_blend_observe(blend, layer, &q, restarted, error));
    if (*restarted) return TAMIS_OK;
    status = engine->finish(user, layer, stay.n, &own);
    return answered(status, &own, "finish", layer, error);
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
