/* SPDX-License-Identifier: Apache-2.0 */
/* A server that is none: what it names never ends, its errors hold what a terminal obeys. Calls are
 * answered in time and in printable words. No server is needed: a thread answers. */
#include "lib/store/redis.h"
#include "tests/store/rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define WALK_MS   15u
#define HOLLOW_MS 300u /* in which a busy machine, too, names all keys and asks for a record */
#define IN_TIME 15 /* seconds: a busy machine may wait for the processor */

/* How SCAN is answered. All but ENDS never say that they have come to an end. */
enum { ENDS, NOTHING, SAME_CURSOR, SAME_NAMES, NEW_NAMES, TRICKLE, HOSTILE_ERROR, KINDS, HOLLOW };
static const char *const kinds[KINDS] = {"ends",      "nothing", "same cursor",  "same names",
                                         "new names", "trickle", "hostile error"};

static int kind, listener = -1;
static atomic_int served = -1; /* the connection that is answered */
static atomic_uint asked;      /* how often for a record */
static atomic_uint pages;      /* of names, since the store was opened */
static char path[RIG_MOST_PATH + 32];

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- The server ------------------------------------------------------------------------------ */

static bool say(int client, const char *text) {
    size_t left = strlen(text);
    while (left > 0) {
        const ssize_t n = send(client, text, kind == TRICKLE ? 1 : left, MSG_NOSIGNAL);
        if (n <= 0) return false;
        text += n;
        left -= (size_t)n;
        if (kind == TRICKLE) rig_nap(2);
    }
    return true;
}

/* A page of a walk: the next cursor, and 16 names. */
static bool say_page(int client) {
    const unsigned page = atomic_fetch_add(&pages, 1) + 1;
    char reply[2048];
    const unsigned names = kind == NOTHING || kind == ENDS ? 0 : 16;
    char cursor[16];
    const bool last = kind == ENDS || (kind == HOLLOW && page % 64 == 0);
    snprintf(cursor, sizeof cursor, "%u", last ? 0 : kind == SAME_CURSOR ? 7 : 100 + page);
    int used =
        snprintf(reply, sizeof reply, "*2\r\n$%zu\r\n%s\r\n*%u\r\n", strlen(cursor), cursor, names);
    for (unsigned i = 0; i < names; i++)
        used += snprintf(reply + used, sizeof reply - (size_t)used, "$38\r\ntamis:%032x\r\n",
                         16 * (kind == NEW_NAMES || kind == HOLLOW ? page : 0) + i);
    return say(client, reply);
}

/* Whole lines. */
static bool answer(int client, const char *commands) {
    bool well = true;
    if (kind == HOSTILE_ERROR) return say(client, "-ERR \x1b[2J\x1b]0;owned\x07 no\xc3\r\n");
    for (const char *at = commands; well && (at = strstr(at, "SCAN\r\n")); at++)
        well = say_page(client);
    /* What is asked about a record: there is none. */
    for (const char *at = commands; well && (at = strstr(at, "MULTI\r\n")); at++) {
        atomic_fetch_add(&asked, 1);
        if (kind == HOLLOW) rig_nap(2);
        well = say(client, "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n"
                           "*4\r\n$-1\r\n:0\r\n:0\r\n$0\r\n\r\n");
    }
    return well;
}

/* Answers a client until it leaves. What comes may end within a line, whose rest comes later. */
static void talk(int client) {
    static char some[1 << 16];
    size_t kept = 0;
    for (;;) {
        const ssize_t got = recv(client, some + kept, sizeof some - 1 - kept, 0);
        if (got <= 0) return;
        some[kept += (size_t)got] = 0;
        char *end = strrchr(some, '\n');
        if (!end) continue;
        char *rest = strdup(end + 1);
        end[1] = 0;
        const bool well = rest && answer(client, some);
        if (well) strcpy(some, rest);
        kept = well ? strlen(rest) : 0;
        free(rest);
        if (!well) return;
    }
}

static void *serve(void *of) {
    (void)of;
    for (;;) {
        const int client = accept(listener, NULL, NULL);
        if (client < 0) return NULL;
        atomic_store(&served, client);
        talk(client);
        atomic_store(&served, -1);
        close(client);
    }
}

