/* SPDX-License-Identifier: Apache-2.0 */
/* The ops of tamis/ops.h that a model needs, each against a plain computation, and what they
 * refuse. */
#include "tests/api/ops_rig.h"

#include <math.h>
#include <string.h>

#define TOLERANCE 1e-5

/* ---- Each op against a plain computation ----------------------------------------------------- */

enum { IN = 72, OUT = 40, MOST_ROWS = 11, STRIDE = 80 };

/* y of rows at strides wider than a row, behind offsets; bias and accumulation as asked. */
static void run_linear(tamis_dtype dtype, uint32_t n_rows, bool bias, bool accumulate) {
    static float x[MOST_ROWS * STRIDE], y[MOST_ROWS * STRIDE], w[OUT * IN], b[OUT];
    static float got[MOST_ROWS * STRIDE];
    ops_rig rig;
    ops_open(&rig);
    ops_numbers(&rig, x, MOST_ROWS * STRIDE);
    ops_numbers(&rig, y, MOST_ROWS * STRIDE);
    ops_numbers(&rig, w, OUT * IN);
    ops_numbers(&rig, b, OUT);
    const tamis_place to = ops_send(&rig, y, sizeof y, 16);
    const tamis_place weights = ops_send_as(&rig, dtype, w, OUT * IN);
    tamis_linear_params p = {.x = ops_rows(ops_send(&rig, x, sizeof x, 32), STRIDE),
                             .y = ops_rows(to, STRIDE),
                             .w = {.buffer = weights.buffer, .type = (tamis_weight_type)dtype},
                             .n_rows = n_rows,
                             .n_in = IN,
                             .n_out = OUT,
                             .accumulate = accumulate};
    if (bias) p.bias = ops_send(&rig, b, sizeof b, 64);
    OK(tamis_op_linear(rig.context, &p, &test_error));
    ops_read(&to, got, sizeof got);
    for (uint32_t r = 0; r < MOST_ROWS; r++)
        for (uint32_t j = 0; j < STRIDE; j++) {
            double sum = y[r * STRIDE + j];
            if (r < n_rows && j < OUT) {
                sum = (accumulate ? sum : 0) + (bias ? b[j] : 0);
                for (uint32_t i = 0; i < IN; i++)
                    sum += (double)x[r * STRIDE + i] * w[j * IN + i];
            }
            ops_near("y", r * STRIDE + j, got[r * STRIDE + j], sum, 50 * TOLERANCE);
        }
    ops_close(&rig);
}

static void linear_multiplies_rows_of_every_weight_type(void **state) {
    (void)state;
    for (tamis_dtype dtype = TAMIS_F32; dtype <= TAMIS_BF16; dtype++) {
        run_linear(dtype, 1, false, false);
        run_linear(dtype, TAMIS_FEW_ROWS, true, false);
        run_linear(dtype, MOST_ROWS, true, true);
        run_linear(dtype, MOST_ROWS, false, false);
    }
}

/* A row as norm leaves it. */
static void normalise(const float *x, const float *w, uint32_t n, double *z) {
    double squares = 0;
    for (uint32_t i = 0; i < n; i++)
        squares += (double)x[i] * x[i];
    for (uint32_t i = 0; i < n; i++)
        z[i] = x[i] / sqrt(squares / n + 1e-5) * w[i];
}

/* What is added to x, scaled; x becomes the sum, which goes to rows of its own. */
static tamis_place add_to(ops_rig *rig, tamis_linear_parts_params *p, float *x) {
    static float addend[MOST_ROWS * STRIDE], w[IN];
    ops_numbers(rig, addend, MOST_ROWS * STRIDE);
    ops_numbers(rig, w, IN);
    const tamis_place sum = ops_room(rig, sizeof addend, 64);
    p->adds = 1;
    p->addend = ops_rows(ops_send(rig, addend, sizeof addend, 32), STRIDE);
    p->addend_w = ops_send(rig, w, sizeof w, 16);
    p->addend_kind = TAMIS_NORM_NONE;
    p->sum = ops_rows(sum, STRIDE);
    for (uint32_t i = 0; i < MOST_ROWS * STRIDE; i++)
        if (i % STRIDE < IN) x[i] += addend[i] * w[i % STRIDE];
    return sum;
}

/* Three parts of unlike types and sizes, or a gate of the first two; rows at strides wider than a
 * row. */
