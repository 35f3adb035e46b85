/* SPDX-License-Identifier: Apache-2.0 */
/* The names of common.cuh on a GPU. PTX: parallel thread execution ISA, sections on cp.async,
 * ldmatrix and mma.m16n8k16; all from compute capability 8.0 on. */
#ifndef TAMIS_CUDA_COMMON_GPU_CUH
#define TAMIS_CUDA_COMMON_GPU_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define DEVICE __device__ __forceinline__
#define KERNEL(name, threads, args_type)                                                           \
    extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ args_type a)
#define KERNEL_WIDE(name, threads, args_type)                                                      \
    extern "C" __global__ void __launch_bounds__(threads, 1)                                       \
        name(const __grid_constant__ args_type a)
#define KERNEL_TWICE(name, threads, args_type)                                                     \
    extern "C" __global__ void __launch_bounds__(threads, 2)                                       \
        name(const __grid_constant__ args_type a)
#define SHARED(type, name) __shared__ type name
#define DYNAMIC_SHARED(type, name)                                                                 \
    extern __shared__ __align__(16) unsigned char dynamic_shared_bytes[];                          \
    type *const name = (type *)dynamic_shared_bytes

typedef __half f16;
typedef __nv_bfloat16 bf16;
struct __align__(16) vec16 {
    uint32_t word[4];
};
struct __align__(8) vec8 {
    uint32_t word[2];
};

DEVICE float bits_to_float(uint32_t x) {
    return __uint_as_float(x);
}
DEVICE uint32_t float_to_bits(float x) {
    return __float_as_uint(x);
}
template <typename T> DEVICE T from_bits(uint32_t x);
template <> DEVICE f16 from_bits<f16>(uint32_t x) {
    return __ushort_as_half((unsigned short)x);
}
template <> DEVICE bf16 from_bits<bf16>(uint32_t x) {
    return __ushort_as_bfloat16((unsigned short)x);
}
DEVICE float widen(float x) {
    return x;
}
DEVICE float widen(f16 x) {
    return __half2float(x);
}
DEVICE float widen(bf16 x) {
    return __bfloat162float(x);
}
template <typename T> DEVICE T narrow(float x);
template <> DEVICE float narrow<float>(float x) {
    return x;
}
template <> DEVICE f16 narrow<f16>(float x) {
    return __float2half_rn(x);
}
template <> DEVICE bf16 narrow<bf16>(float x) {
    return __float2bfloat16_rn(x);
}
template <typename T> DEVICE uint32_t pack2(float x, float y);
template <> DEVICE uint32_t pack2<f16>(float x, float y) {
    return (uint32_t)__half_as_ushort(narrow<f16>(x)) | (uint32_t)__half_as_ushort(narrow<f16>(y))
                                                            << 16;
}
template <> DEVICE uint32_t pack2<bf16>(float x, float y) { /* one conversion, else they are two */
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    return (uint32_t)__bfloat16_as_ushort(pair.x) | (uint32_t)__bfloat16_as_ushort(pair.y) << 16;
}

DEVICE uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) {
    return __byte_perm(a, b, selector);
}
DEVICE uint32_t subtract2(uint32_t a, uint32_t b) {
    const __half2 x = __halves2half2(from_bits<f16>(a & 0xffffu), from_bits<f16>(a >> 16));
    const __half2 y = __halves2half2(from_bits<f16>(b & 0xffffu), from_bits<f16>(b >> 16));
    const __half2 d = __hsub2(x, y);
    return (uint32_t)__half_as_ushort(d.x) | (uint32_t)__half_as_ushort(d.y) << 16;
}

DEVICE vec16 load_16(const void *p) {
    const uint4 u = *(const uint4 *)p;
    return vec16{{u.x, u.y, u.z, u.w}};
}
DEVICE void store_16(void *p, const vec16 &u) {
    *(uint4 *)p = make_uint4(u.word[0], u.word[1], u.word[2], u.word[3]);
}

DEVICE vec8 load_vec8(const void *p) {
    const uint2 u = *(const uint2 *)p;
    return vec8{{u.x, u.y}};
}
DEVICE void store_vec8(void *p, const vec8 &u) {
    *(uint2 *)p = make_uint2(u.word[0], u.word[1]);
}

DEVICE void block_sync() {
    __syncthreads();
}
DEVICE void warp_sync() {
    __syncwarp();
}
DEVICE void thread_fence() {
    __threadfence();
}
/* Images for 9.0 have them; the host asks for early launches there alone. */
DEVICE void grid_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
DEVICE void grid_release() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
template <typename T> DEVICE T shuffle(T x, uint32_t lane) {
    return __shfl_sync(ALL_LANES, x, (int)lane);
}
template <typename T> DEVICE T shuffle_xor(T x, uint32_t mask) {
    return __shfl_xor_sync(ALL_LANES, x, (int)mask);
}
DEVICE uint32_t warp_ballot(bool p) {
    return __ballot_sync(ALL_LANES, p);
}
DEVICE uint32_t popcount(uint32_t x) {
    return (uint32_t)__popc(x);
}
DEVICE uint32_t atomic_add(uint32_t *p, uint32_t x) {
    return atomicAdd(p, x);
}
DEVICE uint32_t atomic_add_acq_rel(uint32_t *p, uint32_t x) {
    uint32_t old;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(old)
                 : "l"(__cvta_generic_to_global(p)), "r"(x)
                 : "memory");
    return old;
}
DEVICE uint32_t atomic_max(uint32_t *p, uint32_t x) {
    return atomicMax(p, x);
}

DEVICE uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}
DEVICE void copy_async_16(void *to, const void *from, bool live) {
    const uint32_t bytes = live ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes)
                 : "memory");
}
DEVICE void copy_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> DEVICE void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

DEVICE void load_matrix_x4(uint32_t (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
DEVICE void load_matrix_x4_trans(uint32_t (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
#define TAMIS_MMA(type)                                                                            \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 "                    \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                 \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
DEVICE void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, f16) {
    TAMIS_MMA("f16");
}
DEVICE void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, bf16) {
    TAMIS_MMA("bf16");
}
#undef TAMIS_MMA

#endif
