/* SPDX-License-Identifier: Apache-2.0 */
/* The pipeline end to end: write, bounds, score, select, attend, step after step, for the
 * selections over dtypes, groups, head dims and page sizes, against the oracle. */
#include "tests/policies/pipeline.h"

#include <math.h>
#include <string.h>

static tamis_selection quest(uint32_t budget, uint32_t sinks, uint32_t recent) {
    return (tamis_selection){
        .kind = TAMIS_SELECT_QUEST, .budget = budget, .sinks = sinks, .recent = recent};
}

static tamis_selection of_kind(tamis_selection_kind kind, uint32_t budget, uint32_t sinks,
                               uint32_t recent) {
    tamis_selection selection = quest(budget, sinks, recent);
    selection.kind = kind;
    return selection;
}

/* The selections that score pages. */
static const tamis_selection_kind scored[] = {TAMIS_SELECT_QUEST, TAMIS_SELECT_ORACLE,
                                              TAMIS_SELECT_RANDOM};
#define N_SCORED (sizeof scored / sizeof *scored)

static tamis_selection window(uint32_t budget, uint32_t sinks) {
    return (tamis_selection){.kind = TAMIS_SELECT_WINDOW, .budget = budget, .sinks = sinks};
}

static const uint32_t everyone[] = {0, 1, 2};
static const uint32_t prompts[] = {203, 31, 120};

/* Three prompts of different lengths, then decode steps, some of which bring several rows. */
static void run_shape(const tamis_cache_params *shape, const tamis_plan_params *base, bool narrow) {
    tamis_plan_params plan = *base;
    pipe p;
    plan.max_sequences = 3;
    plan.max_rows = 120;
    plan.max_context = 256;
    if (plan.selection.kind != TAMIS_SELECT_FULL)
        plan.max_selected_rows = 6; /* of the last steps */
    pipe_open(&p, shape, &plan);
    p.narrow = narrow;
    for (uint32_t i = 0; i < 3; i++)
        pipe_add(&p);
    pipe_prefill(&p, prompts, 40);
    for (uint32_t i = 0; i < 12; i++) {
        uint32_t rows[] = {i % 5 == 4 ? 3 : 1, 1, i % 4 == 3 ? 2 : 1};
        pipe_step(&p, everyone, rows, 3, false);
    }
    tamis_plan_counters c;
    tamis_plan_get_counters(p.world.plan, &c);
    if (plan.selection.kind != TAMIS_SELECT_FULL) {
        assert_true(c.rows_selected > 0 && c.kv_bytes_read < c.kv_bytes_full);
        assert_true(p.contested * 20 <= p.lists);
    }
    pipe_close(&p);
}

static tamis_cache_params shape_of(tamis_dtype dtype, uint32_t n_heads, uint32_t n_kv_heads,
                                   uint32_t head_dim, uint32_t page_size) {
    return (tamis_cache_params){.n_layers = 2,
                                .n_heads = n_heads,
                                .n_kv_heads = n_kv_heads,
                                .head_dim = head_dim,
                                .page_size = page_size,
                                .dtype = dtype,
                                .capacity_tokens = 1024};
}

static void test_quest_f32(void **state) {
    (void)state;
    tamis_cache_params shape = shape_of(TAMIS_F32, 6, 2, 64, 8);
    tamis_plan_params plan = {.selection = quest(64, 4, 16)};
    run_shape(&shape, &plan, false);
}

/* A budget of 14 pages. */
static void test_quest_many_pages(void **state) {
    (void)state;
    tamis_cache_params shape = shape_of(TAMIS_F32, 2, 1, 64, 8);
    tamis_plan_params plan = {.selection = quest(112, 4, 16)};
    run_shape(&shape, &plan, false);
}

static void test_quest_f16(void **state) {
    (void)state;
    tamis_cache_params shape = shape_of(TAMIS_F16, 4, 4, 128, 16);
    tamis_plan_params plan = {.selection = quest(64, 4, 0)};
    run_shape(&shape, &plan, false);
}

/* Rows in the cache's own dtype, mean rule, one dense layer, scale and soft cap. */
static void test_quest_bf16(void **state) {
    (void)state;
    tamis_cache_params shape = shape_of(TAMIS_BF16, 10, 2, 80, 16);
    tamis_plan_params plan = {.selection = quest(96, 1, 17), .attention = {.scale = 0.2f, .soft_cap = 20}};
    plan.selection.group = TAMIS_GROUP_MEAN;
    plan.selection.dense_layers = 1;
    run_shape(&shape, &plan, true);
}

