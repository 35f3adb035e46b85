/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a model's numbers. A file with a key of the architecture that is not known here is refused,
 * since the key may change the computation. */
#include "lib/model/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Far above any model, and so small that every product of two numbers and an element size fits into
 * 64 bits. */
#define MAX_NUMBER (1u << 24)

/* The keys that are read, without their prefix "<architecture>.": by all architectures, or by those
 * with one of `keys`. Elsewhere, and where keys is NOT_READ, `absent` is the value that says that the
 * model does not have it; NAN: there is none. */
#define NOT_READ UINT32_MAX
static const struct {
    const char *suffix;
    uint32_t keys;
    double absent;
} known_keys[] = {{"block_count", 0, NAN},
                  {"context_length", 0, NAN},
                  {"embedding_length", 0, NAN},
                  {"feed_forward_length", 0, NAN},
                  {"attention.head_count", 0, NAN},
                  {"attention.head_count_kv", 0, NAN},
                  {"attention.key_length", 0, NAN},
                  {"attention.value_length", 0, NAN},
                  {"attention.layer_norm_epsilon", 0, NAN}, /* of one of these two kinds of norm */
                  {"attention.layer_norm_rms_epsilon", 0, NAN},
                  {"attention.sliding_window", 0, NAN}, /* refused where layers are not known */
                  {"attention.sliding_window_pattern", TMS_KEY_PATTERN, NAN},
                  {"rope.freq_base", 0, NAN},
                  {"rope.freq_base_swa", TMS_KEY_LOCAL_BASE, NAN},
                  {"rope.dimension_count", 0, NAN},
                  {"rope.scale_linear", 0, NAN}, /* before rope.scaling.factor */
                  {"rope.scaling.type", 0, NAN},
                  {"rope.scaling.factor", 0, NAN},
                  {"rope.scaling.attn_factor", 0, NAN},
                  {"rope.scaling.original_context_length", 0, NAN},
                  {"rope.scaling.yarn_beta_fast", 0, NAN},
                  {"rope.scaling.yarn_beta_slow", 0, NAN},
                  {"rope.scaling.yarn_attn_factor", 0, NAN}, /* refused unless it is what we take */
                  {"rope.scaling.yarn_ext_factor", NOT_READ, 1},
                  {"rope.scaling.finetuned", 0, NAN}, /* read with TMS_KEY_FINETUNED alone */
                  {"tensor_data_layout", 0, NAN},     /* changes nothing */
                  {"vocab_size", 0, NAN},
                  {"attention.scale", TMS_KEY_SCALES, NAN},
                  {"embedding_scale", TMS_KEY_SCALES, 1},
                  {"residual_scale", TMS_KEY_SCALES, 1},
                  {"logit_scale", TMS_KEY_LOGIT_SCALE, 1},
                  {"attn_logit_softcapping", TMS_KEY_CAPS, 0},
                  {"final_logit_softcapping", TMS_KEY_CAPS, 0},
                  {"use_parallel_residual", TMS_KEY_PARALLEL, 0},
                  {"ssm.conv_kernel", TMS_KEY_STATE, NAN},
                  {"ssm.state_size", TMS_KEY_STATE, NAN},
                  {"ssm.group_count", TMS_KEY_STATE, NAN},
                  {"ssm.inner_size", TMS_KEY_STATE, NAN},
                  {"ssm.time_step_rank", TMS_KEY_STATE, NAN},
                  {"expert_shared_feed_forward_length", TMS_KEY_STATE, NAN},
                  {"attention.causal", NOT_READ, 1},
                  {"attention.clamp_kqv", NOT_READ, 0},
                  {"attention.max_alibi_bias", NOT_READ, 0},
                  {"expert_count", NOT_READ, 0},
                  {"expert_feed_forward_length", NOT_READ, 0},
                  {"expert_group_count", NOT_READ, 0},
                  {"expert_group_used_count", NOT_READ, 0},
                  {"expert_shared_count", NOT_READ, 0},
                  {"expert_used_count", NOT_READ, 0},
                  {"leading_dense_block_count", NOT_READ, 0},
                  {"nextn_predict_layers", NOT_READ, 0},
                  {"pooling_type", NOT_READ, 0}};

