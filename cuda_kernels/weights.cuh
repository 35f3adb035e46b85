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
DEVICE void load_block(const uint8_t *block, uint32_t e, float (&x)[8], q4_k) {
    const uint32_t j = e / 32;
    const uint8_t *pairs = block + 4, *from = block + 16 + e / 64 * 32 + e % 32;
    uint32_t s = pairs[j] & 63u, m = pairs[j + 4] & 63u;
    if (j >= 4) {
        s = (pairs[j + 4] & 15u) | (uint32_t)(pairs[j - 4] >> 6) << 4;
        m = pairs[j + 4] >> 4 | (uint32_t)(pairs[j] >> 6) << 4;
    }
    const float scale = f16_at(block) * (float)s, minimum = f16_at(block + 2) * (float)m;
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        x[i] = scale * (float)nibble_at(from + i, j % 2) - minimum;
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
    X(q8_0, Q8_0) X(q4_0, Q4_0) X(q4_1, Q4_1) X(q5_0, Q5_0) X(q4_k, Q4_K) X(q6_k, Q6_K)
#define FOR_EACH_WEIGHT(X) FOR_EACH_TYPE(X) FOR_EACH_QUANTISED(X)

#endif
