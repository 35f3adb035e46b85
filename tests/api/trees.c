/* SPDX-License-Identifier: Apache-2.0 */
/* Trees of rows: what is refused, what may be called until a path is chosen, and that no page and no
 * token of others is lost. That their rows get the bits of their paths is in mixed.c. */
#include "tests/api/evicting.h"

#define FIRST  1000u
#define LENGTH 21u /* of the sequence before the tree: its last page is a partial one */
#define ROWS   6u
#define NONE   TAMIS_NO_ROW

/* Paths 0 1 2, 0 1 3, 0 4, 5. */
static const uint32_t parents[ROWS] = {NONE, 0, 1, 1, 0, NONE};
static const uint64_t tokens[ROWS] = {FIRST + 21,
                                      FIRST + 22,
                                      FIRST + 23,
                                      1ull << 32 | (FIRST + 23),
                                      1ull << 32 | (FIRST + 22),
                                      1ull << 32 | (FIRST + 21)};

static const tamis_plan_params plan_of_trees = {.max_sequences = 6,
                                                .max_rows = 32,
                                                .max_context = 64,
                                                .flags = TAMIS_PLAN_TREES,
                                                .max_selected_rows = ROWS};

static void open_world(evict_world *e, tamis_sequence *id) {
    tamis_cache_params shape = test_shape();
    shape.capacity_tokens = 136;
    evict_open(e, &shape, &plan_of_trees);
    *id = evict_add(e, FIRST, LENGTH);
}

static tamis_step step_of(const tamis_sequence *id, const uint32_t *rows, const uint32_t *behind) {
    return (tamis_step){.sequences = id, .rows = rows, .count = 1, .parents = behind};
}

static void grow_tree(evict_world *e, tamis_sequence id) {
    const uint32_t rows = ROWS;
    const tamis_step step = step_of(&id, &rows, parents);
    OK(evict_step(e, &step, tokens, NULL));
}

static void keep(evict_world *e, tamis_sequence id, uint32_t row) {
    OK(tamis_plan_keep_path(e->w.plan, id, row, &test_error));
}

static uint32_t length_of(const evict_world *e, tamis_sequence id) {
    uint32_t length = 0;
    OK(tamis_cache_length(e->w.cache, id, &length, NULL, &test_error));
    return length;
}

/* ---- What is refused ------------------------------------------------------------------------- */

