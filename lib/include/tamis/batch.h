/* SPDX-License-Identifier: Apache-2.0 */
/* Continuous batching: requests come and go, and each step runs chunks of prompts beside decode rows of
 * those whose prompts have been read. Of libtamis_model. */
#ifndef TAMIS_BATCH_H
#define TAMIS_BATCH_H

#include <tamis/model.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tamis_store; /* store.h, which libraries built without xxHash (TAMIS_STORE) lack */

/* Runs requests over a runner, whose plan and cache it has to itself: no other steps, and no other
 * sequences that take pages, but between two of its steps those of tamis_runner_record and
 * tamis_runner_record_prefix, and those that requests bring: of tamis_runner_blend and
 * tamis_runner_prefill, and their forks.
 * Owns the sequences of its requests. Thread-safety: as the runner's context; a server adds
 * requests between steps.
 *
 * Its rules, from which the order of events follows. Requests have the order in which they were added,
 * and an earlier one never waits for a later one:
 *
 * 1. A step takes one row of each request whose prompt has been read, in order, those that are exact
 *    (TAMIS_REQUEST_EXACT) behind the others, then chunks of prompts, in order, each as long as the
 *    budget of rows allows. Of a chunk the rows that lie in pages of the store, where there is one, are
 *    loaded; the others are run.
 * 2. While rows of the budget are left, and fewer than max_running requests run, the first request that
 *    waits begins, or goes on, in the same step. One that was saved does so once there is room for the
 *    pages that it held, and for one more in each lane of all that would run; where none runs, at
 *    once. Kept sequences, and those of requests that wait behind it, make room for it as in 3. One
 *    that begins goes on behind the sequence that it brought. Without one it looks for its prompt in
 *    live sequences, then for what follows in the store.
 * 3. If the cache lacks pages for the step (tamis_plan_step_pages), the kept sequence that ended first
 *    is removed; when none is left, the last request that holds pages makes room. If it waits, with a
 *    sequence that it brought, this is saved or given up, and it keeps its place. If it runs and was to
 *    begin in this step, it waits on, with the sequence that it brought; else it is preempted, and waits
 *    in its old place. This is repeated until the step fits. A request that is alone and does not fit
 *    ends with E_FULL. Rows that are loaded take pages as others do.
 *
 * So the first request always goes on, and no request starves. What a preempted request has computed is
 * saved to host memory (saved.h) and restored when it goes on; where host_bytes does not suffice, its
 * pages are given up, and its prompt and its tokens are run again, the prompt in chunks and each token
 * as a decode row. Its pages of the store are looked for again. What a request brought is lost with
 * pages that are given up: its whole prompt is then run. */
typedef struct tamis_scheduler tamis_scheduler;

enum {
    /* A request begins with a fork of the sequence that shares most of its prompt, of the same salt
     * (prefixes.h). Not with an eviction, which may take tokens from any sequence (E_UNSUPPORTED). */
    TAMIS_SCHEDULER_SHARE = 1,
    /* For measuring what mixed steps bring: decode rows and chunks of prompts are run in two steps, one
     * after the other; and rows of requests whose prompts have been read wait while there are prompts
     * to be read. */
    TAMIS_SCHEDULER_APART = 2,
    TAMIS_SCHEDULER_PROMPTS_FIRST = 4
};

typedef struct tamis_scheduler_params {
    uint32_t max_rows;    /* budget of a step; 0: the plan's max_rows */
    uint32_t max_running; /* requests that run at once; 0: the plan's max_sequences */
    uint32_t max_kept;    /* with TAMIS_SCHEDULER_SHARE: sequences that stay behind the end of their
                             requests, for prompts that begin alike */
    uint32_t flags;       /* TAMIS_SCHEDULER_*, or-ed */
    uint64_t host_bytes;  /* that saved sequences may take together */
    /* The caller's, until the scheduler is destroyed; NULL: nothing is loaded. */
    struct tamis_store *store;
    uint32_t store_tokens;   /* of a page there; 1 or more with a store */
    tamis_dtype store_dtype; /* of its planes, which must be in the plan's load_dtypes */
    uint64_t reserved[4];    /* 0, else E_ARGUMENT */
} tamis_scheduler_params;

