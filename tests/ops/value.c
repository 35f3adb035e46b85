/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of value_score and value_norm against their formulas in fp64. */
#include "check.h"

#include <math.h>
#include <stdlib.h>

#define SLACK 3u /* values behind a lane's that are left alone */

static uint64_t stride_of(const check_data *data) {
    return check_get(data, KEY_KV) + SLACK;
}

/* Lanes of nasty cases: one in three has a NaN among its values, one an infinite one. */
static void make_nasty(check_data *data) {
    static const double odd[] = {0, NAN, -INFINITY};
    const check_lanes *l = &data->lanes;
    check_rng rng = check_rng_make(data->seed, data->c, BUF_V);
    for (uint32_t lane = 0; lane < l->n_seqs * l->n_kv_heads; lane++) {
        const double value = odd[check_below(&rng, 3)];
        if (!l->length[lane]) continue;
        check_store(l->kv.dtype, check_init(data, BUF_KV),
                    check_lane_row(data, lane, check_below(&rng, l->length[lane])) +
                        l->kv.value_offset + check_below(&rng, l->kv.head_dim),
                    value);
    }
}

/* Values as the fill says; keys are NaN: they are not to be read. */
static void make_lanes(check_data *data) {
    const check_lanes *l = &data->lanes;
    check_lanes_make(data, ROLE_INPUT);
    for (uint32_t lane = 0; lane < l->n_seqs * l->n_kv_heads; lane++)
        for (uint32_t s = 0; s < l->length[lane]; s++)
            for (uint32_t d = 0; d < l->kv.head_dim; d++)
                check_store(l->kv.dtype, check_init(data, BUF_KV),
                            check_lane_row(data, lane, s) + d, NAN);
    if (check_get(data, KEY_FILL) == FILL_NASTY) make_nasty(data);
}

/* The values that an (item, KV head) sees, [slot][head_dim]; the caller frees them. */
static double *values_of(const check_data *data, uint64_t owner) {
    const check_lanes *l = &data->lanes;
    const uint32_t dim = l->kv.head_dim, seen = check_owner_visible(data, owner);
    const uint32_t row = (uint32_t)(owner / l->n_kv_heads),
                   head = (uint32_t)(owner % l->n_kv_heads);
    double *values = check_alloc((uint64_t)seen * dim * sizeof *values);
    for (uint32_t s = 0; s < seen; s++) {
        const uint64_t at =
            check_lane_row(data, check_row_seq(data, row) * l->n_kv_heads + head, s);
        for (uint32_t d = 0; d < dim; d++)
            values[(uint64_t)s * dim + d] =
                check_load(l->kv.dtype, check_init(data, BUF_KV), at + l->kv.value_offset + d);
    }
    return values;
}

/* Sums of integers whose absolute values sum up to less than 2^24 are exact, but not in q8. */
static void put(check_data *data, uint64_t at, double want, double size, double tolerance) {
    const bool exact =
        check_get(data, KEY_FILL) == FILL_INTS && size < 0x1p24 && !check_has_scales(data, BUF_KV);
    ((float *)data->buf[BUF_Y].want)[at] = (float)want;
    data->buf[BUF_Y].tolerance[at] = exact ? 0 : tolerance;
}

/* ---- value_score ----------------------------------------------------------------------------- */

/* The whole lane, a part of it, nothing, or limits that cross. */
static void make_limits(check_data *data) {
    check_rng rng = check_rng_make(data->seed, data->c, BUF_SLOTS);
    int32_t *limits =
        check_buffer_add(data, BUF_SLOTS, ROLE_INPUT, CHECK_I32, 2 * check_owners(data));
    for (uint64_t i = 0; i < check_owners(data); i++) {
        const uint32_t seen = check_owner_visible(data, i), kind = check_below(&rng, 4);
        limits[2 * i] = kind ? (int32_t)check_below(&rng, seen / 2 + 1) : 0;
        limits[2 * i + 1] = (int32_t)(kind < 2 ? seen : seen - check_below(&rng, seen / 2 + 1));
        if (kind == 3 && check_below(&rng, 4) == 0) limits[2 * i + 1] = limits[2 * i] / 2;
    }
}

