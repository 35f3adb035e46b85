/* SPDX-License-Identifier: Apache-2.0 */
/* Kinds of bounds: what a selection reads under each, against the oracle; changing the kind of a
 * filled cache, which pages that touches, and what happens when it fails. */
#include "host/backend.h"
#include "lib/cache/cache.h"
#include "tests/policies/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DIM     64u
#define PAGE    8u
#define HEADS   2u
#define LANES   4u
#define K       4u   /* pages a list */
#define TOKENS  101u /* 12 full pages a lane and 5 slots */
#define LONGEST 128u

static const tamis_selection quest = {
    .kind = TAMIS_SELECT_QUEST, .budget = K * PAGE, .sinks = 4, .recent = 8};

static const tamis_bounds kinds[] = {{.kind = TAMIS_BOUNDS_MEAN_STD},
                                     {.kind = TAMIS_BOUNDS_MEAN_STD, .width = 0.25f},
                                     {.kind = TAMIS_BOUNDS_MEAN},
                                     {.kind = TAMIS_BOUNDS_MINMAX}};
#define N_KINDS (sizeof kinds / sizeof *kinds)

typedef struct page_lists {
    uint32_t pages[LANES][K];
} page_lists;

/* A world with one sequence of `n` tokens, which are 1, 2 and so on. */
static tamis_sequence open_filled(test_world *w, tamis_bounds bounds, uint64_t *tokens,
                                  uint32_t n) {
    tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {.selection = quest, .max_rows = LONGEST, .max_context = LONGEST};
    tamis_sequence id;
    plan.max_selected_rows = 1;
    shape.bounds = bounds;
    test_open(w, &shape, &plan);
    for (uint32_t i = 0; i < LONGEST; i++)
        tokens[i] = i + 1;
    OK(tamis_cache_add(w->cache, &id, &test_error));
    OK(test_append(w, id, tokens, n));
    return id;
}

static void make_q(float *q) {
    uint64_t random = 3;
    for (uint32_t i = 0; i < 2 * HEADS * DIM; i++)
        q[i] = (float)((double)(test_random(&random) >> 11) / (1ull << 51) - 2);
}

/* The lists of a row behind the first `n` tokens, which stays outside the cache. */
static page_lists read_lists(test_world *w, tamis_sequence id, const uint64_t *tokens, uint32_t n) {
    tamis_step step = {.sequences = &id, .count = 1};
    tamis_rows q_rows = {.buffer = w->q}, out_rows = {.buffer = w->out};
    float q[2 * HEADS * DIM];
    page_lists lists = {0};
    make_q(q);
    OK(tamis_buffer_write(w->q, 0, q, sizeof q, NULL));
    OK(tamis_plan_step_begin(w->plan, &step, &test_error));
    for (uint32_t lane = 0; lane < LANES; lane++) {
        uint32_t count = 0;
        if (lane % HEADS == 0) {
            test_write(w, lane / HEADS, tokens + n, 1);
            OK(tamis_plan_attend(w->plan, lane / HEADS, &q_rows, &out_rows, &test_error));
        }
        OK(tamis_plan_read_selected(w->plan, 0, lane % HEADS, lists.pages[lane], K, &count,
                                    &test_error));
        assert_int_equal(count, K);
    }
    OK(tamis_plan_step_cancel(w->plan, &test_error));
    return lists;
}

/* Replaces the keys of a full page, channel d, by others whose minimum and maximum are the pair in
 * double precision: the oracle knows minima and maxima only. */
static void replace_keys(float *keys, uint32_t d, const tamis_bounds *bounds) {
    double mean = 0, squares = 0, width = bounds->width != 0 ? (double)bounds->width : 1;
    if (bounds->kind == TAMIS_BOUNDS_MINMAX) return;
    for (uint32_t s = 0; s < PAGE; s++)
        mean += (double)keys[s * DIM + d] / PAGE;
    for (uint32_t s = 0; s < PAGE; s++)
        squares += (keys[s * DIM + d] - mean) * (keys[s * DIM + d] - mean);
    double spread = bounds->kind == TAMIS_BOUNDS_MEAN ? 0 : width * sqrt(squares / PAGE);
    for (uint32_t s = 0; s < PAGE; s++)
        keys[s * DIM + d] = (float)(s ? mean + spread : mean - spread);
}

