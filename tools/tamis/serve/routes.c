/* SPDX-License-Identifier: Apache-2.0 */
/* Every path and what answers it. */
#include "serve/routes.h"

#include "cli/utf8.h"
#include "serve/page.h"
#include "serve/prompt.h"
#include "serve/reply.h"

#include <stdlib.h>
#include <string.h>

#define JSON "application/json"

/* Takes the object; NULL, or `made` false: memory ran out. */
static enum MHD_Result send_json(serve_call *call, unsigned http, cJSON *root, bool made) {
    char *text = made ? cJSON_PrintUnformatted(root) : NULL;
    cJSON_Delete(root);
    if (text == NULL) {
        serve_refuse_memory(&call->refusal);
        return MHD_YES;
    }
    return serve_call_send(call, http, JSON, text, strlen(text));
}

/* The body's object for the caller; NULL: refused. */
static cJSON *body_of(serve_call *call) {
    return serve_parse(call->body != NULL ? call->body : "", call->bytes, &call->refusal);
}

/* ---- Answers of the model -------------------------------------------------------------------- */

static void submit(serve_call *call, serve_request *request) {
    memcpy(request->salt, call->salt, sizeof request->salt);
    serve_job *job = serve_job_new(request, call->connection);
    if (job == NULL) {
        serve_request_free(request);
        serve_refuse_memory(&call->refusal);
        return;
    }
    job->arrived = call->began; /* its body and its tokens have taken time, too */
    if (serve_engine_submit(call->server->engine, job, &call->refusal))
        call->job = job;
    else
        serve_job_release(job);
}

static enum MHD_Result generate(serve_call *call, serve_endpoint endpoint) {
    serve_request *request = NULL;
    cJSON *json = body_of(call);
    if (json != NULL &&
        serve_request_read(json, endpoint, call->server->model, &request, &call->refusal))
        submit(call, request);
    else
        serve_request_free(request);
    cJSON_Delete(json);
    return MHD_YES;
}

static enum MHD_Result answer_chat(serve_call *call) {
    return generate(call, SERVE_CHAT);
}

static enum MHD_Result answer_completions(serve_call *call) {
    return generate(call, SERVE_COMPLETIONS);
}

static enum MHD_Result answer_embeddings(serve_call *call) {
    serve_refuse(&call->refusal, 400, NULL, "unsupported_endpoint",
                 "/v1/embeddings: this server makes no embeddings");
    return MHD_YES;
}

/* ---- Tokens ---------------------------------------------------------------------------------- */

/* The only fields that a body may have; the second one may be NULL. */
static bool check_fields(serve_call *call, const cJSON *json, const char *a, const char *b) {
    const cJSON *field;
    cJSON_ArrayForEach(field, json)
        if (strcmp(field->string, a) != 0 && (b == NULL || strcmp(field->string, b) != 0))
            return serve_refuse(&call->refusal, 400, field->string, "unknown_field",
                                "unknown field '%.40s'", field->string);
    return true;
}

/* {"content": text, "add_special": true or false} to {"tokens": [...]}; special: bos */
static void tokenize(serve_call *call, const cJSON *json, cli_tokens *tokens) {
    const cJSON *content = cJSON_GetObjectItemCaseSensitive(json, "content");
    const cJSON *special = cJSON_GetObjectItemCaseSensitive(json, "add_special");
    const uint32_t flags = cJSON_IsTrue(special) ? TAMIS_ENCODE_ADD_BOS : 0;
    if (!check_fields(call, json, "content", "add_special")) return;
    if (!cJSON_IsString(content)) {
        serve_refuse(&call->refusal, 400, "content", NULL, "content: must be a text");
    } else if (special != NULL && !cJSON_IsBool(special)) {
        serve_refuse(&call->refusal, 400, "add_special", NULL,
                     "add_special: must be true or false");
    } else {
        serve_tokenize(content->valuestring, call->server->model, "content", flags, tokens,
                       &call->refusal);
    }
}

/* As text: an item of cJSON's for each would take twenty times as much. */
static cJSON *list_of(const cli_tokens *tokens) {
    char *text = malloc(tokens->count * sizeof "2147483647" + sizeof "[]"), *to = text;
    if (text == NULL) return NULL;
    *to++ = '[';
    for (size_t i = 0; i < tokens->count; i++)
        to += sprintf(to, "%s%d", i > 0 ? "," : "", tokens->ids[i]);
    memcpy(to, "]", sizeof "]");
    cJSON *list = cJSON_CreateRaw(text);
    free(text);
    return list;
}

