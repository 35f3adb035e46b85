/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory that the caller reads and writes, and events on a context's queue. */
#ifndef TAMIS_BUFFER_H
#define TAMIS_BUFFER_H

#include <tamis/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A piece of device memory. Ownership: the caller's. Thread-safety: as its context. */
typedef struct tamis_buffer tamis_buffer;

/* Allocates `bytes` (> 0) of uninitialised device memory. Errors: E_ARGUMENT, E_NO_MEMORY with the
 * requested size and the device's limit. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_buffer_create(tamis_context *context, uint64_t bytes,
                                                            tamis_buffer **out, tamis_error *error);
/* Makes a buffer of `bytes` (> 0) of the caller's memory at `data`, a multiple of 64, that kernels use
 * in place: on the reference; on OpenCL CPUs; and on OpenCL devices with shared virtual memory, where
 * `data` lies in memory of clSVMAlloc for the context's OpenCL context. Nothing is copied, and what would
 * need a copy is refused. The first call may wait. Memory that the library only reads, such as weights,
 * may be read-only.
 *
 * Ownership: the memory stays the caller's, and must stay as it is allocated until
 * tamis_buffer_destroy, which waits for what is enqueued, has returned. He reads and writes it as
 * tamis_buffer_data says; where that answers NULL, shared virtual memory as OpenCL demands. Errors:
 * E_ARGUMENT with the value, E_NO_MEMORY (more than the device takes in one buffer), E_UNSUPPORTED with
 * the reason (CUDA; another OpenCL device), E_DEVICE. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_buffer_wrap_host(tamis_context *context, void *data,
                                                               uint64_t bytes, tamis_buffer **out,
                                                               tamis_error *error);
/* Frees after what is enqueued has run; accepts NULL. What is the caller's is let go of, and not
 * freed. */
TAMIS_API void tamis_buffer_destroy(tamis_buffer **buffer);
TAMIS_API uint64_t tamis_buffer_bytes(const tamis_buffer *buffer);
/* The memory itself, where kernels use the host's in place and the host sees what they write: on the
 * reference, on PoCL's CPUs, and of every buffer of tamis_buffer_wrap_host on a CPU. Else NULL. The host
 * may read and write there once tamis_context_wait has returned and until something that uses the buffer
 * is enqueued. Valid until the buffer is destroyed. */
TAMIS_API void *tamis_buffer_data(const tamis_buffer *buffer);

/* Enqueues a copy from the host; `data` may be reused when the call returns. Waits for earlier
 * copies if too many bytes are still to be copied. It does not wait for uploads, see
 * tamis_event_await. Errors: E_ARGUMENT (NULL; bytes beyond the buffer's end), E_DEVICE. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_buffer_write(tamis_buffer *buffer, uint64_t offset,
                                                           const void *data, uint64_t bytes,
                                                           tamis_error *error);
/* Waits for all that is enqueued, but for uploads, then copies to the host. Errors: as
 * tamis_buffer_write. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_buffer_read(tamis_buffer *buffer, uint64_t offset,
                                                          void *data, uint64_t bytes,
                                                          tamis_error *error);

/* A place in device memory. buffer NULL: absent, where that is allowed. */
typedef struct tamis_place {
    tamis_buffer *buffer;
    uint64_t offset; /* bytes */
} tamis_place;

/* Rows of activations in device memory: element (row, i) lies at `offset` bytes plus
 * (row * row_stride + i) elements. row_stride 0 means rows are packed. */
typedef struct tamis_rows {
    tamis_buffer *buffer;
    uint64_t offset;     /* bytes, a multiple of 64 */
    uint64_t row_stride; /* elements */
    tamis_dtype dtype;
} tamis_rows;

/* A matrix of weights [n_out][n_in] in device memory. Every device reads rows; strips are read by
 * those for which tamis_context_weight_layout answers them, by others E_UNSUPPORTED may be
 * answered. */
typedef struct tamis_weight_matrix {
    tamis_buffer *buffer;
    uint64_t offset;   /* bytes, a multiple of 4 (GGUF's tensors begin at multiples of 32) */
    uint32_t reserved; /* 0, else E_ARGUMENT */
    tamis_weight_layout layout;
    tamis_weight_type type;
} tamis_weight_matrix;

/* The layout in which the context's device reads weights of this type fastest; rows for a context
 * that is NULL and for an unknown type. */
