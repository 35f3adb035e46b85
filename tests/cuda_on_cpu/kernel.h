/* SPDX-License-Identifier: Apache-2.0 */
/* The names of cuda_kernels/common.cuh on a CPU: what a kernel file sees in place of CUDA. A thread
 * of a block is a fiber; operations of a warp or block hand over to the others and say where they
 * stand, so that a divergent one is found. Memory accesses are instrumented by the compiler
 * (-fsanitize=thread with our own callbacks, access.c) and checked. */
#ifndef TAMIS_CUDA_ON_CPU_KERNEL_H
#define TAMIS_CUDA_ON_CPU_KERNEL_H

#include "calls.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

using std::max;
using std::min;

#define threadIdx (cpu_self()->thread_index)
#define blockIdx  (cpu_self()->block_index)
#define blockDim  (cpu_self()->block_size)
#define gridDim   (cpu_self()->grid_size)

#define DEVICE inline
#define KERNEL(name, threads, args_type)                                                           \
    static void name##_body(const args_type &a);                                                   \
    static void name##_entry(const void *args) {                                                   \
        name##_body(*(const args_type *)args);                                                     \
    }                                                                                              \
    __attribute__((constructor)) static void name##_register(void) {                               \
        cpu_register(#name, __FILE__, threads, sizeof(args_type), name##_entry);                   \
    }                                                                                              \
    static void name##_body(const args_type &a)
#define KERNEL_WIDE                KERNEL
#define KERNEL_TWICE               KERNEL
#define SHARED(type, name)         type &name = *(type *)cpu_shared(sizeof(type), alignof(type))
#define DYNAMIC_SHARED(type, name) type *const name = (type *)cpu_dynamic_shared()

/* Where an operation of a warp or block stands. */
#define block_sync()                 cpu_block_sync(__FILE__, __LINE__)
#define warp_sync()                  cpu_warp_sync(__FILE__, __LINE__)
#define warp_ballot(p)               cpu_ballot((p), __FILE__, __LINE__)
#define shuffle(x, lane)             cpu_shuffle_any((x), (lane), __FILE__, __LINE__)
#define shuffle_xor(value, mask)     shuffle((value), cpu_lane() ^ (mask))
#define load_matrix_x4(r, row)       cpu_load_matrix_x4((r), (row), false, __FILE__, __LINE__)
#define load_matrix_x4_trans(r, row) cpu_load_matrix_x4((r), (row), true, __FILE__, __LINE__)
#define mma(d, a, b0, b1, tag)       cpu_mma((d), (a), (b0), (b1), is_bf16(tag), __FILE__, __LINE__)

struct f16 {
    uint16_t bits;
};
struct bf16 {
    uint16_t bits;
};
struct alignas(16) vec16 {
    uint32_t word[4];
};
struct alignas(8) vec8 {
    uint32_t word[2];
};

DEVICE bool is_bf16(f16) {
    return false;
}
DEVICE bool is_bf16(bf16) {
    return true;
}
DEVICE float bits_to_float(uint32_t x) {
    float f;
    memcpy(&f, &x, 4);
    return f;
}
DEVICE uint32_t float_to_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
template <typename T> DEVICE T from_bits(uint32_t x) {
    return T{(uint16_t)x};
}
DEVICE float widen(float x) {
    return x;
}
DEVICE float widen(bf16 x) {
    return bits_to_float((uint32_t)x.bits << 16);
}
/* The exponent moves by 112; a subnormal is normalised by the multiplication. */
DEVICE float widen(f16 x) {
    const uint32_t sign = (uint32_t)(x.bits & 0x8000u) << 16, rest = x.bits & 0x7fffu;
    if (rest >= 0x7c00u) return bits_to_float(sign | 0x7f800000u | rest << 13);
    const float size = bits_to_float(rest << 13) * 0x1p112f;
    return bits_to_float(sign | float_to_bits(size));
}

