/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls of a vocabulary: text to tokens, and tokens to bytes. */
#include "lib/model/parts.h"
#include "lib/model/utf8.h"
#include "lib/model/vocab.h"

#include <stdlib.h>
#include <string.h>

#define ALL_FLAGS                                                                                  \
    (TAMIS_ENCODE_ADD_BOS | TAMIS_ENCODE_PARSE_SPECIAL | TAMIS_ENCODE_SKIP_MISSING |               \
     TAMIS_ENCODE_ADD_EOS)
#define MAX_BYTES 0x3fffffffu /* what BPE and SPM make of them, 3 bytes a byte, has 32-bit places */

/* One text on its way. */
typedef struct encoder {
    const tms_vocab *vocab;
    uint32_t flags;
    const char *text;
    int32_t *tokens; /* what has come of it so far */
    size_t count, capacity;
    tms_merger merger;
    tms_cutter cutter;
} encoder;

static tamis_status no_memory(tamis_error *error) {
    return tms_model_fail(error, TAMIS_E_NO_MEMORY, "no memory to encode a text");
}

static tamis_status put(encoder *e, int32_t token, tamis_error *error) {
    if (e->count == e->capacity) {
        const size_t capacity = 2 * e->capacity + 64;
        int32_t *larger = realloc(e->tokens, capacity * sizeof *larger);
        if (!larger) return no_memory(error);
        e->tokens = larger;
        e->capacity = capacity;
    }
    e->tokens[e->count++] = token;
    return TAMIS_OK;
}

/* The token of one byte. `in_text`: it lies in the caller's text, so that its place can be told. */
static tamis_status put_byte(encoder *e, const char *at, bool in_text, tamis_error *error) {
    const int32_t token = e->vocab->token_of_byte[(uint8_t)*at];
    if (token >= 0) return put(e, token, error);
    if (e->flags & TAMIS_ENCODE_SKIP_MISSING) return TAMIS_OK;
    if (in_text)
        return tms_model_fail(error, TAMIS_E_ARGUMENT,
                              "the vocabulary lacks byte %u, at place %zu of the text",
                              (uint8_t)*at, (size_t)(at - e->text));
    return tms_model_fail(error, TAMIS_E_ARGUMENT, "the vocabulary lacks byte %u", (uint8_t)*at);
}

/* What the merger has left of a piece. */
static tamis_status put_symbols(encoder *e, const char *piece, bool in_text, tamis_error *error) {
    for (uint64_t i = 0; i < e->merger.count; ++i) {
        const tms_symbol *symbol = &e->merger.symbols[i];
        if (symbol->bytes > 0 && symbol->token >= 0) {
            TMS_TRY(put(e, symbol->token, error));
            continue;
        }
        for (uint32_t b = 0; b < symbol->bytes; ++b)
            TMS_TRY(put_byte(e, piece + symbol->at + b, in_text, error));
    }
    return TAMIS_OK;
}

static tamis_status encode_bytes(encoder *e, const char *text, size_t bytes, bool in_text,
                                 tamis_error *error) {
    for (size_t i = 0; i < bytes; ++i)
        TMS_TRY(put_byte(e, text + i, in_text, error));
    return TAMIS_OK;
}

/* ---- BPE ------------------------------------------------------------------------------------- */

static tamis_status encode_piece(encoder *e, const char *piece, size_t bytes, bool in_text,
                                 tamis_error *error) {
    const tms_vocab *vocab = e->vocab;
    if (bytes == 1) return put_byte(e, piece, in_text, error);
    const int32_t whole = tms_words_find(&vocab->words, piece, bytes);
    if (whole >= 0) return put(e, whole, error);
    if (!tms_merger_reserve(&e->merger, bytes)) return no_memory(error);
    e->merger.count = bytes;
    for (uint32_t i = 0; i < bytes; ++i)
        e->merger.symbols[i] =
            (tms_symbol){.at = i, .bytes = 1, .token = vocab->token_of_byte[(uint8_t)piece[i]]};
    tms_merger_run(&e->merger, tms_bpe_join, &vocab->merges, piece);
    return put_symbols(e, piece, in_text, error);
}

