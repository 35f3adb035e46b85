/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of bounds: (min, max) of full pages' keys, NaN channels, and pages that are left alone. */
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

static void make(check_data *data) {
    check_lanes_make(data, ROLE_INPUT);
    check_nan_keys(data);
    check_bounds_make(data, ROLE_OUTPUT);
    const uint32_t n = list_pages(data, NULL);
    if (n) list_pages(data, check_buffer_add(data, BUF_LISTS, ROLE_INPUT, CHECK_I32, n));
}

static void oracle(check_data *data) {
    const int32_t *pages = check_init(data, BUF_LISTS);
    check_want(data, BUF_BOUNDS, false);
    data->buf[BUF_BOUNDS].by_value = true;
    for (uint32_t i = 0; i < count(data); i++)
        for (uint32_t h = 0; h < heads_a_page(data); h++)
            check_bounds_page(data, data->buf[BUF_BOUNDS].want, (uint32_t)pages[i], h);
}

static tamis_status launch(check_side *side, check_rows rows) {
    const tms_bounds p = {
        .kv = check_kv(side),
        .n = rows.count,
        .n_kv_heads = heads_a_page(side->data),
        .pages = check_ref(side, BUF_LISTS, rows.first),
    };
    return side->dev->backend->bounds(side->dev, &p);
}

static uint64_t bytes(const check_data *data) {
    const tms_kv *kv = &data->lanes.kv;
    return (uint64_t)count(data) * heads_a_page(data) * (kv->page_size + 2) * kv->head_dim *
           check_type_size(kv->dtype);
}

const check_op check_op_bounds = {
    .name = "bounds",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_DTYPE, TAMIS_F16},
                                        {KEY_LAYOUT, LAYOUT_OWN},
                                        {KEY_B, 1},
                                        {KEY_HKV, 2},
                                        {KEY_D, 64},
                                        {KEY_PAGE, 16},
                                        {KEY_KV, 150},
                                        {KEY_EVEN, 0},
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){{KEY_FILL, 3, {FILL_INTS, FILL_NORMAL, FILL_NASTY}},
                                      {KEY_DTYPE, 3, {TAMIS_F32, TAMIS_F16, TAMIS_BF16}},
                                      {KEY_LAYOUT, 3, {LAYOUT_OWN, LAYOUT_NHD, LAYOUT_HND}},
                                      {KEY_D, 5, {64, 80, 96, 128, 256}},
                                      {KEY_PAGE, 4, {8, 16, 32, 64}},
                                      {KEY_B, 2, {1, 3}},
                                      {KEY_HKV, 3, {1, 2, 5}},
                                      {KEY_COUNT, 0, {0}}},
    .entries = (const check_entry[]){{LIST_SMOKE, "nasty:f16"},
                                     {LIST_SMOKE, "nasty:f32:nhd:even"},
                                     {LIST_CI, "kv3"}, /* no full page */
                                     {LIST_OCLGRIND, "f16:page8:kv20"},
                                     {LIST_OCLGRIND, "nasty:bf16:hnd:even:kv40"},
                                     {LIST_BENCH, "f16:hkv8:d128:kv32768:even"},
                                     {0, NULL}},
    .reject = check_lanes_reject,
    .make = make,
    .oracle = oracle,
    .launch = launch,
    .rows = count,
    .rows_alone = true,
    .bytes = bytes,
};
