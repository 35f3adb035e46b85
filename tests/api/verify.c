/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that are verified where they take the places of tokens: what is refused, and until when. That they
 * get the bits of decode steps, and that those which do not stay leave nothing, is in mixed.c. */
#include "tests/api/evicting.h"
#include "tests/faulty.h"

#include <tamis/prefixes.h>

#define FIRST  1000u
#define BUDGET 24u
#define ROWS   3u

static tamis_plan_params plan_of_h2o(void) {
    return (tamis_plan_params){.max_sequences = 3,
                               .max_rows = 64,
                               .max_context = 128,
                               .max_selected_rows = 4,
                               .flags = TAMIS_PLAN_VERIFY,
                               .eviction = test_eviction(TAMIS_EVICT_H2O, BUDGET, 0)};
}

/* A sequence that has been evicted from, and whose lanes hold the budget. */
static void open_world(evict_world *e, tamis_sequence *id) {
    const tamis_cache_params shape = test_shape();
    const tamis_plan_params plan = plan_of_h2o();
    evict_open(e, &shape, &plan);
    *id = evict_add(e, FIRST, 40);
    OK(tamis_plan_evict(e->w.plan, *id, NULL, &test_error));
}

static tamis_step step_of(const tamis_sequence *ids, const uint32_t *rows, uint32_t n) {
    return (tamis_step){.sequences = ids, .rows = rows, .count = n};
}

static void verify(evict_world *e, tamis_sequence id) {
    const uint64_t tokens[ROWS] = {FIRST + 40, FIRST + 41, FIRST + 42};
    const uint32_t rows = ROWS;
    const tamis_step step = step_of(&id, &rows, 1);
    OK(evict_step(e, &step, tokens, NULL));
}

static void plans_are_checked(void **state) {
    const tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {.max_context = 64, .flags = TAMIS_PLAN_VERIFY};
    tamis_plan *refused = NULL;
    evict_world e;
    tamis_sequence id;
    (void)state;
    open_world(&e, &id);
    FAILS(tamis_plan_create(e.w.cache, &plan, &refused, &test_error), TAMIS_E_ARGUMENT,
          "TAMIS_PLAN_VERIFY under eviction none, which does not act within steps");
    evict_close(&e);
    plan = plan_of_h2o();
    plan.flags = 0;
    evict_open(&e, &shape, &plan);
    id = evict_add(&e, FIRST, 20);
    const uint32_t rows = 2;
    const tamis_step step = step_of(&id, &rows, 1);
    FAILS(test_step_begin(&e.w, &step), TAMIS_E_ARGUMENT,
          "brings one under eviction h2o, unless the plan has TAMIS_PLAN_VERIFY");
    evict_close(&e);
}

static void steps_are_checked(void **state) {
    const uint32_t many[2] = {ROWS, 1}, two[2] = {2, 2}, five = 5;
    const tamis_rows k = {0};
    evict_world e;
    tamis_sequence ids[2];
    (void)state;
    open_world(&e, &ids[0]);
    ids[1] = evict_add(&e, 2 * FIRST, 12);
    tamis_step step = step_of(ids, two, 2);
    FAILS(test_step_begin(&e.w, &step), TAMIS_E_ARGUMENT,
          "those with several rows count twice, exceed max_sequences 3");
    step = step_of(ids, &five, 1);
    FAILS(test_step_begin(&e.w, &step), TAMIS_E_ARGUMENT,
          "5 rows go through the selection, which exceed max_selected_rows 4");
    step = step_of(ids, many, 2);
    OK(test_step_begin(&e.w, &step));
    FAILS(tamis_plan_write(e.w.plan, 0, &k, &k, &test_error), TAMIS_E_STATE,
          "several rows of a sequence under h2o: its layers take tamis_plan_write_attend");
    OK(tamis_plan_step_cancel(e.w.plan, &test_error));
    evict_close(&e);
}

