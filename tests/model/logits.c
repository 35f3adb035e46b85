/* SPDX-License-Identifier: Apache-2.0 */
/* The model's logits and greedy tokens against vectors of an independent implementation
 * (make_logits.py), and against themselves: in chunks, in batches, from caches of other types. */
#include "tests/data/needle_logits.h"
#include "tests/data/tiny_logits.h"
#include "tests/model/rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define N_VOCAB      256

/* Absolute bounds on logits, which reach 20. The vectors are float64; fp32 keeps 2e-6 of the
 * largest term a layer, the residual stream of four layers some 1e-5, times the norm of an
 * embedding row. A cache of f16 adds 2^-11 relative to each key and value, of bf16 2^-8. */
#define BOUND_F32  5e-5f
#define BOUND_F16  1e-2f
#define BOUND_BF16 1e-1f

typedef struct vectors {
    const char *file;
    size_t text_bytes, n_vocab, n_positions, n_greedy;
    const int *positions;
    const float *logits; /* [n_positions][n_vocab] */
    const int32_t *greedy;
} vectors;

static const vectors needle = {
    "needle.gguf",        NEEDLE_TEXT_BYTES, COUNT(needle_logits[0]), COUNT(needle_positions),
    COUNT(needle_greedy), needle_positions,  needle_logits[0],        needle_greedy};
static const vectors tiny = {"tiny.gguf",           TINY_TEXT_BYTES,    COUNT(tiny_logits[0]),
                             COUNT(tiny_positions), COUNT(tiny_greedy), tiny_positions,
                             tiny_logits[0],        tiny_greedy};

static float difference(const float *a, const float *b, size_t count) {
    float most = 0;
    for (size_t i = 0; i < count; ++i)
        most = fabsf(a[i] - b[i]) <= most ? most : fabsf(a[i] - b[i]); /* keeps a NaN */
    return most;
}

static void expect_close(const float *got, const float *wanted, size_t count, float bound,
                         const char *what, size_t where) {
    float most = difference(got, wanted, count);
    if (!(most <= bound))
        fail_msg("%s %zu: logits differ by %g, bound %g", what, where, most, bound);
    if (getenv("TEST_VERBOSE")) print_message("%s %zu: %g of %g\n", what, where, most, bound);
}

/* The vectors' text, cut behind each of their positions. */
static void check_positions(rig *r, const vectors *v, float bound) {
    int32_t tokens[512];
    float logits[N_VOCAB];
    rig_text(r, tokens, v->text_bytes);
    for (size_t i = 0; i < v->n_positions; ++i) {
        tamis_sequence sequence = rig_add(r);
        RIG_OK(r, tamis_runner_prefill(r->runner, sequence, tokens, (size_t)v->positions[i] + 1,
                                       NULL, &r->error));
        RIG_OK(r, tamis_runner_logits(r->runner, 0, logits, &r->error));
        expect_close(logits, v->logits + i * v->n_vocab, v->n_vocab, bound, "position",
                     (size_t)v->positions[i]);
        RIG_OK(r, tamis_cache_remove(r->cache, sequence, &r->error));
    }
}

static void check_greedy(rig *r, const vectors *v) {
    int32_t tokens[512], next;
    tamis_sequence sequence = rig_add(r);
    rig_text(r, tokens, v->text_bytes);
    RIG_OK(r, tamis_runner_prefill(r->runner, sequence, tokens, v->text_bytes, &next, &r->error));
    for (size_t i = 0; i < v->n_greedy; ++i) {
        if (next != v->greedy[i]) fail_msg("greedy token %zu: %d, not %d", i, next, v->greedy[i]);
        RIG_OK(r, tamis_runner_decode(r->runner, &sequence, 1, &next, &next, &r->error));
    }
    assert_int_equal(rig_length(r, sequence), v->text_bytes + v->n_greedy);
}

static void check_vectors(const vectors *v, tamis_dtype dtype, float bound) {
    rig r;
    rig_open(&r, &(rig_params){.file = v->file, .dtype = dtype});
    assert_int_equal(tamis_model_get_info(r.model)->n_vocab, v->n_vocab);
    check_positions(&r, v, bound);
    check_greedy(&r, v);
    rig_close(&r);
}

