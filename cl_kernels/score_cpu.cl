/* SPDX-License-Identifier: Apache-2.0 */
/* score_pages on a CPU: score(page) = max, mean or sum over the group of
 * Σ_d max(q_d·lo_d, q_d·hi_d).
 * contract: host/ops/; meaning: host/reference/score.c; the loops: score_cpu.clh.
 * Work split: a work-item owns a run of RUN_PAGES full pages of one (row, KV head) and serves all
 * query heads of the KV head, so that bounds are read once. */
#include "score_cpu.clh"

#ifndef RUN_PAGES
#define RUN_PAGES 256
#endif

__kernel ONE_ITEM void score_pages(BOUNDS_PARAMS, BATCH_PARAMS, MATRIX_PARAMS(q),
                                      REF_PARAMS(float, scores), uint score_stride) {
    score_state s;
    const uint head = (uint)get_group_id(0) % n_kv_heads, run = (uint)get_group_id(0) / n_kv_heads;
    const uint row = (uint)get_group_id(1);
    if (row >= n_rows) return;
    const uint owner = row * n_kv_heads + head;
    const int full = visible[visible_offset + owner] / PAGE_SIZE;
    const int first = (int)(FIRST_SEEN(owner) / PAGE_SIZE + run * RUN_PAGES);
    table += table_offset + row_seq[row_seq_offset + row] * seq_stride + head * head_stride;
    score_run(&s, q + q_offset + row * q_stride + (ulong)head * GROUP * HEAD_DIM,
              bounds + bounds_offset + head * bounds_head_stride, bounds_page_stride,
              table, first, min(full, first + RUN_PAGES),
              scores + scores_offset + (ulong)owner * score_stride);
}
