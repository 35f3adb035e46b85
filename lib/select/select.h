/* SPDX-License-Identifier: Apache-2.0 */
/* A selection as the plan sees it: an entry of the table in selections.c. */
#ifndef TMS_SELECT_H
#define TMS_SELECT_H

#include "host/device.h"
#include <tamis/policy.h>

/* Where a page's score comes from. */
typedef enum tms_scoring {
    TMS_SCORE_NONE = 0,   /* no scores: the newest pages are taken */
    TMS_SCORE_BOUNDS = 1, /* score_pages */
    TMS_SCORE_MASS = 2,   /* page_mass */
    TMS_SCORE_RANDOM = 3  /* tms_selection_random_score, from the host */
} tms_scoring;

/* What a selection needs of the plan for a row of a layer that is not dense. */
typedef struct tms_reading {
    bool listed; /* false: every page is read, and the fields below are not used */
    bool given;  /* the caller makes the lists; only k is used below */
    tms_scoring scored;
    uint32_t k;             /* most pages of a list */
    uint32_t sinks, recent; /* tokens, protected in the list */
    tamis_group_rule group;
} tms_reading;

typedef struct tms_selection_entry {
    const char *name;
    tamis_selection_kind kind;
    tamis_selection defaults;
    /* Either may be NULL. Without check nothing is checked; without ask every page is read. */
    tamis_status (*check)(const tamis_selection *selection, uint32_t page_size, tamis_error *error);
    void (*ask)(const tamis_selection *selection, uint32_t page_size, tms_reading *out);
} tms_selection_entry;

/* Every selection as X(name), in the order in which they are told: tms_selection_<name>. */
#define TMS_SELECTIONS(X)                                                                          \
    X(full)                                                                                        \
    X(window)                                                                                      \
    X(quest)                                                                                       \
    X(oracle)                                                                                      \
    X(random)                                                                                      \
    X(caller)
#define TMS_DECLARE_SELECTION(name) extern const tms_selection_entry tms_selection_##name;
TMS_SELECTIONS(TMS_DECLARE_SELECTION)

/* The selection's budget in tokens; a budget of 0 means the default. */
#define TMS_DEFAULT_BUDGET 2048u
uint32_t tms_selection_budget(const tamis_selection *selection);

/* The rule for every selection with a budget: it must hold the pages of sinks and recent, wherever
 * in its page the newest token is, and one page more. */
tamis_status tms_selection_check_budget(const tamis_selection *selection, uint32_t page_size,
                                        tamis_error *error);
/* The same, and a known group rule: for selections that join scores over the group. */
tamis_status tms_selection_check_scored(const tamis_selection *selection, uint32_t page_size,
                                        tamis_error *error);

/* Fills in what every selection with a budget needs, and where its scores come from. */
void tms_selection_ask_lists(const tamis_selection *selection, uint32_t page_size,
                             tms_scoring scored, tms_reading *out);

/* The score of a page under the selection random, in [0, 1). It depends only on the arguments and
 * is the same on every machine. `position` is the row's. */
float tms_selection_random_score(uint64_t seed, uint32_t layer, uint32_t position, uint32_t kv_head,
                                 uint32_t ordinal);

/* The needs of a checked selection. */
void tms_selection_ask(const tamis_selection *selection, uint32_t page_size, tms_reading *out);

#endif
