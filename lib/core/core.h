/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of lib/ share: the inside of contexts and buffers, and macros for errors. */
#ifndef TMS_CORE_H
#define TMS_CORE_H

#include "lib/core/error.h"
#include "lib/core/life.h"
#include <tamis/buffer.h>

struct tamis_context {
    tms_life life;
    tms_device *dev;
    bool recording; /* a graph */
};

struct tamis_buffer {
    tms_life life;
    tamis_context *context;
    tms_mem *mem;
    uint64_t bytes;
};

struct tamis_event {
    tms_life life;
    tamis_context *context;
    tms_event *event;
    bool timed;
};

/* The device that `name` means ("auto", a backend, an id). On "auto" an info line says which device
 * is taken and why the ones before it are not, and the reference is taken only if it is allowed.
 * Errors: E_NO_DEVICE with the reason, or with a list of the devices; E_NO_MEMORY. */
tamis_status tms_device_pick(const char *name, bool allow_reference, const tms_log *log,
                             tamis_device_info *out, tamis_error *error);

/* Takes what the user's file of settings says of the context's device. E_FORMAT, E_IO. */
tamis_status tms_context_read_settings(tamis_context *context, tamis_error *error);

/* Whether the library has settings for the kind of the context's device, or the user's file names
 * it. E_FORMAT, E_IO. */
tamis_status tms_settings_known(const tamis_context *context, bool *known, tamis_error *error);

/* Begins the life of a context whose device is open. */
void tms_context_begin(tamis_context *context);

/* A buffer, and an event, that have no memory and no mark yet; their destroy may be called from here
 * on. E_NO_MEMORY. */
tamis_status tms_buffer_begin(tamis_context *context, uint64_t bytes, tamis_buffer **out,
                              tamis_error *error);
tamis_status tms_event_begin(tamis_context *context, bool timed, tamis_event **out,
                             tamis_error *error);

/* Ends and discards the recording that is open, if any. */
void tms_graph_abandon(tamis_context *context);

/* Sets where a new context's log lines go: to the callback of `params`, and to stderr as TAMIS_LOG
 * says. E_ARGUMENT if TAMIS_LOG names no level, or if a reserved field of `params` is not 0. */
tamis_status tms_log_begin(tms_log *log, const tamis_context_params *params, tamis_error *error);

/* Returns from the enclosing function unless the reserved fields of a caller's struct of that type
 * are 0: what they hold now must not come to mean something later. */
#define TMS_REQUIRE_RESERVED(params, type)                                                         \
    TMS_TRY(tms_reserved_check(                                                                    \
        (params)->reserved, sizeof(params)->reserved / sizeof *(params)->reserved, #type, error))
tamis_status tms_reserved_check(const uint64_t *reserved, size_t n, const char *type,
                                tamis_error *error);

/* Checks a caller's place with room for `bytes` bytes: buffer of this context, offset a multiple of 4.
 * `name` names it in messages. */
tamis_status tms_place_check(const tamis_context *context, const tamis_place *place,
                             const char *name, uint64_t bytes, tms_ref *ref, tamis_error *error);

/* Checks a caller's rows: buffer of this context, offset a multiple of 64, `n_rows` rows of `width`
 * elements inside it. *stride is the effective row stride in elements. `what` names it in messages.
 */
tamis_status tms_rows_check(const tamis_context *context, const tamis_rows *rows, const char *what,
                            uint32_t n_rows, uint64_t width, uint64_t *stride, tamis_error *error);

/* The median of n samples, 1 at least, which it sorts. */
double tms_median(double *samples, uint32_t n);

#endif
