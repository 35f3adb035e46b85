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
    {.info = {"llama",
              "Llama 1 to 3.3, Mistral 7B and Nemo, SmolLM 1 and 2, Falcon 3, Yi, TinyLlama", NULL},
     .required = COMMON,
     .optional = QKV_BIAS | BIT(ATTN_OUTPUT_BIAS) | FFN_BIAS,
     .pairing = TAMIS_PAIR_ADJACENT,
     .keys = TMS_KEY_WINDOW,
     .rope_factors = true},
    {.info = {"qwen2", "Qwen 2 and 2.5", NULL}, .required = COMMON | QKV_BIAS},
    {.info = {"qwen3", "Qwen 3 without experts", NULL},
     .required = COMMON | HEAD_NORMS,
     .optional = QKV_BIAS | BIT(ATTN_OUTPUT_BIAS)},
    {.info = {"gemma", "Gemma 1, CodeGemma", NULL},
     .required = COMMON,
     .activation = TAMIS_GELU,
     .rooted = true},
    {.info = {"gemma2", "Gemma 2", NULL},
     .required = COMMON | POST_NORMS,
     .activation = TAMIS_GELU,
     .rooted = true,
     .keys = TMS_KEY_WINDOW | TMS_KEY_PATTERN | TMS_KEY_LOCAL_BASE | TMS_KEY_CAPS,
     .window = 4096,
     .pattern = 2,
     .attn_cap = 50,
     .logit_cap = 30,
     .wide = 46},
    {.info = {"gemma3", "Gemma 3, MedGemma", NULL},
     .required = COMMON | POST_NORMS | HEAD_NORMS,
     .activation = TAMIS_GELU,
     .rooted = true,
     .keys = TMS_KEY_WINDOW | TMS_KEY_PATTERN | TMS_KEY_LOCAL_BASE | TMS_KEY_CAPS,
     .pattern = 6,
     .local_base = 10000,
     .plain_locals = true,
     .wide = 62},
    {.info = {"phi3", "Phi 3, 3.5 mini, 4, 4 mini", NULL},
     .required = COMMON,
     .keys = TMS_KEY_WINDOW,
     .gate_in_up = true,
     .long_factors = true},
    {.info = {"chatglm", "GLM-4-9B-Chat, ChatGLM 3", NULL},
     .required = COMMON,
     .optional = QKV_BIAS,
     .pairing = TAMIS_PAIR_ADJACENT,
     .gate_in_up = true},
    {.info = {"glm4", "GLM-4-0414, GLM-Z1", NULL},
     .required = COMMON | POST_NORMS,
     .optional = QKV_BIAS,
     .pairing = TAMIS_PAIR_ADJACENT,
     .gate_in_up = true},
    {.info = {"olmo2", "OLMo 2 and 3", NULL},
     .untied = true,
     .required = ATTN | GATED_FFN | POST_NORMS | BIT(ATTN_Q_ROW_NORM) | BIT(ATTN_K_ROW_NORM),
     .keys = TMS_KEY_WINDOW | TMS_KEY_PATTERN,
     .ignored = TMS_KEY_LOCAL_BASE,
     .pattern = 4,
     .plain_locals = true},
    {.info = {"granite", "Granite 3, and 4 without state spaces", NULL},
     .required = COMMON,
     .optional = QKV_BIAS | BIT(ATTN_OUTPUT_BIAS) | FFN_BIAS,
     .pairing = TAMIS_PAIR_ADJACENT,
     .keys = TMS_KEY_SCALES | TMS_KEY_LOGIT_SCALE | TMS_KEY_FINETUNED,
     .ignored = TMS_KEY_STATE,
     .required_keys = TMS_KEY_LOGIT_SCALE,
     .divided = true,
     .rope_factors = true},
    {.info = {"smollm3", "SmolLM 3", NULL},
     .required = COMMON,
     .optional = QKV_BIAS,
     .pairing = TAMIS_PAIR_ADJACENT,
     .unrotated = TMS_UNROTATED_FOURTH},
    {.info = {"starcoder2", "StarCoder 2", NULL},
     .required =
         INPUT_NORMS | NORM_BIAS | ATTN | QKV_BIAS | BIT(ATTN_OUTPUT_BIAS) | PLAIN_FFN | PLAIN_BIAS,
     .norm = TAMIS_NORM_LAYER,
     .activation = TAMIS_GELU,
     .plain_ffn = true},
    {.info = {"exaone", "EXAONE 3 and 3.5", NULL},
     .required = COMMON,
     .optional = QKV_BIAS,
     .rope_factors = true},
    {.info = {"exaone4", "EXAONE 4", NULL},
     .required = ATTN | GATED_FFN | POST_NORMS | HEAD_NORMS,
     .keys = TMS_KEY_WINDOW | TMS_KEY_PATTERN,
     .ignored = TMS_KEY_LOCAL_BASE,
     .pattern = 4,
     .unrotated = TMS_UNROTATED_GLOBAL,
     .rope_factors = true},
    {.info = {"internlm2", "InternLM 2 and 2.5", NULL},
     .untied = true,
     .required = COMMON,
     .optional = QKV_BIAS,
     .pairing = TAMIS_PAIR_ADJACENT},
    {.info = {"command-r", "Command R, Aya (not Command R+)", NULL},
     .required = BIT(ATTN_NORM) | ATTN | GATED_FFN,
     .optional = QKV_BIAS,
     .pairing = TAMIS_PAIR_ADJACENT,
     .norm = TAMIS_NORM_LAYER,
     .keys = TMS_KEY_LOGIT_SCALE,
     .parallel = true},
    {.info = {"cohere2", "Command R7B, Command A", NULL},
     .required = BIT(ATTN_NORM) | ATTN | GATED_FFN,
     .optional = QKV_BIAS,
     .pairing = TAMIS_PAIR_ADJACENT,
     .norm = TAMIS_NORM_LAYER,
     .keys = TMS_KEY_LOGIT_SCALE | TMS_KEY_WINDOW | TMS_KEY_PATTERN,
     .ignored = TMS_KEY_LOCAL_BASE,
     .required_keys = TMS_KEY_WINDOW | TMS_KEY_LOGIT_SCALE,
     .pattern = 4,
     .unrotated = TMS_UNROTATED_GLOBAL,
     .parallel = true},
    {.info = {"stablelm", "StableLM 2 1.6B, Zephyr 3B (not 12B)", NULL},
     .untied = true,
     .required = BIT(ATTN_NORM) | BIT(ATTN_NORM_BIAS) | ATTN | GATED_FFN,
     .optional = QKV_BIAS | BIT(FFN_NORM) | BIT(FFN_NORM_BIAS),
     .norm = TAMIS_NORM_LAYER,
     .ignored = TMS_KEY_PARALLEL,
     .parallel = true},
    {.info = {"phi2", "Phi 1, 1.5, 2", NULL},
     .untied = true,
     .required = BIT(ATTN_NORM) | BIT(ATTN_NORM_BIAS) | ATTN | QKV_BIAS | BIT(ATTN_OUTPUT_BIAS) |
                 PLAIN_FFN | PLAIN_BIAS,
     .norm = TAMIS_NORM_LAYER,
     .activation = TAMIS_GELU,
     .plain_ffn = true,
     .parallel = true,
     .output_bias = true},
    {.info = {"gptneox", "Pythia, RedPajama", NULL},
     .required =
         INPUT_NORMS | NORM_BIAS | ATTN | QKV_BIAS | BIT(ATTN_OUTPUT_BIAS) | PLAIN_FFN | PLAIN_BIAS,
     .norm = TAMIS_NORM_LAYER,
     .activation = TAMIS_GELU,
     .keys = TMS_KEY_PARALLEL,
     .required_keys = TMS_KEY_PARALLEL,
     .untied = true,
     .plain_ffn = true},
    {.info = {"orion", "Orion", NULL},
     .untied = true,
     .required = COMMON | NORM_BIAS,
     .optional = QKV_BIAS,
     .norm = TAMIS_NORM_LAYER},
    {.info = {"xverse", "XVERSE", NULL},
     .untied = true,
     .required = COMMON,
     .pairing = TAMIS_PAIR_ADJACENT},
    {.info = {"seed_oss", "Seed-OSS", NULL},
     .required = COMMON,
     .optional = QKV_BIAS | BIT(ATTN_OUTPUT_BIAS),
     .ffn_norm = "post_attention_norm.weight"},
    {.info = {"ernie4_5", "ERNIE 4.5 0.3B", NULL},
     .required = COMMON,
     .optional = QKV_BIAS | BIT(ATTN_OUTPUT_BIAS),
     .pairing = TAMIS_PAIR_ADJACENT},
    {.info = {"minicpm", "MiniCPM 1, 2 and 4", NULL},
     .required = COMMON,
     .optional = QKV_BIAS | BIT(ATTN_OUTPUT_BIAS) | FFN_BIAS,
     .pairing = TAMIS_PAIR_ADJACENT,
     .keys = TMS_KEY_SCALES | TMS_KEY_LOGIT_SCALE,
     .divided = true,
     .rope_factors = true,
     .long_factors = true,
     .embed_scale = 12,
     .depth_scale = 1.4,
     .logit_width = 256},
};
#define N_ARCHITECTURES (sizeof architectures / sizeof *architectures)

