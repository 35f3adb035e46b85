/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of deviation against its formula in fp64. */
#include "check.h"

#include <float.h>
#include <math.h>

/* ---- Data and launch ------------------------------------------------------------------------- */

static uint64_t stride_of(const check_data *data) {
    return (uint64_t)data->lanes.n_kv_heads * data->lanes.kv.head_dim + 16;
}

static void make(check_data *data) {
    const check_lanes *l = &data->lanes;
    const check_fill fill = (check_fill)check_get(data, KEY_FILL);
    check_lanes_make(data, ROLE_INPUT);
    if (!l->n_rows) return;
    const uint64_t width = (uint64_t)l->n_kv_heads * l->kv.head_dim, stride = stride_of(data);
    check_lanes_slots(data);
    float *x = check_buffer_add(data, BUF_X, ROLE_INPUT, TAMIS_F32, l->n_rows * stride);
    check_buffer_add(data, BUF_Y, ROLE_OUTPUT, TAMIS_F32, l->n_rows);
    if (check_get(data, KEY_NORMS))
        check_buffer_add(data, BUF_LSE, ROLE_OUTPUT, TAMIS_F32, l->n_rows);
    check_rng rng = check_rng_make(data->seed, data->c, BUF_X);
    for (uint32_t r = 0; r < l->n_rows; r++)
        for (uint64_t i = 0; i < stride; i++)
            x[r * stride + i] = i < width ? (float)check_value(&rng, fill) : NAN;
}

static tamis_status launch(check_side *side, check_rows rows) {
    const uint64_t stride = stride_of(side->data);
    const tms_deviation p = {
        .kv = check_kv(side),
        .batch = check_batch(side, rows),
        .x = {check_ref(side, BUF_X, rows.first * stride), stride},
        .slots = check_ref(side, BUF_SLOTS, rows.first * side->data->lanes.n_kv_heads),
        .out = check_ref(side, BUF_Y, rows.first),
        .norms = check_ref(side, BUF_LSE, rows.first),
        .values = check_get(side->data, KEY_VALUES),
    };
    return tms_run_deviation(side->dev, &p, &side->error);
}

/* ---- Direct formula -------------------------------------------------------------------------- */

/* Of row r and a head. */
static double squares(const check_data *data, uint32_t r, uint32_t head, uint32_t slot) {
    const check_lanes *l = &data->lanes;
    const uint32_t lane = check_row_seq(data, r) * l->n_kv_heads + head;
    const uint64_t at =
        check_lane_row(data, lane, slot) + (check_get(data, KEY_VALUES) ? l->kv.value_offset : 0);
    const float *x = (const float *)check_init(data, BUF_X) + r * stride_of(data) +
                     (uint64_t)head * l->kv.head_dim;
    double sum = 0;
    for (uint32_t d = 0; d < l->kv.head_dim; d++) {
        const double apart = x[d] - check_load(l->kv.dtype, check_init(data, BUF_KV), at + d);
        sum += apart * apart;
    }
    return sum;
}

static double norm(const check_data *data, uint32_t r) {
    const float *x = (const float *)check_init(data, BUF_X) + r * stride_of(data);
    double sum = 0;
    for (uint32_t i = 0; i < data->lanes.n_kv_heads * data->lanes.kv.head_dim; i++)
        sum += (double)x[i] * x[i];
    return sum;
}

static void want(check_buffer *b, uint32_t r, double sum) {
    const bool finite = sum <= FLT_MAX; /* NaN is not */
    ((float *)b->want)[r] = finite ? (float)sum : INFINITY;
    b->tolerance[r] = finite ? 1e-5 * sum : 0;
}

static void oracle(check_data *data) {
    const check_lanes *l = &data->lanes;
    const int32_t *slots = check_init(data, BUF_SLOTS);
    const bool norms = check_get(data, KEY_NORMS);
    check_want(data, BUF_Y, true);
    if (norms) check_want(data, BUF_LSE, true);
    for (uint32_t r = 0; r < l->n_rows; r++) {
        double sum = 0;
        for (uint32_t h = 0; h < l->n_kv_heads; h++)
            if (slots[r * l->n_kv_heads + h] >= 0)
                sum += squares(data, r, h, (uint32_t)slots[r * l->n_kv_heads + h]);
        want(&data->buf[BUF_Y], r, sum);
        if (norms) want(&data->buf[BUF_LSE], r, norm(data, r));
    }
}

static uint64_t bytes(const check_data *data) {
    const check_lanes *l = &data->lanes;
    const uint64_t row =
        check_get(data, KEY_VALUES) ? check_value_bytes(data) : check_key_bytes(data);
    return (uint64_t)l->n_rows * (l->n_kv_heads * (row + 4 * l->kv.head_dim) + 4);
}

const check_op check_op_deviation = {
    .name = "deviation",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_DTYPE, TAMIS_F16},
                                        {KEY_LAYOUT, LAYOUT_OWN},
                                        {KEY_B, 1},
                                        {KEY_R, 1},
                                        {KEY_HKV, 2},
                                        {KEY_D, 64},
                                        {KEY_PAGE, 16},
                                        {KEY_KV, 100},
                                        {KEY_VALUES, 0},
                                        {KEY_NORMS, 0},
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){CHECK_FILLS,
                                      CHECK_LANES,
                                      {KEY_B, 2, {1, 3}},
                                      {KEY_R, 3, {1, 7, 33}},
                                      {KEY_HKV, 3, {1, 2, 5}},
                                      {KEY_VALUES, 2, {0, 1}},
                                      {KEY_NORMS, 2, {0, 1}},
                                      {KEY_COUNT, 0, {0}}},
    .compiled = (const check_key[]){KEY_D, KEY_DTYPE, KEY_PAGE, KEY_COUNT},
    .entries = (const check_entry[]){{LIST_SMOKE, "normal:k8v4:b2:r5:d80:values"},
                                     {LIST_SMOKE, "normal:q4:b2:r5:d80"},
                                     {LIST_SMOKE, "normal:f16:b2:r5:values:norms"},
                                     {LIST_SMOKE, "nasty:bf16:b2:r5:d80:norms"},
                                     {LIST_CI, "f16:r0"},
                                     {LIST_CI, "normal:f32:b3:r33:hkv5:page8:values"},
                                     {LIST_CI, "normal:f16:nhd:r7:d128"},
                                     {LIST_CI, "normal:f16:r3:hkv32:d512"},
                                     {LIST_OCLGRIND, "normal:f16:b2:r3:kv20:values"},
                                     {LIST_OCLGRIND, "nasty:bf16:d80:r2:kv20:norms"},
                                     {LIST_BENCH, "f16:r4096:hkv8:d128:kv4096:values"},
                                     {0, NULL}},
    .reject = check_lanes_reject,
    .make = make,
    .oracle = oracle,
    .launch = launch,
    .rows = check_lanes_rows,
    .rows_alone = true,
    .bytes = bytes,
};
