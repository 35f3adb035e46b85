/* SPDX-License-Identifier: Apache-2.0 */
/* Text that is printed while it grows. */
#ifndef CLI_ANSWER_H
#define CLI_ANSWER_H

#include "cli/options.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Held back are the beginning of a UTF-8 character, until the rest of it or something else comes,
 * and what may still become a text that ends the answer. All else is written at once. Of several
 * such texts the first to be complete counts, and the longest of those that are so together. */
typedef struct cli_answer {
    FILE *to;               /* NULL: the text is only kept; free() it, or end the answer */
    const cli_texts *stops; /* the answer ends before any of them; NULL: there are none */
    char *text;
    size_t bytes, printed, tokens;
    bool stopped; /* one of `stops` has appeared */
} cli_answer;

/* Adds the bytes of a token. False without memory. */
bool cli_answer_add(cli_answer *answer, const char *piece, size_t bytes);
/* How many bytes of the text are not held back; with `ended`, when no token follows. */
size_t cli_answer_ready(const cli_answer *answer, bool ended);
/* Writes what was held back, unless it is a stop text, and a newline. Of a character that is not
 * whole nothing is written, so that the output is text. Frees the text. */
void cli_answer_end(cli_answer *answer);

/* A text as one line, for the caller to free: white space and control characters together become
 * one space, none at either end; a byte that is no UTF-8 becomes U+FFFD; a character that is not
 * whole at the end is left out. NULL without memory. */
char *cli_answer_line(const char *text, size_t bytes);

#endif
