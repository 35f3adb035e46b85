/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of compact: every kept slot arrives as bits, in place and on other pages, and nothing else
 * changes; and of copy_slots: every copied slot does. */
#include "check.h"

#include <stdlib.h>
#include <string.h>

/* The planes that the case has, with values for every slot. */
static void make_planes(check_data *data) {
    const uint64_t n = (uint64_t)data->lanes.n_pages * data->lanes.kv.page_size;
    check_rng rng = check_rng_make(data->seed, data->c, BUF_POSITIONS);
    if (check_get(data, KEY_POS)) {
        int32_t *plane = check_buffer_add(data, BUF_POSITIONS, ROLE_UPDATE, CHECK_I32, n);
        for (uint64_t i = 0; i < n; i++)
            plane[i] = (int32_t)check_below(&rng, INT32_MAX);
    }
    if (check_get(data, KEY_SCORE)) {
        float *plane = check_buffer_add(data, BUF_SCORES, ROLE_UPDATE, TAMIS_F32, n);
        for (uint64_t i = 0; i < n; i++)
            plane[i] = (float)check_value(&rng, (check_fill)check_get(data, KEY_FILL));
    }
}

static void want_slots(check_data *data) {
    check_want(data, BUF_KV, false);
    check_want(data, BUF_POSITIONS, false);
    check_want(data, BUF_SCORES, false);
}

static void copy(check_data *data, check_id id, uint64_t from, uint64_t to, uint64_t n) {
    const check_buffer *b = &data->buf[id];
    const size_t size = check_type_size(b->type);
    if (b->want) memcpy((char *)b->want + to * size, (char *)b->init + from * size, n * size);
}

/* A slot of a page. */
typedef struct place {
    uint32_t page, rest;
} place;

/* What was in one slot is wanted in another one of the same head. */
static void copy_slot(check_data *data, uint32_t head, place from, place to) {
    const tms_kv *kv = &data->lanes.kv;
    const uint64_t row = check_key_row(data, from.page, head, from.rest);
    const uint64_t at = check_key_row(data, to.page, head, to.rest);
    const uint64_t old = (uint64_t)from.page * kv->page_size + from.rest;
    const uint64_t now = (uint64_t)to.page * kv->page_size + to.rest;
    copy(data, BUF_KV, row, at, kv->head_dim);
    copy(data, BUF_KV, row + kv->value_offset, at + kv->value_offset, kv->head_dim);
    copy(data, BUF_POSITIONS, old, now, 1);
    copy(data, BUF_SCORES, old, now, 1);
}

/* ---- compact --------------------------------------------------------------------------------- */

/* Every second sequence is an item; the pages of the others are free to be compacted into. */
static uint32_t items_of(const check_case *c) {
    return c->v[KEY_B] > 1 ? c->v[KEY_B] / 2 : 1;
}

/* Entries of the longest list, one of them past the lane. */
static uint32_t capacity_of(const check_data *data) {
    return (check_get(data, KEY_KV) + check_get(data, KEY_CHUNK) - 1) / check_get(data, KEY_CHUNK) +
           1;
}

static uint32_t to_stride(const check_data *data) {
    return data->lanes.lane_pages + 1;
}

