/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of score_pages against its formula in fp64; the queries that the ops on lanes share. */
#include "check.h"

#include <math.h>

#define SLACK 3u /* entries of a lane's scores that no page has */

uint64_t check_q_stride(const check_data *data) {
    return data->lanes.n_kv_heads * data->lanes.group * (uint64_t)data->lanes.kv.head_dim +
           check_get(data, KEY_PAD);
}

void check_q_make(check_data *data) {
    const check_lanes *l = &data->lanes;
    if (!l->n_rows) return;
    check_buffer_add(data, BUF_Q, ROLE_INPUT, TAMIS_F32, l->n_rows * check_q_stride(data));
    check_fill_matrix(data, BUF_Q, l->n_rows, check_q_stride(data) - check_get(data, KEY_PAD),
                      check_q_stride(data));
}

void check_nan_keys(check_data *data) {
    const check_lanes *l = &data->lanes;
    check_rng rng = check_rng_make(data->seed, data->c, BUF_K);
    for (uint32_t lane = 0; lane < l->n_seqs * l->n_kv_heads; lane++) {
        const bool spoilt = check_get(data, KEY_FILL) == FILL_NASTY && check_below(&rng, 3) == 0;
        if (!spoilt || !l->length[lane]) continue;
        const uint64_t row = check_lane_row(data, lane, check_below(&rng, l->length[lane]));
        check_store(l->kv.dtype, check_init(data, BUF_KV), row + check_below(&rng, l->kv.head_dim),
                    NAN);
    }
}

/* NaN counts as larger than all numbers, so that it survives a max. */
static double larger(double a, double b) {
    return isnan(a) || isnan(b) ? NAN : a > b ? a : b;
}

static double head_score(const check_data *data, const float *q, uint64_t bounds, double *size) {
    const tms_kv *kv = &data->lanes.kv;
    double sum = 0;
    *size = 0;
    for (uint32_t d = 0; d < kv->head_dim; d++) {
        double lo = check_load(kv->bounds_dtype, check_init(data, BUF_BOUNDS), bounds + d);
        double hi =
            check_load(kv->bounds_dtype, check_init(data, BUF_BOUNDS), bounds + kv->head_dim + d);
        double term = larger(q[d] * lo, q[d] * hi);
        sum += term;
        *size += fabs(term);
    }
    return sum;
}

double check_score(const check_data *data, uint32_t row, uint32_t head, uint32_t ordinal,
                   double *tolerance) {
    const check_lanes *l = &data->lanes;
    const tamis_group_rule rule = (tamis_group_rule)check_get(data, KEY_RULE);
    const uint32_t page = check_page_id(data, check_row_seq(data, row), head, ordinal);
    const uint64_t bounds = page * l->kv.bounds_page_stride + head * l->kv.bounds_head_stride;
    const float *q = check_init(data, BUF_Q);
    q += row * check_q_stride(data) + (uint64_t)head * l->group * l->kv.head_dim;
    double score = rule == TAMIS_GROUP_MAX ? -INFINITY : 0, sizes = 0;
    for (uint32_t g = 0; g < l->group; g++) {
        double size, s = head_score(data, q + g * l->kv.head_dim, bounds, &size);
        score = rule == TAMIS_GROUP_MAX ? larger(score, s) : score + s;
        sizes = rule == TAMIS_GROUP_MAX ? larger(sizes, size) : sizes + size;
    }
    const double share = rule == TAMIS_GROUP_MEAN ? 1.0 / l->group : 1;
    /* Integers stay integers, but not in q8. */
    const bool exact = check_get(data, KEY_FILL) == FILL_INTS && rule != TAMIS_GROUP_MEAN &&
                       !check_has_scales(data, BUF_BOUNDS);
    *tolerance = exact ? 0 : 1e-6 * sizes * share;
    return score * share;
}

static uint32_t score_stride(const check_data *data) {
    return data->lanes.lane_pages + SLACK;
}

/* Every third lane has no infinite keys, the others +inf and -inf in turn in about every other page:
 * the term is finite or infinite by the sign of the query, and NaN for a query of 0. */
