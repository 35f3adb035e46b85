/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of bounds: every kind of pair of full pages' keys, NaN channels, infinite keys, and pages
 * that are left alone. */
#include "check.h"

#include <math.h>

/* Heads that one page id serves. */
static uint32_t heads_a_page(const check_data *data) {
    return data->lanes.head_stride ? 1 : data->lanes.n_kv_heads;
}

static uint32_t count(const check_data *data) {
    return (uint32_t)data->buf[BUF_LISTS].count;
}

/* A page is listed when every head it serves fills it. */
static uint32_t full_pages(const check_data *data, uint32_t seq, uint32_t head) {
    const check_lanes *l = &data->lanes;
    uint32_t least = UINT32_MAX;
    for (uint32_t h = head; h < head + heads_a_page(data); h++) {
        uint32_t pages = l->length[seq * l->n_kv_heads + h] / l->kv.page_size;
        least = pages < least ? pages : least;
    }
    return least;
}

/* With pages NULL it counts. Every third page is not listed and must stay as it is. */
static uint32_t list_pages(const check_data *data, int32_t *pages) {
    const check_lanes *l = &data->lanes;
    uint32_t n = 0;
    for (uint32_t b = 0; b < l->n_seqs; b++)
        for (uint32_t h = 0; h < l->n_kv_heads; h += heads_a_page(data))
            for (uint32_t i = 0; i < full_pages(data, b, h); i++) {
                if (i % 3 == 2 && !check_get(data, KEY_EVEN)) continue;
                if (pages) pages[n] = (int32_t)check_page_id(data, b, h, i);
                n++;
            }
    return n;
}

/* Nasty fills only: an infinity into one channel of some keys. */
static void infinite_keys(check_data *data) {
    const check_lanes *l = &data->lanes;
    check_rng rng = check_rng_make(data->seed, data->c, BUF_V);
    for (uint32_t lane = 0; lane < l->n_seqs * l->n_kv_heads; lane++) {
        if (check_get(data, KEY_FILL) != FILL_NASTY || !l->length[lane]) continue;
        const uint64_t row = check_lane_row(data, lane, check_below(&rng, l->length[lane]));
        check_store(l->kv.dtype, check_init(data, BUF_KV), row + check_below(&rng, l->kv.head_dim),
                    check_below(&rng, 2) ? INFINITY : -INFINITY);
    }
}

/* Nasty fills in f16 only: about half of channel 0 at the dtype's limit and of channel 1 at the
 * negative one, so that mean and spread are near it. The squares of others would overflow. */
static void limit_keys(check_data *data) {
    const check_lanes *l = &data->lanes;
    check_rng rng = check_rng_make(data->seed, data->c, BUF_Q);
    if (check_get(data, KEY_FILL) != FILL_NASTY || l->kv.dtype != TAMIS_F16) return;
    for (uint32_t lane = 0; lane < l->n_seqs * l->n_kv_heads; lane++)
        for (uint32_t slot = 0; slot < l->length[lane]; slot++) {
            const uint64_t row = check_lane_row(data, lane, slot);
            for (uint32_t d = 0; d < 2; d++)
                if (check_below(&rng, 2))
                    check_store(l->kv.dtype, check_init(data, BUF_KV), row + d,
                                d ? -tms_dtypes[l->kv.dtype].most : tms_dtypes[l->kv.dtype].most);
        }
}

static void make(check_data *data) {
    check_lanes_make(data, ROLE_INPUT);
    limit_keys(data);
    check_nan_keys(data);
    infinite_keys(data);
    check_bounds_make(data, ROLE_OUTPUT);
    const uint32_t n = list_pages(data, NULL);
    if (!n) return;
    int32_t *pages = check_buffer_add(data, BUF_LISTS, ROLE_INPUT, CHECK_I32, n);
    list_pages(data, pages);
    for (uint32_t i = 3; check_get(data, KEY_FILL) == FILL_NASTY && i < n; i += 5)
        pages[i] = -1 - (int32_t)i; /* to be passed over */
}