static void run_linear_parts(uint32_t n_rows, bool gated, bool adds) {
    static const uint32_t outs[TAMIS_MOST_PARTS] = {OUT, OUT, 7};
    static float x[MOST_ROWS * STRIDE], of_norm[IN], w[TAMIS_MOST_PARTS][OUT * IN], b[OUT];
    static float got[TAMIS_FEW_ROWS * STRIDE];
    tamis_place sum_at = {0};
    ops_rig rig;
    ops_open(&rig);
    ops_numbers(&rig, x, MOST_ROWS * STRIDE);
    ops_numbers(&rig, of_norm, IN);
    ops_numbers(&rig, b, OUT);
    tamis_linear_parts_params p = {.x = ops_rows(ops_send(&rig, x, sizeof x, 32), STRIDE),
                                   .norm_w = ops_send(&rig, of_norm, sizeof of_norm, 16),
                                   .n_parts = gated ? 2 : 3,
                                   .n_rows = n_rows,
                                   .n_in = IN,
                                   .eps = 1e-5f,
                                   .gated = gated};
    tamis_place to[TAMIS_MOST_PARTS];
    for (uint32_t i = 0; i < p.n_parts; i++) {
        ops_numbers(&rig, w[i], outs[i] * IN);
        to[i] = ops_room(&rig, sizeof got, 64);
        const tamis_place weights = ops_send_as(&rig, (tamis_dtype)i, w[i], outs[i] * IN);
        p.parts[i].w =
            (tamis_weight_matrix){.buffer = weights.buffer, .type = (tamis_weight_type)i};
        p.parts[i].n_out = outs[i];
        if (i == 1) p.parts[i].bias = ops_send(&rig, b, sizeof b, 64);
        if (i == 0 || !gated) p.parts[i].y = ops_rows(to[i], STRIDE);
    }
    if (adds) sum_at = add_to(&rig, &p, x);
    OK(tamis_op_linear_parts(rig.context, &p, &test_error));
    if (adds) ops_read(&sum_at, got, sizeof got);
    for (uint32_t i = 0; adds && i < n_rows * IN; i++) {
        const uint32_t at = i / IN * STRIDE + i % IN;
        ops_near("sum", at, got[at], x[at], TOLERANCE);
    }
    for (uint32_t i = 0; i < (gated ? 1 : p.n_parts); i++) {
        ops_read(&to[i], got, sizeof got);
        for (uint32_t at = 0; at < n_rows * outs[i]; at++) {
            const uint32_t r = at / outs[i], j = at % outs[i];
            double z[IN], sum[TAMIS_MOST_PARTS] = {0, b[j], 0};
            normalise(x + r * STRIDE, of_norm, IN, z);
            for (uint32_t part = 0; part < p.n_parts; part++)
                for (uint32_t c = 0; c < IN && j < outs[part]; c++)
                    sum[part] += z[c] * w[part][j * IN + c];
            const double y = gated ? sum[0] / (1 + exp(-sum[0])) * sum[1] : sum[i];
            ops_near("y", r * STRIDE + j, got[r * STRIDE + j], y, 200 * TOLERANCE);
        }
    }
    ops_close(&rig);
}

static void linear_parts_add_normalise_multiply_and_gate(void **state) {
    (void)state;
    run_linear_parts(1, false, false);
    run_linear_parts(TAMIS_FEW_ROWS, false, true);
    run_linear_parts(1, true, true);
    run_linear_parts(TAMIS_FEW_ROWS, true, false);
}

/* y = (b·silu(x·w0)·(x·w1))·w2 + y: two stages, of which the second reads what the first wrote. */
static void linear_chain_goes_from_stage_to_stage(void **state) {
    (void)state;
    enum { ROWS = 3 };
    static float x[ROWS * IN], w[TAMIS_MOST_PARTS][OUT * IN], y[ROWS * IN], got[ROWS * IN];
    ops_rig rig;
    ops_open(&rig);
    ops_numbers(&rig, x, ROWS * IN);
    ops_numbers(&rig, y, ROWS * IN);
    const tamis_place hidden = ops_room(&rig, ROWS * OUT * sizeof(float), 64);
    const tamis_place to = ops_send(&rig, y, sizeof y, 32);
    tamis_linear_parts_params stages[] = {
        {.x = ops_rows(ops_send(&rig, x, sizeof x, 0), 0),
         .n_parts = 2,
         .n_rows = ROWS,
         .n_in = IN,
         .gated = 1},
        {.x = ops_rows(hidden, 0), .n_parts = 1, .n_rows = ROWS, .n_in = OUT, .accumulate = 1}};
    for (uint32_t i = 0; i < TAMIS_MOST_PARTS; i++) {
        tamis_linear_part *part = &stages[i / 2].parts[i % 2];
        ops_numbers(&rig, w[i], OUT * IN);
        part->w.buffer = ops_send(&rig, w[i], sizeof w[i], 0).buffer;
        part->n_out = i < 2 ? OUT : IN;
        if (i != 1) part->y = ops_rows(i ? to : hidden, 0);
    }
    const tamis_linear_chain_params p = {.stages = stages, .n_stages = 2};
    OK(tamis_op_linear_chain(rig.context, &p, &test_error));
    ops_read(&to, got, sizeof got);
    for (uint32_t r = 0; r < ROWS; r++) {
        double h[OUT] = {0};
        for (uint32_t j = 0; j < OUT; j++) {
            double sum[2] = {0, 0};
            for (uint32_t c = 0; c < IN; c++)
                for (uint32_t i = 0; i < 2; i++)
                    sum[i] += (double)x[r * IN + c] * w[i][j * IN + c];
            h[j] = sum[0] / (1 + exp(-sum[0])) * sum[1];
        }
        for (uint32_t j = 0; j < IN; j++) {
            double want = y[r * IN + j];
            for (uint32_t c = 0; c < OUT; c++)
                want += h[c] * w[2][j * OUT + c];
            ops_near("y", r * IN + j, got[r * IN + j], want, 1000 * TOLERANCE);
        }
    }
    ops_close(&rig);
}

static void weight_types_know_their_bytes(void **state) {
    (void)state;
    assert_string_equal(tamis_weight_name(TAMIS_WEIGHT_BF16), "bf16");
    assert_string_equal(tamis_weight_name(TAMIS_WEIGHT_Q4_K), "Q4_K");
    assert_string_equal(tamis_weight_name(TAMIS_WEIGHT_MXFP4), "MXFP4");
    assert_string_equal(tamis_weight_name((tamis_weight_type)16), "unknown");
    assert_string_equal(tamis_weight_name((tamis_weight_type)-1), "unknown");
    assert_int_equal(tamis_weight_block(TAMIS_WEIGHT_F16), 1);
    assert_int_equal(tamis_weight_block(TAMIS_WEIGHT_Q5_0), 32);
    assert_int_equal(tamis_weight_block(TAMIS_WEIGHT_Q6_K), 256);
    assert_int_equal(tamis_weight_block((tamis_weight_type)16), 0);
    assert_int_equal(tamis_weight_bytes(TAMIS_WEIGHT_BF16, 3, 5), 30);
    assert_int_equal(tamis_weight_bytes(TAMIS_WEIGHT_Q8_0, 49152, 576), 49152 * 612);
    assert_int_equal(tamis_weight_bytes(TAMIS_WEIGHT_Q4_0, 2, 64), 72);
    assert_int_equal(tamis_weight_bytes(TAMIS_WEIGHT_Q4_1, 2, 64), 80);
    assert_int_equal(tamis_weight_bytes(TAMIS_WEIGHT_Q5_0, 2, 64), 88);
    assert_int_equal(tamis_weight_bytes(TAMIS_WEIGHT_Q4_K, 2, 512), 576);
    assert_int_equal(tamis_weight_bytes(TAMIS_WEIGHT_Q6_K, 2, 512), 840);
    assert_int_equal(tamis_weight_bytes(TAMIS_WEIGHT_Q6_K, 2, 128), 0);
    assert_int_equal(tamis_weight_bytes(TAMIS_WEIGHT_Q3_K, 2, 512), 440);
    assert_int_equal(tamis_weight_bytes(TAMIS_WEIGHT_MXFP4, 3, 64), 102);
    assert_true(tamis_weight_bytes(TAMIS_WEIGHT_F32, UINT64_MAX / 2, 2) == UINT64_MAX);
    assert_true(tamis_weight_bytes(TAMIS_WEIGHT_Q8_0, 1, UINT64_MAX / 32 * 32) == UINT64_MAX);
}

