/* SPDX-License-Identifier: Apache-2.0 */
/* The model's logits and greedy tokens against vectors of independent implementations (float64 by
 * make_logits.py, llama.cpp by peer_logits.py), and against themselves: in chunks, in batches, from
 * caches of other types. */
#include "tests/model/rig.h"
#include "tests/model/vectors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define N_VOCAB      256

/* Absolute bounds on logits, which reach 20. The vectors are float64; fp32 keeps 2e-6 of the
 * largest term a layer, the residual stream of four layers some 1e-5, times the norm of an
 * embedding row. A cache of f16 adds 2^-11 relative to each key and value, of bf16 2^-8. The peer
 * takes its angles from products in fp32, which lose digits at far positions. */
#define BOUND_F32  5e-5f
#define BOUND_PEER 2e-3f
#define BOUND_F16  1e-2f
#define BOUND_BF16 1e-1f

/* The reference, a specification, reads some hundred tokens a second: only positions within so many
 * tokens are held on it. TEST_TOKENS in the environment sets a limit for slower devices. */
#define REFERENCE_TOKENS 1000

/* The largest; NaN if any is. */
static float difference(const float *a, const float *b, size_t count) {
    float most = 0;
    for (size_t i = 0; i < count; ++i) {
        const float d = fabsf(a[i] - b[i]);
        if (isnan(d)) return d;
        if (d > most) most = d;
    }
    return most;
}

static void expect_close(const float *got, const float *wanted, size_t count, float bound,
                         const char *what, size_t where) {
    float most = difference(got, wanted, count);
    if (!(most <= bound))
        fail_msg("%s %zu: logits differ by %g, bound %g", what, where, most, bound);
    if (getenv("TEST_VERBOSE")) print_message("%s %zu: %g of %g\n", what, where, most, bound);
}

static size_t text_tokens(const vectors *v) {
    const char *asked = getenv("TEST_TOKENS");
    const int reference = !strncmp(rig_device, "reference", strlen("reference"));
    const size_t most = asked ? strtoul(asked, NULL, 10) : reference ? REFERENCE_TOKENS : SIZE_MAX;
    return v->text_bytes < most ? v->text_bytes : most;
}

static void open_for(rig *r, const vectors *v, tamis_dtype dtype) {
    const uint32_t longest = (uint32_t)(text_tokens(v) + v->n_greedy);
    rig_open(r, &(rig_params){.file = v->file,
                              .dtype = dtype,
                              .max_context = longest,
                              .capacity_tokens = 2 * longest}); /* a text and a fork of it */
    assert_int_equal(tamis_model_describe(r->model)->n_vocab, v->n_vocab);
}

/* On a fork of the text, fed the vectors' own tokens: each is the greedy one too, unless its lead
 * is so small that two logits within the bound may change places. */
static void check_greedy(rig *r, const vectors *v, size_t continuation, tamis_sequence text,
                         int32_t next, float bound) {
    const int32_t *wanted = v->greedy + continuation * v->n_greedy;
    const float *leads = v->leads + continuation * v->n_greedy;
    tamis_sequence sequence = 0;
    size_t turned = 0;
    RIG_OK(r, tamis_cache_fork(r->cache, text, &sequence, &r->error));
    const size_t length = rig_length(r, sequence);
    for (size_t i = 0; i < v->n_greedy; ++i) {
        if (next != wanted[i] && leads[i] > 2 * bound)
            fail_msg("greedy token %zu behind %zu: %d, not %d, which leads by %g", i, length, next,
                     wanted[i], leads[i]);
        turned += next != wanted[i];
        RIG_OK(r, tamis_runner_decode(r->runner, &sequence, 1, &wanted[i], &next, &r->error));
    }
    if (getenv("TEST_VERBOSE"))
        print_message("greedy behind %zu: %zu of %zu differ\n", length, turned, v->n_greedy);
    assert_int_equal(rig_length(r, sequence), length + v->n_greedy);
    RIG_OK(r, tamis_cache_remove(r->cache, sequence, &r->error));
}

