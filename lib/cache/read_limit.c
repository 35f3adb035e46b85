/* SPDX-License-Identifier: Apache-2.0 */
/* The page-read limit: how fast the pages of sequences can be read, in the best of several
 * orders. */
#include "lib/cache/cache.h"

#include <inttypes.h>
#include <stdlib.h>

#define PASSES      5u
#define PASSES_MOST 1000u
#define SINK_WORDS  16u /* one is needed */

/* The first one is what every device knows. */
static const struct {
    const char *name;
    tms_page_reading reading;
    uint32_t ahead;
} orders[] = {
    {"pages", TMS_READ_PAGES, 0},         {"pages-near", TMS_READ_PAGES, 1},
    {"pages-far", TMS_READ_PAGES, 2},     {"fours", TMS_READ_FOURS, 0},
    {"fours-near", TMS_READ_FOURS, 1},    {"fours-far", TMS_READ_FOURS, 2},
    {"rows-4", TMS_READ_ROWS_4, 0},       {"rows-4-near", TMS_READ_ROWS_4, 1},
    {"rows-4-far", TMS_READ_ROWS_4, 2},   {"rows-8", TMS_READ_ROWS_8, 0},
    {"rows-8-near", TMS_READ_ROWS_8, 1},  {"rows-8-far", TMS_READ_ROWS_8, 2},
    {"rows-16", TMS_READ_ROWS_16, 0},     {"rows-16-near", TMS_READ_ROWS_16, 1},
    {"rows-16-far", TMS_READ_ROWS_16, 2},
};
enum { ORDERS = sizeof orders / sizeof *orders };
_Static_assert(ORDERS <= TAMIS_READ_ORDERS, "room for every order");

/* The lanes that are read, a launch for each layer. On the device: a word for the launches' sums,
 * then for each layer the counts of its lanes' pages, then for each layer their lists. */
typedef struct reading {
    tms_page_read launch; /* of any layer */
    uint32_t n_layers;
    uint64_t pages; /* of all lanes */
    tms_mem *work;
    int32_t *tables; /* what is written there */
} reading;

static uint64_t words_before_lists(const reading *r) {
    return SINK_WORDS + (uint64_t)r->n_layers * r->launch.n_lanes;
}

static uint64_t words_of(const reading *r) {
    return words_before_lists(r) + (uint64_t)r->n_layers * r->launch.n_lanes * r->launch.capacity;
}

static uint32_t pages_of_lane(const tamis_cache *cache, const tms_sequence *s, uint32_t lane) {
    return tms_pages_of(cache, s->lanes[lane].length) - s->lanes[lane].gone;
}

/* Counts the pages of a sequence, and finds its longest lane. */
static tamis_status add_sequence(const tamis_cache *cache, tamis_sequence id, reading *r,
                                 tamis_error *error) {
    tms_sequence *s = NULL;
    uint64_t before = r->pages;
    TMS_TRY(tms_cache_find_idle(cache, id, &s, error));
    for (uint32_t lane = 0; lane < cache->n_lanes; lane++) {
        uint32_t pages = pages_of_lane(cache, s, lane);
        r->pages += pages;
        if (pages > r->launch.max_pages) r->launch.max_pages = pages;
    }
    TMS_REQUIRE(r->pages > before, TAMIS_E_ARGUMENT, "sequence %" PRIu64 " is empty", id);
    return TAMIS_OK;
}

/* The lanes of a layer are those of the first sequence, then those of the next one. */
static void fill_tables(const tamis_cache *cache, const tamis_sequence *sequences, reading *r) {
    const uint32_t heads = cache->params.n_kv_heads;
    int32_t *counts = r->tables + SINK_WORDS, *lists = r->tables + words_before_lists(r);
    for (uint32_t layer = 0; layer < r->n_layers; layer++)
        for (uint32_t i = 0; i < r->launch.n_lanes; i++, lists += r->launch.capacity) {
            const tms_sequence *s = tms_cache_find(cache, sequences[i / heads]);
            const uint32_t lane = layer * heads + i % heads, n = pages_of_lane(cache, s, lane);
            const int32_t *pages = tms_lane_pages(s, lane) + s->lanes[lane].gone;
            *counts++ = (int32_t)n;
            for (uint32_t j = 0; j < n; j++)
                lists[j] = pages[j];
        }
}

static tamis_status begin(const tamis_cache *cache, const tamis_sequence *sequences, uint32_t count,
                          reading *r, tamis_error *error) {
    tms_device *dev = cache->context->dev;
    *r = (reading){.launch.n_lanes = count * cache->params.n_kv_heads,
                   .n_layers = cache->params.n_layers};
    for (uint32_t i = 0; i < count; i++)
        TMS_TRY(add_sequence(cache, sequences[i], r, error));
    r->launch.capacity = r->launch.max_pages;
    r->tables = calloc(words_of(r), sizeof *r->tables);
    TMS_REQUIRE(r->tables, TAMIS_E_NO_MEMORY, "no host memory for %" PRIu64 " page ids", r->pages);
    fill_tables(cache, sequences, r);
    TMS_TRY(tms_device_alloc(dev, words_of(r) * sizeof *r->tables, &r->work, error));
    r->launch.sink = (tms_ref){r->work, 0};
    return tms_device_write(dev, r->launch.sink, r->tables, words_of(r) * sizeof *r->tables, error);
}