static void test_quest_large_head(void **state) {
    (void)state;
    tamis_cache_params shape = shape_of(TAMIS_F16, 5, 1, 512, 32);
    tamis_plan_params plan = {.selection = quest(96, 0, 1)};
    plan.selection.group = TAMIS_GROUP_SUM;
    run_shape(&shape, &plan, false);
}

/* Caches whose bounds are q8, and of f16 with bounds of q8: small and odd head dims, every rule of a
 * group. */
static void quest_in(tamis_dtype dtype, tamis_group_rule second) {
    tamis_cache_params shape = shape_of(dtype, 6, 2, 112, 8);
    tamis_plan_params plan = {.selection = quest(64, 4, 16)};
    run_shape(&shape, &plan, false);
    shape = shape_of(dtype, 4, 1, 128, 16);
    plan.selection.group = second;
    run_shape(&shape, &plan, false);
}

static void test_quest_q8(void **state) {
    (void)state;
    quest_in(TAMIS_Q8, TAMIS_GROUP_MEAN);
}

static void test_quest_k8v4(void **state) {
    (void)state;
    quest_in(TAMIS_K8V4, TAMIS_GROUP_MAX);
}

static void test_quest_q4(void **state) {
    (void)state;
    quest_in(TAMIS_Q4, TAMIS_GROUP_MAX);
}

static void test_q8_bounds(void **state) {
    (void)state;
    tamis_cache_params shape = shape_of(TAMIS_F16, 4, 2, 128, 16);
    tamis_plan_params plan = {.selection = quest(64, 4, 0)};
    shape.bounds_dtype = TAMIS_BOUNDS_Q8;
    run_shape(&shape, &plan, false);
    shape = shape_of(TAMIS_F32, 18, 1, 160, 64);
    shape.bounds_dtype = TAMIS_BOUNDS_Q8;
    plan.selection = quest(192, 0, 1);
    plan.selection.group = TAMIS_GROUP_SUM;
    run_shape(&shape, &plan, false);
}

static void test_oracle_quantised(void **state) {
    (void)state;
    tamis_cache_params shape = shape_of(TAMIS_Q8, 6, 2, 64, 16);
    tamis_plan_params plan = {.selection = of_kind(TAMIS_SELECT_ORACLE, 64, 4, 16)};
    run_shape(&shape, &plan, false);
    shape.dtype = TAMIS_K8V4;
    run_shape(&shape, &plan, false);
    shape.dtype = TAMIS_Q4;
    run_shape(&shape, &plan, false);
}

static void test_oracle_f32(void **state) {
    (void)state;
    tamis_cache_params shape = shape_of(TAMIS_F32, 6, 2, 64, 8);
    tamis_plan_params plan = {.selection = of_kind(TAMIS_SELECT_ORACLE, 64, 4, 16)};
    run_shape(&shape, &plan, false);
}

/* Rows in the cache's own dtype, mean rule, one dense layer, scale and soft cap. */
static void test_oracle_bf16(void **state) {
    (void)state;
    tamis_cache_params shape = shape_of(TAMIS_BF16, 10, 2, 80, 16);
    tamis_plan_params plan = {.selection = of_kind(TAMIS_SELECT_ORACLE, 96, 1, 17)};
    plan.attention.scale = 0.2f;
    plan.attention.soft_cap = 20;
    plan.selection.group = TAMIS_GROUP_MEAN;
    plan.selection.dense_layers = 1;
    run_shape(&shape, &plan, true);
}

static void test_oracle_large_head(void **state) {
    (void)state;
    tamis_cache_params shape = shape_of(TAMIS_F16, 16, 1, 256, 32);
    tamis_plan_params plan = {.selection = of_kind(TAMIS_SELECT_ORACLE, 96, 0, 1)};
    plan.selection.group = TAMIS_GROUP_SUM;
    run_shape(&shape, &plan, false);
}

static void test_random_pages(void **state) {
    (void)state;
    tamis_cache_params shape = shape_of(TAMIS_F16, 4, 2, 128, 16);
    tamis_plan_params plan = {.selection = of_kind(TAMIS_SELECT_RANDOM, 64, 4, 16)};
    plan.selection.seed = 5;
    run_shape(&shape, &plan, false);
}

