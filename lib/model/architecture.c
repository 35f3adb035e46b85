/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of architectures. Names of keys and tensors, and what models compute, are those of
 * llama.cpp. A new one is a row here, a random model of it in tests/model/make_models.py, and its name
 * in tests/model/families.c; see CONTRIBUTING.md. */
#include "lib/model/architecture.h"

#include <string.h>

#define BIT(weight) (1u << TMS_##weight)
#define ATTN        (BIT(ATTN_Q) | BIT(ATTN_K) | BIT(ATTN_V) | BIT(ATTN_OUTPUT))
#define QKV_BIAS    (BIT(ATTN_Q_BIAS) | BIT(ATTN_K_BIAS) | BIT(ATTN_V_BIAS))
#define HEAD_NORMS  (BIT(ATTN_Q_NORM) | BIT(ATTN_K_NORM))
#define POST_NORMS  (BIT(POST_ATTN_NORM) | BIT(POST_FFN_NORM))
#define NORM_BIAS   (BIT(ATTN_NORM_BIAS) | BIT(FFN_NORM_BIAS))
#define GATED_FFN   (BIT(FFN_GATE) | BIT(FFN_UP) | BIT(FFN_DOWN))
#define PLAIN_FFN   (BIT(FFN_UP) | BIT(FFN_DOWN))
#define PLAIN_BIAS  (BIT(FFN_UP_BIAS) | BIT(FFN_DOWN_BIAS))
#define FFN_BIAS    (BIT(FFN_GATE_BIAS) | PLAIN_BIAS)
#define INPUT_NORMS (BIT(ATTN_NORM) | BIT(FFN_NORM))
/* What most layers have. */
#define COMMON (INPUT_NORMS | ATTN | GATED_FFN)

