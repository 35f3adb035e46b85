/* SPDX-License-Identifier: Apache-2.0 */
/* A line on a terminal that says that kernels are being compiled, and counts the time: a thread
 * writes it anew while the library is inside a compiler. The last one stays. */
#include "cli/building.h"

#include "cli/clock.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>

#define QUIET_S 0.4 /* kernels that a driver has kept take less: no line for these */
#define TICK_MS 200

static struct {
    pthread_mutex_t lock;
    pthread_cond_t ends;
    pthread_t thread;
    bool runs, shown;
    uint32_t done, all;
    double begin;
} line = {.lock = PTHREAD_MUTEX_INITIALIZER, .ends = PTHREAD_COND_INITIALIZER};

cli_building_text cli_building_line(uint32_t done, uint32_t all, double seconds) {
    cli_building_text out;
    snprintf(out.text, sizeof(out.text), "compiling kernels, once: %u of %u, %.1f s", done, all,
             seconds);
    return out;
}

static void *write_lines(void *user) {
    (void)user;
    pthread_mutex_lock(&line.lock);
    while (line.done < line.all) {
        const double seconds = cli_seconds() - line.begin;
        if (seconds >= QUIET_S) {
            fprintf(stderr, "\r\033[K%s", cli_building_line(line.done, line.all, seconds).text);
            fflush(stderr);
            line.shown = true;
        }
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += TICK_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        pthread_cond_timedwait(&line.ends, &line.lock, &until);
    }
    if (line.shown)
        fprintf(stderr, "\r\033[Kcompiled kernels, once: %u in %.1f s\n", line.all,
                cli_seconds() - line.begin);
    fflush(stderr);
    line.shown = false;
    pthread_mutex_unlock(&line.lock);
    return NULL;
}

/* Signals are for the program's own thread. */
static bool start(void) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(&line.thread, NULL, write_lines, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

void cli_building(void *user, const tamis_build_progress *progress) {
    (void)user;
    pthread_mutex_lock(&line.lock);
    if (progress->done == 0) line.begin = cli_seconds();
    line.done = progress->done;
    line.all = progress->all;
    const bool ends = line.runs && progress->done == progress->all;
    if (ends) pthread_cond_signal(&line.ends);
    pthread_mutex_unlock(&line.lock);
    if (progress->done == 0 && !line.runs) line.runs = start();
    if (!ends) return;
    pthread_join(line.thread, NULL);
    line.runs = false;
}
