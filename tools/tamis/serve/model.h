/* SPDX-License-Identifier: Apache-2.0 */
/* What requests may ask of the model that is served. It never changes while the server runs. */
#ifndef SERVE_MODEL_H
#define SERVE_MODEL_H

#include "cli/chat.h"

typedef struct serve_model {
    const char *name; /* by which requests name it */
    const tamis_vocab *vocab;
    uint32_t
        longest_token; /* bytes (serve_longest_token); 0: texts of any length are cut into tokens */
    uint32_t n_vocab, n_layers, n_kv_heads;
    uint32_t context;      /* tokens of a prompt and its answer */
    uint32_t most_prompt;  /* tokens of a prompt */
    uint32_t most_choices; /* answers of a request */
    cli_chat chat;
    char no_chat[400];                /* why the file's template cannot be run; "": it can */
    int32_t endings[CLI_ENDINGS + 1]; /* tokens that end an answer; -1: none */
    bool sparse; /* a selection reads part of the cache: requests may ask for all of it */
    bool evicts; /* tokens are gone behind a prompt: they may not */
    time_t created;
} serve_model;

/* Whether a token ends an answer. */
bool serve_ends(const serve_model *model, int32_t token);

#endif
