/* SPDX-License-Identifier: Apache-2.0 */
/* The tokens that `tamis compare` makes of a text and its questions: together they are those of the
 * whole, cut at once, in plain text and in a chat's form. */
#include "compare/compare.h"

#include "cli/chat.h"
#include "tests/tools/vocabularies.h"

static const char *const vocabularies[] = {"needle.gguf", "tokens/gpt-2.gguf", "tokens/smollm.gguf",
                                           "tokens/spm.gguf", "tokens/spm-bare.gguf"};
#define N_VOCABULARIES (sizeof(vocabularies) / sizeof(vocabularies[0]))

/* Its end is the beginning of a token with some of the questions. */
static const char text[] = "And the name of the man was Elimelech.\n\nBehold, th";
static const cli_texts questions = {3, {"e red", "e blue one\n", " what? "}};

static void check_plain(const tamis_vocab *vocab) {
    const compare_form form = {.plain = true};
    compare_text cut;
    OK(compare_text_cut(vocab, &form, text, strlen(text), &questions, &cut, &error));
    assert_string_equal(cut.form, "plain");
    assert_int_equal(cut.ending, -1);
    assert_int_equal(cut.n_questions, questions.count);
    for (uint32_t i = 0; i < cut.n_questions; i++) {
        assert_true(cut.questions[i].count > 0);
        assert_true(cut.questions[i].count <= compare_longest_question(&cut));
        same_when_whole(vocab, &cut.tokens, cut.questions[i].ids, cut.questions[i].count);
    }
    compare_text_free(&cut);
}

/* False where the vocabulary lacks what the format needs. */
static bool check_chat(const tamis_vocab *vocab, const char *name) {
    const compare_form form = {.chat_format = name, .system = "Be good."};
    compare_text cut;
    cli_chat chat;
    if (cli_chat_open(vocab, name, form.system, NULL, &chat, &error) != TAMIS_OK) return false;
    OK(compare_text_cut(vocab, &form, text, strlen(text), &questions, &cut, &error));
    assert_string_equal(cut.form, name);
    assert_int_equal(cut.ending, chat.ending);
    for (uint32_t i = 0; i < cut.n_questions; i++) {
        char turn[256];
        cli_tokens whole;
        snprintf(turn, sizeof(turn), "%s\n\n%s", text, questions.values[i]);
        OK(cli_chat_turn(&chat, turn, strlen(turn), &whole, &error));
        assert_int_equal(whole.count, cut.tokens.count + cut.questions[i].count);
        assert_memory_equal(whole.ids, cut.tokens.ids, cut.tokens.count * sizeof(int32_t));
        assert_memory_equal(whole.ids + cut.tokens.count, cut.questions[i].ids,
                            cut.questions[i].count * sizeof(int32_t));
        free(whole.ids);
    }
    compare_text_free(&cut);
    return true;
}

static void parts_are_the_whole(void **state) {
    uint32_t tried = 0, chats = 0;
    (void)state;
    for (size_t v = 0; v < N_VOCABULARIES; v++) {
        tamis_vocab *vocab = open_vocab(vocabularies[v]);
        if (vocab == NULL) continue;
        check_plain(vocab);
        for (size_t f = 0; cli_chat_names[f] != NULL; f++)
            chats += check_chat(vocab, cli_chat_names[f]);
        tamis_vocab_destroy(&vocab);
        tried++;
    }
    assert_true(tried >= 3);
    assert_true(chats >= 1);
}

/* The last token before a question depends on it, and is each question's own. */
static void neighbours_share_tokens(void **state) {
    const compare_form form = {0}; /* the file has no template */
    const cli_texts alone = {1, {"e red"}};
    tamis_vocab *vocab = open_vocab("tokens/spm.gguf");
    compare_text cut;
    (void)state;
    OK(compare_text_cut(vocab, &form, "Behold, th", 10, &alone, &cut, &error));
    char *bytes = decode(vocab, cut.tokens.ids, cut.tokens.count, true);
    assert_string_equal(bytes, "Behold,");
    free(bytes);
    compare_text_free(&cut);
    tamis_vocab_destroy(&vocab);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts_are_the_whole),
                                       cmocka_unit_test(neighbours_share_tokens)};
    if (argc != 2) {
        fprintf(stderr, "usage: %s tests/data\n", argv[0]);
        return 2;
    }
    folder = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
