/* SPDX-License-Identifier: Apache-2.0 */
/* From JSON to the tokens of prompts. */
#include "serve/prompt.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGES_MAX 4096
#define PARTS_MAX    4096

/* A message of a request is refused with 400; what the server lacks, with 500. */
static bool refuse_error(const tamis_error *error, tamis_status status, const char *param,
                         serve_refusal *refusal) {
    if (status == TAMIS_E_NO_MEMORY) return serve_refuse_memory(refusal);
    return serve_refuse(refusal, 400, param, NULL, "%s", error->text);
}

bool serve_token_of(const cJSON *value, const serve_model *model, const char *param, int32_t *out,
                    serve_refusal *refusal) {
    const double number = cJSON_IsNumber(value) ? value->valuedouble : NAN;
    if (isnan(number))
        return serve_refuse(refusal, 400, param, NULL, "%s: tokens must be numbers", param);
    if (number < 0 || number >= model->n_vocab || number != floor(number))
        return serve_refuse(refusal, 400, param, NULL, "%s: %.17g is no token, they are 0 to %u",
                            param, number, model->n_vocab - 1);
    *out = (int32_t)number;
    return true;
}

uint32_t serve_longest_token(const tamis_vocab *vocab) {
    const uint32_t count = tamis_vocab_describe(vocab)->n_tokens;
    size_t longest = 0;
    for (uint32_t i = 0; i < count; i++) {
        size_t bytes = 0;
        tamis_vocab_token_text(vocab, (int32_t)i, &bytes);
        if (bytes > longest) longest = bytes;
    }
    return (uint32_t)longest;
}

/* What cannot fit is refused before it costs time: all connections wait for a template and for the
 * cutting into tokens. */
static bool check_bytes(size_t bytes, const serve_model *model, const char *param,
                        serve_refusal *refusal) {
    const size_t longest = model->longest_token;
    if (longest == 0 || bytes <= ((size_t)model->context + 1) * longest) return true;
    return serve_refuse(refusal, 400, param, "context_length_exceeded",
                        "%s: %zu bytes are at least %zu tokens; %u are the most", param, bytes,
                        (bytes + longest - 1) / longest, model->context);
}

/* ---- Messages -------------------------------------------------------------------------------- */

/* A message's text as it grows part by part. */
typedef struct said {
    char *text;
    uint8_t *documents; /* as in cli_message */
    size_t bytes, room;
    uint8_t last; /* the number of the document before; 0: none */
} said;

static const char *role_of(const char *role) {
    static const char *const known[] = {"system", "user", "assistant"};
    if (strcmp(role, "developer") == 0) return "system";
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(role, known[i]) == 0) return known[i];
    return NULL;
}

/* Doubled, so that thousands of parts are not copied thousands of times. */
static bool make_room(said *to, size_t bytes, serve_refusal *refusal) {
    if (to->text != NULL && to->bytes + bytes < to->room) return true;
    const size_t room = 2 * (to->bytes + bytes) + 1;
    char *text = realloc(to->text, room);
    if (text == NULL) return serve_refuse_memory(refusal);
    to->text = text;
    uint8_t *documents = realloc(to->documents, room);
    if (documents == NULL) return serve_refuse_memory(refusal);
    to->documents = documents;
    to->room = room;
    return true;
}

static bool add_text(said *to, const char *text, bool document, serve_refusal *refusal) {
    const size_t bytes = strlen(text);
    if (!make_room(to, bytes, refusal)) return false;
    if (bytes > 0) to->last = (uint8_t)(document ? to->last % 2 + 1 : 0);
    memcpy(to->text + to->bytes, text, bytes + 1);
    memset(to->documents + to->bytes, to->last, bytes);
    to->bytes += bytes;
    return true;
}

