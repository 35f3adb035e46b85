/* SPDX-License-Identifier: Apache-2.0 */
/* A Redis or Valkey server for a test, which ends with it. */
#include "tests/store/redis_rig.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static pid_t server = -1;
static redisContext *line;

const char *server_path(void) {
    static char path[RIG_MOST_PATH + 32];
    snprintf(path, sizeof path, "%s", rig_folder());
    snprintf(strrchr(path, '/'), 16, "/server");
    return path;
}

double server_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* In the child. Exit status SERVER_NONE: not installed. Debian's redis-tools brings the server's
 * program as redis-check-rdb, which is a server where it is called so; redis-server starts it as a
 * service. */
static void become_server(const char *path) {
    static const char *const programs[][2] = {{"redis-server", "redis-server"},
                                              {"redis-check-rdb", "redis-server"},
                                              {"valkey-server", "valkey-server"}};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0; i < 3; i++)
        execlp(programs[i][0], programs[i][1], "--port", "0", "--unixsocket", path, "--save", "",
               "--appendonly", "no", "--logfile", "/dev/null", "--dir", "/tmp", (char *)NULL);
    _exit(SERVER_NONE);
}

static bool answers(const char *path) {
    const struct timeval wait = {5, 0};
    line = redisConnectUnixWithTimeout(path, wait);
    assert_non_null(line);
    if (!line->err) {
        redisReply *reply = redisCommand(line, "PING");
        const bool well = reply && reply->type == REDIS_REPLY_STATUS &&
                          redisSetTimeout(line, (struct timeval){20, 0}) == REDIS_OK;
        if (reply) freeReplyObject(reply);
        if (well) return true;
    }
    redisFree(line);
    line = NULL;
    return false;
}

bool server_start(void) {
    const char *path = server_path();
    int how = 0;
    unlink(path);
    server = fork();
    assert_true(server >= 0);
    if (server == 0) become_server(path);
    for (int i = 0; i < 2000; i++, rig_nap(10)) {
        if (waitpid(server, &how, WNOHANG) == server) {
            server = -1;
            if (WIFEXITED(how) && WEXITSTATUS(how) == SERVER_NONE) return false;
            fail_msg("the server has ended with status 0x%x", (unsigned)how);
        }
        if (access(path, F_OK) == 0 && answers(path)) return true;
    }
    fail_msg("the server does not answer");
    return false;
}

void server_kill(void) {
    if (line) redisFree(line);
    line = NULL;
    if (server < 0) return;
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    server = -1;
    unlink(server_path());
}

bool server_begin(void) {
    rig_in_memory();
    if (server_start()) return true;
    puts("skipped: neither redis-server nor valkey-server is installed");
    rig_cleanup();
    return false;
}

void server_end(void) {
    server_kill();
    rig_cleanup();
}

void server_pause(void) {
    int how;
    assert_int_equal(kill(server, SIGSTOP), 0);
    assert_int_equal(waitpid(server, &how, WUNTRACED), server);
}

void server_go_on(void) {
    assert_int_equal(kill(server, SIGCONT), 0);
}

static redisReply *ask(const char *format, va_list args) {
    redisReply *reply = redisvCommand(line, format, args);
    if (!reply) fail_msg("%s: %s", format, line->errstr);
    return reply;
}

redisReply *server_ask(const char *format, ...) {
    va_list args;
    va_start(args, format);
    redisReply *reply = ask(format, args);
    va_end(args);
    return reply;
}

void server_do(const char *format, ...) {
    va_list args;
    va_start(args, format);
    redisReply *reply = ask(format, args);
    va_end(args);
    if (reply->type == REDIS_REPLY_ERROR) fail_msg("%s: %s", format, reply->str);
    freeReplyObject(reply);
}

long long server_keys(void) {
    redisReply *reply = server_ask("DBSIZE");
    const long long count = reply->integer;
    freeReplyObject(reply);
    return count;
}

const char *server_name(const rig_chunk *chunk) {
    static char name[64];
    uint8_t key[16];
    OK(tamis_chunk_key(&chunk->put.id, key, &test_error));
    int used = snprintf(name, sizeof name, "tamis:");
    for (int i = 0; i < 16; i++)
        used += snprintf(name + used, sizeof name - (size_t)used, "%02x", key[i]);
    return name;
}

tamis_store *server_store(tamis_store_params params) {
    tamis_store *store = NULL;
    if (!params.redis) params.redis = server_path();
    if (!params.redis_timeout_ms) params.redis_timeout_ms = 20000; /* the machine may be busy */
    OK(tamis_store_create(&params, &store, &test_error));
    return store;
}

tamis_tier_stats server_stats(tamis_store *store) {
    return rig_stats(store).tiers[TAMIS_TIER_REDIS];
}
