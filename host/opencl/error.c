/* SPDX-License-Identifier: Apache-2.0 */
/* Errors: OpenCL codes as text and as tamis_status. */
#include "host/opencl/opencl.h"

static const struct {
    cl_int code;
    const char *text;
} NAMES[] = {
#define NAME(code)                                                                                 \
    { code, #code }
    NAME(CL_DEVICE_NOT_FOUND),
    NAME(CL_DEVICE_NOT_AVAILABLE),
    NAME(CL_COMPILER_NOT_AVAILABLE),
    NAME(CL_MEM_OBJECT_ALLOCATION_FAILURE),
    NAME(CL_OUT_OF_RESOURCES),
    NAME(CL_OUT_OF_HOST_MEMORY),
    NAME(CL_PROFILING_INFO_NOT_AVAILABLE),
    NAME(CL_MEM_COPY_OVERLAP),
    NAME(CL_BUILD_PROGRAM_FAILURE),
    NAME(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST),
    NAME(CL_INVALID_VALUE),
    NAME(CL_INVALID_DEVICE),
    NAME(CL_INVALID_CONTEXT),
    NAME(CL_INVALID_COMMAND_QUEUE),
    NAME(CL_INVALID_MEM_OBJECT),
    NAME(CL_INVALID_BUILD_OPTIONS),
    NAME(CL_INVALID_PROGRAM_EXECUTABLE),
    NAME(CL_INVALID_KERNEL_NAME),
    NAME(CL_INVALID_ARG_INDEX),
    NAME(CL_INVALID_ARG_VALUE),
    NAME(CL_INVALID_ARG_SIZE),
    NAME(CL_INVALID_KERNEL_ARGS),
    NAME(CL_INVALID_WORK_GROUP_SIZE),
    NAME(CL_INVALID_WORK_ITEM_SIZE),
    NAME(CL_INVALID_EVENT),
    NAME(CL_INVALID_BUFFER_SIZE),
    NAME(CL_INVALID_GLOBAL_WORK_SIZE),
    NAME(CL_INVALID_OPERATION),
    NAME(CL_INVALID_HOST_PTR),
    NAME(CL_MISALIGNED_SUB_BUFFER_OFFSET),
#undef NAME
};

const char *tms_cl_error_text(cl_int error) {
    for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++)
        if (NAMES[i].code == error) return NAMES[i].text;
    return "an OpenCL error";
}

tamis_status tms_cl_status(cl_int error) {
    if (error == CL_SUCCESS) return TAMIS_OK;
    bool memory = error == CL_MEM_OBJECT_ALLOCATION_FAILURE || error == CL_OUT_OF_HOST_MEMORY;
    return memory ? TAMIS_E_NO_MEMORY : TAMIS_E_DEVICE;
}

tamis_status tms_cl_check(tms_device *dev, cl_int error, const char *what) {
    if (error == CL_SUCCESS) return TAMIS_OK;
    return tms_device_fail(dev, tms_cl_status(error), "%s: %s (%d)", what, tms_cl_error_text(error),
                           (int)error);
}

tamis_status tms_cl_check_late(tms_device *dev, cl_int error, const char *what) {
    tamis_status status = tms_cl_check(dev, error, what);
    if (status != TAMIS_OK && dev->sticky == TAMIS_OK) dev->sticky = status;
    return dev->sticky;
}
