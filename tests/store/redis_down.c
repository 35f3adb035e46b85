/* SPDX-License-Identifier: Apache-2.0 */
/* A server that ends, stands still or is shared: calls are answered in time by the other tiers or as
 * misses, are counted, and go on with the server when it is back. */
#include "tests/store/redis_rig.h"

#include <sys/wait.h>
#include <unistd.h>

#define CHUNKS 4u
#define MIB    (1u << 20)
#define REDIS  (1u << TAMIS_TIER_REDIS)

static rig_chunk chunks[CHUNKS];
static uint8_t k[32 * RIG_MOST];

static int setup(void **state) {
    (void)state;
    server_do("FLUSHALL");
    for (uint32_t i = 0; i < CHUNKS; i++)
        rig_chunk_make(&chunks[i], i, 130);
    chunks[0].put.tiers = REDIS;
    return 0;
}

static int teardown(void **state) {
    (void)state;
    for (uint32_t i = 0; i < CHUNKS; i++)
        rig_chunk_free(&chunks[i]);
    return 0;
}

/* Opens a store with the first chunk on the server, of which a layer has been read. */
static tamis_chunk *begin_load(uint32_t timeout_ms, tamis_store **store) {
    *store =
        server_store((tamis_store_params){.memory_bytes = MIB, .redis_timeout_ms = timeout_ms});
    OK(tamis_store_put(*store, &chunks[0].put, &test_error));
    tamis_chunk *found = rig_get(*store, &chunks[0]);
    assert_non_null(found);
    OK(tamis_chunk_read(found, 0, k, NULL, &test_error));
    return found;
}

/* Where a call waits for the server or not; a busy machine may make it wait for the processor. */
#define AT_ONCE 20

/* The server is not there: nobody waits for it twice, and memory works. */
static void play_without_server(tamis_store *store) {
    tamis_chunk *none = NULL;
    const uint64_t failed = server_stats(store).failed, all = rig_stats(store).failed;
    const double start = server_seconds();
    for (int i = 0; i < 100; i++) {
        OK(tamis_store_get(store, &chunks[1].put.id, &none, &test_error));
        assert_null(none);
    }
    assert_true(server_seconds() - start < AT_ONCE);
    assert_int_equal(server_stats(store).failed, failed + 100);
    assert_int_equal(rig_stats(store).failed, all + 100);
    OK(tamis_store_put(store, &chunks[2].put, &test_error));
    assert_true(rig_has(store, &chunks[2]));
    FAILS(tamis_store_put(store, &chunks[0].put, &test_error), TAMIS_E_IO, "redis /");
    size_t count;
    FAILS(tamis_store_list(store, NULL, 0, &count, &test_error), TAMIS_E_IO, "redis /");
    FAILS(tamis_store_remove(store, &chunks[2].put.id, NULL, &test_error), TAMIS_E_IO, "redis /");
    assert_false(rig_has(store, &chunks[2]));
}

/* The server is back: it is asked again within its longest wait. */
static void wait_until_asked(tamis_store *store) {
    const double start = server_seconds();
    while (tamis_store_put(store, &chunks[0].put, &test_error) != TAMIS_OK) {
        if (server_seconds() - start > 60) fail_msg("not asked again: %s", test_error.text);
        rig_nap(20);
    }
}

static void a_server_that_is_killed(void **state) {
    (void)state;
    tamis_store *store;
    tamis_chunk *found = begin_load(60000, &store);
    server_kill();
    const double start = server_seconds();
    FAILS(tamis_chunk_read(found, 1, k, NULL, &test_error), TAMIS_E_IO, "redis /");
    assert_true(server_seconds() - start < AT_ONCE);
    OK(tamis_chunk_read(found, 0, k, NULL, &test_error)); /* is in memory */
    assert_int_equal(server_stats(store).failed, 1);
    play_without_server(store);
    assert_true(server_start());
    rig_nap(5100); /* the longest wait */
    FAILS(tamis_chunk_read(found, 1, k, NULL, &test_error), TAMIS_E_IO, "is gone");
    wait_until_asked(store);
    tamis_chunk_release(&found);
    assert_true(rig_has(store, &chunks[0]));
    tamis_store_destroy(&store);
}