static void score_make(check_data *data) {
    make_lanes(data);
    const uint64_t owners = check_owners(data), stride = stride_of(data);
    const uint32_t lists = check_get(data, KEY_LISTS);
    const bool nasty = check_get(data, KEY_FILL) == FILL_NASTY;
    check_rng rng = check_rng_make(data->seed, data->c, BUF_X);
    if (!owners) return;
    make_limits(data);
    float *a = check_buffer_add(data, BUF_X, ROLE_OUTPUT, TAMIS_F32, owners * lists * stride);
    data->buf[BUF_X].role = ROLE_INPUT;
    for (uint64_t i = 0; i < owners * lists; i++) {
        const uint32_t seen = check_owner_visible(data, i / lists);
        for (uint32_t s = 0; s < seen; s++)
            a[i * stride + s] = (float)check_finite(&rng, (check_fill)check_get(data, KEY_FILL));
        if (nasty && seen && check_below(&rng, 8) == 0)
            a[i * stride + check_below(&rng, seen)] = NAN;
    }
    check_buffer_add(data, BUF_Y, ROLE_OUTPUT, TAMIS_F32, owners * stride);
}

/* e of one (item, KV head), and the sum of the absolute terms of each. */
static void score_owner(const check_data *data, uint64_t owner, double *e, double *sizes) {
    const uint32_t dim = data->lanes.kv.head_dim, lists = check_get(data, KEY_LISTS);
    const int32_t *limits = (const int32_t *)check_init(data, BUF_SLOTS) + 2 * owner;
    const float *a = (const float *)check_init(data, BUF_X) + owner * lists * stride_of(data);
    double *v = values_of(data, owner), *y = check_alloc(2 * dim * sizeof *y), *abs_y = y + dim;
    for (uint32_t l = 0; l < lists; l++, a += stride_of(data)) {
        for (uint32_t d = 0; d < dim; d++) {
            y[d] = abs_y[d] = 0;
            for (int32_t s = limits[0]; s < limits[1]; s++) {
                y[d] += a[s] * v[(uint64_t)s * dim + d];
                abs_y[d] += fabs(a[s] * v[(uint64_t)s * dim + d]);
            }
        }
        for (uint32_t s = 0; s < check_owner_visible(data, owner); s++)
            for (uint32_t d = 0; d < dim; d++) {
                e[s] += a[s] * y[d] * v[(uint64_t)s * dim + d];
                sizes[s] += fabs(a[s] * v[(uint64_t)s * dim + d]) * abs_y[d];
            }
    }
    free(y);
    free(v);
}

static void score_oracle(check_data *data) {
    const uint64_t stride = stride_of(data);
    double *e = check_alloc(2 * stride * sizeof *e), *sizes = e + stride;
    check_want(data, BUF_Y, true);
    for (uint64_t i = 0; i < check_owners(data); i++) {
        for (uint64_t s = 0; s < 2 * stride; s++)
            e[s] = 0;
        score_owner(data, i, e, sizes);
        for (uint32_t s = 0; s < check_owner_visible(data, i); s++)
            put(data, i * stride + s, e[s], sizes[s], 4e-6 * sizes[s]);
    }
    free(e);
}

/* Infinite or NaN: both may come of an infinite value. */
static void score_settle(const check_data *data, void *const *arrays) {
    float *out = arrays[BUF_Y];
    for (uint64_t i = 0; i < data->buf[BUF_Y].count; i++)
        if (isinf(out[i])) out[i] = NAN;
}

static tamis_status score_launch(check_side *side, check_rows rows) {
    const check_data *data = side->data;
    const uint64_t owner = (uint64_t)rows.first * data->lanes.n_kv_heads;
    const uint64_t stride = stride_of(data);
    tms_value_score p = {
        .kv = check_kv(side),
        .batch = check_batch(side, rows),
        .n_lists = check_get(data, KEY_LISTS),
        .a = check_ref(side, BUF_X, owner * check_get(data, KEY_LISTS) * stride),
        .limits = check_ref(side, BUF_SLOTS, owner * 2),
        .out = check_ref(side, BUF_Y, owner * stride),
        .stride = stride,
        .out_stride = stride,
    };
    p.scratch = check_scratch(side, tms_value_score_scratch(side->dev, &p));
    return tms_run_value_score(side->dev, &p, &side->error);
}

