/* SPDX-License-Identifier: Apache-2.0 */
/* What the API and policy tests share. */
#include "tests/api/fixture.h"
#include "lib/cache/cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tamis_error test_error;
const char *test_device = "reference";
uint32_t test_builds;
tamis_log_fn test_log;

const char *test_text(const char *format, ...) {
    static char text[508];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return text;
}

void test_ok(tamis_status status, const char *call, const char *file, int line) {
    if (status == TAMIS_OK) return;
    print_error("%s: %s \"%s\"\n", call, tamis_status_name(status), test_error.text);
    _fail(file, line);
}

void test_fails(tamis_status status, tamis_status wanted, const char *part, const char *call,
                const char *file, int line) {
    bool right = status == wanted && strstr(test_error.text, part) && test_error.status == wanted;
    if (right) return;
    print_error("%s: %s \"%s\", wanted %s \"%s\"\n", call, tamis_status_name(status),
                test_error.text, tamis_status_name(wanted), part);
    _fail(file, line);
}

int test_begin(int argc, char **argv) {
    if (argc > 1) test_device = argv[1];
    setenv("TAMIS_SETTINGS", "none", 1); /* the user's own file is not tested */
    tamis_context *context = NULL;
    tamis_error error = {0};
    tamis_context_params params = {.device = test_device};
    tamis_status status = tamis_context_create(&params, &context, &error);
    if (status != TAMIS_OK) printf("%s: %s\n", test_device, error.text);
    tamis_context_destroy(&context);
    if (status == TAMIS_E_NO_DEVICE) return 77;
    return status == TAMIS_OK ? 0 : 1;
}

