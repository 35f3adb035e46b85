/* SPDX-License-Identifier: Apache-2.0 */
/* What a model's K and V values depend on, as one hash. */
#ifdef TAMIS_HAVE_XXHASH
#define XXH_INLINE_ALL
#endif
#include "lib/model/model.h"

#include <stdlib.h>
#include <string.h>

#ifdef TAMIS_HAVE_XXHASH
#include <xxhash.h>

/* Tells these hashes from others; its number changes with what is hashed, and in which order. */
static const char DOMAIN[] = "tamis model 1";

/* A layer's weights that are hashed where they are absent, too: those that there were first. */
#define FIRST_WEIGHTS (TMS_ATTN_K_NORM + 1)

/* Most bytes of a tensor in the host's memory at the same time. */
#define PIECE (4u << 20)

static void add_u64(XXH3_state_t *hash, uint64_t value) {
    uint8_t bytes[8];
    for (int i = 0; i < 8; ++i)
        bytes[i] = (uint8_t)(value >> 8 * i);
    XXH3_128bits_update(hash, bytes, sizeof bytes);
}

static void add_f64(XXH3_state_t *hash, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    add_u64(hash, bits);
}

static void add_text(XXH3_state_t *hash, const char *text) {
    add_u64(hash, strlen(text));
    XXH3_128bits_update(hash, text, strlen(text));
}

/* What is not a matter of values is left out: names, and how long a text the file states. */
static void add_config(XXH3_state_t *hash, const tms_config *config) {
    const tms_rope *rope = &config->rope;
    const uint64_t numbers[] = {
        config->n_layers,       config->n_heads, config->n_kv_heads,
        config->head_dim,       config->dim,     config->ff_dim,
        config->sliding_window, config->n_rot,   config->architecture->pairing,
        rope->scaling};
    const double reals[] = {config->norm_eps, rope->base,      rope->factor,
                            rope->attention,  rope->beta_fast, rope->beta_slow};
    add_text(hash, config->architecture->info.name);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i)
        add_u64(hash, numbers[i]);
    for (size_t i = 0; i < sizeof reals / sizeof *reals; ++i)
        add_f64(hash, reals[i]);
    /* YaRN alone reads it. It is the context where the file does not state it. */
    add_u64(hash, rope->scaling == TMS_ROPE_YARN ? rope->original_context : 0);
}

static void add_factors(XXH3_state_t *hash, const tms_rotated *rotated, uint32_t n_rot) {
    const uint32_t n = rotated->factors ? n_rot / 2 : 0;
    add_u64(hash, n);
    for (uint32_t i = 0; i < n; ++i)
        add_f64(hash, (double)rotated->factors[i]);
}

/* What Llama's and Qwen's models do not have; nothing is added for a model without it, so that their
 * fingerprints stay. */
static void add_rest(XXH3_state_t *hash, const tamis_model *model) {
    const tms_config *config = &model->config;
    const tms_rope *local = &config->local_rope;
    const double scales[] = {config->attn_scale, config->attn_cap, config->residual_scale};
    if (tms_config_is_mixed(config)) {
        add_text(hash, "local layers");
        XXH3_128bits_update(hash, config->local, sizeof config->local);
    }
    if (config->n_local && config->local_differs) {
        add_text(hash, "local rotation");
        add_f64(hash, local->base);
        add_u64(hash, local->scaling);
        add_f64(hash, local->attention);
    }
    if (scales[0] != 0 || scales[1] != 0 || scales[2] != 1 || config->embed_scale != 1) {
        add_text(hash, "scales");
        for (size_t i = 0; i < sizeof scales / sizeof *scales; ++i)
            add_f64(hash, scales[i]);
        add_f64(hash, (double)config->embed_scale);
    }
    if (!config->rotated) add_text(hash, "not rotated");
    if (config->parallel) add_text(hash, "parallel");
    if (tms_model_has_long(model)) {
        add_text(hash, "long factors");
        add_factors(hash, &model->rotations[TMS_ROTATION_LONG], config->n_rot);
    }
}

static void add_vocab(XXH3_state_t *hash, const tamis_vocab_info *info) {
    add_u64(hash, info->kind);
    add_u64(hash, info->n_tokens);
    add_text(hash, info->pattern);
}

