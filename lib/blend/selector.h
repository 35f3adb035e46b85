/* SPDX-License-Identifier: Apache-2.0 */
/* A selector as a blend sees it: an entry of the table in selectors.c. */
#ifndef TMS_SELECTOR_H
#define TMS_SELECTOR_H

#include "lib/core/error.h"
#include <tamis/blend.h>

#define TMS_DEFAULT_SHARE 0.15

typedef struct tms_selector {
    const char *name;
    tamis_blend_selector kind;
    bool everything; /* all rows are computed, and nothing is loaded */
    /* It takes a share of the hits, those with the largest values: what was measured, `value`, or
     * what the question attends to. */
    bool measured;
    float (*value)(const tamis_blend_params *params, uint32_t row);
    bool asks; /* values are how much the question attends to the hits */
    /* Without a share: whether a hit is taken, by its row in the prompt and its place in its chunk.
     * NULL: none is. */
    bool (*takes)(const tamis_blend_params *params, uint32_t row, uint32_t place);
    /* May be NULL: nothing is checked. */
    tamis_status (*check)(const tamis_blend_params *params, tamis_error *error);
} tms_selector;

/* Every selector as X(name), in the order in which they are told: tms_selector_<name>. */
#define TMS_SELECTORS(X)                                                                           \
    X(hkvd)                                                                                        \
    X(question)                                                                                    \
    X(first)                                                                                       \
    X(random)                                                                                      \
    X(list)                                                                                        \
    X(all)                                                                                         \
    X(none)
#define TMS_DECLARE_SELECTOR(name) extern const tms_selector tms_selector_##name;
TMS_SELECTORS(TMS_DECLARE_SELECTOR)

/* NULL: there is none. */
const tms_selector *tms_selector_find(tamis_blend_selector kind);

/* Whether it takes a share. */
static inline bool tms_selector_shares(const tms_selector *selector) {
    return selector->measured || selector->value || selector->asks;
}

/* A hit and what the selector ranks it by. */
typedef struct tms_candidate {
    float value; /* no NaN */
    uint32_t row;
} tms_candidate;

/* Brings the k candidates with the largest values to the front, of equal ones the lower rows; these
 * then ascend by their rows. */
void tms_candidates_top(tms_candidate *candidates, uint32_t n, uint32_t k);

/* ceil(share * n), in double. */
uint32_t tms_share_of(double share, uint32_t n);

#endif
