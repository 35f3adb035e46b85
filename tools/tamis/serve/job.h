/* SPDX-License-Identifier: Apache-2.0 */
/* A request on its way between two threads: that of the connections, which sends what there is, and
 * that of the engine, which never waits for it. */
#ifndef SERVE_JOB_H
#define SERVE_JOB_H

#include "serve/request.h"

#include <microhttpd.h>
#include <pthread.h>
#include <sys/types.h>

typedef struct serve_job {
    serve_request *request; /* never changes */
    char id[48];            /* "chatcmpl-..." */
    time_t created;
    double arrived; /* cli_seconds */

    /* The rest is under `lock`. */
    pthread_mutex_t lock;
    unsigned holders;                  /* who frees it is the last */
    struct MHD_Connection *connection; /* NULL: it has ended */
    int socket;                        /* of the connection */
    bool suspended;                    /* until there is something to send */
    bool gone;                         /* the client has hung up */
    bool ended;                        /* nothing more is written */
    unsigned http;                     /* status of a whole reply */
    unsigned retry_after;              /* seconds; 0: none */
    char *out;                         /* what is to be sent */
    size_t bytes, sent, room;

    double begun; /* cli_seconds; the engine's own, as the next three */
    struct serve_blended *documents;
    struct serve_choice *choices;
    uint32_t n_choices;
    struct serve_job *next;
} serve_job;

/* Takes the request; held once. NULL without memory: the request stays the caller's. */
serve_job *serve_job_new(serve_request *request, struct MHD_Connection *connection);
void serve_job_hold(serve_job *job);
void serve_job_release(serve_job *job);

/* ---- By the engine --------------------------------------------------------------------------- */

/* Adds bytes to what is sent. Without memory, or where a stream's client does not keep up, the job is
 * gone. */
void serve_job_write(serve_job *job, const char *text, size_t bytes);
/* Nothing follows. `http`: of a whole reply. */
void serve_job_end(serve_job *job, unsigned http, unsigned retry_after);
/* Whether nobody waits for the job any more: the client has hung up, also while nothing is sent to it,
 * or the job was ended for lack of memory. */
bool serve_job_is_gone(serve_job *job);

/* ---- By the connection ------------------------------------------------------------------------ */

/* Suspends the connection until something can be sent. False: it can. `whole`: until all can be. */
bool serve_job_wait(serve_job *job, bool whole);
/* An MHD_ContentReaderCallback of a stream. */
ssize_t serve_job_read(void *job, uint64_t at, char *to, size_t room);
/* The connection has ended. */
void serve_job_leave(serve_job *job);

#endif
