/* SPDX-License-Identifier: Apache-2.0 */
/* The device's context as the thread's own, for a while. */
#include "host/cuda/cuda.h"

tamis_status tms_cu_enter(tms_device *dev) {
    tms_cu_device *cu = tms_cu(dev);
    return tms_cu_check(dev, cu->api->cuCtxPushCurrent_v2(cu->context),
                        "making the context current");
}

void tms_cu_leave(tms_device *dev) {
    tms_cu_context own;
    tms_cu(dev)->api->cuCtxPopCurrent_v2(&own);
}
