/* SPDX-License-Identifier: Apache-2.0 */
/* Trees in the open step: which rows are copied to which branches. */
#include "lib/plan/trees.h"

static void place(void *room, const tms_step_size *size, uint64_t *end) {
    tms_trees *trees = room;
    (void)size;
    trees->from = tms_arena_place(end, trees->n);
    trees->to = tms_arena_place(end, trees->n);
    trees->slots = tms_arena_place(end, (uint64_t)trees->n * trees->setup->cache->n_lanes);
}

/* The rows that are copied to a branch; a journal gets none. */
static uint32_t copied(const tms_growth *growth) {
    return growth->shared < growth->rows ? growth->shared : 0;
}

/* From where the first rows of a branch are copied: `first` is the index of its tree's first branch in
 * the step. */
static void fill_from(const tms_step *step, uint32_t first, uint32_t branch, int32_t *from) {
    const tms_tree *tree = step->sequences[first]->tree;
    uint32_t row = 0;
    while (tree->branch[row] < branch)
        row++;
    for (uint32_t left = tree->depth[row]; left > 0; left--) {
        row = tree->parent[row];
        from[left - 1] = (int32_t)step->table_row[first + tree->branch[row]];
    }
}

/* The slots of a branch's first rows in a layer, which are the same in all branches. */
static int32_t *fill_slots(const tms_step *step, uint32_t layer, uint32_t index, int32_t *slots) {
    const tms_growth *growth = &step->growth[index];
    const uint32_t heads = step->setup->cache->params.n_kv_heads;
    const tms_lane *lanes = growth->sequence->lanes + layer * heads;
    for (uint32_t j = 0; j < copied(growth); j++)
        for (uint32_t h = 0; h < heads; h++)
            *slots++ = (int32_t)(lanes[h].length - growth->rows + j);
    return slots;
}

static void fill(void *room, const tms_step *step) {
    const tms_trees *trees = room;
    int32_t *host = step->tables.host, *slots = host + trees->slots;
    for (uint32_t i = 0, first = 0, at = 0; trees->n && i < step->n_sequences; i++) {
        if (!step->sequences[i]->trunk) first = i;
        const uint32_t n = copied(&step->growth[i]);
        if (n) fill_from(step, first, i - first, host + trees->from + at);
        for (uint32_t j = 0; j < n; j++)
            host[trees->to + at++] = (int32_t)step->table_row[i];
    }
    for (uint32_t layer = 0; layer < step->setup->cache->params.n_layers; layer++)
        for (uint32_t i = 0; trees->n && i < step->n_sequences; i++)
            slots = fill_slots(step, layer, i, slots);
}

void tms_trees_create(tms_trees *trees) {
    trees->n = trees->setup->params.flags & TAMIS_PLAN_TREES ? trees->setup->params.max_rows : 0;
}

tms_step_room tms_trees_room(tms_trees *trees) {
    return (tms_step_room){trees, place, fill};
}

void tms_trees_count(tms_trees *trees, const tms_growth *growth, uint32_t n_sequences) {
    trees->n = 0;
    for (uint32_t i = 0; i < n_sequences; i++)
        trees->n += copied(&growth[i]);
}

tms_copy_slots tms_trees_copies(const tms_trees *trees, const tms_step *step, uint32_t layer,
                                const tms_write_rows *write) {
    const uint64_t heads = trees->setup->cache->params.n_kv_heads;
    const tms_ref slots = tms_step_table(step, trees->slots + layer * trees->n * heads);
    tms_copy_slots copies = {.kv = write->kv,
                             .planes = write->planes,
                             .batch = write->batch,
                             .to_seq = tms_step_table(step, trees->to),
                             .from = slots,
                             .to = slots};
    copies.batch.n_rows = trees->n;
    copies.batch.row_seq = tms_step_table(step, trees->from);
    return copies;
}
