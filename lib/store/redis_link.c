/* SPDX-License-Identifier: Apache-2.0 */
/* Asking the server: connections, deadlines, leaving a server alone that does not answer. */
#include "lib/core/text_file.h"
#include "lib/store/redis.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

#define FIRST_WAIT_US 100e3 /* after a failure; twice as long after each that follows */
#define MOST_WAIT_US  5e6
#define BYTES_PER_MS  16384u     /* what a server must move at least */
#define MOST_ELEMENTS (1u << 20) /* of an array in a reply */
#define FRAMES        (1u << 16) /* bytes of a reply beside values */
#define PIECES        64         /* that are handed over at once */
#define REFUSAL_US    5e3        /* to take in what a server has said before it hung up */

#if HIREDIS_MAJOR >= 1
typedef size_t array_size;
#else
typedef int array_size;
#endif

/* ---- Names ------------------------------------------------------------------------------------ */

void tms_redis_name_of(const tms_redis *redis, const uint8_t *key, tms_redis_name *out) {
    char digits[TMS_KEY_TEXT];
    tms_hex(key, digits);
    out->length = (size_t)snprintf(out->text, sizeof out->text, "%s%s", redis->prefix, digits);
}

/* ---- Leaving a server alone -------------------------------------------------------------------- */

/* Whether the server may be asked now. Of those that come when a wait is over one asks, and the
 * others go on waiting meanwhile. */
static tamis_status may_ask(tms_redis *redis, tamis_error *error) {
    const double now = tms_now_us();
    char reason[sizeof redis->reason];
    pthread_mutex_lock(&redis->mutex);
    const double left = redis->failures ? redis->down_until - now : 0;
    if (redis->failures && left <= 0) redis->down_until = now + redis->timeout_ms * 1e3;
    memcpy(reason, redis->reason, sizeof reason);
    pthread_mutex_unlock(&redis->mutex);
    TMS_REQUIRE(left <= 0, TAMIS_E_IO, "redis %s: not asked for another %.0f ms; %s",
                redis->address, left / 1e3, reason);
    return TAMIS_OK;
}

tamis_status tms_redis_give_up(tms_redis *redis, const char *reason, tamis_error *error) {
    redisContext *old[TMS_REDIS_IDLE];
    pthread_mutex_lock(&redis->mutex);
    double wait = FIRST_WAIT_US;
    for (unsigned i = 0; i < redis->failures && wait < MOST_WAIT_US; i++)
        wait *= 2;
    redis->failures++;
    redis->down_until = tms_now_us() + (wait < MOST_WAIT_US ? wait : MOST_WAIT_US);
    snprintf(redis->reason, sizeof redis->reason, "%s", reason);
    redis->generation++;
    const unsigned n = redis->n_idle;
    memcpy(old, redis->idle, sizeof old);
    redis->n_idle = 0;
    pthread_mutex_unlock(&redis->mutex);
    for (unsigned i = 0; i < n; i++)
        redisFree(old[i]);
    return tms_error_set(error, TAMIS_E_IO, "redis %s: %s", redis->address, reason);
}

/* ---- Moving bytes ------------------------------------------------------------------------------ */

/* A connection in use, and what has become of it. */
typedef struct call {
    redisContext *context;
    uint64_t generation;
    bool used_before;         /* it was idle: the server may have closed it meanwhile */
    bool timed_out, answered; /* answered: a byte has come */
    uint64_t room;            /* bytes that may still come */
    double deadline;
    char reason[192];
} call;

/* The server's own words are among the reasons. */
static bool fails(call *to, const char *what, const char *why) {
    snprintf(to->reason, sizeof to->reason, "%s: %s", what, tms_quote(why).text);
    return false;
}

static bool wait_for(call *to, short events, const char *what) {
    struct pollfd one = {.fd = to->context->fd, .events = events};
    for (;;) {
        const double left = to->deadline - tms_now_us();
        const int ready = left > 0 ? poll(&one, 1, (int)(left / 1e3) + 1) : 0;
        if (ready > 0) return true;
        if (ready < 0 && errno != EINTR) return fails(to, what, strerror(errno));
        if (ready == 0 && to->deadline - tms_now_us() <= 0) {
            to->timed_out = true;
            return fails(to, what, "the server has not answered in time");
        }
    }
}

