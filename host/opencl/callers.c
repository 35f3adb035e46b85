/* SPDX-License-Identifier: Apache-2.0 */
/* What a program has of OpenCL itself, taken as it is: its context and queue, its buffers and events,
 * and memory of the host. */
#include "host/opencl/opencl.h"
#include <stdlib.h>
#include <string.h>

#define USES_SVM_POINTER 0x1109 /* CL_MEM_USES_SVM_POINTER, of OpenCL 2.0 */
#define ALIGNMENT        TMS_HOST_ALIGNMENT

/* ---- Context and queue ----------------------------------------------------------------------- */

static tamis_status refuse(tamis_error *error, const char *what, const void *handle, cl_int code) {
    return tms_error_set(error, TAMIS_E_ARGUMENT, "OpenCL %s %p: %s (%d)", what, handle,
                         tms_cl_error_text(code), (int)code);
}

static tamis_status check_device(cl_device_id device, tamis_error *error) {
    cl_device_id whole = NULL;
    clGetDeviceInfo(device, CL_DEVICE_PARENT_DEVICE, sizeof whole, &whole, NULL);
    if (!whole) return TAMIS_OK;
    return tms_error_set(
        error, TAMIS_E_UNSUPPORTED,
        "OpenCL device %p is a sub-device of %p: a queue of a whole device is needed",
        (void *)device, (void *)whole);
}

tamis_status tms_cl_queue_check(cl_context context, cl_command_queue queue, cl_device_id *device,
                                tamis_error *error) {
    cl_uint references;
    cl_context of = NULL;
    cl_command_queue_properties properties = 0;
    if (!queue) return tms_error_set(error, TAMIS_E_ARGUMENT, "OpenCL queue: NULL");
    cl_int code =
        clGetContextInfo(context, CL_CONTEXT_REFERENCE_COUNT, sizeof references, &references, NULL);
    if (code != CL_SUCCESS) return refuse(error, "context", context, code);
    code = clGetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof of, &of, NULL);
    if (code == CL_SUCCESS)
        code = clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof *device, device, NULL);
    if (code == CL_SUCCESS)
        code =
            clGetCommandQueueInfo(queue, CL_QUEUE_PROPERTIES, sizeof properties, &properties, NULL);
    if (code != CL_SUCCESS) return refuse(error, "queue", queue, code);
    if (of != context)
        return tms_error_set(error, TAMIS_E_ARGUMENT,
                             "OpenCL queue %p is of the context %p, not %p", (void *)queue,
                             (void *)of, (void *)context);
    if (properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE)
        return tms_error_set(error, TAMIS_E_UNSUPPORTED,
                             "OpenCL queue %p is out of order "
                             "(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE): one in order is needed",
                             (void *)queue);
    return check_device(*device, error);
}

/* ---- Buffers --------------------------------------------------------------------------------- */

/* What the driver says of a caller's cl_mem. */
typedef struct description {
    cl_mem_object_type type;
    cl_context context;
    cl_mem_flags flags;
    size_t bytes;
    void *host; /* with CL_MEM_USE_HOST_PTR */
} description;

static cl_int describe(cl_mem mem, description *d) {
    const struct {
        cl_mem_info what;
        size_t bytes;
        void *to;
    } parts[] = {{CL_MEM_TYPE, sizeof d->type, &d->type},
                 {CL_MEM_CONTEXT, sizeof d->context, &d->context},
                 {CL_MEM_FLAGS, sizeof d->flags, &d->flags},
                 {CL_MEM_SIZE, sizeof d->bytes, &d->bytes},
                 {CL_MEM_HOST_PTR, sizeof d->host, &d->host}};
    cl_int code = CL_SUCCESS;
    for (size_t i = 0; i < sizeof parts / sizeof *parts && code == CL_SUCCESS; i++)
        code = clGetMemObjectInfo(mem, parts[i].what, parts[i].bytes, parts[i].to, NULL);
    return code;
}

/* A buffer of the context's that kernels and the host may read and write, whatever it comes to. */
static tamis_status check_buffer(tms_device *dev, cl_mem mem, const description *d) {
    static const struct {
        cl_mem_flags flag;
        const char *name;
    } limits[] = {{CL_MEM_READ_ONLY, "CL_MEM_READ_ONLY"},
                  {CL_MEM_WRITE_ONLY, "CL_MEM_WRITE_ONLY"},
                  {CL_MEM_HOST_READ_ONLY, "CL_MEM_HOST_READ_ONLY"},
                  {CL_MEM_HOST_WRITE_ONLY, "CL_MEM_HOST_WRITE_ONLY"},
                  {CL_MEM_HOST_NO_ACCESS, "CL_MEM_HOST_NO_ACCESS"}};
    if (d->type != CL_MEM_OBJECT_BUFFER)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "cl_mem %p: of type 0x%x, which is no buffer's (0x%x)", (void *)mem,
                               (unsigned)d->type, (unsigned)CL_MEM_OBJECT_BUFFER);
    if (d->context != tms_cl(dev)->context)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "cl_mem %p is of the OpenCL context %p, not %p", (void *)mem,
                               (void *)d->context, (void *)tms_cl(dev)->context);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (d->flags & limits[i].flag)
            return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                                   "cl_mem %p was made with %s: kernels and the host must be free "
                                   "to read and write it",
                                   (void *)mem, limits[i].name);
    return TAMIS_OK;
}

