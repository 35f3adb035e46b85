/* SPDX-License-Identifier: Apache-2.0 */
/* sparse_attend, its first launch: score_pages and select. The second is attend over the lists.
 * contract: host/ops/. The same functions as score.cu and select.cu, so the same bits.
 * Work split: `blocks` blocks share the full pages of one (row, KV head) as in score.cu; the last
 * of them to finish selects. The result does not depend on which one that is. */
#include "score.cuh"
#include "select.cuh"

typedef struct score_select_shared {
    select_shared select;
    uint32_t before; /* blocks that finished before this one */
} score_select_shared;
static_assert(sizeof(score_select_shared) + 512 <= CU_SELECT_SHARED,
              "two blocks, with 1 KiB of each that is the device's, share a multiprocessor");

/* Dynamic shared memory holds the queries, then the keys. */
#define SCORE_SELECT(type, tag, dim)                                                               \
    KERNEL_TWICE(score_select_##tag##_d##dim, CU_SCORE_THREADS, cu_score_select_args) {            \
        SHARED(score_select_shared, shared);                                                       \
        DYNAMIC_SHARED(uint32_t, dynamic);                                                         \
        grid_release(); /* attend may take the places of blocks that are done */                   \
        const uint32_t blocks = a.score.blocks, row = blockIdx.x / blocks;                         \
        if (row >= a.score.batch.n_rows) return;                                                   \
        const uint32_t owner = row * a.score.batch.n_kv_heads + blockIdx.y;                        \
        const uint32_t seen = (uint32_t)a.score.batch.visible[owner];                              \
        score_pages_of<type, dim>(a.score, row, blockIdx.y, seen, blockIdx.x % blocks,             \
                                  (float *)dynamic);                                               \
        if (is_last_block(a.tickets + owner, blocks, shared.before))                               \
            select_of(a.select, owner, seen, shared.select, dynamic);                              \
    }
FOR_EACH_BOUNDS_TYPE_AND_DIM(SCORE_SELECT)