static void infinite_keys(check_data *data) {
    double key = INFINITY;
    const check_lanes *l = &data->lanes;
    check_rng rng = check_rng_make(data->seed, data->c, BUF_V);
    for (uint32_t lane = 0; lane < l->n_seqs * l->n_kv_heads; lane++) {
        if (lane % 3 == 1) continue;
        for (uint32_t s = 0; s < l->length[lane]; s += 1 + check_below(&rng, 4 * l->kv.page_size)) {
            key = -key;
            check_store(l->kv.dtype, check_init(data, BUF_KV),
                        check_lane_row(data, lane, s) + check_below(&rng, l->kv.head_dim), key);
        }
    }
}

/* Every other channel of the last row's queries: 0 times an infinite bound is NaN. */
static void zero_queries(check_data *data) {
    const uint64_t width = check_q_stride(data) - check_get(data, KEY_PAD);
    float *q = check_init(data, BUF_Q);
    q += (data->lanes.n_rows - 1) * check_q_stride(data);
    for (uint64_t i = 0; i < width; i += 2)
        q[i] = 0;
}

/* Nasty cases have a NaN in a query, too. */
static void make(check_data *data) {
    const check_lanes *l = &data->lanes;
    check_lanes_make(data, ROLE_INPUT);
    check_nan_keys(data);
    if (check_get(data, KEY_FILL) == FILL_NASTY) infinite_keys(data);
    check_bounds_make(data, ROLE_INPUT);
    check_q_make(data);
    if (!l->n_rows) return;
    if (check_get(data, KEY_FILL) == FILL_NASTY) {
        zero_queries(data);
        ((float *)check_init(data, BUF_Q))[l->kv.head_dim / 2] = NAN;
    }
    check_buffer_add(data, BUF_SCORES, ROLE_OUTPUT, TAMIS_F32,
                     (uint64_t)l->n_rows * l->n_kv_heads * score_stride(data));
}

static void oracle(check_data *data) {
    const check_lanes *l = &data->lanes;
    check_buffer *scores = &data->buf[BUF_SCORES];
    check_want(data, BUF_SCORES, true);
    for (uint32_t row = 0; row < l->n_rows; row++) {
        for (uint32_t h = 0; h < l->n_kv_heads; h++) {
            const uint64_t at = ((uint64_t)row * l->n_kv_heads + h) * score_stride(data);
            for (uint32_t i = check_first(data, row, h) / l->kv.page_size;
                 i < check_visible(data, row, h) / l->kv.page_size; i++)
                ((float *)scores->want)[at + i] =
                    (float)check_score(data, row, h, i, &scores->tolerance[at + i]);
        }
    }
}

static tamis_status launch(check_side *side, check_rows rows) {
    const check_data *data = side->data;
    const uint64_t lanes = (uint64_t)rows.first * data->lanes.n_kv_heads;
    const tms_score_pages p = {
        .kv = check_kv(side),
        .batch = check_batch(side, rows),
        .q = {check_ref(side, BUF_Q, rows.first * check_q_stride(data)), check_q_stride(data)},
        .group = (tamis_group_rule)check_get(data, KEY_RULE),
        .scores = check_ref(side, BUF_SCORES, lanes * score_stride(data)),
        .stride = score_stride(data),
    };
    return tms_run_score_pages(side->dev, &p, &side->error);
}

static uint64_t bytes(const check_data *data) {
    const check_lanes *l = &data->lanes;
    uint64_t pages = 0;
    for (uint32_t row = 0; row < l->n_rows; row++)
        for (uint32_t h = 0; h < l->n_kv_heads; h++)
            pages += check_visible(data, row, h) / l->kv.page_size;
    return pages * check_pair_bytes(data);
}

