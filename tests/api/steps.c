/* SPDX-License-Identifier: Apache-2.0 */
/* Steps: their states and bad arguments, running out of pages, copy on write, cancelling. */
#include "host/backend.h"
#include "lib/core/core.h"
#include "tests/api/fixture.h"

#include <math.h>
#include <string.h>

static uint64_t tokens[512];

static void open_world(test_world *w, uint64_t capacity_tokens) {
    tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {.max_sequences = 2, .max_rows = 64, .max_context = 128};
    shape.capacity_tokens = capacity_tokens;
    test_open(w, &shape, &plan);
    for (uint32_t i = 0; i < 512; i++)
        tokens[i] = 1000 + i;
}

static tamis_sequence add(test_world *w) {
    tamis_sequence id;
    OK(tamis_cache_add(w->cache, &id, &test_error));
    return id;
}

static void expect_all(test_world *w, tamis_sequence id, const uint64_t *wanted, uint32_t count) {
    for (uint32_t lane = 0; lane < 4; lane++)
        test_expect(w, id, lane / 2, lane % 2, 0, wanted, count);
}

static void begin_refuses_bad_steps(void **state) {
    (void)state;
    test_world w;
    open_world(&w, 256);
    tamis_sequence ids[] = {add(&w), add(&w), add(&w)}, twice[] = {ids[0], ids[0]};
    tamis_sequence gone[] = {ids[0], 12345};
    uint32_t rows[] = {1, 0}, many[] = {40, 30};
    tamis_step step = {.count = 1};
    tamis_cache_stats before = test_stats(&w);
    FAILS(tamis_plan_step_begin(NULL, &step, &test_error), TAMIS_E_ARGUMENT, "plan");
    FAILS(tamis_plan_step_begin(w.plan, NULL, &test_error), TAMIS_E_ARGUMENT, "step");
    FAILS(tamis_plan_step_begin(w.plan, &step, &test_error), TAMIS_E_ARGUMENT, "sequences is NULL");
    step.sequences = ids;
    step.count = 0;
    FAILS(tamis_plan_step_begin(w.plan, &step, &test_error), TAMIS_E_ARGUMENT, "no sequences");
    step.count = 3;
    FAILS(tamis_plan_step_begin(w.plan, &step, &test_error), TAMIS_E_ARGUMENT,
          "3 sequences exceed max_sequences 2");
    step.count = 2;
    step.rows = rows;
    FAILS(tamis_plan_step_begin(w.plan, &step, &test_error), TAMIS_E_ARGUMENT, "no rows");
    step.rows = many;
    FAILS(tamis_plan_step_begin(w.plan, &step, &test_error), TAMIS_E_ARGUMENT,
          "70 rows, which exceed max_rows 64");
    step.rows = NULL;
    step.sequences = twice;
    FAILS(tamis_plan_step_begin(w.plan, &step, &test_error), TAMIS_E_ARGUMENT, "twice");
    step.sequences = gone;
    FAILS(tamis_plan_step_begin(w.plan, &step, &test_error), TAMIS_E_ARGUMENT, "12345");
    step = (tamis_step){.sequences = ids, .rows = many, .count = 1};
    many[0] = 64;
    OK(test_step(&w, &step, tokens));
    many[0] = 60;
    OK(test_step(&w, &step, tokens + 64));
    many[0] = 5;
    FAILS(tamis_plan_step_begin(w.plan, &step, &test_error), TAMIS_E_ARGUMENT,
          "5 rows after the 124 tokens");
    OK(tamis_cache_truncate(w.cache, ids[0], 0, &test_error));
    test_unchanged(&w, &before);
    test_close(&w);
}

