/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of every tamis_weight_type as f32. A quantised type is a struct that knows its block; a
 * row of it is read 8 neighbouring elements at a time, of which each is exact or rounded once.
 * Layouts: host/ops/types.h, tms_weight_matrix. */
#ifndef TAMIS_CUDA_WEIGHTS_CUH
#define TAMIS_CUDA_WEIGHTS_CUH

#include "common.cuh"

struct q8_0 {
    enum { ELEMENTS = 32, BYTES = 34 };
};
struct q4_0 {
    enum { ELEMENTS = 32, BYTES = 18 };
};
struct q4_1 {
    enum { ELEMENTS = 32, BYTES = 20 };
};
struct q5_0 {
    enum { ELEMENTS = 32, BYTES = 22 };
};
struct q4_k {
    enum { ELEMENTS = 256, BYTES = 144 };
};
struct q6_k {
    enum { ELEMENTS = 256, BYTES = 210 };
};
struct q5_1 {
    enum { ELEMENTS = 32, BYTES = 24 };
};
struct q5_k {
    enum { ELEMENTS = 256, BYTES = 176 };
};
struct q3_k {
    enum { ELEMENTS = 256, BYTES = 110 };
};
struct q2_k {
    enum { ELEMENTS = 256, BYTES = 84 };
};
struct iq4_nl {
    enum { ELEMENTS = 32, BYTES = 18 };
};
struct iq4_xs {
    enum { ELEMENTS = 256, BYTES = 136 };
};
struct mxfp4 {
    enum { ELEMENTS = 32, BYTES = 17 };
};

/* Two bytes at a multiple of 2, as f16. */
DEVICE float f16_at(const uint8_t *p) {
    return widen(from_bits<f16>(*(const uint16_t *)p));
}
DEVICE uint32_t nibble_at(const uint8_t *p, uint32_t high) {
    return *p >> (high * 4) & 15u;
}

/* Elements e to e + 7 of a block; e is a multiple of 8. Products are exact, so a minimum is the
 * only thing that rounds. */
DEVICE void load_block(const uint8_t *block, uint32_t e, float (&x)[8], q8_0) {
    const float d = f16_at(block);
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        x[i] = d * (float)(int8_t)block[2 + e + i];
}
DEVICE void load_block(const uint8_t *block, uint32_t e, float (&x)[8], q4_0) {
    const float d = f16_at(block);
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        x[i] = d * (float)((int)nibble_at(block + 2 + e % 16 + i, e / 16) - 8);
}
DEVICE void load_block(const uint8_t *block, uint32_t e, float (&x)[8], q4_1) {
    const float d = f16_at(block), m = f16_at(block + 2);
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        x[i] = d * (float)nibble_at(block + 4 + e % 16 + i, e / 16) + m;
}
DEVICE void load_block(const uint8_t *block, uint32_t e, float (&x)[8], q5_0) {
    const float d = f16_at(block);
    const uint32_t fifth = block[2 + e / 8];
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t n = nibble_at(block + 6 + e % 16 + i, e / 16) | (fifth >> i & 1u) << 4;
        x[i] = d * (float)((int)n - 16);
    }
}
DEVICE void load_block(const uint8_t *block, uint32_t e, float (&x)[8], q5_1) {
    const float d = f16_at(block), m = f16_at(block + 2);
    const uint32_t fifth = block[4 + e / 8];
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t n = nibble_at(block + 8 + e % 16 + i, e / 16) | (fifth >> i & 1u) << 4;
        x[i] = d * (float)n + m;
    }
}

