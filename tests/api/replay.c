/* SPDX-License-Identifier: Apache-2.0 */
/* Fixed launches: decode steps give the same bits as an ordinary plan's, called layer by layer and,
 * on CUDA, replayed from recorded graphs. */
#include "tests/api/fixture.h"

#include <string.h>

/* Most sequences that the cache holds, and of a step. */
enum { HELD = 3, SEQUENCES = 2, LAYERS = 2, PREFILL = 1500, CHUNK = LAYERS * SEQUENCES };
static const uint32_t prompt_rows[SEQUENCES] = {5, 28}; /* below the budget */
static const uint32_t in_order[] = {0, 1}, turned[] = {1, 0}, forked[] = {2, 0};

typedef struct side {
    test_world w;
    tamis_sequence ids[HELD];
    tamis_graph *graphs[SEQUENCES + 1]; /* of a step with so many sequences; NULL: none yet */
} side;

/* The same sequences on an ordinary plan and on one with fixed launches. */
typedef struct pair {
    side plain, fixed;
    bool replays;   /* the fixed side launches graphs */
    uint64_t token; /* the next one */
    uint64_t rows;  /* of decode steps so far */
} pair;

static tamis_eviction evicting; /* of both sides; all zero: none */

/* Layer 0 reads all pages, layer 1 selected ones. */
static tamis_plan_params plan_params(int fixed) {
    return (tamis_plan_params){.selection = {.kind = TAMIS_SELECT_QUEST,
                                             .budget = 32,
                                             .sinks = 8,
                                             .recent = 8,
                                             .dense_layers = 1},
                               .eviction = evicting,
                               .max_sequences = SEQUENCES,
                               .max_rows = PREFILL,
                               .max_context = 2048,
                               .flags = fixed ? TAMIS_PLAN_FIXED_LAUNCHES : 0};
}

static void open_side(side *s, int fixed, tamis_dtype dtype) {
    uint64_t tokens[33];
    tamis_cache_params shape = test_shape();
    tamis_plan_params params = plan_params(fixed);
    shape.dtype = dtype;
    shape.planes = tamis_eviction_planes(&evicting);
    shape.capacity_tokens = 2048;
    *s = (side){0};
    test_open(&s->w, &shape, &params);
    for (uint32_t i = 0; i < 33; i++)
        tokens[i] = 7000 + i;
    for (uint32_t i = 0; i < SEQUENCES; i++)
        OK(tamis_cache_add(s->w.cache, &s->ids[i], &test_error));
    tamis_step prompt = {.sequences = s->ids, .rows = prompt_rows, .count = SEQUENCES, .exact = 1};
    OK(test_step(&s->w, &prompt, tokens));
}

static void forget_graphs(side *s) {
    for (uint32_t n = 0; n <= SEQUENCES; n++)
        tamis_graph_destroy(&s->graphs[n]);
}

static void close_side(side *s) {
    forget_graphs(s);
    test_close(&s->w);
}

static bool has_graphs(const side *s) {
    return strcmp(tamis_context_device(s->w.context)->backend, "cuda") == 0;
}

/* Every layer has its place in the buffers: SEQUENCES rows of `heads` heads. */
static tamis_rows place(const side *s, tamis_buffer *buffer, uint32_t layer, uint32_t heads) {
    return (tamis_rows){.buffer = buffer,
                        .offset = (uint64_t)layer * SEQUENCES * heads * s->w.shape.head_dim * 4};
}

static void fill(side *s, tamis_buffer *buffer, uint32_t heads, uint32_t which, uint64_t token) {
    uint32_t dim = s->w.shape.head_dim;
    float *to = s->w.host;
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t i = 0; i < SEQUENCES; i++)
            for (uint32_t h = 0; h < heads; h++)
                for (uint32_t d = 0; d < dim; d++)
                    *to++ = test_value(token + i, layer * heads + h, which, d) / 2;
    OK(tamis_buffer_write(buffer, 0, s->w.host, (uint64_t)(to - s->w.host) * sizeof *to, NULL));
}

