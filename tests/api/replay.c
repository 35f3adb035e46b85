/* SPDX-License-Identifier: Apache-2.0 */
/* Fixed launches: decode steps give the same bits as an ordinary plan's, called layer by layer and, on
 * CUDA, replayed from one recorded graph. */
#include "tests/api/fixture.h"

#include <stdlib.h>
#include <string.h>

enum { SEQUENCES = 2, LAYERS = 2, STEPS = 40 };
static const uint32_t prompt_rows[SEQUENCES] = {5, 60};
static uint64_t tokens[65 + SEQUENCES * STEPS];

typedef struct side {
    test_world w;
    tamis_sequence ids[SEQUENCES];
} side;

static tamis_plan_params plan_params(int fixed) {
    return (tamis_plan_params){
        .selection = {.kind = TAMIS_SELECT_QUEST, .budget = 32, .sinks = 8, .recent = 8},
        .max_sequences = SEQUENCES,
        .max_rows = 80,
        .max_context = 128,
        .fixed_launches = fixed};
}

static void open_side(side *s, int fixed) {
    tamis_cache_params shape = test_shape();
    tamis_plan_params params = plan_params(fixed);
    test_open(&s->w, &shape, &params);
    for (uint32_t i = 0; i < SEQUENCES; i++)
        OK(tamis_cache_add(s->w.cache, &s->ids[i], &test_error));
    tamis_step prompt = {
        .sequences = s->ids, .rows = prompt_rows, .count = SEQUENCES, .exact = 1};
    OK(test_step(&s->w, &prompt, tokens));
}

/* Every layer has its place in the buffers: SEQUENCES rows of `heads` heads. */
static tamis_rows place(const side *s, tamis_buffer *buffer, uint32_t layer, uint32_t heads) {
    return (tamis_rows){.buffer = buffer,
                        .offset = (uint64_t)layer * SEQUENCES * heads * s->w.shape.head_dim * 4};
}

static void fill(side *s, tamis_buffer *buffer, uint32_t heads, uint32_t which,
                 const uint64_t *step_tokens) {
    uint32_t dim = s->w.shape.head_dim;
    float *to = s->w.host;
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t i = 0; i < SEQUENCES; i++)
            for (uint32_t h = 0; h < heads; h++)
                for (uint32_t d = 0; d < dim; d++)
                    *to++ = test_value(step_tokens[i], layer * heads + h, which, d) / 2;
    OK(tamis_buffer_write(buffer, 0, s->w.host, (uint64_t)(to - s->w.host) * sizeof *to));
}

/* The inputs of a step, for all layers, and its beginning. */
static void begin(side *s, uint32_t step) {
    const uint64_t *step_tokens = tokens + 65 + SEQUENCES * step;
    fill(s, s->w.k, s->w.shape.n_kv_heads, 0, step_tokens);
    fill(s, s->w.v, s->w.shape.n_kv_heads, 1, step_tokens);
    fill(s, s->w.q, s->w.shape.n_heads, 2, step_tokens);
    tamis_step in = {.sequences = s->ids, .count = SEQUENCES};
    OK(tamis_plan_step_begin(s->w.plan, &in, &test_error));
}

static void run_layers(side *s) {
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        tamis_rows k = place(s, s->w.k, layer, s->w.shape.n_kv_heads);
        tamis_rows v = place(s, s->w.v, layer, s->w.shape.n_kv_heads);
        tamis_rows q = place(s, s->w.q, layer, s->w.shape.n_heads);
        tamis_rows out = place(s, s->w.out, layer, s->w.shape.n_heads);
        OK(tamis_plan_write(s->w.plan, layer, &k, &v, &test_error));
        OK(tamis_plan_attend(s->w.plan, layer, &q, &out, &test_error));
    }
}

static void expect_same(side *a, side *b, uint32_t step) {
    uint64_t n = (uint64_t)LAYERS * SEQUENCES * a->w.shape.n_heads * a->w.shape.head_dim;
    OK(tamis_plan_step_end(a->w.plan, &test_error));
    OK(tamis_plan_step_end(b->w.plan, &test_error));
    OK(tamis_buffer_read(a->w.out, 0, a->w.host, n * sizeof(float)));
    OK(tamis_buffer_read(b->w.out, 0, b->w.host, n * sizeof(float)));
    for (uint64_t i = 0; i < n; i++)
        if (memcmp(&a->w.host[i], &b->w.host[i], sizeof(float)) != 0)
            fail_msg("step %u, element %llu: %a and %a", step, (unsigned long long)i,
                     (double)a->w.host[i], (double)b->w.host[i]);
}

/* All that the fixed side's steps did is counted as the ordinary side's, but for the path of short
 * contexts. */
static void expect_counts(const side *plain, const side *fixed) {
    tamis_plan_counters p, f;
    tamis_plan_get_counters(plain->w.plan, &p);
    tamis_plan_get_counters(fixed->w.plan, &f);
    assert_int_equal(f.rows_selected, (uint64_t)LAYERS * SEQUENCES * STEPS);
    assert_int_equal(f.rows_short, 0);
    assert_int_equal(f.steps, p.steps);
    assert_int_equal(f.rows_written, p.rows_written);
    assert_int_equal(f.pages_bounded, p.pages_bounded);
    assert_int_equal(f.kv_bytes_read, p.kv_bytes_read);
    assert_true(f.pages_bounded > 0 && f.kv_bytes_read < f.kv_bytes_full);
}

