/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis bench ttft` in parts: prompts, where chunks come from, what is measured, the report. */
#ifndef CLI_BENCH_TTFT_H
#define CLI_BENCH_TTFT_H

#include "bench/bench.h"
#include "store/shared.h"

#include <tamis/blend_model.h>
#include <tamis/record.h>

#define TTFT_SHARES_MAX  4
#define TTFT_SOURCES_MAX (4 + CLI_LIST_MAX)
#define TTFT_ARMS_MAX    (2 + TTFT_SOURCES_MAX * (2 + TTFT_SHARES_MAX))
#define TTFT_RATES_MAX   CLI_LIST_MAX

/* ---- Prompts (ttft_prompt.c) ----------------------------------------------------------------- */

/* What every prompt of a run is made of: random tokens, which follow from the seed. */
typedef struct ttft_texts {
    uint32_t chunk_tokens, suffix_tokens, n_pool, n_sink, n_vocab;
    uint64_t seed;
    int32_t *pool; /* [n_pool][chunk_tokens] */
    int32_t *sink; /* [n_sink] */
} ttft_texts;

/* The sink, some chunks of the pool, and a suffix of its own. */
typedef struct ttft_prompt {
    uint32_t n_tokens, n_parts;
    int32_t *tokens;          /* [n_tokens] */
    tamis_blend_part *parts;  /* [n_parts], all chunks stored */
    tamis_blend_part *prefix; /* the same, the first chunk stored alone */
} ttft_prompt;

/* Fills the pool; the sink is what the vocabulary puts before a text. */
tamis_status ttft_texts_make(ttft_texts *texts, const tamis_model *model, tamis_error *error);
void ttft_texts_free(ttft_texts *texts);

/* The prompt of a number: `n_chunks` different chunks, in an order of its own. */
tamis_status ttft_prompt_make(const ttft_texts *texts, uint32_t n_chunks, uint32_t number,
                              ttft_prompt *out, tamis_error *error);
void ttft_prompt_free(ttft_prompt *prompt);
uint32_t ttft_prompt_tokens(const ttft_texts *texts, uint32_t n_chunks);

/* ---- Sources (ttft_source.c) ----------------------------------------------------------------- */

/* Where chunks come from. */
typedef struct ttft_source {
    char name[32];
    tamis_tier tier;    /* its store has this one alone */
    bool dropped;       /* what the page cache has of it goes before each sample */
    double bytes_per_s; /* 0: as fast as it can */
    double free_at;     /* of the throttle: when what was read so far would have arrived */
    double cached;      /* share of the files that the page cache still had after dropping, most */
} ttft_source;

/* A tamis_blend_reader for a source (user) with a speed: reads, and waits until the bytes would
 * have come at that speed. */
tamis_status ttft_read_throttled(void *user, tamis_chunk *chunk, uint32_t layer, void *k, void *v,
                                 tamis_error *error);
/* Drops the files of a folder from the page cache, and says what share of their pages is there all
 * the same. */
tamis_status ttft_drop(const char *folder, double *cached, tamis_error *error);

/* ---- Measuring (ttft_measure.c) -------------------------------------------------------------- */

/* How a prompt is read: everything computed, in steps of 512 rows as tamis run does or in one; the
 * first chunk loaded; all chunks loaded; all loaded, and a share of their tokens computed. */
typedef enum ttft_kind { TTFT_FULL, TTFT_ALL, TTFT_PREFIX, TTFT_REUSE, TTFT_BLEND } ttft_kind;

typedef struct ttft_arm {
    ttft_kind kind;
    ttft_source *source; /* NULL: of full and all */
    double share;        /* of blend */
    bool chosen;         /* by the controller, from what a first blend took */
    tamis_blend *blend;  /* NULL: of full */
} ttft_arm;

/* An arm on the prompts of a number of chunks. */
typedef struct ttft_cell {
    const ttft_arm *arm;
    uint32_t n_chunks, n_tokens;
    double *seconds;                         /* [repeat] until the first token */
    double median, lowest, highest, speedup; /* over full, in the same round, median */
    tamis_blend_stats stats;                 /* of one prompt */
    tamis_blend_layer_stats *layers;         /* [n_layers] of a pass that waits for each layer */
    double pipeline_us, overlapped_us, serial_us; /* sums over layers of that pass */
    double ask_us;   /* of selector question: the pass before it, in which the suffix asks */
    double fraction; /* of the computing of full that is left, attention counted like the rest */
} ttft_cell;

/* Requests at a rate, one after another. Times are until the first token, waiting included. */
typedef struct ttft_queue {
    const ttft_arm *arm;
    double rate; /* a second */
    double mean, p50, p95, per_s, busy;
} ttft_queue;

typedef struct ttft {
    const char *command, *folder;
    store_place server;
    tamis_context *device;
    tamis_model *model;
    tamis_cache_params shape;
    tamis_dtype store_dtype;
    tamis_blend_selector selector; /* of blend */
    uint32_t repeat, n_requests;
    cli_list counts; /* of chunks */
    uint32_t n_shares;
    double shares[TTFT_SHARES_MAX]; /* 0: chosen for each source */
    uint32_t n_rates;
    double rates[TTFT_RATES_MAX];
    ttft_texts texts;
    tamis_record_params record;
    uint8_t fingerprint[16];
    tamis_cache *cache;
    tamis_runner *in_steps, *runner;  /* full's; that of all others, whose step holds a prompt */
    tamis_store *stores[TAMIS_TIERS]; /* of one tier each; NULL: no source has it */
    uint32_t n_sources, n_arms, n_cells, n_queues;
    ttft_source sources[TTFT_SOURCES_MAX];
    ttft_arm arms[TTFT_ARMS_MAX];
    ttft_cell *cells;   /* [n_cells]: the arms of each count */
    ttft_queue *queues; /* [n_queues]: the arms at each rate, with the first count */
} ttft;

/* The command (ttft.c) fills in what is asked for; this the rest. */
tamis_status ttft_measure(ttft *t, tamis_error *error);
const char *ttft_kind_name(ttft_kind kind);

/* ---- Queues (ttft_queue.c) ------------------------------------------------------------------- */

/* One worker serves requests that take seconds[i], in order, which come at random moments (Poisson
 * arrivals) that follow from the seed. Sets all but the arm; `room` holds count numbers. */
void ttft_serve(const double *seconds, uint32_t count, double rate, uint64_t seed, double *room,
                ttft_queue *out);

/* ---- Report (ttft_report.c) ------------------------------------------------------------------ */

/* The tables to stdout. Returns false if memory ran out. */
bool ttft_print(const ttft *t);
/* Completes `output` with the run as JSON. On failure prints one line and returns false. */
bool ttft_write_json(const ttft *t, cli_output *output);

#endif
