/* SPDX-License-Identifier: Apache-2.0 */
/* The one thread that owns model, cache and scheduler: it takes jobs, runs steps, and writes what comes
 * of them. */
#ifndef SERVE_ENGINE_H
#define SERVE_ENGINE_H

#include "cli/session.h"
#include "serve/documents.h"
#include "serve/job.h"
#include "serve/metrics.h"
#include "serve/model.h"

typedef struct serve_engine_params {
    cli_session_params session; /* device, model file, context, cache, plan */
    uint64_t cache_tokens;      /* 0: twice the context */
    uint64_t host_bytes;        /* of answers that have to make room */
    uint32_t running;           /* answers that run at once */
    uint32_t rows;              /* of a step */
    uint32_t kept;              /* sequences kept behind their answers */
    uint32_t queue;             /* answers that wait at most */
    double seconds;             /* of a request at most; 0: no limit */
    double drain_seconds;       /* that answers go on for when the server stops */
    bool shares;                /* prompts begin with what live sequences hold */
    serve_documents_params documents;
} serve_engine_params;

/* Seconds of Retry-After where the server stops. */
#define SERVE_RETRY_STOPPING 5u

typedef struct serve_engine serve_engine;

/* Loads the model and builds kernels. `name`: by which requests name the model; NULL: the file's.
 * `metrics` outlives the engine. What *out holds after an error is to be closed, too. */
tamis_status serve_engine_open(const serve_engine_params *params, const char *name,
                               const char *date, serve_metrics *metrics, serve_engine **out,
                               tamis_error *error);
void serve_engine_close(serve_engine **engine);

/* What does not change, for the threads of connections. */
serve_model *serve_engine_model(serve_engine *engine);
const char *serve_engine_device(const serve_engine *engine);

/* Takes jobs until serve_engine_stop, then ends those that run. Answers OK, or why the device cannot go
 * on. `closing` is called once, before the last jobs end: nothing may be submitted after it. */
tamis_status serve_engine_run(serve_engine *engine, void (*closing)(void *user), void *user,
                              tamis_error *error);

/* ---- From any thread ------------------------------------------------------------------------- */

/* Holds the job until it has ended. False: refused, for the queue is full or the server stops. */
bool serve_engine_submit(serve_engine *engine, serve_job *job, serve_refusal *refusal);
/* Whether requests are taken. */
bool serve_engine_is_ready(const serve_engine *engine);
/* Something has happened that the engine should see, such as a client that left. Also from signal
 * handlers. */
void serve_engine_wake(serve_engine *engine);
void serve_engine_stop(serve_engine *engine);

#endif
