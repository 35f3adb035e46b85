/* SPDX-License-Identifier: Apache-2.0 */
/* Errors as OpenAI's interface shows them. */
#include "serve/refusal.h"

#include "cli/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool serve_refuse(serve_refusal *refusal, unsigned http, const char *param, const char *code,
                  const char *format, ...) {
    va_list arguments;
    *refusal = (serve_refusal){.http = http};
    snprintf(refusal->param, sizeof refusal->param, "%s", param != NULL ? param : "");
    snprintf(refusal->code, sizeof refusal->code, "%s", code != NULL ? code : "");
    va_start(arguments, format);
    vsnprintf(refusal->text, sizeof refusal->text, format, arguments);
    va_end(arguments);
    return false;
}

bool serve_refuse_memory(serve_refusal *refusal) {
    return serve_refuse(refusal, 500, NULL, "out_of_memory", "out of host memory");
}

static const char *type_of(unsigned http) {
    if (http == 401) return "authentication_error";
    if (http == 403) return "permission_error";
    return http < 500 ? "invalid_request_error" : "server_error";
}

bool serve_add_text(cJSON *to, const char *name, const char *text, size_t bytes) {
    char *own = cli_utf8_text(text, bytes);
    const bool added = own != NULL && cJSON_AddStringToObject(to, name, own) != NULL;
    free(own);
    return added;
}

/* It may be cut within a character. */
static bool add_word(cJSON *to, const char *name, const char *text) {
    return text[0] != '\0' ? serve_add_text(to, name, text, strlen(text))
                           : cJSON_AddNullToObject(to, name) != NULL;
}

char *serve_refusal_json(const serve_refusal *refusal) {
    cJSON *root = cJSON_CreateObject(), *error = cJSON_AddObjectToObject(root, "error");
    char *text = NULL;
    if (error != NULL && add_word(error, "message", refusal->text) &&
        add_word(error, "type", type_of(refusal->http)) &&
        add_word(error, "param", refusal->param) && add_word(error, "code", refusal->code))
        text = cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    return text;
}