static void expect_lists(const page_lists *got, const tamis_bounds *bounds, const uint64_t *tokens,
                         uint32_t n) {
    oracle_rule rule = {.head_dim = DIM, .page_size = PAGE, .group = 2, .selection = quest};
    static float keys[LONGEST * DIM];
    float q[2 * HEADS * DIM];
    make_q(q);
    for (uint32_t lane = 0; lane < LANES; lane++) {
        signed char chosen[LONGEST / PAGE];
        oracle_lane rows = {.k = keys, .v = keys};
        for (uint32_t i = 0; i < (n + 1) * DIM; i++)
            keys[i] = test_value(tokens[i / DIM], lane, 0, i % DIM);
        for (uint32_t i = 0; i < (n + 1) / PAGE * DIM; i++)
            replace_keys(keys + (size_t)i / DIM * PAGE * DIM, i % DIM, bounds);
        assert_int_equal(oracle_select(&rule, &rows, n + 1, q + lane % HEADS * 2 * DIM, chosen), K);
        for (uint32_t i = 0, at = 0; i <= n / PAGE; i++) {
            bool read = at < K && got->pages[lane][at] == i;
            at += read;
            if (chosen[i] != read) /* no data here are too close to tell */
                fail_msg("%s, lane %u: page %u is%s read", tamis_bounds_name(bounds->kind), lane, i,
                         read ? "" : " not");
        }
    }
}

static void expect_kind(const test_world *w, const tamis_bounds *bounds) {
    bool wide = bounds->kind == TAMIS_BOUNDS_MEAN_STD;
    tamis_bounds got;
    tamis_cache_get_bounds(w->cache, &got);
    assert_int_equal(got.kind, bounds->kind);
    assert_true(got.width == (!wide ? 0 : bounds->width > 0 ? bounds->width : 1));
}

/* A filled cache goes through the kinds and back to minmax. */
static void changed_bounds_are_those_of_the_kind(void **state) {
    (void)state;
    uint64_t tokens[LONGEST], differ = 0;
    test_world w;
    tamis_sequence id = open_filled(&w, (tamis_bounds){0}, tokens, TOKENS);
    uint32_t builds = test_builds;
    page_lists first = read_lists(&w, id, tokens, TOKENS), now = first;
    expect_kind(&w, &kinds[N_KINDS - 1]);
    expect_lists(&first, &kinds[N_KINDS - 1], tokens, TOKENS);
    for (uint32_t i = 0; i < N_KINDS; i++) {
        OK(tamis_cache_set_bounds(w.cache, &kinds[i], &test_error));
        expect_kind(&w, &kinds[i]);
        now = read_lists(&w, id, tokens, TOKENS);
        expect_lists(&now, &kinds[i], tokens, TOKENS);
        differ += memcmp(&now, &first, sizeof now) != 0;
    }
    assert_memory_equal(&now, &first, sizeof now);
    assert_int_equal(differ, N_KINDS - 1);
    assert_int_equal(test_builds, builds);
    test_close(&w);
}

/* A cache of a kind from the start, and pages that fill after a change: their bounds come from the
 * plan. */
static void filled_pages_get_bounds_of_the_kind(void **state) {
    (void)state;
    for (uint32_t i = 0; i < N_KINDS; i++) {
        uint64_t tokens[LONGEST];
        test_world w;
        tamis_sequence id = open_filled(&w, kinds[i], tokens, TOKENS);
        page_lists lists = read_lists(&w, id, tokens, TOKENS);
        const tamis_bounds *next = &kinds[(i + 1) % N_KINDS];
        expect_kind(&w, &kinds[i]);
        expect_lists(&lists, &kinds[i], tokens, TOKENS);
        OK(tamis_cache_set_bounds(w.cache, next, &test_error));
        OK(test_append(&w, id, tokens + TOKENS, 20));
        lists = read_lists(&w, id, tokens, TOKENS + 20);
        expect_lists(&lists, next, tokens, TOKENS + 20);
        test_close(&w);
    }
}

/* The device's table with calls that are counted and fail when the countdown is at 0. */
static const tms_backend *sound;
static tms_backend watched;
static int countdown;
static uint64_t launches, pages_launched;

static bool fails_now(void) {
    return countdown-- == 0;
}

