/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of linear_chain: the stages that lead from a layer's attention to the next layer, or the
 * first of them, against linear, linear_parts and norm one after another on the same device: the same
 * bits. Those ops have checks of their own. */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>

#define EPS 1e-5f

/* The parts of all products. */
enum { OUT, GATE, UP, DOWN, Q, K, V, PARTS };
static const check_id weights_of[] = {BUF_W, BUF_W1, BUF_W2, BUF_W3, BUF_W4, BUF_W5, BUF_W6};

/* A stage: `parts` parts from `first` on, or none: a norm. What they read, the rows of each, and what is
 * added to what they read; BUF_NONE where there is no addend. */
#define BUF_NONE BUF_KV
typedef struct stage_shape {
    uint32_t first, parts;
    bool gated, accumulate;
    check_id x, y[3], addend, sum;
} stage_shape;

/* Attended rows are added to the residual stream (BUF_Y), or what is normalised of BUF_Y5, with which it
 * goes on in BUF_Y6 and back; gated rows; q, k and v. up has no rows. The second has norms of whole rows
 * of q and k, too, and what a last layer has: a norm that is added. */
#define NO_ADDEND BUF_NONE, BUF_NONE
static const stage_shape plain[] = {
    {OUT, 1, false, true, BUF_X, {BUF_Y}, NO_ADDEND},
    {GATE, 2, true, false, BUF_Y, {BUF_Y1, BUF_COUNT}, NO_ADDEND},
    {DOWN, 1, false, true, BUF_Y1, {BUF_Y}, NO_ADDEND},
    {Q, 3, false, false, BUF_Y, {BUF_Y2, BUF_Y3, BUF_Y4}, NO_ADDEND}};
static const stage_shape with_norms[] = {
    {OUT, 1, false, false, BUF_X, {BUF_Y5}, NO_ADDEND},
    {GATE, 2, true, false, BUF_Y, {BUF_Y1, BUF_COUNT}, BUF_Y5, BUF_Y6},
    {DOWN, 1, false, false, BUF_Y1, {BUF_Y5}, NO_ADDEND},
    {Q, 3, false, false, BUF_Y6, {BUF_Y2, BUF_Y3, BUF_Y4}, BUF_Y5, BUF_Y},
    {0, 0, false, false, BUF_Y2, {BUF_COUNT}, BUF_Y2, BUF_Y2},
    {0, 0, false, true, BUF_Y, {BUF_COUNT}, BUF_Y5, BUF_Y6}};

/* ---- Shapes ---------------------------------------------------------------------------------- */

static const stage_shape *stage_at(const check_case *c, uint32_t stage) {
    return c->v[KEY_NORMS] ? &with_norms[stage] : &plain[stage];
}

static uint32_t type_of(const check_case *c, uint32_t part) {
    return (c->v[KEY_TYPE] + part % 3 * c->v[KEY_MIX]) % CHECK_WEIGHT_TYPES;
}

/* Of rows. Queries are as wide as what is attended, keys and values less. */
static uint32_t width_of(const check_case *c, check_id rows) {
    switch (rows) {
    case BUF_Y:
    case BUF_Y5:
    case BUF_Y6:
        return c->v[KEY_OUT];
    case BUF_Y1:
        return c->v[KEY_FF];
    case BUF_Y3:
        return c->v[KEY_IN] / 3 + 1;
    case BUF_Y4:
        return c->v[KEY_IN] / 3 + 2;
    default:
        return c->v[KEY_IN];
    }
}

static uint32_t inputs_of(const check_case *c, uint32_t stage) {
    return width_of(c, stage_at(c, stage)->x);
}

/* Of the stage's i-th part. */
static uint32_t outputs_of(const check_case *c, uint32_t stage, uint32_t i) {
    const stage_shape *s = stage_at(c, stage);
    return width_of(c, s->y[s->gated ? 0 : i]);
}

static uint64_t stride(const check_data *data, check_id rows) {
    return width_of(data->c, rows) + check_get(data, KEY_PAD);
}

