/* SPDX-License-Identifier: Apache-2.0 */
/* How a model's layers are rotated: frequencies and tables of each kind, and which layer has which. */
#include "lib/model/model.h"

#include <stdlib.h>
#include <string.h>

bool tms_model_has_long(const tamis_model *model) {
    return model->rotations[TMS_ROTATION_LONG].factors && model->config.architecture->long_factors;
}

static bool uses(const tms_config *config, tms_rotation_kind kind, bool is_long) {
    for (uint32_t layer = 0; layer < config->n_layers; ++layer)
        if (tms_config_rotation(config, layer, is_long) == kind) return true;
    return false;
}

/* The divisors of a kind's frequencies; NULL: none. */
static tamis_status read_factors(const tamis_model *model, const tms_gguf *gguf,
                                 tms_rotation_kind kind, float **out, tamis_error *error) {
    float factors[TMS_MAX_HEAD_DIM / 2];
    bool present = false;
    const bool any = model->weights.rope_factors[TMS_FACTORS_LONG].tensor;
    const tms_rope_factors which = !any                        ? TMS_FACTORS_ALL
                                   : kind == TMS_ROTATION_LONG ? TMS_FACTORS_LONG
                                                               : TMS_FACTORS_SHORT;
    TMS_TRY(tms_weights_rope_factors(&model->weights, which, gguf, factors, &present, error));
    if (!present) return TAMIS_OK;
    const size_t bytes = model->config.n_rot / 2 * sizeof *factors;
    *out = malloc(bytes);
    TMS_REQUIRE(*out, TAMIS_E_NO_MEMORY, "no memory for %zu bytes", bytes);
    memcpy(*out, factors, bytes);
    return TAMIS_OK;
}

/* Frequencies of every kind; those of no rotation stay 0. */
tamis_status tms_rotations_read(tamis_model *model, const tms_gguf *gguf, tamis_error *error) {
    const tms_config *config = &model->config;
    for (int kind = 0; kind < TMS_ROTATION_NONE; ++kind) {
        tms_rotated *r = &model->rotations[kind];
        TMS_TRY(read_factors(model, gguf, kind, &r->factors, error));
        tms_rope_frequencies(tms_config_rope(config, kind), config->n_rot, r->factors,
                             r->frequencies);
    }
    return TAMIS_OK;
}

/* The tables of the kinds that layers have, the long one only where it has factors of its own. */
tamis_status tms_rotations_make(tamis_model *model, tamis_error *error) {
    const tms_config *config = &model->config;
    for (int kind = 0; kind < TMS_ROTATIONS; ++kind) {
        tms_rotated *r = &model->rotations[kind];
        r->rotation =
            (tamis_rotation){.n_rot = config->n_rot, .pairing = config->architecture->pairing};
        if (!uses(config, kind, kind == TMS_ROTATION_LONG) ||
            (kind == TMS_ROTATION_LONG && !tms_model_has_long(model)))
            continue;
        TMS_TRY(tamis_buffer_create(model->context, tamis_rotation_bytes(config->n_rot),
                                    &r->rotation.table.buffer, error));
        const bool whole = config->n_rot == config->head_dim;
        TMS_TRY(tamis_rotation_write_scaled(&r->rotation, r->frequencies,
                                            whole ? 1 : tms_config_magnitude(config, kind), error));
    }
    return TAMIS_OK;
}

void tms_rotations_free(tamis_model *model) {
    for (int kind = 0; kind < TMS_ROTATIONS; ++kind) {
        tamis_buffer_destroy(&model->rotations[kind].rotation.table.buffer);
        free(model->rotations[kind].factors);
    }
}

const tms_rotated *tms_runner_rotated(const tamis_runner *runner, uint32_t layer) {
    const tamis_model *model = runner->model;
    return &model->rotations[tms_config_rotation(&model->config, layer, runner->is_long)];
}

tamis_status tms_check_one_rotation(const tamis_runner *runner, const char *what,
                                    const tms_rotated **out, tamis_error *error) {
    const tms_config *config = &runner->model->config;
    const tms_rotation_kind first = tms_config_rotation(config, 0, runner->is_long);
    for (uint32_t layer = 1; layer < config->n_layers; ++layer)
        TMS_REQUIRE(tms_config_rotation(config, layer, runner->is_long) == first,
                    TAMIS_E_UNSUPPORTED,
                    "%s needs layers that are rotated alike; in %s models layer %u is rotated in "
                    "another way than layer 0",
                    what, config->architecture->info.name, layer);
    TMS_REQUIRE(
        config->n_rot == config->head_dim || tms_config_magnitude(config, first) == 1,
        TAMIS_E_UNSUPPORTED,
        "%s turns keys again, and the rotation of this %s model multiplies %u of %u channels "
        "by %g",
        what, config->architecture->info.name, config->n_rot, config->head_dim,
        tms_config_magnitude(config, first));
    if (out) *out = &runner->model->rotations[first];
    return TAMIS_OK;
}