static void only_rows_may_be_chosen(void **state) {
    const char *why = "not known yet which of the last 3 rows of sequence";
    const uint32_t one = 1;
    evict_world e;
    tamis_sequence ids[2], fork;
    (void)state;
    open_world(&e, &ids[0]);
    ids[1] = evict_add(&e, 2 * FIRST, 12);
    verify(&e, ids[0]);
    const tamis_step same = step_of(ids, &one, 1), other = step_of(ids + 1, &one, 1);
    FAILS(tamis_plan_step_begin(e.w.plan, &same, &test_error), TAMIS_E_STATE, why);
    FAILS(tamis_plan_step_begin(e.w.plan, &other, &test_error), TAMIS_E_STATE, why);
    FAILS(tamis_cache_fork(e.w.cache, ids[0], &fork, &test_error), TAMIS_E_STATE, why);
    FAILS(tamis_plan_evict(e.w.plan, ids[0], NULL, &test_error), TAMIS_E_STATE, why);
    FAILS(tamis_plan_keep_path(e.w.plan, ids[0], ROWS, &test_error), TAMIS_E_ARGUMENT,
          "row 3 is not below the 3");
    OK(tamis_plan_keep_path(e.w.plan, ids[0], 1, &test_error));
    OK(test_step_begin(&e.w, &same));
    OK(tamis_plan_step_cancel(e.w.plan, &test_error));
    evict_close(&e);
}

/* Another plan does not know what the rows have replaced; with the sequence all that is kept for it goes. */
static void others_cannot_choose(void **state) {
    const tamis_plan_params params = plan_of_h2o();
    const uint32_t one = 1;
    tamis_plan *plan = NULL;
    evict_world e;
    tamis_sequence ids[2];
    (void)state;
    open_world(&e, &ids[0]);
    ids[1] = evict_add(&e, 2 * FIRST, 12);
    const uint64_t before = test_stats(&e.w).pages_held;
    OK(tamis_plan_create(e.w.cache, &params, &plan, &test_error));
    verify(&e, ids[0]);
    FAILS(tamis_plan_keep_path(plan, ids[0], 0, &test_error), TAMIS_E_STATE,
          "were those of a step of another plan");
    assert_true(test_stats(&e.w).pages_held > before);
    OK(tamis_cache_remove(e.w.cache, ids[0], &test_error));
    const tamis_step other = step_of(ids + 1, &one, 1);
    OK(test_step_begin(&e.w, &other));
    OK(tamis_plan_step_cancel(e.w.plan, &test_error));
    tamis_plan_destroy(&plan);
    evict_close(&e);
}

/* A step that is given up, after some layers or before any, leaves the sequence as it was. */
static void a_cancelled_step_leaves_nothing(void **state) {
    const uint64_t tokens[ROWS] = {FIRST + 40, FIRST + 41, FIRST + 42};
    const uint32_t rows = ROWS;
    (void)state;
    for (uint32_t layers = 0; layers <= 2; layers++) {
        evict_world e;
        tamis_sequence id;
        open_world(&e, &id);
        held before = evict_read(&e, id);
        const tms_past past = tms_history_give(tms_cache_find(e.w.cache, id));
        const tamis_step step = step_of(&id, &rows, 1);
        OK(test_step_begin(&e.w, &step));
        for (uint32_t layer = 0; layer < layers; layer++)
            evict_layer(&e, layer, tokens, ROWS, NULL);
        OK(tamis_plan_step_cancel(e.w.plan, &test_error));
        held after = evict_read(&e, id);
        held_same(&before, &after);
        evict_check_bounds(&e, id);
        const tms_past now = tms_history_give(tms_cache_find(e.w.cache, id));
        assert_int_equal(now.length, past.length);
        assert_int_equal(now.evicted_at, past.evicted_at);
        assert_int_equal(now.unordered, past.unordered);
        assert_int_equal(now.scored_to, past.scored_to);
        held_free(&before);
        held_free(&after);
        evict_close(&e);
    }
}

/* ---- Tables of the step, which undoing reads -------------------------------------------------- */

/* A sequence that was not in the step would take a row of the page tables from one that was. */
static void evictions_of_others_wait(void **state) {
    const tamis_cache_params shape = test_shape();
    tamis_plan_params plan = plan_of_h2o();
    evict_world e;
    (void)state;
    plan.max_sequences = 2; /* the sequence and its journal */
    evict_open(&e, &shape, &plan);
    const tamis_sequence id = evict_add(&e, FIRST, 40), other = evict_add(&e, 2 * FIRST, 40);
    OK(tamis_plan_evict(e.w.plan, id, NULL, &test_error));
    held before = evict_read(&e, id);
    verify(&e, id); /* takes both rows of the page tables */
    FAILS(tamis_plan_evict(e.w.plan, other, NULL, &test_error), TAMIS_E_STATE,
          "not known yet which of the last 3 rows of sequence");
    OK(tamis_plan_keep_path(e.w.plan, id, TAMIS_NO_ROW, &test_error));
    OK(tamis_plan_evict(e.w.plan, other, NULL, &test_error));
    held after = evict_read(&e, id);
    held_same(&before, &after);
    held_free(&before);
    held_free(&after);
    evict_close(&e);
}