static void test_window(void **state) {
    (void)state;
    tamis_cache_params shape = shape_of(TAMIS_F16, 4, 2, 128, 16);
    tamis_plan_params plan = {.selection = window(48, 4)};
    run_shape(&shape, &plan, false);
}

static void test_full(void **state) {
    (void)state;
    tamis_cache_params shape = shape_of(TAMIS_F32, 3, 1, 192, 64);
    tamis_plan_params plan = {.selection = {.kind = TAMIS_SELECT_FULL}};
    run_shape(&shape, &plan, false);
}

/* With nothing asked to be recent every row still reads its own page, also when that is full: here
 * decode rows, some of which come in pairs, fill a page or two. */
static void test_newest(void **state) {
    (void)state;
    static const uint32_t length[] = {21, 30}, who[] = {0, 1};
    for (int kind = TAMIS_SELECT_WINDOW; kind <= TAMIS_SELECT_RANDOM; kind++) {
        tamis_cache_params shape = shape_of(TAMIS_F32, 4, 2, 64, 8);
        tamis_plan_params plan = {.selection = of_kind((tamis_selection_kind)kind, 16, 0, 0),
                                  .max_sequences = 2,
                                  .max_rows = 51,
                                  .max_selected_rows = 4,
                                  .max_context = 64};
        pipe p;
        pipe_open(&p, &shape, &plan);
        for (uint32_t i = 0; i < 2; i++)
            pipe_add(&p);
        pipe_prefill(&p, length, 30);
        for (uint32_t i = 0; i < 10; i++) {
            uint32_t rows[] = {1, 1 + i % 3 / 2};
            pipe_step(&p, who, rows, 2, false);
        }
        pipe_close(&p);
    }
}

/* A row sees the last 50 positions only. */
static void test_sliding_window(void **state) {
    (void)state;
    tamis_cache_params shape = shape_of(TAMIS_F16, 4, 2, 128, 16);
    tamis_plan_params plan = {.selection = {.kind = TAMIS_SELECT_FULL}, .attention.sliding_window = 50};
    run_shape(&shape, &plan, false);
}

static void run_short(const tamis_selection *selection) {
    tamis_cache_params shape = shape_of(TAMIS_F16, 4, 2, 128, 16);
    tamis_plan_params plan = {.selection = *selection, .max_rows = 64, .max_context = 128};
    static const uint32_t length[] = {62}, who[] = {0}, rows[] = {1};
    tamis_plan_counters c;
    pipe p;
    pipe_open(&p, &shape, &plan);
    pipe_add(&p);
    pipe_prefill(&p, length, 64);
    for (uint32_t i = 0; i < 2; i++)
        pipe_step(&p, who, rows, 1, false);
    tamis_plan_get_counters(p.world.plan, &c);
    assert_true(c.rows_short == 4 && c.rows_selected == 0 && c.bounds_bytes_read == 0);
    pipe_step(&p, who, rows, 1, false);
    tamis_plan_get_counters(p.world.plan, &c);
    assert_true(c.rows_short == 4 && c.rows_selected == 2);
    tamis_plan_reset_counters(p.world.plan);
    tamis_plan_get_counters(p.world.plan, &c);
    assert_true(c.rows_short == 0 && c.rows_selected == 0);
    pipe_close(&p);
}

/* Contexts within the budget take the exact path, and the counters say so; one longer does not. */
static void test_short(void **state) {
    (void)state;
    for (size_t i = 0; i < N_SCORED; i++) {
        tamis_selection selection = of_kind(scored[i], 64, 4, 16);
        run_short(&selection);
    }
}

/* Steps of changing company: rows of the page table are taken over and refilled, and pages that
 * fill one by one come to be scored. */
static void test_company(void **state) {
    (void)state;
    tamis_cache_params shape = shape_of(TAMIS_F32, 2, 1, 64, 8);
    tamis_plan_params plan = {.selection = quest(48, 4, 8), .max_rows = 96, .max_context = 256};
    plan.max_sequences = 2;
    pipe p;
    pipe_open(&p, &shape, &plan);
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t who[] = {pipe_add(&p)}, rows[] = {50 + 9 * i};
        pipe_step(&p, who, rows, 1, true);
    }
    for (uint32_t i = 0; i < 96; i++) {
        uint32_t who[] = {test_below(&p.random, 4), 0}, rows[] = {1, 1};
        who[1] = (who[0] + 1 + test_below(&p.random, 3)) % 4;
        pipe_step(&p, who, rows, 1 + i % 2, false);
        if (i % 12 == 11) {
            pipe_sequence *s = &p.sequences[who[0]];
            s->length -= 11;
            OK(tamis_cache_truncate(p.world.cache, s->id, s->length, &test_error));
        }
    }
    pipe_close(&p);
}