static void norm_divides_by_the_root_mean_square(void **state) {
    (void)state;
    enum { DIM = 48, ROWS = 3 };
    const float eps = 1e-3f;
    float x[ROWS * DIM], w[DIM], got[ROWS * DIM];
    ops_rig rig;
    ops_open(&rig);
    ops_numbers(&rig, x, ROWS * DIM);
    ops_numbers(&rig, w, DIM);
    const tamis_place at = ops_send(&rig, x, sizeof x, 4);
    const tamis_norm_params p = {.x = ops_rows(at, 0), /* in place */
                                 .y = ops_rows(at, 0),
                                 .w = ops_send(&rig, w, sizeof w, 0),
                                 .n_rows = ROWS,
                                 .dim = DIM,
                                 .eps = eps};
    OK(tamis_op_norm(rig.context, &p, &test_error));
    ops_read(&at, got, sizeof got);
    for (uint32_t r = 0; r < ROWS; r++) {
        double squares = 0;
        for (uint32_t i = 0; i < DIM; i++)
            squares += (double)x[r * DIM + i] * x[r * DIM + i];
        for (uint32_t i = 0; i < DIM; i++)
            ops_near("y", r * DIM + i, got[r * DIM + i],
                     x[r * DIM + i] / sqrt(squares / DIM + eps) * w[i], TOLERANCE);
    }
    ops_close(&rig);
}

/* More rows than one launch takes on drivers that compile wide grids apart. */
static void norm_and_argmax_take_many_rows(void **state) {
    (void)state;
    enum { DIM = 16, ROWS = 2100 };
    static float x[ROWS * DIM], got[ROWS * DIM];
    static int32_t largest[ROWS];
    float w[DIM];
    ops_rig rig;
    ops_open(&rig);
    ops_numbers(&rig, x, ROWS * DIM);
    ops_numbers(&rig, w, DIM);
    const tamis_place at = ops_send(&rig, x, sizeof x, 0), to = ops_send(&rig, got, sizeof got, 0);
    const tamis_place out = ops_send(&rig, largest, sizeof largest, 0);
    const tamis_norm_params norm = {.x = ops_rows(at, 0),
                                    .y = ops_rows(to, 0),
                                    .w = ops_send(&rig, w, sizeof w, 0),
                                    .n_rows = ROWS,
                                    .dim = DIM,
                                    .eps = 1e-3f};
    const tamis_argmax_params argmax = {
        .x = ops_rows(at, 0), .out = out, .n_rows = ROWS, .dim = DIM};
    OK(tamis_op_norm(rig.context, &norm, &test_error));
    OK(tamis_op_argmax(rig.context, &argmax, &test_error));
    ops_read(&to, got, sizeof got);
    ops_read(&out, largest, sizeof largest);
    for (uint32_t r = 0; r < ROWS; r++) {
        const float *row = x + r * DIM;
        double squares = 0;
        int32_t best = 0;
        for (int32_t i = 0; i < DIM; i++) {
            squares += (double)row[i] * row[i];
            best = row[i] > row[best] ? i : best;
        }
        assert_int_equal(largest[r], best);
        for (uint32_t i = 0; i < DIM; i++)
            ops_near("y", r * DIM + i, got[r * DIM + i], row[i] / sqrt(squares / DIM + 1e-3) * w[i],
                     TOLERANCE);
    }
    ops_close(&rig);
}

/* Positions near, far and backwards; the channels from n_rot on stay. */
static void run_rotate(tamis_pairing pairing, uint32_t n_rot) {
    enum { ROWS = 3, HEADS = 2, HEAD = 32, WIDTH = HEADS * HEAD };
    const int32_t positions[ROWS] = {0, 70001, -513};
    const uint32_t rotated = n_rot ? n_rot : HEAD;
    float x[ROWS * WIDTH], got[ROWS * WIDTH];
    double frequencies[HEAD / 2];
    ops_rig rig;
    ops_open(&rig);
    ops_numbers(&rig, x, ROWS * WIDTH);
    for (uint32_t i = 0; i < rotated / 2; i++)
        frequencies[i] = pow(10000, -2.0 * i / rotated);
    const tamis_place table = ops_room(&rig, tamis_rotation_bytes(rotated), 0);
    const tamis_rotation turns = {rotated, pairing, table};
    OK(tamis_rotation_write(&turns, frequencies, &test_error));
    const tamis_place at = ops_send(&rig, x, sizeof x, 0);
    const tamis_rotate_params p = {.x = ops_rows(at, 0),
                                   .n_rows = ROWS,
                                   .n_heads = HEADS,
                                   .head_dim = HEAD,
                                   .rotation = {n_rot, pairing, table},
                                   .positions = ops_send(&rig, positions, sizeof positions, 8)};
    OK(tamis_op_rotate(rig.context, &p, &test_error));
    ops_read(&at, got, sizeof got);
    for (uint32_t row = 0; row < ROWS * HEADS; row++) {
        float *head = x + row * HEAD;
        for (uint32_t i = 0; i < rotated / 2; i++) {
            float *a = head + (pairing == TAMIS_PAIR_HALF ? i : 2 * i);
            float *b = a + (pairing == TAMIS_PAIR_HALF ? rotated / 2 : 1);
            const double angle = positions[row / HEADS] * frequencies[i], a0 = *a, b0 = *b;
            *a = (float)(a0 * cos(angle) - b0 * sin(angle));
            *b = (float)(a0 * sin(angle) + b0 * cos(angle));
        }
        for (uint32_t d = 0; d < HEAD; d++)
            ops_near("x", row * HEAD + d, got[row * HEAD + d], head[d], TOLERANCE);
    }
    ops_close(&rig);
}