/* The inputs of a step of the sequences with the indices `which`, for all layers, and its
 * beginning. */
static void begin(side *s, const uint32_t *which, uint32_t n, uint64_t token) {
    tamis_sequence ids[SEQUENCES];
    for (uint32_t i = 0; i < n; i++)
        ids[i] = s->ids[which[i]];
    fill(s, s->w.k, s->w.shape.n_kv_heads, 0, token);
    fill(s, s->w.v, s->w.shape.n_kv_heads, 1, token);
    fill(s, s->w.q, s->w.shape.n_heads, 2, token);
    tamis_step in = {.sequences = ids, .count = n};
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

/* The layers of the open step from the graph of `n` sequences, which is recorded first if there is
 * none. */
static void replay(side *s, uint32_t n) {
    if (s->graphs[n]) {
        OK(tamis_plan_step_mark_replayed(s->w.plan, &test_error));
    } else {
        OK(tamis_graph_begin(s->w.context, &test_error));
        run_layers(s);
        OK(tamis_graph_end(s->w.context, &s->graphs[n], &test_error));
    }
    OK(tamis_graph_launch(s->graphs[n], &test_error));
}

static void expect_same(pair *p, uint32_t n, const char *what) {
    float *a = p->plain.w.host, *b = p->fixed.w.host;
    const uint32_t width = p->plain.w.shape.n_heads * p->plain.w.shape.head_dim;
    const uint64_t bytes = (uint64_t)LAYERS * SEQUENCES * width * sizeof *a;
    OK(tamis_buffer_read(p->plain.w.out, 0, a, bytes, NULL));
    OK(tamis_buffer_read(p->fixed.w.out, 0, b, bytes, NULL));
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t i = 0; i < n * width; i++) {
            const uint32_t at = layer * SEQUENCES * width + i;
            if (memcmp(&a[at], &b[at], sizeof *a) != 0)
                fail_msg("%s, token %llu, layer %u, element %u: %a and %a", what,
                         (unsigned long long)p->token, layer, i, (double)a[at], (double)b[at]);
        }
}

/* Decode steps on both sides. */
static void decode(pair *p, const char *what, uint32_t steps, const uint32_t *which, uint32_t n) {
    for (uint32_t i = 0; i < steps; i++) {
        begin(&p->plain, which, n, p->token);
        run_layers(&p->plain);
        OK(tamis_plan_step_end(p->plain.w.plan, &test_error));
        begin(&p->fixed, which, n, p->token);
        if (p->replays)
            replay(&p->fixed, n);
        else
            run_layers(&p->fixed);
        OK(tamis_plan_step_end(p->fixed.w.plan, &test_error));
        expect_same(p, n, what);
        p->token += n;
        p->rows += n;
    }
}

/* ---- What happens between steps -------------------------------------------------------------- */

static void fork_0(side *s) {
    OK(tamis_cache_fork(s->w.cache, s->ids[0], &s->ids[2], &test_error));
}

static void truncate_1(side *s) {
    OK(tamis_cache_truncate(s->w.cache, s->ids[1], 9, &test_error));
}

/* Sequence 1 grows far beyond the budget, with launches for many rows. */
static void prefill_1(side *s) {
    static uint64_t tokens[PREFILL];
    const uint32_t chunk = CHUNK;
    tamis_step step = {.sequences = &s->ids[1], .rows = &chunk, .count = 1, .exact = 1};
    for (uint32_t i = 0; i < PREFILL; i++)
        tokens[i] = 20000 + i;
    OK(test_append(&s->w, s->ids[1], tokens, PREFILL));
    OK(tamis_plan_step_begin(s->w.plan, &step, &test_error));
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        tamis_rows q = {.buffer = s->w.q}, out = {.buffer = s->w.out};
        test_write(&s->w, layer, tokens, CHUNK);
        OK(tamis_plan_attend(s->w.plan, layer, &q, &out, &test_error));
    }
    OK(tamis_plan_step_end(s->w.plan, &test_error));
}

