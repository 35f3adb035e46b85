/* SPDX-License-Identifier: Apache-2.0 */
/* A real file: tokens, logits and greedy tokens against those of an independent implementation in
 * float64 (real_logits.py). The texts are text.txt and, where the vectors go on, the lines of
 * compare_llama's prompts. Usage: test-model-real DEVICE TESTS/DATA FILE VECTORS. TEST_TOKENS is how
 * much of text.txt is read (1001). */
#include "tests/model/rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bound on logits, which reach 30: many layers of what families.c says of two. */
#define BOUND 2e-2f
#define MOST_TEXTS 16

typedef struct counts {
    uint32_t tokens, stride, logits, positions, continuations, greedy;
} counts;

typedef struct vectors {
    counts n;
    int32_t *tokens;
    uint32_t *positions;
    float *logits; /* [positions][logits], of tokens 0, stride, ... */
    uint32_t *greedy_at;
    int32_t *greedy[8]; /* [continuations][greedy] */
    float *leads[8];
} vectors;

static const char *model_file, *vectors_file;

static void *read_some(FILE *file, size_t count) {
    void *out = malloc(count * 4);
    assert_non_null(out);
    assert_int_equal(fread(out, 4, count, file), count);
    return out;
}

/* One text. */
static void read_text_vectors(FILE *file, vectors *v) {
    char magic[4];
    assert_int_equal(fread(magic, 1, 4, file), 4);
    assert_memory_equal(magic, "LGTR", 4);
    assert_int_equal(fread(&v->n, 4, 6, file), 6);
    assert_true(v->n.continuations <= 8);
    v->tokens = read_some(file, v->n.tokens);
    v->positions = read_some(file, v->n.positions);
    v->logits = read_some(file, (size_t)v->n.positions * v->n.logits);
    v->greedy_at = read_some(file, v->n.continuations);
    for (uint32_t i = 0; i < v->n.continuations; ++i) {
        v->greedy[i] = read_some(file, v->n.greedy);
        v->leads[i] = read_some(file, v->n.greedy);
    }
}

/* Their number. */
static uint32_t read_vectors(vectors v[MOST_TEXTS]) {
    uint32_t n = 0;
    FILE *file = fopen(vectors_file, "rb");
    assert_non_null(file);
    do {
        assert_true(n < MOST_TEXTS);
        read_text_vectors(file, &v[n++]);
    } while (ungetc(fgetc(file), file) != EOF);
    fclose(file);
    return n;
}

static void free_vectors(vectors *v) {
    for (uint32_t i = 0; i < v->n.continuations; ++i) {
        free(v->greedy[i]);
        free(v->leads[i]);
    }
    free(v->tokens);
    free(v->positions);
    free(v->logits);
    free(v->greedy_at);
}

/* Of text.txt, or of the line of the prompts from 1 on; static. */
static const char *read_text(uint32_t which, size_t *bytes) {
    static char text[200000];
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", rig_data,
             which ? "../../tools/compare_llama/prompts.txt" : "text.txt");
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    if (which == 0) {
        *bytes = fread(text, 1, sizeof text, file);
    } else {
        for (uint32_t i = 0; i < which; ++i)
            assert_non_null(fgets(text, sizeof text, file));
        *bytes = strcspn(text, "\n");
    }
    fclose(file);
    return text;
}

/* The text's first tokens are those of the vectors, which an independent tokenizer made. */
static void check_tokens(rig *r, const vectors *v, uint32_t which) {
    static int32_t tokens[200000];
    size_t bytes, count = 0;
    const char *text = read_text(which, &bytes);
    RIG_OK(r, tamis_vocab_encode(tamis_model_vocab(r->model), text, bytes, TAMIS_ENCODE_ADD_BOS,
                                 tokens, sizeof tokens / sizeof *tokens, &count, &r->error));
    assert_true(count >= v->n.tokens);
    assert_memory_equal(tokens, v->tokens, v->n.tokens * sizeof *tokens);
}

