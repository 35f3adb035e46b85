/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of sink: a logit without a value in the softmax of each head. */
#include "check.h"

#include <math.h>

static uint64_t width(const check_data *data) {
    return (uint64_t)check_get(data, KEY_HKV) * check_get(data, KEY_D);
}
static uint64_t stride(const check_data *data) {
    return width(data) + check_get(data, KEY_PAD);
}

/* Nasty states: some are dead, some hold NaN. */
static void make(check_data *data) {
    const uint32_t n = check_get(data, KEY_R), heads = check_get(data, KEY_HKV);
    const uint32_t dim = check_get(data, KEY_D);
    check_sinks_make(data, heads);
    if (!n) return;
    float *out = check_buffer_add(data, BUF_Y, ROLE_UPDATE, TAMIS_F32, n * stride(data));
    check_fill_matrix(data, BUF_Y, n, width(data), stride(data));
    float *lse = check_buffer_add(data, BUF_LSE, ROLE_UPDATE, TAMIS_F32, (uint64_t)n * heads);
    check_rng rng = check_rng_make(data->seed, data->c, BUF_LSE);
    for (uint64_t i = 0; i < (uint64_t)n * heads; i++) {
        float *of = out + i / heads * stride(data) + i % heads * dim;
        const uint32_t kind = check_get(data, KEY_FILL) == FILL_NASTY ? check_below(&rng, 4) : 2;
        lse[i] = kind == 0 ? -INFINITY : kind == 1 ? NAN : (float)(6 * check_normal(&rng));
        for (uint32_t d = 0; d < dim; d++)
            of[d] = kind == 0 ? 0.0f : kind == 1 ? NAN : isfinite(of[d]) ? of[d] : 1.0f;
    }
}

static void oracle(check_data *data) {
    const uint32_t n = check_get(data, KEY_R), heads = check_get(data, KEY_HKV);
    const uint32_t dim = check_get(data, KEY_D);
    const float *out = n ? check_init(data, BUF_Y) : NULL,
                *lse = n ? check_init(data, BUF_LSE) : NULL;
    check_want(data, BUF_Y, true);
    check_want(data, BUF_LSE, true);
    for (uint64_t i = 0; i < (uint64_t)n * heads; i++) {
        const double sink = check_sink(data, i % heads), before = lse[i];
        const double after = log(exp(before) + exp(sink));
        const uint64_t at = i / heads * stride(data) + i % heads * dim;
        if (sink == -INFINITY) continue;
        ((float *)data->buf[BUF_LSE].want)[i] = (float)after;
        data->buf[BUF_LSE].tolerance[i] = before == -INFINITY ? 0 : 1e-6 * (1 + fabs(after));
        for (uint32_t d = 0; d < dim; d++) {
            const double want = out[at + d] * exp(before - after);
            ((float *)data->buf[BUF_Y].want)[at + d] = (float)want;
            data->buf[BUF_Y].tolerance[at + d] =
                before == -INFINITY ? 0 : fabs(want) * (1e-6 + 2e-7 * (fabs(before) + fabs(sink)));
        }
    }
}

static tamis_status launch(check_side *side, check_rows rows) {
    const check_data *data = side->data;
    const tms_sink p = {
        .n_rows = rows.count,
        .n_heads = check_get(data, KEY_HKV),
        .dim = check_get(data, KEY_D),
        .out = {check_ref(side, BUF_Y, rows.first * stride(data)), stride(data)},
        .lse = check_ref(side, BUF_LSE, (uint64_t)rows.first * check_get(data, KEY_HKV)),
        .sinks = check_ref(side, BUF_SINKS, 0),
    };
    return tms_run_sink(side->dev, &p, &side->error);
}

static uint64_t bytes(const check_data *data) {
    return 8ull * check_get(data, KEY_R) * (width(data) + check_get(data, KEY_HKV));
}

static const char *reject(const check_case *c) {
    return c->v[KEY_HKV] && c->v[KEY_D] && c->v[KEY_SINK] ? NULL : "hkv, d and sink are at least 1";
}

const check_op check_op_sink = {
    .name = "sink",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_R, 3},
                                        {KEY_HKV, 4},
                                        {KEY_D, 64},
                                        {KEY_PAD, 0},
                                        {KEY_SINK, 1},
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){{KEY_FILL, 2, {FILL_NORMAL, FILL_NASTY}},
                                      {KEY_R, 4, {1, 2, 9, 130}},
                                      {KEY_HKV, 4, {1, 3, 4, 33}},
                                      CHECK_HEAD_DIMS,
                                      {KEY_PAD, 2, {0, 5}},
                                      {KEY_COUNT, 0, {0}}},
    .entries = (const check_entry[]){{LIST_SMOKE, "normal:r9:pad3"},
                                     {LIST_SMOKE, "nasty:r9"},
                                     {LIST_CI, "r0"},
                                     {LIST_CI, "r4100:hkv33"}, /* more than strided grids have */
                                     {LIST_OCLGRIND, "nasty:r2:pad1"},
                                     {LIST_BENCH, "r4096:hkv32:d128"},
                                     {0, NULL}},
    .reject = reject,
    .make = make,
    .oracle = oracle,
    .launch = launch,
    .rows = check_plain_rows,
    .rows_alone = true,
    .bytes = bytes,
};
