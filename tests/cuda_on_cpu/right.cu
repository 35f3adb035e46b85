/* SPDX-License-Identifier: Apache-2.0 */
/* Test kernels that use each operation as it is meant. */
#include "common.cuh"

#include "tests/cuda_on_cpu/test_args.h"

/* out[thread]: the value of the next lane, of the lane 3 across, and who is odd. */
KERNEL(exchange, 64, test_args) {
    const uint32_t x = a.in[threadIdx.x];
    a.out[threadIdx.x] = shuffle(x, (lane_id() + 1) % WARP);
    a.out[64 + threadIdx.x] = shuffle_xor(x, 3u);
    a.out[128 + threadIdx.x] = warp_ballot(x & 1u);
}

KERNEL(sums, 96, test_args) {
    struct scratch_of {
        float x[3];
    };
    SHARED(scratch_of, scratch);
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    const float sum = block_sum((float)a.in[i], scratch.x, 3);
    if (threadIdx.x == 0) a.out[blockIdx.x] = (uint32_t)sum;
}

/* Backwards through dynamic shared memory. What nobody wrote there is not 0. */
KERNEL(backwards, 1024, test_args) {
    DYNAMIC_SHARED(uint32_t, kept);
    if (threadIdx.x < a.n) kept[threadIdx.x] = a.in[threadIdx.x];
    block_sync();
    a.out[threadIdx.x] = kept[blockDim.x - 1 - threadIdx.x];
}

/* Two batches; the first is there when one is still under way. The last lane copies zeros. */
KERNEL(copies, 32, test_args) {
    DYNAMIC_SHARED(vec16, kept);
    const vec16 *from = (const vec16 *)a.in;
    vec16 *to = (vec16 *)a.out;
    const uint32_t i = threadIdx.x;
    copy_async_16(kept + i, from + i, true);
    copy_async_commit();
    copy_async_16(kept + 32 + i, from + 32 + i, i != 31);
    copy_async_commit();
    copy_async_wait<1>();
    store_16(to + i, load_16(kept + i));
    copy_async_wait<0>();
    warp_sync();
    store_16(to + 32 + i, load_16(kept + 32 + (i + 1) % 32));
}

/* out[16][8] = in[16][16]·in[16][8] behind it, f16 or bf16, on top of 1. */
template <typename T> DEVICE void multiply(const test_args &a) {
    DYNAMIC_SHARED(vec16, kept);
    const uint32_t lane = threadIdx.x;
    store_16(kept + lane, load_16((const vec16 *)a.in + lane)); /* A: two of each row */
    if (lane < 16) store_16(kept + 32 + lane, load_16((const vec16 *)a.in + 32 + lane));
    warp_sync();
    uint32_t u[4], v[4];
    load_matrix_x4(u, kept + 2 * (lane % 16) + lane / 16);
    load_matrix_x4_trans(v, kept + 32 + lane % 16);
    float d[4] = {1, 1, 1, 1};
    mma(d, u, v[0], v[1], T());
    for (uint32_t i = 0; i < 4; i++)
        a.out[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = float_to_bits(d[i]);
}
KERNEL(multiply_f16, 32, test_args) {
    multiply<f16>(a);
}
KERNEL(multiply_bf16, 32, test_args) {
    multiply<bf16>(a);
}

/* The last block adds up what all of them left; out[n]: the counter, out[n + 1]: the sum. */
KERNEL(last_block, 1, test_args) {
    a.out[blockIdx.x] = blockIdx.x + 1;
    thread_fence();
    if (atomic_add(a.out + a.n, 1) + 1 < a.n) return;
    thread_fence();
    uint32_t sum = 0;
    for (uint32_t i = 0; i < a.n; i++)
        sum += a.out[i];
    a.out[a.n + 1] = sum;
}

/* The same by all threads of a block, and with one atomic in the place of fences. The sum comes at
 * out[n * 64 + 1], behind the ticket. */
KERNEL(last_adds, 64, test_args) {
    SHARED(uint32_t, last);
    uint32_t *ticket = a.out + a.n * 64;
    a.out[blockIdx.x * 64 + threadIdx.x] = blockIdx.x;
    block_sync();
    if (threadIdx.x == 0) {
        last = atomic_add_acq_rel(ticket, 1) == a.n - 1;
        if (last) *ticket = 0;
    }
    block_sync();
    for (uint32_t i = threadIdx.x; last && i < a.n * 64; i += 64)
        atomic_add(ticket + 1, a.out[i]);
}

/* Blocks meet in pairs, then the last ones of the pairs meet. The last of all reads what it knows of
 * by way of another block alone. n / 2 tickets, then one, then the sum. */
KERNEL(two_meetings, 1, test_args) {
    uint32_t *pair = a.out + a.n + blockIdx.x / 2, *all = a.out + a.n + a.n / 2;
    uint32_t sum = 0;
    a.out[blockIdx.x] = blockIdx.x;
    if (atomic_add_acq_rel(pair, 1) == 0) return;
    *pair = 0;
    if (atomic_add_acq_rel(all, 1) < a.n / 2 - 1) return;
    *all = 0;
    for (uint32_t i = 0; i < a.n; i++)
        sum += a.out[i];
    all[1] = sum;
}

/* Two blocks write the halves of a word. */
KERNEL(halves, 1, test_args) {
    ((uint16_t *)&*a.out)[blockIdx.x] = (uint16_t)blockIdx.x;
}

/* A half is the last thread's before the barrier, and the first one's behind it, who then needs no
 * other for its ticket. n words, the ticket, the sum. */
KERNEL(half_again, 64, test_args) {
    uint16_t *half = (uint16_t *)(a.out + blockIdx.x);
    if (threadIdx.x == 63) half[0] = half[1] = 7;
    block_sync();
    if (threadIdx.x > 0) return;
    half[1] = (uint16_t)(half[1] - 6);
    if (atomic_add_acq_rel(a.out + a.n, 1) < a.n - 1) return;
    a.out[a.n] = a.out[a.n + 1] = 0;
    for (uint32_t i = 0; i < a.n; i++)
        a.out[a.n + 1] += a.out[i] >> 16;
}

KERNEL(add_one, 32, test_args) {
    FOR_EACH_ITEM(i, a.n) a.out[i] += 1;
}

/* Halves and bytes of one word belong to different threads: no race. */
KERNEL(small_pieces, 32, test_args) {
    struct pieces {
        uint16_t half[32];
        uint8_t byte[32];
    };
    SHARED(pieces, kept);
    kept.half[threadIdx.x] = (uint16_t)(3 * threadIdx.x);
    kept.byte[threadIdx.x] = (uint8_t)threadIdx.x;
    block_sync();
    const uint32_t other = (threadIdx.x + 1) % 32;
    a.out[threadIdx.x] = kept.half[other] + kept.byte[other];
}
