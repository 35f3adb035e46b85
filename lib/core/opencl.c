/* SPDX-License-Identifier: Apache-2.0 */
/* A caller's own OpenCL context, queue, memory and events. */
#include "lib/core/native.h"
#include <tamis/opencl.h>

static const tms_driver opencl = {"opencl", "OpenCL"};

tamis_status tamis_context_create_opencl(void *cl_context, void *cl_command_queue,
                                         const tamis_context_params *params, tamis_context **out,
                                         tamis_error *error) {
    return tms_native_create(&opencl, cl_context, cl_command_queue, params, out, error);
}

tamis_status tamis_buffer_wrap_opencl(tamis_context *context, void *cl_mem, uint64_t offset,
                                      uint64_t bytes, tamis_buffer **out, tamis_error *error) {
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out: NULL");
    *out = NULL;
    TMS_ENTER(context);
    return tms_native_wrap(&opencl, context, (uintptr_t)cl_mem, offset, bytes, out, error);
}

void *tamis_buffer_opencl(const tamis_buffer *buffer, uint64_t *offset) {
    uint64_t begin;
    void *mem = (void *)(uintptr_t)tms_native_of_buffer(&opencl, buffer, &begin);
    if (offset) *offset = begin;
    return mem;
}

tamis_status tamis_event_wrap_opencl(tamis_context *context, void *cl_event, tamis_event **out,
                                     tamis_error *error) {
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out: NULL");
    *out = NULL;
    TMS_ENTER(context);
    return tms_native_wrap_event(&opencl, context, cl_event, out, error);
}

void *tamis_event_opencl(tamis_event *event) {
    TMS_ENTER_WAITING(event);
    return tms_native_of_event(&opencl, event);
}