#define EXPERTS   "has a mixture of experts"
#define HYBRID    "has layers of a state space or of linear attention"
#define LATENT    "has latent attention"
#define ENCODER   "is an encoder, or has one"
#define PLACES    "has learned positions or ALiBi in the place of a rotation"
#define SHARED    "has embeddings by layer, or layers that share keys and values"
#define SQUARED   "has a feed-forward of squared ReLU"
#define LATER     "has head norms behind the rotation"
#define SECTIONS  "rotates by sections, for pictures"
#define CONVOLVED "has layers of short convolutions"
#define DIFFUSION "attends in both directions"
#define OTHER     "has a computation of its own that is not known here"

static const tamis_architecture_info refused[] = {
    {"qwen2moe", "Qwen 1.5 MoE, Qwen 2 57B", EXPERTS},
    {"qwen3moe", "Qwen 3 30B-A3B and 235B-A22B", EXPERTS},
    {"gpt-oss", "gpt-oss 20B and 120B", EXPERTS},
    {"llama4", "Llama 4", EXPERTS},
    {"phimoe", "Phi 3.5 MoE", EXPERTS},
    {"glm4moe", "GLM-4.5, GLM-4.5-Air", EXPERTS},
    {"granitemoe", "Granite 3 MoE", EXPERTS},
    {"grok", "Grok 1 and 2", EXPERTS},
    {"dbrx", "DBRX", EXPERTS},
    {"olmoe", "OLMoE", EXPERTS},
    {"qwen3vlmoe", "Qwen 3 VL MoE", EXPERTS},
    {"deepseek", "DeepSeek MoE 16B", EXPERTS},
    {"ernie4_5-moe", "ERNIE 4.5 MoE", EXPERTS},
    {"hunyuan-moe", "Hunyuan A13B", EXPERTS},
    {"minimax-m2", "MiniMax M2", EXPERTS},
    {"smallthinker", "SmallThinker", EXPERTS},
    {"grovemoe", "GroveMoE", EXPERTS},
    {"afmoe", "Trinity", EXPERTS},
    {"cohere2moe", "", EXPERTS},
    {"exaone-moe", "", EXPERTS},
    {"mimo2", "", EXPERTS},
    {"arctic", "Snowflake Arctic", EXPERTS},
    {"bailingmoe", "Ling", EXPERTS},
    {"bailingmoe2", "Ling 2", EXPERTS},
    {"dots1", "dots.llm1", EXPERTS},
    {"deepseek2", "DeepSeek V2 and V3, R1, Kimi K2", LATENT},
    {"deepseek32", "DeepSeek V3.2", LATENT},
    {"minicpm3", "MiniCPM 3", LATENT},
    {"plm", "PLM", LATENT},
    {"mistral4", "", LATENT},
    {"glm-dsa", "", LATENT},
    {"qwen3next", "Qwen 3 Next", HYBRID},
    {"qwen35", "Qwen 3.5", HYBRID},
    {"qwen35moe", "Qwen 3.5 MoE", HYBRID},
    {"granitehybrid", "Granite 4 with state spaces", HYBRID},
    {"nemotron_h", "Nemotron-H, Nemotron Nano 2", HYBRID},
    {"nemotron_h_moe", "", HYBRID},
    {"mamba", "Mamba", HYBRID},
    {"mamba2", "Mamba 2", HYBRID},
    {"jamba", "Jamba", HYBRID},
    {"falcon-h1", "Falcon-H1", HYBRID},
    {"plamo2", "PLaMo 2", HYBRID},
    {"kimi-linear", "Kimi Linear", HYBRID},
    {"rwkv6", "RWKV 6", HYBRID},
    {"rwkv6qwen2", "QRWKV", HYBRID},
    {"rwkv7", "RWKV 7", HYBRID},
    {"arwkv7", "ARWKV 7", HYBRID},
    {"lfm2", "LFM 2", CONVOLVED},
    {"lfm2moe", "LFM 2 MoE", CONVOLVED},
    {"minimax-01", "MiniMax 01", HYBRID},
    {"bert", "BERT and embedding models", ENCODER},
    {"modern-bert", "ModernBERT", ENCODER},
    {"nomic-bert", "Nomic Embed", ENCODER},
    {"nomic-bert-moe", "", ENCODER},
    {"neo-bert", "NeoBERT", ENCODER},
    {"jina-bert-v2", "Jina Embeddings 2", ENCODER},
    {"jina-bert-v3", "Jina Embeddings 3", ENCODER},
    {"eurobert", "EuroBERT", ENCODER},
    {"gemma-embedding", "EmbeddingGemma", ENCODER},
    {"llama-embed", "", ENCODER},
    {"t5", "T5, Flan", ENCODER},
    {"t5encoder", "", ENCODER},
    {"gpt2", "GPT-2", PLACES},
    {"gptj", "GPT-J", OTHER},
    {"mpt", "MPT", PLACES},
    {"starcoder", "StarCoder 1", PLACES},
    {"refact", "Refact", PLACES},
    {"bloom", "BLOOM", PLACES},
    {"jais", "Jais", PLACES},
    {"baichuan", "Baichuan 2", "has ALiBi in its larger models"},
    {"gemma3n", "Gemma 3n", SHARED},
    {"gemma4", "Gemma 4", SHARED},
    {"nemotron", "Nemotron 3 and 4, Minitron", SQUARED},
    {"arcee", "AFM 4.5B", SQUARED},
    {"jais2", "Jais 2", SQUARED},
    {"hunyuan-dense", "Hunyuan 0.5B to 7B", LATER},
    {"maincoder", "Maincoder", LATER},
    {"qwen2vl", "Qwen 2 VL and 2.5 VL", SECTIONS},
    {"qwen3vl", "Qwen 3 VL", SECTIONS},
    {"paddleocr", "PaddleOCR VL", SECTIONS},
    {"clip", "readers of pictures", "is the reader of pictures of another model"},
    {"mistral3", "Ministral 3, Mistral Small 3.2", "scales queries by their position"},
    {"falcon", "Falcon 1 and 2",
     "has groups of up to 71 heads, and in some models two norms of the same rows"},
    {"olmo", "OLMo 1", "has norms without weights, and clamps queries, keys and values"},
    {"deci", "Nemotron Super, Nano", "may have layers without attention"},
    {"openelm", "OpenELM", "has layers of different widths"},
    {"bitnet", "BitNet", "has ternary weights with scales of their own"},
    {"apertus", "Apertus", OTHER},
    {"plamo", "PLaMo 1", OTHER},
    {"plamo3", "PLaMo 3", OTHER},
    {"codeshell", "CodeShell", OTHER},
    {"qwen", "Qwen 1", OTHER},
    {"chameleon", "Chameleon", OTHER},
    {"cogvlm", "CogVLM", OTHER},
    {"dream", "Dream", DIFFUSION},
    {"llada", "LLaDA", DIFFUSION},
};
#define N_REFUSED (sizeof refused / sizeof *refused)

static bool is(const char *name, size_t bytes, const char *word) {
    return strlen(word) == bytes && memcmp(name, word, bytes) == 0;
}

const tms_architecture *tms_architecture_find(const char *name, size_t bytes) {
    for (size_t i = 0; i < N_ARCHITECTURES; ++i)
        if (is(name, bytes, architectures[i].info.name)) return &architectures[i];
    return NULL;
}

const char *tms_architecture_refused(const char *name, size_t bytes) {
    for (size_t i = 0; i < N_REFUSED; ++i)
        if (is(name, bytes, refused[i].name)) return refused[i].refused;
    return NULL;
}

const tamis_architecture_info *tamis_architecture_describe(uint32_t i) {
    if (i < N_ARCHITECTURES) return &architectures[i].info;
    return i - N_ARCHITECTURES < N_REFUSED ? &refused[i - N_ARCHITECTURES] : NULL;
}
