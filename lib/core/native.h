/* SPDX-License-Identifier: Apache-2.0 */
/* What cuda.c and opencl.c share: contexts, buffers and events on what the caller has of a driver. */
#ifndef TMS_NATIVE_H
#define TMS_NATIVE_H

#include "lib/core/core.h"

/* A driver by its backend, and as messages name it. */
typedef struct tms_driver {
    const char *backend, *title;
} tms_driver;

/* These do what the public calls say, which have entered the context; it may be NULL. Native objects
 * are addresses and handles of the driver. */
tamis_status tms_native_create(const tms_driver *driver, void *native, void *queue,
                               const tamis_context_params *params, tamis_context **out,
                               tamis_error *error);
tamis_status tms_native_wrap(const tms_driver *driver, tamis_context *context, uint64_t native,
                             uint64_t offset, uint64_t bytes, tamis_buffer **out,
                             tamis_error *error);
tamis_status tms_native_wrap_event(const tms_driver *driver, tamis_context *context, void *native,
                                   tamis_event **out, tamis_error *error);

/* 0 and NULL for NULL and for what is of another backend. */
uint64_t tms_native_of_buffer(const tms_driver *driver, const tamis_buffer *buffer,
                              uint64_t *offset);
void *tms_native_of_event(const tms_driver *driver, const tamis_event *event);

#endif
