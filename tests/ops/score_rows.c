/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of score_rows against its formula in fp64. */
#include "check.h"

#include <float.h>
#include <math.h>

/* ---- Data and launch ------------------------------------------------------------------------- */

/* The K row of a (row, KV head)'s slot. */
static uint64_t key_of(const check_data *data, uint32_t i, uint32_t slot) {
    const check_lanes *l = &data->lanes;
    const uint32_t seq = check_row_seq(data, i / l->n_kv_heads);
    return check_lane_row(data, seq * l->n_kv_heads + i % l->n_kv_heads, slot);
}

static void store_key(check_data *data, uint32_t i, uint32_t slot, uint32_t d, double value) {
    check_store(data->lanes.kv.dtype, check_init(data, BUF_KV), key_of(data, i, slot) + d, value);
}

/* Among the keys of nasty cases are zeros, some with a NaN, infinite ones, and such that are too
 * large for squares in fp32 (infinite in f16). */
static void make_nasty(check_data *data) {
    const check_lanes *l = &data->lanes;
    const int32_t *slots = check_init(data, BUF_SLOTS);
    check_rng rng = check_rng_make(data->seed, data->c, BUF_K);
    for (uint32_t i = 0; i < l->n_rows * l->n_kv_heads; i++) {
        static const double odd[] = {NAN, INFINITY, -INFINITY, 1e20};
        const uint32_t kind = check_below(&rng, 8), d = check_below(&rng, l->kv.head_dim);
        if (slots[i] < 0) continue;
        for (uint32_t c = 0; kind == 4 && c < l->kv.head_dim; c++)
            store_key(data, i, (uint32_t)slots[i], c, c % 2 ? 0.0 : -0.0);
        if (kind < 4) store_key(data, i, (uint32_t)slots[i], d, odd[kind]);
    }
}

/* Values are NaN: they are not to be read. */
static void make(check_data *data) {
    const check_lanes *l = &data->lanes;
    const uint64_t n = (uint64_t)l->n_kv_heads * l->n_seqs;
    check_lanes_make(data, ROLE_INPUT);
    for (uint32_t lane = 0; lane < n; lane++)
        for (uint32_t s = 0; s < l->length[lane]; s++)
            for (uint32_t d = 0; d < l->kv.head_dim; d++)
                check_store(l->kv.dtype, check_init(data, BUF_KV),
                            check_lane_row(data, lane, s) + l->kv.value_offset + d, NAN);
    if (!l->n_rows) return;
    check_lanes_slots(data);
    if (check_get(data, KEY_FILL) == FILL_NASTY) make_nasty(data);
    const uint64_t slots = (uint64_t)l->n_pages * l->kv.page_size;
    float *plane = check_buffer_add(data, BUF_SCORES, ROLE_UPDATE, TAMIS_F32, slots);
    for (uint64_t s = 0; s < slots; s++)
        plane[s] = 1.0f + (float)(s % 1000);
}

static tamis_status launch(check_side *side, check_rows rows) {
    const tms_score_rows p = {
        .kv = check_kv(side),
        .batch = check_batch(side, rows),
        .slots = check_ref(side, BUF_SLOTS, rows.first * side->data->lanes.n_kv_heads),
        .scores = check_ref(side, BUF_SCORES, 0),
    };
    return tms_run_score_rows(side->dev, &p, &side->error);
}

/* ---- Direct formula -------------------------------------------------------------------------- */

static double norm_of(const check_data *data, uint64_t key) {
    const tms_kv *kv = &data->lanes.kv;
    double sum = 0;
    for (uint32_t d = 0; d < kv->head_dim; d++) {
        const double x = check_load(kv->dtype, check_init(data, BUF_KV), key + d);
        sum += x * x;
    }
    return sum > FLT_MAX ? INFINITY : sqrt(sum); /* a NaN is not above it */
}

static void oracle(check_data *data) {
    const check_lanes *l = &data->lanes;
    const int32_t *slots = check_init(data, BUF_SLOTS);
    const uint32_t size = l->kv.page_size;
    check_want(data, BUF_SCORES, true);
    for (uint32_t i = 0; i < l->n_rows * l->n_kv_heads; i++) {
        if (slots[i] < 0) continue;
        const uint32_t slot = (uint32_t)slots[i], seq = check_row_seq(data, i / l->n_kv_heads);
        const uint32_t page = check_page_id(data, seq, i % l->n_kv_heads, slot / size);
        const uint64_t at = (uint64_t)page * size + slot % size;
        const double norm = norm_of(data, key_of(data, i, slot));
        ((float *)data->buf[BUF_SCORES].want)[at] = (float)-norm;
        data->buf[BUF_SCORES].tolerance[at] = isfinite(norm) ? 2e-6 * norm : 0;
    }
}

static uint64_t bytes(const check_data *data) {
    const check_lanes *l = &data->lanes;
    return (uint64_t)l->n_rows * l->n_kv_heads * (check_key_bytes(data) + 8);
}

static const char *reject(const check_case *c) {
    if (c->v[KEY_LAYOUT] != LAYOUT_OWN && c->v[KEY_HKV] > 1)
        return "a plane beside pages that several heads share";
    return check_lanes_reject(c);
}

const check_op check_op_score_rows = {
    .name = "score_rows",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_DTYPE, TAMIS_F16},
                                        {KEY_LAYOUT, LAYOUT_OWN},
                                        {KEY_B, 1},
                                        {KEY_R, 1},
                                        {KEY_HKV, 2},
                                        {KEY_D, 64},
                                        {KEY_PAGE, 16},
                                        {KEY_KV, 100},
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){CHECK_FILLS,
                                      CHECK_LANES,
                                      {KEY_B, 2, {1, 3}},
                                      {KEY_R, 3, {1, 7, 33}},
                                      {KEY_HKV, 3, {1, 2, 5}},
                                      {KEY_COUNT, 0, {0}}},
    .compiled = (const check_key[]){KEY_D, KEY_DTYPE, KEY_PAGE, KEY_COUNT},
    .entries = (const check_entry[]){{LIST_SMOKE, "nasty:f16:b2:r5"},
                                     {LIST_SMOKE, "nasty:bf16:b2:r5:d512"},
                                     {LIST_CI, "f16:r0"},
                                     {LIST_CI, "nasty:f32:b3:r33:hkv5:page8"},
                                     {LIST_CI, "normal:f16:nhd:hkv1:r7:d128"},
                                     {LIST_OCLGRIND, "nasty:f16:b2:r3:kv20"},
                                     {LIST_OCLGRIND, "normal:bf16:d80:r2:kv20"},
                                     {LIST_BENCH, "f16:r4096:hkv8:d128:kv4096"},
                                     {LIST_BENCH, "f16:hkv8:d128:kv4096"},
                                     {0, NULL}},
    .reject = reject,
    .make = make,
    .oracle = oracle,
    .launch = launch,
    .rows = check_lanes_rows,
    .rows_alone = true,
    .bytes = bytes,
};
