/* SPDX-License-Identifier: Apache-2.0 */
/* A conversation: lines from standard input, an answer to each, over one cache. Each turn is added
 * to the sequence, and nothing is read twice. */
#include "cli/converse.h"

#include "cli/interrupt.h"
#include "cli/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_MOST (16u << 20) /* bytes; no context takes more */

/* A text whose end is being written. */
typedef struct line {
    char *text;
    size_t bytes, room;
} line;

static tamis_status add_byte(line *l, char byte, tamis_error *error) {
    if (l->bytes == l->room) {
        const size_t room = l->room > 0 ? 2 * l->room : 256;
        char *text = realloc(l->text, room);
        if (text == NULL) return cli_no_memory(error);
        l->text = text;
        l->room = room;
    }
    l->text[l->bytes++] = byte;
    return TAMIS_OK;
}

/* Reads a line with its end; no bytes: there is none. No more is read than a line may have. */
static tamis_status take_line(line *l, tamis_error *error) {
    tamis_status status = TAMIS_OK;
    int byte = 0;
    for (l->bytes = 0; status == TAMIS_OK && byte != '\n' && (byte = getc(stdin)) != EOF;) {
        if (l->bytes == LINE_MOST)
            return cli_error(error, TAMIS_E_FORMAT,
                             "standard input: a line has more than %u MiB, the most of a line",
                             LINE_MOST >> 20);
        status = add_byte(l, (char)byte, error);
    }
    if (status == TAMIS_OK && byte == EOF && ferror(stdin))
        return cli_error(error, TAMIS_E_IO, "standard input: cannot be read: %s", strerror(errno));
    return status;
}

/* Reads a line that is not empty, without its end. *over: there is none. */
static tamis_status read_line(line *l, bool *over, tamis_error *error) {
    do {
        if (isatty(STDIN_FILENO)) fputs("> ", stderr);
        fflush(stderr);
        const tamis_status status = take_line(l, error);
        if (status != TAMIS_OK) return status;
        *over = l->bytes == 0;
        while (l->bytes > 0 && memchr("\r\n", l->text[l->bytes - 1], 2) != NULL)
            l->bytes--;
    } while (l->bytes == 0 && !*over);
    cli_utf8_warn("standard input", l->text, l->bytes);
    return TAMIS_OK;
}

/* The tokens of a turn. *known of them, of the first turn alone, follow from the text before the
 * line: as many as the turn has in common with one whose line is empty. */
static tamis_status turn_tokens(const cli_chat *chat, const cli_conversation *how, const line *l,
                                cli_tokens *out, size_t *known, tamis_error *error) {
    const size_t before = chat->turns == 0 && how->bytes > 0 ? how->bytes + 2 : 0;
    cli_tokens head = {0};
    *known = 0;
    if (before == 0) return cli_chat_turn(chat, l->text, l->bytes, out, error);
    char *text = malloc(before + l->bytes);
    if (text == NULL) return cli_no_memory(error);
    memcpy(text, how->text, how->bytes);
    memcpy(text + how->bytes, "\n\n", 2);
    memcpy(text + before, l->text, l->bytes);
    tamis_status status = cli_chat_turn(chat, text, before + l->bytes, out, error);
    if (status == TAMIS_OK) status = cli_chat_turn(chat, text, before, &head, error);
    while (status == TAMIS_OK && *known < head.count && *known < out->count &&
           head.ids[*known] == out->ids[*known])
        ++*known;
    if (status != TAMIS_OK) {
        free(out->ids);
        *out = (cli_tokens){0};
    }
    free(head.ids);
    free(text);
    return status;
}

static tamis_status check_room(const cli_session *s, const cli_tokens *tokens, tamis_error *error) {
    const size_t before = s->length + s->unread;
    if (before + tokens->count <= s->context) return TAMIS_OK;
    return cli_error(error, TAMIS_E_ARGUMENT,
                     "the turn has %zu tokens, the conversation before it %zu; the context is %u",
                     tokens->count, before, s->context);
}

