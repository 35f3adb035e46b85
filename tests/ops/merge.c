/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of merge: states of the same rows into one, dead parts, and one live part bit for bit. */
#include "check.h"

#include <math.h>

static uint64_t n_states(const check_data *data) {
    return (uint64_t)check_get(data, KEY_PARTS) * check_get(data, KEY_N);
}

/* Nasty parts are dead with NaN in out, and some rows have one live part or none. */
static void make(check_data *data) {
    const uint32_t n = check_get(data, KEY_N), dim = check_get(data, KEY_D);
    const bool nasty = check_get(data, KEY_FILL) == FILL_NASTY;
    if (!n) return;
    float *outs = check_buffer_add(data, BUF_X, ROLE_INPUT, TAMIS_F32, n_states(data) * dim);
    check_fill_matrix(data, BUF_X, n_states(data), dim, dim);
    float *lses = check_buffer_add(data, BUF_W, ROLE_INPUT, TAMIS_F32, n_states(data));
    check_rng rng = check_rng_make(data->seed, data->c, BUF_W);
    for (uint64_t i = 0; i < n_states(data); i++) {
        const uint32_t row = (uint32_t)(i % n), part = (uint32_t)(i / n);
        const bool dead =
            row % 4 == 1 || (row % 4 == 2 && part != row % check_get(data, KEY_PARTS));
        lses[i] = (float)(3 * check_normal(&rng) + (row % 5) * 20);
        if (!nasty || (!dead && check_below(&rng, 4))) continue;
        lses[i] = -INFINITY;
        for (uint32_t d = 0; d < dim; d++)
            outs[i * dim + d] = NAN;
    }
    check_buffer_add(data, BUF_Y, ROLE_OUTPUT, TAMIS_F32, (uint64_t)n * dim);
    if (!check_get(data, KEY_NOLSE)) check_buffer_add(data, BUF_LSE, ROLE_OUTPUT, TAMIS_F32, n);
}

static void merge_row(check_data *data, uint32_t row) {
    const uint32_t n = check_get(data, KEY_N), dim = check_get(data, KEY_D);
    const float *outs = check_init(data, BUF_X), *lses = check_init(data, BUF_W);
    check_buffer *out = &data->buf[BUF_Y], *lse = &data->buf[BUF_LSE];
    double most = -INFINITY, total = 0, size = 0;
    uint32_t live = 0;
    for (uint64_t i = row; i < n_states(data); i += n) {
        most = fmax(most, lses[i]);
        live += !isinf(lses[i]);
        for (uint32_t d = 0; d < dim && !isinf(lses[i]); d++)
            size = fmax(size, fabs(outs[i * dim + d]));
    }
    for (uint64_t i = row; i < n_states(data); i += n)
        total += live ? exp(lses[i] - most) : 0;
    for (uint32_t d = 0; d < dim; d++) {
        double sum = 0;
        for (uint64_t i = row; i < n_states(data); i += n)
            sum += isinf(lses[i]) ? 0 : exp(lses[i] - most) / total * outs[i * dim + d];
        ((float *)out->want)[row * (uint64_t)dim + d] = (float)sum;
        out->tolerance[row * (uint64_t)dim + d] = live > 1 ? 1e-6 * size : 0;
    }
    if (!lse->want) return;
    const double value = live ? most + log(total) : -INFINITY;
    ((float *)lse->want)[row] = (float)value;
    lse->tolerance[row] = live > 1 ? 1e-6 * (1 + fabs(value)) : 0;
}

static void oracle(check_data *data) {
    check_want(data, BUF_Y, true);
    check_want(data, BUF_LSE, true);
    for (uint32_t row = 0; row < check_get(data, KEY_N); row++)
        merge_row(data, row);
}

static tamis_status launch(check_side *side, check_rows rows) {
    const tms_merge p = {
        .n_parts = check_get(side->data, KEY_PARTS),
        .n = rows.count,
        .dim = check_get(side->data, KEY_D),
        .outs = check_ref(side, BUF_X, 0),
        .lses = check_ref(side, BUF_W, 0),
        .out = check_ref(side, BUF_Y, 0),
        .lse = check_ref(side, BUF_LSE, 0),
    };
    return tms_run_merge(side->dev, &p, &side->error);
}

static uint32_t rows(const check_data *data) {
    return check_get(data, KEY_N);
}

static const char *reject(const check_case *c) {
    return c->v[KEY_PARTS] && c->v[KEY_D] ? NULL : "parts and d are at least 1";
}

static uint64_t bytes(const check_data *data) {
    return 4ull * (check_get(data, KEY_PARTS) + 1) * check_get(data, KEY_N) *
           (check_get(data, KEY_D) + 1);
}

/* Rows of a launch are not adjacent in memory, so none is launched alone. */
const check_op check_op_merge = {
    .name = "merge",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_D, 64},
                                        {KEY_N, 9},
                                        {KEY_PARTS, 3},
                                        {KEY_NOLSE, 0},
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){CHECK_FILLS,
                                      CHECK_HEAD_DIMS,
                                      {KEY_N, 4, {1, 2, 9, 130}},
                                      {KEY_PARTS, 4, {1, 2, 3, 17}},
                                      {KEY_NOLSE, 2, {0, 1}},
                                      {KEY_COUNT, 0, {0}}},
    .entries = (const check_entry[]){{LIST_SMOKE, "normal"},
                                     {LIST_SMOKE, "nasty"},
                                     {LIST_CI, "n0"},
                                     {LIST_OCLGRIND, "nasty:d64:n5"},
                                     {LIST_OCLGRIND, "d80:n2:nolse"},
                                     {LIST_BENCH, "d128:n4096:parts4"},
                                     {0, NULL}},
    .reject = reject,
    .make = make,
    .oracle = oracle,
    .launch = launch,
    .rows = rows,
    .bytes = bytes,
};
