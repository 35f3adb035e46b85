/* SPDX-License-Identifier: Apache-2.0 */
/* Loading stored rows into the open step: which rows hold them in which layer, and the tables of one
 * load. Rows are those that the step was begun with. */
#ifndef TMS_PLAN_LOAD_H
#define TMS_PLAN_LOAD_H

#include "lib/plan/page_table.h"
#include "lib/plan/step.h"

/* What the slots of a row hold of what was loaded. */
#define TMS_HELD_K 1u
#define TMS_HELD_V 2u

typedef struct tms_loads {
    const tms_setup *setup;
    const tms_step *step;
    const tms_page_table *table;
    uint8_t *held;    /* [n_layers][max_rows] of TMS_HELD_*; NULL: the plan loads nothing */
    tms_arena tables; /* row_seq [n], positions [n], slots [n][n_kv_heads] of one load */
} tms_loads;

/* The pointers to other rooms must be set. After a failure the caller must call destroy, too. */
tamis_status tms_loads_create(tms_loads *loads, tamis_error *error);
void tms_loads_destroy(tms_loads *loads);
/* Builds the kernels and launches each once, with no rows. */
tamis_status tms_loads_warm(const tms_loads *loads, tamis_error *error);

/* At a step's begin: no row holds anything. */
void tms_loads_clear(tms_loads *loads);

/* Sends the tables of rows [first, first + n). *out takes what a launch needs beside the caller's
 * rows: of a write its cache, batch, slots, planes and positions. */
tamis_status tms_loads_place(const tms_loads *loads, uint32_t layer, uint32_t first, uint32_t n,
                             tms_write_rows *out, tamis_error *error);

/* The same for the rows that the step still has; slots of those that do not hold `parts` are -1. */
tamis_status tms_loads_place_held(const tms_loads *loads, uint32_t layer, uint32_t parts,
                                  tms_write_rows *out, tamis_error *error);

/* Records that rows hold what `parts` says; that they do not, before a launch changes it. */
void tms_loads_hold(const tms_loads *loads, uint32_t layer, uint32_t first, uint32_t n,
                    uint32_t parts);
void tms_loads_lose(const tms_loads *loads, uint32_t layer, uint32_t first, uint32_t n,
                    uint32_t parts);
/* The same for the rows that the step still has: they are about to be written. */
void tms_loads_lose_present(const tms_loads *loads, uint32_t layer);

/* Among which rows one is looked for. */
typedef enum tms_rows_of { TMS_ROWS_BEGUN, TMS_ROWS_PRESENT, TMS_ROWS_LEFT_OUT } tms_rows_of;
/* The first of these rows that does not hold all of `parts`; *lacks says which it does not. False:
 * there is none. */
bool tms_loads_lacking(const tms_loads *loads, uint32_t layer, tms_rows_of which, uint32_t parts,
                       uint32_t *row, const char **lacks);

#endif
