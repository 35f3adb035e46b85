/* SPDX-License-Identifier: Apache-2.0 */
/* Objects that outlive what they were made from, in every order of destroying, and two threads on
 * one context: calls answer E_STATE, and nothing is used that is gone. */
#include "tests/api/fixture.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* One of each object that a context has, and a plan's open step. */
typedef struct things {
    test_world w;
    tamis_host_buffer *host;
    tamis_event *event;
    tamis_prefixes *prefixes;
    tamis_sequence id;
} things;

static const uint64_t token = 5;

static void open_things(things *t) {
    const tamis_cache_params shape = test_shape();
    const tamis_plan_params plan = {.max_context = 64};
    const uint8_t salt[16] = {0};
    const int32_t text = 1;
    test_open(&t->w, &shape, &plan);
    OK(tamis_host_buffer_create(t->w.context, 64, &t->host, &test_error));
    OK(tamis_event_record(t->w.context, &t->event, &test_error));
    OK(tamis_prefixes_create(t->w.cache, &t->prefixes, &test_error));
    OK(tamis_cache_add(t->w.cache, &t->id, &test_error));
    OK(test_append(&t->w, t->id, &token, 1));
    OK(tamis_prefixes_add(t->prefixes, t->id, &text, 1, salt, &test_error));
    OK(tamis_plan_step_begin(t->w.plan, &(tamis_step){.sequences = &t->id, .count = 1},
                             &test_error));
}

/* Destroys the n-th. */
static void destroy(things *t, int n) {
    tamis_buffer **const buffers[] = {&t->w.k, &t->w.v, &t->w.q, &t->w.out};
    if (n == 0) tamis_context_destroy(&t->w.context);
    if (n == 1) tamis_cache_destroy(&t->w.cache);
    if (n == 2) tamis_plan_destroy(&t->w.plan);
    if (n == 3) tamis_prefixes_destroy(&t->prefixes);
    if (n == 4) tamis_host_buffer_destroy(&t->host);
    if (n == 5) tamis_event_destroy(&t->event);
    for (int i = 0; i < 4 && n == 6; i++)
        tamis_buffer_destroy(buffers[i]);
}
enum { THINGS = 7 };

/* What is left answers by what is closed. */
static void expect_closed(things *t, const char *why) {
    const tamis_rows k = {.buffer = t->w.k}, out = {.buffer = t->w.out};
    const tamis_plan_params plan = {.max_context = 64};
    const uint8_t salt[16] = {0};
    const int32_t text[] = {1, 2};
    tamis_sequence fork;
    tamis_plan *other = NULL;
    uint32_t length;
    if (t->w.cache) {
        FAILS(tamis_cache_add(t->w.cache, &fork, &test_error), TAMIS_E_STATE, why);
        FAILS(tamis_plan_create(t->w.cache, &plan, &other, &test_error), TAMIS_E_STATE, why);
    }
    if (t->w.plan) {
        FAILS(tamis_plan_write(t->w.plan, 0, &k, &k, &test_error), TAMIS_E_STATE, why);
        FAILS(tamis_plan_attend(t->w.plan, 0, &k, &out, &test_error), TAMIS_E_STATE, why);
        FAILS(tamis_plan_step_end(t->w.plan, &test_error), TAMIS_E_STATE, why);
        FAILS(tamis_plan_step_cancel(t->w.plan, &test_error), TAMIS_E_STATE, why);
    }
    if (t->prefixes)
        FAILS(tamis_prefixes_fork(t->prefixes, text, 2, salt, 0, &fork, &length, &test_error),
              TAMIS_E_STATE, why);
}

static void what_outlives_its_context_answers_e_state(void **state) {
    (void)state;
    static const char why[] = "the context from which the";
    char bytes[64] = {0};
    things t = {0};
    tamis_event *event = NULL;
    open_things(&t);
    destroy(&t, 0);
    assert_null(t.w.context);
    expect_closed(&t, why);
    FAILS(tamis_buffer_write(t.w.k, 0, bytes, 64, &test_error), TAMIS_E_STATE,
          "the context from which the buffer was made has been destroyed");
    FAILS(tamis_buffer_read(t.w.k, 0, bytes, 64, &test_error), TAMIS_E_STATE, why);
    FAILS(tamis_buffer_upload(t.w.k, 0, t.host, 0, 64, NULL, &event, &test_error), TAMIS_E_STATE,
          why);
    FAILS(tamis_event_wait(t.event, &test_error), TAMIS_E_STATE, why);
    for (int i = 1; i < THINGS; i++)
        destroy(&t, i);
    assert_null(t.w.cache);
    free(t.w.host);
}