/* Key text "<architecture>.<suffix>". */
typedef struct key_text {
    char text[80];
} key_text;

static key_text key_of(const tms_config *config, const char *suffix) {
    key_text key;
    snprintf(key.text, sizeof key.text, "%s.%s", config->architecture->info.name, suffix);
    return key;
}

static tamis_status read_architecture(const tms_gguf *gguf, tms_config *config,
                                      tamis_error *error) {
    tms_text name = {NULL, 0};
    TMS_TRY(tms_gguf_string(gguf, "general.architecture", &name, error));
    TMS_REQUIRE(name.at, TAMIS_E_FORMAT, "key 'general.architecture' is missing");
    config->architecture = tms_architecture_find(name.at, name.bytes);
    if (config->architecture) return TAMIS_OK;
    const char *why = tms_architecture_refused(name.at, name.bytes);
    return tms_model_fail(error, TAMIS_E_UNSUPPORTED, "architecture '%s' %s",
                          tms_text_show(name).text,
                          why ? why : "is not known; `tamis models` lists those that are");
}

/* A number or a bool that is the value of a model without what the key is for. */
static bool says_absent(const tms_gguf *gguf, tms_text key, double absent) {
    char text[96];
    bool is = false;
    double value = NAN;
    snprintf(text, sizeof text, "%.*s", (int)key.bytes, key.at);
    if (tms_gguf_bool(gguf, text, &is, NULL) == TAMIS_OK)
        value = is;
    else
        (void)tms_gguf_f64(gguf, text, &value, NULL);
    return value == absent;
}

/* Whether the key is read, or changes nothing. */
static bool is_known(const tms_gguf *gguf, const tms_architecture *a, tms_text key,
                     tms_text suffix) {
    for (size_t i = 0; i < sizeof known_keys / sizeof known_keys[0]; ++i) {
        const uint32_t keys = known_keys[i].keys;
        if (!tms_text_is(suffix, known_keys[i].suffix)) continue;
        if (keys != NOT_READ && (keys == 0 || keys & (a->keys | a->ignored))) return true;
        return says_absent(gguf, key, known_keys[i].absent);
    }
    return false;
}

static tamis_status refuse_unknown_keys(const tms_gguf *gguf, const tms_config *config,
                                        tamis_error *error) {
    key_text prefix = key_of(config, "");
    size_t skip = strlen(prefix.text);
    for (uint64_t i = 0; i < gguf->n_entries; ++i) {
        const tms_text key = gguf->entries[i].key;
        if (key.bytes < skip || memcmp(key.at, prefix.text, skip) != 0) continue;
        const tms_text suffix = {key.at + skip, key.bytes - skip};
        TMS_REQUIRE(is_known(gguf, config->architecture, key, suffix), TAMIS_E_UNSUPPORTED,
                    "key '%s' is not known and may change the computation",
                    tms_text_show(key).text);
    }
    return TAMIS_OK;
}

/* Of the keys that an architecture must have beside the common ones. */
static tamis_status require_keys(const tms_gguf *gguf, const tms_config *config,
                                 tamis_error *error) {
    for (size_t i = 0; i < sizeof known_keys / sizeof known_keys[0]; ++i) {
        const uint32_t keys = known_keys[i].keys;
        const key_text key = key_of(config, known_keys[i].suffix);
        TMS_REQUIRE(keys == NOT_READ || !(keys & config->architecture->required_keys) ||
                        tms_gguf_find(gguf, key.text),
                    TAMIS_E_FORMAT, "key '%s' is missing", key.text);
    }
    return TAMIS_OK;
}

/* Reads a number from 1 to MAX_NUMBER, or as many equal ones as there are layers, in a file that
 * states it for each. If there is no such key it is `absent`; with absent 0 the key is required. */
