/* SPDX-License-Identifier: Apache-2.0 */
/* The gate of activate and linear_parts, z·σ(k)·up; k = z, of CU_GELU sqrt(8/π)·(z + 0.044715·z³). With
 * h = exp(-|k|/2) neither side overflows, and results keep the range of f32. */
#ifndef TAMIS_CUDA_ACTIVATE_CUH
#define TAMIS_CUDA_ACTIVATE_CUH

#include "common.cuh"

DEVICE float gated(float z, float up, uint32_t activation) {
    const float k = activation == CU_GELU ? z * fmaf(z * z, 0.0713548163f, 1.5957691216f) : z;
    const float h = expf(-0.5f * fabsf(k)), whole = 1.0f + h * h;
    return z < 0.0f ? z * h * (up * h) / whole : z / whole * up;
}

#endif
