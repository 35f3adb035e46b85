/* SPDX-License-Identifier: Apache-2.0 */
/* The second queue: copies from the host that run beside what the first one does, the host memory
 * that they come from, and how the two queues wait for each other. */
#include "host/opencl/opencl.h"
#include <stdio.h>
#include <stdlib.h>

/* A buffer that the driver keeps where the device copies from best, mapped for as long as it lives.
 */
struct tms_cl_host {
    tms_cl_host *next;
    cl_mem mem;
    void *data;
};

static cl_int take_queue(tms_cl_device *cl) {
    cl_int code = CL_SUCCESS;
    if (!cl->uploads) cl->uploads = clCreateCommandQueue(cl->context, cl->id, 0, &code);
    return code;
}

static cl_int map(tms_cl_device *cl, tms_cl_host *host, uint64_t bytes) {
    cl_int code = take_queue(cl);
    if (code == CL_SUCCESS)
        host->mem = clCreateBuffer(cl->context, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, bytes,
                                   NULL, &code);
    if (code == CL_SUCCESS)
        host->data = clEnqueueMapBuffer(cl->uploads, host->mem, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE,
                                        0, bytes, 0, NULL, NULL, &code);
    if (code != CL_SUCCESS && host->mem) clReleaseMemObject(host->mem);
    return code;
}

tamis_status tms_cl_host_alloc(tms_device *dev, uint64_t bytes, void **out) {
    tms_cl_device *cl = tms_cl(dev);
    tamis_status status = tms_check_allocation(dev, bytes, cl->memory_used);
    if (status != TAMIS_OK) return status;
    tms_cl_host *host = calloc(1, sizeof *host);
    if (!host)
        return tms_device_fail(dev, TAMIS_E_NO_MEMORY, "no host memory for a buffer's handle");
    const cl_int code = map(cl, host, bytes);
    if (code != CL_SUCCESS) {
        char what[80];
        snprintf(what, sizeof what, "%llu bytes of host memory for %s", (unsigned long long)bytes,
                 dev->info.id);
        free(host);
        return tms_cl_check(dev, code, what);
    }
    host->next = cl->hosts;
    cl->hosts = host;
    *out = host->data;
    return TAMIS_OK;
}

void tms_cl_host_free(tms_device *dev, void *data) {
    tms_cl_device *cl = tms_cl(dev);
    tms_cl_host **link = &cl->hosts, *host;
    while (*link && (*link)->data != data)
        link = &(*link)->next;
    host = *link;
    if (!data || !host) return;
    *link = host->next;
    clEnqueueUnmapMemObject(cl->uploads, host->mem, data, 0, NULL, NULL);
    clFinish(cl->uploads);
    clReleaseMemObject(host->mem);
    free(host);
}

/* A queue may wait for an event of another one only once that one has been flushed. */
tamis_status tms_cl_upload(tms_device *dev, tms_ref to, const void *from, uint64_t bytes,
                           const tms_event *after, tms_event **done) {
    tms_cl_device *cl = tms_cl(dev);
    cl_event copied, first = after ? tms_cl_event_of(after) : NULL;
    tamis_status status = tms_cl_check_range(dev, to, bytes, "upload");
    if (status == TAMIS_OK) status = tms_cl_check(dev, take_queue(cl), "queue of uploads");
    if (status == TAMIS_OK && first) status = tms_cl_flush(dev);
    if (status != TAMIS_OK) return status;
    const cl_int code =
        bytes > 0 ? clEnqueueWriteBuffer(cl->uploads, to.mem->cl, CL_FALSE, tms_cl_at(to), bytes,
                                         from, first != NULL, first ? &first : NULL, &copied)
                  : clEnqueueMarkerWithWaitList(cl->uploads, first != NULL, first ? &first : NULL,
                                                &copied);
    status = tms_cl_check(dev, code, "upload");
    if (status != TAMIS_OK) return status;
    status = tms_cl_check_late(dev, clFlush(cl->uploads), "flush");
    if (status == TAMIS_OK)
        status = tms_cl_event_make(dev, copied, done);
    else
        clReleaseEvent(copied);
    if (status != TAMIS_OK) clFinish(cl->uploads);
    return status;
}

tamis_status tms_cl_event_await(tms_device *dev, const tms_event *event) {
    const cl_event first = tms_cl_event_of(event);
    if (dev->sticky != TAMIS_OK) return dev->sticky;
    return tms_cl_check(dev, clEnqueueBarrierWithWaitList(tms_cl(dev)->queue, 1, &first, NULL),
                        "wait for an event");
}
