/* SPDX-License-Identifier: Apache-2.0 */
/* Counters and histograms as text. */
#define _POSIX_C_SOURCE 200809L /* open_memstream */
#include "serve/metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Upper bounds, in seconds. */
static const double bounds[SERVE_BUCKETS] = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5,
                                             1,     2,     5,     10,   20,   50,   100, 200, 500};

void serve_metrics_open(serve_metrics *metrics) {
    *metrics = (serve_metrics){0};
    pthread_mutex_init(&metrics->lock, NULL);
}

void serve_metrics_close(serve_metrics *metrics) {
    pthread_mutex_destroy(&metrics->lock);
}

void serve_metrics_answered(serve_metrics *metrics, unsigned path, unsigned code) {
    pthread_mutex_lock(&metrics->lock);
    for (unsigned i = 0; i < SERVE_CODES; i++) {
        serve_answered *answered = &metrics->answered[i];
        if (answered->code != 0 && answered->code != code) continue;
        answered->code = code;
        answered->counts[path]++;
        break;
    }
    pthread_mutex_unlock(&metrics->lock);
}

void serve_metrics_time(serve_metrics *metrics, unsigned histogram, double seconds) {
    serve_histogram *h = &metrics->histograms[histogram];
    unsigned bucket = 0;
    while (bucket < SERVE_BUCKETS && seconds > bounds[bucket])
        bucket++;
    pthread_mutex_lock(&metrics->lock);
    h->counts[bucket]++;
    h->sum += seconds;
    pthread_mutex_unlock(&metrics->lock);
}

/* ---- Text ------------------------------------------------------------------------------------ */

static void head(FILE *to, const char *name, const char *type, const char *help) {
    fprintf(to, "# HELP tamis_%s %s\n# TYPE tamis_%s %s\n", name, help, name, type);
}

static void counter(FILE *to, const char *name, uint64_t value, const char *help) {
    head(to, name, "counter", help);
    fprintf(to, "tamis_%s %" PRIu64 "\n", name, value);
}

static void gauge(FILE *to, const char *name, uint64_t value, const char *help) {
    head(to, name, "gauge", help);
    fprintf(to, "tamis_%s %" PRIu64 "\n", name, value);
}

