/* SPDX-License-Identifier: Apache-2.0 */
/* Calling an op: a late error first, then the contract's rules, then the device's own function; the
 * answer to a broken rule is the same on every device. */
#include "host/checks.h"
#include "lib/core/core.h"
#include "tests/api/fixture.h"
#include "tests/faulty.h"

#include <stdlib.h>
#include <string.h>

#define NAME(with, op) #op,
static const char *const names[] = {TMS_OPS(NAME, )};
enum { N_OPS = sizeof names / sizeof *names };

/* Each op with params of zeros: through the call, and its rules alone. */
#define RUN_ZEROS(with, op)                                                                        \
    static tamis_status run_##op(tms_device *dev) {                                                \
        const tms_##op p = {0};                                                                    \
        test_error = (tamis_error){0};                                                             \
        return tms_run_##op(dev, &p, &test_error);                                                 \
    }
TMS_OPS(RUN_ZEROS, )
#define CHECK_ZEROS(with, op)                                                                      \
    static tamis_status check_##op(tms_device *dev) {                                              \
        const tms_##op p = {0};                                                                    \
        return tms_check_##op(dev, &p);                                                            \
    }
TMS_OPS(CHECK_ZEROS, )
#define RUN_ENTRY(with, op)   run_##op,
#define CHECK_ENTRY(with, op) check_##op,
static tamis_status (*const runs[N_OPS])(tms_device *) = {TMS_OPS(RUN_ENTRY, )};
static tamis_status (*const checks[N_OPS])(tms_device *) = {TMS_OPS(CHECK_ENTRY, )};

static tms_device *open_device(tamis_context **context) {
    const tamis_context_params params = {.device = test_device};
    OK(tamis_context_create(&params, context, &test_error));
    return (*context)->dev;
}

/* What breaks a rule does not reach the device, whatever form is forced; what breaks none does. */
static void test_rules_come_before_the_device(void **state) {
    (void)state;
    tamis_context *context = NULL;
    tms_device *dev = open_device(&context);
    uint32_t broken = 0;
    for (uint32_t i = 0; i < N_OPS; i++) {
        dev->error = (tamis_error){0};
        const tamis_status rule = checks[i](dev);
        const tamis_error wanted = dev->error;
        dev->form = rule == TAMIS_OK ? TMS_FORM_AUTO : TMS_FORM_CPU;
        faulty_begin(dev, -1, FAULTY_BEFORE);
        const tamis_status status = runs[i](dev);
        faulty_pause(dev);
        broken += rule != TAMIS_OK;
        if (status != rule || faulty_calls() != (rule == TAMIS_OK) ||
            (rule != TAMIS_OK && strcmp(test_error.text, wanted.text) != 0))
            fail_msg("%s: %s \"%s\" after %d calls; its rules say %s \"%s\"", names[i],
                     tamis_status_name(status), test_error.text, faulty_calls(),
                     tamis_status_name(rule), wanted.text);
    }
    assert_true(broken > 20 && broken < N_OPS);
    dev->form = TMS_FORM_AUTO;
    tamis_context_destroy(&context);
}

/* An error that arrived late is the answer of every op, whether its rules are kept or not. */
static void test_late_errors_come_first(void **state) {
    (void)state;
    tamis_context *context = NULL;
    tms_device *dev = open_device(&context);
    dev->sticky = tms_device_fail(dev, TAMIS_E_DEVICE, "the device fell over");
    for (uint32_t i = 0; i < N_OPS; i++) {
        faulty_begin(dev, -1, FAULTY_BEFORE);
        const tamis_status status = runs[i](dev);
        faulty_pause(dev);
        if (status != TAMIS_E_DEVICE || faulty_calls() != 0 ||
            strcmp(test_error.text, "the device fell over") != 0)
            fail_msg("%s: %s \"%s\" after %d calls", names[i], tamis_status_name(status),
                     test_error.text, faulty_calls());
    }
    tamis_context_destroy(&context);
}

