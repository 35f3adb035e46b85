/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of sequences that are evicted from: lanes that stay at their length, forks, steps that are
 * given up, batches, and plans that follow each other on one cache. */
#include "host/backend.h"
#include "tests/api/evicting.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BUDGET 21u /* no multiple of a page */
#define PROMPT 50u
#define STEPS  110u
#define TEXT   9000u

typedef struct place_case {
    tamis_eviction_kind kind;
    uint32_t options, sinks, recent, prompt;
} place_case;

static const place_case places[] = {
    {TAMIS_EVICT_STREAMING, 0, 4, 0, PROMPT},
    {TAMIS_EVICT_STREAMING, 0, 0, 0, 5},
    {TAMIS_EVICT_H2O, 0, 0, 0, PROMPT},
    {TAMIS_EVICT_H2O, TAMIS_EVICT_RERANK | TAMIS_EVICT_LIFETIME, SINKS, 7, 5},
    {TAMIS_EVICT_TOVA, 0, SINKS, 0, PROMPT},
    {TAMIS_EVICT_TOVA, 0, 0, 0, 5},
    {TAMIS_EVICT_KNORM, 0, SINKS, 7, PROMPT},
    {TAMIS_EVICT_KNORM, 0, 0, 0, 5},
};
enum { N_PLACES = sizeof places / sizeof *places };

static tamis_plan_params plan_of(const place_case *c) {
    tamis_plan_params plan = {.max_context = 256,
                              .max_rows = 64,
                              .max_sequences = 4,
                              .eviction = test_eviction(c->kind, BUDGET, c->options)};
    plan.eviction.sinks = c->sinks;
    plan.eviction.recent = c->recent;
    return plan;
}

static evict_world open_place(const place_case *c) {
    const tamis_cache_params shape = test_shape();
    const tamis_plan_params plan = plan_of(c);
    evict_world e;
    evict_open(&e, &shape, &plan);
    return e;
}

static uint32_t steps_of(uint32_t n) {
    return n / test_slowness();
}

/* A prompt, evicted from if it is longer than the budget. */
static tamis_sequence add_evicted(evict_world *e, uint64_t first, uint32_t n) {
    tamis_sequence id = evict_add(e, first, n);
    OK(tamis_plan_evict(e->w.plan, id, NULL, &test_error));
    return id;
}

/* ---- In place -------------------------------------------------------------------------------- */

/* Streaming beside a plain model: every lane holds the same, place by place. */
typedef struct model {
    int32_t positions[BUDGET];
    uint32_t n;
} model;

static void model_prompt(model *m, uint32_t n, uint32_t sinks) {
    *m = (model){.n = n < BUDGET ? n : BUDGET};
    for (uint32_t i = 0; i < m->n; i++)
        m->positions[i] = (int32_t)(i < sinks ? i : n - (m->n - i));
}

static void model_step(model *m, uint32_t position, uint32_t sinks) {
    uint32_t at = m->n;
    for (uint32_t i = 0; i < m->n && m->n == BUDGET; i++)
        if (m->positions[i] >= (int32_t)sinks &&
            (at == BUDGET || m->positions[i] < m->positions[at]))
            at = i;
    if (m->n < BUDGET) m->n++;
    m->positions[at] = (int32_t)position;
}

/* What a step has done: one place of a full lane changed, none of a lane that grew. */
static void check_change(const held *before, const held *now, uint32_t position) {
    for (uint32_t lane = 0; lane < now->n_lanes; lane++) {
        const int32_t *a = before->positions + before->first[lane];
        const int32_t *b = now->positions + now->first[lane];
        uint32_t n = before->lengths[lane], changed = 0;
        for (uint32_t i = 0; i < n; i++)
            changed += a[i] != b[i];
        assert_int_equal(now->lengths[lane], n < BUDGET ? n + 1 : BUDGET);
        assert_int_equal(changed, n == BUDGET);
        assert_true(held_has(now, lane, (int32_t)position));
    }
}

static void check_policy(const place_case *c, const held *h, const model *m, uint32_t length) {
    uint32_t recent = c->recent ? c->recent : c->kind == TAMIS_EVICT_H2O ? BUDGET / 2 : 0;
    if (c->kind == TAMIS_EVICT_KNORM) held_norms(h);
    for (uint32_t lane = 0; lane < h->n_lanes; lane++) {
        const int32_t *positions = h->positions + h->first[lane];
        for (uint32_t p = 0; p < c->sinks; p++)
            assert_true(held_has(h, lane, (int32_t)p));
        for (uint32_t p = 0; p < recent && p < length; p++)
            assert_true(held_has(h, lane, (int32_t)(length - 1 - p)));
        if (c->kind == TAMIS_EVICT_STREAMING)
            assert_memory_equal(positions, m->positions, m->n * sizeof *positions);
        if (c->kind == TAMIS_EVICT_TOVA)
            assert_memory_equal(positions, h->positions + h->first[lane / 2 * 2],
                                h->lengths[lane] * sizeof *positions);
    }
}

/* Pages may be taken as long as lanes grow. */
static void check_pages(const evict_world *e, const tamis_cache_stats *before, uint32_t length) {
    if (length > BUDGET) test_unchanged(&e->w, before);
}