/* Sends all pieces; no signal is raised where the server has gone. */
static bool send_all(call *to, const struct iovec *pieces, size_t n) {
    size_t done = 0; /* of the first piece */
    while (n > 0) {
        struct iovec some[PIECES];
        const size_t count = n < PIECES ? n : PIECES;
        memcpy(some, pieces, count * sizeof *some);
        some[0].iov_base = (char *)some[0].iov_base + done;
        some[0].iov_len -= done;
        const struct msghdr message = {.msg_iov = some, .msg_iovlen = count};
        ssize_t sent = sendmsg(to->context->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            if (!wait_for(to, POLLOUT, "sending")) return false;
            continue;
        }
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return fails(to, "sending", strerror(errno));
        while (n > 0 && (size_t)sent >= pieces->iov_len - done) {
            sent -= (ssize_t)(pieces->iov_len - done);
            done = 0;
            pieces++;
            n--;
        }
        done += (size_t)sent;
    }
    return true;
}

/* Takes in what has come. */
static bool feed(call *to) {
    char some[1 << 16];
    if (!wait_for(to, POLLIN, "waiting for a reply")) return false;
    const ssize_t got = recv(to->context->fd, some, sizeof some, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return true;
    if (got < 0) return fails(to, "reading", strerror(errno));
    if (got == 0) return fails(to, "reading", "the server has closed the connection");
    to->answered = true;
    if ((uint64_t)got > to->room) return fails(to, "reading", "the reply is longer than asked for");
    to->room -= (uint64_t)got;
    if (redisReaderFeed(to->context->reader, some, (size_t)got) != REDIS_OK)
        return fails(to, "reading", to->context->reader->errstr);
    return true;
}

static bool receive(call *to, redisReply **replies, unsigned n) {
    const redisReader *reader = to->context->reader;
    for (unsigned i = 0; i < n;) {
        void *reply = NULL;
        if (redisReaderGetReply(to->context->reader, &reply) != REDIS_OK)
            return fails(to, "the reply is none", reader->errstr);
        replies[i] = reply;
        if (reply)
            i++;
        else if (!feed(to))
            return false;
    }
    if (reader->len > reader->pos)
        return fails(to, "reading", "the reply is longer than asked for");
    return true;
}

/* A server that hangs up before all of a command has come says why beforehand: then that, which is
 * there already, is the reply of the first command. */
static bool take_refusal(call *to, redisReply **replies, unsigned n) {
    const call before = *to;
    to->deadline = tms_now_us() + REFUSAL_US;
    if (n == 1 && receive(to, replies, 1) && replies[0]->type == REDIS_REPLY_ERROR) return true;
    memcpy(to->reason, before.reason, sizeof to->reason);
    to->timed_out = before.timed_out;
    return false;
}

static uint64_t bytes_of(const struct iovec *pieces, size_t n) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += pieces[i].iov_len;
    return bytes;
}

/* One exchange. A command has the timeout, and more for the bytes that it moves. */
static bool exchange(const tms_redis *redis, call *to, const struct iovec *pieces, size_t n,
                     redisReply **replies, unsigned n_replies, uint64_t reply_bytes) {
    const uint64_t moved = bytes_of(pieces, n) + reply_bytes;
    to->deadline = tms_now_us() + 1e3 * (redis->timeout_ms + (double)(moved / BYTES_PER_MS));
    to->room = reply_bytes + FRAMES;
    if (send_all(to, pieces, n)) return receive(to, replies, n_replies);
    return !to->timed_out && take_refusal(to, replies, n_replies);
}

/* ---- Connections ----------------------------------------------------------------------------- */

/* hiredis' own, but for arrays that no server sends here: their memory is taken before they come. */
static redisReplyObjectFunctions parts_of_replies;
static void *(*own_array)(const redisReadTask *task, array_size n);
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void *make_array(const redisReadTask *task, array_size n) {
    return (size_t)n > MOST_ELEMENTS ? NULL : own_array(task, n);
}