static const tms_architecture architectures[] = {
    /* The converter permutes its rows of W_q and W_k so that the two channels of a pair are adjacent. */
    {.name = "llama",
     .models = "Llama 1 to 3.3, Mistral 7B and Nemo, SmolLM 1 and 2, Falcon 3, Yi, TinyLlama",
     .required = COMMON,
     .optional = QKV_BIAS | BIT(ATTN_OUTPUT_BIAS) | FFN_BIAS,
     .pairing = TAMIS_PAIR_ADJACENT,
     .keys = TMS_KEY_WINDOW,
     .rope_factors = true},
    {.name = "qwen2", .models = "Qwen 2 and 2.5", .required = COMMON | QKV_BIAS},
    {.name = "qwen3",
     .models = "Qwen 3 without experts",
     .required = COMMON | HEAD_NORMS,
     .optional = QKV_BIAS | BIT(ATTN_OUTPUT_BIAS)},
    {.name = "gemma",
     .models = "Gemma 1, CodeGemma",
     .required = COMMON,
     .activation = TAMIS_GELU,
     .rooted = true},
    {.name = "gemma2",
     .models = "Gemma 2",
     .required = COMMON | POST_NORMS,
     .activation = TAMIS_GELU,
     .rooted = true,
     .keys = TMS_KEY_WINDOW | TMS_KEY_PATTERN | TMS_KEY_LOCAL_BASE | TMS_KEY_CAPS,
     .window = 4096,
     .pattern = 2,
     .attn_cap = 50,
     .logit_cap = 30,
     .wide = 46},
    {.name = "gemma3",
     .models = "Gemma 3, MedGemma",
     .required = COMMON | POST_NORMS | HEAD_NORMS,
     .activation = TAMIS_GELU,
     .rooted = true,
     .keys = TMS_KEY_WINDOW | TMS_KEY_PATTERN | TMS_KEY_LOCAL_BASE | TMS_KEY_CAPS,
     .pattern = 6,
     .local_base = 10000,
     .plain_locals = true,
     .wide = 62},
    {.name = "phi3",
     .models = "Phi 3, 3.5 mini, 4",
     .required = COMMON,
     .keys = TMS_KEY_WINDOW,
     .gate_in_up = true,
     .long_factors = true},
    {.name = "chatglm",
     .models = "GLM-4-9B-Chat, ChatGLM 3",
     .required = COMMON,
     .optional = QKV_BIAS,
     .pairing = TAMIS_PAIR_ADJACENT,
     .gate_in_up = true},
    {.name = "glm4",
     .models = "GLM-4-0414, GLM-Z1",
     .required = COMMON | POST_NORMS,
     .optional = QKV_BIAS,
     .pairing = TAMIS_PAIR_ADJACENT,
     .gate_in_up = true},
    {.name = "olmo2",
     .models = "OLMo 2 and 3",
     .required = ATTN | GATED_FFN | POST_NORMS | BIT(ATTN_Q_ROW_NORM) | BIT(ATTN_K_ROW_NORM),
     .keys = TMS_KEY_WINDOW | TMS_KEY_PATTERN,
     .ignored = TMS_KEY_LOCAL_BASE,
     .pattern = 4,
     .plain_locals = true},
    {.name = "granite",
     .models = "Granite 3, and 4 without state spaces",
     .required = COMMON,
     .optional = QKV_BIAS | BIT(ATTN_OUTPUT_BIAS) | FFN_BIAS,
     .pairing = TAMIS_PAIR_ADJACENT,
     .keys = TMS_KEY_SCALES | TMS_KEY_LOGIT_SCALE | TMS_KEY_FINETUNED,
     .divided = true,
     .rope_factors = true},
    {.name = "smollm3",
     .models = "SmolLM 3",
     .required = COMMON,
     .optional = QKV_BIAS,
     .pairing = TAMIS_PAIR_ADJACENT,
     .unrotated = TMS_UNROTATED_FOURTH},
    {.name = "starcoder2",
     .models = "StarCoder 2",
     .required =
         INPUT_NORMS | NORM_BIAS | ATTN | QKV_BIAS | BIT(ATTN_OUTPUT_BIAS) | PLAIN_FFN | PLAIN_BIAS,
     .norm = TAMIS_NORM_LAYER,
     .activation = TAMIS_GELU,
     .plain_ffn = true},
    {.name = "exaone",
     .models = "EXAONE 3 and 3.5",
     .required = COMMON,
     .optional = QKV_BIAS,
     .rope_factors = true},
    {.name = "exaone4",
     .models = "EXAONE 4",
     .required = ATTN | GATED_FFN | POST_NORMS | HEAD_NORMS,
     .keys = TMS_KEY_WINDOW | TMS_KEY_PATTERN,
     .ignored = TMS_KEY_LOCAL_BASE,
     .pattern = 4,
     .unrotated = TMS_UNROTATED_GLOBAL,
     .rope_factors = true},
    {.name = "internlm2",
     .models = "InternLM 2 and 2.5",
     .required = COMMON,
     .optional = QKV_BIAS,
     .pairing = TAMIS_PAIR_ADJACENT},
    {.name = "command-r",
     .models = "Command R, Aya (not Command R+)",
     .required = BIT(ATTN_NORM) | ATTN | GATED_FFN,
     .optional = QKV_BIAS,
     .pairing = TAMIS_PAIR_ADJACENT,
     .norm = TAMIS_NORM_LAYER,
     .keys = TMS_KEY_LOGIT_SCALE,
     .parallel = true},
    {.name = "cohere2",
     .models = "Command R7B, Command A",
     .required = BIT(ATTN_NORM) | ATTN | GATED_FFN,
     .optional = QKV_BIAS,
     .pairing = TAMIS_PAIR_ADJACENT,
     .norm = TAMIS_NORM_LAYER,
     .keys = TMS_KEY_LOGIT_SCALE | TMS_KEY_WINDOW | TMS_KEY_PATTERN,
     .ignored = TMS_KEY_LOCAL_BASE,
     .window_required = true,
     .pattern = 4,
     .unrotated = TMS_UNROTATED_GLOBAL,
     .parallel = true},
    {.name = "stablelm",
     .models = "StableLM 2 1.6B, Zephyr 3B (not 12B)",
     .required = BIT(ATTN_NORM) | BIT(ATTN_NORM_BIAS) | ATTN | GATED_FFN,
     .optional = QKV_BIAS | BIT(FFN_NORM) | BIT(FFN_NORM_BIAS),
     .norm = TAMIS_NORM_LAYER,
     .ignored = TMS_KEY_PARALLEL,
     .parallel = true},
    {.name = "phi2",
     .models = "Phi 1, 1.5, 2",
     .required = BIT(ATTN_NORM) | BIT(ATTN_NORM_BIAS) | ATTN | QKV_BIAS | BIT(ATTN_OUTPUT_BIAS) |
                 PLAIN_FFN | PLAIN_BIAS,
     .norm = TAMIS_NORM_LAYER,
     .activation = TAMIS_GELU,
     .plain_ffn = true,
     .parallel = true,
     .output_bias = true},
    {.name = "gptneox",
     .models = "Pythia, RedPajama",
     .required =
         INPUT_NORMS | NORM_BIAS | ATTN | QKV_BIAS | BIT(ATTN_OUTPUT_BIAS) | PLAIN_FFN | PLAIN_BIAS,
     .norm = TAMIS_NORM_LAYER,
     .activation = TAMIS_GELU,
     .keys = TMS_KEY_PARALLEL,
     .plain_ffn = true},
    {.name = "orion",
     .models = "Orion",
     .required = COMMON | NORM_BIAS,
     .optional = QKV_BIAS,
     .norm = TAMIS_NORM_LAYER},
    {.name = "xverse", .models = "XVERSE", .required = COMMON, .pairing = TAMIS_PAIR_ADJACENT},
    {.name = "seed_oss",
     .models = "Seed-OSS",
     .required = COMMON,
     .optional = QKV_BIAS | BIT(ATTN_OUTPUT_BIAS),
     .ffn_norm = "post_attention_norm.weight"},
    {.name = "ernie4_5",
     .models = "ERNIE 4.5 0.3B",
     .required = COMMON,
     .optional = QKV_BIAS | BIT(ATTN_OUTPUT_BIAS),
     .pairing = TAMIS_PAIR_ADJACENT},
};
#define N_ARCHITECTURES (sizeof architectures / sizeof *architectures)

