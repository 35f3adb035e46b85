/* SPDX-License-Identifier: Apache-2.0 */
/* score_pages: score(page) = max, mean or sum over the group of Σ_d max(q_d·lo_d, q_d·hi_d).
 * contract: host/ops/; meaning: host/reference/score.c.
 * Work split: a work-group owns PAGES full pages of one (row, KV head), with CHUNKS work-items per
 * page and 16 channels per work-item; it computes all query heads of the KV head, so that bounds
 * are read once. */
#include "bounds.clh"
#ifndef PAGE_SIZE
#define PAGE_SIZE 16
#endif
#ifndef GROUP
#define GROUP 4 /* query heads per KV head */
#endif
#ifndef RULE
#define RULE 0 /* tamis_group_rule: 0 max, 1 mean, 2 sum */
#endif
#define CHUNKS (HEAD_DIM / 16)
#define PAGES  (WG_SIZE / CHUNKS)

__kernel GROUP_OF(WG_SIZE) void score_pages(BOUNDS_PARAMS, BATCH_PARAMS, MATRIX_PARAMS(q),
                                            REF_PARAMS(float, scores), uint score_stride,
                                            uint blocks) {
    __local float part[GROUP][WG_SIZE];
    const uint wi = (uint)get_local_id(0), head = (uint)get_group_id(1);
    const uint block = (uint)get_group_id(0) % blocks, row = (uint)get_group_id(0) / blocks;
    if (row >= n_rows) return;
    const uint lane_of_row = row * n_kv_heads + head;
    const uint full = (uint)visible[visible_offset + lane_of_row] / PAGE_SIZE;
    const uint from = FIRST_SEEN(lane_of_row) / PAGE_SIZE;
    const uint page = from + block * PAGES + wi / CHUNKS, channel = wi % CHUNKS * 16;
    const bool live = wi < PAGES * CHUNKS && page < full;

    /* 1. the work-item's 16 channels of the page's bounds, 2. and their part of every query head's
     * score */
    if (live) {
        const int id = table[table_offset + row_seq[row_seq_offset + row] * seq_stride +
                             head * head_stride + page];
        __global const bound_element *pair =
            bounds + bounds_offset + id * bounds_page_stride + head * bounds_head_stride;
        const float16 lo = load_bound16(pair, 0, channel), hi = load_bound16(pair, 1, channel);
        __global const float *query =
            q + q_offset + row * q_stride + (ulong)head * GROUP * HEAD_DIM + channel;
        for (uint g = 0; g < GROUP; g++) {
            const float16 x = vload16(0, query + g * HEAD_DIM);
            part[g][wi] = sum16(larger16(x * lo, x * hi));
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    /* 3. the scores, joined by the group's rule */
    if (live && channel == 0) {
        float score = RULE == 0 ? -INFINITY : 0.0f;
        for (uint g = 0; g < GROUP; g++) {
            float sum = 0.0f;
            for (uint c = 0; c < CHUNKS; c++)
                sum += part[g][wi + c];
            if (RULE == 0)
                score = isnan(sum) || sum > score ? sum : score;
            else
                score += sum;
        }
        scores[scores_offset + (ulong)lane_of_row * score_stride + page] =
            RULE == 1 ? score / GROUP : score;
    }
}
