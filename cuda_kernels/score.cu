/* SPDX-License-Identifier: Apache-2.0 */
/* score_pages: score(page) = max, mean or sum over the group of Σ_d max(q_d·lo_d, q_d·hi_d).
 * contract: host/ops/; meaning: host/reference/score.c; the numbered steps are in score.cuh.
 * Work split: `blocks` blocks share the full pages of one (row, KV head), their warps take turns of
 * CU_SCORE_TURN pages, with CU_ROW_LANES warp lanes per page and 8 channels per warp lane. */
#include "score.cuh"

#define SCORE_PAGES(type, tag, dim)                                                                \
    KERNEL_TWICE(score_pages_##tag##_d##dim, CU_SCORE_THREADS, cu_score_args) {                    \
        DYNAMIC_SHARED(float, shared);                                                             \
        const uint32_t row = blockIdx.x / a.blocks;                                                \
        if (row >= a.batch.n_rows) return;                                                         \
        const uint32_t seen = (uint32_t)a.batch.visible[row * a.batch.n_kv_heads + blockIdx.y];    \
        score_pages_of<type, dim>(a, row, blockIdx.y, seen, blockIdx.x % a.blocks, shared);        \
    }
FOR_EACH_BOUNDS_TYPE_AND_DIM(SCORE_PAGES)
