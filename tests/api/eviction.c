/* SPDX-License-Identifier: Apache-2.0 */
/* Evicting through plans: arguments with their messages, what a plan knows of past queries, and
 * what every kind keeps, counts and gives back. */
#include "tests/api/evicting.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BUDGET 24u
#define PROMPT 61u
#define TEXT   5000u /* first token */

static tamis_plan_params plan_of(tamis_eviction eviction) {
    return (tamis_plan_params){
        .max_context = 192, .max_rows = 96, .max_sequences = 2, .eviction = eviction};
}

static evict_world open_small(tamis_eviction_kind kind) {
    const tamis_cache_params shape = test_shape();
    const uint32_t budget = kind == TAMIS_EVICT_NONE ? 0 : BUDGET;
    const tamis_plan_params plan = plan_of(test_eviction(kind, budget, 0));
    evict_world e;
    evict_open(&e, &shape, &plan);
    return e;
}

/* ---- Arguments ------------------------------------------------------------------------------- */

#define CHECK(message, ...)                                                                        \
    do {                                                                                           \
        const tamis_eviction e_ = {__VA_ARGS__};                                                   \
        FAILS(tamis_eviction_check(&e_, &test_error), TAMIS_E_ARGUMENT, message);                  \
    } while (0)
#define PASSES(...)                                                                                \
    do {                                                                                           \
        const tamis_eviction e_ = {__VA_ARGS__};                                                   \
        OK(tamis_eviction_check(&e_, &test_error));                                                \
    } while (0)

static void numbers_and_options_are_checked(void **state) {
    (void)state;
    FAILS(tamis_eviction_check(NULL, &test_error), TAMIS_E_ARGUMENT, "eviction is NULL");
    CHECK("there is no eviction kind 99", .kind = 99);
    CHECK("there is no eviction kind -1", .kind = -1);
    CHECK("h2o has no option 1", .kind = TAMIS_EVICT_H2O, .options = TAMIS_EVICT_REINDEX | 2);
    CHECK("tova has no option 512", .kind = TAMIS_EVICT_TOVA, .options = 512);
    CHECK("recent 5 is given for tova, which has none", .kind = TAMIS_EVICT_TOVA, .recent = 5);
    CHECK("budget 8 is not above what is always kept: sinks 3, recent 5", .kind = TAMIS_EVICT_KNORM,
          .budget = 8, .sinks = 3, .recent = 5);
    CHECK("kernel 3 is given for knorm", .kind = TAMIS_EVICT_KNORM, .kernel = 3);
    CHECK("window 5 is given for h2o", .kind = TAMIS_EVICT_H2O, .window = 5);
    CHECK("kernel 3 is given for h2o, which pools nothing", .kind = TAMIS_EVICT_H2O, .kernel = 3);
    CHECK("floor 0.5 is given for snapkv", .kind = TAMIS_EVICT_SNAPKV, .floor = 0.5f);
    CHECK("beta 2 is given for adakv", .kind = TAMIS_EVICT_ADAKV, .beta = 2);
    CHECK("chunk 4 is given for snapkv", .kind = TAMIS_EVICT_SNAPKV, .chunk = 4);
    CHECK("snapkv takes no token in every step", .kind = TAMIS_EVICT_SNAPKV, .every = 1);
    CHECK("budget 7 is not above what is always kept: sinks 3, recent 4, window 0",
          .kind = TAMIS_EVICT_H2O, .budget = 7, .sinks = 3, .recent = 4);
    CHECK("sinks 4294967295, recent 4294967295", .kind = TAMIS_EVICT_H2O, .budget = 8,
          .sinks = UINT32_MAX, .recent = UINT32_MAX);
    CHECK("budget 8 leaves nothing beside sinks 4 and recent 4", .kind = TAMIS_EVICT_H2O,
          .budget = 8, .sinks = 4);
    CHECK("budget 32 is not above what is always kept: sinks 0, recent 0, window 32",
          .kind = TAMIS_EVICT_SNAPKV, .budget = 32);
    CHECK("budget 4 is not above what is always kept: sinks 4", .kind = TAMIS_EVICT_STREAMING,
          .budget = 4, .sinks = 4);
    CHECK("budget 3000000000 exceeds", .kind = TAMIS_EVICT_TOVA, .budget = 3000000000u);
    CHECK("kernel 4 is not odd", .kind = TAMIS_EVICT_SNAPKV, .kernel = 4);
    CHECK("there is no pooling 2", .kind = TAMIS_EVICT_SNAPKV, .kernel = 3, .pooling = 2);
    CHECK("there is no pooling -1", .kind = TAMIS_EVICT_SNAPKV, .kernel = 3, .pooling = -1);
    CHECK("pooling max is given for defensivekv", .kind = TAMIS_EVICT_DEFENSIVEKV, .kernel = 5);
    CHECK("pooling max is given for defensivekv", .kind = TAMIS_EVICT_DEFENSIVEKV, .kernel = 1);
    CHECK("floor 1.5 is not a share", .kind = TAMIS_EVICT_ADAKV, .floor = 1.5f);
    CHECK("floor nan is not a share", .kind = TAMIS_EVICT_ADAKV, .floor = fabsf((float)NAN));
    CHECK("beta 0.5 is not a number from 1 on", .kind = TAMIS_EVICT_PYRAMIDKV, .beta = 0.5f);
    CHECK("beta inf is not a number", .kind = TAMIS_EVICT_PYRAMIDKV, .beta = INFINITY);
    CHECK("window 30 is not a multiple of the chunk 4", .kind = TAMIS_EVICT_ANDPRO, .window = 30);
    CHECK("budget 39 is 9 chunks of 4; sinks 0 and window 32 take up to 10",
          .kind = TAMIS_EVICT_ANDPRO, .budget = 39);
    CHECK("budget 42 is 10 chunks of 4; sinks 9 and window 32 take up to 12",
          .kind = TAMIS_EVICT_ANDPRO, .budget = 42, .sinks = 9);
    CHECK("budget 41 is 9 chunks of 4; sinks 0 and window 32 take up to 10",
          .kind = TAMIS_EVICT_ANDPRO, .budget = 41, .options = TAMIS_EVICT_BUDGET_CHUNKS);
    CHECK("options 192 ask for two readings", .kind = TAMIS_EVICT_ANDPRO,
          .options = TAMIS_EVICT_BUDGET_BESIDE_KEPT | TAMIS_EVICT_BUDGET_CHUNKS);
    CHECK("budget 1 is given for none, which evicts nothing", .kind = TAMIS_EVICT_NONE,
          .budget = 1);
    PASSES(.kind = TAMIS_EVICT_NONE);
    PASSES(.kind = TAMIS_EVICT_ADAKV, .floor = 1);
    PASSES(.kind = TAMIS_EVICT_DEFENSIVEKV);
    PASSES(.kind = TAMIS_EVICT_DEFENSIVEKV, .kernel = 9, .pooling = TAMIS_POOL_AVERAGE);
    PASSES(.kind = TAMIS_EVICT_ADAKV, .floor = -7);
    PASSES(.kind = TAMIS_EVICT_H2O, .budget = 1, .options = TAMIS_EVICT_RERANK);
    PASSES(.kind = TAMIS_EVICT_SNAPKV, .budget = 33, .every = 2);
    PASSES(.kind = TAMIS_EVICT_KNORM, .budget = 9, .sinks = 3, .recent = 5, .every = 1);
    PASSES(.kind = TAMIS_EVICT_CALLER, .budget = 33, .window = 32);
}

