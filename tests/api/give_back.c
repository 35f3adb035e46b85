/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes whose windows have passed on give their pages back: random lives of sequences (steps, cancelled
 * and ended, forks, truncations, prefixes, removals) against a plain model that keeps tokens and counts
 * pages. TEST_STEPS: how many. */
#include "lib/cache/cache.h"
#include "tests/api/fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/prefixes.h>

enum { LAYERS = 3, HEADS = 2, DIM = 64, PAGE = 8, CONTEXT = 240, ROWS = 12, MOST = 5, STEPS = 20000 };

static const tamis_layer layers[LAYERS] = {{.attention = {.sliding_window = 21}},
                                           {.attention = {.chunk = 24}},
                                           {.attention = {.scale = 0.25f}}};

/* The least position that a row sees. */
static uint32_t least_seen(uint32_t layer, uint32_t position) {
    uint32_t least = 0;
    while (test_hides(&layers[layer].attention, least, position))
        least++;
    return least;
}

typedef struct life {
    tamis_sequence id;
    uint64_t tokens[CONTEXT];
    uint32_t length;
    uint32_t gone[LAYERS]; /* pages */
    uint32_t longest;      /* at a step's end */
} life;

typedef struct world {
    test_world w;
    tamis_prefixes *prefixes;
    life lives[MOST];
    uint32_t n;
    uint64_t rng, tokens; /* tokens that there have been */
    uint32_t refused;     /* truncations */
    float out[ROWS * HEADS * DIM];
} world;

static const uint8_t salt[16] = {7};

static void open_world(world *w) {
    uint64_t each[LAYERS];
    tamis_cache_params shape = {.n_layers = LAYERS,
                                .n_heads = HEADS,
                                .n_kv_heads = 1,
                                .head_dim = DIM,
                                .page_size = PAGE,
                                .capacity_tokens = MOST * CONTEXT,
                                .layer_tokens = each};
    const tamis_plan_params plan = {
        .max_rows = ROWS, .max_context = CONTEXT, .layers = layers, .flags = TAMIS_PLAN_GIVE_BACK};
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const uint64_t most = tamis_layer_tokens(&layers[layer].attention, PAGE, ROWS);
        /* A lane more, for pages that were copied while another held them. */
        each[layer] = most < CONTEXT ? (MOST + 1) * (most + PAGE - 1) / PAGE * PAGE : 0;
    }
    *w = (world){.rng = 5};
    test_open(&w->w, &shape, &plan);
    OK(tamis_prefixes_create(w->w.cache, &w->prefixes, &test_error));
}

static void close_world(world *w) {
    tamis_prefixes_destroy(&w->prefixes);
    test_close(&w->w);
}

/* The newest row of a layer is attention over the tokens that it sees. */
static void check_newest(world *w, const life *l, uint32_t layer, uint32_t row) {
    const uint32_t own = l->length - 1, first = least_seen(layer, own);
    const double scale = layers[layer].attention.scale != 0 ? 0.25 : 0.125;
    for (uint32_t head = 0; head < HEADS; head++) {
        double logits[CONTEXT], sums[DIM] = {0}, most = -INFINITY, total = 0;
        for (uint32_t p = first; p <= own; p++) {
            double dot = 0;
            for (uint32_t d = 0; d < DIM; d++)
                dot += (double)test_value(l->tokens[own], 100 + head, 0, d) *
                       (double)test_value(l->tokens[p], layer, 0, d);
            logits[p] = scale * dot;
            most = fmax(most, logits[p]);
        }
        for (uint32_t p = first; p <= own; p++) {
            const double weight = exp(logits[p] - most);
            total += weight;
            for (uint32_t d = 0; d < DIM; d++)
                sums[d] += weight * (double)test_value(l->tokens[p], layer, 1, d);
        }
        for (uint32_t d = 0; d < DIM; d++)
            if (fabs(sums[d] / total - (double)w->out[(row * HEADS + head) * DIM + d]) > 1e-4)
                fail_msg("layer %u, position %u, head %u, channel %u: %g, not %g", layer, own, head,
                         d, (double)w->out[(row * HEADS + head) * DIM + d], sums[d] / total);
    }
}

static void attend(world *w, const life *l, uint32_t layer, uint32_t rows) {
    const tamis_rows q = {.buffer = w->w.q}, out = {.buffer = w->w.out};
    for (uint32_t i = 0; i < rows * HEADS * DIM; i++)
        w->w.host[i] = test_value(l->tokens[l->length - rows + i / DIM / HEADS],
                                  100 + i / DIM % HEADS, 0, i % DIM);
    OK(tamis_buffer_write(w->w.q, 0, w->w.host, rows * HEADS * DIM * sizeof(float), &test_error));
    OK(tamis_plan_attend(w->w.plan, layer, &q, &out, &test_error));
    OK(tamis_buffer_read(w->w.out, 0, w->out, rows * HEADS * DIM * sizeof(float), &test_error));
    check_newest(w, l, layer, rows - 1);
}

