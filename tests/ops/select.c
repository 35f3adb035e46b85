/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of select against a full sort by the total order, with ties, NaN and protected entries. */
#include "check.h"

#include <math.h>
#include <stdlib.h>

typedef struct entry {
    uint32_t ordinal;
    bool protect;
    float score; /* 0 for those without */
} entry;

static int by_order(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->protect != y->protect) return x->protect ? -1 : 1;
    if (!x->protect && !isnan(x->score) != !isnan(y->score)) return isnan(x->score) ? 1 : -1;
    if (!x->protect && (x->score > y->score || x->score < y->score))
        return x->score > y->score ? -1 : 1;
    return x->ordinal > y->ordinal ? -1 : 1;
}

static int by_ordinal(const void *a, const void *b) {
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

bool check_protected(const check_data *data, uint32_t visible, uint32_t ordinal) {
    const uint32_t size = check_get(data, KEY_PAGE), recent = check_get(data, KEY_RECENT);
    const uint64_t begin = (uint64_t)ordinal * size, end = begin + size;
    return begin < check_get(data, KEY_SINKS) || (recent && end + recent > visible) ||
           end > visible;
}

void check_select_lane(const check_data *data, uint32_t first, uint32_t visible,
                       const float *scores, int32_t *list, int32_t *count) {
    const uint32_t size = check_get(data, KEY_PAGE), from = first / size;
    const uint32_t n = (visible + size - 1) / size - from;
    entry *entries = check_alloc(n * sizeof *entries);
    uint32_t taken = 0;
    for (uint32_t i = 0; i < n; i++) {
        entries[i].ordinal = from + i;
        entries[i].protect = check_protected(data, visible, from + i);
        entries[i].score = scores && !entries[i].protect ? scores[from + i] : 0;
        taken += entries[i].protect;
    }
    if (n) qsort(entries, n, sizeof *entries, by_order);
    if (taken < check_get(data, KEY_TOP))
        taken = check_get(data, KEY_TOP) < n ? check_get(data, KEY_TOP) : n;
    for (uint32_t i = 0; i < taken; i++)
        list[i] = (int32_t)entries[i].ordinal;
    qsort(list, taken, sizeof *list, by_ordinal);
    *count = (int32_t)taken;
    free(entries);
}

uint32_t check_select_capacity(const check_data *data) {
    const uint32_t size = check_get(data, KEY_PAGE);
    const uint32_t n = (check_get(data, KEY_KV) + size - 1) / size;
    const uint32_t sinks = (check_get(data, KEY_SINKS) + size - 1) / size;
    const uint32_t recent = (check_get(data, KEY_RECENT) + size - 1) / size;
    const uint32_t protect = sinks + recent + 1; /* recent may begin within a page */
    const uint32_t most = protect > check_get(data, KEY_TOP) ? protect : check_get(data, KEY_TOP);
    return most < n ? most : n;
}

void check_settle_lists(const check_data *data, void *const *arrays, uint32_t capacity) {
    int32_t *pages = arrays[BUF_LISTS], *counts = arrays[BUF_COUNTS];
    for (uint64_t lane = 0; counts && lane < data->buf[BUF_COUNTS].count; lane++)
        for (uint32_t i = 0; i < capacity; i++)
            if ((int64_t)i >= counts[lane]) pages[lane * capacity + i] = -1;
}

static void settle(const check_data *data, void *const *arrays) {
    check_settle_lists(data, arrays, check_select_capacity(data));
}

static uint32_t score_stride(const check_data *data) {
    return data->lanes.lane_pages;
}

static void make(check_data *data) {
    const check_lanes *l = &data->lanes;
    check_lanes_make(data, ROLE_ABSENT);
    const uint64_t lanes = (uint64_t)l->n_rows * l->n_kv_heads;
    if (!lanes) return;
    if (!check_get(data, KEY_NOSCORE)) {
        float *scores =
            check_buffer_add(data, BUF_SCORES, ROLE_INPUT, TAMIS_F32, lanes * score_stride(data));
        check_rng rng = check_rng_make(data->seed, data->c, BUF_SCORES);
        for (uint64_t i = 0; i < lanes * score_stride(data); i++)
            scores[i] = (float)check_value(&rng, (check_fill)check_get(data, KEY_FILL));
    }
    check_buffer_add(data, BUF_LISTS, ROLE_OUTPUT, CHECK_I32, lanes * check_select_capacity(data));
    check_buffer_add(data, BUF_COUNTS, ROLE_OUTPUT, CHECK_I32, lanes);
}

static void oracle(check_data *data) {
    const check_lanes *l = &data->lanes;
    const float *scores = check_init(data, BUF_SCORES);
    check_want(data, BUF_LISTS, false);
    check_want(data, BUF_COUNTS, false);
    for (uint32_t i = 0; i < l->n_rows * l->n_kv_heads; i++)
        check_select_lane(data, check_first(data, i / l->n_kv_heads, i % l->n_kv_heads),
                          check_visible(data, i / l->n_kv_heads, i % l->n_kv_heads),
                          scores ? scores + (uint64_t)i * score_stride(data) : NULL,
                          (int32_t *)data->buf[BUF_LISTS].want + i * check_select_capacity(data),
                          (int32_t *)data->buf[BUF_COUNTS].want + i);
}

static tamis_status launch(check_side *side, check_rows rows) {
    const check_data *data = side->data;
    const uint64_t lanes = (uint64_t)rows.first * data->lanes.n_kv_heads;
    const uint32_t capacity = check_select_capacity(data);
    const tms_select p = {
        .batch = check_batch(side, rows),
        .granularity = check_get(data, KEY_PAGE),
        .k = check_get(data, KEY_TOP),
        .sinks = check_get(data, KEY_SINKS),
        .recent = check_get(data, KEY_RECENT),
        .scores = check_ref(side, BUF_SCORES, lanes * score_stride(data)),
        .stride = score_stride(data),
        .lists = {check_ref(side, BUF_LISTS, lanes * capacity), check_ref(side, BUF_COUNTS, lanes),
                  capacity},
    };
    return tms_run_select(side->dev, &p, &side->error);
}

static uint64_t bytes(const check_data *data) {
    return data->buf[BUF_SCORES].count * 4;
}

static const char *reject(const check_case *c) {
    return c->v[KEY_B] && c->v[KEY_HKV] && c->v[KEY_KV] && c->v[KEY_PAGE]
               ? NULL
               : "b, hkv, kv and page are at least 1";
}

const check_op check_op_select = {
    .name = "select",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_B, 1},
                                        {KEY_R, 1},
                                        {KEY_HKV, 2},
                                        {KEY_PAGE, 16},
                                        {KEY_KV, 1000},
                                        {KEY_TOP, 16},
                                        {KEY_SINKS, 0},
                                        {KEY_RECENT, 0},
                                        {KEY_EVEN, 0},
                                        {KEY_NOSCORE, 0},
                                        {KEY_FIRST, 0},
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){CHECK_FILLS,
                                      {KEY_B, 2, {1, 3}},
                                      {KEY_R, 2, {1, 3}},
                                      {KEY_HKV, 3, {1, 2, 5}},
                                      {KEY_PAGE, 5, {1, 8, 16, 32, 64}},
                                      {KEY_KV, 6, {1, 15, 64, 1000, 4097, 20000}},
                                      {KEY_TOP, 6, {0, 1, 4, 16, 63, 128}},
                                      {KEY_SINKS, 4, {0, 1, 4, 100}},
                                      {KEY_RECENT, 4, {0, 1, 64, 333}},
                                      {KEY_NOSCORE, 2, {0, 1}},
                                      {KEY_FIRST, 2, {0, 1}},
                                      {KEY_COUNT, 0, {0}}},
    .entries = (const check_entry[]){{LIST_SMOKE, "normal:b2:sinks4:recent64"},
                                     {LIST_SMOKE, "nasty:b2:sinks4:recent64"},
                                     {LIST_SMOKE, "ints:b2"},
                                     {LIST_SMOKE, "nasty:b2:r3:sinks4:recent64:first"},
                                     {LIST_CI, "nasty:b3:r3:page8:kv4097:top63:sinks400:first"},
                                     {LIST_CI, "r0"},
                                     {LIST_CI, "ints:page16:kv1048576:top128"}, /* 65,536 entries */
                                     {LIST_CI, "nasty:page1:kv65536:top2048:sinks4:recent64"},
                                     {LIST_CI, "nasty:page1:kv65536:top65535"},
                                     {LIST_CI, "nasty:page1:kv300:top299:even"},
                                     {LIST_CI, "nasty:page1:kv300:top300:even"},
                                     {LIST_CI, "ints:page1:kv300:top301:even"},
                                     {LIST_CI, "nasty:page1:kv4000:top2000:even"}, /* -0 = +0 */
                                     {LIST_OCLGRIND, "nasty:page8:kv200:top5:sinks4:recent9"},
                                     {LIST_OCLGRIND, "ints:page8:kv100:top5:noscore"},
                                     {LIST_BENCH, "normal:hkv32:kv32768:top128:even"},
                                     {LIST_BENCH, "normal:hkv8:kv1048576:top128:even"},
                                     {0, NULL}},
    .reject = reject,
    .make = make,
    .oracle = oracle,
    .launch = launch,
    .cpu_form = check_any_case,
    .rows = check_lanes_rows,
    .settle = settle,
    .rows_alone = true,
    .exact = true,
    .bytes = bytes,
};
