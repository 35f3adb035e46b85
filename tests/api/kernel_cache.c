/* SPDX-License-Identifier: Apache-2.0 */
/* Programs that the OpenCL backend keeps on disk: what the next context finds there, what damage
 * does, and where nothing can be kept. */
#define _XOPEN_SOURCE 700 /* mkdtemp, nftw */
#include "tests/api/fixture.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define N_TOKENS 40

static char folder[64];
static unsigned compiled, loaded, unwritten, warned; /* programs, as the log tells of them */

static void count_line(void *user, tamis_log_level level, const char *text) {
    (void)user;
    compiled += level == TAMIS_LOG_DEBUG && strncmp(text, "compiled ", 9) == 0;
    loaded += level == TAMIS_LOG_DEBUG && strncmp(text, "loaded ", 7) == 0;
    unwritten += level == TAMIS_LOG_INFO && strncmp(text, "kernel cache: ", 14) == 0;
    warned += level == TAMIS_LOG_WARN && strncmp(text, "kernel cache: ", 14) == 0;
}

static uint32_t n_begun, n_ended, n_told; /* series of kernels, and kernels of them */

static void count_progress(void *user, const tamis_build_progress *progress) {
    static uint32_t all;
    assert_ptr_equal(user, folder);
    assert_true(progress->done <= progress->all && progress->seconds >= 0);
    if (progress->done == 0) {
        n_begun++;
        all = progress->all;
    } else {
        n_told++;
    }
    assert_int_equal(progress->all, all);
    n_ended += progress->done == progress->all;
}

/* Every kernel of a plan is told of, and none is built after it. */
static void test_building_is_told(void **state) {
    (void)state;
    const tamis_cache_params shape = test_shape();
    const tamis_plan_params params = {.max_context = 64};
    const tamis_context_params told = {
        .device = test_device, .log = count_line, .build = count_progress, .build_user = folder};
    tamis_context *context = NULL;
    tamis_cache *cache = NULL;
    tamis_plan *plan = NULL;
    n_begun = n_ended = n_told = compiled = 0;
    OK(tamis_context_create(&told, &context, &test_error));
    OK(tamis_cache_create(context, &shape, &cache, &test_error));
    OK(tamis_plan_create(cache, &params, &plan, &test_error));
    assert_true(n_begun > 0);
    assert_int_equal(n_ended, n_begun);
    assert_true(n_told >= compiled && compiled > 2);
    tamis_plan_destroy(&plan);
    tamis_cache_destroy(&cache);
    tamis_context_destroy(&context);
}

/* A context with a plan, a few steps through it, and what was written read back. */
static void use_kernels(void) {
    const tamis_cache_params shape = test_shape();
    tamis_plan_params params = {.max_context = 64};
    tamis_sequence sequence;
    uint64_t tokens[N_TOKENS];
    test_world w;
    for (uint64_t i = 0; i < N_TOKENS; i++)
        tokens[i] = i;
    compiled = loaded = unwritten = warned = 0;
    tamis_selection_default(TAMIS_SELECT_QUEST, &params.selection);
    params.selection.budget = 32;
    params.selection.recent = 8;
    test_open(&w, &shape, &params);
    OK(tamis_cache_add(w.cache, &sequence, &test_error));
    OK(test_append(&w, sequence, tokens, N_TOKENS));
    test_expect(&w, sequence, 1, 1, 0, tokens, N_TOKENS);
    test_close(&w);
}

/* ---- The folder's files ---------------------------------------------------------------------- */

static void (*each_file)(const char *path, off_t bytes);
static unsigned n_files;

static int visit(const char *path, const struct stat *info, int kind, struct FTW *at) {
    (void)at;
    if (kind != FTW_F) return 0;
    n_files++;
    if (each_file) each_file(path, info->st_size);
    return 0;
}

/* Calls `each`, which may be NULL, for every file; returns how many there are. */
static unsigned for_files(void (*each)(const char *path, off_t bytes)) {
    n_files = 0;
    each_file = each;
    assert_int_equal(nftw(folder, visit, 8, FTW_PHYS), 0);
    return n_files;
}

