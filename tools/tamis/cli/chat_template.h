/* SPDX-License-Identifier: Apache-2.0 */
/* The tokens of a conversation's turns, as the template of the model's file makes them. */
#ifndef CLI_CHAT_TEMPLATE_H
#define CLI_CHAT_TEMPLATE_H

#include "cli/chat.h"

/* Runs the template of chat->vocab once, and sets what the chat knows of it. Errors: E_UNSUPPORTED
 * (it cannot be run, it leaves out what is said, or names a token that the vocabulary lacks),
 * E_ARGUMENT (it refuses the system text), E_NO_MEMORY. */
tamis_status cli_template_open(cli_chat *chat, tamis_error *error);
/* cli_chat_turn. */
tamis_status cli_template_turn(const cli_chat *chat, const char *text, size_t bytes,
                               cli_tokens *out, tamis_error *error);

/* A message of a conversation that is given whole. */
typedef struct cli_message {
    const char *role; /* as the template calls it: "system", "user", "assistant" */
    const char *text;
    size_t bytes;
    /* [bytes] 0: of no document. Bytes of one document have one number above 0, those of its
     * neighbour another. NULL: there are no documents. */
    const uint8_t *documents;
} cli_message;

/* Consecutive tokens of a prompt: a document, which is cut into tokens by itself, or what stands
 * between two. */
typedef struct cli_part {
    size_t count;
    bool document;
} cli_part;

typedef struct cli_prompt {
    cli_tokens tokens;
    cli_part *parts; /* [n_parts], none empty; freed by free(), as the tokens are */
    size_t n_parts;
} cli_prompt;

/* The tokens of a whole conversation, up to the answer that follows, as the template makes them of
 * it; chat->system and chat->turns are passed over. Errors: those of cli_chat_turn; E_ARGUMENT (the
 * template refuses the conversation, or leaves out what a message says). `out` owns nothing after an
 * error. */
tamis_status cli_template_messages(const cli_chat *chat, const cli_message *messages, size_t count,
                                   cli_prompt *out, tamis_error *error);

#endif