template <typename T> DEVICE T narrow(float x);
template <> DEVICE float narrow<float>(float x) {
    return x;
}
template <> DEVICE bf16 narrow<bf16>(float x) {
    const uint32_t u = float_to_bits(x);
    if (std::isnan(x)) return bf16{(uint16_t)(u >> 16 | 0x40u)};
    return bf16{(uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16)};
}
/* Rounded by an addition whose lowest kept bit is the result's. */
template <> DEVICE f16 narrow<f16>(float x) {
    const uint32_t u = float_to_bits(x), sign = u >> 16 & 0x8000u, size = u & 0x7fffffffu;
    if (size > 0x7f800000u) return f16{(uint16_t)(sign | 0x7e00u)};
    if (size >= 0x477ff000u) return f16{(uint16_t)(sign | 0x7c00u)}; /* 65520 and more */
    if (size < 0x38800000u) {                                        /* below 2^-14 */
        const float sum = bits_to_float(size) + 0x1p-1f;             /* steps of 2^-24 */
        return f16{(uint16_t)(sign | (float_to_bits(sum) - 0x3f000000u))};
    }
    const uint32_t rounded = size - 0x38000000u + 0xfffu + (size >> 13 & 1u);
    return f16{(uint16_t)(sign | rounded >> 13)};
}
template <typename T> DEVICE uint32_t pack2(float x, float y) {
    return (uint32_t)narrow<T>(x).bits | (uint32_t)narrow<T>(y).bits << 16;
}

DEVICE uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t both = (uint64_t)b << 32 | a;
    uint32_t to = 0;
    for (int i = 0; i < 4; i++)
        to |= (uint32_t)(both >> (selector >> 4 * i & 7u) * 8 & 0xffu) << 8 * i;
    return to;
}
DEVICE uint32_t subtract2(uint32_t a, uint32_t b) {
    const auto part = [](uint32_t word) { return widen(from_bits<f16>(word)); };
    return pack2<f16>(part(a) - part(b), part(a >> 16) - part(b >> 16));
}

/* Threads are dealt to warps in the order of x, then y, then z. */
DEVICE uint32_t cpu_lane() {
    const cpu_thread *t = cpu_self();
    const cpu_dim at = t->thread_index, size = t->block_size;
    return (at.x + size.x * (at.y + size.y * at.z)) % 32;
}
template <typename T> DEVICE T cpu_shuffle_any(T x, uint32_t lane, const char *file, int line) {
    static_assert(sizeof(T) == 4, "32-bit types only");
    uint32_t u;
    memcpy(&u, &x, 4);
    u = cpu_shuffle(u, lane, file, line);
    memcpy(&x, &u, 4);
    return x;
}
DEVICE uint32_t popcount(uint32_t x) {
    return (uint32_t)__builtin_popcount(x);
}
DEVICE void thread_fence() {
    cpu_thread_fence();
}
/* A launch begins here when the one before it has ended. */
DEVICE void grid_wait() {}
DEVICE void grid_release() {}
DEVICE uint32_t atomic_add(uint32_t *p, uint32_t x) {
    return cpu_atomic_add(p, x);
}
DEVICE uint32_t atomic_add_acq_rel(uint32_t *p, uint32_t x) {
    return cpu_atomic_add_acq_rel(p, x);
}
DEVICE uint32_t atomic_max(uint32_t *p, uint32_t x) {
    return cpu_atomic_max(p, x);
}
DEVICE vec16 load_16(const void *p) {
    vec16 u;
    cpu_load(&u, p, 16);
    return u;
}
DEVICE void store_16(void *p, const vec16 &u) {
    cpu_store(p, &u, 16);
}
DEVICE vec8 load_vec8(const void *p) {
    vec8 u;
    cpu_load(&u, p, 8);
    return u;
}
DEVICE void store_vec8(void *p, const vec8 &u) {
    cpu_store(p, &u, 8);
}
DEVICE void copy_async_16(void *to, const void *from, bool live) {
    cpu_copy_async_16(to, from, live);
}
DEVICE void copy_async_commit() {
    cpu_copy_async_commit();
}
template <int N> DEVICE void copy_async_wait() {
    cpu_copy_async_wait(N);
}

#endif
