/* SPDX-License-Identifier: Apache-2.0 */
/* Marks in the queue with their times, flush and wait. */
#include "host/opencl/ahead.h"
#include <stdlib.h>

struct tms_event {
    cl_event cl;
    double us;   /* the host's clock at the mark */
    bool waited; /* for all before it, when the clock was read */
};

tamis_status tms_cl_event_make(tms_device *dev, cl_event cl, tms_event **out) {
    tms_event *event = malloc(sizeof *event);
    if (!event) {
        clReleaseEvent(cl);
        return tms_device_fail(dev, TAMIS_E_NO_MEMORY, "no host memory for an event");
    }
    *event = (tms_event){.cl = cl, .us = tms_now_us()};
    *out = event;
    return TAMIS_OK;
}

cl_event tms_cl_event_of(const tms_event *event) {
    return event->cl;
}

static cl_int end_of(cl_event event, cl_ulong *ns) {
    return clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_END, sizeof *ns, ns, NULL);
}

static void use_host(tms_device *dev, cl_int code) {
    tms_cl_device *cl = tms_cl(dev);
    cl->host_times = true;
    tms_log_line(&dev->log, TAMIS_LOG_INFO,
                 "%s gives no times (%s, %d): they are the host's, around a wait for each stage",
                 dev->info.id, tms_cl_error_text(code), (int)code);
}

static cl_int time_mark(cl_command_queue queue, cl_ulong *ns) {
    cl_event event;
    cl_int code = clEnqueueMarkerWithWaitList(queue, 0, NULL, &event);
    if (code != CL_SUCCESS) return code;
    code = clWaitForEvents(1, &event);
    if (code == CL_SUCCESS) code = end_of(event, ns);
    clReleaseEvent(event);
    return code;
}

/* Whether marks in the queue get times. Rusticl 22.3 gives the same time to all. */
static cl_int try_queue(cl_command_queue queue) {
    cl_ulong first = 0, second = 0;
    cl_int code = time_mark(queue, &first);
    if (code == CL_SUCCESS) code = time_mark(queue, &second);
    return code == CL_SUCCESS && second <= first ? CL_PROFILING_INFO_NOT_AVAILABLE : code;
}

static bool has_times(cl_command_queue queue) {
    cl_command_queue_properties properties = 0;
    clGetCommandQueueInfo(queue, CL_QUEUE_PROPERTIES, sizeof properties, &properties, NULL);
    return properties & CL_QUEUE_PROFILING_ENABLE;
}

/* The caller's queue, which is never replaced, collects times or does not. */
static void try_callers_queue(tms_device *dev) {
    tms_cl_device *cl = tms_cl(dev);
    const cl_int code =
        has_times(cl->queue) ? try_queue(cl->queue) : CL_PROFILING_INFO_NOT_AVAILABLE;
    cl->profiling = code == CL_SUCCESS;
    if (code != CL_SUCCESS) use_host(dev, code);
}

/* Replaces the queue by one that collects times, at the first timed mark and if the driver has
 * one. */
static tamis_status collect_times(tms_device *dev) {
    tms_cl_device *cl = tms_cl(dev);
    if (cl->profiling || cl->host_times) return TAMIS_OK;
    if (cl->callers_queue) {
        try_callers_queue(dev);
        return TAMIS_OK;
    }
    cl_int code;
    cl_command_queue queue =
        clCreateCommandQueue(cl->context, cl->id, CL_QUEUE_PROFILING_ENABLE, &code);
    if (code == CL_SUCCESS) code = try_queue(queue);
    if (code != CL_SUCCESS) {
        if (queue) clReleaseCommandQueue(queue);
        use_host(dev, code);
        return TAMIS_OK;
    }
    tamis_status status = tms_cl_wait(dev);
    clReleaseCommandQueue(cl->queue);
    cl->queue = queue;
    cl->profiling = true;
    return status;
}

tamis_status tms_cl_event_record(tms_device *dev, bool timed, tms_event **out) {
    tms_cl_device *cl = tms_cl(dev);
    if (dev->sticky != TAMIS_OK) return dev->sticky;
    tamis_status status = timed ? collect_times(dev) : TAMIS_OK;
    if (status == TAMIS_OK && timed && cl->host_times) status = tms_cl_wait(dev);
    if (status != TAMIS_OK) return status;
    cl_event mark;
    status = tms_cl_check(dev, clEnqueueMarkerWithWaitList(cl->queue, 0, NULL, &mark), "event");
    if (status == TAMIS_OK) status = tms_cl_event_make(dev, mark, out);
    if (status == TAMIS_OK) (*out)->waited = timed && cl->host_times;
    return status;
}

tamis_status tms_cl_event_wait(tms_device *dev, tms_event *event) {
    return tms_cl_check_late(dev, clWaitForEvents(1, &event->cl), "event wait");
}

tamis_status tms_cl_event_elapsed(tms_device *dev, tms_event *from, tms_event *to, double *us) {
    tms_cl_device *cl = tms_cl(dev);
    const cl_event both[2] = {from->cl, to->cl};
    cl_ulong start = 0, end = 0;
    tamis_status status = tms_cl_check_late(dev, clWaitForEvents(2, both), "event wait");
    if (status != TAMIS_OK) return status;
    if (!cl->host_times) {
        cl_int code = end_of(from->cl, &start);
        if (code == CL_SUCCESS) code = end_of(to->cl, &end);
        *us = ((double)end - (double)start) * 1e-3;
        if (code == CL_SUCCESS) return TAMIS_OK;
        use_host(dev, code);
    }
    *us = (to->waited ? to->us : tms_now_us()) - from->us;
    return TAMIS_OK;
}

void tms_cl_event_free(tms_device *dev, tms_event *event) {
    (void)dev;
    if (!event) return;
    clReleaseEvent(event->cl);
    free(event);
}

tamis_status tms_cl_flush(tms_device *dev) {
    return tms_cl_check_late(dev, clFlush(tms_cl(dev)->queue), "flush");
}

tamis_status tms_cl_wait(tms_device *dev) {
    tms_cl_device *cl = tms_cl(dev);
    tamis_status status = tms_cl_build_all(dev);
    if (status == TAMIS_OK) status = tms_cl_check_late(dev, clFinish(cl->queue), "wait");
    if (status != TAMIS_OK || !cl->uploads) return status;
    return tms_cl_check_late(dev, clFinish(cl->uploads), "wait for uploads");
}