static void rotate_turns_pairs_by_their_position(void **state) {
    (void)state;
    run_rotate(TAMIS_PAIR_HALF, 0);
    run_rotate(TAMIS_PAIR_ADJACENT, 0);
    run_rotate(TAMIS_PAIR_ADJACENT, 20);
}

static void activate_is_silu_times_up(void **state) {
    (void)state;
    enum { DIM = 33, ROWS = 2 };
    float gate[ROWS * DIM], up[ROWS * DIM], got[ROWS * DIM];
    ops_rig rig;
    ops_open(&rig);
    ops_numbers(&rig, gate, ROWS * DIM);
    ops_numbers(&rig, up, ROWS * DIM);
    const tamis_place at = ops_send(&rig, gate, sizeof gate, 0);
    const tamis_activate_params p = {.gate = ops_rows(at, 0),
                                     .up = ops_rows(ops_send(&rig, up, sizeof up, 0), 0),
                                     .y = ops_rows(at, 0),
                                     .n_rows = ROWS,
                                     .dim = DIM};
    OK(tamis_op_activate(rig.context, &p, &test_error));
    ops_read(&at, got, sizeof got);
    for (uint32_t i = 0; i < ROWS * DIM; i++)
        ops_near("y", i, got[i], gate[i] / (1 + exp(-(double)gate[i])) * up[i], TOLERANCE);
    ops_close(&rig);
}

static void embed_widens_the_rows_of_tokens(void **state) {
    (void)state;
    enum { VOCAB = 7, DIM = 24, ROWS = 4 };
    const int32_t tokens[ROWS] = {6, 0, 3, 6};
    float w[VOCAB * DIM], got[ROWS * DIM];
    ops_rig rig;
    ops_open(&rig);
    ops_numbers(&rig, w, VOCAB * DIM);
    for (tamis_dtype dtype = TAMIS_F32; dtype <= TAMIS_BF16; dtype++) {
        const tamis_place to = ops_room(&rig, sizeof got, 0);
        const tamis_embed_params p = {
            .tokens = ops_send(&rig, tokens, sizeof tokens, 0),
            .w = {.buffer = ops_send_as(&rig, dtype, w, VOCAB * DIM).buffer,
                  .type = (tamis_weight_type)dtype},
            .y = ops_rows(to, 0),
            .n_rows = ROWS,
            .dim = DIM,
            .n_vocab = VOCAB};
        OK(tamis_op_embed(rig.context, &p, &test_error));
        ops_read(&to, got, sizeof got);
        for (uint32_t i = 0; i < ROWS * DIM; i++)
            ops_near("y", i, got[i], w[tokens[i / DIM] * DIM + i % DIM], 0);
    }
    ops_close(&rig);
}

static void argmax_takes_the_lowest_of_equal_ones(void **state) {
    (void)state;
    enum { DIM = 300, ROWS = 3 };
    float x[ROWS * DIM] = {0};
    int32_t got[ROWS];
    ops_rig rig;
    ops_open(&rig);
    x[17] = x[290] = 2;
    for (uint32_t i = 0; i < DIM; i++)
        x[DIM + i] = i == 299 ? -5 : NAN;
    for (uint32_t i = 0; i < DIM; i++)
        x[2 * DIM + i] = NAN;
    const tamis_place out = ops_room(&rig, sizeof got, 4);
    const tamis_argmax_params p = {
        .x = ops_rows(ops_send(&rig, x, sizeof x, 0), 0), .out = out, .n_rows = ROWS, .dim = DIM};
    OK(tamis_op_argmax(rig.context, &p, &test_error));
    ops_read(&out, got, sizeof got);
    assert_int_equal(got[0], 17);
    assert_int_equal(got[1], 299);
    assert_int_equal(got[2], 0);
    ops_close(&rig);
}

static void scatter_rows_puts_rows_where_the_index_says(void **state) {
    (void)state;
    enum { WIDTH = 20, ROWS = 3, ROWS_Y = 5 };
    const int32_t index[ROWS] = {4, -1, 1};
    float x[ROWS * WIDTH], y[ROWS_Y * WIDTH], got[ROWS_Y * WIDTH];
    ops_rig rig;
    ops_open(&rig);
    ops_numbers(&rig, x, ROWS * WIDTH);
    ops_numbers(&rig, y, ROWS_Y * WIDTH);
    const tamis_place to = ops_send(&rig, y, sizeof y, 0);
    const tamis_scatter_rows_params p = {.x = ops_rows(ops_send(&rig, x, sizeof x, 0), 0),
                                         .y = ops_rows(to, 0),
                                         .index = ops_send(&rig, index, sizeof index, 0),
                                         .n_rows = ROWS,
                                         .n_rows_y = ROWS_Y,
                                         .width = WIDTH};
    OK(tamis_op_scatter_rows(rig.context, &p, &test_error));
    memcpy(y + 4 * WIDTH, x, WIDTH * sizeof *x);
    memcpy(y + WIDTH, x + 2 * WIDTH, WIDTH * sizeof *x);
    ops_read(&to, got, sizeof got);
    assert_memory_equal(got, y, sizeof y);
    ops_close(&rig);
}

