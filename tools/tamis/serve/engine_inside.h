/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of the engine, of its thread but for what the lock is for. */
#ifndef SERVE_ENGINE_INSIDE_H
#define SERVE_ENGINE_INSIDE_H

#include "serve/choice.h"
#include "serve/engine.h"

#include <stdatomic.h>

struct serve_engine {
    serve_engine_params params;
    cli_session session; /* device, model, cache, runner */
    tamis_scheduler *scheduler;
    serve_documents *documents; /* NULL: nothing is stored */
    serve_model model;
    serve_metrics *metrics;
    int wake; /* eventfd: there is something to look at */
    atomic_bool stops, refuses;
    pthread_mutex_t lock; /* of the next four */
    serve_job *submitted, *last_submitted;
    uint32_t n_answers;  /* that run, wait, or are submitted */
    double mean_seconds; /* of a request, of late */
    serve_job **jobs;    /* [n_jobs] the thread's own, in the order in which they came */
    size_t n_jobs, room;
    size_t n_begun; /* of these, the first: their answers are the scheduler's */
    bool stalled;   /* a blend has been made since the last step */
};

/* Whether prompts are put into the store. */
bool serve_engine_stores_prefixes(const serve_engine *engine);

/* ---- Beginning jobs (engine_begin.c) ---------------------------------------------------------- */

/* Whether the first job that has not begun may begin. Documents of its prompt are stored first, one
 * between two steps. Between two steps there is one blend at most, and it is not made before its answers
 * can run, since it holds its pages from then on. */
bool serve_engine_is_prepared(serve_engine *engine, serve_job *job);
/* Hands the job's answers to the scheduler; with an error some of them may be there. */
tamis_status serve_engine_begin(serve_engine *engine, serve_job *job, tamis_error *error);
/* How many tokens an answer has at most. */
uint32_t serve_engine_most_new(const serve_engine *engine, const serve_choice *choice);

#endif
