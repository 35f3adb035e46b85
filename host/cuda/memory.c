/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory: allocation within the device's limits, and copies in and out of it. */
#include "host/cuda/cuda.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WRAP_ALIGNMENT     16u        /* of a caller's memory, in bytes */
#define MAX_NO_WAIT        (1u << 20) /* the contract: writes up to this do not wait */
#define EVENT_WITHOUT_TIME 2u         /* CUevent_flags */

static tms_mem *make_handle(tms_device *dev) {
    tms_mem *mem = calloc(1, sizeof *mem);
    if (!mem) tms_device_fail(dev, TAMIS_E_NO_MEMORY, "no host memory for a buffer's handle");
    return mem;
}

/* Other programs use the device's memory, too: the driver may have less left than the limit minus
 * our own memory. */
static tamis_status ask_driver(tms_device *dev, uint64_t bytes, tms_cu_address *at) {
    tms_cu_device *cu = tms_cu(dev);
    char what[160];
    snprintf(what, sizeof what, "a buffer of %llu bytes on %s of %llu, %llu taken by this context",
             (unsigned long long)bytes, dev->info.id, (unsigned long long)dev->info.memory_bytes,
             (unsigned long long)cu->memory_used);
    return tms_cu_check(dev,
                        cu->pools ? cu->api->cuMemAllocAsync(at, bytes, cu->stream)
                                  : cu->api->cuMemAlloc_v2(at, bytes),
                        what);
}

static tamis_status take_memory(tms_device *dev, uint64_t bytes, tms_cu_address *at) {
    char what[80];
    snprintf(what, sizeof what, "a buffer of %llu bytes on %s", (unsigned long long)bytes,
             dev->info.id);
    tamis_status status = tms_cu_enter(dev);
    if (status != TAMIS_OK) return status;
    status = tms_cu_check_not_captured(dev, what);
    if (status == TAMIS_OK) tms_cu_free_again(dev);
    if (status == TAMIS_OK) status = ask_driver(dev, bytes, at);
    tms_cu_leave(dev);
    return status;
}

tamis_status tms_cu_alloc(tms_device *dev, uint64_t bytes, tms_mem **out) {
    tamis_status status = tms_check_allocation(dev, bytes, tms_cu(dev)->memory_used);
    if (status != TAMIS_OK) return status;
    tms_mem *mem = make_handle(dev);
    if (!mem) return TAMIS_E_NO_MEMORY;
    status = take_memory(dev, bytes, &mem->at);
    if (status != TAMIS_OK) {
        free(mem);
        return status;
    }
    mem->bytes = bytes;
    mem->own = true;
    tms_cu(dev)->memory_used += bytes;
    tms_cu(dev)->allocated = true;
    *out = mem;
    return TAMIS_OK;
}

tamis_status tms_cu_wrap(tms_device *dev, uint64_t native, uint64_t offset, uint64_t bytes,
                         tms_mem **out) {
    const tms_cu_address at = native + offset;
    if (dev->sticky != TAMIS_OK) return dev->sticky;
    if (at == 0 || at % WRAP_ALIGNMENT)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "device address 0x%llx: must be a multiple of %u and not 0",
                               (unsigned long long)at, WRAP_ALIGNMENT);
    if (bytes == 0 || bytes > UINT64_MAX - at)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "%llu bytes at device address 0x%llx",
                               (unsigned long long)bytes, (unsigned long long)at);
    tms_mem *mem = make_handle(dev);
    if (!mem) return TAMIS_E_NO_MEMORY;
    *mem = (tms_mem){.at = at, .bytes = bytes};
    *out = mem;
    return TAMIS_OK;
}

uint64_t tms_cu_native(const tms_mem *mem, uint64_t *offset) {
    *offset = 0;
    return mem->at;
}

/* During a recording a graph could free only its own memory, so nothing is freed then. The driver
 * frees in the first stream's order, behind uploads; without pools at once, so that this waits for
 * both streams before. */
