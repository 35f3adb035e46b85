/* SPDX-License-Identifier: Apache-2.0 */
/* Reads requests by a table of all fields that are known. */
#define _GNU_SOURCE /* getrandom */
#include "serve/request.h"

#include "cli/utf8.h"
#include "serve/prompt.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

#define NAME_MAX_BYTES 40u
#define STOP_MAX_BYTES 1024u
#define BIASES_MAX     1024

typedef struct reader {
    const cJSON *json;
    const serve_model *model;
    serve_request *request;
    serve_refusal *refusal;
    const char *name; /* of the field */
} reader;

/* ---- JSON ------------------------------------------------------------------------------------ */

/* cJSON ends a text at a NUL, also at one that is written as an escape: what follows would be lost. */
static bool has_nul(const char *body, size_t bytes) {
    if (memchr(body, '\0', bytes) != NULL) return true;
    for (size_t i = 0; i + 1 < bytes; i++) {
        if (body[i] != '\\') continue;
        if (bytes - i >= 6 && memcmp(body + i, "\\u0000", 6) == 0) return true;
        i++; /* a backslash that is escaped escapes nothing */
    }
    return false;
}

static size_t first_no_utf8(const char *text, size_t bytes) {
    size_t at = 0;
    while (at < bytes) {
        const size_t n = cli_utf8_character(text + at, bytes - at);
        if (n == 0) break;
        at += n;
    }
    return at;
}

cJSON *serve_parse(const char *body, size_t bytes, serve_refusal *refusal) {
    const char *end = body;
    const size_t valid = first_no_utf8(body, bytes);
    if (valid < bytes)
        serve_refuse(refusal, 400, NULL, NULL, "the body is no UTF-8 from byte %zu on", valid);
    else if (has_nul(body, bytes))
        serve_refuse(refusal, 400, NULL, NULL, "the body holds a NUL character");
    if (refusal->http != 0) return NULL;
    cJSON *json = cJSON_ParseWithLengthOpts(body, bytes, &end, 0);
    size_t at = (size_t)(end - body);
    while (json != NULL && at < bytes && strchr(" \t\r\n", body[at]) != NULL)
        at++;
    if (json == NULL || at < bytes)
        serve_refuse(refusal, 400, NULL, "bad_json", "the body is no JSON from byte %zu on", at);
    else if (!cJSON_IsObject(json))
        serve_refuse(refusal, 400, NULL, "bad_json", "the body must be a JSON object");
    else if (serve_check_names(json, refusal))
        return json;
    cJSON_Delete(json);
    return NULL;
}

bool serve_check_names(const cJSON *object, serve_refusal *refusal) {
    const cJSON *a, *b;
    int count = 0;
    cJSON_ArrayForEach(a, object)
        if (++count > 64 || strlen(a->string) > NAME_MAX_BYTES)
            return serve_refuse(refusal, 400, NULL, "unknown_field", "unknown field '%.40s'",
                                a->string);
    cJSON_ArrayForEach(a, object)
        for (b = a->next; b != NULL; b = b->next)
            if (strcmp(a->string, b->string) == 0)
                return serve_refuse(refusal, 400, a->string, NULL, "%s: stands there twice",
                                    a->string);
    return true;
}

/* ---- Values ---------------------------------------------------------------------------------- */

static bool number(const reader *r, const cJSON *value, double least, double most, double *out) {
    if (!cJSON_IsNumber(value) || !isfinite(value->valuedouble))
        return serve_refuse(r->refusal, 400, r->name, NULL, "%s: must be a number", r->name);
    if (value->valuedouble < least || value->valuedouble > most)
        return serve_refuse(r->refusal, 400, r->name, NULL, "%s: %.9g must be from %.9g to %.9g",
                            r->name, value->valuedouble, least, most);
    *out = value->valuedouble;
    return true;
}

static bool real(const reader *r, const cJSON *value, double least, double most, float *out) {
    double wide = 0;
    if (!number(r, value, least, most, &wide)) return false;
    *out = (float)wide;
    return true;
}

