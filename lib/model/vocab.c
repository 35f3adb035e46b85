/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the vocabulary of a GGUF file: single bytes, byte-level BPE or SentencePiece. */
#include "lib/model/vocab.h"
#include "lib/model/alphabet.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define BIT(kind) (1u << (kind))
/* Kinds that are found in text as a whole or not at all, and those that text never becomes. */
#define SPECIAL_KINDS                                                                              \
    (BIT(TAMIS_TOKEN_CONTROL) | BIT(TAMIS_TOKEN_UNKNOWN) | BIT(TAMIS_TOKEN_USER_DEFINED))
#define KINDS_NOT_OF_TEXT                                                                          \
    (BIT(TAMIS_TOKEN_CONTROL) | BIT(TAMIS_TOKEN_UNKNOWN) | BIT(TAMIS_TOKEN_BYTE))

/* The arrays of the file that every vocabulary has. */
typedef struct arrays {
    const tms_gguf_entry *tokens, *kinds, *merges;
} arrays;

/* ---- What the file says ---------------------------------------------------------------------- */

static tamis_status find_arrays(const tms_gguf *gguf, arrays *out, tamis_error *error) {
    TMS_TRY(tms_gguf_array(gguf, "tokenizer.ggml.tokens", TMS_GGUF_STRING, &out->tokens, error));
    TMS_TRY(tms_gguf_integers(gguf, "tokenizer.ggml.token_type", &out->kinds, error));
    TMS_TRY(tms_gguf_array(gguf, "tokenizer.ggml.merges", TMS_GGUF_STRING, &out->merges, error));
    TMS_REQUIRE(out->tokens, TAMIS_E_FORMAT, "key 'tokenizer.ggml.tokens' is missing");
    TMS_REQUIRE(out->tokens->count >= 1 && out->tokens->count <= INT32_MAX, TAMIS_E_FORMAT,
                "the vocabulary has %llu tokens; 1 to %d can be",
                (unsigned long long)out->tokens->count, INT32_MAX);
    TMS_REQUIRE(!out->kinds || out->kinds->count == out->tokens->count, TAMIS_E_FORMAT,
                "%llu tokens have %llu types", (unsigned long long)out->tokens->count,
                (unsigned long long)out->kinds->count);
    return TAMIS_OK;
}

static tamis_status read_kind(const tms_gguf *gguf, const arrays *from, tamis_vocab_kind *out,
                              tamis_error *error) {
    tms_text model = {NULL, 0};
    TMS_TRY(tms_gguf_string(gguf, "tokenizer.ggml.model", &model, error));
    TMS_REQUIRE(model.at, TAMIS_E_FORMAT, "key 'tokenizer.ggml.model' is missing");
    const bool is_spm = tms_text_is(model, "llama");
    TMS_REQUIRE(is_spm || tms_text_is(model, "gpt2"), TAMIS_E_UNSUPPORTED,
                "tokenizer '%s' is not read, only gpt2 and llama", tms_text_show(model).text);
    const bool merges = from->merges && from->merges->count > 0;
    *out = is_spm ? TAMIS_VOCAB_SPM : merges ? TAMIS_VOCAB_BPE : TAMIS_VOCAB_BYTES;
    return TAMIS_OK;
}

/* A warning, behind those before it. */
static void warn(tms_vocab *vocab, const char *format, ...) {
    const size_t used = strlen(vocab->warning), room = sizeof vocab->warning - used;
    const char *between = used > 0 ? "; " : "";
    va_list args;
    const size_t skip = (size_t)snprintf(vocab->warning + used, room, "%s", between);
    va_start(args, format);
    if (skip < room) vsnprintf(vocab->warning + used + skip, room - skip, format, args);
    va_end(args);
}

/* A token that a key names; without the key *id stays as it is, and so it does where the key names
 * none of the vocabulary's but nothing depends on it. */
