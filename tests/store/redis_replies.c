/* SPDX-License-Identifier: Apache-2.0 */
/* Replies that are cut short, changed at a byte, or no replies at all, and commands that come to the
 * server in part: nothing false is read, and calls are answered in time. A thread stands between the store and a real server. */
#include "tests/store/redis_rig.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { PASS, CUT, CHANGE, INSTEAD, CUT_COMMAND, HOLD_COMMAND };

/* What happens to the bytes of the replies, or of the commands, since the round began. */
static struct {
    pthread_mutex_t mutex;
    int kind;
    uint64_t at, sent;   /* the byte, and how many have been sent */
    uint8_t change;      /* XOR */
    const char *instead; /* of all replies */
    size_t instead_bytes;
    bool quit;
} plan = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static int listener = -1;
static char path[RIG_MOST_PATH + 32];

static void begin_round(int kind, uint64_t at, uint8_t change, const char *instead, size_t bytes) {
    pthread_mutex_lock(&plan.mutex);
    plan.kind = kind;
    plan.at = at;
    plan.sent = 0;
    plan.change = change;
    plan.instead = instead;
    plan.instead_bytes = bytes;
    pthread_mutex_unlock(&plan.mutex);
}

static uint64_t sent(void) {
    pthread_mutex_lock(&plan.mutex);
    const uint64_t bytes = plan.sent;
    pthread_mutex_unlock(&plan.mutex);
    return bytes;
}

static int socket_at(const char *where, bool listens) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(name.sun_path, sizeof name.sun_path, "%s", where);
    const struct sockaddr *to = (const struct sockaddr *)&name;
    const bool well =
        made >= 0 && (listens ? bind(made, to, sizeof name) == 0 && listen(made, 16) == 0
                              : connect(made, to, sizeof name) == 0);
    if (well) return made;
    if (made >= 0) close(made);
    return -1;
}

static bool pass_on(int to, const char *bytes, size_t count) {
    while (count > 0) {
        const ssize_t n = send(to, bytes, count, MSG_NOSIGNAL);
        if (n <= 0) return false;
        bytes += n;
        count -= (size_t)n;
    }
    return true;
}

/* Bytes of a reply; false: the connection ends. */
static bool pass_reply(int client, char *bytes, size_t count) {
    pthread_mutex_lock(&plan.mutex);
    const bool hit = (plan.kind == CUT || plan.kind == CHANGE) && plan.at >= plan.sent &&
                     plan.at - plan.sent < count;
    const size_t place = hit ? (size_t)(plan.at - plan.sent) : 0;
    const bool cut = hit && plan.kind == CUT;
    if (hit && plan.kind == CHANGE) bytes[place] ^= (char)plan.change;
    plan.sent += plan.kind < CUT_COMMAND ? count : 0;
    pthread_mutex_unlock(&plan.mutex);
    return pass_on(client, bytes, cut ? place : count) && !cut;
}

/* The same of a command; HOLD_COMMAND takes nothing more until the client has had enough. */
static bool pass_command(int client, int server, const char *bytes, size_t count) {
    struct pollfd end = {.fd = client};
    pthread_mutex_lock(&plan.mutex);
    const int kind = plan.kind;
    const bool hit = kind >= CUT_COMMAND && plan.at >= plan.sent && plan.at - plan.sent < count;
    if (hit) count = (size_t)(plan.at - plan.sent);
    plan.sent += kind >= CUT_COMMAND ? count + hit : 0;
    pthread_mutex_unlock(&plan.mutex);
    const bool passed = pass_on(server, bytes, count);
    if (hit && kind == HOLD_COMMAND) (void)poll(&end, 1, -1);
    return passed && !hit;
}

static void answer_instead(int client) {
    char some[4096];
    if (recv(client, some, sizeof some, 0) <= 0) return;
    (void)pass_on(client, plan.instead, plan.instead_bytes);
    while (recv(client, some, sizeof some, 0) > 0) /* until the client has had enough */
        ;
}

static void relay(int client) {
    static char some[1 << 16];
    const int server = socket_at(server_path(), false);
    struct pollfd both[2] = {{.fd = client, .events = POLLIN}, {.fd = server, .events = POLLIN}};
    while (server >= 0 && poll(both, 2, -1) > 0) {
        const int from = both[0].revents ? 0 : 1;
        const ssize_t got = recv(both[from].fd, some, sizeof some, 0);
        if (got <= 0) break;
        if (!(from == 0 ? pass_command(client, server, some, (size_t)got)
                        : pass_reply(client, some, (size_t)got)))
            break;
    }
    if (server >= 0) close(server);
}

