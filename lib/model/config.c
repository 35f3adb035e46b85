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

#define BIT(weight) (1u << TMS_##weight)
/* What every architecture's layers have. */
#define COMMON                                                                                     \
    (BIT(ATTN_NORM) | BIT(ATTN_Q) | BIT(ATTN_K) | BIT(ATTN_V) | BIT(ATTN_OUTPUT) | BIT(FFN_NORM) | \
     BIT(FFN_GATE) | BIT(FFN_UP) | BIT(FFN_DOWN))
#define QKV_BIAS (BIT(ATTN_Q_BIAS) | BIT(ATTN_K_BIAS) | BIT(ATTN_V_BIAS))

/* Llama: Mistral and SmolLM2 too. The converter permutes its rows of W_q and W_k so that the two
 * channels of a pair are adjacent; those of Qwen stay as they were trained. */
static const tms_architecture architectures[] = {
    {.name = "llama",
     .pairing = TAMIS_PAIR_ADJACENT,
     .required = COMMON,
     .optional = QKV_BIAS | BIT(ATTN_OUTPUT_BIAS) | BIT(FFN_GATE_BIAS) | BIT(FFN_UP_BIAS) |
                 BIT(FFN_DOWN_BIAS),
     .rope_factors = true,
     .sliding_window = true},
    {.name = "qwen2", .pairing = TAMIS_PAIR_HALF, .required = COMMON | QKV_BIAS},
    {.name = "qwen3",
     .pairing = TAMIS_PAIR_HALF,
     .required = COMMON | BIT(ATTN_Q_NORM) | BIT(ATTN_K_NORM),
     .optional = QKV_BIAS | BIT(ATTN_OUTPUT_BIAS)},
};

/* The keys that are read below, without their prefix "<architecture>.". */
static const char *const known_keys[] = {"block_count",
                                         "context_length",
                                         "embedding_length",
                                         "feed_forward_length",
                                         "attention.head_count",
                                         "attention.head_count_kv",
                                         "attention.key_length",
                                         "attention.value_length",
                                         "attention.layer_norm_rms_epsilon",
                                         "attention.sliding_window",
                                         "rope.freq_base",
                                         "rope.dimension_count",
                                         "rope.scale_linear", /* before rope.scaling.factor */
                                         "rope.scaling.type",
                                         "rope.scaling.factor",
                                         "rope.scaling.attn_factor",
                                         "rope.scaling.original_context_length",
                                         "rope.scaling.yarn_beta_fast",
                                         "rope.scaling.yarn_beta_slow",
                                         "rope.scaling.finetuned", /* changes nothing */
                                         "tensor_data_layout",     /* nor does this */
                                         "vocab_size"};

/* Keys of what is not read here, with the value that says that the model does not have it. */
static const struct {
    const char *suffix;
    double value;
} absent_keys[] = {{"attention.causal", 1},
                   {"attention.clamp_kqv", 0},
                   {"attention.max_alibi_bias", 0},
                   {"attn_logit_softcapping", 0},
                   {"embedding_scale", 1},
                   {"expert_count", 0},
                   {"expert_feed_forward_length", 0},
                   {"expert_group_count", 0},
                   {"expert_group_used_count", 0},
                   {"expert_shared_count", 0},
                   {"expert_used_count", 0},
                   {"final_logit_softcapping", 0},
                   {"leading_dense_block_count", 0},
                   {"logit_scale", 1},
                   {"pooling_type", 0},
                   {"residual_scale", 1},
                   {"use_parallel_residual", 0}};

/* Key text "<architecture>.<suffix>". */
typedef struct key_text {
    char text[80];
} key_text;

static key_text key_of(const tms_config *config, const char *suffix) {
    key_text key;
    snprintf(key.text, sizeof key.text, "%s.%s", config->architecture->name, suffix);
    return key;
}

static tamis_status read_architecture(const tms_gguf *gguf, tms_config *config,
                                      tamis_error *error) {
    tms_text name = {NULL, 0};
    TMS_TRY(tms_gguf_string(gguf, "general.architecture", &name, error));
    TMS_REQUIRE(name.at, TAMIS_E_FORMAT, "key 'general.architecture' is missing");
    for (size_t i = 0; i < sizeof architectures / sizeof architectures[0]; ++i) {
        if (!tms_text_is(name, architectures[i].name)) continue;
        config->architecture = &architectures[i];
        return TAMIS_OK;
    }
    return tms_model_fail(error, TAMIS_E_UNSUPPORTED,
                          "architecture '%s' is not known; llama, qwen2 and qwen3 are",
                          tms_text_show(name).text);
}

static bool is_known(tms_text suffix) {
    for (size_t i = 0; i < sizeof known_keys / sizeof known_keys[0]; ++i)
        if (tms_text_is(suffix, known_keys[i])) return true;
    return false;
}

/* A number or a bool that is the value of a model without what the key is for. */
static bool says_absent(const tms_gguf *gguf, const tms_config *config, tms_text suffix) {
    for (size_t i = 0; i < sizeof absent_keys / sizeof absent_keys[0]; ++i) {
        if (!tms_text_is(suffix, absent_keys[i].suffix)) continue;
        const key_text key = key_of(config, absent_keys[i].suffix);
        bool is = false;
        double value = NAN;
        if (tms_gguf_bool(gguf, key.text, &is, NULL) == TAMIS_OK)
            value = is;
        else
            (void)tms_gguf_f64(gguf, key.text, &value, NULL);
        return value == absent_keys[i].value;
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
        TMS_REQUIRE(is_known(suffix) || says_absent(gguf, config, suffix), TAMIS_E_UNSUPPORTED,
                    "key '%s' is not known and may change the computation",
                    tms_text_show(key).text);
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

/* Qwen's configuration has a window that holds in some layers, or in none, and the file does not say
 * in which. One that no text outgrows is none. */
static tamis_status read_window(const tms_gguf *gguf, tms_config *config, tamis_error *error) {
    const key_text key = key_of(config, "attention.sliding_window");
    TMS_TRY(tms_gguf_u32(gguf, key.text, &config->sliding_window, error));
    if (config->architecture->sliding_window) return TAMIS_OK;
    TMS_REQUIRE(config->sliding_window == 0 || config->sliding_window >= config->context,
                TAMIS_E_UNSUPPORTED, "key '%s' is %u; which layers have the window is not known",
                key.text, config->sliding_window);
    config->sliding_window = 0;
    return TAMIS_OK;
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
    TMS_REQUIRE(tms_rope_magnitude(rope) == 1 || config->n_rot == config->head_dim,
                TAMIS_E_UNSUPPORTED,
                "rope scaling multiplies queries and keys by %g, but %u of %u channels are rotated",
                tms_rope_magnitude(rope), config->n_rot, config->head_dim);
    return TAMIS_OK;
}

static tamis_status read_norm(const tms_gguf *gguf, tms_config *config, tamis_error *error) {
    key_text key = key_of(config, "attention.layer_norm_rms_epsilon");
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
    TMS_TRY(tms_gguf_string(gguf, "general.name", &name, error));
    TMS_TRY(read_sizes(gguf, out, error));
    TMS_TRY(read_heads(gguf, out, error));
    TMS_TRY(read_rope(gguf, out, error));
    TMS_TRY(read_norm(gguf, out, error));
    snprintf(out->name, sizeof out->name, "%s", tms_text_show(name).text);
    return TAMIS_OK;
}
