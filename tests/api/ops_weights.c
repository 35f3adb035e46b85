/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised weights in tamis/ops.h, on rows that GGUF's own package has widened
 * (tests/api/make_weights.py): embed gives its bits, linear their products. */
#include "tests/api/ops_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TYPES = TAMIS_WEIGHT_MXFP4 - TAMIS_WEIGHT_Q8_0 + 1, MOST_ROWS = 9 };

/* Rows of one type. */
typedef struct fixture {
    uint32_t type, rows, width, bytes; /* bytes of a row */
    unsigned char *packed;
    float *wide;
} fixture;

static void open_fixtures(fixture all[TYPES]) {
    FILE *f = fopen(TEST_WEIGHTS, "rb");
    assert_non_null(f);
    for (int i = 0; i < TYPES; i++) {
        fixture *one = &all[i];
        assert_int_equal(fread(one, sizeof(uint32_t), 4, f), 4);
        const size_t bytes = (size_t)one->rows * one->bytes, n = (size_t)one->rows * one->width;
        one->packed = malloc(bytes);
        one->wide = malloc(n * sizeof(float));
        assert_true(one->packed && one->wide);
        assert_int_equal(fread(one->packed, 1, bytes, f), bytes);
        assert_int_equal(fread(one->wide, sizeof(float), n, f), n);
        assert_int_equal(tamis_weight_bytes((tamis_weight_type)one->type, 1, one->width),
                         one->bytes);
    }
    assert_int_equal(fgetc(f), EOF);
    fclose(f);
}

static void close_fixtures(fixture all[TYPES]) {
    for (int i = 0; i < TYPES; i++) {
        free(all[i].packed);
        free(all[i].wide);
    }
}

/* The matrix of a type behind an offset. */
static tamis_weight_matrix send_weights(ops_rig *rig, const fixture *one,
                                        tamis_weight_layout layout) {
    const tamis_weight_type type = (tamis_weight_type)one->type;
    const uint64_t bytes = tamis_weight_layout_bytes(layout, type, one->rows, one->width);
    unsigned char *strips = malloc(bytes);
    assert_non_null(strips);
    if (layout == TAMIS_WEIGHT_STRIPS)
        OK(tamis_weight_pack(type, one->rows, one->width, one->packed, strips, &test_error));
    const tamis_place at =
        ops_send(rig, layout == TAMIS_WEIGHT_STRIPS ? strips : one->packed, bytes, 36);
    free(strips);
    return (tamis_weight_matrix){
        .buffer = at.buffer, .offset = at.offset, .type = type, .layout = layout};
}

/* Both layouts where the device reads strips fastest, else rows. */
static int layouts_of(const ops_rig *rig, const fixture *one) {
    return tamis_context_weight_layout(rig->context, (tamis_weight_type)one->type) + 1;
}

static void run_embed(ops_rig *rig, const fixture *one, tamis_weight_layout layout) {
    const int32_t tokens[] = {2, 0, 1};
    const uint64_t n = 3 * (uint64_t)one->width;
    float *got = malloc(n * sizeof *got);
    const tamis_place to = ops_room(rig, n * sizeof *got, 0);
    const tamis_embed_params p = {.tokens = ops_send(rig, tokens, sizeof tokens, 0),
                                  .w = send_weights(rig, one, layout),
                                  .y = ops_rows(to, 0),
                                  .n_rows = 3,
                                  .dim = one->width,
                                  .n_vocab = one->rows};
    OK(tamis_op_embed(rig->context, &p, &test_error));
    ops_read(&to, got, n * sizeof *got);
    for (uint64_t k = 0; k < 3; k++)
        assert_memory_equal(got + k * one->width, one->wide + tokens[k] * one->width,
                            one->width * sizeof *got);
    free(got);
}

static void embed_gives_the_bits_of_gguf(void **state) {
    (void)state;
    fixture all[TYPES];
    open_fixtures(all);
    for (int i = 0; i < TYPES; i++) {
        ops_rig rig;
        ops_open(&rig);
        for (int layout = 0; layout < layouts_of(&rig, &all[i]); layout++)
            run_embed(&rig, &all[i], (tamis_weight_layout)layout);
        ops_close(&rig);
    }
    close_fixtures(all);
}

/* Products of rows of numbers up to 2 with the weights, within 2e-5 of the sum of their sizes. */
static void run_linear(ops_rig *rig, const fixture *one, tamis_weight_layout layout,
                       uint32_t n_rows) {
    float x[MOST_ROWS * 512], got[MOST_ROWS * 8];
    ops_numbers(rig, x, (uint64_t)n_rows * one->width);
    const tamis_place to = ops_room(rig, sizeof got, 0);
    const tamis_place from = ops_send(rig, x, (uint64_t)n_rows * one->width * sizeof *x, 0);
    const tamis_linear_params p = {.x = ops_rows(from, 0),
                                   .y = ops_rows(to, 0),
                                   .w = send_weights(rig, one, layout),
                                   .n_rows = n_rows,
                                   .n_in = one->width,
                                   .n_out = one->rows};
    OK(tamis_op_linear(rig->context, &p, &test_error));
    ops_read(&to, got, (uint64_t)n_rows * one->rows * sizeof *got);
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t j = 0; j < one->rows; j++) {
            double sum = 0, size = 0;
            for (uint32_t i = 0; i < one->width; i++) {
                const double w = one->wide[j * one->width + i];
                sum += w * x[r * one->width + i];
                size += 2 * fabs(w);
            }
            ops_near("y", r * one->rows + j, got[r * one->rows + j], sum, 2e-5 * size);
        }
}

