/* SPDX-License-Identifier: Apache-2.0 */
/* What attends give beside out: lse, as the formula in fp64 has it, by which parts merge; and rows of half
 * precision. */
#include "tests/api/lists.h"

#include <math.h>
#include <string.h>

/* ---- lse ------------------------------------------------------------------------------------- */

/* Two plans' halves of the pages, merged, are what all pages give. */
static void halves_merge_to_the_whole(void **state) {
    (void)state;
    static const uint32_t rows[SEQUENCES] = {2, 1, 1};
    const lists_case c = {.dtype = TAMIS_F16, .selection = lists_selection(CONTEXT)};
    const uint32_t n = 4, width = n * 4 * DIM;
    static layer_result whole, halves[2], merged;
    lists_world l;
    tamis_buffer *outs, *lses;
    lists_open(&l, &c);
    lists_prefill(&l);
    lists_fill(&outs, l.w.context, NULL, 2ull * width * 4);
    lists_fill(&lses, l.w.context, NULL, 2ull * n * 4 * 4);
    lists_begin(&l, rows, 0);
    test_write(&l.w, 0, lists_tokens(&l, rows), n);
    lists_queries(&l, n, whole.q);
    for (int part = 0; part < 3; part++) { /* the last: all pages */
        host_lists lists = {.capacity = CONTEXT / 8};
        for (uint32_t i = 0; i < 2 * n; i++)
            for (uint32_t p = 0; p < CONTEXT / 8; p++)
                if (p * 8 < lists_row(&l, rows, i / 2).visible &&
                    (part == 2 || p % 2 == (uint32_t)part))
                    lists.entries[i * lists.capacity + (uint32_t)lists.count[i]++] = (int32_t)p;
        const tamis_caller_lists given = lists_give(&l, &lists, part);
        lists_attend(&l, 0, n, &given, part == 2 ? &whole : &halves[part]);
        if (part == 2) break;
        OK(tamis_buffer_write(outs, part * width * 4ull, halves[part].out, width * 4ull,
                              &test_error));
        OK(tamis_buffer_write(lses, part * n * 16ull, halves[part].lse, n * 16ull, &test_error));
    }
    const tamis_merge_params merge = {.outs.buffer = outs,
                                      .lses.buffer = lses,
                                      .out.buffer = l.w.out,
                                      .lse.buffer = l.lse,
                                      .n_parts = 2,
                                      .n = n * 4,
                                      .dim = DIM};
    OK(tamis_op_merge(l.w.context, &merge, &test_error));
    OK(tamis_buffer_read(l.w.out, 0, merged.out, width * 4ull, &test_error));
    OK(tamis_buffer_read(l.lse, 0, merged.lse, n * 16ull, &test_error));
    for (uint32_t i = 0; i < width; i++)
        assert_true(fabsf(merged.out[i] - whole.out[i]) <= 1e-4f);
    for (uint32_t i = 0; i < n * 4; i++)
        assert_true(fabsf(merged.lse[i] - whole.lse[i]) <= 1e-4f);
    OK(tamis_plan_step_cancel(l.w.plan, &test_error));
    tamis_buffer_destroy(&outs);
    tamis_buffer_destroy(&lses);
    lists_close(&l);
}

static void make_table(lists_world *l, tamis_buffer **table) {
    double frequencies[DIM / 2];
    for (uint32_t i = 0; i < DIM / 2; i++)
        frequencies[i] = pow(10000, -2.0 * i / DIM);
    OK(tamis_buffer_create(l->w.context, tamis_rotation_bytes(DIM), table, &test_error));
    const tamis_rotation rotation = {.n_rot = DIM, .table.buffer = *table};
    OK(tamis_rotation_write(&rotation, frequencies, &test_error));
}

static void turn(lists_world *l, tamis_buffer **table) {
    make_table(l, table);
    const tamis_rotation rotation = {.n_rot = DIM, .table.buffer = *table};
    OK(tamis_plan_bind_rotation(l->w.plan, &rotation, &test_error));
}

/* Under every way to attend lse is that of the formula: prompts in tiles, decode rows, fused or not, with
 * weights that an eviction takes, with sinks moved nearer. */