static void kinds_and_options_are_known_by_name(void **state) {
    (void)state;
    for (int i = TAMIS_EVICT_NONE; i < test_evictions(); i++) {
        tamis_eviction e;
        tamis_eviction named;
        OK(tamis_eviction_parse(tamis_eviction_name(i), &named, &test_error));
        tamis_eviction_default(i, &e);
        assert_int_equal(e.kind, i);
        assert_memory_equal(&named, &e, sizeof e);
        OK(tamis_eviction_check(&e, &test_error));
        const bool scored = i == TAMIS_EVICT_H2O || i == TAMIS_EVICT_TOVA || i == TAMIS_EVICT_KNORM;
        assert_int_equal(tamis_eviction_planes(&e), i == TAMIS_EVICT_NONE ? 0 : scored ? 3 : 1);
        assert_int_equal(tamis_eviction_needs(&e), i == TAMIS_EVICT_CRITICALKV ||
                                                           i == TAMIS_EVICT_CRITICAL_ADAKV ||
                                                           i == TAMIS_EVICT_DEFENSIVEKV
                                                       ? TAMIS_NEEDS_OUTPUT
                                                       : 0);
    }
    /* A word for every option that some kind has, and no other. */
    uint32_t known = 0;
    for (uint32_t i = 0; i < 32; i++)
        for (int k = TAMIS_EVICT_STREAMING; k < test_evictions(); k++) {
            tamis_eviction with;
            tamis_eviction_default((tamis_eviction_kind)k, &with);
            with.options = 1u << i;
            if (tamis_eviction_check(&with, NULL) == TAMIS_OK) known |= 1u << i;
        }
    for (uint32_t i = 0; i < 32; i++)
        assert_int_equal(tamis_eviction_option_name(i) != NULL, known >> i & 1u);
    assert_string_equal(tamis_eviction_option_name(0), "reindex");
    assert_string_equal(tamis_eviction_option_name(8), "across-layers");
    const tamis_eviction reindexed = {TAMIS_EVICT_STREAMING, .options = TAMIS_EVICT_REINDEX};
    assert_int_equal(tamis_eviction_needs(&reindexed), TAMIS_NEEDS_ROTATION);
    assert_int_equal(tamis_eviction_needs(&(tamis_eviction){.kind = (tamis_eviction_kind)99}), 0);
    assert_int_equal(tamis_eviction_needs(NULL), 0);
    tamis_eviction none;
    FAILS(tamis_eviction_parse("snapk", &none, &test_error), TAMIS_E_ARGUMENT,
          "there is no eviction \"snapk\"; known are none, streaming, h2o, tova, snapkv");
    FAILS(tamis_eviction_parse(NULL, &none, &test_error), TAMIS_E_ARGUMENT, "name is NULL");
    assert_string_equal(tamis_eviction_name(99), "unknown");
    assert_int_equal(tamis_eviction_planes(NULL), 0);
}

static void refuse(evict_world *e, tamis_plan_params params, tamis_status code,
                   const char *message) {
    tamis_plan *plan = NULL;
    FAILS(tamis_plan_create(e->w.cache, &params, &plan, &test_error), code, message);
    assert_null(plan);
}

static void accept(evict_world *e, tamis_plan_params params) {
    tamis_plan *plan = NULL;
    OK(tamis_plan_create(e->w.cache, &params, &plan, &test_error));
    tamis_plan_destroy(&plan);
}

static void plans_are_checked_against_the_eviction(void **state) {
    (void)state;
    evict_world e = open_small(TAMIS_EVICT_SNAPKV); /* positions alone */
    tamis_plan_params p = plan_of(test_eviction(TAMIS_EVICT_SNAPKV, BUDGET, 0));
    refuse(&e, plan_of(test_eviction(TAMIS_EVICT_H2O, BUDGET, 0)), TAMIS_E_ARGUMENT,
           "eviction h2o needs planes 3; the cache has 1");
    refuse(&e, plan_of(test_eviction(TAMIS_EVICT_SNAPKV, WINDOW, 0)), TAMIS_E_ARGUMENT,
           "budget 8 is not above");
    p.attention.sliding_window = 16;
    accept(&e, p);
    p.eviction = test_eviction(TAMIS_EVICT_STREAMING, BUDGET, 0);
    refuse(&e, p, TAMIS_E_UNSUPPORTED, "sliding_window 16 under eviction streaming with every 1");
    p.eviction.every = 0;
    p.eviction.options = TAMIS_EVICT_REINDEX;
    refuse(&e, p, TAMIS_E_UNSUPPORTED, "sliding_window 16 under reindexed streaming");
    p.eviction = test_eviction(TAMIS_EVICT_SNAPKV, BUDGET, 0);
    /* At 21 tokens lanes end within a page, which is read beside the one that takes the new token. */
    p = plan_of(test_eviction(TAMIS_EVICT_STREAMING, 21, 0));
    p.selection = (tamis_selection){.kind = TAMIS_SELECT_WINDOW, .budget = 15};
    refuse(&e, p, TAMIS_E_ARGUMENT, "budget 15 of selection window is 1 pages of 8 tokens");
    p.selection.sinks = 4;
    p.selection.budget = 23;
    refuse(&e, p, TAMIS_E_ARGUMENT, "under streaming with 21 tokens a lane sinks 4 take 1");
    p.selection.budget = 24;
    accept(&e, p);
    p.selection.budget = 16;
    p.eviction.budget = 24;
    accept(&e, p);
    p.eviction.budget = 21;
    p.eviction.every = 0;
    accept(&e, p);
    p = plan_of(test_eviction(TAMIS_EVICT_STREAMING, BUDGET, 0));
    p.flags = TAMIS_PLAN_FIXED_LAUNCHES;
    refuse(&e, p, TAMIS_E_UNSUPPORTED, "TAMIS_PLAN_FIXED_LAUNCHES under eviction streaming");
    p = plan_of(test_eviction(TAMIS_EVICT_STREAMING, BUDGET, TAMIS_EVICT_REINDEX));
    tamis_selection_default(TAMIS_SELECT_QUEST, &p.selection);
    refuse(&e, p, TAMIS_E_UNSUPPORTED, "reindexed streaming under selection quest");
    p = plan_of(test_eviction(TAMIS_EVICT_SNAPKV, 500, 0));
    p.eviction.window = 193;
    refuse(&e, p, TAMIS_E_ARGUMENT, "window 193 exceeds max_context 192");
    /* A budget far above the context asks for no more memory than the context does. */
    p = plan_of(test_eviction(TAMIS_EVICT_STREAMING, INT32_MAX, 0));
    tamis_plan *plan = NULL;
    OK(tamis_plan_create(e.w.cache, &p, &plan, &test_error));
    tamis_plan_destroy(&plan);
    evict_close(&e);
}