static uint64_t score_bytes(const check_data *data) {
    return check_all_visible(data) *
           (2 * check_value_bytes(data) + 8ull * check_get(data, KEY_LISTS) + 4);
}

static const char *score_reject(const check_case *c) {
    return c->v[KEY_LISTS] ? check_lanes_reject(c) : "lists is at least 1";
}

const check_op check_op_value_score = {
    .name = "value_score",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_DTYPE, TAMIS_F16},
                                        {KEY_LAYOUT, LAYOUT_OWN},
                                        {KEY_B, 1},
                                        {KEY_R, 1},
                                        {KEY_HKV, 2},
                                        {KEY_D, 64},
                                        {KEY_PAGE, 16},
                                        {KEY_KV, 100},
                                        {KEY_EVEN, 0},
                                        {KEY_LISTS, 4},
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){CHECK_FILLS,
                                      CHECK_DTYPES,
                                      CHECK_LAYOUTS,
                                      {KEY_D, 2, {64, 128}},
                                      CHECK_PAGE_SIZES,
                                      {KEY_KV, 4, {1, 17, 90, 300}},
                                      {KEY_LISTS, 5, {1, 4, 5, 8, 33}},
                                      {KEY_B, 2, {1, 3}},
                                      {KEY_R, 2, {1, 2}},
                                      {KEY_HKV, 2, {1, 2}},
                                      {KEY_COUNT, 0, {0}}},
    .entries = (const check_entry[]){{LIST_SMOKE, "ints:b2:kv9"},
                                     {LIST_SMOKE, "normal:b2"},
                                     {LIST_SMOKE, "nasty:b3"},
                                     {LIST_CI, "r0"},
                                     {LIST_CI, "normal:kv2100:hkv3:lists5"}, /* three blocks */
                                     {LIST_CI, "nasty:f16:b3:d128:kv1025:hkv2:lists2"},
                                     {LIST_CI, "normal:bf16:d512:kv70:lists256:hkv1"},
                                     {LIST_CI, "nasty:hnd:d80:kv70:lists3"},
                                     {LIST_CI, "nasty:q8:hnd:d80:kv70:lists3"},
                                     {LIST_FULL, "normal:d96:kv1100:lists7"},
                                     {LIST_FULL, "normal:f32:d256:kv1100:lists7"},
                                     {LIST_FULL, "normal:d128:kv20000:lists32"},
                                     {LIST_OCLGRIND, "nasty:b2:kv37:lists5"},
                                     {LIST_OCLGRIND, "bf16:nhd:d80:kv20:lists2"},
                                     {LIST_BENCH, "f16:hkv8:d128:kv4096:lists128:even"},
                                     {LIST_BENCH, "f16:hkv2:d128:kv32768:lists128:even"},
                                     {0, NULL}},
    .reject = score_reject,
    .make = score_make,
    .oracle = score_oracle,
    .launch = score_launch,
    .settle = score_settle,
    .rows = check_lanes_rows,
    .rows_alone = true,
    .bytes = score_bytes,
};

/* ---- value_norm ------------------------------------------------------------------------------ */

static uint64_t w_stride(const check_data *data) {
    const check_lanes *l = &data->lanes;
    return (uint64_t)l->n_kv_heads * l->group * l->kv.head_dim + check_get(data, KEY_PAD);
}

static void norm_make(check_data *data) {
    make_lanes(data);
    const uint32_t n_out = check_get(data, KEY_OUT);
    if (!check_owners(data)) return;
    if (check_get(data, KEY_NORM) == TMS_VALUE_L1_PROJECTED) {
        check_buffer_add(data, BUF_W, ROLE_INPUT, check_get(data, KEY_WEIGHT),
                         n_out * w_stride(data));
        check_fill_matrix(data, BUF_W, n_out, w_stride(data) - check_get(data, KEY_PAD),
                          w_stride(data));
    }
    check_buffer_add(data, BUF_Y, ROLE_OUTPUT, TAMIS_F32, check_owners(data) * stride_of(data));
}

