/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a scheduler: its requests, in the order in which they were added, and its events. */
#ifndef TMS_MODEL_SCHEDULER_H
#define TMS_MODEL_SCHEDULER_H

#include "lib/model/model.h"
#include <tamis/batch.h>
#include <tamis/prefixes.h>
#include <tamis/store.h>

/* A sequence as bytes. */
typedef struct tms_bytes {
    uint8_t *data; /* NULL: none */
    size_t n, room, most;
} tms_bytes;

/* Pages of the store that hold tokens of a prompt, each pinned. */
typedef struct tms_stored {
    tamis_chunk **pages; /* [n], the prompt's from page `first` on */
    uint32_t first, n;
    bool asked; /* the store was asked for them */
} tms_stored;

typedef struct tms_request {
    uint64_t id;
    int32_t *tokens; /* [n_prompt + max_new] the prompt, then what was generated */
    int32_t *stops;
    uint32_t n_prompt, n_known, n_done, max_new,
        n_stops;    /* n_done: of which the sequence holds K and V */
    uint32_t n_run; /* the most that n_done has been */
    tamis_request_choose choose;
    void *user;
    uint8_t salt[16];
    tamis_request_reads reads; /* NULL: it is not told what its decode rows read */
    bool exact;                /* its decode rows read every page, though the plan selects */
    tamis_sequence sequence;   /* 0: it waits, and holds nothing */
    bool given; /* its sequence came with it: nobody else begins with what that holds */
    tms_bytes saved;         /* of one that was preempted */
    uint64_t pages;          /* that its sequence held then */
    tms_stored stored;
    uint32_t n_stored;               /* of its first tokens: their full pages are to be put */
    bool puts;                       /* the store lacks some of these */
    struct tms_recording *recording; /* of these; NULL: not begun */
    bool began, fresh; /* it has held a sequence before; it got its sequence in this step */
} tms_request;

struct tamis_scheduler {
    tamis_runner *runner; /* NULL: it was destroyed */
    tamis_scheduler_params params;
    tamis_prefixes *prefixes; /* NULL: nothing is shared */
    /* Those that run come before those that wait. */
    tms_request **requests;
    uint32_t n_requests, n_running, capacity;
    uint64_t last_id;
    tamis_sequence *kept; /* [max_kept], the one that ended first at place 0 */
    uint32_t n_kept;
    /* Where there is a store: K and V of rows on their way. */
    tamis_buffer *rows[2]; /* [max_rows][n_kv_heads][head_dim] of store_dtype */
    uint8_t *planes[2];    /* of a page */
    uint64_t row_bytes;
    uint32_t first_run;  /* of the runner's step */
    tamis_run *runs;     /* [max_running] of the step */
    tms_request **of;    /* [max_running] whose they are */
    uint32_t n_decoding; /* runs that are decode rows, which come first */
    int32_t *next;       /* [max_running] */
    float *logits;       /* [n_vocab] */
    uint32_t n_runs;
    uint32_t *pages; /* [most_pages] that a row has read of a lane */
    uint32_t most_pages, page_size;
    tamis_request_event *events;
    uint32_t n_events, event_room;
    bool told; /* the events have been given to the caller */
    uint8_t fingerprint[16];
    tamis_scheduler_stats stats;
};

/* The first line of a public call on a scheduler. */
#define TMS_ENTER_SCHEDULER(scheduler)                                                             \
    TMS_REQUIRE(scheduler, TAMIS_E_ARGUMENT, "scheduler is NULL");                                 \
    TMS_REQUIRE((scheduler)->runner, TAMIS_E_STATE, "the scheduler's runner was destroyed");       \
    TMS_ENTER_RUNNER((scheduler)->runner)

/* ---- Out of the store (scheduler_stored.c) -------------------------------------------------------------- */

/* Checks that the store can serve the runner, and takes memory; gives it back. Both do nothing without
 * a store. */
tamis_status tms_stored_open(tamis_scheduler *scheduler, tamis_error *error);
void tms_stored_close(tamis_scheduler *scheduler);
/* The id of the prompt's pages from page `first` on. */
tamis_status tms_stored_id(const tamis_scheduler *scheduler, const tms_request *request,
                           uint32_t first, tamis_chunk_id *id, tamis_error *error);
/* Finds the pages behind what the request's sequence holds, unless they have been found already. */
tamis_status tms_stored_find(tamis_scheduler *scheduler, tms_request *request, tamis_error *error);
/* How many of the prompt's first tokens are in these pages or the sequence. */
uint32_t tms_stored_reach(const tamis_scheduler *scheduler, const tms_request *request);
/* Loads at most `most` of the prompt's next rows, as far as pages reach, in a step of their own;
 * `*loaded` of them. A page that cannot be read ends the prefix. */
tamis_status tms_stored_load(tamis_scheduler *scheduler, tms_request *request, uint32_t most,
                             uint32_t *loaded, tamis_error *error);
/* Gives the pins back, and forgets that the store was asked. */
void tms_stored_release(tms_request *request);

/* ---- Into the store (scheduler_put.c) ------------------------------------------------------------ */

/* Finds whether pages of a request without tokens are to be put. */
tamis_status tms_put_find(tamis_scheduler *scheduler, tms_request *request, tamis_error *error);
/* tamis_runner_step of n runs from first_run on, of which rows are recorded; puts pages that are
 * complete. */
tamis_status tms_put_step(tamis_scheduler *scheduler, uint32_t n, tamis_error *error);
/* Nothing more of the request is put. */
void tms_put_release(tms_request *request);

/* ---- What rows read (scheduler_reads.c) ---------------------------------------------------------- */

/* tms_put_step, in which requests are told what their decode rows read. */
tamis_status tms_reads_step(tamis_scheduler *scheduler, uint32_t n, tamis_error *error);

/* ---- Sequences of requests (scheduler_sequences.c) ----------------------------------------------- */

/* Gives a request that waits its sequence: the one that came with it, or restored, forked or empty. E_FULL: the cache lacks pages to
 * restore it; then nothing has changed. */
tamis_status tms_scheduler_begin(tamis_scheduler *scheduler, tms_request *request,
                                 tamis_error *error);
/* Takes it back: saved to host memory if `saves` and there is room, else what was computed is given
 * up. */
tamis_status tms_scheduler_take_back(tamis_scheduler *scheduler, tms_request *request, bool saves,
                                     tamis_error *error);
/* Lets prompts begin as the request's, as far as its sequence holds it. */
tamis_status tms_scheduler_share(tamis_scheduler *scheduler, const tms_request *request,
                                 tamis_error *error);
/* Its sequence stays behind its end, or is removed, as one that came with it is. */
tamis_status tms_scheduler_leave(tamis_scheduler *scheduler, tms_request *request,
                                 tamis_error *error);
/* Removes a sequence, where the runner is left. */
void tms_scheduler_remove(const tamis_scheduler *scheduler, tamis_sequence sequence);
/* Removes the kept sequence that ended first; there is one. */
tamis_status tms_scheduler_drop_kept(tamis_scheduler *scheduler, tamis_error *error);

/* ---- Requests (scheduler_requests.c) -------------------------------------------------------------- */

void tms_request_free(tamis_scheduler *scheduler, tms_request *request);
/* Takes the request at a place out of the order, and frees it. */
void tms_scheduler_forget(tamis_scheduler *scheduler, uint32_t place);

#endif
