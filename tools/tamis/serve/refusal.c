/* SPDX-License-Identifier: Apache-2.0 */
/* Errors as OpenAI's interface shows them. */
#include "serve/refusal.h"

#include "cli/utf8.h"

#include <cjson/cJSON.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

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
    return http < 500 && http != 429 ? "invalid_request_error" : "server_error";
}

/* A text of the refusal may be cut within a character. */
static bool add_text(cJSON *to, const char *name, const char *text) {
    char *repaired = text[0] != '\0' ? cli_utf8_repaired(text) : NULL;
    const bool added =
        text[0] == '\0' ? cJSON_AddNullToObject(to, name) != NULL
                        : repaired != NULL && cJSON_AddStringToObject(to, name, repaired) != NULL;
    free(repaired);
    return added;
}

char *serve_refusal_json(const serve_refusal *refusal) {
    cJSON *root = cJSON_CreateObject(), *error = cJSON_AddObjectToObject(root, "error");
    char *text = NULL;
    if (error != NULL && add_text(error, "message", refusal->text) &&
        add_text(error, "type", type_of(refusal->http)) &&
        add_text(error, "param", refusal->param) && add_text(error, "code", refusal->code))
        text = cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    return text;
}