static void pages_pass(life *l) {
    if (l->length > l->longest) l->longest = l->length;
    for (uint32_t layer = 0; layer < LAYERS && l->length > TAMIS_KEPT_TOKENS; layer++) {
        const uint32_t gone = least_seen(layer, l->length - TAMIS_KEPT_TOKENS) / PAGE;
        if (gone > l->gone[layer]) l->gone[layer] = gone;
    }
}

static void step(world *w, life *l) {
    const uint32_t rows = 1 + test_below(&w->rng, ROWS);
    const tamis_step s = {.sequences = &l->id, .rows = &rows, .count = 1, .exact = 1};
    const bool ends = test_below(&w->rng, 6) != 0, looks = test_below(&w->rng, 8) == 0;
    if (l->length + rows > CONTEXT) return;
    OK(tamis_plan_step_begin(w->w.plan, &s, &test_error));
    for (uint32_t i = 0; i < rows; i++)
        l->tokens[l->length++] = ++w->tokens;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        test_write(&w->w, layer, l->tokens + l->length - rows, rows);
        if (looks) attend(w, l, layer, rows);
    }
    if (ends) {
        OK(tamis_plan_step_end(w->w.plan, &test_error));
        pages_pass(l);
    } else {
        OK(tamis_plan_step_cancel(w->w.plan, &test_error));
        l->length -= rows;
    }
}

/* Whether a sequence of that length still holds all that its next row sees. */
static bool may_be(const life *l, uint32_t length) {
    bool may = true;
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        may &= least_seen(layer, length) >= l->gone[layer] * PAGE;
    return may;
}

static void truncate(world *w, life *l) {
    const uint32_t cut = test_below(&w->rng, test_below(&w->rng, 2) ? 20 : l->length + 1);
    const uint32_t length = cut < l->length ? l->length - cut : 0;
    if (may_be(l, length)) {
        OK(tamis_cache_truncate(w->w.cache, l->id, length, &test_error));
        l->length = length;
        return;
    }
    assert_true(length + TAMIS_KEPT_TOKENS < l->longest);
    w->refused++;
    FAILS(tamis_cache_truncate(w->w.cache, l->id, length, &test_error), TAMIS_E_STATE,
          test_text("cannot go back to %u tokens: the row at position %u would see", length, length));
}

static void text_of(const life *l, int32_t *text, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        text[i] = (int32_t)l->tokens[i];
}

/* A fork of the whole sequence, or of what the prefixes find for a part of its text. */
static void fork_one(world *w, const life *l) {
    life *to = &w->lives[w->n];
    if (w->n == MOST || l->length == 0) return;
    *to = *l;
    if (test_below(&w->rng, 2)) {
        OK(tamis_cache_fork(w->w.cache, l->id, &to->id, &test_error));
        w->n++;
        return;
    }
    int32_t text[CONTEXT + 1];
    uint32_t shared = 0, asked = 1 + test_below(&w->rng, l->length);
    text_of(l, text, l->length);
    OK(tamis_prefixes_add(w->prefixes, l->id, text, l->length, salt, &test_error));
    text[asked] = -1;
    OK(tamis_prefixes_fork(w->prefixes, text, asked + 1, salt, 1, &to->id, &shared, &test_error));
    tamis_prefixes_remove(w->prefixes, l->id);
    assert_int_equal(shared, may_be(l, asked) ? asked : 0);
    assert_int_equal(to->id != 0, shared != 0);
    if (!to->id) return;
    to->length = shared;
    w->n++;
}

/* Each sequence holds the pages that the model says, and the books are right. */
static void check_pages(world *w) {
    uint64_t held = 0, shared = 0;
    test_account(w->w.cache, &held, &shared);
    for (uint32_t i = 0; i < w->n; i++) {
        const life *l = &w->lives[i];
        uint64_t pages = 0;
        tamis_sequence_stats stats;
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            pages += (l->length + PAGE - 1) / PAGE - l->gone[layer];
        OK(tamis_cache_get_sequence_stats(w->w.cache, l->id, &stats, &test_error));
        assert_int_equal(stats.pages, pages);
        assert_int_equal(test_length(w->w.cache, l->id), l->length);
        assert_true(may_be(l, stats.shortest));
        assert_true(stats.shortest == 0 || !may_be(l, stats.shortest - 1));
        for (uint32_t layer = 0; layer < 2; layer++)
            assert_true(l->length - l->gone[layer] * PAGE <=
                        tamis_layer_tokens(&layers[layer].attention, PAGE, ROWS));
    }
}

