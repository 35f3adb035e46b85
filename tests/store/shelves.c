/* SPDX-License-Identifier: Apache-2.0 */
/* The disk tier's folder: what other processes write and remove there, unfinished files, files of
 * other versions and under wrong names, a folder that cannot be written; verify and gc. */
#include "lib/store/record.h"
#include "tests/store/rig.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1u << 20)

static int teardown(void **state) {
    (void)state;
    rig_cleanup();
    return 0;
}

static void write_at(const char *path, off_t offset, const void *from, size_t bytes) {
    const int file = open(path, O_WRONLY);
    assert_true(file >= 0);
    assert_int_equal(pwrite(file, from, bytes, offset), bytes);
    close(file);
}

/* Two stores of one folder stand for two processes: they share nothing else. */
static void two_stores_share_a_folder(void **state) {
    (void)state;
    rig_chunk chunks[3];
    for (uint32_t i = 0; i < 3; i++)
        rig_chunk_make(&chunks[i], i, 100);
    tamis_store *a = rig_open(0, MIB, true), *b = rig_open(0, MIB, true);
    OK(tamis_store_put(a, &chunks[0].put, &test_error));
    assert_true(rig_has(b, &chunks[0]));
    OK(tamis_store_put(b, &chunks[0].put, &test_error));
    assert_int_equal(rig_stats(b).tiers[TAMIS_TIER_DISK].known, 1);
    assert_int_equal(rig_stats(b).tiers[TAMIS_TIER_DISK].records, 1);

    tamis_chunk *held = rig_get(b, &chunks[0]);
    int removed;
    OK(tamis_store_remove(a, &chunks[0].put.id, &removed, &test_error));
    rig_check(held, &chunks[0]);
    tamis_chunk_release(&held);
    assert_false(rig_has(b, &chunks[0]));
    assert_int_equal(rig_stats(b).tiers[TAMIS_TIER_DISK].records, 0);

    size_t count;
    OK(tamis_store_put(a, &chunks[1].put, &test_error));
    OK(tamis_store_put(a, &chunks[2].put, &test_error));
    OK(tamis_store_list(b, NULL, 0, &count, &test_error));
    assert_int_equal(count, 2);
    OK(tamis_store_remove(b, &chunks[1].put.id, &removed, &test_error));
    assert_int_equal(removed, 1);
    OK(tamis_store_list(a, NULL, 0, &count, &test_error));
    assert_int_equal(count, 1);
    tamis_store_destroy(&a);
    tamis_store_destroy(&b);
    for (uint32_t i = 0; i < 3; i++)
        rig_chunk_free(&chunks[i]);
}

/* Two stores that fill one folder in turn: each sees from time to time what the other wrote, and
 * both together exceed the limit by a sixteenth and the record that is being written at most. */
static void two_stores_share_a_limit(void **state) {
    (void)state;
    rig_chunk chunk;
    rig_chunk_make(&chunk, 0, 10);
    const uint64_t bytes = chunk.record_bytes, limit = 32 * bytes;
    rig_chunk_free(&chunk);
    tamis_store *stores[2] = {rig_open(0, limit, true), rig_open(0, limit, true)};
    for (uint32_t i = 0; i < 200; i++) {
        rig_chunk_make(&chunk, i, 10);
        OK(tamis_store_put(stores[i / 8 % 2], &chunk.put, &test_error));
        assert_true(rig_count(".kv") <= 32 + 2 + 1);
        rig_chunk_free(&chunk);
    }
    assert_true(rig_count(".kv") >= 28);
    tamis_store_destroy(&stores[0]);
    tamis_store_destroy(&stores[1]);
}