/* Fork, then both go on with tokens of their own, together and alone. */
static void test_fork(void **state) {
    (void)state;
    tamis_cache_params shape = shape_of(TAMIS_F16, 4, 2, 128, 16);
    tamis_plan_params plan = {.selection = quest(64, 4, 16), .max_rows = 128, .max_context = 256};
    plan.max_sequences = 3;
    static const uint32_t length[] = {101}, rows[] = {1, 1, 1}, alone[] = {1};
    tamis_plan_counters c;
    pipe p;
    pipe_open(&p, &shape, &plan);
    pipe_add(&p);
    pipe_prefill(&p, length, 128);
    pipe_fork(&p, 0);
    pipe_fork(&p, 0);
    pipe_step(&p, everyone, rows, 3, false);
    tamis_plan_get_counters(p.world.plan, &c);
    assert_int_equal(c.pages_copied, 2 * 4); /* three holders of a page a lane: the last keeps it */
    for (uint32_t i = 0; i < 12; i++)
        pipe_step(&p, i % 3 ? everyone : alone, rows, i % 3 ? 3 : 1, false);
    tamis_plan_get_counters(p.world.plan, &c);
    assert_int_equal(c.pages_copied, 2 * 4);
    pipe_close(&p);
}

static void nan_q(pipe *p, float *q, uint32_t n) {
    (void)p;
    for (uint32_t i = 5; i < n; i += 64)
        q[i] = NAN;
}

/* The lists of the last attend, in a row. */
static uint32_t read_lists(pipe *p, uint32_t n_rows, uint32_t *pages) {
    uint32_t n = 0, count;
    for (uint32_t row = 0; row < n_rows; row++)
        for (uint32_t h = 0; h < p->world.shape.n_kv_heads; h++, n += count)
            OK(tamis_plan_read_selected(p->world.plan, row, h, pages + n, 64, &count, &test_error));
    return n;
}

static void run_nan_q(const tamis_selection *selection) {
    tamis_cache_params shape = shape_of(TAMIS_F16, 4, 2, 128, 16);
    tamis_plan_params plan = {.selection = *selection, .max_rows = 200, .max_context = 256};
    static const uint32_t wanted[] = {0, 10, 11, 12, 0, 10, 11, 12};
    tamis_sequence id;
    test_world w;
    test_open(&w, &shape, &plan);
    uint64_t tokens[200];
    for (uint32_t i = 0; i < 200; i++)
        tokens[i] = i;
    OK(tamis_cache_add(w.cache, &id, &test_error));
    OK(test_append(&w, id, tokens, 199));
    float q[4 * 128], out[4 * 128];
    for (uint32_t i = 0; i < 4 * 128; i++)
        q[i] = (float)(i % 7) - 3;
    nan_q(NULL, q, 4 * 128);
    pipe p = {.world = w};
    tamis_step step = {.sequences = &id, .count = 1};
    tamis_rows q_rows = {.buffer = w.q}, out_rows = {.buffer = w.out};
    OK(tamis_plan_step_begin(w.plan, &step, &test_error));
    for (uint32_t layer = 0; layer < 2; layer++) {
        uint32_t pages[128];
        test_write(&w, layer, tokens + 199, 1);
        OK(tamis_buffer_write(w.q, 0, q, sizeof q, NULL));
        for (uint32_t again = 0; again < 2; again++) {
            OK(tamis_plan_attend(w.plan, layer, &q_rows, &out_rows, &test_error));
            assert_int_equal(read_lists(&p, 1, pages), 8);
            assert_memory_equal(pages, wanted, sizeof wanted);
            OK(tamis_buffer_read(w.out, 0, out, sizeof out, NULL));
            for (uint32_t i = 0; i < 4 * 128; i++)
                assert_true(isnan(out[i]));
        }
    }
    OK(tamis_plan_step_end(w.plan, &test_error));
    test_close(&w);
}