/* Numbers of which f16 and bf16 hold a few exactly: to either and back they are rounded once, to even. */
static void convert_rounds_to_nearest_even(void **state) {
    (void)state;
    enum { WIDTH = 19, ROWS = 2, N = ROWS * WIDTH };
    static const float from[] = {1.0f, -0.0f, 65504.0f, 65520.0f, 0x1.002p0f, 0x1.006p0f, 0x1p-25f},
                       as_f16[] = {1.0f, -0.0f, 65504.0f, INFINITY, 1.0f, 0x1.008p0f, 0},
                       as_bf16[] = {1.0f, -0.0f, 65536.0f, 65536.0f, 1.0f, 1.0f, 0x1p-25f};
    enum { KNOWN = sizeof from / sizeof *from };
    ops_rig rig;
    ops_open(&rig);
    float x[N], got[N];
    for (uint32_t i = 0; i < N; i++)
        x[i] = i % WIDTH < KNOWN ? from[i % WIDTH] : NAN;
    const tamis_place sent = ops_send(&rig, x, sizeof x, 0), half = ops_room(&rig, sizeof x, 0),
                      back = ops_room(&rig, sizeof x, 0);
    for (int b = 0; b < 2; b++) {
        tamis_rows middle = ops_rows(half, 0);
        middle.dtype = b ? TAMIS_BF16 : TAMIS_F16;
        const tamis_convert_params there = {
            .x = ops_rows(sent, 0), .y = middle, .n_rows = ROWS, .width = WIDTH};
        const tamis_convert_params again = {
            .x = middle, .y = ops_rows(back, 0), .n_rows = ROWS, .width = WIDTH};
        OK(tamis_op_convert(rig.context, &there, &test_error));
        OK(tamis_op_convert(rig.context, &again, &test_error));
        ops_read(&back, got, sizeof got);
        for (uint32_t i = 0; i < N; i++)
            if (i % WIDTH < KNOWN)
                assert_memory_equal(&got[i], &(b ? as_bf16 : as_f16)[i % WIDTH], sizeof *got);
            else
                assert_true(isnan(got[i]));
    }
    ops_close(&rig);
}

/* ---- Without rows ---------------------------------------------------------------------------- */

static void calls_without_rows_need_no_buffers(void **state) {
    (void)state;
    ops_rig rig;
    ops_open(&rig);
    const tamis_linear_params linear = {.n_in = 64, .n_out = 32, .w = {.type = TAMIS_WEIGHT_F16}};
    const tamis_linear_parts_params parts = {
        .n_parts = 1, .n_in = 64, .parts = {{.n_out = 32, .w = {.type = TAMIS_WEIGHT_F16}}}};
    const tamis_linear_chain_params chain = {.stages = &parts, .n_stages = 1};
    const tamis_norm_params norm = {.dim = 64};
    const tamis_rotate_params rotate = {.n_heads = 2, .head_dim = 64};
    const tamis_activate_params activate = {.dim = 64};
    const tamis_embed_params embed = {.dim = 64, .n_vocab = 10};
    const tamis_argmax_params argmax = {.dim = 64};
    const tamis_scatter_rows_params scatter = {.width = 64};
    const tamis_convert_params convert = {.width = 64, .y.dtype = TAMIS_BF16};
    OK(tamis_op_linear(rig.context, &linear, &test_error));
    OK(tamis_op_linear_parts(rig.context, &parts, &test_error));
    OK(tamis_op_linear_chain(rig.context, &chain, &test_error));
    OK(tamis_op_norm(rig.context, &norm, &test_error));
    OK(tamis_op_rotate(rig.context, &rotate, &test_error));
    OK(tamis_op_activate(rig.context, &activate, &test_error));
    OK(tamis_op_embed(rig.context, &embed, &test_error));
    OK(tamis_op_argmax(rig.context, &argmax, &test_error));
    OK(tamis_op_scatter_rows(rig.context, &scatter, &test_error));
    OK(tamis_op_convert(rig.context, &convert, &test_error));
    OK(tamis_context_wait(rig.context, &test_error));
    ops_close(&rig);
}

/* ---- What is refused ------------------------------------------------------------------------- */

/* The call with one field of a sound linear changed is refused, and y keeps its bits. */
#define REFUSED(change, part)                                                                      \
    do {                                                                                           \
        tamis_linear_params p = sound;                                                             \
        change;                                                                                    \
        FAILS(tamis_op_linear(rig.context, &p, &test_error), TAMIS_E_ARGUMENT, part);              \
    } while (0)