static enum MHD_Result answer_tokenize(serve_call *call) {
    cJSON *json = body_of(call), *root, *list;
    cli_tokens tokens = {0};
    if (json != NULL) tokenize(call, json, &tokens);
    cJSON_Delete(json);
    if (call->refusal.http != 0) return MHD_YES;
    root = cJSON_CreateObject();
    list = list_of(&tokens);
    const bool made = list != NULL && cJSON_AddItemToObject(root, "tokens", list);
    if (!made) cJSON_Delete(list);
    free(tokens.ids);
    return send_json(call, 200, root, made);
}

/* A short number may stand for a token of hundreds of bytes: the text, too, is bounded. */
#define TEXT_MAX ((size_t)4 << 20)

/* Adds a token's bytes. False: refused. */
static bool add_piece(serve_call *call, const cJSON *value, char **bytes, size_t *count) {
    const serve_model *model = call->server->model;
    int32_t token;
    size_t n = 0;
    if (!serve_token_of(value, model, "tokens", &token, &call->refusal)) return false;
    const char *piece = tamis_vocab_token_text(model->vocab, token, &n);
    if (*count + n > TEXT_MAX)
        return serve_refuse(&call->refusal, 400, "tokens", NULL,
                            "tokens: their text has more than %zu bytes", TEXT_MAX);
    char *longer = realloc(*bytes, *count + n + 1);
    if (longer == NULL) return serve_refuse_memory(&call->refusal);
    *bytes = longer;
    memcpy(longer + *count, piece, n);
    *count += n;
    return true;
}

/* The bytes of all tokens, which may be no UTF-8 by themselves. */
static char *detokenize(serve_call *call, const cJSON *tokens) {
    const cJSON *value;
    char *bytes = NULL, *text;
    size_t count = 0;
    cJSON_ArrayForEach(value, tokens) {
        if (!add_piece(call, value, &bytes, &count)) break;
    }
    text = call->refusal.http == 0 ? cli_utf8_text(bytes, count) : NULL;
    if (text == NULL && call->refusal.http == 0) serve_refuse_memory(&call->refusal);
    free(bytes);
    return text;
}

static enum MHD_Result answer_detokenize(serve_call *call) {
    cJSON *json = body_of(call);
    const cJSON *tokens = cJSON_GetObjectItemCaseSensitive(json, "tokens");
    char *text = NULL;
    if (json != NULL && check_fields(call, json, "tokens", NULL)) {
        if (cJSON_IsArray(tokens))
            text = detokenize(call, tokens);
        else
            serve_refuse(&call->refusal, 400, "tokens", NULL, "tokens: must be a list of tokens");
    }
    cJSON_Delete(json);
    if (text == NULL) return MHD_YES;
    cJSON *root = cJSON_CreateObject();
    const bool made = cJSON_AddStringToObject(root, "content", text) != NULL;
    free(text);
    return send_json(call, 200, root, made);
}

/* ---- The server ------------------------------------------------------------------------------ */

static bool add_model(cJSON *to, const serve_model *model) {
    return cJSON_AddStringToObject(to, "id", model->name) != NULL &&
           cJSON_AddStringToObject(to, "object", "model") != NULL &&
           cJSON_AddNumberToObject(to, "created", (double)model->created) != NULL &&
           cJSON_AddStringToObject(to, "owned_by", "tamis") != NULL &&
           cJSON_AddNumberToObject(to, "context", model->context) != NULL;
}

static enum MHD_Result answer_models(serve_call *call) {
    cJSON *root = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(root, "data");
    cJSON *one = cJSON_CreateObject();
    bool made = list != NULL && cJSON_AddItemToArray(list, one);
    if (!made) cJSON_Delete(one);
    made = made && add_model(one, call->server->model) &&
           cJSON_AddStringToObject(root, "object", "list") != NULL;
    return send_json(call, 200, root, made);
}