static tamis_status refuse(tms_device *dev) {
    return tms_device_fail(dev, TAMIS_E_NO_MEMORY, "refused by the test");
}

static tamis_status watch_bounds(tms_device *dev, const tms_bounds *p) {
    if (fails_now()) return refuse(dev);
    launches++;
    pages_launched += p->n;
    return sound->bounds(dev, p);
}

static tamis_status watch_alloc(tms_device *dev, uint64_t bytes, tms_mem **out) {
    return fails_now() ? refuse(dev) : sound->alloc(dev, bytes, out);
}

static tamis_status watch_write(tms_device *dev, tms_ref to, const void *from, uint64_t bytes) {
    return fails_now() ? refuse(dev) : sound->write(dev, to, from, bytes);
}

static void watch(tms_device *dev, int sound_calls) {
    sound = dev->backend;
    watched = *sound;
    countdown = sound_calls;
    launches = pages_launched = 0;
    dev->backend = &watched;
}

static void unwatch(tms_device *dev) {
    dev->backend = sound;
}

/* One layer a pool. */
static void split_pools(test_world *w, const tamis_plan_params *plan) {
    tms_device *dev = w->context->dev;
    tamis_plan_destroy(&w->plan);
    tamis_cache_destroy(&w->cache);
    uint64_t limit = dev->info.max_buffer_bytes;
    dev->info.max_buffer_bytes = 300000;
    OK(tamis_cache_create(w->context, &w->shape, &w->cache, &test_error));
    dev->info.max_buffer_bytes = limit;
    OK(tamis_plan_create(w->cache, plan, &w->plan, &test_error));
    assert_int_equal(w->cache->size.pools, 2);
}

/* Two pools; a sequence of 101 tokens; a fork with its first 60 and 10 others; one with 3. */
static void open_forks(test_world *w, uint64_t *tokens, tamis_sequence *ids) {
    tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {.max_rows = LONGEST, .max_context = LONGEST};
    test_open(w, &shape, &plan);
    split_pools(w, &plan);
    for (uint32_t i = 0; i < LONGEST; i++)
        tokens[i] = 1000 + i;
    OK(tamis_cache_add(w->cache, &ids[0], &test_error));
    OK(test_append(w, ids[0], tokens, TOKENS));
    for (uint32_t i = 1; i < 3; i++) {
        OK(tamis_cache_fork(w->cache, ids[0], &ids[i], &test_error));
        OK(tamis_cache_truncate(w->cache, ids[i], i == 1 ? 60 : 3, &test_error));
    }
    OK(test_append(w, ids[1], tokens + 110, 10));
}

/* Channel d of a page has the mean of its tokens as both bounds: exact for test_value. */
static void expect_means(const float *pair, const uint64_t *tokens, uint32_t lane) {
    for (uint32_t d = 0; d < DIM; d++) {
        float mean = 0;
        for (uint32_t s = 0; s < PAGE; s++)
            mean += test_value(tokens[s], lane, 0, d) / PAGE;
        if (pair[d] != mean || pair[DIM + d] != mean)
            fail_msg("lane %u, channel %u: %g to %g, wanted %g", lane, d, (double)pair[d],
                     (double)pair[DIM + d], (double)mean);
    }
}

static bool is_marked(const float *pair) {
    uint32_t words[2 * DIM], marked = 0;
    memcpy(words, pair, sizeof words);
    for (uint32_t i = 0; i < 2 * DIM; i++)
        marked += words[i] == 0xFFC1FFC1u;
    assert_true(marked == 0 || marked == 2 * DIM);
    return marked > 0;
}

/* The full pages of a sequence in a pool; counts those met for the first time and marks them. */
static uint32_t check_pages(const test_world *w, const tms_pool *pool, tamis_sequence id,
                            const uint64_t *tokens, float *bounds) {
    const tms_sequence *s = tms_cache_find(w->cache, id);
    const uint32_t mark = 0xFFC1FFC1u;
    uint32_t n = 0;
    for (uint32_t h = 0; h < HEADS; h++) {
        uint32_t lane = pool->first_layer * HEADS + h;
        for (uint32_t i = 0; i < s->lanes[lane].length / PAGE; i++) {
            float *pair = bounds + (size_t)tms_lane_pages(s, lane)[i] * 2 * DIM;
            if (is_marked(pair)) continue;
            n++;
            expect_means(pair, tokens + i * PAGE, lane);
            for (uint32_t d = 0; d < 2 * DIM; d++)
                memcpy(pair + d, &mark, sizeof mark);
        }
    }
    return n;
}