static tamis_status read_id(const tms_gguf *gguf, const char *key, bool needed, tms_vocab *vocab,
                            int32_t *id, tamis_error *error) {
    const uint32_t n_tokens = vocab->info.n_tokens;
    const tms_gguf_entry *entry = tms_gguf_find(gguf, key);
    int64_t value = -1;
    if (!entry) return TAMIS_OK;
    if (needed || entry->array || !tms_gguf_integer(entry, 0, &value)) {
        uint32_t small = UINT32_MAX;
        TMS_TRY(tms_gguf_u32(gguf, key, &small, error));
        value = small;
    }
    const bool inside = value >= 0 && value < n_tokens;
    TMS_REQUIRE(inside || !needed, TAMIS_E_FORMAT, "key '%s' is %lld; the vocabulary has %u tokens",
                key, (long long)value, n_tokens);
    if (inside)
        *id = (int32_t)value;
    else
        warn(vocab, "key '%s' is %lld and is ignored: the vocabulary has %u tokens", key,
             (long long)value, n_tokens);
    return TAMIS_OK;
}

static tamis_status read_ids(const tms_gguf *gguf, tms_vocab *vocab, tamis_error *error) {
    tamis_vocab_info *info = &vocab->info;
    const struct {
        const char *key;
        int32_t *id;
        int32_t usual; /* of SentencePiece, where the file says nothing */
        bool needed;   /* it decides what is read, or where an answer ends */
    } ids[] = {{"tokenizer.ggml.bos_token_id", &info->bos, 1, true},
               {"tokenizer.ggml.eos_token_id", &info->eos, 2, true},
               {"tokenizer.ggml.eot_token_id", &info->eot, -1, true},
               {"tokenizer.ggml.unknown_token_id", &info->unknown, 0, false},
               {"tokenizer.ggml.padding_token_id", &info->padding, -1, false}};
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; ++i) {
        const bool usual = info->kind == TAMIS_VOCAB_SPM && ids[i].usual < (int32_t)info->n_tokens;
        *ids[i].id = usual ? ids[i].usual : -1;
        TMS_TRY(read_id(gguf, ids[i].key, ids[i].needed, vocab, ids[i].id, error));
    }
    return TAMIS_OK;
}

static tamis_status read_flags(const tms_gguf *gguf, const tms_family *family,
                               tamis_vocab_info *info, tamis_error *error) {
    const bool is_spm = info->kind == TAMIS_VOCAB_SPM;
    bool bos = is_spm || (family && family->add_bos), eos = false, space = is_spm;
    TMS_TRY(tms_gguf_bool(gguf, "tokenizer.ggml.add_bos_token", &bos, error));
    TMS_TRY(tms_gguf_bool(gguf, "tokenizer.ggml.add_eos_token", &eos, error));
    TMS_TRY(tms_gguf_bool(gguf, "tokenizer.ggml.add_space_prefix", &space, error));
    TMS_REQUIRE(
        !bos || info->bos >= 0, TAMIS_E_FORMAT,
        "a token is added before every text, but key 'tokenizer.ggml.bos_token_id' is missing");
    TMS_REQUIRE(
        !eos || info->eos >= 0, TAMIS_E_FORMAT,
        "a token is added behind every text, but key 'tokenizer.ggml.eos_token_id' is missing");
    info->add_bos = bos;
    info->add_eos = eos;
    info->add_space_prefix = is_spm && space; /* as llama.cpp: no other kind does it */
    return TAMIS_OK;
}

/* ---- Tokens ---------------------------------------------------------------------------------- */

static bool reserve_texts(tms_texts *texts, uint64_t count, uint64_t bytes) {
    texts->starts = calloc(count + 1, sizeof *texts->starts);
    texts->at = malloc(bytes + 1);
    return texts->starts && texts->at;
}

static void free_texts(tms_texts *texts) {
    free(texts->starts);
    free(texts->at);
    *texts = (tms_texts){0};
}

