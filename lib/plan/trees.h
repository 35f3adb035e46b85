/* SPDX-License-Identifier: Apache-2.0 */
/* Trees in the open step: a row lies in the pages of every branch that has it. It is written for the
 * first of them, from which it is copied to the others. */
#ifndef TMS_PLAN_TREES_H
#define TMS_PLAN_TREES_H

#include "lib/plan/step.h"

typedef struct tms_trees {
    const tms_setup *setup;
    uint32_t n; /* copies of rows in the open step; before the tables are made, the most */
    /* Rows of the page table from and to which each is copied, [n]; slots, [n_layers][n][n_kv_heads] */
    uint64_t from, to, slots;
} tms_trees;

/* `setup` must be set. */
void tms_trees_create(tms_trees *trees);

/* Its tables in the step's. */
tms_step_room tms_trees_room(tms_trees *trees);

/* Counts the copies of a step from its growth, before its tables are filled. */
void tms_trees_count(tms_trees *trees, const tms_growth *growth, uint32_t n_sequences);

/* The copies of a layer whose rows are written by `write`. */
tms_copy_slots tms_trees_copies(const tms_trees *trees, const tms_step *step, uint32_t layer,
                                const tms_write_rows *write);

#endif
