/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of norm: each kind, in place and not, added or not, to y or to other rows. */
#include "check.h"

#include <math.h>

#define EPS 1e-5f

static uint64_t stride(const check_data *data) {
    return check_get(data, KEY_D) + check_get(data, KEY_PAD);
}

static check_id target(const check_data *data) {
    return check_get(data, KEY_SAME) ? BUF_X : BUF_Y;
}

/* What is added to. */
static check_id added_to(const check_data *data) {
    return check_get(data, KEY_APART) ? BUF_ADDEND : target(data);
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
    if (check_get(data, KEY_APART)) {
        check_buffer_add(data, BUF_ADDEND, ROLE_INPUT, TAMIS_F32, r * stride(data));
        check_fill_matrix(data, BUF_ADDEND, r, dim, stride(data));
        return;
    }
    if (!check_get(data, KEY_ACC) || check_get(data, KEY_SAME)) return;
    check_fill_matrix(data, BUF_Y, r, dim, stride(data));
    data->buf[BUF_Y].role = ROLE_UPDATE;
}

static void oracle(check_data *data) {
    const uint32_t dim = check_get(data, KEY_D);
    check_buffer *to = &data->buf[target(data)];
    const float *w = check_init(data, BUF_W);
    check_want(data, target(data), true);
    for (uint32_t r = 0; r < check_get(data, KEY_R); r++) {
        const float *x = (float *)check_init(data, BUF_X) + r * stride(data);
        const tamis_norm_kind kind = check_get(data, KEY_NORM_KIND);
        double sum = 0, squares = 0;
        for (uint32_t i = 0; i < dim; i++)
            sum += x[i];
        const double mean = kind == TAMIS_NORM_LAYER ? sum / dim : 0;
        for (uint32_t i = 0; i < dim; i++)
            squares += (x[i] - mean) * (x[i] - mean);
        const double factor = kind == TAMIS_NORM_NONE ? 1 : 1 / sqrt(squares / dim + EPS);
        for (uint32_t i = 0; i < dim; i++) {
            const uint64_t at = r * stride(data) + i;
            const double y = (x[i] - mean) * factor * w[i];
            const double before =
                check_get(data, KEY_ACC) ? ((float *)check_init(data, added_to(data)))[at] : 0;
            const double shifted = mean == 0 ? 0 : 4e-6 * (fabs(x[i]) + fabs(mean));
            ((float *)to->want)[at] = (float)(y + before);
            to->tolerance[at] = 2e-6 * fabs(y) + shifted * factor * fabs(w[i]) +
                                2e-7 * (fabs(y + before) + fabs(y)) * (before != 0);
        }
    }
}

static tamis_status launch(check_side *side, check_rows rows) {
    const uint64_t step = stride(side->data), at = rows.first * step;
    const tms_norm p = {
        .x = {check_ref(side, BUF_X, at), step},
        .y = {check_ref(side, target(side->data), at), step},
        .to = {check_ref(side, added_to(side->data), at), step},
        .w = check_ref(side, BUF_W, 0),
        .n_rows = rows.count,
        .dim = check_get(side->data, KEY_D),
        .eps = EPS,
        .kind = check_get(side->data, KEY_NORM_KIND),
        .accumulate = check_get(side->data, KEY_ACC) != 0,
    };
    return tms_run_norm(side->dev, &p, &side->error);
}

static const char *reject(const check_case *c) {
    if (c->v[KEY_NORM_KIND] > TAMIS_NORM_NONE) return "the norm is rms, layer or plain";
    if (c->v[KEY_APART] && !c->v[KEY_ACC])
        return "what is added to is apart where something is added";
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
                                        {KEY_NORM_KIND, TAMIS_NORM_RMS},
                                        {KEY_ACC, 0},
                                        {KEY_APART, 0},
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){CHECK_FILLS,
                                      {KEY_R, 4, {1, 3, 17, 100}},
                                      {KEY_D, 6, {1, 15, 64, 100, 256, 4096}},
                                      {KEY_PAD, 2, {0, 3}},
                                      {KEY_SAME, 2, {0, 1}},
                                      {KEY_NORM_KIND, 3, {0, 1, 2}},
                                      {KEY_ACC, 2, {0, 1}},
                                      {KEY_COUNT, 0, {0}}},
    .entries = (const check_entry[]){{LIST_SMOKE, "nasty"},
                                     {LIST_SMOKE, "normal:same"},
                                     {LIST_SMOKE, "normal:layer:d70:acc"},
                                     {LIST_SMOKE, "normal:plain:same:acc"},
                                     {LIST_SMOKE, "normal:layer:d70:acc:apart"},
                                     {LIST_CI, "r0"},
                                     {LIST_OCLGRIND, "d70:r2"},
                                     {LIST_OCLGRIND, "d70:r2:layer:acc:apart"},
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