/* NaN in every head's q: no page has a score, so the newest are read; twice the same, and out is
 * NaN. */
static void test_nan_q(void **state) {
    (void)state;
    for (size_t i = 0; i < 2; i++) { /* quest and oracle */
        tamis_selection selection = of_kind(scored[i], 64, 4, 16);
        run_nan_q(&selection);
    }
}

static void run_nan_k(const tamis_selection *selection) {
    tamis_cache_params shape = shape_of(TAMIS_F16, 4, 2, 128, 16);
    tamis_plan_params plan = {.selection = *selection, .max_rows = 64, .max_context = 256};
    static const uint32_t length[] = {130}, who[] = {0}, rows[] = {1};
    pipe p;
    pipe_open(&p, &shape, &plan);
    pipe_add(&p);
    p.nan_at = 40;
    pipe_prefill(&p, length, 64);
    for (uint32_t i = 0; i < 20; i++)
        pipe_step(&p, who, rows, 1, false);
    assert_false(isnan(p.out[0]));
    pipe_close(&p);
}

/* NaN in a key: under quest its page has no score, under oracle no page has; once it is not
 * protected any more, it is not read and spoils nothing; a row that does read it gets NaN. */
static void test_nan_k(void **state) {
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        tamis_selection selection = of_kind(scored[i], 64, 4, 16);
        run_nan_k(&selection);
    }
}

/* ---- Random pages ---------------------------------------------------------------------------- */

#define RANDOM_LISTS 16u /* 2 layers, 2 KV heads, lists of 4 */

/* The lists of a row at position `length` under a seed, layer after layer. */
static void random_lists(uint64_t seed, uint32_t length, uint32_t *pages) {
    tamis_cache_params shape = shape_of(TAMIS_F16, 4, 2, 128, 16);
    tamis_plan_params plan = {
        .selection = of_kind(TAMIS_SELECT_RANDOM, 64, 4, 0), .max_rows = 200, .max_context = 256};
    static uint64_t tokens[200];
    pipe p = {.n_sequences = 0};
    tamis_sequence id;
    plan.selection.seed = seed;
    test_open(&p.world, &shape, &plan);
    OK(tamis_cache_add(p.world.cache, &id, &test_error));
    OK(test_append(&p.world, id, tokens, length));
    tamis_step step = {.sequences = &id, .count = 1};
    tamis_rows q = {.buffer = p.world.q}, out = {.buffer = p.world.out};
    OK(tamis_plan_step_begin(p.world.plan, &step, &test_error));
    for (uint32_t layer = 0; layer < 2; layer++) {
        test_write(&p.world, layer, tokens, 1);
        OK(tamis_plan_attend(p.world.plan, layer, &q, &out, &test_error));
        assert_int_equal(read_lists(&p, 1, pages + layer * RANDOM_LISTS / 2), RANDOM_LISTS / 2);
    }
    OK(tamis_plan_step_end(p.world.plan, &test_error));
    test_close(&p.world);
}

/* One seed means the same pages on every device: they are written down here, each list with the
 * sink and the partial page. Another seed, position, layer or KV head means others. */
static void test_random_seeds(void **state) {
    (void)state;
    static const uint32_t wanted[RANDOM_LISTS] = {0, 5, 8, 12, 0, 3, 11, 12,
                                                  0, 5, 7, 12, 0, 7, 10, 12};
    uint32_t pages[RANDOM_LISTS], again[RANDOM_LISTS];
    random_lists(8, 196, pages);
    assert_memory_equal(pages, wanted, sizeof wanted);
    assert_memory_not_equal(pages, pages + 4, 4 * sizeof *pages);
    assert_memory_not_equal(pages, pages + 8, 4 * sizeof *pages);
    random_lists(8, 197, again);
    assert_memory_not_equal(again, pages, sizeof pages);
    random_lists(9, 196, again);
    assert_memory_not_equal(again, pages, sizeof pages);
}

/* Attends `n_rows` rows at the end of a sequence in every layer, and cancels. */
static void attend_rows(test_world *w, tamis_sequence id, const uint64_t *tokens, uint32_t n_rows,
                        bool exact) {
    tamis_step step = {.sequences = &id, .rows = &n_rows, .count = 1, .exact = exact};
    tamis_rows q = {.buffer = w->q}, out = {.buffer = w->out};
    OK(tamis_plan_step_begin(w->plan, &step, &test_error));
    for (uint32_t layer = 0; layer < w->shape.n_layers; layer++) {
        test_write(w, layer, tokens, n_rows);
        OK(tamis_plan_attend(w->plan, layer, &q, &out, &test_error));
    }
    OK(tamis_plan_step_cancel(w->plan, &test_error));
}

