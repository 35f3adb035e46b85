/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP requests, from their headers to their answers. */
#include "serve/call.h"

#include "cli/clock.h"
#include "serve/routes.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define DROP_MAX  ((size_t)64 << 20)  /* of a body that is refused, which is read all the same */
#define HELD_MAX  ((size_t)256 << 20) /* of all bodies and answers, unless it is but one */
#define SMALL_MAX ((size_t)16 << 10) /* of an answer that is sent whatever is held, as errors are */

static const char *header(const serve_call *call, const char *name) {
    return MHD_lookup_connection_value(call->connection, MHD_HEADER_KIND, name);
}

/* Content-Length; 0: it is not told. */
static unsigned long long length_of(const serve_call *call) {
    const char *length = header(call, "Content-Length");
    return length != NULL ? strtoull(length, NULL, 10) : 0;
}

/* ---- Headers --------------------------------------------------------------------------------- */

typedef struct framing {
    unsigned lengths, codings, hosts;
    bool chunked;
} framing;

static enum MHD_Result note_header(void *user, enum MHD_ValueKind kind, const char *name,
                                   const char *value) {
    framing *seen = user;
    (void)kind;
    seen->lengths += strcasecmp(name, "Content-Length") == 0;
    seen->hosts += strcasecmp(name, "Host") == 0;
    if (strcasecmp(name, "Transfer-Encoding") != 0) return MHD_YES;
    seen->codings++;
    seen->chunked = value != NULL && strcasecmp(value, "chunked") == 0;
    return MHD_YES;
}

/* A proxy before this server may see another end of the request than the library does, which would
 * take what the proxy lets pass as a body for a request (RFC 9112, 11.2). */
static bool check_framing(serve_call *call) {
    framing seen = {0};
    MHD_get_connection_values(call->connection, MHD_HEADER_KIND, note_header, &seen);
    call->unframed =
        seen.lengths + seen.codings > 1 || seen.hosts > 1 || (seen.codings == 1 && !seen.chunked);
    if (!call->unframed) return true;
    return serve_refuse(&call->refusal, 400, NULL, "bad_framing",
                        "Host, Content-Length and Transfer-Encoding: at most one Host, and one of "
                        "the others, which is chunked if it is the last");
}

static bool is_json(const char *type) {
    static const char json[] = "application/json";
    const size_t n = sizeof json - 1;
    return type != NULL && strncasecmp(type, json, n) == 0 &&
           (type[n] == '\0' || type[n] == ';' || type[n] == ' ');
}

static bool check_body(serve_call *call) {
    const char *type = header(call, "Content-Type");
    const unsigned long long length = length_of(call);
    if (strcmp(call->route->method, "POST") != 0) return true;
    if (!is_json(type))
        return serve_refuse(&call->refusal, 415, NULL, "bad_content_type",
                            "Content-Type is '%.80s'; it must be application/json",
                            type != NULL ? type : "");
    if (length <= call->server->body_bytes) return true;
    return serve_refuse(&call->refusal, 413, NULL, "body_too_large",
                        "the body has %llu bytes; %" PRIu32 " are the most", length,
                        call->server->body_bytes);
}

/* The origin comes first, so that a page that is let in can read why it is refused. */
static bool check_access(serve_call *call) {
    const serve_access *access = call->server->access;
    const char *host = header(call, "Host"), *origin = header(call, "Origin");
    bool cross = false;
    if (!serve_access_host(access, host, &call->refusal) ||
        !serve_access_origin(access, origin, host, &cross, &call->refusal))
        return false;
    if (cross) snprintf(call->origin, sizeof call->origin, "%s", origin);
    if (call->preflight || (call->route != NULL && call->route->open)) return true;
    return serve_access_key(access, header(call, "Authorization"), call->salt, &call->refusal);
}

static void check(serve_call *call, const char *method, const char *url) {
    if (!check_framing(call)) return;
    if (call->preflight) { /* OPTIONS is a method to other origins alone */
        if (check_access(call) && (call->origin[0] == '\0' || serve_route_allows(url) == NULL))
            serve_route_find(method, url, &call->refusal);
        return;
    }
    serve_refusal unknown = {0};
    call->route = serve_route_find(method, url, &unknown);
    if (!check_access(call)) return;
    if (call->route == NULL)
        call->refusal = unknown;
    else if (check_body(call))
        snprintf(call->name, sizeof call->name, "%s", serve_route_rest(call->route, url));
}