static tamis_status check_part(tms_device *dev, cl_mem mem, const description *d, uint64_t offset,
                               uint64_t bytes) {
    if (offset % ALIGNMENT)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "offset %llu in a cl_mem: must be a multiple of %u",
                               (unsigned long long)offset, ALIGNMENT);
    if (bytes == 0 || offset > d->bytes || bytes > d->bytes - offset)
        return tms_device_fail(
            dev, TAMIS_E_ARGUMENT, "cl_mem %p: %llu bytes at offset %llu of %llu", (void *)mem,
            (unsigned long long)bytes, (unsigned long long)offset, (unsigned long long)d->bytes);
    return TAMIS_OK;
}

/* Where a buffer lies that the driver has placed. A driver that lends memory of the host to kernels
 * maps it where it is. */
static tamis_status map(tms_device *dev, cl_mem mem, const description *d, void **at) {
    const cl_command_queue queue = tms_cl(dev)->queue;
    cl_int code;
    *at = clEnqueueMapBuffer(queue, mem, CL_TRUE, CL_MAP_READ, 0, d->bytes, 0, NULL, NULL, &code);
    if (code == CL_SUCCESS) code = clEnqueueUnmapMemObject(queue, mem, *at, 0, NULL, NULL);
    if (code == CL_SUCCESS) code = clFinish(queue);
    return tms_cl_check(dev, code, "the address of a cl_mem");
}

/* Where a part of a buffer begins in the host's memory; NULL: kernels get no address. */
static tamis_status find_address(tms_device *dev, cl_mem mem, const description *d, uint64_t offset,
                                 void **out) {
    const tms_cl_device *cl = tms_cl(dev);
    void *at = cl->cpu && d->flags & CL_MEM_USE_HOST_PTR ? d->host : NULL;
    *out = NULL;
    if (!at && cl->in_place) {
        const tamis_status status = map(dev, mem, d, &at);
        if (status != TAMIS_OK) return status;
    }
    if ((uintptr_t)at % ALIGNMENT)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "cl_mem %p is at the host's address %p: must be a multiple of %u",
                               (void *)mem, at, ALIGNMENT);
    if (cl->in_place) *out = (uint8_t *)at + offset;
    return TAMIS_OK;
}

static tamis_status make_handle(tms_device *dev, const tms_mem *mem, tms_mem **out) {
    *out = malloc(sizeof **out);
    if (!*out)
        return tms_device_fail(dev, TAMIS_E_NO_MEMORY, "no host memory for a buffer's handle");
    **out = *mem;
    return TAMIS_OK;
}

tamis_status tms_cl_wrap(tms_device *dev, uint64_t native, uint64_t offset, uint64_t bytes,
                         tms_mem **out) {
    const cl_mem mem = (cl_mem)(uintptr_t)native;
    tms_mem wrapped = {.cl = mem, .begin = offset, .bytes = bytes, .owner = TMS_CL_CALLERS};
    description d = {0};
    if (dev->sticky != TAMIS_OK) return dev->sticky;
    if (!mem) return tms_device_fail(dev, TAMIS_E_ARGUMENT, "cl_mem: NULL");
    cl_int code = describe(mem, &d);
    if (code != CL_SUCCESS)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "cl_mem %p: %s (%d)", (void *)mem,
                               tms_cl_error_text(code), (int)code);
    tamis_status status = check_buffer(dev, mem, &d);
    if (status == TAMIS_OK) status = check_part(dev, mem, &d, offset, bytes);
    if (status == TAMIS_OK) status = find_address(dev, mem, &d, offset, &wrapped.host);
    if (status == TAMIS_OK) status = tms_cl_check(dev, clRetainMemObject(mem), "cl_mem");
    if (status != TAMIS_OK) return status;
    status = make_handle(dev, &wrapped, out);
    if (status != TAMIS_OK) clReleaseMemObject(mem);
    return status;
}

uint64_t tms_cl_native(const tms_mem *mem, uint64_t *offset) {
    *offset = mem->begin;
    return (uintptr_t)mem->cl;
}

/* ---- Memory of the host ---------------------------------------------------------------------- */