/* Heads that compete stand in one row of select. */
static void too_many_heads_that_share_are_refused(void **state) {
    (void)state;
    const tamis_eviction_kind kinds[] = {TAMIS_EVICT_ADAKV, TAMIS_EVICT_ANDPRO,
                                         TAMIS_EVICT_DEFENSIVEKV};
    tamis_cache_params shape = test_shape();
    shape.n_layers = 1;
    shape.n_heads = shape.n_kv_heads = 1025;
    shape.capacity_tokens = 8;
    shape.planes = TAMIS_PLANE_POSITIONS;
    tamis_plan_params plan = {.max_context = 64, .max_rows = 1};
    evict_world e;
    evict_open(&e, &shape, &plan);
    for (size_t i = 0; i < 3; i++) {
        plan.eviction = test_eviction(kinds[i], BUDGET, 0);
        refuse(&e, plan, TAMIS_E_UNSUPPORTED, "1025 KV heads");
    }
    evict_close(&e);
}

static void bind_calls_refuse_bad_arguments(void **state) {
    (void)state;
    evict_world snap = open_small(TAMIS_EVICT_SNAPKV), crit = open_small(TAMIS_EVICT_CRITICALKV);
    tamis_rows w = {.buffer = crit.projection}, other = {.buffer = snap.w.k};
    tamis_rotation rotation = {.n_rot = 4};
    uint32_t budgets[] = {BUDGET, BUDGET, BUDGET, WINDOW};
    FAILS(tamis_plan_bind_output(NULL, 0, &w, 1, &test_error), TAMIS_E_ARGUMENT, "plan is NULL");
    FAILS(tamis_plan_bind_output(snap.w.plan, 0, &other, 1, &test_error), TAMIS_E_ARGUMENT,
          "eviction snapkv takes no output projection");
    FAILS(tamis_plan_bind_output(crit.w.plan, 2, &w, 1, &test_error), TAMIS_E_ARGUMENT,
          "layer 2 is not below 2");
    FAILS(tamis_plan_bind_output(crit.w.plan, 0, &w, 0, &test_error), TAMIS_E_ARGUMENT,
          "has no rows");
    FAILS(tamis_plan_bind_output(crit.w.plan, 0, NULL, 1, &test_error), TAMIS_E_ARGUMENT,
          "w: no buffer");
    FAILS(tamis_plan_bind_output(crit.w.plan, 0, &w, 1000, &test_error), TAMIS_E_ARGUMENT, "w");
    FAILS(tamis_plan_bind_rotation(crit.w.plan, &rotation, &test_error), TAMIS_E_ARGUMENT,
          "eviction criticalkv takes no rotation");
    FAILS(tamis_plan_bind_budgets(snap.w.plan, budgets, &test_error), TAMIS_E_ARGUMENT,
          "budget 8 is not above");
    budgets[3] = 0;
    FAILS(tamis_plan_bind_budgets(snap.w.plan, budgets, &test_error), TAMIS_E_ARGUMENT,
          "the budget of lane 3 is 0");
    evict_world ada = open_small(TAMIS_EVICT_ADAKV);
    FAILS(tamis_plan_bind_budgets(ada.w.plan, budgets, &test_error), TAMIS_E_ARGUMENT,
          "eviction adakv takes no budgets of single heads");
    evict_close(&ada);
    evict_close(&crit);
    const tamis_cache_params shape = test_shape();
    const tamis_plan_params reindexed =
        plan_of(test_eviction(TAMIS_EVICT_STREAMING, BUDGET, TAMIS_EVICT_REINDEX));
    evict_open(&crit, &shape, &reindexed);
    tamis_plan *plan = crit.w.plan;
    FAILS(tamis_plan_bind_rotation(plan, NULL, &test_error), TAMIS_E_ARGUMENT, "rotation is NULL");
    rotation.n_rot = 3;
    FAILS(tamis_plan_bind_rotation(plan, &rotation, &test_error), TAMIS_E_ARGUMENT, "n_rot is 3");
    rotation.n_rot = 66;
    FAILS(tamis_plan_bind_rotation(plan, &rotation, &test_error), TAMIS_E_ARGUMENT,
          "n_rot is 66: an even number from 2 to 64");
    rotation.n_rot = 4;
    FAILS(tamis_plan_bind_rotation(plan, &rotation, &test_error), TAMIS_E_ARGUMENT,
          "table is absent");
    /* What was bound before stays as it was. */
    assert_int_equal(plan->reindex.n_rot, shape.head_dim);
    assert_int_equal(plan->reindex.pairing, TAMIS_PAIR_HALF);
    tamis_sequence id = evict_add(&crit, TEXT, 4);
    const tamis_step step = {.sequences = &id, .count = 1};
    OK(tamis_plan_step_begin(plan, &step, &test_error));
    FAILS(tamis_plan_bind_rotation(plan, &rotation, &test_error), TAMIS_E_STATE, "open step");
    OK(tamis_plan_step_cancel(plan, &test_error));
    evict_close(&crit);
    evict_close(&snap);
}

