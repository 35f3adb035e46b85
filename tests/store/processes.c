/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that put, get, remove and evict in one folder at a time. Whatever one finds is what was
 * stored; what is held stays readable when another removes it; each finds what the others wrote.
 * Usage: test-store-processes [STEPS] */
#include "tests/store/rig.h"

#include <sys/wait.h>
#include <unistd.h>

#define PROCESSES 3
#define CHUNKS    16u

static unsigned steps = 200;
static rig_chunk chunks[CHUNKS];

/* A process's exit status says what is wrong. */
enum { WELL = 0, BAD_READ = 3, BAD_CALL = 4, TOO_MUCH = 5, FINDS_NOTHING = 6, BAD_COUNT = 7 };

static void read_chunk(tamis_chunk *found, const rig_chunk *chunk) {
    uint8_t k[32 * RIG_MOST], v[32 * RIG_MOST];
    for (uint32_t i = 0; i < RIG_LAYERS; i++) {
        if (tamis_chunk_read(found, i, k, v, NULL) != TAMIS_OK) _exit(BAD_CALL);
        if (memcmp(k, chunk->k[i], chunk->plane_bytes) != 0 ||
            memcmp(v, chunk->v[i], chunk->plane_bytes) != 0)
            _exit(BAD_READ);
    }
}

/* One step; adds to *found what it found that it had not put itself. */
static void step(tamis_store *store, uint64_t *random, bool *own, unsigned *found) {
    const uint32_t which = test_below(random, CHUNKS), what = test_below(random, 100);
    const rig_chunk *chunk = &chunks[which];
    tamis_chunk *held = NULL;
    if (what < 35) {
        if (tamis_store_put(store, &chunk->put, NULL) != TAMIS_OK) _exit(BAD_CALL);
        own[which] = true;
    } else if (what < 80) {
        if (tamis_store_get(store, &chunk->put.id, &held, NULL) != TAMIS_OK) _exit(BAD_CALL);
        if (!held) return;
        *found += !own[which];
        read_chunk(held, chunk);
        tamis_chunk_release(&held);
    } else if (what < 97) {
        if (tamis_store_remove(store, &chunk->put.id, NULL, NULL) != TAMIS_OK) _exit(BAD_CALL);
        own[which] = false;
    } else {
        tamis_store_found all;
        if (tamis_store_verify(store, &all, NULL) != TAMIS_OK || all.damaged) _exit(BAD_READ);
        if (tamis_store_gc(store, &all, NULL) != TAMIS_OK) _exit(BAD_CALL);
    }
}

/* After a look into the folder, while no other process works: what the store counts is what is in the
 * folder, what another store counts, and in memory what the list says. */
static void check_counts(tamis_store *store) {
    static tamis_chunk_info infos[CHUNKS];
    tamis_store_stats stats;
    uint64_t bytes[2] = {0}, records[2] = {0};
    size_t count;
    if (tamis_store_list(store, infos, CHUNKS, &count, NULL) != TAMIS_OK) _exit(BAD_CALL);
    tamis_store_get_stats(store, &stats);
    for (size_t i = 0; i < count; i++)
        for (int t = 0; t < 2; t++) {
            records[t] += infos[i].tiers >> t & 1;
            bytes[t] += infos[i].tiers >> t & 1 ? infos[i].record_bytes : 0;
        }
    for (int t = 0; t < 2; t++)
        if (stats.tiers[t].records != records[t] || stats.tiers[t].bytes != bytes[t] ||
            stats.tiers[t].pinned_bytes != 0)
            _exit(BAD_COUNT);
    tamis_store *fresh = rig_open(0, 0, true);
    const tamis_tier_stats disk = rig_stats(fresh).tiers[TAMIS_TIER_DISK];
    if (disk.records != records[1] || disk.bytes != bytes[1]) _exit(BAD_COUNT);
    if (rig_count(".kv") != records[1] || rig_bytes() != bytes[1]) _exit(BAD_COUNT);
    tamis_store_destroy(&fresh);
}

/* Ends of pipes: a process says that it is done, and waits for its turn. */
static int turns[2], dones[2];

static void wait_for_turn(void) {
    char one = 0;
    if (write(dones[1], &one, 1) != 1 || read(turns[0], &one, 1) != 1) _exit(BAD_CALL);
}

static void process(uint64_t seed, uint64_t limit) {
    const tamis_store_params params = {
        .memory_bytes = seed % 2 ? 1u << 18 : 0, .disk_bytes = limit, .folder = rig_folder()};
    tamis_store *store = NULL;
    tamis_store_stats stats;
    bool own[CHUNKS] = {0};
    unsigned found = 0;
    if (tamis_store_create(&params, &store, NULL) != TAMIS_OK) _exit(BAD_CALL);
    for (unsigned i = 0; i < steps; i++)
        step(store, &seed, own, &found);
    tamis_store_get_stats(store, &stats);
    if (stats.tiers[TAMIS_TIER_DISK].damaged || stats.failed) _exit(BAD_READ);
    if (limit && stats.tiers[TAMIS_TIER_DISK].bytes > limit) _exit(TOO_MUCH);
    wait_for_turn();
    check_counts(store);
    tamis_store_destroy(&store);
    _exit(found ? WELL : FINDS_NOTHING);
}

static void play(uint64_t limit) {
    int lonely = 0;
    char one = 0;
    rig_folder(); /* the children's too */
    assert_true(pipe(turns) == 0 && pipe(dones) == 0);
    for (int i = 0; i < PROCESSES; i++) {
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) process((uint64_t)i + 1, limit);
    }
    close(dones[1]); /* so that one that has ended is not waited for */
    for (int i = 0; i < PROCESSES; i++)
        assert_int_equal(read(dones[0], &one, 1), 1);
    for (int i = 0; i < PROCESSES; i++) { /* whoever it is, one at a time */
        int how;
        assert_int_equal(write(turns[1], &one, 1), 1);
        const pid_t child = wait(&how);
        assert_true(child > 0);
        assert_true(WIFEXITED(how));
        lonely += WEXITSTATUS(how) == FINDS_NOTHING;
        if (WEXITSTATUS(how) != FINDS_NOTHING) assert_int_equal(WEXITSTATUS(how), WELL);
    }
    close(dones[0]), close(turns[0]), close(turns[1]);
    /* On a busy machine one may have ended before the next began; the last finds what they left. */
    assert_true(lonely < PROCESSES);
    assert_int_equal(rig_count(".tmp"), 0);
    tamis_store_found found;
    tamis_store *store = rig_open(0, limit, true);
    OK(tamis_store_verify(store, &found, &test_error));
    assert_int_equal(found.damaged, 0);
    assert_int_equal(found.records, rig_stats(store).tiers[TAMIS_TIER_DISK].records);
    tamis_store_destroy(&store);
}

static void without_a_limit(void **state) {
    (void)state;
    play(0);
}

static void with_a_limit(void **state) {
    (void)state;
    play(6 * chunks[0].record_bytes);
}

static int teardown(void **state) {
    (void)state;
    rig_cleanup();
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1) steps = (unsigned)strtoul(argv[1], NULL, 10);
    for (uint32_t i = 0; i < CHUNKS; i++)
        rig_chunk_make(&chunks[i], i, 200 + i);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(without_a_limit, teardown),
        cmocka_unit_test_teardown(with_a_limit, teardown),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (uint32_t i = 0; i < CHUNKS; i++)
        rig_chunk_free(&chunks[i]);
    return failed;
}