static int start(void **state) {
    static pthread_t server;
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    rig_in_memory();
    snprintf(path, sizeof path, "%s", rig_folder());
    snprintf(strrchr(path, '/'), 16, "/server");
    assert_true(strlen(path) < sizeof name.sun_path);
    memcpy(name.sun_path, path, strlen(path) + 1);
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *state = &server;
    return listener < 0 || bind(listener, (const struct sockaddr *)&name, sizeof name) != 0 ||
           listen(listener, 16) != 0 || pthread_create(&server, NULL, serve, NULL) != 0;
}

/* A test that failed leaves its connection open. */
static int stop(void **state) {
    shutdown(listener, SHUT_RDWR);
    if (atomic_load(&served) >= 0) shutdown(atomic_load(&served), SHUT_RDWR);
    pthread_join(*(pthread_t *)*state, NULL);
    close(listener);
    rig_cleanup();
    return 0;
}

static tamis_store *open_store(int how, uint64_t bytes) {
    const tamis_store_params params = {.redis = path,
                                       .redis_bytes = bytes,
                                       .redis_timeout_ms = how == TRICKLE ? 20 : 5000,
                                       .redis_walk_ms = how == HOLLOW ? HOLLOW_MS : WALK_MS};
    tamis_store *store = NULL;
    kind = how;
    atomic_store(&pages, 0);
    OK(tamis_store_create(&params, &store, &test_error));
    return store;
}

/* ---- Walks ------------------------------------------------------------------------------------ */

static void check_words(int how) {
    const char *wanted = how == HOSTILE_ERROR ? "SCAN: ERR ?[2J?]0;owned? no?"
                         : how == TRICKLE     ? "the server has not answered in time"
                                              : "SCAN: the server has not named all keys";
    if (!strstr(test_error.text, wanted)) fail_msg("%s: \"%s\"", kinds[how], test_error.text);
    for (const char *at = test_error.text; *at; at++)
        if (*at < ' ' || *at > '~') fail_msg("%s: unquoted: byte %d", kinds[how], *at & 255);
}

/* Each call that walks through the server: it comes back, and says why. */
static void walks_end(void **state) {
    (void)state;
    tamis_store_found found;
    size_t count = 0;
    for (int how = 0; how < KINDS; how++) {
        const tamis_status wanted = how == ENDS ? TAMIS_OK : TAMIS_E_IO;
        const double began = seconds();
        for (int call = 0; call < (how == TRICKLE ? 1 : 3); call++) { /* which takes 0.3 s */
            tamis_store *store = open_store(how, 0);
            const tamis_status status = call == 0
                                            ? tamis_store_list(store, NULL, 0, &count, &test_error)
                                        : call == 1 ? tamis_store_verify(store, &found, &test_error)
                                                    : tamis_store_gc(store, &found, &test_error);
            if (status != wanted) fail_msg("%s, call %d: %d", kinds[how], call, (int)status);
            if (status != TAMIS_OK) check_words(how);
            tamis_store_destroy(&store);
        }
        if (how == TRICKLE) continue;
        tamis_store *store = open_store(how, 1 << 20); /* which walks to keep the limit */
        assert_int_equal(rig_stats(store).tiers[TAMIS_TIER_REDIS].failed, how != ENDS);
        tamis_store_destroy(&store);
        if (seconds() - began > IN_TIME) fail_msg("%s: %g s", kinds[how], seconds() - began);
    }
}

/* Names that do not end are bounded in number too, and those that come again are kept once. */
static void names_are_bounded(void **state) {
    (void)state;
    const tamis_store_params params = {.redis = path, .redis_walk_ms = 20000};
    tms_tier *tier = NULL;
    tms_keys keys;
    OK(tms_redis_ops.open(&params, &tier, &test_error));
    ((tms_redis *)tier)->most_names = 500;
    kind = NEW_NAMES;
    FAILS(tms_redis_ops.walk(tier, &keys, &test_error), TAMIS_E_IO,
          "SCAN: the server names more than 500 keys");
    assert_true(keys.room < 2000);
    free(keys.keys);
    tms_redis_ops.close(tier);
    OK(tms_redis_ops.open(&params, &tier, &test_error));
    ((tms_redis *)tier)->most_names = 500;
    ((tms_redis *)tier)->walk_ms = WALK_MS;
    kind = SAME_NAMES;
    FAILS(tms_redis_ops.walk(tier, &keys, &test_error), TAMIS_E_IO, "has not named all keys after");
    assert_true(keys.room < 2000);
    free(keys.keys);
    tms_redis_ops.close(tier);
}

