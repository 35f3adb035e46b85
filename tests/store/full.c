/* SPDX-License-Identifier: Apache-2.0 */
/* No room: a limit on the size of files, and, where the test may mount one, a file system that is
 * full. The call says so with the numbers, nothing unfinished stays, and the store goes on. */
#define _DEFAULT_SOURCE /* unshare and mount */
#define _GNU_SOURCE
#include "tests/store/rig.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SKIPPED 77

static bool may_mount = true;

static int teardown(void **state) {
    (void)state;
    rig_cleanup();
    return 0;
}

/* A put of `large` fails for lack of room; what there was and what is small still works. */
static void check_full(tamis_store *store, const rig_chunk *small, const rig_chunk *large,
                       rig_chunk *other) {
    char bytes[32];
    snprintf(bytes, sizeof bytes, "%llu bytes", (unsigned long long)large->record_bytes);
    for (int i = 0; i < 3; i++) {
        FAILS(tamis_store_put(store, &large->put, &test_error), TAMIS_E_FULL, bytes);
        assert_non_null(strstr(test_error.text, rig_folder()));
        assert_non_null(strstr(test_error.text, "bytes free"));
        assert_false(rig_has(store, large));
        assert_int_equal(rig_count(".tmp"), 0);
    }
    assert_true(rig_has(store, small));
    OK(tamis_store_put(store, &other->put, &test_error));
    assert_true(rig_has(store, other));
    const tamis_store_stats stats = rig_stats(store);
    assert_int_equal(stats.failed, 3);
    assert_int_equal(stats.tiers[TAMIS_TIER_DISK].records, 2);
    assert_int_equal(stats.tiers[TAMIS_TIER_DISK].bytes, small->record_bytes + other->record_bytes);
    assert_int_equal(stats.tiers[TAMIS_TIER_MEMORY].records, 2);
}

static void files_that_may_not_grow(void **state) {
    (void)state;
    rig_chunk small, large, other;
    struct rlimit before, now;
    rig_chunk_make(&small, 1, 10);
    rig_chunk_make(&other, 2, 10);
    rig_chunk_make(&large, 3, 600);
    tamis_store *store = rig_open(1u << 20, 0, true);
    OK(tamis_store_put(store, &small.put, &test_error));
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    now = before;
    now.rlim_cur = 50000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &now), 0);
    check_full(store, &small, &large, &other);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    OK(tamis_store_put(store, &large.put, &test_error));
    assert_true(rig_has(store, &large));
    tamis_store_destroy(&store);
    rig_chunk_free(&small), rig_chunk_free(&large), rig_chunk_free(&other);
}

static bool write_text(const char *path, const char *text) {
    const int file = open(path, O_WRONLY);
    const ssize_t length = (ssize_t)strlen(text);
    const bool done = file >= 0 && write(file, text, (size_t)length) == length;
    if (file >= 0) close(file);
    return done;
}

/* A mount namespace of this process's own. Who is not root gets it with a user namespace, in which
 * nobody can create a file who is not mapped to it. */
static bool own_mounts(void) {
    const unsigned user = geteuid(), group = getegid();
    char users[40], groups[40];
    if (user == 0) return unshare(CLONE_NEWNS) == 0;
    snprintf(users, sizeof users, "%u %u 1", user, user);
    snprintf(groups, sizeof groups, "%u %u 1", group, group);
    return unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 &&
           write_text("/proc/self/setgroups", "deny") && write_text("/proc/self/uid_map", users) &&
           write_text("/proc/self/gid_map", groups);
}

/* A file system of 100 kB, which ends with the child. */
static int on_a_small_file_system(void) {
    rig_chunk small, large, other;
    if (!own_mounts() || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", rig_folder(), "tmpfs", 0, "size=100k") != 0)
        return SKIPPED;
    rig_chunk_make(&small, 1, 10);
    rig_chunk_make(&other, 2, 10);
    rig_chunk_make(&large, 3, 600);
    tamis_store *store = rig_open(1u << 20, 0, true);
    OK(tamis_store_put(store, &small.put, &test_error));
    check_full(store, &small, &large, &other);
    tamis_store_destroy(&store);
    rig_chunk_free(&small), rig_chunk_free(&large), rig_chunk_free(&other);
    return 0;
}

static void a_full_file_system(void **state) {
    (void)state;
    tamis_store *store = rig_open(0, 0, true); /* makes the folder */
    tamis_store_destroy(&store);
    const pid_t child = fork();
    if (child == 0) {
        _exit(on_a_small_file_system());
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how));
    if (WEXITSTATUS(how) == SKIPPED) {
        print_message("no file system may be mounted here\n");
        may_mount = false;
        skip();
    }
    assert_int_equal(WEXITSTATUS(how), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(files_that_may_not_grow, teardown),
        cmocka_unit_test_teardown(a_full_file_system, teardown),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return failed == 0 && !may_mount ? SKIPPED : failed;
}