static void linear_refuses_buffers_that_do_not_fit(void **state) {
    (void)state;
    float zeros[256] = {0}, got[256], nan[256];
    ops_rig rig, other;
    ops_open(&rig);
    ops_open(&other);
    memset(nan, 0xff, sizeof nan);
    const tamis_place y = ops_room(&rig, sizeof nan, 0), x = ops_send(&rig, zeros, sizeof zeros, 0);
    const tamis_linear_params sound = {.x = ops_rows(x, 0), /* 8 x 32 of 256 floats */
                                       .y = ops_rows(y, 0),
                                       .w = {.buffer = ops_send(&rig, zeros, 512, 0).buffer},
                                       .bias = ops_send(&rig, zeros, 16, 0),
                                       .n_rows = 8,
                                       .n_in = 32,
                                       .n_out = 4};
    FAILS(tamis_op_linear(NULL, &sound, &test_error), TAMIS_E_ARGUMENT, "context is NULL");
    FAILS(tamis_op_linear(rig.context, NULL, &test_error), TAMIS_E_ARGUMENT, "params is NULL");
    FAILS(tamis_op_linear(other.context, &sound, &test_error), TAMIS_E_ARGUMENT,
          "the buffer is of another context");
    REFUSED(p.reserved[2] = 9, "reserved[2] of tamis_linear_params is 9");
    REFUSED(p.reserved32 = 9, "reserved32 of tamis_linear_params is 9");
    REFUSED(p.n_rows = 9, "x: 1152 bytes from byte 0: past the buffer's 1024 bytes");
    REFUSED(p.n_in = 33, "x: 1056 bytes");
    REFUSED(p.n_in = 0, "n_in is 0");
    REFUSED(p.n_out = 0, "n_out is 0");
    REFUSED(p.n_out = 5, "w: 640 bytes from byte 0: past the buffer's 512 bytes");
    REFUSED(p.x.buffer = NULL, "x: no buffer");
    REFUSED(p.w.buffer = NULL, "w: no buffer");
    REFUSED(p.x.offset = 4, "x: 1024 bytes from byte 4");
    REFUSED(p.x.offset = 2, "x: offset 2: not a multiple of 4");
    REFUSED(p.x.offset = UINT64_MAX - 3, "past the buffer's");
    REFUSED(p.x.row_stride = 31, "x: row stride 31: less than the 32 elements of a row");
    REFUSED(p.x.row_stride = UINT64_MAX / 2, "past the buffer's");
    REFUSED(p.x.dtype = TAMIS_F16, "x is f16 (1); it must be f32");
    REFUSED(p.w.type = (tamis_weight_type)16, "w: weight type 16 is unknown");
    REFUSED(p.w.type = TAMIS_WEIGHT_Q4_K, "w: rows of 32 Q4_K weights: not a multiple of its "
                                          "blocks of 256");
    REFUSED(p.w.reserved = 40, "reserved of w is 40; it must be 0");
    REFUSED(p.w.offset = 2, "w: offset 2: not a multiple of 4");
    REFUSED(p.bias.offset = 4, "bias: 16 bytes from byte 4: past the buffer's 16 bytes");
    REFUSED(p.x = p.y, "x and y overlap: bytes 0 to 1023 and 0 to 127");
    ops_read(&y, got, sizeof got);
    assert_memory_equal(got, nan, sizeof nan);
    OK(tamis_op_linear(rig.context, &sound, &test_error));
    ops_close(&other);
    ops_close(&rig);
}

/* The call with one field of a sound linear_parts changed. */
#define PARTS_REFUSED(change, part)                                                                \
    do {                                                                                           \
        tamis_linear_parts_params p = sound;                                                       \
        change;                                                                                    \
        FAILS(tamis_op_linear_parts(rig.context, &p, &test_error), TAMIS_E_ARGUMENT, part);        \
    } while (0)
static void linear_parts_refuses_what_does_not_fit(void **state) {
    (void)state;
    ops_rig rig;
    ops_open(&rig);
    const tamis_place x = ops_room(&rig, 1024, 0), y = ops_room(&rig, 2048, 0);
    const tamis_place w = ops_room(&rig, 4096, 0);
    const tamis_linear_part part = {.w = {.buffer = w.buffer}, .n_out = 16};
    tamis_linear_parts_params sound = {.x = ops_rows(x, 0), /* 4 x 32; parts of 4 x 16 */
                                       .parts = {part, part},
                                       .n_parts = 2,
                                       .n_rows = 4,
                                       .n_in = 32};
    sound.parts[0].y = ops_rows(y, 0);
    sound.parts[1].y = ops_rows((tamis_place){y.buffer, 1024}, 0);
    OK(tamis_op_linear_parts(rig.context, &sound, &test_error));
    PARTS_REFUSED(p.n_rows = 9, "x: 1152 bytes");
    PARTS_REFUSED(p.n_in = 0, "n_in is 0");
    PARTS_REFUSED(p.n_parts = 1, "part 1 is set, and there are 1 parts");
    PARTS_REFUSED(p.parts[2].reserved32 = 3, "part 2 is set, and there are 2 parts");
    PARTS_REFUSED(p.parts[2].w.reserved = 3, "part 2 is set, and there are 2 parts");
    PARTS_REFUSED(p.n_parts = 3, "n_out of a part is 0");
    PARTS_REFUSED(p.n_parts = 0, "part 0 is set, and there are 0 parts");
    PARTS_REFUSED(p.gated = 1, "y of part 1 is given, and the parts are gated");
    PARTS_REFUSED(p.parts[1].y.offset = 0, "y of part 0 and y of part 1 overlap");
    PARTS_REFUSED(p.parts[1].y = p.x, "x and y of part 1 overlap");
    PARTS_REFUSED(p.parts[1].reserved32 = 3, "reserved32 of tamis_linear_part is 3");
    PARTS_REFUSED((p.gated = p.accumulate = 1, p.parts[1].y = (tamis_rows){0}),
                  "linear_parts: gated, and accumulates");
    PARTS_REFUSED(p.sum = p.x, "sum is given, and adds is 0");
    PARTS_REFUSED(p.addend_kind = TAMIS_NORM_NONE, "addend_kind is given, and adds is 0");
    PARTS_REFUSED(p.adds = 1, "addend: no buffer");
    PARTS_REFUSED((p.adds = 1, p.addend = p.sum = p.x), "addend_w is absent");
    PARTS_REFUSED((p.adds = 1, p.addend = p.sum = p.x, p.addend_w = w), "x and sum overlap");
    PARTS_REFUSED((p.adds = 1, p.addend = p.sum = p.parts[0].y, p.addend_w = w),
                  "addend and sum overlap");
    PARTS_REFUSED((p.adds = 1, p.addend = p.x, p.sum = p.parts[0].y, p.addend_w = w),
                  "sum and y of part 0 overlap");
    PARTS_REFUSED((p.adds = 1, p.sum.buffer = w.buffer, p.addend = p.parts[1].y, p.addend_w = w),
                  "addend and y of part 1 overlap");
    PARTS_REFUSED((p.adds = 1, p.sum.buffer = w.buffer, p.addend = p.x, p.addend_w = w,
                   p.addend_kind = (tamis_norm_kind)3),
                  "linear_parts: norm kind 3 is unknown");
    PARTS_REFUSED(p.reserved32 = 3, "reserved32 of tamis_linear_parts_params is 3");
    PARTS_REFUSED(p.reserved[1] = 3, "reserved[1] of tamis_linear_parts_params is 3");
    PARTS_REFUSED((p.n_rows = 9, p.n_in = 16), "linear_parts: 9 rows: at most 8");
    ops_close(&rig);
}

