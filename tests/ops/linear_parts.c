/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of linear_parts: one to three matrices of any types with one input, normalised or not,
 * gated or not, with an addend or not; exact on integers where nothing of it is asked for. */
#include "check.h"

#include <math.h>
#include <stdlib.h>

#define EPS 1e-5f

static const check_id weights_of[] = {BUF_W, BUF_W1, BUF_W2};
static const check_id bias_of[] = {BUF_BIAS, BUF_BIAS1, BUF_BIAS2};
static const check_id y_of[] = {BUF_Y, BUF_Y1, BUF_Y2};

/* ---- The parts ------------------------------------------------------------------------------- */

static uint32_t type_of(const check_case *c, uint32_t part) {
    return (c->v[KEY_TYPE] + part * c->v[KEY_MIX]) % CHECK_WEIGHT_TYPES;
}

/* Parts differ in their outputs, as those of queries and keys do; those of a gate must not. */
static uint32_t outputs_of(const check_data *data, uint32_t part) {
    const uint32_t out = check_get(data, KEY_OUT);
    return part == 0 || check_get(data, KEY_GATED) ? out : out / 3 + part;
}

/* The parts that write rows. */
static uint32_t written(const check_data *data) {
    return check_get(data, KEY_GATED) ? 1 : check_get(data, KEY_PARTS);
}

static uint64_t x_stride(const check_data *data) {
    return check_get(data, KEY_IN) + check_get(data, KEY_PAD);
}

static uint64_t y_stride(const check_data *data, uint32_t part) {
    return outputs_of(data, part) + check_get(data, KEY_PAD);
}

static check_matrix matrix_of(const check_data *data, uint32_t part) {
    return (check_matrix){weights_of[part], type_of(data->c, part), part, outputs_of(data, part),
                          check_get(data, KEY_IN)};
}

/* ---- Buffers --------------------------------------------------------------------------------- */

static void make_part(check_data *data, uint32_t part) {
    const uint32_t r = check_get(data, KEY_R), out = outputs_of(data, part);
    const check_matrix m = matrix_of(data, part);
    check_add_matrix(data, &m, false);
    check_lay_matrix(data, &m);
    if (check_get(data, KEY_BIAS)) {
        check_buffer_add(data, bias_of[part], ROLE_INPUT, TAMIS_F32, out);
        check_fill_matrix(data, bias_of[part], 1, out, out);
    }
    if (!r || part >= written(data)) return;
    check_buffer_add(data, y_of[part], ROLE_OUTPUT, TAMIS_F32, r * y_stride(data, part));
    if (!check_get(data, KEY_ACC)) return;
    check_fill_matrix(data, y_of[part], r, out, y_stride(data, part));
    data->buf[y_of[part]].role = ROLE_UPDATE;
}

/* As wide as x. */
static void make_rows(check_data *data, check_id rows) {
    const uint32_t r = check_get(data, KEY_R);
    check_buffer_add(data, rows, ROLE_INPUT, TAMIS_F32, r * x_stride(data));
    check_fill_matrix(data, rows, r, check_get(data, KEY_IN), x_stride(data));
}

static void make(check_data *data) {
    const uint32_t r = check_get(data, KEY_R), in = check_get(data, KEY_IN);
    for (uint32_t part = 0; part < check_get(data, KEY_PARTS); part++)
        make_part(data, part);
    if (check_get(data, KEY_NORMED)) {
        check_buffer_add(data, BUF_NORM_W, ROLE_INPUT, TAMIS_F32, in);
        check_fill_matrix(data, BUF_NORM_W, 1, in, in);
    }
    if (check_get(data, KEY_ADDEND)) {
        check_buffer_add(data, BUF_ADDEND_W, ROLE_INPUT, TAMIS_F32, in);
        check_fill_matrix(data, BUF_ADDEND_W, 1, in, in);
    }
    if (!r) return;
    make_rows(data, BUF_X);
    if (!check_get(data, KEY_ADDEND)) return;
    make_rows(data, BUF_ADDEND);
    check_buffer_add(data, BUF_SUM, ROLE_OUTPUT, TAMIS_F32, r * x_stride(data));
}