/* A plan whose eviction lacks what must be bound. */
static void an_eviction_without_what_it_needs_is_refused(void **state) {
    (void)state;
    evict_world e = open_small(TAMIS_EVICT_NONE);
    tamis_plan *first = e.w.plan, *plan = NULL;
    tamis_cache_params shape = test_shape();
    evict_close(&e);
    shape.planes = TAMIS_PLANE_POSITIONS;
    tamis_plan_params p = plan_of(test_eviction(TAMIS_EVICT_NONE, 0, 0));
    evict_open(&e, &shape, &p);
    p = plan_of(test_eviction(TAMIS_EVICT_STREAMING, BUDGET, TAMIS_EVICT_REINDEX));
    OK(tamis_plan_create(e.w.cache, &p, &plan, &test_error));
    first = evict_swap_plan(&e, plan);
    tamis_sequence id = 0;
    OK(tamis_cache_add(e.w.cache, &id, &test_error));
    const uint64_t token = TEXT;
    const tamis_step step = {.sequences = &id, .count = 1, .exact = 1};
    FAILS(evict_step(&e, &step, &token, NULL), TAMIS_E_STATE,
          "reindexed streaming needs tamis_plan_bind_rotation first");
    tamis_plan_destroy(&plan);
    p = plan_of(test_eviction(TAMIS_EVICT_CRITICALKV, BUDGET, 0));
    OK(tamis_plan_create(e.w.cache, &p, &plan, &test_error));
    (void)evict_swap_plan(&e, plan);
    evict_prompt(&e, id, TEXT, PROMPT);
    held before = evict_read(&e, id);
    FAILS(tamis_plan_evict(plan, id, NULL, &test_error), TAMIS_E_STATE,
          "criticalkv needs the output projection of layer 0: tamis_plan_bind_output comes first");
    held after = evict_read(&e, id);
    held_same(&before, &after);
    held_free(&before);
    held_free(&after);
    tamis_plan_destroy(&plan);
    e.w.plan = first;
    evict_close(&e);
}

/* ---- Calls that fail change nothing ---------------------------------------------------------- */

/* What must stay. */
typedef struct proof {
    held held;
    tamis_cache_stats stats;
    tamis_plan_counters counters;
} proof;

static proof prove(const evict_world *e, tamis_sequence id) {
    proof p = {.held = evict_read(e, id), .stats = test_stats(&e->w)};
    tamis_plan_get_counters(e->w.plan, &p.counters);
    return p;
}

static void unchanged(const evict_world *e, tamis_sequence id, proof *p) {
    held now = evict_read(e, id);
    tamis_plan_counters counters;
    tamis_plan_get_counters(e->w.plan, &counters);
    held_same(&p->held, &now);
    test_unchanged(&e->w, &p->stats);
    assert_memory_equal(&counters, &p->counters, sizeof counters);
    held_free(&now);
    held_free(&p->held);
}

static void evict_calls_refuse_bad_arguments(void **state) {
    (void)state;
    evict_world e = open_small(TAMIS_EVICT_SNAPKV), none = open_small(TAMIS_EVICT_NONE);
    tamis_sequence id = evict_add(&e, TEXT, PROMPT), plain = evict_add(&none, TEXT, 9);
    proof p = prove(&e, id);
    tamis_plan *plan = e.w.plan;
    const float score = 0;
    const uint32_t slot = 0, counts[4] = {1, 1, 1, 1};
    FAILS(tamis_plan_evict(NULL, id, NULL, &test_error), TAMIS_E_ARGUMENT, "plan is NULL");
    FAILS(tamis_plan_evict(plan, 77, NULL, &test_error), TAMIS_E_ARGUMENT, "no sequence 77");
    FAILS(tamis_plan_evict(none.w.plan, plain, NULL, &test_error), TAMIS_E_ARGUMENT,
          "the plan's eviction is none");
    FAILS(tamis_plan_evict_by_scores(plan, id, &score, 64, NULL, &test_error), TAMIS_E_ARGUMENT,
          "the plan's eviction is snapkv");
    FAILS(tamis_plan_evict_to(plan, id, &slot, counts, 0, NULL, &test_error), TAMIS_E_ARGUMENT, "");
    const tamis_step step = {.sequences = &id, .count = 1, .exact = 1};
    OK(tamis_plan_step_begin(plan, &step, &test_error));
    FAILS(tamis_plan_evict(plan, id, NULL, &test_error), TAMIS_E_STATE,
          "step on the cache is open");
    OK(tamis_plan_step_cancel(plan, &test_error));
    unchanged(&e, id, &p);
    evict_close(&none);
    evict_close(&e);
}

/* Lists that keep every second slot of every lane, [n_lanes][stride]. */
static void every_second(uint32_t *slots, uint32_t *counts, uint32_t n_lanes, uint32_t stride) {
    for (uint32_t lane = 0; lane < n_lanes; lane++) {
        counts[lane] = PROMPT / 2;
        for (uint32_t i = 0; i < counts[lane]; i++)
            slots[lane * stride + i] = 2 * i + 1;
    }
}

