/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of weights of every type as f32: one function that widens a block of each quantised type.
 * Contract: host/ops/, tms_weight_matrix. Every product is exact in fp32, so that a difference of
 * two is rounded once, whatever a compiler contracts. */
#include "host/reference/weights.h"
#include "host/base/weights.h"
#include "host/reference/convert.h"
#include "host/reference/reference.h"

#include <math.h>

#define MOST_BYTES 256 /* of a block */

/* Two bytes at any address. */
static float f16_at(const uint8_t *at) {
    return tms_f16_load((uint16_t)(at[0] | at[1] << 8));
}

/* Element i of 32 nibbles in 16 bytes. */
static int nibble(const uint8_t *bytes, int i) {
    return i < 16 ? bytes[i] & 15 : bytes[i - 16] >> 4;
}

static void widen_q8_0(const uint8_t *block, float *out) {
    const float d = f16_at(block);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)(int8_t)block[2 + i];
}

static void widen_q4_0(const uint8_t *block, float *out) {
    const float d = f16_at(block);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)(nibble(block + 2, i) - 8);
}

static void widen_q4_1(const uint8_t *block, float *out) {
    const float d = f16_at(block), m = f16_at(block + 2);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)nibble(block + 4, i) + m;
}

/* Bit i of bytes. */
static int bit_of(const uint8_t *bytes, int i) {
    return bytes[i / 8] >> i % 8 & 1;
}

static void widen_q5_0(const uint8_t *block, float *out) {
    const float d = f16_at(block);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)(nibble(block + 6, i) + 16 * bit_of(block + 2, i) - 16);
}

static void widen_q5_1(const uint8_t *block, float *out) {
    const float d = f16_at(block), m = f16_at(block + 2);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)(nibble(block + 8, i) + 16 * bit_of(block + 4, i)) + m;
}

/* The j-th pair of 6-bit (scale, minimum). */
static void pair_of(const uint8_t *pairs, int j, int *s, int *m) {
    if (j < 4) {
        *s = pairs[j] & 63;
        *m = pairs[j + 4] & 63;
    } else {
        *s = (pairs[j + 4] & 15) | pairs[j - 4] >> 6 << 4;
        *m = pairs[j + 4] >> 4 | pairs[j] >> 6 << 4;
    }
}

/* Q4_K, and Q5_K, which has bytes of fifth bits; NULL: there are none. */
static void widen_pairs(const uint8_t *block, const uint8_t *nibbles, const uint8_t *fifth,
                        float *out) {
    const float d = f16_at(block), dmin = f16_at(block + 2);
    for (int j = 0; j < 8; j++) {
        const uint8_t *bytes = nibbles + j / 2 * 32;
        int s, m;
        pair_of(block + 4, j, &s, &m);
        for (int i = 0; i < 32; i++) {
            const int h = fifth ? fifth[i] >> j & 1 : 0;
            const int n = (j % 2 ? bytes[i] >> 4 : bytes[i] & 15) + 16 * h;
            out[32 * j + i] = d * (float)s * (float)n - dmin * (float)m;
        }
    }
}

static void widen_q4_k(const uint8_t *block, float *out) {
    widen_pairs(block, block + 16, NULL, out);
}

static void widen_q5_k(const uint8_t *block, float *out) {
    widen_pairs(block, block + 48, block + 16, out);
}

static void widen_q6_k(const uint8_t *block, float *out) {
    const uint8_t *low = block, *high = block + 128, *scales = block + 192;
    const float d = f16_at(block + 208);
    for (int i = 0; i < 256; i++) {
        const int half = i / 128, k = i % 128 / 32; /* of 128 elements, the k-th 32 */
        const int nibbles = low[half * 64 + i % 64] >> (k / 2 * 4) & 15;
        const int bits = high[half * 32 + i % 32] >> 2 * k & 3;
        out[i] = d * (float)(int8_t)scales[i / 16] * (float)((nibbles | bits << 4) - 32);
    }
}

