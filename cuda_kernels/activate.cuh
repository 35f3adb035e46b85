/* SPDX-License-Identifier: Apache-2.0 */
/* The gate of activate and linear_parts, silu(z)·up. With h = exp(-|z|/2) neither side overflows,
 * and results keep the range of f32. */
#ifndef TAMIS_CUDA_ACTIVATE_CUH
#define TAMIS_CUDA_ACTIVATE_CUH

#include "common.cuh"

DEVICE float gated(float z, float up) {
    const float h = expf(-0.5f * fabsf(z)), whole = 1.0f + h * h;
    return z < 0.0f ? z * h * (up * h) / whole : z / whole * up;
}

#endif
