/* SPDX-License-Identifier: Apache-2.0 */
/* The page-read limit: that its loops read every page whole and once, in each order; what the call
 * answers, what it refuses, and that it changes nothing. */
#include "lib/cache/cache.h"
#include "tests/api/fixture.h"
#include "tests/faulty.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- The loops ------------------------------------------------------------------------------- */

#define POOL_PAGES 64u

typedef struct page_shape {
    tamis_dtype dtype;
    uint32_t page_size, head_dim;
} page_shape;

/* Pages in memory of random words, and lanes that list them. */
typedef struct pages {
    tms_device *dev;
    tms_page_read p;
    uint64_t page_words;
    uint32_t *words; /* of all pages */
    int32_t *tables; /* the counts, then the lists */
    tms_mem *data, *work;
} pages;

static void make_pool(pages *t, const page_shape *shape) {
    const uint64_t keys = tms_keys_size(shape->dtype, shape->page_size, shape->head_dim);
    const uint64_t values = tms_values_size(shape->dtype, shape->page_size, shape->head_dim);
    t->page_words = (keys + values) * tms_kv_unit(shape->dtype) / 4;
    t->p.kv = (tms_kv){.dtype = shape->dtype,
                       .page_size = shape->page_size,
                       .head_dim = shape->head_dim,
                       .page_stride = keys + values,
                       .slot_stride = shape->head_dim,
                       .value_offset = keys};
    const uint64_t n = t->page_words * POOL_PAGES;
    uint64_t random = 5;
    t->words = malloc(n * sizeof *t->words);
    assert_non_null(t->words);
    for (uint64_t i = 0; i < n; i++)
        t->words[i] = (uint32_t)test_random(&random);
    OK(tms_device_alloc(t->dev, n * 4, &t->data, &test_error));
    OK(tms_device_write(t->dev, (tms_ref){t->data, 0}, t->words, n * 4, &test_error));
    t->p.kv.data = (tms_ref){t->data, 0};
}

/* Lists of pages in no order; what is behind a lane's count would be an access out of bounds. */
static void make_lanes(pages *t, const int32_t *counts, uint32_t n_lanes) {
    uint64_t random = 6;
    t->p.n_lanes = n_lanes;
    for (uint32_t lane = 0; lane < n_lanes; lane++)
        if ((uint32_t)counts[lane] > t->p.max_pages) t->p.max_pages = (uint32_t)counts[lane];
    t->p.capacity = t->p.max_pages + 3;
    const uint64_t entries = (uint64_t)n_lanes * t->p.capacity, n = n_lanes + entries;
    t->tables = malloc(n * sizeof *t->tables);
    assert_non_null(t->tables);
    memcpy(t->tables, counts, n_lanes * sizeof *counts);
    for (uint64_t i = 0; i < entries; i++)
        t->tables[n_lanes + i] = (int32_t)(i % t->p.capacity) < counts[i / t->p.capacity]
                                     ? (int32_t)test_below(&random, POOL_PAGES)
                                     : INT32_MAX;
    OK(tms_device_alloc(t->dev, 64 + n * 4, &t->work, &test_error));
    OK(tms_device_write(t->dev, (tms_ref){t->work, 64}, t->tables, n * 4, &test_error));
    t->p.sink = (tms_ref){t->work, 0};
    t->p.count = (tms_ref){t->work, 64};
    t->p.table = (tms_ref){t->work, 64 + n_lanes * 4ull};
}

static void free_pages(pages *t) {
    tms_device_free(t->dev, t->data);
    tms_device_free(t->dev, t->work);
    free(t->words);
    free(t->tables);
}

static uint32_t wanted_sum(const pages *t) {
    uint32_t sum = 0;
    for (uint32_t lane = 0; lane < t->p.n_lanes; lane++)
        for (int32_t i = 0; i < t->tables[lane]; i++) {
            const uint64_t id =
                (uint64_t)t->tables[t->p.n_lanes + (uint64_t)lane * t->p.capacity + i];
            for (uint64_t w = 0; w < t->page_words; w++)
                sum += t->words[t->page_words * id + w];
        }
    return sum;
}

/* The words come on top of what the sink held. */
static void expect_sum(pages *t, tms_page_reading reading, uint32_t ahead) {
    const uint32_t before = 7;
    uint32_t got = 0;
    t->p.reading = reading;
    t->p.ahead = ahead;
    OK(tms_device_write(t->dev, t->p.sink, &before, sizeof before, &test_error));
    OK(tms_device_read_pages(t->dev, &t->p, &test_error));
    OK(tms_device_read(t->dev, t->p.sink, &got, sizeof got, &test_error));
    if (got != before + wanted_sum(t))
        fail_msg("%s, pages of %u, head dim %u, reading %d, ahead %u: not every word once",
                 tamis_dtype_name(t->p.kv.dtype), t->p.kv.page_size, t->p.kv.head_dim, (int)reading,
                 ahead);
}

