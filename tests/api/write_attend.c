/* SPDX-License-Identifier: Apache-2.0 */
/* tamis_plan_write_attend: what it gives and leaves in the cache is, bit for bit, what
 * tamis_plan_write_rotated and tamis_plan_attend do, whether it is one launch or not. */
#include "lib/core/core.h"
#include "tests/api/fixture.h"
#include "tests/faulty.h"

#include <math.h>
#include <string.h>

enum { DIM = 64, ROWS = 32, PAGE = 16, LAYERS = 2, SEQUENCES = 3, STEPS = 21, MOST_HEADS = 6 };
/* Tokens of prompts: one that is forked, and one that ends beside the end of a page. */
enum { FORKED = 29, OTHER = 14 };

/* In how many layers of decode steps one launch does both, on a device that has it. */
typedef enum share { NEVER, SOMETIMES, ALWAYS } share;

typedef struct written_case {
    const char *name;
    tamis_dtype dtype;
    uint32_t heads, kv_heads;
    tamis_selection_kind selection;
    uint32_t flags, sliding_window;
    tamis_eviction_kind eviction;
    share fuses;
} written_case;

/* apart: by two calls. */
typedef struct side {
    test_world w;
    tamis_sequence ids[SEQUENCES];
    tamis_buffer *positions, *table, *norms;
    bool apart;
} side;

static void open_side(side *s, const written_case *c, bool apart) {
    double frequencies[DIM / 2];
    float norms[2 * DIM];
    tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {.max_rows = ROWS,
                              .max_sequences = SEQUENCES,
                              .max_context = 128,
                              .flags = TAMIS_PLAN_ROTATED | c->flags,
                              .attention.sliding_window = c->sliding_window};
    *s = (side){.apart = apart};
    tamis_selection_default(c->selection, &plan.selection);
    if (c->selection != TAMIS_SELECT_FULL) {
        plan.selection.budget = 2 * PAGE;
        plan.selection.sinks = plan.selection.dense_layers = 0;
        plan.selection.recent = 1;
    }
    if (c->eviction) {
        tamis_eviction_default(c->eviction, &plan.eviction);
        plan.eviction.budget = 40;
        plan.eviction.every = 1;
    }
    shape.page_size = PAGE;
    shape.dtype = c->dtype;
    shape.n_heads = c->heads;
    shape.n_kv_heads = c->kv_heads;
    shape.capacity_tokens = 512;
    shape.planes = tamis_eviction_planes(&plan.eviction);
    test_open(&s->w, &shape, &plan);
    tamis_context *context = s->w.context;
    for (uint32_t i = 0; i < DIM / 2; i++)
        frequencies[i] = pow(10000.0, -2.0 * i / DIM);
    for (uint32_t i = 0; i < 2 * DIM; i++)
        norms[i] = 1 + test_value(i, 0, 0, 0) / 8;
    OK(tamis_buffer_create(context, ROWS * sizeof(int32_t), &s->positions, &test_error));
    OK(tamis_buffer_create(context, tamis_rotation_bytes(DIM), &s->table, &test_error));
    OK(tamis_buffer_create(context, sizeof norms, &s->norms, &test_error));
    OK(tamis_buffer_write(s->norms, 0, norms, sizeof norms, &test_error));
    const tamis_rotation rotation = {.n_rot = DIM, .table = {s->table, 0}};
    OK(tamis_rotation_write(&rotation, frequencies, &test_error));
}

static void close_side(side *s) {
    tamis_buffer **all[] = {&s->positions, &s->table, &s->norms};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tamis_buffer_destroy(all[i]);
    test_close(&s->w);
}

static void fill_rows(tamis_buffer *to, uint32_t salt, const int32_t *positions, uint32_t n,
                      uint32_t heads) {
    static float host[ROWS * MOST_HEADS * DIM];
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t i = 0; i < heads * DIM; i++)
            host[r * heads * DIM + i] =
                test_value((uint64_t)positions[r] * 7 + r, salt * 64 + i / DIM, 0, i % DIM);
    OK(tamis_buffer_write(to, 0, host, (uint64_t)n * heads * DIM * sizeof *host, &test_error));
}

