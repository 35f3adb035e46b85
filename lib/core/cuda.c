/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts and buffers on a caller's own CUDA context, stream and memory. */
#include "lib/core/core.h"
#include "lib/core/text_file.h"
#include <tamis/cuda.h>

#include <stdlib.h>

tamis_status tamis_context_create_cuda(void *cuda_context, void *cuda_stream,
                                       const tamis_context_params *params, tamis_context **out,
                                       tamis_error *error) {
    static const tamis_context_params defaults;
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out: NULL");
    *out = NULL;
    TMS_REQUIRE(cuda_context, TAMIS_E_ARGUMENT, "CUDA context: NULL");
    if (!params) params = &defaults;
    TMS_REQUIRE(!params->device, TAMIS_E_ARGUMENT,
                "device \"%.64s\": must be NULL, the CUDA context decides",
                tms_quote(params->device).text);
    tms_log log;
    TMS_TRY(tms_log_begin(&log, params, error));
    tamis_context *context = calloc(1, sizeof *context);
    TMS_REQUIRE(context, TAMIS_E_NO_MEMORY, "no memory for a context");
    const tamis_status status =
        tms_device_open_cuda(cuda_context, cuda_stream, &log, &context->dev, error);
    if (status != TAMIS_OK) {
        free(context);
        return status;
    }
    tms_context_begin(context);
    *out = context;
    return TAMIS_OK;
}

tamis_status tamis_buffer_wrap_cuda(tamis_context *context, uint64_t device_address, uint64_t bytes,
                                    tamis_buffer **out, tamis_error *error) {
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out: NULL");
    *out = NULL;
    TMS_ENTER(context);
    TMS_REQUIRE(context, TAMIS_E_ARGUMENT, "context: NULL");
    tms_device *dev = context->dev;
    TMS_REQUIRE(tms_device_wraps(dev), TAMIS_E_UNSUPPORTED,
                "the context is of the backend %s: CUDA memory is not its own",
                tms_device_info(dev)->backend);
    tamis_buffer *buffer = calloc(1, sizeof *buffer);
    TMS_REQUIRE(buffer, TAMIS_E_NO_MEMORY, "no memory for a buffer's handle");
    tms_buffer_begin(buffer, context, bytes);
    const tamis_status status = tms_device_wrap(dev, device_address, bytes, &buffer->mem, error);
    if (status != TAMIS_OK) tamis_buffer_destroy(&buffer);
    *out = buffer;
    return status;
}
