/* SPDX-License-Identifier: Apache-2.0 */
/* Chat templates: the part of Jinja2 that they are written in, as transformers runs them
 * (trim_blocks and lstrip_blocks). What is not known of the language is an error, never something
 * similar. */
#ifndef JINJA_H
#define JINJA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tamis/status.h>
#include <time.h>

/* Whose a byte of the result is: the template's own, or of a message with that origin. */
#define JINJA_TEMPLATE 0

typedef struct jinja_message {
    const char *role;
    const char *text;
    size_t bytes;
    uint8_t origin;
    const uint8_t *origins; /* [bytes] in the place of `origin`; NULL: all are that */
} jinja_message;

typedef struct jinja_conversation {
    const jinja_message *messages;
    size_t count;
    const char *bos, *eos; /* texts of these tokens, or empty */
    bool add_generation_prompt;
    const struct tm *date; /* what strftime_now answers of; NULL: it is not defined */
} jinja_conversation;

/* Reads YYYY-MM-DD; false: that is no date. */
bool jinja_date(const char *text, struct tm *out);

typedef struct jinja_result {
    char *text;
    uint8_t *origins; /* [bytes] */
    size_t bytes;
} jinja_result;

/* Runs a template, which is not trusted: steps and memory are limited. Errors: E_UNSUPPORTED (a
 * part of the language that is not known), E_FORMAT (no template; something that Jinja2 refuses,
 * too), E_ARGUMENT (the template refuses the conversation), E_NO_MEMORY; *out is then empty. */
tamis_status jinja_render(const char *template, const jinja_conversation *conversation,
                          jinja_result *out, tamis_error *error);
void jinja_result_free(jinja_result *result);

#endif
