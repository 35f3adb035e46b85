/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of pool_values against its formula in fp64. */
#include "check.h"

#include <math.h>
#include <string.h>

#define SLACK 3u /* values behind a list that are left alone */

static uint64_t stride_of(const check_data *data) {
    return check_get(data, KEY_KV) + SLACK;
}

static uint64_t lists_of(const check_data *data) {
    const check_lanes *l = &data->lanes;
    return (uint64_t)l->n_rows * l->n_kv_heads * check_get(data, KEY_LISTS);
}

/* Values that take part in a list. */
static uint32_t pooled(const check_data *data, uint64_t list) {
    const uint32_t lane = (uint32_t)(list / check_get(data, KEY_LISTS));
    const uint32_t heads = data->lanes.n_kv_heads, tail = check_get(data, KEY_TAIL);
    const uint32_t seen = check_visible(data, lane / heads, lane % heads);
    return seen > tail ? seen - tail : 0;
}

/* The rescaled are weights, not below 0, and one list in three is 0 throughout; else nasty lists
 * may have values that are not finite. */
static void fill_list(const check_data *data, uint64_t list, check_rng *rng, float *x) {
    static const double odd[] = {NAN, INFINITY, -INFINITY};
    const bool keep = check_get(data, KEY_KEEP), nasty = check_get(data, KEY_FILL) == FILL_NASTY;
    const uint32_t n = pooled(data, list), kind = check_below(rng, 3);
    for (uint32_t s = 0; s < n; s++) {
        x[s] = (float)check_finite(rng, (check_fill)check_get(data, KEY_FILL));
        if (keep) x[s] = kind ? fabsf(x[s]) : 0;
    }
    if (nasty && n && kind) x[check_below(rng, n)] = (float)odd[check_below(rng, 3)];
}

static void make(check_data *data) {
    check_lanes_make(data, ROLE_ABSENT);
    const uint64_t lists = lists_of(data), stride = stride_of(data);
    check_rng rng = check_rng_make(data->seed, data->c, BUF_X);
    if (!lists) return;
    float *x = check_buffer_add(data, BUF_X, ROLE_OUTPUT, TAMIS_F32, lists * stride); /* NaN */
    data->buf[BUF_X].role = ROLE_INPUT;
    for (uint64_t i = 0; i < lists; i++)
        fill_list(data, i, &rng, x + i * stride);
    check_buffer_add(data, BUF_Y, ROLE_OUTPUT, TAMIS_F32, lists * stride);
}

/* One window; *size: the mean of |x| in it. */
static double window(const check_data *data, const float *x, uint32_t n, uint32_t slot,
                     double *size) {
    const int64_t width = check_get(data, KEY_KERNEL);
    const bool largest = check_get(data, KEY_POOLING) == TAMIS_POOL_MAX;
    double most = -INFINITY, sum = 0;
    *size = 0;
    for (int64_t s = (int64_t)slot - width / 2; s <= (int64_t)slot + width / 2; s++) {
        if (s < 0 || s >= n) continue;
        most = isnan(x[s]) || isnan(most) ? NAN : fmax(most, x[s]);
        sum += x[s];
        *size += fabs(x[s]) / (double)width;
    }
    return largest ? most : sum / (double)width;
}

static double factor_of(const check_data *data, const float *x, uint32_t n) {
    double before = 0, after = 0, size;
    for (uint32_t s = 0; s < n; s++) {
        before += x[s];
        after += window(data, x, n, s, &size);
    }
    return check_get(data, KEY_KEEP) && isfinite(before / after) ? before / after : 1;
}

static void oracle(check_data *data) {
    const uint64_t stride = stride_of(data);
    const bool keep = check_get(data, KEY_KEEP);
    const bool exact = check_get(data, KEY_POOLING) == TAMIS_POOL_MAX;
    check_want(data, BUF_Y, true);
    for (uint64_t i = 0; i < lists_of(data); i++) {
        const float *x = (const float *)check_init(data, BUF_X) + i * stride;
        const uint32_t n = pooled(data, i);
        const double factor = factor_of(data, x, n);
        for (uint32_t s = 0; s < n; s++) {
            double size;
            const double want = window(data, x, n, s, &size) * factor;
            ((float *)data->buf[BUF_Y].want)[i * stride + s] = (float)want;
            data->buf[BUF_Y].tolerance[i * stride + s] =
                exact ? 0 : 1e-6 * size * factor + (keep ? 3e-6 * fabs(want) : 0);
        }
    }
}