static void test_write_arguments(test_world *w) {
    tamis_rows k = {.buffer = w->k}, v = {.buffer = w->v}, bad = k;
    FAILS(tamis_plan_write(NULL, 0, &k, &v, &test_error), TAMIS_E_ARGUMENT, "plan");
    FAILS(tamis_plan_write(w->plan, 2, &k, &v, &test_error), TAMIS_E_ARGUMENT, "layer 2");
    FAILS(tamis_plan_write(w->plan, 0, NULL, &v, &test_error), TAMIS_E_ARGUMENT, "k");
    FAILS(tamis_plan_write(w->plan, 0, &k, NULL, &test_error), TAMIS_E_ARGUMENT, "v");
    bad.dtype = TAMIS_F16;
    FAILS(tamis_plan_write(w->plan, 0, &k, &bad, &test_error), TAMIS_E_ARGUMENT, "v is f16");
    FAILS(tamis_plan_write(w->plan, 0, &bad, &bad, &test_error), TAMIS_E_ARGUMENT, "are f16");
    bad = (tamis_rows){.buffer = w->k, .offset = 4};
    FAILS(tamis_plan_write(w->plan, 0, &bad, &v, &test_error), TAMIS_E_ARGUMENT, "offset 4");
    bad = (tamis_rows){.buffer = w->k, .row_stride = 64};
    FAILS(tamis_plan_write(w->plan, 0, &bad, &v, &test_error), TAMIS_E_ARGUMENT, "stride 64");
    bad = (tamis_rows){.buffer = w->k, .offset = tamis_buffer_bytes(w->k)};
    FAILS(tamis_plan_write(w->plan, 0, &bad, &v, &test_error), TAMIS_E_ARGUMENT, "past");
}

static void test_attend_arguments(test_world *w) {
    tamis_rows q = {.buffer = w->q}, out = {.buffer = w->out}, half = {.buffer = w->k};
    half.dtype = TAMIS_F16;
    FAILS(tamis_plan_attend(NULL, 0, &q, &out, &test_error), TAMIS_E_ARGUMENT, "plan");
    FAILS(tamis_plan_attend(w->plan, 9, &q, &out, &test_error), TAMIS_E_ARGUMENT, "layer 9");
    FAILS(tamis_plan_attend(w->plan, 0, NULL, &out, &test_error), TAMIS_E_ARGUMENT, "q");
    FAILS(tamis_plan_attend(w->plan, 0, &q, NULL, &test_error), TAMIS_E_ARGUMENT, "out");
    FAILS(tamis_plan_attend(w->plan, 0, &half, &out, &test_error), TAMIS_E_ARGUMENT, "q is f16");
    FAILS(tamis_plan_attend(w->plan, 0, &q, &half, &test_error), TAMIS_E_ARGUMENT, "out is f16");
    FAILS(tamis_plan_attend(w->plan, 0, &q, &q, &test_error), TAMIS_E_ARGUMENT, "overlap");
    out = (tamis_rows){.buffer = w->q, .offset = 1024 - 64}; /* a row has 1024 bytes */
    FAILS(tamis_plan_attend(w->plan, 0, &q, &out, &test_error), TAMIS_E_ARGUMENT,
          "bytes 0 to 1023 and 960 to 1983");
    FAILS(tamis_plan_attend(w->plan, 0, &out, &q, &test_error), TAMIS_E_ARGUMENT, "overlap");
    out.offset = 1024;
    OK(tamis_plan_attend(w->plan, 0, &q, &out, &test_error));
    OK(tamis_plan_attend(w->plan, 0, &out, &q, &test_error));
}

static void test_read_selected(test_world *w) {
    uint32_t pages[4] = {9, 9, 9, 9}, count = 0;
    FAILS(tamis_plan_read_selected(NULL, 0, 0, pages, 4, &count, &test_error), TAMIS_E_ARGUMENT,
          "plan");
    FAILS(tamis_plan_read_selected(w->plan, 0, 0, pages, 4, NULL, &test_error), TAMIS_E_ARGUMENT,
          "count");
    FAILS(tamis_plan_read_selected(w->plan, 0, 0, NULL, 4, &count, &test_error), TAMIS_E_ARGUMENT,
          "pages");
    FAILS(tamis_plan_read_selected(w->plan, 1, 0, pages, 4, &count, &test_error), TAMIS_E_ARGUMENT,
          "row 1");
    FAILS(tamis_plan_read_selected(w->plan, 0, 2, pages, 4, &count, &test_error), TAMIS_E_ARGUMENT,
          "kv_head 2");
    OK(tamis_plan_read_selected(w->plan, 0, 1, pages, 2, &count, &test_error));
    assert_true(count == 3 && pages[0] == 0 && pages[1] == 1 && pages[2] == 9);
    OK(tamis_plan_read_selected(w->plan, 0, 1, NULL, 0, &count, &test_error));
    assert_int_equal(count, 3);
}

