/* SPDX-License-Identifier: Apache-2.0 */
/* Marks in the stream with the device's time stamps, and wait. */
#include "host/cuda/cuda.h"
#include <stdlib.h>

tamis_status tms_cu_event_make(tms_device *dev, tms_cu_stream stream, bool timed, tms_event **out) {
    const tms_cu_driver *api = tms_cu(dev)->api;
    tms_event *event = calloc(1, sizeof *event);
    if (!event) return tms_device_fail(dev, TAMIS_E_NO_MEMORY, "no host memory for an event");
    event->own = true;
    tamis_status status = tms_cu_check(
        dev, api->cuEventCreate(&event->cu, timed ? 0 : TMS_CU_EVENT_DISABLE_TIMING), "event");
    if (status == TAMIS_OK)
        status = tms_cu_check(dev, api->cuEventRecord(event->cu, stream), "event");
    if (status != TAMIS_OK) {
        tms_cu_event_free(dev, event);
        return status;
    }
    *out = event;
    return TAMIS_OK;
}

tamis_status tms_cu_event_record(tms_device *dev, bool timed, tms_event **out) {
    if (dev->sticky != TAMIS_OK) return dev->sticky;
    tamis_status status = tms_cu_enter(dev);
    if (status != TAMIS_OK) return status;
    status = tms_cu_event_make(dev, tms_cu(dev)->stream, timed, out);
    tms_cu_leave(dev);
    return status;
}

tamis_status tms_cu_event_wait(tms_device *dev, tms_event *event) {
    tamis_status status = tms_cu_enter(dev);
    if (status != TAMIS_OK) return status;
    status = tms_cu_check_late(dev, tms_cu(dev)->api->cuEventSynchronize(event->cu), "event wait");
    tms_cu_leave(dev);
    return status;
}

tamis_status tms_cu_event_elapsed(tms_device *dev, tms_event *from, tms_event *to, double *us) {
    const tms_cu_driver *api = tms_cu(dev)->api;
    float ms = 0;
    *us = 0;
    tamis_status status = tms_cu_enter(dev);
    if (status != TAMIS_OK) return status;
    status = tms_cu_check_late(dev, api->cuEventSynchronize(from->cu), "event wait");
    if (status == TAMIS_OK)
        status = tms_cu_check_late(dev, api->cuEventSynchronize(to->cu), "event wait");
    if (status == TAMIS_OK)
        status = tms_cu_check(dev, api->cuEventElapsedTime(&ms, from->cu, to->cu), "event time");
    tms_cu_leave(dev);
    *us = (double)ms * 1e3;
    return status;
}

void tms_cu_event_free(tms_device *dev, tms_event *event) {
    if (!event) return;
    if (event->own && event->cu && tms_cu_enter(dev) == TAMIS_OK) {
        tms_cu(dev)->api->cuEventDestroy_v2(event->cu);
        tms_cu_leave(dev);
    }
    free(event);
}

tamis_status tms_cu_event_wrap(tms_device *dev, void *native, tms_event **out) {
    if (dev->sticky != TAMIS_OK) return dev->sticky;
    tms_event *event = calloc(1, sizeof *event);
    if (!event) return tms_device_fail(dev, TAMIS_E_NO_MEMORY, "no host memory for an event");
    event->cu = native;
    *out = event;
    return TAMIS_OK;
}

void *tms_cu_event_native(tms_device *dev, const tms_event *event) {
    (void)dev;
    return event->cu;
}

/* The driver hands a stream's work over by itself. */
tamis_status tms_cu_flush(tms_device *dev) {
    return dev->sticky;
}

tamis_status tms_cu_wait(tms_device *dev) {
    tms_cu_device *cu = tms_cu(dev);
    tamis_status status = tms_cu_enter(dev);
    if (status != TAMIS_OK) return status;
    status = tms_cu_check_late(dev, cu->api->cuStreamSynchronize(cu->stream), "wait");
    if (status == TAMIS_OK && cu->uploads)
        status =
            tms_cu_check_late(dev, cu->api->cuStreamSynchronize(cu->uploads), "wait for uploads");
    tms_cu_leave(dev);
    return status;
}
