/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of activate: SILU and GELU of the gate, times up or alone, in place and not, far into both
 * tails. */
#include "check.h"

#include <math.h>

static uint64_t stride(const check_data *data) {
    return check_get(data, KEY_D) + check_get(data, KEY_PAD);
}

/* In place the result goes over the gate. */
static check_id target(const check_data *data) {
    return check_get(data, KEY_SAME) ? BUF_X : BUF_Y;
}

static void make(check_data *data) {
    const uint32_t r = check_get(data, KEY_R), dim = check_get(data, KEY_D);
    static const float tails[] = {0.0f, -0.0f, 88.0f, -88.0f, 100.0f, -100.0f, 3e4f, -3e4f, 1e-30f};
    if (!r) return;
    float *gate = check_buffer_add(data, BUF_X, ROLE_INPUT, TAMIS_F32, r * stride(data));
    check_fill_matrix(data, BUF_X, r, dim, stride(data));
    check_rng rng = check_rng_make(data->seed, data->c, BUF_Y);
    for (uint32_t i = 0; i < dim && check_get(data, KEY_FILL) == FILL_NASTY; i++)
        gate[i] = tails[check_below(&rng, sizeof tails / sizeof tails[0])];
    float *up = check_buffer_add(data, BUF_W, ROLE_INPUT, TAMIS_F32, r * stride(data));
    check_fill_matrix(data, BUF_W, r, dim, stride(data));
    for (uint32_t i = 0; i < dim && check_get(data, KEY_FILL) == FILL_NASTY; i++)
        up[i] = (float)check_normal(&rng);
    if (check_get(data, KEY_SAME))
        data->buf[BUF_X].role = ROLE_UPDATE;
    else
        check_buffer_add(data, BUF_Y, ROLE_OUTPUT, TAMIS_F32, r * stride(data));
}

static void oracle(check_data *data) {
    check_buffer *to = &data->buf[target(data)];
    const float *gate = check_init(data, BUF_X), *up = check_init(data, BUF_W);
    check_want(data, target(data), true);
    for (uint32_t r = 0; r < check_get(data, KEY_R); r++) {
        for (uint32_t i = 0; i < check_get(data, KEY_D); i++) {
            const uint64_t at = r * stride(data) + i;
            const double z = gate[at], cube = z + 0.044715 * z * z * z;
            const double k = check_get(data, KEY_GELU) ? sqrt(8 / 3.14159265358979324) * cube : z;
            const double y = z / (1 + exp(-k)) * (check_get(data, KEY_PARTS) == 2 ? up[at] : 1);
            const double of_k = check_get(data, KEY_GELU) ? 4e-7 * fabs(k) : 0;
            ((float *)to->want)[at] = (float)y;
            to->tolerance[at] = (2e-6 + of_k) * fabs(y) + 1e-37;
        }
    }
}

static tamis_status launch(check_side *side, check_rows rows) {
    const uint64_t step = stride(side->data), at = rows.first * step;
    tms_activate p = {
        .gate = {check_ref(side, BUF_X, at), step},
        .up = {check_ref(side, BUF_W, at), step},
        .y = {check_ref(side, target(side->data), at), step},
        .n_rows = rows.count,
        .dim = check_get(side->data, KEY_D),
        .activation = check_get(side->data, KEY_GELU) ? TAMIS_GELU : TAMIS_SILU,
    };
    if (check_get(side->data, KEY_PARTS) == 1) p.up = (tms_matrix){{NULL, 0}, 0};
    return tms_run_activate(side->dev, &p, &side->error);
}

static const char *reject(const check_case *c) {
    if (c->v[KEY_PARTS] < 1 || c->v[KEY_PARTS] > 2) return "parts are 1 or 2";
    return c->v[KEY_D] ? NULL : "d is at least 1";
}

static uint64_t bytes(const check_data *data) {
    return 12ull * check_get(data, KEY_R) * check_get(data, KEY_D);
}

const check_op check_op_activate = {
    .name = "activate",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_R, 3},
                                        {KEY_D, 256},
                                        {KEY_PAD, 0},
                                        {KEY_SAME, 0},
                                        {KEY_PARTS, 2},
                                        {KEY_GELU, 0},
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){CHECK_FILLS,
                                      {KEY_R, 3, {1, 3, 100}},
                                      {KEY_D, 5, {1, 15, 64, 300, 1024}},
                                      {KEY_PAD, 2, {0, 3}},
                                      {KEY_SAME, 2, {0, 1}},
                                      {KEY_PARTS, 2, {1, 2}},
                                      {KEY_GELU, 2, {0, 1}},
                                      {KEY_COUNT, 0, {0}}},
    .entries = (const check_entry[]){{LIST_SMOKE, "nasty"},
                                     {LIST_SMOKE, "normal:same"},
                                     {LIST_SMOKE, "nasty:gelu"},
                                     {LIST_SMOKE, "normal:gelu:parts1:d70"},
                                     {LIST_CI, "r0"},
                                     {LIST_OCLGRIND, "nasty:d70:r2"},
                                     {LIST_OCLGRIND, "d32:r2:same:gelu:parts1"},
                                     {LIST_BENCH, "r512:d11008"},
                                     {0, NULL}},
    .reject = reject,
    .make = make,
    .oracle = oracle,
    .launch = launch,
    .rows = check_plain_rows,
    .rows_alone = true,
    .bytes = bytes,
};