static bool whole(const reader *r, const cJSON *value, uint32_t least, uint32_t most,
                  uint32_t *out) {
    double wide = 0;
    if (!number(r, value, least, most, &wide)) return false;
    if (wide != floor(wide))
        return serve_refuse(r->refusal, 400, r->name, NULL, "%s: %.9g must be a whole number",
                            r->name, wide);
    *out = (uint32_t)wide;
    return true;
}

static bool yes_or_no(const reader *r, const cJSON *value, bool *out) {
    if (!cJSON_IsBool(value))
        return serve_refuse(r->refusal, 400, r->name, NULL, "%s: must be true or false", r->name);
    *out = cJSON_IsTrue(value) != 0;
    return true;
}

/* ---- Fields that are honoured ---------------------------------------------------------------- */

static bool read_model(reader *r, const cJSON *value) {
    if (!cJSON_IsString(value))
        return serve_refuse(r->refusal, 400, "model", NULL, "model: must be a text");
    if (strcmp(value->valuestring, r->model->name) == 0) return true;
    return serve_refuse(r->refusal, 404, "model", "model_not_found",
                        "model: '%.80s' is not served here, '%.80s' is", value->valuestring,
                        r->model->name);
}

static bool read_messages(reader *r, const cJSON *value) {
    r->request->prompts = calloc(1, sizeof *r->request->prompts);
    if (r->request->prompts == NULL) return serve_refuse_memory(r->refusal);
    r->request->n_prompts = 1;
    return serve_prompt_of_messages(value, r->model, r->request->prompts, r->refusal);
}

static bool read_prompt(reader *r, const cJSON *value) {
    return serve_prompts_of(value, r->model, r->request, r->refusal);
}

static bool read_stream(reader *r, const cJSON *value) {
    return yes_or_no(r, value, &r->request->stream);
}

static bool read_stream_options(reader *r, const cJSON *value) {
    const cJSON *field;
    if (!cJSON_IsObject(value))
        return serve_refuse(r->refusal, 400, r->name, NULL, "%s: must be an object", r->name);
    cJSON_ArrayForEach(field, value) {
        if (cJSON_IsNull(field) || strcmp(field->string, "include_obfuscation") == 0) continue;
        if (strcmp(field->string, "include_usage") != 0)
            return serve_refuse(r->refusal, 400, r->name, "unknown_field",
                                "%s: unknown field '%.40s'", r->name, field->string);
        if (!yes_or_no(r, field, &r->request->usage)) return false;
    }
    return true;
}

static bool add_stop(reader *r, const cJSON *value) {
    cli_texts *stops = &r->request->stops;
    if (!cJSON_IsString(value) || value->valuestring[0] == '\0')
        return serve_refuse(r->refusal, 400, "stop", NULL,
                            "stop: must be a text that is not empty, or a list of such texts");
    if (strlen(value->valuestring) > STOP_MAX_BYTES || stops->count == CLI_LIST_MAX)
        return serve_refuse(r->refusal, 400, "stop", NULL,
                            "stop: at most %d texts of at most %u bytes", CLI_LIST_MAX,
                            STOP_MAX_BYTES);
    char *copy = strdup(value->valuestring);
    if (copy == NULL) return serve_refuse_memory(r->refusal);
    stops->values[stops->count++] = copy;
    return true;
}

static bool read_stop(reader *r, const cJSON *value) {
    const cJSON *one;
    if (!cJSON_IsArray(value)) return add_stop(r, value);
    cJSON_ArrayForEach(one, value)
        if (!add_stop(r, one)) return false;
    return true;
}

static bool read_seed(reader *r, const cJSON *value) {
    double seed = 0;
    if (!number(r, value, -9007199254740991.0, 9007199254740991.0, &seed)) return false;
    if (seed != floor(seed))
        return serve_refuse(r->refusal, 400, "seed", NULL, "seed: %.9g must be a whole number",
                            seed);
    r->request->sampling.seed = (uint64_t)(int64_t)seed;
    return true;
}