static void keep_lists_are_checked_entry_by_entry(void **state) {
    (void)state;
    enum { LANES = 4, STRIDE = PROMPT };
    static uint32_t slots[LANES * STRIDE], counts[LANES];
    evict_world e = open_small(TAMIS_EVICT_CALLER);
    tamis_plan *plan = e.w.plan;
    tamis_sequence id = evict_add(&e, TEXT, PROMPT);
    tamis_evicted out;
    proof p = prove(&e, id);
    FAILS(tamis_plan_evict(plan, id, NULL, &test_error), TAMIS_E_ARGUMENT,
          "the plan's eviction is caller");
    FAILS(tamis_plan_evict_to(plan, id, NULL, counts, STRIDE, NULL, &test_error), TAMIS_E_ARGUMENT,
          "slots is NULL");
    FAILS(tamis_plan_evict_to(plan, id, slots, NULL, STRIDE, NULL, &test_error), TAMIS_E_ARGUMENT,
          "counts is NULL");
    FAILS(tamis_plan_evict_to(NULL, id, slots, counts, STRIDE, NULL, &test_error), TAMIS_E_ARGUMENT,
          "plan is NULL");
    every_second(slots, counts, LANES, STRIDE);
    FAILS(tamis_plan_evict_to(plan, 5, slots, counts, STRIDE, NULL, &test_error), TAMIS_E_ARGUMENT,
          "no sequence 5");
    counts[2] = 0;
    FAILS(tamis_plan_evict_to(plan, id, slots, counts, STRIDE, NULL, &test_error), TAMIS_E_ARGUMENT,
          "lane 2 is to keep nothing");
    counts[2] = PROMPT + 1;
    FAILS(tamis_plan_evict_to(plan, id, slots, counts, STRIDE, NULL, &test_error), TAMIS_E_ARGUMENT,
          "lane 2 is to keep 62 of 61 slots, in a list of 61");
    counts[2] = 2;
    FAILS(tamis_plan_evict_to(plan, id, slots, counts, 1, NULL, &test_error), TAMIS_E_ARGUMENT,
          "lane 0 is to keep 30 of 61 slots, in a list of 1");
    slots[2 * STRIDE + 1] = 1;
    FAILS(tamis_plan_evict_to(plan, id, slots, counts, STRIDE, NULL, &test_error), TAMIS_E_ARGUMENT,
          "slot 1 at place 1 of lane 2");
    slots[2 * STRIDE + 1] = 61;
    FAILS(tamis_plan_evict_to(plan, id, slots, counts, STRIDE, NULL, &test_error), TAMIS_E_ARGUMENT,
          "slot 61 at place 1 of lane 2 is not above the one before and below 61");
    unchanged(&e, id, &p);
    slots[2 * STRIDE + 1] = 60;
    OK(tamis_plan_evict_to(plan, id, slots, counts, STRIDE, &out, &test_error));
    held h = evict_read(&e, id);
    held_check(&h, TEXT, PROMPT);
    for (uint32_t lane = 0; lane < LANES; lane++) {
        assert_int_equal(h.lengths[lane], counts[lane]);
        for (uint32_t i = 0; i < counts[lane]; i++)
            assert_int_equal(h.positions[h.first[lane] + i], slots[lane * STRIDE + i]);
    }
    assert_true(out.tokens_before == LANES * PROMPT && out.tokens_kept == 3 * (PROMPT / 2) + 2);
    held_free(&h);
    tamis_sequence empty = evict_add(&e, TEXT, 0);
    memset(counts, 0, sizeof counts);
    OK(tamis_plan_evict_to(plan, empty, slots, counts, STRIDE, &out, &test_error));
    assert_true(out.tokens_before == 0 && out.pages_returned == 0);
    evict_close(&e);
}

static void a_callers_scores_are_checked(void **state) {
    (void)state;
    static float scores[4 * PROMPT];
    evict_world e = open_small(TAMIS_EVICT_CALLER);
    tamis_plan *plan = e.w.plan;
    tamis_sequence id = evict_add(&e, TEXT, PROMPT);
    proof p = prove(&e, id);
    FAILS(tamis_plan_evict_by_scores(plan, id, NULL, PROMPT, NULL, &test_error), TAMIS_E_ARGUMENT,
          "scores is NULL");
    FAILS(tamis_plan_evict_by_scores(plan, id, scores, PROMPT - 1, NULL, &test_error),
          TAMIS_E_ARGUMENT, "a stride of 60 for lane 0 of 61 slots");
    FAILS(tamis_plan_evict_by_scores(plan, 9, scores, PROMPT, NULL, &test_error), TAMIS_E_ARGUMENT,
          "no sequence 9");
    unchanged(&e, id, &p);
    /* Lane l likes the slots from 5·l on best, in pairs of equals: the later of them wins. */
    for (uint32_t lane = 0; lane < 4; lane++)
        for (uint32_t i = 0; i < PROMPT; i++)
            scores[lane * PROMPT + i] = i < 5 * lane ? -1 : 100 - (float)(i / 2);
    OK(tamis_plan_evict_by_scores(plan, id, scores, PROMPT, NULL, &test_error));
    held h = evict_read(&e, id);
    held_check(&h, TEXT, PROMPT);
    for (uint32_t lane = 0; lane < 4; lane++) {
        uint32_t first = 5 * lane;
        assert_int_equal(h.lengths[lane], BUDGET);
        for (uint32_t i = 0; i < BUDGET - 1; i++)
            assert_true(held_has(&h, lane, (int32_t)(first + i)));
        /* An odd first slot leaves half a pair, whose later one is kept. */
        uint32_t last = first % 2 ? first + BUDGET : first + BUDGET - 1;
        if (first % 2) assert_true(held_has(&h, lane, (int32_t)last));
        assert_false(held_has(&h, lane, (int32_t)(first + BUDGET + 1)));
    }
    held_free(&h);
    evict_close(&e);
}

/* ---- Which queries are known ----------------------------------------------------------------- */

#define UNKNOWN(e, id, part)                                                                       \
    do {                                                                                           \
        proof p_ = prove((e), (id));                                                               \
        FAILS(tamis_plan_evict((e)->w.plan, (id), NULL, &test_error), TAMIS_E_STATE, part);        \
        unchanged((e), (id), &p_);                                                                 \
    } while (0)

static void missing_queries_are_refused(void **state) {
    (void)state;
    evict_world e = open_small(TAMIS_EVICT_SNAPKV);
    /* Truncation takes the newest; rows that come anew fill up what is still known. */
    tamis_sequence cut = evict_add(&e, TEXT, PROMPT);
    OK(tamis_cache_truncate(e.w.cache, cut, 50, &test_error));
    UNKNOWN(&e, cut, "the queries of positions 42 to 49");
    evict_prompt(&e, cut, TEXT + 50, 4);
    UNKNOWN(&e, cut, "the queries of positions 46 to 53");
    evict_prompt(&e, cut, TEXT + 54, 4);
    OK(tamis_plan_evict(e.w.plan, cut, NULL, &test_error));
    /* A cancelled step may have written over those before. */
    tamis_sequence given_up = evict_add(&e, TEXT, PROMPT);
    const uint32_t rows = 4;
    const uint64_t junk[] = {1, 2, 3, 4};
    const tamis_step step = {.sequences = &given_up, .rows = &rows, .count = 1, .exact = 1};
    OK(tamis_plan_step_begin(e.w.plan, &step, &test_error));
    evict_layer(&e, 0, junk, rows, NULL);
    OK(tamis_plan_step_cancel(e.w.plan, &test_error));
    UNKNOWN(&e, given_up, "known are 57 to 60");
    evict_close(&e);
}

