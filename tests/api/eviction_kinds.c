/* SPDX-License-Identifier: Apache-2.0 */
/* What every kind of eviction keeps, counts and gives back, over shapes, pools and second prompts;
 * and selections that read what is left. Which tokens they are is for tests/policies. */
#include "tests/api/evicting.h"

#include <math.h>
#include <stdlib.h>

#define BUDGET 27u /* no multiple of a page */
#define PROMPT 61u
#define SECOND 40u
#define TEXT   7000u

typedef struct eviction_case {
    tamis_eviction_kind kind;
    uint32_t options, sinks;
    float floor;
    bool shared; /* the heads of a layer share */
} eviction_case;

static const eviction_case cases[] = {
    {TAMIS_EVICT_STREAMING, 0, 4, 0, false},
    {TAMIS_EVICT_STREAMING, TAMIS_EVICT_REINDEX, 4, 0, false},
    {TAMIS_EVICT_H2O, 0, 0, 0, false},
    {TAMIS_EVICT_H2O, TAMIS_EVICT_RERANK | TAMIS_EVICT_LIFETIME, 3, 0, false},
    {TAMIS_EVICT_TOVA, 0, 0, 0, false},
    {TAMIS_EVICT_TOVA, 0, 3, 0, false},
    {TAMIS_EVICT_KNORM, 0, 0, 0, false},
    {TAMIS_EVICT_KNORM, 0, 3, 0, false},
    {TAMIS_EVICT_SNAPKV, 0, 0, 0, false},
    {TAMIS_EVICT_SNAPKV, 0, 4, 0, false},
    {TAMIS_EVICT_PYRAMIDKV, 0, 0, 0, false},
    {TAMIS_EVICT_PYRAMIDKV, TAMIS_EVICT_REFERENCE_SCHEDULE, 0, 0, false},
    {TAMIS_EVICT_ADAKV, 0, 0, 0.2f, true},
    {TAMIS_EVICT_ADAKV, 0, 2, 1, true},
    {TAMIS_EVICT_ADAKV, TAMIS_EVICT_BLEND, 0, 0.2f, true},
    {TAMIS_EVICT_CRITICALKV, 0, 0, 0, false},
    {TAMIS_EVICT_CRITICAL_ADAKV, 0, 3, 0.2f, true},
    {TAMIS_EVICT_ANDPRO, 0, 0, -1, true},
    {TAMIS_EVICT_ANDPRO, TAMIS_EVICT_BUDGET_BESIDE_KEPT, 6, 0.3f, true},
    {TAMIS_EVICT_ANDPRO, TAMIS_EVICT_BUDGET_CHUNKS | TAMIS_EVICT_ANCHOR_ALL, 0, -1, true},
    {TAMIS_EVICT_DEFENSIVEKV, 0, 0, -1, true},
    {TAMIS_EVICT_DEFENSIVEKV, TAMIS_EVICT_ACROSS_LAYERS, 1, 0.2f, true},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static tamis_eviction eviction_of(const eviction_case *c, uint32_t budget) {
    tamis_eviction e = test_eviction(c->kind, budget, c->options);
    e.sinks = c->sinks;
    if (c->floor != 0) e.floor = c->floor;
    if (c->kind == TAMIS_EVICT_PYRAMIDKV) e.beta = 4;
    /* As many chunks a head as hold a budget of tokens. */
    if (c->options & TAMIS_EVICT_BUDGET_CHUNKS)
        e.budget = e.window + (budget + e.chunk - 1) / e.chunk;
    return e;
}

typedef struct shape_case {
    uint32_t layers, heads, kv_heads, page_size;
    tamis_dtype dtype;
} shape_case;

/* Groups of 2, 1, 4, 5, 8, 3, 3 and 3. */
static const shape_case shapes[] = {
    {2, 4, 2, 8, TAMIS_F32},   {1, 3, 3, 16, TAMIS_F16}, {3, 8, 2, 16, TAMIS_BF16},
    {1, 10, 2, 8, TAMIS_F16},  {3, 8, 1, 8, TAMIS_F32},  {2, 6, 2, 16, TAMIS_Q8},
    {2, 6, 2, 16, TAMIS_K8V4}, {2, 6, 2, 16, TAMIS_Q4},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static tamis_cache_params shape_of(const shape_case *s) {
    tamis_cache_params p = test_shape();
    p.n_layers = s->layers;
    p.n_heads = s->heads;
    p.n_kv_heads = s->kv_heads;
    p.page_size = s->page_size;
    p.dtype = s->dtype;
    return p;
}

/* ---- What is left of a prompt ---------------------------------------------------------------- */

static uint64_t sum(const held *h, uint32_t first, uint32_t end) {
    uint64_t slots = 0;
    for (uint32_t lane = first; lane < end; lane++)
        slots += h->lengths[lane];
    return slots;
}

/* Slots that andpro keeps of a layer whose lanes had `n`, [heads]. */
static uint64_t chunks_kept(const tamis_eviction *e, const uint32_t *n, uint32_t heads) {
    uint64_t base = (uint64_t)heads * (e->budget - e->window), all = 0, cut = 0;
    uint32_t front = (e->sinks > e->chunk ? e->sinks + e->chunk - 1 : e->chunk) / e->chunk;
    uint64_t always = (uint64_t)heads * front, total = (uint64_t)heads * e->budget / e->chunk;
    for (uint32_t h = 0; h < heads; h++)
        always += (n[h] + e->chunk - 1) / e->chunk - (n[h] - e->window) / e->chunk;
    if (e->options & TAMIS_EVICT_BUDGET_BESIDE_KEPT) total = base / e->chunk + always;
    if (e->options & TAMIS_EVICT_BUDGET_CHUNKS) total = base; /* what is always kept included */
    for (uint32_t h = 0; h < heads; h++) {
        all += (n[h] + e->chunk - 1) / e->chunk;
        cut += (e->chunk - n[h] % e->chunk) % e->chunk;
    }
    return (total < all ? total : all) * e->chunk - cut;
}

static void check_layer(const tamis_eviction *e, const eviction_case *c, const held *h,
                        const uint32_t *before, uint32_t layer, uint32_t heads) {
    uint32_t first = layer * heads;
    uint64_t slots = sum(h, first, first + heads), budget = (uint64_t)heads * e->budget;
    if (c->kind == TAMIS_EVICT_ANDPRO)
        assert_int_equal(slots, chunks_kept(e, before + first, heads));
    else if (c->options & TAMIS_EVICT_BLEND)
        assert_true(2 * slots + 3 * heads > 2 * budget && 2 * slots <= 2 * budget + heads);
    else if (c->shared && !(c->options & TAMIS_EVICT_ACROSS_LAYERS))
        assert_int_equal(slots, budget);
    for (uint32_t lane = first; lane < first + heads; lane++)
        if (c->kind == TAMIS_EVICT_PYRAMIDKV) {
            assert_int_equal(h->lengths[lane], h->lengths[first]);
            if (layer > 0) assert_true(h->lengths[lane] <= h->lengths[lane - heads]);
        } else if (!c->shared) {
            assert_int_equal(h->lengths[lane], e->budget);
        }
}

/* What every lane must have, whatever the rest is. */
static void check_protected(const tamis_eviction *e, const held *h, uint32_t length) {
    uint32_t window = e->window, least = e->sinks + window;
    if (e->kind == TAMIS_EVICT_ANDPRO) least = e->window;
    if (e->kind == TAMIS_EVICT_STREAMING) window = e->budget - e->sinks;
    if (e->kind == TAMIS_EVICT_H2O) window = e->budget / 2;
    if (e->kind == TAMIS_EVICT_ADAKV && !(e->options & TAMIS_EVICT_BLEND) && e->floor > 0)
        least = window + (uint32_t)(e->floor * (float)(e->budget - window));
    for (uint32_t lane = 0; lane < h->n_lanes; lane++) {
        assert_true(h->lengths[lane] >= least && h->lengths[lane] > 0);
        for (uint32_t p = 0; p < e->sinks; p++)
            assert_true(held_has(h, lane, (int32_t)p));
        for (uint32_t p = length - window; p < length; p++)
            assert_true(held_has(h, lane, (int32_t)p));
    }
}

static void check_kept(const evict_world *e, const eviction_case *c, const held *h,
                       const uint32_t *before, uint32_t length) {
    const tamis_eviction *eviction = &e->w.plan->setup.params.eviction;
    uint32_t heads = e->w.shape.n_kv_heads, layers = e->w.shape.n_layers;
    uint64_t all = sum(h, 0, h->n_lanes), budget = (uint64_t)layers * heads * eviction->budget;
    held_check(h, TEXT, length);
    held_ordered(h);
    for (uint32_t layer = 0; layer < layers; layer++)
        check_layer(eviction, c, h, before, layer, heads);
    check_protected(eviction, h, length);
    if (c->kind == TAMIS_EVICT_PYRAMIDKV && c->options)
        assert_true(all >= budget);
    else if (c->kind == TAMIS_EVICT_PYRAMIDKV || c->options & TAMIS_EVICT_ACROSS_LAYERS)
        assert_int_equal(all, budget);
}

/* Evicts and holds the report against the cache's statistics and the plan's counters. */
static tamis_evicted evict(evict_world *e, tamis_sequence id) {
    tamis_evicted out;
    tamis_sequence_stats s0, s1;
    const uint32_t length = test_length(e->w.cache, id), before = test_evicted_at(e->w.cache, id);
    tamis_cache_stats c0 = test_stats(&e->w), c1;
    tamis_plan_counters n0, n1;
    OK(tamis_cache_get_sequence_stats(e->w.cache, id, &s0, NULL));
    tamis_plan_get_counters(e->w.plan, &n0);
    OK(tamis_plan_evict(e->w.plan, id, &out, &test_error));
    tamis_plan_get_counters(e->w.plan, &n1);
    OK(tamis_cache_get_sequence_stats(e->w.cache, id, &s1, NULL));
    c1 = test_stats(&e->w);
    assert_int_equal(out.tokens_before, s0.slots);
    assert_int_equal(out.tokens_kept, s1.slots);
    assert_int_equal(out.pages_returned, c0.pages_held - c1.pages_held);
    assert_int_equal(out.pages_returned, s0.pages - s1.pages);
    assert_int_equal(out.pages_net, out.pages_returned);
    assert_int_equal(out.bytes_returned, c0.bytes_held - c1.bytes_held);
    assert_int_equal(n1.evictions - n0.evictions, s1.slots < s0.slots);
    assert_int_equal(n1.tokens_evicted - n0.tokens_evicted, s0.slots - s1.slots);
    assert_int_equal(test_length(e->w.cache, id), length);
    assert_int_equal(test_evicted_at(e->w.cache, id), s1.slots < s0.slots ? length : before);
    return out;
}

/* A second eviction without new tokens takes nothing. */
static void evict_again(evict_world *e, tamis_sequence id) {
    held before = evict_read(e, id);
    const tamis_evicted out = evict(e, id);
    held after = evict_read(e, id);
    assert_true(out.pages_returned == 0 && out.tokens_kept == out.tokens_before);
    held_same(&before, &after);
    held_free(&before);
    held_free(&after);
}

/* Steps go on; the last decode row sees what the lanes hold, itself included. */
static void decode_on(evict_world *e, tamis_sequence id, uint32_t length) {
    float *outs = calloc(e->w.shape.n_layers * evict_out_floats(e, 1), sizeof *outs);
    assert_non_null(outs);
    evict_decode(e, id, TEXT + length, 3, NULL);
    evict_decode(e, id, TEXT + length + 3, 1, outs);
    held h = evict_read(e, id);
    held_check(&h, TEXT, length + 4);
    bool turned = e->w.plan->setup.needs.rotation; /* other queries than the test's */
    for (uint32_t layer = 0; layer < e->w.shape.n_layers && !turned; layer++)
        evict_dense(e, &h, layer, TEXT + length + 3, outs + layer * evict_out_floats(e, 1), false);
    held_free(&h);
    free(outs);
}

static void run_case(const eviction_case *c, const shape_case *s) {
    const tamis_cache_params shape = shape_of(s);
    const tamis_plan_params plan = {
        .max_context = 128, .max_rows = 64, .max_sequences = 2, .eviction = eviction_of(c, BUDGET)};
    evict_world e;
    evict_open(&e, &shape, &plan);
    tamis_sequence id = evict_add(&e, TEXT, BUDGET);
    tamis_cache_stats before = test_stats(&e.w);
    tamis_evicted out = evict(&e, id);
    assert_true(out.tokens_kept == out.tokens_before);
    test_unchanged(&e.w, &before);
    evict_prompt(&e, id, TEXT + BUDGET, PROMPT - BUDGET);
    held was = evict_read(&e, id);
    (void)evict(&e, id);
    held now = evict_read(&e, id);
    check_kept(&e, c, &now, was.lengths, PROMPT);
    held_free(&was);
    held_free(&now);
    evict_check_bounds(&e, id);
    FAILS(tamis_cache_truncate(e.w.cache, id, PROMPT - 1, &test_error), TAMIS_E_STATE,
          "cannot go back to 60 tokens");
    if (c->kind != TAMIS_EVICT_ADAKV || !(c->options & TAMIS_EVICT_BLEND)) evict_again(&e, id);
    evict_prompt(&e, id, TEXT + PROMPT, SECOND);
    was = evict_read(&e, id);
    (void)evict(&e, id);
    now = evict_read(&e, id);
    check_kept(&e, c, &now, was.lengths, PROMPT + SECOND);
    held_free(&was);
    held_free(&now);
    decode_on(&e, id, PROMPT + SECOND);
    OK(tamis_cache_remove(e.w.cache, id, &test_error));
    assert_int_equal(test_stats(&e.w).pages_held, 0);
    evict_close(&e);
}

static void each_kind_keeps_what_its_formula_says(void **state) {
    (void)state;
    const uint32_t slowness = test_slowness();
    for (uint32_t i = 0; i < N_CASES; i++)
        for (uint32_t s = 0; s < N_SHAPES; s++)
            if (slowness == 1 || (s == 0 && i % (slowness - 1) == 0))
                run_case(&cases[i], &shapes[s]);
}

/* A layer a pool: the same is kept, and as many pages come back. */
static void a_pool_for_each_layer_keeps_the_same(void **state) {
    (void)state;
    const tamis_cache_params shape = shape_of(&shapes[test_slowness() > 1 ? 0 : 2]);
    const uint32_t stride = test_slowness() > 1 ? test_slowness() + 2 : 1;
    for (uint32_t i = 6; i < N_CASES; i += stride) {
        const tamis_plan_params plan = {
            .max_context = 128, .max_rows = 64, .eviction = eviction_of(&cases[i], BUDGET)};
        held h[2];
        tamis_evicted out[2];
        for (uint32_t split = 0; split < 2; split++) {
            evict_world e;
            evict_open(&e, &shape, &plan);
            if (split) evict_split(&e, &plan);
            tamis_sequence id = evict_add(&e, TEXT, PROMPT);
            OK(tamis_plan_evict(e.w.plan, id, &out[split], &test_error));
            h[split] = evict_read(&e, id);
            evict_close(&e);
        }
        held_same(&h[0], &h[1]);
        assert_memory_equal(&out[0], &out[1], sizeof out[0]);
        held_free(&h[0]);
        held_free(&h[1]);
    }
}

/* Budgets of single heads. */
static void bound_budgets_replace_the_evictions(void **state) {
    (void)state;
    const uint32_t budgets[] = {9, 61, 100, 24};
    const tamis_cache_params shape = test_shape();
    const tamis_plan_params plan = {.max_context = 128,
                                    .max_rows = 64,
                                    .eviction = test_eviction(TAMIS_EVICT_SNAPKV, BUDGET, 0)};
    evict_world e;
    evict_open(&e, &shape, &plan);
    tamis_sequence id = evict_add(&e, TEXT, PROMPT), other = evict_add(&e, TEXT, PROMPT);
    float key[256];
    OK(tamis_cache_read(e.w.cache, id, 0, 0, 0, 1, key, NULL, &test_error)); /* no plan builds it */
    const uint32_t builds = test_builds;
    OK(tamis_plan_bind_budgets(e.w.plan, budgets, &test_error));
    (void)evict(&e, other);
    for (uint32_t lane = 0; lane < 4; lane++)
        assert_int_equal(evict_length(&e, other, lane / 2, lane % 2),
                         budgets[lane] < PROMPT ? budgets[lane] : PROMPT);
    decode_on(&e, other, PROMPT);
    OK(tamis_plan_bind_budgets(e.w.plan, NULL, &test_error));
    evict_prompt(&e, id, TEXT + PROMPT, WINDOW);
    (void)evict(&e, id);
    for (uint32_t lane = 0; lane < 4; lane++)
        assert_int_equal(evict_length(&e, id, lane / 2, lane % 2), BUDGET);
    assert_int_equal(test_builds, builds); /* every kernel was there when the plan was made */
    evict_close(&e);
}

/* A layer's budget follows the sequence's length: when the first layer's lanes hold less than that
 * after a first eviction, the later ones do not shrink to what is left for them. */
static void a_second_eviction_does_not_shrink_later_layers(void **state) {
    (void)state;
    tamis_cache_params shape = test_shape();
    shape.capacity_tokens = 512;
    tamis_plan_params plan = {.max_context = 512,
                              .max_rows = 300,
                              .eviction = test_eviction(TAMIS_EVICT_PYRAMIDKV, 64, 0)};
    plan.eviction.beta = 4;
    plan.eviction.every = 4;
    evict_world e;
    evict_open(&e, &shape, &plan);
    tamis_sequence id = evict_add(&e, TEXT, 300);
    const uint32_t base = 64 - plan.eviction.window, last = base / 4;
    for (uint32_t round = 0; round < 3; round++) {
        (void)evict(&e, id);
        for (uint32_t lane = 0; lane < 4; lane++)
            assert_int_equal(evict_length(&e, id, lane / 2, lane % 2),
                             64 + (lane < 2 ? base - last : last - base));
        evict_decode(&e, id, TEXT + 300 + 4 * round, 4, NULL);
    }
    evict_close(&e);
}

/* A world under pyramidkv with a budget of 64, beta 4 and every 4; the base of its budgets. */
static uint32_t open_pyramid(evict_world *e) {
    const tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {.max_context = 256,
                              .max_rows = 128,
                              .eviction = test_eviction(TAMIS_EVICT_PYRAMIDKV, 64, 0)};
    plan.eviction.beta = 4;
    plan.eviction.every = 4;
    evict_open(e, &shape, &plan);
    return 64 - plan.eviction.window;
}

/* A prompt that is evicted from while budgets are uniform, and again when it is longer: the line is
 * cut to what the first layer still holds, and the layers hold the whole budget. */
static void a_later_pyramid_holds_the_whole_budget(void **state) {
    (void)state;
    evict_world e;
    const uint32_t base = open_pyramid(&e);
    tamis_sequence id = evict_add(&e, TEXT, 2 * base - 1);
    (void)evict(&e, id);
    for (uint32_t lane = 0; lane < 4; lane++)
        assert_int_equal(evict_length(&e, id, lane / 2, lane % 2), 64);
    evict_decode(&e, id, TEXT + 2 * base - 1, 20, NULL);
    (void)evict(&e, id);
    for (uint32_t lane = 0; lane < 4; lane++)
        assert_int_equal(evict_length(&e, id, lane / 2, lane % 2), lane < 2 ? 84 : 44);
    evict_close(&e);
}

/* From twice the base on, budgets fall from layer to layer; a token less, and they are uniform. */
static void a_pyramid_begins_at_twice_the_base(void **state) {
    (void)state;
    evict_world e;
    const uint32_t base = open_pyramid(&e), last = base / 4;
    for (uint32_t more = 0; more < 2; more++) {
        tamis_sequence id = evict_add(&e, TEXT, 2 * base - 1 + more);
        (void)evict(&e, id);
        for (uint32_t lane = 0; lane < 4; lane++)
            assert_int_equal(evict_length(&e, id, lane / 2, lane % 2), !more ? 64
                                                                       : lane < 2
                                                                           ? 64 + base - last
                                                                           : 64 + last - base);
        OK(tamis_cache_remove(e.w.cache, id, &test_error));
    }
    evict_close(&e);
}

/* Held after two evictions of one KV head; `other`: under another output projection. */
static held defended(bool other) {
    tamis_cache_params shape = test_shape();
    shape.n_kv_heads = 1;
    tamis_plan_params plan = {.max_context = 128,
                              .max_rows = 64,
                              .eviction = test_eviction(TAMIS_EVICT_DEFENSIVEKV, BUDGET, 0)};
    plan.eviction.floor = 1; /* by rank alone, without a mass that is covered first */
    evict_world e;
    evict_open(&e, &shape, &plan);
    if (other) {
        const uint64_t bytes = tamis_buffer_bytes(e.projection);
        float *w = calloc(bytes, 1);
        assert_non_null(w);
        w[5] = 1; /* of each value one channel counts */
        OK(tamis_buffer_write(e.projection, 0, w, bytes, NULL));
        free(w);
    }
    tamis_sequence id = evict_add(&e, TEXT, PROMPT);
    (void)evict(&e, id);
    evict_prompt(&e, id, TEXT + PROMPT, SECOND);
    (void)evict(&e, id);
    held h = evict_read(&e, id);
    evict_close(&e);
    return h;
}

/* A head's share of its own norms is 1 whatever they are, also once tokens have gone. */
static void one_head_is_ranked_alike_in_every_eviction(void **state) {
    (void)state;
    held h[2] = {defended(false), defended(true)};
    held_same(&h[0], &h[1]);
    held_free(&h[0]);
    held_free(&h[1]);
}

/* What a fork needs apart is what it keeps, not what it may choose from. */
static void a_fork_needs_pages_for_what_it_keeps_only(void **state) {
    (void)state;
    const tamis_cache_params shape = test_shape();
    for (uint32_t i = 0; i < N_CASES; i++) {
        if (!cases[i].shared) continue;
        tamis_cache_params small = shape;
        const tamis_plan_params plan = {
            .max_context = 256, .max_rows = 300, .eviction = eviction_of(&cases[i], BUDGET)};
        evict_world e;
        small.capacity_tokens = 184 + 80;
        evict_open(&e, &small, &plan);
        tamis_sequence id = evict_add(&e, TEXT, 184), fork;
        OK(tamis_cache_fork(e.w.cache, id, &fork, &test_error));
        held before = evict_read(&e, id);
        OK(tamis_plan_evict(e.w.plan, fork, NULL, &test_error));
        held after = evict_read(&e, id);
        held_same(&before, &after);
        held_free(&before);
        held_free(&after);
        evict_close(&e);
    }
}

/* andpro's wide budgets keep all of lanes whose chunks they hold, and ask for nothing then. */
static void lanes_within_their_chunks_keep_all(void **state) {
    (void)state;
    const tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {
        .max_context = 128,
        .max_rows = 64,
        .flags = TAMIS_PLAN_TIMING,
        .eviction = test_eviction(TAMIS_EVICT_ANDPRO, BUDGET, TAMIS_EVICT_BUDGET_CHUNKS)};
    evict_world e;
    tamis_plan_times times;
    evict_open(&e, &shape, &plan);
    tamis_sequence id = evict_add(&e, TEXT, PROMPT);
    const tamis_evicted out = evict(&e, id);
    assert_true(out.tokens_kept == out.tokens_before && out.tokens_before == 4 * PROMPT);
    tamis_plan_get_times(e.w.plan, &times);
    assert_true(times.evict_us == 0);
    evict_close(&e);
}

/* Budgets that no 32 bits hold once they are those of all heads. */
static void budgets_beyond_32_bits_in_sum_keep_all(void **state) {
    (void)state;
    const struct {
        tamis_eviction_kind kind;
        uint32_t options;
    } wide[] = {{TAMIS_EVICT_ANDPRO, TAMIS_EVICT_BUDGET_CHUNKS},
                {TAMIS_EVICT_ANDPRO, TAMIS_EVICT_BUDGET_BESIDE_KEPT},
                {TAMIS_EVICT_ANDPRO, 0},
                {TAMIS_EVICT_ADAKV, TAMIS_EVICT_BLEND},
                {TAMIS_EVICT_DEFENSIVEKV, TAMIS_EVICT_ACROSS_LAYERS}};
    tamis_cache_params shape = test_shape();
    shape.n_heads = shape.n_kv_heads = 8;
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
        const tamis_plan_params plan = {
            .max_context = 128,
            .max_rows = 64,
            .eviction = test_eviction(wide[i].kind, (1u << 29) + WINDOW, wide[i].options)};
        evict_world e;
        evict_open(&e, &shape, &plan);
        tamis_sequence id = evict_add(&e, TEXT, PROMPT);
        const tamis_evicted out = evict(&e, id);
        assert_true(out.tokens_before == 16 * PROMPT && out.tokens_kept == out.tokens_before);
        evict_close(&e);
    }
}

/* Numbers that say nothing, or what the kind cannot do, are refused; those given without a kernel
 * are kept. */
static void numbers_that_do_not_fit_the_kind_are_refused(void **state) {
    (void)state;
    tamis_eviction e = {.kind = TAMIS_EVICT_NONE, .budget = 3};
    FAILS(tamis_eviction_check(&e, &test_error), TAMIS_E_ARGUMENT, "budget 3 is given for none");
    e = (tamis_eviction){.kind = TAMIS_EVICT_NONE, .options = TAMIS_EVICT_BLEND};
    FAILS(tamis_eviction_check(&e, &test_error), TAMIS_E_ARGUMENT, "options 16 is given for none");
    e = (tamis_eviction){.kind = TAMIS_EVICT_CALLER, .every = 8};
    FAILS(tamis_eviction_check(&e, &test_error), TAMIS_E_ARGUMENT, "every 8 is given for caller");
    e = (tamis_eviction){.kind = TAMIS_EVICT_TOVA, .pooling = TAMIS_POOL_AVERAGE};
    FAILS(tamis_eviction_check(&e, &test_error), TAMIS_E_ARGUMENT, "pooling 1 is given for tova");
    e = (tamis_eviction){.kind = TAMIS_EVICT_SNAPKV, .pooling = TAMIS_POOL_AVERAGE};
    e = tms_eviction_filled(&e);
    assert_true(e.kernel == 7 && e.pooling == TAMIS_POOL_AVERAGE);
    assert_int_equal(tms_eviction_floor(0.7f, 10), 7);
    assert_int_equal(tms_eviction_floor(0.9f, 100), 90);
    assert_int_equal(tms_eviction_floor(0.35f, 20), 7);
    assert_int_equal(tms_eviction_floor(1, 20), 20);
    assert_int_equal(tms_eviction_floor(-1, 20), 0);
}

/* What the published blend gives, with its products in fp32 and halves to even. */
static void blended_budgets_round_as_published(void **state) {
    (void)state;
    assert_int_equal(tms_adakv_blended(85, 0.3f, 94), 88);    /* 59.5 + 28 */
    assert_int_equal(tms_adakv_blended(5, 0.3f, 94), 32);     /* 3.5 + 28 */
    assert_int_equal(tms_adakv_blended(10, 0.05f, 3), 10);    /* 9.5 + 0 */
    assert_int_equal(tms_adakv_blended(90, 0.05f, 85), 90);   /* 85.5 + 4 */
    assert_int_equal(tms_adakv_blended(250, 0.09f, 67), 234); /* 227.5 + 6 */
    assert_int_equal(tms_adakv_blended(0, 0.35f, 180), 62);   /* 0.35 · 180 is below 63 in fp64 */
    assert_int_equal(tms_adakv_blended(3, 0.5f, 7), 4);       /* 1.5 + 3 */
    assert_int_equal(tms_adakv_blended(40, 0.2f, 20), 36);
    assert_int_equal(tms_adakv_blended(40, -1, 20), 40);
    assert_int_equal(tms_adakv_blended(40, 1, 20), 20);
}

/* What the ops cannot tell apart is refused when the plan is made. */
static void limits_of_the_ops_are_checked_at_creation(void **state) {
    (void)state;
    const tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {
        .max_context = 128, .max_rows = 64, .eviction = test_eviction(TAMIS_EVICT_H2O, BUDGET, 0)};
    evict_world e;
    tamis_plan *other = NULL;
    evict_open(&e, &shape, &plan);
    plan.max_context = 1u << 22;
    FAILS(tamis_plan_create(e.w.cache, &plan, &other, &test_error), TAMIS_E_UNSUPPORTED,
          "max_context 4194304 under eviction h2o");
    plan.max_context = (1u << 20) + 1;
    plan.eviction = test_eviction(TAMIS_EVICT_STREAMING, BUDGET, TAMIS_EVICT_REINDEX);
    FAILS(tamis_plan_create(e.w.cache, &plan, &other, &test_error), TAMIS_E_UNSUPPORTED,
          "max_context 1048577 under reindexed streaming");
    assert_null(other);
    evict_close(&e);
}

/* ---- Selections over what is left ------------------------------------------------------------ */

#define KEPT 70u

static void select_after(const eviction_case *c, tamis_selection_kind kind) {
    const tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {
        .max_context = 160, .max_rows = 128, .eviction = eviction_of(c, KEPT)};
    evict_world e;
    tamis_selection_default(kind, &plan.selection);
    plan.selection.budget = 40;
    if (kind == TAMIS_SELECT_QUEST) plan.selection.recent = 8;
    evict_open(&e, &shape, &plan);
    float outs[2 * 4 * 64];
    tamis_plan_counters counters;
    tamis_sequence id = evict_add(&e, TEXT, 120);
    (void)evict(&e, id);
    evict_decode(&e, id, TEXT + 120, 9, NULL);
    evict_decode(&e, id, TEXT + 129, 1, outs);
    held h = evict_read(&e, id);
    held_check(&h, TEXT, 130);
    tamis_plan_get_counters(e.w.plan, &counters);
    assert_int_equal(counters.rows_selected, kind == TAMIS_SELECT_FULL ? 0 : 20);
    assert_int_equal(counters.rows_full, kind == TAMIS_SELECT_FULL ? 20 : 0);
    assert_int_equal(counters.tokens_replaced, plan.eviction.every == 1 ? 10 * 4 : 0);
    for (uint32_t head = 0; head < 2 && kind != TAMIS_SELECT_FULL; head++) {
        uint32_t pages[16], count = 0, lane = 2 + head;
        bool newest = false, sink = kind == TAMIS_SELECT_WINDOW && c->sinks == 0;
        OK(tamis_plan_read_selected(e.w.plan, 0, head, pages, 16, &count, &test_error));
        assert_int_equal(count, 5);
        for (uint32_t i = 0; i < count; i++)
            for (uint32_t s = 8 * pages[i]; s < 8 * pages[i] + 8 && s < h.lengths[lane]; s++) {
                newest |= h.positions[h.first[lane] + s] == 129;
                sink |= h.positions[h.first[lane] + s] < 4;
            }
        assert_true(newest && (sink || c->sinks == 0));
    }
    /* What was selected is told of the last layer. */
    evict_dense(&e, &h, 1, TEXT + 129, outs + evict_out_floats(&e, 1), kind != TAMIS_SELECT_FULL);
    held_free(&h);
    evict_close(&e);
}

static void selections_read_what_evictions_left(void **state) {
    (void)state;
    const uint32_t stride = test_slowness() > 1 ? test_slowness() + 2 : 1;
    const tamis_selection_kind kinds[] = {TAMIS_SELECT_FULL, TAMIS_SELECT_WINDOW,
                                          TAMIS_SELECT_QUEST};
    for (uint32_t i = 0; i < N_CASES; i += stride)
        for (uint32_t k = 0; k < 3; k++)
            if (!(cases[i].options & TAMIS_EVICT_REINDEX) && cases[i].kind != TAMIS_EVICT_PYRAMIDKV)
                select_after(&cases[i], kinds[k]);
}

/* every 0: lanes grow in decode steps, rows go on to score, here through lists, until the next
 * eviction. */
static void lanes_grow_and_scores_add_up_between_evictions(void **state) {
    (void)state;
    tamis_eviction_kind kinds[65];
    const tamis_cache_params shape = test_shape();
    float outs[2 * 4 * 64];
    const uint32_t n = test_scored_evictions(kinds);
    kinds[n] = TAMIS_EVICT_STREAMING;
    for (uint32_t k = 0; k <= n; k++) {
        tamis_plan_params plan = {
            .max_context = 128, .max_rows = 64, .eviction = test_eviction(kinds[k], KEPT / 2, 0)};
        plan.eviction.every = 0;
        tamis_selection_default(TAMIS_SELECT_QUEST, &plan.selection);
        plan.selection.budget = 24;
        plan.selection.recent = 1;
        evict_world e;
        tamis_plan_counters counters;
        evict_open(&e, &shape, &plan);
        tamis_sequence id = evict_add(&e, TEXT, PROMPT);
        for (uint32_t round = 0; round < 2; round++) {
            uint32_t length = PROMPT + 9 * round;
            (void)evict(&e, id);
            evict_decode(&e, id, TEXT + length, 8, NULL);
            evict_decode(&e, id, TEXT + length + 8, 1, outs);
            held h = evict_read(&e, id);
            assert_int_equal(h.n_slots, 4 * (KEPT / 2 + 9));
            held_check(&h, TEXT, length + 9);
            held_ordered(&h);
            evict_dense(&e, &h, 1, TEXT + length + 8, outs + evict_out_floats(&e, 1), true);
            held_free(&h);
        }
        tamis_plan_get_counters(e.w.plan, &counters);
        assert_int_equal(counters.tokens_replaced, 0);
        assert_int_equal(counters.rows_selected, 2 * 18);
        assert_int_equal(counters.evictions, 2);
        evict_close(&e);
    }
}

/* Under a selection with lists the weights that h2o adds are shares of what was read: each of a KV
 * head's query heads gives 1 in all, and pages that were not read gain nothing. */
static void pages_that_are_not_read_gain_nothing(void **state) {
    (void)state;
    evict_world e;
    tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {.max_rows = PROMPT, .max_context = 128};
    const uint32_t budget = 3 * shape.page_size, group = shape.n_heads / shape.n_kv_heads;
    tamis_selection_default(TAMIS_SELECT_WINDOW, &plan.selection);
    plan.selection.budget = budget;
    plan.selection.sinks = plan.selection.recent = 1;
    plan.eviction = test_eviction(TAMIS_EVICT_H2O, 100, 0);
    evict_open(&e, &shape, &plan);
    const tamis_sequence id = evict_add(&e, TEXT, PROMPT);
    held before = evict_read(&e, id);
    evict_decode(&e, id, TEXT + PROMPT, 1, NULL);
    held now = evict_read(&e, id);
    for (uint32_t lane = 0; lane < now.n_lanes; lane++) {
        const uint32_t last = PROMPT / shape.page_size, newest = (last - 1) * shape.page_size;
        double gained = now.scores[now.first[lane] + PROMPT];
        for (uint32_t i = 0; i < PROMPT; i++) {
            const float was = before.scores[before.first[lane] + i];
            const float is = now.scores[now.first[lane] + i];
            if (i >= shape.page_size && i < newest) assert_true(is == was);
            gained += (double)is - was;
        }
        assert_true(fabs(gained - group) < 1e-4);
    }
    held_free(&before);
    held_free(&now);
    evict_close(&e);
}

static void counters_and_times_tell_what_was_evicted(void **state) {
    (void)state;
    const tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {.max_context = 128,
                              .max_rows = 64,
                              .flags = TAMIS_PLAN_TIMING,
                              .eviction = test_eviction(TAMIS_EVICT_H2O, BUDGET, 0)};
    evict_world e;
    tamis_plan_counters counters;
    tamis_plan_times times;
    evict_open(&e, &shape, &plan);
    tamis_sequence id = evict_add(&e, TEXT, PROMPT);
    tamis_plan_get_times(e.w.plan, &times);
    assert_true(times.observe_us > 0 && times.evict_us == 0 && times.replace_us == 0);
    (void)evict(&e, id);
    evict_decode(&e, id, TEXT + PROMPT, 5, NULL);
    tamis_plan_get_counters(e.w.plan, &counters);
    tamis_plan_get_times(e.w.plan, &times);
    assert_int_equal(counters.rows_observed, 2 * (PROMPT + 5));
    assert_int_equal(counters.tokens_replaced, 4 * 5);
    assert_int_equal(counters.tokens_evicted, 4 * (PROMPT - BUDGET));
    assert_true(times.evict_us > 0 && times.replace_us > 0);
    tamis_plan_reset_counters(e.w.plan);
    tamis_plan_get_counters(e.w.plan, &counters);
    assert_true(counters.rows_observed == 0 && counters.evictions == 0);
    /* Rows are counted once. */
    const uint64_t token = TEXT + PROMPT + 5;
    const tamis_step step = {.sequences = &id, .count = 1};
    const tamis_rows q = {.buffer = e.w.q}, out = {.buffer = e.w.out};
    OK(tamis_plan_step_begin(e.w.plan, &step, &test_error));
    evict_layer(&e, 0, &token, 1, NULL);
    FAILS(tamis_plan_attend(e.w.plan, 0, &q, &out, &test_error), TAMIS_E_STATE,
          "layer 0 has been attended in this step already");
    OK(tamis_plan_step_cancel(e.w.plan, &test_error));
    evict_close(&e);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_kind_keeps_what_its_formula_says),
        cmocka_unit_test(a_pool_for_each_layer_keeps_the_same),
        cmocka_unit_test(bound_budgets_replace_the_evictions),
        cmocka_unit_test(selections_read_what_evictions_left),
        cmocka_unit_test(a_second_eviction_does_not_shrink_later_layers),
        cmocka_unit_test(a_pyramid_begins_at_twice_the_base),
        cmocka_unit_test(a_later_pyramid_holds_the_whole_budget),
        cmocka_unit_test(a_fork_needs_pages_for_what_it_keeps_only),
        cmocka_unit_test(lanes_within_their_chunks_keep_all),
        cmocka_unit_test(budgets_beyond_32_bits_in_sum_keep_all),
        cmocka_unit_test(blended_budgets_round_as_published),
        cmocka_unit_test(one_head_is_ranked_alike_in_every_eviction),
        cmocka_unit_test(numbers_that_do_not_fit_the_kind_are_refused),
        cmocka_unit_test(limits_of_the_ops_are_checked_at_creation),
        cmocka_unit_test(lanes_grow_and_scores_add_up_between_evictions),
        cmocka_unit_test(pages_that_are_not_read_gain_nothing),
        cmocka_unit_test(counters_and_times_tell_what_was_evicted),
    };
    int skip = test_begin(argc, argv);
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
