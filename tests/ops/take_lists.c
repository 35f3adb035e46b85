/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of take_lists: of lists that are valid, of some that nearly are, and of any numbers, what a
 * plain count in order takes and skips. */
#include "check.h"

/* More entries than the lane's own table: pages of other lanes, if one were read. */
#define APART 3u

static uint32_t raw_capacity(const check_data *data) {
    return check_get(data, KEY_TOP);
}

static uint32_t most_of(const check_data *data) {
    const uint64_t n = tms_divide_up(check_get(data, KEY_KV), check_get(data, KEY_CHUNK));
    return n < raw_capacity(data) ? (uint32_t)n : raw_capacity(data);
}

static uint32_t capacity_of(const check_data *data) {
    return most_of(data) + check_get(data, KEY_PAD);
}

static uint32_t page_slots(const check_data *data) {
    return APART * data->lanes.kv.page_size;
}

/* An entry that nearly goes on with the list: mostly a step ahead, sometimes back, or past the end. */
static int32_t next_entry(check_rng *rng, int32_t before, uint32_t n) {
    switch (check_below(rng, 8)) {
    case 0:
        return before;
    case 1:
        return (int32_t)check_below(rng, n + 2) - 1;
    default:
        return before + 1 + (int32_t)check_below(rng, 3);
    }
}

/* With nasty ones any numbers, those at the ends of int32 among them. */
static int32_t any_number(check_rng *rng) {
    static const int32_t ends[] = {INT32_MIN, INT32_MAX, -1, 0, 1};
    const uint32_t way = check_below(rng, 10);
    return way < 5 ? ends[way] : (int32_t)check_rng_next(rng);
}

static void make_raw(check_data *data, uint64_t owners) {
    const uint32_t capacity = raw_capacity(data), chunk = check_get(data, KEY_CHUNK);
    int32_t *raw =
        check_buffer_add(data, BUF_FORCED, ROLE_INPUT, CHECK_I32, owners * capacity + APART);
    int32_t *count = check_buffer_add(data, BUF_FORCED_COUNTS, ROLE_INPUT, CHECK_I32, owners);
    check_rng rng = check_rng_make(data->seed, data->c, BUF_FORCED);
    const bool nasty = check_get(data, KEY_FILL) == FILL_NASTY;
    for (uint64_t i = 0; i < owners; i++) {
        const uint32_t visible = check_owner_visible(data, i);
        int32_t before = (int32_t)(check_first(data, (uint32_t)(i / data->lanes.n_kv_heads),
                                               (uint32_t)(i % data->lanes.n_kv_heads)) /
                                   chunk) -
                         1;
        for (uint32_t j = 0; j < capacity; j++) {
            before = next_entry(&rng, before, (uint32_t)tms_divide_up(visible, chunk));
            raw[i * capacity + j] = nasty && check_below(&rng, 2) ? any_number(&rng) : before;
        }
        count[i] = nasty && check_below(&rng, 3) == 0 ? any_number(&rng)
                                                      : (int32_t)check_below(&rng, capacity + 1);
    }
}

static void make(check_data *data) {
    check_lanes_make(data, ROLE_ABSENT);
    const uint64_t owners = check_owners(data);
    if (!owners) return;
    make_raw(data, owners);
    check_buffer_add(data, BUF_LISTS, ROLE_OUTPUT, CHECK_I32, owners * capacity_of(data));
    check_buffer_add(data, BUF_COUNTS, ROLE_OUTPUT, CHECK_I32, owners);
    if (check_get(data, KEY_SAME))
        check_buffer_add(data, BUF_TO, ROLE_OUTPUT, CHECK_I32, owners * capacity_of(data));
    int32_t *skipped = check_buffer_add(data, BUF_SLOTS, ROLE_UPDATE, CHECK_I32, 1);
    *skipped = -5; /* so that a sum of small numbers passes through 2^32 */
}

