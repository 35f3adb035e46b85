/* SPDX-License-Identifier: Apache-2.0 */
/* Policies as plain structs of numbers: which pages a query reads (selection). */
#ifndef TAMIS_POLICY_H
#define TAMIS_POLICY_H

#include <tamis/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Values are pinned. */
typedef enum tamis_selection_kind {
    TAMIS_SELECT_FULL = 0, /* every page */
    TAMIS_SELECT_WINDOW =
        1, /* the sinks' pages and the newest pages (StreamingLLM's reading pattern) */
    TAMIS_SELECT_QUEST =
        2, /* sinks, recent, and the pages with the best bounds (Quest, section 3) */
    TAMIS_SELECT_ORACLE = 3, /* sinks, recent, and the pages with the largest true attention mass:
                                the ceiling of page selection. Masses below the range of fp32 are 0
                                and tie; the newer page then wins. Reads every key: not fast */
    TAMIS_SELECT_RANDOM = 4  /* sinks, recent, and random pages: the floor */
} tamis_selection_kind;

/* How the scores of the query heads of a group become one score of their KV head's page. */
typedef enum tamis_group_rule {
    TAMIS_GROUP_MAX = 0,
    TAMIS_GROUP_MEAN = 1,
    TAMIS_GROUP_SUM = 2
} tamis_group_rule;

/* A selection decides at every decode row which pages of a lane are read; it drops nothing. The
 * partial newest page is always read. One list per (row, KV head). */
typedef struct tamis_selection {
    tamis_selection_kind kind;
    /* Tokens a lane, everything always kept included; read in whole pages, so at most
     * floor(budget / page_size) pages. Not used by full. */
    uint32_t budget;
    uint32_t sinks;        /* first tokens always read, rounded up to whole pages */
    uint32_t recent;       /* last tokens always read, to the page that holds the oldest of them */
    uint32_t dense_layers; /* layers [0, dense_layers) read everything */
    tamis_group_rule group;
    uint64_t seed; /* random: pages follow from (seed, layer, position, KV head) on every device */
    uint64_t reserved[8];
} tamis_selection;

/* The defaults for a kind: full {}; window {sinks 4}; quest {sinks 4, recent 64, dense_layers 0,
 * group max}; oracle and random as quest. Budget 0 is filled with 2048. */
TAMIS_API void tamis_selection_default(tamis_selection_kind kind, tamis_selection *out);

/* "full", "window", "quest", "oracle", "random" to the kind and back. Errors: E_ARGUMENT naming
 * what is known. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_selection_parse(const char *name,
                                                              tamis_selection_kind *out,
                                                              tamis_error *error);
TAMIS_API const char *tamis_selection_name(tamis_selection_kind kind);

/* Checks against a page size. Errors: E_ARGUMENT if the budget is below the pages of sinks + recent
 * + one page, naming the numbers. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_selection_check(const tamis_selection *selection,
                                                              uint32_t page_size,
                                                              tamis_error *error);

#ifdef __cplusplus
}
#endif
#endif
