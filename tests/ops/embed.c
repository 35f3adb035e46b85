/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of embed: rows of a matrix by token, widened exactly, and scaled. */
#include "check.h"

#include <stdlib.h>

static uint64_t stride(const check_data *data) {
    return check_get(data, KEY_D) + check_get(data, KEY_PAD);
}

static check_matrix matrix_of(const check_data *data) {
    return (check_matrix){.id = BUF_W,
                          .type = check_get(data, KEY_TYPE),
                          .n_out = check_get(data, KEY_OUT),
                          .n_in = check_get(data, KEY_D)};
}

static void make(check_data *data) {
    const uint32_t r = check_get(data, KEY_R), vocab = check_get(data, KEY_OUT);
    const check_matrix m = matrix_of(data);
    check_rng rng = check_rng_make(data->seed, data->c, BUF_SLOTS);
    check_add_matrix(data, &m, true);
    check_lay_matrix(data, &m);
    if (!r) return;
    int32_t *tokens = check_buffer_add(data, BUF_SLOTS, ROLE_INPUT, CHECK_I32, r);
    for (uint32_t i = 0; i < r; i++)
        tokens[i] = (int32_t)(i == 0 ? vocab - 1 : check_below(&rng, vocab));
    check_buffer_add(data, BUF_Y, ROLE_OUTPUT, TAMIS_F32, r * stride(data));
}

static float scale_of(const check_data *data) {
    return check_get(data, KEY_SCALED) ? 25.298221f : 1;
}

static void oracle(check_data *data) {
    const uint32_t dim = check_get(data, KEY_D);
    const int32_t *tokens = check_init(data, BUF_SLOTS);
    const check_matrix m = matrix_of(data);
    check_weight *w = check_weights(data, &m);
    check_want(data, BUF_Y, false);
    for (uint32_t r = 0; r < check_get(data, KEY_R); r++)
        for (uint32_t i = 0; i < dim; i++) {
            const check_weight one = w[(uint64_t)tokens[r] * dim + i];
            check_store(TAMIS_F32, data->buf[BUF_Y].want, r * stride(data) + i,
                        (float)(one.scaled + one.added) * scale_of(data));
        }
    free(w);
}

static tamis_status launch(check_side *side, check_rows rows) {
    const uint64_t step = stride(side->data);
    const check_matrix m = matrix_of(side->data);
    const tms_embed p = {
        .tokens = check_ref(side, BUF_SLOTS, rows.first),
        .w = check_matrix_of(side, &m),
        .y = {check_ref(side, BUF_Y, rows.first * step), step},
        .n_rows = rows.count,
        .dim = check_get(side->data, KEY_D),
        .n_vocab = check_get(side->data, KEY_OUT),
        .scale = scale_of(side->data),
    };
    return tms_run_embed(side->dev, &p, &side->error);
}

static const char *reject(const check_case *c) {
    const uint32_t block = tamis_weight_block((tamis_weight_type)c->v[KEY_TYPE]);
    if (c->v[KEY_D] % block) return "d is no multiple of the type's block";
    if (c->v[KEY_STRIPS] > (block > 1)) return "strips is 0 or 1, and of quantised types";
    return c->v[KEY_D] && c->v[KEY_OUT] ? NULL : "d and out (tokens known) are at least 1";
}

static uint64_t bytes(const check_data *data) {
    const uint64_t r = check_get(data, KEY_R), dim = check_get(data, KEY_D);
    return tamis_weight_bytes((tamis_weight_type)check_get(data, KEY_TYPE), r, dim) + 4 * r * dim;
}