/* Rows that were written but never attended have brought no queries. */
static void rows_never_attended_leave_no_queries(void **state) {
    (void)state;
    evict_world e = open_small(TAMIS_EVICT_SNAPKV);
    tamis_sequence id = 0;
    uint64_t tokens[PROMPT];
    for (uint32_t i = 0; i < PROMPT; i++)
        tokens[i] = TEXT + i;
    OK(tamis_cache_add(e.w.cache, &id, &test_error));
    OK(test_append(&e.w, id, tokens, PROMPT));
    UNKNOWN(&e, id, "the queries of positions 53 to 60");
    evict_prompt(&e, id, TEXT + PROMPT, WINDOW);
    OK(tamis_plan_evict(e.w.plan, id, NULL, &test_error));
    evict_close(&e);
}

static void overwritten_queries_are_refused(void **state) {
    (void)state;
    evict_world e = open_small(TAMIS_EVICT_SNAPKV);
    tamis_sequence ids[3];
    for (uint32_t i = 0; i < 3; i++)
        ids[i] = evict_add(&e, TEXT + 100 * i, PROMPT - i);
    UNKNOWN(&e, ids[0], "the queries of positions 53 to 60");
    /* The failure has not cost the others theirs. */
    OK(tamis_plan_evict(e.w.plan, ids[1], NULL, &test_error));
    OK(tamis_plan_evict(e.w.plan, ids[2], NULL, &test_error));
    tamis_plan_params p = plan_of(test_eviction(TAMIS_EVICT_SNAPKV, BUDGET, 0));
    tamis_plan *second = NULL;
    OK(tamis_plan_create(e.w.cache, &p, &second, &test_error));
    tamis_plan *first = evict_swap_plan(&e, second);
    UNKNOWN(&e, ids[0], "are not all kept by this plan; none is known");
    evict_prompt(&e, ids[0], TEXT + PROMPT, WINDOW);
    OK(tamis_plan_evict(second, ids[0], NULL, &test_error));
    (void)evict_swap_plan(&e, first);
    tamis_plan_destroy(&second);
    evict_close(&e);
}

/* Decode rows bring their queries, too: a turn shorter than the window follows them. Only a graph
 * may stand for them under fixed launches. */
static void decode_rows_leave_queries_too(void **state) {
    (void)state;
    const tamis_cache_params shape = test_shape();
    for (int fixed = 0; fixed < 2; fixed++) {
        tamis_plan_params p = plan_of(test_eviction(TAMIS_EVICT_SNAPKV, BUDGET, 0));
        p.flags = fixed ? TAMIS_PLAN_FIXED_LAUNCHES : 0;
        evict_world e;
        evict_open(&e, &shape, &p);
        tamis_sequence id = evict_add(&e, TEXT, PROMPT);
        evict_decode(&e, id, TEXT + PROMPT, 3, NULL);
        if (fixed) {
            UNKNOWN(&e, id, "the queries of positions 56 to 63");
            UNKNOWN(&e, id, "known are 53 to 60");
            OK(tamis_cache_truncate(e.w.cache, id, PROMPT, &test_error));
            OK(tamis_plan_evict(e.w.plan, id, NULL, &test_error));
            assert_int_equal(evict_length(&e, id, 1, 1), BUDGET);
        } else {
            evict_prompt(&e, id, TEXT + PROMPT + 3, 2);
            OK(tamis_plan_evict(e.w.plan, id, NULL, &test_error));
            tamis_sequence twin = evict_add(&e, TEXT, PROMPT + 5);
            OK(tamis_plan_evict(e.w.plan, twin, NULL, &test_error));
            held a = evict_read(&e, id), b = evict_read(&e, twin);
            held_same(&a, &b);
            held_free(&a);
            held_free(&b);
        }
        evict_close(&e);
    }
}

/* ---- Which scores and slots are worth something ---------------------------------------------- */

static tamis_plan *plan_with(evict_world *e, tamis_eviction eviction) {
    const tamis_plan_params p = plan_of(eviction);
    tamis_plan *plan = NULL;
    OK(tamis_plan_create(e->w.cache, &p, &plan, &test_error));
    return plan;
}

/* Rows that went through another plan have left no scores, neither have those of its kind stayed
 * what they were if the other one writes scores, too. */
static void scores_of_another_plan_are_refused(void **state) {
    (void)state;
    const tamis_eviction_kind kinds[][2] = {{TAMIS_EVICT_H2O, TAMIS_EVICT_TOVA},
                                            {TAMIS_EVICT_TOVA, TAMIS_EVICT_H2O},
                                            {TAMIS_EVICT_KNORM, TAMIS_EVICT_H2O},
                                            {TAMIS_EVICT_H2O, TAMIS_EVICT_KNORM}};
    for (uint32_t k = 0; k < 4; k++) {
        evict_world e = open_small(kinds[k][0]);
        tamis_plan *own = e.w.plan, *other = plan_with(&e, test_eviction(kinds[k][1], 100, 0));
        const tamis_eviction streaming = test_eviction(TAMIS_EVICT_STREAMING, 100, 0);
        tamis_plan *plain = plan_with(&e, streaming);
        (void)evict_swap_plan(&e, plain);
        tamis_sequence id = evict_add(&e, TEXT, PROMPT), fork = 0;
        (void)evict_swap_plan(&e, own);
        UNKNOWN(&e, id,
                test_text("the rows of positions 0 to 60 of sequence %" PRIu64
                          " have left no scores",
                          id));
        OK(tamis_cache_remove(e.w.cache, id, &test_error));
        /* A step elsewhere, taken back; then one that is not. */
        id = evict_add(&e, TEXT, PROMPT);
        OK(tamis_cache_fork(e.w.cache, id, &fork, &test_error));
        (void)evict_swap_plan(&e, plain);
        evict_decode(&e, fork, TEXT + PROMPT, 1, NULL);
        (void)evict_swap_plan(&e, own);
        UNKNOWN(&e, fork, "the rows of positions 61 to 61");
        OK(tamis_cache_truncate(e.w.cache, fork, PROMPT, &test_error));
        OK(tamis_plan_evict(own, fork, NULL, &test_error));
        (void)evict_swap_plan(&e, other);
        evict_decode(&e, id, TEXT + PROMPT, 1, NULL);
        (void)evict_swap_plan(&e, own);
        UNKNOWN(&e, id, "the rows of positions 0 to 61");
        tamis_plan_destroy(&other);
        tamis_plan_destroy(&plain);
        evict_close(&e);
    }
}