static void *stand_between(void *of) {
    (void)of;
    for (;;) {
        const int client = accept(listener, NULL, NULL);
        pthread_mutex_lock(&plan.mutex);
        const bool quit = plan.quit || client < 0, instead = plan.kind == INSTEAD;
        pthread_mutex_unlock(&plan.mutex);
        if (!quit && instead) answer_instead(client);
        if (!quit && !instead) relay(client);
        if (client >= 0) close(client);
        if (quit) return NULL;
    }
}

/* ---- Rounds ------------------------------------------------------------------------------------ */

static rig_chunk chunk;
static redisReply *value; /* the sound record */

static tamis_store *open_between(uint32_t timeout_ms) {
    return server_store((tamis_store_params){.redis = path, .redis_timeout_ms = timeout_ms});
}

/* Gets and reads the chunk; what is read is what was stored. Returns how many planes were. */
static unsigned play(uint32_t timeout_ms, tamis_tier_stats *stats) {
    uint8_t k[32 * RIG_MOST], v[32 * RIG_MOST];
    unsigned well = 0;
    tamis_store *store = open_between(timeout_ms);
    tamis_chunk *found = rig_get(store, &chunk);
    for (uint32_t i = 0; found && i < RIG_LAYERS; i++) {
        const tamis_status status = tamis_chunk_read(found, i, k, v, &test_error);
        assert_true(status == TAMIS_OK || status == TAMIS_E_IO || status == TAMIS_E_DAMAGED);
        if (status != TAMIS_OK) continue;
        assert_memory_equal(k, chunk.k[i], chunk.plane_bytes);
        assert_memory_equal(v, chunk.v[i], chunk.plane_bytes);
        well++;
    }
    tamis_chunk_release(&found);
    *stats = server_stats(store);
    tamis_store_destroy(&store);
    return well;
}

static void restore(void) {
    server_do("SET %s %b", server_name(&chunk), value->str, value->len);
}

/* Bytes of the replies of a round without a fault. */
static uint64_t length_of_round(void) {
    tamis_tier_stats stats;
    begin_round(PASS, 0, 0, NULL, 0);
    assert_int_equal(play(20000, &stats), RIG_LAYERS);
    return sent();
}

static void replies_end_at_each_byte(void **state) {
    (void)state;
    tamis_tier_stats stats;
    uint64_t random = 5;
    const uint64_t length = length_of_round();
    for (uint64_t i = 0; i < 700; i++) {
        const uint64_t at = i < 300   ? i
                            : i < 400 ? length - 1 - (i - 300)
                                      : test_below(&random, (uint32_t)length);
        begin_round(CUT, at, 0, NULL, 0);
        assert_true(play(20000, &stats) < RIG_LAYERS);
        if (stats.failed == 0 || stats.damaged != 0)
            fail_msg("cut at %llu: not counted", (unsigned long long)at);
    }
    assert_int_equal(server_keys(), 1);
}

static void replies_change_at_each_byte(void **state) {
    (void)state;
    tamis_tier_stats stats;
    uint64_t random = 6;
    unsigned well = 0, wrong = 0;
    const uint64_t length = length_of_round();
    for (uint64_t i = 0; i < 500; i++) {
        const uint64_t at = i < 200   ? i
                            : i < 300 ? length - 1 - (i - 200)
                                      : test_below(&random, (uint32_t)length);
        restore();
        begin_round(CHANGE, at, (uint8_t)(1 + test_below(&random, 255)), NULL, 0);
        const unsigned read = play(50, &stats);
        well += read == RIG_LAYERS;
        wrong += stats.failed > 0 || stats.damaged > 0;
        /* A change may say that there is no such key. */
        if (read < RIG_LAYERS && stats.hits + stats.failed > 0 && stats.failed + stats.damaged == 0)
            fail_msg("change at %llu: not counted", (unsigned long long)at);
    }
    assert_true(well > 0); /* when a record was used last, say */
    assert_true(wrong > 300);
    restore();
}

static void replies_that_are_none(void **state) {
    (void)state;
    static const char *const texts[] = {
        "",
        "\r\n",
        "\r\n\r\n\r\n",
        "HTTP/1.1 400 Bad Request\r\n\r\n",
        "+OK\r\n",
        "-ERR\r\n",
        ":1\r\n:2\r\n:3\r\n:4\r\n:5\r\n:6\r\n:7\r\n",
        "$-1\r\n$-1\r\n$-1\r\n$-1\r\n$-1\r\n$-1\r\n",
        "$-7\r\n",
        "$9223372036854775807\r\n",
        "$18446744073709551616\r\n",
        "*2147483647\r\n",
        "*9223372036854775807\r\n",
        "*1099511627776\r\n",
        "*-3\r\n",
        "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n"
        "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n",
        "%1\r\n+a\r\n+b\r\n",
        "_\r\n",
        ",1e9\r\n",
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*0\r\n",
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*-1\r\n",
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*4\r\n:1\r\n:1\r\n:-4\r\n$0\r\n\r\n",
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*4\r\n:1\r\n:1\r\n:4\r\n$"
        "5\r\nabcde\r\n",
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*4\r\n:1\r\n:1\r\n:4\r\n*1\r\n:1\r\n",
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*4\r\n$-1\r\n:0\r\n:0\r\n$0\r\n\r\n+"
        "OK\r\n",
    };
    static char flood[300000];
    tamis_tier_stats stats;
    memset(flood, 'x', sizeof flood);
    flood[0] = '+';
    const size_t n = sizeof texts / sizeof *texts;
    for (size_t i = 0; i < n + 1; i++) {
        const double start = server_seconds();
        begin_round(INSTEAD, 0, 0, i < n ? texts[i] : flood,
                    i < n ? strlen(texts[i]) : sizeof flood);
        assert_int_equal(play(60, &stats), 0);
        if (stats.failed != 1 || stats.damaged != 0)
            fail_msg("reply %zu: %llu failures", i, (unsigned long long)stats.failed);
        assert_true(server_seconds() - start < 20);
    }
}

