/* SPDX-License-Identifier: Apache-2.0 */
/* A library with thread-local memory of its own, for leaks.c. */
__attribute__((visibility("default"))) void *test_tls_place(void);

static __thread long place;

void *test_tls_place(void) {
    return &place;
}
