/* SPDX-License-Identifier: Apache-2.0 */
/* What the CUDA kernels share: how a kernel is declared, elements of f32, f16, bf16, q8 and q4,
 * 16-byte accesses, warp and block operations, matrix and copy intrinsics. A kernel file compiles
 * with nvcc for a GPU, and as C++ for the CPU (tests/cuda_on_cpu), where these names have a plain,
 * checked form. So kernels use no other intrinsics, and declare shared memory by SHARED alone. */
#ifndef TAMIS_CUDA_COMMON_CUH
#define TAMIS_CUDA_COMMON_CUH

#include "args.h"

#define WARP      32u
#define ALL_LANES 0xffffffffu

#ifdef __CUDACC__
#include "common_gpu.cuh"
#else
#include "tests/cuda_on_cpu/kernel.h"
#endif
/* Either gives, as functions but for the first six:
 *   KERNEL(name, threads, args) { ... a ... }    a kernel of at most `threads` threads a block;
 *                                                its arguments are the struct `a`
 *   KERNEL_WIDE(...)                             the same; it takes the registers that it needs,
 *                                                even if then only one block fits a multiprocessor
 *   KERNEL_TWICE(...)                            the same; it takes no more registers than let two
 *                                                blocks share a multiprocessor
 *   SHARED(type, name);                          the kernel's one piece of shared memory, a
 *                                                reference; not initialised, as on a GPU
 *   DYNAMIC_SHARED(type, name);                  a pointer to what the launch asked for, aligned to
 *                                                16 bytes
 *   DEVICE                                       before every function
 *   threadIdx, blockIdx, blockDim, gridDim       .x .y .z
 *   block_sync(), warp_sync()                    barriers; memory is in order behind them
 *   shuffle(x, lane), shuffle_xor(x, mask)       x of another lane; 32 bits; all lanes take part
 *   warp_ballot(p)                               bit i: p of lane i
 *   popcount(x)                                  bits of a uint32_t that are set
 *   thread_fence()                               writes so far before writes to come, device wide;
 *                                                tickets do without: is_last_block
 *   grid_wait()                                  in a launch that began early: until the one before
 *                                                it has ended and its writes are there; else nothing
 *   grid_release()                               a launch behind that may begin early may begin once
 *                                                all blocks have come here
 *   atomic_add(p, x), atomic_max(p, x)           uint32_t, shared or global; the old value
 *   atomic_add_acq_rel(p, x)                     the same in global memory, device wide in order:
 *                                                writes so far before it, reads to come behind it
 *   load_16(p), store_16(p, u)                   a `vec16` (4 words) at once, p aligned to 16
 *   load_vec8(p), store_vec8(p, u)               a `vec8` (2 words) at once, p aligned to 8
 *   copy_async_16(to_shared, from, live)         starts to copy 16 bytes, zeros if not live
 *   copy_async_commit()                          makes a batch of the copies since the last one
 *   copy_async_wait<N>()                         all but the last N batches of the thread are there
 *   load_matrix_x4(r, row), _trans               four 8x8 matrices of 16-bit elements: lane i names
 *                                                row i%8 of matrix i/8 (16 bytes, shared memory);
 *                                                r[j] gets of matrix j the elements
 *                                                (lane/4, 2*(lane%4) + 0, 1), transposed in the
 *                                                second form
 *   mma(d, a, b, tag)                            d[16x8] += a[16x16]·b[16x8], f32 += f16·f16 (tag
 *                                                f16()) or bf16·bf16; fragments as those of PTX's
 *                                                mma.m16n8k16
 *   widen(x), narrow<T>(x)                       exact; to nearest even, NaN stays NaN
 *   pack2<T>(x, y)                               two narrowed in a word, x in the low half
 *   subtract2(a, b)                              a - b of two words of two f16 each
 *   permute_bytes(a, b, s)                       byte i is that one of a's 4 and b's 4 bytes
 *                                                which the i-th 4 bits of s name, from 0 to 7
 *   f16, bf16                                    element types of 16 bits; f32 is float */

/* ---- Elements -------------------------------------------------------------------------------- */