static bool read_temperature(reader *r, const cJSON *value) {
    return real(r, value, 0, 2, &r->request->sampling.temperature);
}

/* 0 is the likeliest token alone; to the sampler it would be all. */
static bool read_top_p(reader *r, const cJSON *value) {
    float *top_p = &r->request->sampling.top_p;
    if (!real(r, value, 0, 1, top_p)) return false;
    if (*top_p == 0) *top_p = FLT_MIN;
    return true;
}

static bool read_min_p(reader *r, const cJSON *value) {
    return real(r, value, 0, 1, &r->request->sampling.min_p);
}

static bool read_top_k(reader *r, const cJSON *value) {
    return whole(r, value, 0, INT32_MAX, &r->request->sampling.top_k);
}

static bool read_max(reader *r, const cJSON *value) {
    uint32_t most = 0;
    if (!whole(r, value, 1, INT32_MAX, &most)) return false;
    if (r->request->max_new != 0 && r->request->max_new != most)
        return serve_refuse(r->refusal, 400, r->name, NULL,
                            "max_tokens and max_completion_tokens are %u and %u: give one",
                            r->request->max_new, most);
    r->request->max_new = most;
    return true;
}

static bool read_presence(reader *r, const cJSON *value) {
    return real(r, value, -2, 2, &r->request->presence);
}

static bool read_frequency(reader *r, const cJSON *value) {
    return real(r, value, -2, 2, &r->request->frequency);
}

/* {"TOKEN": number from -100 to 100} */
static bool read_bias(reader *r, const cJSON *value) {
    serve_request *request = r->request;
    const cJSON *field;
    const int count = cJSON_GetArraySize(value);
    if (!cJSON_IsObject(value) || count > BIASES_MAX)
        return serve_refuse(r->refusal, 400, r->name, NULL,
                            "%s: must be an object of at most %d tokens", r->name, BIASES_MAX);
    request->biases = calloc((size_t)count + 1, sizeof *request->biases);
    if (request->biases == NULL) return serve_refuse_memory(r->refusal);
    cJSON_ArrayForEach(field, value) {
        serve_bias *bias = &request->biases[request->n_biases++];
        char *end = field->string;
        const bool digits = field->string[0] >= '0' && field->string[0] <= '9';
        const unsigned long long token = digits ? strtoull(field->string, &end, 10) : 0;
        if (!digits || *end != '\0' || token >= r->model->n_vocab)
            return serve_refuse(r->refusal, 400, r->name, NULL,
                                "%s: '%.20s' is no token, they are 0 to %u", r->name, field->string,
                                r->model->n_vocab - 1);
        bias->token = (int32_t)token;
        if (!real(r, field, -100, 100, &bias->add)) return false;
    }
    return true;
}

/* A flag in chats; in completions how many tokens are told beside each. */
static bool read_logprobs(reader *r, const cJSON *value) {
    if (r->request->endpoint == SERVE_CHAT) return yes_or_no(r, value, &r->request->logprobs);
    r->request->logprobs = true;
    return whole(r, value, 0, 5, &r->request->top);
}

static bool read_top_logprobs(reader *r, const cJSON *value) {
    return whole(r, value, 0, SERVE_TOP_MAX, &r->request->top);
}

static bool read_n(reader *r, const cJSON *value) {
    return whole(r, value, 1, r->model->most_choices, &r->request->n);
}

static bool read_exact(reader *r, const cJSON *value) {
    if (!yes_or_no(r, value, &r->request->exact)) return false;
    if (!r->request->exact || !r->model->evicts) return true;
    return serve_refuse(r->refusal, 400, "exact", "unsupported_field",
                        "exact: this server evicts tokens, which cannot be read any more");
}

static bool read_reads(reader *r, const cJSON *value) {
    return yes_or_no(r, value, &r->request->reads);
}

