/* SPDX-License-Identifier: Apache-2.0 */
/* tamis_plan_row_masses against sums of softmax weights in fp64: behind tokens that lanes hold in unequal
 * numbers, in steps that were narrowed, under sliding windows and soft caps. */
#include "tests/api/evicting.h"

#include <math.h>
#include <string.h>

enum { OLD = 21, ROWS = 67, LAYERS = 2, HEADS = 4, KV_HEADS = 2, SLOTS = OLD + ROWS };

typedef struct mass_case {
    tamis_dtype dtype;
    uint32_t page_size, last, sliding_window;
    uint32_t cut; /* of a narrowed step: newest rows that are left out */
    float soft_cap;
    bool evicted, narrowed;
    bool sunk; /* layers have sinks */
} mass_case;

/* Lanes that hold different tokens, and different numbers of them. */
static void leave_unequal(evict_world *e, tamis_sequence id) {
    uint32_t slots[LAYERS * KV_HEADS][OLD], counts[LAYERS * KV_HEADS] = {0};
    for (uint32_t lane = 0; lane < LAYERS * KV_HEADS; lane++)
        for (uint32_t s = 0; s < OLD; s++)
            if ((s + lane) % (2 + lane) != 0) slots[lane][counts[lane]++] = s;
    OK(tamis_plan_evict_to(e->w.plan, id, slots[0], counts, OLD, NULL, &test_error));
}

static tamis_plan *make_plan(evict_world *e, const tamis_plan_params *params) {
    tamis_plan *plan = NULL;
    OK(tamis_plan_create(e->w.cache, params, &plan, &test_error));
    return plan;
}

/* A world with the first tokens of a sequence. */
static tamis_sequence open_case(evict_world *e, const mass_case *c) {
    tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {.max_rows = ROWS, .max_context = 128, .flags = TAMIS_PLAN_ROW_MASSES};
    shape.dtype = c->dtype;
    shape.page_size = c->page_size;
    shape.planes = TAMIS_PLANE_POSITIONS;
    if (c->evicted) plan.eviction = test_eviction(TAMIS_EVICT_CALLER, 16, 0);
    evict_open(e, &shape, &plan);
    const tamis_sequence id = evict_add(e, 0, OLD);
    if (c->evicted) leave_unequal(e, id);
    plan.eviction = (tamis_eviction){.kind = TAMIS_EVICT_NONE};
    plan.attention.sliding_window = c->sliding_window;
    plan.attention.soft_cap = c->soft_cap;
    tamis_plan *last = evict_swap_plan(e, make_plan(e, &plan));
    tamis_plan_destroy(&last);
    if (c->sunk) evict_sink(e, &plan, UINT32_MAX);
    return id;
}

/* Adds what the row of a position gives to the tokens of a lane's slots. */
static void add_row(const evict_world *e, const mass_case *c, const held *h, uint32_t lane,
                    uint32_t head, int32_t position, double *mass) {
    double logits[SLOTS], sum = exp(evict_sink_of(e, head));
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < h->lengths[lane]; i++) {
            const int32_t at = h->positions[h->first[lane] + i];
            const bool near = !c->sliding_window || at + (int32_t)c->sliding_window > position;
            if (at > position || !near) continue;
            logits[i] = evict_logit(e, h, h->first[lane] + i, (uint64_t)position, head);
            if (c->soft_cap > 0)
                logits[i] = (double)c->soft_cap * tanh(logits[i] / (double)c->soft_cap);
            if (pass == 0) sum += exp(logits[i]);
            if (pass == 1 && at >= OLD) mass[at - OLD] += exp(logits[i]) / sum;
        }
}

static void expect_masses(const evict_world *e, const mass_case *c, const held *h, uint32_t layer,
                          const double *mass) {
    double wanted[ROWS] = {0};
    for (uint32_t head = 0; head < HEADS; head++)
        for (uint32_t row = ROWS - c->cut - c->last; row < ROWS - c->cut; row++)
            add_row(e, c, h, layer * KV_HEADS + head / (HEADS / KV_HEADS), layer * HEADS + head,
                    (int32_t)(OLD + row), wanted);
    for (uint32_t i = 0; i < ROWS; i++)
        if (!(fabs(mass[i] - wanted[i]) <= 2e-5 * (1 + wanted[i])))
            fail_msg("layer %u, row %u: %g, not %g", layer, i, mass[i], wanted[i]);
}

