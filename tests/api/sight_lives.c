/* SPDX-License-Identifier: Apache-2.0 */
/* Windows over lanes that lose tokens: random lives of sequences (steps, cancelled and ended, evictions
 * between them, forks, truncations, prefixes, removals) against a plain model that keeps each lane's
 * positions. Rows are checked under full and under quest, pages are counted. TEST_STEPS: how many. */
#include "tests/api/evicting.h"

#include <stdlib.h>
#include <string.h>
#include <tamis/prefixes.h>

enum { LAYERS = 3, KV_HEADS = 2, LANES = LAYERS * KV_HEADS, PAGE = 8, CONTEXT = 160, ROWS = 12 };
enum { MOST = 4, STEPS = 4000 };

static const tamis_layer layers[LAYERS] = {{.attention = {.sliding_window = 21}},
                                           {.attention = {.chunk = 24}},
                                           {.attention = {.scale = 0.25f}}};

typedef struct lane {
    int32_t positions[CONTEXT];
    uint32_t n;
} lane;

typedef struct life {
    tamis_sequence id;
    uint64_t tokens[CONTEXT]; /* by position */
    uint32_t length, evicted_at;
    lane lanes[LANES];
} life;

typedef struct world {
    evict_world e;
    tamis_plan *plans[2]; /* full, quest */
    tamis_prefixes *prefixes;
    life lives[MOST];
    uint32_t n;
    uint64_t rng, tokens; /* tokens that there have been */
    uint32_t evicted, looked, refused;
} world;

static const uint8_t salt[16] = {7};

static void open_world(world *w) {
    tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {.max_rows = ROWS,
                              .max_context = CONTEXT,
                              .eviction = test_eviction(TAMIS_EVICT_CALLER, 16, 0),
                              .layers = layers};
    shape.n_layers = LAYERS;
    shape.n_kv_heads = KV_HEADS;
    shape.page_size = PAGE;
    shape.planes = TAMIS_PLANE_POSITIONS;
    shape.capacity_tokens = (MOST + 1) * CONTEXT;
    memset(w, 0, sizeof *w);
    w->rng = 11;
    evict_open(&w->e, &shape, &plan);
    w->plans[0] = w->e.w.plan;
    tamis_selection_default(TAMIS_SELECT_QUEST, &plan.selection);
    plan.selection.budget = 3 * PAGE;
    plan.selection.sinks = plan.selection.recent = 1;
    OK(tamis_plan_create(w->e.w.cache, &plan, &w->plans[1], &test_error));
    OK(tamis_prefixes_create(w->e.w.cache, &w->prefixes, &test_error));
}

static void close_world(world *w) {
    (void)evict_swap_plan(&w->e, w->plans[0]);
    tamis_plan_destroy(&w->plans[1]);
    tamis_prefixes_destroy(&w->prefixes);
    evict_close(&w->e);
}

/* The lanes hold the model's positions, and what stood there. */
static void check_held(const life *l, const held *h) {
    for (uint32_t i = 0; i < LANES; i++) {
        assert_int_equal(h->lengths[i], l->lanes[i].n);
        for (uint32_t s = 0; s < l->lanes[i].n; s++) {
            const uint32_t at = h->first[i] + s, d = s % h->dim;
            const int32_t position = l->lanes[i].positions[s];
            assert_int_equal(h->positions[at], position);
            assert_true(h->k[at * h->dim + d] == test_value(l->tokens[position], i, 0, d));
            assert_true(h->v[at * h->dim + d] == test_value(l->tokens[position], i, 1, d));
        }
    }
}

static void grow(world *w, life *l, uint32_t rows) {
    for (uint32_t i = 0; i < rows; i++) {
        l->tokens[l->length] = ++w->tokens;
        for (uint32_t k = 0; k < LANES; k++)
            l->lanes[k].positions[l->lanes[k].n++] = (int32_t)l->length;
        l->length++;
    }
}

static void shrink(life *l, uint32_t length) {
    l->length = length;
    for (uint32_t i = 0; i < LANES; i++)
        while (l->lanes[i].n && l->lanes[i].positions[l->lanes[i].n - 1] >= (int32_t)length)
            l->lanes[i].n--;
}

/* A step of both plans' by turns. Of one layer, the last to attend, the newest row is checked. */
static void run(world *w, life *l, uint32_t rows, bool exact, bool ends) {
    const tamis_step s = {.sequences = &l->id, .rows = &rows, .count = 1, .exact = exact};
    const uint32_t before = l->length, checked = test_below(&w->rng, LAYERS);
    const uint64_t floats = evict_out_floats(&w->e, 1);
    float *outs = malloc(ROWS * floats * sizeof *outs);
    OK(tamis_plan_step_begin(w->e.w.plan, &s, &test_error));
    grow(w, l, rows);
    for (uint32_t i = 1; i <= LAYERS; i++)
        evict_layer(&w->e, (checked + i) % LAYERS, l->tokens + before, rows, outs);
    if (!ends) {
        OK(tamis_plan_step_cancel(w->e.w.plan, &test_error));
        shrink(l, before);
    } else {
        OK(tamis_plan_step_end(w->e.w.plan, &test_error));
        if (test_below(&w->rng, 4) == 0) {
            held h = evict_read(&w->e, l->id);
            check_held(l, &h);
            evict_dense(&w->e, &h, checked, l->tokens[l->length - 1], outs + (rows - 1) * floats,
                        !exact);
            held_free(&h);
            w->looked++;
        }
    }
    free(outs);
}

