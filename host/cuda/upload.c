/* SPDX-License-Identifier: Apache-2.0 */
/* The second stream: copies from the host that run beside what the first one does, the pinned memory
 * that they come from, and how the two streams wait for each other. */
#include "host/cuda/cuda.h"
#include <stdio.h>

/* Without a wait for the legacy stream, which may be the caller's. */
static tamis_status take_stream(tms_device *dev) {
    tms_cu_device *cu = tms_cu(dev);
    if (cu->uploads) return TAMIS_OK;
    return tms_cu_check(dev, cu->api->cuStreamCreate(&cu->uploads, TMS_CU_STREAM_NON_BLOCKING),
                        "stream of uploads");
}

tamis_status tms_cu_host_alloc(tms_device *dev, uint64_t bytes, void **out) {
    char what[80];
    snprintf(what, sizeof what, "%llu bytes of pinned host memory for %s",
             (unsigned long long)bytes, dev->info.id);
    if (dev->sticky != TAMIS_OK) return dev->sticky;
    tamis_status status = tms_cu_enter(dev);
    if (status != TAMIS_OK) return status;
    status = tms_cu_check_not_captured(dev, what);
    if (status == TAMIS_OK) tms_cu_host_free_again(dev);
    /* What waits to be freed keeps a pointer in it. */
    const uint64_t least = sizeof(tms_cu_host);
    if (status == TAMIS_OK)
        status = tms_cu_check(
            dev, tms_cu(dev)->api->cuMemAllocHost_v2(out, bytes < least ? least : bytes), what);
    tms_cu_leave(dev);
    return status;
}

/* Freeing would end a recording. */
static tamis_status give_back(tms_device *dev, void *host) {
    tms_cu_device *cu = tms_cu(dev);
    tamis_status status = tms_cu_enter(dev);
    if (status != TAMIS_OK) return status;
    status = tms_cu_check_not_captured(dev, "free");
    if (status == TAMIS_OK && cu->uploads)
        status = tms_cu_check(dev, cu->api->cuStreamSynchronize(cu->uploads), "free");
    if (status == TAMIS_OK) status = tms_cu_check(dev, cu->api->cuMemFreeHost(host), "free");
    tms_cu_leave(dev);
    return status;
}

void tms_cu_host_free(tms_device *dev, void *host) {
    if (!host || give_back(dev, host) == TAMIS_OK) return;
    tms_cu_host *unfreed = host;
    unfreed->next = tms_cu(dev)->unfreed_hosts;
    tms_cu(dev)->unfreed_hosts = unfreed;
}

void tms_cu_host_free_again(tms_device *dev) {
    tms_cu_host *unfreed = tms_cu(dev)->unfreed_hosts;
    tms_cu(dev)->unfreed_hosts = NULL;
    for (tms_cu_host *next; unfreed; unfreed = next) {
        next = unfreed->next;
        tms_cu_host_free(dev, unfreed);
    }
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

tamis_status tms_cu_follow_uploads(tms_device *dev) {
    tms_cu_device *cu = tms_cu(dev);
    tms_event *end = NULL;
    if (!cu->uploads) return TAMIS_OK;
    tamis_status status = tms_cu_event_make(dev, cu->uploads, false, &end);
    if (status == TAMIS_OK) status = wait_in(dev, cu->stream, end);
    tms_cu_event_free(dev, end);
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