static int by_value(const void *a, const void *b) {
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Random entries of each lane, n at most; nasty lists may name one that no slot belongs to. */
static void make_lists(check_data *data) {
    const check_lanes *l = &data->lanes;
    const uint32_t capacity = capacity_of(data), chunk = check_get(data, KEY_CHUNK);
    const uint64_t lanes = (uint64_t)l->n_rows * l->n_kv_heads;
    int32_t *lists = check_buffer_add(data, BUF_LISTS, ROLE_INPUT, CHECK_I32, lanes * capacity);
    int32_t *counts = check_buffer_add(data, BUF_COUNTS, ROLE_INPUT, CHECK_I32, lanes);
    uint32_t *order = check_alloc(capacity * sizeof *order);
    check_rng rng = check_rng_make(data->seed, data->c, BUF_LISTS);
    for (uint64_t i = 0; i < lanes; i++) {
        const uint32_t visible =
            check_visible(data, (uint32_t)(i / l->n_kv_heads), (uint32_t)(i % l->n_kv_heads));
        uint32_t n = (visible + chunk - 1) / chunk, most = check_get(data, KEY_N);
        n += check_get(data, KEY_FILL) == FILL_NASTY;
        for (uint32_t e = 0; e < n; e++)
            order[e] = e;
        check_shuffle(&rng, order, n);
        counts[i] = (int32_t)(n < most ? n : most);
        if (counts[i]) qsort(order, (size_t)counts[i], sizeof *order, by_value);
        for (uint32_t e = 0; e < capacity; e++)
            lists[i * capacity + e] = (int64_t)e < counts[i] ? (int32_t)order[e] : INT32_MAX;
    }
    free(order);
}

/* Ids that no lane of the launch reads, in random order. */
static uint32_t *free_pages(const check_data *data, check_rng *rng, uint32_t *n) {
    const check_lanes *l = &data->lanes;
    uint8_t *taken = check_alloc(l->n_pages);
    uint32_t *ids = check_alloc(l->n_pages * sizeof *ids);
    for (uint32_t row = 0; row < l->n_rows; row++)
        for (uint32_t h = 0; h < l->n_kv_heads; h++)
            for (uint32_t i = 0; i * l->kv.page_size < check_visible(data, row, h); i++)
                taken[check_page_id(data, check_row_seq(data, row), h, i)] = 1;
    *n = 0;
    for (uint32_t id = 0; id + 1 < l->n_pages; id++)
        if (!taken[id]) ids[(*n)++] = id;
    check_shuffle(rng, ids, *n);
    free(taken);
    return ids;
}

/* The lane's own pages below `fresh`, then free ones; heads that share page ids share these. */
static void make_to(check_data *data) {
    const check_lanes *l = &data->lanes;
    const uint32_t heads = l->n_kv_heads, size = l->kv.page_size, stride = to_stride(data);
    int32_t *to =
        check_buffer_add(data, BUF_TO, ROLE_INPUT, CHECK_I32, (uint64_t)l->n_rows * heads * stride);
    check_rng rng = check_rng_make(data->seed, data->c, BUF_TO);
    uint32_t n_free, next = 0, *ids = free_pages(data, &rng, &n_free);
    for (uint32_t i = 0; i < l->n_rows * heads; i++) {
        const uint32_t row = i / heads, head = i % heads;
        for (uint32_t o = 0; o < stride; o++) {
            int32_t *id = to + (uint64_t)i * stride + o;
            *id = -1;
            if (o * size >=
                (l->head_stride ? check_visible(data, row, head) : check_get(data, KEY_KV)))
                continue;
            if (o < check_get(data, KEY_FRESH))
                *id = (int32_t)check_page_id(data, check_row_seq(data, row), head, o);
            else if (l->head_stride == 0 && head > 0)
                *id = id[-(int64_t)stride];
            else if (next < n_free)
                *id = (int32_t)ids[next++];
        }
    }
    free(ids);
}

static void make(check_data *data) {
    check_lanes_make(data, ROLE_UPDATE);
    check_lanes *l = &data->lanes;
    if (!l->n_rows) return;
    l->n_rows = l->n_tiles = items_of(data->c);
    make_lists(data);
    make_to(data);
    make_planes(data);
}

static void oracle_lane(check_data *data, uint32_t i) {
    const check_lanes *l = &data->lanes;
    const uint32_t row = i / l->n_kv_heads, head = i % l->n_kv_heads, size = l->kv.page_size;
    const int32_t *list = (int32_t *)check_init(data, BUF_LISTS) + (uint64_t)i * capacity_of(data);
    const int32_t *to = (int32_t *)check_init(data, BUF_TO) + (uint64_t)i * to_stride(data);
    const uint32_t chunk = check_get(data, KEY_CHUNK), seq = check_row_seq(data, row);
    uint32_t j = 0;
    for (int32_t e = 0; e < ((int32_t *)check_init(data, BUF_COUNTS))[i]; e++) {
        for (uint32_t s = (uint32_t)list[e] * chunk; s < ((uint32_t)list[e] + 1) * chunk; s++) {
            if (s >= check_visible(data, row, head)) break;
            copy_slot(data, head, (place){check_page_id(data, seq, head, s / size), s % size},
                      (place){(uint32_t)to[j / size], j % size});
            j++;
        }
    }
}

static void oracle(check_data *data) {
    want_slots(data);
    for (uint32_t i = 0; i < data->lanes.n_rows * data->lanes.n_kv_heads; i++)
        oracle_lane(data, i);
}

static tamis_status launch(check_side *side, check_rows rows) {
    const check_data *data = side->data;
    const uint64_t lanes = (uint64_t)rows.first * data->lanes.n_kv_heads;
    const uint32_t capacity = capacity_of(data);
    const tms_compact p = {
        .kv = check_kv(side),
        .planes = {check_ref(side, BUF_POSITIONS, 0), check_ref(side, BUF_SCORES, 0)},
        .batch = check_batch(side, rows),
        .lists = {check_ref(side, BUF_LISTS, lanes * capacity), check_ref(side, BUF_COUNTS, lanes),
                  capacity},
        .granularity = check_get(data, KEY_CHUNK),
        .to = check_ref(side, BUF_TO, lanes * to_stride(data)),
        .to_stride = to_stride(data),
    };
    return tms_run_compact(side->dev, &p, &side->error);
}

/* Of full entries: what a partial one lacks is not counted. */
static uint64_t bytes(const check_data *data) {
    uint64_t kept = 0;
    for (uint64_t i = 0; i < data->buf[BUF_COUNTS].count; i++)
        kept += (uint64_t)((int32_t *)check_init(data, BUF_COUNTS))[i];
    return 2 * kept * check_get(data, KEY_CHUNK) *
           (check_key_bytes(data) + check_value_bytes(data));
}

static const char *reject(const check_case *c) {
    const uint32_t *v = c->v;
    if (v[KEY_R] > 1) return "an item is one row of its sequence";
    if (v[KEY_CHUNK] < 1) return "chunk is at least 1";
    if (v[KEY_B] < 2 && v[KEY_FRESH] * v[KEY_PAGE] < v[KEY_KV])
        return "fresh pages come from a second sequence";
    if ((v[KEY_POS] || v[KEY_SCORE]) && v[KEY_LAYOUT] != LAYOUT_OWN && v[KEY_HKV] > 1)
        return "planes need pages of one head";
    return check_lanes_reject(c);
}

/* ---- copy_slots ------------------------------------------------------------------------------ */

/* A half of each lane's slots may be read, the other half may be written. */
typedef struct halves {
    uint32_t *order;           /* the lane's slots, those to be read first */
    uint32_t n, read, written; /* all slots; those to be read; how many are taken of the others */
} halves;

static halves *make_halves(const check_data *data, check_rng *rng) {
    const check_lanes *l = &data->lanes;
    halves *lanes = check_alloc(l->n_seqs * l->n_kv_heads * sizeof *lanes);
    for (uint32_t i = 0; i < l->n_seqs * l->n_kv_heads; i++) {
        halves *h = &lanes[i];
        h->n = l->length[i];
        h->read = (h->n + i % 2) / 2;
        h->order = check_alloc(h->n * sizeof *h->order);
        for (uint32_t s = 0; s < h->n; s++)
            h->order[s] = s;
        check_shuffle(rng, h->order, h->n);
    }
    return lanes;
}

/* Rows go to random sequences. Of eight copies one skips its slot to read, one that to write; several
 * may read one slot. */
static void make_copies(check_data *data) {
    const check_lanes *l = &data->lanes;
    const uint32_t heads = l->n_kv_heads, n = l->n_rows * heads;
    int32_t *to_seq = check_buffer_add(data, BUF_TO_SEQ, ROLE_INPUT, CHECK_I32, l->n_rows);
    int32_t *from = check_buffer_add(data, BUF_SLOTS, ROLE_INPUT, CHECK_I32, n);
    int32_t *to = check_buffer_add(data, BUF_TO, ROLE_INPUT, CHECK_I32, n);
    check_rng rng = check_rng_make(data->seed, data->c, BUF_TO);
    halves *lanes = make_halves(data, &rng);
    for (uint32_t r = 0; r < l->n_rows; r++)
        to_seq[r] = (int32_t)check_below(&rng, l->n_seqs);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t row = i / heads, head = i % heads, skips = check_below(&rng, 8);
        const halves *old = &lanes[check_row_seq(data, row) * heads + head];
        halves *now = &lanes[(uint32_t)to_seq[row] * heads + head];
        from[i] = to[i] = -1 - (int32_t)i;
        if (old->read && skips != 0) from[i] = (int32_t)old->order[check_below(&rng, old->read)];
        if (now->read + now->written < now->n && skips != 1)
            to[i] = (int32_t)now->order[now->read + now->written++];
    }
    for (uint32_t i = 0; i < l->n_seqs * heads; i++)
        free(lanes[i].order);
    free(lanes);
}

