/* SPDX-License-Identifier: Apache-2.0 */
/* The reference as a device: host memory, calls that are done when they return, and the table. */
#include "host/compose.h"
#include "host/reference/reference.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct tms_event {
    double us;
};

static tamis_device_info describe(void) {
    tamis_device_info info = {.id = "reference:0",
                              .backend = "reference",
                              .name = "plain C, one thread",
                              .driver = "part of libtamis",
                              .kind = TAMIS_DEVICE_CPU,
                              .usable = 1,
                              .compute_units = 1};
    const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page_bytes > 0) info.memory_bytes = (uint64_t)pages * (uint64_t)page_bytes;
    info.max_buffer_bytes = info.memory_bytes;
    return info;
}

static tamis_status reference_list(tamis_device_info *infos, size_t capacity, size_t *count) {
    if (capacity > 0) infos[0] = describe();
    *count = 1;
    return TAMIS_OK;
}

static tamis_status reference_open(const tms_backend *self, const char *id, const tms_log *log,
                                   tms_device **out, tamis_error *error) {
    const tamis_device_info info = describe();
    if (strcmp(id, info.id) != 0)
        return tms_error_set(error, TAMIS_E_NO_DEVICE, "device \"%s\": the reference has only %s",
                             id, info.id);
    *out = malloc(sizeof **out);
    if (!*out) return tms_error_set(error, TAMIS_E_NO_MEMORY, "no memory for device %s", info.id);
    tms_device_init(*out, self, &info, log);
    return TAMIS_OK;
}

static void reference_close(tms_device *dev) {
    free(dev);
}

static tamis_status reference_alloc(tms_device *dev, uint64_t bytes, tms_mem **out) {
    const uint64_t limit = dev->info.max_buffer_bytes;
    if (dev->sticky != TAMIS_OK) return dev->sticky;
    if (bytes == 0) return tms_device_fail(dev, TAMIS_E_ARGUMENT, "allocation of 0 bytes");
    tms_mem *mem = bytes <= limit ? malloc(sizeof *mem) : NULL;
    /* Whole multiples of the alignment, as aligned_alloc wants. */
    void *data = mem ? aligned_alloc(64, (size_t)((bytes + 63) / 64 * 64)) : NULL;
    if (!data) {
        free(mem);
        return tms_device_fail(dev, TAMIS_E_NO_MEMORY, "%llu bytes asked for, the limit is %llu",
                               (unsigned long long)bytes, (unsigned long long)limit);
    }
    *mem = (tms_mem){.data = data, .bytes = bytes, .own = true};
    *out = mem;
    return TAMIS_OK;
}

static tamis_status reference_wrap_host(tms_device *dev, void *data, uint64_t bytes,
                                        tms_mem **out) {
    tamis_status status = tms_check_host(dev, data, bytes);
    if (status == TAMIS_OK) status = tms_check_allocation(dev, bytes, 0);
    if (status != TAMIS_OK) return status;
    tms_mem *mem = malloc(sizeof *mem);
    if (!mem) return tms_device_fail(dev, TAMIS_E_NO_MEMORY, "no memory for a buffer's handle");
    *mem = (tms_mem){.data = data, .bytes = bytes};
    *out = mem;
    return TAMIS_OK;
}

static void *reference_data(const tms_device *dev, const tms_mem *mem) {
    (void)dev;
    return mem->data;
}

static void reference_free(tms_device *dev, tms_mem *mem) {
    (void)dev;
    if (mem && mem->own) free(mem->data);
    free(mem);
}

/* Transfers may begin at any byte, unlike the operands of ops. */
static unsigned char *range(tms_device *dev, const char *what, tms_ref ref, uint64_t bytes,
                            tamis_status *status) {
    *status = dev->sticky;
    if (*status != TAMIS_OK) return NULL;
    if (ref.mem && ref.offset <= ref.mem->bytes && bytes <= ref.mem->bytes - ref.offset)
        return ref.mem->data + ref.offset;
    *status = tms_device_fail(dev, TAMIS_E_ARGUMENT, "%s: %llu bytes at offset %llu of %llu", what,
                              (unsigned long long)bytes, (unsigned long long)ref.offset,
                              ref.mem ? (unsigned long long)ref.mem->bytes : 0);
    return NULL;
}

static tamis_status reference_write(tms_device *dev, tms_ref to, const void *from, uint64_t bytes) {
    tamis_status status;
    unsigned char *data = range(dev, "write", to, bytes, &status);
    if (data && bytes > 0) memcpy(data, from, bytes);
    return status;
}

