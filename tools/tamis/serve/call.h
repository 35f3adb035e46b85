/* SPDX-License-Identifier: Apache-2.0 */
/* One HTTP request: its headers are checked, its body is taken, and it is answered. Calls are those of
 * the thread of the connections. */
#ifndef SERVE_CALL_H
#define SERVE_CALL_H

#include "serve/access.h"
#include "serve/engine.h"

#include <stdatomic.h>

/* What all calls see. */
typedef struct serve_server {
    const serve_access *access;
    serve_engine *engine;
    serve_metrics *metrics;
    serve_model *model;
    uint32_t body_bytes;
    size_t held;       /* bytes of bodies and answers that are held now; the connections' own */
    atomic_uint calls; /* that have not ended */
} serve_server;

typedef struct serve_call {
    serve_server *server;
    struct MHD_Connection *connection;
    double began;                    /* when the headers had come; cli_seconds */
    const struct serve_route *route; /* NULL: there is none */
    char name[256];                  /* of a model, that stands in the path */
    bool preflight, unframed;        /* unframed: nobody can say where the request ends */
    char *body;
    size_t bytes, room, dropped;
    size_t answered; /* bytes of the answer, which are held until the client has read them */
    uint8_t salt[16];
    char origin[256]; /* to which CORS is told; "": to none */
    serve_refusal refusal;
    serve_job *job; /* that the engine has */
} serve_call;

/* NULL without memory. */
serve_call *serve_call_begin(serve_server *server, struct MHD_Connection *connection,
                             const char *method, const char *url);
/* Behind the headers: refuses at once what no body would change and is too large to be read. */
enum MHD_Result serve_call_greet(serve_call *call);
/* A part of the body. False: the connection is closed, for more than is reasonable came. */
bool serve_call_take(serve_call *call, const char *data, size_t bytes);
/* Behind the body, and whenever the connection is resumed. */
enum MHD_Result serve_call_answer(serve_call *call);
/* Accepts NULL. */
void serve_call_end(serve_call *call);

/* Answers with a text that is the call's from now on, or sets call->refusal: other texts take too
 * much memory. */
enum MHD_Result serve_call_send(serve_call *call, unsigned http, const char *type, char *text,
                                size_t bytes);
/* Answers with a text that is never freed. */
enum MHD_Result serve_call_show(serve_call *call, unsigned http, const char *type, const char *text,
                                size_t bytes);
enum MHD_Result serve_call_refuse(serve_call *call);

#endif