/* 8 consecutive elements as f32; p aligned to 16 bytes. */
DEVICE void load_8(const float *p, float (&x)[8]) {
    const vec16 a = load_16(p), b = load_16(p + 4);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[i] = bits_to_float(a.word[i]);
        x[4 + i] = bits_to_float(b.word[i]);
    }
}
template <typename T> DEVICE void load_8(const T *p, float (&x)[8]) {
    const vec16 a = load_16(p);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = widen(from_bits<T>(a.word[i] & 0xffffu));
        x[2 * i + 1] = widen(from_bits<T>(a.word[i] >> 16));
    }
}
DEVICE void store_8(const float (&x)[8], float *p) {
    vec16 a, b;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        a.word[i] = float_to_bits(x[i]);
        b.word[i] = float_to_bits(x[4 + i]);
    }
    store_16(p, a);
    store_16(p + 4, b);
}
template <typename T> DEVICE void store_8(const float (&x)[8], T *p) {
    vec16 a;
#pragma unroll
    for (int i = 0; i < 4; i++)
        a.word[i] = pack2<T>(x[2 * i], x[2 * i + 1]);
    store_16(p, a);
}

/* An element of q8 without the scale of its block (tamis_dtype). */
struct q8 {
    int8_t q;
};
#define Q8_BLOCK 32u /* as host/base/dtype.c says */
DEVICE uint32_t q8_blocks(uint32_t head_dim) {
    return CU_Q8_BLOCKS(head_dim);
}

/* 8 of a block times its scale, exact. With its sign flipped a byte is the last one of a float from
 * 2^23 on, which costs less than a conversion. */
DEVICE void widen_8(const vec8 &u, f16 scale, float (&x)[8]) {
    const float d = widen(scale);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t byte = (u.word[i / 4] ^ 0x80808080u) >> i % 4 * 8 & 0xffu;
        x[i] = d * (bits_to_float(0x4b000000u | byte) - 8388736.0f);
    }
}

/* Two elements of q4 without the numbers of their block, and bytes of a block. */
struct q4 {
    uint8_t n;
};
#define Q4_BYTES 16u

/* 8 channels of a block, from `channel` on, a multiple of 8, of the bytes of which u has 8; `of`: the
 * minimum and the scale. A product of an integer and a scale is exact, so one rounding is left. */
DEVICE void widen_8(const vec8 &u, const f16 *of, uint32_t channel, float (&x)[8]) {
    const float m = widen(of[0]), d = widen(of[1]);
    const uint32_t shift = channel % Q8_BLOCK / Q4_BYTES * 4;
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i] = fmaf(d, (float)(u.word[i / 4] >> (i % 4 * 8 + shift) & 15u), m);
}

/* A cache of keys of q8 and values of q4; the types of its rows, and of those of others. */
struct k8v4 {
    int8_t q;
};
template <typename T> struct rows_of {
    typedef T key;
    typedef T value;
};
template <> struct rows_of<k8v4> {
    typedef q8 key;
    typedef q4 value;
};

/* Of rows of T: bytes of one; how many f16 a block has behind the rows. */
template <typename T, uint32_t DIM> constexpr uint32_t ROW_BYTES = DIM * (uint32_t)sizeof(T);
template <uint32_t DIM> constexpr uint32_t ROW_BYTES<q4, DIM> = CU_Q8_BLOCKS(DIM) * Q4_BYTES;
template <typename T> constexpr uint32_t BLOCK_NUMBERS = 0;
template <> constexpr uint32_t BLOCK_NUMBERS<q8> = 1;
template <> constexpr uint32_t BLOCK_NUMBERS<q4> = 2;

/* Whether rows of a cache of T have blocks. */
template <typename T>
constexpr bool HAS_BLOCKS = BLOCK_NUMBERS<typename rows_of<T>::key> > 0;

/* By bits: what makes machine code of PTX may contract x - x with the product that x is, and gives
 * that product's rounding error in the place of 0. */
DEVICE bool is_finite(float x) {
    return (float_to_bits(x) & 0x7fffffffu) < 0x7f800000u;
}

DEVICE bool is_nan(float x) {
    return (float_to_bits(x) & 0x7fffffffu) > 0x7f800000u;
}

/* ---- Warps and blocks ------------------------------------------------------------------------ */

DEVICE uint32_t lane_id() {
    return threadIdx.x % WARP;
}
DEVICE uint32_t warp_id() {
    return threadIdx.x / WARP;
}

/* The sum over the lanes of a warp, in one order; every lane gets it. */
DEVICE float warp_sum(float x) {
#pragma unroll
    for (uint32_t mask = WARP / 2; mask > 0; mask /= 2)
        x += shuffle_xor(x, mask);
    return x;
}
/* NaN is lost, as by fmaxf. */
DEVICE float warp_max(float x) {
#pragma unroll
    for (uint32_t mask = WARP / 2; mask > 0; mask /= 2)
        x = fmaxf(x, shuffle_xor(x, mask));
    return x;
}

/* The sum over a block of n_warps warps; `scratch` [n_warps] in shared memory is free again at the
 * next block_sync. Every thread gets it. */