/* A plan that has had rows of the sequence, or was asked for their pages, knows nothing of those of a
 * later step of another. */
static void plans_forget_what_is_settled(void **state) {
    const tamis_plan_params params = plan_of_h2o();
    tamis_step_pages pages;
    tamis_plan *second = NULL, *third = NULL;
    const uint32_t rows = ROWS;
    evict_world e;
    tamis_sequence id;
    (void)state;
    open_world(&e, &id);
    OK(tamis_plan_create(e.w.cache, &params, &second, &test_error));
    OK(tamis_plan_create(e.w.cache, &params, &third, &test_error));
    verify(&e, id);
    OK(tamis_plan_keep_path(e.w.plan, id, TAMIS_NO_ROW, &test_error));
    const tamis_step step = step_of(&id, &rows, 1);
    OK(tamis_plan_step_pages(third, &step, &pages, &test_error));
    tamis_plan *first = evict_swap_plan(&e, second);
    verify(&e, id);
    FAILS(tamis_plan_keep_path(first, id, 0, &test_error), TAMIS_E_STATE,
          "were those of a step of another plan");
    FAILS(tamis_plan_keep_path(third, id, 0, &test_error), TAMIS_E_STATE,
          "were those of a step of another plan");
    OK(tamis_plan_keep_path(second, id, 0, &test_error));
    evict_swap_plan(&e, first);
    tamis_plan_destroy(&second);
    tamis_plan_destroy(&third);
    evict_close(&e);
}

/* ---- Calls that fail -------------------------------------------------------------------------- */

/* Rows that are rotated on their way, and what they are rotated by. */
typedef struct turned {
    tamis_buffer *table, *positions;
} turned;

static turned open_turned(const evict_world *e) {
    const uint32_t dim = e->w.shape.head_dim;
    const int32_t positions[ROWS] = {40, 41, 42};
    double frequencies[64];
    turned t = {NULL, NULL};
    for (uint32_t i = 0; i < dim / 2; i++)
        frequencies[i] = 1.0 / (i + 1);
    OK(tamis_buffer_create(e->w.context, tamis_rotation_bytes(dim), &t.table, &test_error));
    OK(tamis_buffer_create(e->w.context, sizeof positions, &t.positions, &test_error));
    OK(tamis_buffer_write(t.positions, 0, positions, sizeof positions, &test_error));
    const tamis_rotation rotation = {.n_rot = dim, .table = {t.table, 0}};
    OK(tamis_rotation_write(&rotation, frequencies, &test_error));
    return t;
}

static tamis_status turned_layer(evict_world *e, const turned *t, uint32_t layer) {
    const uint64_t tokens[ROWS] = {FIRST + 40, FIRST + 41, FIRST + 42};
    const tamis_rotated_rows rows = {
        .q = {.buffer = e->w.q},
        .k = {.buffer = e->w.k},
        .v = {.buffer = e->w.v},
        .rotation = {.n_rot = e->w.shape.head_dim, .table = {t->table, 0}},
        .positions = {t->positions, 0}};
    const tamis_rows out = {.buffer = e->w.out};
    test_fill_kv(&e->w, layer, tokens, ROWS);
    evict_fill_queries(e, layer, tokens, ROWS);
    return tamis_plan_write_attend(e->w.plan, layer, &rows, &out, &test_error);
}

