/* SPDX-License-Identifier: Apache-2.0 */
/* The devices that a driver reports. */
#include "host/found.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REASON_CAPACITY sizeof((tamis_device_info *)0)->reason

tamis_status tms_refusal_of(const tamis_device_info *info) {
    return info->refusal ? info->refusal : TAMIS_E_NO_DEVICE;
}

tamis_status tms_found_none(const char *backend, const char *reason, tamis_device_info *infos,
                            size_t capacity, size_t *count) {
    *count = 1;
    if (capacity == 0) return TAMIS_OK;
    infos[0] = (tamis_device_info){.kind = TAMIS_DEVICE_OTHER, .refusal = TAMIS_E_NO_DEVICE};
    snprintf(infos[0].id, sizeof infos[0].id, "%s", backend);
    snprintf(infos[0].backend, sizeof infos[0].backend, "%s", backend);
    snprintf(infos[0].reason, sizeof infos[0].reason, "%s", reason);
    return TAMIS_OK;
}

tamis_status tms_found_list(const char *backend, tms_gather gather, tamis_device_info *infos,
                            size_t capacity, size_t *count) {
    char reason[REASON_CAPACITY];
    tms_found *all = calloc(TMS_MOST_FOUND, sizeof *all);
    if (!all) return TAMIS_E_NO_MEMORY;
    const size_t n = gather(all, reason, sizeof reason);
    for (size_t i = 0; i < n && i < capacity; i++)
        infos[i] = all[i].info;
    for (size_t i = 0; i < n && i < capacity; i++)
        if (!infos[i].usable) infos[i].refusal = tms_refusal_of(&infos[i]);
    free(all);
    *count = n;
    return n ? TAMIS_OK : tms_found_none(backend, reason, infos, capacity, count);
}

tamis_status tms_found_one(tms_gather gather, const char *id, const void *device, tms_found *out,
                           tamis_error *error) {
    const char *name = id ? id : "the context's device";
    char reason[REASON_CAPACITY];
    tms_found *all = calloc(TMS_MOST_FOUND, sizeof *all);
    if (!all)
        return tms_error_set(error, TAMIS_E_NO_MEMORY, "no host memory for the list of devices");
    const size_t n = gather(all, reason, sizeof reason);
    size_t i = 0;
    while (i < n && (id ? strcmp(all[i].info.id, id) != 0 : all[i].device != device))
        i++;
    tamis_status status = TAMIS_OK;
    if (n == 0)
        status = tms_error_set(error, TAMIS_E_NO_DEVICE, "%s: %s", name, reason);
    else if (i == n)
        status =
            tms_error_set(error, TAMIS_E_NO_DEVICE, "%s: no such device; there are %zu", name, n);
    else if (!all[i].info.usable)
        status = tms_error_set(error, tms_refusal_of(&all[i].info), "%s (%s): %s", all[i].info.id,
                               all[i].info.name, all[i].info.reason);
    else
        *out = all[i];
    free(all);
    return status;
}
