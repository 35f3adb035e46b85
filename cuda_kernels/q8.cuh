/* SPDX-License-Identifier: Apache-2.0 */
/* Quantisation to q8 (tamis_dtype): the scale of a block, the integers of its elements. Every
 * product q·d is exact in fp32, so comparisons make right what a division rounds, and the bits are
 * those of host/reference/slots.c.
 * A warp lane has 8 channels, so 4 neighbouring lanes have a block; a lane beyond the last channel
 * has zeros and takes part. */
#ifndef TAMIS_CUDA_Q8_CUH
#define TAMIS_CUDA_Q8_CUH

#include "common.cuh"

#define Q8_MOST    127.0f /* the largest |q| */
#define Q8_NAN     0x7e00u
#define Q8_LARGEST 0x7bffu /* 65504 */

DEVICE float q8_widen(uint32_t scale) {
    return widen(from_bits<f16>(scale));
}

/* The smallest f16 d with 127·d >= most, as bits; NaN for NaN and for what is above 127·65504. */
DEVICE uint32_t q8_scale(float most) {
    if (!(most <= Q8_MOST * 65504.0f)) return Q8_NAN;
    if (float_to_bits(most) < 0x00800000u) return 0;
    uint32_t d = min(pack2<f16>(most * (1.0f / Q8_MOST), 0.0f), Q8_LARGEST);
    while (Q8_MOST * q8_widen(d) < most)
        d++;
    while (d > 0 && Q8_MOST * q8_widen(d - 1) >= most)
        d--;
    return d;
}

/* The largest magnitude of the block's elements, of which the lane has x; NaN if one is NaN. */
DEVICE float q8_most(const float (&x)[8], float most = 0.0f) {
#pragma unroll
    for (int i = 0; i < 8; i++)
        most = larger(fabsf(x[i]), most);
    return most;
}
DEVICE float q8_most_of_block(float most) {
    most = larger(shuffle_xor(most, 1u), most);
    return larger(shuffle_xor(most, 2u), most);
}

/* The largest q with q·d <= x, where |x| <= 127·d; `inverse` is 1/d, rounded. */
DEVICE int32_t q8_below(float x, float d, float inverse) {
    int32_t q = (int32_t)floorf(x * inverse);
    if ((float)q * d > x) q--;
    if ((float)(q + 1) * d <= x) q++;
    return q;
}
/* The nearest, of two equally near the even one. */
DEVICE int32_t q8_nearest(float x, float d, float inverse) {
    const int32_t q = q8_below(x, d, inverse);
    const float middle = ((float)q + 0.5f) * d;
    return x > middle || (x == middle && (q & 1)) ? q + 1 : q;
}

typedef enum q8_way { Q8_NEAREST, Q8_DOWN, Q8_UP } q8_way;

/* The integers of 8 elements; 0 where the scale is 0 or NaN. */
template <q8_way WAY> DEVICE vec8 q8_of(const float (&x)[8], uint32_t scale) {
    vec8 u = {{0, 0}};
    const float d = q8_widen(scale), inverse = 1.0f / d;
    if (!(d > 0.0f)) return u;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int32_t q = WAY == Q8_NEAREST ? q8_nearest(x[i], d, inverse)
                                      : q8_below(WAY == Q8_UP ? -x[i] : x[i], d, inverse);
        if (WAY == Q8_UP) q = -q;
        u.word[i / 4] |= ((uint32_t)q & 0xffu) << i % 4 * 8;
    }
    return u;
}

/* 8 channels of a row to their place. All lanes of a warp call it. */
DEVICE void store_q8(const float (&x)[8], bool live, const kv_row<q8> &row, uint32_t channel) {
    const uint32_t scale = q8_scale(q8_most_of_block(q8_most(x)));
    if (!live) return;
    store_vec8((q8 *)row.at + channel, q8_of<Q8_NEAREST>(x, scale));
    if (channel % Q8_BLOCK == 0) ((f16 *)row.scales)[channel / Q8_BLOCK] = from_bits<f16>(scale);
}

#endif
