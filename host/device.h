/* SPDX-License-Identifier: Apache-2.0 */
/* THE DOOR: all that lib/ calls of a device (run.c), and of host/ beside the contract in ops.h.
 * What a device is inside, and the table of functions that a backend fills, are in backend.h. */
#ifndef TMS_DEVICE_H
#define TMS_DEVICE_H

#include "host/base/clock.h"
#include "host/base/environment.h"
#include "host/base/error.h"
#include "host/base/log.h"
#include "host/ops.h"
#include "host/settings.h"

/* A function that can fail takes `error` last, which may be NULL; if it returns anything but OK,
 * *error holds the reason. A late error of the device comes before every other one. */
typedef struct tms_device tms_device;
typedef struct tms_graph tms_graph; /* a recording of what was enqueued */

/* ---- Devices --------------------------------------------------------------------------------- */

/* The devices of all backends, best first; *count is the full number, even beyond `capacity`. */
tamis_status tms_device_list(tamis_device_info *infos, size_t capacity, size_t *count,
                             tamis_error *error);
/* Opens a device of the list. */
tamis_status tms_device_open(const tamis_device_info *info, const tms_log *log, tms_device **out,
                             tamis_error *error);
/* On the caller's own context and queue, of the backend's driver. E_UNSUPPORTED: built without it. */
tamis_status tms_device_open_on(const char *backend, void *context, void *queue, const tms_log *log,
                                tms_device **out, tamis_error *error);
void tms_device_close(tms_device *dev); /* waits */

const tamis_device_info *tms_device_info(const tms_device *dev);
const tms_log *tms_device_log(const tms_device *dev);
/* The settings of its kernels, which may be changed between launches. */
tms_settings *tms_device_settings(tms_device *dev);
/* Those that lib/ has found in the user's file or written there, to tell its own changes from these. */
tms_settings *tms_device_settings_found(tms_device *dev);
/* Whether it is of the backend, and the calls of native memory and events may be made. */
bool tms_device_wraps(const tms_device *dev, const char *backend);
bool tms_device_records(const tms_device *dev); /* the same for tms_device_capture_begin */

/* ---- Memory, events, graphs: what each does stands at its entry of the table, in backend.h --- */

tamis_status tms_device_alloc(tms_device *dev, uint64_t bytes, tms_mem **out, tamis_error *error);
tamis_status tms_device_wrap(tms_device *dev, uint64_t native, uint64_t offset, uint64_t bytes,
                             tms_mem **out, tamis_error *error);
tamis_status tms_device_wrap_host(tms_device *dev, void *data, uint64_t bytes, tms_mem **out,
                                  tamis_error *error);
uint64_t tms_device_native(tms_device *dev, const tms_mem *mem, uint64_t *offset);
void *tms_device_data(tms_device *dev, const tms_mem *mem);
void tms_device_free(tms_device *dev, tms_mem *mem); /* accepts NULL */

/* Of 0 bytes: a write does nothing, a read only waits. */
tamis_status tms_device_write(tms_device *dev, tms_ref to, const void *from, uint64_t bytes,
                              tamis_error *error);
tamis_status tms_device_read(tms_device *dev, tms_ref from, void *to, uint64_t bytes,
                             tamis_error *error); /* waits */
tamis_status tms_device_copy(tms_device *dev, tms_ref to, tms_ref from, uint64_t bytes,
                             tamis_error *error);
tamis_status tms_device_fill(tms_device *dev, tms_ref to, uint32_t word, uint64_t bytes,
                             tamis_error *error);

tamis_status tms_device_host_alloc(tms_device *dev, uint64_t bytes, void **out, tamis_error *error);
void tms_device_host_free(tms_device *dev, void *host); /* accepts NULL */
tamis_status tms_device_upload(tms_device *dev, tms_ref to, const void *from, uint64_t bytes,
                               const tms_event *after, tms_event **done, tamis_error *error);

tamis_status tms_device_event_await(tms_device *dev, const tms_event *event, tamis_error *error);
tamis_status tms_device_event_record(tms_device *dev, bool timed, tms_event **out,
                                     tamis_error *error);
tamis_status tms_device_event_wait(tms_device *dev, tms_event *event, tamis_error *error);
tamis_status tms_device_event_elapsed(tms_device *dev, tms_event *from, tms_event *to, double *us,
                                      tamis_error *error); /* waits */
void tms_device_event_free(tms_device *dev, tms_event *event);
tamis_status tms_device_event_wrap(tms_device *dev, void *native, tms_event **out,
                                   tamis_error *error);
