/* SPDX-License-Identifier: Apache-2.0 */
/* The line that shows how far a text has been read. */
#include "cli/progress.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void test_lines(void **state) {
    static const struct {
        size_t done, count;
        double seconds;
        const char *line;
    } cases[] = {
        {0, 100, 0, "0 of 100 tokens [                ]   0 %, 0 tokens/s"},
        {50, 100, 2, "50 of 100 tokens [========        ]  50 %, 25 tokens/s, 2 s left"},
        {100, 100, 0.5, "100 of 100 tokens [================] 100 %, 200 tokens/s, 0 s left"},
        {512, 131072, 1, "512 of 131072 tokens [                ]   0 %, 512 tokens/s, 4 min left"},
        {131071, 131072, 10,
         "131071 of 131072 tokens [=============== ] 100 %, 13107 tokens/s, 0 s left"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_string_equal(
            cli_progress_line("tokens", cases[i].done, cases[i].count, cases[i].seconds).text,
            cases[i].line);
}

/* However large the numbers are, the line stays within a terminal's. */
static void test_longest(void **state) {
    (void)state;
    assert_true(strlen(cli_progress_line("tokens", SIZE_MAX / 2, SIZE_MAX, 1e9).text) <= 79);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lines),
                                       cmocka_unit_test(test_longest)};
    return cmocka_run_group_tests_name("progress", tests, NULL, NULL);
}
