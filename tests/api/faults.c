/* SPDX-License-Identifier: Apache-2.0 */
/* Devices that fail: at the n-th allocation, in the middle of a step's upload, or for good. */
#include "lib/cache/cache.h"
#include "tests/api/fixture.h"

#include <string.h>

/* The device's table with one call that fails when its countdown is at 0. */
static const tms_backend *sound;
static tms_backend faulty;
static int countdown;
static unsigned calls;

static bool fails_now(void) {
    calls++;
    return countdown-- == 0;
}

static tamis_status refuse(tms_device *dev) {
    return tms_device_fail(dev, TAMIS_E_NO_MEMORY, "refused by the test");
}

static tamis_status alloc(tms_device *dev, uint64_t bytes, tms_mem **out) {
    return fails_now() ? refuse(dev) : sound->alloc(dev, bytes, out);
}

static tamis_status write(tms_device *dev, tms_ref to, const void *from, uint64_t bytes) {
    return fails_now() ? refuse(dev) : sound->write(dev, to, from, bytes);
}

static tamis_status write_table(tms_device *dev, const tms_write_table *p) {
    return fails_now() ? refuse(dev) : sound->write_table(dev, p);
}

static tamis_status copy_pages(tms_device *dev, const tms_copy_pages *p) {
    return fails_now() ? refuse(dev) : sound->copy_pages(dev, p);
}

static void make_faulty(tms_device *dev, int sound_calls) {
    faulty = *dev->backend;
    sound = dev->backend;
    countdown = sound_calls;
    calls = 0;
    dev->backend = &faulty;
}

static void make_sound(tms_device *dev) {
    dev->backend = sound;
}

static void test_allocations(void **state) {
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
    for (int n = 0; n < 2; n++) {
        make_faulty(dev, n);
        faulty.alloc = alloc;
        FAILS(tamis_cache_create(w.context, &shape, &cache, &test_error), TAMIS_E_NO_MEMORY,
              "test");
        assert_null(cache);
        make_sound(dev);
    }
    make_faulty(dev, 1000);
    faulty.alloc = alloc;
    OK(tamis_plan_create(w.cache, &plan, &made, &test_error));
    make_sound(dev);
    unsigned allocations = calls;
    assert_true(allocations >= 5);
    tamis_plan_destroy(&made);
    for (unsigned n = 0; n < allocations; n++) {
        make_faulty(dev, (int)n);
        faulty.alloc = alloc;
        FAILS(tamis_plan_create(w.cache, &plan, &made, &test_error), TAMIS_E_NO_MEMORY, "test");
        assert_null(made);
        make_sound(dev);
    }
    test_close(&w);
}

/* A begin whose upload fails leaves lengths, pages and sharing as they were; the next one works. */
static void begin_fails(test_world *w, const tamis_sequence *ids, const uint64_t *tokens,
                        int sound_calls) {
    tms_device *dev = w->context->dev;
    tamis_step step = {.sequences = ids, .count = 2};
    tamis_cache_stats before = test_stats(w);
    tamis_sequence_stats one;
    countdown = sound_calls;
    FAILS(tamis_plan_step_begin(w->plan, &step, &test_error), TAMIS_E_NO_MEMORY, "test");
    make_sound(dev);
    test_unchanged(w, &before);
    for (uint32_t i = 0; i < 2; i++) {
        OK(tamis_cache_get_sequence_stats(w->cache, ids[i], &one));
        assert_true(one.length == 12 && one.pages_shared == 8);
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

static void test_uploads(void **state) {
    (void)state;
    uint64_t tokens[16];
    for (uint32_t i = 0; i < 16; i++)
        tokens[i] = 10 + i;
    for (int kind = 0; kind < 4; kind++) {
        test_world w;
        tamis_cache_params shape = test_shape();
        tamis_plan_params plan = {.max_sequences = 2, .max_context = 128, .max_rows = 16};
        tamis_sequence ids[2];
        test_open(&w, &shape, &plan);
        OK(tamis_cache_add(w.cache, &ids[0], &test_error));
        OK(test_append(&w, ids[0], tokens, 12));
        OK(tamis_cache_fork(w.cache, ids[0], &ids[1], &test_error));
        make_faulty(w.context->dev, 0);
        faulty.write = kind < 2 ? write : faulty.write;
        faulty.write_table = kind == 2 ? write_table : faulty.write_table;
        faulty.copy_pages = kind == 3 ? copy_pages : faulty.copy_pages;
        begin_fails(&w, ids, tokens, kind == 1 ? 1 : 0);
        test_close(&w);
    }
}

/* A device error that arrived late stays: every later call that needs the device returns it. */
static void test_sticky(void **state) {
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
        assert_int_equal(tamis_buffer_write(w.k, 0, row, 4), TAMIS_E_DEVICE);
        assert_int_equal(tamis_buffer_read(w.k, 0, row, 4), TAMIS_E_DEVICE);
    }
    test_close(&w);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allocations),
        cmocka_unit_test(test_uploads),
        cmocka_unit_test(test_sticky),
    };
    int skip = test_begin(argc, argv);
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
