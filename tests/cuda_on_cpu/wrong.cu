/* SPDX-License-Identifier: Apache-2.0 */
/* Test kernels with one planted bug each, which `wrong` switches on. */
#include "common.cuh"

#include "tests/cuda_on_cpu/test_args.h"

struct kept_words {
    uint32_t word[64];
};

KERNEL(block_race, 64, test_args) {
    SHARED(kept_words, kept);
    kept.word[threadIdx.x] = threadIdx.x;
    if (!a.wrong) block_sync();
    a.out[threadIdx.x] = kept.word[63 - threadIdx.x];
}

/* A read and then a write: a slow thread may read the new value. */
KERNEL(late_read_race, 64, test_args) {
    SHARED(kept_words, kept);
    kept.word[threadIdx.x] = threadIdx.x;
    block_sync();
    a.out[threadIdx.x] = kept.word[min(threadIdx.x + 1, 63u)];
    if (!a.wrong) block_sync();
    kept.word[threadIdx.x] = 0;
}

/* A barrier of the warp does not help between warps. */
KERNEL(two_warps_race, 64, test_args) {
    SHARED(kept_words, kept);
    kept.word[threadIdx.x] = threadIdx.x;
    if (a.wrong)
        warp_sync();
    else
        block_sync();
    a.out[threadIdx.x] = kept.word[(threadIdx.x + WARP) % 64];
}

/* A shuffle does not put memory in order. */
KERNEL(warp_race, 32, test_args) {
    SHARED(kept_words, kept);
    kept.word[threadIdx.x] = threadIdx.x;
    const uint32_t x = shuffle(threadIdx.x, 0);
    if (!a.wrong) warp_sync();
    a.out[threadIdx.x] = x + kept.word[31 - threadIdx.x];
}

KERNEL(byte_race, 32, test_args) {
    SHARED(kept_words, kept);
    uint8_t *bytes = (uint8_t *)kept.word;
    bytes[a.wrong ? threadIdx.x / 2 : threadIdx.x] = 1;
}

KERNEL(barrier_diverges, 64, test_args) {
    if (a.wrong && threadIdx.x % 2)
        block_sync();
    else
        block_sync();
}

KERNEL(shuffle_diverges, 32, test_args) {
    uint32_t x = threadIdx.x;
    if (!a.wrong || threadIdx.x < 16) x = shuffle_xor(x, 1);
    a.out[threadIdx.x] = x;
}

/* Lanes at a shuffle, and others at the block's barrier. */
KERNEL(warp_waits_for_block, 32, test_args) {
    if (!a.wrong || threadIdx.x < 16) a.out[threadIdx.x] = shuffle_xor(threadIdx.x, 1);
    block_sync();
}

KERNEL(reads, 32, test_args) {
    if (threadIdx.x == 0) a.out[0] = a.in[a.wrong ? a.n : a.n - 1];
}

KERNEL(writes, 32, test_args) {
    if (threadIdx.x == 0) a.out[a.wrong ? a.n : a.n - 1] = 7;
}

KERNEL(reads_before, 32, test_args) {
    if (threadIdx.x == 0) a.out[0] = *(a.in - (a.wrong ? 1 : 0));
}

KERNEL(reads_16, 32, test_args) {
    if (threadIdx.x == 0) a.out[0] = load_16(a.in + (a.wrong ? 1 : 4)).word[0];
}

KERNEL(shared_behind, 32, test_args) {
    DYNAMIC_SHARED(uint32_t, kept);
    kept[a.wrong ? threadIdx.x + 1 : threadIdx.x] = 1; /* the launch gives 32 words */
}

/* 16 bytes at a time, of a type that is aligned to 4. */
KERNEL(shared_misaligned, 1, test_args) {
    SHARED(kept_words, kept);
    DYNAMIC_SHARED(uint32_t, aligned);
    store_16(a.wrong ? kept.word : aligned, vec16{{1, 2, 3, 4}});
}

KERNEL(reads_early, 32, test_args) {
    DYNAMIC_SHARED(vec16, kept);
    copy_async_16(kept + threadIdx.x, (const vec16 *)a.in + threadIdx.x, true);
    copy_async_commit();
    if (!a.wrong) copy_async_wait<0>();
    store_16((vec16 *)a.out + threadIdx.x, load_16(kept + threadIdx.x));
    copy_async_wait<0>();
}

KERNEL(never_waits, 32, test_args) {
    DYNAMIC_SHARED(vec16, kept);
    copy_async_16(kept + threadIdx.x, (const vec16 *)a.in + threadIdx.x, true);
    if (!a.wrong) copy_async_commit();
    copy_async_wait<0>();
}