/* Element i of 256 pairs of bits in 64 bytes. */
static int two_bits(const uint8_t *bytes, int i) {
    return bytes[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
}

static void widen_q3_k(const uint8_t *block, float *out) {
    const uint8_t *scales = block + 96;
    const float d = f16_at(block + 108);
    for (int i = 0; i < 256; i++) {
        const int j = i / 16, n = two_bits(block + 32, i) + 4 * (block[i % 32] >> i / 32 & 1);
        const int s = (scales[j % 8] >> j / 8 * 4 & 15) | (scales[8 + j % 4] >> j / 4 * 2 & 3) << 4;
        out[i] = d * (float)(s - 32) * (float)(n - 4);
    }
}

static void widen_q2_k(const uint8_t *block, float *out) {
    const float d = f16_at(block + 80), dmin = f16_at(block + 82);
    for (int i = 0; i < 256; i++) {
        const int s = block[i / 16] & 15, m = block[i / 16] >> 4;
        out[i] = d * (float)s * (float)two_bits(block + 16, i) - dmin * (float)m;
    }
}

/* ---- Tables ---------------------------------------------------------------------------------- */

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
static const int8_t mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static void widen_iq4_nl(const uint8_t *block, float *out) {
    const float d = f16_at(block);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)iq4_values[nibble(block + 2, i)];
}

static void widen_iq4_xs(const uint8_t *block, float *out) {
    const float d = f16_at(block);
    const int high = block[2] | block[3] << 8;
    for (int j = 0; j < 8; j++) {
        const int s = (block[4 + j / 2] >> j % 2 * 4 & 15) | (high >> 2 * j & 3) << 4;
        for (int i = 0; i < 32; i++)
            out[32 * j + i] =
                d * (float)(s - 32) * (float)iq4_values[nibble(block + 8 + 16 * j, i)];
    }
}

static void widen_mxfp4(const uint8_t *block, float *out) {
    const float d = ldexpf(1, block[0] - 128);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)mxfp4_values[nibble(block + 1, i)];
}

void tms_load_weights(const tms_weight_matrix *m, const void *w, uint64_t row, uint32_t n,
                      float *out) {
    static void (*const widen[])(const uint8_t *, float *) = {
        [TAMIS_WEIGHT_Q8_0] = widen_q8_0,     [TAMIS_WEIGHT_Q4_0] = widen_q4_0,
        [TAMIS_WEIGHT_Q4_1] = widen_q4_1,     [TAMIS_WEIGHT_Q5_0] = widen_q5_0,
        [TAMIS_WEIGHT_Q4_K] = widen_q4_k,     [TAMIS_WEIGHT_Q6_K] = widen_q6_k,
        [TAMIS_WEIGHT_Q5_1] = widen_q5_1,     [TAMIS_WEIGHT_Q5_K] = widen_q5_k,
        [TAMIS_WEIGHT_Q3_K] = widen_q3_k,     [TAMIS_WEIGHT_Q2_K] = widen_q2_k,
        [TAMIS_WEIGHT_IQ4_NL] = widen_iq4_nl, [TAMIS_WEIGHT_IQ4_XS] = widen_iq4_xs,
        [TAMIS_WEIGHT_MXFP4] = widen_mxfp4,
    };
    const uint32_t elements = tamis_weight_block(m->type);
    const uint64_t bytes = tamis_weight_bytes(m->type, 1, elements);
    const uint8_t *from = (const uint8_t *)w + row * tamis_weight_bytes(m->type, 1, n);
    uint8_t block[MOST_BYTES];
    if (elements == 1) {
        tms_load_row((tamis_dtype)m->type, w, row * n, n, out);
        return;
    }
    for (uint32_t i = 0; i < n; i += elements, from += bytes) {
        const uint8_t *at = m->layout == TAMIS_WEIGHT_STRIPS ? block : from;
        if (m->layout == TAMIS_WEIGHT_STRIPS)
            tms_strips_block(m->type, n, w, row, i / elements, block);
        widen[m->type](at, out + i);
    }
}

tamis_weight_layout tms_reference_weight_layout(tms_device *dev, tamis_weight_type type) {
    (void)dev;
    (void)type;
    return TAMIS_WEIGHT_ROWS;
}
