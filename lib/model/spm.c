/* SPDX-License-Identifier: Apache-2.0 */
/* SentencePiece vocabularies: reading scores, and asking which token two neighbours become. */
#include "lib/model/spm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* U+2581, LOWER ONE EIGHTH BLOCK */
static const char space[] = "\xe2\x96\x81";
#define SPACE_BYTES 3u

/* Ascending where the score descends; equal for equal scores. */
static uint32_t rank_of(float score) {
    uint32_t bits;
    score += 0.0f; /* -0 counts as 0 */
    memcpy(&bits, &score, sizeof bits);
    return bits >> 31 ? bits : ~bits & 0x7fffffffu;
}

/* f32, or f64 where each is an f32: they are compared as f32. */
static tamis_status find_scores(const tms_gguf *gguf, uint32_t n_tokens, const tms_gguf_entry **out,
                                tamis_error *error) {
    static const char key[] = "tokenizer.ggml.scores";
    const tms_gguf_entry *scores = tms_gguf_find(gguf, key);
    TMS_REQUIRE(scores, TAMIS_E_FORMAT, "key '%s' is missing", key);
    const bool wide = scores->array && scores->type == TMS_GGUF_F64;
    if (!wide) TMS_TRY(tms_gguf_array(gguf, key, TMS_GGUF_F32, &scores, error));
    TMS_REQUIRE(scores->count == n_tokens, TAMIS_E_FORMAT, "key '%s': %u tokens have %llu scores",
                key, n_tokens, (unsigned long long)scores->count);
    *out = scores;
    return TAMIS_OK;
}

static tamis_status read_score(const tms_gguf_entry *scores, uint32_t token, tms_text text,
                               float *out, tamis_error *error) {
    double wide = 0;
    if (scores->type == TMS_GGUF_F32) {
        memcpy(out, scores->at + token * sizeof *out, sizeof *out);
        wide = *out;
    } else {
        memcpy(&wide, scores->at + token * sizeof wide, sizeof wide);
        *out = (float)wide;
    }
    TMS_REQUIRE(isfinite(*out), TAMIS_E_FORMAT,
                "key 'tokenizer.ggml.scores': the score of token %u, '%s', is %g", token,
                tms_text_show(text).text, wide);
    TMS_REQUIRE(*out == wide, TAMIS_E_UNSUPPORTED,
                "key 'tokenizer.ggml.scores': the score of token %u, '%s', is %.17g, which an f32 "
                "does not hold",
                token, tms_text_show(text).text, wide);
    return TAMIS_OK;
}

tamis_status tms_spm_read(const tms_gguf *gguf, const tms_words *words, const uint8_t *usable,
                          uint32_t n_tokens, tms_spm *out, tamis_error *error) {
    const tms_gguf_entry *scores = NULL;
    *out = (tms_spm){.words = words, .usable = usable};
    TMS_TRY(find_scores(gguf, n_tokens, &scores, error));
    out->ranks = malloc(n_tokens * sizeof *out->ranks);
    TMS_REQUIRE(out->ranks, TAMIS_E_NO_MEMORY, "no memory for %u scores", n_tokens);
    for (uint32_t i = 0; i < n_tokens; ++i) {
        float score;
        const tms_text text = tms_texts_get(words->texts, i);
        TMS_TRY(read_score(scores, i, text, &score, error));
        out->ranks[i] = rank_of(score);
        if (text.bytes > out->longest) out->longest = text.bytes;
    }
    return TAMIS_OK;
}

void tms_spm_free(tms_spm *spm) {
    free(spm->ranks);
    *spm = (tms_spm){0};
}

int tms_spm_byte(tms_text text) {
    static const char digits[] = "0123456789ABCDEF";
    if (text.bytes != 6 || memcmp(text.at, "<0x", 3) != 0 || text.at[5] != '>') return -1;
    const char *high = memchr(digits, text.at[3], 16), *low = memchr(digits, text.at[4], 16);
    return high && low ? (int)((high - digits) * 16 + (low - digits)) : -1;
}

uint64_t tms_spm_unescape(tms_text text, char *to) {
    uint64_t count = 0;
    for (uint64_t i = 0; i < text.bytes; ++count) {
        bool escaped = text.bytes - i >= SPACE_BYTES && !memcmp(text.at + i, space, SPACE_BYTES);
        to[count] = escaped ? ' ' : text.at[i];
        i += escaped ? SPACE_BYTES : 1;
    }
    return count;
}

uint64_t tms_spm_escape(tms_text text, char *to) {
    uint64_t count = 0;
    for (uint64_t i = 0; i < text.bytes; ++i) {
        if (text.at[i] == ' ') {
            memcpy(to + count, space, SPACE_BYTES);
            count += SPACE_BYTES;
        } else {
            to[count++] = text.at[i];
        }
    }
    return count;
}

/* The token that a text may become, -1 for none. */
static int32_t find(const tms_spm *spm, const char *at, uint64_t bytes) {
    if (bytes > spm->longest) return -1;
    int32_t token = tms_words_find(spm->words, at, bytes);
    return token >= 0 && spm->usable[token] ? token : -1;
}

bool tms_spm_begin(const tms_spm *spm, const char *piece, uint64_t bytes, tms_merger *merger) {
    static const uint8_t lengths[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4};
    uint64_t count = 0;
    for (uint64_t at = 0; at < bytes; ++count)
        at += lengths[(uint8_t)piece[at] >> 4];
    if (!tms_merger_reserve(merger, count)) return false;
    merger->count = count;
    for (uint64_t i = 0, at = 0; i < count; ++i) {
        uint64_t n = lengths[(uint8_t)piece[at] >> 4];
        if (n > bytes - at) n = bytes - at;
        merger->symbols[i] = (tms_symbol){
            .at = (uint32_t)at, .bytes = (uint32_t)n, .token = find(spm, piece + at, n)};
        at += n;
    }
    return true;
}

int32_t tms_spm_join(const void *spm, const char *piece, const tms_symbol *left,
                     const tms_symbol *right, uint32_t *rank) {
    const tms_spm *from = spm;
    int32_t token = find(from, piece + left->at, (uint64_t)left->bytes + right->bytes);
    if (token >= 0) *rank = from->ranks[token];
    return token;
}