static double width_of(const check_data *data) {
    return check_get(data, KEY_WIDTH) / 8.0;
}

static double rounded(uint32_t type, double value) {
    char element[4];
    check_store(type, element, 0, value);
    return check_load(type, element, 0);
}

/* A NaN stays. */
static double clamped(double value, double limit) {
    return value > limit ? limit : value < -limit ? -limit : value;
}

/* One value of a pair, `limit` at most; near a rounding boundary either side will do. */
static void want_value(check_buffer *b, uint64_t at, double value, double slack, double limit) {
    const double least = clamped(value - slack, limit), most = clamped(value + slack, limit);
    check_store(b->type, b->want, at, clamped(value, limit));
    b->tolerance[at] = slack;
    if (b->type != TAMIS_F32) b->tolerance[at] = rounded(b->type, most) - rounded(b->type, least);
}

/* A channel of a page: mean -/+ spread in double precision. */
static void want_mean(check_data *data, uint32_t page, uint32_t head, uint32_t d) {
    const tms_kv *kv = &data->lanes.kv;
    const double width = check_get(data, KEY_KIND) == TAMIS_BOUNDS_MEAN_STD ? width_of(data) : 0;
    double key[TMS_MOST_PAGE], mean = 0, squares = 0, most = 0;
    for (uint32_t s = 0; s < kv->page_size; s++) {
        const uint64_t row = check_key_row(data, page, head, s);
        key[s] = check_load(kv->dtype, check_init(data, BUF_KV), row + d);
        mean += key[s] / kv->page_size;
        most = fmax(most, fabs(key[s]));
    }
    for (uint32_t s = 0; s < kv->page_size; s++)
        squares += (key[s] - mean) * (key[s] - mean);
    const bool plain = check_get(data, KEY_KIND) == TAMIS_BOUNDS_MEAN;
    const double spread = plain ? 0 : width * sqrt(squares / kv->page_size);
    /* Means of small integers are exact, and so is what q8 makes of them. */
    const bool exact =
        plain && check_get(data, KEY_FILL) == FILL_INTS && !check_has_scales(data, BUF_KV);
    const double slack = exact ? 0 : 2e-6 * most * (1 + width);
    const tamis_dtype dtype = check_has_scales(data, BUF_BOUNDS) ? TAMIS_Q8 : kv->bounds_dtype;
    const double limit = isfinite(mean) && isfinite(spread) ? tms_dtypes[dtype].most : INFINITY;
    const uint64_t at = page * kv->bounds_page_stride + head * kv->bounds_head_stride + d;
    check_buffer *b = &data->buf[BUF_BOUNDS];
    want_value(b, at, mean - spread, slack, limit);
    want_value(b, at + kv->head_dim, mean + spread, slack, limit);
}

static void oracle(check_data *data) {
    const int32_t *pages = check_init(data, BUF_LISTS);
    const bool exact = check_get(data, KEY_KIND) == TAMIS_BOUNDS_MINMAX;
    check_want(data, BUF_BOUNDS, !exact);
    data->buf[BUF_BOUNDS].by_value = true;
    for (uint32_t i = 0; i < count(data); i++)
        for (uint32_t h = 0; h < heads_a_page(data) && pages[i] >= 0; h++) {
            const uint32_t page = (uint32_t)pages[i];
            if (exact) check_bounds_page(data, data->buf[BUF_BOUNDS].want, page, h);
            for (uint32_t d = 0; d < data->lanes.kv.head_dim && !exact; d++)
                want_mean(data, page, h, d);
        }
}

static tamis_status launch(check_side *side, check_rows rows) {
    const tms_bounds p = {
        .kv = check_kv(side),
        .n = rows.count,
        .n_kv_heads = heads_a_page(side->data),
        .pages = check_ref(side, BUF_LISTS, rows.first),
        .kind = (tamis_bounds_kind)check_get(side->data, KEY_KIND),
        .width = (float)width_of(side->data),
    };
    return tms_run_bounds(side->dev, &p, &side->error);
}

