/* SPDX-License-Identifier: Apache-2.0 */
/* What launches need of program.c besides the functions themselves. */
#ifndef TMS_CUDA_PROGRAM_H
#define TMS_CUDA_PROGRAM_H

#include "host/cuda/cuda.h"

/* Allows launches of a function of this device with `bytes` of dynamic shared memory; asks the
 * driver only for more than before. E_UNSUPPORTED above the device's limit. */
tamis_status tms_cu_function_allow(tms_device *dev, tms_cu_function function, uint32_t bytes);
/* Allows launches that begin before the one ahead has ended: E_UNSUPPORTED where the function was
 * compiled for a device that knows none, since it then has no grid_wait. */
tamis_status tms_cu_function_allow_early(tms_device *dev, tms_cu_function function);

#endif
