/* SPDX-License-Identifier: Apache-2.0 */
/* The tokens of a conversation's turns, in the form that a model was trained with: as the template
 * of its file makes them, or in a format that is named. */
#ifndef CLI_CHAT_H
#define CLI_CHAT_H

#include "cli/text.h"

#include <time.h>

typedef struct cli_chat {
    const tamis_vocab *vocab;
    const struct cli_chat_format *format; /* NULL: the file's template */
    const char *system;                   /* NULL: none, so that a template may put its own */
    struct tm date;                       /* which a template is told */
    bool dated;                           /* it is told one */
    uint32_t turns;                       /* that came before */
    int32_t ending;                       /* what ends an answer; -1: nothing does */
    const char *notes[2]; /* what differs from other runs of the template, or NULL */
} cli_chat;

/* Names of formats, ended by NULL. */
extern const char *const cli_chat_names[];

/* `name` is a format's; NULL runs the file's template. `date` is YYYY-MM-DD, for templates that ask
 * for today's; NULL: none. Errors: E_UNSUPPORTED (no template, one that
 * cannot be run or leaves out what is said, a vocabulary that lacks a token that is needed),
 * E_ARGUMENT (a tag of the format in the system text, a system text that the template refuses, no
 * date). The vocabulary and the system text must outlive *out. */
tamis_status cli_chat_open(const tamis_vocab *vocab, const char *name, const char *system,
                           const char *date, cli_chat *out, tamis_error *error);

/* The tokens to read before the next answer: what ends the answer before, if there is one, and the
 * user's text with all around it. Nothing in the text becomes a token of the format or template:
 * where they cannot be told apart, the text is refused (E_ARGUMENT). E_UNSUPPORTED: a template that
 * writes earlier turns anew. `out` owns nothing after an error. */
tamis_status cli_chat_turn(const cli_chat *chat, const char *text, size_t bytes, cli_tokens *out,
                           tamis_error *error);

/* The name of the format, or "template". */
const char *cli_chat_name(const cli_chat *chat);

/* The tokens that end an answer in any format: eos, eot, and those by which models end a turn or a
 * text; -1 for one that the vocabulary lacks. */
#define CLI_ENDINGS 7
void cli_endings(const tamis_vocab *vocab, int32_t out[CLI_ENDINGS]);

#endif
