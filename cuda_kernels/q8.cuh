/* SPDX-License-Identifier: Apache-2.0 */
/* Quantisation to q8 and to values of 4 bits (tamis_dtype): the scale of a block, its minimum, the
 * integers of its elements. Every product of an integer and a scale is exact in fp32, so comparisons
 * make right what a division rounds, and the bits are those of host/reference/slots.c.
 * A warp lane has 8 channels, so 4 neighbouring lanes have a block; a lane beyond the last channel
 * has zeros and takes part. */
#ifndef TAMIS_CUDA_Q8_CUH
#define TAMIS_CUDA_Q8_CUH

#include "common.cuh"

#define Q8_MOST    127.0f /* the largest |q| */
#define Q8_NAN     0x7e00u
#define Q8_LARGEST 0x7bffu /* 65504 */
#define Q4_MOST    15.0f   /* the largest n */

DEVICE float q8_widen(uint32_t scale) {
    return widen(from_bits<f16>(scale));
}

/* The smallest f16 d with steps·d >= most, as bits; NaN where there is none. */
DEVICE uint32_t block_scale(float most, float steps) {
    if (!(most <= steps * 65504.0f)) return Q8_NAN;
    if (float_to_bits(most) < 0x00800000u) return 0;
    uint32_t d = min(pack2<f16>(most * (1.0f / steps), 0.0f), Q8_LARGEST);
    while (steps * q8_widen(d) < most)
        d++;
    while (d > 0 && steps * q8_widen(d - 1) >= most)
        d--;
    return d;
}
/* The largest f16 that is not above x, as bits, +0 below 2^-126 in magnitude; NaN where there is
 * none. */
DEVICE uint32_t block_minimum(float x) {
    const float size = fabsf(x);
    if (!(x >= -65504.0f)) return Q8_NAN;
    if (float_to_bits(size) < 0x00800000u) return 0;
    if (x < 0.0f) return 0x8000u | block_scale(size, 1.0f);
    const uint32_t d = min(pack2<f16>(size, 0.0f), Q8_LARGEST);
    return q8_widen(d) > size ? d - 1 : d;
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
DEVICE void store_scaled(const float (&x)[8], bool live, const kv_row<q8> &row, uint32_t channel) {
    const uint32_t scale = block_scale(q8_most_of_block(q8_most(x)), Q8_MOST);
    if (!live) return;
    store_vec8((q8 *)row.at + channel, q8_of<Q8_NEAREST>(x, scale));
    if (channel % Q8_BLOCK == 0) ((f16 *)row.scales)[channel / Q8_BLOCK] = from_bits<f16>(scale);
}

/* ---- Blocks of 4 bits ------------------------------------------------------------------------ */

/* The smaller of two, NaN if one is. */
DEVICE float smaller(float a, float b) {
    return -larger(-a, -b);
}

/* 8 channels of a row to their place. All lanes of a warp call it; what a lane that is not live has
 * does not count. A byte is of two lanes' channels: those of the block's first half write. */
DEVICE void store_scaled(const float (&x)[8], bool live, const kv_row<q4> &row, uint32_t channel) {
    float low = INFINITY, above[8], most = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++)
        low = live ? smaller(x[i], low) : low;
    low = smaller(shuffle_xor(low, 1u), low);
    low = smaller(shuffle_xor(low, 2u), low);
    const uint32_t minimum = block_minimum(low);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        above[i] = live ? x[i] - widen(from_bits<f16>(minimum)) : 0.0f;
        most = larger(above[i], most);
    }
    const uint32_t scale = block_scale(q8_most_of_block(most), Q4_MOST);
    const vec8 mine = q8_of<Q8_NEAREST>(above, scale);
    vec8 u;
#pragma unroll
    for (int i = 0; i < 2; i++)
        u.word[i] = mine.word[i] | shuffle_xor(mine.word[i], 2u) << 4;
    const uint32_t block = channel / Q8_BLOCK;
    if (!live || channel % Q8_BLOCK >= Q4_BYTES) return;
    store_vec8((q4 *)row.at + block * Q4_BYTES + channel % Q4_BYTES, u);
    if (channel % Q8_BLOCK != 0) return;
    ((f16 *)row.scales)[2 * block] = from_bits<f16>(scale == Q8_NAN ? Q8_NAN : minimum);
    ((f16 *)row.scales)[2 * block + 1] = from_bits<f16>(scale);
}

#endif
