/* SPDX-License-Identifier: Apache-2.0 */
/* Devices that fail: at the n-th allocation, in the middle of a step's upload, or for good. */
#include "lib/cache/cache.h"
#include "tests/api/fixture.h"
#include "tests/faulty.h"

#include <string.h>

static void failed_allocations_leave_no_plan_or_step(void **state) {
    (void)state;
    test_world w;
    tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {.selection = {.kind = TAMIS_SELECT_QUEST, .budget = 32},
                              .max_context = 128,
                              .max_rows = 16};
    tamis_cache *cache = NULL;
    tamis_plan *made = NULL;
    test_open(&w, &shape, &plan);
    tms_device *dev = w.context->dev;
    shape.planes = TAMIS_PLANE_POSITIONS | TAMIS_PLANE_SCORES;
    for (int n = 0; n < 4; n++) { /* data, bounds and two planes of the one pool */
        faulty_begin_one(dev, FAULTY_alloc, n);
        FAILS(tamis_cache_create(w.context, &shape, &cache, &test_error), FAULTY_STATUS,
              FAULTY_TEXT);
        assert_null(cache);
        faulty_pause(dev);
    }
    faulty_begin_one(dev, FAULTY_alloc, -1);
    OK(tamis_plan_create(w.cache, &plan, &made, &test_error));
    faulty_pause(dev);
    const int allocations = faulty_calls();
    assert_true(allocations >= 5);
    tamis_plan_destroy(&made);
    for (int n = 0; n < allocations; n++) {
        faulty_begin_one(dev, FAULTY_alloc, n);
        FAILS(tamis_plan_create(w.cache, &plan, &made, &test_error), FAULTY_STATUS, FAULTY_TEXT);
        assert_null(made);
        faulty_pause(dev);
    }
    test_close(&w);
}

/* A begin whose upload fails leaves lengths, pages and sharing as they were; the next one works. */
static void begin_fails(test_world *w, const tamis_sequence *ids, const uint64_t *tokens,
                        faulty_call call, int sound_calls) {
    tms_device *dev = w->context->dev;
    tamis_step step = {.sequences = ids, .count = 2};
    tamis_cache_stats before = test_stats(w);
    tamis_sequence_stats one;
    faulty_begin_one(dev, call, sound_calls);
    FAILS(tamis_plan_step_begin(w->plan, &step, &test_error), FAULTY_STATUS, FAULTY_TEXT);
    faulty_pause(dev);
    test_unchanged(w, &before);
    for (uint32_t i = 0; i < 2; i++) {
        OK(tamis_cache_get_sequence_stats(w->cache, ids[i], &one, NULL));
        assert_int_equal(test_length(w->cache, ids[i]), 12);
        assert_int_equal(one.pages_shared, 8);
        for (uint32_t lane = 0; lane < 4; lane++)
            test_expect(w, ids[i], lane / 2, lane % 2, 0, tokens, 12);
    }
    FAILS(tamis_plan_step_end(w->plan, &test_error), TAMIS_E_STATE, "no open step");
    OK(test_step(w, &step, tokens + 12));
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t lane = 0; lane < 4; lane++) {
            test_expect(w, ids[i], lane / 2, lane % 2, 0, tokens, 12);
            test_expect(w, ids[i], lane / 2, lane % 2, 12, tokens + 12 + i, 1);
        }
}

/* The host's calloc, which the test's link puts in the place of the library's. */
static bool calloc_fails;
void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size) {
    return calloc_fails ? NULL : __real_calloc(n, size);
}

/* A begin that finds no memory for longer page lists has changed nothing. */
static void a_begin_without_memory_for_lists_changes_nothing(void **state) {
    (void)state;
    test_world w;
    tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {.max_sequences = 2, .max_context = 128, .max_rows = 128};
    tamis_sequence ids[2];
    uint64_t tokens[120];
    const uint32_t rows[2] = {1, 100};
    for (uint32_t i = 0; i < 120; i++)
        tokens[i] = 10 + i;
    test_open(&w, &shape, &plan);
    for (uint32_t i = 0; i < 2; i++) {
        OK(tamis_cache_add(w.cache, &ids[i], &test_error));
        OK(test_append(&w, ids[i], tokens, 7));
    }
    const tamis_step step = {.sequences = ids, .rows = rows, .count = 2, .exact = 1};
    tamis_cache_stats before = test_stats(&w);
    calloc_fails = true;
    tamis_status status = tamis_plan_step_begin(w.plan, &step, &test_error);
    calloc_fails = false;
    test_fails(status, TAMIS_E_NO_MEMORY, "the page lists of sequence", "begin", __FILE__,
               __LINE__);
    test_unchanged(&w, &before);
    for (uint32_t lane = 0; lane < 8; lane++)
        test_expect(&w, ids[lane / 4], lane / 2 % 2, lane % 2, 0, tokens, 7);
    OK(test_step(&w, &step, tokens + 7));
    for (uint32_t lane = 0; lane < 4; lane++) {
        test_expect(&w, ids[0], lane / 2, lane % 2, 7, tokens + 7, 1);
        test_expect(&w, ids[1], lane / 2, lane % 2, 7, tokens + 8, 100);
    }
    test_close(&w);
}