serve_call *serve_call_begin(serve_server *server, struct MHD_Connection *connection,
                             const char *method, const char *url) {
    serve_call *call = calloc(1, sizeof *call);
    if (call == NULL) return NULL;
    atomic_fetch_add(&server->calls, 1);
    call->server = server;
    call->connection = connection;
    call->began = cli_seconds();
    call->preflight = strcmp(method, "OPTIONS") == 0;
    check(call, method, url);
    return call;
}

/* A client that still sends when the connection is closed may lose the answer. So a body is read also
 * where the request is refused, unless the client waits for leave to send it, or it is far too long. */
enum MHD_Result serve_call_greet(serve_call *call) {
    const bool endless = length_of(call) > DROP_MAX;
    if (call->unframed || (call->refusal.http != 0 && (endless || header(call, "Expect") != NULL)))
        return serve_call_refuse(call);
    return MHD_YES;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Whether a text of so many bytes has room beside those of others. False: refused. */
static bool has_room(serve_call *call, size_t others, size_t bytes) {
    if (others == 0 || others + bytes <= HELD_MAX) return true;
    serve_refuse(&call->refusal, 503, NULL, "busy",
                 "the bodies and answers of other requests take %zu bytes", others);
    call->refusal.wait = 1;
    return false;
}

/* ---- The body -------------------------------------------------------------------------------- */

static void free_body(serve_call *call) {
    free(call->body);
    call->server->held -= call->room;
    call->body = NULL;
    call->bytes = call->room = 0;
}

static bool drop(serve_call *call, size_t bytes) {
    call->dropped += call->bytes + bytes;
    free_body(call);
    return call->dropped <= DROP_MAX;
}

static bool make_room(serve_call *call, size_t bytes) {
    serve_server *server = call->server;
    size_t room = 2 * (call->bytes + bytes);
    if (call->bytes + bytes <= call->room) return true;
    if (room > server->body_bytes) room = server->body_bytes;
    const size_t others = server->held - call->room;
    if (!has_room(call, others, room)) return false;
    char *body = realloc(call->body, room);
    if (body == NULL) return serve_refuse_memory(&call->refusal);
    server->held = others + room;
    call->body = body;
    call->room = room;
    return true;
}

bool serve_call_take(serve_call *call, const char *data, size_t bytes) {
    const uint32_t most = call->server->body_bytes;
    if (call->refusal.http == 0 && call->bytes + bytes > most)
        serve_refuse(&call->refusal, 413, NULL, "body_too_large",
                     "the body has more than %" PRIu32 " bytes", most);
    if (call->refusal.http != 0 || !make_room(call, bytes)) return drop(call, bytes);
    memcpy(call->body + call->bytes, data, bytes);
    call->bytes += bytes;
    return true;
}

/* ---- Answers --------------------------------------------------------------------------------- */

static bool add_headers(const serve_call *call, struct MHD_Response *response, const char *type) {
    static const char policy[] =
        "default-src 'none'; connect-src 'self'; style-src 'self'; script-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    char seconds[16];
    snprintf(seconds, sizeof seconds, "%u", call->refusal.wait);
    return (type == NULL || MHD_add_response_header(response, "Content-Type", type)) &&
           MHD_add_response_header(response, "Cache-Control", "no-store") &&
           MHD_add_response_header(response, "X-Content-Type-Options", "nosniff") &&
           MHD_add_response_header(response, "Content-Security-Policy", policy) &&
           (call->refusal.wait == 0 || MHD_add_response_header(response, "Retry-After", seconds)) &&
           (call->refusal.allow == NULL ||
            MHD_add_response_header(response, "Allow", call->refusal.allow)) &&
           (!call->unframed || MHD_add_response_header(response, "Connection", "close")) &&
           (call->refusal.http != 401 ||
            MHD_add_response_header(response, "WWW-Authenticate", "Bearer")) &&
           (call->origin[0] == '\0' ||
            (MHD_add_response_header(response, "Access-Control-Allow-Origin", call->origin) &&
             MHD_add_response_header(response, "Access-Control-Expose-Headers", "Retry-After") &&
             MHD_add_response_header(response, "Vary", "Origin")));
}

/* Takes the response, which may be NULL. */
static enum MHD_Result queue(serve_call *call, unsigned http, struct MHD_Response *response,
                             const char *type) {
    enum MHD_Result queued = MHD_NO;
    if (response != NULL && add_headers(call, response, type))
        queued = MHD_queue_response(call->connection, http, response);
    if (response != NULL) MHD_destroy_response(response);
    serve_metrics_answered(call->server->metrics, serve_route_place(call->route), http);
    return queued;
}

enum MHD_Result serve_call_send(serve_call *call, unsigned http, const char *type, char *text,
                                size_t bytes) {
    free_body(call); /* it has been read */
    if (bytes > SMALL_MAX && !has_room(call, call->server->held, bytes)) {
        free(text);
        return MHD_YES;
    }
    call->answered = bytes;
    call->server->held += bytes;
    struct MHD_Response *response =
        MHD_create_response_from_buffer(bytes, text, MHD_RESPMEM_MUST_FREE);
    if (response == NULL) free(text);
    return queue(call, http, response, type);
}

enum MHD_Result serve_call_show(serve_call *call, unsigned http, const char *type, const char *text,
                                size_t bytes) {
    return queue(
        call, http,
        MHD_create_response_from_buffer(bytes, (void *)(uintptr_t)text, MHD_RESPMEM_PERSISTENT),
        type);
}

enum MHD_Result serve_call_refuse(serve_call *call) {
    char *text = serve_refusal_json(&call->refusal);
    if (text == NULL) return MHD_NO;
    return serve_call_send(call, call->refusal.http, "application/json", text, strlen(text));
}

static enum MHD_Result answer_preflight(serve_call *call) {
    const char *headers = serve_access_headers(header(call, "Access-Control-Request-Headers"));
    struct MHD_Response *response =
        MHD_create_response_from_buffer(0, (void *)(uintptr_t) "", MHD_RESPMEM_PERSISTENT);
    if (response != NULL &&
        (!MHD_add_response_header(response, "Access-Control-Allow-Methods", "GET, POST") ||
         !MHD_add_response_header(response, "Access-Control-Allow-Headers", headers) ||
         !MHD_add_response_header(response, "Access-Control-Max-Age", "600"))) {
        MHD_destroy_response(response);
        response = NULL;
    }
    return queue(call, 204, response, NULL);
}

static enum MHD_Result answer_stream(serve_call *call) {
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 4096, serve_job_read, call->job, NULL);
    /* nginx, as a proxy, would hold the stream back. */
    if (response != NULL && !MHD_add_response_header(response, "X-Accel-Buffering", "no")) {
        MHD_destroy_response(response);
        response = NULL;
    }
    return queue(call, 200, response, "text/event-stream");
}

