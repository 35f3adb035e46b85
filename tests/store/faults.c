/* SPDX-License-Identifier: Apache-2.0 */
/* Each request of the store for memory and each call of the system fails once, while a script runs.
 * The call in which that happens says so or does without; nothing is leaked, half-written or lost
 * that was answered for, and the next store finds all of it. */
#include "tests/store/failing.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* What fails beside requests for memory. */
#define SYSTEM(X)                                                                                  \
    X(int, openat, -1, (int at, const char *name, int flags, mode_t mode),                         \
      (at, name, flags, mode))                                                                     \
    X(ssize_t, pread, -1, (int file, void *to, size_t n, off_t at), (file, to, n, at))             \
    X(ssize_t, write, -1, (int file, const void *from, size_t n), (file, from, n))                 \
    X(int, fstat, -1, (int file, struct stat *to), (file, to))                                     \
    X(int, fstatat, -1, (int at, const char *name, struct stat *to, int flags),                    \
      (at, name, to, flags))                                                                       \
    X(int, fsync, -1, (int file), (file))                                                          \
    X(int, flock, -1, (int file, int what), (file, what))                                          \
    X(int, renameat, -1, (int a, const char *from, int b, const char *to), (a, from, b, to))       \
    X(int, unlinkat, -1, (int at, const char *name, int flags), (at, name, flags))                 \
    X(int, futimens, -1, (int file, const struct timespec *times), (file, times))                  \
    X(DIR *, fdopendir, NULL, (int file), (file))                                                  \
    X(struct dirent *, readdir, NULL, (DIR * folder), (folder))
SYSTEM(WRAP)

static rig_chunk chunks[3];

/* What was answered for. */
typedef struct answers {
    bool put[3], removed;
} answers;

/* A failure that a call may answer. */
static void may_fail(tamis_status status) {
    assert_true(status == TAMIS_OK || status == TAMIS_E_NO_MEMORY || status == TAMIS_E_IO ||
                status == TAMIS_E_FULL);
    if (status == TAMIS_OK) return;
    assert_non_null(failed);
    if (reason == ENOSPC && (strcmp(failed, "write") == 0 || strcmp(failed, "renameat") == 0))
        assert_int_equal(status, TAMIS_E_FULL);
    assert_int_equal(test_error.status, status);
    assert_true(test_error.text[0] != 0);
}

/* Finds a chunk and reads all of it, as far as the calls succeed. */
static void script_read(tamis_store *store, const rig_chunk *chunk, bool there) {
    uint8_t k[32 * RIG_MOST], v[32 * RIG_MOST];
    tamis_chunk *found = NULL;
    tamis_status last;
    const bool sound = failed == NULL;
    if (CALL(tamis_store_get(store, &chunk->put.id, &found, &test_error)) != TAMIS_OK)
        assert_null(found);
    else if (sound && !failed)
        assert_int_equal(found != NULL, there);
    for (uint32_t i = 0; found && i < RIG_LAYERS; i++) {
        if (CALL(tamis_chunk_read(found, i, k, v, &test_error)) != TAMIS_OK) continue;
        assert_memory_equal(k, chunk->k[i], chunk->plane_bytes);
        assert_memory_equal(v, chunk->v[i], chunk->plane_bytes);
    }
    counting = true;
    tamis_chunk_release(&found);
    counting = false;
}

static void script_look(tamis_store *store) {
    tamis_chunk_info infos[4];
    tamis_store_found found;
    size_t count;
    tamis_status last;
    (void)CALL(tamis_store_list(store, infos, 4, &count, &test_error));
    (void)CALL(tamis_store_verify(store, &found, &test_error));
    assert_int_equal(found.damaged, 0);
    (void)CALL(tamis_store_gc(store, &found, &test_error));
}

/* The folder has chunks[0] and an unfinished file. */
static answers script(void) {
    const tamis_store_params params = {.memory_bytes = 1u << 20, .folder = rig_folder()};
    tamis_store *store = NULL;
    answers a = {.put = {true}};
    tamis_status last;
    if (CALL(tamis_store_create(&params, &store, &test_error)) != TAMIS_OK) {
        assert_null(store);
        return a;
    }
    script_read(store, &chunks[0], true);
    for (int i = 1; i < 3; i++)
        a.put[i] = CALL(tamis_store_put(store, &chunks[i].put, &test_error)) == TAMIS_OK;
    script_read(store, &chunks[1], a.put[1]);
    script_read(store, &chunks[0], true);
    a.removed = CALL(tamis_store_remove(store, &chunks[2].put.id, NULL, &test_error)) == TAMIS_OK;
    script_look(store);
    counting = true;
    tamis_store_destroy(&store);
    counting = false;
    return a;
}

static void prepare(void) {
    char path[400];
    tamis_store *store = rig_open(0, 0, true);
    OK(tamis_store_put(store, &chunks[0].put, &test_error));
    tamis_store_destroy(&store);
    snprintf(path, sizeof path, "%s/0123456789abcdef0123456789abcdef.1-1.tmp", rig_folder());
    const int file = open(path, O_CREAT | O_WRONLY, 0600);
    assert_true(file >= 0);
    close(file);
}

static void check_after(const answers *a) {
    tamis_store *store = rig_open(0, 0, true);
    assert_int_equal(rig_count(".tmp"), 0);
    assert_true(rig_has(store, &chunks[0]));
    if (a->put[1]) assert_true(rig_has(store, &chunks[1]));
    const bool third = rig_has(store, &chunks[2]);
    if (a->removed) assert_false(third);
    assert_int_equal(rig_stats(store).tiers[TAMIS_TIER_DISK].damaged, 0);
    tamis_store_destroy(&store);
}

