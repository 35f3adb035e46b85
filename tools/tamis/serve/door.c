/* SPDX-License-Identifier: Apache-2.0 */
/* Connections come in and are watched. libmicrohttpd ends a connection on which nothing moves; one that
 * sends a byte of its headers now and then would live for days. And libmicrohttpd must not be told to
 * stop listening while its thread runs (MHD_quiesce_daemon): when both take the socket out of epoll at
 * once, the library aborts the process. So it never listens. */
#define _GNU_SOURCE /* accept4 */
#include "serve/door.h"

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

struct serve_guest {
    int socket;
    double since; /* cli_seconds; 0: it is not watched */
    serve_guest *before, *next;
};

struct serve_door {
    struct MHD_Daemon *daemon;
    int wake; /* eventfd: there is something to look at */
    uint32_t most;
    double seconds, swept, accepted; /* accepted: when the newest connection was */
    bool deaf, runs; /* deaf: until the next sweep, for there were no files or no memory */
    pthread_t thread;

    pthread_mutex_t lock; /* of the rest */
    pthread_cond_t changed;
    int socket; /* -1: closed */
    bool shuts, stops;
    serve_guest *guests;
    uint32_t n_guests, on_the_way; /* accepted, but not guests yet */
};

/* ---- Watching --------------------------------------------------------------------------------- */

/* The daemon's thread sees a socket that is shut down as one whose client has left. */
static void sweep(serve_door *door) {
    const double now = cli_seconds();
    if (now - door->swept < SWEEP_MS / 1000.0) return;
    door->swept = now;
    door->deaf = false;
    pthread_mutex_lock(&door->lock);
    for (serve_guest *guest = door->guests; guest != NULL; guest = guest->next)
        if (guest->since > 0 && now - guest->since > door->seconds)
            shutdown(guest->socket, SHUT_RDWR);
    /* What has not come by now, the daemon had no memory for. */
    if (now - door->accepted > LOST_SECONDS) door->on_the_way = 0;
    pthread_mutex_unlock(&door->lock);
}

static void wake(serve_door *door) {
    const uint64_t one = 1;
    const ssize_t written = write(door->wake, &one, sizeof one);
    (void)written; /* what is full wakes, too */
}

serve_guest *serve_door_enter(serve_door *door, int socket) {
    serve_guest *guest = calloc(1, sizeof *guest);
    pthread_mutex_lock(&door->lock);
    if (door->on_the_way > 0) door->on_the_way--;
    if (guest != NULL) {
        *guest = (serve_guest){socket, cli_seconds(), NULL, door->guests};
        if (guest->next != NULL) guest->next->before = guest;
        door->guests = guest;
        door->n_guests++;
    }
    pthread_mutex_unlock(&door->lock);
    return guest;
}

void serve_door_leave(serve_door *door, serve_guest *guest) {
    if (guest == NULL) return;
    pthread_mutex_lock(&door->lock);
    if (guest->next != NULL) guest->next->before = guest->before;
    *(guest->before != NULL ? &guest->before->next : &door->guests) = guest->next;
    door->n_guests--;
    pthread_mutex_unlock(&door->lock);
    free(guest);
    wake(door);
}

void serve_door_watch(serve_door *door, serve_guest *guest, bool watched) {
    if (guest == NULL) return;
    pthread_mutex_lock(&door->lock);
    guest->since = watched ? cli_seconds() : 0;
    pthread_mutex_unlock(&door->lock);
}

/* ---- Accepting -------------------------------------------------------------------------------- */

/* Closes the port if that is wanted. Returns the socket to be listened on; -1: none. */
static int look(serve_door *door, bool *stops) {
    pthread_mutex_lock(&door->lock);
    if (door->shuts && door->socket >= 0) {
        close(door->socket);
        door->socket = -1;
        pthread_cond_broadcast(&door->changed);
    }
    *stops = door->stops;
    const bool full = door->n_guests + door->on_the_way >= door->most;
    const int socket = full || door->deaf ? -1 : door->socket;
    pthread_mutex_unlock(&door->lock);
    return socket;
}

/* The daemon closes what it does not take. */
static void let_in(serve_door *door, int listening) {
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;
    const int socket =
        accept4(listening, (struct sockaddr *)&address, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0) {
        door->deaf = errno != EAGAIN && errno != EINTR && errno != ECONNABORTED;
        return;
    }
    door->accepted = cli_seconds();
    pthread_mutex_lock(&door->lock);
    door->on_the_way++;
    pthread_mutex_unlock(&door->lock);
    if (MHD_add_connection(door->daemon, socket, (struct sockaddr *)&address, bytes) != MHD_YES)
        door->deaf = true;
}

static void *run(void *user) {
    serve_door *door = user;
    bool stops = false;
    for (int socket; socket = look(door, &stops), !stops;) {
        struct pollfd both[2] = {{.fd = door->wake, .events = POLLIN},
                                 {.fd = socket, .events = POLLIN}};
        uint64_t count;
        poll(both, 2, SWEEP_MS); /* a socket of -1 is passed over */
        const ssize_t got = read(door->wake, &count, sizeof count);
        (void)got; /* there may be nothing */
        if (both[1].revents != 0) let_in(door, socket);
        sweep(door);
    }
    return NULL;
}

/* ---- Opening and closing ---------------------------------------------------------------------- */

serve_door *serve_door_open(int socket, uint32_t most, uint32_t seconds) {
    serve_door *door = calloc(1, sizeof *door);
    if (door == NULL) return NULL;
    door->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (door->wake < 0) {
        free(door);
        return NULL;
    }
    door->socket = socket;
    door->most = most;
    door->seconds = seconds;
    pthread_mutex_init(&door->lock, NULL);
    pthread_cond_init(&door->changed, NULL);
    return door;
}

bool serve_door_start(serve_door *door, struct MHD_Daemon *daemon) {
    door->daemon = daemon;
    door->runs = pthread_create(&door->thread, NULL, run, door) == 0;
    return door->runs;
}

void serve_door_shut(serve_door *door) {
    pthread_mutex_lock(&door->lock);
    door->shuts = true;
    wake(door);
    while (door->runs && door->socket >= 0)
        pthread_cond_wait(&door->changed, &door->lock);
    pthread_mutex_unlock(&door->lock);
}

void serve_door_stop(serve_door *door) {
    if (!door->runs) return;
    pthread_mutex_lock(&door->lock);
    door->stops = true;
    pthread_mutex_unlock(&door->lock);
    wake(door);
    pthread_join(door->thread, NULL);
    door->runs = false;
}

void serve_door_close(serve_door *door) {
    if (door == NULL) return;
    if (door->socket >= 0) close(door->socket);
    close(door->wake);
    pthread_cond_destroy(&door->changed);
    pthread_mutex_destroy(&door->lock);
    free(door);
}
