/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of rotate: RoPE against cos and sin of the angle itself in fp64. */
#include "check.h"

#include <math.h>
#include <stdlib.h>

static uint64_t stride(const check_data *data) {
    return check_get(data, KEY_HKV) * check_get(data, KEY_D) + check_get(data, KEY_PAD);
}

double check_frequency(const check_data *data, uint32_t pair) {
    return pow(10000.0, -2.0 * pair / check_get(data, KEY_ROT));
}

void check_rotation_table(check_data *data) {
    const uint32_t rot = check_get(data, KEY_ROT);
    double *frequencies = check_alloc(rot / 2 * sizeof *frequencies);
    for (uint32_t i = 0; i < rot / 2; i++)
        frequencies[i] = check_frequency(data, i);
    tms_rotate_table(
        frequencies, rot,
        check_buffer_add(data, BUF_W, ROLE_INPUT, TAMIS_F32, 2ull * TMS_ROTATE_STEPS * rot));
    free(frequencies);
}

static void make(check_data *data) {
    const uint32_t rows = check_get(data, KEY_R);
    check_rotation_table(data);
    if (!rows) return;
    check_buffer_add(data, BUF_X, ROLE_UPDATE, TAMIS_F32, rows * stride(data));
    check_fill_matrix(data, BUF_X, rows, check_get(data, KEY_HKV) * check_get(data, KEY_D),
                      stride(data));
    int32_t *positions = check_buffer_add(data, BUF_POSITIONS, ROLE_INPUT, CHECK_I32, rows);
    check_rng rng = check_rng_make(data->seed, data->c, BUF_POSITIONS);
    const int32_t edges[] = {0, TMS_ROTATE_LIMIT - 1, 1 - (int32_t)TMS_ROTATE_LIMIT, 1, 1024, -1};
    for (uint32_t r = 0; r < rows; r++)
        positions[r] = r < 6 ? edges[r] : (int32_t)check_below(&rng, TMS_ROTATE_LIMIT);
}

static void turn(check_data *data, uint64_t at, int32_t position) {
    const uint32_t rot = check_get(data, KEY_ROT);
    const float *x = check_init(data, BUF_X);
    const bool half = check_get(data, KEY_PAIRING) == TAMIS_PAIR_HALF;
    float *want = data->buf[BUF_X].want;
    for (uint32_t i = 0; i < rot / 2; i++) {
        const uint64_t first = at + (half ? i : 2 * i), second = first + (half ? rot / 2 : 1);
        const double angle = position * check_frequency(data, i), a = x[first], b = x[second];
        want[first] = (float)(a * cos(angle) - b * sin(angle));
        want[second] = (float)(a * sin(angle) + b * cos(angle));
        data->buf[BUF_X].tolerance[first] = 4e-7 * hypot(a, b);
        data->buf[BUF_X].tolerance[second] = 4e-7 * hypot(a, b);
    }
}

static void oracle(check_data *data) {
    const int32_t *positions = check_init(data, BUF_POSITIONS);
    check_want(data, BUF_X, true);
    for (uint32_t r = 0; r < check_get(data, KEY_R); r++)
        for (uint32_t h = 0; h < check_get(data, KEY_HKV); h++)
            turn(data, r * stride(data) + h * check_get(data, KEY_D), positions[r]);
}

static tamis_status launch(check_side *side, check_rows rows) {
    const uint64_t step = stride(side->data);
    const tms_rotate p = {
        .x = {check_ref(side, BUF_X, rows.first * step), step},
        .n_rows = rows.count,
        .n_heads = check_get(side->data, KEY_HKV),
        .head_dim = check_get(side->data, KEY_D),
        .n_rot = check_get(side->data, KEY_ROT),
        .pairing = (tamis_pairing)check_get(side->data, KEY_PAIRING),
        .positions = check_ref(side, BUF_POSITIONS, rows.first),
        .table = check_ref(side, BUF_W, 0),
    };
    return tms_run_rotate(side->dev, &p, &side->error);
}

static const char *reject(const check_case *c) {
    if (c->v[KEY_ROT] % 2 || c->v[KEY_ROT] == 0 || c->v[KEY_ROT] > c->v[KEY_D])
        return "rotated channels (rot) are odd, none, or more than the head dim (d)";
    return c->v[KEY_HKV] ? NULL : "no heads (hkv)";
}

static uint64_t bytes(const check_data *data) {
    return 8ull * check_get(data, KEY_R) * check_get(data, KEY_HKV) * check_get(data, KEY_ROT);
}

const check_op check_op_rotate = {
    .name = "rotate",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_R, 5},
                                        {KEY_HKV, 2},
                                        {KEY_D, 64},
                                        {KEY_ROT, 64},
                                        {KEY_PAIRING, TAMIS_PAIR_HALF},
                                        {KEY_PAD, 0},
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){CHECK_FILLS,
                                      {KEY_R, 4, {1, 2, 6, 40}},
                                      {KEY_HKV, 3, {1, 3, 8}},
                                      CHECK_HEAD_DIMS,
                                      {KEY_ROT, 4, {16, 32, 64, 80}},
                                      {KEY_PAIRING, 2, {TAMIS_PAIR_HALF, TAMIS_PAIR_ADJACENT}},
                                      {KEY_PAD, 2, {0, 5}},
                                      {KEY_COUNT, 0, {0}}},
    .entries = (const check_entry[]){{LIST_SMOKE, "r7:half"},
                                     {LIST_SMOKE, "r7:adjacent"},
                                     {LIST_CI, "r0"},
                                     {LIST_CI, "d512:rot512:r9"},
                                     {LIST_OCLGRIND, "r3:half"},
                                     {LIST_OCLGRIND, "r3:rot32:adjacent"},
                                     {LIST_BENCH, "r512:hkv32:d128:rot128"},
                                     {0, NULL}},
    .reject = reject,
    .make = make,
    .oracle = oracle,
    .launch = launch,
    .rows = check_plain_rows,
    .rows_alone = true,
    .bytes = bytes,
};
