/* SPDX-License-Identifier: Apache-2.0 */
/* A caller's own CUDA context, stream, memory and events. */
#include "lib/core/native.h"
#include <tamis/cuda.h>

static const tms_driver cuda = {"cuda", "CUDA"};

tamis_status tamis_context_create_cuda(void *cuda_context, void *cuda_stream,
                                       const tamis_context_params *params, tamis_context **out,
                                       tamis_error *error) {
    return tms_native_create(&cuda, cuda_context, cuda_stream, params, out, error);
}

tamis_status tamis_buffer_wrap_cuda(tamis_context *context, uint64_t device_address, uint64_t bytes,
                                    tamis_buffer **out, tamis_error *error) {
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out: NULL");
    *out = NULL;
    TMS_ENTER(context);
    return tms_native_wrap(&cuda, context, device_address, 0, bytes, out, error);
}

uint64_t tamis_buffer_cuda(const tamis_buffer *buffer) {
    uint64_t offset;
    return tms_native_of_buffer(&cuda, buffer, &offset);
}

tamis_status tamis_event_wrap_cuda(tamis_context *context, void *cuda_event, tamis_event **out,
                                   tamis_error *error) {
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out: NULL");
    *out = NULL;
    TMS_ENTER(context);
    return tms_native_wrap_event(&cuda, context, cuda_event, out, error);
}

void *tamis_event_cuda(const tamis_event *event) {
    return tms_native_of_event(&cuda, event);
}