static void check_logits(rig *r, const vectors *v, uint32_t i, float *logits) {
    float most = 0;
    RIG_OK(r, tamis_runner_logits(r->runner, 0, logits, &r->error));
    for (uint32_t j = 0; j < v->n.logits; ++j) {
        const float d = fabsf(logits[j * v->n.stride] - v->logits[i * v->n.logits + j]);
        most = d <= most ? most : d;
    }
    print_message("position %u: logits differ by %g, bound %g\n", v->positions[i], (double)most,
                  (double)BOUND);
    assert_true(most <= BOUND);
}

/* On a fork, which is fed the vectors' own tokens: each is the greedy one too, unless it leads by
 * so little that two logits within the bound may change places. */
static void check_greedy(rig *r, const vectors *v, uint32_t c, tamis_sequence text, int32_t next) {
    tamis_sequence sequence = 0;
    uint32_t turned = 0;
    RIG_OK(r, tamis_cache_fork(r->cache, text, &sequence, &r->error));
    for (uint32_t i = 0; i < v->n.greedy; ++i) {
        if (next != v->greedy[c][i] && v->leads[c][i] > 2 * BOUND)
            fail_msg("greedy token %u behind %u: %d, not %d, which leads by %g", i, v->greedy_at[c],
                     next, v->greedy[c][i], (double)v->leads[c][i]);
        turned += next != v->greedy[c][i];
        RIG_OK(r, tamis_runner_decode(r->runner, &sequence, 1, &v->greedy[c][i], &next, &r->error));
    }
    print_message("greedy behind %u: %u of %u differ\n", v->greedy_at[c], turned, v->n.greedy);
    RIG_OK(r, tamis_cache_remove(r->cache, sequence, &r->error));
}

/* The first `count` tokens. */
static void check_text(rig *r, const vectors *v, uint32_t count) {
    const uint32_t n_vocab = tamis_model_describe(r->model)->n_vocab;
    assert_int_equal((n_vocab + v->n.stride - 1) / v->n.stride, v->n.logits);
    float *logits = malloc(n_vocab * sizeof *logits);
    assert_non_null(logits);
    const tamis_sequence text = rig_add(r);
    uint32_t done = 0;
    int32_t next = 0;
    for (uint32_t i = 0; i < v->n.positions && v->positions[i] < count; ++i) {
        const uint32_t end = v->positions[i] + 1;
        RIG_OK(r, tamis_runner_prefill(r->runner, text, v->tokens + done, end - done, &next,
                                       &r->error));
        done = end;
        check_logits(r, v, i, logits);
        for (uint32_t c = 0; c < v->n.continuations; ++c)
            if (v->greedy_at[c] == v->positions[i]) check_greedy(r, v, c, text, next);
    }
    assert_true(done > 0);
    RIG_OK(r, tamis_cache_remove(r->cache, text, &r->error));
    free(logits);
}

static void test_file(void **state) {
    (void)state;
    rig r;
    vectors v[MOST_TEXTS];
    const char *asked = getenv("TEST_TOKENS");
    const uint32_t most = asked ? (uint32_t)strtoul(asked, NULL, 10) : 1001;
    const uint32_t n = read_vectors(v);
    const uint32_t count = v->n.tokens < most ? v->n.tokens : most, longest = count + v->n.greedy;
    rig_open(&r, &(rig_params){.file = model_file,
                               .max_context = longest,
                               .capacity_tokens = longest + v->n.greedy + 64});
    for (uint32_t i = 0; i < n; ++i) {
        check_tokens(&r, &v[i], i);
        check_text(&r, &v[i], i == 0 ? count : v[i].n.tokens);
        free_vectors(&v[i]);
    }
    rig_close(&r);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_file)};
    if (!rig_arguments(argc - 2, argv)) return 2;
    model_file = argv[3];
    vectors_file = argv[4];
    return cmocka_run_group_tests_name("real", tests, NULL, NULL);
}