/* Σ_o |Σ_c w[o][head*dim + c]·v[c]| of one query head, and the sum of the absolute terms. */
static double projected(const check_data *data, uint32_t query_head, const double *v,
                        const float *w, double *size) {
    const uint32_t dim = data->lanes.kv.head_dim;
    double norm = 0;
    w += (uint64_t)query_head * dim;
    for (uint32_t o = 0; o < check_get(data, KEY_OUT); o++, w += w_stride(data)) {
        double sum = 0;
        for (uint32_t c = 0; c < dim; c++) {
            sum += w[c] * v[c];
            *size += fabs(w[c] * v[c]);
        }
        norm += fabs(sum);
    }
    return norm;
}

static void norm_slot(check_data *data, uint64_t owner, uint32_t slot, const double *v,
                      const float *w) {
    const check_lanes *l = &data->lanes;
    const uint32_t dim = l->kv.head_dim, head = (uint32_t)(owner % l->n_kv_heads);
    const uint64_t at = owner * stride_of(data) + slot;
    double sum = 0, size = 0;
    if (!w) {
        for (uint32_t c = 0; c < dim; c++)
            sum += v[c] * v[c];
        put(data, at, sqrt(sum), INFINITY, 3e-6 * (1 + log2(dim)) * sqrt(sum));
        return;
    }
    for (uint32_t g = 0; g < l->group; g++)
        sum += projected(data, head * l->group + g, v, w, &size);
    const bool halves = (l->group & (l->group - 1)) == 0; /* the division is exact */
    put(data, at, sum / l->group, halves ? size : INFINITY,
        3e-6 * (1 + log2((double)dim * check_get(data, KEY_OUT))) * size / l->group);
}

static void norm_oracle(check_data *data) {
    const check_buffer *b = &data->buf[BUF_W];
    float *w = b->role == ROLE_ABSENT ? NULL : check_widen(b->type, b->init, b->count);
    check_want(data, BUF_Y, true);
    for (uint64_t i = 0; i < check_owners(data); i++) {
        double *v = values_of(data, i);
        for (uint32_t s = 0; s < check_owner_visible(data, i); s++)
            norm_slot(data, i, s, v + (uint64_t)s * data->lanes.kv.head_dim, w);
        free(v);
    }
    free(w);
}

static tamis_status norm_launch(check_side *side, check_rows rows) {
    const check_data *data = side->data;
    const uint64_t owner = (uint64_t)rows.first * data->lanes.n_kv_heads;
    const tms_value_norm p = {
        .kv = check_kv(side),
        .batch = check_batch(side, rows),
        .kind = (tms_value_norm_kind)check_get(data, KEY_NORM),
        .w = check_ref(side, BUF_W, 0),
        .w_dtype = (tamis_dtype)check_get(data, KEY_WEIGHT),
        .w_stride = w_stride(data),
        .n_out = check_get(data, KEY_OUT),
        .out = check_ref(side, BUF_Y, owner * stride_of(data)),
        .out_stride = stride_of(data),
    };
    return tms_run_value_norm(side->dev, &p, &side->error);
}

static uint64_t norm_bytes(const check_data *data) {
    return check_all_visible(data) * (check_value_bytes(data) + 4) +
           data->buf[BUF_W].count * check_type_size(data->buf[BUF_W].type);
}

static const char *norm_reject(const check_case *c) {
    if (c->v[KEY_PAD] % 8) return "rows of w do not begin at multiples of 16 bytes";
    return c->v[KEY_OUT] && c->v[KEY_G] ? check_lanes_reject(c) : "out and g are at least 1";
}

static bool norm_cpu_form(const check_case *c) {
    return c->v[KEY_NORM] == TMS_VALUE_L1_PROJECTED;
}

