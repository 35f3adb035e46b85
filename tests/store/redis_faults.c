/* SPDX-License-Identifier: Apache-2.0 */
/* Each request of the redis tier for memory and each call of the system fails once, while a script
 * runs. The call in which that happens says so or does without; nothing is leaked or lost that was
 * answered for, and what is there is sound. hiredis' own requests are not among them. */
#include "tests/store/failing.h"
#include "tests/store/redis_rig.h"

#include <poll.h>
#include <sys/socket.h>

/* What fails beside the requests for memory of all tiers. */
#define SYSTEM(X)                                                                                  \
    X(char *, strndup, NULL, (const char *text, size_t n), (text, n))                              \
    X(int, poll, -1, (struct pollfd * all, nfds_t n, int ms), (all, n, ms))                        \
    X(ssize_t, sendmsg, -1, (int to, const struct msghdr *message, int flags),                     \
      (to, message, flags))                                                                        \
    X(ssize_t, recv, -1, (int from, void *to, size_t n, int flags), (from, to, n, flags))
SYSTEM(WRAP)

static rig_chunk chunks[3];

/* A failure that a call may answer. */
static void may_fail(tamis_status status) {
    if (status == TAMIS_OK) return;
    assert_true(status == TAMIS_E_NO_MEMORY || status == TAMIS_E_IO);
    assert_non_null(failed);
    assert_int_equal(test_error.status, status);
    assert_true(test_error.text[0] != 0);
}

static void script_read(tamis_store *store, const rig_chunk *chunk) {
    uint8_t k[32 * RIG_MOST], v[32 * RIG_MOST];
    tamis_chunk *found = NULL;
    tamis_status last;
    (void)CALL(tamis_store_get(store, &chunk->put.id, &found, &test_error));
    if (!failed) assert_non_null(found);
    for (uint32_t i = 0; found && i < RIG_LAYERS; i++) {
        if (CALL(tamis_chunk_read(found, i, k, v, &test_error)) != TAMIS_OK) continue;
        assert_memory_equal(k, chunk->k[i], chunk->plane_bytes);
        assert_memory_equal(v, chunk->v[i], chunk->plane_bytes);
    }
    tamis_chunk_release(&found);
}

/* put[i], removed: what was answered for. */
static void script(bool *put, bool *removed) {
    const tamis_store_params params = {.memory_bytes = 1 << 20,
                                       .redis = server_path(),
                                       .redis_password = "",
                                       .redis_bytes = 1 << 20,
                                       .redis_timeout_ms = 20000};
    tamis_store *store = NULL;
    tamis_store_found found;
    tamis_chunk_info infos[3];
    tamis_status last;
    size_t count;
    if (CALL(tamis_store_create(&params, &store, &test_error)) != TAMIS_OK) return;
    for (int i = 0; i < 3; i++)
        put[i] = CALL(tamis_store_put(store, &chunks[i].put, &test_error)) == TAMIS_OK;
    script_read(store, &chunks[0]);
    script_read(store, &chunks[1]);
    script_read(store, &chunks[1]);
    *removed = CALL(tamis_store_remove(store, &chunks[2].put.id, NULL, &test_error)) == TAMIS_OK;
    (void)CALL(tamis_store_list(store, infos, 3, &count, &test_error));
    (void)CALL(tamis_store_verify(store, &found, &test_error));
    assert_int_equal(found.damaged, 0);
    (void)CALL(tamis_store_gc(store, &found, &test_error));
    assert_int_equal(server_stats(store).damaged, 0);
    assert_int_equal(server_stats(store).pinned_bytes, 0);
    tamis_store_destroy(&store);
}

/* Plays the script with a failure at that place; false where it is behind the script's end. */
static bool play(long at, long why) {
    bool put[3] = {0}, removed = false;
    tamis_store_found found;
    server_do("FLUSHALL");
    calls = 0;
    fails_at = at;
    reason = why;
    failed = NULL;
    script(put, &removed);
    tamis_store *store = server_store((tamis_store_params){.redis_timeout_ms = 20000});
    for (int i = 0; i < 2; i++)
        if (put[i]) assert_true(rig_has(store, &chunks[i]));
    if (removed) assert_false(rig_has(store, &chunks[2]));
    OK(tamis_store_verify(store, &found, &test_error));
    assert_int_equal(found.damaged, 0);
    assert_int_equal(found.records, server_keys());
    tamis_store_destroy(&store);
    return failed != NULL;
}

static void each_call_fails_once(void **state) {
    (void)state;
    static const long reasons[] = {EIO, ECONNRESET, EINTR};
    for (int i = 0; i < 3; i++) {
        long at = 0;
        while (play(at, reasons[i]))
            at++;
        assert_true(at > 100);
    }
}

int main(void) {
    if (!server_begin()) return SERVER_NONE;
    for (uint32_t i = 0; i < 3; i++) {
        rig_chunk_make(&chunks[i], i, 130);
        chunks[i].put.tiers = 1u << TAMIS_TIER_REDIS;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_call_fails_once)};
    const int result = cmocka_run_group_tests(tests, NULL, NULL);
    for (uint32_t i = 0; i < 3; i++)
        rig_chunk_free(&chunks[i]);
    server_end();
    return result;
}
