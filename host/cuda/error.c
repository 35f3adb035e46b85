/* SPDX-License-Identifier: Apache-2.0 */
/* Errors: the driver's codes as text and as tamis_status, and a check that several ops share. */
#include "host/cuda/cuda.h"

/* CUresult: what leaves the context unusable (an uncorrectable memory or link error, kernels that
 * trapped, hung or asserted, an unknown error), and what the driver answers during a capture. */
enum {
    ECC_UNCORRECTABLE = 214,
    UNSUPPORTED_PTX = 222,
    NVLINK_UNCORRECTABLE = 220,
    LAUNCH_TIMEOUT = 702,
    ASSERT = 710,
    FIRST_TRAP = 714,
    LAST_TRAP = 719,
    FIRST_CAPTURE = 900,
    LAST_CAPTURE = 908,
    UNKNOWN = 999
};

static bool is_fatal(tms_cu_result result) {
    return result == ECC_UNCORRECTABLE || result == NVLINK_UNCORRECTABLE ||
           result == TMS_CU_ILLEGAL_ADDRESS || result == LAUNCH_TIMEOUT || result == ASSERT ||
           (result >= FIRST_TRAP && result <= LAST_TRAP) || result == UNKNOWN;
}

static bool is_of_capture(tms_cu_result result) {
    return result >= FIRST_CAPTURE && result <= LAST_CAPTURE;
}

static tamis_status status_of(tms_cu_result result) {
    if (result == TMS_CU_OUT_OF_MEMORY) return TAMIS_E_NO_MEMORY;
    return is_of_capture(result) ? TAMIS_E_STATE : TAMIS_E_DEVICE;
}

/* What the driver's name of an error does not say. */
static const char *advice(tms_cu_result result) {
    if (result == TMS_CU_NO_BINARY || result == UNSUPPORTED_PTX || result == TMS_CU_INVALID_IMAGE)
        return ": the driver cannot load kernels made by " TMS_CUDA_MADE_BY ", it may be too old";
    return is_of_capture(result) ? ": the stream is being captured" : "";
}

static tamis_status fail(tms_device *dev, tms_cu_result result, const char *what) {
    const char *name = NULL;
    tms_cu(dev)->api->cuGetErrorName(result, &name);
    return tms_device_fail(dev, status_of(result), "%s: %s (%d)%s", what,
                           name ? name : "a CUDA error", result, advice(result));
}

static tamis_status keep(tms_device *dev, tamis_status status) {
    if (dev->sticky == TAMIS_OK) dev->sticky = status;
    return dev->sticky;
}

tamis_status tms_cu_check(tms_device *dev, tms_cu_result result, const char *what) {
    if (result == TMS_CU_SUCCESS) return TAMIS_OK;
    const tamis_status status = fail(dev, result, what);
    return is_fatal(result) ? keep(dev, status) : status;
}

tamis_status tms_cu_check_late(tms_device *dev, tms_cu_result result, const char *what) {
    if (result == TMS_CU_SUCCESS) return dev->sticky;
    const tamis_status status = fail(dev, result, what);
    return is_of_capture(result) ? status : keep(dev, status);
}

tamis_status tms_cu_check_dtype(tms_device *dev, const char *op, tamis_dtype dtype) {
    if (tamis_dtype_size(dtype) != 0) return TAMIS_OK;
    return tms_device_fail(dev, TAMIS_E_UNSUPPORTED,
                           "%s: dtype %d: f32, f16 and bf16 are supported", op, (int)dtype);
}