static void calls_out_of_order_are_refused(void **state) {
    (void)state;
    test_world w;
    tamis_plan *other = NULL;
    tamis_plan_params params = {.max_context = 128, .max_rows = 16};
    uint32_t count;
    open_world(&w, 256);
    OK(tamis_plan_create(w.cache, &params, &other, &test_error));
    tamis_sequence id = add(&w), free_one = add(&w), forked;
    tamis_rows k = {.buffer = w.k}, v = {.buffer = w.v}, q = {.buffer = w.q},
               out = {.buffer = w.out};
    tamis_step step = {.sequences = &id, .count = 1};
    OK(test_append(&w, id, tokens, 16));
    FAILS(tamis_plan_write(w.plan, 0, &k, &v, &test_error), TAMIS_E_STATE, "no open step");
    FAILS(tamis_plan_attend(w.plan, 0, &q, &out, &test_error), TAMIS_E_STATE, "no open step");
    FAILS(tamis_plan_step_end(w.plan, &test_error), TAMIS_E_STATE, "no open step");
    FAILS(tamis_plan_step_cancel(w.plan, &test_error), TAMIS_E_STATE, "no open step");
    FAILS(tamis_plan_step_end(NULL, &test_error), TAMIS_E_ARGUMENT, "plan");
    FAILS(tamis_plan_step_cancel(NULL, &test_error), TAMIS_E_ARGUMENT, "plan");
    OK(tamis_plan_step_begin(w.plan, &step, &test_error));
    FAILS(tamis_plan_step_begin(w.plan, &step, &test_error), TAMIS_E_STATE, "open");
    FAILS(tamis_plan_step_begin(other, &step, &test_error), TAMIS_E_STATE, "open");
    FAILS(tamis_cache_fork(w.cache, id, &forked, &test_error), TAMIS_E_STATE, "open step");
    FAILS(tamis_cache_truncate(w.cache, id, 0, &test_error), TAMIS_E_STATE, "open step");
    FAILS(tamis_cache_remove(w.cache, id, &test_error), TAMIS_E_STATE, "open step");
    FAILS(tamis_cache_read(w.cache, id, 0, 0, 0, 1, NULL, NULL, &test_error), TAMIS_E_STATE,
          "open step");
    FAILS(tamis_cache_read_positions(w.cache, id, 0, 0, 0, 0, NULL, &test_error), TAMIS_E_STATE,
          "open step");
    tamis_sequence_stats one;
    OK(tamis_cache_get_sequence_stats(w.cache, id, &one, NULL));
    assert_int_equal(test_length(w.cache, id), 17);
    assert_int_equal(one.slots, 4 * 17);
    OK(tamis_cache_remove(w.cache, free_one, &test_error));
    FAILS(tamis_plan_attend(w.plan, 0, &q, &out, &test_error), TAMIS_E_STATE, "not been written");
    FAILS(tamis_plan_read_selected(w.plan, 0, 0, NULL, 0, &count, &test_error), TAMIS_E_STATE,
          "attended");
    test_write_arguments(&w);
    test_write(&w, 0, tokens + 16, 1);
    FAILS(tamis_plan_write(w.plan, 0, &k, &v, &test_error), TAMIS_E_STATE, "already");
    test_attend_arguments(&w);
    OK(tamis_plan_attend(w.plan, 0, &q, &out, &test_error));
    test_read_selected(&w);
    FAILS(tamis_plan_step_end(w.plan, &test_error), TAMIS_E_STATE, "layer 1 has not been written");
    test_write(&w, 1, tokens + 16, 1);
    OK(tamis_plan_step_end(w.plan, &test_error));
    expect_all(&w, id, tokens, 17);
    tamis_plan_destroy(&other);
    test_close(&w);
}

/* Rows that go through a selection have a limit of their own; exact steps do not count against it.
 */
static void selected_rows_have_a_limit_of_their_own(void **state) {
    (void)state;
    test_world w;
    tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {.selection = {.kind = TAMIS_SELECT_QUEST, .budget = 32},
                              .max_sequences = 2,
                              .max_rows = 64,
                              .max_context = 128};
    uint32_t rows[] = {1, 2};
    for (uint32_t limit = 0; limit < 4; limit += 3) {
        plan.max_selected_rows = limit;
        test_open(&w, &shape, &plan);
        tamis_sequence ids[] = {add(&w), add(&w)};
        tamis_step step = {.sequences = ids, .rows = rows, .count = 2};
        tamis_cache_stats before = test_stats(&w);
        if (limit == 0) {
            FAILS(tamis_plan_step_begin(w.plan, &step, &test_error), TAMIS_E_ARGUMENT,
                  "3 rows go through the selection, which exceed max_selected_rows 2");
            test_unchanged(&w, &before);
            step.exact = 1;
        }
        OK(test_step(&w, &step, tokens));
        test_close(&w);
    }
}