/* The rows of a layer as a model's matrices would give them. */
static void fill(side *s, uint32_t layer, const int32_t *positions, uint32_t n) {
    const tamis_cache_params *shape = &s->w.shape;
    fill_rows(s->w.q, 3 * layer, positions, n, shape->n_heads);
    fill_rows(s->w.k, 3 * layer + 1, positions, n, shape->n_kv_heads);
    fill_rows(s->w.v, 3 * layer + 2, positions, n, shape->n_kv_heads);
    OK(tamis_buffer_write(s->positions, 0, positions, n * sizeof *positions, &test_error));
}

static tamis_rotated_rows rows_of(const side *s) {
    return (tamis_rotated_rows){.q = {.buffer = s->w.q},
                                .k = {.buffer = s->w.k},
                                .v = {.buffer = s->w.v},
                                .rotation = {.n_rot = DIM, .table = {s->table, 0}},
                                .positions = {s->positions, 0},
                                .q_norm = {s->norms, 0},
                                .k_norm = {s->norms, DIM * sizeof(float)},
                                .eps = 1e-5f};
}

static void run_layer(side *s, uint32_t layer, const int32_t *positions, uint32_t n, float *out) {
    const tamis_rows to = {.buffer = s->w.out};
    const tamis_rotated_rows rows = rows_of(s);
    fill(s, layer, positions, n);
    if (s->apart) {
        OK(tamis_plan_write_rotated(s->w.plan, layer, &rows, &test_error));
        OK(tamis_plan_attend(s->w.plan, layer, &rows.q, &to, &test_error));
    } else {
        OK(tamis_plan_write_attend(s->w.plan, layer, &rows, &to, &test_error));
    }
    OK(tamis_buffer_read(s->w.out, 0, out, (uint64_t)n * s->w.shape.n_heads * DIM * sizeof *out,
                         &test_error));
}

/* Rows of the first `count` sequences from `which` on, on both sides. */
static void run_step(side sides[2], uint32_t which, uint32_t count, const uint32_t *rows,
                     const int32_t *positions, bool exact) {
    static float out[2][ROWS * MOST_HEADS * DIM];
    uint32_t n = 0;
    for (uint32_t i = 0; i < count; i++)
        n += rows[i];
    for (uint32_t i = 0; i < 2; i++) {
        const tamis_step step = {
            .sequences = sides[i].ids + which, .rows = rows, .count = count, .exact = exact};
        OK(tamis_plan_step_begin(sides[i].w.plan, &step, &test_error));
    }
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint32_t i = 0; i < 2; i++)
            run_layer(&sides[i], layer, positions, n, out[i]);
        assert_memory_equal(out[0], out[1], n * sides->w.shape.n_heads * DIM * sizeof **out);
    }
    for (uint32_t i = 0; i < 2; i++)
        OK(tamis_plan_step_end(sides[i].w.plan, &test_error));
}

static void prefill(side sides[2], uint32_t which, uint32_t n) {
    int32_t positions[ROWS];
    for (uint32_t i = 0; i < n; i++)
        positions[i] = (int32_t)i;
    for (uint32_t i = 0; i < 2; i++)
        OK(tamis_cache_add(sides[i].w.cache, &sides[i].ids[which], &test_error));
    run_step(sides, which, 1, &n, positions, true);
}

static void expect_same_lane(const side *sides, uint32_t sequence, uint32_t layer, uint32_t head) {
    static float k[2][128 * DIM], v[2][128 * DIM];
    uint32_t n = 0;
    for (uint32_t i = 0; i < 2; i++) {
        tamis_sequence_stats stats;
        tamis_cache *cache = sides[i].w.cache;
        const tamis_sequence id = sides[i].ids[sequence];
        OK(tamis_cache_get_sequence_stats(cache, id, &stats, &test_error));
        n = (uint32_t)(stats.slots / (LAYERS * sides[i].w.shape.n_kv_heads));
        OK(tamis_cache_read(cache, id, layer, head, 0, n, k[i], v[i], &test_error));
    }
    assert_memory_equal(k[0], k[1], n * DIM * sizeof(float));
    assert_memory_equal(v[0], v[1], n * DIM * sizeof(float));
}

static void expect_same(const side *sides) {
    tamis_plan_counters counters[2];
    for (uint32_t i = 0; i < SEQUENCES; i++)
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            for (uint32_t h = 0; h < sides->w.shape.n_kv_heads; h++)
                expect_same_lane(sides, i, layer, h);
    for (uint32_t i = 0; i < 2; i++)
        tamis_plan_get_counters(sides[i].w.plan, &counters[i]);
    assert_memory_equal(&counters[0], &counters[1], sizeof *counters);
}