/* As wide as any rows. */
static uint32_t most_outputs(const check_case *c) {
    const check_key keys[] = {KEY_IN, KEY_OUT, KEY_FF};
    uint32_t most = 2; /* values have two outputs more than a third of the inputs */
    for (uint32_t i = 0; i < 3; i++)
        most = c->v[keys[i]] > most ? c->v[keys[i]] : most;
    return most;
}

static check_matrix matrix_of(const check_data *data, uint32_t stage, uint32_t i) {
    const uint32_t part = stage_at(data->c, stage)->first + i;
    return (check_matrix){weights_of[part], type_of(data->c, part), part,
                          outputs_of(data->c, stage, i), inputs_of(data->c, stage)};
}

/* ---- Buffers --------------------------------------------------------------------------------- */

static void make_rows(check_data *data, check_id rows) {
    const uint32_t r = check_get(data, KEY_R);
    if (r && rows != BUF_COUNT && !data->buf[rows].count)
        check_buffer_add(data, rows, ROLE_OUTPUT, TAMIS_F32, r * stride(data, rows));
}

static void make_stage(check_data *data, uint32_t stage) {
    const stage_shape *s = stage_at(data->c, stage);
    for (uint32_t i = 0; i < s->parts; i++) {
        const check_matrix m = matrix_of(data, stage, i);
        check_add_matrix(data, &m, false);
        check_lay_matrix(data, &m);
        make_rows(data, s->y[i]);
    }
    if (s->sum != BUF_NONE) make_rows(data, s->sum);
}

/* One bias and one norm serve all stages. */
static void make(check_data *data) {
    const uint32_t r = check_get(data, KEY_R), most = most_outputs(data->c);
    for (uint32_t stage = 0; stage < check_get(data, KEY_STAGES); stage++)
        make_stage(data, stage);
    if (check_get(data, KEY_BIAS)) {
        check_buffer_add(data, BUF_BIAS, ROLE_INPUT, TAMIS_F32, most);
        check_fill_matrix(data, BUF_BIAS, 1, most, most);
    }
    check_buffer_add(data, BUF_NORM_W, ROLE_INPUT, TAMIS_F32, most);
    check_fill_matrix(data, BUF_NORM_W, 1, most, most);
    if (!r) return;
    check_buffer_add(data, BUF_X, ROLE_INPUT, TAMIS_F32, r * stride(data, BUF_X));
    check_fill_matrix(data, BUF_X, r, check_get(data, KEY_IN), stride(data, BUF_X));
    make_rows(data, BUF_Y);
    check_fill_matrix(data, BUF_Y, r, check_get(data, KEY_OUT), stride(data, BUF_Y));
    data->buf[BUF_Y].role = ROLE_UPDATE;
}

/* `judge` knows what is wanted. */
static void oracle(check_data *data) {
    for (int id = 0; id < BUF_COUNT; id++)
        if (data->buf[id].role == ROLE_OUTPUT || data->buf[id].role == ROLE_UPDATE)
            check_want(data, (check_id)id, false);
}

/* ---- The launch ------------------------------------------------------------------------------ */

static tms_matrix matrix(check_side *side, check_rows rows, check_id id) {
    const uint64_t width = stride(side->data, id);
    return (tms_matrix){check_ref(side, id, rows.first * width), width};
}

static tms_linear_parts stage_of(check_side *side, check_rows rows, uint32_t stage) {
    const check_data *data = side->data;
    const stage_shape *s = stage_at(data->c, stage);
    tms_linear_parts p = {.x = matrix(side, rows, s->x),
                          .n_parts = s->parts,
                          .n_rows = rows.count,
                          .n_in = inputs_of(data->c, stage),
                          .eps = EPS,
                          .gated = s->gated,
                          .accumulate = s->accumulate,
                          .adds = s->sum != BUF_NONE,
                          .activation =
                              s->gated && check_get(data, KEY_NORMS) ? TAMIS_GELU : TAMIS_SILU};
    if (s->parts > 1) p.norm_w = check_ref(side, BUF_NORM_W, 0);
    if (p.adds) {
        p.addend = matrix(side, rows, s->addend);
        p.addend_w = check_ref(side, BUF_NORM_W, 0);
        p.sum = matrix(side, rows, s->sum);
    }
    for (uint32_t i = 0; i < s->parts; i++) {
        const check_matrix m = matrix_of(data, stage, i);
        p.parts[i] = (tms_linear_part){.w = check_matrix_of(side, &m),
                                       .bias = check_ref(side, BUF_BIAS, 0),
                                       .n_out = outputs_of(data->c, stage, i)};
    }
    for (uint32_t i = 0; i < p.n_parts && s->y[i] != BUF_COUNT; i++)
        p.parts[i].y = matrix(side, rows, s->y[i]);
    return p;
}

