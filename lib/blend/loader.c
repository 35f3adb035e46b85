/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that reads ahead, and its ring. */
#include "lib/blend/loader.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>

static uint64_t padded(uint64_t bytes) {
    return tms_divide_up(bytes, 64) * 64;
}

uint64_t tms_read_bytes(const tms_read *read) {
    return (uint64_t)(read->k + read->v) * padded(read->plane_bytes);
}

static tamis_status read_chunk(void *user, tamis_chunk *chunk, uint32_t layer, void *k, void *v,
                               tamis_error *error) {
    (void)user;
    return tamis_chunk_read(chunk, layer, k, v, error);
}

tamis_status tms_loader_init(tms_loader *loader, tamis_blend_reader reader, void *reader_user,
                             tamis_error *error) {
    *loader = (tms_loader){.reader = reader ? reader : read_chunk, .reader_user = reader_user};
    TMS_REQUIRE(pthread_mutex_init(&loader->mutex, NULL) == 0, TAMIS_E_NO_MEMORY,
                "no memory for a mutex");
    if (pthread_cond_init(&loader->moved, NULL) == 0) return TAMIS_OK;
    pthread_mutex_destroy(&loader->mutex);
    return tms_error_set(error, TAMIS_E_NO_MEMORY, "no memory for a condition");
}

void tms_loader_free(tms_loader *loader) {
    tms_loader_stop(loader);
    pthread_cond_destroy(&loader->moved);
    pthread_mutex_destroy(&loader->mutex);
    free(loader->slots);
}

/* ---- Reading --------------------------------------------------------------------------------- */

/* Reads the i-th of the list into its place, which nobody else uses meanwhile. */
static void read_one(tms_loader *loader, uint32_t i) {
    const tms_read *read = &loader->reads[i];
    uint8_t *at = loader->ring + read->at;
    uint8_t *k = read->k ? at : NULL,
            *v = read->v ? at + read->k * padded(read->plane_bytes) : NULL;
    tms_loaded *slot = &loader->slots[i % loader->n_slots];
    *slot = (tms_loaded){.read = read, .slot = i % loader->n_slots, .k = k, .v = v};
    const double begun = tms_now_us();
    slot->status =
        loader->reader(loader->reader_user, read->chunk, read->layer, k, v, &slot->error);
    slot->read_us = tms_now_us() - begun;
}

static void *run(void *of) {
    tms_loader *loader = of;
    pthread_mutex_lock(&loader->mutex);
    while (!loader->stop && loader->n_read < loader->n_reads) {
        if (loader->n_given < loader->reads[loader->n_read].behind) {
            pthread_cond_wait(&loader->moved, &loader->mutex);
            continue;
        }
        const uint32_t i = loader->n_read;
        pthread_mutex_unlock(&loader->mutex);
        read_one(loader, i);
        pthread_mutex_lock(&loader->mutex);
        loader->n_read++;
        pthread_cond_broadcast(&loader->moved);
    }
    pthread_mutex_unlock(&loader->mutex);
    return NULL;
}

/* ---- Start and stop -------------------------------------------------------------------------- */

/* How many reads must have been given back before the i-th can be read: up to the last one that lies
 * in its place. */
static uint32_t reads_behind(const tms_read *reads, uint32_t i) {
    const uint64_t begin = reads[i].at, end = begin + tms_read_bytes(&reads[i]);
    uint32_t n = i;
    while (n > 0 &&
           (reads[n - 1].at >= end || reads[n - 1].at + tms_read_bytes(&reads[n - 1]) <= begin))
        n--;
    return n;
}