static void open_sides(side sides[2], const written_case *c) {
    for (uint32_t i = 0; i < 2; i++)
        open_side(&sides[i], c, i == 0);
    prefill(sides, 0, FORKED);
    for (uint32_t i = 0; i < 2; i++)
        OK(tamis_cache_fork(sides[i].w.cache, sides[i].ids[0], &sides[i].ids[1], &test_error));
    prefill(sides, 2, OTHER);
}

static void decode(side sides[2], uint32_t n) {
    static const uint32_t ones[SEQUENCES] = {1, 1, 1};
    const int32_t positions[SEQUENCES] = {(int32_t)(FORKED + n), (int32_t)(FORKED + n),
                                          (int32_t)(OTHER + n)};
    run_step(sides, 0, SEQUENCES, ones, positions, false);
}

/* Both ops, since one of them serves a case. */
static uint32_t fused_launches(void) {
    return (uint32_t)(faulty_worked(FAULTY_write_attend) +
                      faulty_worked(FAULTY_write_sparse_attend));
}

static bool device_fuses(const tms_device *dev) {
    return dev->backend->write_attend && !dev->base_only;
}

static void the_bits_are_those_of_two_calls(void **state) {
    (void)state;
    static const written_case cases[] = {
        {"full, f16", TAMIS_F16, 6, 2, TAMIS_SELECT_FULL, 0, 0, TAMIS_EVICT_NONE, ALWAYS},
        {"full, q8", TAMIS_Q8, 3, 3, TAMIS_SELECT_FULL, 0, 0, TAMIS_EVICT_NONE, ALWAYS},
        {"quest, f16", TAMIS_F16, 6, 2, TAMIS_SELECT_QUEST, 0, 0, TAMIS_EVICT_NONE, SOMETIMES},
        {"quest, q8", TAMIS_Q8, 6, 2, TAMIS_SELECT_QUEST, 0, 0, TAMIS_EVICT_NONE, SOMETIMES},
        {"sliding", TAMIS_F16, 6, 2, TAMIS_SELECT_FULL, 0, 20, TAMIS_EVICT_NONE, ALWAYS},
        {"fixed", TAMIS_F16, 6, 2, TAMIS_SELECT_FULL, TAMIS_PLAN_FIXED_LAUNCHES, 0,
         TAMIS_EVICT_NONE, ALWAYS},
        {"unfused", TAMIS_F16, 6, 2, TAMIS_SELECT_FULL, TAMIS_PLAN_UNFUSED, 0, TAMIS_EVICT_NONE,
         NEVER},
        {"window", TAMIS_F16, 6, 2, TAMIS_SELECT_WINDOW, 0, 0, TAMIS_EVICT_NONE, SOMETIMES},
        {"streaming", TAMIS_F16, 6, 2, TAMIS_SELECT_FULL, 0, 0, TAMIS_EVICT_STREAMING, SOMETIMES},
        {"knorm", TAMIS_F16, 6, 2, TAMIS_SELECT_FULL, 0, 0, TAMIS_EVICT_KNORM, NEVER},
        {"h2o", TAMIS_F16, 6, 2, TAMIS_SELECT_FULL, 0, 0, TAMIS_EVICT_H2O, NEVER},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        side sides[2];
        print_message("%s\n", cases[i].name);
        open_sides(sides, &cases[i]);
        tms_device *dev = sides[1].w.context->dev;
        const share fuses = device_fuses(dev) ? cases[i].fuses : NEVER;
        const uint32_t before = test_builds;
        faulty_begin(dev, -1, FAULTY_BEFORE);
        for (uint32_t n = 0; n < STEPS; n++)
            decode(sides, n);
        faulty_pause(dev);
        assert_int_equal(test_builds, before); /* nothing is compiled in a step */
        assert_true((fused_launches() > 0) == (fuses != NEVER));
        assert_true((fused_launches() == STEPS * LAYERS) == (fuses == ALWAYS));
        expect_same(sides);
        for (uint32_t s = 0; s < 2; s++)
            close_side(&sides[s]);
    }
}