/* BREAKS(op, status, part of the text, the params). */
#define BREAKS(op, code, text, ...)                                                                \
    do {                                                                                           \
        const tms_##op p_ = {__VA_ARGS__};                                                         \
        test_error = (tamis_error){0};                                                             \
        const tamis_status status_ = tms_run_##op(dev, &p_, &test_error);                          \
        test_fails(status_, code, text, #op, __FILE__, __LINE__);                                  \
    } while (0)

static void test_rules_name_the_value(void **state) {
    (void)state;
    tamis_context *context = NULL;
    tms_device *dev = open_device(&context);
    tms_mem *mem = NULL;
    assert_int_equal(dev->backend->alloc(dev, 1024, &mem), TAMIS_OK);
    const tms_ref at = {mem, 0};
    const tms_kv kv = {.page_size = 8, .head_dim = 64, .slot_stride = 64};
    const tms_batch heads = {.n_heads = 2, .n_kv_heads = 2};
    BREAKS(read_rows, TAMIS_E_UNSUPPORTED,
           "head dim 72: supported are 64, 80, 96, 112, 128, 160, 192, 256, 512",
           .kv = {.page_size = 8, .head_dim = 72});
    BREAKS(read_rows, TAMIS_E_ARGUMENT, "read_rows: table is absent", .kv = kv, .n = 1);
    BREAKS(write_rotated, TAMIS_E_ARGUMENT, "write_rotated: 66 channels of a head of 64", .kv = kv,
           .rotation = {.n_rot = 66});
    BREAKS(write_rotated, TAMIS_E_ARGUMENT, "write_rotated: rows of f16 are to be rotated",
           .rotation = {.n_rot = 2},
           .kv = {.page_size = 8, .head_dim = 64, .slot_stride = 64, .dtype = TAMIS_F16},
           .dtype = TAMIS_F16);
    BREAKS(write_rows, TAMIS_E_ARGUMENT, "write_rows: a rotation of 2 channels", .kv = kv,
           .rotation = {.n_rot = 2});
    BREAKS(write_rotated, TAMIS_E_ARGUMENT, "write_rotated: the rotation's table is absent",
           .kv = kv, .batch = {.n_rows = 1},
           .rotation = {.q = {at, 0}, .n_rot = 2, .positions = at});
    BREAKS(copy_slots, TAMIS_E_ARGUMENT, "copy_slots: from is absent", .kv = kv, .to_seq = at,
           .batch = {.n_kv_heads = 2, .n_rows = 1, .row_seq = at, .table = at});
    BREAKS(copy_slots, TAMIS_E_ARGUMENT, "copy_slots: a plane on pages that 2 KV heads share",
           .kv = kv, .planes = {.scores = at}, .to_seq = at, .from = at, .to = at,
           .batch = {.n_kv_heads = 2, .n_rows = 1, .row_seq = at, .table = at});
    BREAKS(copy_pages, TAMIS_E_ARGUMENT, "blocks of 24 bytes", .bytes = 24);
    BREAKS(write_table, TAMIS_E_ARGUMENT, "write_table: entries is absent", .data = at, .n = 1);
    BREAKS(score_rows, TAMIS_E_ARGUMENT, "score_rows: scores is absent", .kv = kv, .slots = at,
           .batch = {.n_kv_heads = 2, .n_rows = 1});
    BREAKS(score_rows, TAMIS_E_ARGUMENT, "score_rows: a plane on pages that 2 KV heads share",
           .kv = kv, .slots = at, .scores = at,
           .batch = {.n_kv_heads = 2, .n_rows = 1, .row_seq = at, .table = at});
    BREAKS(deviation, TAMIS_E_ARGUMENT, "deviation: out is absent", .kv = kv, .slots = at,
           .batch = {.n_kv_heads = 2, .n_rows = 1});
    BREAKS(deviation, TAMIS_E_ARGUMENT, "x", .kv = kv, .slots = at, .out = at, .x = {at, 64},
           .batch = {.n_kv_heads = 2, .n_rows = 2, .row_seq = at, .table = at});
    BREAKS(load_rows, TAMIS_E_ARGUMENT, "load_rows: 1 rows without k and v", .kv = kv,
           .batch = {.n_rows = 1});
    BREAKS(load_rows, TAMIS_E_ARGUMENT, "load_rows: planes for 1 rows without k", .kv = kv, .v = at,
           .batch = {.n_kv_heads = 1, .n_rows = 1}, .planes = {.scores = at});
    BREAKS(load_rows, TAMIS_E_ARGUMENT, "rows of 128 elements at strides of 64 and 0", .kv = kv,
           .k = at, .k_stride = 64, .batch = {.n_kv_heads = 2, .n_rows = 2});
    BREAKS(load_rows, TAMIS_E_ARGUMENT, "load_rows: 66 channels of a head of 64", .kv = kv, .k = at,
           .n_rot = 66, .batch = {.n_kv_heads = 1, .n_rows = 1});
    BREAKS(load_rows, TAMIS_E_ARGUMENT, "load_rows: positions is absent", .kv = kv, .k = at,
           .n_rot = 64, .slots = at,
           .batch = {.n_kv_heads = 1, .n_rows = 1, .row_seq = at, .table = at});
    BREAKS(load_rows, TAMIS_E_UNSUPPORTED, "load_rows: dtype 7", .kv = kv, .dtype = (tamis_dtype)7);
    BREAKS(rotate, TAMIS_E_ARGUMENT, "rotate: 66 channels of a head of 64", .n_rot = 66,
           .head_dim = 64);
    BREAKS(rotate, TAMIS_E_ARGUMENT, "rotate: 514 channels", .n_rot = 514, .head_dim = 1024);
    BREAKS(rotate, TAMIS_E_ARGUMENT, "rotate: x: rows of 128 elements at a stride of 64",
           .x = {at, 64}, .n_rot = 64, .head_dim = 64, .n_heads = 2, .n_rows = 2);
    BREAKS(score_pages, TAMIS_E_ARGUMENT, "score_pages: a stride of 0 scores for lanes of 2 full",
           .kv = kv,
           .batch = {.n_heads = 2,
                     .n_kv_heads = 2,
                     .n_rows = 1,
                     .n_tiles = 1,
                     .max_tile_rows = 1,
                     .tiles = at,
                     .row_seq = at,
                     .visible = at,
                     .table = at,
                     .max_visible = 16});
    BREAKS(select, TAMIS_E_ARGUMENT, "a granularity of 0 slots", .batch = heads);
    BREAKS(merge, TAMIS_E_ARGUMENT, "merge: outs is absent", .n_parts = 1, .n = 1, .dim = 1,
           .out = at);
    BREAKS(scatter_rows, TAMIS_E_ARGUMENT, "rows of 4 elements at strides of 4 and 2", .n_rows = 1,
           .width = 4, .x = {at, 4}, .y = {at, 2});
    BREAKS(convert, TAMIS_E_ARGUMENT, "convert: rows of 4 elements at strides of 4 and 2",
           .n_rows = 2, .width = 4, .x = at, .y = at, .x_stride = 4, .y_stride = 2);
    BREAKS(convert, TAMIS_E_UNSUPPORTED, "convert: dtype 3: f32, f16 and bf16 are supported",
           .width = 4, .y_dtype = TAMIS_Q8);
    BREAKS(take_lists, TAMIS_E_ARGUMENT, "take_lists: a granularity of 0 slots", .batch = heads);
    BREAKS(take_lists, TAMIS_E_ARGUMENT, "take_lists: ids of entries of 16 slots", .batch = heads,
           .granularity = 16, .ids = at, .page_size = 16, .page_slots = 32);
    BREAKS(linear, TAMIS_E_ARGUMENT, "linear: 0 inputs, 3 outputs", .n_out = 3);
    BREAKS(linear, TAMIS_E_UNSUPPORTED, "linear: weight type 16 is unknown", .n_in = 1, .n_out = 1,
           .w.type = (tamis_weight_type)16);
    BREAKS(linear, TAMIS_E_ARGUMENT,
           "linear: rows of 48 Q4_1 weights: not a multiple of its blocks of 32", .n_in = 48,
           .n_out = 1, .w.type = TAMIS_WEIGHT_Q4_1);
    BREAKS(linear, TAMIS_E_ARGUMENT, "linear: weights at byte 2: not a multiple of 4", .n_in = 32,
           .n_out = 1, .n_rows = 1, .x = {at, 32}, .y = {at, 1},
           .w = {{at.mem, 2}, TAMIS_WEIGHT_Q8_0});
    BREAKS(linear, TAMIS_E_ARGUMENT, "linear: y: rows of 8 elements at a stride of 4", .n_in = 4,
           .n_out = 8, .n_rows = 2, .x = {at, 4}, .y = {at, 4}, .w = {at, TAMIS_WEIGHT_F32});
    BREAKS(linear_parts, TAMIS_E_ARGUMENT, "linear_parts: 9 rows: at most 8", .n_rows = 9);
    BREAKS(linear_parts, TAMIS_E_ARGUMENT, "linear_parts: 4 parts: must be 1 to 3", .n_parts = 4);
    BREAKS(linear_parts, TAMIS_E_ARGUMENT, "linear_parts: 3 parts, gated: must be 1 to 3, where gated 1 or 2",
           .n_parts = 3, .gated = true);
    BREAKS(linear_parts, TAMIS_E_ARGUMENT, "linear_parts: 0 inputs", .n_parts = 1);
    BREAKS(linear_parts, TAMIS_E_ARGUMENT, "linear_parts: 5 outputs of part 1, gated", .n_parts = 2,
           .n_in = 1, .gated = true, .parts = {{.n_out = 4}, {.n_out = 5}});
    BREAKS(linear_parts, TAMIS_E_ARGUMENT, "linear_parts: y of part 0 is absent", .n_parts = 1,
           .n_rows = 1, .n_in = 1, .x = {at, 1},
           .parts = {{.w = {at, TAMIS_WEIGHT_F32}, .n_out = 1}});
    BREAKS(linear_parts, TAMIS_E_ARGUMENT,
           "linear_parts: rows of 48 Q4_1 weights: not a multiple of its blocks of 32",
           .n_parts = 1, .n_in = 48, .parts = {{.w.type = TAMIS_WEIGHT_Q4_1, .n_out = 1}});
    BREAKS(linear_parts, TAMIS_E_ARGUMENT, "linear_parts: gated, and accumulates", .n_parts = 2,
           .gated = true, .accumulate = true);
    BREAKS(linear_parts, TAMIS_E_ARGUMENT, "linear_parts: sum is absent", .n_parts = 1, .n_rows = 1,
           .n_in = 1, .adds = true, .x = {at, 1}, .addend = {at, 1});
    BREAKS(linear_parts, TAMIS_E_ARGUMENT, "linear_parts: addend_w is absent", .n_parts = 1,
           .n_rows = 1, .n_in = 1, .adds = true, .x = {at, 1}, .addend = {at, 1}, .sum = {at, 1});
    BREAKS(linear_chain, TAMIS_E_ARGUMENT, "linear_chain: 0 stages: must be 1 to 8", .n_stages = 0);
    BREAKS(linear_chain, TAMIS_E_ARGUMENT, "linear_chain: 9 stages: must be 1 to 8", .n_stages = 9);
    BREAKS(linear_chain, TAMIS_E_ARGUMENT, "linear_chain: stage 1: linear_parts: 0 inputs",
           .n_stages = 2,
           .stages = {{.n_parts = 1, .n_in = 1, .parts = {{.n_out = 1}}}, {.n_parts = 1}});
    BREAKS(linear_chain, TAMIS_E_ARGUMENT, "linear_chain: 2 rows of stage 1: stage 0 has 0",
           .n_stages = 2,
           .stages = {{.n_parts = 1, .n_in = 1, .parts = {{.n_out = 1}}}, {.n_rows = 2}});
    BREAKS(linear_chain, TAMIS_E_ARGUMENT,
           "linear_chain: stage 0: a norm alone of 0 rows: at most 8, without an addend",
           .n_stages = 1, .stages = {{.n_in = 1}});
    BREAKS(norm, TAMIS_E_ARGUMENT, "norm: dim 0", .n_rows = 1);
    BREAKS(norm, TAMIS_E_ARGUMENT, "norm: to is absent", .dim = 4, .n_rows = 1, .x = {at, 4},
           .y = {at, 4}, .accumulate = true);
    BREAKS(norm, TAMIS_E_ARGUMENT, "norm: w is absent", .dim = 4, .n_rows = 1, .x = {at, 4},
           .y = {at, 4});
    BREAKS(activate, TAMIS_E_ARGUMENT, "activate: y is absent", .dim = 4, .n_rows = 1,
           .gate = {at, 4});
    BREAKS(embed, TAMIS_E_UNSUPPORTED, "embed: weight type 16 is unknown",
           .w.type = (tamis_weight_type)16);
    BREAKS(embed, TAMIS_E_ARGUMENT,
           "embed: rows of 96 Q6_K weights: not a multiple of its blocks of 256", .dim = 96,
           .n_vocab = 1, .w.type = TAMIS_WEIGHT_Q6_K);
    BREAKS(observed_attend, TAMIS_E_ARGUMENT, "observed_attend: 3 items of 0 rows", .attend.kv = kv,
           .attend.batch = heads, .observe = {.kv = kv, .batch = heads, .n_items = 3});
    BREAKS(observed_attend, TAMIS_E_ARGUMENT, "observed_attend: logits is absent", .attend.kv = kv,
           .attend.batch = heads, .observe = {.kv = kv, .batch = heads});
    BREAKS(observed_attend, TAMIS_E_UNSUPPORTED, "observed_attend: sinks (offset 0",
           .attend = {.kv = kv, .batch = heads, .logit = {.sinks = at}},
           .observe = {.kv = kv, .batch = heads});
    BREAKS(write_attend, TAMIS_E_ARGUMENT, "write_attend: 0 rows are written, with 2 channels",
           .write = {.kv = kv, .batch = heads, .rotation.n_rot = 2},
           .attend = {.kv = kv, .batch = {.n_heads = 2, .n_kv_heads = 2, .max_tile_rows = 2}});
    BREAKS(write_sparse_attend, TAMIS_E_ARGUMENT, "write_rotated: 66 channels of a head of 64",
           .write = {.kv = kv, .batch = heads, .rotation.n_rot = 66});
    BREAKS(replace_rows, TAMIS_E_ARGUMENT,
           "0 rows are to be written and 3 pages bounded, of 0 rows",
           .replace = {.kv = kv, .batch = heads}, .write = {.kv = kv, .batch = heads},
           .bounds = {.kv = kv, .n_kv_heads = 1, .n = 3, .pages = at});
    BREAKS(argmax, TAMIS_E_ARGUMENT, "argmax: dim 4294967295", .dim = UINT32_MAX);
    dev->backend->free(dev, mem);
    tamis_context_destroy(&context);
}

/* An op that the backend lacks, or that does not take the case, says so. */
static void test_optional_ops_refuse(void **state) {
    (void)state;
    tamis_context *context = NULL;
    tms_device *dev = open_device(&context);
    const tms_kv kv = {.page_size = 16, .head_dim = 64, .slot_stride = 64};
    const tms_batch batch = {.n_heads = 2, .n_kv_heads = 2};
    const tms_sparse_attend p = {.score = {.kv = kv, .batch = batch},
                                 .select = {.batch = batch, .granularity = 16},
                                 .attend = {.kv = kv, .batch = batch}};
    const char *refusal = tms_sparse_attend_refusal(dev, &p);
    assert_non_null(refusal);
    if (!dev->backend->sparse_attend) assert_string_equal(refusal, "the backend has no such op");
    FAILS(tms_run_sparse_attend(dev, &p, &test_error), TAMIS_E_UNSUPPORTED, "sparse_attend: ");
    assert_non_null(strstr(test_error.text, refusal));
    const tms_replace_rows r = {{.kv = kv, .batch = batch}, {.kv = kv, .batch = batch}, {.kv = kv}};
    refusal = tms_replace_rows_refusal(dev, &r);
    if (!dev->backend->replace_rows) assert_string_equal(refusal, "the backend has no such op");
    if (refusal)
        FAILS(tms_run_replace_rows(dev, &r, &test_error), TAMIS_E_UNSUPPORTED, "replace_rows: ");
    tamis_context_destroy(&context);
}

static uint32_t attends;

static tamis_status count_attend(tms_device *dev, const tms_attend *p) {
    (void)dev;
    (void)p;
    attends++;
    return TAMIS_OK;
}

/* Sinks that the backend cannot add are refused before their attend runs; without sinks it runs. */
static void test_sinks_are_refused_before_the_attend(void **state) {
    (void)state;
    tamis_context *context = NULL;
    tms_device *dev = open_device(&context);
    const tms_backend *whole = dev->backend;
    tms_backend bare = *whole;
    tms_attend p = {.kv = {.page_size = 16, .head_dim = 64, .slot_stride = 64},
                    .batch = {.n_heads = 2, .n_kv_heads = 2}};
    bare.attend = count_attend;
    bare.sink = NULL;
    attends = 0;
    dev->backend = &bare;
    OK(tms_run_attend(dev, &p, &test_error));
    assert_int_equal(attends, 1);
    OK(tms_device_alloc(dev, 64, &p.logit.sinks.mem, &test_error));
    FAILS(tms_run_attend(dev, &p, &test_error), TAMIS_E_UNSUPPORTED, "sink: device ");
    assert_non_null(strstr(test_error.text, dev->info.id));
    assert_int_equal(attends, 1);
    dev->backend = whole;
    tms_device_free(dev, p.logit.sinks.mem);
    tamis_context_destroy(&context);
}

/* ---- Without a vendor's library --------------------------------------------------------------- */

static uint32_t lines;

static void count_lines(void *user, tamis_log_level level, const char *text) {
    (void)user;
    (void)level;
    lines += strstr(text, "TAMIS_CLBLAST is \"none\"") != NULL;
}

/* Rows of f32 counters times weights of ones: y[r][j] = Σ_i (r + i). */
static void multiply(tms_device *dev, tms_mem *mem, uint32_t n_rows, float *y) {
    enum { N = 16 };
    const tms_ref w = {mem, 0}, x = {mem, N * N * 4}, out = {mem, 4096};
    const tms_linear p = {
        .x = {x, N}, .y = {out, N}, .w = {w, 0}, .n_rows = n_rows, .n_in = N, .n_out = N};
    float rows[20 * N];
    for (uint32_t i = 0; i < 20 * N; i++)
        rows[i] = (float)(i / N + i % N);
    assert_int_equal(dev->backend->fill(dev, w, 0x3f800000, N * N * 4), TAMIS_OK);
    assert_int_equal(dev->backend->write(dev, x, rows, sizeof rows), TAMIS_OK);
    OK(tms_run_linear(dev, &p, &test_error));
    assert_int_equal(dev->backend->read(dev, out, y, (uint64_t)n_rows * N * 4), TAMIS_OK);
}

/* linear takes any number of rows without CLBlast, and the log says once that there is none. */
static void test_no_clblast(void **state) {
    (void)state;
    const tamis_context_params params = {.device = test_device, .log = count_lines};
    tamis_context *context = NULL;
    tms_mem *mem = NULL;
    float y[20 * 16];
    if (strncmp(test_device, "opencl", 6) != 0) skip();
    OK(tamis_context_create(&params, &context, &test_error));
    tms_device *dev = context->dev;
    dev->form = TMS_FORM_BASE;
    assert_int_equal(dev->backend->alloc(dev, 8192, &mem), TAMIS_OK);
    multiply(dev, mem, 8, y);
    assert_int_equal(lines, 0); /* few rows need none */
    for (uint32_t n = 9; n <= 20; n++) {
        multiply(dev, mem, n, y);
        for (uint32_t i = 0; i < n * 16; i++)
            assert_true(y[i] == (float)(i / 16 * 16 + 120));
    }
    assert_int_equal(lines, 1);
    dev->backend->free(dev, mem);
    tamis_context_destroy(&context);
}

/* The form of GPUs on OpenCL keeps where rows begin in 32 bits. */
static void test_rows_far_apart(void **state) {
    (void)state;
    tamis_context *context = NULL;
    if (strncmp(test_device, "opencl", 6) != 0) skip();
    tms_device *dev = open_device(&context);
    dev->form = TMS_FORM_GPU;
    tms_linear_parts p = {.x.stride = (1ull << 29) - 1, /* times 8 below 2^32 */
                          .parts = {{.n_out = 4}},
                          .n_parts = 1,
                          .n_in = 8,
                          .build_rows = 8};
    OK(tms_run_linear_parts(dev, &p, &test_error));
    p.x.stride++;
    FAILS(tms_run_linear_parts(dev, &p, &test_error), TAMIS_E_UNSUPPORTED,
          "linear_parts: rows of x 536870912 elements apart: 8 rows must be below 2^32 elements");
    p.build_rows = 1; /* one row begins where x does */
    OK(tms_run_linear_parts(dev, &p, &test_error));
    p.build_rows = 8;
    p.x.stride = 8;
    p.addend.stride = 1ull << 40;
    OK(tms_run_linear_parts(dev, &p, &test_error));
    p.adds = true;
    FAILS(tms_run_linear_parts(dev, &p, &test_error), TAMIS_E_UNSUPPORTED,
          "linear_parts: rows of the addend 1099511627776 elements apart");
    tamis_context_destroy(&context);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules_come_before_the_device),
        cmocka_unit_test(test_late_errors_come_first),
        cmocka_unit_test(test_rules_name_the_value),
        cmocka_unit_test(test_optional_ops_refuse),
        cmocka_unit_test(test_sinks_are_refused_before_the_attend),
        cmocka_unit_test(test_no_clblast),
        cmocka_unit_test(test_rows_far_apart),
    };
    setenv("TAMIS_CLBLAST", "none", 1);
    int skip = test_begin(argc, argv);
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
