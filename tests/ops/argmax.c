/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of argmax: ties take the lowest index, NaN comes after everything. */
#include "check.h"

#include <math.h>

static uint64_t stride(const check_data *data) {
    return check_get(data, KEY_D) + check_get(data, KEY_PAD);
}

/* Nasty rows also are all NaN, all -inf but one NaN, or all equal. */
static float nasty(check_rng *rng, uint32_t row, uint32_t i) {
    switch (row % 4) {
    case 0:
        return NAN;
    case 1:
        return i == 0 ? NAN : -INFINITY;
    case 2:
        return i % 2 ? 0.0f : -0.0f;
    default:
        return (float)check_value(rng, FILL_NASTY);
    }
}

static void make(check_data *data) {
    const uint32_t r = check_get(data, KEY_R), dim = check_get(data, KEY_D);
    if (!r) return;
    float *x = check_buffer_add(data, BUF_X, ROLE_INPUT, TAMIS_F32, r * stride(data));
    check_fill_matrix(data, BUF_X, r, dim, stride(data));
    check_rng rng = check_rng_make(data->seed, data->c, BUF_Y);
    for (uint32_t row = 0; row < r && check_get(data, KEY_FILL) == FILL_NASTY; row++)
        for (uint32_t i = 0; i < dim; i++)
            x[row * stride(data) + i] = nasty(&rng, row, i);
    check_buffer_add(data, BUF_SLOTS, ROLE_OUTPUT, CHECK_I32, r);
}

static void oracle(check_data *data) {
    check_want(data, BUF_SLOTS, false);
    for (uint32_t r = 0; r < check_get(data, KEY_R); r++) {
        const float *x = (float *)check_init(data, BUF_X) + r * stride(data);
        uint32_t best = 0;
        for (uint32_t i = 1; i < check_get(data, KEY_D); i++)
            if (x[i] > x[best] || (isnan(x[best]) && !isnan(x[i]))) best = i;
        ((int32_t *)data->buf[BUF_SLOTS].want)[r] = (int32_t)best;
    }
}

static tamis_status launch(check_side *side, check_rows rows) {
    const uint64_t step = stride(side->data);
    const tms_argmax p = {
        .x = {check_ref(side, BUF_X, rows.first * step), step},
        .n_rows = rows.count,
        .dim = check_get(side->data, KEY_D),
        .out = check_ref(side, BUF_SLOTS, rows.first),
    };
    return tms_run_argmax(side->dev, &p, &side->error);
}

static const char *reject(const check_case *c) {
    return c->v[KEY_D] ? NULL : "d is at least 1";
}

static uint64_t bytes(const check_data *data) {
    return 4ull * check_get(data, KEY_R) * check_get(data, KEY_D);
}

const check_op check_op_argmax = {
    .name = "argmax",
    .defaults =
        (const check_default[]){
            {KEY_FILL, FILL_NORMAL}, {KEY_R, 3}, {KEY_D, 256}, {KEY_PAD, 0}, {KEY_COUNT, 0}},
    .factors = (const check_factor[]){CHECK_FILLS,
                                      {KEY_R, 3, {1, 4, 50}},
                                      {KEY_D, 6, {1, 2, 63, 300, 1000, 33000}},
                                      {KEY_PAD, 2, {0, 3}},
                                      {KEY_COUNT, 0, {0}}},
    .entries = (const check_entry[]){{LIST_SMOKE, "nasty:r9"},
                                     {LIST_SMOKE, "ints"},
                                     {LIST_CI, "r0"},
                                     {LIST_OCLGRIND, "nasty:d70:r4"},
                                     {LIST_BENCH, "r8:d128256"},
                                     {0, NULL}},
    .reject = reject,
    .make = make,
    .oracle = oracle,
    .launch = launch,
    .rows = check_plain_rows,
    .rows_alone = true,
    .exact = true,
    .bytes = bytes,
};