/* Copies the texts as the file writes them, and the kinds. */
static tamis_status take_texts(const arrays *from, tms_vocab *vocab, tamis_error *error) {
    const uint64_t count = from->tokens->count;
    const uint8_t *at = from->tokens->at, *end = at;
    for (uint64_t i = 0; i < count; ++i)
        (void)tms_gguf_next_string(&end);
    const uint64_t bytes = (uint64_t)(end - at) - count * sizeof(uint64_t);
    vocab->kinds = malloc(count);
    vocab->usable = malloc(count);
    TMS_REQUIRE(vocab->kinds && vocab->usable && reserve_texts(&vocab->raw, count, bytes) &&
                    reserve_texts(&vocab->pieces, count, bytes),
                TAMIS_E_NO_MEMORY, "no memory for %llu tokens", (unsigned long long)count);
    for (uint64_t i = 0; i < count; ++i) {
        const tms_text text = tms_gguf_next_string(&at);
        int64_t kind = TAMIS_TOKEN_NORMAL;
        if (from->kinds) (void)tms_gguf_integer(from->kinds, i, &kind);
        const bool known = kind >= TAMIS_TOKEN_UNDEFINED && kind <= TAMIS_TOKEN_BYTE;
        vocab->kinds[i] = (uint8_t)(known ? kind : TAMIS_TOKEN_UNDEFINED);
        vocab->usable[i] = text.bytes > 0 && !(KINDS_NOT_OF_TEXT >> vocab->kinds[i] & 1);
        memcpy(vocab->raw.at + vocab->raw.starts[i], text.at, text.bytes);
        vocab->raw.starts[i + 1] = vocab->raw.starts[i] + text.bytes;
    }
    return TAMIS_OK;
}

/* Fills a table of all texts in the file, of which no two may be equal. */
static tamis_status index_raw(tms_vocab *vocab, tms_words *words, tamis_error *error) {
    const uint32_t count = vocab->info.n_tokens;
    TMS_REQUIRE(tms_words_init(words, &vocab->raw, count), TAMIS_E_NO_MEMORY,
                "no memory for %u tokens", count);
    for (uint32_t i = 0; i < count; ++i) {
        const tms_text text = tms_texts_get(&vocab->raw, i);
        if (text.bytes == 0) continue;
        const int32_t first = tms_words_add(words, i);
        TMS_REQUIRE(first == (int32_t)i, TAMIS_E_FORMAT, "tokens %d and %u are both '%s'", first, i,
                    tms_text_show(text).text);
    }
    return TAMIS_OK;
}

/* Sets the piece of the next token, which stands at `to`. */
static void end_piece(tms_vocab *vocab, uint32_t token, uint64_t bytes) {
    vocab->pieces.starts[token + 1] = vocab->pieces.starts[token] + bytes;
}

static void copy_piece(tms_vocab *vocab, uint32_t token) {
    const tms_text text = tms_texts_get(&vocab->raw, token);
    memcpy(vocab->pieces.at + vocab->pieces.starts[token], text.at, text.bytes);
    end_piece(vocab, token, text.bytes);
}

static tamis_status take_byte(tms_vocab *vocab, uint32_t token, int byte, tamis_error *error) {
    TMS_REQUIRE(vocab->token_of_byte[byte] < 0, TAMIS_E_FORMAT, "tokens %d and %u are both byte %d",
                vocab->token_of_byte[byte], token, byte);
    vocab->token_of_byte[byte] = (int32_t)token;
    return TAMIS_OK;
}

/* ---- Single bytes, and BPE ------------------------------------------------------------------- */

/* A token of a vocabulary without merges: one byte, unless it is a control token. */
static tamis_status read_single(tms_vocab *vocab, uint32_t token, int64_t bytes,
                                tamis_error *error) {
    const tms_text text = tms_texts_get(&vocab->raw, token);
    TMS_REQUIRE(
        bytes == 1, TAMIS_E_UNSUPPORTED,
        "token %u, '%s', is not one byte; without merges only vocabularies of single bytes are "
        "read",
        token, tms_text_show(text).text);
    return take_byte(vocab, token, (uint8_t)vocab->pieces.at[vocab->pieces.starts[token]], error);
}

/* The bytes of all tokens. What the alphabet does not write is the text as it is, which text never
 * becomes: so it is with tokens that were added to a vocabulary. */
static tamis_status read_alphabet(tms_vocab *vocab, tamis_error *error) {
    const bool single = vocab->info.kind == TAMIS_VOCAB_BYTES;
    const uint32_t special = single ? BIT(TAMIS_TOKEN_CONTROL) : SPECIAL_KINDS;
    tms_alphabet alphabet;
    tms_alphabet_fill(&alphabet);
    for (uint32_t i = 0; i < vocab->info.n_tokens; ++i) {
        int64_t bytes = -1;
        char *to = vocab->pieces.at + vocab->pieces.starts[i];
        if (!(special >> vocab->kinds[i] & 1))
            bytes = tms_alphabet_decode(&alphabet, tms_texts_get(&vocab->raw, i), to);
        if (bytes >= 0)
            end_piece(vocab, i, (uint64_t)bytes);
        else
            copy_piece(vocab, i);
        if (single && vocab->kinds[i] != TAMIS_TOKEN_CONTROL)
            TMS_TRY(read_single(vocab, i, bytes, error));
        else if (bytes == 1 && vocab->usable[i])
            TMS_TRY(take_byte(vocab, i, (uint8_t)*to, error));
        vocab->usable[i] = vocab->usable[i] && bytes > 0;
    }
    return TAMIS_OK;
}