static void each_call_fails_once(void **state) {
    const long reasons[] = {EIO, ENOSPC};
    (void)state;
    for (int r = 0; r < 2; r++) {
        long n = 0;
        reason = reasons[r];
        for (failed = ""; failed; n++) {
            prepare();
            calls = 0;
            fails_at = n;
            failed = NULL;
            const answers a = script();
            const char *which = failed;
            check_after(&a);
            failed = which;
            rig_cleanup();
        }
        print_message("%ld calls, each failed once\n", n - 1);
        assert_true(n > 100);
    }
}

/* Reading fails and is no damage: the record stays, and so does what memory has of it. A caller
 * computes the chunk anew, tries again later, or removes the record, which it may hold meanwhile. */
static void failed_reads_leave_the_record(void **state) {
    (void)state;
    uint8_t k[32 * RIG_MOST], v[32 * RIG_MOST];
    prepare();
    tamis_store *store = rig_open(1u << 20, 0, true);
    tamis_chunk *found = rig_get(store, &chunks[0]), *again = NULL;
    tamis_chunk_info info;
    OK(tamis_chunk_read(found, 0, k, v, &test_error));
    always = "pread";
    FAILS(tamis_chunk_read(found, 1, k, v, &test_error), TAMIS_E_IO, "reading");
    FAILS(tamis_store_get(store, &chunks[0].put.id, &again, &test_error), TAMIS_E_IO, "reading");
    assert_null(again);
    OK(tamis_chunk_read(found, 0, k, v, &test_error)); /* memory has it */
    assert_memory_equal(k, chunks[0].k[0], chunks[0].plane_bytes);
    tamis_chunk_get_info(found, &info);
    assert_int_equal(info.damaged, 0);
    assert_int_equal(rig_stats(store).failed, 2);
    assert_int_equal(rig_stats(store).tiers[TAMIS_TIER_DISK].damaged, 0);
    assert_int_equal(rig_stats(store).tiers[TAMIS_TIER_DISK].records, 1);
    always = NULL;
    rig_check(found, &chunks[0]); /* a later read of the same chunk */
    tamis_chunk_release(&found);
    tamis_store_destroy(&store);

    /* One that fails for good: the file must be opened to be removed, and is put again. */
    store = rig_open(0, 0, true);
    found = rig_get(store, &chunks[0]);
    always = "pread";
    FAILS(tamis_chunk_read(found, 2, k, NULL, &test_error), TAMIS_E_IO, "reading");
    int removed;
    OK(tamis_store_remove(store, &chunks[0].put.id, &removed, &test_error));
    assert_int_equal(removed, 1);
    always = NULL;
    assert_false(rig_has(store, &chunks[0]));
    OK(tamis_store_put(store, &chunks[0].put, &test_error));
    tamis_chunk_release(&found);
    assert_true(rig_has(store, &chunks[0]));
    assert_int_equal(rig_bytes(), rig_stats(store).tiers[TAMIS_TIER_DISK].bytes);
    tamis_store_destroy(&store);
}

static int teardown(void **state) {
    (void)state;
    always = NULL;
    counting = false;
    rig_cleanup();
    return 0;
}

/* A folder that may only be read: what is damaged there is called so, and not called removed. */
static void what_stays_is_not_called_removed(void **state) {
    (void)state;
    tamis_store_found found;
    size_t count = 0;
    tamis_store *store = rig_open(0, 0, true);
    OK(tamis_store_put(store, &chunks[0].put, &test_error));
    FILE *file = fopen(rig_file(&chunks[0]), "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, -4096, SEEK_END), 0); /* the last plane's last page */
    assert_int_equal(fputc(chunks[0].bytes[0] ^ 1, file) == EOF, 0);
    assert_int_equal(fclose(file), 0);
    always = "unlinkat";
    for (int i = 0; i < 2; i++) {
        const tamis_status status = i == 0 ? tamis_store_verify(store, &found, &test_error)
                                           : tamis_store_verify(store, &found, NULL);
        assert_int_equal(status, TAMIS_E_IO);
        assert_int_equal(found.damaged, 1);
        assert_int_equal(found.damaged_left, 1);
        assert_int_equal(found.records, 0);
    }
    assert_non_null(strstr(test_error.text, "cannot remove"));
    const tamis_tier_stats disk = rig_stats(store).tiers[TAMIS_TIER_DISK];
    assert_int_equal(disk.damaged, 2);
    assert_int_equal(disk.damaged_left, 2);
    OK(tamis_store_list(store, NULL, 0, &count, &test_error));
    assert_int_equal(count, 1); /* it is there */
    always = NULL;
    OK(tamis_store_verify(store, &found, &test_error));
    assert_int_equal(found.damaged, 1);
    assert_int_equal(found.damaged_left, 0);
    assert_int_equal(rig_count(".kv"), 0);
    tamis_store_destroy(&store);
}

int main(void) {
    rig_in_memory();
    for (uint32_t i = 0; i < 3; i++)
        rig_chunk_make(&chunks[i], i, 130);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(each_call_fails_once, teardown),
        cmocka_unit_test_teardown(failed_reads_leave_the_record, teardown),
        cmocka_unit_test_teardown(what_stays_is_not_called_removed, teardown),
    };
    const int result = cmocka_run_group_tests(tests, NULL, NULL);
    for (uint32_t i = 0; i < 3; i++)
        rig_chunk_free(&chunks[i]);
    return result;
}