/* What others wrote is found beyond the limit too, and what is too much goes when it is released. */
static void releasing_makes_room(void **state) {
    (void)state;
    rig_chunk chunks[2];
    tamis_chunk *held[2];
    tamis_store *a = rig_open(0, 0, true);
    for (uint32_t i = 0; i < 2; i++)
        rig_chunk_make(&chunks[i], i, 100);
    tamis_store *b = rig_open(0, chunks[0].record_bytes, true);
    for (uint32_t i = 0; i < 2; i++) {
        OK(tamis_store_put(a, &chunks[i].put, &test_error));
        held[i] = rig_get(b, &chunks[i]);
        assert_non_null(held[i]);
    }
    assert_int_equal(rig_stats(b).tiers[TAMIS_TIER_DISK].bytes, 2 * chunks[0].record_bytes);
    rig_check(held[0], &chunks[0]);
    tamis_chunk_release(&held[0]);
    assert_int_equal(rig_stats(b).tiers[TAMIS_TIER_DISK].bytes, chunks[0].record_bytes);
    assert_false(rig_has(a, &chunks[0]));
    tamis_chunk_release(&held[1]);
    assert_true(rig_has(b, &chunks[1]));
    tamis_store_destroy(&a);
    tamis_store_destroy(&b);
    rig_chunk_free(&chunks[0]), rig_chunk_free(&chunks[1]);
}

/* What a writer that is gone left is removed; what a living one writes is not. */
static void unfinished_files_go(void **state) {
    (void)state;
    char paths[4][400];
    int files[4];
    tamis_store *store = rig_open(0, 0, true);
    tamis_store_destroy(&store);
    static const char *const names[] = {"0123456789abcdef0123456789abcdef.17-1.tmp",
                                        "0123456789abcdef0123456789abcdef.18-1.tmp",
                                        "somebody-else.tmp", "0123456789abcdef0123456789abcdef"};
    for (int i = 0; i < 4; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/%s", rig_folder(), names[i]);
        files[i] = open(paths[i], O_CREAT | O_WRONLY, 0600);
        assert_true(files[i] >= 0);
    }
    assert_int_equal(flock(files[1], LOCK_EX | LOCK_NB), 0);
    /* A folder of such a name is no unfinished file. */
    char folder[400];
    snprintf(folder, sizeof folder, "%s/0123456789abcdef0123456789abcdef.19-1.tmp", rig_folder());
    assert_int_equal(mkdir(folder, 0700), 0);
    store = rig_open(0, 0, true);
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(access(paths[0], F_OK), -1);
    for (int i = 1; i < 4; i++)
        assert_int_equal(access(paths[i], F_OK), 0);
    tamis_store_found found;
    OK(tamis_store_gc(store, &found, &test_error));
    assert_int_equal(found.leftovers, 0);
    close(files[1]);
    OK(tamis_store_gc(store, &found, &test_error));
    assert_int_equal(found.leftovers, 1);
    assert_int_equal(access(paths[1], F_OK), -1);
    assert_int_equal(access(paths[2], F_OK), 0);
    tamis_store_destroy(&store);
    close(files[0]), close(files[2]), close(files[3]);
}

/* Records of another version are passed over, whatever their content, until gc. */
static void other_versions_are_misses(void **state) {
    (void)state;
    rig_chunk chunk;
    rig_chunk_make(&chunk, 5, 100);
    tamis_store *store = rig_open(MIB, 0, true);
    chunk.put.tiers = 1u << TAMIS_TIER_DISK;
    OK(tamis_store_put(store, &chunk.put, &test_error));
    write_at(rig_file(&chunk), 8, "\1", 1);
    assert_false(rig_has(store, &chunk));
    tamis_store_found found;
    OK(tamis_store_verify(store, &found, &test_error));
    assert_int_equal(found.foreign, 1);
    assert_int_equal(found.records + found.damaged, 0);
    assert_int_equal(access(rig_file(&chunk), F_OK), 0);
    tamis_store_destroy(&store);
    store = rig_open(0, 0, true);
    assert_int_equal(rig_stats(store).tiers[TAMIS_TIER_DISK].records, 0);
    assert_true(rig_stats(store).foreign > 0);
    assert_int_equal(rig_stats(store).tiers[TAMIS_TIER_DISK].damaged, 0);
    OK(tamis_store_gc(store, &found, &test_error));
    assert_int_equal(found.foreign, 1);
    assert_int_equal(rig_count(".kv"), 0);
    OK(tamis_store_put(store, &chunk.put, &test_error));
    assert_true(rig_has(store, &chunk));
    tamis_store_destroy(&store);
    rig_chunk_free(&chunk);
}