static void run_in_place(const place_case *c) {
    evict_world e = open_place(c);
    float outs[2 * 4 * 64];
    tamis_plan_counters counters;
    tamis_sequence id = add_evicted(&e, TEXT, c->prompt);
    uint32_t steps = steps_of(STEPS), replaced = 0;
    model m;
    model_prompt(&m, c->prompt, c->sinks);
    held before = evict_read(&e, id), now;
    for (uint32_t i = 0; i < steps; i++) {
        uint32_t p = c->prompt + i;
        tamis_cache_stats stats = test_stats(&e.w);
        replaced += before.lengths[0] == BUDGET;
        evict_decode(&e, id, TEXT + p, 1, outs);
        model_step(&m, p, c->sinks);
        check_pages(&e, &stats, before.lengths[0] + 1);
        now = evict_read(&e, id);
        check_change(&before, &now, p);
        check_policy(c, &now, &m, p + 1);
        held_check(&now, TEXT, p + 1);
        for (uint32_t layer = 0; layer < 2; layer++)
            evict_dense(&e, &now, layer, TEXT + p, outs + layer * evict_out_floats(&e, 1), false);
        held_free(&before);
        before = now;
        if (i % 20 == 19) evict_check_bounds(&e, id);
    }
    tamis_plan_get_counters(e.w.plan, &counters);
    assert_int_equal(counters.tokens_replaced, 4 * replaced);
    held_free(&before);
    /* A second prompt grows the lanes; then decode steps must wait for an eviction. */
    uint32_t length = c->prompt + steps;
    evict_prompt(&e, id, TEXT + length, 9);
    const tamis_step step = {.sequences = &id, .count = 1};
    const uint64_t token = TEXT + length + 9;
    tamis_cache_stats stats = test_stats(&e.w);
    before = evict_read(&e, id);
    FAILS(evict_step(&e, &step, &token, NULL), TAMIS_E_STATE, "tamis_plan_evict comes first");
    FAILS(evict_step(&e, &step, &token, NULL), TAMIS_E_STATE,
          "holds 30 tokens, more than the budget 21 of");
    test_unchanged(&e.w, &stats);
    now = evict_read(&e, id);
    held_same(&before, &now);
    held_free(&before);
    held_free(&now);
    OK(tamis_plan_evict(e.w.plan, id, NULL, &test_error));
    evict_decode(&e, id, token, 3, NULL);
    now = evict_read(&e, id);
    held_check(&now, TEXT, length + 12);
    assert_int_equal(now.n_slots, 4 * BUDGET);
    held_free(&now);
    evict_close(&e);
}

static void a_row_in_place_takes_the_slot_of_the_formula(void **state) {
    (void)state;
    for (uint32_t i = 0; i < N_PLACES; i++)
        run_in_place(&places[i]);
}

static void a_step_in_place_takes_one_row_a_sequence(void **state) {
    (void)state;
    evict_world e = open_place(&places[2]);
    tamis_sequence id = evict_add(&e, TEXT, 9);
    const uint32_t rows = 2;
    const uint64_t tokens[] = {1, 2};
    const tamis_step step = {.sequences = &id, .rows = &rows, .count = 1};
    FAILS(evict_step(&e, &step, tokens, NULL), TAMIS_E_ARGUMENT,
          "brings 2 rows: a step that is not exact brings one under eviction h2o");
    evict_close(&e);
}

/* A decode row in an exact step would make the lanes of an evicted sequence longer than the budget,
 * after which no decode step goes on: it is refused, beside others too, and replaces in a step that
 * is not exact. Rows of a prompt are taken, as single ones behind others, until the next eviction. */
static void run_exact_row(const place_case *c) {
    evict_world e = open_place(c);
    const tamis_sequence ids[] = {evict_add(&e, TEXT + 1000, 9), add_evicted(&e, TEXT, PROMPT)};
    const tamis_sequence id = ids[1];
    const uint64_t next[] = {TEXT + 1009, TEXT + PROMPT};
    const tamis_step both = {.sequences = ids, .count = 2, .exact = 1};
    const tamis_step one = {.sequences = &id, .count = 1, .exact = 1};
    tamis_step_pages pages;
    held before = evict_read(&e, id);
    const char *why =
        test_text("sequence %" PRIu64 " has been evicted from and holds the budget 21", id);
    FAILS(evict_step(&e, &both, next, NULL), TAMIS_E_STATE, why);
    FAILS(tamis_plan_step_pages(e.w.plan, &one, &pages, &test_error), TAMIS_E_STATE, why);
    held after = evict_read(&e, id);
    held_same(&before, &after);
    evict_decode(&e, id, TEXT + PROMPT, 1, NULL);
    assert_int_equal(evict_length(&e, id, 1, 1), BUDGET);
    evict_prompt(&e, id, TEXT + PROMPT + 1, 2);
    evict_prompt(&e, id, TEXT + PROMPT + 3, 1);
    assert_int_equal(evict_length(&e, id, 1, 1), BUDGET + 3);
    OK(tamis_plan_evict(e.w.plan, id, NULL, &test_error));
    evict_decode(&e, id, TEXT + PROMPT + 4, 2, NULL);
    assert_int_equal(evict_length(&e, id, 1, 1), BUDGET);
    evict_prompt(&e, ids[0], TEXT + 1009, 1);
    held_free(&before);
    held_free(&after);
    evict_close(&e);
}

static void an_exact_step_takes_no_decode_row_of_a_full_sequence(void **state) {
    (void)state;
    for (uint32_t i = 0; i < N_PLACES; i++)
        if (places[i].prompt == PROMPT) run_exact_row(&places[i]);
}

/* ---- Forks ----------------------------------------------------------------------------------- */