/* The rows that a step keeps: some, and those that are weighed. */
static uint32_t keep(const mass_case *c, uint32_t *rows, uint64_t *tokens) {
    uint32_t n = 0;
    for (uint32_t row = 0; row < ROWS; row++) {
        const bool newest = row + c->cut >= ROWS, counts = row + c->cut + c->last >= ROWS;
        if (c->narrowed && (newest || (row % 5 != 2 && !counts))) continue;
        tokens[n] = OLD + row;
        rows[n++] = row;
    }
    return n;
}

static void play(const mass_case *c) {
    evict_world e;
    uint64_t all[ROWS], left[ROWS];
    uint32_t rows[ROWS];
    double mass[LAYERS][ROWS] = {{0}}, twice[ROWS];
    const uint32_t n = ROWS;
    const tamis_sequence id = open_case(&e, c);
    const tamis_step step = {.sequences = &id, .rows = &n, .count = 1, .exact = 1};
    for (uint32_t row = 0; row < ROWS; row++)
        all[row] = OLD + row;
    OK(tamis_plan_step_begin(e.w.plan, &step, &test_error));
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        test_write(&e.w, layer, all, ROWS);
    const uint32_t n_left = keep(c, rows, left);
    if (c->narrowed) OK(tamis_plan_step_keep_rows(e.w.plan, rows, n_left, &test_error));
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const tamis_rows q = {.buffer = e.w.q};
        evict_fill_queries(&e, layer, left, n_left);
        OK(tamis_plan_row_masses(e.w.plan, layer, &q, c->last, mass[layer], &test_error));
        memcpy(twice, mass[layer], sizeof twice);
        OK(tamis_plan_row_masses(e.w.plan, layer, &q, c->last, twice, &test_error));
        for (uint32_t i = 0; i < ROWS; i++)
            if (!(fabs(twice[i] - 2 * mass[layer][i]) <= 1e-12))
                fail_msg("last %u, layer %u, row %u: %g, twice %g", c->last, layer, i,
                         mass[layer][i], twice[i]);
    }
    OK(tamis_plan_step_end(e.w.plan, &test_error));
    held h = evict_read(&e, id);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        expect_masses(&e, c, &h, layer, mass[layer]);
    held_free(&h);
    evict_close(&e);
}