/* A put whose command comes to the server in part, at `at` of all bytes. What the server has of it is
 * no record. Returns how many bytes of commands there were. */
static uint64_t play_put(const tamis_chunk_planes *put, int kind, uint64_t at,
                         tamis_status *status) {
    const bool held = kind == HOLD_COMMAND;
    server_do("FLUSHALL");
    begin_round(kind, at, 0, NULL, 0);
    tamis_store *store = open_between(held ? 300 : 20000);
    *status = tamis_store_put(store, put, &test_error);
    tamis_store_destroy(&store);
    assert_true(*status == TAMIS_OK || *status == TAMIS_E_IO);
    assert_int_equal(server_keys(), *status == TAMIS_OK);
    return sent();
}

static void commands_end_at_each_byte(void **state) {
    (void)state;
    uint64_t random = 7;
    tamis_status status;
    unsigned refused = 0;
    const uint64_t length = play_put(&chunk.put, CUT_COMMAND, UINT64_MAX, &status);
    assert_int_equal(status, TAMIS_OK);
    for (uint64_t i = 0; i < 500; i++) {
        const uint64_t at = i < 250   ? i
                            : i < 400 ? length - 1 - (i - 250)
                                      : test_below(&random, (uint32_t)length);
        (void)play_put(&chunk.put, CUT_COMMAND, at, &status);
        refused += status == TAMIS_E_IO;
    }
    assert_true(refused > 100 &&
                refused < 400); /* a connection that was used before is made anew */
}

/* A record of more bytes than connections hold. */
static void commands_are_held(void **state) {
    (void)state;
    enum { LAYERS = 512 };
    static const void *planes[LAYERS];
    tamis_chunk_planes put = chunk.put;
    for (int i = 0; i < LAYERS; i++)
        planes[i] = chunk.k[0];
    put.id.shape.n_layers = LAYERS;
    put.k = put.v = planes;
    tamis_status status;
    const uint64_t length = play_put(&put, CUT_COMMAND, UINT64_MAX, &status);
    assert_int_equal(status, TAMIS_OK);
    assert_true(length > 4 << 20);
    const double start = server_seconds();
    static const char *const reasons[] = {"sending: the server has not",
                                          "waiting for a reply: the"};
    for (uint64_t i = 0; i < 2; i++) {
        (void)play_put(&put, HOLD_COMMAND, i == 0 ? length / 3 : length - 1, &status);
        assert_int_equal(status, TAMIS_E_IO);
        assert_non_null(strstr(test_error.text, reasons[i]));
    }
    assert_true(server_seconds() - start > 0.6 && server_seconds() - start < 20);
}

int main(void) {
    pthread_t between;
    if (!server_begin()) return SERVER_NONE;
    snprintf(path, sizeof path, "%s-between", server_path());
    listener = socket_at(path, true);
    rig_chunk_make(&chunk, 1, 4);
    tamis_store *store = server_store((tamis_store_params){0});
    if (listener < 0 || tamis_store_put(store, &chunk.put, NULL) != TAMIS_OK) return 1;
    tamis_store_destroy(&store);
    value = server_ask("GET %s", server_name(&chunk));
    if (pthread_create(&between, NULL, stand_between, NULL) != 0) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replies_end_at_each_byte), cmocka_unit_test(replies_change_at_each_byte),
        cmocka_unit_test(replies_that_are_none),    cmocka_unit_test(commands_end_at_each_byte),
        cmocka_unit_test(commands_are_held),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    pthread_mutex_lock(&plan.mutex);
    plan.quit = true;
    pthread_mutex_unlock(&plan.mutex);
    shutdown(listener, SHUT_RDWR);
    pthread_join(between, NULL);
    close(listener);
    freeReplyObject(value);
    rig_chunk_free(&chunk);
    server_end();
    return failed;
}