static void end(const tamis_cache *cache, reading *r) {
    tms_device_free(cache->context->dev, r->work);
    free(r->tables);
}

static tamis_status read_layer(const tamis_cache *cache, const reading *r, uint32_t order,
                               uint32_t layer, tamis_error *error) {
    tms_page_read p = r->launch;
    const uint64_t lanes = (uint64_t)layer * p.n_lanes;
    p.kv = tms_cache_kv(cache, layer);
    p.count = (tms_ref){r->work, (SINK_WORDS + lanes) * sizeof *r->tables};
    p.table = (tms_ref){r->work, (words_before_lists(r) + lanes * p.capacity) * sizeof *r->tables};
    p.reading = orders[order].reading;
    p.ahead = orders[order].ahead;
    return tms_device_read_pages(cache->context->dev, &p, error);
}

static tamis_status time_pass(const tamis_cache *cache, const reading *r, uint32_t order,
                              double *us, tamis_error *error) {
    tms_device *dev = cache->context->dev;
    tms_event *from = NULL, *to = NULL;
    tamis_status status = tms_device_event_record(dev, true, &from, error);
    for (uint32_t layer = 0; layer < r->n_layers && status == TAMIS_OK; layer++)
        status = read_layer(cache, r, order, layer, error);
    if (status == TAMIS_OK) status = tms_device_event_record(dev, true, &to, error);
    if (status == TAMIS_OK) status = tms_device_event_elapsed(dev, from, to, us, error);
    tms_device_event_free(dev, from);
    tms_device_event_free(dev, to);
    return status;
}

/* us: [n_orders][passes]; all orders in turn, pass after pass, so that what else the machine does
 * meets all of them. Launches without lanes come first: they build the kernels. */
static tamis_status time_passes(const tamis_cache *cache, const reading *r, uint32_t n_orders,
                                uint32_t passes, double *us, tamis_error *error) {
    reading none = *r;
    none.launch.n_lanes = 0;
    for (uint32_t i = 0; i < n_orders; i++)
        TMS_TRY(read_layer(cache, &none, i, 0, error));
    for (uint32_t pass = 0; pass < passes; pass++)
        for (uint32_t i = 0; i < n_orders; i++)
            TMS_TRY(time_pass(cache, r, i, &us[i * passes + pass], error));
    return TAMIS_OK;
}

/* A clock that saw no time pass has measured nothing. */
static double rate_of(uint64_t bytes, double us) {
    return us > 0 ? (double)bytes / us * 1e-3 : 0;
}

static void summarise(double *us, uint32_t passes, tamis_read_limit *limit) {
    for (uint32_t i = 0; i < limit->n_orders; i++, us += passes) {
        const double median = tms_median(us, passes);
        limit->orders[i] = (tamis_read_order){orders[i].name, rate_of(limit->bytes, median)};
        if (limit->orders[i].gb_per_s > limit->orders[limit->best].gb_per_s) limit->best = i;
    }
    limit->gb_per_s = limit->orders[limit->best].gb_per_s;
}

static tamis_status measure(const tamis_cache *cache, const reading *r, uint32_t passes,
                            tamis_read_limit *limit, tamis_error *error) {
    limit->n_orders = tms_device_orders_pages(cache->context->dev) ? ORDERS : 1;
    limit->bytes = r->pages * cache->size.page_bytes;
    double *us = calloc((size_t)limit->n_orders * passes, sizeof *us);
    TMS_REQUIRE(us, TAMIS_E_NO_MEMORY, "no host memory for the times of %" PRIu32 " passes",
                passes);
    tamis_status status = time_passes(cache, r, limit->n_orders, passes, us, error);
    if (status == TAMIS_OK) summarise(us, passes, limit);
    free(us);
    return status;
}

tamis_status tamis_cache_read_limit(tamis_cache *cache, const tamis_sequence *sequences,
                                    uint32_t count, uint32_t passes, tamis_read_limit *out,
                                    tamis_error *error) {
    TMS_ENTER(cache);
    TMS_REQUIRE(cache, TAMIS_E_ARGUMENT, "cache is NULL");
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out is NULL");
    TMS_REQUIRE(sequences, TAMIS_E_ARGUMENT, "sequences is NULL");
    TMS_REQUIRE(count > 0, TAMIS_E_ARGUMENT, "count is 0");
    TMS_REQUIRE(count <= cache->n_sequences, TAMIS_E_ARGUMENT,
                "count is %" PRIu32 ": the cache has %" PRIu32 " sequences", count,
                cache->n_sequences);
    TMS_REQUIRE(passes <= PASSES_MOST, TAMIS_E_ARGUMENT, "passes is %" PRIu32 ": at most %u",
                passes, PASSES_MOST);
    reading r;
    tamis_read_limit limit = {0};
    tamis_status status = begin(cache, sequences, count, &r, error);
    if (status == TAMIS_OK) status = measure(cache, &r, passes ? passes : PASSES, &limit, error);
    end(cache, &r);
    if (status == TAMIS_OK) *out = limit;
    return status;
}