/* A change computes each full page once, though shared, and touches nothing else. */
static void a_change_computes_each_full_page_once(void **state) {
    (void)state;
    static float bounds[128 * 2 * DIM];
    uint64_t tokens[LONGEST], forked[LONGEST];
    tamis_bounds mean = {.kind = TAMIS_BOUNDS_MEAN};
    tamis_sequence ids[3];
    test_world w;
    open_forks(&w, tokens, ids);
    tms_device *dev = w.context->dev;
    memcpy(forked, tokens, sizeof forked);
    memcpy(forked + 60, tokens + 110, 10 * sizeof *forked);
    for (uint32_t p = 0; p < 2; p++) {
        tms_ref to = {w.cache->pools[p].bounds, 0};
        OK(dev->backend->fill(dev, to, 0xFFC1FFC1u, 64 * 2 * DIM * sizeof(float)));
    }
    watch(dev, -1);
    watched.bounds = watch_bounds;
    OK(tamis_cache_set_bounds(w.cache, &mean, &test_error));
    unwatch(dev);
    /* A lane has 12 full pages, and its fork, which shares 7, an eighth. */
    assert_true(launches == 2 && pages_launched == LANES * 13);
    for (uint32_t p = 0; p < 2; p++) {
        const tms_pool *pool = &w.cache->pools[p];
        assert_int_equal(pool->pages.n, 64);
        OK(dev->backend->read(dev, (tms_ref){pool->bounds, 0}, bounds,
                              64 * 2 * DIM * sizeof *bounds));
        assert_int_equal(check_pages(&w, pool, ids[0], tokens, bounds), HEADS * 12);
        assert_int_equal(check_pages(&w, pool, ids[1], forked, bounds), HEADS);
        assert_int_equal(check_pages(&w, pool, ids[2], tokens, bounds), 0);
        for (uint32_t page = 0; page < 64; page++)
            assert_true(is_marked(bounds + (size_t)page * 2 * DIM));
    }
    test_close(&w);
}

/* More pages than one launch takes. */
static void a_change_takes_several_launches(void **state) {
    (void)state;
    static uint64_t tokens[8200]; /* 1025 pages a lane */
    static float pair[2 * DIM];
    tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {.max_context = 8200};
    tamis_bounds mean = {.kind = TAMIS_BOUNDS_MEAN};
    tamis_sequence id;
    test_world w;
    shape.capacity_tokens = 8200;
    test_open(&w, &shape, &plan);
    tms_device *dev = w.context->dev;
    for (uint32_t i = 0; i < 8200; i++)
        tokens[i] = i + 1;
    OK(tamis_cache_add(w.cache, &id, &test_error));
    for (uint32_t i = 0; i < 8200; i += 410)
        OK(test_append(&w, id, tokens + i, 410));
    watch(dev, -1);
    watched.bounds = watch_bounds;
    OK(tamis_cache_set_bounds(w.cache, &mean, &test_error));
    unwatch(dev);
    assert_true(launches == 2 && pages_launched == LANES * 1025);
    const tms_sequence *s = tms_cache_find(w.cache, id);
    for (uint32_t lane = 0; lane < LANES; lane++)
        for (uint32_t i = lane; i < 1025; i += 128) {
            tms_ref at = {tms_cache_pool(w.cache, lane / HEADS)->bounds,
                          (uint64_t)tms_lane_pages(s, lane)[i] * sizeof pair};
            OK(dev->backend->read(dev, at, pair, sizeof pair));
            expect_means(pair, tokens + i * PAGE, lane);
        }
    test_close(&w);
}

static void expect_range(const float *pair, const uint64_t *tokens, uint32_t lane) {
    for (uint32_t d = 0; d < DIM; d++) {
        float lo = INFINITY, hi = -INFINITY;
        for (uint32_t s = 0; s < PAGE; s++) {
            lo = fminf(lo, test_value(tokens[s], lane, 0, d));
            hi = fmaxf(hi, test_value(tokens[s], lane, 0, d));
        }
        if (pair[d] != lo || pair[DIM + d] != hi)
            fail_msg("lane %u, channel %u: %g to %g, wanted %g to %g", lane, d, (double)pair[d],
                     (double)pair[DIM + d], (double)lo, (double)hi);
    }
}

