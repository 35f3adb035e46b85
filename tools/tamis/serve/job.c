/* SPDX-License-Identifier: Apache-2.0 */
/* What two threads share of a request. */
#define _GNU_SOURCE /* POLLRDHUP */
#include "serve/job.h"

#include "cli/clock.h"

#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* Bytes of a stream that wait for its client: one that reads too slowly for that is given up. */
#define UNSENT_MAX ((size_t)8 << 20)

static void make_id(serve_job *job) {
    uint64_t random[2] = {0};
    if (getrandom(random, sizeof random, 0) != sizeof random) random[0] = (uint64_t)(uintptr_t)job;
    snprintf(job->id, sizeof job->id, "%s-%016" PRIx64 "%08" PRIx64,
             job->request->endpoint == SERVE_CHAT ? "chatcmpl" : "cmpl", random[0],
             random[1] & UINT32_MAX);
}

serve_job *serve_job_new(serve_request *request, struct MHD_Connection *connection) {
    serve_job *job = calloc(1, sizeof *job);
    if (job == NULL) return NULL;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    job->request = request;
    job->connection = connection;
    job->socket = info != NULL ? info->connect_fd : -1;
    job->holders = 1;
    job->created = time(NULL);
    job->arrived = cli_seconds();
    pthread_mutex_init(&job->lock, NULL);
    make_id(job);
    return job;
}

void serve_job_hold(serve_job *job) {
    pthread_mutex_lock(&job->lock);
    job->holders++;
    pthread_mutex_unlock(&job->lock);
}

void serve_job_release(serve_job *job) {
    if (job == NULL) return;
    pthread_mutex_lock(&job->lock);
    const bool last = --job->holders == 0;
    pthread_mutex_unlock(&job->lock);
    if (!last) return;
    pthread_mutex_destroy(&job->lock);
    serve_request_free(job->request);
    free(job->out);
    free(job->documents);
    free(job);
}

/* Under the lock. A connection that is suspended does not end, so that the pointer is good. */
static void wake(serve_job *job) {
    if (!job->suspended) return;
    job->suspended = false;
    MHD_resume_connection(job->connection);
}

/* ---- By the engine --------------------------------------------------------------------------- */

static bool make_room(serve_job *job, size_t bytes) {
    if (job->bytes + bytes <= job->room) return true;
    job->bytes -= job->sent;
    if (job->sent > 0) memmove(job->out, job->out + job->sent, job->bytes);
    job->sent = 0;
    if (job->request->stream && job->bytes > UNSENT_MAX) return false;
    if (job->bytes + bytes <= job->room) return true;
    const size_t room = 2 * (job->bytes + bytes);
    char *out = realloc(job->out, room);
    if (out == NULL) return false;
    job->out = out;
    job->room = room;
    return true;
}

void serve_job_write(serve_job *job, const char *text, size_t bytes) {
    pthread_mutex_lock(&job->lock);
    if (job->ended) {
        /* It was given up: what comes late would stand behind its error. */
    } else if (make_room(job, bytes)) {
        memcpy(job->out + job->bytes, text, bytes);
        job->bytes += bytes;
    } else {
        job->gone = true;
    }
    if (job->request->stream || job->gone) wake(job);
    pthread_mutex_unlock(&job->lock);
}

void serve_job_end(serve_job *job, unsigned http, unsigned retry_after) {
    pthread_mutex_lock(&job->lock);
    if (!job->ended) {
        job->http = http;
        job->retry_after = retry_after;
    }
    job->ended = true;
    wake(job);
    pthread_mutex_unlock(&job->lock);
}

/* The library does not look at the socket of a connection that is suspended. A client that has only
 * ended its own sending counts as gone, too: HTTP clients do that when they leave. */
static bool has_hung_up(int socket) {
    struct pollfd one = {.fd = socket, .events = POLLRDHUP};
    return socket >= 0 && poll(&one, 1, 0) > 0 &&
           (one.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

bool serve_job_is_gone(serve_job *job) {
    pthread_mutex_lock(&job->lock);
    if (!job->gone && job->connection != NULL && has_hung_up(job->socket)) {
        job->gone = true;
        wake(job);
    }
    const bool gone = job->gone || job->ended;
    pthread_mutex_unlock(&job->lock);
    return gone;
}

/* ---- By the connection ------------------------------------------------------------------------ */

bool serve_job_wait(serve_job *job, bool whole) {
    pthread_mutex_lock(&job->lock);
    const bool waits = !job->ended && !job->gone && (whole || job->sent == job->bytes);
    if (waits) {
        job->suspended = true;
        MHD_suspend_connection(job->connection);
    }
    pthread_mutex_unlock(&job->lock);
    return waits;
}

ssize_t serve_job_read(void *user, uint64_t at, char *to, size_t room) {
    serve_job *job = user;
    (void)at;
    if (serve_job_wait(job, false)) return 0;
    pthread_mutex_lock(&job->lock);
    size_t n = job->bytes - job->sent;
    n = n < room ? n : room;
    ssize_t answer = (ssize_t)n;
    if (n > 0) memcpy(to, job->out + job->sent, n);
    job->sent += n;
    if (n == 0)
        answer = job->gone ? MHD_CONTENT_READER_END_WITH_ERROR : MHD_CONTENT_READER_END_OF_STREAM;
    if (job->sent == job->bytes) job->sent = job->bytes = 0;
    pthread_mutex_unlock(&job->lock);
    return answer;
}

void serve_job_leave(serve_job *job) {
    pthread_mutex_lock(&job->lock);
    job->connection = NULL;
    job->suspended = false;
    job->gone |= !job->ended;
    pthread_mutex_unlock(&job->lock);
}
