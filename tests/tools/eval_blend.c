/* SPDX-License-Identifier: Apache-2.0 */
/* The chunks of `tamis eval blend` have their length and hold what is asked for, as a reader of the
 * text finds it, in vocabularies of every family; and the measures by which prompts are compared.
 */
#include "eval/blend.h"
#include "tests/tools/vocabularies.h"

#include <math.h>

#define CHUNK 160

static cli_tokens natural_of(const tamis_vocab *vocab) {
    static const char words[] =
        "It was a fine morning by the lake, and the boats lay still. Nobody "
        "spoke; the smoke rose straight from the houses. ";
    cli_tokens out;
    OK(cli_tokenize(vocab, words, strlen(words), 0, &out, &error));
    return out;
}

static char *chunk_text(const tamis_vocab *vocab, const blend_text *text, uint32_t c) {
    return decode(vocab, text->chunks + (size_t)c * CHUNK, CHUNK, false);
}

/* What is asked for: between "\nThe " and the last " is". */
static void subject_of(const tamis_vocab *vocab, const blend_step *step, char *to) {
    char *asked = decode(vocab, step->tokens, step->n_question, false);
    const char *end = NULL;
    for (const char *at = strstr(asked, " is"); at != NULL; at = strstr(at + 1, " is"))
        end = at;
    assert_memory_equal(asked, "\nThe ", 5);
    assert_non_null(end);
    assert_true(end - asked < 60);
    sprintf(to, "%.*s", (int)(end - asked - 5), asked + 5);
    free(asked);
}

/* The chunk that holds the key of a subject; it stands nowhere else. */
static uint32_t chunk_of(const tamis_vocab *vocab, const blend_text *text, const char *subject,
                         const char *key) {
    char plant[192];
    uint32_t found = UINT32_MAX, count = 0;
    snprintf(plant, sizeof(plant), "The %s is %s. Remember it.", subject, key);
    for (uint32_t c = 0; c < text->n_chunks; c++) {
        char *bytes = chunk_text(vocab, text, c);
        count += count_of(bytes, key);
        if (count_of(bytes, plant) == 1) found = c;
        free(bytes);
    }
    if (found == UINT32_MAX || count != 1) fail_msg("'%s' stands %u times", plant, count);
    return found;
}

/* "The A is the B." stands in chunk c. */
static void check_alias(const tamis_vocab *vocab, const blend_text *text, uint32_t c,
                        const char *alias, const char *subject) {
    char plant[192];
    char *bytes = chunk_text(vocab, text, c);
    snprintf(plant, sizeof(plant), "The %s is the %s. Remember it.", alias, subject);
    if (count_of(bytes, plant) != 1) fail_msg("'%s' is not in chunk %u", plant, c);
    free(bytes);
}

/* Answers the chunk of key k. */
static uint32_t check_questions(const tamis_vocab *vocab, const blend_text *text, uint32_t n_keys,
                                uint32_t k) {
    const blend_question *one = &text->questions[BLEND_ASK_ONE][k],
                         *two = &text->questions[BLEND_ASK_TWO][k],
                         *chain = &text->questions[BLEND_ASK_CHAIN][k];
    char subject[64], second[64], alias[64];
    assert_true(one->n_steps == 1 && two->n_steps == 2 && chain->n_steps == 1);
    subject_of(vocab, &one->steps[0], subject);
    const uint32_t c = chunk_of(vocab, text, subject, one->steps[0].key);
    assert_memory_equal(&two->steps[0], &one->steps[0], sizeof(one->steps[0]));
    subject_of(vocab, &two->steps[1], second);
    const uint32_t other = chunk_of(vocab, text, second, two->steps[1].key);
    assert_int_not_equal(other, c);
    assert_string_equal(chain->steps[0].key, two->steps[1].key);
    subject_of(vocab, &chain->steps[0], alias);
    check_alias(vocab, text, c, alias, second);
    for (uint32_t i = 0; i < n_keys; i++) { /* no name has two keys */
        subject_of(vocab, &text->questions[BLEND_ASK_ONE][i].steps[0], second);
        assert_string_not_equal(alias, second);
        if (i != k) assert_string_not_equal(subject, second);
    }
    return c;
}

static void check_text(const tamis_vocab *vocab, const blend_source *source, uint32_t n_chunks,
                       uint32_t index) {
    const size_t bytes = (size_t)n_chunks * CHUNK * sizeof(int32_t);
    blend_text text, again, next;
    OK(blend_text_make(source, n_chunks, index, &text, &error));
    OK(blend_text_make(source, n_chunks, index, &again, &error));
    OK(blend_text_make(source, n_chunks, index + 1, &next, &error));
    assert_memory_equal(text.chunks, again.chunks, bytes);
    assert_memory_not_equal(text.chunks, next.chunks, bytes);
    const uint32_t n_keys = blend_text_keys(source, n_chunks);
    uint32_t chunks = 0;
    for (uint32_t k = 0; k < n_keys; k++)
        chunks |= 1u << check_questions(vocab, &text, n_keys, k);
    assert_int_equal(__builtin_popcount(chunks), n_keys); /* each in a chunk of its own */
    blend_text_free(&text);
    blend_text_free(&again);
    blend_text_free(&next);
}

