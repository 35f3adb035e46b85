/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of seek against a search from the front. */
#include "check.h"

#define AHEAD 2u /* elements of `out` between a row's last entry and the next row's first */

static uint64_t row_stride(const check_data *data) {
    return check_get(data, KEY_SAME) ? 1 : data->lanes.n_kv_heads + AHEAD;
}
static uint64_t head_stride(const check_data *data) {
    return check_get(data, KEY_SAME) ? data->lanes.n_rows + AHEAD : 1;
}

/* Positions of a lane ascend, with gaps, from anything on; slots behind its end hold the least of all
 * numbers. What a row asks for lies before, in and behind its lanes' positions. */
static void make(check_data *data) {
    const check_lanes *l = &data->lanes;
    const uint32_t size = check_get(data, KEY_PAGE);
    check_lanes_make(data, ROLE_ABSENT);
    if (!l->n_rows) return;
    int32_t *plane =
        check_buffer_add(data, BUF_POSITIONS, ROLE_INPUT, CHECK_I32, (uint64_t)l->n_pages * size);
    int32_t *least = check_buffer_add(data, BUF_ROW_POSITIONS, ROLE_INPUT, CHECK_I32, l->n_rows);
    check_rng rng = check_rng_make(data->seed, data->c, BUF_POSITIONS);
    for (uint64_t i = 0; i < (uint64_t)l->n_pages * size; i++)
        plane[i] = INT32_MIN;
    for (uint32_t lane = 0; lane < l->n_seqs * l->n_kv_heads; lane++) {
        int32_t position = (int32_t)check_below(&rng, 50);
        for (uint32_t s = 0; s < l->length[lane]; s++) {
            const uint32_t page =
                check_page_id(data, lane / l->n_kv_heads, lane % l->n_kv_heads, s / size);
            plane[page * size + s % size] = position;
            position += 1 + (int32_t)(check_below(&rng, 4) == 0 ? check_below(&rng, 9) : 0);
        }
    }
    for (uint32_t row = 0; row < l->n_rows; row++)
        least[row] = (int32_t)check_below(&rng, 2 * check_get(data, KEY_KV) + 60);
    check_buffer_add(data, BUF_Y, ROLE_OUTPUT, CHECK_I32,
                     check_get(data, KEY_SAME) ? l->n_kv_heads * head_stride(data)
                                               : l->n_rows * row_stride(data));
}

static void oracle(check_data *data) {
    const check_lanes *l = &data->lanes;
    const int32_t *plane = check_init(data, BUF_POSITIONS);
    const int32_t *least = check_init(data, BUF_ROW_POSITIONS);
    const uint32_t size = l->kv.page_size;
    check_want(data, BUF_Y, false);
    for (uint32_t i = 0; i < l->n_rows * l->n_kv_heads; i++) {
        const uint32_t row = i / l->n_kv_heads, head = i % l->n_kv_heads;
        const uint32_t seq = check_row_seq(data, row), visible = check_visible(data, row, head);
        uint32_t s = 0;
        while (s < visible &&
               plane[check_page_id(data, seq, head, s / size) * size + s % size] < least[row])
            s++;
        ((int32_t *)data->buf[BUF_Y].want)[row * row_stride(data) + head * head_stride(data)] =
            (int32_t)s;
    }
}

static tamis_status launch(check_side *side, check_rows rows) {
    const check_data *data = side->data;
    const tms_seek p = {
        .batch = check_batch(side, rows),
        .page_size = data->lanes.kv.page_size,
        .positions = check_ref(side, BUF_POSITIONS, 0),
        .least = check_ref(side, BUF_ROW_POSITIONS, rows.first),
        .out = check_ref(side, BUF_Y, rows.first * row_stride(data)),
        .row_stride = row_stride(data),
        .head_stride = head_stride(data),
    };
    return tms_run_seek(side->dev, &p, &side->error);
}

static uint64_t bytes(const check_data *data) {
    uint64_t steps = 0;
    for (uint64_t i = 0; i < check_owners(data); i++)
        for (uint32_t n = check_owner_visible(data, i); n > 0; n /= 2)
            steps++;
    return 8 * steps;
}

static const char *reject(const check_case *c) {
    return c->v[KEY_B] && c->v[KEY_HKV] && c->v[KEY_KV] && c->v[KEY_PAGE]
               ? NULL
               : "b, hkv, kv and page are at least 1";
}

const check_op check_op_seek = {
    .name = "seek",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_LAYOUT, LAYOUT_OWN},
                                        {KEY_B, 1},
                                        {KEY_R, 1},
                                        {KEY_HKV, 2},
                                        {KEY_PAGE, 16},
                                        {KEY_KV, 100},
                                        {KEY_SAME, 0}, /* out head by head */
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){{KEY_FILL, 2, {FILL_NORMAL, FILL_NASTY}},
                                      CHECK_PAGE_SIZES,
                                      {KEY_B, 2, {1, 3}},
                                      {KEY_R, 3, {1, 7, 33}},
                                      {KEY_HKV, 3, {1, 2, 5}},
                                      {KEY_KV, 4, {1, 17, 600, 5000}},
                                      {KEY_SAME, 2, {0, 1}},
                                      {KEY_COUNT, 0, {0}}},
    .entries = (const check_entry[]){{LIST_SMOKE, "nasty:b2:r5"},
                                     {LIST_SMOKE, "nasty:b2:r5:hkv3:same"},
                                     {LIST_CI, "r0"},
                                     {LIST_OCLGRIND, "nasty:b2:r3:kv40"},
                                     {LIST_BENCH, "b16:hkv8:kv32768"},
                                     {0, NULL}},
    .reject = reject,
    .make = make,
    .oracle = oracle,
    .launch = launch,
    .rows = check_lanes_rows,
    .rows_alone = true,
    .bytes = bytes,
};
