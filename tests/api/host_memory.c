/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers in the caller's memory of the host, where kernels use it in place: what either side writes
 * the other one sees, and nothing is copied. Elsewhere they are refused. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "tests/api/fixture.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ROWS = 21 };

static tamis_context *create(void) {
    const tamis_context_params params = {.device = test_device};
    tamis_context *context = NULL;
    OK(tamis_context_create(&params, &context, &test_error));
    return context;
}

static void *take(size_t bytes) {
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(memory);
    memset(memory, 0, bytes);
    return memory;
}

static tamis_buffer *wrap(tamis_context *context, void *data, uint64_t bytes) {
    tamis_buffer *buffer = NULL;
    OK(tamis_buffer_wrap_host(context, data, bytes, &buffer, &test_error));
    assert_int_equal(tamis_buffer_bytes(buffer), bytes);
    assert_ptr_equal(tamis_buffer_data(buffer), data);
    return buffer;
}

/* Whether the device uses memory of the host in place; where it does not, that is what it says. */
static bool is_taken(void) {
    tamis_context *context = create();
    tamis_buffer *buffer = NULL;
    void *memory = take(64);
    tamis_error error = {0};
    const tamis_status status = tamis_buffer_wrap_host(context, memory, 64, &buffer, &error);
    if (status != TAMIS_OK) {
        assert_int_equal(status, TAMIS_E_UNSUPPORTED);
        assert_non_null(strstr(error.text, tamis_context_device(context)->name));
        assert_null(buffer);
        print_message("%s\n", error.text);
    }
    tamis_buffer_destroy(&buffer);
    tamis_context_destroy(&context);
    free(memory);
    return status == TAMIS_OK;
}

static void either_side_sees_what_the_other_writes(void **state) {
    (void)state;
    const size_t sizes[] = {1, 100, 4096, 3u << 20}; /* the last one on huge pages, were it ours */
    const uint8_t sent = 7;
    uint8_t got = 0;
    if (!is_taken()) return;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const size_t last = sizes[i] - 1;
        tamis_context *context = create();
        uint8_t *memory = take(sizes[i]);
        tamis_buffer *buffer = wrap(context, memory, sizes[i]);
        OK(tamis_buffer_write(buffer, last, &sent, 1, &test_error));
        OK(tamis_context_wait(context, &test_error));
        assert_int_equal(memory[last], sent);
        memory[last] = 8;
        OK(tamis_buffer_read(buffer, last, &got, 1, &test_error));
        assert_int_equal(got, 8);
        OK(tamis_buffer_write(buffer, last, &sent, 1, &test_error));
        tamis_buffer_destroy(&buffer); /* waits */
        assert_int_equal(memory[last], sent);
        free(memory);
        tamis_context_destroy(&context);
    }
}

/* Fills K, V and q of a layer, in memory of the host. */
static void make_rows(float *const rows[3], uint32_t layer, const tamis_cache_params *s) {
    for (uint32_t which = 0; which < 3; which++) {
        const uint32_t heads = which == 2 ? s->n_heads : s->n_kv_heads;
        for (uint32_t row = 0; row < ROWS; row++)
            for (uint32_t h = 0; h < heads; h++)
                for (uint32_t d = 0; d < s->head_dim; d++)
                    rows[which][(row * heads + h) * s->head_dim + d] =
                        test_value(row + 300 * (which == 2), layer * heads + h, which == 1, d);
    }
}

/* A step of both layers. The rows lie in `rows`, which are the world's buffers where `in_place`, and
 * are copied there where not; `out` likewise. */
static void run(test_world *w, float *const rows[3], float *out, bool in_place, float *result) {
    const uint64_t n = (uint64_t)ROWS * w->shape.n_heads * w->shape.head_dim;
    const tamis_rows k = {.buffer = w->k}, v = {.buffer = w->v}, q = {.buffer = w->q},
                     to = {.buffer = w->out};
    tamis_buffer *const buffers[] = {w->k, w->v, w->q};
    uint32_t count = ROWS;
    tamis_sequence sequence;
    const tamis_step step = {.sequences = &sequence, .rows = &count, .count = 1, .exact = 1};
    OK(tamis_cache_add(w->cache, &sequence, &test_error));
    OK(tamis_plan_step_begin(w->plan, &step, &test_error));
    for (uint32_t layer = 0; layer < w->shape.n_layers; layer++) {
        OK(tamis_context_wait(w->context, &test_error)); /* rows[] are about to be written */
        make_rows(rows, layer, &w->shape);
        for (int i = 0; i < 3 && !in_place; i++)
            OK(tamis_buffer_write(buffers[i], 0, rows[i], tamis_buffer_bytes(buffers[i]),
                                  &test_error));
        OK(tamis_plan_write(w->plan, layer, &k, &v, &test_error));
        OK(tamis_plan_attend(w->plan, layer, &q, &to, &test_error));
        OK(tamis_context_wait(w->context, &test_error));
        if (!in_place) OK(tamis_buffer_read(w->out, 0, out, n * sizeof *out, &test_error));
        memcpy(result + layer * n, out, n * sizeof *out);
    }
    OK(tamis_plan_step_end(w->plan, &test_error));
}

