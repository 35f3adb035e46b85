/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers, events, and the check of a caller's rows. */
#include "lib/core/core.h"

#include <inttypes.h>
#include <stdlib.h>

struct tamis_host_buffer {
    tms_life life;
    tamis_context *context;
    void *data;
    uint64_t bytes;
};

static void end_buffer(tms_life *life) {
    tamis_buffer *buffer = (tamis_buffer *)life;
    tms_device_free(buffer->context->dev, buffer->mem);
    free(buffer);
}

tamis_status tms_buffer_begin(tamis_context *context, uint64_t bytes, tamis_buffer **out,
                              tamis_error *error) {
    tamis_buffer *buffer = calloc(1, sizeof *buffer);
    TMS_REQUIRE(buffer, TAMIS_E_NO_MEMORY, "no memory for a buffer's handle");
    tms_life_begin(&buffer->life, "buffer", &context->life, NULL, end_buffer);
    buffer->context = context;
    buffer->bytes = bytes;
    *out = buffer;
    return TAMIS_OK;
}

tamis_status tamis_buffer_create(tamis_context *context, uint64_t bytes, tamis_buffer **out,
                                 tamis_error *error) {
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out: NULL");
    *out = NULL;
    TMS_ENTER(context);
    TMS_REQUIRE(context, TAMIS_E_ARGUMENT, "context: NULL");
    TMS_REQUIRE(bytes > 0, TAMIS_E_ARGUMENT, "buffer of 0 bytes");
    TMS_TRY(tms_buffer_begin(context, bytes, out, error));
    const tamis_status status = tms_device_alloc(context->dev, bytes, &(*out)->mem, error);
    if (status != TAMIS_OK) tamis_buffer_destroy(out);
    return status;
}

tamis_status tamis_buffer_wrap_host(tamis_context *context, void *data, uint64_t bytes,
                                    tamis_buffer **out, tamis_error *error) {
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out: NULL");
    *out = NULL;
    TMS_ENTER(context);
    TMS_REQUIRE(context, TAMIS_E_ARGUMENT, "context: NULL");
    TMS_TRY(tms_buffer_begin(context, bytes, out, error));
    const tamis_status status =
        tms_device_wrap_host(context->dev, data, bytes, &(*out)->mem, error);
    if (status != TAMIS_OK) tamis_buffer_destroy(out);
    return status;
}

void tamis_buffer_destroy(tamis_buffer **buffer) {
    if (!buffer || !*buffer) return;
    tms_life_close(&(*buffer)->life, NULL);
    *buffer = NULL;
}

uint64_t tamis_buffer_bytes(const tamis_buffer *buffer) {
    return buffer ? buffer->bytes : 0;
}

void *tamis_buffer_data(const tamis_buffer *buffer) {
    return buffer ? tms_device_data(buffer->context->dev, buffer->mem) : NULL;
}

static tamis_status check_range(const tamis_buffer *buffer, uint64_t offset, const void *data,
                                uint64_t bytes, tamis_error *error) {
    TMS_REQUIRE(buffer, TAMIS_E_ARGUMENT, "buffer: NULL");
    TMS_REQUIRE(data || bytes == 0, TAMIS_E_ARGUMENT, "data: NULL");
    TMS_REQUIRE(offset <= buffer->bytes && bytes <= buffer->bytes - offset, TAMIS_E_ARGUMENT,
                "%llu bytes at offset %llu: the buffer has %llu", (unsigned long long)bytes,
                (unsigned long long)offset, (unsigned long long)buffer->bytes);
    return TAMIS_OK;
}

tamis_status tamis_buffer_write(tamis_buffer *buffer, uint64_t offset, const void *data,
                                uint64_t bytes, tamis_error *error) {
    TMS_ENTER(buffer);
    TMS_TRY(check_range(buffer, offset, data, bytes, error));
    const tms_ref to = {buffer->mem, offset};
    return tms_device_write(buffer->context->dev, to, data, bytes, error);
}

tamis_status tamis_buffer_read(tamis_buffer *buffer, uint64_t offset, void *data, uint64_t bytes,
                               tamis_error *error) {
    TMS_ENTER(buffer);
    TMS_TRY(check_range(buffer, offset, data, bytes, error));
    const tms_ref from = {buffer->mem, offset};
    return tms_device_read(buffer->context->dev, from, data, bytes, error);
}

static void end_event(tms_life *life) {
    tamis_event *event = (tamis_event *)life;
    if (event->event) tms_device_event_free(event->context->dev, event->event);
    free(event);
}

