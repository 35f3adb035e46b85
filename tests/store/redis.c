/* SPDX-License-Identifier: Apache-2.0 */
/* The redis tier on a server of the test's own: what is put is found, limits, values that are no
 * records or go, commands that the server refuses. Exit status 77 where no server is installed. */
#include "tests/store/redis_rig.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHUNKS 4u
#define MIB    (1u << 20)
#define REDIS  (1u << TAMIS_TIER_REDIS)

static rig_chunk chunks[CHUNKS];

static int setup(void **state) {
    (void)state;
    server_do("FLUSHALL");
    for (uint32_t i = 0; i < CHUNKS; i++)
        rig_chunk_make(&chunks[i], i, 130);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    for (uint32_t i = 0; i < CHUNKS; i++)
        rig_chunk_free(&chunks[i]);
    return 0;
}

static void put_all(tamis_store *store) {
    for (uint32_t i = 0; i < CHUNKS; i++)
        OK(tamis_store_put(store, &chunks[i].put, &test_error));
}

static void what_is_put_is_found(void **state) {
    (void)state;
    tamis_chunk_info infos[CHUNKS + 1];
    tamis_store_found found;
    size_t count = 0;
    int removed = 0;
    tamis_store *a = server_store((tamis_store_params){0});
    tamis_store *b = server_store((tamis_store_params){.memory_bytes = MIB});
    assert_false(rig_has(a, &chunks[0]));
    put_all(a);
    assert_int_equal(server_keys(), CHUNKS);
    for (uint32_t i = 0; i < CHUNKS; i++) {
        assert_true(rig_has(a, &chunks[i]));
        assert_true(rig_has(b, &chunks[i]));
        assert_true(rig_has(b, &chunks[i]));
    }
    assert_int_equal(server_stats(b).hits, CHUNKS);
    assert_int_equal(rig_stats(b).tiers[TAMIS_TIER_MEMORY].hits, CHUNKS);
    assert_int_equal(rig_stats(b).tiers[TAMIS_TIER_MEMORY].promoted, CHUNKS);
    put_all(b); /* is in both */
    assert_int_equal(server_stats(b).known, CHUNKS);
    assert_int_equal(server_stats(b).puts, 0);
    assert_int_equal(server_stats(a).pinned_bytes, 0);
    tamis_store *c = server_store((tamis_store_params){0}); /* knows nothing before it looks */
    assert_int_equal(server_stats(c).records, 0);
    server_do("SET tamis:0123 x"); /* not such names */
    server_do("SET tamis:0123456789abcdef0123456789abcdefx x");
    server_do("SET other:0123456789abcdef0123456789abcdef x");
    OK(tamis_store_list(c, infos, CHUNKS + 1, &count, &test_error));
    assert_int_equal(count, CHUNKS);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(infos[i].tiers, REDIS);
        assert_int_equal(infos[i].n_tokens, 130);
        assert_true(infos[i].last_used > (int64_t)1700000000 * 1000000000);
    }
    OK(tamis_store_verify(c, &found, &test_error));
    assert_int_equal(found.records, CHUNKS);
    assert_int_equal(found.bytes, CHUNKS * chunks[0].record_bytes);
    OK(tamis_store_gc(c, &found, &test_error));
    assert_int_equal(found.records, CHUNKS);
    OK(tamis_store_remove(c, &chunks[1].put.id, &removed, &test_error));
    assert_int_equal(removed, 1);
    OK(tamis_store_remove(c, &chunks[1].put.id, &removed, &test_error));
    assert_int_equal(removed, 0);
    assert_false(rig_has(a, &chunks[1]));
    OK(tamis_store_remove_key(c, infos[0].key, &removed, &test_error));
    assert_int_equal(server_keys(), CHUNKS + 3 - 1 - removed);
    assert_int_equal(rig_stats(a).failed + rig_stats(b).failed + rig_stats(c).failed, 0);
    assert_int_equal(server_stats(a).failed, 0);
    tamis_store_destroy(&a);
    tamis_store_destroy(&b);
    tamis_store_destroy(&c);
}

/* Disk is asked first, and takes what the server cannot; a record that only the server has comes from
 * there. */
