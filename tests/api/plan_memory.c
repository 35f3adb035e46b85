/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan takes is what was measured before; page tables follow lanes that become longer than the
 * cache's room for all. */
#include "tests/api/evicting.h"
#include "tests/faulty.h"

#include <stdlib.h>
#include <string.h>

/* ---- Measured and taken ---------------------------------------------------------------------- */

typedef struct wanted {
    tamis_selection_kind selection;
    tamis_eviction_kind eviction;
    uint32_t flags, load_dtypes, window;
    bool sinks;
} wanted;

static const wanted cases[] = {
    {TAMIS_SELECT_FULL, TAMIS_EVICT_NONE, 0, 0, 0, false},
    {TAMIS_SELECT_QUEST, TAMIS_EVICT_NONE, TAMIS_PLAN_ROW_MASSES, 1u << TAMIS_F16, 0, true},
    {TAMIS_SELECT_ORACLE, TAMIS_EVICT_NONE, TAMIS_PLAN_GIVE_BACK, 0, 40, false},
    {TAMIS_SELECT_RANDOM, TAMIS_EVICT_SNAPKV, TAMIS_PLAN_TREES, 0, 24, true},
    {TAMIS_SELECT_QUEST, TAMIS_EVICT_ANDPRO, 0, 0, 0, false},
    {TAMIS_SELECT_FULL, TAMIS_EVICT_H2O, TAMIS_PLAN_VERIFY, 0, 0, false},
    {TAMIS_SELECT_FULL, TAMIS_EVICT_TOVA, 0, 1u << TAMIS_F32, 0, true},
    {TAMIS_SELECT_FULL, TAMIS_EVICT_STREAMING, TAMIS_PLAN_FIXED_LAUNCHES, 0, 0, false},
    {TAMIS_SELECT_FULL, TAMIS_EVICT_NONE, TAMIS_PLAN_FIXED_LAUNCHES, 0, 0, false},
    {TAMIS_SELECT_CALLER, TAMIS_EVICT_H2O, 0, 0, 0, true},
    {TAMIS_SELECT_CALLER, TAMIS_EVICT_NONE, TAMIS_PLAN_TOKEN_LISTS | TAMIS_PLAN_HALF_ROWS, 0, 24,
     false}};

static tamis_plan_params params_of(const wanted *w, tamis_buffer *sinks) {
    tamis_plan_params p = {.max_sequences = 3,
                           .max_rows = 48,
                           .max_context = 160,
                           .max_selected_rows = 6,
                           .flags = w->flags,
                           .load_dtypes = w->load_dtypes,
                           .attention = {.sliding_window = w->window}};
    tamis_selection_default(w->selection, &p.selection);
    if (w->selection == TAMIS_SELECT_FULL) p.selection = (tamis_selection){0};
    if (w->selection != TAMIS_SELECT_FULL) p.selection.budget = 64;
    if (w->eviction) p.eviction = test_eviction(w->eviction, 48, 0);
    if (w->flags & TAMIS_PLAN_FIXED_LAUNCHES) p.eviction.every = 0;
    if (w->sinks) p.attention.sinks.buffer = sinks;
    return p;
}

/* The device's own count of what a plan takes is that which was measured. */
static void check_case(tamis_context *c, tamis_cache *cache, const tamis_plan_params *p) {
    tamis_plan *plan = NULL;
    tamis_plan_memory before, after;
    faulty_begin(c->dev, -1, FAULTY_BEFORE);
    OK(tamis_plan_measure(cache, p, &before, &test_error));
    assert_int_equal(faulty_calls(), 0);
    faulty_pause(c->dev);
    OK(tamis_plan_create(cache, p, &plan, &test_error));
    OK(tamis_plan_get_memory(plan, &after, &test_error));
    assert_memory_equal(&before, &after, sizeof before);
    assert_true(before.device_bytes > before.largest_bytes && before.largest_bytes > 0);
    assert_true(before.host_bytes > 0);
    tamis_plan_destroy(&plan);
}

static void plans_take_what_was_measured(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const tamis_context_params context = {.device = test_device};
        const tamis_eviction eviction = test_eviction(cases[i].eviction, 48, 0);
        tamis_cache_params shape = test_shape();
        tamis_context *c = NULL;
        tamis_cache *cache = NULL;
        tamis_buffer *sinks = NULL;
        if (cases[i].eviction) shape.planes = tamis_eviction_planes(&eviction);
        OK(tamis_context_create(&context, &c, &test_error));
        OK(tamis_cache_create(c, &shape, &cache, &test_error));
        OK(tamis_buffer_create(c, 64, &sinks, &test_error));
        const tamis_plan_params p = params_of(&cases[i], sinks);
        check_case(c, cache, &p);
        tamis_buffer_destroy(&sinks);
        tamis_cache_destroy(&cache);
        tamis_context_destroy(&c);
    }
}