static tamis_status read_number(const tms_gguf *gguf, const tms_config *config, const char *suffix,
                                uint32_t absent, uint32_t *out, tamis_error *error) {
    static const char *const of_layers[] = {"feed_forward_length", "attention.head_count",
                                            "attention.head_count_kv"};
    const key_text key = key_of(config, suffix);
    bool each = false;
    for (size_t i = 0; i < sizeof of_layers / sizeof of_layers[0]; ++i)
        each = each || strcmp(suffix, of_layers[i]) == 0;
    TMS_REQUIRE(absent || tms_gguf_find(gguf, key.text), TAMIS_E_FORMAT, "key '%s' is missing",
                key.text);
    *out = absent;
    TMS_TRY(each ? tms_gguf_u32_each(gguf, key.text, config->n_layers, out, error)
                 : tms_gguf_u32(gguf, key.text, out, error));
    TMS_REQUIRE(*out >= 1 && *out <= MAX_NUMBER, TAMIS_E_FORMAT, "key '%s' is %u; 1 to %u can be",
                key.text, *out, MAX_NUMBER);
    return TAMIS_OK;
}

/* Any number of tokens can be stated: how many of them are used is the caller's choice. */
static tamis_status read_context(const tms_gguf *gguf, tms_config *config, tamis_error *error) {
    const key_text key = key_of(config, "context_length");
    TMS_REQUIRE(tms_gguf_find(gguf, key.text), TAMIS_E_FORMAT, "key '%s' is missing", key.text);
    TMS_TRY(tms_gguf_u32(gguf, key.text, &config->context, error));
    TMS_REQUIRE(config->context >= 1, TAMIS_E_FORMAT, "key '%s' is 0; 1 to %u can be", key.text,
                UINT32_MAX);
    return TAMIS_OK;
}

static void set_local(tms_config *config, uint32_t layer) {
    config->local[layer / 8] |= (uint8_t)(1u << layer % 8);
    config->n_local++;
}

/* Which layers are local, from an array with a bool or a number for each. */
static tamis_status read_local_layers(const tms_gguf_entry *entry, const char *key,
                                      tms_config *config, tamis_error *error) {
    TMS_REQUIRE(entry->count == config->n_layers, TAMIS_E_FORMAT,
                "key '%s' has %llu values for %u layers", key, (unsigned long long)entry->count,
                config->n_layers);
    for (uint32_t layer = 0; layer < config->n_layers; ++layer) {
        int64_t value = 0;
        if (entry->type == TMS_GGUF_BOOL)
            value = entry->at[layer] != 0;
        else
            TMS_REQUIRE(tms_gguf_integer(entry, layer, &value), TAMIS_E_FORMAT,
                        "key '%s' has no bools and no integers", key);
        if (value) set_local(config, layer);
    }
    return TAMIS_OK;
}

/* The last of every `pattern` layers is global; with 0 none is. */
static tamis_status read_pattern(const tms_gguf *gguf, tms_config *config, tamis_error *error) {
    const key_text key = key_of(config, "attention.sliding_window_pattern");
    const tms_gguf_entry *entry = tms_gguf_find(gguf, key.text);
    const bool read = entry && config->architecture->keys & TMS_KEY_PATTERN;
    uint32_t pattern = config->architecture->pattern;
    if (read && !entry->array) TMS_TRY(tms_gguf_u32(gguf, key.text, &pattern, error));
    const bool all = pattern == 0 && !(read && entry->array);
    TMS_REQUIRE(all || config->n_layers <= TMS_MOST_LOCAL, TAMIS_E_UNSUPPORTED,
                "%u layers, of which some have a window: at most %u can be", config->n_layers,
                TMS_MOST_LOCAL);
    if (all) config->n_local = config->n_layers;
    if (all) return TAMIS_OK;
    if (read && entry->array) return read_local_layers(entry, key.text, config, error);
    for (uint32_t layer = 0; layer < config->n_layers; ++layer)
        if (layer % pattern < pattern - 1) set_local(config, layer);
    return TAMIS_OK;
}

