/* SPDX-License-Identifier: Apache-2.0 */
/* THE CONTRACT between the door (device.h) and the ways to drive devices: how memory and queues are
 * driven, and the table of functions. What each op means is in ops.h. lib/ does not see this file.
 *
 * Here and in backends a function on an opened device takes no tamis_error: it leaves the reason in
 * the device, from which tms_forward alone hands it on. All of device.h and lib/ take one. */
#ifndef TMS_BACKEND_H
#define TMS_BACKEND_H

#include "host/device.h"

/* ---- Driving a device ------------------------------------------------------------------------ */

typedef struct tms_backend tms_backend;

/* Which form of an op runs. AUTO is the best one that takes the case; the others are for tests and
 * benches, and an op that has no such form for the case answers E_UNSUPPORTED with the reason. */
typedef enum tms_form {
    TMS_FORM_AUTO = 0,
    TMS_FORM_BASE = 1,
    TMS_FORM_CPU = 2,
    /* The CPU form in the shape that the device would not choose, if it has two shapes: for many
     * wide registers and for few narrow ones. */
    TMS_FORM_CPU_OTHER = 3,
    TMS_FORM_GPU = 4 /* that of GPUs, which CPUs run too if they are asked */
} tms_form;

static inline bool tms_form_is_cpu(tms_form form) {
    return form == TMS_FORM_CPU || form == TMS_FORM_CPU_OTHER;
}

/* Memory of a device, which grows when a plan is built and is kept until the device is closed. */
typedef struct tms_workspace {
    tms_mem *mem;
    uint64_t bytes;
} tms_workspace;

/* Memory of ops that are composed of others: the last one is used, each has at least twice the bytes
 * of the one before, and all are kept until the device is closed. */
typedef struct tms_composed {
    tms_mem *mems[64];
    uint32_t n;
    uint64_t bytes; /* of the last one */
} tms_composed;

/* What every opened device begins with; a backend's own struct has it as first member. */
struct tms_device {
    const tms_backend *backend;
    tamis_device_info info;
    tms_log log;
    tms_settings settings; /* of the kernels: those of its kind, until lib/ sets others */
    tms_settings found;    /* tms_device_settings_found */
    tms_form form;         /* the form that ops take */
    const char *base_only; /* why AUTO takes only the base form; NULL if it takes others, too */
    uint64_t launches;     /* kernels enqueued so far, but those of vendors' libraries; for tests */
    uint64_t ops;          /* called so far, by the door; for tests */
    bool rehearsing;       /* tms_device_rehearse */
    bool chose;            /* set by ops with several forms: AUTO may differ from BASE */
    tms_composed composed;
    tamis_error error;     /* reason of the last failed call */
    tamis_status sticky;   /* set by a late device error; every later call returns it */
};

/* From the device's error to the caller's: returns `status`, or the sticky error, and sets *error
 * unless that is OK. */
tamis_status tms_forward(const tms_device *dev, tamis_status status, tamis_error *error);

/* ---- The table ------------------------------------------------------------------------------- */

