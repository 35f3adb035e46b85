/* SPDX-License-Identifier: Apache-2.0 */
/* The texts of `tamis eval ruler` hold what is asked for, as a reader of the text finds it; they have
 * their length in vocabularies of every family; answers are scored by RULER's rule. */
#include "eval/ruler.h"
#include "tests/tools/vocabularies.h"

#include <ctype.h>

/* A text as a reader has it. */
typedef struct reading {
    ruler_text text;
    char *bytes;
} reading;

static void make(const tamis_vocab *vocab, ruler_task task, uint32_t length, uint32_t index,
                 reading *r) {
    OK(ruler_text_make(vocab, task, length, 7, index, &r->text, &error));
    r->bytes = decode(vocab, r->text.tokens.ids, r->text.tokens.count, true);
}

static void drop(reading *r) {
    ruler_text_free(&r->text);
    free(r->bytes);
}

/* ---- What stands in the texts ---------------------------------------------------------------- */

/* Which of the words are expected, each once, and nothing else is. */
static void expected_are(const ruler_question *q, const char *const *words, uint32_t n) {
    assert_int_equal(q->n_expected, n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t found = 0;
        for (uint32_t j = 0; j < n; j++)
            found += strcmp(q->expected[j], words[i]) == 0;
        if (found != 1) fail_msg("'%s' is expected %u times", words[i], found);
    }
}

/* The word between `before` and `after` in a question. */
static void word_between(const char *text, const char *before, const char *after, char *to) {
    const char *from = strstr(text, before), *end;
    assert_non_null(from);
    from += strlen(before);
    end = strstr(from, after);
    assert_non_null(end);
    assert_true(end - from < RULER_WORD_BYTES);
    memcpy(to, from, (size_t)(end - from));
    to[end - from] = '\0';
}

static void stands_once(const char *text, const char *format, const char *key, const char *value) {
    char needle[128];
    snprintf(needle, sizeof(needle), format, key, value);
    if (count_of(text, needle) != 1)
        fail_msg("'%s' stands %u times", needle, count_of(text, needle));
    assert_int_equal(count_of(text, value), 1);
    assert_int_equal(strlen(value), 7);
    assert_int_equal(strspn(value, "0123456789"), 7);
}

#define NEEDLE "The secret number of %s is %s."

static void read_keys(const reading *r, uint32_t n) {
    char key[RULER_NEEDLES][RULER_WORD_BYTES];
    assert_int_equal(r->text.n_questions, n);
    assert_int_equal(count_of(r->bytes, "The secret number of "), n);
    for (uint32_t i = 0; i < n; i++) {
        const ruler_question *q = &r->text.questions[i];
        word_between(q->question, "The secret number of ", " is", key[i]);
        assert_int_equal(q->n_expected, 1);
        stands_once(r->bytes, NEEDLE, key[i], q->expected[0]);
        for (uint32_t j = 0; j < i; j++)
            assert_string_not_equal(key[i], key[j]);
    }
}

static void read_single(const reading *r) {
    read_keys(r, 1);
}

static void read_multikey(const reading *r) {
    read_keys(r, RULER_NEEDLES);
}

static void read_multivalue(const reading *r) {
    const ruler_question *q = &r->text.questions[0];
    char key[RULER_WORD_BYTES];
    assert_int_equal(r->text.n_questions, 1);
    word_between(q->question, "The four secret numbers of ", " are", key);
    assert_int_equal(count_of(r->bytes, "One secret number of "), RULER_NEEDLES);
    assert_int_equal(q->n_expected, RULER_NEEDLES);
    for (uint32_t i = 0; i < q->n_expected; i++)
        stands_once(r->bytes, "One secret number of %s is %s.", key, q->expected[i]);
}

/* The key of the needle that has a value. */
static void key_of(const char *text, const char *value, char *to) {
    char end[RULER_WORD_BYTES + 8];
    snprintf(end, sizeof(end), " is %s.", value);
    const char *at = strstr(text, end), *from = at;
    assert_non_null(at);
    while (from > text && from[-1] != ' ')
        from--;
    assert_true(at - from < RULER_WORD_BYTES);
    memcpy(to, from, (size_t)(at - from));
    to[at - from] = '\0';
}

