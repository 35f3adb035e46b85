/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of norm (RMSNorm), in place and not. */
#include "check.h"

#include <math.h>

#define EPS 1e-5f

static uint64_t stride(const check_data *data) {
    return check_get(data, KEY_D) + check_get(data, KEY_PAD);
}

static check_id target(const check_data *data) {
    return check_get(data, KEY_SAME) ? BUF_X : BUF_Y;
}

static void make(check_data *data) {
    const uint32_t r = check_get(data, KEY_R), dim = check_get(data, KEY_D);
    check_buffer_add(data, BUF_W, ROLE_INPUT, TAMIS_F32, dim);
    check_fill_matrix(data, BUF_W, 1, dim, dim);
    if (!r) return;
    check_buffer_add(data, BUF_X, ROLE_INPUT, TAMIS_F32, r * stride(data));
    check_fill_matrix(data, BUF_X, r, dim, stride(data));
    if (check_get(data, KEY_FILL) == FILL_NASTY)
        for (uint32_t i = 0; i < dim; i++)
            ((float *)check_init(data, BUF_X))[i] = 0; /* eps alone decides */
    if (check_get(data, KEY_SAME))
        data->buf[BUF_X].role = ROLE_UPDATE;
    else
        check_buffer_add(data, BUF_Y, ROLE_OUTPUT, TAMIS_F32, r * stride(data));
}

static void oracle(check_data *data) {
    const uint32_t dim = check_get(data, KEY_D);
    check_buffer *to = &data->buf[target(data)];
    const float *w = check_init(data, BUF_W);
    check_want(data, target(data), true);
    for (uint32_t r = 0; r < check_get(data, KEY_R); r++) {
        const float *x = (float *)check_init(data, BUF_X) + r * stride(data);
        double squares = 0;
        for (uint32_t i = 0; i < dim; i++)
            squares += (double)x[i] * x[i];
        const double factor = 1 / sqrt(squares / dim + EPS);
        for (uint32_t i = 0; i < dim; i++) {
            const double y = x[i] * factor * w[i];
            ((float *)to->want)[r * stride(data) + i] = (float)y;
            to->tolerance[r * stride(data) + i] = 2e-6 * fabs(y);
        }
    }
}

static tamis_status launch(check_side *side, check_rows rows) {
    const uint64_t step = stride(side->data), at = rows.first * step;
    const tms_norm p = {
        .x = {check_ref(side, BUF_X, at), step},
        .y = {check_ref(side, target(side->data), at), step},
        .w = check_ref(side, BUF_W, 0),
        .n_rows = rows.count,
        .dim = check_get(side->data, KEY_D),
        .eps = EPS,
    };
    return tms_run_norm(side->dev, &p, &side->error);
}

static const char *reject(const check_case *c) {
    return c->v[KEY_D] ? NULL : "d is at least 1";
}

static uint64_t bytes(const check_data *data) {
    return (8ull * check_get(data, KEY_R) + 4) * check_get(data, KEY_D);
}

const check_op check_op_norm = {
    .name = "norm",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_R, 3},
                                        {KEY_D, 256},
                                        {KEY_PAD, 0},
                                        {KEY_SAME, 0},
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){CHECK_FILLS,
                                      {KEY_R, 4, {1, 3, 17, 100}},
                                      {KEY_D, 6, {1, 15, 64, 100, 256, 4096}},
                                      {KEY_PAD, 2, {0, 3}},
                                      {KEY_SAME, 2, {0, 1}},
                                      {KEY_COUNT, 0, {0}}},
    .entries = (const check_entry[]){{LIST_SMOKE, "nasty"},
                                     {LIST_SMOKE, "normal:same"},
                                     {LIST_CI, "r0"},
                                     {LIST_OCLGRIND, "d70:r2"},
                                     {LIST_OCLGRIND, "d128:r2:same"},
                                     {LIST_BENCH, "r512:d4096"},
                                     {0, NULL}},
    .reject = reject,
    .make = make,
    .oracle = oracle,
    .launch = launch,
    .rows = check_plain_rows,
    .rows_alone = true,
    .bytes = bytes,
};
