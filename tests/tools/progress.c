/* SPDX-License-Identifier: Apache-2.0 */
/* The lines that show how far a text has been read, and that kernels are compiled. */
#include "cli/progress.h"
#include "cli/building.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

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

/* A line while kernels are compiled, which counts the time; the last one stays. */
static void test_building(void **state) {
    (void)state;
    char text[4096];
    struct stat said = {0};
    FILE *file = tmpfile();
    const int kept = dup(STDERR_FILENO);
    assert_true(file && kept >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    cli_building(NULL, &(tamis_build_progress){.done = 0, .all = 2});
    for (int i = 0; i < 1000 && said.st_size == 0; i++) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        (void)fstat(fileno(file), &said);
    }
    cli_building(NULL, &(tamis_build_progress){.done = 1, .all = 2});
    cli_building(NULL, &(tamis_build_progress){.done = 2, .all = 2});
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    (void)close(kept);
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    (void)fclose(file);
    assert_non_null(strstr(text, "compiling kernels, once: 0 of 2, "));
    const char *last = strstr(text, "compiled kernels, once: 2 in ");
    assert_true(last && last[strlen(last) - 1] == '\n');
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lines), cmocka_unit_test(test_longest),
                                       cmocka_unit_test(test_building)};
    return cmocka_run_group_tests_name("progress", tests, NULL, NULL);
}
