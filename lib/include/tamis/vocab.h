/* SPDX-License-Identifier: Apache-2.0 */
/* A vocabulary from a GGUF file: text to tokens, and tokens to bytes. Of libtamis_model. */
#ifndef TAMIS_VOCAB_H
#define TAMIS_VOCAB_H

#include <stddef.h>
#include <stdint.h>
#include <tamis/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Thread-safety: a vocabulary never changes. Any number of threads may use it at a time, whatever
 * its model and its context do. */
typedef struct tamis_vocab tamis_vocab;

typedef enum tamis_vocab_kind {
    TAMIS_VOCAB_BYTES = 0, /* gpt2 without merges: each token is one byte */
    TAMIS_VOCAB_BPE = 1,   /* gpt2: a pattern cuts the text, merges join the bytes of each piece */
    TAMIS_VOCAB_SPM = 2    /* llama (SentencePiece): scores join characters; others come as bytes */
} tamis_vocab_kind;

/* As GGUF numbers them. */
typedef enum tamis_token_kind {
    TAMIS_TOKEN_UNDEFINED = 0,
    TAMIS_TOKEN_NORMAL = 1,
    TAMIS_TOKEN_UNKNOWN = 2,
    TAMIS_TOKEN_CONTROL = 3,
    TAMIS_TOKEN_USER_DEFINED = 4,
    TAMIS_TOKEN_UNUSED = 5,
    TAMIS_TOKEN_BYTE = 6
} tamis_token_kind;

typedef struct tamis_vocab_info {
    tamis_vocab_kind kind;
    uint32_t n_tokens, n_merges;
    char pattern[32]; /* what cuts the text, as the file names it; empty for none */
    /* Tokens; -1: the file names none. eot ends a turn, where that is not eos. */
    int32_t bos, eos, eot, unknown, padding;
    uint8_t add_bos, add_eos; /* what the file wants around every text */
    uint8_t add_space_prefix; /* SPM: a space before text at the start and behind special tokens */
    uint64_t reserved[8];
} tamis_vocab_info;

/* The patterns that are read, by the names that files give them (tokenizer.ggml.pre). Those up to
 * a semicolon cut alike:
 *   gpt-2, phi-2, mpt, olmo, jais, trillion, exaone4, gigachat, a.x-4.0, mellum, granite-docling,
 *     jina-es, jina-de, jina-v1-en, roberta-bpe;
 *   smollm, starcoder, refact, command-r, codeshell, exaone, minerva-7b, mellum2;
 *   llama-bpe, llama3, llama-v3, falcon3, falcon-h1, pixtral, midm-2.0, lfm2, jina-v5-nano, glm4,
 *     glm5, chatglm-bpe, smaug-bpe, dbrx;
 *   qwen2, deepseek-r1-qwen, megrez, kormo, f2llmv2, stablelm2, hunyuan, solar-open, grok-2,
 *     bailingmoe, bailingmoe2, llada-moe;
 *   gpt-4o, llama4, kanana2, talkie, minimax-m2;
 *   deepseek-v3, hunyuan-dense, joyai-llm, hy_v4;
 *   bloom, poro-chat, gpt3-finnish;
 *   tiny_aya, cohere2moe;
 *   and by themselves default, falcon, tekken, qwen35, deepseek-llm, deepseek-coder, kimi-k2, afmoe,
 *   exaone-moe, minicpm5, seed-coder, ufakzeka, laguna, youtu, spark2_5, jais-2, viking, chameleon,
 *   granite-embed-multi-97m. */

/* Reads the vocabulary of a GGUF file, v2 or v3, nothing else of it: weights of any type may
 * follow, and no device is needed. Of a model in parts `path` names any part. The file is treated as
 * hostile. Errors: E_IO; E_FORMAT (truncated, contradicting itself: a merge that names no token, a
 * token that stands twice, scores missing) and E_UNSUPPORTED (tokenizer, pattern, a pattern in a
 * library without PCRE2) with the offending value; E_NO_MEMORY; *out is then NULL. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_vocab_load(const char *path, tamis_vocab **out,
                                                         tamis_error *error);
TAMIS_API void tamis_vocab_destroy(tamis_vocab **vocab);
/* Owned by the vocabulary; NULL for NULL. */
TAMIS_API const tamis_vocab_info *tamis_vocab_describe(const tamis_vocab *vocab);

/* What the file says of its tokens and is ignored, in one line, as a padding token outside the
 * vocabulary. Owned by the vocabulary; NULL: nothing, or there is no vocabulary. */
TAMIS_API const char *tamis_vocab_warning(const tamis_vocab *vocab);

/* Flags of tamis_vocab_encode. Without any, the tokens are those of the text alone: what a user has
 * typed can then be no control token. */
enum {
    /* bos before the text, where the file wants it. */
    TAMIS_ENCODE_ADD_BOS = 1,
    /* Text of a control token, as <|im_end|>, is that token. For the text of a chat template. */
    TAMIS_ENCODE_PARSE_SPECIAL = 2,
    /* Bytes for which the vocabulary has no token are left out; otherwise they are an error. */
    TAMIS_ENCODE_SKIP_MISSING = 4,
    /* eos behind the text, where the file wants it. Not for text that goes on, as with an answer. */
    TAMIS_ENCODE_ADD_EOS = 8
};

/* Text to tokens, as llama.cpp cuts it. Writes at most `capacity` tokens and the full number to
 * *count, so that a first call without room tells how much the second needs. User-defined tokens are
 * found in any text. White space behind special tokens is left out where general.name has Phi-3 or
 * phi3 in it. Under BPE what is no UTF-8 is taken byte by byte as U+FFFD; SPM and single bytes keep
 * it as it is. Letters and digits are those of Unicode as the installed PCRE2 knows it.
 * Time: n log n for a given vocabulary; memory: at most 256 bytes for each byte of the text.
 * Errors: E_ARGUMENT (unknown flags, 2^30 bytes or more, a byte that the vocabulary lacks, with its
 * place), E_NO_MEMORY; tokens and *count are then as they were. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_vocab_encode(const tamis_vocab *vocab,
                                                           const char *text, size_t bytes,
                                                           uint32_t flags, int32_t *tokens,
                                                           size_t capacity, size_t *count,
                                                           tamis_error *error);

/* The file's chat template (tokenizer.chat_template), NUL-terminated and not interpreted. Owned by
 * the vocabulary; NULL: the file has none, or there is no vocabulary. */
TAMIS_API const char *tamis_vocab_chat_template(const tamis_vocab *vocab);

/* The bytes of one token; *bytes is their number; not NUL-terminated. They may be a part of a UTF-8
 * character. A control token has the text that the file gives it. Owned by the vocabulary; NULL for
 * an id outside it, for no vocabulary and without `bytes`. */
TAMIS_API const char *tamis_vocab_token_text(const tamis_vocab *vocab, int32_t token,
                                             size_t *bytes);
/* UNDEFINED for an id outside the vocabulary and for no vocabulary. */
TAMIS_API tamis_token_kind tamis_vocab_token_kind(const tamis_vocab *vocab, int32_t token);
/* The control, unknown or user-defined token with this text, as <|im_start|>; -1: there is none. */
TAMIS_API int32_t tamis_vocab_find_special(const tamis_vocab *vocab, const char *text,
                                           size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