#define EXPERTS "has a mixture of experts"
#define HYBRID  "has layers of a state space or of linear attention"
#define LATENT  "has latent attention"
#define ENCODER "is an encoder, or has one"
#define PLACES  "has learned positions or ALiBi in the place of a rotation"
#define PARTS   "has embeddings by layer, or layers that share keys and values"
#define SQUARED "has a feed-forward of squared ReLU"
#define LATER   "has head norms behind the rotation"
#define MROPE   "rotates by sections, for pictures"
#define VISION  "is the reader of pictures of another model"
#define OTHER   "has a computation of its own that is not known here"

static const struct {
    const char *name, *why;
} refused[] = {
    {"llama4", EXPERTS},
    {"grok", EXPERTS},
    {"dbrx", EXPERTS},
    {"qwen2moe", EXPERTS},
    {"qwen3moe", EXPERTS},
    {"qwen3vlmoe", EXPERTS},
    {"phimoe", EXPERTS},
    {"olmoe", EXPERTS},
    {"granitemoe", EXPERTS},
    {"glm4moe", EXPERTS},
    {"gpt-oss", EXPERTS},
    {"deepseek", EXPERTS},
    {"arctic", EXPERTS},
    {"bailingmoe", EXPERTS},
    {"bailingmoe2", EXPERTS},
    {"dots1", EXPERTS},
    {"ernie4_5-moe", EXPERTS},
    {"hunyuan-moe", EXPERTS},
    {"smallthinker", EXPERTS},
    {"grovemoe", EXPERTS},
    {"afmoe", EXPERTS},
    {"cohere2moe", EXPERTS},
    {"minimax-m2", EXPERTS},
    {"mimo2", EXPERTS},
    {"exaone-moe", EXPERTS},
    {"deepseek2", LATENT},
    {"deepseek32", LATENT},
    {"minicpm3", LATENT},
    {"plm", LATENT},
    {"mistral4", LATENT},
    {"glm-dsa", LATENT},
    {"mamba", HYBRID},
    {"mamba2", HYBRID},
    {"jamba", HYBRID},
    {"falcon-h1", HYBRID},
    {"granitehybrid", HYBRID},
    {"nemotron_h", HYBRID},
    {"nemotron_h_moe", HYBRID},
    {"plamo2", HYBRID},
    {"qwen3next", HYBRID},
    {"qwen35", HYBRID},
    {"qwen35moe", HYBRID},
    {"kimi-linear", HYBRID},
    {"rwkv6", HYBRID},
    {"rwkv6qwen2", HYBRID},
    {"rwkv7", HYBRID},
    {"arwkv7", HYBRID},
    {"lfm2", HYBRID},
    {"lfm2moe", HYBRID},
    {"minimax-01", HYBRID},
    {"bert", ENCODER},
    {"modern-bert", ENCODER},
    {"nomic-bert", ENCODER},
    {"nomic-bert-moe", ENCODER},
    {"neo-bert", ENCODER},
    {"jina-bert-v2", ENCODER},
    {"jina-bert-v3", ENCODER},
    {"eurobert", ENCODER},
    {"gemma-embedding", ENCODER},
    {"llama-embed", ENCODER},
    {"t5", ENCODER},
    {"t5encoder", ENCODER},
    {"gpt2", PLACES},
    {"gptj", PLACES},
    {"mpt", PLACES},
    {"starcoder", PLACES},
    {"refact", PLACES},
    {"bloom", PLACES},
    {"jais", PLACES},
    {"baichuan", PLACES},
    {"gemma3n", PARTS},
    {"gemma4", PARTS},
    {"nemotron", SQUARED},
    {"arcee", SQUARED},
    {"jais2", SQUARED},
    {"hunyuan-dense", LATER},
    {"maincoder", LATER},
    {"qwen2vl", MROPE},
    {"qwen3vl", MROPE},
    {"paddleocr", MROPE},
    {"clip", VISION},
    {"mistral3", "scales queries by their position"},
    {"falcon", "has groups of up to 71 heads, and in some models two norms of the same rows"},
    {"olmo", "has norms without weights and clamped keys"},
    {"minicpm", "has scales that its files leave out"},
    {"deci", "may have layers without attention"},
    {"openelm", "has layers of different widths"},
    {"bitnet", "has ternary weights with scales of their own"},
    {"apertus", OTHER},
    {"plamo", OTHER},
    {"plamo3", OTHER},
    {"codeshell", OTHER},
    {"qwen", OTHER},
    {"chameleon", OTHER},
    {"cogvlm", OTHER},
    {"dream", OTHER},
    {"llada", OTHER},
};

static bool is(const char *name, size_t bytes, const char *word) {
    return strlen(word) == bytes && memcmp(name, word, bytes) == 0;
}

const tms_architecture *tms_architecture_find(const char *name, size_t bytes) {
    for (size_t i = 0; i < N_ARCHITECTURES; ++i)
        if (is(name, bytes, architectures[i].name)) return &architectures[i];
    return NULL;
}

const tms_architecture *tms_architecture_at(uint32_t i) {
    return i < N_ARCHITECTURES ? &architectures[i] : NULL;
}

const char *tms_architecture_refused(const char *name, size_t bytes) {
    for (size_t i = 0; i < sizeof refused / sizeof *refused; ++i)
        if (is(name, bytes, refused[i].name)) return refused[i].why;
    return NULL;
}
