/* SPDX-License-Identifier: Apache-2.0 */
/* A process that writes, removes and evicts is killed at random moments. What it has answered for is
 * there, what it has not is there whole or not at all, and nothing unfinished stays.
 * Usage: test-store-kill [ROUNDS] */
#include "tests/store/rig.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHUNKS   16u
#define VERSIONS 4000u /* puts of a child at most */

static unsigned rounds = 100;

/* What a child says before and after each call. */
enum { BEGINS = 0, HAS_PUT = 1, HAS_REMOVED = 2 };
typedef struct message {
    uint32_t what, which;
} message;

typedef struct fate {
    bool may_be, must_be;
} fate;

static rig_chunk chunks[CHUNKS];

static void say(int to, uint32_t what, uint32_t which) {
    const message word = {what, which};
    if (write(to, &word, sizeof word) != sizeof word) _exit(3);
}

/* Puts and removes until it is killed. */
static void child(int to, uint64_t limit, uint64_t seed) {
    const tamis_store_params params = {
        .memory_bytes = 1u << 20, .disk_bytes = limit, .folder = rig_folder()};
    tamis_store *store = NULL;
    if (tamis_store_create(&params, &store, NULL) != TAMIS_OK) _exit(2);
    for (uint32_t i = 0; i < VERSIONS; i++) {
        const uint32_t which = test_below(&seed, CHUNKS);
        const bool put = test_below(&seed, 4) > 0;
        tamis_status status;
        say(to, BEGINS, which);
        if (put)
            status = tamis_store_put(store, &chunks[which].put, NULL);
        else
            status = tamis_store_remove(store, &chunks[which].put.id, NULL, NULL);
        if (status != TAMIS_OK) _exit(4);
        say(to, put ? HAS_PUT : HAS_REMOVED, which);
    }
    _exit(0);
}

/* What the words of a child mean for each chunk. */
static void listen(int from, fate *fates) {
    message word;
    while (read(from, &word, sizeof word) == sizeof word) {
        assert_true(word.which < CHUNKS);
        if (word.what == BEGINS) /* a put or a removal */
            fates[word.which] = (fate){.may_be = true};
        else
            fates[word.which] = (fate){word.what == HAS_PUT, word.what == HAS_PUT};
    }
}

static void run_and_kill(uint64_t limit, uint64_t *random, fate *fates) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const uint64_t seed = test_random(random);
    const pid_t process = fork();
    assert_true(process >= 0);
    if (process == 0) {
        close(ends[0]);
        child(ends[1], limit, seed);
    }
    close(ends[1]);
    const struct timespec life = {.tv_nsec = (long)test_below(random, 30000000)};
    nanosleep(&life, NULL);
    assert_int_equal(kill(process, SIGKILL), 0);
    int how;
    assert_int_equal(waitpid(process, &how, 0), process);
    assert_true(WIFSIGNALED(how) || how == 0);
    listen(ends[0], fates);
    close(ends[0]);
}

/* `limit` 0: none, so that nothing may be missing that was put. */
static void play(uint64_t limit, unsigned n) {
    uint64_t random = limit + 7;
    fate fates[CHUNKS] = {{0}};
    unsigned kept = 0, unfinished = 0;
    tamis_store *first = rig_open(0, limit, true); /* makes the folder, which a child may not */
    tamis_store_destroy(&first);
    for (unsigned i = 0; i < n; i++) {
        run_and_kill(limit, &random, fates);
        unfinished += rig_count(".tmp");
        tamis_store *store = rig_open(0, limit, true);
        assert_int_equal(rig_count(".tmp"), 0);
        assert_int_equal(rig_stats(store).tiers[TAMIS_TIER_DISK].damaged, 0);
        for (uint32_t c = 0; c < CHUNKS; c++) {
            const bool there = rig_has(store, &chunks[c]);
            if (there && !fates[c].may_be) fail_msg("round %u: chunk %u was removed", i, c);
            if (!there && fates[c].must_be && !limit) fail_msg("round %u: chunk %u is lost", i, c);
            fates[c] = (fate){there, there && !limit};
            kept += there;
        }
        assert_int_equal(rig_stats(store).tiers[TAMIS_TIER_DISK].damaged, 0);
        tamis_store_destroy(&store);
    }
    print_message("%u records and %u unfinished files found after %u kills\n", kept, unfinished, n);
    assert_true(kept > n);
}

static void nothing_is_lost(void **state) {
    (void)state;
    play(0, (rounds + 1) / 2);
}

static void nothing_is_torn_by_evictions(void **state) {
    (void)state;
    play(5 * chunks[0].record_bytes, (rounds + 1) / 2);
}

static int teardown(void **state) {
    (void)state;
    rig_cleanup();
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1) rounds = (unsigned)strtoul(argv[1], NULL, 10);
    rig_in_memory(); /* so that more of the kills come in the midst of writing */
    for (uint32_t i = 0; i < CHUNKS; i++)
        rig_chunk_make(&chunks[i], i, 500 + i);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(nothing_is_lost, teardown),
        cmocka_unit_test_teardown(nothing_is_torn_by_evictions, teardown),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (uint32_t i = 0; i < CHUNKS; i++)
        rig_chunk_free(&chunks[i]);
    return failed;
}
