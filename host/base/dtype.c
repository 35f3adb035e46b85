/* SPDX-License-Identifier: Apache-2.0 */
/* The table of dtypes, and that of types of weights. */
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

/* Of each tamis_weight_type. */
static const struct {
    const char *name;
    uint32_t elements, bytes; /* of a block */
} weight_types[] = {
    [TAMIS_WEIGHT_F32] = {"f32", 1, 4},       [TAMIS_WEIGHT_F16] = {"f16", 1, 2},
    [TAMIS_WEIGHT_BF16] = {"bf16", 1, 2},     [TAMIS_WEIGHT_Q8_0] = {"Q8_0", 32, 34},
    [TAMIS_WEIGHT_Q4_0] = {"Q4_0", 32, 18},   [TAMIS_WEIGHT_Q4_1] = {"Q4_1", 32, 20},
    [TAMIS_WEIGHT_Q5_0] = {"Q5_0", 32, 22},   [TAMIS_WEIGHT_Q4_K] = {"Q4_K", 256, 144},
    [TAMIS_WEIGHT_Q6_K] = {"Q6_K", 256, 210},
};

static bool is_weight_type(tamis_weight_type type) {
    return (unsigned)type < sizeof weight_types / sizeof *weight_types;
}

const char *tamis_weight_name(tamis_weight_type type) {
    return is_weight_type(type) ? weight_types[type].name : "unknown";
}

uint32_t tamis_weight_block(tamis_weight_type type) {
    return is_weight_type(type) ? weight_types[type].elements : 0;
}

uint64_t tamis_weight_bytes(tamis_weight_type type, uint64_t n_out, uint64_t n_in) {
    const uint32_t block = tamis_weight_block(type);
    if (block == 0 || n_in % block) return 0;
    const uint64_t blocks = n_in / block, bytes = weight_types[type].bytes;
    if (n_out && (blocks > UINT64_MAX / bytes || blocks * bytes > UINT64_MAX / n_out))
        return UINT64_MAX;
    return n_out * blocks * bytes;
}