/* Numbers are expected in the order of the keys in the question. */
static void read_multiquery(const reading *r) {
    const ruler_question *q = &r->text.questions[0];
    char key[RULER_NEEDLES][RULER_WORD_BYTES], question[RULER_QUESTION_BYTES];
    assert_int_equal(r->text.n_questions, 1);
    assert_int_equal(q->n_expected, RULER_NEEDLES);
    assert_int_equal(count_of(r->bytes, "The secret number of "), RULER_NEEDLES);
    for (uint32_t i = 0; i < RULER_NEEDLES; i++) {
        key_of(r->bytes, q->expected[i], key[i]);
        stands_once(r->bytes, NEEDLE, key[i], q->expected[i]);
    }
    snprintf(question, sizeof(question), "\nThe secret numbers of %s, %s, %s and %s are", key[0],
             key[1], key[2], key[3]);
    assert_string_equal(q->question, question);
}

/* Follows the assignments behind the example from the number that is asked for. */
static void read_chain(const reading *r) {
    const ruler_question *q = &r->text.questions[0];
    char value[RULER_WORD_BYTES], found[RULER_CHAIN][RULER_WORD_BYTES];
    const char *words[RULER_CHAIN], *body = strstr(strstr(r->bytes, "Text: ") + 1, "\n\nText: ");
    assert_non_null(body);
    assert_int_equal(count_of(body, "Let "), RULER_CHAIN);
    word_between(q->question, "have the value ", "?", value);
    for (uint32_t n = 0; n < RULER_CHAIN; n++) {
        char end[64];
        snprintf(end, sizeof(end), " = %s.", value);
        assert_int_equal(count_of(body, end), 1);
        const char *name = strstr(body, end) - 5;
        assert_memory_equal(name - 4, "Let ", 4);
        memcpy(found[n], name, 5);
        found[n][5] = '\0';
        strcpy(value, found[n]);
        words[n] = found[n];
        assert_null(strstr(q->question, found[n]));
    }
    expected_are(q, words, RULER_CHAIN);
}

/* A word and how often it stands in a text. */
typedef struct tally {
    char word[40];
    uint32_t count;
} tally;

static int by_count(const void *a, const void *b) {
    const tally *x = a, *y = b;
    return (x->count < y->count) - (x->count > y->count);
}

/* Counts words between spaces, without those that are left out; the most frequent
 * first. */
static tally *count_words(const char *text, bool (*leave)(const char *), uint32_t *n) {
    char *copy = strdup(text);
    tally *out = calloc(strlen(text) + 1, sizeof(*out));
    assert_non_null(out);
    *n = 0;
    for (char *word = strtok(copy, " \n"); word != NULL; word = strtok(NULL, " \n")) {
        uint32_t i = 0;
        if (leave(word)) continue;
        while (i < *n && strcmp(out[i].word, word) != 0)
            i++;
        if (i == *n) snprintf(out[(*n)++].word, sizeof(out->word), "%s", word);
        out[i].count++;
    }
    free(copy);
    qsort(out, *n, sizeof(*out), by_count);
    return out;
}

static void most_frequent(const reading *r, const char *body, bool (*leave)(const char *),
                          uint32_t n) {
    const char *words[RULER_EXPECTED_MAX];
    uint32_t count;
    tally *all = count_words(body, leave, &count);
    assert_true(count > n);
    for (uint32_t i = 0; i < n; i++)
        words[i] = all[i].word;
    assert_true(all[n - 1].count > all[n].count);
    expected_are(&r->text.questions[0], words, n);
    free(all);
}

static bool is_number(const char *word) {
    return isdigit((unsigned char)word[0]);
}

static bool is_dots(const char *word) {
    return strcmp(word, "...") == 0;
}

static void read_common(const reading *r) {
    const char *body = strstr(r->bytes, "\n\nList: ");
    assert_non_null(body);
    most_frequent(r, body + strlen("\n\nList: "), is_number, RULER_COMMON);
    for (uint32_t i = 0; i < RULER_COMMON; i++) { /* the example gives nothing away */
        char *example = strndup(r->bytes, (size_t)(body - r->bytes));
        assert_null(strstr(example, r->text.questions[0].expected[i]));
        free(example);
    }
}

static void read_coded(const reading *r) {
    most_frequent(r, strchr(r->bytes, '\n'), is_dots, 3);
}

/* ---- Every task ------------------------------------------------------------------------------ */

static void (*const readers[RULER_TASKS])(const reading *) = {
    read_single, read_multikey, read_multivalue, read_multiquery,
    read_chain,  read_common,   read_coded};

/* Tokens by which a text may be shorter than it was asked to be: a unit of filling, which for cwe is
 * three entries. */
#define SLACK 110