static void copy_parts(void) {
    redisReader *reader = redisReaderCreate();
    if (!reader) return;
    parts_of_replies = *reader->fn;
    own_array = parts_of_replies.createArray;
    parts_of_replies.createArray = make_array;
    redisReaderFree(reader);
}

/* Words that end with NULL, as bytes that the caller frees by redisFreeCommand; *bytes < 0: no
 * memory. */
static char *format(const char *const *words, const size_t *lengths, int n, int *bytes) {
    char *text = NULL;
    const char *copy[TMS_REDIS_WORDS];
    memcpy(copy, words, (size_t)n * sizeof *copy);
    *bytes = redisFormatCommandArgv(&text, n, copy, lengths);
    return text;
}

/* Password and database. */
static bool introduce(const tms_redis *redis, call *to) {
    char number[16];
    snprintf(number, sizeof number, "%u", redis->database);
    const char *words[2][2] = {{"AUTH", redis->password}, {"SELECT", number}};
    const bool wanted[2] = {redis->password != NULL, redis->database != 0};
    bool well = true;
    for (int i = 0; i < 2 && well; i++) {
        if (!wanted[i]) continue;
        const size_t lengths[2] = {strlen(words[i][0]), strlen(words[i][1])};
        redisReply *reply = NULL;
        int bytes;
        char *text = format(words[i], lengths, 2, &bytes);
        if (!text || bytes < 0) return fails(to, words[i][0], "no memory");
        const struct iovec piece = {text, (size_t)bytes};
        well = exchange(redis, to, &piece, 1, &reply, 1, 0);
        redisFreeCommand(text);
        if (well && reply->type != REDIS_REPLY_STATUS)
            well =
                fails(to, words[i][0], reply->type == REDIS_REPLY_ERROR ? reply->str : "refused");
        if (reply) freeReplyObject(reply);
    }
    return well;
}

static bool connect_to(const tms_redis *redis, call *to) {
    const struct timeval wait = {redis->timeout_ms / 1000, redis->timeout_ms % 1000 * 1000};
    to->context = redis->port ? redisConnectWithTimeout(redis->host, redis->port, wait)
                              : redisConnectUnixWithTimeout(redis->host, wait);
    to->used_before = false;
    pthread_once(&once, copy_parts);
    if (!to->context || !own_array) return fails(to, "connecting", "no memory");
    if (to->context->err) return fails(to, "connecting", to->context->errstr);
    fcntl(to->context->fd, F_SETFD, FD_CLOEXEC);
    to->context->reader->fn = &parts_of_replies;
    return introduce(redis, to);
}

/* Whether nothing has come on a connection since it was left, not even its end. */
static bool quiet(const redisContext *context) {
    char one;
    return recv(context->fd, &one, 1, MSG_PEEK | MSG_DONTWAIT) < 0 &&
           (errno == EAGAIN || errno == EWOULDBLOCK);
}

/* A connection that is idle, or a new one. */
static bool take_link(tms_redis *redis, bool fresh, call *to) {
    *to = (call){0};
    for (;;) {
        pthread_mutex_lock(&redis->mutex);
        to->generation = redis->generation;
        to->context = !fresh && redis->n_idle > 0 ? redis->idle[--redis->n_idle] : NULL;
        pthread_mutex_unlock(&redis->mutex);
        if (!to->context) return connect_to(redis, to);
        to->used_before = true;
        if (quiet(to->context)) return true;
        redisFree(to->context);
    }
}

static void drop_link(call *to) {
    if (to->context) redisFree(to->context);
    to->context = NULL;
}

/* The exchange went well: the server is there. */
static void keep_link(tms_redis *redis, call *to) {
    pthread_mutex_lock(&redis->mutex);
    redis->failures = 0;
    if (redis->n_idle < TMS_REDIS_IDLE && to->generation == redis->generation) {
        redis->idle[redis->n_idle++] = to->context;
        to->context = NULL;
    }
    pthread_mutex_unlock(&redis->mutex);
    drop_link(to);
}