static void test_called(void **state) {
    (void)state;
    side plain, fixed;
    open_side(&plain, 0);
    open_side(&fixed, 1);
    for (uint32_t step = 0; step < STEPS; step++) {
        begin(&plain, step);
        run_layers(&plain);
        begin(&fixed, step);
        run_layers(&fixed);
        expect_same(&plain, &fixed, step);
    }
    expect_counts(&plain, &fixed);
    test_close(&plain.w);
    test_close(&fixed.w);
}

static void test_refused(void **state) {
    (void)state;
    side plain, fixed;
    tamis_plan_params random = plan_params(1);
    tamis_plan *plan = NULL;
    uint32_t two[] = {2, 1};
    open_side(&plain, 0);
    open_side(&fixed, 1);
    random.selection.kind = TAMIS_SELECT_RANDOM;
    FAILS(tamis_plan_create(fixed.w.cache, &random, &plan, &test_error), TAMIS_E_UNSUPPORTED,
          "selection random");
    tamis_step in = {.sequences = fixed.ids, .rows = two, .count = SEQUENCES};
    FAILS(tamis_plan_step_begin(fixed.w.plan, &in, &test_error), TAMIS_E_ARGUMENT,
          "brings 2 rows");
    FAILS(tamis_plan_step_replayed(NULL, &test_error), TAMIS_E_ARGUMENT, "plan");
    FAILS(tamis_plan_step_replayed(fixed.w.plan, &test_error), TAMIS_E_STATE, "no open step");
    begin(&plain, 0);
    FAILS(tamis_plan_step_replayed(plain.w.plan, &test_error), TAMIS_E_STATE, "fixed_launches");
    in.exact = 1;
    OK(tamis_plan_step_begin(fixed.w.plan, &in, &test_error));
    FAILS(tamis_plan_step_replayed(fixed.w.plan, &test_error), TAMIS_E_STATE, "exact");
    OK(tamis_plan_step_cancel(fixed.w.plan, &test_error));
    begin(&fixed, 0);
    run_layers(&fixed);
    FAILS(tamis_plan_step_replayed(fixed.w.plan, &test_error), TAMIS_E_STATE, "layer 0");
    OK(tamis_plan_step_end(fixed.w.plan, &test_error));
    test_close(&plain.w);
    test_close(&fixed.w);
}

static bool has_graphs(const side *s) {
    return strcmp(tamis_context_device(s->w.context)->backend, "cuda") == 0;
}

/* One graph, of the first step's layers, runs in every step. */
static void test_graph(void **state) {
    (void)state;
    side plain, fixed;
    tamis_graph *graph = NULL;
    open_side(&plain, 0);
    open_side(&fixed, 1);
    for (uint32_t step = 0; has_graphs(&fixed) && step < STEPS; step++) {
        begin(&plain, step);
        run_layers(&plain);
        begin(&fixed, step);
        if (step == 0) {
            OK(tamis_graph_begin(fixed.w.context, &test_error));
            run_layers(&fixed);
            OK(tamis_graph_end(fixed.w.context, &graph, &test_error));
        } else {
            OK(tamis_plan_step_replayed(fixed.w.plan, &test_error));
        }
        OK(tamis_graph_launch(graph, &test_error));
        expect_same(&plain, &fixed, step);
    }
    if (has_graphs(&fixed)) expect_counts(&plain, &fixed);
    tamis_graph_destroy(&graph);
    assert_null(graph);
    test_close(&plain.w);
    test_close(&fixed.w);
}

static void test_graph_refused(void **state) {
    (void)state;
    side s;
    tamis_graph *graph = (tamis_graph *)&s;
    float read;
    open_side(&s, 1);
    FAILS(tamis_graph_begin(NULL, &test_error), TAMIS_E_ARGUMENT, "context");
    FAILS(tamis_graph_end(s.w.context, NULL, &test_error), TAMIS_E_ARGUMENT, "out");
    FAILS(tamis_graph_launch(NULL, &test_error), TAMIS_E_ARGUMENT, "graph");
    tamis_graph_destroy(NULL);
    if (has_graphs(&s)) {
        FAILS(tamis_graph_end(s.w.context, &graph, &test_error), TAMIS_E_STATE, "not recording");
        assert_null(graph);
        OK(tamis_graph_begin(s.w.context, &test_error));
        FAILS(tamis_graph_begin(s.w.context, &test_error), TAMIS_E_STATE, "already");
        test_error = (tamis_error){0};
        assert_int_not_equal(tamis_buffer_read(s.w.q, 0, &read, sizeof read), TAMIS_OK);
    } else {
        FAILS(tamis_graph_begin(s.w.context, &test_error), TAMIS_E_UNSUPPORTED,
              "records no graphs");
    }
    test_close(&s.w);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_called),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_graph),
        cmocka_unit_test(test_graph_refused),
    };
    for (uint32_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
        tokens[i] = 7000 + i;
    int skipped = test_begin(argc, argv);
    return skipped ? skipped : cmocka_run_group_tests(tests, NULL, NULL);
}
