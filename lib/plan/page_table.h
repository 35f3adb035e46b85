/* SPDX-License-Identifier: Apache-2.0 */
/* The page tables on the device: a sequence keeps its row from step to step, so that a decode step
 * uploads only the entries that are new. */
#ifndef TMS_PLAN_PAGE_TABLE_H
#define TMS_PLAN_PAGE_TABLE_H

#include "lib/plan/setup.h"

/* The contents of one row on the device. */
typedef struct tms_table_row {
    tamis_sequence id; /* 0: no sequence's */
    uint64_t state;    /* of the sequence's lists when they were uploaded; 0: not yet */
    uint64_t used;     /* number of the last call of tms_page_table_bring that used it */
    uint32_t *pages;   /* [n_lanes] leading entries of each list that are on the device */
} tms_table_row;

typedef struct tms_page_table {
    const tms_setup *setup;
    tms_mem *mem;        /* int32 [max_sequences][n_lanes][stride] */
    uint32_t stride;     /* pages of a lane; at first what the cache can hold of it */
    tms_mem *entries;    /* int32 [][2], changes of one upload */
    int32_t *entry_host; /* the same */
    tms_table_row *rows; /* [max_sequences] */
    uint64_t n_brought;
} tms_page_table;

/* After a failure the caller must call destroy, too. */
tamis_status tms_page_table_create(tms_page_table *table, const tms_setup *setup,
                                   tamis_error *error);
void tms_page_table_destroy(tms_page_table *table);
/* Clears it on the device, and launches its kernel once, with no entries. */
tamis_status tms_page_table_warm(const tms_page_table *table, tamis_error *error);

/* Assigns a row to each of the sequences, at most max_sequences of them, and updates it on the
 * device; rows[i] is that of sequences[i]. A sequence without a row gets the one that was not used
 * for the longest time. Where a lane has become longer than what was thought that the cache can hold of
 * one, which evictions that leave lanes of unequal lengths can bring about, the table is made anew. */
tamis_status tms_page_table_bring(tms_page_table *table, tms_sequence *const *sequences, uint32_t n,
                                  uint32_t *rows, tamis_error *error);

/* Sets what a batch takes of the lists of a layer; until the next call that brings sequences. */
void tms_page_table_place(const tms_page_table *table, uint32_t layer, tms_batch *batch);

/* Whether a sequence has a row that is wide enough: then to bring it alone takes none from another. */
bool tms_page_table_has(const tms_page_table *table, tms_sequence *sequence);

#endif
