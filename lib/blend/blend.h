/* SPDX-License-Identifier: Apache-2.0 */
/* A blend from inside: what it was made for, and the open prompt with its parts and rows. */
#ifndef TMS_BLEND_H
#define TMS_BLEND_H

#include "lib/blend/ring.h"
#include "lib/blend/selector.h"
#include "lib/core/core.h"

/* What a row of the prompt is; see tamis/blend.h. */
typedef enum tms_row_kind { TMS_ROW_FRESH, TMS_ROW_HIT, TMS_ROW_EXACT } tms_row_kind;

typedef struct tms_part {
    uint32_t first, n;  /* rows of the prompt */
    tamis_chunk *chunk; /* pinned; NULL: all its rows are fresh */
    bool exact;
} tms_part;

struct tamis_blend {
    tms_life life;
    bool holds; /* the buffers of the parameters */
    /* Constant. */
    tamis_plan *plan;
    tamis_store *store;
    tamis_cache *cache;
    tamis_cache_params shape;
    tamis_blend_params params; /* defaults filled in; arrays are the blend's own */
    const tms_selector *selector;
    bool everything; /* all rows are computed, and nothing is loaded */
    bool checked;    /* there is a check layer */
    uint32_t from;   /* the layer of the first share: the check layer, or 0 */
    uint32_t tail;   /* last rows of the prompt that are fresh */
    uint32_t max_rows;
    double *shares; /* [params.n_shares] */
    uint32_t *listed;
    int32_t *sink;
    uint8_t model[16]; /* its fingerprint; that of the parameters is extended by the sink */
    tamis_place *k_norms;

    tamis_buffer
        *deviation;    /* f32 [max_rows]; from `norms_at` on, with a bound, |V|^2 of the rows */
    uint64_t norms_at; /* bytes */

    /* The open prompt. */
    bool open;
    tamis_sequence sequence;
    tms_part *parts;
    uint32_t n_parts;
    uint32_t n_rows, n_hits;
    double started_at; /* when its step was begun */
    /* Selectors that ask: whether this is the pass in which the question attends to full reuse;
     * whether `masses` rank the hits of the prompt as it is. */
    bool asking, ranked;
    uint32_t question;         /* its first row */
    double *masses;            /* [max_rows] by rows of the prompt */
    uint8_t *kinds;            /* [n_rows] tms_row_kind */
    uint32_t *rows, n_present; /* rows that the step still has, */
    uint32_t *places;          /* and their places among those before the last selection */
    float *deviations, *norms; /* [max_rows] on the host; norms with a bound alone */
    tms_candidate *candidates; /* [max_rows] */
    tms_read *reads;
    uint32_t n_reads, next_read, next_upload; /* next_upload >= next_read */
    tms_loader loader;
    tms_ring ring;

    tamis_blend_stats stats;
    tamis_blend_layer_stats *layers; /* [n_layers], of the last prompt */
    double left_at;                  /* when tms_blend_layer returned */
};

/* ---- Rows (rows.c) --------------------------------------------------------------------------- */

/* Fills in kinds, n_hits, and all rows as present, but those that are left out from layer 0 on. */
void tms_blend_fill_rows(tamis_blend *blend);
/* A part whose chunk is gone: its hits are fresh from now on. */
void tms_blend_make_fresh(tamis_blend *blend, const tms_part *part);
/* Whether a layer is computed for all rows: not in the pass that asks. */
bool tms_blend_checks(const tamis_blend *blend);
/* Whether V of the layer's rows is measured; whether the layer selects, after it has been written.
 */
bool tms_blend_measures(const tamis_blend *blend, uint32_t layer);
bool tms_blend_selects(const tamis_blend *blend, uint32_t layer);
/* Of the present rows, those that a layer's selection keeps: puts them to the front of `rows` with
 * their places, and answers how many. n_present stays. */
