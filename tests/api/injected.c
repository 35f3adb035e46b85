/* SPDX-License-Identifier: Apache-2.0 */
/* Every call that a plan makes of its device fails once, at every place of a script, before or after
 * it has done its work. The caller makes its own call again, or gives the step up and repeats it.
 * Then all is as if nothing had failed, or the sequence is refused; nothing differs unnoticed. */
#include "tests/api/scenario.h"
#include "tests/faulty.h"

#include <stdlib.h>
#include <string.h>

/* Whether the call of the script in which the fault was has added weights to scores. */
static bool has_fed;

static int feeds(void) {
    return faulty_worked(FAULTY_observe) + faulty_worked(FAULTY_observed_attend);
}

static void count(tms_device *dev, bool on) {
    static int fed;
    static bool is_over;
    if (!on) faulty_pause(dev);
    if (on) faulty_resume(dev);
    if (on && faulty_failed() == FAULTY_COUNT) {
        fed = feeds();
        is_over = false;
    }
    if (!on && faulty_failed() != FAULTY_COUNT && !is_over) {
        has_fed = feeds() > fed;
        is_over = true;
    }
}

static bool happened(void) {
    return faulty_failed() != FAULTY_COUNT;
}

static bool never(void) {
    return false;
}

static const scenario_faults faults = {count, happened, FAULTY_TEXT, never};

/* One of so many points is tried: 1 unless the command line says how much there is time for. */
static uint32_t share = 1;
static uint32_t points;

static bool is_tried(void) {
    return points++ % share == 0;
}

/* How often each call of the table has failed. */
static uint32_t failures[FAULTY_COUNT];

typedef struct tally {
    uint32_t points, refused, different;
} tally;

/* What a run leaves in which nothing fails. */
typedef struct clean {
    uint8_t *record;
    size_t bytes;
    uint32_t leave_at;
    bool leave_after;
} clean;

static void take_clean(scenario *s, clean *c, uint32_t leave_at, bool leave_after) {
    s->faults = NULL;
    s->leave_at = leave_at;
    s->leave_after = leave_after;
    assert_int_equal(scenario_run(s), SCENARIO_WHOLE);
    free(c->record);
    *c = (clean){malloc(s->used), s->used, leave_at, leave_after};
    assert_non_null(c->record);
    memcpy(c->record, s->record, s->used);
    s->leave_at = 0;
}

static bool is_clean(scenario *s, const clean *c) {
    return s->used == c->bytes && memcmp(s->record, c->record, c->bytes) == 0;
}

/* h2o's sums keep the weights of rows that were given up: what comes must be what comes where the
 * caller gives the step up at that place unforced. */
static bool is_as_left(scenario *s, clean *left) {
    const bool after = has_fed;
    scenario forced = *s;
    if (left->leave_at != s->failed_at || left->leave_after != after) {
        s->record = NULL;
        s->used = s->room = 0;
        take_clean(s, left, forced.failed_at, after);
        free(s->record);
        *s = forced;
    }
    return is_clean(s, left);
}

static void run_point(scenario *s, const clean *whole, clean *left, int n, faulty_when when,
                      tally *t) {
    tms_device *dev = s->e.w.context->dev;
    s->faults = &faults;
    faulty_begin(dev, n, when);
    faulty_pause(dev);
    const scenario_end end = scenario_run(s);
    assert_true(happened());
    const faulty_call call = faulty_failed();
    const bool as_left = s->c->eviction == TAMIS_EVICT_H2O && s->gave_up;
    failures[call]++;
    t->points++;
    t->refused += end == SCENARIO_REFUSED;
    if (end == SCENARIO_REFUSED || (as_left ? is_as_left(s, left) : is_clean(s, whole))) return;
    t->different++;
    print_error("%s: %s, the device's call %d, fails %s in call %u, which is %s: another end\n",
                s->c->name, faulty_names[call], n, when == FAULTY_AFTER ? "after" : "before",
                s->failed_at, s->recovery == SCENARIO_AGAIN ? "made again" : "given up");
}

/* How many calls of the device the script makes. */
static int count_calls(scenario *s, const clean *whole) {
    tms_device *dev = s->e.w.context->dev;
    s->faults = &faults;
    faulty_begin(dev, -1, FAULTY_BEFORE);
    faulty_pause(dev);
    assert_int_equal(scenario_run(s), SCENARIO_WHOLE);
    assert_true(is_clean(s, whole));
    return faulty_calls();
}