static void a_failed_upload_leaves_no_step_open(void **state) {
    (void)state;
    static const struct {
        faulty_call call;
        int sound_calls;
    } cases[] = {
        {FAULTY_write, 0}, {FAULTY_write, 1}, {FAULTY_write_table, 0}, {FAULTY_copy_pages, 0}};
    uint64_t tokens[16];
    for (uint32_t i = 0; i < 16; i++)
        tokens[i] = 10 + i;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_world w;
        tamis_cache_params shape = test_shape();
        tamis_plan_params plan = {.max_sequences = 2, .max_context = 128, .max_rows = 16};
        tamis_sequence ids[2];
        test_open(&w, &shape, &plan);
        OK(tamis_cache_add(w.cache, &ids[0], &test_error));
        OK(test_append(&w, ids[0], tokens, 12));
        OK(tamis_cache_fork(w.cache, ids[0], &ids[1], &test_error));
        begin_fails(&w, ids, tokens, cases[i].call, cases[i].sound_calls);
        test_close(&w);
    }
}

/* A decode step of two sequences with the rows that lie in the world's buffers, up to its first
 * failure. *begun: the step is open, or was. */
static tamis_status decode(test_world *w, const tamis_sequence *ids, bool *begun) {
    tamis_step step = {.sequences = ids, .count = 2};
    tamis_rows k = {.buffer = w->k}, v = {.buffer = w->v};
    tamis_rows q = {.buffer = w->q}, out = {.buffer = w->out};
    tamis_status status = tamis_plan_step_begin(w->plan, &step, &test_error);
    *begun = status == TAMIS_OK;
    for (uint32_t layer = 0; layer < w->shape.n_layers && status == TAMIS_OK; layer++) {
        status = tamis_plan_write(w->plan, layer, &k, &v, &test_error);
        if (status == TAMIS_OK) status = tamis_plan_attend(w->plan, layer, &q, &out, &test_error);
    }
    return status == TAMIS_OK ? tamis_plan_step_end(w->plan, &test_error) : status;
}

static void expect_lengths(const test_world *w, const tamis_sequence *ids, uint32_t first,
                           uint32_t second) {
    assert_int_equal(test_length(w->cache, ids[0]), first);
    assert_int_equal(test_length(w->cache, ids[1]), second);
}

/* A decode step over new sequences, one of which fills a page and one begins a page, fails at its
 * n-th call; given up, it leaves the sequences as they were, and a second try gives `wanted`, or
 * sets it when n < 0. True: the step has no n-th call. */
static bool step_fails_at(test_world *w, int n, float *wanted) {
    enum { ROWS_BYTES = 2 * 4 * 64 * sizeof(float) };
    tms_device *dev = w->context->dev;
    uint64_t tokens[48];
    float got[ROWS_BYTES / sizeof(float)];
    tamis_sequence ids[2];
    bool begun;
    for (uint32_t i = 0; i < 48; i++)
        tokens[i] = 500 + i;
    for (uint32_t i = 0; i < 2; i++) {
        OK(tamis_cache_add(w->cache, &ids[i], &test_error));
        OK(test_append(w, ids[i], tokens, 47 + i));
    }
    OK(tamis_buffer_write(w->q, 0, w->host, ROWS_BYTES, NULL));
    tamis_cache_stats before = test_stats(w);
    faulty_begin(dev, n, FAULTY_BEFORE);
    test_error = (tamis_error){0};
    tamis_status status = decode(w, ids, &begun);
    const bool failed = faulty_failed() != FAULTY_COUNT;
    if (failed) {
        test_fails(status, FAULTY_STATUS, FAULTY_TEXT, "decode", __FILE__, __LINE__);
        if (begun) OK(tamis_plan_step_cancel(w->plan, &test_error));
        test_unchanged(w, &before);
        expect_lengths(w, ids, 47, 48);
        status = decode(w, ids, &begun);
    }
    faulty_pause(dev);
    test_ok(status, "decode", __FILE__, __LINE__);
    expect_lengths(w, ids, 48, 49);
    OK(tamis_buffer_read(w->out, 0, n < 0 ? wanted : got, ROWS_BYTES, NULL));
    if (n >= 0) assert_memory_equal(got, wanted, ROWS_BYTES);
    for (uint32_t i = 0; i < 2; i++)
        OK(tamis_cache_remove(w->cache, ids[i], &test_error));
    return n >= 0 && !failed;
}