static tamis_status give_back(tms_device *dev, tms_cu_address at) {
    tms_cu_device *cu = tms_cu(dev);
    tamis_status status = tms_cu_enter(dev);
    if (status != TAMIS_OK) return status;
    status = tms_cu_check_not_captured(dev, "free");
    if (status == TAMIS_OK) status = tms_cu_follow_uploads(dev);
    if (status == TAMIS_OK && !cu->pools)
        status = tms_cu_check(dev, cu->api->cuStreamSynchronize(cu->stream), "free");
    if (status == TAMIS_OK)
        status = tms_cu_check(
            dev, cu->pools ? cu->api->cuMemFreeAsync(at, cu->stream) : cu->api->cuMemFree_v2(at),
            "free");
    tms_cu_leave(dev);
    return status;
}

void tms_cu_free(tms_device *dev, tms_mem *mem) {
    tms_cu_device *cu = tms_cu(dev);
    if (!mem) return;
    if (mem->own && give_back(dev, mem->at) != TAMIS_OK) {
        mem->next = cu->unfreed;
        cu->unfreed = mem;
        return;
    }
    if (mem->own) cu->memory_used -= mem->bytes;
    free(mem);
}

void tms_cu_free_again(tms_device *dev) {
    tms_mem *mem = tms_cu(dev)->unfreed;
    tms_cu(dev)->unfreed = NULL;
    for (tms_mem *next; mem; mem = next) {
        next = mem->next;
        tms_cu_free(dev, mem);
    }
}

void tms_cu_free_last(tms_device *dev) {
    uint64_t lost = 0;
    tms_cu_host_free_again(dev);
    tms_cu_free_again(dev);
    for (tms_mem *mem = tms_cu(dev)->unfreed, *next; mem; mem = next) {
        next = mem->next;
        lost += mem->bytes;
        free(mem);
    }
    if (lost)
        tms_log_line(&dev->log, TAMIS_LOG_WARN, "%llu bytes are not freed: %s",
                     (unsigned long long)lost, dev->error.text);
}

/* ---- Writes ---------------------------------------------------------------------------------- */

tamis_status tms_cu_staging_take(tms_device *dev) {
    tms_cu_device *cu = tms_cu(dev);
    tms_cu_staging *s = &cu->staging;
    void *bytes = NULL;
    tamis_status status = tms_cu_enter(dev);
    if (status != TAMIS_OK) return status;
    status = tms_cu_check(dev, cu->api->cuMemAllocHost_v2(&bytes, 2 * TMS_CU_STAGING_HALF),
                          "pinned host memory for staging");
    s->bytes = bytes;
    for (int half = 0; half < 2 && status == TAMIS_OK; half++)
        status = tms_cu_check(dev, cu->api->cuEventCreate(&s->last[half], EVENT_WITHOUT_TIME),
                              "event for staging");
    tms_cu_leave(dev);
    return status;
}

void tms_cu_staging_free(tms_device *dev) {
    tms_cu_device *cu = tms_cu(dev);
    for (int half = 0; half < 2; half++)
        if (cu->staging.last[half]) cu->api->cuEventDestroy_v2(cu->staging.last[half]);
    if (cu->staging.bytes) cu->api->cuMemFreeHost(cu->staging.bytes);
}

/* Makes room for `bytes` in the present half, or waits for the other half and continues there. */
static tamis_status reserve_staging(tms_device *dev, uint64_t bytes) {
    tms_cu_staging *s = &tms_cu(dev)->staging;
    if (s->used + bytes <= TMS_CU_STAGING_HALF) return TAMIS_OK;
    s->half = !s->half;
    s->used = 0;
    if (!s->written[s->half]) return TAMIS_OK;
    s->written[s->half] = false;
    return tms_cu_check_late(dev, tms_cu(dev)->api->cuEventSynchronize(s->last[s->half]),
                             "waiting for a write");
}

/* With pageable memory the driver would wait for the stream, so the bytes are copied to pinned
 * memory. */