/* Qwen's configuration has a window that holds in some layers, or in none, and the file does not say
 * in which; StarCoder's and others' say nothing either. One that no text outgrows is none. */
static tamis_status read_window(const tms_gguf *gguf, tms_config *config, tamis_error *error) {
    const tms_architecture *a = config->architecture;
    const key_text key = key_of(config, "attention.sliding_window");
    config->sliding_window = a->window;
    TMS_TRY(tms_gguf_u32(gguf, key.text, &config->sliding_window, error));
    if (a->keys & TMS_KEY_WINDOW) {
        TMS_REQUIRE(config->sliding_window || !(a->required_keys & TMS_KEY_WINDOW), TAMIS_E_FORMAT,
                    "key '%s' is 0 or missing", key.text);
        if (config->sliding_window) TMS_TRY(read_pattern(gguf, config, error));
        if (config->n_local == 0) config->sliding_window = 0;
        return TAMIS_OK;
    }
    TMS_REQUIRE(config->sliding_window == 0 || config->sliding_window >= config->context,
                TAMIS_E_UNSUPPORTED, "key '%s' is %u; which layers have the window is not known",
                key.text, config->sliding_window);
    config->sliding_window = 0;
    return TAMIS_OK;
}

bool tms_config_is_local(const tms_config *config, uint32_t layer) {
    if (config->n_local == config->n_layers || config->n_local == 0) return config->n_local != 0;
    return config->local[layer / 8] >> layer % 8 & 1;
}

static tamis_status read_sizes(const tms_gguf *gguf, tms_config *config, tamis_error *error) {
    const struct {
        const char *suffix;
        uint32_t *out;
    } numbers[] = {{"block_count", &config->n_layers},
                   {"embedding_length", &config->dim},
                   {"feed_forward_length", &config->ff_dim},
                   {"attention.head_count", &config->n_heads}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; ++i)
        TMS_TRY(read_number(gguf, config, numbers[i].suffix, 0, numbers[i].out, error));
    TMS_TRY(read_context(gguf, config, error));
    TMS_TRY(read_window(gguf, config, error));
    return tms_gguf_u32(gguf, key_of(config, "vocab_size").text, &config->n_vocab, error);
}

static tamis_status read_heads(const tms_gguf *gguf, tms_config *config, tamis_error *error) {
    uint32_t value_dim = 0;
    TMS_TRY(read_number(gguf, config, "attention.head_count_kv", config->n_heads,
                        &config->n_kv_heads, error));
    /* If the heads do not divide the width it is 0: the key is required. */
    const uint32_t dim = config->dim % config->n_heads ? 0 : config->dim / config->n_heads;
    TMS_TRY(read_number(gguf, config, "attention.key_length", dim, &config->head_dim, error));
    TMS_TRY(
        read_number(gguf, config, "attention.value_length", config->head_dim, &value_dim, error));
    TMS_TRY(
        read_number(gguf, config, "rope.dimension_count", config->head_dim, &config->n_rot, error));
    TMS_REQUIRE(config->n_heads % config->n_kv_heads == 0, TAMIS_E_FORMAT,
                "%u query heads are no multiple of %u KV heads", config->n_heads,
                config->n_kv_heads);
    TMS_REQUIRE(config->head_dim <= TMS_MAX_HEAD_DIM, TAMIS_E_UNSUPPORTED,
                "heads of %u channels; at most %u can be", config->head_dim, TMS_MAX_HEAD_DIM);
    TMS_REQUIRE((uint64_t)config->n_heads * config->head_dim <= MAX_NUMBER, TAMIS_E_FORMAT,
                "%u heads of %u channels: at most %u in all can be", config->n_heads,
                config->head_dim, MAX_NUMBER);
    TMS_REQUIRE(value_dim == config->head_dim, TAMIS_E_UNSUPPORTED,
                "values of %u channels beside keys of %u", value_dim, config->head_dim);
    TMS_REQUIRE(config->n_rot % 2 == 0 && config->n_rot <= config->head_dim, TAMIS_E_FORMAT,
                "rope.dimension_count is %u; an even number up to the head dim %u can be",
                config->n_rot, config->head_dim);
    return TAMIS_OK;
}