static void a_failure_within_a_step_can_be_cancelled(void **state) {
    (void)state;
    test_world w;
    tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {.selection = {.kind = TAMIS_SELECT_QUEST, .budget = 32},
                              .max_sequences = 2,
                              .max_rows = 64,
                              .max_context = 128};
    float wanted[2 * 4 * 64];
    int n = -1;
    shape.page_size = 16; /* which the fused launch of a CPU device takes */
    test_open(&w, &shape, &plan);
    while (!step_fails_at(&w, n, wanted))
        n++;
    /* Tables; write, bounds and the ways to attend of two layers; flush. */
    assert_in_range(n, 9, 64);
    test_close(&w);
}

/* A device error that arrived late stays: every later call that needs the device returns it. */
static void a_late_error_is_returned_by_every_later_call(void **state) {
    (void)state;
    test_world w;
    tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {.max_context = 128, .max_rows = 16};
    tamis_sequence id;
    tamis_buffer *buffer = NULL;
    tamis_cache *cache = NULL;
    tamis_event *event = NULL;
    tamis_plan *made = NULL;
    uint64_t tokens[] = {1, 2, 3};
    float row[64];
    test_open(&w, &shape, &plan);
    OK(tamis_cache_add(w.cache, &id, &test_error));
    OK(test_append(&w, id, tokens, 3));
    w.context->dev->sticky =
        tms_device_fail(w.context->dev, TAMIS_E_DEVICE, "the device fell over");
    tamis_step step = {.sequences = &id, .count = 1};
    for (int again = 0; again < 2; again++) {
        FAILS(tamis_context_wait(w.context, &test_error), TAMIS_E_DEVICE, "fell over");
        FAILS(tamis_plan_step_begin(w.plan, &step, &test_error), TAMIS_E_DEVICE, "fell over");
        FAILS(tamis_cache_read(w.cache, id, 0, 0, 0, 1, row, row, &test_error), TAMIS_E_DEVICE,
              "fell over");
        FAILS(tamis_buffer_create(w.context, 64, &buffer, &test_error), TAMIS_E_DEVICE, "fell");
        FAILS(tamis_event_record(w.context, &event, &test_error), TAMIS_E_DEVICE, "fell");
        FAILS(tamis_cache_create(w.context, &shape, &cache, &test_error), TAMIS_E_DEVICE, "fell");
        FAILS(tamis_plan_create(w.cache, &plan, &made, &test_error), TAMIS_E_DEVICE, "fell");
        assert_int_equal(tamis_buffer_write(w.k, 0, row, 4, NULL), TAMIS_E_DEVICE);
        assert_int_equal(tamis_buffer_read(w.k, 0, row, 4, NULL), TAMIS_E_DEVICE);
        if (w.context->dev->backend->capture_begin)
            FAILS(tamis_graph_begin(w.context, &test_error), TAMIS_E_DEVICE, "fell over");
    }
    test_close(&w);
}

/* A graph of a device that fails while it is recorded is not kept. */
static void a_failed_recording_keeps_no_graph(void **state) {
    (void)state;
    test_world w;
    tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {.max_context = 128, .max_rows = 16};
    tamis_graph *graph = (tamis_graph *)&w;
    test_open(&w, &shape, &plan);
    if (w.context->dev->backend->capture_begin) {
        OK(tamis_graph_begin(w.context, &test_error));
        w.context->dev->sticky =
            tms_device_fail(w.context->dev, TAMIS_E_DEVICE, "the device fell over");
        FAILS(tamis_graph_end(w.context, &graph, &test_error), TAMIS_E_DEVICE, "fell over");
        assert_null(graph);
    }
    test_close(&w);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failed_allocations_leave_no_plan_or_step),
        cmocka_unit_test(a_failed_upload_leaves_no_step_open),
        cmocka_unit_test(a_failure_within_a_step_can_be_cancelled),
        cmocka_unit_test(a_late_error_is_returned_by_every_later_call),
        cmocka_unit_test(a_failed_recording_keeps_no_graph),
        cmocka_unit_test(a_begin_without_memory_for_lists_changes_nothing),
    };
    int skip = test_begin(argc, argv);
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