static void histogram(FILE *to, const char *name, const serve_histogram *h, const char *help) {
    uint64_t count = 0;
    head(to, name, "histogram", help);
    for (unsigned i = 0; i < SERVE_BUCKETS; i++) {
        count += h->counts[i];
        fprintf(to, "tamis_%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, bounds[i], count);
    }
    count += h->counts[SERVE_BUCKETS];
    fprintf(to, "tamis_%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, count);
    fprintf(to, "tamis_%s_sum %.9g\ntamis_%s_count %" PRIu64 "\n", name, h->sum, name, count);
}

static void answered(FILE *to, const serve_metrics *m, const char *const paths[SERVE_PATHS]) {
    head(to, "http_requests_total", "counter", "Requests that were answered, by path and status.");
    for (unsigned i = 0; i < SERVE_CODES && m->answered[i].code != 0; i++)
        for (unsigned path = 0; path < SERVE_PATHS; path++)
            if (paths[path] != NULL && m->answered[i].counts[path] > 0)
                fprintf(to, "tamis_http_requests_total{path=\"%s\",code=\"%u\"} %" PRIu64 "\n",
                        paths[path], m->answered[i].code, m->answered[i].counts[path]);
}

static void requests(FILE *to, const serve_metrics *m) {
    gauge(to, "connections", m->connections, "Open connections.");
    gauge(to, "requests_running", m->scheduler.running, "Answers that hold pages of the cache.");
    gauge(to, "requests_waiting", m->scheduler.waiting, "Answers that wait for pages.");
    gauge(to, "sequences_kept", m->scheduler.kept,
          "Sequences of answers that have ended, kept for prompts that begin alike.");
    counter(to, "requests_hung_up_total", m->hung_up, "Requests whose clients left.");
    counter(to, "requests_cut_total", m->cut,
            "Requests that were ended at the time limit or when the server stopped.");
    counter(to, "preemptions_total", m->scheduler.preempted, "Answers that had to make room.");
}

static uint64_t damaged(const tamis_store_stats *store) {
    uint64_t all = 0;
    for (int i = 0; i < TAMIS_TIERS; i++)
        all += store->tiers[i].damaged;
    return all;
}

static void tokens(FILE *to, const serve_metrics *m) {
    counter(to, "prompt_tokens_total", m->prompt_tokens, "Tokens of prompts.");
    counter(to, "cached_tokens_total", m->cached_tokens,
            "Tokens of prompts that were not run: shared, stored or blended.");
    counter(to, "generated_tokens_total", m->generated_tokens, "Tokens of answers.");
    counter(to, "prefix_tokens_shared_total", m->scheduler.tokens_shared,
            "Tokens that other sequences held.");
    counter(to, "prefix_tokens_stored_total", m->scheduler.tokens_stored,
            "Tokens that were loaded from the store as a prefix.");
    counter(to, "prefix_pages_put_total", m->scheduler.pages_put,
            "Pages of prefixes that were put into the store.");
    counter(to, "chunks_found_total", m->chunks_found, "Documents that the store had.");
    counter(to, "chunks_missed_total", m->chunks_missed, "Documents that it had not.");
    counter(to, "chunk_tokens_loaded_total", m->chunk_tokens_loaded,
            "Tokens of documents that were loaded.");
    counter(to, "chunk_tokens_computed_total", m->chunk_tokens_computed,
            "Tokens of documents that were computed.");
    counter(to, "store_failures_total", m->store.failed,
            "Times that the store could not read, or did not take documents or pages.");
    counter(to, "store_damaged_total", damaged(&m->store),
            "Records that were found damaged, and were computed.");
    counter(to, "rows_total", m->scheduler.rows, "Rows of steps: tokens that were run.");
    counter(to, "steps_total", m->scheduler.steps, "Steps of the scheduler.");
}

static void memory(FILE *to, const serve_metrics *m) {
    gauge(to, "pages_held", m->cache.pages_held, "Pages of the cache that sequences hold.");
    gauge(to, "pages", m->cache.pages_total, "Pages of the cache.");
    gauge(to, "kv_bytes_held", m->cache.bytes_held,
          "Bytes of K, V and bounds that sequences hold.");
    gauge(to, "saved_bytes", m->scheduler.saved_bytes,
          "Host memory of answers that had to make room.");
    counter(to, "kv_bytes_read_total", m->plan.kv_bytes_read,
            "K and V that tokens of answers have read.");
    counter(to, "bounds_bytes_read_total", m->plan.bounds_bytes_read,
            "Bounds of pages that the selection has read for them.");
    counter(to, "kv_bytes_full_total", m->plan.kv_bytes_full,
            "K and V that they would have read without a selection.");
    counter(to, "tokens_evicted_total", m->plan.tokens_evicted, "Tokens evicted, over all lanes.");
}

static void times(FILE *to, const serve_metrics *m) {
    histogram(to, "first_token_seconds", &m->histograms[SERVE_FIRST_TOKEN],
              "From a request's arrival to its first token.");
    histogram(to, "next_token_seconds", &m->histograms[SERVE_NEXT_TOKEN],
              "From one token of an answer to the next.");
    histogram(to, "request_seconds", &m->histograms[SERVE_REQUEST],
              "From a request's arrival to its end.");
    histogram(to, "step_seconds", &m->histograms[SERVE_STEP], "Steps of the scheduler.");
    histogram(to, "blend_seconds", &m->histograms[SERVE_BLEND],
              "Blends of documents, for which other answers wait.");
}

char *serve_metrics_text(serve_metrics *metrics, const char *const paths[SERVE_PATHS]) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    if (to == NULL) return NULL;
    pthread_mutex_lock(&metrics->lock);
    answered(to, metrics, paths);
    requests(to, metrics);
    tokens(to, metrics);
    memory(to, metrics);
    times(to, metrics);
    pthread_mutex_unlock(&metrics->lock);
    if (fclose(to) == 0) return text;
    free(text);
    return NULL;
}
