/* SPDX-License-Identifier: Apache-2.0 */
/* For programs that drive a CUDA GPU themselves: a context on their CUDA context and stream, and
 * buffers and events that are theirs. Not part of tamis.h; needs no CUDA header. */
#ifndef TAMIS_CUDA_H
#define TAMIS_CUDA_H

#include <tamis/buffer.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Opens the device of `cuda_context` (a CUcontext; the CUDA runtime's is the device's primary one)
 * on `cuda_stream` (a CUstream or cudaStream_t of that context; NULL: its legacy default stream).
 * Both must be live: the driver cannot detect dead ones. Waits for the stream.
 *
 * Ownership: context and stream stay the caller's and must live until tamis_context_destroy, which
 * waits for the stream, has returned and all that was made from the context is destroyed.
 * Thread-safety: as tamis_context_create. Every call of the library makes the CUDA context current
 * while it runs, and then restores the thread's current context.
 *
 * Order: everything that this context enqueues goes to the stream, after what the caller has
 * enqueued there; work that the caller enqueues later sees its results. Calls wait where they say
 * so. Calls that copy bytes from the host (tamis_buffer_write, tamis_plan_step_begin) wait for
 * earlier copies once 2 to 4 MiB are still to be copied.
 *
 * Capture: while the stream is being captured call nothing but tamis_plan_write and
 * tamis_plan_attend, on an open step of a plan without TAMIS_PLAN_TIMING; under
 * TAMIS_PLAN_FIXED_LAUNCHES the graph
 * then serves later steps (tamis_plan_step_mark_replayed). It must be launched on this stream, and on no
 * other: the context and its plans have one scratch memory and one set of tables, which two
 * launches at a time would share. Calls that copy bytes from the host, take memory or wait answer
 * E_STATE, and if they wait the driver breaks the capture. Memory that is destroyed meanwhile is
 * freed later.
 *
 * `params` may be NULL; its `device` must be NULL, for the CUDA context decides. Errors: E_ARGUMENT
 * (out or cuda_context is NULL, a device is named, TAMIS_LOG names no level), E_NO_DEVICE (the
 * device cannot be used, with the reason), E_UNSUPPORTED (built without CUDA; the stream is
 * CU_STREAM_PER_THREAD, which is another one in each thread), E_NO_MEMORY, E_DEVICE (also if the
 * driver cannot load the kernels); E_FORMAT and E_IO of the user's file of settings. */
TAMIS_API TAMIS_MUST_CHECK tamis_status
tamis_context_create_cuda(void *cuda_context, void *cuda_stream, const tamis_context_params *params,
                          tamis_context **out, tamis_error *error);

/* Makes a buffer of `bytes` of the caller's device memory at `device_address` (a CUdeviceptr, a
 * multiple of 16), on any context of the backend "cuda" whose device reaches it.
 *
 * Ownership: the memory stays the caller's and must outlive what is enqueued on it;
 * tamis_buffer_destroy does not free it, and does not wait. The library reads and writes it in the
 * order of the context's stream. If the context owns its stream, the caller must order his own
 * streams against it by events or waits. Errors: E_ARGUMENT with the value, E_UNSUPPORTED (the
 * context is of another backend), E_NO_MEMORY. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_buffer_wrap_cuda(tamis_context *context,
                                                               uint64_t device_address,
                                                               uint64_t bytes, tamis_buffer **out,
                                                               tamis_error *error);

/* The device address of any buffer of a CUDA context, for kernels of the caller's. 0 for NULL and for
 * other backends. It is valid until the buffer is destroyed. */
TAMIS_API uint64_t tamis_buffer_cuda(const tamis_buffer *buffer);

/* Makes an event of the caller's `cuda_event` (a CUevent or cudaEvent_t of the same device).
 * tamis_event_await orders the context's stream behind what it marks when that is called,
 * tamis_event_wait waits for it. It has no time.
 *
 * Ownership: `cuda_event` stays the caller's, must live until the event is destroyed, and is not
 * destroyed with it. The driver detects a dead one when it is waited for. Errors: E_ARGUMENT (NULL),
 * E_UNSUPPORTED (the context is of another backend), E_NO_MEMORY. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_event_wrap_cuda(tamis_context *context,
                                                              void *cuda_event, tamis_event **out,
                                                              tamis_error *error);

/* The CUevent of any event of a CUDA context, for streams of the caller's to wait for. NULL for NULL
 * and for other backends. It is the library's, and valid until the event is destroyed. */
TAMIS_API void *tamis_event_cuda(const tamis_event *event);

#ifdef __cplusplus
}
#endif
#endif