/* A sound record that has the key of another chunk, as two chunks would have whose hashes are equal:
 * that other one is a miss, which is counted, and takes its place when it is put. */
static void equal_keys_are_no_equal_chunks(void **state) {
    (void)state;
    for (int field = 0; field < 7; field++) {
        rig_chunk chunk, other;
        tms_record record;
        rig_chunk_make(&chunk, 5, 100);
        rig_chunk_make(&other, 5, 100);
        if (field == 0) other.put.id.salt[15]++;
        if (field == 1) other.put.id.fingerprint[0]++;
        if (field == 2) other.tokens[99]++;
        if (field == 3) other.put.id.n_tokens = 99;
        if (field == 4) other.put.id.shape.dtype = TAMIS_BF16;
        if (field == 5) other.put.id.shape.sink = 2;
        if (field == 6) other.put.id.parent[7]++;
        tamis_store *store = rig_open(MIB, 0, true);
        OK(tms_record_describe(&other.put, &record, &test_error));
        OK(tamis_chunk_key(&chunk.put.id, record.key, &test_error));
        uint8_t *bytes = calloc(1, record.record_bytes), *head = tms_record_encode(&record);
        assert_true(bytes && head);
        memcpy(bytes, head, record.header_bytes);
        const int file = open(rig_file(&chunk), O_CREAT | O_WRONLY, 0600);
        assert_int_equal(write(file, bytes, record.record_bytes), record.record_bytes);
        close(file);
        assert_false(rig_has(store, &chunk));
        assert_int_equal(rig_stats(store).mismatched, 1);
        assert_int_equal(rig_stats(store).tiers[TAMIS_TIER_DISK].damaged, 0);
        assert_int_equal(rig_count(".kv"), 1);
        OK(tamis_store_put(store, &chunk.put, &test_error));
        assert_true(rig_has(store, &chunk));
        assert_int_equal(rig_stats(store).tiers[TAMIS_TIER_DISK].records, 1);
        tamis_store_destroy(&store);
        tms_record_free(&record);
        free(bytes), free(head);
        rig_chunk_free(&chunk), rig_chunk_free(&other);
        rig_cleanup();
    }
}

/* A record under the name of another is removed, and that other one is a miss. */
static void a_wrong_name_is_a_miss(void **state) {
    (void)state;
    rig_chunk chunk, other;
    char path[600];
    rig_chunk_make(&chunk, 5, 100);
    rig_chunk_make(&other, 6, 100);
    tamis_store *store = rig_open(0, 0, true);
    OK(tamis_store_put(store, &chunk.put, &test_error));
    snprintf(path, sizeof path, "%s", rig_file(&chunk));
    assert_int_equal(rename(path, rig_file(&other)), 0);
    assert_false(rig_has(store, &other));
    assert_false(rig_has(store, &chunk));
    assert_int_equal(rig_stats(store).tiers[TAMIS_TIER_DISK].damaged, 1);
    assert_int_equal(rig_count(".kv"), 0);
    /* What is no file is none of the store's; a put takes its place. */
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_false(rig_has(store, &chunk));
    assert_int_equal(unlink(path), 0);
    OK(tamis_store_put(store, &chunk.put, &test_error));
    char elsewhere[400];
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", rig_folder());
    assert_int_equal(rename(path, elsewhere), 0);
    assert_int_equal(symlink(elsewhere, path), 0);
    assert_false(rig_has(store, &chunk));
    OK(tamis_store_put(store, &chunk.put, &test_error));
    assert_true(rig_has(store, &chunk));
    assert_int_equal(access(elsewhere, F_OK), 0);
    tamis_store_destroy(&store);
    rig_chunk_free(&chunk);
    rig_chunk_free(&other);
}

/* Damage that comes after the chunk was found: the read says so, the record goes, the counter
 * counts it once, and the store takes the chunk again. */