#define TMS_OP_FIELD(with, op)      tamis_status (*op)(tms_device * dev, const tms_##op *p);
#define TMS_SCRATCH_FIELD(with, op) uint64_t (*op##_scratch)(tms_device * dev, const tms_##op *p);
#define TMS_REFUSAL_FIELD(with, op)                                                                \
    const char *(*op##_refusal)(tms_device * dev, const tms_##op *p);

/* Every function but list and open takes an opened device. Status other than OK leaves the reason
 * in dev->error. Ops enqueue on the device's in-order queue and return; their params struct may
 * be reused at once. `optional` entries may be NULL. */
struct tms_backend {
    const char *name; /* "opencl" */

    /* Devices, best first; *count is the full number, even beyond `capacity`. A backend without any
     * gives one entry with usable 0 and the reason. */
    tamis_status (*list)(tamis_device_info *infos, size_t capacity, size_t *count);
    /* `self` is the table, `id` an id from list. Calls tms_device_init. */
    tamis_status (*open)(const tms_backend *self, const char *id, const tms_log *log,
                         tms_device **out, tamis_error *error);
    /* On the caller's native context and queue or stream. optional */
    tamis_status (*open_on)(const tms_backend *self, void *context, void *queue, const tms_log *log,
                            tms_device **out, tamis_error *error);
    void (*close)(tms_device *dev); /* waits for both queues */

    /* Uninitialised memory, aligned to 64 bytes; E_NO_MEMORY with size and limit. */
    tamis_status (*alloc)(tms_device *dev, uint64_t bytes, tms_mem **out);
    /* Frees after what is enqueued has run, and not before a recording has ended; accepts NULL. */
    void (*free)(tms_device *dev, tms_mem *mem);
    /* The caller's own memory: `bytes` from `offset` on behind a native address or in a native object,
     * which `free` lets go of and does not free. optional */
    tamis_status (*wrap)(tms_device *dev, uint64_t native, uint64_t offset, uint64_t bytes,
                         tms_mem **out);
    /* The same at an address of the host, where kernels use it in place; else E_UNSUPPORTED with the
     * reason. When `free` returns nothing uses it. optional */
    tamis_status (*wrap_host)(tms_device *dev, void *data, uint64_t bytes, tms_mem **out);
    /* The native address or object of any memory, which begins at *offset there. As `wrap`. */
    uint64_t (*native)(const tms_mem *mem, uint64_t *offset);
    /* Where the host sees what kernels read and write in place; NULL: nowhere. optional */
    void *(*data)(const tms_device *dev, const tms_mem *mem);
    /* The host's bytes may be reused when it returns. Small writes (<= 1 MiB) do not wait, unless
     * too many bytes are still to be copied. */
    tamis_status (*write)(tms_device *dev, tms_ref to, const void *from, uint64_t bytes);
    tamis_status (*read)(tms_device *dev, tms_ref from, void *to, uint64_t bytes); /* waits */
    tamis_status (*copy)(tms_device *dev, tms_ref to, tms_ref from, uint64_t bytes);
    tamis_status (*fill)(tms_device *dev, tms_ref to, uint32_t word,
                         uint64_t bytes); /* multiple of 4 */

    /* Memory of the host from which the device copies by itself, aligned to 64 bytes. */
    tamis_status (*host_alloc)(tms_device *dev, uint64_t bytes, void **out);
    void (*host_free)(tms_device *dev, void *host); /* waits for uploads; accepts NULL */
    /* A copy out of such memory on a second queue, in order with other uploads: it begins when
     * `after`, which may be NULL, is reached; *done is the mark behind it. The host's bytes must
     * stay until then; a call that fails copies no more when it returns. E_STATE during a recording.
     * Without a second queue the copy is done at once. */
    tamis_status (*upload)(tms_device *dev, tms_ref to, const void *from, uint64_t bytes,
                           const tms_event *after, tms_event **done);
    /* What is enqueued from now on begins when the event is reached. E_STATE during a recording. */
    tamis_status (*event_await)(tms_device *dev, const tms_event *event);

    /* timed: for event_elapsed. From the first timed mark on the queue collects times; that call
     * may wait. */
    tamis_status (*event_record)(tms_device *dev, bool timed, tms_event **out);
    tamis_status (*event_wait)(tms_device *dev, tms_event *event);
    /* Device time between two timed marks in microseconds; waits for the later one. The host's
     * clock, around a wait for each mark, where the driver gives no times. */
    tamis_status (*event_elapsed)(tms_device *dev, tms_event *from, tms_event *to, double *us);
    void (*event_free)(tms_device *dev, tms_event *event);
    /* A mark that is the caller's own event, and the native event of any mark, of which other queues
     * may wait. As `wrap`. */
    tamis_status (*event_wrap)(tms_device *dev, void *native, tms_event **out);
    void *(*event_native)(tms_device *dev, const tms_event *event);
    /* Between begin and end what is enqueued is recorded in place of running; a failed end ends it,
     * too. E_UNSUPPORTED for a queue that cannot be recorded. optional, all four */
    tamis_status (*capture_begin)(tms_device *dev);
    tamis_status (*capture_end)(tms_device *dev, tms_graph **out);
    tamis_status (*graph_launch)(tms_device *dev, tms_graph *graph);
    void (*graph_free)(tms_device *dev, tms_graph *graph);
    tamis_status (*flush)(tms_device *dev);
    tamis_status (*wait)(tms_device *dev); /* for both queues */

    /* Best read bandwidth over `bytes` (>= 1 MiB; at least 96 MiB exceed caches) from `from`, GB/s
     * (1e9), all compute units, the best of several kernels and the median of several runs of it.
     * Waits. */
    tamis_status (*read_bandwidth)(tms_device *dev, tms_ref from, uint64_t bytes, double *gb_per_s);
    /* Reads K and V of every page of the lanes once, computing nothing, with all compute units; a
     * CPU divides the work as attend's CPU form does. Enqueues. */
    tamis_status (*read_pages)(tms_device *dev, const tms_page_read *p);
    /* Whether it reads them in every order; else only in TMS_READ_PAGES, ahead 0. */
    bool (*orders_pages)(tms_device *dev);
    /* The layout in which it reads weights of this type fastest. optional: it reads rows alone */
    tamis_weight_layout (*weight_layout)(tms_device *dev, tamis_weight_type type);

    /* The ops: tamis_status op(dev, p), called after the contract's rules were checked; NULL for those
     * that the backend lacks. For some ops uint64_t op_scratch(dev, p), optional; for fused ops const
     * char *op_refusal(dev, p), optional. */
    TMS_OPS(TMS_OP_FIELD, )
    TMS_SCRATCH_OPS(TMS_SCRATCH_FIELD, )
    TMS_FUSED_OPS(TMS_REFUSAL_FIELD, )
};

/* What a backend that calls its functions <prefix><op> has in its header and in its table. */
#define TMS_DECLARE_OP(prefix, op)    tamis_status prefix##op(tms_device *dev, const tms_##op *p);
#define TMS_ENTER_OP(prefix, op)      .op = prefix##op,
#define TMS_ENTER_SCRATCH(prefix, op) .op##_scratch = prefix##op##_scratch,
#define TMS_ENTER_REFUSAL(prefix, op) .op##_refusal = prefix##op##_refusal,

/* The ordered list of backends built in, ended by NULL (host/backends.c). */
extern const tms_backend *const tms_backends[];

/* ---- Helpers shared by backends -------------------------------------------------------------- */

/* Fills what every device begins with. */
void tms_device_init(tms_device *dev, const tms_backend *backend, const tamis_device_info *info,
                     const tms_log *log);
/* Sets dev->error and returns `status`. printf form; name the offending value. If dev->sticky is
 * set, its text stays and it is returned instead. */
tamis_status tms_device_fail(tms_device *dev, tamis_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Checks an allocation against the device's limits; `used` bytes are allocated already. */
tamis_status tms_check_allocation(tms_device *dev, uint64_t bytes, uint64_t used);

/* Checks a caller's memory of the host: where it is, and how much. It begins at a multiple of
 * TMS_HOST_ALIGNMENT, as all memory of a device does. */
#define TMS_HOST_ALIGNMENT 64u
tamis_status tms_check_host(tms_device *dev, const void *data, uint64_t bytes);

#endif
