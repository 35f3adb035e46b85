/* SPDX-License-Identifier: Apache-2.0 */
/* What every refusal of a file has. */
#include "tests/fuzz/refusal.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void refusal_abort_on_failure(void) {
    setenv("CMOCKA_TEST_ABORT", "1", 1);
    signal(SIGABRT, SIG_DFL);
}

void refusal_check(tamis_status status, const tamis_error *error) {
    assert_true(status == TAMIS_E_FORMAT || status == TAMIS_E_UNSUPPORTED);
    assert_int_equal(error->status, status);
    assert_true(error->text[0] != 0 && memchr(error->text, 0, sizeof error->text) != NULL);
    for (const char *at = error->text; *at; at++)
        assert_true(*at >= ' ' && *at <= '~');
}
