/* SPDX-License-Identifier: Apache-2.0 */
/* What a request asks, read from JSON and checked. Every field is honoured, changes no answer, or is
 * refused by name. */
#ifndef SERVE_REQUEST_H
#define SERVE_REQUEST_H

#include "cli/chat_template.h"
#include "serve/model.h"
#include "serve/refusal.h"

#include <cjson/cJSON.h>
#include <tamis/sample.h>

typedef enum serve_endpoint { SERVE_CHAT = 1, SERVE_COMPLETIONS = 2 } serve_endpoint;

#define SERVE_TOP_MAX 20u /* likely tokens beside each */

typedef struct serve_bias {
    int32_t token;
    float add; /* to its logit */
} serve_bias;

typedef struct serve_request {
    serve_endpoint endpoint;
    cli_prompt *prompts; /* [n_prompts] */
    uint32_t n_prompts;
    uint32_t n;              /* answers to each prompt */
    uint32_t max_new;        /* tokens of an answer; 0: as many as the context has room for */
    cli_texts stops;         /* the answer ends before these; the texts are the request's own */
    tamis_sampling sampling; /* of the first answer; the seeds of the others count up from its */
    float presence, frequency;
    serve_bias *biases; /* [n_biases] */
    uint32_t n_biases;
    uint32_t top;       /* likely tokens that are told beside each */
    bool logprobs;      /* the logarithms of probabilities are told */
    bool stream, usage; /* usage: a stream tells it at its end */
    bool exact;         /* tokens read the whole cache, whatever the server's selection */
    bool reads;         /* it is told which pages tokens have read */
    uint8_t salt[16];   /* of whom it shares prefixes with */
} serve_request;

/* The JSON of a body, which must be UTF-8, one object, and hold no NUL. NULL: refused. */
cJSON *serve_parse(const char *body, size_t bytes, serve_refusal *refusal);
/* Refuses a field that the object has twice, or whose name is longer than any that is known. */
bool serve_check_names(const cJSON *object, serve_refusal *refusal);

/* Reads a request of the endpoint; *out is for serve_request_free. False: refused. */
bool serve_request_read(const cJSON *json, serve_endpoint endpoint, const serve_model *model,
                        serve_request **out, serve_refusal *refusal);
/* Accepts NULL. */
void serve_request_free(serve_request *request);

#endif
