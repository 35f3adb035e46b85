/* SPDX-License-Identifier: Apache-2.0 */
/* What of an answer is printed with each token: whole characters, and never a stop text; texts as
 * one line, and as UTF-8. */
#include "cli/answer.h"
#include "cli/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Tokens, and all that has been printed after each of them; NULL: the end. */
typedef struct stream {
    const char *stops[3];
    const char *tokens[8], *printed[8];
    const char *whole; /* after the end, the newline left out */
    bool stopped;
} stream;

#define EURO "\xe2\x82\xac"     /* U+20AC */
#define GRIN "\xf0\x9f\x98\x80" /* U+1F600 */

static const stream streams[] = {
    {{NULL}, {"a", "bc", NULL}, {"a", "abc"}, "abc", false},
    /* a character in parts of all kinds */
    {{NULL},
     {"x\xe2", "\x82", "\xac", "y", NULL},
     {"x", "x", "x" EURO, "x" EURO "y"},
     "x" EURO "y",
     false},
    {{NULL},
     {"\xf0", "\x9f\x98",
      "\x80"
      "\xc3",
      "\xa9", NULL},
     {"", "", GRIN, GRIN "\xc3\xa9"},
     GRIN "\xc3\xa9",
     false},
    {{NULL},
     {EURO "\xf0\x9f\x98", "!", NULL},
     {EURO, EURO "\xf0\x9f\x98!"},
     EURO "\xf0\x9f\x98!",
     false},
    /* what becomes no character does not wait: a byte of the middle alone, overlong forms, a
     * surrogate, what lies above U+10FFFF, bytes that are never used */
    {{NULL},
     {"\x80", "\xbf\xbf\xbf\xbf", NULL},
     {"\x80", "\x80\xbf\xbf\xbf\xbf"},
     "\x80\xbf\xbf\xbf\xbf",
     false},
    {{NULL},
     {"\xc0", "\xe0\x80", "\xed\xa0", NULL},
     {"\xc0", "\xc0\xe0\x80", "\xc0\xe0\x80\xed\xa0"},
     "\xc0\xe0\x80\xed\xa0",
     false},
    {{NULL},
     {"\xf4\x90", "\xf5", "\xff", NULL},
     {"\xf4\x90", "\xf4\x90\xf5", "\xf4\x90\xf5\xff"},
     "\xf4\x90\xf5\xff",
     false},
    /* a part that is left over is not written, and what became none before it is */
    {{NULL}, {"a\xe2\x82", NULL}, {"a"}, "a", false},
    {{NULL}, {EURO "\xf0\x9f\x98", NULL}, {EURO}, EURO, false},
    {{NULL}, {"\xf0", "\xf0", NULL}, {"", "\xf0"}, "\xf0", false},
    /* the stop text, in one token, over tokens, and what only begins like it */
    {{"END"}, {"ab", "cEND", NULL}, {"ab", "abc"}, "abc", true},
    {{"END"}, {"abE", "N", "Dx", NULL}, {"ab", "ab", "ab"}, "ab", true},
    {{"END"}, {"EN", "EN", "E", NULL}, {"", "EN", "ENEN"}, "ENENE", false},
    {{"aab"}, {"aa", "a", "b", NULL}, {"", "a", "a"}, "a", true},
    /* several: the first to be complete, however the text is cut into tokens; of two that are
     * complete together the longer one */
    {{"Z", "END"}, {"aE", "N", "Z", NULL}, {"a", "a", "aEN"}, "aEN", true},
    {{"END", "Z"}, {"aENDZ", NULL}, {"a"}, "a", true},
    {{"bcde", "c"}, {"abcde", NULL}, {"ab"}, "ab", true},
    {{"bcde", "c"}, {"a", "b", "c", NULL}, {"a", "a", "ab"}, "ab", true},
    {{"c", "bc"}, {"a", "b", "c", NULL}, {"a", "a", "a"}, "a", true},
    {{"xyz", "yq"}, {"axy", "r", NULL}, {"a", "axyr"}, "axyr", false},
    {{"xyz", "yq"}, {"ax", "y", "q", NULL}, {"a", "a", "ax"}, "ax", true},
    /* both: neither cuts the other's character */
    {{"!!"}, {EURO, "!", "a", NULL}, {EURO, EURO, EURO "!a"}, EURO "!a", false},
    {{"!!"}, {"a\xe2\x82", "!!", NULL}, {"a", "a"}, "a", true},
    {{"\x82\xac"}, {"a" EURO, NULL}, {"a"}, "a", true},
    {{GRIN}, {"\xf0\x9f", "\x98", "\x80", NULL}, {"", "", ""}, "", true},
};