/* Names of what is not there are not looked for without end. */
static void hollow_names_end(void **state) {
    (void)state;
    tamis_store_found found;
    size_t count = 0;
    for (int call = 0; call < 3; call++) {
        tamis_store *store = open_store(HOLLOW, 0);
        atomic_store(&asked, 0);
        const tamis_status status = call == 0
                                        ? tamis_store_list(store, NULL, 0, &count, &test_error)
                                    : call == 1 ? tamis_store_verify(store, &found, &test_error)
                                                : tamis_store_gc(store, &found, &test_error);
        if (status != TAMIS_E_IO ||
            !strstr(test_error.text, "the redis tier names records that are not there"))
            fail_msg("call %d: %d, \"%s\"", call, (int)status, test_error.text);
        assert_in_range(atomic_load(&asked), 1, HOLLOW_MS); /* each takes 2 ms */
        tamis_store_destroy(&store);
    }
}

/* ---- Addresses -------------------------------------------------------------------------------- */

static void addresses_are_taken(void **state) {
    (void)state;
    static const struct {
        const char *address, *host;
        int port;
        unsigned database;
    } cases[] = {{"localhost:6379", "localhost", 6379, 0},
                 {"redis://localhost:6380", "localhost", 6380, 0},
                 {"redis://localhost:6380/", "localhost", 6380, 0},
                 {"redis://10.0.0.1/3", "10.0.0.1", 6379, 3},
                 {"redis://[::1]:70/12", "::1", 70, 12},
                 {"redis://[fe80::2]", "fe80::2", 6379, 0},
                 {"[::1]:6379", "::1", 6379, 0},
                 {"./socket", "./socket", 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tms_redis redis = {.port = 0};
        OK(tms_redis_parse(&redis, cases[i].address, &test_error));
        assert_string_equal(redis.host, cases[i].host);
        assert_int_equal(redis.port, cases[i].port);
        assert_int_equal(redis.database, cases[i].database);
        free(redis.host);
        free(redis.address);
    }
}

static void addresses_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *address, *part;
    } cases[] = {{"localhost", "\"localhost\" is neither host:port"},
                 {"localhost:70000", "port 70000 of \"localhost:70000\": a port is 1 to 65535"},
                 {"redis://h:0", "port 0 of"},
                 {"redis://h:99999999999999999999/", "port 99999999999999999999 of"},
                 {"redis://h:/2", "is neither"},
                 {"redis://", "is neither"},
                 {"redis://:6379", "is neither"},
                 {"[::1:6379", "is neither"},
                 {"[]:6379", "is neither"},
                 {"[::1]6379", "is neither"},
                 {"::1:6379", "an IPv6 address stands in brackets"},
                 {"redis://h:1/x", "the number of a database, and no more"},
                 {"redis://h:1/1?a=b", "the number of a database, and no more"},
                 {"redis://h:1?7", "the number of a database, and no more"},
                 {"redis://h:1/4", "names database 4, but redis_database is 2"},
                 {"redis://:secret@h:1", "a user or a password, which it cannot"},
                 {"redis://user:secret@h", "a user or a password, which it cannot"},
                 {"http://h:1", "\"http\" is no scheme"},
                 {"unix:///tmp/x", "\"unix\" is no scheme"},
                 {"h\x1b[2J:x", "\"h?[2J:x\" is neither"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tms_redis redis = {.database = 2};
        FAILS(tms_redis_parse(&redis, cases[i].address, &test_error), TAMIS_E_ARGUMENT,
              cases[i].part);
        assert_null(strstr(test_error.text, "secret"));
        assert_null(redis.address);
        free(redis.host);
    }
    tms_redis redis = {.database = 2};
    FAILS(tms_redis_parse(&redis, "rediss://h:1", &test_error), TAMIS_E_UNSUPPORTED, "encryption");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(walks_end, start, stop),
        cmocka_unit_test_setup_teardown(names_are_bounded, start, stop),
        cmocka_unit_test_setup_teardown(hollow_names_end, start, stop),
        cmocka_unit_test(addresses_are_taken),
        cmocka_unit_test(addresses_are_refused),
    };
    alarm(100); /* a call that does not come back */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