/* Two forks of one parent: what happens to the one and to the parent in between does not change
 * what the other holds, nor what it answers. */
static void run_forks(tamis_plan_params plan, bool evicted) {
    const tamis_cache_params shape = test_shape();
    const uint32_t n = steps_of(10) + 2;
    evict_world e;
    evict_open(&e, &shape, &plan);
    const uint64_t floats = n * 2 * evict_out_floats(&e, 1);
    float *outs[2] = {calloc(floats, sizeof(float)), calloc(floats, sizeof(float))};
    assert_true(outs[0] && outs[1]);
    tamis_sequence parent = evict_add(&e, TEXT, evicted ? PROMPT : BUDGET - 3), forks[2];
    if (evicted) OK(tamis_plan_evict(e.w.plan, parent, NULL, &test_error));
    for (uint32_t i = 0; i < 2; i++)
        OK(tamis_cache_fork(e.w.cache, parent, &forks[i], &test_error));
    held before = evict_read(&e, parent), now;
    evict_decode(&e, forks[0], TEXT + 300, n, outs[0]);
    now = evict_read(&e, parent);
    held_same(&before, &now);
    held_free(&now);
    evict_decode(&e, parent, TEXT + 600, n, NULL);
    evict_prompt(&e, parent, TEXT + 600 + n, 30);
    OK(tamis_plan_evict(e.w.plan, parent, NULL, &test_error));
    now = evict_read(&e, forks[1]);
    held_same(&before, &now);
    held_free(&now);
    held_free(&before);
    before = evict_read(&e, forks[0]);
    OK(tamis_cache_remove(e.w.cache, parent, &test_error));
    evict_decode(&e, forks[1], TEXT + 300, n, outs[1]);
    assert_memory_equal(outs[0], outs[1], floats * sizeof(float));
    now = evict_read(&e, forks[1]);
    held_same(&before, &now);
    held_free(&now);
    held_free(&before);
    evict_check_bounds(&e, forks[0]);
    evict_check_bounds(&e, forks[1]);
    assert_int_equal(test_stats(&e.w).sequences, 2);
    free(outs[0]);
    free(outs[1]);
    evict_close(&e);
}

static void evicting_from_a_fork_leaves_the_other_alone(void **state) {
    (void)state;
    const tamis_eviction_kind others[] = {TAMIS_EVICT_SNAPKV, TAMIS_EVICT_ADAKV,
                                          TAMIS_EVICT_DEFENSIVEKV};
    for (uint32_t i = 0; i < N_PLACES; i++)
        for (uint32_t evicted = 0; evicted < 2; evicted++)
            if (test_slowness() < 5 || (i % 2 == 0 && evicted))
                run_forks(plan_of(&places[i]), evicted);
    for (uint32_t i = 0; i < 3; i++) {
        const place_case c = {.kind = others[i]};
        if (test_slowness() < 5 || i == 0) run_forks(plan_of(&c), true);
    }
}

/* A fork has its parent's queries and scores: it is evicted right away to the same tokens, whether
 * the parent is still there, has gone on, or its place in the plan is taken. */
static void run_inherit(tamis_eviction_kind kind, uint32_t max_sequences, int fate) {
    const tamis_cache_params shape = test_shape();
    const place_case c = {.kind = kind};
    tamis_plan_params plan = plan_of(&c);
    plan.max_sequences = max_sequences;
    evict_world e;
    evict_open(&e, &shape, &plan);
    tamis_sequence parent = evict_add(&e, TEXT, PROMPT), fork = 0, twin = 0;
    if (max_sequences > 1) (void)evict_add(&e, TEXT + 500, 20);
    OK(tamis_cache_fork(e.w.cache, parent, &fork, &test_error));
    if (fate == 1) evict_prompt(&e, parent, TEXT + PROMPT, 3);
    if (fate == 2) OK(tamis_cache_remove(e.w.cache, parent, &test_error));
    held whole = evict_read(&e, fork);
    bool lost = fate == 1 && plan.eviction.window > 0;
    if (lost) /* the parent's newer rows stand where three of the fork's stood */
        FAILS(tamis_plan_evict(e.w.plan, fork, NULL, &test_error), TAMIS_E_STATE,
              "known are 45 to 49");
    else
        OK(tamis_plan_evict(e.w.plan, fork, NULL, &test_error));
    twin = evict_add(&e, TEXT, PROMPT);
    if (!lost) {
        OK(tamis_plan_evict(e.w.plan, twin, NULL, &test_error));
        held a = evict_read(&e, fork), b = evict_read(&e, twin);
        held_same(&a, &b);
        held_free(&a);
        held_free(&b);
    }
    held now = fate == 0 ? evict_read(&e, parent) : evict_read(&e, twin);
    if (fate == 0) held_same(&whole, &now);
    held_free(&now);
    held_free(&whole);
    evict_close(&e);
}

static void a_fork_inherits_queries_and_scores(void **state) {
    (void)state;
    tamis_eviction_kind kinds[65];
    const uint32_t n = test_scored_evictions(kinds);
    kinds[n] = TAMIS_EVICT_SNAPKV;
    for (uint32_t i = 0; i <= n; i++)
        for (int fate = 0; fate < 3; fate++) {
            run_inherit(kinds[i], 1, fate);
            run_inherit(kinds[i], 2, fate);
        }
}

