/* SPDX-License-Identifier: Apache-2.0 */
/* A conversation: lines from standard input, an answer to each, over one cache. */
#ifndef CLI_CONVERSE_H
#define CLI_CONVERSE_H

#include "cli/chat.h"
#include "cli/record.h"
#include "cli/session.h"

typedef struct cli_conversation {
    const char *command; /* for messages */
    const char *text;    /* stands before the first line, an empty line between */
    size_t bytes;
    /* Each line is read token by token, under the selection, but for the first where no text stands
     * before it. Otherwise lines are read as prompts are. */
    bool under_selection;
    uint32_t most;          /* tokens of an answer */
    const cli_texts *stops; /* an answer ends before any of them; NULL: there are none */
    cli_record *record;
} cli_conversation;

/* Talks until the lines end; E_IO where standard input cannot be read, E_FORMAT where a line never
 * ends. *code, CLI_OK before, becomes CLI_FAILED if a line was left out, since it holds what no text
 * may hold or is too long (stderr says why), and CLI_INTERRUPTED if Ctrl-C ended the conversation.
 * E_ARGUMENT: the text before the first line is at fault, or is too long together with that line. */
tamis_status cli_converse(cli_session *s, cli_chat *chat, const cli_conversation *how, int *code,
                          tamis_error *error);

#endif
