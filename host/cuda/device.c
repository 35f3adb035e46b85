/* SPDX-License-Identifier: Apache-2.0 */
/* Devices of the CUDA driver: listing with the reasons for refusal, opening, closing. */
#include "host/base/quote.h"
#include "host/cuda/cuda.h"
#include "host/found.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The kernels need this compute capability (10 * major + minor). */
#define NEED_CAPABILITY 80
/* Handles of a CUstream that name no stream of the caller's. */
#define STREAM_LEGACY     ((tms_cu_stream)1) /* the same as NULL */
#define STREAM_PER_THREAD ((tms_cu_stream)2)

/* The driver's number of a device, as a handle and back. */
static void *handle_of(tms_cu_ordinal ordinal) {
    return (void *)(intptr_t)ordinal;
}

static tms_cu_ordinal ordinal_of(const tms_found *f) {
    return (tms_cu_ordinal)(intptr_t)f->device;
}

static int get_number(const tms_cu_driver *api, tms_cu_ordinal device, int attribute) {
    int value = 0;
    return api->cuDeviceGetAttribute(&value, attribute, device) == TMS_CU_SUCCESS ? value : 0;
}

static int capability_of(const tms_cu_driver *api, tms_cu_ordinal device) {
    return 10 * get_number(api, device, TMS_CU_CAPABILITY_MAJOR) +
           get_number(api, device, TMS_CU_CAPABILITY_MINOR);
}

/* Fills `reason` and returns false if the kernels cannot run. */
static bool is_usable(const tms_cu_driver *api, tms_cu_ordinal device, char *reason,
                      size_t capacity) {
    const int capability = capability_of(api, device);
    if (capability >= NEED_CAPABILITY) return tms_cu_has_kernels(reason, capacity);
    snprintf(reason, capacity, "compute capability %d.%d: %d.%d is needed", capability / 10,
             capability % 10, NEED_CAPABILITY / 10, NEED_CAPABILITY % 10);
    return false;
}

static void describe(const tms_cu_driver *api, int index, tms_found *f) {
    const tms_cu_ordinal device = ordinal_of(f);
    tamis_device_info *info = &f->info;
    size_t bytes = 0;
    int version = 0;
    *info = (tamis_device_info){.backend = "cuda", .kind = TAMIS_DEVICE_GPU};
    snprintf(info->id, sizeof info->id, "cuda:%d", index);
    api->cuDeviceGetName(info->name, sizeof info->name, device);
    tms_quote_in_place(info->name);
    api->cuDriverGetVersion(&version); /* 1000 * major + 10 * minor */
    snprintf(info->driver, sizeof info->driver, "CUDA driver %d.%d", version / 1000,
             version % 1000 / 10);
    api->cuDeviceTotalMem_v2(&bytes, device);
    info->memory_bytes = info->max_buffer_bytes = bytes;
    info->compute_units = (uint32_t)get_number(api, device, TMS_CU_MULTIPROCESSORS);
    info->usable = is_usable(api, device, info->reason, sizeof info->reason);
}

static size_t gather(tms_found *all, char *reason, size_t capacity) {
    const tms_cu_driver *api = tms_cu_driver_get(reason, capacity);
    if (!api) return 0;
    int count = 0;
    const tms_cu_result result = api->cuDeviceGetCount(&count);
    size_t n = 0;
    for (int i = 0; result == TMS_CU_SUCCESS && i < count && n < TMS_MOST_FOUND; i++) {
        tms_cu_ordinal device;
        if (api->cuDeviceGet(&device, i) != TMS_CU_SUCCESS) continue;
        all[n].device = handle_of(device);
        describe(api, i, &all[n++]);
    }
    if (n == 0) snprintf(reason, capacity, "the CUDA driver has %d devices (%d)", count, result);
    return n;
}

tamis_status tms_cu_list(tamis_device_info *infos, size_t capacity, size_t *count) {
    return tms_found_list("cuda", gather, infos, capacity, count);
}

static tms_cu_device *make(const tms_backend *self, const tms_found *f, const tms_log *log) {
    char reason[sizeof f->info.reason];
    tms_cu_device *cu = calloc(1, sizeof *cu);
    if (!cu) return NULL;
    tms_device_init(&cu->base, self, &f->info, log);
    cu->api = tms_cu_driver_get(reason, sizeof reason); /* it has listed this device */
    cu->ordinal = ordinal_of(f);
    cu->capability = capability_of(cu->api, cu->ordinal);
    cu->max_shared = (uint32_t)get_number(cu->api, cu->ordinal, TMS_CU_MAX_SHARED_PER_BLOCK);
    return cu;
}

/* A context and a stream of its own. */
static tamis_status take_own(tms_device *dev) {
    tms_cu_device *cu = tms_cu(dev);
    tamis_status status = tms_cu_check(
        dev, cu->api->cuDevicePrimaryCtxRetain(&cu->context, cu->ordinal), "primary context");
    if (status != TAMIS_OK) return status;
    cu->own_context = true;
    status = tms_cu_enter(dev);
    if (status != TAMIS_OK) return status;
    status = tms_cu_check(dev, cu->api->cuStreamCreate(&cu->stream, TMS_CU_STREAM_NON_BLOCKING),
                          "stream");
    cu->own_stream = status == TAMIS_OK;
    tms_cu_leave(dev);
    return status;
}

static tamis_status take_tickets(tms_device *dev) {
    const uint64_t bytes = TMS_CU_TICKETS * sizeof(uint32_t);
    tamis_status status = tms_cu_alloc(dev, bytes, &tms_cu(dev)->tickets);
    if (status != TAMIS_OK) return status;
    return tms_cu_fill(dev, (tms_ref){tms_cu(dev)->tickets, 0}, 0, bytes);
}