static void late_damage_is_found(void **state) {
    (void)state;
    rig_chunk chunk;
    rig_chunk_make(&chunk, 5, 200);
    uint8_t *to = malloc(chunk.plane_bytes);
    tamis_store *store = rig_open(0, 0, true);
    OK(tamis_store_put(store, &chunk.put, &test_error));
    tamis_store_destroy(&store);
    store = rig_open(MIB, 0, true);
    tamis_chunk *found = rig_get(store, &chunk);
    OK(tamis_chunk_read(found, 0, to, to, &test_error));
    const off_t plane = (off_t)((chunk.plane_bytes + 4095) / 4096 * 4096);
    const off_t header = (off_t)chunk.record_bytes - 6 * plane;
    write_at(rig_file(&chunk), header + 3 * plane + 100, "damage", 6); /* V of layer 1 */
    OK(tamis_chunk_read(found, 1, to, NULL, &test_error));
    FAILS(tamis_chunk_read(found, 1, NULL, to, &test_error), TAMIS_E_DAMAGED, "V of layer 1");
    FAILS(tamis_chunk_read(found, 0, to, NULL, &test_error), TAMIS_E_DAMAGED, "an earlier read");
    tamis_chunk_info info;
    tamis_chunk_get_info(found, &info);
    assert_int_equal(info.damaged, 1);
    assert_int_equal(rig_count(".kv"), 0);
    assert_false(rig_has(store, &chunk));
    OK(tamis_store_put(store, &chunk.put, &test_error));
    tamis_chunk_release(&found);
    assert_true(rig_has(store, &chunk));
    assert_int_equal(rig_stats(store).tiers[TAMIS_TIER_DISK].damaged, 1);

    /* A file that another process has put in its place is not removed. */
    tamis_store *second = rig_open(0, 0, true);
    found = rig_get(second, &chunk);
    write_at(rig_file(&chunk), header, "damage", 6);
    assert_int_equal(unlink(rig_file(&chunk)), 0);
    tamis_store *third = rig_open(0, 0, true);
    OK(tamis_store_put(third, &chunk.put, &test_error));
    FAILS(tamis_chunk_read(found, 0, to, NULL, &test_error), TAMIS_E_DAMAGED, "K of layer 0");
    tamis_chunk_release(&found);
    assert_true(rig_has(second, &chunk));
    tamis_store_destroy(&third);
    tamis_store_destroy(&second);
    tamis_store_destroy(&store);
    free(to);
    rig_chunk_free(&chunk);
}

static void verify_reads_everything(void **state) {
    (void)state;
    rig_chunk chunks[3];
    tamis_store *store = rig_open(0, 0, true);
    for (uint32_t i = 0; i < 3; i++) {
        rig_chunk_make(&chunks[i], i, 100);
        OK(tamis_store_put(store, &chunks[i].put, &test_error));
    }
    tamis_store_found found;
    OK(tamis_store_verify(store, &found, &test_error));
    assert_int_equal(found.records, 3);
    assert_int_equal(found.bytes, 3 * chunks[0].record_bytes);
    write_at(rig_file(&chunks[1]), (off_t)chunks[1].record_bytes - 1, "x", 1); /* padding */
    OK(tamis_store_gc(store, &found, &test_error)); /* does not read that far */
    assert_int_equal(found.records, 3);
    OK(tamis_store_verify(store, &found, &test_error));
    assert_int_equal(found.records, 2);
    assert_int_equal(found.damaged, 1);
    assert_int_equal(rig_count(".kv"), 2);
    assert_int_equal(rig_stats(store).tiers[TAMIS_TIER_DISK].records, 2);
    assert_false(rig_has(store, &chunks[1]));
    tamis_store_destroy(&store);
    for (uint32_t i = 0; i < 3; i++)
        rig_chunk_free(&chunks[i]);
}

#define SKIPPED 77

/* In a child, since root may read and write everywhere; false where that does not help. */
static bool become_nobody(void) {
    return (geteuid() != 0 || setuid(65534) == 0) && access(rig_folder(), R_OK | X_OK) == 0;
}

/* The child's work went well, or could not be done here. */
static void wait_for(pid_t child) {
    int how;
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how));
    if (WEXITSTATUS(how) == SKIPPED)
        print_message("not run: no other user to become, or one who cannot read here\n");
    else
        assert_int_equal(WEXITSTATUS(how), 0);
}