/* Sequence 0 gives its pages to a new one; a step is given up. */
static void renew_0(side *s) {
    const uint64_t tokens[] = {1, 2, 3, 4};
    OK(tamis_cache_remove(s->w.cache, s->ids[0], &test_error));
    OK(tamis_cache_add(s->w.cache, &s->ids[0], &test_error));
    OK(test_append(&s->w, s->ids[0], tokens, 4));
    begin(s, in_order, SEQUENCES, 9);
    OK(tamis_plan_step_cancel(s->w.plan, &test_error));
}

static void change_bounds(side *s) {
    const tamis_bounds mean = {.kind = TAMIS_BOUNDS_MEAN};
    OK(tamis_cache_set_bounds(s->w.cache, &mean, &test_error));
    forget_graphs(s);
}

static void both(pair *p, void (*change)(side *)) {
    change(&p->plain);
    change(&p->fixed);
}

/* ---- Tests ----------------------------------------------------------------------------------- */

/* All that the fixed side's steps did is counted as the ordinary side's, but for the path of short
 * contexts. */
static void expect_counts(const pair *p) {
    tamis_plan_counters plain, fixed;
    tamis_plan_get_counters(p->plain.w.plan, &plain);
    tamis_plan_get_counters(p->fixed.w.plan, &fixed);
    assert_int_equal(fixed.rows_selected, p->rows); /* of layer 1 */
    assert_int_equal(fixed.rows_full, p->rows);
    assert_int_equal(fixed.rows_short, 0);
    assert_true(plain.rows_short > 0 && plain.rows_selected > 0);
    assert_int_equal(fixed.steps, plain.steps);
    assert_int_equal(fixed.rows_written, plain.rows_written);
    assert_int_equal(fixed.pages_bounded, plain.pages_bounded);
    assert_int_equal(fixed.kv_bytes_read, plain.kv_bytes_read);
    assert_true(fixed.pages_bounded > 0 && fixed.kv_bytes_read < fixed.kv_bytes_full);
}

/* The first steps, whose graphs serve all later ones, see short contexts. */
static void run(bool replays, tamis_dtype dtype) {
    pair p = {.replays = replays, .token = 8000};
    open_side(&p.plain, 0, dtype);
    open_side(&p.fixed, 1, dtype);
    if (!replays || has_graphs(&p.fixed)) {
        decode(&p, "below the budget", 2, in_order, 2);
        decode(&p, "one sequence", 1, in_order, 1);
        decode(&p, "over the budget", 15, in_order, 2);
        decode(&p, "in another order", 1, turned, 2);
        both(&p, fork_0);
        decode(&p, "a fork", 3, forked, 2);
        both(&p, truncate_1);
        decode(&p, "cut short", 2, in_order, 2);
        both(&p, prefill_1);
        decode(&p, "after a prefill", 5, turned, 2);
        decode(&p, "one sequence after a prefill", 1, turned, 1);
        both(&p, renew_0);
        decode(&p, "a new sequence", 2, in_order, 2);
        both(&p, change_bounds);
        decode(&p, "other bounds", 8, in_order, 2);
        expect_counts(&p);
    }
    close_side(&p.plain);
    close_side(&p.fixed);
}

static void fixed_launches_give_what_plain_ones_give(void **state) {
    (void)state;
    run(false, TAMIS_F32);
}

static void replayed_graphs_give_what_calls_give(void **state) {
    (void)state;
    run(true, TAMIS_F16);
}

static void evict_all(side *s) {
    for (uint32_t i = 0; i < SEQUENCES; i++)
        OK(tamis_plan_evict(s->w.plan, s->ids[i], NULL, &test_error));
}