/* A fork that goes on has its parent's last queries and its own. */
static void a_fork_that_grows_keeps_both_queries(void **state) {
    (void)state;
    const tamis_cache_params shape = test_shape();
    const place_case c = {.kind = TAMIS_EVICT_SNAPKV};
    for (uint32_t max_sequences = 1; max_sequences < 4; max_sequences += 2) {
        tamis_plan_params plan = plan_of(&c);
        plan.max_sequences = max_sequences;
        evict_world e;
        evict_open(&e, &shape, &plan);
        tamis_sequence parent = evict_add(&e, TEXT, PROMPT), fork = 0;
        OK(tamis_cache_fork(e.w.cache, parent, &fork, &test_error));
        OK(tamis_cache_truncate(e.w.cache, fork, PROMPT - 1, &test_error));
        evict_prompt(&e, fork, TEXT + PROMPT - 1, 4);
        OK(tamis_plan_evict(e.w.plan, fork, NULL, &test_error));
        tamis_sequence twin = evict_add(&e, TEXT, PROMPT + 3);
        OK(tamis_plan_evict(e.w.plan, twin, NULL, &test_error));
        held a = evict_read(&e, fork), b = evict_read(&e, twin);
        held_same(&a, &b);
        held_free(&a);
        held_free(&b);
        evict_close(&e);
    }
}

/* No pages for the copies: nothing has changed. */
static void run_full(const place_case *c) {
    tamis_cache_params shape = test_shape();
    tamis_plan_params plan = plan_of(c);
    shape.capacity_tokens = 8 * 8;
    evict_world e;
    evict_open(&e, &shape, &plan);
    tamis_sequence parent = evict_add(&e, TEXT, PROMPT), fork = 0; /* 7 of 8 pages a lane */
    OK(tamis_cache_fork(e.w.cache, parent, &fork, &test_error));
    tamis_cache_stats stats = test_stats(&e.w);
    held before = evict_read(&e, parent), now;
    FAILS(tamis_plan_evict(e.w.plan, fork, NULL, &test_error), TAMIS_E_FULL,
          "the eviction needs copies of 12 shared pages in layers 0 to 1, for which 4 are free");
    FAILS(tamis_plan_evict(e.w.plan, parent, NULL, &test_error), TAMIS_E_FULL, "12 shared pages");
    test_unchanged(&e.w, &stats);
    now = evict_read(&e, fork);
    held_same(&before, &now);
    held_free(&now);
    held_free(&before);
    OK(tamis_cache_remove(e.w.cache, fork, &test_error));
    OK(tamis_plan_evict(e.w.plan, parent, NULL, &test_error));
    if (plan.eviction.every == 1) {
        /* 3 of 8 are held; another prompt leaves 2, and the fork's step would write all of 3. */
        tamis_sequence other = evict_add(&e, TEXT, 20);
        OK(tamis_cache_fork(e.w.cache, parent, &fork, &test_error));
        const tamis_step step = {.sequences = &fork, .count = 1};
        const uint64_t token = TEXT + PROMPT;
        stats = test_stats(&e.w);
        before = evict_read(&e, parent);
        FAILS(evict_step(&e, &step, &token, NULL), TAMIS_E_FULL, "needs 12 pages");
        test_unchanged(&e.w, &stats);
        now = evict_read(&e, fork);
        held_same(&before, &now);
        held_free(&now);
        held_free(&before);
        OK(tamis_cache_remove(e.w.cache, other, &test_error));
        OK(evict_step(&e, &step, &token, NULL));
        OK(tamis_cache_remove(e.w.cache, fork, &test_error));
    }
    OK(tamis_cache_remove(e.w.cache, parent, &test_error));
    assert_int_equal(test_stats(&e.w).pages_held, 0);
    evict_close(&e);
}

static void running_out_of_pages_changes_nothing(void **state) {
    (void)state;
    const place_case snapkv = {.kind = TAMIS_EVICT_SNAPKV};
    run_full(&places[0]);
    run_full(&places[2]);
    run_full(&snapkv);
}

/* ---- Steps that are given up ----------------------------------------------------------------- */

/* Two worlds, one of which gives a step up half way: with layer 0 written, and attended or not. */
static void run_cancel(const place_case *c, bool attended) {
    evict_world worlds[2] = {open_place(c), open_place(c)};
    tamis_sequence ids[2];
    float outs[2][2 * 4 * 64];
    const uint64_t junk = 77;
    /* What h2o adds up goes on from the weights of rows that were given up. */
    uint32_t steps = attended && c->kind == TAMIS_EVICT_H2O ? 1 : steps_of(25);
    for (uint32_t i = 0; i < 2; i++)
        ids[i] = add_evicted(&worlds[i], TEXT, PROMPT);
    evict_world *e = &worlds[1];
    const tamis_step step = {.sequences = &ids[1], .count = 1};
    for (uint32_t tries = 0; tries < 2; tries++) {
        tamis_cache_stats stats = test_stats(&e->w);
        OK(tamis_plan_step_begin(e->w.plan, &step, &test_error));
        if (attended)
            evict_layer(e, 0, &junk, 1, NULL);
        else
            test_write(&e->w, 0, &junk, 1);
        FAILS(tamis_plan_step_end(e->w.plan, &test_error), TAMIS_E_STATE,
              "layer 1 has not been written");
        OK(tamis_plan_step_cancel(e->w.plan, &test_error));
        test_unchanged(&e->w, &stats);
    }
    for (uint32_t i = 0; i < steps; i++) {
        for (uint32_t w = 0; w < 2; w++)
            evict_decode(&worlds[w], ids[w], TEXT + PROMPT + i, 1, outs[w]);
        held a = evict_read(&worlds[0], ids[0]), b = evict_read(&worlds[1], ids[1]);
        held_check(&b, TEXT, PROMPT + i + 1);
        held_same_positions(&a, &b);
        assert_memory_equal(outs[0], outs[1], sizeof outs[0]);
        held_free(&a);
        held_free(&b);
    }
    evict_check_bounds(&worlds[1], ids[1]);
    evict_close(&worlds[0]);
    evict_close(&worlds[1]);
}