/* Running out changes nothing, says how much is missing, and passes when pages come back. */
static void a_full_cache_says_what_is_missing(void **state) {
    (void)state;
    test_world w;
    open_world(&w, 64);
    tamis_sequence ids[] = {add(&w), add(&w)}, third = add(&w);
    uint32_t rows[] = {20, 13};
    tamis_step step = {.sequences = ids, .rows = rows, .count = 2};
    OK(test_step(&w, &step, tokens));
    OK(test_append(&w, third, tokens + 100, 9)); /* 3 + 2 + 2 of 8 pages a lane */
    rows[0] = 5;                                 /* one more page in each of 4 lanes */
    rows[1] = 4;                                 /* and another */
    tamis_cache_stats before = test_stats(&w);
    tamis_step_pages pages;
    OK(tamis_plan_step_pages(w.plan, &step, &pages, &test_error));
    assert_true(pages.needed == 8 && pages.copied == 0 && pages.free == 4 && pages.missing == 4);
    FAILS(tamis_plan_step_begin(w.plan, &step, &test_error), TAMIS_E_FULL,
          "needs 8 pages in layers 0 to 1, of which 4 are free");
    test_unchanged(&w, &before);
    expect_all(&w, ids[0], tokens, 20);
    expect_all(&w, ids[1], tokens + 20, 13);
    OK(tamis_cache_truncate(w.cache, third, 8, &test_error));
    OK(test_step(&w, &step, tokens + 200));
    assert_int_equal(test_stats(&w).pages_held, before.pages_total);
    expect_all(&w, third, tokens + 100, 8);
    test_close(&w);
}

/* Asking what a step would take refuses what begin refuses, and calls no function of the device. */
static void asking_for_pages_calls_no_device(void **state) {
    (void)state;
    test_world w;
    open_world(&w, 64);
    tamis_sequence ids[] = {add(&w), add(&w)}, none = ids[1] + 1;
    uint32_t rows[] = {20, 13};
    tamis_step step = {.sequences = ids, .rows = rows, .count = 2, .exact = 1}, wrong = step;
    tamis_step_pages pages = {0};
    const tms_backend *backend = w.context->dev->backend;
    const tms_backend silent = {0};
    w.context->dev->backend = &silent;
    OK(tamis_plan_step_pages(w.plan, &step, &pages, &test_error));
    w.context->dev->backend = backend;
    assert_true(pages.needed == 20 && pages.free == 32 && pages.missing == 0);
    FAILS(tamis_plan_step_pages(NULL, &step, &pages, &test_error), TAMIS_E_ARGUMENT,
          "plan is NULL");
    FAILS(tamis_plan_step_pages(w.plan, &step, NULL, &test_error), TAMIS_E_ARGUMENT, "out is NULL");
    wrong.sequences = &none;
    wrong.count = 1;
    FAILS(tamis_plan_step_pages(w.plan, &wrong, &pages, &test_error), TAMIS_E_ARGUMENT,
          "the cache has no sequence");
    OK(tamis_plan_step_begin(w.plan, &step, &test_error));
    FAILS(tamis_plan_step_pages(w.plan, &step, &pages, &test_error), TAMIS_E_STATE, "is open");
    OK(tamis_plan_step_cancel(w.plan, &test_error));
    test_close(&w);
}

/* The last page is enough for a step that needs one, and one page is missing for the next. */
static void the_last_page_is_enough_for_one(void **state) {
    (void)state;
    test_world w;
    tamis_cache_params shape = test_shape();
    const tamis_plan_params params = {.max_rows = 64, .max_context = 128};
    shape.n_layers = shape.n_kv_heads = 1;
    shape.capacity_tokens = 64;
    test_open(&w, &shape, &params);
    tamis_sequence id = add(&w);
    uint32_t rows = 56;
    const tamis_step step = {.sequences = &id, .rows = &rows, .count = 1, .exact = 1};
    for (uint32_t missing = 0; missing < 2; missing++) {
        tamis_step_pages pages;
        OK(test_append(&w, id, tokens, rows));
        rows = 8;
        OK(tamis_plan_step_pages(w.plan, &step, &pages, &test_error));
        assert_true(pages.needed == 1 && pages.free + missing == 1 && pages.missing == missing);
        assert_int_equal(test_step_begin(&w, &step), missing ? TAMIS_E_FULL : TAMIS_OK);
        if (!missing) OK(tamis_plan_step_cancel(w.plan, &test_error));
    }
    test_close(&w);
}