static void linear_multiplies_quantised_rows(void **state) {
    (void)state;
    fixture all[TYPES];
    open_fixtures(all);
    for (int i = 0; i < TYPES; i++) {
        ops_rig rig;
        ops_open(&rig);
        const int layouts = layouts_of(&rig, &all[i]);
        for (int layout = 0; layout < layouts; layout++) {
            run_linear(&rig, &all[i], (tamis_weight_layout)layout, 1);
            run_linear(&rig, &all[i], (tamis_weight_layout)layout, MOST_ROWS);
        }
        run_linear(&rig, &all[i], (tamis_weight_layout)(layouts - 1), 2);
        ops_close(&rig);
    }
    close_fixtures(all);
}

/* ---- Packing --------------------------------------------------------------------------------- */

enum { PACKED = 35, WIDTH = 512 }; /* rows, not a multiple of 16; inputs */

/* Packed in two pieces, and back in one. */
static void packing_loses_nothing(void **state) {
    (void)state;
    for (int i = TAMIS_WEIGHT_Q8_0; i <= TAMIS_WEIGHT_MXFP4; i++) {
        const tamis_weight_type type = (tamis_weight_type)i;
        const uint64_t row = tamis_weight_bytes(type, 1, WIDTH);
        const uint64_t bytes = tamis_weight_layout_bytes(TAMIS_WEIGHT_STRIPS, type, PACKED, WIDTH);
        assert_int_equal(bytes, 48 * row);
        unsigned char *rows = malloc(PACKED * row), *back = malloc(PACKED * row);
        unsigned char *strips = malloc(bytes);
        assert_true(rows && back && strips);
        for (uint64_t k = 0; k < PACKED * row; k++)
            rows[k] = (unsigned char)(k * 2654435761u >> 13);
        memset(strips, 0xee, bytes);
        OK(tamis_weight_pack(type, 16, WIDTH, rows, strips, &test_error));
        OK(tamis_weight_pack(type, PACKED - 16, WIDTH, rows + 16 * row, strips + 16 * row,
                             &test_error));
        OK(tamis_weight_unpack(type, PACKED, WIDTH, strips, back, &test_error));
        assert_memory_equal(back, rows, PACKED * row);
        free(rows);
        free(back);
        free(strips);
    }
}

static void packing_refuses(void **state) {
    (void)state;
    unsigned char from[64] = {0}, to[1024];
    tamis_error *e = &test_error;
    assert_int_equal(tamis_weight_layout_bytes(TAMIS_WEIGHT_STRIPS, TAMIS_WEIGHT_F16, 16, 32), 0);
    assert_int_equal(tamis_weight_layout_bytes((tamis_weight_layout)2, TAMIS_WEIGHT_Q4_0, 16, 32),
                     0);
    FAILS(tamis_weight_pack(TAMIS_WEIGHT_F16, 1, 32, from, to, e), TAMIS_E_ARGUMENT, "f16");
    FAILS(tamis_weight_pack((tamis_weight_type)99, 1, 32, from, to, e), TAMIS_E_ARGUMENT, "99");
    FAILS(tamis_weight_pack(TAMIS_WEIGHT_Q4_0, 1, 33, from, to, e), TAMIS_E_ARGUMENT, "33");
    FAILS(tamis_weight_pack(TAMIS_WEIGHT_Q4_0, 0, 32, from, to, e), TAMIS_E_ARGUMENT, "0 rows");
    FAILS(tamis_weight_pack(TAMIS_WEIGHT_Q4_0, 1, 32, NULL, to, e), TAMIS_E_ARGUMENT, "rows: NULL");
    FAILS(tamis_weight_unpack(TAMIS_WEIGHT_Q4_0, 1, 32, NULL, to, e), TAMIS_E_ARGUMENT, "strips");
    FAILS(tamis_weight_pack(TAMIS_WEIGHT_Q4_0, UINT64_MAX - 3, 32, from, to, e), TAMIS_E_ARGUMENT,
          "64 bits");
}

/* A matrix that says a layout which does not exist, or which its type has not. */
static void ops_refuse_layouts(void **state) {
    (void)state;
    ops_rig rig;
    ops_open(&rig);
    const tamis_place at = ops_room(&rig, 4096, 0);
    tamis_linear_params p = {.x = ops_rows(at, 0),
                             .y = ops_rows(ops_room(&rig, 256, 0), 0),
                             .w = {.buffer = at.buffer, .type = TAMIS_WEIGHT_Q4_0},
                             .n_rows = 1,
                             .n_in = 32,
                             .n_out = 3};
    p.w.layout = (tamis_weight_layout)2;
    FAILS(tamis_op_linear(rig.context, &p, &test_error), TAMIS_E_ARGUMENT, "layout of w is 2");
    p.w.layout = TAMIS_WEIGHT_STRIPS;
    p.w.type = TAMIS_WEIGHT_F16;
    FAILS(tamis_op_linear(rig.context, &p, &test_error), TAMIS_E_UNSUPPORTED, "f16");
    p.w.type = TAMIS_WEIGHT_Q4_0;
    p.w.offset = 4096 - 16 * 18 + 4; /* room for three rows, not for a strip */
    FAILS(tamis_op_linear(rig.context, &p, &test_error), TAMIS_E_ARGUMENT, "w");
    ops_close(&rig);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_gives_the_bits_of_gguf),
        cmocka_unit_test(linear_multiplies_quantised_rows),
        cmocka_unit_test(packing_loses_nothing),
        cmocka_unit_test(packing_refuses),
        cmocka_unit_test(ops_refuse_layouts),
    };
    const int unusable = test_begin(argc, argv);
    return unusable ? unusable : cmocka_run_group_tests_name("ops_weights", tests, NULL, NULL);
}
