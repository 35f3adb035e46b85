/* SPDX-License-Identifier: Apache-2.0 */
/* Trees: rows of one step and sequence of which several may stand behind one. The path to the first leaf
 * lies in the sequence itself. Each other leaf has a branch, which holds pages of its own from the first
 * page on that the step writes, and else reads the sequence's, until one path is chosen. */
#ifndef TMS_CACHE_BRANCHES_H
#define TMS_CACHE_BRANCHES_H

#include "lib/cache/cache.h"

/* Rows come depth first: a row stands behind the row before it, or behind one that that row stands
 * behind; so the rows of a branch that no earlier one has are adjacent. */
typedef struct tms_tree {
    uint32_t n_rows;     /* 0: no path is to be chosen */
    uint32_t length;     /* of the sequence before them */
    uint32_t n_branches; /* leaves */
    uint32_t *
        parent; /* [n_rows] row behind which each stands; TAMIS_NO_ROW: the sequence's last token */
    uint32_t *depth;         /* [n_rows] rows before it on its path */
    uint32_t *branch;        /* [n_rows] the first branch that has it */
    tms_sequence **branches; /* [n_branches]; the first is the sequence itself */
    uint32_t row_capacity, branch_capacity, n_made; /* n_made: of `branches`, with the first */
} tms_tree;

/* The sequence's tree, if a path is to be chosen; else NULL. */
static inline const tms_tree *tms_tree_of(const tms_sequence *sequence) {
    return sequence->tree && sequence->tree->n_rows ? sequence->tree : NULL;
}

/* Whether it has such a tree, or is one of its branches. */
static inline bool tms_in_tree(const tms_sequence *sequence) {
    return sequence->trunk || tms_tree_of(sequence);
}

/* Makes branches for rows that stand behind `parents`, [n_rows], of an idle sequence; none if each
 * stands behind the one before it. E_ARGUMENT, E_NO_MEMORY: then there are none. */
tamis_status tms_branches_begin(tamis_cache *cache, tms_sequence *sequence, const uint32_t *parents,
                                uint32_t n_rows, tamis_error *error);

/* What a branch brings to a step: its sequence, all rows of its path, and how many of these are rows of
 * earlier branches. The caller fills in the rest. */
tms_growth tms_branch_growth(const tms_tree *tree, uint32_t branch);

/* Keeps the first n_rows rows of a branch; the others' pages go back to the pool, and there is no tree any
 * more. */
void tms_branches_choose(tamis_cache *cache, tms_sequence *sequence, uint32_t branch,
                         uint32_t n_rows);

/* Removes the branches but the first, which stays as it is. Does nothing where there are none. */
void tms_branches_end(tamis_cache *cache, tms_sequence *sequence);

/* Frees the host's part; accepts NULL. */
void tms_tree_free(tms_tree *tree);

#endif
