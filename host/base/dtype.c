/* SPDX-License-Identifier: Apache-2.0 */
/* The table of dtypes. */
#include "host/base/dtype.h"

#include <float.h>

const tms_dtype tms_dtypes[] = {
    [TAMIS_F32] =
        {.size = 4, .keys = TAMIS_F32, .values = TAMIS_F32, .bounds = TAMIS_F32, .most = FLT_MAX},
    [TAMIS_F16] =
        {.size = 2, .keys = TAMIS_F16, .values = TAMIS_F16, .bounds = TAMIS_F16, .most = 65504},
    [TAMIS_BF16] = {.size = 2,
                    .keys = TAMIS_BF16,
                    .values = TAMIS_BF16,
                    .bounds = TAMIS_BF16,
                    .most = 0x1.fep127f},
    [TAMIS_Q8] = {.caches_alone = true,
                  .keys = TAMIS_Q8,
                  .values = TAMIS_Q8,
                  .bounds = TAMIS_Q8,
                  .channels = 16,
                  .numbers = 1,
                  .most = 127 * 65504.0f},
    [TAMIS_K8V4] = {.caches_alone = true, .keys = TAMIS_Q8, .values = TAMIS_Q4, .bounds = TAMIS_Q8},
    [TAMIS_Q4] = {.caches_alone = true,
                  .keys = TAMIS_Q4,
                  .values = TAMIS_Q4,
                  .bounds = TAMIS_Q8,
                  .channels = 32,
                  .numbers = 2,
                  .most = 16 * 65504.0f},
};
_Static_assert(sizeof tms_dtypes / sizeof *tms_dtypes == TMS_DTYPES, "a row for each dtype");

size_t tamis_dtype_size(tamis_dtype dtype) {
    return tms_dtype_known(dtype) ? tms_dtypes[dtype].size : 0;
}

const char *tamis_dtype_name(tamis_dtype dtype) {
    static const char *const names[] = {
#define DTYPE_NAME(name, value, text) [value] = text,
        TAMIS_DTYPE_LIST(DTYPE_NAME)
#undef DTYPE_NAME
    };
    return tms_dtype_known(dtype) ? names[dtype] : "unknown";
}

size_t tamis_dtype_row_bytes(tamis_dtype dtype, int values, uint32_t head_dim) {
    if (!tms_dtype_known(dtype)) return 0;
    const tamis_dtype rows = values ? tms_dtypes[dtype].values : tms_dtypes[dtype].keys;
    return (size_t)tms_row_size(rows, head_dim) * tms_kv_unit(rows) +
           sizeof(uint16_t) * tms_blocks(head_dim) * tms_block_numbers(rows);
}
