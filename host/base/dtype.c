/* SPDX-License-Identifier: Apache-2.0 */
/* Element types: their names and sizes. */
#include <stdbool.h>
#include <tamis/device.h>

size_t tamis_dtype_size(tamis_dtype dtype) {
    switch (dtype) {
    case TAMIS_F32:
        return 4;
    case TAMIS_F16:
    case TAMIS_BF16:
        return 2;
    case TAMIS_Q8:
    case TAMIS_K8V4:
    case TAMIS_Q4:
        break;
    }
    return 0;
}

const char *tamis_dtype_name(tamis_dtype dtype) {
    switch (dtype) {
    case TAMIS_F32:
        return "f32";
    case TAMIS_F16:
        return "f16";
    case TAMIS_BF16:
        return "bf16";
    case TAMIS_Q8:
        return "q8";
    case TAMIS_K8V4:
        return "k8v4";
    case TAMIS_Q4:
        return "q4";
    }
    return "unknown";
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