static void copies_make(check_data *data) {
    check_lanes_make(data, ROLE_UPDATE);
    if (!data->lanes.n_rows) return;
    make_copies(data);
    make_planes(data);
}

static void copies_oracle(check_data *data) {
    const check_lanes *l = &data->lanes;
    const int32_t *from = check_init(data, BUF_SLOTS), *to = check_init(data, BUF_TO);
    const int32_t *to_seq = check_init(data, BUF_TO_SEQ);
    want_slots(data);
    for (uint32_t i = 0; i < l->n_rows * l->n_kv_heads; i++) {
        const uint32_t row = i / l->n_kv_heads, head = i % l->n_kv_heads, size = l->kv.page_size;
        if (from[i] < 0 || to[i] < 0) continue;
        const uint32_t old = (uint32_t)from[i], now = (uint32_t)to[i];
        copy_slot(
            data, head,
            (place){check_page_id(data, check_row_seq(data, row), head, old / size), old % size},
            (place){check_page_id(data, (uint32_t)to_seq[row], head, now / size), now % size});
    }
}

static tamis_status copies_launch(check_side *side, check_rows rows) {
    const uint64_t lanes = (uint64_t)rows.first * side->data->lanes.n_kv_heads;
    const tms_copy_slots p = {
        .kv = check_kv(side),
        .planes = {check_ref(side, BUF_POSITIONS, 0), check_ref(side, BUF_SCORES, 0)},
        .batch = check_batch(side, rows),
        .to_seq = check_ref(side, BUF_TO_SEQ, rows.first),
        .from = check_ref(side, BUF_SLOTS, lanes),
        .to = check_ref(side, BUF_TO, lanes),
    };
    return tms_run_copy_slots(side->dev, &p, &side->error);
}

