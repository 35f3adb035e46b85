/* SPDX-License-Identifier: Apache-2.0 */
/* The ordered list of backends. */
#include "host/found.h"

extern const tms_backend tms_backend_reference;

/* The entry in the list of a backend that was not built. It has no usable device, so nothing opens
 * it. */
#define ABSENT(backend_name, title)                                                                \
    static tamis_status backend_name##_list(tamis_device_info *infos, size_t capacity,             \
                                            size_t *count) {                                       \
        return tms_found_none(#backend_name, "built without " title, infos, capacity, count);      \
    }                                                                                              \
    static const tms_backend tms_backend_##backend_name = {.name = #backend_name,                  \
                                                           .list = backend_name##_list};

#ifdef TAMIS_HAVE_CUDA
extern const tms_backend tms_backend_cuda;
#else
ABSENT(cuda, "CUDA")
#endif
#ifdef TAMIS_HAVE_OPENCL
extern const tms_backend tms_backend_opencl;
#else
ABSENT(opencl, "OpenCL")
#endif

const tms_backend *const tms_backends[] = {&tms_backend_cuda, &tms_backend_opencl,
                                           &tms_backend_reference, NULL};
