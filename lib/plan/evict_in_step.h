/* SPDX-License-Identifier: Apache-2.0 */
/* What an eviction adds to the layers of a step: new rows take the slots of evicted tokens, keys or
 * weights of rows go to the plane of scores, queries go to the rings. */
#ifndef TMS_PLAN_EVICT_IN_STEP_H
#define TMS_PLAN_EVICT_IN_STEP_H

#include "lib/plan/query_ring.h"
#include "lib/plan/step.h"

/* Absent memory is NULL: the eviction does not need it. */
typedef struct tms_in_step {
    const tms_setup *setup;
    const tms_step *step;
    const tms_query_rings *rings;
    tamis_plan_counters *counters;
    tms_mem *lse;     /* f32 [max_rows][n_heads] of the attend whose weights go to scores */
    tms_mem *logits;  /* f32 [max_sequences][n_heads][] of decode rows */
    tms_mem *newest;  /* f32 [max_sequences][n_kv_heads][stride], the newest rows' weights */
    uint64_t stride;  /* elements */
    /* int32 [max_sequences][n_kv_heads] pages whose tokens are replaced; of plans that verify, for each row:
     * [n_layers][max_selected_rows][n_kv_heads] */
    tms_mem *changed;
    uint64_t stays;   /* [n_layers][n_rows][n_kv_heads], evicting in place */
    /* For the sequences of a step whose weights go to scores: rows of the page table [n], (first,
     * number) of those query rows [n][2], which are counted from their section's first row, and visible [n_layers][n][n_kv_heads] */
    uint64_t item_seq, item_spans, item_visible;
} tms_in_step;

/* Its tables in the step's. */
tms_step_room tms_in_step_room(tms_in_step *e);

/* The pointers to other rooms must be set. */
tamis_status tms_in_step_create(tms_in_step *e, tamis_error *error);
void tms_in_step_destroy(tms_in_step *e);

/* The growth of a sequence by a step's rows. E_ARGUMENT, E_STATE if the eviction does not allow
 * such a step. */
tamis_status tms_in_step_growth(const tms_in_step *e, tms_sequence *sequence, uint32_t rows,
                                bool exact, tms_growth *out, tamis_error *error);

/* Where a layer has lanes that stay at their length: finding slots in them, writing a section's rows
 * there, and the bounds of the pages that hold the slots. Without replace_rows, the three are run one by
 * one. */
tms_replace_rows tms_in_step_replace(const tms_in_step *e, uint32_t layer, uint32_t section,
                                     const tms_write_rows *write);
/* Those bounds, for one row of a step of a plan that verifies. */
tms_bounds tms_in_step_changed(const tms_in_step *e, uint32_t layer, uint32_t row);

/* After rows were written: scores of their keys to the plane of scores, if the eviction uses them. */
tamis_status tms_in_step_score_rows(const tms_in_step *e, const tms_write_rows *write,
                                    tamis_error *error);

/* Whether the eviction needs weights or queries of the open step's attends; else the next two calls
 * do nothing. */
bool tms_in_step_observes(const tms_in_step *e);
/* What the attend of a section in a layer has to write beside its out, for weights. */
tamis_status tms_in_step_ask_weights(const tms_in_step *e, uint32_t section, bool listed,
                                     tms_attend *attend, tamis_error *error);
/* The launch that weighs its rows, from the step's own logits or from the keys. */
tms_observe tms_in_step_observe(const tms_in_step *e, uint32_t layer, uint32_t section,
                                const tms_attend *attend);
/* After attend: rows' weights to the plane of scores, queries to the rings. observed: the attend has
 * weighed its rows. */
tamis_status tms_in_step_use_weights(const tms_in_step *e, uint32_t layer, uint32_t section,
                                     const tms_attend *attend, bool observed, tamis_error *error);

/* Records in the sequences' history, at the step's end or when it was cancelled, whose weights or
 * keys the scores now hold. whole: every layer was attended; a step that has ended has written all
 * of them. */
void tms_in_step_note_scores(const tms_in_step *e, bool whole, bool given_up);

/* E_STATE unless all rows of the sequence went into the scores that the eviction uses. */
tamis_status tms_in_step_check_scores(const tms_setup *setup, const tms_sequence *sequence,
                                      tamis_error *error);

#endif