/* {"type": "text" or "document", "text": ...} */
static bool add_part(said *to, const cJSON *part, const char *where, serve_refusal *refusal) {
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(part, "type");
    const cJSON *text = cJSON_GetObjectItemCaseSensitive(part, "text"), *field;
    if (!cJSON_IsString(type))
        return serve_refuse(refusal, 400, where, NULL, "%s: a part has no \"type\"", where);
    const bool document = strcmp(type->valuestring, "document") == 0;
    if (!document && strcmp(type->valuestring, "text") != 0)
        return serve_refuse(refusal, 400, where, "unsupported_content",
                            "%s: a part of type '%.40s' is not supported, only text and document",
                            where, type->valuestring);
    if (!cJSON_IsString(text))
        return serve_refuse(refusal, 400, where, NULL, "%s: a part of type %s has no \"text\"",
                            where, type->valuestring);
    cJSON_ArrayForEach(field, part)
        if (field != type && field != text && !cJSON_IsNull(field))
            return serve_refuse(refusal, 400, where, NULL, "%s: unknown field '%.40s' of a part",
                                where, field->string);
    return add_text(to, text->valuestring, document, refusal);
}

static bool add_content(said *to, const cJSON *content, const char *where, serve_refusal *refusal) {
    const cJSON *part;
    if (cJSON_IsString(content)) return add_text(to, content->valuestring, false, refusal);
    if (!cJSON_IsArray(content))
        return serve_refuse(refusal, 400, where, NULL,
                            "%s: \"content\" must be a text or a list of parts", where);
    if (cJSON_GetArraySize(content) > PARTS_MAX)
        return serve_refuse(refusal, 400, where, NULL, "%s: has %d parts; %d are the most", where,
                            cJSON_GetArraySize(content), PARTS_MAX);
    if (!add_text(to, "", false, refusal)) return false;
    cJSON_ArrayForEach(part, content)
        if (!add_part(to, part, where, refusal)) return false;
    return true;
}

/* What an answer of OpenAI's brings along and says nothing. */
static bool says_nothing(const cJSON *field) {
    return cJSON_IsNull(field) || (cJSON_IsArray(field) && cJSON_GetArraySize(field) == 0);
}

static bool read_message(const cJSON *message, size_t i, cli_message *out, said *to,
                         serve_refusal *refusal) {
    char where[32];
    snprintf(where, sizeof where, "messages[%zu]", i);
    const cJSON *role = cJSON_GetObjectItemCaseSensitive(message, "role");
    const cJSON *content = cJSON_GetObjectItemCaseSensitive(message, "content"), *field;
    if (!cJSON_IsObject(message))
        return serve_refuse(refusal, 400, where, NULL, "%s: must be an object", where);
    if (!serve_check_names(message, refusal)) return false;
    if (!cJSON_IsString(role))
        return serve_refuse(refusal, 400, where, NULL, "%s: has no \"role\"", where);
    out->role = role_of(role->valuestring);
    if (out->role == NULL)
        return serve_refuse(refusal, 400, where, NULL,
                            "%s: role '%.40s' must be system, developer, user or assistant", where,
                            role->valuestring);
    cJSON_ArrayForEach(field, message)
        if (field != role && field != content && !says_nothing(field))
            return serve_refuse(refusal, 400, where, "unsupported_field",
                                "%s: field '%.40s' is not supported", where, field->string);
    if (!add_content(to, content, where, refusal)) return false;
    out->text = to->text;
    out->bytes = to->bytes;
    out->documents = to->documents;
    return true;
}

bool serve_prompt_of_messages(const cJSON *json, const serve_model *model, cli_prompt *prompt,
                              serve_refusal *refusal) {
    const int size = cJSON_IsArray(json) ? cJSON_GetArraySize(json) : 0;
    if (size < 1 || size > MESSAGES_MAX)
        return serve_refuse(refusal, 400, "messages", NULL,
                            "messages: must be a list of 1 to %d messages", MESSAGES_MAX);
    if (model->no_chat[0] != '\0')
        return serve_refuse(refusal, 400, "messages", "no_chat_template",
                            "%s; /v1/completions takes a prompt", model->no_chat);
    const size_t count = (size_t)size;
    cli_message *messages = calloc(count, sizeof *messages);
    said *texts = calloc(count, sizeof *texts);
    bool read = messages != NULL && texts != NULL ? true : serve_refuse_memory(refusal);
    const cJSON *message = read ? json->child : NULL;
    size_t bytes = 0;
    for (size_t i = 0; read && i < count; i++, message = message->next) {
        /* A template may put nothing between the documents of two messages. */
        texts[i].last = i > 0 ? texts[i - 1].last : 0;
        read = read_message(message, i, &messages[i], &texts[i], refusal);
        bytes += texts[i].bytes;
    }
    tamis_error error = {0};
    tamis_status status = TAMIS_OK;
    read = read && check_bytes(bytes, model, "messages", refusal);
    if (read) status = cli_template_messages(&model->chat, messages, count, prompt, &error);
    if (status != TAMIS_OK) read = refuse_error(&error, status, "messages", refusal);
    for (size_t i = 0; texts != NULL && i < count; i++) {
        free(texts[i].text);
        free(texts[i].documents);
    }
    free(texts);
    free(messages);
    return read;
}

