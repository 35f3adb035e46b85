/* SPDX-License-Identifier: Apache-2.0 */
/* For a test in which each request for memory and each call of the system fails once while a script
 * runs. Its program is linked with --wrap of the calls of MEMORY and of a list of its own. It plays
 * the script with fails_at = 0, 1, 2, ... until nothing has failed. */
#ifndef STORE_FAILING_H
#define STORE_FAILING_H

#include "tests/store/rig.h"

#include <errno.h>

static bool counting;
static long calls, fails_at, reason; /* reason: errno of the call that fails */
static const char *failed, *always;  /* the call that has failed; one that fails each time */

static bool fails_now(const char *name) {
    if (always && strcmp(name, always) == 0) {
        errno = EIO;
        return true;
    }
    if (!counting || calls++ != fails_at) return false;
    failed = name;
    errno = (int)reason;
    return true;
}

/* A list has X(type, name, what a failure returns, parameters, arguments) for each call. */
#define WRAP(type, name, failure, parameters, arguments)                                           \
    type __real_##name parameters;                                                                 \
    type __wrap_##name parameters;                                                                 \
    type __wrap_##name parameters {                                                                \
        return fails_now(#name) ? failure : __real_##name arguments;                               \
    }
#define MEMORY(X)                                                                                  \
    X(void *, malloc, NULL, (size_t size), (size))                                                 \
    X(void *, calloc, NULL, (size_t n, size_t size), (n, size))                                    \
    X(void *, realloc, NULL, (void *old, size_t size), (old, size))                                \
    X(char *, strdup, NULL, (const char *text), (text))                                            \
    X(int, posix_memalign, ENOMEM, (void **to, size_t align, size_t size), (to, align, size))
MEMORY(WRAP)

/* A call of the script; its status, also in `last`. The test defines what it may answer. */
static void may_fail(tamis_status status);
#define CALL(call) (counting = true, last = (call), counting = false, may_fail(last), last)

#endif