static void chunks_hold_what_is_asked(void **state) {
    static const char *const names[] = {"needle.gguf", "tokens/smollm.gguf", "tokens/spm.gguf"};
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        tamis_vocab *vocab = open_vocab(names[i]);
        if (vocab == NULL) continue;
        cli_tokens natural = natural_of(vocab);
        blend_source source = {vocab, &natural, CHUNK, 0, true, 7};
        check_text(vocab, &source, 2, 0);
        check_text(vocab, &source, BLEND_CHUNKS_MAX, 3);
        source.n_keys = 3;
        check_text(vocab, &source, 7, 1);
        check_text(vocab, &source, 2, 1);
        free(natural.ids);
        tamis_vocab_destroy(&vocab);
    }
}

static void chunks_that_are_too_short_are_refused(void **state) {
    (void)state;
    tamis_vocab *vocab = open_vocab("needle.gguf");
    cli_tokens natural = natural_of(vocab);
    const blend_source source = {vocab, &natural, 40, 0, false, 7};
    blend_text text;
    assert_int_equal(blend_text_make(&source, 4, 0, &text, &error), TAMIS_E_ARGUMENT);
    assert_non_null(strstr(error.text, "--chunk-tokens 40: the keys of a chunk take 4"));
    blend_text_free(&text);
    free(natural.ids);
    tamis_vocab_destroy(&vocab);
}

/* ---- Measures -------------------------------------------------------------------------------- */

static void near(double got, double wanted) {
    if (fabs(got - wanted) > 1e-9) fail_msg("%.12g, not %.12g", got, wanted);
}

static void divergence_is_that_of_distributions(void **state) {
    (void)state;
    /* p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2): 1/2 ln 2 - 1/4 ln 2. */
    const float p[] = {logf(2), 0, 0}, q[] = {0, 0, logf(2)}, far[] = {-2000, 1000, 0},
                shifted[] = {logf(2) + 100, 100, 100};
    if (fabs(blend_divergence(p, q, 3) - 0.25 * log(2)) > 1e-7)
        fail_msg("%.12g", blend_divergence(p, q, 3));
    assert_true(blend_divergence(p, p, 3) == 0);
    assert_true(fabs(blend_divergence(p, shifted, 3)) < 1e-5);
    assert_true(isfinite(blend_divergence(p, far, 3)) && blend_divergence(p, far, 3) > 1000);
    assert_true(isfinite(blend_divergence(far, p, 3)));
    assert_int_equal(blend_likeliest(q, 3), 2);
    assert_int_equal(blend_likeliest((const float[]){1, 3, 3}, 3), 1);
}

static void ranks_are_spearmans(void **state) {
    const double x[] = {1, 2, 3, 4, 5}, up[] = {10, 20, 300, 4000, 4001}, down[] = {5, 4, 3, 2, 1},
                 some[] = {2, 1, 4, 3, 5}, ties[] = {1, 1, 2, 2, 2}, same[] = {3, 3, 3, 3, 3};
    bool failed;
    (void)state;
    near(blend_rank_correlation(x, up, 5, &failed), 1);
    near(blend_rank_correlation(x, down, 5, &failed), -1);
    near(blend_rank_correlation(x, some, 5, &failed), 0.8); /* 1 - 6 * 4 / (5 * 24) */
    near(blend_rank_correlation(x, ties, 5, &failed), sqrt(0.75));
    assert_true(isnan(blend_rank_correlation(x, same, 5, &failed)));
    assert_false(failed);
}

static void quantiles_are_values(void **state) {
    double values[20];
    (void)state;
    for (int i = 0; i < 20; i++)
        values[i] = (7 * i) % 20;
    near(blend_quantile(values, 20, 0.95), 18);
    near(blend_quantile(values, 20, 0.5), 9);
    near(blend_quantile(values, 20, 1), 19);
    near(blend_quantile(values, 1, 0.95), 0);
    near(blend_quantile(values, 0, 0.5), 0);
    near(blend_relative(0, 0), 0);
    near(blend_relative(4, 16), 0.5);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(chunks_hold_what_is_asked),
                                       cmocka_unit_test(chunks_that_are_too_short_are_refused),
                                       cmocka_unit_test(divergence_is_that_of_distributions),
                                       cmocka_unit_test(ranks_are_spearmans),
                                       cmocka_unit_test(quantiles_are_values)};
    if (argc != 2) {
        fprintf(stderr, "usage: %s tests/data\n", argv[0]);
        return 2;
    }
    folder = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
