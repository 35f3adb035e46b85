/* SPDX-License-Identifier: Apache-2.0 */
/* What a call may touch, and when: ranges of memory, and not while the stream is being captured. */
#include "host/cuda/cuda.h"

tamis_status tms_cu_check_range(tms_device *dev, tms_ref ref, uint64_t bytes, const char *what) {
    if (dev->sticky != TAMIS_OK) return dev->sticky;
    if (!ref.mem) return tms_device_fail(dev, TAMIS_E_ARGUMENT, "%s: the memory is absent", what);
    if (ref.offset > ref.mem->bytes || bytes > ref.mem->bytes - ref.offset)
        return tms_device_fail(dev, TAMIS_E_ARGUMENT,
                               "%s: %llu bytes at offset %llu of a buffer of %llu", what,
                               (unsigned long long)bytes, (unsigned long long)ref.offset,
                               (unsigned long long)ref.mem->bytes);
    return TAMIS_OK;
}

tamis_status tms_cu_check_not_captured(tms_device *dev, const char *what) {
    tms_cu_device *cu = tms_cu(dev);
    int captured = 0;
    tamis_status status =
        tms_cu_check(dev, cu->api->cuStreamIsCapturing(cu->stream, &captured), what);
    if (status != TAMIS_OK || !captured) return status;
    return tms_device_fail(dev, TAMIS_E_STATE, "%s: the stream is being captured", what);
}