/* The first 12 pages of every lane hold `bounds`, minmax or mean. */
static void expect_bounds(const test_world *w, tamis_sequence id, const tamis_bounds *bounds,
                          const uint64_t *tokens) {
    tms_device *dev = w->context->dev;
    const tms_sequence *s = tms_cache_find(w->cache, id);
    float pair[2 * DIM];
    for (uint32_t lane = 0; lane < LANES; lane++)
        for (uint32_t i = 0; i < 12; i++) {
            tms_ref at = {tms_cache_pool(w->cache, lane / HEADS)->bounds,
                          (uint64_t)tms_lane_pages(s, lane)[i] * sizeof pair};
            OK(dev->backend->read(dev, at, pair, sizeof pair));
            if (bounds->kind == TAMIS_BOUNDS_MEAN)
                expect_means(pair, tokens + i * PAGE, lane);
            else
                expect_range(pair, tokens + i * PAGE, lane);
        }
}

/* Fails where nothing has changed yet; what was mixed stays so. */
static void fail_alloc(test_world *w, const tamis_bounds *bounds) {
    tms_device *dev = w->context->dev;
    watch(dev, 0);
    watched.alloc = watch_alloc;
    FAILS(tamis_cache_set_bounds(w->cache, bounds, &test_error), TAMIS_E_NO_MEMORY, "test");
    unwatch(dev);
}

/* A change that fails at once changes nothing; later, no step begins until one succeeds. */
static void a_failed_change_stops_steps_until_one_succeeds(void **state) {
    (void)state;
    uint64_t tokens[LONGEST];
    tamis_bounds mean = {.kind = TAMIS_BOUNDS_MEAN}, minmax = {0};
    tamis_sequence ids[3];
    test_world w;
    open_forks(&w, tokens, ids);
    tms_device *dev = w.context->dev;
    fail_alloc(&w, &mean);
    expect_kind(&w, &minmax);
    expect_bounds(&w, ids[0], &minmax, tokens);
    OK(test_append(&w, ids[2], tokens, 1));
    for (int n = 0; n < 4; n++) {
        const tamis_bounds *last = n % 2 ? &mean : &minmax;
        watch(dev, n / 2);
        if (n % 2)
            watched.bounds = watch_bounds;
        else
            watched.write = watch_write;
        FAILS(tamis_cache_set_bounds(w.cache, &mean, &test_error), TAMIS_E_NO_MEMORY, "test");
        unwatch(dev);
        FAILS(test_append(&w, ids[0], tokens, 1), TAMIS_E_STATE, "failed half way to mean");
        fail_alloc(&w, &minmax);
        expect_kind(&w, &mean);
        FAILS(test_append(&w, ids[0], tokens, 1), TAMIS_E_STATE, "failed half way to mean");
        OK(tamis_cache_set_bounds(w.cache, last, &test_error));
        expect_kind(&w, last);
        expect_bounds(&w, ids[0], last, tokens);
        OK(test_append(&w, ids[0], tokens, 1));
    }
    test_close(&w);
}

static void kinds_are_known_by_name(void **state) {
    (void)state;
    static const char *const names[] = {"minmax", "meanstd", "mean"};
    tamis_bounds_kind kind;
    for (int i = 0; i < 3; i++) {
        OK(tamis_bounds_parse(names[i], &kind, &test_error));
        assert_int_equal(kind, i);
        assert_string_equal(tamis_bounds_name(kind), names[i]);
    }
    FAILS(tamis_bounds_parse("median", &kind, &test_error), TAMIS_E_ARGUMENT,
          "\"median\"; known are minmax, meanstd, mean");
    FAILS(tamis_bounds_parse(NULL, &kind, &test_error), TAMIS_E_ARGUMENT, "name");
    FAILS(tamis_bounds_parse("mean", NULL, &test_error), TAMIS_E_ARGUMENT, "out");
    assert_string_equal(tamis_bounds_name((tamis_bounds_kind)3), "unknown");
    assert_string_equal(tamis_bounds_name((tamis_bounds_kind)-1), "unknown");
}