/* ---- What it gives --------------------------------------------------------------------------- */

/* What a norm subtracts and multiplies by before the weights. */
typedef struct shift_scale {
    double mean, factor;
} shift_scale;

static shift_scale norm_of(const double *x, uint32_t n, uint32_t kind) {
    double sum = 0, squares = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i];
    const double mean = kind == TAMIS_NORM_LAYER ? sum / n : 0;
    for (uint32_t i = 0; i < n; i++)
        squares += (x[i] - mean) * (x[i] - mean);
    return (shift_scale){mean, kind == TAMIS_NORM_NONE ? 1 : 1 / sqrt(squares / n + EPS)};
}

/* A row with its addend, and by how much its channels may be off. */
static void add_up(const check_data *data, uint32_t row, double *x, double *off) {
    const uint32_t in = check_get(data, KEY_IN), kind = check_get(data, KEY_ADDEND);
    const float *from = (float *)check_init(data, BUF_X) + row * x_stride(data);
    for (uint32_t i = 0; i < in; i++) {
        x[i] = from[i];
        off[i] = 0;
    }
    if (!kind) return;
    const float *addend = (float *)check_init(data, BUF_ADDEND) + row * x_stride(data);
    const float *w = check_init(data, BUF_ADDEND_W);
    double *wide = check_alloc(in * sizeof *wide);
    for (uint32_t i = 0; i < in; i++)
        wide[i] = addend[i];
    const shift_scale of = norm_of(wide, in, kind - 1);
    for (uint32_t i = 0; i < in; i++) {
        const double more = (wide[i] - of.mean) * of.factor * w[i];
        const double shifted = of.mean == 0 ? 0 : 4e-6 * (fabs(wide[i]) + fabs(of.mean));
        x[i] += more;
        off[i] =
            2e-6 * fabs(more) + shifted * of.factor * fabs(w[i]) + 2e-7 * (fabs(x[i]) + fabs(more));
    }
    free(wide);
}

/* A row as the parts read it, and by how much it may be off with an addend: a channel's own change, that
 * of the mean, and that of the factor, whose share is Σ |c|·off / Σ c² at most. */
static void prepare(const check_data *data, uint32_t row, double *z, double *off) {
    const uint32_t in = check_get(data, KEY_IN), kind = check_get(data, KEY_NORM_KIND);
    const float *w = check_init(data, BUF_NORM_W);
    double moved = 0, turned = 0, squares = in * (double)EPS;
    add_up(data, row, z, off);
    if (!w) return;
    const shift_scale of = norm_of(z, in, kind);
    for (uint32_t i = 0; i < in && kind == TAMIS_NORM_LAYER; i++)
        moved += off[i] / in;
    for (uint32_t i = 0; i < in && kind != TAMIS_NORM_NONE; i++) {
        turned += fabs(z[i] - of.mean) * (off[i] + moved);
        squares += (z[i] - of.mean) * (z[i] - of.mean);
    }
    for (uint32_t i = 0; i < in; i++) {
        const double c = z[i] - of.mean;
        off[i] = (off[i] + moved + fabs(c) * turned / squares) * of.factor * fabs(w[i]);
        z[i] = c * of.factor * w[i];
    }
}

/* What rounding the inputs of blocks of 32 to 16 bits may change, by the contract. */
static double rounding(const double *z, const check_weight *w, uint32_t in) {
    double sum = 0;
    for (uint32_t b = 0; b < in; b += 32) {
        double most = 0, scaled = 0;
        for (uint32_t i = b; i < b + 32; i++) {
            most = fmax(most, fabs(z[i]));
            scaled += fabs(w[i].scaled);
        }
        sum += most * scaled;
    }
    return 1.6e-5 * sum;
}

typedef struct output {
    double value, tolerance;
} output;