static void expect_sums(tms_device *dev, const page_shape *shape, const int32_t *counts,
                        uint32_t n_lanes) {
    pages t = {.dev = dev};
    make_pool(&t, shape);
    make_lanes(&t, counts, n_lanes);
    expect_sum(&t, TMS_READ_PAGES, 0);
    for (int reading = 0; reading <= TMS_READ_ROWS_16 && tms_device_orders_pages(dev); reading++)
        for (uint32_t ahead = 0; ahead <= 2; ahead++)
            expect_sum(&t, (tms_page_reading)reading, ahead);
    free_pages(&t);
}

static void every_order_reads_every_page_once(void **state) {
    (void)state;
    static const page_shape shapes[] = {{TAMIS_F16, 16, 128},
                                        {TAMIS_F32, 8, 64},
                                        {TAMIS_BF16, 16, 80},
                                        {TAMIS_Q8, 8, 80},
                                        {TAMIS_K8V4, 16, 80},
                                        {TAMIS_Q4, 8, 80}};
    /* Tails of every order; lanes that the launch divides among cores; splits. */
    static const int32_t many[] = {0, 1, 3, 4, 5, 8, 15, 16, 17, 31, 40, 2, 0, 16, 33, 7},
                         few[] = {83}, longer[] = {600, 513};
    const tamis_context_params params = {.device = test_device};
    tamis_context *context = NULL;
    OK(tamis_context_create(&params, &context, &test_error));
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        expect_sums(context->dev, &shapes[i], many, sizeof many / sizeof *many);
        expect_sums(context->dev, &shapes[i], few, 1);
    }
    expect_sums(context->dev, &shapes[1], longer, 2);
    context->dev->form = TMS_FORM_BASE; /* on a CPU, that of GPUs */
    expect_sums(context->dev, &shapes[0], many, sizeof many / sizeof *many);
    expect_sums(context->dev, &shapes[3], many, sizeof many / sizeof *many);
    tamis_context_destroy(&context);
}

/* ---- The call -------------------------------------------------------------------------------- */

#define LONG  101u
#define SHORT 37u

static uint64_t tokens[LONG];

/* A world with two sequences. */
static void open_filled(test_world *w, tamis_sequence ids[2]) {
    const tamis_plan_params plan = {.max_rows = LONG, .max_context = 128};
    const tamis_cache_params shape = test_shape();
    test_open(w, &shape, &plan);
    for (uint32_t i = 0; i < LONG; i++)
        tokens[i] = i + 1;
    for (uint32_t i = 0; i < 2; i++) {
        OK(tamis_cache_add(w->cache, &ids[i], &test_error));
        OK(test_append(w, ids[i], tokens, i ? SHORT : LONG));
    }
}

static void expect_unchanged(test_world *w, const tamis_sequence ids[2],
                             const tamis_cache_stats *before) {
    uint64_t held, shared;
    test_unchanged(w, before);
    test_account(w->cache, &held, &shared);
    for (uint32_t lane = 0; lane < 4; lane++) {
        test_expect(w, ids[0], lane / 2, lane % 2, 0, tokens, LONG);
        test_expect(w, ids[1], lane / 2, lane % 2, 0, tokens, SHORT);
    }
}

static void expect_limit(const tamis_read_limit *limit, uint64_t bytes, bool ordered) {
    assert_int_equal(limit->bytes, bytes);
    assert_int_equal(limit->n_orders, ordered ? 15 : 1);
    assert_string_equal(limit->orders[0].name, "pages");
    assert_true(limit->best < limit->n_orders);
    assert_true(limit->gb_per_s == limit->orders[limit->best].gb_per_s);
    for (uint32_t i = 0; i < limit->n_orders; i++) {
        const double rate = limit->orders[i].gb_per_s;
        assert_true(rate > 0 && isfinite(rate) && rate <= limit->gb_per_s);
        for (uint32_t j = 0; j < i; j++)
            assert_string_not_equal(limit->orders[i].name, limit->orders[j].name);
    }
}

static void the_limit_of_filled_pages(void **state) {
    (void)state;
    test_world w;
    tamis_sequence ids[2];
    tamis_read_limit limit;
    open_filled(&w, ids);
    const tamis_cache_stats before = test_stats(&w);
    const bool ordered = tms_device_orders_pages(w.context->dev);
    const uint64_t page_bytes = 2 * 8 * 64 * sizeof(float); /* 13 and 5 pages of 4 lanes */
    OK(tamis_cache_read_limit(w.cache, ids, 2, 0, &limit, &test_error));
    expect_limit(&limit, 4 * (13 + 5) * page_bytes, ordered);
    OK(tamis_cache_read_limit(w.cache, &ids[1], 1, 1, &limit, &test_error));
    expect_limit(&limit, 4 * 5 * page_bytes, ordered);
    expect_unchanged(&w, ids, &before);
    OK(test_append(&w, ids[1], tokens, 1));
    test_close(&w);
}