/* A step whose first layer fails once, at a call of the op `call`; if that is below 0, at none. */
static held turned_step(int call, int sound, float *outs) {
    const tamis_cache_params shape = test_shape();
    const uint32_t rows = ROWS;
    tamis_plan_params plan = plan_of_h2o();
    plan.eviction = test_eviction(TAMIS_EVICT_STREAMING, BUDGET, 0);
    evict_world e;
    evict_open(&e, &shape, &plan);
    const tamis_sequence id = evict_add(&e, FIRST, 40);
    OK(tamis_plan_evict(e.w.plan, id, NULL, &test_error));
    turned t = open_turned(&e);
    const tamis_step step = step_of(&id, &rows, 1);
    const uint64_t floats = evict_out_floats(&e, ROWS);
    OK(test_step_begin(&e.w, &step));
    for (uint32_t layer = 0; layer < shape.n_layers; layer++) {
        if (layer == 0 && call >= 0) {
            faulty_begin_one(e.w.context->dev, (faulty_call)call, sound);
            FAILS(turned_layer(&e, &t, layer), FAULTY_STATUS, FAULTY_TEXT);
            faulty_pause(e.w.context->dev);
        }
        OK(turned_layer(&e, &t, layer));
        OK(tamis_buffer_read(e.w.out, 0, outs + layer * floats, floats * sizeof *outs, NULL));
    }
    OK(tamis_plan_step_end(e.w.plan, &test_error));
    OK(tamis_plan_keep_path(e.w.plan, id, ROWS - 1, &test_error));
    held h = evict_read(&e, id);
    tamis_buffer_destroy(&t.table);
    tamis_buffer_destroy(&t.positions);
    evict_close(&e);
    return h;
}

/* The repeated call goes on behind the rows that were attended before, and rotates the others once. */
static void a_repeated_call_goes_on(void **state) {
    static const faulty_call calls[] = {FAULTY_attend, FAULTY_write_rotated, FAULTY_copy_slots,
                                        FAULTY_bounds};
    static float sound[2 * ROWS * 4 * 64], again[2 * ROWS * 4 * 64];
    (void)state;
    held wanted = turned_step(-1, 0, sound);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        for (int row = 0; row < (int)ROWS; row++) {
            held h = turned_step((int)calls[i], row, again);
            assert_memory_equal(again, sound, sizeof sound);
            held_same(&h, &wanted);
            held_free(&h);
        }
    held_free(&wanted);
}

/* Rows that may have been undone do not stay any more. */
static void a_choice_that_failed_is_not_widened(void **state) {
    evict_world e;
    tamis_sequence id;
    (void)state;
    open_world(&e, &id);
    held before = evict_read(&e, id);
    verify(&e, id);
    faulty_begin_one(e.w.context->dev, FAULTY_bounds, 1);
    FAILS(tamis_plan_keep_path(e.w.plan, id, 0, &test_error), FAULTY_STATUS, FAULTY_TEXT);
    faulty_pause(e.w.context->dev);
    FAILS(tamis_plan_keep_path(e.w.plan, id, 1, &test_error), TAMIS_E_STATE,
          "a call that failed was to keep 1 of the 3 rows of sequence");
    OK(tamis_plan_keep_path(e.w.plan, id, TAMIS_NO_ROW, &test_error));
    held after = evict_read(&e, id);
    held_same(&before, &after);
    evict_check_bounds(&e, id);
    held_free(&before);
    held_free(&after);
    evict_close(&e);
}

/* What could not be undone is of no use to anybody. */
static void what_is_lost_can_only_be_removed(void **state) {
    const tamis_cache_params shape = test_shape();
    const uint64_t tokens[ROWS] = {FIRST + 20, FIRST + 21, FIRST + 22};
    const int32_t text[20] = {1, 2, 3};
    const uint8_t salt[16] = {0};
    const char *why = "it can only be removed";
    const uint32_t rows = ROWS;
    tamis_plan_params plan = plan_of_h2o();
    tamis_prefixes *prefixes = NULL;
    tamis_sequence fork = 1;
    uint32_t shared = 1;
    evict_world e;
    (void)state;
    plan.eviction.every = 0; /* nothing is replaced: the sequence serves as a prefix */
    evict_open(&e, &shape, &plan);
    const tamis_sequence id = evict_add(&e, FIRST, 20);
    OK(tamis_prefixes_create(e.w.cache, &prefixes, &test_error));
    OK(tamis_prefixes_add(prefixes, id, text, 20, salt, &test_error));
    const tamis_step step = step_of(&id, &rows, 1);
    OK(test_step_begin(&e.w, &step));
    evict_layer(&e, 0, tokens, ROWS, NULL);
    faulty_begin_one(e.w.context->dev, FAULTY_fuse, 0);
    OK(tamis_plan_step_cancel(e.w.plan, &test_error));
    faulty_pause(e.w.context->dev);
    FAILS(test_step_begin(&e.w, &step), TAMIS_E_STATE, why);
    FAILS(tamis_plan_keep_path(e.w.plan, id, TAMIS_NO_ROW, &test_error), TAMIS_E_STATE, why);
    OK(tamis_prefixes_fork(prefixes, text, 20, salt, 0, &fork, &shared, &test_error));
    assert_int_equal(fork, 0);
    assert_int_equal(shared, 0);
    OK(tamis_cache_remove(e.w.cache, id, &test_error));
    assert_int_equal(test_stats(&e.w).pages_held, 0);
    tamis_prefixes_destroy(&prefixes);
    evict_close(&e);
}