static void behind_disk(void **state) {
    (void)state;
    tamis_store *both = server_store((tamis_store_params){.folder = rig_folder()});
    OK(tamis_store_put(both, &chunks[0].put, &test_error));
    assert_int_equal(server_keys(), 1);
    assert_int_equal(access(rig_file(&chunks[0]), F_OK), 0);
    chunks[1].put.tiers = REDIS;
    OK(tamis_store_put(both, &chunks[1].put, &test_error));
    assert_true(access(rig_file(&chunks[1]), F_OK) != 0);
    assert_true(rig_has(both, &chunks[0]));
    assert_true(rig_has(both, &chunks[1]));
    assert_int_equal(server_stats(both).hits, 1);
    OK(tamis_store_remove(both, &chunks[0].put.id, NULL, &test_error));
    assert_false(rig_has(both, &chunks[0]));
    tamis_store_destroy(&both);
    rig_cleanup();
}

static void limits_are_kept(void **state) {
    (void)state;
    const uint64_t limit = 2 * chunks[0].record_bytes + 1;
    tamis_store *store = server_store((tamis_store_params){.redis_bytes = limit});
    put_all(store);
    assert_int_equal(server_keys(), 2);
    assert_int_equal(server_stats(store).evicted, CHUNKS - 2);
    assert_int_equal(server_stats(store).bytes, 2 * chunks[0].record_bytes);
    assert_false(rig_has(store, &chunks[1]));
    assert_true(rig_has(store, &chunks[CHUNKS - 1]));
    tamis_store_destroy(&store);
    store = server_store((tamis_store_params){.redis_bytes = chunks[0].record_bytes});
    assert_int_equal(server_keys(), 1);
    rig_chunk larger;
    rig_chunk_make(&larger, 9, 600);
    FAILS(tamis_store_put(store, &larger.put, &test_error), TAMIS_E_FULL, "the redis tier");
    rig_chunk_free(&larger);
    tamis_store_destroy(&store);
}

/* What the server takes at most is refused before it is sent. */
static void large_values_are_refused(void **state) {
    (void)state;
    enum { TOKENS = 8200, LAYERS = 1024 };
    int32_t *tokens = calloc(TOKENS, sizeof *tokens);
    const void **planes = calloc(LAYERS, sizeof *planes);
    void *plane = calloc(TOKENS, 32);
    assert_true(tokens && planes && plane);
    for (int i = 0; i < LAYERS; i++)
        planes[i] = plane;
    tamis_chunk_planes put = chunks[0].put;
    put.id.tokens = tokens;
    put.id.n_tokens = TOKENS;
    put.id.shape.n_layers = LAYERS;
    put.k = put.v = planes;
    assert_true(tamis_chunk_record_bytes(&put.id.shape, TOKENS) > 512u << 20);
    tamis_store *store = server_store((tamis_store_params){0});
    FAILS(tamis_store_put(store, &put, &test_error), TAMIS_E_FULL, "at most 536870912");
    assert_int_equal(server_keys(), 0);
    assert_int_equal(server_stats(store).failed, 1);
    assert_int_equal(server_stats(store).bytes, 0);
    tamis_store_destroy(&store);
    free(plane);
    free(planes);
    free(tokens);
}

/* What this server takes at most: it refuses the length and hangs up while the value is sent. */
static void the_limit_of_values_is_told(void **state) {
    (void)state;
    enum { LAYERS = 1024 };
    static const void *planes[LAYERS];
    tamis_chunk_planes put = chunks[0].put;
    for (int i = 0; i < LAYERS; i++)
        planes[i] = chunks[0].k[0];
    put.id.shape.n_layers = LAYERS;
    put.k = put.v = planes;
    server_do("CONFIG SET proto-max-bulk-len 1048576");
    tamis_store *store = server_store((tamis_store_params){0});
    for (int i = 0; i < 20; i++)
        FAILS(tamis_store_put(store, &put, &test_error), TAMIS_E_FULL,
              "is above the server's limit of values (proto-max-bulk-len)");
    assert_non_null(strstr(test_error.text, "a record of 1"));
    OK(tamis_store_put(store, &chunks[1].put, &test_error)); /* the server is there */
    server_do("CONFIG SET proto-max-bulk-len 536870912");
    OK(tamis_store_put(store, &put, &test_error));
    tamis_store_destroy(&store);
}

/* The first record of a chunk stays, also where the second writer has not seen it. */
static void the_first_wins(void **state) {
    (void)state;
    rig_chunk other;
    rig_chunk_make(&other, 0, 130);
    memset(other.bytes, 7, 100);
    tamis_store *a = server_store((tamis_store_params){0});
    tamis_store *b = server_store((tamis_store_params){0});
    OK(tamis_store_put(a, &chunks[0].put, &test_error));
    OK(tamis_store_put(b, &other.put, &test_error));
    assert_true(rig_has(b, &chunks[0]));
    rig_chunk_free(&other);
    tamis_store_destroy(&a);
    tamis_store_destroy(&b);
}