/* off: by how much z may be off; added: bias and what is there. */
static output multiply(const check_data *data, uint32_t part, const check_weight *row,
                       const double *z, const double *off, const double *added) {
    const uint32_t in = check_get(data, KEY_IN);
    const bool normed = check_get(data, KEY_NORMED);
    double sum = added[0] + added[1], size = 0, turned = 0;
    for (uint32_t i = 0; i < in; i++) {
        sum += z[i] * (double)(float)(row[i].scaled + row[i].added);
        size += fabs(z[i]) * (fabs(row[i].scaled) + fabs(row[i].added));
        turned += off[i] * (fabs(row[i].scaled) + fabs(row[i].added));
    }
    output out = {sum, 2e-6 * (fabs(added[0]) + fabs(added[1]) + size) * (1 + log2(in)) +
                           (normed ? 2e-6 * size : 0) + turned};
    if (check_is_quantised(type_of(data->c, part)))
        out.tolerance += rounding(z, row, in);
    else if (check_get(data, KEY_FILL) == FILL_INTS && !normed && !check_get(data, KEY_GATED) &&
             !check_get(data, KEY_ADDEND))
        out.tolerance = 0;
    return out;
}

static output gate(const check_data *data, output a, output b) {
    const double z = a.value, cube = z + 0.044715 * z * z * z;
    const bool gelu = check_get(data, KEY_GELU);
    const double k = gelu ? sqrt(8 / 3.14159265358979324) * cube : z;
    const double act = z / (1 + exp(-k)), y = act * b.value, of_k = gelu ? 4e-7 * fabs(k) : 0;
    return (output){y, 1.13 * a.tolerance * (fabs(b.value) + b.tolerance) +
                           fabs(act) * b.tolerance + (2e-6 + of_k) * fabs(y) + 1e-37};
}

/* Outputs of a part for every row, [row][output]. */
static output *outputs(const check_data *data, uint32_t part) {
    const uint32_t in = check_get(data, KEY_IN), out = outputs_of(data, part);
    const uint32_t r = check_get(data, KEY_R);
    const float *bias = check_init(data, bias_of[part]);
    const check_matrix m = matrix_of(data, part);
    check_weight *w = check_weights(data, &m);
    double *z = check_alloc(in * sizeof *z), *off = check_alloc(in * sizeof *off);
    const float *y = check_get(data, KEY_ACC) ? check_init(data, y_of[part]) : NULL;
    output *all = check_alloc((uint64_t)r * out * sizeof *all);
    for (uint32_t row = 0; row < r; row++) {
        prepare(data, row, z, off);
        for (uint32_t j = 0; j < out; j++) {
            const double added[] = {bias ? bias[j] : 0, y ? y[row * y_stride(data, part) + j] : 0};
            all[(uint64_t)row * out + j] =
                multiply(data, part, w + (uint64_t)j * in, z, off, added);
        }
    }
    free(off);
    free(z);
    free(w);
    return all;
}

static void want_sum(check_data *data) {
    const uint32_t in = check_get(data, KEY_IN);
    check_buffer *sum = &data->buf[BUF_SUM];
    double *x = check_alloc(in * sizeof *x), *off = check_alloc(in * sizeof *off);
    check_want(data, BUF_SUM, true);
    for (uint32_t row = 0; row < check_get(data, KEY_R); row++) {
        add_up(data, row, x, off);
        for (uint32_t i = 0; i < in; i++) {
            ((float *)sum->want)[row * x_stride(data) + i] = (float)x[i];
            sum->tolerance[row * x_stride(data) + i] = off[i];
        }
    }
    free(off);
    free(x);
}