/* The text before the first line is always read exactly, and evicted from; lines as `how` says. */
static tamis_status read_turn(cli_session *s, const cli_chat *chat, const cli_conversation *how,
                              const cli_tokens *tokens, size_t known, tamis_error *error) {
    if (!how->under_selection || (chat->turns == 0 && known == 0)) known = tokens->count;
    if (chat->turns > 0 && how->under_selection) known = 0;
    tamis_status status = TAMIS_OK;
    if (known > 0) status = cli_session_read(s, tokens->ids, known, error);
    if (status != TAMIS_OK || s->interrupted) return status;
    return cli_session_step(s, tokens->ids + known, tokens->count - known, error);
}

static tamis_status answer(cli_session *s, const cli_conversation *how, cli_end *end,
                           tamis_error *error) {
    cli_answer to = {.to = stdout, .stops = how->stops};
    tamis_status status = cli_session_answer(s, &to, how->most, end, error);
    if (status == TAMIS_OK) status = cli_record_answer(how->record, &to, *end, error);
    cli_answer_end(&to);
    if (status == TAMIS_OK && *end == CLI_END_CONTEXT)
        fprintf(stderr, "%s: the context of %u tokens is full\n", how->command, s->context);
    return status;
}

/* One turn and its answer. *over: no other one can follow. */
static tamis_status take_turn(cli_session *s, cli_chat *chat, const cli_conversation *how,
                              const cli_tokens *tokens, size_t known, bool *over,
                              tamis_error *error) {
    cli_end end;
    tamis_status status = cli_session_catch_up(s, error);
    if (status == TAMIS_OK) status = read_turn(s, chat, how, tokens, known, error);
    if (status == TAMIS_OK && s->interrupted)
        fprintf(stderr, "%s: interrupted after %zu tokens of the conversation\n", how->command,
                s->length);
    *over = s->half_read = s->interrupted;
    if (status != TAMIS_OK || s->interrupted) return status;
    status = answer(s, how, &end, error);
    chat->turns++;
    s->interrupted = end == CLI_END_INTERRUPT && !isatty(STDIN_FILENO); /* nobody goes on */
    *over = end == CLI_END_CONTEXT || s->interrupted;
    return status;
}

/* Finds what is wrong with the text and the system text once, not with every line. */
static tamis_status check_text(const cli_chat *chat, const cli_conversation *how,
                               tamis_error *error) {
    cli_tokens tokens = {0};
    tamis_status status = cli_chat_turn(chat, how->text, how->bytes, &tokens, error);
    free(tokens.ids);
    return status;
}

tamis_status cli_converse(cli_session *s, cli_chat *chat, const cli_conversation *how, int *code,
                          tamis_error *error) {
    tamis_status status = check_text(chat, how, error);
    line l = {0};
    s->ending[CLI_ENDINGS] = chat->ending;
    for (size_t i = 0; i < sizeof(chat->notes) / sizeof(chat->notes[0]); i++)
        if (chat->notes[i] != NULL) fprintf(stderr, "%s: %s\n", how->command, chat->notes[i]);
    for (bool over = false; status == TAMIS_OK && !over;) {
        cli_tokens tokens = {0};
        size_t known = 0;
        status = read_line(&l, &over, error);
        if (status != TAMIS_OK || over) break;
        status = turn_tokens(chat, how, &l, &tokens, &known, error);
        if (status == TAMIS_OK) status = check_room(s, &tokens, error);
        /* a line is left out; a first turn that is too long leaves no conversation */
        if (status == TAMIS_E_ARGUMENT && (chat->turns > 0 || tokens.ids == NULL)) {
            *code = CLI_FAILED;
            (void)cli_fail(how->command, "%s", error->text);
            status = TAMIS_OK;
        } else if (status == TAMIS_OK) {
            cli_interrupt_catch();
            status = take_turn(s, chat, how, &tokens, known, &over, error);
            cli_interrupt_release();
        }
        free(tokens.ids);
    }
    if (s->interrupted) *code = CLI_INTERRUPTED;
    free(l.text);
    return status;
}
