/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of linear: x times the transpose of w, odd sizes, bias, accumulation; exact on integers.
 */
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t x_stride(const check_data *data) {
    return check_get(data, KEY_IN) + check_get(data, KEY_PAD);
}

static uint64_t y_stride(const check_data *data) {
    return check_get(data, KEY_OUT) + check_get(data, KEY_PAD);
}

/* Of 32 neighbouring inputs of a row each is smaller than the one before, 8 times in odd rows, and
 * an output reads one of them: what is small must be as exact as what is large. An output in 8 has
 * an infinite weight. */
static void make_wide(check_data *data) {
    const uint32_t in = check_get(data, KEY_IN), out = check_get(data, KEY_OUT);
    float *x = check_init(data, BUF_X);
    for (uint64_t j = 0; j < out; j++)
        for (uint32_t i = 0; i < in; i++)
            if (i % 32 != j % 32)
                check_store(check_get(data, KEY_TYPE), check_init(data, BUF_W), j * in + i, 0);
            else if (j % 8 == 5 && i == j % 32)
                check_store(check_get(data, KEY_TYPE), check_init(data, BUF_W), j * in + i,
                            INFINITY);
    for (uint64_t r = 0; r < check_get(data, KEY_R); r++)
        for (uint32_t i = 0; i < in; i++)
            x[r * x_stride(data) + i] *= ldexpf(1, -(int)(i % 32 * (r % 2 ? 3 : 1)));
}

static check_matrix matrix_of(const check_data *data) {
    return (check_matrix){.id = BUF_W,
                          .type = check_get(data, KEY_TYPE),
                          .n_out = check_get(data, KEY_OUT),
                          .n_in = check_get(data, KEY_IN)};
}

static void make_rows(check_data *data) {
    const uint32_t r = check_get(data, KEY_R), in = check_get(data, KEY_IN);
    const uint32_t out = check_get(data, KEY_OUT);
    if (check_get(data, KEY_BIAS)) {
        check_buffer_add(data, BUF_BIAS, ROLE_INPUT, TAMIS_F32, out);
        check_fill_matrix(data, BUF_BIAS, 1, out, out);
    }
    if (!r) return;
    check_buffer_add(data, BUF_X, ROLE_INPUT, TAMIS_F32, r * x_stride(data));
    check_fill_matrix(data, BUF_X, r, in, x_stride(data));
    check_buffer_add(data, BUF_Y, ROLE_OUTPUT, TAMIS_F32, r * y_stride(data));
    if (check_get(data, KEY_ACC)) {
        check_fill_matrix(data, BUF_Y, r, out, y_stride(data));
        data->buf[BUF_Y].role = ROLE_UPDATE;
    }
    if (check_get(data, KEY_WIDE)) make_wide(data);
}

static void make(check_data *data) {
    const check_matrix m = matrix_of(data);
    check_add_matrix(data, &m, false);
    make_rows(data);
    check_lay_matrix(data, &m);
}

/* What rounding the inputs of blocks of 32 to 16 bits may change, by the contract. */
static double rounding(const float *x, const check_weight *w, uint32_t in) {
    double sum = 0;
    for (uint32_t b = 0; b < in; b += 32) {
        double most = 0, scaled = 0;
        for (uint32_t i = b; i < b + 32; i++) {
            most = fmax(most, fabs(x[i]));
            scaled += fabs(w[i].scaled);
        }
        sum += most * scaled;
    }
    return 1.6e-5 * sum;
}

static void oracle(check_data *data) {
    const uint32_t in = check_get(data, KEY_IN), out = check_get(data, KEY_OUT);
    const uint32_t type = check_get(data, KEY_TYPE);
    const bool rounded = check_is_quantised(type);
    const bool exact = check_get(data, KEY_FILL) == FILL_INTS && !rounded;
    const float *x = check_init(data, BUF_X), *bias = check_init(data, BUF_BIAS);
    const check_matrix m = matrix_of(data);
    check_weight *w = check_weights(data, &m);
    check_want(data, BUF_Y, true);
    float *y = data->buf[BUF_Y].want;
    for (uint32_t r = 0; r < check_get(data, KEY_R); r++) {
        for (uint32_t j = 0; j < out; j++) {
            const uint64_t at = r * y_stride(data) + j;
            const double add = bias ? bias[j] : 0, was = check_get(data, KEY_ACC) ? y[at] : 0;
            double sum = add + was, size = fabs(add) + fabs(was);
            const float *from = x + r * x_stride(data);
            const check_weight *row = w + (uint64_t)j * in;
            for (uint32_t i = 0; i < in; i++) {
                sum += from[i] * (double)(float)(row[i].scaled + row[i].added);
                size += fabs(from[i]) * (fabs(row[i].scaled) + fabs(row[i].added));
            }
            y[at] = (float)sum;
            data->buf[BUF_Y].tolerance[at] = exact ? 0 : 2e-6 * size * (1 + log2(in));
            if (rounded) data->buf[BUF_Y].tolerance[at] += rounding(from, row, in);
        }
    }
    free(w);
}