/* Where the launch fails the call can be repeated, with the same result. */
static void a_call_that_failed_is_repeated(void **state) {
    (void)state;
    static const written_case c = {.dtype = TAMIS_F16, .heads = 6, .kv_heads = 2};
    static const int32_t position = FORKED;
    static const uint32_t one = 1;
    side sides[2];
    open_sides(sides, &c);
    tms_device *dev = sides[1].w.context->dev;
    if (device_fuses(dev)) {
        const tamis_step step = {.sequences = sides[1].ids, .rows = &one, .count = 1};
        const tamis_rotated_rows rows = rows_of(&sides[1]);
        const tamis_rows to = {.buffer = sides[1].w.out};
        OK(tamis_plan_step_begin(sides[1].w.plan, &step, &test_error));
        fill(&sides[1], 0, &position, 1);
        faulty_begin_one(dev, FAULTY_write_attend, 0);
        FAILS(tamis_plan_write_attend(sides[1].w.plan, 0, &rows, &to, &test_error), FAULTY_STATUS,
              FAULTY_TEXT);
        faulty_pause(dev);
        OK(tamis_plan_write_attend(sides[1].w.plan, 0, &rows, &to, &test_error));
        OK(tamis_plan_step_cancel(sides[1].w.plan, &test_error));
    }
    decode(sides, 0);
    for (uint32_t s = 0; s < 2; s++)
        close_side(&sides[s]);
}

static void what_either_call_refuses_changes_nothing(void **state) {
    (void)state;
    static const written_case c = {.dtype = TAMIS_F16, .heads = 6, .kv_heads = 2};
    static const int32_t position = FORKED;
    static const uint32_t one = 1;
    side sides[2];
    open_sides(sides, &c);
    const side *s = &sides[1];
    tamis_plan *plan = s->w.plan;
    const tamis_step step = {.sequences = s->ids, .rows = &one, .count = 1};
    tamis_rotated_rows rows = rows_of(s);
    tamis_rows to = {.buffer = s->w.out};
    FAILS(tamis_plan_write_attend(NULL, 0, &rows, &to, &test_error), TAMIS_E_ARGUMENT, "plan");
    FAILS(tamis_plan_write_attend(plan, 0, &rows, &to, &test_error), TAMIS_E_STATE, "no open step");
    OK(tamis_plan_step_begin(plan, &step, &test_error));
    fill(&sides[1], 0, &position, 1);
    FAILS(tamis_plan_write_attend(plan, 0, NULL, &to, &test_error), TAMIS_E_ARGUMENT, "rows");
    FAILS(tamis_plan_write_attend(plan, 2, &rows, &to, &test_error), TAMIS_E_ARGUMENT, "layer 2");
    FAILS(tamis_plan_write_attend(plan, 0, &rows, NULL, &test_error), TAMIS_E_ARGUMENT, "out");
    rows.rotation.n_rot = 7;
    FAILS(tamis_plan_write_attend(plan, 0, &rows, &to, &test_error), TAMIS_E_ARGUMENT,
          "n_rot is 7");
    rows = rows_of(s);
    to.dtype = TAMIS_F16;
    FAILS(tamis_plan_write_attend(plan, 0, &rows, &to, &test_error), TAMIS_E_ARGUMENT,
          "out is f16");
    to = (tamis_rows){.buffer = s->w.q};
    FAILS(tamis_plan_write_attend(plan, 0, &rows, &to, &test_error), TAMIS_E_ARGUMENT,
          "q and out overlap");
    to.buffer = s->w.k;
    FAILS(tamis_plan_write_attend(plan, 0, &rows, &to, &test_error), TAMIS_E_ARGUMENT,
          "k and out overlap");
    to.buffer = s->w.v;
    FAILS(tamis_plan_write_attend(plan, 0, &rows, &to, &test_error), TAMIS_E_ARGUMENT,
          "v and out overlap");
    to.buffer = s->w.out;
    OK(tamis_plan_write_attend(plan, 0, &rows, &to, &test_error));
    FAILS(tamis_plan_write_attend(plan, 0, &rows, &to, &test_error), TAMIS_E_STATE, "already");
    OK(tamis_plan_step_cancel(plan, &test_error));
    for (uint32_t i = 0; i < 2; i++)
        close_side(&sides[i]);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_those_of_two_calls),
        cmocka_unit_test(a_call_that_failed_is_repeated),
        cmocka_unit_test(what_either_call_refuses_changes_nothing),
    };
    int skip = test_begin(argc, argv);
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
