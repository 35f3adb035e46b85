/* SPDX-License-Identifier: Apache-2.0 */
/* Vocabularies of tests/data, and tokens as text, for tests of the texts that `tamis eval` makes. */
#ifndef TEST_VOCABULARIES_H
#define TEST_VOCABULARIES_H

#include "eval/cut.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char *folder; /* tests/data */
static tamis_error error;

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != TAMIS_OK) fail_msg("%s: %s", #call, error.text);                             \
    } while (0)

/* NULL where this build cannot read it. */
static tamis_vocab *open_vocab(const char *name) {
    char path[4096];
    tamis_vocab *vocab = NULL;
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    tamis_status status = tamis_vocab_load(path, &vocab, &error);
    if (status == TAMIS_E_UNSUPPORTED && strstr(error.text, "PCRE2") != NULL) return NULL;
    OK(status);
    return vocab;
}

/* The bytes of tokens, without those of control tokens and the space that a vocabulary puts first. */
static char *decode(const tamis_vocab *vocab, const int32_t *tokens, size_t count, bool first) {
    char *text = calloc(count + 1, 64);
    size_t used = 0, skip = first && tamis_vocab_describe(vocab)->add_space_prefix;
    assert_non_null(text);
    for (size_t i = 0; i < count; i++) {
        size_t bytes = 0;
        const char *piece = tamis_vocab_token_text(vocab, tokens[i], &bytes);
        if (tamis_vocab_token_kind(vocab, tokens[i]) == TAMIS_TOKEN_CONTROL) continue;
        assert_true(bytes < 64);
        memcpy(text + used, piece, bytes);
        used += bytes;
    }
    memmove(text, text + skip, used + 1 - skip);
    return text;
}

static inline uint32_t count_of(const char *text, const char *part) {
    uint32_t count = 0;
    for (const char *at = strstr(text, part); at != NULL; at = strstr(at + 1, part))
        count++;
    return count;
}

/* A text's tokens and those behind them are the tokens of the whole text, cut at once. */
static inline void same_when_whole(const tamis_vocab *vocab, const cli_tokens *text,
                                   const int32_t *tail, size_t n_tail) {
    size_t n = text->count + n_tail;
    int32_t *all = malloc(n * sizeof(*all));
    cli_tokens whole;
    assert_non_null(all);
    memcpy(all, text->ids, text->count * sizeof(*all));
    memcpy(all + text->count, tail, n_tail * sizeof(*all));
    char *bytes = decode(vocab, all, n, true);
    OK(eval_encode(vocab, bytes, strlen(bytes), &whole, &error));
    assert_int_equal(whole.count, n);
    assert_memory_equal(whole.ids, all, n * sizeof(*all));
    free(whole.ids);
    free(bytes);
    free(all);
}

#endif