static void check_text(const tamis_vocab *vocab, ruler_task task, uint32_t length, uint32_t index) {
    const tamis_vocab_info *info = tamis_vocab_describe(vocab);
    reading r, again;
    make(vocab, task, length, index, &r);
    make(vocab, task, length, index, &again);
    assert_true(r.text.tokens.count <= length);
    assert_true(r.text.tokens.count + SLACK >= length);
    if (info->add_bos) assert_int_equal(r.text.tokens.ids[0], info->bos);
    assert_string_equal(r.bytes, again.bytes);
    assert_string_equal(r.text.questions[0].question, again.text.questions[0].question);
    for (uint32_t i = 0; i < r.text.n_questions; i++) {
        const ruler_question *q = &r.text.questions[i];
        const eval_tail *tail = &r.text.tails[i];
        same_when_whole(vocab, &r.text.tokens, tail->tokens, tail->n_question + tail->n_answer);
        assert_true(ruler_score(q, q->answer) == 1);
        assert_true(ruler_score(q, q->question) == 0);
    }
    readers[task](&r);
    drop(&again);
    make(vocab, task, length, index + 1, &again);
    assert_string_not_equal(r.bytes, again.bytes);
    drop(&r);
    drop(&again);
}

static void texts_hold_what_is_asked(void **state) {
    static const char *const names[] = {"needle.gguf", "tokens/smollm.gguf",
                                        "tokens/llama-bpe.gguf", "tokens/spm.gguf"};
    (void)state;
    for (size_t v = 0; v < sizeof(names) / sizeof(names[0]); v++) {
        tamis_vocab *vocab = open_vocab(names[v]);
        if (vocab == NULL) continue;
        for (uint32_t task = 0; task < RULER_TASKS; task++) {
            check_text(vocab, (ruler_task)task, 1700, 0);
            check_text(vocab, (ruler_task)task, 2345, 3);
            check_text(vocab, (ruler_task)task, 9000, 1);
        }
        tamis_vocab_destroy(&vocab);
    }
}

static void a_text_that_does_not_fit(void **state) {
    tamis_vocab *vocab = open_vocab("needle.gguf");
    ruler_text text;
    (void)state;
    for (uint32_t task = 0; task < RULER_TASKS; task++) {
        assert_int_equal(ruler_text_make(vocab, (ruler_task)task, 40, 0, 0, &text, &error),
                         TAMIS_E_ARGUMENT);
        assert_non_null(strstr(error.text, "--length 40: the shortest text of "));
        assert_non_null(strstr(error.text, ruler_task_names[task]));
        ruler_text_free(&text);
    }
    tamis_vocab_destroy(&vocab);
}

/* ---- Scores, words --------------------------------------------------------------------------- */

static void answers_are_scored_by_what_they_hold(void **state) {
    const ruler_question q = {.expected = {"1234567", "7654321", "QXYZA", "river"},
                              .n_expected = 4};
    (void)state;
    assert_true(ruler_score(&q, "") == 0);
    assert_true(ruler_score(&q, "123456 7654320 qxyz rive") == 0);
    assert_true(ruler_score(&q, " 1234567") == 0.25);
    assert_true(ruler_score(&q, "1234567, 1234567 and 1234567") == 0.25);
    assert_true(ruler_score(&q, "It is 7654321, or 11234567.") == 0.5);
    assert_true(ruler_score(&q, "RIVER qxyza") == 0.5);
    assert_true(ruler_score(&q, "riveriver") == 0.25);
    assert_true(ruler_score(&q, "7654321 riv River QXYZA... 1234567") == 1);
}

static void no_noun_is_a_part_of_another(void **state) {
    (void)state;
    for (uint32_t i = 0; i < RULER_NOUNS; i++) {
        assert_non_null(ruler_nouns[i]);
        for (uint32_t j = 0; j < RULER_NOUNS; j++)
            if (i != j && strstr(ruler_nouns[i], ruler_nouns[j]) != NULL)
                fail_msg("%s holds %s", ruler_nouns[i], ruler_nouns[j]);
        for (uint32_t j = 0; j < RULER_ADJECTIVES; j++)
            assert_true(strlen(ruler_nouns[i]) + strlen(ruler_adjectives[j]) + 2 <=
                        RULER_WORD_BYTES);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts_hold_what_is_asked),
                                       cmocka_unit_test(a_text_that_does_not_fit),
                                       cmocka_unit_test(answers_are_scored_by_what_they_hold),
                                       cmocka_unit_test(no_noun_is_a_part_of_another)};
    if (argc != 2) {
        fprintf(stderr, "usage: %s tests/data\n", argv[0]);
        return 2;
    }
    folder = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
