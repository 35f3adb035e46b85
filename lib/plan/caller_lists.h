/* SPDX-License-Identifier: Apache-2.0 */
/* Lists that the caller makes (selection caller): checked, made valid on the device, and attended by:
 * lists of pages as those of any selection; for lists of tokens every slot is a page. */
#ifndef TMS_PLAN_CALLER_LISTS_H
#define TMS_PLAN_CALLER_LISTS_H

#include "lib/plan/templates.h"

typedef struct tms_caller_lists {
    const tms_setup *setup;
    const tms_step *step;
    const tms_templates *templates;
    uint32_t most; /* entries of a valid list */
    /* int32 [max_selected_rows][n_kv_heads][as many as a list may have that is given], then the counts: of
     * the host. */
    tms_mem *raw;
    /* With TAMIS_PLAN_TOKEN_LISTS. */
    tms_mem *ids; /* int32 [max_selected_rows][n_kv_heads][most] */
    tms_mem *scratch;
    tms_arena tables;      /* the counter of skipped entries; then for tokens: */
    uint64_t lanes, tiles; /* each row is a sequence of its own, and a tile */
} tms_caller_lists;

/* Lists of a call that have been checked; of a row that is not exact and a KV head each. */
typedef struct tms_given_lists {
    tms_lists raw; /* pages.mem == NULL: on the host */
    const int32_t *host, *host_count;
    bool given, tokens;
} tms_given_lists;

/* E_ARGUMENT, E_UNSUPPORTED: what the selection, the cache and the eviction do not allow. */
tamis_status tms_caller_lists_check_plan(const tms_setup *setup, tamis_error *error);
tamis_status tms_caller_lists_create(tms_caller_lists *l, tamis_error *error);
/* Builds the kernels and launches each once, with no rows; sends the tables, the counter as 0. */
tamis_status tms_caller_lists_warm(const tms_caller_lists *l, tamis_error *error);
void tms_caller_lists_destroy(tms_caller_lists *l);

/* Checks lists, which may be NULL, for n rows of a layer; 0: no row of the layer reads lists. */
tamis_status tms_caller_lists_check(const tms_caller_lists *l, uint32_t layer, uint32_t n,
                                    const tamis_caller_lists *lists, tms_given_lists *out,
                                    tamis_error *error);
/* Enqueues what makes the lists of a section's rows valid, into those of *attend, where sliding windows
 * have been found. With tokens *attend then reads these, slot by slot. */
tamis_status tms_caller_lists_take(const tms_caller_lists *l, uint32_t section,
                                   const tms_given_lists *given, tms_attend *attend,
                                   tamis_error *error);
/* The counter of skipped entries. */
static inline tms_ref tms_caller_lists_skipped(const tms_caller_lists *l) {
    return tms_arena_ref(&l->tables, 0);
}

#endif
