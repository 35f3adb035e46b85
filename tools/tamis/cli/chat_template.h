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

#endif