tamis_status tms_event_begin(tamis_context *context, bool timed, tamis_event **out,
                             tamis_error *error) {
    tamis_event *event = calloc(1, sizeof *event);
    TMS_REQUIRE(event, TAMIS_E_NO_MEMORY, "no memory for an event's handle");
    tms_life_begin(&event->life, "mark", &context->life, NULL, end_event);
    event->context = context;
    event->timed = timed;
    *out = event;
    return TAMIS_OK;
}

static tamis_status record(tamis_context *context, bool timed, tamis_event **out,
                           tamis_error *error) {
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out: NULL");
    *out = NULL;
    TMS_REQUIRE(context, TAMIS_E_ARGUMENT, "context: NULL");
    TMS_TRY(tms_event_begin(context, timed, out, error));
    const tamis_status status = tms_device_event_record(context->dev, timed, &(*out)->event, error);
    if (status != TAMIS_OK) tamis_event_destroy(out);
    return status;
}

tamis_status tamis_event_record(tamis_context *context, tamis_event **out, tamis_error *error) {
    TMS_ENTER(context);
    return record(context, false, out, error);
}

tamis_status tamis_event_record_timed(tamis_context *context, tamis_event **out,
                                      tamis_error *error) {
    TMS_ENTER(context);
    return record(context, true, out, error);
}

tamis_status tamis_event_elapsed(tamis_event *from, tamis_event *to, double *us,
                                 tamis_error *error) {
    TMS_ENTER(from);
    TMS_REQUIRE(from && to && us, TAMIS_E_ARGUMENT, "%s: NULL", !from ? "from" : !to ? "to" : "us");
    *us = 0;
    TMS_REQUIRE(from->context == to->context, TAMIS_E_ARGUMENT,
                "the two marks are of different contexts");
    TMS_REQUIRE(from->timed && to->timed, TAMIS_E_ARGUMENT,
                "%s was recorded by tamis_event_record: tamis_event_record_timed has times",
                from->timed ? "to" : "from");
    return tms_device_event_elapsed(from->context->dev, from->event, to->event, us, error);
}

tamis_status tamis_event_wait(tamis_event *event, tamis_error *error) {
    TMS_ENTER(event);
    TMS_REQUIRE(event, TAMIS_E_ARGUMENT, "event: NULL");
    return tms_device_event_wait(event->context->dev, event->event, error);
}

void tamis_event_destroy(tamis_event **event) {
    if (!event || !*event) return;
    tms_life_close(&(*event)->life, NULL);
    *event = NULL;
}

/* ---- Uploads --------------------------------------------------------------------------------- */

static void end_host_buffer(tms_life *life) {
    tamis_host_buffer *buffer = (tamis_host_buffer *)life;
    tms_device_host_free(buffer->context->dev, buffer->data);
    free(buffer);
}

tamis_status tamis_host_buffer_create(tamis_context *context, uint64_t bytes,
                                      tamis_host_buffer **out, tamis_error *error) {
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out: NULL");
    *out = NULL;
    TMS_ENTER(context);
    TMS_REQUIRE(context, TAMIS_E_ARGUMENT, "context: NULL");
    TMS_REQUIRE(bytes > 0, TAMIS_E_ARGUMENT, "host buffer of 0 bytes");
    tamis_host_buffer *buffer = calloc(1, sizeof *buffer);
    TMS_REQUIRE(buffer, TAMIS_E_NO_MEMORY, "no memory for a host buffer's handle");
    tms_life_begin(&buffer->life, "host buffer", &context->life, NULL, end_host_buffer);
    buffer->context = context;
    buffer->bytes = bytes;
    const tamis_status status = tms_device_host_alloc(context->dev, bytes, &buffer->data, error);
    if (status != TAMIS_OK) tamis_host_buffer_destroy(&buffer);
    *out = buffer;
    return status;
}

void tamis_host_buffer_destroy(tamis_host_buffer **buffer) {
    if (!buffer || !*buffer) return;
    tms_life_close(&(*buffer)->life, NULL);
    *buffer = NULL;
}

void *tamis_host_buffer_data(const tamis_host_buffer *buffer) {
    return buffer ? buffer->data : NULL;
}

uint64_t tamis_host_buffer_bytes(const tamis_host_buffer *buffer) {
    return buffer ? buffer->bytes : 0;
}

static tamis_status check_upload(const tamis_buffer *to, uint64_t offset,
                                 const tamis_host_buffer *from, uint64_t from_offset,
                                 uint64_t bytes, const tamis_event *after, tamis_error *error) {
    TMS_REQUIRE(from, TAMIS_E_ARGUMENT, "from: NULL");
    TMS_TRY(check_range(to, offset, from->data, bytes, error));
    TMS_REQUIRE(from_offset <= from->bytes && bytes <= from->bytes - from_offset, TAMIS_E_ARGUMENT,
                "%llu bytes from offset %llu: the host buffer has %llu", (unsigned long long)bytes,
                (unsigned long long)from_offset, (unsigned long long)from->bytes);
    TMS_REQUIRE(from->context == to->context, TAMIS_E_ARGUMENT,
                "the two buffers are of different contexts");
    TMS_REQUIRE(!after || after->context == to->context, TAMIS_E_ARGUMENT,
                "the mark is of another context than the buffers");
    return TAMIS_OK;
}