const check_op check_op_score_pages = {
    .name = "score_pages",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_DTYPE, TAMIS_F16},
                                        {KEY_Q8BOUNDS, 0},
                                        {KEY_LAYOUT, LAYOUT_OWN},
                                        {KEY_B, 1},
                                        {KEY_R, 1},
                                        {KEY_HKV, 2},
                                        {KEY_G, 1},
                                        {KEY_D, 64},
                                        {KEY_PAGE, 16},
                                        {KEY_KV, 400},
                                        {KEY_RULE, TAMIS_GROUP_MAX},
                                        {KEY_PAD, 0},
                                        {KEY_EVEN, 0},
                                        {KEY_ORDERED, 0},
                                        {KEY_FIRST, 0},
                                        {KEY_COUNT, 0}},
    .factors =
        (const check_factor[]){CHECK_FILLS,
                               CHECK_DTYPES,
                               {KEY_Q8BOUNDS, 2, {0, 1}},
                               CHECK_LAYOUTS,
                               CHECK_HEAD_DIMS,
                               {KEY_G, 6, {1, 3, 4, 5, 16, 40}},
                               CHECK_PAGE_SIZES,
                               {KEY_RULE, 3, {TAMIS_GROUP_MAX, TAMIS_GROUP_MEAN, TAMIS_GROUP_SUM}},
                               {KEY_B, 2, {1, 3}},
                               {KEY_R, 2, {1, 3}},
                               {KEY_HKV, 3, {1, 2, 5}},
                               {KEY_KV, 3, {17, 400, 1023}},
                               {KEY_PAD, 2, {0, 16}},
                               {KEY_FIRST, 2, {0, 1}},
                               {KEY_COUNT, 0, {0}}},
    .more_factors =
        (const check_factor[]){{KEY_G, 8, {1, 2, 3, 5, 6, 7, 8, 16}},
                               {KEY_D, 2, {64, 128}},
                               CHECK_DTYPES,
                               {KEY_Q8BOUNDS, 2, {0, 1}},
                               CHECK_FILLS,
                               CHECK_LAYOUTS,
                               {KEY_RULE, 3, {TAMIS_GROUP_MAX, TAMIS_GROUP_MEAN, TAMIS_GROUP_SUM}},
                               {KEY_HKV, 2, {1, 3}},
                               {KEY_KV, 3, {17, 400, 1023}},
                               {KEY_COUNT, 0, {0}}},
    .compiled =
        (const check_key[]){KEY_G, KEY_D, KEY_DTYPE, KEY_Q8BOUNDS, KEY_PAGE, KEY_RULE, KEY_COUNT},
    .entries = (const check_entry[]){{LIST_SMOKE, "normal:f16:b2:g4"},
                                     {LIST_SMOKE, "nasty:f16:b2:g4:d512"},
                                     {LIST_SMOKE, "normal:f16:q8bounds:b2"},
                                     {LIST_SMOKE, "nasty:f16:q8bounds:b2:g4"},
                                     {LIST_SMOKE, "normal:f16:b2:r3:g4:kv1000:first"},
                                     {LIST_CI, "r0"},
                                     {LIST_CI, "kv3"}, /* no full page */
                                     {LIST_CI, "normal:f16:apart:g4:page1:kv300"},
                                     {LIST_CI, "nasty:f32:turned:g3:page256:kv600"},
                                     {LIST_CI, "normal:f16:hkv8:g4:d128:kv33000"},
                                     {LIST_OCLGRIND, "f16:g2:kv40"},
                                     {LIST_OCLGRIND, "bf16:nhd:g3:d128:kv70:sum"},
                                     {LIST_OCLGRIND, "nasty:f32:hnd:d80:g3:page8:kv40:mean"},
                                     {LIST_OCLGRIND, "nasty:f16:q8bounds:d128:kv70"},
                                     {LIST_OCLGRIND, "f32:q8bounds:nhd:g3:kv70:sum"},
                                     {LIST_BENCH, "f16:hkv32:d128:kv32768:even"},
                                     {LIST_BENCH, "f16:hkv8:g4:d128:kv32768:even"},
                                     {LIST_BENCH, "f16:q8bounds:hkv32:d128:kv32768:even"},
                                     {LIST_BENCH, "f16:q8bounds:hkv8:g4:d128:kv32768:even"},
                                     {0, NULL}},
    .reject = check_read_reject,
    .make = make,
    .oracle = oracle,
    .launch = launch,
    .cpu_form = check_lanes_cpu_form,
    .gpu_form = true,
    .rows = check_lanes_rows,
    .rows_alone = true,
    .bytes = bytes,
};