/* Scores of keys come of writing alone: steps that a graph stands for leave theirs, too. */
static void replayed_steps_leave_scores_of_keys(void **state) {
    (void)state;
    pair p = {.token = 8000};
    evicting = (tamis_eviction){.kind = TAMIS_EVICT_KNORM, .budget = 13};
    open_side(&p.plain, 0, TAMIS_F32);
    open_side(&p.fixed, 1, TAMIS_F32);
    p.replays = has_graphs(&p.fixed);
    decode(&p, "before an eviction", 9, in_order, 2);
    both(&p, evict_all);
    decode(&p, "after an eviction", 9, in_order, 2);
    both(&p, evict_all);
    decode(&p, "after another one", 2, turned, 2);
    close_side(&p.plain);
    close_side(&p.fixed);
    evicting = (tamis_eviction){0};
}

static void what_fixed_launches_cannot_do_is_refused(void **state) {
    (void)state;
    side plain, fixed;
    tamis_plan_params random = plan_params(1);
    tamis_plan *plan = NULL;
    uint32_t two[] = {2, 1};
    open_side(&plain, 0, TAMIS_F32);
    open_side(&fixed, 1, TAMIS_F32);
    random.selection.kind = TAMIS_SELECT_RANDOM;
    FAILS(tamis_plan_create(fixed.w.cache, &random, &plan, &test_error), TAMIS_E_UNSUPPORTED,
          "selection random");
    tamis_step in = {.sequences = fixed.ids, .rows = two, .count = SEQUENCES};
    FAILS(tamis_plan_step_begin(fixed.w.plan, &in, &test_error), TAMIS_E_ARGUMENT, "brings 2 rows");
    FAILS(tamis_plan_step_mark_replayed(NULL, &test_error), TAMIS_E_ARGUMENT, "plan");
    FAILS(tamis_plan_step_mark_replayed(fixed.w.plan, &test_error), TAMIS_E_STATE, "no open step");
    begin(&plain, in_order, 2, 0);
    FAILS(tamis_plan_step_mark_replayed(plain.w.plan, &test_error), TAMIS_E_STATE,
          "TAMIS_PLAN_FIXED_LAUNCHES");
    in.exact = 1;
    OK(tamis_plan_step_begin(fixed.w.plan, &in, &test_error));
    FAILS(tamis_plan_step_mark_replayed(fixed.w.plan, &test_error), TAMIS_E_STATE, "exact");
    OK(tamis_plan_step_cancel(fixed.w.plan, &test_error));
    begin(&fixed, in_order, 2, 0);
    run_layers(&fixed);
    FAILS(tamis_plan_step_mark_replayed(fixed.w.plan, &test_error), TAMIS_E_STATE, "layer 0");
    OK(tamis_plan_step_end(fixed.w.plan, &test_error));
    close_side(&plain);
    close_side(&fixed);
}

static void replayed_fails(side *s, uint32_t n, const char *part) {
    begin(s, in_order, n, 0);
    FAILS(tamis_plan_step_mark_replayed(s->w.plan, &test_error), TAMIS_E_STATE, part);
}

/* A graph serves steps with as many sequences as its own, while bounds are what they were. */
static void a_graph_serves_steps_of_its_size_and_bounds_only(void **state) {
    (void)state;
    side s;
    open_side(&s, 1, TAMIS_F32);
    replayed_fails(&s, 2, "no step with 2 sequences");
    run_layers(&s);
    OK(tamis_plan_step_end(s.w.plan, &test_error));
    begin(&s, in_order, 2, 0);
    OK(tamis_plan_step_mark_replayed(s.w.plan, &test_error));
    OK(tamis_plan_step_end(s.w.plan, &test_error));
    replayed_fails(&s, 1, "no step with 1 sequences");
    OK(tamis_plan_step_cancel(s.w.plan, &test_error));
    change_bounds(&s);
    replayed_fails(&s, 2, "bounds");
    run_layers(&s);
    OK(tamis_plan_step_end(s.w.plan, &test_error));
    begin(&s, in_order, 2, 0);
    OK(tamis_plan_step_mark_replayed(s.w.plan, &test_error));
    OK(tamis_plan_step_cancel(s.w.plan, &test_error));
    close_side(&s);
}