/* The plan's creation builds every kernel, also those that join the splits of long lanes: no step
 * builds one. On OpenCL the count is that of real builds. */
static void test_no_builds(void **state) {
    (void)state;
    static uint64_t tokens[8200];
    tamis_cache_params shape = shape_of(TAMIS_F16, 4, 2, 64, 8);
    tamis_plan_params plan = {.selection = quest(4800, 4, 16), .max_context = 8200};
    test_world w;
    tamis_sequence id;
    shape.capacity_tokens = 8200;
    test_open(&w, &shape, &plan);
    uint32_t builds = test_builds;
    assert_true(builds > 0 || strcmp(tamis_context_device(w.context)->backend, "opencl") != 0);
    OK(tamis_cache_add(w.cache, &id, &test_error));
    for (uint32_t i = 0; i < 16; i++)
        OK(test_append(&w, id, tokens, 512)); /* 1024 pages: two splits */
    OK(tamis_buffer_write(w.q, 0, w.host, 4 * 64 * sizeof *w.host, NULL));
    attend_rows(&w, id, tokens, 1, true);
    attend_rows(&w, id, tokens, 3, true);
    attend_rows(&w, id, tokens, 1, false);
    assert_int_equal(test_builds, builds);
    test_close(&w);
}

static void same_q(pipe *p, float *q, uint32_t n) {
    uint32_t row = p->world.shape.n_heads * p->world.shape.head_dim;
    for (uint32_t i = 0; i < n; i++)
        q[i] = test_value(i % row, 77, 0, 0);
}

/* A row's output is the same bit for bit alone and in company, whatever path the company makes it
 * take: the middle sequence is short. */
static void test_batch_invariance(void **state) {
    (void)state;
    tamis_cache_params shape = shape_of(TAMIS_F16, 8, 2, 128, 16);
    tamis_plan_params plan = {.selection = quest(64, 4, 16), .max_rows = 120, .max_context = 256};
    static const uint32_t one_row[] = {1, 1, 1};
    uint32_t width = 8 * 128;
    float together[3 * 8 * 128];
    pipe p;
    plan.max_sequences = 3;
    pipe_open(&p, &shape, &plan);
    for (uint32_t i = 0; i < 3; i++)
        pipe_add(&p);
    pipe_prefill(&p, prompts, 40);
    for (uint32_t i = 0; i < 3; i++)
        pipe_fork(&p, i);
    for (uint32_t step = 0; step < 3; step++) {
        uint64_t token = p.next_token;
        pipe_step_with(&p, everyone, one_row, 3, false, same_q);
        memcpy(together, p.out, sizeof together);
        for (uint32_t i = 0; i < 3; i++) {
            uint32_t who[] = {3 + i};
            p.next_token = token + i;
            pipe_step_with(&p, who, one_row, 1, false, same_q);
            assert_memory_equal(p.out, together + i * width, width * sizeof *together);
        }
    }
    pipe_close(&p);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quest_f32),
        cmocka_unit_test(test_quest_many_pages),
        cmocka_unit_test(test_quest_f16),
        cmocka_unit_test(test_quest_bf16),
        cmocka_unit_test(test_quest_large_head),
        cmocka_unit_test(test_quest_q8),
        cmocka_unit_test(test_quest_k8v4),
        cmocka_unit_test(test_quest_q4),
        cmocka_unit_test(test_q8_bounds),
        cmocka_unit_test(test_oracle_quantised),
        cmocka_unit_test(test_oracle_f32),
        cmocka_unit_test(test_oracle_bf16),
        cmocka_unit_test(test_oracle_large_head),
        cmocka_unit_test(test_random_pages),
        cmocka_unit_test(test_random_seeds),
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_newest),
        cmocka_unit_test(test_sliding_window),
        cmocka_unit_test(test_short),
        cmocka_unit_test(test_company),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_nan_q),
        cmocka_unit_test(test_nan_k),
        cmocka_unit_test(test_batch_invariance),
        cmocka_unit_test(test_no_builds),
    };
    int skip = test_begin(argc, argv);
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