static void plans_are_refused(void **state) {
    static const struct {
        tamis_eviction_kind kind;
        uint32_t options, flags;
        const char *why;
    } cases[] = {
        {TAMIS_EVICT_H2O, 0, 0, "TAMIS_PLAN_TREES under eviction h2o with every 1"},
        {TAMIS_EVICT_TOVA, 0, 0, "TAMIS_PLAN_TREES under eviction tova with every 1"},
        {TAMIS_EVICT_STREAMING, 0, 0, "TAMIS_PLAN_TREES under eviction streaming with every 1"},
        {TAMIS_EVICT_KNORM, 0, 0, "TAMIS_PLAN_TREES under eviction knorm with every 1"},
        {TAMIS_EVICT_NONE, 0, TAMIS_PLAN_FIXED_LAUNCHES,
         "TAMIS_PLAN_TREES with TAMIS_PLAN_FIXED_LAUNCHES"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tamis_cache_params shape = test_shape();
        tamis_plan_params plan = plan_of_trees;
        tamis_plan *refused = NULL;
        evict_world e;
        if (cases[i].kind) plan.eviction = test_eviction(cases[i].kind, 24, cases[i].options);
        plan.flags = 0;
        evict_open(&e, &shape, &plan);
        plan.flags = TAMIS_PLAN_TREES | cases[i].flags;
        FAILS(tamis_plan_create(e.w.cache, &plan, &refused, &test_error), TAMIS_E_UNSUPPORTED,
              cases[i].why);
        plan.flags = TAMIS_PLAN_TREES;
        plan.eviction.every = 4; /* of h2o and tova each step still feeds scores */
        if (cases[i].kind == TAMIS_EVICT_H2O || cases[i].kind == TAMIS_EVICT_TOVA)
            FAILS(tamis_plan_create(e.w.cache, &plan, &refused, &test_error), TAMIS_E_UNSUPPORTED,
                  "the weights of rows go to the scores");
        evict_close(&e);
    }
}

static void steps_are_refused(void **state) {
    static const uint32_t later[3] = {1, 0, 1}, across[4] = {NONE, 0, 0, 1},
                          star[ROWS + 1] = {NONE, NONE, NONE, NONE, NONE, NONE, NONE};
    const uint32_t three = 3, four = 4, six = ROWS, seven = ROWS + 1;
    evict_world e;
    tamis_sequence id;
    (void)state;
    open_world(&e, &id);
    const tamis_step first = step_of(&id, &three, later), other = step_of(&id, &four, across),
                     wide = step_of(&id, &seven, star), tree = step_of(&id, &six, parents);
    FAILS(test_step_begin(&e.w, &first), TAMIS_E_ARGUMENT,
          "stands behind row 1, which comes after");
    FAILS(test_step_begin(&e.w, &other), TAMIS_E_ARGUMENT,
          "stands behind row 1, which is neither row 2 nor one that this stands behind");
    FAILS(test_step_begin(&e.w, &wide), TAMIS_E_ARGUMENT, "more branches than max_sequences 6");
    tamis_plan_params params = plan_of_trees;
    tamis_plan *plan = NULL, *own = e.w.plan;
    params.max_rows = 8; /* the tree's paths have 3 + 3 + 2 + 1 */
    OK(tamis_plan_create(e.w.cache, &params, &plan, &test_error));
    e.w.plan = plan;
    FAILS(test_step_begin(&e.w, &tree), TAMIS_E_ARGUMENT, "bring 9 rows, which exceed max_rows 8");
    tamis_plan_destroy(&plan);
    params.flags = 0;
    OK(tamis_plan_create(e.w.cache, &params, &plan, &test_error));
    e.w.plan = plan;
    FAILS(test_step_begin(&e.w, &tree), TAMIS_E_STATE, "made without TAMIS_PLAN_TREES");
    tamis_plan_destroy(&plan);
    e.w.plan = own;
    evict_close(&e);
}

/* What a step of loaded or left out rows is, no tree is. */
static void rows_are_neither_loaded_nor_left_out(void **state) {
    const uint32_t rows = ROWS, some[2] = {0, 5};
    evict_world e;
    tamis_sequence id;
    (void)state;
    open_world(&e, &id);
    tamis_step step = step_of(&id, &rows, parents);
    step.exact = 1;
    OK(test_step_begin(&e.w, &step));
    FAILS(tamis_plan_step_keep_rows(e.w.plan, some, 2, &test_error), TAMIS_E_STATE,
          "are a tree, of which none is left out or loaded");
    OK(tamis_plan_step_cancel(e.w.plan, &test_error));
    assert_int_equal(length_of(&e, id), LENGTH);
    evict_close(&e);
}

/* ---- Until a path is chosen ------------------------------------------------------------------ */

static void only_a_path_may_be_chosen(void **state) {
    const char *why = "has a tree of 6 rows: tamis_plan_keep_path";
    const uint32_t one = 1;
    evict_world e;
    tamis_sequence id, fork;
    (void)state;
    open_world(&e, &id);
    grow_tree(&e, id);
    const tamis_step next = step_of(&id, &one, NULL);
    FAILS(test_step_begin(&e.w, &next), TAMIS_E_STATE, why);
    FAILS(tamis_cache_fork(e.w.cache, id, &fork, &test_error), TAMIS_E_STATE, why);
    FAILS(tamis_cache_truncate(e.w.cache, id, 3, &test_error), TAMIS_E_STATE, why);
    FAILS(tamis_plan_keep_path(e.w.plan, id, ROWS, &test_error), TAMIS_E_ARGUMENT,
          "row 6 is not below the 6");
    keep(&e, id, 3);
    assert_int_equal(length_of(&e, id), LENGTH + 3);
    FAILS(tamis_plan_keep_path(e.w.plan, id, 3, &test_error), TAMIS_E_ARGUMENT,
          "row 3 is not below the 3");
    evict_close(&e);
}

/* Each path holds its own tokens, and a fork that shares the partial page keeps its own. */
static void paths_hold_their_tokens(void **state) {
    static const uint32_t depths[ROWS] = {1, 2, 3, 3, 2, 1};
    (void)state;
    for (uint32_t row = 0; row <= ROWS; row++) {
        evict_world e;
        tamis_sequence id, fork;
        uint64_t path[LENGTH + 3];
        uint32_t n = row == ROWS ? 0 : depths[row];
        open_world(&e, &id);
        OK(tamis_cache_fork(e.w.cache, id, &fork, &test_error));
        grow_tree(&e, id);
        keep(&e, id, row == ROWS ? NONE : row);
        for (uint32_t i = 0; i < LENGTH; i++)
            path[i] = FIRST + i;
        for (uint32_t r = row, i = n; i > 0; r = parents[r])
            path[LENGTH + --i] = tokens[r];
        assert_int_equal(length_of(&e, id), LENGTH + n);
        for (uint32_t layer = 0; layer < e.w.shape.n_layers; layer++)
            for (uint32_t h = 0; h < e.w.shape.n_kv_heads; h++) {
                test_expect(&e.w, id, layer, h, 0, path, LENGTH + n);
                test_expect(&e.w, fork, layer, h, 0, path, LENGTH);
            }
        evict_check_bounds(&e, id);
        evict_close(&e);
    }
}

/* Bounds that are computed anew while a tree is there are computed for its branches, too. */
static void bounds_of_branches_are_renewed(void **state) {
    const tamis_bounds means = {.kind = TAMIS_BOUNDS_MEAN};
    const uint32_t rows = 13;
    uint32_t behind[13];
    uint64_t more[13];
    evict_world e;
    tamis_sequence id;
    (void)state;
    for (uint32_t i = 0; i < rows; i++) {
        behind[i] = i == 1 ? NONE : i - 1; /* the second branch fills a page */
        more[i] = i ? FIRST + LENGTH + i - 1 : 1ull << 32;
    }
    open_world(&e, &id);
    const tamis_step step = step_of(&id, &rows, behind);
    tamis_plan_params params = plan_of_trees;
    tamis_plan *plan = NULL, *own = e.w.plan;
    params.max_selected_rows = rows;
    OK(tamis_plan_create(e.w.cache, &params, &plan, &test_error));
    e.w.plan = plan;
    OK(evict_step(&e, &step, more, NULL));
    OK(tamis_cache_set_bounds(e.w.cache, &means, &test_error));
    keep(&e, id, rows - 1);
    assert_int_equal(length_of(&e, id), LENGTH + rows - 1);
    evict_check_bounds(&e, id);
    tamis_plan_destroy(&plan);
    e.w.plan = own;
    evict_close(&e);
}

static void sequences_go_with_their_trees(void **state) {
    evict_world e;
    tamis_sequence id;
    (void)state;
    open_world(&e, &id);
    grow_tree(&e, id);
    OK(tamis_cache_remove(e.w.cache, id, &test_error));
    assert_int_equal(test_stats(&e.w).pages_held, 0);
    id = evict_add(&e, FIRST, LENGTH);
    grow_tree(&e, id); /* the cache is destroyed with it */
    evict_close(&e);
}

/* What rows have read is known until the next step, also when their sequence is gone. */
static void lists_outlive_their_sequence(void **state) {
    const tamis_cache_params shape = test_shape();
    tamis_plan_params plan = plan_of_trees;
    uint32_t pages[8], n = 0;
    evict_world e;
    (void)state;
    tamis_selection_default(TAMIS_SELECT_QUEST, &plan.selection);
    plan.selection.budget = 16;
    plan.selection.sinks = plan.selection.recent = plan.selection.dense_layers = 0;
    evict_open(&e, &shape, &plan);
    const tamis_sequence id = evict_add(&e, FIRST, LENGTH);
    grow_tree(&e, id);
    OK(tamis_cache_remove(e.w.cache, id, &test_error));
    OK(tamis_plan_read_selected(e.w.plan, ROWS - 1, 1, pages, 8, &n, &test_error));
    assert_int_equal(n, 2);
    assert_int_equal(pages[1], LENGTH / shape.page_size); /* its own */
    evict_close(&e);
}

/* ---- Full caches ----------------------------------------------------------------------------- */

static void a_step_that_does_not_fit_changes_nothing(void **state) {
    const uint32_t rows = ROWS;
    evict_world e;
    tamis_sequence id, other;
    (void)state;
    open_world(&e, &id);
    other = evict_add(&e, 2 * FIRST, 32); /* leaves pages for some of the branches alone */
    const tamis_sequence third = evict_add(&e, 3 * FIRST, 32);
    const tamis_sequence fourth = evict_add(&e, 4 * FIRST, 32);
    const tamis_step step = step_of(&id, &rows, parents);
    const tamis_cache_stats before = test_stats(&e.w);
    FAILS(test_step_begin(&e.w, &step), TAMIS_E_FULL, "pages");
    test_unchanged(&e.w, &before);
    OK(tamis_cache_remove(e.w.cache, other, &test_error));
    OK(tamis_cache_remove(e.w.cache, third, &test_error));
    OK(tamis_cache_remove(e.w.cache, fourth, &test_error));
    grow_tree(&e, id);
    keep(&e, id, 4);
    evict_close(&e);
}

int main(int argc, char **argv) {
    const int cannot = test_begin(argc, argv);
    if (cannot) return cannot;
    const struct CMUnitTest tests[] = {cmocka_unit_test(plans_are_refused),
                                       cmocka_unit_test(steps_are_refused),
                                       cmocka_unit_test(rows_are_neither_loaded_nor_left_out),
                                       cmocka_unit_test(only_a_path_may_be_chosen),
                                       cmocka_unit_test(paths_hold_their_tokens),
                                       cmocka_unit_test(bounds_of_branches_are_renewed),
                                       cmocka_unit_test(sequences_go_with_their_trees),
                                       cmocka_unit_test(lists_outlive_their_sequence),
                                       cmocka_unit_test(a_step_that_does_not_fit_changes_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