/* Early launches are off unless the environment asks for them. PTX for future devices has no
 * grid_wait, and without it kernels would read lists that are being written. */
static tamis_status read_overlap(tms_device *dev) {
    tms_cu_device *cu = tms_cu(dev);
    const char *value = tms_env("TAMIS_CUDA_OVERLAP");
    if (!value || strcmp(value, "0") == 0) return TAMIS_OK;
    if (strcmp(value, "1") != 0)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "TAMIS_CUDA_OVERLAP is \"%s\": must be 0 or 1", value);
    if (cu->capability != 90)
        return tms_device_fail(dev, TAMIS_E_UNSUPPORTED,
                               "TAMIS_CUDA_OVERLAP=1 on compute capability %d.%d: kernels for 9.0 "
                               "alone can begin early",
                               cu->capability / 10, cu->capability % 10);
    cu->overlap = true;
    return TAMIS_OK;
}

/* What a device holds besides its context and stream. */
static tamis_status prepare(tms_device *dev) {
    tms_cu_device *cu = tms_cu(dev);
    cu->pools = get_number(cu->api, cu->ordinal, TMS_CU_MEMORY_POOLS);
    tamis_status status = read_overlap(dev);
    if (status == TAMIS_OK) status = tms_cu_programs_probe(dev);
    if (status == TAMIS_OK) status = tms_cu_staging_take(dev);
    if (status == TAMIS_OK) status = take_tickets(dev);
    return status == TAMIS_OK ? tms_cu_wait(dev) : status;
}

/* Completes the opening of a device, on its own stream or on the caller's; closes it on failure. */
static tamis_status finish(tms_cu_device *cu, tms_device **out, tamis_error *error) {
    tms_device *dev = &cu->base;
    tamis_status status = cu->context ? TAMIS_OK : take_own(dev);
    if (status == TAMIS_OK) status = prepare(dev);
    if (status != TAMIS_OK) {
        tms_error_set(error, status, "%s (%s): opening failed: %.300s", dev->info.id,
                      dev->info.name, dev->error.text);
        tms_cu_close(dev);
        return status;
    }
    *out = dev;
    return TAMIS_OK;
}

tamis_status tms_cu_open(const tms_backend *self, const char *id, const tms_log *log,
                         tms_device **out, tamis_error *error) {
    tms_found f;
    tamis_status status = tms_found_one(gather, id, NULL, &f, error);
    if (status != TAMIS_OK) return status;
    tms_cu_device *cu = make(self, &f, log);
    if (!cu) return tms_error_set(error, TAMIS_E_NO_MEMORY, "no host memory for a device");
    return finish(cu, out, error);
}

/* The driver's device of a context. */
static tamis_status device_of(tms_cu_context context, tms_cu_ordinal *device, tamis_error *error) {
    char reason[224];
    const tms_cu_driver *api = tms_cu_driver_get(reason, sizeof reason);
    if (!api) return tms_error_set(error, TAMIS_E_NO_DEVICE, "cuda: %s", reason);
    tms_cu_result result = api->cuCtxPushCurrent_v2(context);
    if (result == TMS_CU_SUCCESS) {
        result = api->cuCtxGetDevice(device);
        api->cuCtxPopCurrent_v2(&context);
    }
    if (result == TMS_CU_SUCCESS) return TAMIS_OK;
    const char *name = NULL;
    api->cuGetErrorName(result, &name);
    return tms_error_set(error, TAMIS_E_ARGUMENT, "CUDA context %p: %s (%d)", (void *)context,
                         name ? name : "a CUDA error", result);
}

tamis_status tms_cu_open_on(const tms_backend *self, void *context, void *stream,
                            const tms_log *log, tms_device **out, tamis_error *error) {
    tms_found f;
    tms_cu_ordinal device;
    if (!context) return tms_error_set(error, TAMIS_E_ARGUMENT, "CUDA context: NULL");
    if (stream == STREAM_PER_THREAD)
        return tms_error_set(error, TAMIS_E_UNSUPPORTED,
                             "CUDA stream 0x2 (CU_STREAM_PER_THREAD): another one in each thread");
    tamis_status status = device_of(context, &device, error);
    if (status == TAMIS_OK) status = tms_found_one(gather, NULL, handle_of(device), &f, error);
    if (status != TAMIS_OK) return status;
    tms_cu_device *cu = make(self, &f, log);
    if (!cu) return tms_error_set(error, TAMIS_E_NO_MEMORY, "no host memory for a device");
    cu->context = context;
    cu->stream = stream == STREAM_LEGACY ? NULL : stream;
    return finish(cu, out, error);
}

/* The caller's context may be gone: then only host memory is left to free. */
void tms_cu_close(tms_device *dev) {
    tms_cu_device *cu = tms_cu(dev);
    const bool inside = cu->context && tms_cu_enter(dev) == TAMIS_OK;
    if (inside && (cu->stream || !cu->own_context)) cu->api->cuStreamSynchronize(cu->stream);
    if (inside && cu->uploads) cu->api->cuStreamSynchronize(cu->uploads);
    tms_cu_linear_close(dev);
    tms_cu_free(dev, cu->tickets);
    tms_cu_free_last(dev);
    tms_cu_programs_free(dev, inside);
    if (inside) {
        tms_cu_staging_free(dev);
        if (cu->own_stream) cu->api->cuStreamDestroy_v2(cu->stream);
        if (cu->uploads) cu->api->cuStreamDestroy_v2(cu->uploads);
        tms_cu_leave(dev);
    }
    if (cu->own_context) cu->api->cuDevicePrimaryCtxRelease_v2(cu->ordinal);
    free(cu);
}