/* What codes of sub-block j of Q4_K and of Q5_K are multiplied by, and what is taken off. */
struct scale_and_minimum {
    float scale, minimum;
};
DEVICE scale_and_minimum pair_of(const uint8_t *block, uint32_t j) {
    const uint8_t *pairs = block + 4;
    uint32_t s = pairs[j] & 63u, m = pairs[j + 4] & 63u;
    if (j >= 4) {
        s = (pairs[j + 4] & 15u) | (uint32_t)(pairs[j - 4] >> 6) << 4;
        m = pairs[j + 4] >> 4 | (uint32_t)(pairs[j] >> 6) << 4;
    }
    return {f16_at(block) * (float)s, f16_at(block + 2) * (float)m};
}
DEVICE void load_block(const uint8_t *block, uint32_t e, float (&x)[8], q4_k) {
    const uint32_t j = e / 32;
    const uint8_t *from = block + 16 + e / 64 * 32 + e % 32;
    const scale_and_minimum by = pair_of(block, j);
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        x[i] = by.scale * (float)nibble_at(from + i, j % 2) - by.minimum;
}
DEVICE void load_block(const uint8_t *block, uint32_t e, float (&x)[8], q5_k) {
    const uint32_t j = e / 32;
    const uint8_t *fifth = block + 16 + e % 32, *from = block + 48 + e / 64 * 32 + e % 32;
    const scale_and_minimum by = pair_of(block, j);
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t n = nibble_at(from + i, j % 2) | (fifth[i] >> j & 1u) << 4;
        x[i] = by.scale * (float)n - by.minimum;
    }
}
DEVICE void load_block(const uint8_t *block, uint32_t e, float (&x)[8], q6_k) {
    const uint32_t half = e / 128, k = e % 128 / 32;
    const uint8_t *low = block + half * 64 + e % 64, *high = block + 128 + half * 32 + e % 32;
    const float scale = f16_at(block + 208) * (float)(int8_t)block[192 + e / 16];
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t n = nibble_at(low + i, k / 2) | (high[i] >> (2 * k) & 3u) << 4;
        x[i] = scale * (float)((int)n - 32);
    }
}
DEVICE void load_block(const uint8_t *block, uint32_t e, float (&x)[8], q3_k) {
    const uint32_t j = e / 16, k = e % 128 / 32;
    const uint8_t *third = block + e % 32, *from = block + 32 + e / 128 * 32 + e % 32;
    const uint8_t *scales = block + 96;
    const uint32_t s =
        nibble_at(scales + j % 8, j / 8) | (scales[8 + j % 4] >> (j / 4 * 2) & 3u) << 4;
    const float scale = f16_at(block + 108) * (float)((int)s - 32);
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t n = (from[i] >> (2 * k) & 3u) | (third[i] >> (e / 32) & 1u) << 2;
        x[i] = scale * (float)((int)n - 4);
    }
}
DEVICE void load_block(const uint8_t *block, uint32_t e, float (&x)[8], q2_k) {
    const uint32_t k = e % 128 / 32, pair = block[e / 16];
    const uint8_t *from = block + 16 + e / 128 * 32 + e % 32;
    const float scale = f16_at(block + 80) * (float)(pair & 15u);
    const float minimum = f16_at(block + 82) * (float)(pair >> 4);
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        x[i] = scale * (float)(from[i] >> (2 * k) & 3u) - minimum;
}