static enum MHD_Result answer_model(serve_call *call) {
    const serve_model *model = call->server->model;
    if (strcmp(call->name, model->name) != 0) {
        serve_refuse(&call->refusal, 404, "model", "model_not_found",
                     "model: '%.80s' is not served here, '%.80s' is", call->name, model->name);
        return MHD_YES;
    }
    cJSON *root = cJSON_CreateObject();
    return send_json(call, 200, root, add_model(root, call->server->model));
}

static enum MHD_Result answer_health(serve_call *call) {
    const bool ready = serve_engine_is_ready(call->server->engine);
    const char *text = ready ? "{\"status\":\"ok\"}" : "{\"status\":\"stopping\"}";
    return serve_call_show(call, ready ? 200 : 503, JSON, text, strlen(text));
}

static enum MHD_Result answer_metrics(serve_call *call);

/* ---- The page -------------------------------------------------------------------------------- */

static enum MHD_Result answer_page(serve_call *call) {
    return serve_call_show(call, 200, "text/html; charset=utf-8", serve_page_html,
                           serve_page_html_bytes);
}

static enum MHD_Result answer_style(serve_call *call) {
    return serve_call_show(call, 200, "text/css; charset=utf-8", serve_page_css,
                           serve_page_css_bytes);
}

static enum MHD_Result answer_script(serve_call *call) {
    return serve_call_show(call, 200, "text/javascript; charset=utf-8", serve_page_js,
                           serve_page_js_bytes);
}

/* ---- The table ------------------------------------------------------------------------------- */

static const serve_route routes[] = {
    {"POST", "/v1/chat/completions", false, answer_chat},
    {"POST", "/v1/completions", false, answer_completions},
    {"POST", "/v1/embeddings", false, answer_embeddings},
    {"POST", "/tokenize", false, answer_tokenize},
    {"POST", "/detokenize", false, answer_detokenize},
    {"GET", "/v1/models", false, answer_models},
    {"GET", "/v1/models/", false, answer_model},
    {"GET", "/health", true, answer_health},
    {"GET", "/metrics", false, answer_metrics},
    {"GET", "/", true, answer_page},
    {"GET", "/page.css", true, answer_style},
    {"GET", "/page.js", true, answer_script},
};

#define N_ROUTES (sizeof routes / sizeof routes[0])

_Static_assert(N_ROUTES < SERVE_PATHS, "a counter for each route, and one for none");

static enum MHD_Result answer_metrics(serve_call *call) {
    const char *paths[SERVE_PATHS] = {NULL};
    for (size_t i = 0; i < N_ROUTES; i++)
        paths[i] = routes[i].path;
    paths[SERVE_PATHS - 1] = "other";
    char *text = serve_metrics_text(call->server->metrics, paths);
    if (text == NULL) {
        serve_refuse_memory(&call->refusal);
        return MHD_YES;
    }
    return serve_call_send(call, 200, "text/plain; version=0.0.4", text, strlen(text));
}

static bool is_at(const serve_route *route, const char *path) {
    const size_t n = strlen(route->path);
    const bool named = n > 1 && route->path[n - 1] == '/';
    return named ? strncmp(route->path, path, n) == 0 && path[n] != '\0'
                 : strcmp(route->path, path) == 0;
}

const serve_route *serve_route_find(const char *method, const char *path, serve_refusal *refusal) {
    const char *asked = strcmp(method, "HEAD") == 0 ? "GET" : method;
    for (size_t i = 0; i < N_ROUTES; i++)
        if (is_at(&routes[i], path) && strcmp(routes[i].method, asked) == 0) return &routes[i];
    const char *allowed = serve_route_allows(path);
    if (allowed != NULL)
        serve_refuse(refusal, 405, NULL, NULL, "%.20s %.80s: the method is not known", method,
                     path);
    else
        serve_refuse(refusal, 404, NULL, NULL, "%.20s %.80s: there is no such path", method, path);
    refusal->allow = allowed;
    return NULL;
}

unsigned serve_route_place(const serve_route *route) {
    return route != NULL ? (unsigned)(route - routes) : SERVE_PATHS - 1;
}

/* No path has both. */
const char *serve_route_allows(const char *path) {
    for (size_t i = 0; i < N_ROUTES; i++)
        if (is_at(&routes[i], path))
            return strcmp(routes[i].method, "GET") == 0 ? "GET, HEAD" : "POST";
    return NULL;
}

const char *serve_route_rest(const serve_route *route, const char *path) {
    return path + strlen(route->path);
}