static tamis_status launch(check_side *side, check_rows rows) {
    const check_data *data = side->data;
    const uint64_t each = data->lanes.n_kv_heads * check_get(data, KEY_LISTS) * stride_of(data);
    const tms_pool_values p = {
        .batch = check_batch(side, rows),
        .n_lists = check_get(data, KEY_LISTS),
        .tail = check_get(data, KEY_TAIL),
        .kernel = check_get(data, KEY_KERNEL),
        .kind = (tamis_pooling)check_get(data, KEY_POOLING),
        .keep_sum = check_get(data, KEY_KEEP),
        .x = check_ref(side, BUF_X, rows.first * each),
        .out = check_ref(side, BUF_Y, rows.first * each),
        .stride = stride_of(data),
    };
    return tms_run_pool_values(side->dev, &p, &side->error);
}

static uint64_t bytes(const check_data *data) {
    uint64_t n = 0;
    for (uint64_t i = 0; i < lists_of(data); i++)
        n += pooled(data, i);
    return 8 * n;
}

static const char *reject(const check_case *c) {
    if (c->v[KEY_KERNEL] % 2 == 0) return "the kernel is not odd";
    if (c->v[KEY_KEEP] && c->v[KEY_POOLING] != TAMIS_POOL_AVERAGE) return "a largest keeps no sum";
    return c->v[KEY_B] && c->v[KEY_HKV] && c->v[KEY_KV] && c->v[KEY_LISTS] && c->v[KEY_PAGE]
               ? NULL
               : "b, hkv, kv, lists and page are at least 1";
}

const check_op check_op_pool_values = {
    .name = "pool_values",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_B, 1},
                                        {KEY_R, 1},
                                        {KEY_HKV, 2},
                                        {KEY_PAGE, 16},
                                        {KEY_KV, 200},
                                        {KEY_EVEN, 0},
                                        {KEY_LISTS, 1},
                                        {KEY_TAIL, 0},
                                        {KEY_KERNEL, 5},
                                        {KEY_POOLING, TAMIS_POOL_MAX},
                                        {KEY_KEEP, 0},
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){CHECK_FILLS,
                                      {KEY_POOLING, 2, {TAMIS_POOL_MAX, TAMIS_POOL_AVERAGE}},
                                      {KEY_KERNEL, 5, {1, 3, 7, 21, 63}},
                                      {KEY_KV, 5, {1, 16, 17, 255, 1300}},
                                      {KEY_TAIL, 3, {0, 1, 32}},
                                      {KEY_LISTS, 3, {1, 2, 9}},
                                      {KEY_B, 2, {1, 3}},
                                      {KEY_R, 2, {1, 3}},
                                      {KEY_HKV, 2, {1, 2}},
                                      {KEY_KEEP, 2, {0, 1}},
                                      {KEY_COUNT, 0, {0}}},
    .entries = (const check_entry[]){{LIST_SMOKE, "normal:b2:tail32:maxpool"},
                                     {LIST_SMOKE, "nasty:b2:lists4:average"},
                                     {LIST_SMOKE, "normal:b2:lists4:tail8:average:keep"},
                                     {LIST_CI, "r0"},
                                     {LIST_CI, "r0:average:keep"},
                                     {LIST_CI, "nasty:even:kv200:tail200:average:keep"}, /* none */
                                     {LIST_CI, "nasty:b2:kv9:kernel63:maxpool"}, /* all windows */
                                     {LIST_CI, "normal:kv40000:tail32:kernel7:average:keep"},
                                     {LIST_OCLGRIND, "nasty:b2:kv37:tail5:maxpool"},
                                     {LIST_OCLGRIND, "normal:kv70:lists2:average:keep"},
                                     {LIST_BENCH, "normal:hkv8:kv32768:lists128:even:maxpool"},
                                     {LIST_BENCH, "normal:hkv8:kv32768:lists128:even:average:keep"},
                                     {0, NULL}},
    .reject = reject,
    .make = make,
    .oracle = oracle,
    .launch = launch,
    .rows = check_lanes_rows,
    .rows_alone = true,
    .bytes = bytes,
};
