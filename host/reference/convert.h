/* SPDX-License-Identifier: Apache-2.0 */
/* Loads and stores of rows of elements, and the fp64 dot product of two f32 rows. */
#ifndef TMS_REFERENCE_CONVERT_H
#define TMS_REFERENCE_CONVERT_H

#include <stdint.h>
#include <string.h>
#include <tamis/device.h>

static inline uint32_t tms_bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float tms_float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Exact. The fields are shifted into place, and a product with 2^112 corrects the exponent, also of
 * subnormals. A result of 2^16 or more was infinite or NaN and gets the full exponent. */
static inline float tms_f16_load(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const float x = tms_float_of((uint32_t)(h & 0x7fffu) << 13) * 0x1p112f;
    const uint32_t special = x >= 65536.0f ? 0x7f800000u : 0;
    return tms_float_of(tms_bits_of(x) | special | sign);
}

/* Rounds to nearest even; from 65520 on infinity; NaN stays NaN with its sign. */
static inline uint16_t tms_f16_store(float x) {
    const uint32_t bits = tms_bits_of(x), magnitude = bits & 0x7fffffffu;
    const uint32_t sign = bits >> 16 & 0x8000u;
    if (magnitude > 0x7f800000u) /* NaN: quiet, the payload's upper bits */
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x1ffu));
    if (magnitude >= 0x47800000u) /* 65536 and more */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) { /* below 2^-14: one unit is 2^-24, the last place of 0.5 */
        const float sum = tms_float_of(magnitude) + 0.5f;
        return (uint16_t)(sign | (tms_bits_of(sum) - 0x3f000000u));
    }
    const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return (uint16_t)(sign | ((rounded - (112u << 23)) >> 13));
}

static inline float tms_bf16_load(uint16_t h) {
    return tms_float_of((uint32_t)h << 16);
}

/* Rounds to nearest even; NaN stays NaN with its sign. */
static inline uint16_t tms_bf16_store(float x) {
    const uint32_t bits = tms_bits_of(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* Widens `n` elements from element `at` of `data`. */
static inline void tms_load_row(tamis_dtype dtype, const void *data, uint64_t at, uint32_t n,
                                float *out) {
    const uint16_t *half = (const uint16_t *)data + at;
    switch (dtype) {
    case TAMIS_F32:
        memcpy(out, (const float *)data + at, n * sizeof *out);
        break;
    case TAMIS_F16:
        for (uint32_t i = 0; i < n; i++)
            out[i] = tms_f16_load(half[i]);
        break;
    case TAMIS_BF16:
        for (uint32_t i = 0; i < n; i++)
            out[i] = tms_bf16_load(half[i]);
        break;
    default: /* rows with blocks: tms_load_slot */
        break;
    }
}

/* Rounds `n` elements to element `at` of `data`. */
static inline void tms_store_row(tamis_dtype dtype, void *data, uint64_t at, uint32_t n,
                                 const float *row) {
    uint16_t *half = (uint16_t *)data + at;
    switch (dtype) {
    case TAMIS_F32:
        memcpy((float *)data + at, row, n * sizeof *row);
        break;
    case TAMIS_F16:
        for (uint32_t i = 0; i < n; i++)
            half[i] = tms_f16_store(row[i]);
        break;
    case TAMIS_BF16:
        for (uint32_t i = 0; i < n; i++)
            half[i] = tms_bf16_store(row[i]);
        break;
    default:
        break;
    }
}

/* Σ a·b in fp64, through eight partial sums that do not wait for one another. */
static inline double tms_dot(const float *a, const float *b, uint32_t n) {
    double sums[8] = {0};
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        for (uint32_t j = 0; j < 8; j++)
            sums[j] += (double)a[i + j] * b[i + j];
    }
    for (; i < n; i++)
        sums[i % 8] += (double)a[i] * b[i];
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
           ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

#endif