DEVICE float block_sum(float x, float *scratch, uint32_t n_warps) {
    x = warp_sum(x);
    if (lane_id() == 0) scratch[warp_id()] = x;
    block_sync();
    float sum = scratch[0];
    for (uint32_t w = 1; w < n_warps; w++)
        sum += scratch[w];
    return sum;
}

/* Whether this block is the last of `blocks` blocks that call this with `ticket`; the last one
 * resets the ticket to 0. It may then read what all of them wrote before. `before` is shared
 * memory. One atomic of one thread is enough: in PTX's memory model causality order is transitive.
 * A block's writes come before its first thread's addition by the barrier; that addition releases
 * them at device scope, and the last block's, which reads what the others added, acquires them; the
 * second barrier hands that on to its other threads. */
DEVICE bool is_last_block(uint32_t *ticket, uint32_t blocks, uint32_t &before) {
    block_sync();
    if (threadIdx.x == 0) {
        before = atomic_add_acq_rel(ticket, 1);
        if (before == blocks - 1) *ticket = 0;
    }
    block_sync();
    return before == blocks - 1;
}

/* A grid of blocks in x steps over n items. 64 bits: no count wraps. */
#define FOR_EACH_ITEM(i, n)                                                                        \
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n);                    \
         i += (uint64_t)gridDim.x * blockDim.x)

/* ---- Order: -0 = +0, NaN before everything (key 0). ------------------------------------------ */