/* What is behind a list's count is left open. */
static void settle(const check_data *data, void *const *arrays) {
    int32_t *ids = arrays[BUF_TO];
    const int32_t *counts = arrays[BUF_COUNTS];
    check_settle_lists(data, arrays, capacity_of(data));
    for (uint64_t i = 0; ids && i < data->buf[BUF_COUNTS].count; i++)
        for (uint32_t j = 0; j < capacity_of(data); j++)
            if ((int64_t)j >= counts[i]) ids[i * capacity_of(data) + j] = -1;
}

/* By the definition: an entry is taken if no entry before it that could be taken is as large. */
static bool is_taken(const int32_t *raw, uint32_t i, int64_t least, int64_t end) {
    if (raw[i] < least || raw[i] >= end) return false;
    for (uint32_t j = 0; j < i; j++)
        if (raw[j] >= raw[i] && raw[j] < end) return false;
    return true;
}

static void oracle(check_data *data) {
    const check_lanes *l = &data->lanes;
    const uint32_t capacity = raw_capacity(data), chunk = check_get(data, KEY_CHUNK);
    if (!check_owners(data)) return;
    check_want(data, BUF_LISTS, false);
    check_want(data, BUF_COUNTS, false);
    check_want(data, BUF_SLOTS, false);
    if (check_get(data, KEY_SAME)) check_want(data, BUF_TO, false);
    int32_t *lists = data->buf[BUF_LISTS].want, *counts = data->buf[BUF_COUNTS].want;
    int32_t *ids = data->buf[BUF_TO].want;
    int64_t skipped = *(const int32_t *)check_init(data, BUF_SLOTS);
    for (uint64_t i = 0; i < check_owners(data); i++) {
        const uint32_t row = (uint32_t)(i / l->n_kv_heads), head = (uint32_t)(i % l->n_kv_heads);
        const uint32_t visible = check_owner_visible(data, i);
        const int64_t least = check_first(data, row, head) / chunk;
        const int64_t end = (int64_t)tms_divide_up(visible, chunk);
        const int32_t *raw = (const int32_t *)check_init(data, BUF_FORCED) + i * capacity;
        int64_t n = ((const int32_t *)check_init(data, BUF_FORCED_COUNTS))[i];
        if (n < 0 || n > capacity) skipped++;
        n = n < 0 ? 0 : n > capacity ? capacity : n;
        counts[i] = 0;
        for (uint32_t j = 0; j < n; j++) {
            if (!is_taken(raw, j, least, end)) {
                skipped++;
                continue;
            }
            const uint64_t at = i * capacity_of(data) + (uint32_t)counts[i]++;
            const uint32_t s = (uint32_t)raw[j], size = l->kv.page_size;
            lists[at] = raw[j];
            if (ids)
                ids[at] = (int32_t)(check_page_id(data, check_row_seq(data, row), head, s / size) *
                                        page_slots(data) +
                                    s % size);
        }
    }
    *(int32_t *)data->buf[BUF_SLOTS].want = (int32_t)(uint32_t)skipped;
}

static tamis_status launch(check_side *side, check_rows rows) {
    const check_data *data = side->data;
    const uint64_t owner = (uint64_t)rows.first * data->lanes.n_kv_heads;
    const uint32_t capacity = capacity_of(data);
    const bool ids = check_get(data, KEY_SAME);
    const tms_take_lists p = {
        .batch = check_batch(side, rows),
        .granularity = check_get(data, KEY_CHUNK),
        .raw = {check_ref(side, BUF_FORCED, owner * raw_capacity(data)),
                check_ref(side, BUF_FORCED_COUNTS, owner), raw_capacity(data)},
        .lists = {check_ref(side, BUF_LISTS, owner * capacity), check_ref(side, BUF_COUNTS, owner),
                  capacity},
        .ids = check_ref(side, BUF_TO, owner * capacity),
        .page_size = ids ? data->lanes.kv.page_size : 0,
        .page_slots = ids ? page_slots(data) : 0,
        .skipped = check_ref(side, BUF_SLOTS, 0),
    };
    return tms_run_take_lists(side->dev, &p, &side->error);
}