/* Rows [first, first + n) as they are in the file, from strips that begin with the first of them. */
static tamis_status add_strips(XXH3_state_t *hash, const tms_weight *weight, uint64_t first,
                               uint64_t n, uint8_t *pieces, tamis_error *error) {
    const uint64_t row = tamis_weight_bytes(weight->type, 1, weight->n_in);
    const uint64_t bytes = tamis_weight_layout_bytes(weight->layout, weight->type, n, weight->n_in);
    uint8_t *strips = pieces, *rows = pieces + PIECE;
    TMS_TRY(tamis_buffer_read(weight->buffer, first * row, strips, bytes, error));
    TMS_TRY(tamis_weight_unpack(weight->type, n, weight->n_in, strips, rows, error));
    XXH3_128bits_update(hash, rows, n * row);
    return TAMIS_OK;
}

/* Type, length and bytes as rows on the device; an absent weight has no length. */
static tamis_status add_weight(XXH3_state_t *hash, const tms_weight *weight, uint8_t *pieces,
                               tamis_error *error) {
    const uint64_t row = tamis_weight_bytes(weight->type, 1, weight->n_in);
    const uint64_t bytes = weight->buffer ? weight->n_out * row : 0;
    const bool strips = weight->layout == TAMIS_WEIGHT_STRIPS;
    const uint64_t step = tms_weight_step(weight, PIECE);
    add_u64(hash, bytes ? weight->type : 0);
    add_u64(hash, bytes);
    for (uint64_t first = 0; first < bytes; first += step) {
        const uint64_t n = bytes - first < step ? bytes - first : step;
        if (strips) {
            TMS_TRY(add_strips(hash, weight, first / row, n / row, pieces, error));
            continue;
        }
        TMS_TRY(tamis_buffer_read(weight->buffer, first, pieces, n, error));
        XXH3_128bits_update(hash, pieces, n);
    }
    return TAMIS_OK;
}

static tamis_status add_weights(XXH3_state_t *hash, const tms_weights *weights, uint8_t *pieces,
                                tamis_error *error) {
    TMS_TRY(add_weight(hash, &weights->embed, pieces, error));
    TMS_TRY(add_weight(hash, &weights->output_norm, pieces, error));
    TMS_TRY(add_weight(hash, &weights->output, pieces, error));
    for (uint32_t layer = 0; layer < weights->n_layers; ++layer)
        for (int i = 0; i < TMS_LAYER_WEIGHTS; ++i) {
            const tms_weight *weight = &weights->layers[layer].weights[i];
            if (i < FIRST_WEIGHTS || weight->buffer)
                TMS_TRY(add_weight(hash, weight, pieces, error));
        }
    return TAMIS_OK;
}

static tamis_status compute(tamis_model *model, tamis_error *error) {
    XXH3_state_t hash;
    XXH128_canonical_t canonical;
    uint8_t *pieces = malloc(2 * PIECE);
    TMS_REQUIRE(pieces, TAMIS_E_NO_MEMORY, "no memory for %u bytes", 2 * PIECE);
    XXH3_128bits_reset(&hash);
    XXH3_128bits_update(&hash, DOMAIN, sizeof DOMAIN);
    add_config(&hash, &model->config);
    add_factors(&hash, &model->rotations[TMS_ROTATION_GLOBAL], model->config.n_rot);
    add_rest(&hash, model);
    add_vocab(&hash, &model->vocab.info);
    const tamis_status status = add_weights(&hash, &model->weights, pieces, error);
    free(pieces);
    if (status != TAMIS_OK) return status;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&hash));
    memcpy(model->fingerprint, canonical.digest, sizeof model->fingerprint);
    model->has_fingerprint = true;
    return TAMIS_OK;
}

tamis_status tamis_model_fingerprint(tamis_model *model, uint8_t fingerprint[16],
                                     tamis_error *error) {
    TMS_ENTER_MODEL(model);
    TMS_REQUIRE(model, TAMIS_E_ARGUMENT, "model is NULL");
    TMS_REQUIRE(fingerprint, TAMIS_E_ARGUMENT, "fingerprint is NULL");
    if (!model->has_fingerprint) TMS_TRY(compute(model, error));
    memcpy(fingerprint, model->fingerprint, sizeof model->fingerprint);
    return TAMIS_OK;
}

#else

tamis_status tamis_model_fingerprint(tamis_model *model, uint8_t fingerprint[16],
                                     tamis_error *error) {
    TMS_ENTER_MODEL(model);
    TMS_REQUIRE(model, TAMIS_E_ARGUMENT, "model is NULL");
    TMS_REQUIRE(fingerprint, TAMIS_E_ARGUMENT, "fingerprint is NULL");
    return tms_model_fail(error, TAMIS_E_UNSUPPORTED,
                          "this library was built without xxHash, by which weights are hashed");
}

#endif