const check_op check_op_embed = {
    .name = "embed",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_TYPE, TAMIS_F16},
                                        {KEY_R, 3},
                                        {KEY_D, 64},
                                        {KEY_OUT, 100},
                                        {KEY_PAD, 0},
                                        {KEY_STRIPS, 0},
                                        {KEY_SCALED, 0},
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){{KEY_FILL, 2, {FILL_NORMAL, FILL_NASTY}},
                                      {KEY_TYPE, 3, {TAMIS_F32, TAMIS_F16, TAMIS_BF16}},
                                      {KEY_R, 3, {1, 3, 100}},
                                      {KEY_D, 4, {1, 17, 64, 300}},
                                      {KEY_OUT, 2, {1, 100}},
                                      {KEY_PAD, 2, {0, 3}},
                                      {KEY_COUNT, 0, {0}}},
    .more_factors =
        (const check_factor[]){{KEY_FILL, 2, {FILL_NORMAL, FILL_NASTY}},
                               {KEY_TYPE,
                                6,
                                {TAMIS_WEIGHT_Q8_0, TAMIS_WEIGHT_Q4_0, TAMIS_WEIGHT_Q4_1,
                                 TAMIS_WEIGHT_Q5_0, TAMIS_WEIGHT_Q4_K, TAMIS_WEIGHT_Q6_K}},
                               {KEY_R, 2, {1, 100}},
                               {KEY_D, 2, {256, 768}},
                               {KEY_OUT, 2, {1, 100}},
                               {KEY_PAD, 2, {0, 3}},
                               {KEY_STRIPS, 2, {0, 1}},
                               {KEY_COUNT, 0, {0}}},
    .entries = (const check_entry[]){{LIST_SMOKE, "nasty:f16"},
                                     {LIST_SMOKE, "nasty:bf16:scaled"},
                                     {LIST_SMOKE, "nasty:q4_1:d96"},
                                     {LIST_SMOKE, "nasty:q6_k:d256"},
                                     {LIST_SMOKE, "nasty:q4_1:d96:strips1:scaled"},
                                     {LIST_SMOKE, "nasty:q6_k:d256:strips1"},
                                     {LIST_CI, "r0"},
                                     {LIST_CI, "r0:q4_k:d256:strips1"},
                                     {LIST_CI, "nasty:q8_0:d32:out7"},
                                     {LIST_CI, "nasty:q4_0:d96:out7"},
                                     {LIST_CI, "nasty:q5_0:d32:out7"},
                                     {LIST_CI, "nasty:q5_1:d96:out7"},
                                     {LIST_CI, "nasty:q5_1:d96:strips1"},
                                     {LIST_CI, "nasty:q5_k:d512:out7"},
                                     {LIST_CI, "nasty:q5_k:d512:strips1"},
                                     {LIST_CI, "nasty:q3_k:d512:out7"},
                                     {LIST_CI, "nasty:q3_k:d512:strips1"},
                                     {LIST_CI, "nasty:q2_k:d512:out7"},
                                     {LIST_CI, "nasty:q2_k:d512:strips1"},
                                     {LIST_CI, "nasty:iq4_nl:d96:out7"},
                                     {LIST_CI, "nasty:iq4_nl:d96:strips1"},
                                     {LIST_CI, "nasty:iq4_xs:d512:out7"},
                                     {LIST_CI, "nasty:iq4_xs:d512:strips1"},
                                     {LIST_CI, "nasty:mxfp4:d96:out7"},
                                     {LIST_CI, "nasty:mxfp4:d96:strips1"},
                                     {LIST_OCLGRIND, "f16:d33:r2"},
                                     {LIST_OCLGRIND, "bf16:d64:r2"},
                                     {LIST_OCLGRIND, "q5_0:d32:r2"},
                                     {LIST_OCLGRIND, "q4_k:d256:r2"},
                                     {LIST_OCLGRIND, "q5_0:d32:r2:strips1"},
                                     {LIST_BENCH, "f16:r512:d4096:out2000"},
                                     {0, NULL}},
    .reject = reject,
    .make = make,
    .oracle = oracle,
    .launch = launch,
    .rows = check_plain_rows,
    .rows_alone = true,
    .bytes = bytes,
};
