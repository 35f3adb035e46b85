/* SPDX-License-Identifier: Apache-2.0 */
/* Layers that attend differently: each gives the bits of a plan whose layers all attend as it does,
 * for prompts and decode steps, with and without a selection. */
#include "tests/api/fixture.h"

#include <math.h>

#include <stdlib.h>
#include <string.h>

enum { LAYERS = 5, DIM = 64, HEADS = 4, PROMPT = 75, STEPS = 3, ROWS = PROMPT + STEPS };

static const tamis_layer layers[LAYERS] = {
    {.attention = {.sliding_window = 40}},
    {.full = 0},
    {.attention = {.scale = 0.5f, .soft_cap = 3}},
    {.attention = {.sliding_window = 7, .soft_cap = 2}},
    {.attention = {.sliding_window = 40, .scale = -0.25f}},
};

static tamis_cache_params shape(void) {
    tamis_cache_params s = test_shape();
    s.n_layers = LAYERS;
    s.page_size = 16;
    s.capacity_tokens = 512;
    return s;
}

static void fill_queries(test_world *w, uint32_t layer, uint32_t first, uint32_t n) {
    for (uint32_t i = 0; i < n * HEADS * DIM; i++)
        w->host[i] = test_value(first + i / (HEADS * DIM), layer + i / DIM % HEADS, 0, i % DIM);
    OK(tamis_buffer_write(w->q, 0, w->host, n * HEADS * DIM * sizeof *w->host, &test_error));
}

/* Rows [first, first + n) of every layer; outputs go to out [LAYERS][ROWS][HEADS][DIM]. */
static void run_step(test_world *w, tamis_sequence id, uint32_t first, uint32_t n, float *out) {
    const tamis_step step = {.sequences = &id, .rows = &n, .count = 1, .exact = n > 1};
    const tamis_rows q = {.buffer = w->q}, to = {.buffer = w->out};
    uint64_t tokens[ROWS];
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = first + i;
    OK(tamis_plan_step_begin(w->plan, &step, &test_error));
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        test_write(w, layer, tokens, n);
        fill_queries(w, layer, first, n);
        OK(tamis_plan_attend(w->plan, layer, &q, &to, &test_error));
        OK(tamis_buffer_read(w->out, 0, out + ((uint64_t)layer * ROWS + first) * HEADS * DIM,
                             n * HEADS * DIM * sizeof *out, &test_error));
    }
    OK(tamis_plan_step_end(w->plan, &test_error));
}

/* A prompt and decode steps. `read` gets the bytes that the decode steps read. */
static float *run(const tamis_plan_params *plan, uint64_t *read) {
    const tamis_cache_params s = shape();
    float *out = calloc((size_t)LAYERS * ROWS * HEADS * DIM, sizeof *out);
    tamis_plan_counters counters;
    tamis_sequence id;
    test_world w;
    assert_non_null(out);
    test_open(&w, &s, plan);
    OK(tamis_cache_add(w.cache, &id, &test_error));
    const uint32_t builds = test_builds;
    run_step(&w, id, 0, PROMPT, out);
    for (uint32_t i = 0; i < STEPS; i++)
        run_step(&w, id, PROMPT + i, 1, out);
    /* Every kernel was there when the plan was made, but for plain writes (none here rotates). */
    assert_int_equal(test_builds, builds);
    tamis_plan_get_counters(w.plan, &counters);
    *read = counters.kv_bytes_read;
    test_close(&w);
    return out;
}

static void expect_layers(const tamis_plan_params *mixed, const tamis_layer *of) {
    uint64_t read = 0, sum = 0;
    float *got = run(mixed, &read);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const tamis_attention *a = &of[layer].attention;
        tamis_plan_params alike = *mixed;
        uint64_t own = 0;
        alike.layers = NULL;
        alike.attention = *a;
        if (of[layer].full) alike.selection = (tamis_selection){0};
        float *wanted = run(&alike, &own);
        const size_t at = (size_t)layer * ROWS * HEADS * DIM;
        assert_memory_equal(got + at, wanted + at, ROWS * HEADS * DIM * sizeof *got);
        sum += own / LAYERS;
        free(wanted);
    }
    assert_int_equal(read, sum);
    free(got);
}

static void layers_attend_as_they_are_told(void **state) {
    (void)state;
    const tamis_plan_params plan = {.max_rows = PROMPT, .max_context = 256, .layers = layers};
    expect_layers(&plan, layers);
}

/* A selection serves those layers that are not full. */
static void a_selection_leaves_full_layers(void **state) {
    (void)state;
    tamis_layer own[LAYERS];
    memcpy(own, layers, sizeof own);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        own[layer].full = own[layer].attention.sliding_window != 0;
    tamis_plan_params plan = {.max_rows = PROMPT, .max_context = 256, .layers = own};
    tamis_selection_default(TAMIS_SELECT_QUEST, &plan.selection);
    plan.selection.budget = 64;
    plan.selection.recent = 16;
    expect_layers(&plan, own);
}

static void what_a_layer_cannot_do_is_refused(void **state) {
    (void)state;
    const tamis_cache_params s = shape();
    tamis_layer own[LAYERS];
    const tamis_plan_params sound = {.max_context = 256, .layers = own};
    tamis_plan_params p, have;
    tamis_plan *plan = NULL;
    test_world w;
    memcpy(own, layers, sizeof own);
    test_open(&w, &s, &sound);
    tamis_plan_get_params(w.plan, &have);
    assert_ptr_not_equal(have.layers, own); /* the plan's copy */
    assert_true(have.layers[3].attention.sliding_window == 7);
    assert_true(have.layers[1].attention.scale == 0.125f); /* 1/sqrt(64) */
#define REFUSED(change, code, part)                                                                \
    p = sound;                                                                                     \
    memcpy(own, layers, sizeof own);                                                               \
    change;                                                                                        \
    FAILS(tamis_plan_create(w.cache, &p, &plan, &test_error), code, part);                         \
    assert_null(plan)
    REFUSED(p.attention.scale = 1, TAMIS_E_ARGUMENT, "beside an attention: scale 1, soft_cap 0,");
    REFUSED(p.attention.sliding_window = 9, TAMIS_E_ARGUMENT, "sliding_window 9");
    REFUSED(own[3].attention.scale = INFINITY, TAMIS_E_ARGUMENT, "layer 3: scale inf");
    REFUSED(own[4].attention.soft_cap = -2, TAMIS_E_ARGUMENT, "layer 4: soft_cap -2");
    REFUSED(own[2].attention.reserved[3] = 1, TAMIS_E_ARGUMENT,
            "layer 2: a reserved field of tamis_attention");
    REFUSED(own[2].attention.sinks = ((tamis_place){w.q, 2}), TAMIS_E_ARGUMENT,
            "layer 2: sinks: offset 2: not a multiple of 4");
    REFUSED(own[0].attention.sinks = ((tamis_place){w.q, tamis_buffer_bytes(w.q) - 12}),
            TAMIS_E_ARGUMENT, "layer 0: sinks: 16 bytes from byte");
    REFUSED(own[1].reserved[4] = 1, TAMIS_E_ARGUMENT, "reserved field of layer 1");
#undef REFUSED
    test_close(&w);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_attend_as_they_are_told),
        cmocka_unit_test(a_selection_leaves_full_layers),
        cmocka_unit_test(what_a_layer_cannot_do_is_refused),
    };
    const int skip = test_begin(argc, argv);
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