void *tms_device_event_native(tms_device *dev, const tms_event *event);

tamis_status tms_device_capture_begin(tms_device *dev, tamis_error *error);
tamis_status tms_device_capture_end(tms_device *dev, tms_graph **out, tamis_error *error);
tamis_status tms_device_graph_launch(tms_device *dev, tms_graph *graph, tamis_error *error);
void tms_device_graph_free(tms_device *dev, tms_graph *graph);

tamis_status tms_device_flush(tms_device *dev, tamis_error *error);
tamis_status tms_device_wait(tms_device *dev, tamis_error *error);
tamis_status tms_device_read_bandwidth(tms_device *dev, tms_ref from, uint64_t bytes,
                                       double *gb_per_s, tamis_error *error);

/* While it is on, nothing is enqueued: ops check their rules and whether the device has them, what is
 * read is zeros. So whoever rehearses its launches knows what is lacking before any of them runs. Memory
 * is taken and freed as ever; uploads, events and graphs are not rehearsed. */
void tms_device_rehearse(tms_device *dev, bool on);

/* ---- Pages that are read for the time it takes ----------------------------------------------- */

/* In which order the pages of a lane are read. */
typedef enum tms_page_reading {
    TMS_READ_PAGES = 0, /* page after page, K then V */
    TMS_READ_FOURS = 1, /* K of four pages, one after another, then their V */
    /* K of so many pages, a row of each in turn, then their V likewise. */
    TMS_READ_ROWS_4 = 2,
    TMS_READ_ROWS_8 = 3,
    TMS_READ_ROWS_16 = 4
} tms_page_reading;

/* All K and V of the lanes of one layer. */
typedef struct tms_page_read {
    tms_kv kv;     /* in the cache's own layout, of any dtype; its bounds are not read */
    tms_ref table; /* int32 [n_lanes][capacity]: page ids */
    tms_ref count; /* int32 [n_lanes]: how many of a lane's are read */
    uint32_t n_lanes, capacity; /* n_lanes == 0 only builds the kernel; tables may be absent then */
    uint32_t max_pages;         /* no entry of `count` is larger */
    tms_page_reading reading;
    uint32_t ahead; /* what is read so many steps of the order later is prefetched; 0: nothing is */
    /* uint32: the sum of all 32-bit words that were read, modulo 2^32, is added to it. So the loops
     * cannot be left out, and a test sees that they read everything. */
    tms_ref sink;
} tms_page_read;

tamis_status tms_device_read_pages(tms_device *dev, const tms_page_read *p, tamis_error *error);
bool tms_device_orders_pages(tms_device *dev);
/* The layout in which the device reads weights of a known type fastest. */
tamis_weight_layout tms_device_weight_layout(tms_device *dev, tamis_weight_type type);

/* ---- Ops ------------------------------------------------------------------------------------- */

/* tms_run_<op>(dev, p, error): the only way to call an op. A late error of the device comes
 * first; then the contract's rules are checked, alike for every backend; then the device's own
 * function runs. What the backend lacks is composed of other ops, or E_UNSUPPORTED with its name. */
#define TMS_DECLARE_RUN(with, op)                                                                  \
    tamis_status tms_run_##op(tms_device *dev, const tms_##op *p, tamis_error *error);
TMS_OPS(TMS_DECLARE_RUN, )
/* uint64_t tms_<op>_scratch(dev, p): bytes of scratch memory for launches whose numbers are at most
 * those of p; only the fields of p that the contract names are read. */
#define TMS_DECLARE_SCRATCH(prefix, op)                                                            \
    uint64_t prefix##op##_scratch(tms_device *dev, const tms_##op *p);
TMS_SCRATCH_OPS(TMS_DECLARE_SCRATCH, tms_)
/* const char *tms_<op>_refusal(dev, p): why a fused op does not take the case, static; NULL if
 * it does. */
#define TMS_DECLARE_REFUSAL(prefix, op)                                                            \
    const char *prefix##op##_refusal(tms_device *dev, const tms_##op *p);
TMS_FUSED_OPS(TMS_DECLARE_REFUSAL, tms_)

/* The rules for parts of params, before sizes are computed from them. A batch of 0 rows: for its
 * heads alone. */
tamis_status tms_device_check_kv(tms_device *dev, const tms_kv *kv, tamis_error *error);
tamis_status tms_device_check_batch(tms_device *dev, const tms_batch *batch, tamis_error *error);

#endif