/* A cancelled step under knorm has only scored its own rows, which are gone: h2o's sums of the rows
 * before them are still worth something. */
static void a_cancelled_step_leaves_the_scores_of_other_rows(void **state) {
    (void)state;
    evict_world e = open_small(TAMIS_EVICT_H2O);
    tamis_plan *own = e.w.plan, *keys = plan_with(&e, test_eviction(TAMIS_EVICT_KNORM, 100, 0));
    tamis_sequence id = evict_add(&e, TEXT, PROMPT);
    const tamis_step step = {.sequences = &id, .count = 1, .exact = 1};
    const uint64_t junk = 77;
    (void)evict_swap_plan(&e, keys);
    OK(tamis_plan_step_begin(keys, &step, &test_error));
    evict_layer(&e, 0, &junk, 1, NULL);
    OK(tamis_plan_step_cancel(keys, &test_error));
    (void)evict_swap_plan(&e, own);
    OK(tamis_plan_evict(own, id, NULL, &test_error));
    tamis_plan_destroy(&keys);
    evict_close(&e);
}

/* A key is all that knorm asks of a row: one leaves its score without being attended, several of a
 * sequence may come in a step that is not exact, and forks share all pages that they do not write.
 */
static void keys_leave_scores_without_being_attended(void **state) {
    (void)state;
    const tamis_cache_params shape = test_shape();
    tamis_plan_params plan = plan_of(test_eviction(TAMIS_EVICT_KNORM, BUDGET, 0));
    plan.eviction.every = 0;
    evict_world e;
    evict_open(&e, &shape, &plan);
    tamis_sequence id = evict_add(&e, 0, 0), fork = 0, twin = evict_add(&e, TEXT, PROMPT + 1);
    uint64_t tokens[PROMPT];
    const uint32_t rows = PROMPT;
    const tamis_step step = {.sequences = &id, .rows = &rows, .count = 1};
    for (uint32_t i = 0; i < PROMPT; i++)
        tokens[i] = TEXT + i;
    OK(tamis_plan_step_begin(e.w.plan, &step, &test_error));
    for (uint32_t layer = 0; layer < shape.n_layers; layer++)
        test_write(&e.w, layer, tokens, PROMPT);
    OK(tamis_plan_step_end(e.w.plan, &test_error));
    OK(tamis_cache_fork(e.w.cache, id, &fork, &test_error));
    const uint64_t pages = test_stats(&e.w).pages_held;
    evict_decode(&e, fork, TEXT + PROMPT, 1, NULL);
    assert_int_equal(test_stats(&e.w).pages_held, pages + 4); /* the last one of each lane */
    OK(tamis_plan_evict(e.w.plan, fork, NULL, &test_error));
    OK(tamis_plan_evict(e.w.plan, twin, NULL, &test_error));
    held a = evict_read(&e, fork), b = evict_read(&e, twin);
    assert_int_equal(a.lengths[0], BUDGET);
    held_same(&a, &b);
    held_free(&a);
    held_free(&b);
    evict_close(&e);
}

/* The same for a decode step that would take a token's place, not where lanes have room. */
static void a_step_in_place_needs_all_scores(void **state) {
    (void)state;
    evict_world e = open_small(TAMIS_EVICT_H2O);
    tamis_plan *own = e.w.plan;
    tamis_plan *plain = plan_with(&e, test_eviction(TAMIS_EVICT_STREAMING, 100, 0));
    (void)evict_swap_plan(&e, plain);
    tamis_sequence id = evict_add(&e, TEXT, BUDGET - 1);
    (void)evict_swap_plan(&e, own);
    evict_decode(&e, id, TEXT + BUDGET - 1, 1, NULL);
    const tamis_step step = {.sequences = &id, .count = 1};
    const uint64_t token = TEXT + BUDGET;
    proof p = prove(&e, id);
    FAILS(evict_step(&e, &step, &token, NULL), TAMIS_E_STATE, "the rows of positions 0 to 23");
    unchanged(&e, id, &p);
    tamis_plan_destroy(&plain);
    evict_close(&e);
}

/* tova's plane holds the newest row's weights: without that row they are worth nothing until
 * another one comes. h2o's sums go on, and so do scores of keys. */
static void truncation_takes_tovas_scores_not_h2os(void **state) {
    (void)state;
    tamis_eviction_kind kinds[64];
    const uint32_t n = test_scored_evictions(kinds);
    for (uint32_t k = 0; k < n; k++)
        for (int cancelled = 0; cancelled < 2; cancelled++) {
            evict_world e = open_small(kinds[k]);
            tamis_sequence id = evict_add(&e, TEXT, PROMPT);
            const tamis_step step = {.sequences = &id, .count = 1, .exact = 1};
            const uint64_t junk = 77;
            if (cancelled) {
                OK(tamis_plan_step_begin(e.w.plan, &step, &test_error));
                evict_layer(&e, 0, &junk, 1, NULL);
                OK(tamis_plan_step_cancel(e.w.plan, &test_error));
            } else {
                evict_prompt(&e, id, junk, 1);
                OK(tamis_cache_truncate(e.w.cache, id, PROMPT, &test_error));
            }
            if (kinds[k] == TAMIS_EVICT_TOVA) {
                UNKNOWN(&e, id, "have left no scores for tova");
                evict_prompt(&e, id, TEXT + PROMPT, 1);
            }
            OK(tamis_plan_evict(e.w.plan, id, NULL, &test_error));
            evict_close(&e);
        }
}

/* Tokens that come back under another plan after a cut have left no scores: of h2o and knorm the
 * new ones, of tova, and after a cut to 0, all. */
static void tokens_behind_a_cut_have_left_no_scores(void **state) {
    (void)state;
    tamis_eviction_kind kinds[64];
    const uint32_t n = test_scored_evictions(kinds);
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t cut = 0; cut <= 50; cut += 50) {
            evict_world e = open_small(kinds[k]);
            const tamis_eviction streaming = test_eviction(TAMIS_EVICT_STREAMING, 100, 0);
            tamis_plan *own = e.w.plan, *plain = plan_with(&e, streaming);
            tamis_sequence id = evict_add(&e, TEXT, PROMPT);
            OK(tamis_cache_truncate(e.w.cache, id, cut, &test_error));
            (void)evict_swap_plan(&e, plain);
            evict_prompt(&e, id, TEXT + cut, PROMPT - cut);
            (void)evict_swap_plan(&e, own);
            const uint32_t from = kinds[k] == TAMIS_EVICT_TOVA ? 0 : cut;
            UNKNOWN(&e, id, test_text("the rows of positions %u to %u", from, PROMPT - 1));
            tamis_plan_destroy(&plain);
            evict_close(&e);
        }
}

