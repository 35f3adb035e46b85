/* SPDX-License-Identifier: Apache-2.0 */
/* What rows of a step in turns have replaced, until it is known which of them stay: tokens in the slots of
 * the sequence's journal, scores of its lanes beside the cache. */
#ifndef TMS_PLAN_JOURNAL_H
#define TMS_PLAN_JOURNAL_H

#include "lib/plan/evict_in_step.h"

/* A sequence of the last step with several rows, until it is known which of them stay. */
typedef struct tms_journal {
    tamis_sequence id;
    uint32_t first, n; /* its rows; */
    uint32_t n_left;   /* the first ones that no call has begun to undo */
    tms_past before;   /* its history before the step */
} tms_journal;

typedef struct tms_journals {
    const tms_setup *setup;
    const tms_step *step;
    const tms_in_step *in_step;
    tms_journal *all; /* [max_sequences] */
    uint32_t n;
    /* f32 [n_layers][max_selected_rows][n_kv_heads][stride]: the scores before each row, where weights
     * change them; else NULL. */
    tms_mem *scores;
    uint64_t stride; /* elements */
    /* Rows of the page table that hold what each row replaces [n_rows]; slots there, [n_layers][n_rows]
     * [n_kv_heads], -1: it replaces nothing. Only in steps in turns. */
    uint64_t seq, slots;
} tms_journals;

/* The pointers to other rooms must be set. */
tamis_status tms_journals_create(tms_journals *journals, tamis_error *error);
void tms_journals_destroy(tms_journals *journals);
/* Launches what it may launch, with no rows. */
tamis_status tms_journals_warm(tms_journals *journals, const tms_write_rows *write,
                               tamis_error *error);

/* Its tables in the step's. */
tms_step_room tms_journals_room(tms_journals *journals);

/* Before a row, which is a section of its own, is written: keeps scores; then, once slots have been
 * chosen, what is in them. */
tamis_status tms_journals_keep_scores(const tms_journals *journals, uint32_t layer,
                                      uint32_t section, const tms_batch *row, tamis_error *error);
tamis_status tms_journals_keep_slots(const tms_journals *journals, uint32_t layer, uint32_t section,
                                     const tms_write_rows *write, tamis_error *error);

/* Undoes rows [first, end) of the step in a layer, all of one sequence: slots, scores, bounds. write: of
 * the layer, as tms_template_write gives it. */
tamis_status tms_journals_undo(const tms_journals *journals, uint32_t layer, uint32_t first,
                               uint32_t end, const tms_write_rows *write, tamis_error *error);

/* Notes the sequences of the step, which has begun, that have one: of its first n_selected, those that
 * bring several rows. */
void tms_journals_open(tms_journals *journals, uint32_t n_selected);

/* That of a sequence; NULL if it has none of this plan. forget: which rows stay is decided. */
tms_journal *tms_journals_find(const tms_journals *journals, tamis_sequence id);
void tms_journals_forget(tms_journals *journals, tms_journal *journal);

/* E_STATE while a sequence of the last step has one. */
tamis_status tms_journals_check_settled(const tms_journals *journals, tamis_error *error);

#endif