/* Rows that are undone bring back what a cancelled decode step had left. */
static void a_step_that_was_given_up_is_still_to_be_repeated(void **state) {
    const uint64_t token = FIRST + 40;
    const char *why = "a step that was given up";
    evict_world e;
    tamis_sequence id;
    (void)state;
    open_world(&e, &id);
    const tamis_step one = step_of(&id, NULL, 1);
    OK(test_step_begin(&e.w, &one));
    evict_layer(&e, 0, &token, 1, NULL);
    OK(tamis_plan_step_cancel(e.w.plan, &test_error));
    FAILS(tamis_plan_evict(e.w.plan, id, NULL, &test_error), TAMIS_E_STATE, why);
    verify(&e, id);
    OK(tamis_plan_keep_path(e.w.plan, id, TAMIS_NO_ROW, &test_error));
    FAILS(tamis_plan_evict(e.w.plan, id, NULL, &test_error), TAMIS_E_STATE, why);
    verify(&e, id);
    OK(tamis_plan_keep_path(e.w.plan, id, 0, &test_error));
    OK(tamis_plan_evict(e.w.plan, id, NULL, &test_error));
    evict_close(&e);
}

/* Scores that another eviction has left are worth as much as behind decode steps. */
static void scores_of_others_are_known_as_before(void **state) {
    tamis_plan_params params = plan_of_h2o();
    tamis_plan *streaming = NULL;
    evict_world e;
    tamis_sequence id, fork;
    (void)state;
    params.eviction = test_eviction(TAMIS_EVICT_STREAMING, BUDGET, 0);
    open_world(&e, &id);
    OK(tamis_plan_create(e.w.cache, &params, &streaming, &test_error));
    OK(tamis_cache_fork(e.w.cache, id, &fork, &test_error));
    tamis_plan *h2o = evict_swap_plan(&e, streaming);
    evict_decode(&e, fork, FIRST + 40, 1, NULL);
    verify(&e, id);
    OK(tamis_plan_keep_path(e.w.plan, id, 0, &test_error));
    const tms_past verified = tms_history_give(tms_cache_find(e.w.cache, id)),
                   decoded = tms_history_give(tms_cache_find(e.w.cache, fork));
    assert_int_equal(decoded.scored_to, 40);
    assert_int_equal(verified.scored_to, decoded.scored_to);
    assert_int_equal(verified.scored_by, decoded.scored_by);
    evict_swap_plan(&e, h2o);
    tamis_plan_destroy(&streaming);
    evict_close(&e);
}

int main(int argc, char **argv) {
    const int cannot = test_begin(argc, argv);
    if (cannot) return cannot;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_are_checked),
        cmocka_unit_test(steps_are_checked),
        cmocka_unit_test(only_rows_may_be_chosen),
        cmocka_unit_test(others_cannot_choose),
        cmocka_unit_test(a_cancelled_step_leaves_nothing),
        cmocka_unit_test(evictions_of_others_wait),
        cmocka_unit_test(plans_forget_what_is_settled),
        cmocka_unit_test(a_repeated_call_goes_on),
        cmocka_unit_test(a_choice_that_failed_is_not_widened),
        cmocka_unit_test(what_is_lost_can_only_be_removed),
        cmocka_unit_test(a_step_that_was_given_up_is_still_to_be_repeated),
        cmocka_unit_test(scores_of_others_are_known_as_before)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