/* A plan beside a small cache is small, however long a context it allows. */
static void small_caches_have_small_plans(void **state) {
    tamis_cache_params shape = test_shape();
    const tamis_plan_params plan = {.max_context = 64};
    tamis_plan_params longer = {.max_context = 1u << 20, .max_sequences = 64};
    tamis_plan_memory memory;
    evict_world e;
    (void)state;
    evict_open(&e, &shape, &plan);
    OK(tamis_plan_measure(e.w.cache, &longer, &memory, &test_error));
    assert_true(memory.device_bytes < 16u << 20 && memory.host_bytes < 16u << 20);
    evict_close(&e);
}

static void bad_calls_are_refused(void **state) {
    const tamis_cache_params shape = test_shape();
    const tamis_plan_params plan = {.max_context = 64};
    tamis_plan_params bad = {.max_context = 0};
    tamis_plan_memory memory = {.device_bytes = 7};
    evict_world e;
    (void)state;
    evict_open(&e, &shape, &plan);
    FAILS(tamis_plan_measure(e.w.cache, &bad, &memory, &test_error), TAMIS_E_ARGUMENT,
          "max_context is 0");
    FAILS(tamis_plan_measure(e.w.cache, &plan, NULL, &test_error), TAMIS_E_ARGUMENT, "out is NULL");
    FAILS(tamis_plan_measure(NULL, &plan, &memory, &test_error), TAMIS_E_ARGUMENT, "cache is NULL");
    FAILS(tamis_plan_get_memory(NULL, &memory, &test_error), TAMIS_E_ARGUMENT, "plan is NULL");
    assert_int_equal(memory.device_bytes, 7);
    evict_close(&e);
}

/* A cache of so many bytes has no number of tokens. */
static void caches_of_bytes_have_tables(void **state) {
    tamis_cache_params shape = test_shape();
    const tamis_plan_params plan = {.max_context = 1024};
    evict_world e;
    (void)state;
    shape.capacity_tokens = 0;
    shape.capacity_bytes = 1u << 20;
    evict_open(&e, &shape, &plan);
    const tamis_sequence id = evict_add(&e, 1000, 100);
    assert_int_equal(evict_length(&e, id, 0, 0), 100);
    evict_close(&e);
}

/* ---- Longer lanes ---------------------------------------------------------------------------- */

#define PROMPT 40u
#define MORE   72u

/* One lane keeps all, the others their last four tokens; then it becomes longer than the cache has room for
 * in all lanes. */
static void grow_one_lane(evict_world *e, float *outs) {
    uint32_t slots[4][PROMPT], counts[4] = {PROMPT, 4, 4, 4};
    const tamis_sequence id = evict_add(e, 1000, PROMPT);
    for (uint32_t lane = 0; lane < 4; lane++)
        for (uint32_t i = 0; i < counts[lane]; i++)
            slots[lane][i] = PROMPT - counts[lane] + i;
    OK(tamis_plan_evict_to(e->w.plan, id, slots[0], counts, PROMPT, NULL, &test_error));
    evict_decode(e, id, 1000 + PROMPT, MORE, outs);
    assert_int_equal(evict_length(e, id, 0, 0), PROMPT + MORE);
}

static void tables_follow_long_lanes(void **state) {
    tamis_cache_params shape = test_shape();
    const tamis_plan_params plan = {.max_context = 160,
                                    .eviction = test_eviction(TAMIS_EVICT_CALLER, 48, 0)};
    tamis_plan_memory narrow, wide, other;
    evict_world small, large;
    (void)state;
    shape.capacity_tokens = 88; /* 11 pages; one lane gets 14 */
    evict_open(&small, &shape, &plan);
    shape.capacity_tokens = 200;
    evict_open(&large, &shape, &plan);
    OK(tamis_plan_get_memory(small.w.plan, &narrow, &test_error));
    const uint64_t floats = (uint64_t)MORE * shape.n_layers * evict_out_floats(&small, 1);
    float *a = malloc(2 * floats * sizeof *a), *b = a + floats;
    assert_non_null(a);
    grow_one_lane(&small, a);
    grow_one_lane(&large, b);
    assert_memory_equal(a, b, floats * sizeof *a);
    OK(tamis_plan_get_memory(small.w.plan, &wide, &test_error));
    OK(tamis_plan_get_memory(large.w.plan, &other, &test_error));
    assert_true(narrow.device_bytes < wide.device_bytes);
    assert_true(wide.device_bytes <= other.device_bytes);
    free(a);
    evict_close(&small);
    evict_close(&large);
}

int main(int argc, char **argv) {
    const int cannot = test_begin(argc, argv);
    if (cannot) return cannot;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_take_what_was_measured),
        cmocka_unit_test(small_caches_have_small_plans), cmocka_unit_test(bad_calls_are_refused),
        cmocka_unit_test(caches_of_bytes_have_tables), cmocka_unit_test(tables_follow_long_lanes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
