/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of convert: rows of each dtype to rows of each dtype, exactly. */
#include "check.h"

static uint32_t type_of(const check_data *data, check_id id) {
    return check_get(data, id == BUF_X ? KEY_SOURCE : KEY_DTYPE);
}

static uint64_t stride_of(const check_data *data, check_id id) {
    return check_get(data, KEY_D) + (id == BUF_X ? 1ull : 2ull) * check_get(data, KEY_PAD);
}

/* Between the rows, too: what is written too far differs from what was there. */
static void fill(check_data *data, check_id id, check_role role) {
    const uint64_t n = check_get(data, KEY_R) * stride_of(data, id);
    void *to = check_buffer_add(data, id, role, type_of(data, id), n);
    check_rng rng = check_rng_make(data->seed, data->c, (uint64_t)id);
    for (uint64_t i = 0; i < n; i++)
        check_store(type_of(data, id), to, i,
                    check_value(&rng, (check_fill)check_get(data, KEY_FILL)));
}

static void make(check_data *data) {
    if (!check_get(data, KEY_R)) return;
    fill(data, BUF_X, ROLE_INPUT);
    fill(data, BUF_Y, ROLE_UPDATE);
}

static void oracle(check_data *data) {
    if (!check_get(data, KEY_R)) return;
    check_want(data, BUF_Y, false);
    for (uint64_t r = 0; r < check_get(data, KEY_R); r++)
        for (uint32_t c = 0; c < check_get(data, KEY_D); c++)
            check_store(type_of(data, BUF_Y), data->buf[BUF_Y].want, r * stride_of(data, BUF_Y) + c,
                        check_load(type_of(data, BUF_X), check_init(data, BUF_X),
                                   r * stride_of(data, BUF_X) + c));
}

static tamis_status launch(check_side *side, check_rows rows) {
    const check_data *data = side->data;
    const tms_convert p = {
        .x = check_ref(side, BUF_X, rows.first * stride_of(data, BUF_X)),
        .y = check_ref(side, BUF_Y, rows.first * stride_of(data, BUF_Y)),
        .x_dtype = (tamis_dtype)type_of(data, BUF_X),
        .y_dtype = (tamis_dtype)type_of(data, BUF_Y),
        .x_stride = stride_of(data, BUF_X),
        .y_stride = stride_of(data, BUF_Y),
        .n_rows = rows.count,
        .width = check_get(data, KEY_D),
    };
    return tms_run_convert(side->dev, &p, &side->error);
}

static const char *reject(const check_case *c) {
    if (!c->v[KEY_D]) return "d is at least 1";
    return tms_dtype_of_rows((tamis_dtype)c->v[KEY_DTYPE]) ? NULL : "rows are f32, f16 or bf16";
}

static uint64_t bytes(const check_data *data) {
    return (uint64_t)check_get(data, KEY_R) * check_get(data, KEY_D) *
           (check_type_size(type_of(data, BUF_X)) + check_type_size(type_of(data, BUF_Y)));
}

const check_op check_op_convert = {
    .name = "convert",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_DTYPE, TAMIS_F32},
                                        {KEY_SOURCE, TAMIS_F16},
                                        {KEY_R, 3},
                                        {KEY_D, 64},
                                        {KEY_PAD, 0},
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){{KEY_FILL, 2, {FILL_NORMAL, FILL_NASTY}},
                                      {KEY_DTYPE, 3, {TAMIS_F32, TAMIS_F16, TAMIS_BF16}},
                                      {KEY_SOURCE, 3, {TAMIS_F32, TAMIS_F16, TAMIS_BF16}},
                                      {KEY_R, 3, {1, 3, 100}},
                                      {KEY_D, 5, {1, 17, 64, 300, 1024}},
                                      {KEY_PAD, 3, {0, 1, 3}},
                                      {KEY_COUNT, 0, {0}}},
    .compiled = (const check_key[]){KEY_DTYPE, KEY_SOURCE, KEY_COUNT},
    .entries = (const check_entry[]){{LIST_SMOKE, "nasty:r9"},
                                     {LIST_SMOKE, "nasty:from-f32:f16:r9:d17:pad3"},
                                     {LIST_SMOKE, "nasty:from-f32:bf16:r9:d17:pad3"},
                                     {LIST_SMOKE, "nasty:from-bf16:f16:r9:d17:pad1"},
                                     {LIST_CI, "r0"},
                                     {LIST_OCLGRIND, "from-f32:f16:d33:r4:pad1"},
                                     {LIST_OCLGRIND, "from-bf16:f32:d33:r4:pad1"},
                                     {LIST_BENCH, "r512:d4096"},
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