/* Reads a float from `least` to `most`; *out keeps its value if there is no such key. */
static tamis_status read_real(const tms_gguf *gguf, const tms_config *config, const char *suffix,
                              double least, double most, double *out, tamis_error *error) {
    key_text key = key_of(config, suffix);
    TMS_TRY(tms_gguf_f64(gguf, key.text, out, error));
    TMS_REQUIRE(*out >= least && *out <= most, TAMIS_E_FORMAT, "key '%s' is %g; %g to %g can be",
                key.text, *out, least, most);
    return TAMIS_OK;
}

/* The kind of scaling. Like llama.cpp, a factor without a type means linear. */
static tamis_status read_scaling(const tms_gguf *gguf, tms_config *config, tamis_error *error) {
    static const struct {
        const char *name;
        tms_rope_scaling scaling;
    } kinds[] = {{"none", TMS_ROPE_PLAIN}, {"linear", TMS_ROPE_LINEAR}, {"yarn", TMS_ROPE_YARN}};
    tms_text name = {"linear", 6};
    TMS_TRY(tms_gguf_string(gguf, key_of(config, "rope.scaling.type").text, &name, error));
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; ++i) {
        if (!tms_text_is(name, kinds[i].name)) continue;
        config->rope.scaling = kinds[i].scaling;
        return TAMIS_OK;
    }
    /* its factors are tensors */
    if (config->architecture->long_factors && tms_text_is(name, "longrope")) {
        config->rope.scaling = TMS_ROPE_LINEAR;
        return TAMIS_OK;
    }
    return tms_model_fail(error, TAMIS_E_UNSUPPORTED,
                          "rope scaling of type '%s' is not known; none, linear and yarn are",
                          tms_text_show(name).text);
}

/* The ranges are far beyond any model's and keep all that is computed from them finite. */
static tamis_status read_rope(const tms_gguf *gguf, tms_config *config, tamis_error *error) {
    tms_rope *rope = &config->rope;
    *rope =
        (tms_rope){.base = 10000.0, .factor = 1, .attention = 1, .beta_fast = 32, .beta_slow = 1};
    TMS_TRY(read_scaling(gguf, config, error));
    const struct {
        const char *suffix;
        double least, most, *out;
    } reals[] = {{"rope.freq_base", 1, 1e30, &rope->base},
                 {"rope.scale_linear", 1e-6, 1e6, &rope->factor},
                 {"rope.scaling.factor", 1e-6, 1e6, &rope->factor},
                 {"rope.scaling.attn_factor", 1e-3, 1e3, &rope->attention},
                 {"rope.scaling.yarn_beta_fast", 1e-6, 1e6, &rope->beta_fast},
                 {"rope.scaling.yarn_beta_slow", 1e-6, 1e6, &rope->beta_slow}};
    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; ++i)
        TMS_TRY(read_real(gguf, config, reals[i].suffix, reals[i].least, reals[i].most,
                          reals[i].out, error));
    const key_text original = key_of(config, "rope.scaling.original_context_length");
    rope->original_context = config->context;
    TMS_TRY(tms_gguf_u32(gguf, original.text, &rope->original_context, error));
    TMS_REQUIRE(rope->original_context >= 1, TAMIS_E_FORMAT, "key '%s' is 0; 1 to %u can be",
                original.text, UINT32_MAX);
    TMS_REQUIRE(rope->scaling != TMS_ROPE_YARN || rope->base > 1, TAMIS_E_FORMAT,
                "rope scaling of type 'yarn' with rope.freq_base %g", rope->base);
    /* a converter's record of YaRN's magnitude, which follows from the factor */
    double magnitude = tms_rope_magnitude(rope) / rope->attention;
    const double own = magnitude;
    TMS_TRY(read_real(gguf, config, "rope.scaling.yarn_attn_factor", 1e-3, 1e3, &magnitude, error));
    TMS_REQUIRE(fabs(magnitude - own) <= 1e-3 * own, TAMIS_E_UNSUPPORTED,
                "rope.scaling.yarn_attn_factor is %g; it follows from the factor and is %g",
                magnitude, own);
    return TAMIS_OK;
}