/* Eight signed bytes in one number, the first one lowest: a table that is in two registers. */
DEVICE constexpr uint64_t bytes_of(int a, int b, int c, int d, int e, int f, int g, int h) {
    return (uint64_t)(uint8_t)a | (uint64_t)(uint8_t)b << 8 | (uint64_t)(uint8_t)c << 16 |
           (uint64_t)(uint8_t)d << 24 | (uint64_t)(uint8_t)e << 32 | (uint64_t)(uint8_t)f << 40 |
           (uint64_t)(uint8_t)g << 48 | (uint64_t)(uint8_t)h << 56;
}
DEVICE float iq4_value(uint32_t n) {
    const uint64_t half = n < 8 ? bytes_of(-127, -104, -83, -65, -49, -35, -22, -10)
                                : bytes_of(1, 13, 25, 38, 53, 69, 89, 113);
    return (float)(int8_t)(half >> (n % 8 * 8));
}
DEVICE float mxfp4_value(uint32_t n) {
    const float size = (float)(uint8_t)(bytes_of(0, 1, 2, 3, 4, 6, 8, 12) >> (n % 8 * 8));
    return n > 8 ? -size : size;
}
DEVICE void load_block(const uint8_t *block, uint32_t e, float (&x)[8], iq4_nl) {
    const float d = f16_at(block);
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        x[i] = d * iq4_value(nibble_at(block + 2 + e % 16 + i, e / 16));
}
DEVICE void load_block(const uint8_t *block, uint32_t e, float (&x)[8], iq4_xs) {
    const uint32_t j = e / 32;
    const uint32_t s = nibble_at(block + 4 + j / 2, j % 2) |
                       (*(const uint16_t *)(block + 2) >> (2 * j) & 3u) << 4;
    const float scale = f16_at(block) * (float)((int)s - 32);
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        x[i] = scale * iq4_value(nibble_at(block + 8 + 16 * j + e % 16 + i, e % 32 / 16));
}
DEVICE void load_block(const uint8_t *block, uint32_t e, float (&x)[8], mxfp4) {
    /* 2^(e - 128), which is subnormal for the two smallest */
    const uint32_t power = *block;
    const float d = bits_to_float(power < 2 ? 0x200000u << power : (power - 1) << 23);
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        x[i] = d * mxfp4_value(nibble_at(block + 1 + e % 16 + i, e / 16));
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* Row j of a packed matrix with n elements a row; elements first to first + 7 of a row, first a
 * multiple of 8; one element. */
template <typename T> struct weights {
    typedef uint8_t unit;
    static DEVICE const unit *row(const void *w, uint64_t j, uint64_t n) {
        return (const unit *)w + j * (n / T::ELEMENTS * T::BYTES);
    }
    static DEVICE void load(const unit *row, uint64_t first, float (&x)[8]) {
        load_block(row + first / T::ELEMENTS * T::BYTES, (uint32_t)(first % T::ELEMENTS), x, T());
    }
    static DEVICE float one(const unit *row, uint64_t i) {
        float x[8];
        load(row, i / 8 * 8, x);
        float is = x[0];
#pragma unroll
        for (uint32_t k = 1; k < 8; k++)
            is = i % 8 == k ? x[k] : is;
        return is;
    }
};
template <typename T> struct plain_weights {
    typedef T unit;
    static DEVICE const unit *row(const void *w, uint64_t j, uint64_t n) {
        return (const unit *)w + j * n;
    }
    static DEVICE void load(const unit *row, uint64_t first, float (&x)[8]) {
        load_8(row + first, x);
    }
    static DEVICE float one(const unit *row, uint64_t i) {
        return widen(row[i]);
    }
};
template <> struct weights<float> : plain_weights<float> {};
template <> struct weights<f16> : plain_weights<f16> {};
template <> struct weights<bf16> : plain_weights<bf16> {};

template <typename T> DEVICE constexpr bool is_quantised() {
    return sizeof(typename weights<T>::unit) == 1;
}

/* X(C type, tag in names) for every type, and for those that are quantised. */
#define FOR_EACH_QUANTISED(X)                                                                      \
    X(q8_0, Q8_0) X(q4_0, Q4_0) X(q4_1, Q4_1) X(q5_0, Q5_0) X(q4_k, Q4_K) X(q6_k, Q6_K)            \
    X(q5_1, Q5_1) X(q5_k, Q5_K) X(q3_k, Q3_K) X(q2_k, Q2_K) X(iq4_nl, IQ4_NL) X(iq4_xs, IQ4_XS)    \
    X(mxfp4, MXFP4)
#define FOR_EACH_WEIGHT(X) FOR_EACH_TYPE(X) FOR_EACH_QUANTISED(X)

#endif