uint32_t tms_blend_choose(tamis_blend *blend, uint32_t layer);
/* Whether the layer's selection passes the gate. */
bool tms_blend_gates(const tamis_blend *blend, uint32_t layer);
/* What a selection of n rows in the check layer leaves, as `bound` is defined. */
double tms_blend_left(const tamis_blend *blend, uint32_t n);

/* ---- Times (times.c) ------------------------------------------------------------------------- */

/* Waits for the device, where times of layers are asked for. */
tamis_status tms_blend_settle(tamis_blend *blend, tamis_error *error);
/* Counts the time since the last layer was left as that of computing it; before layer 0 nothing. */
void tms_blend_count_compute(tamis_blend *blend, uint32_t layer);

/* ---- Prefixes (prefix.c) --------------------------------------------------------------------- */

/* What `stored` of the parts must be, behind `length` tokens of the sequence. *room: how many parts
 * they become at most, pages of prefixes counted. */
tamis_status tms_blend_check_prefix(const tamis_blend *blend, const tamis_blend_part *parts,
                                    uint32_t n_parts, uint32_t length, size_t *room,
                                    tamis_error *error);
/* Adds a prefix, the first part: the pages that are stored, and the rest. */
tamis_status tms_blend_find_prefix(tamis_blend *blend, const tamis_blend_part *part,
                                   tamis_error *error);

/* ---- A layer (layer.c) ----------------------------------------------------------------------- */

/* Rows of the prompt, which change with the next call. */
typedef struct tms_blend_rows {
    const uint32_t *rows; /* [n], ascending */
    uint32_t n;
    const uint32_t *places; /* [n] among those before; NULL: they are the same */
} tms_blend_rows;

/* The calls on a layer of the open prompt, in their order; the driver (run.c) makes them, and cancels
 * the prompt where one fails.
 * layer: loads what the layer needs of the store, and says for which rows it is computed. *restarted:
 * a record was damaged when rows that it was to serve had been left out; the step has begun anew, and
 * layer 0 comes next.
 * compare: where the layer's rows are measured, enqueues how far v of them is from the stored one.
 * select: once the layer has been written: leaves rows out of the step, and says which stay.
 * observe: of a selector that asks: the question's rows attend to the hits; *restarted in the last
 * layer of that pass. */
tamis_status tms_blend_layer(tamis_blend *blend, uint32_t layer, tms_blend_rows *out,
                             bool *restarted, tamis_error *error);
tamis_status tms_blend_compare(tamis_blend *blend, uint32_t layer, const tamis_rows *v,
                               tamis_error *error);
tamis_status tms_blend_select(tamis_blend *blend, uint32_t layer, tms_blend_rows *out,
                              tamis_error *error);
tamis_status tms_blend_observe(tamis_blend *blend, uint32_t layer, const tamis_rows *q,
                               bool *restarted, tamis_error *error);

/* ---- The prompt (prompt.c) ------------------------------------------------------------------- */

/* Looks up the stored parts, and begins. After a failure nothing is open, and nothing has changed. */
tamis_status tms_blend_begin(tamis_blend *blend, tamis_sequence sequence,
                             const tamis_blend_part *parts, uint32_t n_parts, tamis_error *error);
/* Ends the plan's step, once all layers have been attended. */
tamis_status tms_blend_end(tamis_blend *blend, tamis_error *error);
/* Gives up an open prompt: the thread ends, chunks are released, the plan's step is cancelled. Does
 * nothing without one. */
void tms_blend_cancel(tamis_blend *blend);
/* Begins the plan's step with the parts as they are, and to read. After a failure nothing is open.
 */
tamis_status tms_blend_start(tamis_blend *blend, tamis_error *error);
/* Lists what is to be read from a part of a layer on, and starts the loader. */
tamis_status tms_blend_read_from(tamis_blend *blend, uint32_t layer, uint32_t part,
                                 tamis_error *error);
/* Releases the chunks of the parts, and the parts. */
void tms_blend_release(tamis_blend *blend);

#endif
