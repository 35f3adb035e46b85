/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a template over a conversation. */
#include "jinja/tree.h"

#include <stdlib.h>
#include <string.h>

static jinja_value message_of(jinja_work *w, const jinja_message *message) {
    jinja_value map = jinja_of_map(w, JINJA_MAP);
    uint8_t *origins = jinja_take(w, message->bytes + 1);
    memset(origins, message->origin, message->bytes);
    if (message->origins != NULL) memcpy(origins, message->origins, message->bytes);
    const jinja_text text = {message->text, origins, message->bytes};
    jinja_put(w, map.map, jinja_literal("role"), jinja_of_text(jinja_literal(message->role)));
    jinja_put(w, map.map, jinja_literal("content"), jinja_of_text(text));
    return map;
}

/* The variables that transformers gives to a template; others are undefined. */
static void set_all(jinja_work *w, const jinja_conversation *conversation) {
    jinja_value messages = jinja_of_list(w);
    for (size_t i = 0; i < conversation->count; i++)
        jinja_append(w, messages.list, message_of(w, &conversation->messages[i]));
    jinja_set(w, jinja_literal("messages"), messages);
    jinja_set(w, jinja_literal("add_generation_prompt"),
              jinja_of_bool(conversation->add_generation_prompt));
    jinja_set(w, jinja_literal("bos_token"), jinja_of_text(jinja_literal(conversation->bos)));
    jinja_set(w, jinja_literal("eos_token"), jinja_of_text(jinja_literal(conversation->eos)));
    jinja_set(w, jinja_literal("tools"), (jinja_value){.kind = JINJA_NONE});
    jinja_set(w, jinja_literal("documents"), (jinja_value){.kind = JINJA_NONE});
}

static size_t bytes_of(const char *template, const jinja_conversation *conversation) {
    size_t bytes = strlen(template);
    for (size_t i = 0; i < conversation->count; i++)
        bytes += conversation->messages[i].bytes;
    return bytes;
}

/* The result in memory of its own, a NUL behind the text. */
static tamis_status take_out(const jinja_work *w, jinja_result *out, tamis_error *error) {
    out->bytes = w->out.bytes;
    out->text = malloc(out->bytes + 1);
    out->origins = malloc(out->bytes + 1);
    if (out->text == NULL || out->origins == NULL) {
        jinja_result_free(out);
        *error = (tamis_error){TAMIS_E_NO_MEMORY, "no memory for a template's text"};
        return TAMIS_E_NO_MEMORY;
    }
    if (out->bytes > 0) {
        memcpy(out->text, w->out.at, out->bytes);
        memcpy(out->origins, w->out.origins, out->bytes);
    }
    out->text[out->bytes] = '\0';
    return TAMIS_OK;
}

tamis_status jinja_render(const char *template, const jinja_conversation *conversation,
                          jinja_result *out, tamis_error *error) {
    jinja_work *w = calloc(1, sizeof *w);
    *out = (jinja_result){0};
    if (w == NULL) {
        *error = (tamis_error){TAMIS_E_NO_MEMORY, "no memory for a template"};
        return TAMIS_E_NO_MEMORY;
    }
    jinja_limit(w, bytes_of(template, conversation));
    if (setjmp(w->escape) == 0) {
        const jinja_node *body = jinja_parse(w, jinja_lex(w, template));
        set_all(w, conversation);
        w->date = conversation->date;
        jinja_run(w, body);
        w->error.status = TAMIS_OK;
    }
    tamis_status status = w->error.status;
    if (status == TAMIS_OK)
        status = take_out(w, out, error);
    else
        *error = w->error;
    jinja_release(w);
    free(w);
    return status;
}

void jinja_result_free(jinja_result *result) {
    free(result->text);
    free(result->origins);
    *result = (jinja_result){0};
}