static void a_server_that_stands_still(void **state) {
    (void)state;
    tamis_store *store;
    tamis_chunk *found = begin_load(1000, &store);
    server_pause();
    const double start = server_seconds();
    FAILS(tamis_chunk_read(found, 1, k, NULL, &test_error), TAMIS_E_IO, "in time");
    assert_true(server_seconds() - start >= 1 && server_seconds() - start < AT_ONCE);
    play_without_server(store);
    rig_nap(250); /* one more asks, and waits for its own time */
    assert_false(rig_has(store, &chunks[1]));
    assert_true(server_seconds() - start < AT_ONCE);
    server_go_on();
    wait_until_asked(store);
    OK(tamis_chunk_read(found, 1, k, NULL, &test_error));
    assert_memory_equal(k, chunks[0].k[1], chunks[0].plane_bytes);
    tamis_chunk_release(&found);
    tamis_store_destroy(&store);
}

/* As servers do with connections that were idle for long. */
static void a_connection_that_is_closed(void **state) {
    (void)state;
    tamis_store *store;
    tamis_chunk *found = begin_load(20000, &store);
    server_do("CLIENT KILL TYPE normal SKIPME yes");
    OK(tamis_chunk_read(found, 1, k, NULL, &test_error));
    tamis_chunk_release(&found);
    assert_int_equal(server_stats(store).failed, 0);
    tamis_store_destroy(&store);
}

/* ---- Processes --------------------------------------------------------------------------------- */

enum { WELL = 0, BAD_READ = 3, BAD_CALL = 4 };

static void read_or_exit(tamis_chunk *found, const rig_chunk *chunk) {
    for (uint32_t i = 0; i < RIG_LAYERS; i++) {
        tamis_error error = {0};
        const tamis_status status = tamis_chunk_read(found, i, k, NULL, &error);
        if (status == TAMIS_E_IO && strstr(error.text, "is gone")) return;
        if (status != TAMIS_OK) _exit(BAD_CALL);
        if (memcmp(k, chunk->k[i], chunk->plane_bytes) != 0) _exit(BAD_READ);
    }
}

static void process(uint64_t random) {
    tamis_store *store = server_store(
        (tamis_store_params){.memory_bytes = random % 2 ? MIB : 0, .redis_timeout_ms = 20000});
    for (int i = 0; i < 300; i++) {
        const rig_chunk *chunk = &chunks[test_below(&random, CHUNKS)];
        const uint32_t what = test_below(&random, 10);
        tamis_chunk *found = NULL;
        tamis_status status = TAMIS_OK;
        if (what < 4) status = tamis_store_put(store, &chunk->put, NULL);
        if (what >= 4 && what < 8) status = tamis_store_get(store, &chunk->put.id, &found, NULL);
        if (what >= 8) status = tamis_store_remove(store, &chunk->put.id, NULL, NULL);
        if (status != TAMIS_OK) _exit(BAD_CALL);
        if (found) read_or_exit(found, chunk);
        tamis_chunk_release(&found);
    }
    if (server_stats(store).damaged) _exit(BAD_READ);
    tamis_store_destroy(&store);
    _exit(WELL);
}

static void processes_share_a_server(void **state) {
    (void)state;
    tamis_store_found found;
    chunks[0].put.tiers = 0;
    for (int i = 0; i < 2; i++) {
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) process((uint64_t)i + 1);
    }
    for (int i = 0; i < 2; i++) {
        int how;
        assert_true(waitpid(-1, &how, 0) > 0);
        assert_true(WIFEXITED(how));
        assert_int_equal(WEXITSTATUS(how), WELL);
    }
    tamis_store *store = server_store((tamis_store_params){0});
    OK(tamis_store_verify(store, &found, &test_error));
    assert_int_equal(found.records, server_keys());
    assert_int_equal(found.damaged, 0);
    tamis_store_destroy(&store);
}

int main(void) {
    if (!server_begin()) return SERVER_NONE;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_server_that_stands_still, setup, teardown),
        cmocka_unit_test_setup_teardown(a_connection_that_is_closed, setup, teardown),
        cmocka_unit_test_setup_teardown(processes_share_a_server, setup, teardown),
        cmocka_unit_test_setup_teardown(a_server_that_is_killed, setup, teardown),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    server_end();
    return failed;
}
