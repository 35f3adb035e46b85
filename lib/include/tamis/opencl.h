/* SPDX-License-Identifier: Apache-2.0 */
/* For programs that drive an OpenCL device themselves: a context on their OpenCL context and queue,
 * and buffers and events that are theirs. Not part of tamis.h; needs no OpenCL header. */
#ifndef TAMIS_OPENCL_H
#define TAMIS_OPENCL_H

#include <tamis/buffer.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Opens the device of `cl_command_queue` on that queue, which must be one in order of `cl_context`.
 * Both must be live: the driver need not detect dead ones. Waits for the queue.
 *
 * Ownership: the library retains both, so that the caller may release them at any time; it releases
 * them when the context and all that was made from it is destroyed. tamis_context_destroy waits for
 * the queue. Thread-safety: as tamis_context_create. While a call of the library runs on the context
 * no other thread may enqueue to the queue, or the order of the two is not known.
 *
 * Order: everything that this context enqueues goes to the queue, after what the caller has enqueued
 * there; work that the caller enqueues later sees its results, without an event or a wait. The queue
 * is never replaced by another one. Uploads alone (tamis_buffer_upload) run on a second queue of the
 * library's own. Calls wait where they say so. Calls that copy bytes from the host (tamis_buffer_write,
 * tamis_plan_step_begin) wait for the queue with more than 1 MiB at once, and for earlier copies once 2
 * to 4 MiB are still to be copied. tamis_buffer_destroy waits on devices that use the host's memory in
 * place. Where the queue waits for a user event that nobody sets, calls that wait do not return.
 *
 * Flushing: tamis_plan_step_end, tamis_event_opencl and every call that waits flush the queue; others
 * need not. Who makes another queue wait for work of this one otherwise calls clFlush first.
 *
 * Times: a queue made with CL_QUEUE_PROFILING_ENABLE gives times to tamis_event_record_timed and to
 * plans with TAMIS_PLAN_TIMING; with any other they are the host's, around a wait for each mark.
 *
 * `params` may be NULL; its `device` must be NULL, for the queue decides. Errors: E_ARGUMENT (out or a
 * handle is NULL, or not what it should be as far as the driver sees that; the queue is of another
 * OpenCL context; a device is named; TAMIS_LOG names no level), E_NO_DEVICE (the device cannot be used,
 * with the reason), E_UNSUPPORTED (built without OpenCL; the queue is out of order; its device is a
 * sub-device), E_NO_MEMORY, E_DEVICE; E_FORMAT and E_IO of the user's file of settings. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_context_create_opencl(
    void *cl_context, void *cl_command_queue, const tamis_context_params *params,
    tamis_context **out, tamis_error *error);

/* Makes a buffer of `bytes` of the caller's buffer `cl_mem` (or sub-buffer) from `offset` on, a
 * multiple of 64, on any context of the backend "opencl" that runs on the OpenCL context of `cl_mem`
 * (tamis_buffer_opencl names that of another context's buffers). Nothing is copied: kernels of either
 * side read and write the one memory.
 *
 * Where the device uses the host's memory in place (tamis_buffer_data), kernels get addresses. The
 * buffer must then begin at a multiple of 64 in the host's memory; unless it was made with
 * CL_MEM_USE_HOST_PTR it is mapped once to find out where that is, which waits for the queue.
 *
 * Ownership: `cl_mem` is retained until the buffer is destroyed, and the caller may release it before.
 * Errors: E_ARGUMENT with the value (NULL, or no buffer, as far as the driver sees that; of another
 * OpenCL context; made with CL_MEM_READ_ONLY, CL_MEM_WRITE_ONLY or one of CL_MEM_HOST_..., for the
 * library's kernels and copies must be free to read and write it; bytes beyond its end; not aligned),
 * E_UNSUPPORTED (the context is of another backend), E_NO_MEMORY, E_DEVICE. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_buffer_wrap_opencl(tamis_context *context,
                                                                 void *cl_mem, uint64_t offset,
                                                                 uint64_t bytes, tamis_buffer **out,
                                                                 tamis_error *error);

/* The cl_mem of any buffer of an OpenCL context, for kernels of the caller's; *offset, which may be
 * NULL, is where the buffer begins in it, in bytes. NULL for NULL and for other backends. It is lent:
 * clRetainMemObject keeps it beyond the buffer. */
TAMIS_API void *tamis_buffer_opencl(const tamis_buffer *buffer, uint64_t *offset);

/* Makes an event of the caller's `cl_event`, of the context's OpenCL context: a command of any queue,
 * which must have been flushed, or a user event. tamis_event_await orders the context's queue behind
 * it, tamis_event_wait waits for it. It has no time. If it ends with an error, so does what waits for
 * it: a late error of the context.
 *
 * Ownership: `cl_event` is retained until the event is destroyed. Errors: E_ARGUMENT with the value
 * (NULL, or no event, as far as the driver sees that; of another OpenCL context), E_UNSUPPORTED (the
 * context is of another backend), E_NO_MEMORY, E_DEVICE. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_event_wrap_opencl(tamis_context *context,
                                                                void *cl_event, tamis_event **out,
                                                                tamis_error *error);

/* The cl_event of any event of an OpenCL context, for queues of the caller's to wait for: the
 * context's queue is flushed. NULL for NULL and for other backends. It is lent: clRetainEvent keeps it
 * beyond the event. */
TAMIS_API void *tamis_event_opencl(tamis_event *event);

#ifdef __cplusplus
}
#endif
#endif