/* The rotation of local layers, and whether there is any rotation. */
static tamis_status read_local_rope(const tms_gguf *gguf, tms_config *config, tamis_error *error) {
    const tms_architecture *a = config->architecture;
    tms_rope *rope = &config->local_rope;
    *rope = config->rope;
    config->rotated = true;
    if (a->keys & TMS_KEY_FINETUNED)
        TMS_TRY(tms_gguf_bool(gguf, key_of(config, "rope.scaling.finetuned").text, &config->rotated,
                              error));
    if (a->local_base != 0) rope->base = a->local_base;
    if (a->keys & TMS_KEY_LOCAL_BASE)
        TMS_TRY(read_real(gguf, config, "rope.freq_base_swa", 1, 1e30, &rope->base, error));
    if (a->plain_locals) {
        rope->scaling = TMS_ROPE_PLAIN;
        if (!(a->keys & TMS_KEY_LOCAL_BASE)) rope->attention = 1;
    }
    const bool scaled = config->rope.scaling != TMS_ROPE_PLAIN && config->rope.factor != 1;
    config->local_differs =
        a->keys & TMS_KEY_PATTERN &&
        (rope->base != config->rope.base || rope->attention != config->rope.attention ||
         (rope->scaling != config->rope.scaling && scaled));
    return TAMIS_OK;
}

/* A cap that is `absent` where the key is missing; 0: none. */
static tamis_status read_cap(const tms_gguf *gguf, const tms_config *config, const char *suffix,
                             double absent, float *out, tamis_error *error) {
    double value = absent;
    TMS_TRY(read_real(gguf, config, suffix, 0, 1e6, &value, error));
    TMS_REQUIRE(value == 0 || value >= 1e-6, TAMIS_E_FORMAT,
                "key '%s' is %g; 0 or 1e-6 to 1e6 can be", key_of(config, suffix).text, value);
    *out = (float)value;
    return TAMIS_OK;
}

/* A scale that is `absent` where the key is missing, or that if 0 is 1, and 1 where the key is 0. */
static tamis_status read_scale(const tms_gguf *gguf, const tms_config *config, const char *suffix,
                               double absent, float *out, tamis_error *error) {
    TMS_TRY(read_cap(gguf, config, suffix, absent, out, error));
    if (*out == 0) *out = 1;
    return TAMIS_OK;
}

static tamis_status read_scales(const tms_gguf *gguf, tms_config *config, tamis_error *error) {
    const tms_architecture *a = config->architecture;
    float logit_scale = 1;
    config->embed_scale = a->rooted ? (float)sqrt(config->dim) : 1;
    config->residual_scale = 1;
    if (a->wide && a->wide == config->n_layers) {
        TMS_REQUIRE(config->dim >= config->n_heads, TAMIS_E_FORMAT, "%u heads of a width of %u",
                    config->n_heads, config->dim);
        config->attn_scale = (float)(1 / sqrt((double)(config->dim / config->n_heads)));
    }
    if (a->keys & TMS_KEY_SCALES) {
        TMS_TRY(read_cap(gguf, config, "attention.scale", 0, &config->attn_scale, error));
        TMS_TRY(read_scale(gguf, config, "embedding_scale", a->embed_scale, &config->embed_scale,
                           error));
        TMS_TRY(read_scale(gguf, config, "residual_scale", a->depth_scale / sqrt(config->n_layers),
                           &config->residual_scale, error));
    }
    if (a->keys & TMS_KEY_LOGIT_SCALE)
        TMS_TRY(read_scale(gguf, config, "logit_scale", a->logit_width / config->dim, &logit_scale,
                           error));
    config->logit_scale = a->divided ? 1 / logit_scale : logit_scale;
    if (a->keys & TMS_KEY_PARALLEL)
        TMS_TRY(tms_gguf_bool(gguf, key_of(config, "use_parallel_residual").text, &config->parallel,
                              error));
    if (!(a->keys & TMS_KEY_CAPS)) return TAMIS_OK;
    TMS_TRY(
        read_cap(gguf, config, "attn_logit_softcapping", a->attn_cap, &config->attn_cap, error));
    return read_cap(gguf, config, "final_logit_softcapping", a->logit_cap, &config->logit_cap,
                    error);
}