static void lse_is_that_of_the_formula(void **state) {
    (void)state;
    const tamis_selection quest = {.kind = TAMIS_SELECT_QUEST, .budget = BUDGET, .recent = 1};
    const lists_case cases[] = {
        {.dtype = TAMIS_F32},
        {.dtype = TAMIS_F16, .sunk = true, .window = 40},
        {.dtype = TAMIS_F16, .selection = quest},
        {.dtype = TAMIS_BF16, .selection = quest, .sunk = true},
        {.dtype = TAMIS_F16, .eviction = TAMIS_EVICT_H2O},
        {.dtype = TAMIS_F16, .eviction = TAMIS_EVICT_TOVA, .sunk = true},
        {.dtype = TAMIS_F16, .eviction = TAMIS_EVICT_STREAMING},
        {.dtype = TAMIS_F16, .eviction = TAMIS_EVICT_STREAMING, .sunk = true}};
    static layer_result r;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lists_world l;
        tamis_buffer *table = NULL;
        lists_open(&l, &cases[i]);
        if (cases[i].eviction == TAMIS_EVICT_STREAMING) turn(&l, &table);
        for (uint32_t s = 0; s < 5; s++) { /* 3 prompts' chunks, 2 decode steps */
            uint32_t rows[SEQUENCES] = {s < 3 ? 30u : 1u, s < 3 ? 9u : 1u, s < 3 ? 17u : 1u};
            const uint32_t n = rows[0] + rows[1] + rows[2];
            const tamis_step step = {
                .sequences = l.ids, .rows = rows, .count = SEQUENCES, .exact = s < 3};
            OK(tamis_plan_step_begin(l.w.plan, &step, &test_error));
            uint64_t *tokens = lists_tokens(&l, rows);
            for (uint32_t layer = 0; layer < 2; layer++) {
                test_write(&l.w, layer, tokens, n);
                lists_queries(&l, n, r.q);
                lists_attend(&l, layer, n, NULL, &r);
                for (uint32_t row = 0; row < n; row += 1 + row % 7)
                    lists_check_row(&l, layer, lists_row(&l, rows, row), row, TAMIS_LIST_PAGES, &r,
                                    cases[i].sunk);
            }
            OK(tamis_plan_step_end(l.w.plan, &test_error));
        }
        tamis_buffer_destroy(&table); /* the plan holds it */
        lists_close(&l);
    }
}

/* ---- Rows of half precision ------------------------------------------------------------------ */

static void convert(lists_world *l, tamis_buffer *from, tamis_dtype from_dtype, tamis_buffer *to,
                    tamis_dtype to_dtype, uint32_t n) {
    const tamis_convert_params p = {.x = {.buffer = from, .dtype = from_dtype},
                                    .y = {.buffer = to, .dtype = to_dtype},
                                    .n_rows = n,
                                    .width = 4 * DIM};
    OK(tamis_op_convert(l->w.context, &p, &test_error));
}

/* With q and out of any dtypes the bits are those of f32 rows, q widened before and out rounded behind;
 * rows may lie apart. */
