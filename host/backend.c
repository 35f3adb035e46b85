/* SPDX-License-Identifier: Apache-2.0 */
/* What every opened device begins with, and how its errors travel. */
#include "host/backend.h"

#include <stdarg.h>

void tms_device_init(tms_device *dev, const tms_backend *backend, const tamis_device_info *info,
                     const tms_log *log) {
    *dev = (tms_device){.backend = backend, .info = *info, .log = *log, .form = TMS_FORM_AUTO};
    tms_settings_shipped(info, &dev->settings);
    dev->found = dev->settings;
}

tamis_status tms_device_fail(tms_device *dev, tamis_status status, const char *format, ...) {
    if (dev->sticky != TAMIS_OK) return dev->sticky;
    va_list args;
    va_start(args, format);
    tms_error_format(&dev->error, status, format, args);
    va_end(args);
    return status;
}

tamis_status tms_forward(const tms_device *dev, tamis_status status, tamis_error *error) {
    if (dev->sticky != TAMIS_OK) status = dev->sticky;
    if (status == TAMIS_OK) return TAMIS_OK;
    const char *reason = dev->error.text[0] ? dev->error.text : tamis_status_text(status);
    return tms_error_set(error, status, "%s", reason);
}

tamis_status tms_check_allocation(tms_device *dev, uint64_t bytes, uint64_t used) {
    const tamis_device_info *info = &dev->info;
    if (dev->sticky != TAMIS_OK) return dev->sticky;
    if (bytes == 0) return tms_device_fail(dev, TAMIS_E_ARGUMENT, "an allocation of 0 bytes");
    if (bytes > info->max_buffer_bytes)
        return tms_device_fail(
            dev, TAMIS_E_NO_MEMORY, "a buffer of %llu bytes: the largest on %s is %llu",
            (unsigned long long)bytes, info->id, (unsigned long long)info->max_buffer_bytes);
    if (used > info->memory_bytes || bytes > info->memory_bytes - used)
        return tms_device_fail(dev, TAMIS_E_NO_MEMORY,
                               "a buffer of %llu bytes: %s has %llu, of which %llu are taken",
                               (unsigned long long)bytes, info->id,
                               (unsigned long long)info->memory_bytes, (unsigned long long)used);
    return TAMIS_OK;
}

tamis_status tms_check_host(tms_device *dev, const void *data, uint64_t bytes) {
    if (dev->sticky != TAMIS_OK) return dev->sticky;
    if (!data || (uintptr_t)data % TMS_HOST_ALIGNMENT)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "host address 0x%llx: must be a multiple of %u and not 0",
                               (unsigned long long)(uintptr_t)data, TMS_HOST_ALIGNMENT);
    if (bytes == 0 || bytes > UINTPTR_MAX - (uintptr_t)data)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT, "%llu bytes at host address 0x%llx",
                               (unsigned long long)bytes, (unsigned long long)(uintptr_t)data);
    return TAMIS_OK;
}