static tamis_status reference_read(tms_device *dev, tms_ref from, void *to, uint64_t bytes) {
    tamis_status status;
    const unsigned char *data = range(dev, "read", from, bytes, &status);
    if (data && bytes > 0) memcpy(to, data, bytes);
    return status;
}

static tamis_status reference_copy(tms_device *dev, tms_ref to, tms_ref from, uint64_t bytes) {
    tamis_status status;
    const unsigned char *source = range(dev, "copy from", from, bytes, &status);
    unsigned char *data = source ? range(dev, "copy to", to, bytes, &status) : NULL;
    if (data) memmove(data, source, bytes);
    return status;
}

static tamis_status reference_fill(tms_device *dev, tms_ref to, uint32_t word, uint64_t bytes) {
    tamis_status status;
    unsigned char *data = range(dev, "fill", to, bytes, &status);
    if (data && bytes % 4)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "fill: %llu bytes: not a multiple of 4",
                               (unsigned long long)bytes);
    for (uint64_t i = 0; data && i < bytes; i += 4)
        memcpy(data + i, &word, 4);
    return status;
}

static tamis_status reference_event_record(tms_device *dev, bool timed, tms_event **out) {
    (void)timed;
    if (dev->sticky != TAMIS_OK) return dev->sticky;
    *out = malloc(sizeof **out);
    if (!*out) return tms_device_fail(dev, TAMIS_E_NO_MEMORY, "no memory for an event");
    (*out)->us = tms_now_us();
    return TAMIS_OK;
}

static tamis_status reference_event_wait(tms_device *dev, tms_event *event) {
    (void)event;
    return dev->sticky;
}

static tamis_status reference_event_elapsed(tms_device *dev, tms_event *from, tms_event *to,
                                            double *us) {
    *us = to->us - from->us;
    return dev->sticky;
}

static void reference_event_free(tms_device *dev, tms_event *event) {
    (void)dev;
    free(event);
}

static tamis_status reference_host_alloc(tms_device *dev, uint64_t bytes, void **out) {
    const uint64_t limit = dev->info.max_buffer_bytes;
    if (dev->sticky != TAMIS_OK) return dev->sticky;
    *out = bytes <= limit ? aligned_alloc(64, (size_t)((bytes + 63) / 64 * 64)) : NULL;
    if (*out) return TAMIS_OK;
    return tms_device_fail(dev, TAMIS_E_NO_MEMORY,
                           "%llu bytes of host memory asked for, the limit is %llu",
                           (unsigned long long)bytes, (unsigned long long)limit);
}

static void reference_host_free(tms_device *dev, void *host) {
    (void)dev;
    free(host);
}

/* There is no second queue. */
static tamis_status reference_upload(tms_device *dev, tms_ref to, const void *from, uint64_t bytes,
                                     const tms_event *after, tms_event **done) {
    (void)after;
    const tamis_status status = reference_write(dev, to, from, bytes);
    return status == TAMIS_OK ? reference_event_record(dev, false, done) : status;
}

static tamis_status reference_event_await(tms_device *dev, const tms_event *event) {
    (void)event;
    return dev->sticky;
}

/* Flush and wait: nothing is ever pending. */
static tamis_status reference_done(tms_device *dev) {
    return dev->sticky;
}

const tms_backend tms_backend_reference = {
    .name = "reference",
    .list = reference_list,
    .open = reference_open,
    .close = reference_close,
    .alloc = reference_alloc,
    .free = reference_free,
    .wrap_host = reference_wrap_host,
    .data = reference_data,
    .write = reference_write,
    .read = reference_read,
    .copy = reference_copy,
    .fill = reference_fill,
    .host_alloc = reference_host_alloc,
    .host_free = reference_host_free,
    .upload = reference_upload,
    .event_await = reference_event_await,
    .event_record = reference_event_record,
    .event_wait = reference_event_wait,
    .event_elapsed = reference_event_elapsed,
    .event_free = reference_event_free,
    .flush = reference_done,
    .wait = reference_done,
    .read_bandwidth = tms_reference_read_bandwidth,
    .read_pages = tms_reference_read_pages,
    .orders_pages = tms_reference_orders_pages,
    .weight_layout = tms_reference_weight_layout,
    /* clang-format off */
    TMS_REQUIRED_OPS(TMS_ENTER_OP, tms_reference_)
    TMS_OPTIONAL_OPS(TMS_ENTER_OP, tms_reference_)
    .write_rotated = tms_reference_write_rotated,
    .linear_parts = tms_compose_linear_parts,
    .linear_chain = tms_compose_linear_chain,
    /* clang-format on */
};