static void a_cancelled_step_in_place_must_be_repeated(void **state) {
    (void)state;
    for (uint32_t i = 0; i < N_PLACES; i += 2)
        for (uint32_t attended = 0; attended < 2; attended++)
            if (test_slowness() < 5 || attended == i % 4 / 2) run_cancel(&places[i], attended);
}

/* A step that has written nothing has taken nothing: tokens may still be truncated away. */
static void a_step_without_writes_replaces_nothing(void **state) {
    (void)state;
    evict_world e = open_place(&places[0]);
    tamis_sequence id = evict_add(&e, TEXT, BUDGET);
    const tamis_step step = {.sequences = &id, .count = 1};
    OK(tamis_plan_step_begin(e.w.plan, &step, &test_error));
    OK(tamis_plan_step_cancel(e.w.plan, &test_error));
    assert_int_equal(test_evicted_at(e.w.cache, id), 0);
    OK(tamis_cache_truncate(e.w.cache, id, BUDGET - 4, &test_error));
    evict_close(&e);
}

/* Until it is repeated, the row that was given up stands where a token stood: nothing else may read
 * or move it. */
static void until_repeated_a_cancelled_row_stops_other_calls(void **state) {
    (void)state;
    evict_world e = open_place(&places[2]);
    const uint64_t junk = 77, token = TEXT + PROMPT;
    tamis_sequence id = add_evicted(&e, TEXT, PROMPT), fork = 0;
    const tamis_step step = {.sequences = &id, .count = 1};
    const tamis_step exact = {.sequences = &id, .count = 1, .exact = 1};
    OK(tamis_plan_step_begin(e.w.plan, &step, &test_error));
    OK(tamis_plan_step_cancel(e.w.plan, &test_error)); /* nothing was written */
    OK(tamis_plan_evict(e.w.plan, id, NULL, &test_error));
    OK(tamis_plan_step_begin(e.w.plan, &step, &test_error));
    test_write(&e.w, 0, &junk, 1);
    OK(tamis_plan_step_cancel(e.w.plan, &test_error));
    OK(tamis_cache_fork(e.w.cache, id, &fork, &test_error));
    FAILS(evict_step(&e, &exact, &token, NULL), TAMIS_E_STATE,
          "holds rows of a step that was given up at 21 tokens a lane");
    FAILS(tamis_plan_evict(e.w.plan, id, NULL, &test_error), TAMIS_E_STATE, "was given up");
    tamis_plan_params wide = plan_of(&places[2]);
    wide.eviction.budget = BUDGET + 9;
    tamis_plan *other = NULL;
    OK(tamis_plan_create(e.w.cache, &wide, &other, &test_error));
    tamis_plan *first = evict_swap_plan(&e, other);
    FAILS(evict_step(&e, &step, &token, NULL), TAMIS_E_STATE, "given up");
    (void)evict_swap_plan(&e, first);
    tamis_plan_destroy(&other);
    for (uint32_t i = 0; i < 2; i++) {
        tamis_sequence one = i ? fork : id;
        evict_decode(&e, one, token, 1, NULL);
        evict_prompt(&e, one, token + 1, 2);
        held h = evict_read(&e, one);
        held_check(&h, TEXT, PROMPT + 3);
        held_free(&h);
    }
    evict_close(&e);
}

/* ---- Batches --------------------------------------------------------------------------------- */

/* Three sequences, of which one grows until it is full: each as it is alone, in a plan that knows
 * one sequence at a time. The order in the batch changes. */
static void run_batch(tamis_plan_params plan, tamis_selection_kind selection) {
    enum { N = 3 };
    const uint32_t prompts[N] = {PROMPT, 13, 33};
    const tamis_cache_params shape = test_shape();
    const uint32_t steps = steps_of(20);
    if (selection != TAMIS_SELECT_FULL) {
        tamis_selection_default(selection, &plan.selection);
        plan.selection.budget = 16;
        plan.selection.recent = 0;
        plan.selection.sinks = 0;
    }
    evict_world alone, batch;
    evict_open(&batch, &shape, &plan);
    if (plan.eviction.window == 0) plan.max_sequences = 1;
    evict_open(&alone, &shape, &plan);
    tamis_sequence one[N], all[N], order[N];
    for (uint32_t i = 0; i < N; i++) {
        one[i] = add_evicted(&alone, TEXT + 400 * i, prompts[i]);
        all[i] = add_evicted(&batch, TEXT + 400 * i, prompts[i]);
    }
    const tamis_step step = {.sequences = order, .count = N};
    const uint64_t row = evict_out_floats(&batch, 1);
    float outs[2 * N * 4 * 64], single[2 * 4 * 64];
    for (uint32_t s = 0; s < steps; s++) {
        uint64_t tokens[N];
        for (uint32_t i = 0; i < N; i++) {
            uint32_t which = (i + s) % N;
            order[i] = all[which];
            tokens[i] = TEXT + 400 * which + prompts[which] + s;
        }
        OK(evict_step(&batch, &step, tokens, outs));
        for (uint32_t i = 0; i < N; i++) {
            evict_decode(&alone, one[(i + s) % N], tokens[i], 1, single);
            for (uint32_t layer = 0; layer < 2; layer++)
                assert_memory_equal(outs + (layer * N + i) * row, single + layer * row,
                                    row * sizeof *outs);
        }
    }
    for (uint32_t i = 0; i < N; i++) {
        held a = evict_read(&alone, one[i]), b = evict_read(&batch, all[i]);
        held_same(&a, &b);
        held_free(&a);
        held_free(&b);
    }
    evict_close(&alone);
    evict_close(&batch);
}

