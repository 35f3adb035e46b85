/* SPDX-License-Identifier: Apache-2.0 */
/* Reads planes of chunks ahead of who uses them: a list of reads, taken in its order, and a ring for
 * what has been read. One thread reads and one takes; without a thread, taking reads. */
#ifndef TMS_BLEND_LOADER_H
#define TMS_BLEND_LOADER_H

#include "lib/core/error.h"
#include <tamis/blend.h>

#include <pthread.h>

/* The planes of one layer of one chunk; either may be left out. */
typedef struct tms_read {
    tamis_chunk *chunk;
    uint32_t layer, part; /* part: the caller's */
    bool k, v;
    uint64_t plane_bytes;
    /* Set by tms_reads_place: its place in the ring, in bytes; and how many reads of the list must
     * have been given back before, because they lie in that place. */
    uint64_t at;
    uint32_t behind;
} tms_read;

/* What became of a read, in the ring until it is given back. */
typedef struct tms_loaded {
    const tms_read *read;
    uint32_t slot;
    const uint8_t *k, *v;
    tamis_status status; /* of the reader; unless it is OK, k and v hold nothing */
    tamis_error error;
    double read_us, wait_us; /* wait_us: of who takes it */
} tms_loaded;

typedef struct tms_loader {
    /* Constant from init on. */
    tamis_blend_reader reader;
    void *reader_user;
    /* Constant from start to stop. */
    const tms_read *reads;
    uint32_t n_reads, n_slots;
    bool threaded;     /* the thread runs */
    uint8_t *ring;     /* the caller's */
    tms_loaded *slots; /* [n_slots], kept from one start to the next */
    uint32_t slots_room;
    pthread_t thread;
    /* Guarded by the mutex. */
    pthread_mutex_t mutex;
    pthread_cond_t moved;
    uint32_t n_read, n_given; /* reads that are done; that were given back */
    bool stop;
} tms_loader;

/* `reader` may be NULL: tamis_chunk_read. */
tamis_status tms_loader_init(tms_loader *loader, tamis_blend_reader reader, void *reader_user,
                             tamis_error *error);
void tms_loader_free(tms_loader *loader);

/* A ring for a list: its bytes, and how many reads lie in it at a time at most. */
typedef struct tms_ring_shape {
    uint64_t bytes;
    uint32_t n_slots;
} tms_ring_shape;
/* Gives each read of a list its place in a ring of at most `most` bytes, but at least the largest
 * read's; without a thread all have the same. */
tms_ring_shape tms_reads_place(tms_read *reads, uint32_t n_reads, uint64_t most, bool threaded);
/* Begins to read the list, whose reads have their places and which must stay until the stop, as the
 * ring must. E_NO_MEMORY; then nothing has begun. */
tamis_status tms_loader_start(tms_loader *loader, const tms_read *reads, uint32_t n_reads,
                              const tms_ring_shape *shape, uint8_t *ring, bool threaded,
                              tamis_error *error);
/* Ends the thread, which finishes the plane that it is reading. Does nothing unless it was started.
 */
void tms_loader_stop(tms_loader *loader);

/* The next read of the list, of which there must be one; waits for it. */
const tms_loaded *tms_loader_take(tms_loader *loader);
/* The i-th read of the list, if it lies in the ring: it has been done, and not given back. NULL: it
 * does not. */
const tms_loaded *tms_loader_peek(tms_loader *loader, uint32_t i);
/* The place of the read that was taken last may be filled again. */
void tms_loader_give(tms_loader *loader);

/* Bytes that a read takes in the ring: the planes at multiples of 64. */
uint64_t tms_read_bytes(const tms_read *read);

#endif