/* Cuts `image` and encodes the same places of `text`. */
static tamis_status encode_pieces(encoder *e, const char *text, const char *image, size_t bytes,
                                  bool in_text, tamis_error *error) {
    if (!e->cutter.pattern && !tms_cutter_init(&e->cutter, &e->vocab->pattern))
        return no_memory(error);
    tms_cutter_start(&e->cutter, image, bytes);
    for (size_t at = 0, n; at < bytes; at += n) {
        n = tms_cutter_next(&e->cutter);
        if (n == 0) return no_memory(error);
        TMS_TRY(encode_piece(e, text + at, n, in_text, error));
    }
    return TAMIS_OK;
}

static tamis_status encode_bpe(encoder *e, const char *text, size_t bytes, tamis_error *error) {
    if (tms_utf8_valid(text, bytes)) return encode_pieces(e, text, text, bytes, true, error);
    char *clean = malloc(2 * TMS_UTF8_GROWTH * bytes);
    if (!clean) return no_memory(error);
    char *image = clean + TMS_UTF8_GROWTH * bytes;
    const size_t count = tms_utf8_clean(text, bytes, clean, image);
    tamis_status status = encode_pieces(e, clean, image, count, false, error);
    free(clean);
    return status;
}

/* ---- SentencePiece --------------------------------------------------------------------------- */

static tamis_status encode_spm(encoder *e, const char *text, size_t bytes, tamis_error *error) {
    uint64_t count = 0;
    char *piece = malloc(3 * (bytes + 1));
    if (!piece) return no_memory(error);
    if (e->vocab->info.add_space_prefix) count = tms_spm_escape((tms_text){" ", 1}, piece);
    count += tms_spm_escape((tms_text){text, bytes}, piece + count);
    tamis_status status = TAMIS_OK;
    if (tms_spm_begin(&e->vocab->spm, piece, count, &e->merger)) {
        tms_merger_run(&e->merger, tms_spm_join, &e->vocab->spm, piece);
        status = put_symbols(e, piece, false, error);
    } else {
        status = no_memory(error);
    }
    free(piece);
    return status;
}

/* ---- A whole text ---------------------------------------------------------------------------- */

/* Text in which no token is found as a whole, at the start or behind one that was. */
static tamis_status encode_plain(encoder *e, const char *text, size_t bytes, tamis_error *error) {
    if (bytes == 0) return TAMIS_OK;
    switch (e->vocab->info.kind) {
    case TAMIS_VOCAB_BPE:
        return encode_bpe(e, text, bytes, error);
    case TAMIS_VOCAB_SPM:
        return encode_spm(e, text, bytes, error);
    default:
        return encode_bytes(e, text, bytes, true, error);
    }
}

/* Whether white space behind this token is left out. */
static bool takes_space(const tms_vocab *vocab, int32_t token) {
    static const char *const others[] = {"<unk>", "<s>", "<|endoftext|>"};
    if (!vocab->of_phi3) return false;
    const tms_text text = tms_texts_get(&vocab->pieces, (uint32_t)token);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; ++i)
        if (tms_text_is(text, others[i])) return false;
    return true;
}

static bool is_space(char byte) {
    return byte == ' ' || (byte >= '\t' && byte <= '\r');
}

static tamis_status encode_between(encoder *e, size_t bytes, const tms_special *found,
                                   uint64_t n_found, tamis_error *error) {
    size_t at = 0;
    for (uint64_t i = 0; i < n_found; ++i) {
        TMS_TRY(encode_plain(e, e->text + at, found[i].at - at, error));
        TMS_TRY(put(e, found[i].token, error));
        at = found[i].at + found[i].bytes;
        const size_t end = i + 1 < n_found ? found[i + 1].at : bytes;
        while (at < end && is_space(e->text[at]) && takes_space(e->vocab, found[i].token))
            ++at;
    }
    return encode_plain(e, e->text + at, bytes - at, error);
}

static tamis_status encode(encoder *e, size_t bytes, tamis_error *error) {
    const tamis_vocab_info *info = &e->vocab->info;
    const bool parse = e->flags & TAMIS_ENCODE_PARSE_SPECIAL;
    const bool add_bos = info->add_bos && e->flags & TAMIS_ENCODE_ADD_BOS;
    const bool add_eos = info->add_eos && e->flags & TAMIS_ENCODE_ADD_EOS;
    const tms_specials *specials = parse ? &e->vocab->specials : &e->vocab->user_defined;
    tms_special *found;
    uint64_t n_found;
    if (!tms_specials_find(specials, e->text, bytes, &found, &n_found)) return no_memory(error);
    tamis_status status = add_bos ? put(e, info->bos, error) : TAMIS_OK;
    if (status == TAMIS_OK) status = encode_between(e, bytes, found, n_found, error);
    if (status == TAMIS_OK && add_eos) status = put(e, info->eos, error);
    free(found);
    return status;
}