TAMIS_API tamis_weight_layout tamis_context_weight_layout(const tamis_context *context,
                                                          tamis_weight_type type);

/* Packs rows [n_out][n_in] in the host's memory, as they are in a GGUF file, to strips, of which
 * `strips` has tamis_weight_layout_bytes, and back. A matrix may be packed in pieces, of which each
 * but the last has a multiple of 16 rows. The two memories must not overlap; either may be at any
 * address. Any thread may call. Errors: E_ARGUMENT (NULL, no rows, a type that is unknown or has no
 * blocks, an n_in that is no multiple of its block, a size beyond 64 bits). */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_weight_pack(tamis_weight_type type, uint64_t n_out,
                                                          uint64_t n_in, const void *rows,
                                                          void *strips, tamis_error *error);
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_weight_unpack(tamis_weight_type type, uint64_t n_out,
                                                            uint64_t n_in, const void *strips,
                                                            void *rows, tamis_error *error);

/* A point in the queue. Thread-safety: as its context. */
typedef struct tamis_event tamis_event;

/* Marks the queue's present end. Errors: E_ARGUMENT (NULL), E_NO_MEMORY, E_DEVICE. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_event_record(tamis_context *context,
                                                           tamis_event **out, tamis_error *error);
/* The same, for tamis_event_elapsed. The first one may wait. On OpenCL the device collects times
 * from then on, which makes some devices slower. Errors: the same. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_event_record_timed(tamis_context *context,
                                                                 tamis_event **out,
                                                                 tamis_error *error);
/* Waits until all before the mark is done. Errors: E_ARGUMENT (NULL), E_DEVICE. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_event_wait(tamis_event *event, tamis_error *error);
/* Device time from one timed mark to a later one of the same context, in microseconds; waits for
 * it. Where an OpenCL driver gives no times it is the host's, around a wait for each mark. Errors:
 * E_ARGUMENT (NULL; marks of two contexts, or not timed), E_DEVICE. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_event_elapsed(tamis_event *from, tamis_event *to,
                                                            double *us, tamis_error *error);
TAMIS_API void tamis_event_destroy(tamis_event **event);

/* ---- Uploads: copies beside what is computed --------------------------------------------------- */

/* Memory of the host from which a device copies by itself, page-locked where the driver does that.
 * Ownership: the caller's. Thread-safety: as its context; its bytes may be used by any thread. */
typedef struct tamis_host_buffer tamis_host_buffer;

/* Allocates `bytes` (> 0), uninitialised, at a multiple of 64. Slow: once, not for each upload.
 * Errors: E_ARGUMENT, E_NO_MEMORY with the requested size, E_STATE (while the context records a
 * graph), E_DEVICE. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_host_buffer_create(tamis_context *context,
                                                                 uint64_t bytes,
                                                                 tamis_host_buffer **out,
                                                                 tamis_error *error);
/* Waits for uploads, then frees; accepts NULL. */
TAMIS_API void tamis_host_buffer_destroy(tamis_host_buffer **buffer);
TAMIS_API void *tamis_host_buffer_data(const tamis_host_buffer *buffer); /* NULL for NULL */
TAMIS_API uint64_t tamis_host_buffer_bytes(const tamis_host_buffer *buffer);

/* Enqueues a copy on the context's second queue, which runs beside the first one. It begins once
 * all before the mark `after` is done (NULL: at once). *done is the mark behind it, to be waited for
 * (tamis_event_wait) and to be put before what reads `to` (tamis_event_await); it has no time, and
 * is the caller's. Until it is reached the bytes in `from` must stay as they are. Uploads run in
 * their order. Does not wait; on the reference the copy is done when the call returns. Errors:
 * E_ARGUMENT (NULL; bytes beyond an end; buffers or a mark of two contexts), E_STATE (while the
 * context records a graph), E_NO_MEMORY, E_DEVICE. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_buffer_upload(tamis_buffer *to, uint64_t offset,
                                                            const tamis_host_buffer *from,
                                                            uint64_t from_offset, uint64_t bytes,
                                                            const tamis_event *after,
                                                            tamis_event **done, tamis_error *error);
/* What is enqueued on the first queue from now on begins once the event is reached. Does not wait.
 * Errors: E_ARGUMENT (NULL), E_STATE (while the context records a graph), E_DEVICE. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_event_await(tamis_event *event, tamis_error *error);

#ifdef __cplusplus
}
#endif
#endif