/* Whether the device writes to memory of the host that it is given, or to a copy. */
static cl_int try_host(tms_cl_device *cl) {
    enum { WORDS = 1024, BEGIN = ALIGNMENT / sizeof(cl_uint) };
    const size_t bytes = (WORDS - BEGIN) * sizeof(cl_uint);
    const cl_uint word = 0x74616d69;
    cl_int code;
    cl_uint *words = aligned_alloc(WORDS * sizeof *words, WORDS * sizeof *words);
    if (!words) return CL_OUT_OF_HOST_MEMORY;
    memset(words, 0, WORDS * sizeof *words);
    cl_mem mem = clCreateBuffer(cl->context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, bytes,
                                words + BEGIN, &code);
    if (code == CL_SUCCESS)
        code = clEnqueueFillBuffer(cl->queue, mem, &word, sizeof word, 0, bytes, 0, NULL, NULL);
    if (code == CL_SUCCESS) code = clFinish(cl->queue);
    if (code == CL_SUCCESS)
        cl->of_host = words[BEGIN] == word && words[WORDS - 1] == word ? TMS_CL_USES_HOST
                                                                       : TMS_CL_COPIES_HOST;
    if (mem) clReleaseMemObject(mem);
    free(words);
    return code;
}

static bool uses_svm(cl_mem mem) {
    cl_bool uses = CL_FALSE;
    return clGetMemObjectInfo(mem, USES_SVM_POINTER, sizeof uses, &uses, NULL) == CL_SUCCESS &&
           uses;
}

/* Whether kernels use the memory of a buffer, which the host gave, without a copy; and whether the
 * host sees there what they write. */
static tamis_status check_use(tms_device *dev, cl_mem mem, bool *seen) {
    tms_cl_device *cl = tms_cl(dev);
    cl_int code = CL_SUCCESS;
    *seen = cl->in_place;
    if (cl->in_place) return TAMIS_OK;
    if (cl->cpu && cl->of_host == TMS_CL_UNTRIED) code = try_host(cl);
    if (code != CL_SUCCESS) return tms_cl_check(dev, code, "trying the host's memory");
    *seen = cl->cpu && cl->of_host == TMS_CL_USES_HOST;
    if (*seen || uses_svm(mem)) return TAMIS_OK;
    return tms_device_fail(
        dev, TAMIS_E_UNSUPPORTED,
        "%s (%s) would work on a copy: it takes memory of the host only where that "
        "is shared virtual memory (SVM)",
        dev->info.id, dev->info.name);
}

tamis_status tms_cl_wrap_host(tms_device *dev, void *data, uint64_t bytes, tms_mem **out) {
    tms_mem wrapped = {.bytes = bytes, .owner = TMS_CL_CALLERS_HOST};
    bool seen;
    cl_int code;
    tamis_status status = tms_check_host(dev, data, bytes);
    if (status == TAMIS_OK) status = tms_check_allocation(dev, bytes, 0);
    if (status != TAMIS_OK) return status;
    wrapped.cl = clCreateBuffer(tms_cl(dev)->context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR,
                                bytes, data, &code);
    status = tms_cl_check(dev, code, "a buffer in the host's memory");
    if (status != TAMIS_OK) return status;
    status = check_use(dev, wrapped.cl, &seen);
    if (status == TAMIS_OK && seen) wrapped.host = data;
    if (status == TAMIS_OK) status = make_handle(dev, &wrapped, out);
    if (status != TAMIS_OK) clReleaseMemObject(wrapped.cl);
    return status;
}

void *tms_cl_data(const tms_device *dev, const tms_mem *mem) {
    const bool in_place = ((const tms_cl_device *)dev)->in_place;
    return in_place || mem->owner == TMS_CL_CALLERS_HOST ? mem->host : NULL;
}

/* ---- Events ---------------------------------------------------------------------------------- */

tamis_status tms_cl_event_wrap(tms_device *dev, void *native, tms_event **out) {
    const cl_event event = native;
    cl_context context = NULL;
    if (dev->sticky != TAMIS_OK) return dev->sticky;
    cl_int code = clGetEventInfo(event, CL_EVENT_CONTEXT, sizeof context, &context, NULL);
    if (code != CL_SUCCESS)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "cl_event %p: %s (%d)", native,
                               tms_cl_error_text(code), (int)code);
    if (context != tms_cl(dev)->context)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "cl_event %p is of the OpenCL context %p, not %p", native,
                               (void *)context, (void *)tms_cl(dev)->context);
    const tamis_status status = tms_cl_check(dev, clRetainEvent(event), "cl_event");
    return status == TAMIS_OK ? tms_cl_event_make(dev, event, out) : status;
}

void *tms_cl_event_native(tms_device *dev, const tms_event *event) {
    (void)tms_cl_flush(dev); /* other queues may wait for it only then */
    return tms_cl_event_of(event);
}