tamis_status tamis_vocab_encode(const tamis_vocab *vocab, const char *text, size_t bytes,
                                uint32_t flags, int32_t *tokens, size_t capacity, size_t *count,
                                tamis_error *error) {
    TMS_REQUIRE(vocab, TAMIS_E_ARGUMENT, "vocab is NULL");
    TMS_REQUIRE(count, TAMIS_E_ARGUMENT, "count is NULL");
    TMS_REQUIRE(text || bytes == 0, TAMIS_E_ARGUMENT, "text is NULL but has %zu bytes", bytes);
    TMS_REQUIRE(tokens || capacity == 0, TAMIS_E_ARGUMENT, "tokens is NULL but capacity is %zu",
                capacity);
    TMS_REQUIRE((flags & ~(uint32_t)ALL_FLAGS) == 0, TAMIS_E_ARGUMENT, "flags are %#x; %#x can be",
                flags, ALL_FLAGS);
    TMS_REQUIRE(bytes <= MAX_BYTES, TAMIS_E_ARGUMENT,
                "the text has %zu bytes; up to %u are encoded", bytes, MAX_BYTES);
    encoder e = {.vocab = vocab, .flags = flags, .text = text ? text : ""};
    tamis_status status = encode(&e, bytes, error);
    if (status == TAMIS_OK) {
        const size_t n = e.count < capacity ? e.count : capacity;
        if (n > 0) memcpy(tokens, e.tokens, n * sizeof *tokens);
        *count = e.count;
    }
    tms_merger_free(&e.merger);
    tms_cutter_free(&e.cutter);
    free(e.tokens);
    return status;
}

/* ---- Tokens ---------------------------------------------------------------------------------- */

static bool has_token(const tamis_vocab *vocab, int32_t token) {
    return vocab && token >= 0 && (uint32_t)token < vocab->info.n_tokens;
}

const char *tamis_vocab_token_text(const tamis_vocab *vocab, int32_t token, size_t *bytes) {
    if (bytes) *bytes = 0;
    if (!bytes || !has_token(vocab, token)) return NULL;
    const tms_text text = tms_texts_get(&vocab->pieces, (uint32_t)token);
    *bytes = (size_t)text.bytes;
    return text.at;
}

tamis_token_kind tamis_vocab_token_kind(const tamis_vocab *vocab, int32_t token) {
    return has_token(vocab, token) ? (tamis_token_kind)vocab->kinds[token] : TAMIS_TOKEN_UNDEFINED;
}

int32_t tamis_vocab_find_special(const tamis_vocab *vocab, const char *text, size_t bytes) {
    return vocab && text ? tms_words_find(&vocab->specials.words, text, bytes) : -1;
}

const char *tamis_vocab_warning(const tamis_vocab *vocab) {
    return vocab && vocab->warning[0] != '\0' ? vocab->warning : NULL;
}

const char *tamis_vocab_chat_template(const tamis_vocab *vocab) {
    return vocab ? vocab->chat_template : NULL;
}

const tamis_vocab_info *tamis_vocab_describe(const tamis_vocab *vocab) {
    return vocab ? &vocab->info : NULL;
}

/* ---- A vocabulary of its own ----------------------------------------------------------------- */

tamis_status tamis_vocab_load(const char *path, tamis_vocab **out, tamis_error *error) {
    tms_gguf gguf;
    tamis_error reason = {0};
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out is NULL");
    *out = NULL;
    TMS_REQUIRE(path, TAMIS_E_ARGUMENT, "path is NULL");
    tamis_vocab *vocab = calloc(1, sizeof *vocab);
    TMS_REQUIRE(vocab, TAMIS_E_NO_MEMORY, "no memory for a vocabulary");
    tamis_status status = tms_gguf_open_keys(path, &gguf, &reason);
    if (status == TAMIS_OK) status = tms_vocab_read(&gguf, vocab, &reason);
    tms_gguf_close(&gguf);
    if (status != TAMIS_OK) {
        free(vocab);
        return tms_model_fail(error, status, "%.200s: %s", path, reason.text);
    }
    *out = vocab;
    return TAMIS_OK;
}

void tamis_vocab_destroy(tamis_vocab **vocab) {
    if (!vocab || !*vocab) return;
    tms_vocab_free(*vocab);
    free(*vocab);
    *vocab = NULL;
}