/* The cache's memory stays for the plan alone; its calls end. */
static void what_outlives_its_cache_answers_e_state(void **state) {
    (void)state;
    things t = {0};
    open_things(&t);
    tamis_cache *cache = NULL;
    destroy(&t, 1);
    expect_closed(&t, "the cache from which the");
    OK(tamis_cache_create(t.w.context, &t.w.shape, &cache, &test_error));
    tamis_cache_destroy(&cache);
    for (int i = 0; i < THINGS; i++)
        destroy(&t, i);
    free(t.w.host);
}

/* Two of them in each order, then the others. */
static void any_order_of_destroying_will_do(void **state) {
    (void)state;
    for (int first = 0; first < THINGS; first++)
        for (int second = 0; second < THINGS; second++) {
            things t = {0};
            open_things(&t);
            destroy(&t, first);
            destroy(&t, second);
            if (first < 2 || second < 2) expect_closed(&t, "has been destroyed");
            for (int i = 0; i < THINGS; i++)
                destroy(&t, i);
            free(t.w.host);
        }
}

/* A plan that is destroyed in a step gives it up: the cache goes on. */
static void a_plan_in_a_step_gives_it_up(void **state) {
    (void)state;
    const tamis_plan_params plan = {.max_context = 64};
    things t = {0};
    uint32_t length;
    open_things(&t);
    destroy(&t, 2);
    OK(tamis_cache_length(t.w.cache, t.id, &length, NULL, &test_error));
    assert_int_equal(length, 1);
    OK(tamis_plan_create(t.w.cache, &plan, &t.w.plan, &test_error));
    OK(test_append(&t.w, t.id, &token, 1));
    for (int i = THINGS - 1; i >= 0; i--)
        destroy(&t, i);
    free(t.w.host);
}

/* ---- Threads --------------------------------------------------------------------------------- */

/* Calls of another thread while the first is in the context. NULL: each was refused. */
static void *try_calls(void *user) {
    static const char busy[] =
        "another thread is in a call on the context of this plan: one thread";
    things *t = user;
    char bytes[64] = {0};
    uint32_t length;
    tamis_error error;
    const tamis_status got[] = {
        tamis_context_wait(t->w.context, NULL),
        tamis_context_enter(t->w.context, NULL),
        tamis_buffer_write(t->w.k, 0, bytes, 64, NULL),
        tamis_cache_length(t->w.cache, t->id, &length, NULL, NULL),
        tamis_event_wait(t->event, NULL),
    };
    for (size_t i = 0; i < sizeof got / sizeof *got; i++)
        if (got[i] != TAMIS_E_STATE) return user;
    if (tamis_plan_step_end(t->w.plan, &error) != TAMIS_E_STATE) return user;
    return strstr(error.text, busy) ? NULL : user;
}

static void *destroy_buffers(void *user) {
    destroy(user, 6);
    return NULL;
}

static void *destroy_all(void *user) {
    things *t = user;
    for (int i = 0; i < THINGS; i++)
        destroy(t, i);
    return NULL;
}

static void a_second_thread_is_refused(void **state) {
    (void)state;
    things t = {0};
    pthread_t thread;
    void *result = NULL;
    open_things(&t);
    FAILS(tamis_context_enter(NULL, &test_error), TAMIS_E_ARGUMENT, "context: NULL");
    tamis_context_leave(NULL);
    for (int nested = 0; nested < 2; nested++)
        OK(tamis_context_enter(t.w.context, &test_error));
    assert_int_equal(pthread_create(&thread, NULL, try_calls, &t), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_null(result);
    tamis_context_leave(t.w.context);
    /* Still in it: its own calls go on, and another thread's destroying waits. */
    OK(tamis_plan_step_cancel(t.w.plan, &test_error));
    assert_int_equal(pthread_create(&thread, NULL, destroy_buffers, &t), 0);
    OK(tamis_context_wait(t.w.context, &test_error));
    tamis_context_leave(t.w.context);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_null(t.w.k);
    /* Nobody is in it: it goes from thread to thread. */
    assert_int_equal(pthread_create(&thread, NULL, destroy_all, &t), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    free(t.w.host);
}

/* A context that its own thread destroys while it is in it ends when it is left. */
static void a_context_is_left_after_it_was_closed(void **state) {
    (void)state;
    things t = {0};
    open_things(&t);
    tamis_context *context = t.w.context;
    OK(tamis_context_enter(context, &test_error));
    for (int i = 0; i < THINGS; i++)
        destroy(&t, i);
    FAILS(tamis_context_wait(context, &test_error), TAMIS_E_STATE,
          "the context has been destroyed");
    tamis_context_leave(context);
    free(t.w.host);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_outlives_its_context_answers_e_state),
        cmocka_unit_test(what_outlives_its_cache_answers_e_state),
        cmocka_unit_test(any_order_of_destroying_will_do),
        cmocka_unit_test(a_plan_in_a_step_gives_it_up),
        cmocka_unit_test(a_second_thread_is_refused),
        cmocka_unit_test(a_context_is_left_after_it_was_closed),
    };
    int skip = test_begin(argc, argv);
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