/* Of any dtype: the pages are taken by hand, for not every device writes each of them. */
static void the_limit_of_any_dtype(void **state) {
    (void)state;
    static const tamis_dtype dtypes[] = {TAMIS_F16, TAMIS_BF16, TAMIS_Q8, TAMIS_K8V4,
                                         TAMIS_Q4};
    const tamis_context_params params = {.device = test_device};
    tamis_context *context = NULL;
    OK(tamis_context_create(&params, &context, &test_error));
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        tamis_cache_params shape = test_shape();
        tamis_cache *cache = NULL;
        tamis_sequence id;
        tamis_read_limit limit;
        uint32_t copied[8];
        shape.dtype = dtypes[i];
        OK(tamis_cache_create(context, &shape, &cache, &test_error));
        OK(tamis_cache_add(cache, &id, &test_error));
        const tms_growth growth = {
            .sequence = tms_cache_find(cache, id), .rows = 50, .cap = UINT32_MAX};
        const tms_copies copies = {.pairs = NULL, .count = copied};
        OK(tms_cache_reserve(cache, &growth, 1, &copies, &test_error));
        tms_cache_commit(cache, &growth, 1);
        OK(tamis_cache_read_limit(cache, &id, 1, 1, &limit, &test_error));
        expect_limit(&limit, 4 * 7 * cache->size.page_bytes, tms_device_orders_pages(context->dev));
        tamis_cache_destroy(&cache);
    }
    tamis_context_destroy(&context);
}

static void what_has_no_limit_is_refused(void **state) {
    (void)state;
    test_world w;
    tamis_sequence ids[3];
    tamis_read_limit limit = {.bytes = 9};
    open_filled(&w, ids);
    OK(tamis_cache_add(w.cache, &ids[2], &test_error));
    FAILS(tamis_cache_read_limit(NULL, ids, 1, 0, &limit, &test_error), TAMIS_E_ARGUMENT, "cache");
    FAILS(tamis_cache_read_limit(w.cache, ids, 1, 0, NULL, &test_error), TAMIS_E_ARGUMENT, "out");
    FAILS(tamis_cache_read_limit(w.cache, NULL, 1, 0, &limit, &test_error), TAMIS_E_ARGUMENT,
          "sequences is NULL");
    FAILS(tamis_cache_read_limit(w.cache, ids, 0, 0, &limit, &test_error), TAMIS_E_ARGUMENT,
          "count is 0");
    FAILS(tamis_cache_read_limit(w.cache, ids, 4, 0, &limit, &test_error), TAMIS_E_ARGUMENT,
          "count is 4: the cache has 3");
    FAILS(tamis_cache_read_limit(w.cache, ids, 1, 1001, &limit, &test_error), TAMIS_E_ARGUMENT,
          "passes is 1001");
    FAILS(tamis_cache_read_limit(w.cache, ids, 3, 0, &limit, &test_error), TAMIS_E_ARGUMENT,
          "is empty");
    OK(tamis_cache_remove(w.cache, ids[1], &test_error));
    FAILS(tamis_cache_read_limit(w.cache, ids, 2, 0, &limit, &test_error), TAMIS_E_ARGUMENT,
          "no sequence");
    const tamis_step step = {.sequences = ids, .count = 1, .exact = 1};
    OK(tamis_plan_step_begin(w.plan, &step, &test_error));
    FAILS(tamis_cache_read_limit(w.cache, ids, 1, 0, &limit, &test_error), TAMIS_E_STATE,
          "open step");
    OK(tamis_plan_step_cancel(w.plan, &test_error));
    assert_int_equal(limit.bytes, 9);
    OK(tamis_cache_read_limit(w.cache, ids, 1, 1, &limit, NULL));
    test_close(&w);
}

/* Each call of the device fails once. */
static void a_failing_device_leaves_all_as_it_was(void **state) {
    (void)state;
    test_world w;
    tamis_sequence ids[2];
    tamis_read_limit limit = {.bytes = 9};
    open_filled(&w, ids);
    tms_device *dev = w.context->dev;
    const tamis_cache_stats before = test_stats(&w);
    faulty_begin(dev, -1, FAULTY_BEFORE);
    OK(tamis_cache_read_limit(w.cache, ids, 2, 1, &(tamis_read_limit){0}, &test_error));
    faulty_pause(dev);
    const int calls = faulty_calls();
    assert_true(faulty_worked(FAULTY_read_pages) >= 3); /* without lanes, and two layers */
    for (int n = 0; n < calls; n++) {
        faulty_begin(dev, n, FAULTY_BEFORE);
        FAILS(tamis_cache_read_limit(w.cache, ids, 2, 1, &limit, &test_error), FAULTY_STATUS,
              FAULTY_TEXT);
        faulty_pause(dev);
        assert_int_equal(limit.bytes, 9);
    }
    expect_unchanged(&w, ids, &before);
    OK(tamis_cache_read_limit(w.cache, ids, 2, 1, &limit, &test_error));
    test_close(&w);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_order_reads_every_page_once),
        cmocka_unit_test(the_limit_of_filled_pages),
        cmocka_unit_test(the_limit_of_any_dtype),
        cmocka_unit_test(what_has_no_limit_is_refused),
        cmocka_unit_test(a_failing_device_leaves_all_as_it_was),
    };
    const int skip = test_begin(argc, argv);
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
