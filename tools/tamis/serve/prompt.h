/* SPDX-License-Identifier: Apache-2.0 */
/* Messages and prompts of a request, as tokens. */
#ifndef SERVE_PROMPT_H
#define SERVE_PROMPT_H

#include "serve/request.h"

/* Bytes of the longest token, of which serve_model wants to know. */
uint32_t serve_longest_token(const tamis_vocab *vocab);

/* Of "messages": roles system, developer, user and assistant; contents are texts, or parts of types
 * text and document. Fills `prompt`. False: refused. */
bool serve_prompt_of_messages(const cJSON *messages, const serve_model *model, cli_prompt *prompt,
                              serve_refusal *refusal);
/* Of "prompt": a text, tokens, or a list of texts or of lists of tokens. Fills the request's prompts. */
bool serve_prompts_of(const cJSON *prompt, const serve_model *model, serve_request *request,
                      serve_refusal *refusal);
/* A token by its number. `param` is the field. */
bool serve_token_of(const cJSON *value, const serve_model *model, const char *param, int32_t *out,
                    serve_refusal *refusal);
/* The tokens of a text, unless it is too long for the context; `flags` are those of tamis_vocab_encode. `param` is the field. */
bool serve_tokenize(const char *text, const serve_model *model, const char *param, uint32_t flags,
                    cli_tokens *out, serve_refusal *refusal);

#endif
