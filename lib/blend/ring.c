/* SPDX-License-Identifier: Apache-2.0 */
/* Slots on the host and on the device, and the marks between their uploads and their loads. */
#include "lib/blend/ring.h"

#include <inttypes.h>
#include <stdlib.h>

static uint64_t bytes_of(const tms_ring_shape *shape) {
    return shape->n_slots * shape->slot_bytes;
}

void tms_ring_free(tms_ring *ring) {
    for (uint32_t i = 0; i < ring->room; i++) {
        tamis_event_destroy(&ring->slots[i].done);
        tamis_event_destroy(&ring->slots[i].used);
    }
    tamis_event_destroy(&ring->begun);
    tamis_host_buffer_destroy(&ring->host);
    tamis_buffer_destroy(&ring->device);
    free(ring->slots);
    *ring = (tms_ring){.host = NULL};
}

/* The slots that the list before has left are nobody's. */
static tamis_status empty(tms_ring *ring, tamis_error *error) {
    for (uint32_t i = 0; i < ring->room; i++) {
        tamis_event_destroy(&ring->slots[i].used);
        if (ring->slots[i].done) TMS_TRY(tamis_event_wait(ring->slots[i].done, error));
        tamis_event_destroy(&ring->slots[i].done);
    }
    return TAMIS_OK;
}

static tamis_status make_room(tms_ring *ring, tamis_context *context, const tms_ring_shape *shape,
                              tamis_error *error) {
    if (shape->n_slots > ring->room) {
        tms_ring_slot *slots = realloc(ring->slots, shape->n_slots * sizeof *slots);
        TMS_REQUIRE(slots, TAMIS_E_NO_MEMORY, "no memory for a ring of %" PRIu32 " slots",
                    shape->n_slots);
        ring->slots = slots;
        while (ring->room < shape->n_slots)
            ring->slots[ring->room++] = (tms_ring_slot){NULL, NULL};
    }
    if (bytes_of(shape) <= ring->bytes) return TAMIS_OK;
    tamis_host_buffer_destroy(&ring->host);
    tamis_buffer_destroy(&ring->device);
    ring->bytes = 0;
    TMS_TRY(tamis_host_buffer_create(context, bytes_of(shape), &ring->host, error));
    TMS_TRY(tamis_buffer_create(context, bytes_of(shape), &ring->device, error));
    ring->bytes = bytes_of(shape);
    return TAMIS_OK;
}

tamis_status tms_ring_begin(tms_ring *ring, tamis_context *context, const tms_ring_shape *shape,
                            tamis_error *error) {
    TMS_TRY(empty(ring, error));
    tamis_event_destroy(&ring->begun);
    TMS_TRY(make_room(ring, context, shape, error));
    ring->context = context;
    ring->shape = *shape;
    return tamis_event_record(context, &ring->begun, error);
}

uint8_t *tms_ring_host(const tms_ring *ring) {
    return tamis_host_buffer_data(ring->host);
}

tamis_status tms_ring_upload(tms_ring *ring, const tms_loaded *loaded, tamis_error *error) {
    tms_ring_slot *slot = &ring->slots[loaded->slot];
    const uint64_t at = loaded->slot * ring->shape.slot_bytes;
    return tamis_buffer_upload(ring->device, at, ring->host, at, tms_read_bytes(loaded->read),
                               slot->used ? slot->used : ring->begun, &slot->done, error);
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
