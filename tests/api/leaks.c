/* SPDX-License-Identifier: Apache-2.0 */
/* The leak checker of a sanitizer build, with the options that tools/test.sh gives it. Without an
 * argument: it survives thread-local memory, wherever that lies. With a device: the program loses a
 * buffer there, and the leak checker must say so. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <tamis/tamis.h>
#include <unistd.h>

/* GCC 12's runtime takes thread-local memory of a library that begins 16 bytes behind a page's start
 * for a block of an older glibc, whose header gave its length and address. What lies there instead
 * sends the leak checker to an address that is not mapped. Blocks of the size of TEST_TLS_LIBRARY's
 * lie 32 bytes apart. */
#define PAGE      4096u
#define HEADER    16u
#define POSITIONS (PAGE / 32)

static void *volatile held[POSITIONS];

/* In a child, which ends with a leak check: loads the library behind n blocks of the same size. */
static void load_behind(unsigned n, unsigned *hits) {
    for (unsigned i = 0; i < n; i++)
        held[i] = malloc(HEADER / 2);
    void *library = dlopen(TEST_TLS_LIBRARY, RTLD_NOW);
    void *(*place)(void) = NULL;
    if (library) *(void **)&place = dlsym(library, "test_tls_place");
    if (!place) exit(2);
    *hits += (uintptr_t)place() % PAGE == HEADER;
    exit(0);
}

static int survive(void) {
    int failed = 0;
    unsigned *hits =
        mmap(NULL, sizeof *hits, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (hits == MAP_FAILED) return 2;
    for (unsigned n = 0; n < POSITIONS; n++) {
        int ended = -1;
        const pid_t child = fork();
        if (child == 0) load_behind(n, hits);
        failed += waitpid(child, &ended, 0) != child || ended != 0;
    }
    printf("%d of %u runs failed; %u had the block behind a page's start\n", failed, POSITIONS,
           *hits);
    return failed || !*hits;
}

/* Apart, so that no register or slot of main's keeps the buffer. */
static __attribute__((noinline)) tamis_status lose(tamis_context *context, tamis_error *error) {
    tamis_buffer *buffer = NULL;
    return tamis_buffer_create(context, 1000, &buffer, error);
}

int main(int argc, char **argv) {
    if (argc < 2) return survive();
    tamis_context *context = NULL;
    tamis_context_params params = {.device = argv[1]};
    tamis_error error = {0};
    if (tamis_context_create(&params, &context, &error) != TAMIS_OK) {
        printf("%s: %s\n", argv[1], error.text);
        return 77;
    }
    if (lose(context, &error) != TAMIS_OK) return 2;
    tamis_context_destroy(&context);
    return 0;
}
