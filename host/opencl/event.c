/* SPDX-License-Identifier: Apache-2.0 */
/* Marks in the queue with the device's time stamps, flush and wait. */
#include "host/opencl/opencl.h"
#include <stdlib.h>

struct tms_event {
    cl_event cl;
};

tamis_status tms_cl_event_record(tms_device *dev, tms_event **out) {
    if (dev->sticky != TAMIS_OK) return dev->sticky;
    tms_event *event = malloc(sizeof *event);
    if (!event) return tms_device_fail(dev, TAMIS_E_NO_MEMORY, "no host memory for an event");
    cl_int code = clEnqueueMarkerWithWaitList(tms_cl(dev)->queue, 0, NULL, &event->cl);
    if (code != CL_SUCCESS) {
        free(event);
        return tms_cl_check(dev, code, "event");
    }
    *out = event;
    return TAMIS_OK;
}

tamis_status tms_cl_event_wait(tms_device *dev, tms_event *event) {
    return tms_cl_check_late(dev, clWaitForEvents(1, &event->cl), "event wait");
}

tamis_status tms_cl_event_elapsed(tms_device *dev, tms_event *from, tms_event *to, double *us) {
    cl_event both[2] = {from->cl, to->cl};
    cl_ulong start = 0, end = 0;
    tamis_status status = tms_cl_check_late(dev, clWaitForEvents(2, both), "event wait");
    if (status != TAMIS_OK) return status;
    cl_int code =
        clGetEventProfilingInfo(from->cl, CL_PROFILING_COMMAND_END, sizeof start, &start, NULL);
    if (code == CL_SUCCESS)
        code = clGetEventProfilingInfo(to->cl, CL_PROFILING_COMMAND_END, sizeof end, &end, NULL);
    *us = ((double)end - (double)start) * 1e-3;
    return tms_cl_check(dev, code, "event time");
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
    return tms_cl_check_late(dev, clFinish(tms_cl(dev)->queue), "wait");
}