static uint64_t copies_bytes(const check_data *data) {
    const int32_t *from = check_init(data, BUF_SLOTS), *to = check_init(data, BUF_TO);
    uint64_t copies = 0;
    for (uint64_t i = 0; i < data->buf[BUF_TO].count; i++)
        copies += from[i] >= 0 && to[i] >= 0;
    return 2 * copies * (check_key_bytes(data) + check_value_bytes(data));
}

#define IN_PLACE 100000 /* more than any lane has pages */

const check_op check_op_compact = {
    .name = "compact",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_DTYPE, TAMIS_F16},
                                        {KEY_LAYOUT, LAYOUT_OWN},
                                        {KEY_B, 2},
                                        {KEY_R, 1},
                                        {KEY_HKV, 2},
                                        {KEY_D, 64},
                                        {KEY_PAGE, 16},
                                        {KEY_KV, 100},
                                        {KEY_N, 40},
                                        {KEY_CHUNK, 1},
                                        {KEY_FRESH, IN_PLACE},
                                        {KEY_EVEN, 0},
                                        {KEY_POS, 0},
                                        {KEY_SCORE, 0},
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){{KEY_FILL, 2, {FILL_NORMAL, FILL_NASTY}},
                                      CHECK_LANES,
                                      {KEY_B, 3, {1, 2, 5}},
                                      {KEY_HKV, 3, {1, 2, 5}},
                                      {KEY_KV, 4, {1, 64, 77, 600}},
                                      {KEY_N, 5, {0, 1, 17, 130, 100000}},
                                      {KEY_CHUNK, 4, {1, 3, 4, 16}},
                                      {KEY_FRESH, 3, {0, 1, IN_PLACE}},
                                      {KEY_POS, 2, {0, 1}},
                                      {KEY_SCORE, 2, {0, 1}},
                                      {KEY_COUNT, 0, {0}}},
    .entries = (const check_entry[]){{LIST_SMOKE, "nasty:f16:hkv3:pos:score"},
                                     {LIST_SMOKE, "nasty:bf16:b4:fresh1:chunk4:n9:pos:score"},
                                     {LIST_SMOKE, "f32:d80:page8:fresh0:n1000:score"},
                                     {LIST_SMOKE, "bf16:nhd:hkv3:fresh2"},
                                     {LIST_SMOKE, "normal:q8:hkv3:d80:fresh1:n90:pos"},
                                     {LIST_SMOKE, "normal:k8v4:hkv3:d80:fresh1:n90:pos"},
                                     {LIST_SMOKE, "normal:q4:hkv3:d512:fresh1:n90:pos"},
                                     {LIST_CI, "r0"},
                                     {LIST_CI, "f16:kv2500:n1700:even:pos:score"},
                                     {LIST_CI, "nasty:f32:kv2500:n900:even:page8:d128:pos:score"},
                                     {LIST_CI, "f16:kv700:n699:even:pos:score"},
                                     {LIST_OCLGRIND, "nasty:f16:kv40:n20:page8:pos:score"},
                                     {LIST_OCLGRIND, "nasty:k8v4:kv40:n20:page8:d80"},
                                     {LIST_OCLGRIND, "nasty:q4:kv40:n20:page8:d80"},
                                     {LIST_OCLGRIND, "f32:hnd:kv40:n5:chunk3:page8:fresh1"},
                                     {LIST_BENCH, "f16:hkv8:d128:kv32768:n2048:even:pos:score"},
                                     {LIST_BENCH, "f16:hkv8:d128:kv8192:n4096:even:pos:score"},
                                     {0, NULL}},
    .reject = reject,
    .make = make,
    .oracle = oracle,
    .launch = launch,
    .rows = check_lanes_rows,
    .rows_alone = true,
    .exact = true,
    .bytes = bytes,
};