/* ---- Prompts --------------------------------------------------------------------------------- */

/* All tokens of a prompt are one part. */
static bool make_part(cli_prompt *prompt, serve_refusal *refusal) {
    if (prompt->tokens.count == 0)
        return serve_refuse(refusal, 400, "prompt", NULL, "prompt: has no tokens");
    prompt->parts = calloc(1, sizeof *prompt->parts);
    if (prompt->parts == NULL) return serve_refuse_memory(refusal);
    prompt->parts[0].count = prompt->tokens.count;
    prompt->n_parts = 1;
    return true;
}

bool serve_tokenize(const char *text, const serve_model *model, const char *param, uint32_t flags,
                    cli_tokens *out, serve_refusal *refusal) {
    const size_t bytes = strlen(text);
    tamis_error error = {0};
    if (!check_bytes(bytes, model, param, refusal)) return false;
    const tamis_status status = cli_tokenize(model->vocab, text, bytes, flags, out, &error);
    return status == TAMIS_OK || refuse_error(&error, status, param, refusal);
}

static bool take_text(const char *text, const serve_model *model, cli_prompt *prompt,
                      serve_refusal *refusal) {
    return serve_tokenize(text, model, "prompt", TAMIS_ENCODE_ADD_BOS, &prompt->tokens, refusal) &&
           make_part(prompt, refusal);
}

static bool take_tokens(const cJSON *list, const serve_model *model, cli_prompt *prompt,
                        serve_refusal *refusal) {
    const cJSON *value;
    prompt->tokens.ids = calloc((size_t)cJSON_GetArraySize(list) + 1, sizeof(int32_t));
    if (prompt->tokens.ids == NULL) return serve_refuse_memory(refusal);
    cJSON_ArrayForEach(value, list) {
        if (!serve_token_of(value, model, "prompt", &prompt->tokens.ids[prompt->tokens.count],
                            refusal))
            return false;
        prompt->tokens.count++;
    }
    return make_part(prompt, refusal);
}

static bool take_one(const cJSON *value, const serve_model *model, cli_prompt *prompt,
                     serve_refusal *refusal) {
    if (cJSON_IsString(value)) return take_text(value->valuestring, model, prompt, refusal);
    if (cJSON_IsArray(value)) return take_tokens(value, model, prompt, refusal);
    return serve_refuse(refusal, 400, "prompt", NULL,
                        "prompt: must be a text, a list of tokens, or a list of these");
}

bool serve_prompts_of(const cJSON *json, const serve_model *model, serve_request *request,
                      serve_refusal *refusal) {
    const bool several = cJSON_IsArray(json) && json->child != NULL && !cJSON_IsNumber(json->child);
    const int count = several ? cJSON_GetArraySize(json) : 1;
    const cJSON *value = several ? json->child : json;
    if ((uint32_t)count > model->most_choices)
        return serve_refuse(refusal, 400, "prompt", NULL, "prompt: has %d prompts; %u are the most",
                            count, model->most_choices);
    request->prompts = calloc((size_t)count, sizeof *request->prompts);
    if (request->prompts == NULL) return serve_refuse_memory(refusal);
    request->n_prompts = (uint32_t)count;
    for (int i = 0; i < count; i++, value = value->next)
        if (!take_one(value, model, &request->prompts[i], refusal)) return false;
    return true;
}