#define CHAIN_REFUSED(change, part)                                                                \
    do {                                                                                           \
        tamis_linear_parts_params stages[] = {sound, sound};                                       \
        tamis_linear_chain_params p = {.stages = stages, .n_stages = 2};                           \
        change;                                                                                    \
        FAILS(tamis_op_linear_chain(rig.context, &p, &test_error), TAMIS_E_ARGUMENT, part);        \
    } while (0)
static void linear_chain_names_the_stage_that_does_not_fit(void **state) {
    (void)state;
    ops_rig rig;
    ops_open(&rig);
    const tamis_place at = ops_room(&rig, 4096, 0);
    const tamis_linear_parts_params sound = {
        .x = ops_rows(at, 0), /* 2 x 16, then 2 x 16 behind them */
        .parts = {{.w = {.buffer = at.buffer},
                   .y = ops_rows((tamis_place){at.buffer, 128}, 0),
                   .n_out = 16}},
        .n_parts = 1,
        .n_rows = 2,
        .n_in = 16};
    const tamis_linear_parts_params alone = {.x = sound.x,
                                             .n_rows = 2,
                                             .n_in = 16,
                                             .accumulate = 1,
                                             .adds = 1,
                                             .addend = sound.x,
                                             .sum = sound.x,
                                             .addend_w = at};
    CHAIN_REFUSED(p.n_stages = 0, "n_stages is 0: there may be 1 to 8");
    CHAIN_REFUSED(p.n_stages = 9, "n_stages is 9: there may be 1 to 8");
    CHAIN_REFUSED(p.stages = NULL, "stages is NULL");
    CHAIN_REFUSED(p.reserved32 = 3, "reserved32 of tamis_linear_chain_params is 3");
    CHAIN_REFUSED(p.reserved[2] = 3, "reserved[2] of tamis_linear_chain_params is 3");
    CHAIN_REFUSED(stages[1].n_in = 0, "stage 1: n_in is 0");
    CHAIN_REFUSED(stages[0].parts[0].y.offset = 64, "stage 0: x and y of part 0 overlap");
    CHAIN_REFUSED(stages[1].reserved[1] = 3, "stage 1: reserved of tamis_linear_parts_params is 3");
    CHAIN_REFUSED(stages[1].n_parts = 0, "stage 1: there are neither parts nor an addend");
    CHAIN_REFUSED((stages[1] = alone, stages[1].parts[0].n_out = 8),
                  "stage 1: part 0 is set, and there are 0 parts");
    CHAIN_REFUSED((stages[1] = alone, stages[1].norm_w = at),
                  "stage 1: norm_w is given, and there are no parts");
    CHAIN_REFUSED((stages[1] = alone, stages[1].accumulate = 0),
                  "stage 1: x is given, and a norm without accumulate has none");
    CHAIN_REFUSED((stages[1] = alone, stages[1].x.buffer = NULL), "stage 1: x: no buffer");
    CHAIN_REFUSED((stages[1] = alone, stages[1].gated = 1),
                  "stage 1: gated of tamis_linear_parts_params is 1");
    CHAIN_REFUSED((stages[1] = alone, stages[1].addend_kind = (tamis_norm_kind)3),
                  "stage 1: norm: norm kind 3 is unknown");
    CHAIN_REFUSED((stages[0] = alone, stages[0].n_rows = 9),
                  "linear_chain: stage 0: a norm alone of 9 rows: at most 8");
    CHAIN_REFUSED((stages[1].norm_kind = (tamis_norm_kind)3, stages[1].norm_w = at),
                  "stage 1: linear_parts: norm kind 3 is unknown");
    CHAIN_REFUSED(stages[1].norm_kind = TAMIS_NORM_LAYER, "norm_kind is 1, and norm_w is absent");
    CHAIN_REFUSED((stages[1].gated = 1, stages[1].activation = (tamis_activation)2),
                  "stage 1: linear_parts: activation 2 is unknown");
    CHAIN_REFUSED(stages[1].activation = TAMIS_GELU,
                  "activation is 1, and the parts are not gated");
    CHAIN_REFUSED(stages[1].n_rows = 1, "linear_chain: 1 rows of stage 1: stage 0 has 2");
    CHAIN_REFUSED(stages[1].parts[0].w.type = TAMIS_WEIGHT_Q8_0, "stage 1: w: rows of 16 Q8_0");
    ops_close(&rig);
}