/* ---- Damage ------------------------------------------------------------------------------------ */

/* Puts these bytes in the record's place; it must not be read as sound, and be gone then. */
static void play_damage(tamis_store *store, const char *bytes, size_t size, bool foreign,
                        const char *what, size_t at) {
    server_do("SET %s %b", server_name(&chunks[0]), bytes, size);
    if (rig_has_or_damaged(store, &chunks[0])) fail_msg("%s at %zu is not found", what, at);
    if (server_keys() != (foreign ? 1 : 0)) fail_msg("%s at %zu: wrong records left", what, at);
}

static void each_damage_is_found(void **state) {
    (void)state;
    uint64_t random = 16, rounds = 0;
    tamis_store *store = server_store((tamis_store_params){0});
    OK(tamis_store_put(store, &chunks[0].put, &test_error));
    redisReply *value = server_ask("GET %s", server_name(&chunks[0]));
    assert_int_equal(value->len, chunks[0].record_bytes);
    const size_t header = 256 + 6 * 24 + 4 * 130;
    for (size_t i = 0; i < header + 300; i++) { /* each byte of the header, then bytes behind it */
        const size_t at =
            i < header ? i : header + test_below(&random, (uint32_t)(value->len - header));
        const bool foreign = at >= 8 && at < 12; /* another version: a miss that stays */
        const char sound = value->str[at];
        value->str[at] ^= (char)(1 << test_below(&random, 8));
        play_damage(store, value->str, value->len, foreign, "a byte", at);
        value->str[at] = sound;
        rounds += !foreign;
    }
    for (int i = 0; i < 50; i++, rounds++) {
        const size_t at = i == 0 ? 0 : test_below(&random, (uint32_t)value->len);
        play_damage(store, value->str, at, false, "a cut", at);
    }
    assert_int_equal(server_stats(store).damaged, rounds);
    assert_int_equal(rig_stats(store).failed, 0);
    freeReplyObject(value);
    tamis_store_destroy(&store);
}

/* ---- Values that are no records, or go --------------------------------------------------------- */

static void another_type_is_left_alone(void **state) {
    (void)state;
    tamis_store *store = server_store((tamis_store_params){.memory_bytes = MIB});
    size_t count;
    server_do("LPUSH %s x", server_name(&chunks[0]));
    assert_false(rig_has(store, &chunks[0]));
    assert_int_equal(server_stats(store).failed, 1);
    assert_int_equal(rig_stats(store).misses, 1);
    OK(tamis_store_put(store, &chunks[0].put, &test_error)); /* memory takes it */
    assert_true(rig_has(store, &chunks[0]));
    assert_int_equal(server_stats(store).failed, 2);
    OK(tamis_store_remove(store, &chunks[1].put.id, NULL, &test_error));
    chunks[0].put.tiers = REDIS;
    FAILS(tamis_store_put(store, &chunks[0].put, &test_error), TAMIS_E_IO, "WRONGTYPE");
    OK(tamis_store_put(store, &chunks[1].put, &test_error)); /* the server is asked at once */
    assert_int_equal(server_stats(store).puts, 1);
    OK(tamis_store_list(store, NULL, 0, &count, &test_error));
    assert_int_equal(count, 2);
    assert_int_equal(server_keys(), 2);
    tamis_store_destroy(&store);
}

static void prefixes_are_texts(void **state) {
    (void)state;
    static const char prefix[] = "a*[b-c]?^\\:";
    size_t count;
    tamis_store *store = server_store((tamis_store_params){.redis_prefix = prefix});
    tamis_store *none = server_store((tamis_store_params){.redis_prefix = ""});
    OK(tamis_store_put(store, &chunks[0].put, &test_error));
    server_do("SET aXb0123456789abcdef0123456789abcdef x");
    OK(tamis_store_list(store, NULL, 0, &count, &test_error));
    assert_int_equal(count, 1);
    assert_false(rig_has(none, &chunks[0]));
    OK(tamis_store_put(none, &chunks[1].put, &test_error));
    OK(tamis_store_list(none, NULL, 0, &count, &test_error));
    assert_int_equal(count, 1);
    tamis_store_destroy(&store);
    tamis_store_destroy(&none);
}