/* Both sides of a fork write into the shared page; each keeps its own rows, and only one copy is
 * made. When even that does not fit, the sharing stays as it was. */
static void forks_that_write_get_their_own_copy(void **state) {
    (void)state;
    test_world w;
    tamis_plan_counters c;
    open_world(&w, 32);
    tamis_sequence ids[] = {add(&w), 0};
    uint64_t mixed[13];
    tamis_step step = {.sequences = ids, .count = 2};
    OK(test_append(&w, ids[0], tokens, 12));
    OK(tamis_cache_fork(w.cache, ids[0], &ids[1], &test_error));
    assert_int_equal(test_stats(&w).pages_shared, 8);
    tamis_sequence_stats one;
    OK(tamis_cache_get_sequence_stats(w.cache, ids[1], &one, NULL));
    assert_int_equal(test_length(w.cache, ids[1]), 12);
    assert_true(one.slots == 48 && one.pages == 8 && one.pages_shared == 8);
    assert_int_equal(one.bytes_held, 8 * (4096 + 512));
    tamis_sequence filler = add(&w);
    OK(test_append(&w, filler, tokens, 9)); /* fills the pool: 2 + 2 of 4 pages a lane */
    tamis_cache_stats before = test_stats(&w);
    tamis_step_pages pages;
    OK(tamis_plan_step_pages(w.plan, &step, &pages, &test_error));
    assert_true(pages.needed == 4 && pages.copied == 4 && pages.free == 0 && pages.missing == 4);
    FAILS(tamis_plan_step_begin(w.plan, &step, &test_error), TAMIS_E_FULL, "needs 4 pages");
    test_unchanged(&w, &before);
    OK(tamis_cache_remove(w.cache, filler, &test_error));
    OK(test_step(&w, &step, tokens + 300));
    tamis_plan_get_counters(w.plan, &c);
    assert_int_equal(c.pages_copied, 4);
    assert_int_equal(test_stats(&w).pages_shared, 4);
    memcpy(mixed, tokens, 12 * sizeof *mixed);
    for (uint32_t i = 0; i < 2; i++) {
        mixed[12] = tokens[300 + i];
        expect_all(&w, ids[i], mixed, 13);
    }
    OK(tamis_cache_remove(w.cache, ids[0], &test_error));
    expect_all(&w, ids[1], mixed, 13);
    assert_int_equal(test_stats(&w).pages_shared, 0);
    test_close(&w);
}

/* A fork truncated into a full shared page copies it before it writes; the parent's stays. */
static void a_truncated_fork_copies_before_it_writes(void **state) {
    (void)state;
    test_world w;
    open_world(&w, 64);
    tamis_sequence id = add(&w), forked;
    uint64_t mixed[16];
    OK(test_append(&w, id, tokens, 16));
    OK(tamis_cache_fork(w.cache, id, &forked, &test_error));
    OK(tamis_cache_truncate(w.cache, forked, 11, &test_error));
    OK(test_append(&w, forked, tokens + 50, 5));
    memcpy(mixed, tokens, 11 * sizeof *mixed);
    memcpy(mixed + 11, tokens + 50, 5 * sizeof *mixed);
    expect_all(&w, forked, mixed, 16);
    expect_all(&w, id, tokens, 16);
    test_close(&w);
}

/* A cancelled step leaves the rows before it, and the next step writes over its rows. */
static void a_cancelled_step_leaves_earlier_rows(void **state) {
    (void)state;
    test_world w;
    open_world(&w, 64);
    tamis_sequence id = add(&w);
    uint32_t rows = 9;
    tamis_step step = {.sequences = &id, .rows = &rows, .count = 1};
    OK(test_append(&w, id, tokens, 10));
    tamis_cache_stats before = test_stats(&w);
    OK(tamis_plan_step_begin(w.plan, &step, &test_error));
    test_write(&w, 0, tokens + 400, 9);
    OK(tamis_plan_step_cancel(w.plan, &test_error));
    test_unchanged(&w, &before);
    expect_all(&w, id, tokens, 10);
    OK(test_append(&w, id, tokens + 10, 9));
    expect_all(&w, id, tokens, 19);
    OK(tamis_plan_step_begin(w.plan, &step, &test_error));
    tamis_plan_destroy(&w.plan); /* with the step open: gives it up */
    OK(tamis_cache_truncate(w.cache, id, 0, &test_error));
    assert_int_equal(test_stats(&w).pages_held, 0);
    test_close(&w);
}