static void other_ops_refuse_what_they_cannot_do(void **state) {
    (void)state;
    const double frequencies[4] = {1, 0.5, NAN, 1};
    ops_rig rig;
    ops_open(&rig);
    const tamis_place at = ops_room(&rig, 1024, 0);
    const tamis_rows rows = ops_rows(at, 0);
    const tamis_norm_params norm = {.x = rows, .y = rows, .w = at, .n_rows = 2};
    const tamis_norm_params newer = {
        .x = rows, .y = rows, .w = at, .n_rows = 2, .dim = 8, .reserved32 = 5};
    const tamis_rotate_params odd = {.x = rows,
                                     .n_rows = 1,
                                     .n_heads = 1,
                                     .head_dim = 8,
                                     .rotation = {.n_rot = 3, .table = at},
                                     .positions = at};
    tamis_rotate_params small = odd;
    small.rotation.n_rot = 4;
    tamis_rotate_params pairing = small;
    pairing.rotation.pairing = (tamis_pairing)2;
    const tamis_activate_params activate = {.gate = rows, .up = rows, .n_rows = 2, .dim = 8};
    const tamis_embed_params embed = {
        .tokens = at, .w = {.buffer = at.buffer}, .y = rows, .n_rows = 2, .dim = 8, .n_vocab = 100};
    const tamis_argmax_params argmax = {.x = rows, .n_rows = 2, .dim = 8};
    tamis_scatter_rows_params scatter = {
        .x = rows, .y = rows, .index = at, .n_rows = 2, .n_rows_y = 3, .width = 8};
    FAILS(tamis_op_norm(rig.context, &norm, &test_error), TAMIS_E_ARGUMENT, "dim is 0");
    FAILS(tamis_op_norm(rig.context, &newer, &test_error), TAMIS_E_ARGUMENT,
          "reserved32 of tamis_norm_params is 5");
    FAILS(tamis_op_rotate(rig.context, &odd, &test_error), TAMIS_E_ARGUMENT,
          "n_rot is 3: an even number from 2 to 8");
    FAILS(tamis_op_rotate(rig.context, &small, &test_error), TAMIS_E_ARGUMENT,
          "table: 32768 bytes from byte 0: past the buffer's 1024 bytes");
    FAILS(tamis_op_rotate(rig.context, &pairing, &test_error), TAMIS_E_ARGUMENT,
          "pairing is 2: there are 0 to 1");
    FAILS(tamis_op_activate(rig.context, &activate, &test_error), TAMIS_E_ARGUMENT, "y: no buffer");
    FAILS(tamis_op_embed(rig.context, &embed, &test_error), TAMIS_E_ARGUMENT, "w: 3200 bytes");
    FAILS(tamis_op_argmax(rig.context, &argmax, &test_error), TAMIS_E_ARGUMENT, "out is absent");
    FAILS(tamis_op_scatter_rows(rig.context, &scatter, &test_error), TAMIS_E_ARGUMENT,
          "x and y overlap");
    scatter.n_rows_y = 0;
    FAILS(tamis_op_scatter_rows(rig.context, &scatter, &test_error), TAMIS_E_ARGUMENT,
          "n_rows_y is 0");
    tamis_convert_params convert = {.x = rows, .y = rows, .n_rows = 2, .width = 8};
    FAILS(tamis_op_convert(rig.context, &convert, &test_error), TAMIS_E_ARGUMENT,
          "x and y overlap: bytes 0 to 63 and 0 to 63");
    convert.y.offset = 64;
    convert.y.dtype = TAMIS_Q8;
    FAILS(tamis_op_convert(rig.context, &convert, &test_error), TAMIS_E_ARGUMENT,
          "y is q8 (3); it must be f32, f16 or bf16");
    convert.y.dtype = TAMIS_F16;
    convert.width = 0;
    FAILS(tamis_op_convert(rig.context, &convert, &test_error), TAMIS_E_ARGUMENT, "width is 0");
    FAILS(tamis_rotation_write(NULL, frequencies, &test_error), TAMIS_E_ARGUMENT,
          "table is absent");
    tamis_rotation turns = {.n_rot = 8, .table = at};
    FAILS(tamis_rotation_write(&turns, NULL, &test_error), TAMIS_E_ARGUMENT, "frequencies is NULL");
    FAILS(tamis_rotation_write_scaled(&turns, frequencies, NAN, &test_error), TAMIS_E_ARGUMENT,
          "magnitude is nan");
    FAILS(tamis_rotation_write(&turns, frequencies, &test_error), TAMIS_E_ARGUMENT,
          "frequency 2 is nan");
    turns.n_rot = 7;
    FAILS(tamis_rotation_write(&turns, frequencies, &test_error), TAMIS_E_ARGUMENT, "n_rot is 7");
    turns.n_rot = 4;
    FAILS(tamis_rotation_write(&turns, frequencies, &test_error), TAMIS_E_ARGUMENT,
          "table: 32768 bytes");
    ops_close(&rig);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_multiplies_rows_of_every_weight_type),
        cmocka_unit_test(linear_parts_add_normalise_multiply_and_gate),
        cmocka_unit_test(linear_chain_goes_from_stage_to_stage),
        cmocka_unit_test(weight_types_know_their_bytes),
        cmocka_unit_test(norm_divides_by_the_root_mean_square),
        cmocka_unit_test(norm_and_argmax_take_many_rows),
        cmocka_unit_test(rotate_turns_pairs_by_their_position),
        cmocka_unit_test(activate_is_silu_times_up),
        cmocka_unit_test(embed_widens_the_rows_of_tokens),
        cmocka_unit_test(argmax_takes_the_lowest_of_equal_ones),
        cmocka_unit_test(scatter_rows_puts_rows_where_the_index_says),
        cmocka_unit_test(convert_rounds_to_nearest_even),
        cmocka_unit_test(calls_without_rows_need_no_buffers),
        cmocka_unit_test(linear_refuses_buffers_that_do_not_fit),
        cmocka_unit_test(linear_parts_refuses_what_does_not_fit),
        cmocka_unit_test(linear_chain_names_the_stage_that_does_not_fit),
        cmocka_unit_test(other_ops_refuse_what_they_cannot_do),
    };
    const int unusable = test_begin(argc, argv);
    return unusable ? unusable : cmocka_run_group_tests_name("ops_dense", tests, NULL, NULL);
}
