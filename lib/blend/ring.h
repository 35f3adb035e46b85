/* SPDX-License-Identifier: Apache-2.0 */
/* The memory into which planes are read ahead, and its like on the device: the same bytes at the same
 * places, uploaded beside what the device computes. */
#ifndef TMS_BLEND_RING_H
#define TMS_BLEND_RING_H

#include "lib/blend/loader.h"
#include <tamis/buffer.h>

/* Of a read: they take turns. */
typedef struct tms_ring_slot {
    tamis_event *done; /* its upload; NULL: it has not been uploaded */
    tamis_event *used; /* behind the load of the read that was here before; NULL: there was none */
} tms_ring_slot;

typedef struct tms_ring {
    tamis_context *context;  /* constant */
    tamis_host_buffer *host; /* both of `bytes`; NULL before they are needed */
    tamis_buffer *device;
    uint64_t bytes;
    uint32_t n_slots;     /* since the last begin */
    tms_ring_slot *slots; /* [room] */
    uint32_t room;
    tamis_event *begun; /* the queue's end at the last begin: what came before may use the slots */
} tms_ring;

void tms_ring_free(tms_ring *ring); /* waits for uploads */
/* Gets ready for a list: nothing is in the ring. The loader must have stopped. Waits for uploads.
 * Errors: E_NO_MEMORY, E_DEVICE. */
tamis_status tms_ring_begin(tms_ring *ring, const tms_ring_shape *shape, tamis_error *error);
uint8_t *tms_ring_host(const tms_ring *ring);

/* Enqueues the upload of what has been read. */
tamis_status tms_ring_upload(tms_ring *ring, const tms_loaded *loaded, tamis_error *error);
/* What is enqueued from now on comes behind the upload. *k and *v: bytes from the beginning of
 * `device`. */
tamis_status tms_ring_await(const tms_ring *ring, const tms_loaded *loaded, uint64_t *k,
                            uint64_t *v, tamis_error *error);
/* All that reads its bytes on the device has been enqueued. Waits for the upload: then the host's may
 * be overwritten. */
tamis_status tms_ring_release(tms_ring *ring, const tms_loaded *loaded, tamis_error *error);

#endif