/* A read that takes several launches, from a slot inside a page. */
static void a_long_read_takes_several_launches(void **state) {
    (void)state;
    static uint64_t many[2100];
    tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {.max_rows = 2100, .max_context = 2100};
    test_world w;
    shape.capacity_tokens = 2100;
    test_open(&w, &shape, &plan);
    for (uint32_t i = 0; i < 2100; i++)
        many[i] = 7 * i;
    tamis_sequence id = add(&w);
    OK(test_append(&w, id, many, 2100));
    test_expect(&w, id, 1, 1, 3, many + 3, 2097);
    test_close(&w);
}

#define LONG_CONTEXT 4200u
#define LONG_ROWS    300u
#define LONG_PAGES   8u        /* a list */
#define LONG_OUT     (4u * 64) /* elements a row */

typedef struct long_rows {
    uint32_t lists[LONG_ROWS * 2][LONG_PAGES];
    float out[LONG_ROWS * LONG_OUT];
} long_rows;

/* Appends `n` rows from row `first` of `rows` on, and notes what layer 0 reads and gives. */
static void attend_random(test_world *w, tamis_sequence id, const uint64_t *many, uint32_t first,
                          uint32_t n, long_rows *rows) {
    tamis_rows q = {.buffer = w->q}, out = {.buffer = w->out};
    tamis_step step = {.sequences = &id, .rows = &n, .count = 1};
    uint32_t count;
    OK(tamis_plan_step_begin(w->plan, &step, &test_error));
    test_write(w, 0, many + LONG_CONTEXT - LONG_ROWS + first, n);
    OK(tamis_plan_attend(w->plan, 0, &q, &out, &test_error));
    for (uint32_t lane = 0; lane < n * 2; lane++) {
        OK(tamis_plan_read_selected(w->plan, lane / 2, lane % 2, rows->lists[first * 2 + lane],
                                    LONG_PAGES, &count, &test_error));
        assert_int_equal(count, LONG_PAGES);
    }
    OK(tamis_buffer_read(w->out, 0, rows->out + first * LONG_OUT, n * LONG_OUT * 4, NULL));
    OK(tamis_plan_step_end(w->plan, &test_error));
}

/* Random scores of 300 rows that go to the device in pieces: each row reads and gives what it does
 * in a step whose scores are one piece. */
static void scores_in_pieces_select_the_same_pages(void **state) {
    (void)state;
    static uint64_t many[LONG_CONTEXT];
    static float zeros[LONG_ROWS * LONG_OUT];
    static long_rows pieces, whole;
    tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {.selection = {.kind = TAMIS_SELECT_RANDOM, .budget = LONG_PAGES * 8},
                              .max_rows = 4200,
                              .max_context = LONG_CONTEXT,
                              .max_selected_rows = LONG_ROWS};
    test_world w;
    shape.n_layers = 1;
    shape.capacity_tokens = LONG_CONTEXT;
    test_open(&w, &shape, &plan);
    for (uint32_t i = 0; i < LONG_CONTEXT; i++)
        many[i] = 11 * i;
    tamis_sequence id = add(&w);
    OK(test_append(&w, id, many, LONG_CONTEXT - LONG_ROWS));
    OK(tamis_buffer_write(w.q, 0, zeros, sizeof zeros, NULL));
    attend_random(&w, id, many, 0, LONG_ROWS, &pieces); /* 315,000 scores: 1.2 MiB */
    OK(tamis_cache_truncate(w.cache, id, LONG_CONTEXT - LONG_ROWS, &test_error));
    for (uint32_t row = 0; row < LONG_ROWS; row += 60)
        attend_random(&w, id, many, row, 60, &whole);
    assert_memory_equal(pieces.lists, whole.lists, sizeof whole.lists);
    assert_memory_equal(pieces.out, whole.out, sizeof whole.out);
    test_close(&w);
}

/* ---- Products that leave the range of fp32 --------------------------------------------------- */

#define WIDE_CONTEXT 40u
#define WIDE_OUT     (4 * 64)

/* One layer of 40 tokens; the key of token 20 in KV head 0 is ±1e30, as which is said for channels.
 * The query of head 0 is `query` in all channels, the others' small. */