static void check(const stream *s, char **content, size_t *size) {
    FILE *to = open_memstream(content, size);
    assert_non_null(to);
    fflush(to); /* so that there is content */
    cli_texts stops = {0};
    while (s->stops[stops.count] != NULL) {
        stops.values[stops.count] = s->stops[stops.count];
        stops.count++;
    }
    cli_answer answer = {.to = to, .stops = &stops};
    for (size_t i = 0; s->tokens[i] != NULL; i++) {
        assert_true(cli_answer_add(&answer, s->tokens[i], strlen(s->tokens[i])));
        if (strcmp(*content, s->printed[i]) != 0)
            fail_msg("stream %td, token %zu: '%s' is printed, not '%s'", s - streams, i, *content,
                     s->printed[i]);
    }
    assert_int_equal(answer.stopped, s->stopped);
    cli_answer_end(&answer);
    const size_t bytes = strlen(s->whole);
    if (strncmp(*content, s->whole, bytes) != 0 || strcmp(*content + bytes, "\n") != 0)
        fail_msg("stream %td: '%s' at the end, not '%s'", s - streams, *content, s->whole);
    fclose(to);
}

static void test_streams(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++) {
        char *content = NULL;
        size_t size = 0;
        check(&streams[i], &content, &size);
        free(content);
    }
}

/* A token of no bytes, and a NUL among them. */
static void test_odd_tokens(void **state) {
    char *content = NULL;
    size_t bytes = 0;
    (void)state;
    FILE *to = open_memstream(&content, &bytes);
    cli_answer answer = {.to = to};
    assert_true(cli_answer_add(&answer, "", 0));
    assert_true(cli_answer_add(&answer, "a\0b", 3));
    assert_true(bytes == 3 && memcmp(content, "a\0b", 3) == 0);
    cli_answer_end(&answer);
    assert_true(bytes == 4);
    fclose(to);
    free(content);
}

/* An answer that is only kept. */
static void test_kept(void **state) {
    const cli_texts stops = {1, {"END"}};
    cli_answer answer = {.stops = &stops};
    (void)state;
    assert_true(cli_answer_add(&answer, "a" EURO, 4));
    assert_true(cli_answer_add(&answer, "bEND", 4));
    assert_true(answer.stopped && answer.bytes == 5);
    assert_memory_equal(answer.text, "a" EURO "b", 5);
    cli_answer_end(&answer);
    assert_null(answer.text);
}

/* Texts, and each as one line. */
static const struct {
    const char *text, *line;
} lines[] = {
    {"", ""},
    {" \n\t ", ""},
    {"one line", "one line"},
    {"\n a\r\n\x1b[1mb\x7f ", "a [1mb"},
    {EURO " " GRIN, EURO " " GRIN},
    {"a\xe2\x82", "a"}, /* the end of a character is missing */
    {"a\xe2\x82"
     "b",
     "a\xef\xbf\xbd\xef\xbf\xbd"
     "b"},
    {"\xc0\x80\xff", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    {"\xed\xa0\x80.", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd."}, /* a surrogate */
};

static void test_lines(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        char *line = cli_answer_line(lines[i].text, strlen(lines[i].text));
        assert_non_null(line);
        assert_string_equal(line, lines[i].line);
        free(line);
    }
    char *line = cli_answer_line("a\0b", 3);
    assert_string_equal(line, "a b");
    free(line);
}

/* A text with bytes of Latin-1, as JSON holds it. */
static void test_repaired(void **state) {
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        char *text = cli_utf8_repaired(i == 0 ? "caf\xe9 " EURO "\xe2\x82" : "");
        assert_non_null(text);
        assert_string_equal(text, i == 0 ? "caf\xef\xbf\xbd " EURO "\xef\xbf\xbd\xef\xbf\xbd" : "");
        free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streams), cmocka_unit_test(test_odd_tokens),
        cmocka_unit_test(test_kept), cmocka_unit_test(test_lines), cmocka_unit_test(test_repaired)};
    return cmocka_run_group_tests_name("answer", tests, NULL, NULL);
}
