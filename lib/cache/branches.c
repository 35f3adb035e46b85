/* SPDX-License-Identifier: Apache-2.0 */
/* Branches of trees: making them, choosing a path, removing them. */
#include "lib/cache/cache.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- Rows ------------------------------------------------------------------------------------ */

/* Whether each row stands behind the one before it. */
static bool is_line(const uint32_t *parents, uint32_t n) {
    uint32_t row = 1;
    while (row < n && parents[row] == row - 1)
        row++;
    return parents[0] == TAMIS_NO_ROW && row >= n;
}

/* Rows that come depth first. */
static tamis_status check_rows(const tms_sequence *sequence, const uint32_t *parents, uint32_t n,
                               tamis_error *error) {
    TMS_REQUIRE(parents[0] == TAMIS_NO_ROW, TAMIS_E_ARGUMENT,
                "the first row of sequence %" PRIu64 " stands behind row %" PRIu32
                ", which comes after it; it stands behind none, TAMIS_NO_ROW",
                sequence->id, parents[0]);
    for (uint32_t row = 1; row < n; row++) {
        uint32_t before = row - 1;
        while (before != parents[row] && before != TAMIS_NO_ROW)
            before = parents[before];
        TMS_REQUIRE(before == parents[row], TAMIS_E_ARGUMENT,
                    "row %" PRIu32 " of sequence %" PRIu64 " stands behind row %" PRIu32
                    ", which is neither row %" PRIu32
                    " nor one that this stands behind: the rows of a "
                    "tree come depth first",
                    row, sequence->id, parents[row], row - 1);
    }
    return TAMIS_OK;
}

static void fill_rows(tms_tree *tree, const uint32_t *parents, uint32_t n) {
    tree->n_branches = 1;
    for (uint32_t row = 0; row < n; row++) {
        const uint32_t parent = parents[row];
        if (row > 0 && parent != row - 1) tree->n_branches++;
        tree->parent[row] = parent;
        tree->depth[row] = parent == TAMIS_NO_ROW ? 0 : tree->depth[parent] + 1;
        tree->branch[row] = tree->n_branches - 1;
    }
}

static uint32_t longest_path(const tms_tree *tree, uint32_t n) {
    uint32_t most = 0;
    for (uint32_t row = 0; row < n; row++)
        if (tree->depth[row] + 1 > most) most = tree->depth[row] + 1;
    return most;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static bool make_rows(tms_tree *tree, uint32_t n) {
    if (n <= tree->row_capacity) return true;
    uint32_t **all[] = {&tree->parent, &tree->depth, &tree->branch};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        uint32_t *grown = realloc(*all[i], n * sizeof *grown);
        if (!grown) return false;
        *all[i] = grown;
    }
    tree->row_capacity = n;
    return true;
}

static uint32_t longest_lane(const tamis_cache *cache, const tms_sequence *sequence) {
    uint32_t longest = 0;
    for (uint32_t lane = 0; lane < cache->n_lanes; lane++)
        if (sequence->lanes[lane].length > longest) longest = sequence->lanes[lane].length;
    return longest;
}

/* Branches have lists as long as the sequence's, whose pages may become its own. */
static bool make_branches(tamis_cache *cache, tms_tree *tree, tms_sequence *sequence) {
    const uint32_t n = tree->n_branches;
    if (n > tree->branch_capacity) {
        tms_sequence **grown = realloc(tree->branches, n * sizeof *grown);
        if (!grown) return false;
        tree->branches = grown;
        tree->branch_capacity = n;
    }
    tree->branches[0] = sequence;
    if (tree->n_made == 0) tree->n_made = 1;
    for (uint32_t i = 1; i < n; i++) {
        if (i < tree->n_made && tree->branches[i]->list_pages == sequence->list_pages) continue;
        tms_sequence *branch = tms_sequence_new(cache, sequence->list_pages);
        if (!branch) return false;
        if (i < tree->n_made)
            tms_sequence_free(tree->branches[i]);
        else
            tree->n_made++;
        tree->branches[i] = branch;
    }
    return true;
}

/* ---- Branches -------------------------------------------------------------------------------- */

/* From which ordinal on the lists of a branch are not those that it had last. */
static uint32_t changed_from(const tms_sequence *branch, const tms_sequence *sequence) {
    const uint32_t least = tms_changes_since(&sequence->changes, branch->branched);
    return least < branch->least_gone ? least : branch->least_gone;
}