static void check_position(rig *r, const vectors *v, size_t i, float bound) {
    const size_t position = (size_t)v->positions[i], first = i * v->n_vocab;
    const float peer = bound > BOUND_PEER ? bound : BOUND_PEER;
    float logits[N_VOCAB];
    RIG_OK(r, tamis_runner_logits(r->runner, 0, logits, &r->error));
    expect_close(logits, v->logits + first, v->n_vocab, bound, "position", position);
    if (v->peer)
        expect_close(logits, v->peer + first, v->n_vocab, peer, "position by the peer", position);
}

/* The vectors' text in one sequence, a prefill up to each position; where `greedy` asks for it,
 * what follows. */
static void check_vectors(const vectors *v, tamis_dtype dtype, float bound, int greedy) {
    rig r;
    open_for(&r, v, dtype);
    const size_t count = text_tokens(v);
    int32_t *tokens = calloc(count, sizeof *tokens), next = 0;
    assert_non_null(tokens);
    rig_text(&r, tokens, count);
    tamis_sequence text = rig_add(&r);
    size_t done = 0;
    for (size_t i = 0; i < v->n_positions && (size_t)v->positions[i] < count; ++i) {
        const size_t end = (size_t)v->positions[i] + 1;
        RIG_OK(&r,
               tamis_runner_prefill(r.runner, text, tokens + done, end - done, &next, &r.error));
        done = end;
        check_position(&r, v, i, bound);
        for (size_t c = 0; greedy && c < v->n_continuations; ++c)
            if ((size_t)v->greedy_at[c] == i)
                check_greedy(&r, v, c, text, next, v->peer ? bound + BOUND_PEER : bound);
    }
    free(tokens);
    rig_close(&r);
}

static void check_file(const char *name, tamis_dtype dtype, float bound, int greedy) {
    vectors v;
    vectors_read(&v, name);
    check_vectors(&v, dtype, bound, greedy);
    vectors_free(&v);
}

static void test_needle_f32(void **state) {
    (void)state;
    check_file("needle", TAMIS_F32, BOUND_F32, 1);
}

static void test_needle_f16(void **state) {
    (void)state;
    check_file("needle", TAMIS_F16, BOUND_F16, 1);
}

/* Many greedy tokens lead by less than this bound: only the logits are held. */
static void test_needle_bf16(void **state) {
    (void)state;
    check_file("needle", TAMIS_BF16, BOUND_BF16, 0);
}

static void test_tiny(void **state) {
    (void)state;
    check_file("tiny", TAMIS_F32, BOUND_F32, 1);
}

#define CHUNKS_AT 2 /* of the positions: more tokens than the largest chunk */
static void test_chunks(void **state) {
    (void)state;
    const uint32_t chunks[] = {1, 7, 33, 100};
    vectors needle;
    vectors_read(&needle, "needle");
    const size_t count = (size_t)needle.positions[CHUNKS_AT] + 1;
    int32_t tokens[512];
    float logits[N_VOCAB];
    for (size_t i = 0; i < COUNT(chunks); ++i) {
        rig r;
        rig_open(&r, &(rig_params){.file = needle.file, .max_rows = chunks[i]});
        rig_text(&r, tokens, count);
        tamis_sequence sequence = rig_add(&r);
        RIG_OK(&r, tamis_runner_prefill(r.runner, sequence, tokens, count, NULL, &r.error));
        RIG_OK(&r, tamis_runner_logits(r.runner, 0, logits, &r.error));
        expect_close(logits, needle.logits + CHUNKS_AT * N_VOCAB, N_VOCAB, BOUND_F32, "chunks of",
                     chunks[i]);
        tamis_plan_counters counters;
        tamis_plan_get_counters(tamis_runner_plan(r.runner), &counters);
        assert_int_equal(counters.steps, (count + chunks[i] - 1) / chunks[i]);
        rig_close(&r);
    }
    vectors_free(&needle);
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
    rig_open(&r, &(rig_params){.file = "needle.gguf", .max_sequences = BATCH, .max_rows = 64});
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