/* ---- Fields that change no answer, or whose one value does not ------------------------------- */

static bool pass(reader *r, const cJSON *value) {
    (void)r, (void)value;
    return true;
}

static bool refuse_field(const reader *r, const char *what) {
    return serve_refuse(r->refusal, 400, r->name, "unsupported_field", "%s: %s", r->name, what);
}

static bool none_listed(reader *r, const cJSON *value) {
    if (cJSON_IsArray(value) && cJSON_GetArraySize(value) == 0) return true;
    return refuse_field(r, "is not supported");
}

static bool none_called(reader *r, const cJSON *value) {
    if (cJSON_IsString(value) && strcmp(value->valuestring, "none") == 0) return true;
    return refuse_field(r, "is not supported, only \"none\"");
}

static bool plain_format(reader *r, const cJSON *value) {
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(value, "type");
    if (cJSON_GetArraySize(value) == 1 && cJSON_IsString(type) &&
        strcmp(type->valuestring, "text") == 0)
        return true;
    return refuse_field(r, "is not supported, only {\"type\": \"text\"}");
}

static bool text_alone(reader *r, const cJSON *value) {
    const cJSON *first = cJSON_GetArrayItem(value, 0);
    if (cJSON_GetArraySize(value) == 1 && cJSON_IsString(first) &&
        strcmp(first->valuestring, "text") == 0)
        return true;
    return refuse_field(r, "is not supported, only [\"text\"]");
}

static bool no_echo(reader *r, const cJSON *value) {
    return cJSON_IsFalse(value) ? true : refuse_field(r, "is not supported, only false");
}

static bool best_of_one(reader *r, const cJSON *value) {
    if (cJSON_IsNumber(value) && value->valuedouble == 1) return true;
    return refuse_field(r, "is not supported, only 1");
}

/* ---- The table ------------------------------------------------------------------------------- */

typedef struct field {
    const char *name;
    bool (*read)(reader *r, const cJSON *value);
    unsigned of; /* endpoints, or-ed */
} field;

enum { CHAT = SERVE_CHAT, TEXT = SERVE_COMPLETIONS, BOTH = CHAT | TEXT };

static const field fields[] = {
    {"model", read_model, BOTH},
    {"messages", read_messages, CHAT},
    {"prompt", read_prompt, TEXT},
    {"stream", read_stream, BOTH},
    {"stream_options", read_stream_options, BOTH},
    {"stop", read_stop, BOTH},
    {"seed", read_seed, BOTH},
    {"temperature", read_temperature, BOTH},
    {"top_p", read_top_p, BOTH},
    {"top_k", read_top_k, BOTH},
    {"min_p", read_min_p, BOTH},
    {"max_tokens", read_max, BOTH},
    {"max_completion_tokens", read_max, CHAT},
    {"presence_penalty", read_presence, BOTH},
    {"frequency_penalty", read_frequency, BOTH},
    {"logit_bias", read_bias, BOTH},
    {"logprobs", read_logprobs, BOTH},
    {"top_logprobs", read_top_logprobs, CHAT},
    {"n", read_n, BOTH},
    {"exact", read_exact, BOTH},
    {"reads", read_reads, BOTH},
    {"tools", none_listed, CHAT},
    {"functions", none_listed, CHAT},
    {"tool_choice", none_called, CHAT},
    {"function_call", none_called, CHAT},
    {"response_format", plain_format, CHAT},
    {"modalities", text_alone, CHAT},
    {"echo", no_echo, TEXT},
    {"best_of", best_of_one, TEXT},
    {"user", pass, BOTH},
    {"metadata", pass, BOTH},
    {"store", pass, CHAT},
    {"service_tier", pass, BOTH},
    {"safety_identifier", pass, BOTH},
    {"prompt_cache_key", pass, BOTH},
    {"prompt_cache_retention", pass, BOTH},
    {"parallel_tool_calls", pass, CHAT},
};