static void read_only(const rig_chunk *chunk, const rig_chunk *other) {
    if (!become_nobody()) _exit(SKIPPED);
    tamis_store *store = rig_open(MIB, 0, true);
    tamis_error error = {0};
    tamis_chunk_planes put = other->put;
    if (!rig_has(store, chunk)) _exit(3);
    if (tamis_store_put(store, &put, &error) != TAMIS_E_IO) _exit(4);
    if (!strstr(error.text, rig_folder())) _exit(5);
    if (!rig_has(store, chunk) || rig_has(store, other)) _exit(6);
    put.tiers = 1u << TAMIS_TIER_MEMORY;
    if (tamis_store_put(store, &put, &error) != TAMIS_OK) _exit(7);
    if (!rig_has(store, other) || rig_stats(store).failed != 1) _exit(8);
    int removed;
    if (tamis_store_remove(store, &chunk->put.id, &removed, &error) != TAMIS_E_IO) _exit(9);
    tamis_store_destroy(&store);
    _exit(0);
}

static void a_read_only_folder_is_read(void **state) {
    (void)state;
    rig_chunk chunk, other;
    char parent[400];
    rig_chunk_make(&chunk, 5, 100);
    rig_chunk_make(&other, 6, 100);
    tamis_store *store = rig_open(0, 0, true);
    OK(tamis_store_put(store, &chunk.put, &test_error));
    tamis_store_destroy(&store);
    snprintf(parent, sizeof parent, "%s/..", rig_folder());
    assert_int_equal(chmod(parent, 0755), 0);
    assert_int_equal(chmod(rig_folder(), 0555), 0);
    assert_int_equal(chmod(rig_file(&chunk), 0444), 0);
    const pid_t child = fork();
    if (child == 0) read_only(&chunk, &other);
    wait_for(child);
    assert_int_equal(chmod(rig_folder(), 0755), 0);
    rig_chunk_free(&chunk);
    rig_chunk_free(&other);
}

static void look_at_all(void) {
    if (!become_nobody()) _exit(SKIPPED);
    tamis_store *store = rig_open(0, 0, true);
    tamis_store_found found;
    tamis_error error = {0};
    if (tamis_store_verify(store, &found, &error) != TAMIS_E_IO) _exit(3);
    if (!strstr(error.text, ".kv") || found.records != 3 || found.damaged) _exit(4);
    if (tamis_store_gc(store, &found, &error) != TAMIS_E_IO || found.records != 3) _exit(5);
    tamis_store_destroy(&store);
    _exit(0);
}

/* Files that cannot be read, wherever they stand among the others, hide none of these. */
static void walks_go_on(void **state) {
    (void)state;
    rig_chunk chunk;
    char parent[400];
    tamis_store *store = rig_open(0, 0, true);
    for (uint32_t i = 0; i < 6; i++) {
        rig_chunk_make(&chunk, i, 20);
        OK(tamis_store_put(store, &chunk.put, &test_error));
        assert_int_equal(chmod(rig_file(&chunk), i % 2 ? 0444 : 0), 0);
        rig_chunk_free(&chunk);
    }
    tamis_store_destroy(&store);
    snprintf(parent, sizeof parent, "%s/..", rig_folder());
    assert_int_equal(chmod(parent, 0755), 0);
    assert_int_equal(chmod(rig_folder(), 0755), 0);
    const pid_t child = fork();
    if (child == 0) look_at_all();
    wait_for(child);
}

int main(int argc, char **argv) {
    const int skip = test_begin(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(two_stores_share_a_folder, teardown),
        cmocka_unit_test_teardown(two_stores_share_a_limit, teardown),
        cmocka_unit_test_teardown(releasing_makes_room, teardown),
        cmocka_unit_test_teardown(unfinished_files_go, teardown),
        cmocka_unit_test_teardown(other_versions_are_misses, teardown),
        cmocka_unit_test_teardown(equal_keys_are_no_equal_chunks, teardown),
        cmocka_unit_test_teardown(a_wrong_name_is_a_miss, teardown),
        cmocka_unit_test_teardown(late_damage_is_found, teardown),
        cmocka_unit_test_teardown(verify_reads_everything, teardown),
        cmocka_unit_test_teardown(a_read_only_folder_is_read, teardown),
        cmocka_unit_test_teardown(walks_go_on, teardown),
    };
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