static void cut(const char *path, off_t bytes) {
    assert_int_equal(truncate(path, bytes - 1), 0);
}

static void empty(const char *path, off_t bytes) {
    (void)bytes;
    assert_int_equal(truncate(path, 0), 0);
}

static void change_byte(const char *path, off_t at) {
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)at, SEEK_SET), 0);
    const int byte = fgetc(f);
    assert_int_equal(fseek(f, (long)at, SEEK_SET), 0);
    assert_int_equal(fputc(byte ^ 1, f), byte ^ 1);
    assert_int_equal(fclose(f), 0);
}

static void change_first(const char *path, off_t bytes) {
    (void)bytes;
    change_byte(path, 0);
}

static void change_middle(const char *path, off_t bytes) {
    change_byte(path, bytes / 2);
}

static void lengthen(const char *path, off_t bytes) {
    (void)bytes;
    FILE *f = fopen(path, "ab");
    assert_non_null(f);
    assert_int_equal(fputc(0, f), 0);
    assert_int_equal(fclose(f), 0);
}

/* ---- What is no program of the user's -------------------------------------------------------- */

static void become_fifo(const char *path, off_t bytes) {
    (void)bytes;
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
}

static void become_link_to_itself(const char *path, off_t bytes) {
    (void)bytes;
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink(path, path), 0);
}

static void become_link_to_zeros(const char *path, off_t bytes) {
    (void)bytes;
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/dev/zero", path), 0);
}

