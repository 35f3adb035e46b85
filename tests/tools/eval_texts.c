/* SPDX-License-Identifier: Apache-2.0 */
/* The texts that `tamis eval` makes, in vocabularies of every family: lengths, what is planted where,
 * and that questions and answers are the tokens which the whole text has. */
#include "eval/passkey.h"
#include "tests/tools/vocabularies.h"

static const char *const vocabularies[] = {
    "needle.gguf",       "tokens/gpt-2.gguf", "tokens/smollm.gguf",  "tokens/llama-bpe.gguf",
    "tokens/qwen2.gguf", "tokens/spm.gguf",   "tokens/spm-bare.gguf"};
#define N_VOCABULARIES (sizeof(vocabularies) / sizeof(vocabularies[0]))

/* The key stands once in the text, behind the words that ask for it. */
static void planted_once(const tamis_vocab *vocab, const char *text, const passkey_question *q) {
    char *question = decode(vocab, q->tokens, q->count, false);
    char *answer = decode(vocab, q->tokens + q->count, q->n_answer, false), plant[128];
    const char *words = strstr(question, "The ");
    assert_string_equal(answer, q->key);
    assert_int_equal(strlen(answer), q->key_bytes);
    assert_non_null(words);
    snprintf(plant, sizeof(plant), " %s%s. Remember it.", words, answer);
    if (count_of(text, plant) != 1)
        fail_msg("'%s' stands %u times in the text", plant, count_of(text, plant));
    const char *digits = answer + strlen(answer) - PASSKEY_DIGITS;
    assert_int_equal(strspn(digits, "0123456789"), PASSKEY_DIGITS);
    free(question);
    free(answer);
}

static void check_text(const tamis_vocab *vocab, const passkey_source *source, uint32_t length,
                       uint32_t index) {
    passkey_text text, again;
    const tamis_vocab_info *info = tamis_vocab_describe(vocab);
    OK(passkey_text_make(source, length, index, &text, &error));
    OK(passkey_text_make(source, length, index, &again, &error));
    assert_true(text.tokens.count <= length);
    assert_true(text.tokens.count + PASSKEY_PLANT_BYTES >= length);
    if (info->kind == TAMIS_VOCAB_BYTES) assert_int_equal(text.tokens.count, length);
    if (info->add_bos) assert_int_equal(text.tokens.ids[0], info->bos);
    assert_int_equal(again.tokens.count, text.tokens.count);
    assert_memory_equal(again.tokens.ids, text.tokens.ids, text.tokens.count * sizeof(int32_t));
    assert_int_equal(text.n_keys, source->n_keys);
    char *bytes = decode(vocab, text.tokens.ids, text.tokens.count, true);
    for (uint32_t i = 0; i < text.n_keys; i++) {
        planted_once(vocab, bytes, &text.questions[i]);
        same_when_whole(vocab, &text.tokens, text.questions[i].tokens,
                        text.questions[i].count + text.questions[i].n_answer);
        assert_string_equal(text.questions[i].key, again.questions[i].key);
    }
    free(bytes);
    passkey_text_free(&text);
    passkey_text_free(&again);
}

static void check_passkeys(const char *natural, size_t bytes) {
    uint32_t tried = 0;
    for (size_t v = 0; v < N_VOCABULARIES; v++) {
        tamis_vocab *vocab = open_vocab(vocabularies[v]);
        if (vocab == NULL) continue;
        for (uint32_t keys = 1; keys <= PASSKEY_KEYS_MAX; keys *= 4)
            for (uint32_t i = 0; i < 2; i++) {
                const passkey_source source = {vocab, natural, bytes, keys, i};
                check_text(vocab, &source, 500 + 300 * keys + i, i);
            }
        tamis_vocab_destroy(&vocab);
        tried++;
    }
    assert_true(tried >= 3);
}

static void passkeys_in_any_vocabulary(void **state) {
    char path[4096], *text;
    size_t bytes;
    (void)state;
    snprintf(path, sizeof(path), "%s/text.txt", folder);
    OK(cli_read_text(path, &text, &bytes, &error));
    check_passkeys(text, bytes);
    free(text);
}

/* Characters of several bytes, long runs without a space, and a text that is only spaces: none is
 * cut within a character. */
static void passkeys_in_other_scripts(void **state) {
    static const char *const texts[] = {
        "Zw\xc3\xb6lf Boxk\xc3\xa4mpfer jagen Viktor quer \xc3\xbc"
        "ber den gro\xc3\x9f"
        "en Deich. ",
        "\xd0\xbf\xd1\x80\xd0\xb8\xf0\x9f\x98\x80\xd0\xb2\xd0\xb5\xd1\x82", "   \n", "x"};
    static const char *const names[] = {"tokens/spm.gguf", "tokens/qwen2.gguf"};
    (void)state;
    for (size_t v = 0; v < 2; v++) {
        tamis_vocab *vocab = open_vocab(names[v]);
        if (vocab == NULL) continue;
        for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
            const passkey_source source = {vocab, texts[i], strlen(texts[i]), 3, 5};
            check_text(vocab, &source, 900, 1);
        }
        tamis_vocab_destroy(&vocab);
    }
}

/* What stands where in the shipped model's words, which its results depend on. */
static void bytes_keep_their_words(void **state) {
    tamis_vocab *vocab = open_vocab("needle.gguf");
    const passkey_source source = {vocab, "abc ", 4, 1, 7};
    passkey_text text;
    (void)state;
    OK(passkey_text_make(&source, 100, 0, &text, &error));
    char *question = decode(vocab, text.questions[0].tokens, text.questions[0].count, false);
    assert_non_null(strstr(question, " pass key is "));
    assert_int_equal(question[0], '\n');
    assert_int_equal(text.questions[0].key_bytes, PASSKEY_DIGITS);
    assert_int_equal(text.questions[0].n_answer, PASSKEY_DIGITS);
    free(question);
    passkey_text_free(&text);
    tamis_vocab_destroy(&vocab);
}

/* A piece that reaches over the end of the text or of the question belongs to what comes later. */
static void neighbours_share_tokens(void **state) {
    tamis_vocab *vocab = open_vocab("tokens/spm.gguf");
    (void)state;
    eval_tail tails[] = {{.question = "e red ", .answer = "the"},
                         {.question = "e blue", .answer = " x"}};
    cli_tokens text;
    OK(eval_cut(vocab, "Behold, th", 10, tails, 2, &text, &error));
    char *bytes = decode(vocab, text.ids, text.count, true);
    assert_string_equal(bytes, "Behold,");
    assert_int_equal(tails[0].answer_at, 5); /* " the" is one token */
    assert_int_equal(tails[0].n_answer, 1);
    assert_int_equal(tails[1].answer_at, 6);
    eval_tails_free(tails, 2);
    free(text.ids);
    free(bytes);
    tamis_vocab_destroy(&vocab);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passkeys_in_any_vocabulary), cmocka_unit_test(passkeys_in_other_scripts),
        cmocka_unit_test(bytes_keep_their_words), cmocka_unit_test(neighbours_share_tokens)};
    if (argc != 2) {
        fprintf(stderr, "usage: %s tests/data\n", argv[0]);
        return 2;
    }
    folder = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
