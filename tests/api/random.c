/* SPDX-License-Identifier: Apache-2.0 */
/* 100,000 random operations on a cache of two pools, beside a plain model of it: a list of token
 * numbers a sequence. Rows, bounds, page lists and statistics are compared as it goes. */
#include "host/backend.h"
#include "lib/cache/cache.h"
#include "tests/api/fixture.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPERATIONS  100000u
#define MAX_LIVE    8u
#define MAX_CONTEXT 96u
#define MAX_STEP    3u
#define MAX_ROWS    24u

typedef struct model_sequence {
    tamis_sequence id; /* 0: none */
    uint32_t length;
    uint64_t tokens[MAX_CONTEXT];
} model_sequence;

typedef struct model {
    test_world world;
    model_sequence sequences[MAX_LIVE];
    uint64_t random, next_token, full, steps, checked;
} model;

static model_sequence *any_live(model *m) {
    for (uint32_t tries = 0; tries < 4 * MAX_LIVE; tries++) {
        model_sequence *s = &m->sequences[test_below(&m->random, MAX_LIVE)];
        if (s->id) return s;
    }
    return NULL;
}

static model_sequence *any_dead(model *m) {
    for (uint32_t i = 0; i < MAX_LIVE; i++)
        if (!m->sequences[i].id) return &m->sequences[i];
    return NULL;
}

static void add(model *m) {
    model_sequence *s = any_dead(m);
    if (!s) return;
    s->length = 0;
    OK(tamis_cache_add(m->world.cache, &s->id, &test_error));
}

static void fork_one(model *m) {
    model_sequence *from = any_live(m), *to = any_dead(m);
    if (!from || !to) return;
    *to = *from;
    OK(tamis_cache_fork(m->world.cache, from->id, &to->id, &test_error));
}

static void truncate_one(model *m) {
    model_sequence *s = any_live(m);
    if (!s) return;
    s->length = test_below(&m->random, s->length + 1);
    OK(tamis_cache_truncate(m->world.cache, s->id, s->length, &test_error));
}

static void remove_one(model *m) {
    model_sequence *s = any_live(m);
    if (!s) return;
    OK(tamis_cache_remove(m->world.cache, s->id, &test_error));
    s->id = 0;
}

/* A step was refused: counted from the model alone, it needs more pages of a pool than are free.
 * All lanes of a sequence are alike, and a pool is one layer of them. */
static void check_was_full(const model *m, model_sequence *const *chosen, const uint32_t *rows,
                           uint32_t n) {
    const tamis_cache *cache = m->world.cache;
    uint64_t needed[2] = {0, 0}, short_of = 0;
    for (uint32_t lane = 0; lane < cache->n_lanes; lane++) {
        const tms_pages *pages = &cache->pools[lane / 2].pages;
        int32_t last[MAX_STEP];
        for (uint32_t i = 0; i < n; i++) {
            uint32_t length = chosen[i]->length, before = 0;
            needed[lane / 2] += (length + rows[i] + 7) / 8 - (length + 7) / 8;
            last[i] = -1;
            if (length % 8 == 0) continue;
            last[i] = tms_lane_pages(tms_cache_find(cache, chosen[i]->id), lane)[length / 8];
            for (uint32_t j = 0; j < i; j++)
                before += last[j] == last[i];
            needed[lane / 2] += pages->refs[last[i]] - before > 1;
        }
    }
    for (uint32_t p = 0; p < 2; p++)
        short_of += needed[p] > cache->pools[p].pages.n_free;
    assert_true(short_of > 0);
}

/* A step of one to three sequences; now and then it is cancelled. */
static void write_some(model *m) {
    model_sequence *chosen[MAX_STEP];
    tamis_sequence ids[MAX_STEP];
    uint32_t rows[MAX_STEP], n = 0, n_rows = 0;
    uint64_t tokens[MAX_STEP * MAX_ROWS];
    uint32_t wanted = 1 + test_below(&m->random, MAX_STEP);
    for (uint32_t i = 0; i < wanted; i++) {
        model_sequence *s = any_live(m);
        bool usable = s && s->length < MAX_CONTEXT && n_rows < MAX_ROWS;
        for (uint32_t j = 0; j < n; j++)
            usable = usable && chosen[j] != s;
        if (!usable) continue;
        uint32_t most = MAX_CONTEXT - s->length, left = MAX_ROWS - n_rows;
        rows[n] = 1 + test_below(&m->random, most < left ? most : left);
        if (test_below(&m->random, 2)) rows[n] = 1;
        for (uint32_t j = 0; j < rows[n]; j++)
            tokens[n_rows++] = m->next_token++;
        ids[n] = s->id;
        chosen[n++] = s;
    }
    if (n == 0) return;
    tamis_step step = {.sequences = ids, .rows = rows, .count = n};
    tamis_cache_stats before = test_stats(&m->world);
    if (test_below(&m->random, 16) == 0) {
        if (test_step_begin(&m->world, &step) == TAMIS_OK)
            OK(tamis_plan_step_cancel(m->world.plan, &test_error));
        return;
    }
    tamis_status status = test_step(&m->world, &step, tokens);
    if (status == TAMIS_E_FULL) {
        test_unchanged(&m->world, &before);
        check_was_full(m, chosen, rows, n);
        m->full++;
        return;
    }
    assert_int_equal(status, TAMIS_OK);
    m->steps++;
    for (uint32_t i = 0, at = 0; i < n; at += rows[i++]) {
        memcpy(chosen[i]->tokens + chosen[i]->length, tokens + at, rows[i] * sizeof *tokens);
        chosen[i]->length += rows[i];
    }
}