static uint64_t bytes(const check_data *data) {
    const tms_kv *kv = &data->lanes.kv;
    return (uint64_t)count(data) * heads_a_page(data) *
           (kv->page_size * check_key_bytes(data) + check_pair_bytes(data));
}

const check_op check_op_bounds = {
    .name = "bounds",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_DTYPE, TAMIS_F16},
                                        {KEY_Q8BOUNDS, 0},
                                        {KEY_LAYOUT, LAYOUT_OWN},
                                        {KEY_B, 1},
                                        {KEY_HKV, 2},
                                        {KEY_D, 64},
                                        {KEY_PAGE, 16},
                                        {KEY_KV, 150},
                                        {KEY_KIND, TAMIS_BOUNDS_MINMAX},
                                        {KEY_WIDTH, 8},
                                        {KEY_EVEN, 0},
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){CHECK_FILLS,
                                      CHECK_DTYPES,
                                      {KEY_Q8BOUNDS, 2, {0, 1}},
                                      CHECK_LAYOUTS,
                                      CHECK_HEAD_DIMS,
                                      CHECK_PAGE_SIZES,
                                      {KEY_B, 2, {1, 3}},
                                      {KEY_HKV, 3, {1, 2, 5}},
                                      {KEY_KIND, 3, {0, 1, 2}},
                                      {KEY_WIDTH, 3, {8, 0, 20}},
                                      {KEY_COUNT, 0, {0}}},
    .compiled = (const check_key[]){KEY_D, KEY_DTYPE, KEY_Q8BOUNDS, KEY_PAGE, KEY_COUNT},
    .entries = (const check_entry[]){{LIST_SMOKE, "nasty:f16"},
                                     {LIST_SMOKE, "mean:ints:f16:q8bounds"},
                                     {LIST_SMOKE, "nasty:f32:nhd:even"},
                                     {LIST_SMOKE, "meanstd:f16:width12"},
                                     {LIST_SMOKE, "mean:nasty:bf16"},
                                     {LIST_SMOKE, "meanstd:nasty:f16:width16:page8"},
                                     {LIST_SMOKE, "nasty:f16:q8bounds:d112"},
                                     {LIST_SMOKE, "normal:f16:q8bounds:hnd:even"},
                                     {LIST_CI, "mean:nasty:f32:q8bounds"},
                                     {LIST_CI, "meanstd:nasty:f16:width800000"}, /* all clamped */
                                     {LIST_CI, "kv3"},                           /* no full page */
                                     {LIST_CI, "meanstd:normal:f16:turned:hkv3:d80"},
                                     {LIST_CI, "nasty:bf16:apart:hkv3:page1"},
                                     {LIST_CI, "meanstd:nasty:f16:page2"},
                                     {LIST_CI, "meanstd:normal:f32:nhd:page128:kv300"},
                                     {LIST_CI, "nasty:f16:q8bounds:turned:page256:kv600"},
                                     {LIST_OCLGRIND, "f16:page8:kv20"},
                                     {LIST_OCLGRIND, "f16:turned:page4:kv20"},
                                     {LIST_OCLGRIND, "nasty:bf16:hnd:even:kv40"},
                                     {LIST_OCLGRIND, "meanstd:f32:nhd:even:page8:kv20"},
                                     {LIST_OCLGRIND, "nasty:f16:q8bounds:hnd:even:d80:kv40"},
                                     {LIST_BENCH, "f16:hkv8:d128:kv32768:even"},
                                     {LIST_BENCH, "meanstd:f16:hkv8:d128:kv32768:even"},
                                     {LIST_BENCH, "f16:q8bounds:hkv8:d128:kv32768:even"},
                                     {0, NULL}},
    .reject = check_read_reject,
    .make = make,
    .oracle = oracle,
    .launch = launch,
    .rows = count,
    .rows_alone = true,
    .bytes = bytes,
};
