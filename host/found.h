/* SPDX-License-Identifier: Apache-2.0 */
/* The devices that a driver reports: how a backend lists them and finds one of them again. */
#ifndef TMS_FOUND_H
#define TMS_FOUND_H

#include "host/backend.h"

typedef struct tms_found {
    void *platform, *device; /* the driver's own handles */
    tamis_device_info info;
} tms_found;

#define TMS_MOST_FOUND 64
/* The driver's devices, best first, at most TMS_MOST_FOUND; if there are none, `reason` says
 * why. */
typedef size_t (*tms_gather)(tms_found *all, char *reason, size_t capacity);

/* tms_backend.list for a backend that gathers; without devices one entry with the reason. */
tamis_status tms_found_list(const char *backend, tms_gather gather, tamis_device_info *infos,
                            size_t capacity, size_t *count);
/* The usable device named `id`; with id NULL, the one of the handle `device`. E_NO_DEVICE or
 * E_DEVICE, as tamis_device_info.refusal says, with the reason. */
tamis_status tms_found_one(tms_gather gather, const char *id, const void *device, tms_found *out,
                           tamis_error *error);
/* What opening an unusable device answers; a gather sets only what is not E_NO_DEVICE. */
tamis_status tms_refusal_of(const tamis_device_info *info);
/* The one entry of a backend without devices. */
tamis_status tms_found_none(const char *backend, const char *reason, tamis_device_info *infos,
                            size_t capacity, size_t *count);

#endif