/* The same bits as with memory of the library's own. */
static void attention_from_and_to_the_hosts_memory(void **state) {
    (void)state;
    const tamis_cache_params shape = test_shape();
    const tamis_plan_params params = {.max_rows = ROWS, .max_context = 64};
    const uint64_t n = (uint64_t)ROWS * shape.n_heads * shape.head_dim, bytes = n * sizeof(float);
    test_world own, wrapped;
    float *rows[3], *out = take(bytes), *got = take(4 * bytes), *wanted = got + 2 * n;
    if (!is_taken()) {
        free(out);
        free(got);
        return;
    }
    test_open(&own, &shape, &params);
    test_open(&wrapped, &shape, &params);
    tamis_buffer **const buffers[] = {&wrapped.k, &wrapped.v, &wrapped.q, &wrapped.out};
    for (int i = 0; i < 4; i++) {
        void *memory = i < 3 ? (rows[i] = take(bytes)) : out;
        tamis_buffer_destroy(buffers[i]);
        *buffers[i] = wrap(wrapped.context, memory, bytes);
    }
    run(&wrapped, rows, out, true, got);
    run(&own, rows, out, false, wanted);
    assert_memory_equal(got, wanted, 2 * bytes);
    assert_true(got[0] != 0);
    test_close(&own);
    test_close(&wrapped);
    for (int i = 0; i < 3; i++)
        free(rows[i]);
    free(out);
    free(got);
}

/* As weights are that lie in a mapped file. */
static void memory_that_is_only_read_may_be_read_only(void **state) {
    (void)state;
    enum { DIM = 64, VOCABULARY = 10, BYTES = VOCABULARY * DIM * sizeof(float) };
    const int32_t token = 7;
    if (!is_taken()) return;
    float *table = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(table, MAP_FAILED);
    for (uint32_t i = 0; i < VOCABULARY * DIM; i++)
        table[i] = (float)i;
    assert_int_equal(mprotect(table, BYTES, PROT_READ), 0);
    float *rows = take(DIM * sizeof *rows);
    tamis_context *context = create();
    tamis_buffer *tokens = NULL, *weights = wrap(context, table, BYTES),
                 *y = wrap(context, rows, DIM * sizeof *rows);
    OK(tamis_buffer_create(context, sizeof token, &tokens, &test_error));
    OK(tamis_buffer_write(tokens, 0, &token, sizeof token, &test_error));
    const tamis_embed_params p = {.tokens = {tokens, 0},
                                  .w = {.buffer = weights, .type = TAMIS_WEIGHT_F32},
                                  .y = {.buffer = y, .dtype = TAMIS_F32},
                                  .n_rows = 1,
                                  .dim = DIM,
                                  .n_vocab = VOCABULARY};
    OK(tamis_op_embed(context, &p, &test_error));
    OK(tamis_context_wait(context, &test_error));
    assert_memory_equal(rows, table + token * DIM, DIM * sizeof *rows);
    tamis_buffer_destroy(&tokens);
    tamis_buffer_destroy(&weights);
    tamis_buffer_destroy(&y);
    tamis_context_destroy(&context);
    free(rows);
    munmap(table, BYTES);
}

static void bad_arguments_are_refused(void **state) {
    (void)state;
    tamis_context *context = create();
    tamis_buffer *buffer = NULL;
    uint8_t *memory = take(256);
    FAILS(tamis_buffer_wrap_host(context, memory, 64, NULL, &test_error), TAMIS_E_ARGUMENT,
          "out: NULL");
    FAILS(tamis_buffer_wrap_host(NULL, memory, 64, &buffer, &test_error), TAMIS_E_ARGUMENT,
          "context: NULL");
    if (is_taken()) {
        FAILS(tamis_buffer_wrap_host(context, NULL, 64, &buffer, &test_error), TAMIS_E_ARGUMENT,
              "host address 0x0: must be a multiple of 64 and not 0");
        FAILS(tamis_buffer_wrap_host(context, memory + 32, 64, &buffer, &test_error),
              TAMIS_E_ARGUMENT,
              test_text("host address %p: must be a multiple of 64", (void *)(memory + 32)));
        FAILS(tamis_buffer_wrap_host(context, memory, 0, &buffer, &test_error), TAMIS_E_ARGUMENT,
              test_text("0 bytes at host address %p", (void *)memory));
        FAILS(tamis_buffer_wrap_host(context, memory, UINT64_MAX, &buffer, &test_error),
              TAMIS_E_ARGUMENT, "18446744073709551615 bytes at host address");
        FAILS(tamis_buffer_wrap_host(context, memory, 1ull << 46, &buffer, &test_error),
              TAMIS_E_NO_MEMORY, "a buffer of 70368744177664 bytes: the largest on ");
    }
    assert_null(buffer);
    assert_null(tamis_buffer_data(NULL));
    tamis_context_destroy(&context);
    free(memory);
}

/* A buffer of the library's own, where the host sees it. */
static void own_memory_is_seen_where_it_is_the_hosts(void **state) {
    (void)state;
    const uint64_t sizes[] = {100, 100000, 3u << 20};
    tamis_context *context = create();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        tamis_buffer *buffer = NULL;
        const uint8_t sent = 9;
        uint8_t got = 0;
        OK(tamis_buffer_create(context, sizes[i], &buffer, &test_error));
        uint8_t *data = tamis_buffer_data(buffer);
        if (strcmp(test_device, "reference") == 0) assert_non_null(data);
        if (data) {
            assert_int_equal((uintptr_t)data % 64, 0);
            OK(tamis_buffer_write(buffer, 99, &sent, 1, &test_error));
            OK(tamis_context_wait(context, &test_error));
            assert_int_equal(data[99], sent);
            data[99] = 10;
            OK(tamis_buffer_read(buffer, 99, &got, 1, &test_error));
            assert_int_equal(got, 10);
        }
        tamis_buffer_destroy(&buffer);
    }
    tamis_context_destroy(&context);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(either_side_sees_what_the_other_writes),
        cmocka_unit_test(attention_from_and_to_the_hosts_memory),
        cmocka_unit_test(memory_that_is_only_read_may_be_read_only),
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(own_memory_is_seen_where_it_is_the_hosts),
    };
    const int skip = test_begin(argc, argv);
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
