/* SPDX-License-Identifier: Apache-2.0 */
/* argmax: index of the largest of each row; ties the lowest index, NaN after everything.
 * contract: host/ops/; meaning: host/reference/argmax.c.
 * Work split: a block owns a row; its threads take elements in turn; then the best of threads and
 * of warps are compared. Rows are few and long (a vocabulary), so the block is the largest
 * possible. */
#include "common.cuh"

#define THREADS 1024u
#define WARPS   (THREADS / WARP)
#define AT_ONCE 8u /* elements that a thread loads at once */

struct entry {
    uint32_t key, index; /* ordered_key and place */
};
/* Comes after every element of a row. */
DEVICE entry no_entry() {
    return entry{0, 0xffffffffu};
}

struct argmax_shared {
    entry best[WARPS];
};

DEVICE entry better(entry x, entry y) {
    return x.key > y.key || (x.key == y.key && x.index < y.index) ? x : y;
}

DEVICE entry warp_best(entry best) {
#pragma unroll
    for (uint32_t mask = WARP / 2; mask > 0; mask /= 2) {
        const uint32_t key = shuffle_xor(best.key, mask), index = shuffle_xor(best.index, mask);
        best = better(best, entry{key, index});
    }
    return best;
}

KERNEL(argmax_rows, THREADS, cu_argmax_args) {
    SHARED(argmax_shared, shared);
    const uint32_t row = blockIdx.x;
    if (row >= a.n_rows) return;
    const float *from = a.x.at + row * a.x.stride;
    /* 1. best of each thread */
    entry best = no_entry();
    for (uint32_t i = threadIdx.x; i < a.dim; i += AT_ONCE * THREADS) {
        float x[AT_ONCE];
#pragma unroll
        for (uint32_t j = 0; j < AT_ONCE; j++)
            x[j] = from[min(i + j * THREADS, a.dim - 1)];
#pragma unroll
        for (uint32_t j = 0; j < AT_ONCE; j++)
            if (i + j * THREADS < a.dim)
                best = better(best, entry{ordered_key(x[j]), i + j * THREADS});
    }
    /* 2. of each warp, 3. of all */
    best = warp_best(best);
    if (lane_id() == 0) shared.best[warp_id()] = best;
    block_sync();
    if (warp_id() != 0) return;
    best = warp_best(lane_id() < WARPS ? shared.best[lane_id()] : no_entry());
    if (lane_id() == 0) a.out[row] = (int32_t)best.index;
}
