/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, listed over all backends, and the context: one opened device with its queue. */
#ifndef TAMIS_DEVICE_H
#define TAMIS_DEVICE_H

#include <stddef.h>
#include <stdint.h>
#include <tamis/log.h>
#include <tamis/status.h>
#include <tamis/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tamis_device_kind {
    TAMIS_DEVICE_CPU = 0,
    TAMIS_DEVICE_GPU = 1,
    TAMIS_DEVICE_OTHER = 2
} tamis_device_kind;

/* One device, or one backend that offers none. All text is NUL-terminated. */
typedef struct tamis_device_info {
    char id[32]; /* "opencl:0": what `device` below takes; "opencl" for a backend without devices */
    char backend[16]; /* "opencl", "reference" */
    char name[128];   /* the driver's name of the device */
    char driver[128]; /* platform and driver version */
    tamis_device_kind kind;
    int usable; /* 0: `reason` says why not */
    char reason[256];
    uint32_t compute_units;
    uint64_t memory_bytes;     /* global memory */
    uint64_t max_buffer_bytes; /* largest single allocation */
    /* What opening it answers where it is not usable: E_NO_DEVICE, or E_DEVICE if its driver is
     * there but lacks something, which `reason` says how to mend. */
    tamis_status refusal;
    uint32_t reserved32;
    uint64_t reserved[7];
} tamis_device_info;

/* Lists every device of every backend built in, best first, and one entry with its reason for a
 * backend that has none. Writes at most `capacity` entries and the full number to *count.
 * `infos` may be NULL when capacity is 0. Probes drivers; opens nothing. Errors: E_ARGUMENT (NULL),
 * E_NO_MEMORY. Thread-safety: any thread. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_device_list(tamis_device_info *infos, size_t capacity,
                                                          size_t *count, tamis_error *error);

/* An opened device with its in-order queue, compiled kernels and scratch memory.
 * Thread-safety: one thread at a time for a context and everything made from it. A call that comes
 * while another thread is in one answers E_STATE and does nothing; one that answers no status, as
 * destroying, waits for the other to end. Threads may take turns. Callbacks run on the thread of
 * their call and may make calls. */
typedef struct tamis_context tamis_context;

/* How far a series of kernels is that are being built: compiled, or loaded where a driver keeps what
 * it compiled. */
typedef struct tamis_build_progress {
    uint32_t done, all; /* kernels */
    double seconds;     /* since the series began */
} tamis_build_progress;

/* Told when a series begins (done is 0), after each kernel, and when it ends (done is all), also by
 * an error, which the call then answers. One kernel takes up to a second. Plans and runners build
 * two or three series when they are made; a context's own ops build at their first launch.
 * Thread-safety: called from the thread that is inside a tamis call on the context; it must not call
 * the context. *progress is the library's, and valid during the call only. */
typedef void (*tamis_build_fn)(void *user, const tamis_build_progress *progress);

typedef struct tamis_context_params {
    /* "opencl:0", "reference", a bare backend name for its first usable device, or "auto": the
     * first usable device in listing order, the reference excepted. NULL: the environment variable
     * TAMIS_DEVICE, else "auto". */
    const char *device;
    tamis_log_fn log; /* NULL: silent */
    void *log_user;
    /* Nonzero: where "auto" finds no other device, it takes the reference. The reference is a
     * specification, with one thread and no fast path, so it is taken only on request. */
    int allow_reference;
    uint32_t reserved32;  /* 0, else E_ARGUMENT */
    tamis_build_fn build; /* NULL: an info line in the log tells of it */
    void *build_user;
    uint64_t reserved[5]; /* 0, else E_ARGUMENT */
} tamis_context_params;

/* Opens a device. `params` may be NULL. On "auto" an info line says which device is taken and why
 * the ones before it are not. Errors: E_ARGUMENT (out is NULL; TAMIS_LOG names no level),
 * E_NO_DEVICE with the name and the reason (on "auto" with what each backend lacks); E_DEVICE
 * in its place if a driver is there but lacks something, as PoCL without a linker; E_NO_MEMORY,
 * E_DEVICE. Thread-safety: any thread, as with tamis_device_list; several threads may make, use and
 * destroy contexts of their own at once. If the process also calls OpenCL itself, its first call
 * must not come at the same time as this library's first: PoCL does not support that. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_context_create(const tamis_context_params *params,
                                                             tamis_context **out,
                                                             tamis_error *error);

/* Waits, closes and sets *context to NULL. Accepts NULL and *context == NULL. Where something made
 * from the context is left, the device is closed when the last of it is destroyed, and until then
 * its calls answer E_STATE. */
TAMIS_API void tamis_context_destroy(tamis_context **context);

/* The device behind a context. Owned by the context. */
TAMIS_API const tamis_device_info *tamis_context_device(const tamis_context *context);

/* Keeps the context to the calling thread over several calls, until as many calls of
 * tamis_context_leave: another thread's calls meanwhile answer E_STATE, and destroying waits.
 * Errors: E_ARGUMENT (NULL), E_STATE (another thread is in it; it has been destroyed). */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_context_enter(tamis_context *context,
                                                            tamis_error *error);
/* By the thread that entered. Accepts NULL. */
TAMIS_API void tamis_context_leave(tamis_context *context);

/* Waits until all that was enqueued is done. Reports device errors that arrived late; they stay on
 * the context (sticky), and every later call that uses the device returns them too. Errors: E_ARGUMENT (NULL),
 * E_DEVICE. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_context_wait(tamis_context *context,
                                                           tamis_error *error);

/* Measures how fast all compute units read `bytes` (a multiple of 64, at least 1 MiB) of memory,
 * which is allocated for the call: *gb_per_s in 1e9 bytes per second. Take at least 96 MiB: less
 * fits into caches. Waits. Errors: E_ARGUMENT, E_NO_MEMORY with size and limit, E_DEVICE. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_context_read_bandwidth(tamis_context *context,
                                                                     uint64_t bytes,
                                                                     double *gb_per_s,
                                                                     tamis_error *error);

/* The same for copying `bytes` within the device's memory; twice as much is allocated for the call.
 * The figure counts bytes read and bytes written together, and is the median of several copies. Errors: the
 * same. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_context_copy_bandwidth(tamis_context *context,
                                                                     uint64_t bytes,
                                                                     double *gb_per_s,
                                                                     tamis_error *error);

#ifdef __cplusplus
}
#endif
#endif