DEVICE uint32_t ordered_key(float x) {
    const uint32_t u = float_to_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0;
    if (u == 0x80000000u) return 0x80000000u;
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* The larger of two, NaN if one is. */
DEVICE float larger(float a, float b) {
    return a != a || a > b ? a : b;
}

/* ---- The cache ------------------------------------------------------------------------------- */

/* The channels of a head in a kernel for head dim DIM: a constant unless that is CU_ANY_DIM. */
template <uint32_t DIM> DEVICE uint32_t dim_of(const cu_kv &kv) {
    return DIM == CU_ANY_DIM ? kv.dim : DIM;
}

/* The page ids of a row's lane. */
DEVICE const int32_t *lane_pages(const cu_batch &b, uint32_t row, uint32_t head) {
    return b.table + b.row_seq[row] * b.seq_stride + head * b.head_stride;
}
/* The first slot that a (row, KV head) sees. */
DEVICE uint32_t first_seen(const cu_batch &b, uint64_t owner) {
    return b.first ? (uint32_t)b.first[owner] : 0;
}
/* The elements of a K row. */
template <typename T>
DEVICE const T *key_row(const cu_kv &kv, int32_t page, uint32_t head, uint32_t slot) {
    return (const T *)kv.rows + page * kv.page_stride + head * kv.head_stride +
           slot * kv.slot_stride;
}

/* A row of K or V, of q8 with the scales of its blocks, of q4 with pairs of a minimum and a scale;
 * at is NULL where there is none. */
template <typename T> struct kv_row { const T *at; };
template <> struct kv_row<q8> {
    const q8 *at;
    const f16 *scales;
};
template <> struct kv_row<q4> {
    const q4 *at;
    const f16 *scales;
};

/* Where rows of T have blocks: bytes of one, and how many f16 are behind the rows for it. */
template <typename T> DEVICE uint32_t row_length(const cu_kv &kv) {
    const uint32_t dim = (uint32_t)kv.slot_stride;
    return BLOCK_NUMBERS<T> == 2 ? q8_blocks(dim) * Q4_BYTES : dim;
}
template <typename T> DEVICE uint32_t row_numbers(const cu_kv &kv) {
    return q8_blocks((uint32_t)kv.slot_stride) * BLOCK_NUMBERS<T>;
}

/* The row of a page's slot, of K or, `from` = value_offset on, of V. */
template <typename T> struct kv_rows {
    DEVICE static kv_row<T> of(const cu_kv &kv, int32_t page, uint32_t head, uint32_t slot,
                               uint64_t from) {
        if constexpr (BLOCK_NUMBERS<T> == 0) {
            return kv_row<T>{key_row<T>(kv, page, head, slot) + from};
        } else { /* the numbers of blocks lie behind all rows of the page */
            const T *first = key_row<T>(kv, page, head, 0) + from;
            const uint32_t bytes = row_length<T>(kv);
            return kv_row<T>{first + slot * bytes, (const f16 *)(first + kv.page_size * bytes) +
                                                       slot * row_numbers<T>(kv)};
        }
    }
};
/* The K row and the V row of a page's slot in a cache of T. */
template <typename T>
DEVICE kv_row<typename rows_of<T>::key> key_of(const cu_kv &kv, int32_t page, uint32_t head,
                                               uint32_t slot) {
    return kv_rows<typename rows_of<T>::key>::of(kv, page, head, slot, 0);
}
template <typename T>
DEVICE kv_row<typename rows_of<T>::value> value_of(const cu_kv &kv, int32_t page, uint32_t head,
                                                   uint32_t slot) {
    typedef typename rows_of<T>::value V;
    if constexpr (BLOCK_NUMBERS<V> == 0)
        return kv_row<V>{(const V *)kv.values + page * kv.values_page_stride +
                         head * kv.values_head_stride + slot * kv.values_slot_stride};
    else
        return kv_rows<V>::of(kv, page, head, slot, kv.value_offset);
}
/* The row n slots further on in the page. */
template <typename T>
DEVICE kv_row<T> row_behind(const cu_kv &kv, const kv_row<T> &row, uint32_t n) {
    if constexpr (BLOCK_NUMBERS<T> == 0)
        return kv_row<T>{row.at + n * kv.slot_stride};
    else
        return kv_row<T>{row.at + n * row_length<T>(kv), row.scales + n * row_numbers<T>(kv)};
}

/* 8 channels of a row as f32, from a multiple of 8 on. */
template <typename T> DEVICE void load_8(const kv_row<T> &row, uint32_t channel, float (&x)[8]) {
    load_8(row.at + channel, x);
}
DEVICE void load_8(const kv_row<q8> &row, uint32_t channel, float (&x)[8]) {
    widen_8(load_vec8(row.at + channel), row.scales[channel / Q8_BLOCK], x);
}
DEVICE void load_8(const kv_row<q4> &row, uint32_t channel, float (&x)[8]) {
    const uint32_t block = channel / Q8_BLOCK;
    widen_8(load_vec8(row.at + block * Q4_BYTES + channel % Q4_BYTES), row.scales + 2 * block,
            channel, x);
}

/* The number of a type of rows: its tamis_dtype. */
template <typename T> constexpr uint32_t NUMBER_OF = 0;
template <> constexpr uint32_t NUMBER_OF<f16> = 1;
template <> constexpr uint32_t NUMBER_OF<bf16> = 2;
template <> constexpr uint32_t NUMBER_OF<q8> = 3;
template <> constexpr uint32_t NUMBER_OF<q4> = 5;

/* ---- Instances: X(C type, tag in names) and X(C type, tag, head dim) ------------------------- */

#define FOR_EACH_TYPE(X) X(float, f32) X(f16, f16) X(bf16, bf16)
/* Those of bounds, of rows, and of caches. */
#define FOR_EACH_BOUNDS_TYPE(X) FOR_EACH_TYPE(X) X(q8, q8)
#define FOR_EACH_ROW_TYPE(X)    FOR_EACH_BOUNDS_TYPE(X) X(q4, q4)
#define FOR_EACH_KV_TYPE(X)     FOR_EACH_ROW_TYPE(X) X(k8v4, k8v4)
/* Head dims with kernels of their own (CU_DIM_OF); the same, and CU_ANY_DIM. */
#ifdef ONLY_DIM_128 /* for who looks at code that all dims share */
#define FOR_EACH_OWN_DIM_OF(X, type, tag) X(type, tag, 128)
#define FOR_EACH_DIM_OF(X, type, tag)     X(type, tag, 128)
#else
#define FOR_EACH_OWN_DIM_OF(X, type, tag)                                                          \
    X(type, tag, 64) X(type, tag, 80) X(type, tag, 96) X(type, tag, 128) X(type, tag, 256)
#define FOR_EACH_DIM_OF(X, type, tag) FOR_EACH_OWN_DIM_OF(X, type, tag) X(type, tag, 512)
#endif
#define FOR_EACH_TYPE_AND_DIM(X)                                                                   \
    FOR_EACH_DIM_OF(X, float, f32) FOR_EACH_DIM_OF(X, f16, f16) FOR_EACH_DIM_OF(X, bf16, bf16)
#define FOR_EACH_BOUNDS_TYPE_AND_DIM(X) FOR_EACH_TYPE_AND_DIM(X) FOR_EACH_DIM_OF(X, q8, q8)
#define FOR_EACH_ROW_TYPE_AND_DIM(X)                                                               \
    FOR_EACH_BOUNDS_TYPE_AND_DIM(X) FOR_EACH_DIM_OF(X, q4, q4)
#define FOR_EACH_KV_TYPE_AND_DIM(X)                                                                \
    FOR_EACH_ROW_TYPE_AND_DIM(X) FOR_EACH_DIM_OF(X, k8v4, k8v4)

#endif
