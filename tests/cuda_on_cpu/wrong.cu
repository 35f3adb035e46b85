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

/* ---- Global memory --------------------------------------------------------------------------- */

typedef enum ticket_bug {
    NO_BUG,
    NO_FENCE,
    NO_FENCE_BEFORE,
    NO_FENCE_BEHIND,
    FENCE_OF_ANOTHER,
    NO_BARRIER,
    READS_FIRST,
    NOT_PUT_BACK
} ticket_bug;

/* Each block leaves 64 numbers, the last one adds them up: behind them a ticket, then 64 sums. */
DEVICE void add_up(const test_args &a, ticket_bug bug) {
    SHARED(uint32_t, last);
    const bool before = bug != NO_FENCE && bug != NO_FENCE_BEFORE && bug != FENCE_OF_ANOTHER;
    const bool behind = bug != NO_FENCE && bug != NO_FENCE_BEHIND;
    uint32_t *ticket = a.out + a.n * 64, sum = 0;
    a.out[blockIdx.x * 64 + threadIdx.x] = threadIdx.x;
    if (bug != NO_BARRIER) block_sync();
    if (bug == FENCE_OF_ANOTHER && threadIdx.x == 1) thread_fence();
    if (threadIdx.x == 0) {
        if (bug == READS_FIRST) sum = a.out[(blockIdx.x + 1) % a.n * 64];
        if (before) thread_fence();
        last = atomic_add(ticket, 1) == a.n - 1;
        if (behind) thread_fence();
        if (last && bug != NOT_PUT_BACK) *ticket = 0;
    }
    block_sync();
    for (uint32_t i = 0; last && i < a.n; i++)
        sum += a.out[i * 64 + threadIdx.x];
    if (last) ticket[1 + threadIdx.x] = sum;
}

#define ADDS_UP(name, bug)                                                                         \
    KERNEL(name, 64, test_args) {                                                                  \
        add_up(a, a.wrong ? bug : NO_BUG);                                                         \
    }
ADDS_UP(no_fence, NO_FENCE)
ADDS_UP(no_fence_before, NO_FENCE_BEFORE)
ADDS_UP(no_fence_behind, NO_FENCE_BEHIND)
ADDS_UP(fence_of_another, FENCE_OF_ANOTHER)
ADDS_UP(no_barrier, NO_BARRIER)
ADDS_UP(reads_first, READS_FIRST)
ADDS_UP(not_put_back, NOT_PUT_BACK)

/* Of one atomic the release, of the other the acquire. */
KERNEL(relaxed, 64, test_args) {
    uint32_t *ticket = a.out + a.n * 64;
    if (threadIdx.x > 0) return;
    a.out[blockIdx.x] = 1;
    const uint32_t before = a.wrong ? atomic_add(ticket, 1) : atomic_add_acq_rel(ticket, 1);
    if (before < a.n - 1) return;
    for (uint32_t i = 1; i < a.n; i++)
        a.out[a.n] += a.out[i];
    *ticket = 0;
}

/* A shuffle tells the warp who is last, and puts nothing in order. */
KERNEL(no_warp_barrier, 32, test_args) {
    uint32_t before = 0, *ticket = a.out + a.n * 64;
    a.out[blockIdx.x * 64 + threadIdx.x] = threadIdx.x;
    warp_sync();
    if (threadIdx.x == 0) before = atomic_add_acq_rel(ticket, 1);
    before = shuffle(before, 0);
    if (!a.wrong) warp_sync();
    if (before < a.n - 1) return;
    for (uint32_t i = 0; i < a.n; i++)
        a.out[a.n * 64 + 1 + threadIdx.x] = a.out[i * 64 + 31 - threadIdx.x];
    if (threadIdx.x == 0) *ticket = 0;
}

KERNEL(two_writers, 64, test_args) {
    a.out[(a.wrong ? blockIdx.x / 2 : blockIdx.x) * 64 + threadIdx.x] = 1;
}

/* Two blocks, the same half of a word. */
KERNEL(same_half, 64, test_args) {
    if (threadIdx.x == 0) ((uint16_t *)&*a.out)[a.wrong ? 1 : blockIdx.x] = 1;
}

/* All blocks read what one of them writes, before or behind. */
KERNEL(reader_and_writer, 64, test_args) {
    a.out[(1 + blockIdx.x) * 64 + threadIdx.x] = a.out[threadIdx.x];
    if (a.wrong && blockIdx.x == 3) a.out[threadIdx.x] = 1;
}

KERNEL(counter_is_read, 64, test_args) {
    if (threadIdx.x > 0) return;
    atomic_add(a.out, 1);
    if (a.wrong) a.out[1 + blockIdx.x] = a.out[0];
}

/* Within a block. */
KERNEL(block_race_global, 64, test_args) {
    uint32_t *mine = a.out + blockIdx.x * 64;
    mine[threadIdx.x] = threadIdx.x;
    if (!a.wrong) block_sync();
    a.out[a.n * 64 + 1 + blockIdx.x * 64 + threadIdx.x] = mine[63 - threadIdx.x];
}