static void become_socket(const char *path, off_t bytes) {
    (void)bytes;
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    assert_true(snprintf(at.sun_path, sizeof at.sun_path, "%s", path) < (int)sizeof at.sun_path);
    assert_int_equal(unlink(path), 0);
    const int s = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(s, (const struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(close(s), 0);
}

static void become_huge(const char *path, off_t bytes) {
    (void)bytes;
    assert_int_equal(truncate(path, (off_t)1 << 40), 0); /* without a block of it */
}

static void become_writable(const char *path, off_t bytes) {
    (void)bytes;
    assert_int_equal(chmod(path, 0620), 0);
}

static void become_folder(const char *path, off_t bytes) {
    (void)bytes;
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
}

/* The files take the kinds in turn. */
static void (*const kinds[])(const char *, off_t) = {
    cut,           empty,       change_first,          change_middle,
    lengthen,      become_fifo, become_link_to_itself, become_link_to_zeros,
    become_socket, become_huge};
static unsigned next_kind;

static void become_next(const char *path, off_t bytes) {
    kinds[next_kind++ % (sizeof kinds / sizeof *kinds)](path, bytes);
}

/* ---- Tests ----------------------------------------------------------------------------------- */

static void test_second_context_compiles_nothing(void **state) {
    (void)state;
    use_kernels();
    const unsigned programs = compiled;
    assert_true(programs >= 5);
    assert_int_equal(loaded, 0);
    assert_int_equal(for_files(NULL), programs);
    use_kernels();
    assert_int_equal(compiled, 0);
    assert_int_equal(loaded, programs);
    assert_int_equal(for_files(NULL), programs);
}

static void test_what_is_no_program_of_ours_is_a_miss(void **state) {
    (void)state;
    use_kernels();
    const unsigned programs = compiled;
    for (next_kind = 0; next_kind < sizeof kinds / sizeof *kinds;) {
        for_files(become_next);
        use_kernels();
        assert_int_equal(compiled, programs);
        assert_int_equal(loaded, 0);
        use_kernels(); /* and each was replaced */
        assert_int_equal(loaded, programs);
        assert_int_equal(for_files(NULL), programs);
    }
    for_files(become_writable);
    use_kernels();
    assert_int_equal(compiled, programs);
    assert_int_equal(warned, programs);
    for_files(become_folder); /* these stay */
    use_kernels();
    assert_int_equal(compiled, programs);
    assert_int_equal(unwritten, 2 * programs); /* neither read nor replaced */
}

/* The folder itself, and one above it: nothing is read there, nothing is written. */
static void test_folders_that_others_may_write(void **state) {
    (void)state;
    char path[96];
    use_kernels();
    const unsigned programs = compiled;
    for (unsigned deep = 0; deep < 3; deep++) {
        snprintf(path, sizeof path, "%s%s", folder, deep == 0 ? "" : deep == 1 ? "/a" : "/a/b");
        assert_int_equal(chmod(path, 0770), 0);
        use_kernels();
        assert_int_equal(compiled, programs);
        assert_int_equal(warned, 1);
        assert_int_equal(for_files(NULL), programs);
        assert_int_equal(chmod(path, 01777), 0); /* sticky, as /tmp is */
        use_kernels();
        assert_int_equal(loaded, programs);
        assert_int_equal(chmod(path, 0700), 0);
    }
    if (geteuid() != 0) return; /* only root can give a folder to somebody else */
    assert_int_equal(chown(path, 1, 1), 0);
    use_kernels();
    assert_int_equal(compiled, programs);
    assert_int_equal(warned, 1);
}

/* Several processes that fill one folder at once. */
static void test_processes_share_it(void **state) {
    (void)state;
    pid_t children[3];
    for (size_t i = 0; i < 3; i++) {
        children[i] = fork();
        if (children[i] == 0) { /* a driver's threads do not survive a fork */
            execl("/proc/self/exe", "test-api-kernel_cache", test_device, "child", (char *)NULL);
            _exit(1);
        }
        assert_true(children[i] > 0);
    }
    for (size_t i = 0; i < 3; i++) {
        int status;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    use_kernels();
    assert_int_equal(compiled, 0);
    assert_int_equal(for_files(NULL), loaded);
}

/* A file in the folder's place. */
static void test_a_folder_that_cannot_be_written(void **state) {
    (void)state;
    char path[96];
    snprintf(path, sizeof path, "%s/file", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fclose(f), 0);
    snprintf(path, sizeof path, "%s/file/kernels", folder);
    setenv("TAMIS_KERNEL_CACHE", path, 1);
    use_kernels();
    assert_true(compiled >= 5);
    assert_int_equal(loaded, 0);
    assert_int_equal(unwritten, compiled);
    char longest[2000];
    memset(longest, '/', sizeof longest);
    longest[sizeof longest - 1] = 0;
    setenv("TAMIS_KERNEL_CACHE", longest, 1);
    use_kernels();
    assert_int_equal(loaded, 0);
    assert_int_equal(unwritten, compiled);
    setenv("TAMIS_KERNEL_CACHE", "none", 1);
    use_kernels();
    assert_int_equal(loaded, 0);
    assert_int_equal(unwritten, 0);
    assert_int_equal(for_files(NULL), 1);
}

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/tamis-kernels-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    char path[96]; /* which the library makes */
    snprintf(path, sizeof path, "%s/a/b", folder);
    return setenv("TAMIS_KERNEL_CACHE", path, 1);
}

static int visit_removing(const char *path, const struct stat *info, int kind, struct FTW *at) {
    (void)info;
    (void)kind;
    (void)at;
    return remove(path);
}

static int remove_folder(void **state) {
    (void)state;
    return nftw(folder, visit_removing, 8, FTW_PHYS | FTW_DEPTH);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(int argc, char **argv) {
    const int status = test_begin(argc, argv);
    if (status) return status;
    test_log = count_line;
    if (argc > 2) {
        use_kernels();
        return 0;
    }
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_building_is_told),
        IN_FOLDER(test_second_context_compiles_nothing),
        IN_FOLDER(test_what_is_no_program_of_ours_is_a_miss),
        IN_FOLDER(test_folders_that_others_may_write),
        IN_FOLDER(test_processes_share_it),
        IN_FOLDER(test_a_folder_that_cannot_be_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
