/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of weights of every type as f32: one function that widens a block of each quantised type.
 * Contract: host/ops/, tms_weight_matrix. Every product is exact in fp32, so that a difference of
 * two is rounded once, whatever a compiler contracts. */
#include "host/reference/weights.h"
#include "host/base/weights.h"
#include "host/reference/convert.h"
#include "host/reference/reference.h"

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

static void widen_q5_0(const uint8_t *block, float *out) {
    const float d = f16_at(block);
    for (int i = 0; i < 32; i++) {
        const int h = block[2 + i / 8] >> i % 8 & 1;
        out[i] = d * (float)(nibble(block + 6, i) + 16 * h - 16);
    }
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

static void widen_q4_k(const uint8_t *block, float *out) {
    const float d = f16_at(block), dmin = f16_at(block + 2);
    for (int j = 0; j < 8; j++) {
        const uint8_t *bytes = block + 16 + j / 2 * 32;
        int s, m;
        pair_of(block + 4, j, &s, &m);
        for (int i = 0; i < 32; i++) {
            const int n = j % 2 ? bytes[i] >> 4 : bytes[i] & 15;
            out[32 * j + i] = d * (float)s * (float)n - dmin * (float)m;
        }
    }
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

void tms_load_weights(const tms_weight_matrix *m, const void *w, uint64_t row, uint32_t n,
                      float *out) {
    static void (*const widen[])(const uint8_t *, float *) = {
        [TAMIS_WEIGHT_Q8_0] = widen_q8_0, [TAMIS_WEIGHT_Q4_0] = widen_q4_0,
        [TAMIS_WEIGHT_Q4_1] = widen_q4_1, [TAMIS_WEIGHT_Q5_0] = widen_q5_0,
        [TAMIS_WEIGHT_Q4_K] = widen_q4_k, [TAMIS_WEIGHT_Q6_K] = widen_q6_k,
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