tamis_status tamis_buffer_upload(tamis_buffer *to, uint64_t offset, const tamis_host_buffer *from,
                                 uint64_t from_offset, uint64_t bytes, const tamis_event *after,
                                 tamis_event **done, tamis_error *error) {
    TMS_REQUIRE(done, TAMIS_E_ARGUMENT, "done: NULL");
    *done = NULL;
    TMS_ENTER(to);
    TMS_TRY(check_upload(to, offset, from, from_offset, bytes, after, error));
    TMS_TRY(tms_event_begin(to->context, false, done, error));
    const tms_ref ref = {to->mem, offset};
    const tamis_status status =
        tms_device_upload(to->context->dev, ref, (const uint8_t *)from->data + from_offset, bytes,
                          after ? after->event : NULL, &(*done)->event, error);
    if (status != TAMIS_OK) tamis_event_destroy(done);
    return status;
}

tamis_status tamis_event_await(tamis_event *event, tamis_error *error) {
    TMS_ENTER(event);
    TMS_REQUIRE(event, TAMIS_E_ARGUMENT, "event: NULL");
    return tms_device_event_await(event->context->dev, event->event, error);
}

/* ---- Rows ------------------------------------------------------------------------------------ */

tamis_status tms_place_check(const tamis_context *context, const tamis_place *place,
                             const char *name, uint64_t bytes, tms_ref *ref, tamis_error *error) {
    const tamis_buffer *buffer = place->buffer;
    TMS_REQUIRE(buffer, TAMIS_E_ARGUMENT, "%s is absent", name);
    TMS_REQUIRE(buffer->context == context, TAMIS_E_ARGUMENT,
                "%s: the buffer is of another context", name);
    TMS_REQUIRE(place->offset % 4 == 0, TAMIS_E_ARGUMENT,
                "%s: offset %" PRIu64 ": not a multiple of 4", name, place->offset);
    TMS_REQUIRE(place->offset <= buffer->bytes && bytes <= buffer->bytes - place->offset,
                TAMIS_E_ARGUMENT,
                "%s: %" PRIu64 " bytes from byte %" PRIu64 ": past the buffer's %" PRIu64 " bytes",
                name, bytes, place->offset, buffer->bytes);
    *ref = (tms_ref){buffer->mem, place->offset};
    return TAMIS_OK;
}

tamis_status tms_rows_check(const tamis_context *context, const tamis_rows *rows, const char *what,
                            uint32_t n_rows, uint64_t width, uint64_t *stride, tamis_error *error) {
    TMS_REQUIRE(rows && rows->buffer, TAMIS_E_ARGUMENT, "%s: no buffer", what);
    TMS_REQUIRE(rows->buffer->context == context, TAMIS_E_ARGUMENT,
                "%s: the buffer is of another context", what);
    TMS_REQUIRE(tms_dtype_known(rows->dtype), TAMIS_E_ARGUMENT, "%s: dtype %d is unknown", what,
                (int)rows->dtype);
    TMS_REQUIRE(tms_dtype_of_rows(rows->dtype), TAMIS_E_ARGUMENT,
                "%s: %s is a dtype of caches alone", what, tamis_dtype_name(rows->dtype));
    const size_t size = tamis_dtype_size(rows->dtype);
    TMS_REQUIRE(rows->offset % 64 == 0, TAMIS_E_ARGUMENT, "%s: offset %llu: not a multiple of 64",
                what, (unsigned long long)rows->offset);
    *stride = rows->row_stride ? rows->row_stride : width;
    TMS_REQUIRE(*stride >= width, TAMIS_E_ARGUMENT,
                "%s: row stride %llu: less than the %llu elements of a row", what,
                (unsigned long long)*stride, (unsigned long long)width);
    const uint64_t bytes = rows->buffer->bytes;
    const uint64_t room = rows->offset < bytes ? (bytes - rows->offset) / size : 0; /* elements */
    const bool fits =
        n_rows == 0 || (width <= room && (n_rows == 1 || *stride <= (room - width) / (n_rows - 1)));
    TMS_REQUIRE(fits, TAMIS_E_ARGUMENT,
                "%s: %u rows of %llu elements, stride %llu, from byte %llu: past the buffer's "
                "%llu bytes",
                what, n_rows, (unsigned long long)width, (unsigned long long)*stride,
                (unsigned long long)rows->offset, (unsigned long long)bytes);
    return TAMIS_OK;
}