bool tms_config_is_mixed(const tms_config *config) {
    return config->n_local && config->n_local < config->n_layers;
}

tms_rotation_kind tms_config_rotation(const tms_config *config, uint32_t layer, bool is_long) {
    const tms_unrotated unrotated = config->architecture->unrotated;
    const bool local = tms_config_is_local(config, layer);
    if (!config->rotated) return TMS_ROTATION_NONE;
    if (unrotated == TMS_UNROTATED_FOURTH && (layer + 1) % 4 == 0) return TMS_ROTATION_NONE;
    if (unrotated == TMS_UNROTATED_GLOBAL && config->n_local && !local) return TMS_ROTATION_NONE;
    if (local && config->local_differs) return TMS_ROTATION_LOCAL;
    return is_long ? TMS_ROTATION_LONG : TMS_ROTATION_GLOBAL;
}

const tms_rope *tms_config_rope(const tms_config *config, tms_rotation_kind kind) {
    return kind == TMS_ROTATION_LOCAL ? &config->local_rope : &config->rope;
}

double tms_config_magnitude(const tms_config *config, tms_rotation_kind kind) {
    return kind == TMS_ROTATION_NONE ? 1 : tms_rope_magnitude(tms_config_rope(config, kind));
}

static tamis_status read_norm(const tms_gguf *gguf, tms_config *config, tamis_error *error) {
    const bool layer_norm = config->architecture->norm == TAMIS_NORM_LAYER;
    key_text key = key_of(config, layer_norm ? "attention.layer_norm_epsilon"
                                             : "attention.layer_norm_rms_epsilon");
    double eps = 0;
    TMS_REQUIRE(tms_gguf_find(gguf, key.text), TAMIS_E_FORMAT, "key '%s' is missing", key.text);
    TMS_TRY(tms_gguf_f64(gguf, key.text, &eps, error));
    TMS_REQUIRE(eps >= 1e-30 && eps <= 1.0, TAMIS_E_FORMAT, "key '%s' is %g; 1e-30 to 1 can be",
                key.text, eps);
    config->norm_eps = (float)eps;
    return TAMIS_OK;
}

tamis_status tms_config_read(const tms_gguf *gguf, tms_config *out, tamis_error *error) {
    tms_text name = {"", 0};
    *out = (tms_config){0};
    TMS_TRY(read_architecture(gguf, out, error));
    TMS_TRY(refuse_unknown_keys(gguf, out, error));
    TMS_TRY(require_keys(gguf, out, error));
    TMS_TRY(tms_gguf_string(gguf, "general.name", &name, error));
    TMS_TRY(read_sizes(gguf, out, error));
    TMS_TRY(read_heads(gguf, out, error));
    TMS_TRY(read_rope(gguf, out, error));
    TMS_TRY(read_local_rope(gguf, out, error));
    TMS_TRY(read_scales(gguf, out, error));
    TMS_TRY(read_norm(gguf, out, error));
    snprintf(out->name, sizeof out->name, "%s", tms_text_show(name).text);
    return TAMIS_OK;
}