/* The caller's window and sinks, and snapkv's window, are slots: where those are not the newest and
 * the first tokens, nothing is evicted. */
static void slots_out_of_order_are_refused(void **state) {
    (void)state;
    evict_world e = open_small(TAMIS_EVICT_STREAMING);
    tamis_eviction caller = test_eviction(TAMIS_EVICT_CALLER, 16, 0);
    float *scores = calloc(4 * 192, sizeof *scores);
    assert_non_null(scores);
    caller.sinks = SINKS;
    tamis_plan *by_sinks = plan_with(&e, caller);
    caller.sinks = 0;
    caller.window = WINDOW;
    tamis_plan *by_window = plan_with(&e, caller), *own = e.w.plan;
    tamis_plan *snapkv = plan_with(&e, test_eviction(TAMIS_EVICT_SNAPKV, BUDGET - 1, 0));
    tamis_sequence id = evict_add(&e, TEXT, PROMPT);
    OK(tamis_plan_evict(own, id, NULL, &test_error));
    evict_decode(&e, id, TEXT + PROMPT, 10, NULL);
    FAILS(tamis_plan_evict_by_scores(by_window, id, scores, 192, NULL, &test_error), TAMIS_E_STATE,
          test_text("the window of caller is positions 63 to 70 of sequence %" PRIu64
                    ", whose lanes hold all tokens in their order only from 71 on",
                    id));
    FAILS(tamis_plan_evict_by_scores(by_sinks, id, scores, 192, NULL, &test_error), TAMIS_E_STATE,
          "are not in the order of their tokens; caller takes the first 3 for its sinks");
    /* Tokens that come after that are in order. */
    (void)evict_swap_plan(&e, snapkv);
    evict_prompt(&e, id, TEXT + PROMPT + 10, WINDOW);
    OK(tamis_plan_evict(snapkv, id, NULL, &test_error));
    OK(tamis_plan_evict_by_scores(by_window, id, scores, 192, NULL, &test_error));
    held h = evict_read(&e, id);
    held_check(&h, TEXT, PROMPT + 10 + WINDOW);
    for (uint32_t lane = 0; lane < h.n_lanes; lane++)
        for (uint32_t i = 0; i < WINDOW; i++)
            assert_true(held_has(&h, lane, (int32_t)(PROMPT + 10 + i)));
    held_free(&h);
    /* Lists of the caller's leave as much as they leave. */
    tamis_sequence gap = evict_add(&e, TEXT, PROMPT);
    uint32_t slots[4][PROMPT], counts[4];
    for (uint32_t lane = 0; lane < 4; lane++) {
        counts[lane] = lane == 2 ? PROMPT - 1 : PROMPT;
        for (uint32_t i = 0; i < counts[lane]; i++)
            slots[lane][i] = i + (lane == 2 && i >= PROMPT - 4);
    }
    OK(tamis_plan_evict_to(by_sinks, gap, slots[0], counts, PROMPT, NULL, &test_error));
    FAILS(tamis_plan_evict(snapkv, gap, NULL, &test_error), TAMIS_E_STATE,
          test_text("the window of snapkv is positions 53 to 60 of sequence %" PRIu64
                    ", whose lanes hold all tokens in their order only from 58 on",
                    gap));
    (void)evict_swap_plan(&e, own);
    tamis_plan_destroy(&by_sinks);
    tamis_plan_destroy(&by_window);
    tamis_plan_destroy(&snapkv);
    free(scores);
    evict_close(&e);
}

static void every_n_evicts_when_the_caller_asks(void **state) {
    (void)state;
    const tamis_cache_params shape = test_shape();
    tamis_plan_params plan = plan_of(test_eviction(TAMIS_EVICT_SNAPKV, BUDGET, 0));
    plan.eviction.every = 4;
    evict_world e;
    evict_open(&e, &shape, &plan);
    tamis_sequence id = evict_add(&e, TEXT, PROMPT);
    for (uint32_t i = 0; i < 3; i++) {
        evict_decode(&e, id, TEXT + PROMPT + 4 * i, 4, NULL);
        OK(tamis_plan_evict(e.w.plan, id, NULL, &test_error));
        held h = evict_read(&e, id);
        held_check(&h, TEXT, PROMPT + 4 * (i + 1));
        held_ordered(&h);
        for (uint32_t lane = 0; lane < h.n_lanes; lane++)
            assert_int_equal(h.lengths[lane], BUDGET);
        held_free(&h);
    }
    evict_close(&e);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_and_options_are_checked),
        cmocka_unit_test(kinds_and_options_are_known_by_name),
        cmocka_unit_test(plans_are_checked_against_the_eviction),
        cmocka_unit_test(too_many_heads_that_share_are_refused),
        cmocka_unit_test(bind_calls_refuse_bad_arguments),
        cmocka_unit_test(an_eviction_without_what_it_needs_is_refused),
        cmocka_unit_test(evict_calls_refuse_bad_arguments),
        cmocka_unit_test(keep_lists_are_checked_entry_by_entry),
        cmocka_unit_test(a_callers_scores_are_checked),
        cmocka_unit_test(missing_queries_are_refused),
        cmocka_unit_test(rows_never_attended_leave_no_queries),
        cmocka_unit_test(overwritten_queries_are_refused),
        cmocka_unit_test(every_n_evicts_when_the_caller_asks),
        cmocka_unit_test(decode_rows_leave_queries_too),
        cmocka_unit_test(scores_of_another_plan_are_refused),
        cmocka_unit_test(a_cancelled_step_leaves_the_scores_of_other_rows),
        cmocka_unit_test(keys_leave_scores_without_being_attended),
        cmocka_unit_test(a_step_in_place_needs_all_scores),
        cmocka_unit_test(truncation_takes_tovas_scores_not_h2os),
        cmocka_unit_test(tokens_behind_a_cut_have_left_no_scores),
        cmocka_unit_test(slots_out_of_order_are_refused),
    };
    int skip = test_begin(argc, argv);
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
