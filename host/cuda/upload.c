/* SPDX-License-Identifier: Apache-2.0 */
/* The second stream: copies from the host that run beside what the first one does, the pinned memory
 * that they come from, and how the two streams wait for each other. */
#include "host/cuda/cuda.h"

/* Without a wait for the legacy stream, which may be the caller's. */
static tamis_status take_stream(tms_device *dev) {
    tms_cu_device *cu = tms_cu(dev);
    if (cu->uploads) return TAMIS_OK;
    return tms_cu_check(dev, cu->api->cuStreamCreate(&cu->uploads, TMS_CU_STREAM_NON_BLOCKING),
                        "stream of uploads");
}

tamis_status tms_cu_host_alloc(tms_device *dev, uint64_t bytes, void **out) {
    if (dev->sticky != TAMIS_OK) return dev->sticky;
    tamis_status status = tms_cu_enter(dev);
    if (status != TAMIS_OK) return status;
    status = tms_cu_check_not_captured(dev, "host memory");
    if (status == TAMIS_OK && tms_cu(dev)->api->cuMemAllocHost_v2(out, bytes) != TMS_CU_SUCCESS)
        status = tms_device_fail(dev, TAMIS_E_NO_MEMORY, "%llu bytes of pinned host memory for %s",
                                 (unsigned long long)bytes, dev->info.id);
    tms_cu_leave(dev);
    return status;
}

void tms_cu_host_free(tms_device *dev, void *host) {
    tms_cu_device *cu = tms_cu(dev);
    if (!host || tms_cu_enter(dev) != TAMIS_OK) return;
    if (cu->uploads) cu->api->cuStreamSynchronize(cu->uploads);
    if (tms_cu_check(dev, cu->api->cuMemFreeHost(host), "free") != TAMIS_OK)
        tms_log_line(&dev->log, TAMIS_LOG_WARN, "pinned host memory is not freed: %s",
                     dev->error.text);
    tms_cu_leave(dev);
}

static tamis_status wait_in(tms_device *dev, tms_cu_stream stream, const tms_event *event) {
    return tms_cu_check(dev, tms_cu(dev)->api->cuStreamWaitEvent(stream, event->cu, 0),
                        "wait for an event");
}

/* Memory is allocated in the first stream's order: what came since the last upload may be what this
 * one writes. */
static tamis_status wait_for_memory(tms_device *dev) {
    tms_cu_device *cu = tms_cu(dev);
    tms_event *end = NULL;
    if (!cu->allocated || !cu->pools) return TAMIS_OK;
    tamis_status status = tms_cu_event_make(dev, cu->stream, false, &end);
    if (status == TAMIS_OK) status = wait_in(dev, cu->uploads, end);
    tms_cu_event_free(dev, end);
    cu->allocated = status != TAMIS_OK;
    return status;
}

static tamis_status upload(tms_device *dev, tms_cu_address to, const void *from, uint64_t bytes,
                           const tms_event *after, tms_event **done) {
    tms_cu_device *cu = tms_cu(dev);
    tamis_status status = tms_cu_check_not_captured(dev, "upload");
    if (status == TAMIS_OK) status = take_stream(dev);
    if (status == TAMIS_OK) status = wait_for_memory(dev);
    if (status == TAMIS_OK && after) status = wait_in(dev, cu->uploads, after);
    if (status == TAMIS_OK && bytes > 0)
        status = tms_cu_check(dev, cu->api->cuMemcpyHtoDAsync_v2(to, from, bytes, cu->uploads),
                              "upload");
    if (status != TAMIS_OK) return status;
    status = tms_cu_event_make(dev, cu->uploads, false, done);
    if (status != TAMIS_OK) cu->api->cuStreamSynchronize(cu->uploads);
    return status;
}

tamis_status tms_cu_upload(tms_device *dev, tms_ref to, const void *from, uint64_t bytes,
                           const tms_event *after, tms_event **done) {
    tamis_status status = tms_cu_check_range(dev, to, bytes, "upload");
    if (status == TAMIS_OK) status = tms_cu_enter(dev);
    if (status != TAMIS_OK) return status;
    status = upload(dev, to.mem->at + to.offset, from, bytes, after, done);
    tms_cu_leave(dev);
    return status;
}

tamis_status tms_cu_event_await(tms_device *dev, const tms_event *event) {
    if (dev->sticky != TAMIS_OK) return dev->sticky;
    tamis_status status = tms_cu_enter(dev);
    if (status != TAMIS_OK) return status;
    status = tms_cu_check_not_captured(dev, "wait for an event");
    if (status == TAMIS_OK) status = wait_in(dev, tms_cu(dev)->stream, event);
    tms_cu_leave(dev);
    return status;
}