static tamis_status launch(check_side *side, check_rows rows) {
    const check_data *data = side->data;
    const check_matrix m = matrix_of(data);
    const tms_linear p = {
        .x = {check_ref(side, BUF_X, rows.first * x_stride(data)), x_stride(data)},
        .y = {check_ref(side, BUF_Y, rows.first * y_stride(data)), y_stride(data)},
        .w = check_matrix_of(side, &m),
        .bias = check_ref(side, BUF_BIAS, 0),
        .n_rows = rows.count,
        .n_in = check_get(data, KEY_IN),
        .n_out = check_get(data, KEY_OUT),
        .accumulate = check_get(data, KEY_ACC) != 0,
    };
    return tms_run_linear(side->dev, &p, &side->error);
}

static const char *reject(const check_case *c) {
    const uint32_t block = tamis_weight_block((tamis_weight_type)c->v[KEY_TYPE]);
    if (c->v[KEY_IN] % block) return "in is no multiple of the type's block";
    if (c->v[KEY_STRIPS] > (block > 1)) return "strips is 0 or 1, and of quantised types";
    if (c->v[KEY_WIDE] && block > 1) return "wide inputs lose their small ones in 16 bits";
    if (c->v[KEY_WIDE] && (c->v[KEY_ACC] || c->v[KEY_BIAS] || c->v[KEY_FILL] != FILL_NORMAL))
        return "what is added would hide small sums of wide inputs, which are normal ones";
    return c->v[KEY_IN] && c->v[KEY_OUT] ? NULL : "in and out are at least 1";
}

/* On matrix units of CUDA, which take rows and weights of 16 bytes at a time. */
static uint32_t alike_rows(const check_side *side) {
    const check_data *data = side->data;
    const bool matrix =
        strcmp(side->dev->backend->name, "cuda") == 0 && side->dev->form == TMS_FORM_AUTO &&
        check_get(data, KEY_TYPE) != TAMIS_F32 && !check_is_quantised(check_get(data, KEY_TYPE)) &&
        check_get(data, KEY_IN) % 8 == 0 && x_stride(data) % 4 == 0;
    return matrix ? 32 : 0;
}

static uint64_t bytes(const check_data *data) {
    const uint64_t r = check_get(data, KEY_R), in = check_get(data, KEY_IN);
    const uint64_t out = check_get(data, KEY_OUT);
    return tamis_weight_bytes((tamis_weight_type)check_get(data, KEY_TYPE), out, in) +
           4 * r * (in + out);
}