/* Every call of the device; every third one, where it fails when it has done its work. */
static void run_points(scenario *s, const clean *whole, int calls, tally *t) {
    clean left = {.record = NULL};
    for (int again = 0; again < 2; again++)
        for (int n = 0; n < calls; n++) {
            s->recovery = again ? SCENARIO_AGAIN : SCENARIO_GIVE_UP;
            if (is_tried()) run_point(s, whole, &left, n, FAULTY_BEFORE, t);
            if (n % 3 == again && is_tried()) run_point(s, whole, &left, n, FAULTY_AFTER, t);
        }
    free(left.record);
}

static void run_case(const scenario_case *c) {
    scenario s;
    clean whole = {.record = NULL};
    tally t = {0};
    scenario_open(&s, c);
    take_clean(&s, &whole, 0, false);
    const int calls = count_calls(&s, &whole);
    run_points(&s, &whole, calls, &t);
    print_message("%s: %d calls, %u points, %u refused\n", c->name, calls, t.points, t.refused);
    free(whole.record);
    scenario_close(&s);
    assert_int_equal(t.different, 0);
    /* Layers that share a budget are evicted from together or not at all. */
    if (!(c->options & TAMIS_EVICT_ACROSS_LAYERS)) assert_int_equal(t.refused, 0);
}

/* What no plan calls: a model's ops, graphs, and what only callers and benches ask for. */
static bool is_of_plans(faulty_call call) {
#define NUMBER(with, op) FAULTY_##op,
    static const faulty_call others[] = {TMS_COMPOSED_OPS(NUMBER, ) FAULTY_linear,
                                         FAULTY_norm,
                                         FAULTY_activate,
                                         FAULTY_embed,
                                         FAULTY_argmax,
                                         FAULTY_key_score,
                                         FAULTY_sparse_attend,
                                         FAULTY_write_attend,
                                         FAULTY_write_sparse_attend,
                                         FAULTY_observed_attend,
                                         FAULTY_replace_rows,
                                         FAULTY_host_alloc,
                                         FAULTY_upload,
                                         FAULTY_event_await,
                                         FAULTY_event_wait,
                                         FAULTY_capture_begin,
                                         FAULTY_capture_end,
                                         FAULTY_graph_launch,
                                         FAULTY_wait,
                                         FAULTY_read_bandwidth,
                                         FAULTY_read_pages};
#undef NUMBER
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i] == call) return false;
    return true;
}

static void each_failing_call_repeats_to_the_same_end(void **state) {
    (void)state;
    for (uint32_t i = 0; i < scenario_case_count; i++)
        run_case(&scenario_cases[i]);
    for (int call = 0; call < FAULTY_COUNT && share <= 2; call++)
        if (is_of_plans((faulty_call)call) && failures[call] == 0)
            fail_msg("%s has never failed", faulty_names[call]);
}

/* A plan whose making fails at the n-th call is not made, and nothing of it is left. */
static void a_plan_that_fails_leaves_nothing(void **state) {
    (void)state;
    for (uint32_t i = 0; i < scenario_case_count; i++) {
        scenario s;
        const tamis_plan_params params = scenario_plan(&scenario_cases[i]);
        scenario_open(&s, &scenario_cases[i]);
        tms_device *dev = s.e.w.context->dev;
        tamis_plan *made = NULL;
        faulty_begin(dev, -1, FAULTY_BEFORE);
        OK(tamis_plan_create(s.e.w.cache, &params, &made, &test_error));
        faulty_pause(dev);
        tamis_plan_destroy(&made);
        for (int n = 0, calls = faulty_calls(); n < calls; n++) {
            if (!is_tried()) continue;
            faulty_begin(dev, n, FAULTY_BEFORE);
            FAILS(tamis_plan_create(s.e.w.cache, &params, &made, &test_error), FAULTY_STATUS,
                  FAULTY_TEXT);
            faulty_pause(dev);
            assert_null(made);
        }
        scenario_close(&s);
    }
}

/* ---- Callers who do not repeat what failed --------------------------------------------------- */

static tamis_status begin_step(scenario *s, tamis_sequence id, uint32_t n, bool exact) {
    const tamis_step step = {.sequences = &id, .rows = &n, .count = 1, .exact = exact};
    return tamis_plan_step_begin(s->e.w.plan, &step, &test_error);
}