/* A read has no place in a graph and ends the recording; the next one is sound. */
static void break_recording(side *s) {
    tamis_graph *graph = (tamis_graph *)s;
    float read;
    OK(tamis_graph_begin(s->w.context, &test_error));
    assert_int_equal(tamis_buffer_read(s->w.q, 0, &read, sizeof read, NULL), TAMIS_E_STATE);
    FAILS(tamis_graph_end(s->w.context, &graph, &test_error), TAMIS_E_STATE,
          "broken by an earlier call");
    assert_null(graph);
    begin(s, in_order, 2, 0);
    replay(s, 2);
    OK(tamis_plan_step_end(s->w.plan, &test_error));
    OK(tamis_context_wait(s->w.context, &test_error));
}

static void graph_calls_refuse_bad_arguments(void **state) {
    (void)state;
    side s;
    tamis_graph *graph = (tamis_graph *)&s;
    open_side(&s, 1, TAMIS_F32);
    FAILS(tamis_graph_begin(NULL, &test_error), TAMIS_E_ARGUMENT, "context");
    FAILS(tamis_graph_end(s.w.context, NULL, &test_error), TAMIS_E_ARGUMENT, "out");
    FAILS(tamis_graph_launch(NULL, &test_error), TAMIS_E_ARGUMENT, "graph");
    tamis_graph_destroy(NULL);
    if (has_graphs(&s)) {
        FAILS(tamis_graph_end(s.w.context, &graph, &test_error), TAMIS_E_STATE, "not recording");
        assert_null(graph);
        OK(tamis_graph_begin(s.w.context, &test_error));
        FAILS(tamis_graph_begin(s.w.context, &test_error), TAMIS_E_STATE, "already");
        OK(tamis_graph_end(s.w.context, &graph, &test_error));
        tamis_graph_destroy(&graph);
        assert_null(graph);
        break_recording(&s);
    } else {
        FAILS(tamis_graph_begin(s.w.context, &test_error), TAMIS_E_UNSUPPORTED,
              "records no graphs");
    }
    close_side(&s);
}

/* What is destroyed meanwhile is freed later, at the latest with the context: the driver on the CPU
 * ends a process that leaves memory behind. */
static void memory_destroyed_while_recording_is_freed_later(void **state) {
    (void)state;
    side s;
    tamis_graph *graph = NULL;
    tamis_buffer *buffer = NULL;
    open_side(&s, 1, TAMIS_F32);
    OK(tamis_buffer_create(s.w.context, 1000, &buffer, &test_error));
    if (has_graphs(&s)) OK(tamis_graph_begin(s.w.context, &test_error));
    tamis_buffer_destroy(&buffer);
    if (has_graphs(&s)) OK(tamis_graph_end(s.w.context, &graph, &test_error));
    tamis_graph_destroy(&graph);
    OK(tamis_context_wait(s.w.context, &test_error));
    if (has_graphs(&s)) OK(tamis_graph_begin(s.w.context, &test_error));
    close_side(&s);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fixed_launches_give_what_plain_ones_give),
        cmocka_unit_test(replayed_graphs_give_what_calls_give),
        cmocka_unit_test(replayed_steps_leave_scores_of_keys),
        cmocka_unit_test(what_fixed_launches_cannot_do_is_refused),
        cmocka_unit_test(a_graph_serves_steps_of_its_size_and_bounds_only),
        cmocka_unit_test(graph_calls_refuse_bad_arguments),
        cmocka_unit_test(memory_destroyed_while_recording_is_freed_later),
    };
    int skipped = test_begin(argc, argv);
    return skipped ? skipped : cmocka_run_group_tests(tests, NULL, NULL);
}