static void attend_wide(const tamis_selection *selection, float query, float *out,
                        uint32_t pages[2][8], uint32_t count[2]) {
    static float k[WIDE_CONTEXT * 2 * 64], q[WIDE_OUT];
    tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {.selection = *selection, .max_rows = 64, .max_context = 64};
    test_world w;
    uint32_t n = WIDE_CONTEXT - 1;
    shape.n_layers = 1;
    test_open(&w, &shape, &plan);
    tamis_rows x = {.buffer = w.k}, v = {.buffer = w.v}, rows = {.buffer = w.q},
               to = {.buffer = w.out};
    tamis_sequence id = add(&w);
    for (uint32_t i = 0; i < WIDE_CONTEXT * 2 * 64; i++)
        k[i] = test_value(i / 128, i / 64 % 2, 0, i % 64);
    for (uint32_t d = 0; d < 64; d++)
        k[20 * 128 + d] = d % 2 ? -1e30f : 1e30f;
    for (uint32_t i = 0; i < WIDE_OUT; i++)
        q[i] = i < 64 ? query : test_value(i, 0, 0, i % 64);
    for (uint32_t i = 64; i < 128; i++)
        q[i] *= 1e-30f;
    for (uint32_t first = 0; first < WIDE_CONTEXT; first += n) {
        const tamis_step step = {
            .sequences = &id, .rows = first ? NULL : &n, .count = 1, .exact = first == 0};
        const uint32_t rows_now = first ? 1 : n;
        OK(tamis_buffer_write(w.k, 0, k + first * 128, rows_now * 128 * sizeof *k, NULL));
        OK(tamis_buffer_write(w.v, 0, k, rows_now * 128 * sizeof *k, NULL));
        OK(tamis_buffer_write(w.q, 0, q, sizeof q, NULL));
        OK(tamis_plan_step_begin(w.plan, &step, &test_error));
        OK(tamis_plan_write(w.plan, 0, &x, &v, &test_error));
        if (first) OK(tamis_plan_attend(w.plan, 0, &rows, &to, &test_error));
        for (uint32_t head = 0; head < 2 && first; head++)
            OK(tamis_plan_read_selected(w.plan, 0, head, pages[head], 8, &count[head],
                                        &test_error));
        OK(tamis_plan_step_end(w.plan, &test_error));
    }
    OK(tamis_buffer_read(w.out, 0, out, WIDE_OUT * sizeof *out, NULL));
    test_close(&w);
}

/* Finite queries and keys whose products in fp32 are infinities of both signs: what comes is the
 * value that the exact sum gives, as on the reference, or NaN; in that head and nowhere else. */
static void overflowing_products_spoil_their_head_only(void **state) {
    (void)state;
    const tamis_selection full = {.kind = TAMIS_SELECT_FULL},
                          quest = {.kind = TAMIS_SELECT_QUEST, .budget = 24};
    const tamis_selection *selections[] = {&full, &quest};
    for (size_t i = 0; i < 2; i++) {
        float wide[WIDE_OUT], narrow[WIDE_OUT];
        uint32_t pages[2][2][8], count[2][2];
        attend_wide(selections[i], 1e-30f, narrow, pages[0], count[0]);
        attend_wide(selections[i], 1e30f, wide, pages[1], count[1]);
        uint32_t not_finite = 0;
        for (uint32_t d = 0; d < 64; d++)
            not_finite += !isfinite(wide[d]);
        assert_true(not_finite == 0 || not_finite == 64);
        if (strcmp(test_device, "reference") == 0) assert_int_equal(not_finite, 0);
        /* Lists are whole; the other KV head's is the same. Its heads give the same, bit for bit;
         * head 1 shares its list with head 0, so only where all pages are read. */
        assert_int_equal(count[1][0], count[0][0]);
        assert_int_equal(count[1][1], count[0][1]);
        assert_memory_equal(pages[1][1], pages[0][1], count[0][1] * sizeof **pages[0]);
        for (uint32_t p = 1; p < count[1][0]; p++)
            assert_true(pages[1][0][p] > pages[1][0][p - 1]);
        const uint32_t first = i == 0 ? 64 : 128;
        assert_memory_equal(wide + first, narrow + first, (WIDE_OUT - first) * sizeof *wide);
        for (uint32_t d = 64; d < WIDE_OUT; d++)
            assert_true(isfinite(wide[d]));
    }
}