static bool read_field(reader *r, const cJSON *value) {
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (strcmp(fields[i].name, value->string) != 0) continue;
        if ((fields[i].of & (unsigned)r->request->endpoint) == 0) break;
        r->name = fields[i].name;
        return cJSON_IsNull(value) || fields[i].read(r, value);
    }
    return cJSON_IsNull(value) ||
           serve_refuse(r->refusal, 400, value->string, "unknown_field",
                        "unknown or unsupported field '%.40s'", value->string);
}

/* ---- The whole ------------------------------------------------------------------------------- */

static bool check_lengths(const serve_request *q, const serve_model *model,
                          serve_refusal *refusal) {
    const char *param = q->endpoint == SERVE_CHAT ? "messages" : "prompt";
    for (uint32_t i = 0; i < q->n_prompts; i++) {
        const size_t n = q->prompts[i].tokens.count;
        if (n > model->most_prompt)
            return serve_refuse(refusal, 400, param, "context_length_exceeded",
                                "the prompt has %zu tokens; %u are the most", n,
                                model->most_prompt);
        if (n + (q->max_new > 0 ? q->max_new : 1) - 1 > model->context)
            return serve_refuse(refusal, 400, param, "context_length_exceeded",
                                "a prompt of %zu tokens and an answer of %u exceed the context of "
                                "%u tokens",
                                n, q->max_new > 0 ? q->max_new : 1, model->context);
    }
    return true;
}

static bool check_all(const serve_request *q, const serve_model *model, serve_refusal *refusal) {
    if (q->n_prompts == 0) {
        const char *param = q->endpoint == SERVE_CHAT ? "messages" : "prompt";
        return serve_refuse(refusal, 400, param, NULL, "%s: is missing", param);
    }
    if (q->n_prompts * q->n > model->most_choices)
        return serve_refuse(refusal, 400, "n", NULL,
                            "n: %u answers to %u prompts exceed the %u of a request", q->n,
                            q->n_prompts, model->most_choices);
    if (q->top > 0 && !q->logprobs)
        return serve_refuse(refusal, 400, "top_logprobs", NULL,
                            "top_logprobs: is given without logprobs");
    if (q->usage && !q->stream)
        return serve_refuse(refusal, 400, "stream_options", NULL,
                            "stream_options: is given without stream");
    return check_lengths(q, model, refusal);
}

/* OpenAI's defaults: temperature 1 and, of completions, 16 tokens; a seed that nobody knows. */
static bool set_defaults(serve_request *q, serve_refusal *refusal) {
    q->n = 1;
    q->sampling.temperature = 1;
    if (getrandom(&q->sampling.seed, sizeof q->sampling.seed, 0) == sizeof q->sampling.seed)
        return true;
    return serve_refuse(refusal, 500, NULL, NULL, "the system gives no random numbers");
}

bool serve_request_read(const cJSON *json, serve_endpoint endpoint, const serve_model *model,
                        serve_request **out, serve_refusal *refusal) {
    serve_request *q = *out = calloc(1, sizeof *q);
    if (q == NULL) return serve_refuse_memory(refusal);
    q->endpoint = endpoint;
    reader r = {json, model, q, refusal, ""};
    const cJSON *value;
    if (!set_defaults(q, refusal)) return false;
    cJSON_ArrayForEach(value, json)
        if (!read_field(&r, value)) return false;
    if (q->max_new == 0 && endpoint == SERVE_COMPLETIONS) q->max_new = 16;
    q->exact &= model->sparse; /* else all tokens do */
    return check_all(q, model, refusal);
}

void serve_request_free(serve_request *q) {
    if (q == NULL) return;
    for (uint32_t i = 0; q->prompts != NULL && i < q->n_prompts; i++) {
        free(q->prompts[i].tokens.ids);
        free(q->prompts[i].parts);
    }
    for (uint32_t i = 0; i < q->stops.count; i++)
        free((void *)q->stops.values[i]);
    free(q->prompts);
    free(q->biases);
    free(q);
}