/* A scheduler with a store loads beginnings of prompts from it: pages of prefixes, of store_tokens
 * each, that a request (n_stored) or tamis_runner_record_prefix (record.h) has put there, in this
 * process or another one, under the request's salt, over a cache of the same dtype. The prompt's
 * last token is always run. K and V of f32 pages are those of the run that they were taken from,
 * bit for bit; narrower ones are rounded.
 *
 * A request asks the store once, when it begins: that reads a header of each page behind those
 * that it shares, and pins it until it is loaded. Loading reads K and V of these pages, layer by
 * layer, and uploads them; it takes no more rows in a step than the budget has, for which the
 * step's other rows wait. A page that is damaged or cannot be read costs time alone: the rows from
 * it on are run, in the same step.
 *
 * A request with n_stored that finds all of these pages there is like any other. Else it begins
 * with what the store has and shares nothing, so that what is missing is run. K and V of these
 * rows are read in each layer of the steps that run them, which waits for the device, and lie in
 * host memory until the last of the pages is complete; then the pages are put into all tiers that
 * take them, as by tamis_store_put, and the step waits for that. Pages that are not put cost
 * nothing else.
 *
 * params may be NULL. A runner has one scheduler at most (E_STATE). Reads all weights back from
 * the device where there is a store and the model's fingerprint is not known yet, and waits.
 * Errors: E_ARGUMENT (NULL; max_rows or max_running above the plan's; an unknown flag; a plan with
 * TAMIS_PLAN_FIXED_LAUNCHES; a store without store_tokens, or either of its fields without a
 * store; a store_dtype that the plan does not load; a reserved field); E_UNSUPPORTED (what a flag
 * excludes; a store with an eviction, with a runner whose scale, soft cap or sliding window is not
 * the model's own, with a model whose layers are rotated in two ways, or in a library without
 * xxHash); E_NO_MEMORY; E_DEVICE. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_scheduler_create(tamis_runner *runner,
                                                               const tamis_scheduler_params *params,
                                                               tamis_scheduler **out,
                                                               tamis_error *error);
/* Accepts NULL. Removes the sequences of its requests. Where its runner is destroyed before it, they stay in
 * the cache, and its calls answer E_STATE. */
TAMIS_API void tamis_scheduler_destroy(tamis_scheduler **scheduler);

/* Draws the next token from logits f32 [n_vocab]. Called within tamis_scheduler_step; it must not call the
 * scheduler, its runner or what these stand on. A status other than OK ends the request with it. */
typedef tamis_status (*tamis_request_choose)(void *user, const float *logits, uint32_t n_vocab,
                                             int32_t *token, tamis_error *error);

/* Told, for each decode row of its request in each layer and KV head, which pages the row has read: their
 * ordinals in the lane, ascending, as tamis_plan_read_selected gives them, of the `of` pages that the lane
 * has with the row. `pages` is valid during the call. Called within tamis_scheduler_step, under the same
 * rule as choose, layer by layer; in a layer by the order of rows, then by KV heads. Rows of prompts are
 * not told, so the first token has none; of a row that is run again, since pages were given up, nothing
 * is told again. Where a step fails, its rows may be told again when the call is repeated. */
typedef void (*tamis_request_reads)(void *user, uint32_t layer, uint32_t kv_head,
                                    const uint32_t *pages, uint32_t n_pages, uint32_t of);

enum {
    /* The request's decode rows read every page that they may see, whatever the plan's selection: its
     * tokens are those under selection full. Such a row shares no products of weights with others'
     * (TAMIS_RUN_EXACT). Under selection full all rows are so, and the flag changes nothing. */
    TAMIS_REQUEST_EXACT = 1
};

typedef struct tamis_request {
    const int32_t *tokens; /* [n_tokens] the prompt, which is copied */
    uint32_t n_tokens;
    uint32_t max_new; /* tokens to generate, 1 or more */
    const int32_t
        *stops; /* [n_stops] tokens behind which it ends, copied; they are reported, too */
    uint32_t n_stops;
    uint32_t flags;              /* TAMIS_REQUEST_*, or-ed */
    tamis_request_choose choose; /* NULL: the token with the largest logit */
    void *user;                  /* of choose and reads; kept until the request has ended */
    uint8_t salt[16];            /* of the tenant, as in prefixes.h */
    /* Of its first tokens, such as a system prompt's: once these have been read, their full pages
     * are put into the scheduler's store, where it lacks any. 0: none. */
    uint32_t n_stored;
    uint32_t reserved32; /* 0, else E_ARGUMENT */
    /* A sequence of the runner's cache that holds K and V of the prompt's first tokens, such as
     * tamis_runner_blend and tamis_runner_prefill leave: only what follows them is run. 0: none. The
     * scheduler owns it once tamis_scheduler_add has answered OK; after an error it stays the caller's.
     * It holds its pages while the request waits. What it holds may be an approximation, as a blend's
     * is: no other request begins with it, and it is removed at the request's end. */
    tamis_sequence sequence;
    /* NULL: nothing is told. Where a decode row of a step is told of, the lists of such rows are read back
     * in each layer, which waits for the device. */
    tamis_request_reads reads;
    uint64_t reserved[1]; /* 0, else E_ARGUMENT */
} tamis_request;