static tamis_status read_pattern(const tms_gguf *gguf, tms_vocab *vocab, tamis_error *error) {
    tms_text name = {NULL, 0};
    TMS_TRY(tms_gguf_string(gguf, "tokenizer.ggml.pre", &name, error));
    TMS_REQUIRE(name.at, TAMIS_E_FORMAT,
                "the vocabulary has merges, but key 'tokenizer.ggml.pre' is missing");
    TMS_TRY(tms_pattern_compile(name, &vocab->pattern, error));
    snprintf(vocab->info.pattern, sizeof vocab->info.pattern, "%.*s", (int)name.bytes, name.at);
    return TAMIS_OK;
}

/* Usable tokens by their bytes, for pieces that are tokens as a whole. */
static tamis_status index_pieces(tms_vocab *vocab, tamis_error *error) {
    TMS_REQUIRE(tms_words_init(&vocab->words, &vocab->pieces, vocab->info.n_tokens),
                TAMIS_E_NO_MEMORY, "no memory for %u tokens", vocab->info.n_tokens);
    for (uint32_t i = 0; i < vocab->info.n_tokens; ++i)
        if (vocab->usable[i]) (void)tms_words_add(&vocab->words, i);
    return TAMIS_OK;
}

static tamis_status read_bpe(const tms_gguf *gguf, const arrays *from, tms_words *raw,
                             tms_vocab *vocab, tamis_error *error) {
    TMS_TRY(read_alphabet(vocab, error));
    if (vocab->info.kind == TAMIS_VOCAB_BYTES) return TAMIS_OK;
    TMS_TRY(read_pattern(gguf, vocab, error));
    TMS_TRY(tms_merges_read(from->merges, raw, vocab->usable, &vocab->merges, error));
    vocab->info.n_merges = vocab->merges.count;
    return vocab->pattern.family->whole_pieces ? index_pieces(vocab, error) : TAMIS_OK;
}

/* ---- SentencePiece --------------------------------------------------------------------------- */

/* The piece of a token: with spaces, or the byte that its text names. */
static tamis_status read_piece(tms_vocab *vocab, uint32_t token, tamis_error *error) {
    const tms_text text = tms_texts_get(&vocab->raw, token);
    char *to = vocab->pieces.at + vocab->pieces.starts[token];
    if (SPECIAL_KINDS >> vocab->kinds[token] & 1) {
        copy_piece(vocab, token);
        return TAMIS_OK;
    }
    if (vocab->kinds[token] != TAMIS_TOKEN_BYTE) {
        end_piece(vocab, token, tms_spm_unescape(text, to));
        return TAMIS_OK;
    }
    const int byte = tms_spm_byte(text);
    TMS_REQUIRE(byte >= 0, TAMIS_E_FORMAT, "token %u, '%s', is of type byte but not '<0xNN>'",
                token, tms_text_show(text).text);
    *to = (char)byte;
    end_piece(vocab, token, 1);
    return take_byte(vocab, token, byte, error);
}

static tamis_status read_spm(const tms_gguf *gguf, tms_words *raw, tms_vocab *vocab,
                             tamis_error *error) {
    for (uint32_t i = 0; i < vocab->info.n_tokens; ++i)
        TMS_TRY(read_piece(vocab, i, error));
    for (int byte = 0; byte < 256; ++byte) {
        const char text = (char)byte;
        const int32_t token = tms_words_find(raw, &text, 1);
        if (vocab->token_of_byte[byte] < 0 && token >= 0 && vocab->usable[token])
            vocab->token_of_byte[byte] = token;
    }
    vocab->words = *raw;
    *raw = (tms_words){0};
    return tms_spm_read(gguf, &vocab->words, vocab->usable, vocab->info.n_tokens, &vocab->spm,
                        error);
}

/* ---- The vocabulary -------------------------------------------------------------------------- */