static void test_needle_f32(void **state) {
    (void)state;
    check_vectors(&needle, TAMIS_F32, BOUND_F32);
}

static void test_needle_f16(void **state) {
    (void)state;
    check_vectors(&needle, TAMIS_F16, BOUND_F16);
}

/* Greedy tokens may turn here: only the logits are held. */
static void test_needle_bf16(void **state) {
    (void)state;
    rig r;
    rig_open(&r, &(rig_params){.file = needle.file, .dtype = TAMIS_BF16});
    check_positions(&r, &needle, BOUND_BF16);
    rig_close(&r);
}

static void test_tiny(void **state) {
    (void)state;
    check_vectors(&tiny, TAMIS_F32, BOUND_F32);
}

static void test_chunks(void **state) {
    (void)state;
    const uint32_t chunks[] = {1, 7, 33, 100};
    const size_t count = (size_t)needle_positions[3] + 1;
    int32_t tokens[512];
    float logits[N_VOCAB];
    for (size_t i = 0; i < COUNT(chunks); ++i) {
        rig r;
        rig_open(&r, &(rig_params){.file = needle.file, .max_rows = chunks[i]});
        rig_text(&r, tokens, count);
        tamis_sequence sequence = rig_add(&r);
        RIG_OK(&r, tamis_runner_prefill(r.runner, sequence, tokens, count, NULL, &r.error));
        RIG_OK(&r, tamis_runner_logits(r.runner, 0, logits, &r.error));
        expect_close(logits, needle_logits[3], N_VOCAB, BOUND_F32, "chunks of", chunks[i]);
        tamis_plan_counters counters;
        tamis_plan_get_counters(tamis_runner_plan(r.runner), &counters);
        assert_int_equal(counters.steps, (count + chunks[i] - 1) / chunks[i]);
        rig_close(&r);
    }
}

#define BATCH       3
#define BATCH_STEPS 5
/* Decodes the sequences `first` to `first + count` together, from prompts of different lengths;
 * logits of each last step go to out [BATCH][N_VOCAB]. */
static void decode_together(rig *r, size_t first, uint32_t count, float (*out)[N_VOCAB]) {
    const size_t lengths[BATCH] = {37, 1, 96};
    int32_t text[256], next[BATCH];
    tamis_sequence sequences[BATCH];
    rig_text(r, text, COUNT(text));
    for (uint32_t i = 0; i < count; ++i) {
        sequences[i] = rig_add(r);
        RIG_OK(r, tamis_runner_prefill(r->runner, sequences[i], text, lengths[first + i], NULL,
                                       &r->error));
    }
    for (int step = 0; step < BATCH_STEPS; ++step) {
        for (uint32_t i = 0; i < count; ++i)
            next[i] = text[100 + (first + i) * 10 + (size_t)step];
        RIG_OK(r, tamis_runner_decode(r->runner, sequences, count, next, next, &r->error));
    }
    for (uint32_t i = 0; i < count; ++i) {
        RIG_OK(r, tamis_runner_logits(r->runner, i, out[first + i], &r->error));
        int32_t best = 0;
        for (int32_t id = 1; id < N_VOCAB; ++id)
            best = out[first + i][id] > out[first + i][best] ? id : best;
        assert_int_equal(next[i], best);
    }
}

static void test_batch(void **state) {
    (void)state;
    static float together[BATCH][N_VOCAB], alone[BATCH][N_VOCAB];
    rig r;
    rig_open(&r, &(rig_params){.file = needle.file, .max_sequences = BATCH, .max_rows = 64});
    decode_together(&r, 0, BATCH, together);
    for (size_t i = 0; i < BATCH; ++i)
        decode_together(&r, i, 1, alone);
    for (size_t i = 0; i < BATCH; ++i)
        expect_close(together[i], alone[i], N_VOCAB, BOUND_F32, "sequence", i);
    assert_true(difference(alone[0], alone[2], N_VOCAB) > 1);
    rig_close(&r);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_needle_f32),  cmocka_unit_test(test_needle_f16),
        cmocka_unit_test(test_needle_bf16), cmocka_unit_test(test_tiny),
        cmocka_unit_test(test_chunks),      cmocka_unit_test(test_batch),
    };
    if (!rig_arguments(argc, argv)) return 2;
    return cmocka_run_group_tests_name("logits", tests, NULL, NULL);
}