const check_op check_op_linear = {
    .name = "linear",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_TYPE, TAMIS_F16},
                                        {KEY_R, 1},
                                        {KEY_IN, 64},
                                        {KEY_OUT, 64},
                                        {KEY_PAD, 0},
                                        {KEY_ACC, 0},
                                        {KEY_BIAS, 0},
                                        {KEY_WIDE, 0},
                                        {KEY_STRIPS, 0},
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){CHECK_FILLS,
                                      {KEY_TYPE, 3, {TAMIS_F32, TAMIS_F16, TAMIS_BF16}},
                                      {KEY_R, 10, {1, 2, 4, 7, 9, 16, 17, 32, 33, 300}},
                                      {KEY_IN, 8, {1, 17, 64, 100, 136, 256, 515, 1032}},
                                      {KEY_OUT, 6, {1, 15, 64, 130, 256, 1001}},
                                      {KEY_PAD, 3, {0, 3, 4}},
                                      {KEY_ACC, 2, {0, 1}},
                                      {KEY_BIAS, 2, {0, 1}},
                                      {KEY_COUNT, 0, {0}}},
    .more_factors = (const check_factor[]){{KEY_FILL, 2, {FILL_NORMAL, FILL_NASTY}},
                                           {KEY_TYPE, /* the others: linear_parts */
                                            4,
                                            {TAMIS_WEIGHT_Q8_0, TAMIS_WEIGHT_Q4_1,
                                             TAMIS_WEIGHT_Q5_0, TAMIS_WEIGHT_Q6_K}},
                                           {KEY_STRIPS, 2, {0, 1}},
                                           {KEY_R, 6, {1, 2, 7, 8, 9, 33}},
                                           {KEY_IN, 3, {256, 768, 4352}},
                                           {KEY_OUT, 4, {1, 17, 64, 130}},
                                           {KEY_PAD, 2, {0, 3}},
                                           {KEY_ACC, 2, {0, 1}},
                                           {KEY_BIAS, 2, {0, 1}},
                                           {KEY_COUNT, 0, {0}}},
    .entries = (const check_entry[]){{LIST_SMOKE, "ints:f16:r3:in65:out33:bias"},
                                     {LIST_SMOKE, "normal:bf16:r40:in64:out96:acc"},
                                     {LIST_SMOKE, "normal:f16:r17:in264:out130:pad4:bias"},
                                     {LIST_SMOKE, "ints:bf16:r9:in1032:out300"},
                                     {LIST_SMOKE, "normal:q4_1:r1:in576:out49:bias"},
                                     {LIST_SMOKE, "normal:q8_0:r3:in96:out33:acc"},
                                     {LIST_SMOKE, "normal:q6_k:r9:in512:out35"},
                                     {LIST_SMOKE, "normal:q4_1:r1:in576:out49:bias:strips1"},
                                     {LIST_SMOKE, "normal:q8_0:r3:in96:out33:acc:strips1"},
                                     {LIST_SMOKE, "normal:q6_k:r9:in512:out35:strips1"},
                                     {LIST_CI, "r0"},
                                     {LIST_CI, "r0:q4_k:in256"},
                                     {LIST_CI, "r0:q4_k:in256:strips1"},
                                     {LIST_CI, "nasty:q8_0:r1:in32:out3"},
                                     {LIST_CI, "normal:q8_0:r1:in16416:out67"},
                                     {LIST_CI, "normal:q8_0:r1:in16416:out67:strips1"},
                                     {LIST_CI, "normal:q4_0:r2:in16416:out20:strips1"},
                                     {LIST_CI, "nasty:q5_0:r1:in160:out18:strips1"},
                                     {LIST_CI, "ints:q4_k:r1:in16640:out65:strips1"},
                                     {LIST_CI, "ints:q6_k:r5:in4352:out3:strips1"},
                                     {LIST_CI, "nasty:q4_0:r1:in96:out21:acc"},
                                     {LIST_CI, "normal:q4_0:r2:in4128:out20"},
                                     {LIST_CI, "nasty:q4_1:r8:in288:out5"},
                                     {LIST_CI, "normal:q4_1:r1:in4160:out70:bias"},
                                     {LIST_CI, "nasty:q5_0:r1:in160:out18"},
                                     {LIST_CI, "normal:q5_0:r11:in224:out34:pad3"},
                                     {LIST_CI, "ints:q4_k:r1:in16640:out65"},
                                     {LIST_CI, "ints:q6_k:r5:in4352:out3"},
                                     {LIST_CI, "normal:q3_k:r9:in256:out35"},
                                     {LIST_CI, "normal:mxfp4:r9:in96:out21"},
                                     {LIST_CI, "nasty:iq4_xs:r3:in512:out21"},
                                     {LIST_CI, "normal:q5_k:r9:in256:out35:strips1"},
                                     {LIST_CI, "normal:q2_k:r1:in4352:out67:strips1"},
                                     {LIST_CI, "nasty:iq4_nl:r1:in672:out21:strips1"},
                                     {LIST_CI, "ints:f16:r31:in1160:out259:acc:bias"},
                                     {LIST_CI, "normal:f16:r9:in1032:out130:acc"},
                                     {LIST_CI, "normal:f16:r16:in2056:out33"},
                                     {LIST_CI, "normal:f16:r32:in520:out300:bias"},
                                     {LIST_CI, "normal:bf16:r16:in1032:out130:pad4:acc"},
                                     {LIST_CI, "normal:bf16:r17:in2056:out33"},
                                     {LIST_CI, "normal:bf16:r31:in520:out300:bias"},
                                     {LIST_CI, "normal:bf16:r32:in1160:out259"},
                                     {LIST_CI, "normal:f16:r17:in264:out100:wide"},
                                     {LIST_CI, "normal:bf16:r32:in520:out40:wide"},
                                     {LIST_CI, "normal:f16:r2:in64:out33:wide"},
                                     {LIST_FULL, "normal:f16:r64:in2048:out2048"},
                                     {LIST_OCLGRIND, "normal:f16:r2:in33:out9:bias"},
                                     {LIST_OCLGRIND, "ints:f32:r3:in16:out17:pad3:acc"},
                                     {LIST_OCLGRIND, "ints:f16:r9:in20:out17:bias"},
                                     {LIST_OCLGRIND, "normal:q4_1:r2:in64:out9:bias"},
                                     {LIST_OCLGRIND, "normal:q4_1:r1:in544:out3"},
                                     {LIST_OCLGRIND, "normal:q8_0:r1:in32:out3"},
                                     {LIST_OCLGRIND, "normal:q5_0:r9:in32:out3"},
                                     {LIST_OCLGRIND, "normal:q4_k:r1:in256:out3"},
                                     {LIST_OCLGRIND, "normal:q6_k:r1:in256:out3"},
                                     {LIST_OCLGRIND, "normal:q5_1:r1:in64:out3"},
                                     {LIST_OCLGRIND, "normal:q5_k:r1:in256:out3"},
                                     {LIST_OCLGRIND, "normal:q3_k:r1:in256:out3"},
                                     {LIST_OCLGRIND, "normal:q2_k:r1:in256:out3"},
                                     {LIST_OCLGRIND, "normal:iq4_nl:r1:in64:out3"},
                                     {LIST_OCLGRIND, "normal:iq4_xs:r1:in256:out3"},
                                     {LIST_OCLGRIND, "normal:mxfp4:r1:in64:out3"},
                                     {LIST_OCLGRIND, "normal:q4_1:r1:in64:out9:strips1"},
                                     {LIST_OCLGRIND, "normal:q8_0:r1:in32:out3:strips1"},
                                     {LIST_OCLGRIND, "normal:q5_0:r9:in32:out3:strips1"},
                                     {LIST_OCLGRIND, "normal:q4_k:r1:in256:out3:strips1"},
                                     {LIST_OCLGRIND, "normal:q6_k:r1:in256:out3:strips1"},
                                     {LIST_BENCH, "q8_0:r1:in4096:out11008"},
                                     {LIST_BENCH, "q8_0:r1:in4096:out11008:strips1"},
                                     {LIST_BENCH, "q4_0:r1:in4096:out11008"},
                                     {LIST_BENCH, "q4_0:r1:in4096:out11008:strips1"},
                                     {LIST_BENCH, "q4_1:r1:in4096:out11008"},
                                     {LIST_BENCH, "q4_1:r1:in4096:out11008:strips1"},
                                     {LIST_BENCH, "q5_0:r1:in4096:out11008"},
                                     {LIST_BENCH, "q5_0:r1:in4096:out11008:strips1"},
                                     {LIST_BENCH, "q4_k:r1:in4096:out11008"},
                                     {LIST_BENCH, "q4_k:r1:in4096:out11008:strips1"},
                                     {LIST_BENCH, "q6_k:r1:in4096:out11008"},
                                     {LIST_BENCH, "q6_k:r1:in4096:out11008:strips1"},
                                     {LIST_BENCH, "iq4_xs:r1:in4096:out11008:strips1"},
                                     {LIST_BENCH, "q4_1:r1:in11008:out4096"},
                                     {LIST_BENCH, "q8_0:r1:in576:out49152"},
                                     {LIST_BENCH, "q4_1:r8:in4096:out11008"},
                                     {LIST_BENCH, "q4_1:r256:in1024:out1024"},
                                     {LIST_BENCH, "f16:r1:in4096:out11008"},
                                     {LIST_BENCH, "f16:r256:in1024:out1024"},
                                     {0, NULL}},
    .reject = reject,
    .make = make,
    .oracle = oracle,
    .launch = launch,
    .cpu_form = check_any_case,
    .cpu_shapes = true,
    .gpu_form = true,
    .rows = check_plain_rows,
    .rows_alone = true,
    .few_rows = TMS_FEW_ROWS,
    .alike_rows = alike_rows,
    .bytes = bytes,
};