static void open_case(scenario *s, const char *name) {
    uint32_t i = 0;
    while (i < scenario_case_count && strcmp(scenario_cases[i].name, name) != 0)
        i++;
    assert_true(i < scenario_case_count);
    scenario_open(s, &scenario_cases[i]);
}

/* A write of a row that takes a token's place fails half way, and its step is given up: only the
 * same step may follow, which takes that place again. */
static void run_half_written(const char *name, int sound_calls) {
    enum { PROMPT = 30, TEXT = 300 };
    scenario s;
    open_case(&s, name);
    tms_device *dev = s.e.w.context->dev;
    tamis_plan *plan = s.e.w.plan;
    const tamis_rows k = {.buffer = s.e.w.k}, v = {.buffer = s.e.w.v};
    const uint64_t token = TEXT + PROMPT;
    tamis_sequence id = evict_add(&s.e, TEXT, PROMPT);
    OK(tamis_plan_evict(plan, id, NULL, &test_error));
    OK(begin_step(&s, id, 1, false));
    test_fill_kv(&s.e.w, 0, &token, 1);
    faulty_begin(dev, sound_calls, FAULTY_BEFORE);
    FAILS(tamis_plan_write(plan, 0, &k, &v, &test_error), FAULTY_STATUS, FAULTY_TEXT);
    faulty_pause(dev);
    OK(tamis_plan_step_cancel(plan, &test_error));
    FAILS(begin_step(&s, id, 1, true), TAMIS_E_STATE, "a step that was given up");
    FAILS(tamis_plan_evict(plan, id, NULL, &test_error), TAMIS_E_STATE, "given up");
    evict_decode(&s.e, id, token, 3, NULL);
    held h = evict_read(&s.e, id);
    held_check(&h, TEXT, PROMPT + 3);
    held_free(&h);
    scenario_close(&s);
}

static void a_half_written_row_in_place_is_not_lost(void **state) {
    (void)state;
    run_half_written("streaming", 1); /* after replace: write_rows */
    run_half_written("streaming", 2); /* bounds */
    run_half_written("knorm", 3);     /* score_rows */
}

/* The weights of a layer's rows did not all come to its scores, and the step is ended all the same:
 * nothing is chosen by such scores. */
static void run_half_fed(const char *name) {
    enum { PROMPT = 30, TEXT = 300 };
    const uint64_t at = TEXT;
    scenario s;
    open_case(&s, name);
    tms_device *dev = s.e.w.context->dev;
    const tamis_rows q = {.buffer = s.e.w.q}, out = {.buffer = s.e.w.out};
    uint64_t tokens[PROMPT];
    tamis_sequence id = evict_add(&s.e, 0, 0);
    for (uint32_t i = 0; i < PROMPT; i++)
        tokens[i] = at + i;
    OK(begin_step(&s, id, PROMPT, true));
    evict_layer(&s.e, 0, tokens, PROMPT, NULL);
    test_write(&s.e.w, 1, tokens, PROMPT);
    evict_fill_queries(&s.e, 1, tokens, PROMPT);
    faulty_begin(dev, 1, FAULTY_BEFORE); /* after attend: observe */
    FAILS(tamis_plan_attend(s.e.w.plan, 1, &q, &out, &test_error), FAULTY_STATUS, FAULTY_TEXT);
    assert_int_equal(faulty_failed(), FAULTY_observe);
    faulty_pause(dev);
    OK(tamis_plan_step_end(s.e.w.plan, &test_error));
    FAILS(tamis_plan_evict(s.e.w.plan, id, NULL, &test_error), TAMIS_E_STATE,
          "have left no scores");
    scenario_close(&s);
}

static void half_added_scores_choose_nothing(void **state) {
    (void)state;
    run_half_fed("h2o between");
    run_half_fed("tova");
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_failing_call_repeats_to_the_same_end),
        cmocka_unit_test(a_plan_that_fails_leaves_nothing),
        cmocka_unit_test(a_half_written_row_in_place_is_not_lost),
        cmocka_unit_test(half_added_scores_choose_nothing),
    };
    int skip = test_begin(argc, argv);
    if (argc > 2) share = (uint32_t)atoi(argv[2]);
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