/* A branch as it begins: the sequence, of which it holds the partial last page alone. */
static void begin_branch(tamis_cache *cache, tms_sequence *branch, tms_sequence *sequence) {
    tms_changes_note(&branch->changes, changed_from(branch, sequence));
    branch->branched = tms_changes_see(&sequence->changes);
    branch->least_gone = UINT32_MAX;
    branch->trunk = sequence;
    branch->length = sequence->length;
    memcpy(branch->lanes, sequence->lanes, cache->n_lanes * sizeof *branch->lanes);
    tms_history_fork(branch, sequence);
    for (uint32_t lane = 0; lane < cache->n_lanes; lane++) {
        const uint32_t length = sequence->lanes[lane].length,
                       full = length / cache->params.page_size;
        branch->lanes[lane].gone = full;
        if (full < branch->least_gone) branch->least_gone = full;
        if (tms_pages_of(cache, length) == full) continue;
        const int32_t page = tms_lane_pages(sequence, lane)[full];
        tms_lane_pages(branch, lane)[full] = page;
        tms_pages_hold(&tms_cache_pool(cache, lane / cache->params.n_kv_heads)->pages, page);
    }
}

tamis_status tms_branches_begin(tamis_cache *cache, tms_sequence *sequence, const uint32_t *parents,
                                uint32_t n_rows, tamis_error *error) {
    if (is_line(parents, n_rows)) return TAMIS_OK;
    TMS_TRY(check_rows(sequence, parents, n_rows, error));
    if (!sequence->tree) sequence->tree = calloc(1, sizeof *sequence->tree);
    tms_tree *tree = sequence->tree;
    bool made = tree && make_rows(tree, n_rows);
    if (made) {
        fill_rows(tree, parents, n_rows);
        made = tms_sequence_make_room(cache, sequence,
                                      longest_lane(cache, sequence) + longest_path(tree, n_rows)) &&
               make_branches(cache, tree, sequence);
    }
    TMS_REQUIRE(made, TAMIS_E_NO_MEMORY,
                "no host memory for a tree of %" PRIu32 " rows of sequence %" PRIu64, n_rows,
                sequence->id);
    tree->n_rows = n_rows;
    tree->length = sequence->length;
    for (uint32_t i = 1; i < tree->n_branches; i++)
        begin_branch(cache, tree->branches[i], sequence);
    return TAMIS_OK;
}

tms_growth tms_branch_growth(const tms_tree *tree, uint32_t branch) {
    uint32_t first = 0, end = 0;
    while (tree->branch[first] < branch)
        first++;
    for (end = first; end < tree->n_rows && tree->branch[end] == branch;)
        end++;
    return (tms_growth){.sequence = tree->branches[branch],
                        .rows = tree->depth[end - 1] + 1,
                        .shared = tree->depth[first]};
}

/* The rows behind those that the sequence had before the tree become those of a branch, whose pages it
 * takes. */
static void take_over(tamis_cache *cache, tms_sequence *sequence, tms_sequence *branch) {
    for (uint32_t lane = 0; lane < cache->n_lanes; lane++) {
        const uint32_t first = branch->lanes[lane].gone, length = branch->lanes[lane].length;
        int32_t *to = tms_lane_pages(sequence, lane), *from = tms_lane_pages(branch, lane);
        tms_lane_shorten(cache, sequence, lane,
                         sequence->lanes[lane].length - first * cache->params.page_size);
        for (uint32_t o = first; o < tms_pages_of(cache, length); o++)
            to[o] = from[o];
        tms_changes_note(&sequence->changes, first);
        sequence->lanes[lane].length = length;
        branch->lanes[lane].length = first * cache->params.page_size; /* it holds no page now */
    }
    sequence->length = branch->length;
    sequence->scored_by = branch->scored_by;
    sequence->scored_newest = branch->scored_newest;
    sequence->scored_to = branch->scored_to;
}

void tms_branches_choose(tamis_cache *cache, tms_sequence *sequence, uint32_t branch,
                         uint32_t n_rows) {
    tms_tree *tree = sequence->tree;
    const uint32_t before = tree->length;
    if (branch > 0) {
        tms_history_cut(sequence, before);
        take_over(cache, sequence, tree->branches[branch]);
    }
    tms_sequence_shorten(cache, sequence, before + n_rows);
    tms_branches_end(cache, sequence);
}

void tms_branches_end(tamis_cache *cache, tms_sequence *sequence) {
    tms_tree *tree = sequence->tree;
    for (uint32_t i = 1; tree && tree->n_rows && i < tree->n_branches; i++)
        for (uint32_t lane = 0; lane < cache->n_lanes; lane++)
            tms_lane_shorten(cache, tree->branches[i], lane, tree->branches[i]->lanes[lane].length);
    if (tree) tree->n_rows = 0;
}