static void a_batch_evicts_as_its_sequences_alone(void **state) {
    (void)state;
    for (uint32_t i = 0; i < N_PLACES; i += 2) {
        run_batch(plan_of(&places[i]), TAMIS_SELECT_FULL);
        if (test_slowness() < 5 || i == 4) run_batch(plan_of(&places[i]), TAMIS_SELECT_QUEST);
    }
    const place_case adakv = {.kind = TAMIS_EVICT_ADAKV};
    run_batch(plan_of(&adakv), TAMIS_SELECT_FULL);
}

/* Prompts in one step are evicted from as if each had come alone. */
static void prompts_in_one_step_evict_as_alone(void **state) {
    (void)state;
    const place_case kinds[] = {{.kind = TAMIS_EVICT_SNAPKV}, {.kind = TAMIS_EVICT_TOVA}};
    const uint32_t rows[2] = {26, 37};
    for (uint32_t k = 0; k < 2; k++) {
        evict_world e = open_place(&kinds[k]);
        uint64_t tokens[63];
        tamis_sequence ids[2], alone[2];
        for (uint32_t i = 0; i < 63; i++)
            tokens[i] = TEXT + i;
        for (uint32_t i = 0; i < 2; i++) {
            OK(tamis_cache_add(e.w.cache, &ids[i], &test_error));
            alone[i] = evict_add(&e, TEXT + 26 * i, rows[i]);
        }
        const tamis_step step = {.sequences = ids, .rows = rows, .count = 2, .exact = 1};
        OK(evict_step(&e, &step, tokens, NULL));
        for (uint32_t i = 0; i < 2; i++) {
            OK(tamis_plan_evict(e.w.plan, ids[i], NULL, &test_error));
            OK(tamis_plan_evict(e.w.plan, alone[i], NULL, &test_error));
            held a = evict_read(&e, ids[i]), b = evict_read(&e, alone[i]);
            held_check(&a, TEXT + 26 * i, rows[i]);
            held_same_positions(&a, &b);
            held_free(&a);
            held_free(&b);
        }
        evict_close(&e);
    }
}

/* What the window's rows give to a lane's slots before it, summed: [length - window]. */
static void window_weights(const evict_world *e, const held *h, uint32_t lane, uint32_t window,
                           double *scores) {
    const uint32_t length = h->lengths[lane], group = e->w.shape.n_heads / e->w.shape.n_kv_heads;
    double weights[128];
    for (uint32_t i = 0; i < length - window; i++)
        scores[i] = 0;
    for (uint32_t row = length - window; row < length; row++)
        for (uint32_t g = 0; g < group; g++) {
            double sum = 0;
            for (uint32_t i = 0; i <= row; i++)
                sum += weights[i] =
                    exp(evict_logit(e, h, h->first[lane] + i, TEXT + row, lane * group + g));
            for (uint32_t i = 0; i < length - window; i++)
                scores[i] += weights[i] / sum;
        }
}

/* snapkv without pooling: nothing before the window that went weighs more than what stayed. */
static void check_heaviest(const evict_world *e, const held *whole, const held *kept,
                           uint32_t window) {
    double scores[128];
    for (uint32_t lane = 0; lane < whole->n_lanes; lane++) {
        double least = INFINITY, most = 0;
        window_weights(e, whole, lane, window, scores);
        for (uint32_t i = 0; i < whole->lengths[lane] - window; i++) {
            bool stays = held_has(kept, lane, (int32_t)i);
            if (stays && scores[i] < least) least = scores[i];
            if (!stays && scores[i] > most) most = scores[i];
        }
        assert_true(isfinite(least) && least > most * (1 - 1e-5));
    }
}

/* A prompt in pieces is evicted from as it is in one: the window's queries lie round the ring's
 * end, and are more than a tile. */
static void a_prompt_in_pieces_evicts_as_in_one(void **state) {
    (void)state;
    const uint32_t prompt = 97, pieces[] = {97, 31, 7};
    const tamis_cache_params shape = test_shape();
    const place_case c = {.kind = TAMIS_EVICT_SNAPKV};
    tamis_plan_params plan = plan_of(&c);
    plan.max_rows = 97;
    plan.eviction.window = 37;
    plan.eviction.kernel = 1;
    plan.eviction.budget = 50;
    evict_world e;
    evict_open(&e, &shape, &plan);
    held h[3], whole;
    for (uint32_t i = 0; i < 3; i++) {
        tamis_sequence id = evict_add(&e, TEXT, 0);
        for (uint32_t at = 0; at < prompt; at += pieces[i])
            evict_prompt(&e, id, TEXT + at, prompt - at < pieces[i] ? prompt - at : pieces[i]);
        whole = evict_read(&e, id);
        OK(tamis_plan_evict(e.w.plan, id, NULL, &test_error));
        h[i] = evict_read(&e, id);
        check_heaviest(&e, &whole, &h[i], plan.eviction.window);
        held_free(&whole);
        OK(tamis_cache_remove(e.w.cache, id, &test_error));
    }
    assert_int_equal(h[0].n_slots, 4 * 50);
    held_check(&h[0], TEXT, prompt);
    held_same(&h[0], &h[1]);
    held_same(&h[0], &h[2]);
    for (uint32_t i = 0; i < 3; i++)
        held_free(&h[i]);
    evict_close(&e);
}