/* splitmix64 */
uint64_t test_random(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint32_t test_below(uint64_t *state, uint32_t n) {
    return (uint32_t)(test_random(state) >> 32) % n;
}

int test_evictions(void) {
    int n = 0;
    while (strcmp(tamis_eviction_name((tamis_eviction_kind)n), "unknown") != 0)
        n++;
    return n;
}

static bool coarse_keys;

void test_values_for(tamis_dtype cache) {
    coarse_keys = cache == TAMIS_Q4;
}

bool test_hides(const tamis_attention *attention, int64_t position, int64_t own) {
    const int64_t window = attention->sliding_window, chunk = attention->chunk;
    return (window && position <= own - window) || (chunk && position / chunk != own / chunk);
}

float test_value(uint64_t token, uint32_t lane, uint32_t which, uint32_t d) {
    uint64_t state = ((token * 1024 + lane) * 2 + which) * 64 + d / 8;
    int n = (int)(test_random(&state) >> d % 8 * 8 & 255) % 255 - 127;
    if (which == 1 || coarse_keys)
        n = -127 + 16 * (d % 16 == 15 ? 15 : d % 16 == 7 ? 0 : (n + 127) / 16);
    else if (d % 16 == 15)
        n = n < 0 ? -127 : 127;
    uint64_t block = ((token * 1024 + lane) * 2 + which) * 8 + d / 32;
    return (float)n / (float)(64 << test_random(&block) % 3);
}

tamis_cache_params test_shape(void) {
    return (tamis_cache_params){.n_layers = 2,
                                .n_heads = 4,
                                .n_kv_heads = 2,
                                .head_dim = 64,
                                .page_size = 8,
                                .dtype = TAMIS_F32,
                                .capacity_tokens = 256};
}

static void count_builds(void *user, tamis_log_level level, const char *text) {
    if (test_log) test_log(user, level, text);
    test_builds += level == TAMIS_LOG_DEBUG && strncmp(text, "building ", 9) == 0;
}

void test_open(test_world *world, const tamis_cache_params *shape, const tamis_plan_params *plan) {
    *world = (test_world){.shape = *shape, .max_rows = plan->max_rows ? plan->max_rows : 512};
    if (world->shape.page_size == 0) world->shape.page_size = 16;
    test_values_for(shape->dtype);
    tamis_context_params params = {.device = test_device, .log = count_builds};
    OK(tamis_context_create(&params, &world->context, &test_error));
    OK(tamis_cache_create(world->context, shape, &world->cache, &test_error));
    OK(tamis_plan_create(world->cache, plan, &world->plan, &test_error));
    uint64_t row = (uint64_t)shape->head_dim * shape->n_heads;
    tamis_buffer **buffers[] = {&world->k, &world->v, &world->q, &world->out};
    for (size_t i = 0; i < 4; i++)
        OK(tamis_buffer_create(world->context, world->max_rows * row * 4, buffers[i], &test_error));
    world->host = malloc(world->max_rows * row * sizeof *world->host);
    assert_non_null(world->host);
}

void test_close(test_world *world) {
    tamis_buffer **buffers[] = {&world->k, &world->v, &world->q, &world->out};
    for (size_t i = 0; i < 4; i++)
        tamis_buffer_destroy(buffers[i]);
    tamis_plan_destroy(&world->plan);
    tamis_cache_destroy(&world->cache);
    tamis_context_destroy(&world->context);
    free(world->host);
}

static void fill_rows(test_world *world, tamis_buffer *buffer, uint32_t layer, uint32_t which,
                      const uint64_t *tokens, uint32_t n_rows) {
    uint32_t heads = world->shape.n_kv_heads, dim = world->shape.head_dim;
    float *to = world->host;
    for (uint32_t row = 0; row < n_rows; row++)
        for (uint32_t h = 0; h < heads; h++)
            for (uint32_t d = 0; d < dim; d++)
                *to++ = test_value(tokens[row], layer * heads + h, which, d);
    uint64_t bytes = (uint64_t)n_rows * heads * dim * sizeof *to;
    OK(tamis_buffer_write(buffer, 0, world->host, bytes, NULL));
}

void test_fill_kv(test_world *world, uint32_t layer, const uint64_t *tokens, uint32_t n_rows) {
    fill_rows(world, world->k, layer, 0, tokens, n_rows);
    fill_rows(world, world->v, layer, 1, tokens, n_rows);
}

void test_write(test_world *world, uint32_t layer, const uint64_t *tokens, uint32_t n_rows) {
    tamis_rows k = {.buffer = world->k}, v = {.buffer = world->v};
    test_fill_kv(world, layer, tokens, n_rows);
    OK(tamis_plan_write(world->plan, layer, &k, &v, &test_error));
}

/* What the cache holds is no longer `before`, but more by what was told. */
static void check_taken(const test_world *world, const tamis_step_pages *told,
                        const tamis_cache_stats *before, uint64_t copied_before) {
    tamis_plan_counters counters;
    tamis_plan_get_counters(world->plan, &counters);
    assert_int_equal(told->missing, 0);
    assert_int_equal(told->needed, test_stats(world).pages_held - before->pages_held);
    assert_int_equal(told->copied, counters.pages_copied - copied_before);
}

tamis_status test_step_begin(test_world *world, const tamis_step *step) {
    tamis_cache_stats before = test_stats(world);
    tamis_plan_counters counters;
    tamis_step_pages told = {0};
    uint64_t held, shared;
    tamis_plan_get_counters(world->plan, &counters);
    tamis_status asked = tamis_plan_step_pages(world->plan, step, &told, &test_error);
    test_unchanged(world, &before);
    test_account(world->cache, &held, &shared);
    tamis_status status = tamis_plan_step_begin(world->plan, step, &test_error);
    if (asked != TAMIS_OK) {
        assert_int_equal(asked, status);
        return status;
    }
    assert_int_equal(told.free, before.pages_total - before.pages_held);
    assert_int_equal(told.missing > 0, status == TAMIS_E_FULL);
    if (status == TAMIS_OK) check_taken(world, &told, &before, counters.pages_copied);
    return status;
}

tamis_status test_step(test_world *world, const tamis_step *step, const uint64_t *tokens) {
    uint32_t n_rows = 0;
    for (uint32_t i = 0; i < step->count; i++)
        n_rows += step->rows ? step->rows[i] : 1;
    tamis_status status = test_step_begin(world, step);
    if (status != TAMIS_OK) return status;
    for (uint32_t layer = 0; layer < world->shape.n_layers; layer++)
        test_write(world, layer, tokens, n_rows);
    OK(tamis_plan_step_end(world->plan, &test_error));
    return TAMIS_OK;
}

tamis_status test_append(test_world *world, tamis_sequence sequence, const uint64_t *tokens,
                         uint32_t n_rows) {
    tamis_step step = {.sequences = &sequence, .rows = &n_rows, .count = 1, .exact = 1};
    return test_step(world, &step, tokens);
}

tamis_cache_stats test_stats(const test_world *world) {
    tamis_cache_stats stats;
    tamis_cache_get_stats(world->cache, &stats);
    return stats;
}

void test_unchanged(const test_world *world, const tamis_cache_stats *before) {
    tamis_cache_stats now = test_stats(world);
    assert_int_equal(now.sequences, before->sequences);
    assert_int_equal(now.pages_total, before->pages_total);
    assert_int_equal(now.pages_held, before->pages_held);
    assert_int_equal(now.pages_shared, before->pages_shared);
    assert_int_equal(now.bytes_reserved, before->bytes_reserved);
    assert_int_equal(now.bytes_held, before->bytes_held);
}

/* How often lanes list each page of a pool. */
static void count_pages(const tamis_cache *cache, const tms_pool *pool, const tms_sequence *s,
                        uint32_t *refs) {
    const uint32_t heads = cache->params.n_kv_heads, size = cache->params.page_size,
                   first = pool->first_layer * heads, end = first + pool->n_layers * heads;
    for (uint32_t lane = first; lane < end; lane++) {
        const uint32_t n = (s->lanes[lane].length + size - 1) / size;
        assert_true(n <= s->list_pages);
        for (uint32_t o = s->lanes[lane].gone; o < n; o++) {
            const int32_t page = tms_lane_pages(s, lane)[o];
            assert_true(page >= 0 && (uint32_t)page < pool->pages.n);
            refs[page]++;
        }
    }
}

static uint32_t *count_holders(const tamis_cache *cache, const tms_pool *pool) {
    uint32_t *refs = calloc(pool->pages.n, sizeof *refs);
    assert_non_null(refs);
    for (uint32_t i = 0; i < cache->sequence_capacity; i++) {
        const tms_sequence *s = cache->sequences[i];
        const tms_tree *tree = s ? tms_tree_of(s) : NULL;
        if (s) count_pages(cache, pool, s, refs);
        for (uint32_t b = 1; tree && b < tree->n_branches; b++)
            count_pages(cache, pool, tree->branches[b], refs);
        if (s && tms_journal_of(s)) count_pages(cache, pool, s->journal, refs);
    }
    return refs;
}

static uint32_t check_blocks(const tms_pages *pages) {
    uint32_t n_whole = 0;
    for (uint32_t block = 0; block * TMS_BLOCK_PAGES < pages->n; block++) {
        uint32_t left = pages->n - block * TMS_BLOCK_PAGES;
        uint32_t all = left < 32 ? (1u << left) - 1 : UINT32_MAX;
        bool whole = pages->whole[block / 32] >> block % 32 & 1;
        assert_int_equal(whole, pages->free[block] == all);
        assert_int_equal(pages->some[block / 32] >> block % 32 & 1, pages->free[block] != 0);
        n_whole += whole;
    }
    return n_whole;
}

void test_account(const tamis_cache *cache, uint64_t *held, uint64_t *shared) {
    *held = *shared = 0;
    for (uint32_t p = 0; p < cache->size.pools; p++) {
        const tms_pages *pages = &cache->pools[p].pages;
        uint32_t *refs = count_holders(cache, &cache->pools[p]), n_free = 0, n_shared = 0;
        for (uint32_t page = 0; page < pages->n; page++) {
            bool is_free = pages->free[page / TMS_BLOCK_PAGES] >> page % TMS_BLOCK_PAGES & 1;
            assert_int_equal(refs[page], pages->refs[page]);
            assert_int_equal(is_free, refs[page] == 0);
            n_free += refs[page] == 0;
            n_shared += refs[page] > 1;
        }
        free(refs);
        assert_int_equal(n_free, pages->n_free);
        assert_int_equal(n_shared, pages->n_shared);
        assert_int_equal(check_blocks(pages), pages->n_whole);
        *held += pages->n - n_free;
        *shared += n_shared;
    }
}

void test_expect(test_world *world, tamis_sequence sequence, uint32_t layer, uint32_t kv_head,
                 uint32_t first, const uint64_t *tokens, uint32_t count) {
    uint32_t dim = world->shape.head_dim, lane = layer * world->shape.n_kv_heads + kv_head;
    float *k = malloc(2 * (size_t)(count + 1) * dim * sizeof *k), *v = k + (size_t)count * dim;
    assert_non_null(k);
    OK(tamis_cache_read(world->cache, sequence, layer, kv_head, first, count, k, v, &test_error));
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t d = 0; d < dim; d++) {
            float wanted_k = test_value(tokens[i], lane, 0, d);
            float wanted_v = test_value(tokens[i], lane, 1, d);
            if (k[i * dim + d] != wanted_k || v[i * dim + d] != wanted_v)
                fail_msg("layer %u, KV head %u, slot %u, channel %u: K %g V %g, wanted %g %g",
                         layer, kv_head, first + i, d, (double)k[i * dim + d],
                         (double)v[i * dim + d], (double)wanted_k, (double)wanted_v);
        }
    free(k);
}
