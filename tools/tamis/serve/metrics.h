/* SPDX-License-Identifier: Apache-2.0 */
/* What the server counts, as Prometheus reads it (text format 0.0.4). Thread-safety: any thread. */
#ifndef SERVE_METRICS_H
#define SERVE_METRICS_H

#include <pthread.h>
#include <stdint.h>
#include <tamis/batch.h>
#include <tamis/store.h>
#include <tamis/tamis.h>

enum {
    SERVE_FIRST_TOKEN, /* seconds from a request's arrival to its first token */
    SERVE_NEXT_TOKEN,  /* from one token of an answer to the next */
    SERVE_REQUEST,     /* from arrival to the end */
    SERVE_STEP,        /* a step of the scheduler */
    SERVE_BLEND,       /* a blend, for which all other answers wait */
    SERVE_HISTOGRAMS
};

#define SERVE_BUCKETS 18u

typedef struct serve_histogram {
    uint64_t counts[SERVE_BUCKETS + 1]; /* the last one: above all bounds */
    double sum;
} serve_histogram;

/* Requests that were answered with a status, by what was asked for. */
enum { SERVE_PATHS = 16, SERVE_CODES = 16 };
typedef struct serve_answered {
    unsigned code; /* 0: not used yet */
    uint64_t counts[SERVE_PATHS];
} serve_answered;

typedef struct serve_metrics {
    pthread_mutex_t lock;
    serve_answered answered[SERVE_CODES];
    serve_histogram histograms[SERVE_HISTOGRAMS];
    uint64_t prompt_tokens, cached_tokens, generated_tokens;
    uint64_t hung_up, cut; /* requests: clients that left; at the time limit or the server's end */
    uint64_t connections;  /* open now */
    /* The engine's, after its last step. */
    tamis_scheduler_stats scheduler;
    tamis_cache_stats cache;
    tamis_plan_counters plan;
    tamis_store_stats store; /* all 0 without one */
    /* Of documents; all 0 without a store. */
    uint64_t chunks_found, chunks_missed, chunk_tokens_loaded, chunk_tokens_computed;
} serve_metrics;

void serve_metrics_open(serve_metrics *metrics);
void serve_metrics_close(serve_metrics *metrics);

/* `path` is a place in the list of names that serve_metrics_text gets. */
void serve_metrics_answered(serve_metrics *metrics, unsigned path, unsigned code);
void serve_metrics_time(serve_metrics *metrics, unsigned histogram, double seconds);

/* All of it, for the caller to free. NULL without memory. `paths` [SERVE_PATHS] are the names of what
 * can be asked for; NULL: none. */
char *serve_metrics_text(serve_metrics *metrics, const char *const paths[SERVE_PATHS]);

#endif
