/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP by libmicrohttpd: one thread with epoll, connections that wait for the engine are suspended. */
#define _POSIX_C_SOURCE 200809L
#include "serve/http.h"

#include "serve/call.h"
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
    int socket;          /* -1: closed */
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

static enum MHD_Result handle(void *user, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *data,
                              size_t *bytes, void **state) {
    serve_server *server = user;
    serve_call *call = *state;
    (void)version;
    if (call == NULL) {
        call = *state = serve_call_begin(server, connection, method, url);
        return call == NULL ? MHD_NO : serve_call_greet(call);
    }
    if (*bytes > 0) {
        const bool taken = serve_call_take(call, data, *bytes);
        *bytes = 0;
        return taken ? MHD_YES : MHD_NO;
    }
    return serve_call_answer(call);
}

static void end_call(void *user, struct MHD_Connection *connection, void **state,
                     enum MHD_RequestTerminationCode code) {
    (void)user, (void)connection, (void)code;
    serve_call_end(*state);
    *state = NULL;
}

static void note_connection(void *user, struct MHD_Connection *connection, void **state,
                            enum MHD_ConnectionNotificationCode code) {
    serve_server *server = user;
    (void)connection, (void)state;
    pthread_mutex_lock(&server->metrics->lock);
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
        server->metrics->connections++;
    else
        server->metrics->connections--;
    pthread_mutex_unlock(&server->metrics->lock);
}

/* Of what clients do wrong nothing is printed: it would fill the log. */
static void keep_quiet(void *user, const char *format, va_list arguments) {
    (void)user, (void)format, (void)arguments;
}

static struct MHD_Daemon *start(serve_http *http, const serve_http_params *params) {
    return MHD_start_daemon(
        MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME |
            MHD_USE_ERROR_LOG | (strchr(params->host, ':') != NULL ? MHD_USE_IPv6 : 0),
        0, NULL, NULL, handle, &http->server, MHD_OPTION_EXTERNAL_LOGGER, keep_quiet, NULL,
        MHD_OPTION_LISTEN_SOCKET, http->socket, MHD_OPTION_CONNECTION_LIMIT, params->connections,
        MHD_OPTION_CONNECTION_TIMEOUT, params->seconds, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)32768, MHD_OPTION_NOTIFY_COMPLETED, end_call, NULL, MHD_OPTION_NOTIFY_CONNECTION,
        note_connection, &http->server, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
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
                                  .body_bytes = params->body_bytes,
                                  .seconds = params->seconds};
    tamis_status status = listen_on(http, params, error);
    if (status != TAMIS_OK) return status;
    http->daemon = start(http, params);
    if (http->daemon == NULL)
        return cli_error(error, TAMIS_E_IO, "%s port %u: the HTTP library does not start: %s",
                         params->host, http->port, strerror(errno));
    return TAMIS_OK;
}

uint32_t serve_http_port(const serve_http *http) {
    return http->port;
}

void serve_http_quiesce(serve_http *http) {
    const MHD_socket socket = MHD_quiesce_daemon(http->daemon);
    if (socket != MHD_INVALID_SOCKET) close(socket);
    http->socket = -1;
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
    if (http->daemon != NULL) MHD_stop_daemon(http->daemon);
    if (http->daemon == NULL && http->socket >= 0) close(http->socket);
    free(http);
    *out = NULL;
}
