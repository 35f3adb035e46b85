/* SPDX-License-Identifier: Apache-2.0 */
/* Connections come in and are watched. libmicrohttpd ends a connection on which nothing moves; one that
 * sends a byte of its headers now and then would live for days. And libmicrohttpd must not be told to
 * stop listening while its thread runs (MHD_quiesce_daemon): when both take the socket out of epoll at
 * once, the library aborts the process. So it never listens. */
#define _GNU_SOURCE /* accept4 */
#include "serve/listener.h"

#include "cli/clock.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define SWEEP_MS     500
#define LOST_SECONDS 10

struct serve_connection {
    int socket;
    double since; /* cli_seconds; 0: it is not watched */
    serve_connection *before, *next;
};

struct serve_listener {
    struct MHD_Daemon *daemon;
    int wake; /* eventfd: there is something to look at */
    uint32_t most;
    double seconds, swept, accepted; /* accepted: when the newest connection was */
    bool paused, runs; /* paused: until the next sweep, for there were no files or no memory */
    pthread_t thread;

    pthread_mutex_t lock; /* of the rest */
    pthread_cond_t changed;
    int socket; /* -1: closed */
    bool shuts, stops;
    serve_connection *connections;
    uint32_t n_connections, pending; /* accepted, but not connections yet */
};

/* ---- Watching --------------------------------------------------------------------------------- */

/* The daemon's thread sees a socket that is shut down as one whose client has left. */
static void sweep(serve_listener *listener) {
    const double now = cli_seconds();
    if (now - listener->swept < SWEEP_MS / 1000.0) return;
    listener->swept = now;
    listener->paused = false;
    pthread_mutex_lock(&listener->lock);
    for (serve_connection *connection = listener->connections; connection != NULL;
         connection = connection->next)
        if (connection->since > 0 && now - connection->since > listener->seconds)
            shutdown(connection->socket, SHUT_RDWR);
    /* What has not come by now, the daemon had no memory for. */
    if (now - listener->accepted > LOST_SECONDS) listener->pending = 0;
    pthread_mutex_unlock(&listener->lock);
}

static void wake(serve_listener *listener) {
    const uint64_t one = 1;
    const ssize_t written = write(listener->wake, &one, sizeof one);
    (void)written; /* what is full wakes, too */
}

serve_connection *serve_listener_enter(serve_listener *listener, int socket) {
    serve_connection *connection = calloc(1, sizeof *connection);
    pthread_mutex_lock(&listener->lock);
    if (listener->pending > 0) listener->pending--;
    if (connection != NULL) {
        *connection = (serve_connection){socket, cli_seconds(), NULL, listener->connections};
        if (connection->next != NULL) connection->next->before = connection;
        listener->connections = connection;
        listener->n_connections++;
    }
    pthread_mutex_unlock(&listener->lock);
    return connection;
}

void serve_listener_leave(serve_listener *listener, serve_connection *connection) {
    if (connection == NULL) return;
    pthread_mutex_lock(&listener->lock);
    if (connection->next != NULL) connection->next->before = connection->before;
    *(connection->before != NULL ? &connection->before->next : &listener->connections) =
        connection->next;
    listener->n_connections--;
    pthread_mutex_unlock(&listener->lock);
    free(connection);
    wake(listener);
}

void serve_listener_watch(serve_listener *listener, serve_connection *connection, bool watched) {
    if (connection == NULL) return;
    pthread_mutex_lock(&listener->lock);
    connection->since = watched ? cli_seconds() : 0;
    pthread_mutex_unlock(&listener->lock);
}

/* ---- Accepting -------------------------------------------------------------------------------- */

/* Closes the port if that is wanted. Returns the socket to be listened on; -1: none. */
static int socket_to_poll(serve_listener *listener, bool *stops) {
    pthread_mutex_lock(&listener->lock);
    if (listener->shuts && listener->socket >= 0) {
        close(listener->socket);
        listener->socket = -1;
        pthread_cond_broadcast(&listener->changed);
    }
    *stops = listener->stops;
    const bool full = listener->n_connections + listener->pending >= listener->most;
    const int socket = full || listener->paused ? -1 : listener->socket;
    pthread_mutex_unlock(&listener->lock);
    return socket;
}

/* The daemon closes what it does not take. */
static void accept_one(serve_listener *listener, int listening) {
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;
    const int socket =
        accept4(listening, (struct sockaddr *)&address, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0) {
        listener->paused = errno != EAGAIN && errno != EINTR && errno != ECONNABORTED;
        return;
    }
    listener->accepted = cli_seconds();
    pthread_mutex_lock(&listener->lock);
    listener->pending++;
    pthread_mutex_unlock(&listener->lock);
    if (MHD_add_connection(listener->daemon, socket, (struct sockaddr *)&address, bytes) != MHD_YES)
        listener->paused = true;
}

static void *run(void *user) {
    serve_listener *listener = user;
    bool stops = false;
    for (int socket; socket = socket_to_poll(listener, &stops), !stops;) {
        struct pollfd both[2] = {{.fd = listener->wake, .events = POLLIN},
                                 {.fd = socket, .events = POLLIN}};
        uint64_t count;
        poll(both, 2, SWEEP_MS); /* a socket of -1 is passed over */
        const ssize_t got = read(listener->wake, &count, sizeof count);
        (void)got; /* there may be nothing */
        if (both[1].revents != 0) accept_one(listener, socket);
        sweep(listener);
    }
    return NULL;
}

/* ---- Opening and closing ---------------------------------------------------------------------- */

serve_listener *serve_listener_open(int socket, uint32_t most, uint32_t seconds) {
    serve_listener *listener = calloc(1, sizeof *listener);
    if (listener == NULL) return NULL;
    listener->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (listener->wake < 0) {
        free(listener);
        return NULL;
    }
    listener->socket = socket;
    listener->most = most;
    listener->seconds = seconds;
    pthread_mutex_init(&listener->lock, NULL);
    pthread_cond_init(&listener->changed, NULL);
    return listener;
}

bool serve_listener_start(serve_listener *listener, struct MHD_Daemon *daemon) {
    listener->daemon = daemon;
    listener->runs = pthread_create(&listener->thread, NULL, run, listener) == 0;
    return listener->runs;
}

void serve_listener_shut(serve_listener *listener) {
    pthread_mutex_lock(&listener->lock);
    listener->shuts = true;
    wake(listener);
    while (listener->runs && listener->socket >= 0)
        pthread_cond_wait(&listener->changed, &listener->lock);
    pthread_mutex_unlock(&listener->lock);
}

void serve_listener_stop(serve_listener *listener) {
    if (!listener->runs) return;
    pthread_mutex_lock(&listener->lock);
    listener->stops = true;
    pthread_mutex_unlock(&listener->lock);
    wake(listener);
    pthread_join(listener->thread, NULL);
    listener->runs = false;
}

void serve_listener_close(serve_listener *listener) {
    if (listener == NULL) return;
    if (listener->socket >= 0) close(listener->socket);
    close(listener->wake);
    pthread_cond_destroy(&listener->changed);
    pthread_mutex_destroy(&listener->lock);
    free(listener);
}