/* Adds a request behind all others; *id is above 0 and grows. Enqueues nothing. Errors: E_ARGUMENT (NULL;
 * no tokens, or one outside the vocabulary; max_new is 0; n_tokens + max_new - 1 above max_context, with
 * the numbers; a flag or a reserved field; a sequence that the cache does not have, that the scheduler
 * has already, or that is not shorter than the prompt, with the numbers; n_stored beside a sequence);
 * E_STATE (the sequence is in an open step); E_UNSUPPORTED (TAMIS_REQUEST_EXACT under an eviction with
 * `every` 1, where a single exact row cannot take a token's place, and a selection other than full; a
 * sequence under an eviction, for which its rows may lack queries and weights); E_NO_MEMORY. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_scheduler_add(tamis_scheduler *scheduler,
                                                            const tamis_request *request,
                                                            uint64_t *id, tamis_error *error);
/* Gives a request up: its pages are free when the call returns, and no event of it comes any more.
 * Between steps. E_ARGUMENT: no such request, or one that has ended. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_scheduler_cancel(tamis_scheduler *scheduler,
                                                               uint64_t id, tamis_error *error);

/* Removes the sequence that has been kept longest behind the end of its request, so that its pages are
 * free for a sequence that a request is to bring. *dropped: 1, or 0 where none is kept. Between steps.
 * Errors: E_ARGUMENT (NULL). */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_scheduler_drop_kept(tamis_scheduler *scheduler,
                                                                  int *dropped, tamis_error *error);

typedef enum tamis_request_event_kind {
    /* It runs; `value`: the prompt's tokens that need not be run, since the sequence that it brought holds
     * them, or it shares them with another one, or the store has them. */
    TAMIS_REQUEST_BEGAN,
    TAMIS_REQUEST_TOKEN,     /* `value` is its next token */
    TAMIS_REQUEST_ENDED,     /* behind its last token; `status` is OK, or why it could not go on */
    TAMIS_REQUEST_PREEMPTED, /* `value`: 1: saved, 0: given up */
    TAMIS_REQUEST_RESUMED    /* it runs again; `value`: tokens that need not be run again */
} tamis_request_event_kind;

typedef struct tamis_request_event {
    uint64_t id;
    tamis_request_event_kind kind;
    int32_t value;
    tamis_status status;
} tamis_request_event;

/* Runs one step, if there are requests. *events is the scheduler's, [*n], valid until its next call; what
 * the step does before it runs comes before its tokens, which come in the order of its rows. There may
 * be none: a chunk in the midst of a prompt tells of nothing. Whether requests are left is in
 * tamis_scheduler_get_stats. After an error the requests are as they were, but those that began or were
 * preempted, whose events come with the next step, and those of which rows were loaded; the call
 * may be repeated: E_NO_MEMORY, and what tamis_runner_step and tamis_plan_load_rows answer.
 * E_DEVICE is for good, as with any call on its context. Waits. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_scheduler_step(tamis_scheduler *scheduler,
                                                             const tamis_request_event **events,
                                                             uint32_t *n, tamis_error *error);

/* Now, and since the scheduler was created. */
typedef struct tamis_scheduler_stats {
    uint32_t waiting, running, kept;
    uint64_t saved_bytes; /* of host memory that saved sequences take */
    uint64_t steps, mixed_steps; /* of the runner; loading is none */
    uint64_t rows;             /* that were run */
    uint64_t rows_again;       /* of these, rows that had been run before a request was preempted */
    uint64_t tokens_shared;    /* that were not run, since another request's sequence held them */
    uint64_t preempted, saved; /* saved: of the preempted */
    uint64_t tokens_stored;    /* that were not run, since they were loaded */
    uint64_t pages_put;        /* into the store, or that were there meanwhile */
    uint64_t store_failed;     /* times that the store could not read, or that pages were not put */
    uint64_t reserved[5];
} tamis_scheduler_stats;
TAMIS_API void tamis_scheduler_get_stats(const tamis_scheduler *scheduler,
                                         tamis_scheduler_stats *out);

#ifdef __cplusplus
}
#endif
#endif