static tamis_status write_staged(tms_device *dev, tms_cu_address to, const void *from,
                                 uint64_t bytes) {
    tms_cu_device *cu = tms_cu(dev);
    tms_cu_staging *s = &cu->staging;
    tamis_status status = reserve_staging(dev, bytes);
    if (status != TAMIS_OK) return status;
    uint8_t *staged = s->bytes + s->half * (size_t)TMS_CU_STAGING_HALF + s->used;
    memcpy(staged, from, bytes);
    status =
        tms_cu_check(dev, cu->api->cuMemcpyHtoDAsync_v2(to, staged, bytes, cu->stream), "write");
    if (status != TAMIS_OK) return status;
    s->written[s->half] = true;
    s->used += (bytes + 63) / 64 * 64;
    return tms_cu_check(dev, cu->api->cuEventRecord(s->last[s->half], cu->stream), "write");
}

tamis_status tms_cu_write(tms_device *dev, tms_ref to, const void *from, uint64_t bytes) {
    tamis_status status = tms_cu_check_range(dev, to, bytes, "write");
    if (status != TAMIS_OK || bytes == 0) return status;
    status = tms_cu_enter(dev);
    if (status != TAMIS_OK) return status;
    status = tms_cu_check_not_captured(dev, "write");
    for (uint64_t done = 0, piece; done < bytes && status == TAMIS_OK; done += piece) {
        piece = bytes - done < MAX_NO_WAIT ? bytes - done : MAX_NO_WAIT;
        status =
            write_staged(dev, to.mem->at + to.offset + done, (const uint8_t *)from + done, piece);
    }
    tms_cu_leave(dev);
    return status;
}

/* ---- Other copies ---------------------------------------------------------------------------- */

tamis_status tms_cu_read(tms_device *dev, tms_ref from, void *to, uint64_t bytes) {
    tms_cu_device *cu = tms_cu(dev);
    tamis_status status = tms_cu_check_range(dev, from, bytes, "read");
    if (status != TAMIS_OK || bytes == 0) return status;
    status = tms_cu_enter(dev);
    if (status != TAMIS_OK) return status;
    status = tms_cu_check(
        dev, cu->api->cuMemcpyDtoHAsync_v2(to, from.mem->at + from.offset, bytes, cu->stream),
        "read");
    if (status == TAMIS_OK)
        status = tms_cu_check_late(dev, cu->api->cuStreamSynchronize(cu->stream), "read");
    tms_cu_leave(dev);
    return status;
}

tamis_status tms_cu_copy(tms_device *dev, tms_ref to, tms_ref from, uint64_t bytes) {
    tms_cu_device *cu = tms_cu(dev);
    tamis_status status = tms_cu_check_range(dev, to, bytes, "copy to");
    if (status == TAMIS_OK) status = tms_cu_check_range(dev, from, bytes, "copy from");
    if (status != TAMIS_OK || bytes == 0) return status;
    status = tms_cu_enter(dev);
    if (status != TAMIS_OK) return status;
    status =
        tms_cu_check(dev,
                     cu->api->cuMemcpyDtoDAsync_v2(to.mem->at + to.offset,
                                                   from.mem->at + from.offset, bytes, cu->stream),
                     "copy");
    tms_cu_leave(dev);
    return status;
}

tamis_status tms_cu_fill(tms_device *dev, tms_ref to, uint32_t word, uint64_t bytes) {
    tms_cu_device *cu = tms_cu(dev);
    tamis_status status = tms_cu_check_range(dev, to, bytes, "fill");
    if (status != TAMIS_OK || bytes == 0) return status;
    if (bytes % 4 || to.offset % 4)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "fill: %llu bytes at offset %llu: both must be multiples of 4",
                               (unsigned long long)bytes, (unsigned long long)to.offset);
    status = tms_cu_enter(dev);
    if (status != TAMIS_OK) return status;
    status = tms_cu_check(
        dev, cu->api->cuMemsetD32Async(to.mem->at + to.offset, word, bytes / 4, cu->stream),
        "fill");
    tms_cu_leave(dev);
    return status;
}
