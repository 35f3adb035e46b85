/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP by libmicrohttpd: one thread with epoll, connections that wait for the engine are suspended. */
#define _POSIX_C_SOURCE 200809L
#include "serve/http.h"

#include "serve/call.h"
#include "serve/listener.h"
#include "serve/routes.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct serve_http {
    struct MHD_Daemon *daemon;
    serve_server server; /* what calls see */
    serve_listener *listener;
    int socket; /* -1: it is the listener's */
    uint32_t port;
};

/* ---- Listening ------------------------------------------------------------------------------- */

typedef union address {
    struct sockaddr any;
    struct sockaddr_in four;
    struct sockaddr_in6 six;
} address;

static bool read_address(const char *host, uint32_t port, address *out, socklen_t *bytes) {
    memset(out, 0, sizeof *out);
    if (inet_pton(AF_INET, host, &out->four.sin_addr) == 1) {
        out->four.sin_family = AF_INET;
        out->four.sin_port = htons((uint16_t)port);
        *bytes = sizeof out->four;
        return true;
    }
    if (inet_pton(AF_INET6, host, &out->six.sin6_addr) != 1) return false;
    out->six.sin6_family = AF_INET6;
    out->six.sin6_port = htons((uint16_t)port);
    *bytes = sizeof out->six;
    return true;
}

static tamis_status listen_on(serve_http *http, const serve_http_params *params,
                              tamis_error *error) {
    address at;
    socklen_t bytes;
    const int on = 1;
    if (!read_address(params->host, params->port, &at, &bytes))
        return cli_error(error, TAMIS_E_ARGUMENT, "--host %s: is no IP address", params->host);
    http->socket = socket(at.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (http->socket >= 0) setsockopt(http->socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (http->socket < 0 || bind(http->socket, &at.any, bytes) != 0 ||
        listen(http->socket, SOMAXCONN) != 0 || getsockname(http->socket, &at.any, &bytes) != 0)
        return cli_error(error, TAMIS_E_IO, "%s port %u: cannot be listened on: %s", params->host,
                         params->port, strerror(errno));
    http->port = ntohs(at.any.sa_family == AF_INET ? at.four.sin_port : at.six.sin6_port);
    return TAMIS_OK;
}

/* ---- Calls ----------------------------------------------------------------------------------- */

/* From its beginning, or the end of its last answer, a connection has its time to send the headers of
 * a request; from their end on, to send the body. */
static void watch(serve_http *http, struct MHD_Connection *connection, bool watched) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    if (info != NULL) serve_listener_watch(http->listener, info->socket_context, watched);
}

static enum MHD_Result handle(void *user, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *data,
                              size_t *bytes, void **state) {
    serve_http *http = user;
    serve_call *call = *state;
    (void)version;
    if (call == NULL) {
        watch(http, connection, true);
        call = *state = serve_call_begin(&http->server, connection, method, url);
        return call == NULL ? MHD_NO : serve_call_greet(call);
    }
    if (*bytes > 0) {
        const bool taken = serve_call_take(call, data, *bytes);
        *bytes = 0;
        return taken ? MHD_YES : MHD_NO;
    }
    watch(http, connection, false);
    return serve_call_answer(call);
}

static void end_call(void *user, struct MHD_Connection *connection, void **state,
                     enum MHD_RequestTerminationCode code) {
    (void)code;
    serve_call_end(*state);
    *state = NULL;
    watch(user, connection, true);
}

static void note_connection(void *user, struct MHD_Connection *connection, void **state,
                            enum MHD_ConnectionNotificationCode code) {
    serve_http *http = user;
    serve_metrics *metrics = http->server.metrics;
    const bool begins = code == MHD_CONNECTION_NOTIFY_STARTED;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (begins)
        *state = info != NULL ? serve_listener_enter(http->listener, info->connect_fd) : NULL;
    else
        serve_listener_leave(http->listener, *state);
    pthread_mutex_lock(&metrics->lock);
    metrics->connections += begins ? 1 : -1;
    pthread_mutex_unlock(&metrics->lock);
}

/* Of what clients do wrong nothing is printed: it would fill the log. */
static void keep_quiet(void *user, const char *format, va_list arguments) {
    (void)user, (void)format, (void)arguments;
}

/* The listener limits connections. The library's own limit must never be reached: in 0.9.75 its thread then
 * keeps a lock, for which it waits at once. */
static struct MHD_Daemon *start(serve_http *http, const serve_http_params *params) {
    return MHD_start_daemon(
        MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME |
            MHD_USE_NO_LISTEN_SOCKET | MHD_USE_ERROR_LOG,
        0, NULL, NULL, handle, http, MHD_OPTION_EXTERNAL_LOGGER, keep_quiet, NULL,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)UINT32_MAX, MHD_OPTION_CONNECTION_TIMEOUT,
        params->seconds, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)32768,
        MHD_OPTION_NOTIFY_COMPLETED, end_call, http, MHD_OPTION_NOTIFY_CONNECTION, note_connection,
        http, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
}

tamis_status serve_http_open(const serve_http_params *params, const serve_access *access,
                             serve_engine *engine, serve_metrics *metrics, serve_http **out,
                             tamis_error *error) {
    serve_http *http = *out = calloc(1, sizeof *http);
    if (http == NULL) return cli_no_memory(error);
    http->socket = -1;
    http->server = (serve_server){.access = access,
                                  .engine = engine,
                                  .metrics = metrics,
                                  .model = serve_engine_model(engine),
                                  .body_bytes = params->body_bytes};
    tamis_status status = listen_on(http, params, error);
    if (status != TAMIS_OK) return status;
    http->listener = serve_listener_open(http->socket, params->connections, params->seconds);
    if (http->listener == NULL) return cli_no_memory(error);
    http->socket = -1;
    http->daemon = start(http, params);
    if (http->daemon == NULL || !serve_listener_start(http->listener, http->daemon))
        return cli_error(error, TAMIS_E_IO, "%s port %u: the HTTP library does not start: %s",
                         params->host, http->port, strerror(errno));
    return TAMIS_OK;
}

uint32_t serve_http_port(const serve_http *http) {
    return http->port;
}

void serve_http_quiesce(serve_http *http) {
    serve_listener_shut(http->listener);
}

/* Requests whose answers are being sent. */
static bool has_calls(serve_http *http) {
    return atomic_load(&http->server.calls) > 0;
}

void serve_http_close(serve_http **out, double seconds) {
    serve_http *http = *out;
    const double end = cli_seconds() + seconds;
    const struct timespec moment = {0, 10000000};
    if (http == NULL) return;
    while (http->daemon != NULL && has_calls(http) && cli_seconds() < end)
        nanosleep(&moment, NULL);
    if (http->listener != NULL) serve_listener_stop(http->listener);
    if (http->daemon != NULL) MHD_stop_daemon(http->daemon);
    serve_listener_close(http->listener);
    if (http->socket >= 0) close(http->socket);
    free(http);
    *out = NULL;
}
