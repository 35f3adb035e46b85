/* SPDX-License-Identifier: Apache-2.0 */
/* The ring on the host and on the device, and the marks between uploads and loads. */
#include "lib/blend/ring.h"

#include <inttypes.h>
#include <stdlib.h>

void tms_ring_free(tms_ring *ring) {
    for (uint32_t i = 0; i < ring->room; i++) {
        tamis_event_destroy(&ring->slots[i].done);
        tamis_event_destroy(&ring->slots[i].used);
    }
    tamis_event_destroy(&ring->begun);
    tamis_host_buffer_destroy(&ring->host);
    tamis_buffer_destroy(&ring->device);
    free(ring->slots);
    *ring = (tms_ring){.context = ring->context};
}

/* What the list before has left is nobody's. */
static tamis_status empty(tms_ring *ring, tamis_error *error) {
    for (uint32_t i = 0; i < ring->room; i++) {
        tamis_event_destroy(&ring->slots[i].used);
        if (ring->slots[i].done) TMS_TRY(tamis_event_wait(ring->slots[i].done, error));
        tamis_event_destroy(&ring->slots[i].done);
    }
    return TAMIS_OK;
}

static tamis_status make_room(tms_ring *ring, const tms_ring_shape *shape, tamis_error *error) {
    if (shape->n_slots > ring->room) {
        tms_ring_slot *slots = realloc(ring->slots, shape->n_slots * sizeof *slots);
        TMS_REQUIRE(slots, TAMIS_E_NO_MEMORY, "no memory for a ring of %" PRIu32 " slots",
                    shape->n_slots);
        ring->slots = slots;
        while (ring->room < shape->n_slots)
            ring->slots[ring->room++] = (tms_ring_slot){NULL, NULL};
    }
    if (shape->bytes <= ring->bytes) return TAMIS_OK;
    tamis_host_buffer_destroy(&ring->host);
    tamis_buffer_destroy(&ring->device);
    ring->bytes = 0;
    TMS_TRY(tamis_host_buffer_create(ring->context, shape->bytes, &ring->host, error));
    TMS_TRY(tamis_buffer_create(ring->context, shape->bytes, &ring->device, error));
    ring->bytes = shape->bytes;
    return TAMIS_OK;
}

tamis_status tms_ring_begin(tms_ring *ring, const tms_ring_shape *shape, tamis_error *error) {
    TMS_TRY(empty(ring, error));
    tamis_event_destroy(&ring->begun);
    TMS_TRY(make_room(ring, shape, error));
    ring->n_slots = shape->n_slots;
    return tamis_event_record(ring->context, &ring->begun, error);
}

uint8_t *tms_ring_host(const tms_ring *ring) {
    return tamis_host_buffer_data(ring->host);
}

/* Behind the load of the last read that lies in this one's place; reads are loaded in their order. */
tamis_status tms_ring_upload(tms_ring *ring, const tms_loaded *loaded, tamis_error *error) {
    const tms_read *read = loaded->read;
    const tamis_event *after =
        read->behind > 0 ? ring->slots[(read->behind - 1) % ring->n_slots].used : ring->begun;
    return tamis_buffer_upload(ring->device, read->at, ring->host, read->at, tms_read_bytes(read),
                               after, &ring->slots[loaded->slot].done, error);
}

tamis_status tms_ring_await(const tms_ring *ring, const tms_loaded *loaded, uint64_t *k,
                            uint64_t *v, tamis_error *error) {
    const uint8_t *host = tms_ring_host(ring);
    *k = loaded->k ? (uint64_t)(loaded->k - host) : 0;
    *v = loaded->v ? (uint64_t)(loaded->v - host) : 0;
    return tamis_event_await(ring->slots[loaded->slot].done, error);
}

tamis_status tms_ring_release(tms_ring *ring, const tms_loaded *loaded, tamis_error *error) {
    tms_ring_slot *slot = &ring->slots[loaded->slot];
    tamis_event *used = NULL;
    TMS_TRY(tamis_event_wait(slot->done, error));
    TMS_TRY(tamis_event_record(ring->context, &used, error));
    tamis_event_destroy(&slot->used);
    tamis_event_destroy(&slot->done);
    slot->used = used;
    return TAMIS_OK;
}