/* Times are collected when asked for, and only then. */
static void times_are_collected_only_when_asked_for(void **state) {
    (void)state;
    tamis_cache_params shape = test_shape();
    tamis_plan_times times;
    for (int timing = 0; timing < 2; timing++) {
        tamis_plan_params plan = {
            .max_rows = 64, .max_context = 128, .flags = timing ? TAMIS_PLAN_TIMING : 0};
        test_world w;
        test_open(&w, &shape, &plan);
        OK(test_append(&w, add(&w), tokens, 64));
        tamis_plan_get_times(w.plan, &times);
        assert_int_equal(times.write_us > 0, timing);
        assert_int_equal(times.bounds_us > 0, timing);
        assert_true(times.attend_us == 0);
        test_close(&w);
    }
}

/* A decode row behind 64 tokens under a selection of two pages. */
static void run_quest(int separate, float *out, tamis_plan_counters *counters,
                      tamis_plan_times *times, bool *on_cuda) {
    tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {.selection = {.kind = TAMIS_SELECT_QUEST, .budget = 32},
                              .max_rows = 64,
                              .max_context = 128,
                              .flags = TAMIS_PLAN_TIMING | (separate ? TAMIS_PLAN_UNFUSED : 0)};
    test_world w;
    shape.page_size = 16;
    test_open(&w, &shape, &plan);
    tamis_sequence id = add(&w);
    const tamis_step step = {.sequences = &id, .count = 1};
    tamis_rows q = {.buffer = w.q}, to = {.buffer = w.out};
    OK(test_append(&w, id, tokens, 64));
    for (uint32_t i = 0; i < 4 * 64; i++)
        w.host[i] = test_value(i, 1, 0, i % 64);
    OK(tamis_buffer_write(w.q, 0, w.host, 4 * 64 * sizeof *out, NULL));
    OK(tamis_plan_step_begin(w.plan, &step, &test_error));
    for (uint32_t layer = 0; layer < 2; layer++) {
        test_write(&w, layer, tokens + 64, 1);
        OK(tamis_plan_attend(w.plan, layer, &q, &to, &test_error));
    }
    OK(tamis_plan_step_end(w.plan, &test_error));
    OK(tamis_buffer_read(w.out, 0, out, 4 * 64 * sizeof *out, NULL));
    tamis_plan_get_counters(w.plan, counters);
    tamis_plan_get_times(w.plan, times);
    *on_cuda = strcmp(tamis_context_device(w.context)->backend, "cuda") == 0;
    test_close(&w);
}

/* Score, select and attend one by one where the device has them in fewer launches: the same rows,
 * a time of each. In two launches each has its time, too. */
static void separate_launches_give_the_same_rows(void **state) {
    (void)state;
    float fused[4 * 64], apart[4 * 64];
    tamis_plan_counters counters;
    tamis_plan_times times;
    bool on_cuda;
    run_quest(0, fused, &counters, &times, &on_cuda);
    assert_int_equal(counters.rows_selected, 2);
    assert_int_equal(times.fused_us > 0, counters.rows_fused > 0);
    assert_true(times.fused_select_us <= times.fused_us);
    if (on_cuda) assert_true(counters.rows_fused == 2 && times.fused_select_us > 0);
    run_quest(1, apart, &counters, &times, &on_cuda);
    assert_true(counters.rows_selected == 2 && counters.rows_fused == 0);
    assert_true(times.score_us > 0 && times.select_us > 0 && times.attend_us > 0);
    assert_true(times.fused_us == 0 && times.fused_select_us == 0);
    for (uint32_t i = 0; i < 4 * 64; i++)
        assert_true(fabsf(apart[i] - fused[i]) < 1e-4f);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(begin_refuses_bad_steps),
        cmocka_unit_test(calls_out_of_order_are_refused),
        cmocka_unit_test(selected_rows_have_a_limit_of_their_own),
        cmocka_unit_test(a_full_cache_says_what_is_missing),
        cmocka_unit_test(asking_for_pages_calls_no_device),
        cmocka_unit_test(the_last_page_is_enough_for_one),
        cmocka_unit_test(forks_that_write_get_their_own_copy),
        cmocka_unit_test(a_truncated_fork_copies_before_it_writes),
        cmocka_unit_test(a_cancelled_step_leaves_earlier_rows),
        cmocka_unit_test(a_long_read_takes_several_launches),
        cmocka_unit_test(scores_in_pieces_select_the_same_pages),
        cmocka_unit_test(overflowing_products_spoil_their_head_only),
        cmocka_unit_test(times_are_collected_only_when_asked_for),
        cmocka_unit_test(separate_launches_give_the_same_rows),
    };
    int skip = test_begin(argc, argv);
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