/* A reply that is complete, unless the connection is to be suspended again. */
static enum MHD_Result answer_whole(serve_call *call) {
    serve_job *job = call->job;
    if (serve_job_wait(job, true)) return MHD_YES;
    pthread_mutex_lock(&job->lock);
    const bool gone = job->gone;
    char *text = job->out;
    const size_t bytes = job->bytes;
    job->out = NULL;
    job->bytes = job->room = 0;
    call->refusal.wait = job->retry_after;
    pthread_mutex_unlock(&job->lock);
    if (!gone) return serve_call_send(call, job->http, "application/json", text, bytes);
    free(text);
    return MHD_NO;
}

enum MHD_Result serve_call_answer(serve_call *call) {
    if (call->refusal.http != 0) return serve_call_refuse(call);
    if (call->preflight) return answer_preflight(call);
    enum MHD_Result done = call->job == NULL ? call->route->answer(call) : MHD_YES;
    free_body(call);
    if (call->job != NULL && call->refusal.http == 0)
        done = call->job->request->stream ? answer_stream(call) : answer_whole(call);
    return call->refusal.http != 0 ? serve_call_refuse(call) : done;
}

void serve_call_end(serve_call *call) {
    if (call == NULL) return;
    if (call->job != NULL) {
        serve_job_leave(call->job);
        serve_engine_wake(call->server->engine);
        serve_job_release(call->job);
    }
    free_body(call);
    call->server->held -= call->answered;
    atomic_fetch_sub(&call->server->calls, 1);
    free(call);
}