static void oracle(check_data *data) {
    if (check_get(data, KEY_ADDEND) && check_get(data, KEY_R)) want_sum(data);
    for (uint32_t part = 0; part < written(data); part++) {
        const uint32_t out = outputs_of(data, part);
        check_buffer *y = &data->buf[y_of[part]];
        output *all = outputs(data, part);
        const bool gated = check_get(data, KEY_GATED);
        output *up = gated && check_get(data, KEY_PARTS) == 2 ? outputs(data, 1) : NULL;
        check_want(data, y_of[part], true);
        for (uint64_t i = 0; i < (uint64_t)check_get(data, KEY_R) * out; i++) {
            const output by = up ? up[i] : (output){1, 0};
            const output got = gated ? gate(data, all[i], by) : all[i];
            const uint64_t at = i / out * y_stride(data, part) + i % out;
            ((float *)y->want)[at] = (float)got.value;
            y->tolerance[at] = got.tolerance;
        }
        free(up);
        free(all);
    }
}

/* ---- The launch ------------------------------------------------------------------------------ */

static tms_linear_part part_of(check_side *side, check_rows rows, uint32_t part) {
    const check_data *data = side->data;
    const uint64_t stride = y_stride(data, part);
    const check_matrix m = matrix_of(data, part);
    tms_linear_part p = {.w = check_matrix_of(side, &m),
                         .bias = check_ref(side, bias_of[part], 0),
                         .n_out = outputs_of(data, part)};
    if (part < written(data))
        p.y = (tms_matrix){check_ref(side, y_of[part], rows.first * stride), stride};
    return p;
}

static tamis_status launch(check_side *side, check_rows rows) {
    const check_data *data = side->data;
    tms_linear_parts p = {
        .x = {check_ref(side, BUF_X, rows.first * x_stride(data)), x_stride(data)},
        .norm_w = check_ref(side, BUF_NORM_W, 0),
        .n_parts = check_get(data, KEY_PARTS),
        .n_rows = rows.count,
        .n_in = check_get(data, KEY_IN),
        .eps = EPS,
        .gated = check_get(data, KEY_GATED) != 0,
        .accumulate = check_get(data, KEY_ACC) != 0,
        .norm_kind = check_get(data, KEY_NORM_KIND),
        .activation = check_get(data, KEY_GELU) ? TAMIS_GELU : TAMIS_SILU,
        .adds = check_get(data, KEY_ADDEND) != 0,
    };
    if (p.adds) {
        const uint64_t at = rows.first * x_stride(data);
        p.addend = (tms_matrix){check_ref(side, BUF_ADDEND, at), x_stride(data)};
        p.sum = (tms_matrix){check_ref(side, BUF_SUM, at), x_stride(data)};
        p.addend_w = check_ref(side, BUF_ADDEND_W, 0);
        p.addend_kind = check_get(data, KEY_ADDEND) - 1;
    }
    for (uint32_t part = 0; part < p.n_parts; part++)
        p.parts[part] = part_of(side, rows, part);
    return tms_run_linear_parts(side->dev, &p, &side->error);
}

static const char *reject(const check_case *c) {
    if (c->v[KEY_R] > TMS_FEW_ROWS) return "there are more than 8 rows";
    if (c->v[KEY_PARTS] < 1 || c->v[KEY_PARTS] > TMS_MOST_PARTS) return "parts are 1 to 3";
    if (c->v[KEY_GATED] && c->v[KEY_PARTS] > 2) return "a gate has 1 or 2 parts";
    if (c->v[KEY_NORM_KIND] > TAMIS_NORM_NONE) return "the norm is rms, layer or plain";
    if (c->v[KEY_ADDEND] > 1 + TAMIS_NORM_NONE) return "addend is 0 to 3";
    if (c->v[KEY_GATED] && c->v[KEY_ACC]) return "what is gated does not accumulate";
    if (c->v[KEY_IN] == 0 || c->v[KEY_OUT] == 0) return "in and out are at least 1";
    if (c->v[KEY_STRIPS] > 2) return "strips is 0 to 2";
    for (uint32_t part = 0; part < c->v[KEY_PARTS]; part++)
        if (c->v[KEY_IN] % tamis_weight_block((tamis_weight_type)type_of(c, part)))
            return "in is no multiple of a type's block";
    return NULL;
}