/* A device that fails in the middle: what has been evicted is, what has not is whole, no page is
 * lost, and another call does the rest. */
static const tms_backend *sound;
static uint32_t compactions;

static tamis_status fail_second(tms_device *dev, const tms_compact *p) {
    return ++compactions == 2 ? TAMIS_E_DEVICE : sound->compact(dev, p);
}

static void a_failed_eviction_is_whole_or_done_by_layer(void **state) {
    (void)state;
    const place_case c = {.kind = TAMIS_EVICT_ADAKV};
    evict_world e = open_place(&c);
    tms_device *dev = e.w.context->dev;
    tamis_sequence id = evict_add(&e, TEXT, PROMPT), fork = 0, twin = evict_add(&e, TEXT, PROMPT);
    OK(tamis_cache_fork(e.w.cache, id, &fork, &test_error));
    held whole = evict_read(&e, id), now;
    tamis_evicted out;
    sound = dev->backend;
    tms_backend failing = *sound;
    failing.compact = fail_second;
    compactions = 0;
    dev->backend = &failing;
    FAILS(tamis_plan_evict(e.w.plan, fork, &out, &test_error), TAMIS_E_DEVICE, "");
    dev->backend = sound;
    now = evict_read(&e, id);
    held_same(&whole, &now);
    held_free(&now);
    now = evict_read(&e, fork);
    held_check(&now, TEXT, PROMPT);
    assert_int_equal(now.lengths[0] + now.lengths[1], 2 * BUDGET);
    assert_int_equal(now.lengths[2] + now.lengths[3], 2 * PROMPT);
    held_free(&now);
    OK(tamis_plan_evict(e.w.plan, fork, &out, &test_error));
    OK(tamis_plan_evict(e.w.plan, twin, NULL, &test_error));
    now = evict_read(&e, fork);
    held other = evict_read(&e, twin);
    held_same(&now, &other);
    held_free(&now);
    held_free(&other);
    held_free(&whole);
    const tamis_sequence ids[] = {id, fork, twin};
    for (uint32_t i = 0; i < 3; i++)
        OK(tamis_cache_remove(e.w.cache, ids[i], &test_error));
    assert_int_equal(test_stats(&e.w).pages_held, 0);
    evict_close(&e);
}

/* ---- Plans that follow each other ------------------------------------------------------------ */

static tamis_plan *new_plan(evict_world *e, const tamis_plan_params *params) {
    tamis_plan *plan = NULL;
    OK(tamis_plan_create(e->w.cache, params, &plan, &test_error));
    return plan;
}

/* Slots out of order are read in full by any plan without a window, by pages only by one that goes by
 * position. */
static void slots_out_of_order_are_read_by_position_only(void **state) {
    (void)state;
    evict_world e = open_place(&places[4]);
    tamis_plan_params quest = {.max_context = 256, .max_rows = 64}, full = quest, seen = quest;
    seen.attention.sliding_window = 16;
    tamis_selection_default(TAMIS_SELECT_QUEST, &quest.selection);
    quest.selection.budget = 24;
    quest.selection.recent = quest.selection.sinks = 0;
    tamis_plan *plans[3] = {new_plan(&e, &quest), new_plan(&e, &full), new_plan(&e, &seen)};
    tamis_sequence id = add_evicted(&e, TEXT, PROMPT);
    const tamis_step step = {.sequences = &id, .count = 1};
    uint64_t token = TEXT + PROMPT;
    float outs[2 * 4 * 64];
    tamis_plan *first = evict_swap_plan(&e, plans[0]);
    OK(evict_step(&e, &step, &token, NULL)); /* still in order */
    OK(tamis_cache_truncate(e.w.cache, id, PROMPT, &test_error));
    (void)evict_swap_plan(&e, first);
    evict_decode(&e, id, token, 5, NULL);
    token += 5;
    (void)evict_swap_plan(&e, plans[0]);
    tamis_cache_stats stats = test_stats(&e.w);
    FAILS(evict_step(&e, &step, &token, NULL), TAMIS_E_STATE,
          "are not in the order of their tokens; selection quest reads them only under");
    test_unchanged(&e.w, &stats);
    (void)evict_swap_plan(&e, plans[2]);
    FAILS(evict_step(&e, &step, &token, NULL), TAMIS_E_STATE,
          "are not in the order of their tokens, by which a sliding window or a chunk is found");
    test_unchanged(&e.w, &stats);
    (void)evict_swap_plan(&e, plans[0]);
    evict_prompt(&e, id, token, 1);
    (void)evict_swap_plan(&e, plans[1]);
    evict_decode(&e, id, token + 1, 1, outs);
    held h = evict_read(&e, id);
    held_check(&h, TEXT, PROMPT + 7);
    evict_dense(&e, &h, 1, token + 1, outs + evict_out_floats(&e, 1), false);
    held_free(&h);
    (void)evict_swap_plan(&e, first);
    for (uint32_t i = 0; i < 3; i++)
        tamis_plan_destroy(&plans[i]);
    evict_close(&e);
}