void tms_redis_hang_up(tms_redis *redis) {
    for (unsigned i = 0; i < redis->n_idle; i++)
        redisFree(redis->idle[i]);
    redis->n_idle = 0;
}

static void free_replies(redisReply **replies, unsigned n) {
    for (unsigned i = 0; i < n; i++) {
        if (replies[i]) freeReplyObject(replies[i]);
        replies[i] = NULL;
    }
}

/* A connection that the server had closed while it was idle is no failure: another one is tried. */
static tamis_status ask(tms_redis *redis, const struct iovec *pieces, size_t n,
                        redisReply **replies, unsigned n_replies, uint64_t reply_bytes,
                        tamis_error *error) {
    call to;
    TMS_TRY(may_ask(redis, error));
    for (int try = 0;; try++) {
        const bool linked = take_link(redis, try > 0, &to);
        if (linked && exchange(redis, &to, pieces, n, replies, n_replies, reply_bytes)) break;
        const bool again = linked && to.used_before && !to.timed_out && !to.answered;
        free_replies(replies, n_replies);
        drop_link(&to);
        if (!again) return tms_redis_give_up(redis, to.reason, error);
    }
    keep_link(redis, &to);
    return TAMIS_OK;
}

/* ---- Commands -------------------------------------------------------------------------------- */

void tms_redis_add(tms_redis_batch *batch, ...) {
    va_list args;
    int n = 0;
    va_start(args, batch);
    for (const char *word; (word = va_arg(args, const char *)); n++) {
        batch->words[batch->count][n] = word;
        batch->lengths[batch->count][n] = strlen(word);
    }
    va_end(args);
    batch->n_words[batch->count++] = n;
}

tamis_status tms_redis_ask(tms_redis *redis, tms_redis_batch *batch, tamis_error *error) {
    struct iovec pieces[TMS_REDIS_COMMANDS] = {{0}};
    tamis_status status = TAMIS_OK;
    for (unsigned i = 0; i < batch->count; i++) {
        int bytes;
        pieces[i].iov_base = format(batch->words[i], batch->lengths[i], batch->n_words[i], &bytes);
        pieces[i].iov_len = bytes > 0 ? (size_t)bytes : 0;
        if (bytes < 0)
            status = tms_error_set(error, TAMIS_E_NO_MEMORY, "no memory for a redis command");
    }
    if (status == TAMIS_OK)
        status = ask(redis, pieces, batch->count, batch->replies, batch->count, batch->reply_bytes,
                     error);
    for (unsigned i = 0; i < batch->count; i++)
        if (pieces[i].iov_base) redisFreeCommand(pieces[i].iov_base);
    return status;
}

void tms_redis_free(tms_redis_batch *batch) {
    free_replies(batch->replies, batch->count);
}

tamis_status tms_redis_send(tms_redis *redis, const struct iovec *pieces, size_t n,
                            redisReply **reply, tamis_error *error) {
    *reply = NULL;
    return ask(redis, pieces, n, reply, 1, 0, error);
}

tamis_status tms_redis_refused(tms_redis *redis, const char *what, const redisReply *reply,
                               tamis_error *error) {
    char reason[64];
    snprintf(reason, sizeof reason, "%s: the reply is none to this command", what);
    if (!reply || reply->type != REDIS_REPLY_ERROR) return tms_redis_give_up(redis, reason, error);
    const bool full = strncmp(reply->str, "OOM", 3) == 0;
    return tms_error_set(error, full ? TAMIS_E_FULL : TAMIS_E_IO, "redis %s: %s: %s",
                         redis->address, what, tms_quote(reply->str).text);
}

bool tms_redis_is(tms_redis *redis, const char *what, const redisReply *reply, int type,
                  tamis_status *status, tamis_error *error) {
    if (*status != TAMIS_OK) return false;
    if (reply && reply->type == type) return true;
    *status = tms_redis_refused(redis, what, reply, error);
    return false;
}