tms_ring_shape tms_reads_place(tms_read *reads, uint32_t n_reads, uint64_t most, bool threaded) {
    tms_ring_shape shape = {0, 0};
    uint64_t all = 0, at = 0;
    for (uint32_t i = 0; i < n_reads; i++) {
        const uint64_t bytes = tms_read_bytes(&reads[i]);
        all += bytes;
        if (bytes > shape.bytes) shape.bytes = bytes;
    }
    if (threaded && most > shape.bytes) shape.bytes = most < all ? most : all;
    for (uint32_t i = 0; i < n_reads; i++) {
        const uint64_t bytes = tms_read_bytes(&reads[i]);
        if (!threaded || bytes > shape.bytes - at) at = 0;
        reads[i].at = at;
        reads[i].behind = threaded ? reads_behind(reads, i) : i;
        if (i + 1 - reads[i].behind > shape.n_slots) shape.n_slots = i + 1 - reads[i].behind;
        at += bytes;
    }
    return shape;
}

static tamis_status make_room(tms_loader *loader, tamis_error *error) {
    if (loader->n_slots <= loader->slots_room) return TAMIS_OK;
    free(loader->slots);
    loader->slots_room = 0;
    loader->slots = malloc(loader->n_slots * sizeof *loader->slots);
    TMS_REQUIRE(loader->slots, TAMIS_E_NO_MEMORY, "no memory for a ring of %" PRIu32 " slots",
                loader->n_slots);
    loader->slots_room = loader->n_slots;
    return TAMIS_OK;
}

/* The thread takes none of the program's signals. */
static int start_thread(tms_loader *loader) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int failed = pthread_create(&loader->thread, NULL, run, loader);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

tamis_status tms_loader_start(tms_loader *loader, const tms_read *reads, uint32_t n_reads,
                              const tms_ring_shape *shape, uint8_t *ring, bool threaded,
                              tamis_error *error) {
    tms_loader_stop(loader);
    loader->reads = reads;
    loader->n_reads = n_reads;
    loader->n_read = loader->n_given = 0;
    loader->stop = false;
    loader->ring = ring;
    loader->n_slots = shape->n_slots;
    if (n_reads == 0) return TAMIS_OK;
    TMS_TRY(make_room(loader, error));
    if (!threaded) return TAMIS_OK;
    const int failed = start_thread(loader);
    TMS_REQUIRE(failed == 0, TAMIS_E_NO_MEMORY, "no thread to read chunks: error %d", failed);
    loader->threaded = true;
    return TAMIS_OK;
}

void tms_loader_stop(tms_loader *loader) {
    if (!loader->threaded) return;
    pthread_mutex_lock(&loader->mutex);
    loader->stop = true;
    pthread_cond_broadcast(&loader->moved);
    pthread_mutex_unlock(&loader->mutex);
    pthread_join(loader->thread, NULL);
    loader->threaded = false;
}

/* ---- Taking ---------------------------------------------------------------------------------- */

const tms_loaded *tms_loader_take(tms_loader *loader) {
    const double begun = tms_now_us();
    const uint32_t i = loader->n_given;
    if (loader->threaded) {
        pthread_mutex_lock(&loader->mutex);
        while (loader->n_read == i)
            pthread_cond_wait(&loader->moved, &loader->mutex);
        pthread_mutex_unlock(&loader->mutex);
    } else {
        read_one(loader, i);
        loader->n_read++;
    }
    tms_loaded *slot = &loader->slots[i % loader->n_slots];
    slot->wait_us = tms_now_us() - begun;
    return slot;
}

const tms_loaded *tms_loader_peek(tms_loader *loader, uint32_t i) {
    if (!loader->threaded) return NULL;
    pthread_mutex_lock(&loader->mutex);
    const bool there = i >= loader->n_given && i < loader->n_read;
    pthread_mutex_unlock(&loader->mutex);
    return there ? &loader->slots[i % loader->n_slots] : NULL;
}

void tms_loader_give(tms_loader *loader) {
    pthread_mutex_lock(&loader->mutex);
    loader->n_given++;
    pthread_cond_broadcast(&loader->moved);
    pthread_mutex_unlock(&loader->mutex);
}