static void step(world *w, life *l) {
    const bool exact = test_below(&w->rng, 2), ends = test_below(&w->rng, 6) != 0;
    const uint32_t rows = exact ? 1 + test_below(&w->rng, ROWS) : 1;
    if (l->length + rows > CONTEXT) return;
    (void)evict_swap_plan(&w->e, w->plans[test_below(&w->rng, 2)]);
    run(w, l, rows, exact, ends);
}

/* Each lane keeps slots of its own choice. */
static void evict(world *w, life *l) {
    uint32_t slots[LANES][CONTEXT], counts[LANES] = {0};
    const uint32_t share = 1 + test_below(&w->rng, 8);
    bool lost = false;
    if (l->length == 0) return;
    for (uint32_t i = 0; i < LANES; i++) {
        lane *of = &l->lanes[i];
        for (uint32_t s = 0; s < of->n; s++)
            if (test_below(&w->rng, 8) < share || (s + 1 == of->n && counts[i] == 0))
                slots[i][counts[i]++] = s;
        lost |= counts[i] < of->n;
        for (uint32_t s = 0; s < counts[i]; s++)
            of->positions[s] = of->positions[slots[i][s]];
        of->n = counts[i];
    }
    OK(tamis_plan_evict_to(w->plans[test_below(&w->rng, 2)], l->id, slots[0], counts, CONTEXT, NULL,
                           &test_error));
    if (lost) l->evicted_at = l->length;
    w->evicted += lost;
}

static void truncate(world *w, life *l) {
    const uint32_t length = test_below(&w->rng, l->length + 1);
    if (length >= l->evicted_at) {
        OK(tamis_cache_truncate(w->e.w.cache, l->id, length, &test_error));
        shrink(l, length);
        return;
    }
    w->refused++;
    assert_int_equal(tamis_cache_truncate(w->e.w.cache, l->id, length, &test_error), TAMIS_E_STATE);
}

/* A fork of the whole sequence, or of what the prefixes find for a part of its text: nothing, if a
 * lane has lost a token. */
static void fork_one(world *w, const life *l) {
    life *to = &w->lives[w->n];
    int32_t text[CONTEXT + 1];
    uint32_t shared = 0;
    if (w->n == MOST || l->length == 0) return;
    *to = *l;
    if (test_below(&w->rng, 2)) {
        OK(tamis_cache_fork(w->e.w.cache, l->id, &to->id, &test_error));
        w->n++;
        return;
    }
    const uint32_t asked = 1 + test_below(&w->rng, l->length);
    for (uint32_t i = 0; i < l->length; i++)
        text[i] = (int32_t)l->tokens[i];
    OK(tamis_prefixes_add(w->prefixes, l->id, text, l->length, salt, &test_error));
    text[asked] = -1;
    OK(tamis_prefixes_fork(w->prefixes, text, asked + 1, salt, 1, &to->id, &shared, &test_error));
    tamis_prefixes_remove(w->prefixes, l->id);
    assert_int_equal(shared, l->evicted_at ? 0 : asked);
    if (!shared) return;
    shrink(to, shared);
    w->n++;
}

/* Each sequence holds the pages that the model says, and the books are right. */
static void check_pages(world *w) {
    uint64_t pages_held = 0, shared = 0;
    test_account(w->e.w.cache, &pages_held, &shared);
    for (uint32_t i = 0; i < w->n; i++) {
        const life *l = &w->lives[i];
        uint64_t pages = 0, slots = 0;
        tamis_sequence_stats stats;
        for (uint32_t k = 0; k < LANES; k++) {
            pages += (l->lanes[k].n + PAGE - 1) / PAGE;
            slots += l->lanes[k].n;
        }
        OK(tamis_cache_get_sequence_stats(w->e.w.cache, l->id, &stats, &test_error));
        assert_int_equal(stats.pages, pages);
        assert_int_equal(stats.slots, slots);
        assert_int_equal(test_length(w->e.w.cache, l->id), l->length);
        assert_int_equal(test_evicted_at(w->e.w.cache, l->id), l->evicted_at);
    }
}

static void live(world *w, uint32_t what) {
    life *l = &w->lives[w->n ? test_below(&w->rng, w->n) : 0];
    if (w->n == 0 || (w->n < MOST && what == 0)) {
        w->lives[w->n] = (life){0};
        OK(tamis_cache_add(w->e.w.cache, &w->lives[w->n++].id, &test_error));
    } else if (what == 1) {
        fork_one(w, l);
    } else if (what == 2) {
        truncate(w, l);
    } else if (what == 3) {
        evict(w, l);
    } else if (what == 4 && test_below(&w->rng, 3) == 0) {
        OK(tamis_cache_remove(w->e.w.cache, l->id, &test_error));
        *l = w->lives[--w->n];
    } else
        step(w, l);
}

static void random_lives(void **state) {
    (void)state;
    const char *asked = getenv("TEST_STEPS");
    const uint32_t steps = asked ? (uint32_t)atoi(asked) : STEPS / test_slowness();
    world *w = malloc(sizeof *w);
    assert_non_null(w);
    open_world(w);
    for (uint32_t i = 0; i < steps; i++) {
        live(w, test_below(&w->rng, 14));
        if (i % 16 == 0) check_pages(w);
    }
    assert_true(w->evicted > 0 && w->looked > 0 && w->refused > 0);
    while (w->n > 0)
        OK(tamis_cache_remove(w->e.w.cache, w->lives[--w->n].id, &test_error));
    assert_int_equal(test_stats(&w->e.w).pages_held, 0);
    close_world(w);
    free(w);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_lives)};
    int skip = test_begin(argc, argv);
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