/* Lanes of unequal length cannot be kept alike by tova, nor read at one distance by reindexing. */
static void unequal_lanes_are_refused_where_they_must_match(void **state) {
    (void)state;
    evict_world e = open_place(&places[4]); /* for its planes */
    const place_case caller = {.kind = TAMIS_EVICT_CALLER};
    const tamis_plan_params by_caller = plan_of(&caller);
    tamis_plan *plan = new_plan(&e, &by_caller), *tova = evict_swap_plan(&e, plan);
    tamis_sequence id = evict_add(&e, TEXT, 9);
    const uint32_t slots[4][9] = {{0, 1, 2}, {3, 4, 5, 6}, {1, 2, 8}, {0, 1, 2, 3}};
    const uint32_t counts[4] = {3, 4, 3, 4};
    const uint64_t token = TEXT + 9;
    const tamis_step step = {.sequences = &id, .count = 1};
    OK(tamis_plan_evict_to(plan, id, slots[0], counts, 9, NULL, &test_error));
    evict_decode(&e, id, token, 1, NULL);
    (void)evict_swap_plan(&e, tova);
    FAILS(evict_step(&e, &step, &token, NULL), TAMIS_E_STATE,
          test_text("lanes 0 and 1 of sequence %" PRIu64
                    " hold 4 and 5 tokens; tova needs as many in each",
                    id));
    tamis_plan_destroy(&plan);
    evict_close(&e);
}

/* Nothing acts in decode steps: fixed launches go with it. */
static void fixed_launches_evict_at_the_prompts_end(void **state) {
    (void)state;
    const place_case c = {.kind = TAMIS_EVICT_SNAPKV};
    const tamis_cache_params shape = test_shape();
    tamis_plan_params plan = plan_of(&c);
    plan.flags = TAMIS_PLAN_FIXED_LAUNCHES;
    evict_world e;
    evict_open(&e, &shape, &plan);
    tamis_sequence id = add_evicted(&e, TEXT, PROMPT);
    float outs[2 * 4 * 64];
    evict_decode(&e, id, TEXT + PROMPT, 4, NULL);
    evict_decode(&e, id, TEXT + PROMPT + 4, 1, outs);
    held h = evict_read(&e, id);
    held_check(&h, TEXT, PROMPT + 5);
    evict_dense(&e, &h, 1, TEXT + PROMPT + 4, outs + evict_out_floats(&e, 1), false);
    held_free(&h);
    evict_close(&e);
}

/* What a sequence holds behind decode steps in place, and the outs of the last of them. */
static held decode_in_place(const place_case *c, uint32_t flags, float outs[2 * 4 * 64]) {
    tamis_cache_params shape = test_shape();
    tamis_plan_params plan = plan_of(c);
    shape.page_size = 16; /* which fused ops take */
    plan.flags = flags;
    evict_world e;
    evict_open(&e, &shape, &plan);
    const tamis_sequence id = add_evicted(&e, TEXT, PROMPT);
    evict_decode(&e, id, TEXT + PROMPT, 30, NULL);
    evict_decode(&e, id, TEXT + PROMPT + 30, 1, outs);
    const held h = evict_read(&e, id);
    evict_close(&e);
    return h;
}

/* Steps whose launches are fused, where the device fuses them, have the bits of those whose are not. */
static void fused_steps_in_place_have_the_same_bits(void **state) {
    (void)state;
    for (uint32_t i = 0; i < N_PLACES; i++) {
        float fused[2 * 4 * 64], apart[2 * 4 * 64];
        if (places[i].prompt != PROMPT && !places[i].options) continue;
        held a = decode_in_place(&places[i], 0, fused);
        held b = decode_in_place(&places[i], TAMIS_PLAN_UNFUSED, apart);
        held_same(&a, &b);
        assert_memory_equal(fused, apart, sizeof fused);
        held_free(&a);
        held_free(&b);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_in_place_takes_the_slot_of_the_formula),
        cmocka_unit_test(a_step_in_place_takes_one_row_a_sequence),
        cmocka_unit_test(an_exact_step_takes_no_decode_row_of_a_full_sequence),
        cmocka_unit_test(evicting_from_a_fork_leaves_the_other_alone),
        cmocka_unit_test(a_fork_inherits_queries_and_scores),
        cmocka_unit_test(a_fork_that_grows_keeps_both_queries),
        cmocka_unit_test(running_out_of_pages_changes_nothing),
        cmocka_unit_test(a_cancelled_step_in_place_must_be_repeated),
        cmocka_unit_test(a_step_without_writes_replaces_nothing),
        cmocka_unit_test(until_repeated_a_cancelled_row_stops_other_calls),
        cmocka_unit_test(a_batch_evicts_as_its_sequences_alone),
        cmocka_unit_test(prompts_in_one_step_evict_as_alone),
        cmocka_unit_test(a_prompt_in_pieces_evicts_as_in_one),
        cmocka_unit_test(a_failed_eviction_is_whole_or_done_by_layer),
        cmocka_unit_test(slots_out_of_order_are_read_by_position_only),
        cmocka_unit_test(unequal_lanes_are_refused_where_they_must_match),
        cmocka_unit_test(fixed_launches_evict_at_the_prompts_end),
        cmocka_unit_test(fused_steps_in_place_have_the_same_bits),
    };
    int skip = test_begin(argc, argv);
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
