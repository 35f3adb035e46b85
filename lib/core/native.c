/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts, buffers and events on what the caller has of a driver himself. */
#include "lib/core/native.h"
#include "lib/core/text_file.h"

#include <stdlib.h>

static tamis_status open_device(const tms_driver *driver, void *native, void *queue,
                                const tamis_context_params *params, tamis_context *context,
                                tamis_error *error) {
    tms_log log;
    TMS_TRY(tms_log_begin(&log, params, error));
    TMS_TRY(tms_device_open_on(driver->backend, native, queue, &log, &context->dev, error));
    const tamis_status status = tms_context_read_settings(context, error);
    if (status != TAMIS_OK) tms_device_close(context->dev);
    return status;
}

tamis_status tms_native_create(const tms_driver *driver, void *native, void *queue,
                               const tamis_context_params *params, tamis_context **out,
                               tamis_error *error) {
    static const tamis_context_params defaults;
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out: NULL");
    *out = NULL;
    TMS_REQUIRE(native, TAMIS_E_ARGUMENT, "%s context: NULL", driver->title);
    if (!params) params = &defaults;
    TMS_REQUIRE(!params->device, TAMIS_E_ARGUMENT,
                "device \"%.64s\": must be NULL, the %s context decides",
                tms_quote(params->device).text, driver->title);
    tamis_context *context = calloc(1, sizeof *context);
    TMS_REQUIRE(context, TAMIS_E_NO_MEMORY, "no memory for a context");
    const tamis_status status = open_device(driver, native, queue, params, context, error);
    if (status != TAMIS_OK) {
        free(context);
        return status;
    }
    tms_context_begin(context);
    *out = context;
    return TAMIS_OK;
}

static tamis_status check_context(const tms_driver *driver, const tamis_context *context,
                                  const char *what, tamis_error *error) {
    TMS_REQUIRE(context, TAMIS_E_ARGUMENT, "context: NULL");
    TMS_REQUIRE(tms_device_wraps(context->dev, driver->backend), TAMIS_E_UNSUPPORTED,
                "the context is of the backend %s: %s %s not its own",
                tms_device_info(context->dev)->backend, driver->title, what);
    return TAMIS_OK;
}

tamis_status tms_native_wrap(const tms_driver *driver, tamis_context *context, uint64_t native,
                             uint64_t offset, uint64_t bytes, tamis_buffer **out,
                             tamis_error *error) {
    TMS_TRY(check_context(driver, context, "memory is", error));
    TMS_TRY(tms_buffer_begin(context, bytes, out, error));
    const tamis_status status =
        tms_device_wrap(context->dev, native, offset, bytes, &(*out)->mem, error);
    if (status != TAMIS_OK) tamis_buffer_destroy(out);
    return status;
}

tamis_status tms_native_wrap_event(const tms_driver *driver, tamis_context *context, void *native,
                                   tamis_event **out, tamis_error *error) {
    TMS_TRY(check_context(driver, context, "events are", error));
    TMS_REQUIRE(native, TAMIS_E_ARGUMENT, "%s event: NULL", driver->title);
    TMS_TRY(tms_event_begin(context, false, out, error));
    const tamis_status status = tms_device_event_wrap(context->dev, native, &(*out)->event, error);
    if (status != TAMIS_OK) tamis_event_destroy(out);
    return status;
}

uint64_t tms_native_of_buffer(const tms_driver *driver, const tamis_buffer *buffer,
                              uint64_t *offset) {
    *offset = 0;
    if (!buffer || !tms_device_wraps(buffer->context->dev, driver->backend)) return 0;
    return tms_device_native(buffer->context->dev, buffer->mem, offset);
}

void *tms_native_of_event(const tms_driver *driver, const tamis_event *event) {
    if (!event || !tms_device_wraps(event->context->dev, driver->backend)) return NULL;
    return tms_device_event_native(event->context->dev, event->event);
}