/* A pin holds nothing on a server. What was there before is gone, whatever has come in its place. */
static void held_records_may_go(void **state) {
    (void)state;
    rig_chunk other;
    uint8_t k[32 * RIG_MOST];
    rig_chunk_make(&other, 0, 130);
    memset(other.bytes, 7, 100);
    tamis_store *store = server_store((tamis_store_params){.memory_bytes = MIB});
    tamis_store *far = server_store((tamis_store_params){0});
    chunks[0].put.tiers = REDIS;
    OK(tamis_store_put(store, &chunks[0].put, &test_error));
    tamis_chunk *found = rig_get(store, &chunks[0]);
    assert_non_null(found);
    OK(tamis_chunk_read(found, 1, k, NULL, &test_error));
    server_do("DEL %s", server_name(&chunks[0]));
    FAILS(tamis_chunk_read(found, 2, k, NULL, &test_error), TAMIS_E_IO, "is gone");
    OK(tamis_chunk_read(found, 1, k, NULL, &test_error)); /* is in memory */
    assert_memory_equal(k, chunks[0].k[1], chunks[0].plane_bytes);
    OK(tamis_store_put(far, &other.put, &test_error));
    FAILS(tamis_chunk_read(found, 2, k, NULL, &test_error), TAMIS_E_IO, "is gone");
    tamis_chunk_release(&found);
    assert_true(rig_has(store, &other)); /* and not a plane of the one before */
    assert_int_equal(server_stats(store).failed, 2);
    assert_int_equal(server_stats(store).damaged, 0);
    server_do("FLUSHALL");
    tamis_store_destroy(&store);
    tamis_store_destroy(&far);
    rig_chunk_free(&other);
}

/* ---- What the server refuses ------------------------------------------------------------------- */

static void commands_may_be_refused(void **state) {
    (void)state;
    tamis_store *store = server_store((tamis_store_params){.memory_bytes = MIB});
    OK(tamis_store_put(store, &chunks[0].put, &test_error));
    chunks[1].put.tiers = REDIS;
    server_do("CONFIG SET maxmemory 1");
    FAILS(tamis_store_put(store, &chunks[1].put, &test_error), TAMIS_E_FULL, "OOM");
    OK(tamis_store_put(store, &chunks[2].put, &test_error));
    server_do("CONFIG SET maxmemory 0");
    server_do("REPLICAOF 127.0.0.1 1");
    FAILS(tamis_store_put(store, &chunks[1].put, &test_error), TAMIS_E_IO, "READONLY");
    server_do("CONFIG SET replica-serve-stale-data no");
    tamis_store *fresh = server_store((tamis_store_params){0});
    assert_false(rig_has(fresh, &chunks[0]));
    assert_int_equal(server_stats(fresh).failed, 1);
    server_do("REPLICAOF NO ONE");
    server_do("CONFIG SET replica-serve-stale-data yes");
    assert_true(rig_has(fresh, &chunks[0])); /* an error is an answer: nothing is waited for */
    OK(tamis_store_put(store, &chunks[1].put, &test_error));
    assert_int_equal(server_stats(store).failed, 3);
    tamis_store_destroy(&store);
    tamis_store_destroy(&fresh);
}

static void passwords_and_databases(void **state) {
    (void)state;
    tamis_store *store = server_store((tamis_store_params){.redis_database = 3});
    OK(tamis_store_put(store, &chunks[0].put, &test_error));
    assert_int_equal(server_keys(), 0);
    tamis_store_destroy(&store);
    server_do("CONFIG SET requirepass secret");
    server_do("AUTH secret");
    store = server_store((tamis_store_params){0});
    FAILS(tamis_store_put(store, &chunks[0].put, &test_error), TAMIS_E_IO, "NOAUTH");
    tamis_store_destroy(&store);
    store = server_store((tamis_store_params){.redis_password = "wrong"});
    FAILS(tamis_store_put(store, &chunks[0].put, &test_error), TAMIS_E_IO, "AUTH: WRONGPASS");
    tamis_store_destroy(&store);
    setenv("TAMIS_REDIS_PASSWORD", "secret", 1);
    store = server_store((tamis_store_params){.redis_database = 3});
    unsetenv("TAMIS_REDIS_PASSWORD");
    assert_true(rig_has(store, &chunks[0]));
    tamis_store_destroy(&store);
    store = server_store((tamis_store_params){.redis_password = "secret", .redis_database = 99});
    FAILS(tamis_store_put(store, &chunks[0].put, &test_error), TAMIS_E_IO, "SELECT: ERR");
    tamis_store_destroy(&store);
    server_do("CONFIG SET requirepass %s", "");
}

