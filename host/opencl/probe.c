/* SPDX-License-Identifier: Apache-2.0 */
/* The read bandwidth probe on OpenCL. */
#include "host/opencl/opencl.h"

tamis_status tms_cl_read_bandwidth(tms_device *dev, tms_ref from, uint64_t bytes,
                                   double *gb_per_s) {
    (void)from, (void)gb_per_s;
    return tms_device_fail(dev, TAMIS_E_UNSUPPORTED, "read_bandwidth of %llu bytes: not built in",
                           (unsigned long long)bytes);
}