const check_op check_op_value_norm = {
    .name = "value_norm",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_DTYPE, TAMIS_F16},
                                        {KEY_LAYOUT, LAYOUT_OWN},
                                        {KEY_B, 1},
                                        {KEY_R, 1},
                                        {KEY_HKV, 2},
                                        {KEY_G, 1},
                                        {KEY_D, 64},
                                        {KEY_PAGE, 16},
                                        {KEY_KV, 100},
                                        {KEY_OUT, 21},
                                        {KEY_PAD, 0},
                                        {KEY_EVEN, 0},
                                        {KEY_NORM, TMS_VALUE_L1_PROJECTED},
                                        {KEY_WEIGHT, TAMIS_F16},
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){CHECK_FILLS,
                                      {KEY_WEIGHT, 3, {TAMIS_F32, TAMIS_F16, TAMIS_BF16}},
                                      CHECK_LAYOUTS,
                                      {KEY_D, 2, {64, 128}},
                                      {KEY_G, 4, {1, 4, 5, 8}},
                                      {KEY_OUT, 4, {1, 4, 35, 70}},
                                      {KEY_KV, 4, {1, 17, 50, 97}},
                                      CHECK_PAGE_SIZES,
                                      {KEY_B, 2, {1, 2}},
                                      {KEY_R, 2, {1, 2}},
                                      {KEY_PAD, 2, {0, 8}},
                                      {KEY_COUNT, 0, {0}}},
    .entries = (const check_entry[]){{LIST_SMOKE, "ints:b2:g4:l1:out8"},
                                     {LIST_SMOKE, "normal:b2:g4:l1"},
                                     {LIST_SMOKE, "nasty:b2:l2"},
                                     {LIST_CI, "r0:l1"},
                                     {LIST_CI, "r0:l2"},
                                     {LIST_CI, "nasty:b3:r2:nhd:d128:kv300:l2"},
                                     {LIST_CI, "nasty:bf16:page8:kv70:l2"},
                                     {LIST_CI, "nasty:q8:b2:d80:kv70:l2"},
                                     {LIST_CI, "normal:q8:d128:page32:kv70:g4:l1"},
                                     {LIST_CI, "nasty:k8v4:b2:d80:kv70:l2"},
                                     {LIST_CI, "nasty:q4:b2:d80:kv70:l2"},
                                     {LIST_CI, "normal:k8v4:d512:page32:kv70:g4:l1"},
                                     {LIST_CI, "normal:k8v4:d64:kv70:g4:l1"},
                                     {LIST_CI, "normal:q4:d64:kv70:g4:l1"},
                                     {LIST_CI, "normal:bf16:d64:page64:kv130:g5:l1:wbf16"},
                                     {LIST_CI, "normal:f32:d80:kv40:g3:l1:wf32"},
                                     {LIST_FULL, "normal:f32:d256:kv40:g2:l1:wf16"},
                                     {LIST_FULL, "normal:d96:kv300:g4:out300:l1"},
                                     {LIST_FULL, "nasty:bf16:b3:r2:d256:kv300:l2"},
                                     {LIST_FULL, "normal:bf16:d256:kv100:g8:out70:l1:wf32"},
                                     {LIST_OCLGRIND, "f16:g2:kv37:out7:l1"},
                                     {LIST_OCLGRIND, "bf16:nhd:d80:page8:kv20:g3:out5:l1:wbf16"},
                                     {LIST_OCLGRIND, "nasty:b2:kv37:l2"},
                                     {LIST_BENCH, "f16:hkv2:g4:d128:kv4096:out4096:even:l1"},
                                     {LIST_BENCH, "f16:hkv8:d128:kv32768:even:l2"},
                                     {0, NULL}},
    .compiled = (const check_key[]){KEY_D, KEY_G, KEY_WEIGHT, KEY_PAGE, KEY_COUNT},
    .reject = norm_reject,
    .make = norm_make,
    .oracle = norm_oracle,
    .launch = norm_launch,
    .rows = check_lanes_rows,
    .cpu_form = norm_cpu_form,
    .cpu_shapes = true,
    .rows_alone = true,
    .bytes = norm_bytes,
};