static uint64_t bytes(const check_data *data) {
    const uint64_t r = check_get(data, KEY_R), in = check_get(data, KEY_IN);
    uint64_t sum = 4 * r * in + (check_get(data, KEY_NORMED) ? 4 * in : 0);
    if (check_get(data, KEY_ADDEND)) sum += 8 * r * in + 4 * in;
    for (uint32_t part = 0; part < check_get(data, KEY_PARTS); part++)
        sum += tamis_weight_bytes((tamis_weight_type)type_of(data->c, part), outputs_of(data, part),
                                  in);
    for (uint32_t part = 0; part < written(data); part++)
        sum += 4 * r * outputs_of(data, part);
    return sum;
}

const check_op check_op_linear_parts = {
    .name = "linear_parts",
    .defaults = (const check_default[]){{KEY_FILL, FILL_NORMAL},
                                        {KEY_TYPE, TAMIS_F16},
                                        {KEY_R, 1},
                                        {KEY_PARTS, 3},
                                        {KEY_IN, 64},
                                        {KEY_OUT, 64},
                                        {KEY_PAD, 0},
                                        {KEY_BIAS, 0},
                                        {KEY_ACC, 0},
                                        {KEY_MIX, 0},
                                        {KEY_NORMED, 0},
                                        {KEY_ADDEND, 0},
                                        {KEY_GATED, 0},
                                        {KEY_NORM_KIND, TAMIS_NORM_RMS},
                                        {KEY_GELU, 0},
                                        {KEY_STRIPS, 0},
                                        {KEY_COUNT, 0}},
    .factors = (const check_factor[]){CHECK_FILLS,
                                      {KEY_TYPE, 3, {TAMIS_F32, TAMIS_F16, TAMIS_BF16}},
                                      {KEY_R, 4, {1, 2, 5, 8}},
                                      {KEY_PARTS, 3, {1, 2, 3}},
                                      {KEY_IN, 5, {1, 17, 100, 256, 515}},
                                      {KEY_OUT, 4, {1, 17, 64, 130}},
                                      {KEY_PAD, 3, {0, 3, 4}},
                                      {KEY_BIAS, 2, {0, 1}},
                                      {KEY_ACC, 2, {0, 1}},
                                      {KEY_NORMED, 2, {0, 1}},
                                      {KEY_ADDEND, 4, {0, 1, 2, 3}},
                                      {KEY_GATED, 2, {0, 1}},
                                      {KEY_NORM_KIND, 3, {0, 1, 2}},
                                      {KEY_GELU, 2, {0, 1}},
                                      {KEY_COUNT, 0, {0}}},
    .more_factors =
        (const check_factor[]){{KEY_FILL, 2, {FILL_NORMAL, FILL_NASTY}},
                               {KEY_TYPE, 3, {TAMIS_F16, TAMIS_WEIGHT_Q4_0, TAMIS_WEIGHT_Q4_K}},
                               {KEY_R, 3, {1, 3, 8}},
                               {KEY_PARTS, 2, {2, 3}},
                               {KEY_IN, 2, {256, 768}},
                               {KEY_OUT, 3, {15, 64, 130}},
                               {KEY_PAD, 2, {0, 3}},
                               {KEY_BIAS, 2, {0, 1}},
                               {KEY_ACC, 2, {0, 1}},
                               {KEY_MIX, 2, {0, 1}},
                               {KEY_STRIPS, 3, {0, 1, 2}},
                               {KEY_NORMED, 2, {0, 1}},
                               {KEY_ADDEND, 2, {0, 1}},
                               {KEY_GATED, 2, {0, 1}},
                               {KEY_COUNT, 0, {0}}},
    .entries =
        (const check_entry[]){
            {LIST_SMOKE, "ints:f16:r3:in65:out33:bias"},
            {LIST_SMOKE, "normal:q4_1:r1:in576:out49:normed:bias"},
            {LIST_SMOKE, "normal:q4_k:r2:in512:out35:mix1:normed"},
            {LIST_SMOKE, "normal:q4_0:r2:parts2:in96:out35:bias:acc:normed"},
            {LIST_SMOKE, "normal:bf16:parts2:in96:out70:normed:gated"},
            {LIST_SMOKE, "normal:f16:r2:parts2:in65:out70:normed:layer:gated:gelu"},
            {LIST_SMOKE, "normal:q4_1:r1:parts1:in576:out49:normed:layer:gated:gelu:strips1"},
            {LIST_SMOKE, "normal:q8_0:r8:parts2:in64:out40:gated"},
            {LIST_SMOKE, "normal:f16:r3:in65:out33:pad3:normed:addend1"},
            {LIST_SMOKE, "normal:q4_0:r2:parts2:in96:out35:bias:acc:addend3"},
            {LIST_SMOKE, "normal:q4_1:r1:parts2:in576:out49:normed:addend2:gated:gelu:strips1"},
            {LIST_SMOKE, "normal:q4_1:r1:in576:out49:normed:bias:strips1"},
            {LIST_SMOKE, "normal:q4_k:r2:in512:out35:mix1:normed:strips1"},
            {LIST_SMOKE, "normal:q8_0:r8:parts2:in64:out40:gated:strips2"},
            {LIST_CI, "r0"},
            {LIST_CI, "r0:q4_k:in256:mix1:normed"},
            {LIST_CI, "r0:normed:addend1"},
            {LIST_CI,
             "normal:f16:r1:in12288:out9:normed:addend1"}, /* the most that CUDA's blocks hold */
            {LIST_CI, "normal:f16:r8:in1544:out9:normed:addend1"}, /* more */
            {LIST_CI, "normal:q4_0:r1:in4128:out20:mix1:normed"},
            {LIST_CI, "normal:q5_0:r2:parts1:in16416:out67:normed"},
            {LIST_CI, "normal:f32:r8:in4100:out20:normed"},
            {LIST_CI, "normal:f16:r1:in4352:out9:mix6:normed"},
            {LIST_CI, "nasty:q6_k:r1:parts2:in512:out21:mix5:gated"},
            {LIST_CI, "nasty:q5_1:r1:in608:out21:mix6"},
            {LIST_CI, "normal:q5_1:r1:in608:out70:mix6:strips1"},
            {LIST_CI, "nasty:q5_k:r1:in768:out35:mix1"},
            {LIST_CI, "nasty:q5_k:r1:in768:out70:mix1:normed:strips1"},
            {LIST_CI, "normal:iq4_nl:r1:in768:out35:mix1:normed"},
            {LIST_CI, "nasty:iq4_nl:r1:in768:out70:mix1:strips1"},
            {LIST_CI, "normal:q2_k:r3:in512:out21:mix1"},
            {LIST_OCLGRIND, "normal:f16:r2:in33:out9:bias:normed:addend1"},
            {LIST_OCLGRIND, "normal:f16:r1:parts1:in33:out9:addend1"},
            {LIST_OCLGRIND, "normal:q4_1:r1:parts2:in64:out9:gated"},
            {LIST_OCLGRIND, "normal:f16:r2:parts1:in33:out9:normed:layer:gated:gelu"},
            {LIST_OCLGRIND, "normal:q4_k:r1:in256:out3:mix1:normed"},
            {LIST_BENCH, "q4_1:r1:in576:out576:normed"},
            {LIST_BENCH, "q4_1:r1:in576:out576:normed:addend1"},
            {LIST_BENCH, "q4_1:r1:parts2:in576:out1536:normed:gated"},
            {LIST_BENCH, "q4_k:r1:in4096:out4096:normed"},
            {LIST_BENCH, "q4_k:r1:parts2:in4096:out11008:normed:gated"},
            {LIST_BENCH, "f16:r1:parts2:in4096:out11008:normed:gated"},
            {0, NULL}},
    .reject = reject,
    .make = make,
    .oracle = oracle,
    .launch = launch,
    .cpu_form = check_any_case,
    .gpu_form = true,
    .rows = check_plain_rows,
    .rows_alone = true,
    .few_rows = TMS_FEW_ROWS,
    .bytes = bytes,
};