static void random_lives(void **state) {
    (void)state;
    const char *asked = getenv("TEST_STEPS");
    const uint32_t steps = asked ? (uint32_t)atoi(asked) : STEPS;
    world w;
    open_world(&w);
    for (uint32_t i = 0; i < steps; i++) {
        const uint32_t at = w.n ? test_below(&w.rng, w.n) : 0, what = test_below(&w.rng, 12);
        life *l = &w.lives[at];
        if (w.n == 0 || (w.n < MOST && what == 0)) {
            w.lives[w.n] = (life){0};
            OK(tamis_cache_add(w.w.cache, &w.lives[w.n++].id, &test_error));
        } else if (what == 1) {
            fork_one(&w, l);
        } else if (what == 2) {
            truncate(&w, l);
        } else if (what == 3 && test_below(&w.rng, 4) == 0) {
            OK(tamis_cache_remove(w.w.cache, l->id, &test_error));
            *l = w.lives[--w.n];
        } else
            step(&w, l);
        if (i % 16 == 0) check_pages(&w);
    }
    assert_true(w.refused > 0);
    while (w.n > 0)
        OK(tamis_cache_remove(w.w.cache, w.lives[--w.n].id, &test_error));
    assert_int_equal(test_stats(&w.w).pages_held, 0);
    close_world(&w);
}

/* A plan that would read what is gone is told so, as is a reader. */
static void what_is_gone_is_not_read(void **state) {
    (void)state;
    world w;
    life l = {0};
    float row[DIM];
    tamis_plan *wider = NULL;
    const tamis_plan_params plain = {.max_context = CONTEXT};
    open_world(&w);
    OK(tamis_cache_add(w.w.cache, &l.id, &test_error));
    while (l.length < 100)
        step(&w, &l);
    assert_true(l.gone[0] > 0);
    OK(tamis_plan_create(w.w.cache, &plain, &wider, &test_error));
    FAILS(tamis_plan_step_begin(wider, &(tamis_step){.sequences = &l.id, .count = 1}, &test_error),
          TAMIS_E_STATE, "sees positions from 0 on in layer 0, whose pages before position");
    FAILS(tamis_cache_read(w.w.cache, l.id, 0, 0, l.gone[0] * PAGE - 1, 1, row, NULL, &test_error),
          TAMIS_E_STATE, "is in a page that was given back");
    OK(tamis_cache_read(w.w.cache, l.id, 0, 0, l.gone[0] * PAGE, 1, row, NULL, &test_error));
    for (uint32_t d = 0; d < DIM; d++)
        assert_true(row[d] == test_value(l.tokens[l.gone[0] * PAGE], 0, 0, d));
    const tamis_bounds other = {.kind = TAMIS_BOUNDS_MEAN};
    OK(tamis_cache_set_bounds(w.w.cache, &other, &test_error));
    tamis_plan_destroy(&wider);
    close_world(&w);
}

static void capacities_of_layers(void **state) {
    (void)state;
    world w;
    tamis_cache_size size;
    uint64_t each[LAYERS] = {64, 9, 0};
    tamis_cache_params shape = {.n_layers = LAYERS,
                                .n_heads = HEADS,
                                .n_kv_heads = 1,
                                .head_dim = DIM,
                                .page_size = PAGE,
                                .capacity_tokens = 256,
                                .layer_tokens = each};
    tamis_cache *cache = NULL;
    tamis_plan *plan = NULL;
    const tamis_plan_params keeps = {
        .max_context = 64, .layers = layers, .flags = TAMIS_PLAN_GIVE_BACK};
    open_world(&w);
    OK(tamis_cache_measure(w.w.context, &shape, &size, &test_error));
    assert_int_equal(size.pages, 64 / 8 + 2 + 256 / 8);
    each[1] = 257;
    FAILS(tamis_cache_measure(w.w.context, &shape, &size, &test_error), TAMIS_E_ARGUMENT,
          "layer_tokens of layer 1 is 257, above capacity_tokens 256");
    shape.capacity_tokens = 0;
    shape.capacity_bytes = 1 << 20;
    FAILS(tamis_cache_measure(w.w.context, &shape, &size, &test_error), TAMIS_E_ARGUMENT,
          "layer_tokens go with capacity_tokens");
    shape.layer_tokens = NULL;
    shape.planes = TAMIS_PLANE_POSITIONS;
    OK(tamis_cache_create(w.w.context, &shape, &cache, &test_error));
    FAILS(tamis_plan_create(cache, &keeps, &plan, &test_error), TAMIS_E_UNSUPPORTED,
          "TAMIS_PLAN_GIVE_BACK in a cache with planes (1)");
    tamis_cache_destroy(&cache);
    assert_true(tamis_layer_tokens(&layers[2].attention, PAGE, ROWS) == UINT64_MAX);
    assert_int_equal(tamis_layer_tokens(NULL, PAGE, ROWS), 0);
    close_world(&w);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_lives),
        cmocka_unit_test(what_is_gone_is_not_read),
        cmocka_unit_test(capacities_of_layers),
    };
    int skip = test_begin(argc, argv);
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