static tamis_status launch(check_side *side, check_rows rows) {
    tms_linear_chain p = {.n_stages = check_get(side->data, KEY_STAGES)};
    for (uint32_t stage = 0; stage < p.n_stages; stage++)
        p.stages[stage] = stage_of(side, rows, stage);
    return tms_run_linear_chain(side->dev, &p, &side->error);
}

/* ---- The ops one after another --------------------------------------------------------------- */

static tamis_status run_stage(check_side *side, check_rows rows, uint32_t stage) {
    const tms_linear_parts p = stage_of(side, rows, stage);
    const tms_norm norm = tms_norm_of(&p);
    if (p.n_parts == 0) return tms_run_norm(side->dev, &norm, &side->error);
    if (p.norm_w.mem || p.n_parts > 1 || p.adds)
        return tms_run_linear_parts(side->dev, &p, &side->error);
    const tms_linear linear = {.x = p.x,
                               .y = p.parts[0].y,
                               .w = p.parts[0].w,
                               .bias = p.parts[0].bias,
                               .n_rows = p.n_rows,
                               .n_in = p.n_in,
                               .n_out = p.parts[0].n_out,
                               .accumulate = p.accumulate};
    return tms_run_linear(side->dev, &linear, &side->error);
}

static bool run_apart(check_side *apart) {
    const check_rows rows = {0, check_get(apart->data, KEY_R)};
    tamis_status status = TAMIS_OK;
    for (uint32_t stage = 0; stage < check_get(apart->data, KEY_STAGES); stage++)
        if (status == TAMIS_OK) status = run_stage(apart, rows, stage);
    if (status != TAMIS_OK) snprintf(apart->why, sizeof apart->why, "%s", apart->error.text);
    return status == TAMIS_OK && check_side_read(apart);
}

static bool judge(check_side *side, char *why, size_t why_size) {
    check_side apart;
    const bool ok = check_side_open(&apart, side->dev, side->data) && run_apart(&apart);
    if (!ok) snprintf(why, why_size, "one after another: %.300s", apart.why);
    const bool same =
        ok && check_compare_bits(side->data, apart.result, side->result, why, why_size);
    check_side_close(&apart);
    return same;
}

static const char *reject(const check_case *c) {
    const uint32_t most = c->v[KEY_NORMS] ? 6 : 4;
    if (c->v[KEY_R] > TMS_FEW_ROWS) return "there are more than 8 rows";
    if (c->v[KEY_STAGES] < 1 || c->v[KEY_STAGES] > most) return "stages are 1 to 4, with norms 6";
    if (c->v[KEY_STRIPS] > 2) return "strips is 0 to 2";
    if (c->v[KEY_IN] == 0 || c->v[KEY_OUT] == 0 || c->v[KEY_FF] == 0)
        return "in, out and ff are at least 1";
    for (uint32_t stage = 0; stage < c->v[KEY_STAGES]; stage++)
        for (uint32_t i = 0; i < stage_at(c, stage)->parts; i++)
            if (inputs_of(c, stage) %
                tamis_weight_block((tamis_weight_type)type_of(c, stage_at(c, stage)->first + i)))
                return "an input's width is no multiple of a type's block";
    return NULL;
}

/* Every part's weights, and the rows of the first and the last stage. */
static uint64_t bytes(const check_data *data) {
    uint64_t sum =
        4ull * check_get(data, KEY_R) * (inputs_of(data->c, 0) + check_get(data, KEY_OUT));
    for (uint32_t stage = 0; stage < check_get(data, KEY_STAGES); stage++)
        for (uint32_t i = 0; i < stage_at(data->c, stage)->parts; i++) {
            const check_matrix m = matrix_of(data, stage, i);
            sum += tamis_weight_bytes((tamis_weight_type)m.type, m.n_out, m.n_in);
        }
    return sum;
}