static const char *reject(const check_case *c) {
    if (!c->v[KEY_B] || !c->v[KEY_HKV] || !c->v[KEY_KV] || !c->v[KEY_PAGE] || !c->v[KEY_CHUNK] ||
        !c->v[KEY_TOP])
        return "b, hkv, kv, page, chunk and top are at least 1";
    return c->v[KEY_SAME] && c->v[KEY_CHUNK] != 1 ? "ids (same) are those of slots (chunk1)" : NULL;
}

static uint64_t bytes(const check_data *data) {
    return (check_get(data, KEY_SAME) ? 12 : 8) * check_owners(data) * raw_capacity(data);
}

const check_op check_op_take_lists = {
    .name = "take_lists",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_LAYOUT, LAYOUT_OWN},
                                        {KEY_B, 1},
                                        {KEY_R, 1},
                                        {KEY_HKV, 2},
                                        {KEY_PAGE, 16},
                                        {KEY_KV, 100},
                                        {KEY_TOP, 9},
                                        {KEY_CHUNK, 16},
                                        {KEY_PAD, 0}, /* room in lists beyond what they need */
                                        {KEY_FIRST, 0},
                                        {KEY_SAME, 0}, /* ids, too */
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){{KEY_FILL, 2, {FILL_NORMAL, FILL_NASTY}},
                                      {KEY_LAYOUT, 2, {LAYOUT_OWN, LAYOUT_NHD}},
                                      {KEY_B, 2, {1, 3}},
                                      {KEY_R, 3, {1, 7, 33}},
                                      {KEY_HKV, 3, {1, 2, 5}},
                                      CHECK_PAGE_SIZES,
                                      {KEY_KV, 4, {1, 17, 600, 5000}},
                                      {KEY_TOP, 4, {1, 9, 100, 700}},
                                      {KEY_CHUNK, 4, {1, 8, 16, 64}},
                                      {KEY_PAD, 2, {0, 3}},
                                      {KEY_FIRST, 2, {0, 1}},
                                      {KEY_SAME, 2, {0, 1}},
                                      {KEY_COUNT, 0, {0}}},
    .more_factors = (const check_factor[]){{KEY_FILL, 2, {FILL_NORMAL, FILL_NASTY}},
                                           {KEY_B, 2, {1, 3}},
                                           {KEY_HKV, 2, {1, 5}},
                                           CHECK_PAGE_SIZES,
                                           {KEY_KV, 3, {17, 600, 5000}},
                                           {KEY_TOP, 3, {1, 100, 700}},
                                           {KEY_CHUNK, 1, {1}},
                                           {KEY_FIRST, 2, {0, 1}},
                                           {KEY_SAME, 1, {1}},
                                           {KEY_COUNT, 0, {0}}},
    .entries = (const check_entry[]){{LIST_SMOKE, "nasty:b2:r5:kv300:top20"},
                                     {LIST_SMOKE, "nasty:b2:r5:hkv3:first:chunk1:top40:same:pad3"},
                                     {LIST_SMOKE, "b2:r5:kv600:top40:first"},
                                     {LIST_CI, "r0"},
                                     {LIST_OCLGRIND, "nasty:b2:r3:kv40:top9:chunk1:same:first"},
                                     {LIST_OCLGRIND, "nasty:b2:r3:kv90:top9:chunk8:pad3"},
                                     {LIST_BENCH, "b16:hkv8:kv32768:top128"},
                                     {LIST_BENCH, "b16:hkv8:kv32768:top2048:chunk1:same"},
                                     {0, NULL}},
    .reject = reject,
    .make = make,
    .oracle = oracle,
    .settle = settle,
    .launch = launch,
    .rows = check_lanes_rows,
    .rows_alone = true,
    .exact = true,
    .bytes = bytes,
};