/* Scales of q8 are 16-bit elements: no backend takes a place that leads to odd bytes. */
static void odd_places_of_scales_are_refused(void **state) {
    (void)state;
    test_world w;
    tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {.max_rows = LONGEST, .max_context = LONGEST};
    shape.dtype = TAMIS_Q8;
    test_open(&w, &shape, &plan);
    const tms_bounds even = tms_cache_bounds(w.cache, 0);
    tms_bounds odd[4] = {even, even, even, even};
    static const char *const parts[] = {"K and V with scales at offset 0, strides 1089",
                                        "value offset 545", "bounds with scales at offset 1,",
                                        "bounds with scales at offset 0"};
    odd[0].kv.page_stride++;
    odd[1].kv.value_offset++;
    odd[2].kv.bounds.offset++;
    odd[3].kv.bounds_page_stride++;
    OK(tms_run_bounds(w.context->dev, &even, &test_error));
    for (int i = 0; i < 4; i++)
        FAILS(tms_run_bounds(w.context->dev, &odd[i], &test_error), TAMIS_E_UNSUPPORTED, parts[i]);
    test_close(&w);
}

/* What no cache takes, neither new nor filled; and no backend. */
static void bad_kinds_and_widths_are_refused(void **state) {
    (void)state;
    static const struct {
        tamis_bounds bounds;
        const char *part;
    } bad[] = {{{.kind = (tamis_bounds_kind)3}, "kind 3"},
               {{.kind = (tamis_bounds_kind)-1}, "kind -1"},
               {{.kind = TAMIS_BOUNDS_MEAN_STD, .width = -0.5f}, "width -0.5"},
               {{.kind = TAMIS_BOUNDS_MEAN_STD, .width = NAN}, "nan"},
               {{.kind = TAMIS_BOUNDS_MEAN_STD, .width = INFINITY}, "width inf"},
               {{.kind = TAMIS_BOUNDS_MINMAX, .width = -1}, "width -1"}};
    uint64_t tokens[LONGEST];
    test_world w;
    tamis_cache *cache = NULL;
    tamis_sequence id = open_filled(&w, kinds[1], tokens, TOKENS);
    tms_device *dev = w.context->dev;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tamis_cache_params shape = test_shape();
        tms_bounds p = tms_cache_bounds(w.cache, 0);
        shape.bounds = bad[i].bounds;
        FAILS(tamis_cache_create(w.context, &shape, &cache, &test_error), TAMIS_E_ARGUMENT,
              bad[i].part);
        FAILS(tamis_cache_set_bounds(w.cache, &bad[i].bounds, &test_error), TAMIS_E_ARGUMENT,
              bad[i].part);
        p.kind = (tamis_bounds_kind)bad[i].bounds.kind;
        p.width = bad[i].bounds.width;
        if (p.kind == TAMIS_BOUNDS_MINMAX) continue; /* has no width */
        FAILS(tms_run_bounds(dev, &p, &test_error), i < 2 ? TAMIS_E_UNSUPPORTED : TAMIS_E_ARGUMENT,
              bad[i].part);
    }
    FAILS(tamis_cache_set_bounds(NULL, &kinds[0], &test_error), TAMIS_E_ARGUMENT, "cache");
    FAILS(tamis_cache_set_bounds(w.cache, NULL, &test_error), TAMIS_E_ARGUMENT, "bounds");
    tamis_step step = {.sequences = &id, .count = 1};
    OK(tamis_plan_step_begin(w.plan, &step, &test_error));
    FAILS(tamis_cache_set_bounds(w.cache, &kinds[0], &test_error), TAMIS_E_STATE, "step");
    OK(tamis_plan_step_cancel(w.plan, &test_error));
    expect_kind(&w, &kinds[1]);
    tamis_cache_get_bounds(NULL, NULL);
    test_close(&w);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds_are_known_by_name),
        cmocka_unit_test(odd_places_of_scales_are_refused),
        cmocka_unit_test(bad_kinds_and_widths_are_refused),
        cmocka_unit_test(changed_bounds_are_those_of_the_kind),
        cmocka_unit_test(filled_pages_get_bounds_of_the_kind),
        cmocka_unit_test(a_change_computes_each_full_page_once),
        cmocka_unit_test(a_change_takes_several_launches),
        cmocka_unit_test(a_failed_change_stops_steps_until_one_succeeds),
    };
    int skip = test_begin(argc, argv);
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
