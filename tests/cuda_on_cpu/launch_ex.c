/* SPDX-License-Identifier: Apache-2.0 */
/* Launches with attributes. One that may begin early begins when the one before has ended, which the
 * driver may do, too. */
#include "on_cpu.h"

tms_cu_result cuLaunchKernelEx(const tms_cu_launch_config *config, tms_cu_function function,
                               void **parameters, void **extra) {
    if (!config || (config->n_attributes && !config->attributes)) return TMS_CU_INVALID_VALUE;
    for (unsigned i = 0; i < config->n_attributes; i++) {
        const tms_cu_launch_attribute *a = &config->attributes[i];
        if (a->id != TMS_CU_LAUNCH_EARLY || (a->value.allowed & ~1))
            return cpu_wrong(TMS_CU_INVALID_VALUE, "launch attribute %llu with value %d",
                             (unsigned long long)a->id, a->value.allowed);
    }
    const unsigned *grid = config->grid, *block = config->block;
    return cuLaunchKernel(function, grid[0], grid[1], grid[2], block[0], block[1], block[2],
                          config->shared_bytes, config->stream, parameters, extra);
}