static void half_rows_are_converted_on_their_way(void **state) {
    (void)state;
    static const uint32_t rows[SEQUENCES] = {2, 1, 30};
    const lists_case c = {.dtype = TAMIS_F16,
                          .selection = {.kind = TAMIS_SELECT_QUEST, .budget = BUDGET, .recent = 1},
                          .flags = TAMIS_PLAN_HALF_ROWS};
    const uint32_t n = 33, stride = 4 * DIM + 3;
    const uint64_t bytes = (uint64_t)n * 4 * DIM * 4;
    static layer_result r;
    static uint16_t wanted[33 * 4 * DIM], got[33 * (4 * DIM + 3)];
    lists_world l;
    tamis_buffer *half, *out;
    lists_open(&l, &c);
    lists_prefill(&l);
    lists_fill(&half, l.w.context, NULL, bytes);
    lists_fill(&out, l.w.context, NULL, 2 * bytes);
    for (int pair = 0; pair < 9; pair++) {
        const tamis_dtype from = (tamis_dtype)(pair / 3), to = (tamis_dtype)(pair % 3);
        const size_t size = tamis_dtype_size(to);
        lists_begin(&l, rows, 2);
        test_write(&l.w, 0, lists_tokens(&l, rows), n);
        lists_queries(&l, n, r.q);
        convert(&l, l.w.q, TAMIS_F32, half, from, n);
        convert(&l, half, from, l.w.q, TAMIS_F32, n);
        lists_attend(&l, 0, n, NULL, &r);
        const tamis_plan_attend_params p = {
            .q = {.buffer = half, .dtype = from},
            .out = {.buffer = out, .dtype = to, .row_stride = stride, .offset = 128}};
        const uint32_t builds = test_builds;
        OK(tamis_plan_attend_with(l.w.plan, 0, &p, &test_error));
        assert_int_equal(test_builds, builds);
        convert(&l, l.w.out, TAMIS_F32, half, to, n);
        for (uint32_t row = 0; row < n; row++) {
            OK(tamis_buffer_read(half, row * 4ull * DIM * size, wanted, 4 * DIM * size,
                                 &test_error));
            OK(tamis_buffer_read(out, 128 + row * (uint64_t)stride * size, got, 4 * DIM * size,
                                 &test_error));
            assert_memory_equal(got, wanted, 4 * DIM * size);
        }
        OK(tamis_plan_step_cancel(l.w.plan, &test_error));
        for (uint32_t i = 0; i < SEQUENCES; i++)
            l.length[i] -= rows[i];
    }
    tamis_buffer_destroy(&half);
    tamis_buffer_destroy(&out);
    lists_close(&l);
}

/* The same where one call writes and attends, in one launch where the device has it. */
static void write_attend_rounds_out(void **state) {
    (void)state;
    static const uint32_t rows[SEQUENCES] = {1, 1, 1};
    const lists_case c = {.dtype = TAMIS_F16, .flags = TAMIS_PLAN_HALF_ROWS | TAMIS_PLAN_ROTATED};
    static layer_result r;
    int32_t positions[SEQUENCES];
    uint16_t wanted[3 * 4 * DIM], got[3 * 4 * DIM];
    lists_world l;
    tamis_buffer *table, *at, *half;
    lists_open(&l, &c);
    for (int32_t i = 0; i < SEQUENCES; i++)
        positions[i] = 100 * i;
    make_table(&l, &table);
    lists_fill(&at, l.w.context, positions, sizeof positions);
    lists_fill(&half, l.w.context, NULL, sizeof wanted);
    for (int b = 0; b < 3; b++) { /* f32, f16, bf16 */
        const tamis_dtype to = (tamis_dtype)b;
        const uint64_t tokens[3] = {900, 901, 902};
        const tamis_rows out = {.buffer = b ? half : l.w.out, .dtype = to};
        const tamis_rotated_rows rotated = {.q.buffer = l.w.q,
                                            .k.buffer = l.w.k,
                                            .v.buffer = l.w.v,
                                            .rotation = {.n_rot = DIM, .table.buffer = table},
                                            .positions.buffer = at};
        lists_begin(&l, rows, 0);
        if (b == 0) lists_queries(&l, 3, r.q);
        OK(tamis_buffer_write(l.w.q, 0, r.q, 3 * 4 * DIM * 4, &test_error));
        test_fill_kv(&l.w, 0, tokens, 3);
        OK(tamis_plan_write_attend(l.w.plan, 0, &rotated, &out, &test_error));
        if (b) {
            OK(tamis_buffer_read(half, 0, got, sizeof got, &test_error));
            convert(&l, l.w.out, TAMIS_F32, half, to, 3);
            OK(tamis_buffer_read(half, 0, wanted, sizeof wanted, &test_error));
            assert_memory_equal(got, wanted, sizeof got);
        }
        OK(tamis_plan_step_cancel(l.w.plan, &test_error));
    }
    tamis_buffer *buffers[] = {table, at, half};
    for (size_t i = 0; i < 3; i++)
        tamis_buffer_destroy(&buffers[i]);
    lists_close(&l);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halves_merge_to_the_whole),
        cmocka_unit_test(lse_is_that_of_the_formula),
        cmocka_unit_test(half_rows_are_converted_on_their_way),
        cmocka_unit_test(write_attend_rounds_out),
    };
    const int unusable = test_begin(argc, argv);
    return unusable ? unusable : cmocka_run_group_tests(tests, NULL, NULL);
}