const check_op check_op_copy_slots = {
    .name = "copy_slots",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_DTYPE, TAMIS_F16},
                                        {KEY_LAYOUT, LAYOUT_OWN},
                                        {KEY_B, 2},
                                        {KEY_R, 3},
                                        {KEY_HKV, 2},
                                        {KEY_D, 64},
                                        {KEY_PAGE, 16},
                                        {KEY_KV, 100},
                                        {KEY_EVEN, 0},
                                        {KEY_POS, 0},
                                        {KEY_SCORE, 0},
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){{KEY_FILL, 2, {FILL_NORMAL, FILL_NASTY}},
                                      CHECK_LANES,
                                      {KEY_B, 3, {1, 2, 5}},
                                      {KEY_R, 3, {1, 7, 40}},
                                      {KEY_HKV, 3, {1, 2, 5}},
                                      {KEY_KV, 3, {2, 77, 300}},
                                      {KEY_POS, 2, {0, 1}},
                                      {KEY_SCORE, 2, {0, 1}},
                                      {KEY_COUNT, 0, {0}}},
    .entries = (const check_entry[]){{LIST_SMOKE, "nasty:f16:hkv3:pos:score"},
                                     {LIST_SMOKE, "nasty:bf16:b4:r9:pos"},
                                     {LIST_SMOKE, "f32:b1:r20:d80:page8:score"},
                                     {LIST_SMOKE, "bf16:nhd:hkv3"},
                                     {LIST_SMOKE, "nasty:f16:hnd:hkv1:pos:score"},
                                     {LIST_SMOKE, "normal:q8:hkv3:d80:pos"},
                                     {LIST_SMOKE, "normal:k8v4:hkv3:d80:pos"},
                                     {LIST_SMOKE, "normal:q4:hkv3:d512:pos"},
                                     {LIST_CI, "r0"},
                                     {LIST_CI, "f16:b1:r5:kv1:pos"},
                                     {LIST_CI, "nasty:q8:hnd:hkv5:r30:d96:page64"},
                                     {LIST_CI, "normal:q4:r30:d80:page8:pos:score"},
                                     {LIST_OCLGRIND, "nasty:f16:kv40:page8:pos:score"},
                                     {LIST_OCLGRIND, "nasty:k8v4:kv40:page8:d80"},
                                     {LIST_OCLGRIND, "nasty:q4:kv40:page8:d80"},
                                     {LIST_OCLGRIND, "f32:hnd:kv40:r9:page8"},
                                     {LIST_BENCH, "f16:b8:r64:hkv8:d128:kv4096:even:pos"},
                                     {0, NULL}},
    .reject = check_planes_reject,
    .make = copies_make,
    .oracle = copies_oracle,
    .launch = copies_launch,
    .rows = check_lanes_rows,
    .rows_alone = true,
    .exact = true,
    .bytes = copies_bytes,
};