static void check_rows(model *m) {
    model_sequence *s = any_live(m);
    if (!s) return;
    uint32_t first = test_below(&m->random, s->length + 1);
    test_expect(&m->world, s->id, test_below(&m->random, m->world.shape.n_layers),
                test_below(&m->random, m->world.shape.n_kv_heads), first, s->tokens + first,
                s->length - first);
    m->checked++;
}

/* The bounds of a random full page are those of its tokens. */
static void check_bounds(model *m) {
    model_sequence *s = any_live(m);
    uint32_t page_size = m->world.shape.page_size, dim = m->world.shape.head_dim;
    if (!s || s->length < page_size) return;
    tamis_cache *cache = m->world.cache;
    tms_device *dev = cache->context->dev;
    uint32_t ordinal = test_below(&m->random, s->length / page_size);
    uint32_t lane = test_below(&m->random, cache->n_lanes);
    uint32_t layer = lane / m->world.shape.n_kv_heads;
    int32_t page = tms_lane_pages(tms_cache_find(cache, s->id), lane)[ordinal];
    tms_ref ref = tms_cache_kv(cache, layer).bounds;
    float bounds[2 * 64];
    ref.offset += (uint64_t)page * sizeof bounds;
    OK(dev->backend->read(dev, ref, bounds, sizeof bounds));
    for (uint32_t d = 0; d < dim; d++) {
        float lo = 2, hi = -2;
        for (uint32_t i = 0; i < page_size; i++) {
            float k = test_value(s->tokens[ordinal * page_size + i], lane, 0, d);
            lo = k < lo ? k : lo;
            hi = k > hi ? k : hi;
        }
        assert_true(bounds[d] == lo && bounds[dim + d] == hi);
    }
}

static void check_statistics(const model *m) {
    const tamis_cache *cache = m->world.cache;
    tamis_cache_stats stats;
    tamis_cache_get_stats(cache, &stats);
    uint64_t held = 0, shared = 0, live = 0;
    test_account(cache, &held, &shared);
    for (uint32_t i = 0; i < MAX_LIVE; i++) {
        const model_sequence *s = &m->sequences[i];
        tamis_sequence_stats one;
        if (!s->id) continue;
        live++;
        OK(tamis_cache_get_sequence_stats(cache, s->id, &one, NULL));
        assert_int_equal(test_length(cache, s->id), s->length);
        assert_int_equal(one.slots, (uint64_t)s->length * cache->n_lanes);
        assert_int_equal(one.pages, (s->length + 7) / 8 * cache->n_lanes);
    }
    assert_int_equal(stats.sequences, live);
    assert_int_equal(stats.pages_held, held);
    assert_int_equal(stats.pages_shared, shared);
    assert_int_equal(stats.bytes_held, held * (2 * 8 * 64 + 2 * 64) * 4);
}

static void run(model *m) {
    for (uint32_t i = 0; i < OPERATIONS; i++) {
        uint32_t kind = test_below(&m->random, 100);
        if (kind < 8)
            add(m);
        else if (kind < 18)
            fork_one(m);
        else if (kind < 36)
            truncate_one(m);
        else if (kind < 44)
            remove_one(m);
        else
            write_some(m);
        if (i % 4 == 0) check_rows(m);
        if (i % 16 == 0) check_bounds(m);
        if (i % 64 == 0) check_statistics(m);
    }
}

static void random_operations_match_a_plain_model(void **state) {
    (void)state;
    static model m;
    m = (model){.random = 20, .next_token = 1};
    tamis_cache_params shape = test_shape();
    tamis_plan_params plan = {
        .max_sequences = MAX_STEP, .max_rows = MAX_ROWS, .max_context = MAX_CONTEXT};
    shape.n_heads = 2;
    shape.capacity_tokens = 300; /* less than the sequences may come to, so that it runs out */
    test_open(&m.world, &shape, &plan);
    /* The device is told to allocate one layer at most, so that there are two pools. */
    tamis_plan_destroy(&m.world.plan);
    tamis_cache_destroy(&m.world.cache);
    m.world.context->dev->info.max_buffer_bytes = 600000;
    OK(tamis_cache_create(m.world.context, &shape, &m.world.cache, &test_error));
    OK(tamis_plan_create(m.world.cache, &plan, &m.world.plan, &test_error));
    assert_int_equal(m.world.cache->size.pools, 2);
    run(&m);
    print_message("%" PRIu64 " steps, %" PRIu64 " refused as full, %" PRIu64 " reads checked\n",
                  m.steps, m.full, m.checked);
    assert_true(m.steps > OPERATIONS / 4 && m.full > 100 && m.checked > 20000);
    for (uint32_t i = 0; i < MAX_LIVE; i++)
        if (m.sequences[i].id)
            OK(tamis_cache_remove(m.world.cache, m.sequences[i].id, &test_error));
    memset(m.sequences, 0, sizeof m.sequences);
    check_statistics(&m);
    test_close(&m.world);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_operations_match_a_plain_model)};
    int skip = test_begin(argc, argv);
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
