/* SPDX-License-Identifier: Apache-2.0 */
/* Why a request is not answered, in the shape of OpenAI's errors. */
#ifndef SERVE_REFUSAL_H
#define SERVE_REFUSAL_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct serve_refusal {
    unsigned http;     /* the status; 0: there is none */
    unsigned wait;     /* seconds for Retry-After; 0: it is not sent */
    const char *allow; /* the methods of a path that has another one; NULL: it is not sent */
    char param[64];    /* the field; "": of none */
    char code[32];     /* a word for programs; "": none */
    char text[512];
} serve_refusal;

/* Fills `refusal`; `param` and `code` may be NULL. Returns false. */
bool serve_refuse(serve_refusal *refusal, unsigned http, const char *param, const char *code,
                  const char *format, ...) __attribute__((format(printf, 5, 6)));
bool serve_refuse_memory(serve_refusal *refusal);

/* {"error": {"message", "type", "param", "code"}}, for the caller to free. NULL without memory. */
char *serve_refusal_json(const serve_refusal *refusal);
/* Adds bytes to an object as a text, as cli_utf8_text makes it of them. False without memory. */
bool serve_add_text(cJSON *to, const char *name, const char *text, size_t bytes);

#endif