const check_op check_op_linear_chain = {
    .name = "linear_chain",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_TYPE, TAMIS_F16},
                                        {KEY_R, 1},
                                        {KEY_STAGES, 4},
                                        {KEY_IN, 64},
                                        {KEY_OUT, 96},
                                        {KEY_FF, 160},
                                        {KEY_PAD, 0},
                                        {KEY_BIAS, 0},
                                        {KEY_MIX, 0},
                                        {KEY_STRIPS, 0},
                                        {KEY_NORMS, 0},
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){{KEY_TYPE, 3, {TAMIS_F32, TAMIS_F16, TAMIS_BF16}},
                                      {KEY_R, 4, {1, 2, 5, 8}},
                                      {KEY_STAGES, 4, {1, 2, 3, 4}},
                                      {KEY_IN, 3, {1, 33, 256}},
                                      {KEY_OUT, 4, {1, 17, 96, 515}},
                                      {KEY_FF, 3, {1, 130, 512}},
                                      {KEY_PAD, 2, {0, 3}},
                                      {KEY_BIAS, 2, {0, 1}},
                                      {KEY_COUNT, 0, {0}}},
    .more_factors =
        (const check_factor[]){{KEY_FILL, 2, {FILL_NORMAL, FILL_NASTY}},
                               {KEY_TYPE, 3, {TAMIS_F16, TAMIS_WEIGHT_Q4_0, TAMIS_WEIGHT_Q4_K}},
                               {KEY_R, 3, {1, 3, 8}},
                               {KEY_STAGES, 2, {3, 4}},
                               {KEY_IN, 2, {256, 512}},
                               {KEY_OUT, 2, {256, 768}},
                               {KEY_FF, 2, {256, 1024}},
                               {KEY_BIAS, 2, {0, 1}},
                               {KEY_MIX, 2, {0, 1}},
                               {KEY_STRIPS, 3, {0, 1, 2}},
                               {KEY_COUNT, 0, {0}}},
    .entries =
        (const check_entry[]){
            {LIST_SMOKE, "normal:f16:r3:in65:out33:ff50:bias:pad3"},
            {LIST_SMOKE, "normal:q4_1:r1:in576:out576:ff1536"},
            {LIST_SMOKE, "normal:q4_k:r2:in512:out256:ff768:mix1:bias"},
            {LIST_SMOKE, "normal:q4_1:r1:in576:out576:ff1536:strips1"},
            {LIST_SMOKE, "normal:q4_k:r2:in512:out256:ff768:mix1:strips2"},
            {LIST_SMOKE, "normal:f16:r3:in65:out33:ff50:pad3:norms:stages6"},
            {LIST_SMOKE, "normal:q4_1:r1:in576:out576:ff1536:strips1:norms:stages6"},
            {LIST_CI, "r0"},
            {LIST_CI, "r0:norms:stages6"},
            {LIST_CI, "r0:q4_k:in256:out256:ff256:mix1"},
            {LIST_CI, "normal:q8_0:r8:in576:out2112:ff16416"},
            {LIST_CI, "normal:f32:r1:in100:out5000:ff4100"},
            {LIST_CI, "normal:q4_0:r1:in32:out32:ff32:stages2"},
            {LIST_OCLGRIND, "normal:f16:r2:in33:out9:ff5:bias"},
            {LIST_OCLGRIND, "normal:q4_1:r1:in64:out32:ff64"},
            {LIST_OCLGRIND, "normal:f16:r2:in33:out9:ff5:norms:stages6"},
            {LIST_BENCH, "q4_1:r1:in576:out576:ff1536"},
            {LIST_BENCH, "q4_1:r1:in576:out576:ff1536:strips1"},
            {LIST_BENCH, "q4_0:r1:in4096:out4096:ff11008"},
            {LIST_BENCH, "q4_0:r1:in4096:out4096:ff11008:strips1"},
            {0, NULL}},
    .reject = reject,
    .make = make,
    .oracle = oracle,
    .launch = launch,
    .cpu_form = check_any_case,
    .cpu_shapes = true,
    .judge = judge,
    .rows = check_plain_rows,
    .rows_alone = true,
    .bytes = bytes,
};