static tamis_status read_specials(tms_vocab *vocab, tamis_error *error) {
    const uint32_t n = vocab->info.n_tokens;
    const bool single = vocab->info.kind == TAMIS_VOCAB_BYTES;
    const uint32_t user = single ? 0 : BIT(TAMIS_TOKEN_USER_DEFINED);
    const uint32_t all = single ? BIT(TAMIS_TOKEN_CONTROL) : SPECIAL_KINDS;
    TMS_TRY(tms_specials_init(&vocab->user_defined, &vocab->pieces, vocab->kinds, n, user, error));
    return tms_specials_init(&vocab->specials, &vocab->pieces, vocab->kinds, n, all, error);
}

static bool contains(tms_text text, const char *word) {
    const size_t bytes = strlen(word);
    for (uint64_t at = 0; at + bytes <= text.bytes; ++at)
        if (strncasecmp(text.at + at, word, bytes) == 0) return true;
    return false;
}

/* Files do not say which tokens take white space: llama.cpp tells it by the model's name. */
static tamis_status read_name(const tms_gguf *gguf, tms_vocab *vocab, tamis_error *error) {
    tms_text name = {NULL, 0};
    TMS_TRY(tms_gguf_string(gguf, "general.name", &name, error));
    vocab->of_phi3 = contains(name, "phi-3") || contains(name, "phi3");
    return TAMIS_OK;
}

static tamis_status read_template(const tms_gguf *gguf, tms_vocab *vocab, tamis_error *error) {
    tms_text text = {NULL, 0};
    TMS_TRY(tms_gguf_string(gguf, "tokenizer.chat_template", &text, error));
    if (!text.at) return TAMIS_OK;
    vocab->chat_template = malloc(text.bytes + 1);
    TMS_REQUIRE(vocab->chat_template, TAMIS_E_NO_MEMORY, "no memory for a template of %llu bytes",
                (unsigned long long)text.bytes);
    memcpy(vocab->chat_template, text.at, text.bytes);
    vocab->chat_template[text.bytes] = '\0';
    return TAMIS_OK;
}

static tamis_status read(const tms_gguf *gguf, tms_vocab *vocab, tms_words *raw,
                         tamis_error *error) {
    arrays from;
    TMS_TRY(find_arrays(gguf, &from, error));
    TMS_TRY(read_kind(gguf, &from, &vocab->info.kind, error));
    vocab->info.n_tokens = (uint32_t)from.tokens->count;
    TMS_TRY(read_ids(gguf, vocab, error));
    TMS_TRY(take_texts(&from, vocab, error));
    if (vocab->info.kind != TAMIS_VOCAB_BYTES) TMS_TRY(index_raw(vocab, raw, error));
    if (vocab->info.kind == TAMIS_VOCAB_SPM)
        TMS_TRY(read_spm(gguf, raw, vocab, error));
    else
        TMS_TRY(read_bpe(gguf, &from, raw, vocab, error));
    TMS_TRY(read_flags(gguf, vocab->pattern.family, &vocab->info, error));
    TMS_TRY(read_template(gguf, vocab, error));
    TMS_TRY(read_name(gguf, vocab, error));
    return read_specials(vocab, error);
}

tamis_status tms_vocab_read(const tms_gguf *gguf, tms_vocab *out, tamis_error *error) {
    tms_words raw = {0};
    *out = (tms_vocab){0};
    memset(out->token_of_byte, 0xff, sizeof out->token_of_byte);
    tamis_status status = read(gguf, out, &raw, error);
    tms_words_free(&raw);
    if (status != TAMIS_OK)
        tms_vocab_free(out);
    else if (out->info.kind != TAMIS_VOCAB_SPM)
        free_texts(&out->raw);
    return status;
}

void tms_vocab_free(tms_vocab *vocab) {
    free(vocab->kinds);
    free(vocab->usable);
    free(vocab->chat_template);
    free_texts(&vocab->pieces);
    free_texts(&vocab->raw);
    tms_words_free(&vocab->words);
    tms_pattern_free(&vocab->pattern);
    tms_merges_free(&vocab->merges);
    tms_spm_free(&vocab->spm);
    tms_specials_free(&vocab->user_defined);
    tms_specials_free(&vocab->specials);
    *vocab = (tms_vocab){0};
}
