/* SPDX-License-Identifier: Apache-2.0 */
/* A text and the questions behind it, cut into tokens as one text each. */
#include "eval/cut.h"

#include <stdlib.h>
#include <string.h>

tamis_status eval_encode(const tamis_vocab *vocab, const char *text, size_t bytes, cli_tokens *out,
                         tamis_error *error) {
    return cli_tokenize(vocab, text, bytes, TAMIS_ENCODE_ADD_BOS, out, error);
}

/* A text under work, and the byte at which its next token begins: -1 for the space that some
 * vocabularies put before a text. */
typedef struct walk {
    const tamis_vocab *vocab;
    const char *text;
    int64_t bytes, at;
} walk;

static walk walk_of(const tamis_vocab *vocab, const char *text, size_t bytes) {
    return (walk){vocab, text, (int64_t)bytes,
                  -(int64_t)tamis_vocab_describe(vocab)->add_space_prefix};
}

/* Steps over a token, whose bytes must be those of the text. */
static tamis_status step_over(walk *w, int32_t token, tamis_error *error) {
    size_t bytes = 0;
    const char *piece = tamis_vocab_token_text(w->vocab, token, &bytes);
    if (tamis_vocab_token_kind(w->vocab, token) == TAMIS_TOKEN_CONTROL) return TAMIS_OK; /* bos */
    for (size_t i = 0; i < bytes; i++, w->at++)
        if (w->at >= w->bytes || piece[i] != (w->at < 0 ? ' ' : w->text[w->at]))
            return cli_error(error, TAMIS_E_UNSUPPORTED,
                             "token %d, '%.*s', is not what the text has before byte %lld", token,
                             (int)bytes, piece, (long long)w->at);
    return TAMIS_OK;
}

/* Tokens from *count on that end within the first `bytes` bytes are added to *count. */
static tamis_status count_within(walk *w, const cli_tokens *tokens, size_t bytes, size_t *count,
                                 tamis_error *error) {
    while (*count < tokens->count) {
        walk next = *w;
        tamis_status status = step_over(&next, tokens->ids[*count], error);
        if (status != TAMIS_OK) return status;
        if (next.at > (int64_t)bytes) break;
        *w = next;
        ++*count;
    }
    return TAMIS_OK;
}

/* A tail's tokens with those of the text before them, and where its parts begin. */
typedef struct part {
    cli_tokens tokens;
    size_t n_text, n_asked; /* tokens that end within the text; within text and question */
} part;

/* Cuts text, question and answer, which stand one behind the other in `all`. */
static tamis_status cut_part(const tamis_vocab *vocab, const char *all, size_t bytes,
                             eval_tail *tail, part *out, tamis_error *error) {
    const size_t asked = bytes + strlen(tail->question), end = asked + strlen(tail->answer);
    walk w = walk_of(vocab, all, end);
    tamis_status status = eval_encode(vocab, all, end, &out->tokens, error);
    if (status == TAMIS_OK) status = count_within(&w, &out->tokens, bytes, &out->n_text, error);
    out->n_asked = out->n_text;
    if (status == TAMIS_OK) status = count_within(&w, &out->tokens, asked, &out->n_asked, error);
    if (status != TAMIS_OK) return status;
    if (w.at < (int64_t)bytes)
        return cli_error(error, TAMIS_E_UNSUPPORTED,
                         "a token reaches from the text into the answer to '%s'", tail->question);
    tail->answer_at = (uint32_t)(w.at - (int64_t)bytes);
    tail->n_answer = (uint32_t)(out->tokens.count - out->n_asked);
    return TAMIS_OK;
}

/* The tokens that all parts begin with, within the text. */
static size_t common(const part *parts, uint32_t n) {
    size_t count = parts[0].n_text;
    for (uint32_t i = 1; i < n; i++) {
        size_t same = 0;
        while (same < count && same < parts[i].n_text &&
               parts[i].tokens.ids[same] == parts[0].tokens.ids[same])
            same++;
        count = same;
    }
    return count;
}

static tamis_status copy_tokens(const int32_t *from, size_t count, int32_t **out,
                                tamis_error *error) {
    *out = malloc((count > 0 ? count : 1) * sizeof(**out));
    if (*out == NULL) return cli_no_memory(error);
    memcpy(*out, from, count * sizeof(**out));
    return TAMIS_OK;
}

/* What lies before `count` is the text's, the rest each tail's own. */
static tamis_status share(const part *parts, size_t count, eval_tail *tails, uint32_t n_tails,
                          cli_tokens *out, tamis_error *error) {
    tamis_status status = copy_tokens(parts[0].tokens.ids, count, &out->ids, error);
    out->count = status == TAMIS_OK ? count : 0;
    for (uint32_t i = 0; status == TAMIS_OK && i < n_tails; i++) {
        tails[i].n_question = (uint32_t)(parts[i].n_asked - count);
        status = copy_tokens(parts[i].tokens.ids + count, parts[i].tokens.count - count,
                             &tails[i].tokens, error);
    }
    return status;
}

/* Room for the text with the longest of the tails. */
static char *room_for(const eval_tail *tails, uint32_t n_tails, size_t bytes) {
    size_t most = 0;
    for (uint32_t i = 0; i < n_tails; i++) {
        size_t tail = strlen(tails[i].question) + strlen(tails[i].answer);
        most = tail > most ? tail : most;
    }
    return malloc(bytes + most + 1);
}

tamis_status eval_cut(const tamis_vocab *vocab, const char *text, size_t bytes, eval_tail *tails,
                      uint32_t n_tails, cli_tokens *out, tamis_error *error) {
    char *all = room_for(tails, n_tails, bytes);
    part *parts = calloc(n_tails, sizeof(*parts));
    tamis_status status = all == NULL || parts == NULL ? cli_no_memory(error) : TAMIS_OK;
    *out = (cli_tokens){0};
    if (all != NULL) memcpy(all, text, bytes);
    for (uint32_t i = 0; i < n_tails; i++)
        tails[i].tokens = NULL;
    for (uint32_t i = 0; status == TAMIS_OK && i < n_tails; i++) {
        sprintf(all + bytes, "%s%s", tails[i].question, tails[i].answer);
        status = cut_part(vocab, all, bytes, &tails[i], &parts[i], error);
    }
    if (status == TAMIS_OK)
        status = share(parts, common(parts, n_tails), tails, n_tails, out, error);
    for (uint32_t i = 0; parts != NULL && i < n_tails; i++)
        free(parts[i].tokens.ids);
    free(parts);
    free(all);
    return status;
}

void eval_tails_free(eval_tail *tails, uint32_t n_tails) {
    for (uint32_t i = 0; i < n_tails; i++) {
        free(tails[i].tokens);
        tails[i].tokens = NULL;
    }
}