static void masses_are_sums_of_weights(void **state) {
    (void)state;
    static const mass_case cases[] = {
        {.dtype = TAMIS_F32, .page_size = 16, .last = 7},
        {.dtype = TAMIS_F16, .page_size = 16, .last = 33, .evicted = true, .narrowed = true},
        {.dtype = TAMIS_BF16, .page_size = 8, .last = ROWS, .soft_cap = 3},
        {.dtype = TAMIS_F16,
         .page_size = 16,
         .last = 9,
         .sliding_window = 20,
         .narrowed = true,
         .cut = 4},
        {.dtype = TAMIS_Q8, .page_size = 16, .last = 9, .evicted = true},
        {.dtype = TAMIS_K8V4, .page_size = 16, .last = 33, .narrowed = true},
        {.dtype = TAMIS_Q4, .page_size = 8, .last = 9, .evicted = true},
        {.dtype = TAMIS_F32, .page_size = 8, .last = 5, .sliding_window = 80, .evicted = true},
        {.dtype = TAMIS_F16, .page_size = 16, .last = 1, .sliding_window = 1, .soft_cap = 2},
        {.dtype = TAMIS_F32, .page_size = 8, .last = 5, .sliding_window = 40, .sunk = true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        play(&cases[i]);
}

/* ---- Misuse ---------------------------------------------------------------------------------- */

static void misuse_is_refused(void **state) {
    (void)state;
    evict_world e;
    uint64_t tokens[8] = {0};
    double mass[8] = {0};
    const uint32_t rows[] = {4, 4};
    const tamis_cache_params shape = test_shape();
    const tamis_plan_params params = {.max_sequences = 2, .max_rows = 8, .max_context = 128};
    evict_open(&e, &shape, &params);
    const tamis_sequence ids[] = {evict_add(&e, 0, 2), evict_add(&e, 0, 2)};
    const tamis_rows q = {.buffer = e.w.q}, half = {.buffer = e.w.q, .dtype = TAMIS_F16},
                     far = {.buffer = e.w.q, .offset = 8 * 1024 - 256};
    tamis_step step = {.sequences = ids, .rows = rows, .count = 1, .exact = 1};
    OK(tamis_plan_step_begin(e.w.plan, &step, &test_error));
    FAILS(tamis_plan_row_masses(e.w.plan, 0, &q, 1, mass, &test_error), TAMIS_E_STATE,
          "made without TAMIS_PLAN_ROW_MASSES");
    OK(tamis_plan_step_cancel(e.w.plan, &test_error));
    tamis_plan_params weighing = params;
    weighing.flags = TAMIS_PLAN_ROW_MASSES;
    tamis_plan *last = evict_swap_plan(&e, make_plan(&e, &weighing)), *plan = e.w.plan;
    tamis_plan_destroy(&last);
    FAILS(tamis_plan_row_masses(NULL, 0, &q, 1, mass, &test_error), TAMIS_E_ARGUMENT,
          "plan is NULL");
    FAILS(tamis_plan_row_masses(plan, 0, &q, 1, mass, &test_error), TAMIS_E_STATE, "no open step");
    step.count = 2;
    OK(tamis_plan_step_begin(plan, &step, &test_error));
    FAILS(tamis_plan_row_masses(plan, 0, &q, 1, mass, &test_error), TAMIS_E_STATE,
          "has 2 sequences");
    OK(tamis_plan_step_cancel(plan, &test_error));
    step.count = 1;
    OK(tamis_plan_step_begin(plan, &step, &test_error));
    FAILS(tamis_plan_row_masses(plan, 0, &q, 1, mass, &test_error), TAMIS_E_STATE,
          "layer 0 has not been written");
    test_write(&e.w, 0, tokens, 4);
    FAILS(tamis_plan_row_masses(plan, 2, &q, 1, mass, &test_error), TAMIS_E_ARGUMENT, "layer 2");
    FAILS(tamis_plan_row_masses(plan, 0, &q, 0, mass, &test_error), TAMIS_E_ARGUMENT, "last is 0;");
    FAILS(tamis_plan_row_masses(plan, 0, &q, 5, mass, &test_error), TAMIS_E_ARGUMENT,
          "last is 5; the step has 4 rows");
    FAILS(tamis_plan_row_masses(plan, 0, &q, 1, NULL, &test_error), TAMIS_E_ARGUMENT,
          "mass is NULL");
    FAILS(tamis_plan_row_masses(plan, 0, NULL, 1, mass, &test_error), TAMIS_E_ARGUMENT, "q");
    FAILS(tamis_plan_row_masses(plan, 0, &half, 1, mass, &test_error), TAMIS_E_ARGUMENT,
          "q is f16");
    FAILS(tamis_plan_row_masses(plan, 0, &far, 1, mass, &test_error), TAMIS_E_ARGUMENT, "q: ");
    for (size_t i = 0; i < 8; i++)
        assert_true(mass[i] == 0);
    OK(tamis_plan_step_cancel(plan, &test_error));
    step.rows = NULL;
    step.exact = 0;
    OK(tamis_plan_step_begin(plan, &step, &test_error));
    FAILS(tamis_plan_row_masses(plan, 0, &q, 1, mass, &test_error), TAMIS_E_STATE, "is not exact");
    OK(tamis_plan_step_cancel(plan, &test_error));
    weighing.reserved[2] = 3;
    FAILS(tamis_plan_create(e.w.cache, &weighing, &last, &test_error), TAMIS_E_ARGUMENT,
          "reserved[2] of tamis_plan_params is 3");
    evict_close(&e);
}

static void reindexed_plans_weigh_nothing(void **state) {
    (void)state;
    evict_world e;
    tamis_plan *plan = NULL;
    tamis_cache_params shape = test_shape();
    const tamis_plan_params plain = {.max_context = 64};
    tamis_plan_params params = {.max_context = 64, .flags = TAMIS_PLAN_ROW_MASSES};
    params.eviction = test_eviction(TAMIS_EVICT_STREAMING, 16, TAMIS_EVICT_REINDEX);
    shape.planes = tamis_eviction_planes(&params.eviction);
    evict_open(&e, &shape, &plain);
    FAILS(tamis_plan_create(e.w.cache, &params, &plan, &test_error), TAMIS_E_UNSUPPORTED,
          "TAMIS_PLAN_ROW_MASSES under reindexed streaming");
    assert_null(plan);
    evict_close(&e);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(masses_are_sums_of_weights),
                                       cmocka_unit_test(misuse_is_refused),
                                       cmocka_unit_test(reindexed_plans_weigh_nothing)};
    int skipped = test_begin(argc, argv);
    return skipped ? skipped : cmocka_run_group_tests(tests, NULL, NULL);
}
