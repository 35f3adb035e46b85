/* SPDX-License-Identifier: Apache-2.0 */
/* The tokens of a text and of the questions behind it, as plain text or as a user's turn. */
#include "cli/chat.h"
#include "compare/compare.h"

#include <stdlib.h>
#include <string.h>

/* What the questions are put behind. */
typedef struct composer {
    const tamis_vocab *vocab;
    cli_chat chat;
    bool chats;
    const char *text;
    size_t bytes;
} composer;

static tamis_status choose_form(composer *c, const compare_form *form, compare_text *out,
                                tamis_error *error) {
    const bool asked = form->chat_format != NULL || form->system != NULL || form->date != NULL;
    tamis_error reason = {0};
    out->form = "plain";
    out->ending = -1;
    if (form->plain) return TAMIS_OK;
    const tamis_status status =
        cli_chat_open(c->vocab, form->chat_format, form->system, form->date, &c->chat, &reason);
    if (status == TAMIS_E_UNSUPPORTED && !asked) {
        if (tamis_vocab_chat_template(c->vocab) != NULL) out->unrecognised = reason;
        return TAMIS_OK;
    }
    if (status != TAMIS_OK) {
        *error = reason;
        return status;
    }
    c->chats = true;
    out->form = cli_chat_name(&c->chat);
    out->ending = c->chat.ending;
    return TAMIS_OK;
}

/* The tokens of the text with a question, which may be empty. */
static tamis_status compose(const composer *c, const char *question, cli_tokens *out,
                            tamis_error *error) {
    const char *between = c->chats ? "\n\n" : "";
    const size_t bytes = c->bytes + strlen(between) + strlen(question);
    char *all = malloc(bytes + 1);
    *out = (cli_tokens){0};
    if (all == NULL) return cli_no_memory(error);
    memcpy(all, c->text, c->bytes);
    sprintf(all + c->bytes, "%s%s", between, question);
    const tamis_status status =
        c->chats ? cli_chat_turn(&c->chat, all, bytes, out, error)
                 : cli_tokenize(c->vocab, all, bytes, TAMIS_ENCODE_ADD_BOS, out, error);
    free(all);
    return status;
}

/* Tokens with which both begin; the second has another one behind them. */
static size_t common(const cli_tokens *a, const cli_tokens *b) {
    size_t n = 0;
    while (n < a->count && n + 1 < b->count && a->ids[n] == b->ids[n])
        n++;
    return n;
}

/* The questions' tokens lose those that the text has with every question, and with none. */
static tamis_status share(compare_text *t, tamis_error *error) {
    for (uint32_t i = 0; i < t->n_questions; i++)
        t->tokens.count = common(&t->tokens, &t->questions[i]);
    const size_t n = t->tokens.count;
    if (n == 0)
        return cli_error(error, TAMIS_E_ARGUMENT,
                         "the text has no token that stays the same with every question");
    for (uint32_t i = 0; i < t->n_questions; i++) {
        cli_tokens *own = &t->questions[i];
        own->count -= n;
        memmove(own->ids, own->ids + n, own->count * sizeof(*own->ids));
    }
    return TAMIS_OK;
}

tamis_status compare_text_cut(const tamis_vocab *vocab, const compare_form *form, const char *text,
                              size_t bytes, const cli_texts *questions, compare_text *out,
                              tamis_error *error) {
    composer c = {.vocab = vocab, .text = text, .bytes = bytes};
    *out = (compare_text){0};
    tamis_status status = choose_form(&c, form, out, error);
    if (status == TAMIS_OK) status = compose(&c, "", &out->tokens, error);
    for (; status == TAMIS_OK && out->n_questions < questions->count; out->n_questions++)
        status = compose(&c, questions->values[out->n_questions], &out->questions[out->n_questions],
                         error);
    return status == TAMIS_OK ? share(out, error) : status;
}

void compare_text_free(compare_text *text) {
    free(text->tokens.ids);
    for (uint32_t i = 0; i < CLI_LIST_MAX; i++)
        free(text->questions[i].ids);
    *text = (compare_text){0};
}

uint32_t compare_longest_question(const compare_text *text) {
    size_t most = 0;
    for (uint32_t i = 0; i < text->n_questions; i++)
        if (text->questions[i].count > most) most = text->questions[i].count;
    return (uint32_t)most;
}