/* A port that nobody has at this moment. */
static unsigned free_port(void) {
    struct sockaddr_in name = {.sin_family = AF_INET};
    socklen_t length = sizeof name;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int one = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(one >= 0 && bind(one, (struct sockaddr *)&name, sizeof name) == 0);
    assert_int_equal(getsockname(one, (struct sockaddr *)&name, &length), 0);
    close(one);
    return ntohs(name.sin_port);
}

static void over_tcp(void **state) {
    (void)state;
    char address[32];
    const unsigned port = free_port();
    snprintf(address, sizeof address, "127.0.0.1:%u", port);
    redisReply *reply = server_ask("CONFIG SET port %u", port);
    const bool set = reply->type == REDIS_REPLY_STATUS;
    freeReplyObject(reply);
    if (!set) skip(); /* servers before 7 keep their port */
    tamis_store *store = server_store((tamis_store_params){.redis = address});
    OK(tamis_store_put(store, &chunks[0].put, &test_error));
    assert_true(rig_has(store, &chunks[0]));
    server_do("CONFIG SET port 0");
    assert_int_equal(server_stats(store).failed, 0);
    tamis_store_destroy(&store);
    store = server_store((tamis_store_params){.redis = address});
    FAILS(tamis_store_put(store, &chunks[0].put, &test_error), TAMIS_E_IO, "Connection refused");
    tamis_store_destroy(&store);
}

static void arguments_are_checked(void **state) {
    (void)state;
    tamis_store *store = NULL;
    tamis_store_params params = {.memory_bytes = MIB};
    char long_text[200];
    memset(long_text, '/', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = 0;
#define REFUSED(field, value, part)                                                                \
    do {                                                                                           \
        params.field = value;                                                                      \
        FAILS(tamis_store_create(&params, &store, &test_error), TAMIS_E_ARGUMENT, part);           \
        params.field = 0;                                                                          \
    } while (0)
    REFUSED(redis_bytes, 1, "redis is NULL");
    REFUSED(redis_database, 1, "redis is NULL");
    REFUSED(redis_timeout_ms, 1, "redis is NULL");
    REFUSED(redis_walk_ms, 1, "redis is NULL");
    REFUSED(reserved32, 1, "reserved32 of tamis_store_params is 1");
    REFUSED(redis_prefix, "x", "redis is NULL");
    REFUSED(redis_password, "x", "redis is NULL");
    REFUSED(redis, "", "redis: empty");
    REFUSED(redis, "localhost", "\"localhost\" is neither");
    REFUSED(redis, ":6379", "\":6379\" is neither");
    REFUSED(redis, "localhost:0", "port 0 of");
    REFUSED(redis, "localhost:65536", "port 65536 of");
    REFUSED(redis, "localhost:63x", "neither");
    REFUSED(redis, "localhost:-1", "neither");
    REFUSED(redis, long_text, "at most 107 bytes");
    params.redis = "/x";
    REFUSED(redis_prefix, long_text, "redis_prefix has 199 bytes");
    REFUSED(redis_timeout_ms, 3600001, "redis_timeout_ms is 3600001");
    REFUSED(redis_walk_ms, 3600001, "redis_walk_ms is 3600001");
    params.redis = "[::1]:1"; /* nobody is there */
    OK(tamis_store_create(&params, &store, &test_error));
    assert_false(rig_has(store, &chunks[0]));
    assert_int_equal(server_stats(store).failed, 1);
    tamis_store_destroy(&store);
}

int main(void) {
    if (!server_begin()) return SERVER_NONE;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_put_is_found, setup, teardown),
        cmocka_unit_test_setup_teardown(limits_are_kept, setup, teardown),
        cmocka_unit_test_setup_teardown(large_values_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(the_limit_of_values_is_told, setup, teardown),
        cmocka_unit_test_setup_teardown(the_first_wins, setup, teardown),
        cmocka_unit_test_setup_teardown(each_damage_is_found, setup, teardown),
        cmocka_unit_test_setup_teardown(another_type_is_left_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(prefixes_are_texts, setup, teardown),
        cmocka_unit_test_setup_teardown(held_records_may_go, setup, teardown),
        cmocka_unit_test_setup_teardown(commands_may_be_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(passwords_and_databases, setup, teardown),
        cmocka_unit_test_setup_teardown(over_tcp, setup, teardown),
        cmocka_unit_test_setup_teardown(arguments_are_checked, setup, teardown),
        cmocka_unit_test_setup_teardown(behind_disk, setup,
                                        teardown), /* removes the rig's folder */
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    server_end();
    return failed;
}
