/* SPDX-License-Identifier: Apache-2.0 */
/* The thread of all connections: it checks requests, hands them to the engine, and sends what comes. */
#ifndef SERVE_HTTP_H
#define SERVE_HTTP_H

#include "serve/access.h"
#include "serve/engine.h"

typedef struct serve_http_params {
    const char *host;                 /* an address */
    uint32_t port;                    /* 0: one that is free */
    uint32_t connections, body_bytes; /* at most */
    uint32_t seconds;                 /* in which nothing moves, or a request has not come whole */
} serve_http_params;

typedef struct serve_http serve_http;

/* Listens; requests are answered at once. E_ARGUMENT: no address; E_IO: it cannot be listened on, with
 * the reason. `access`, `engine` and `metrics` outlive *out. */
tamis_status serve_http_open(const serve_http_params *params, const serve_access *access,
                             serve_engine *engine, serve_metrics *metrics, serve_http **out,
                             tamis_error *error);
/* The port that is listened on. */
uint32_t serve_http_port(const serve_http *http);
/* Closes the port: no connection is accepted any more, those that are open go on. */
void serve_http_quiesce(serve_http *http);
/* Waits until answers that have ended are sent, at most for the seconds; then closes all connections.
 * Every job must have ended. */
void serve_http_close(serve_http **http, double seconds);

#endif
