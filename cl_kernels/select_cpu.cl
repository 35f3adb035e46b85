/* SPDX-License-Identifier: Apache-2.0 */
/* select on a CPU: exact deterministic top-k with protected entries.
 * contract: host/ops/; meaning: host/reference/select.c; the search: select_cpu.clh.
 * Work split: a work-item owns one (row, KV head). */
#include "select_cpu.clh"

/* scores may be NULL. */
__kernel ONE_ITEM void select_entries(BATCH_PARAMS, uint granularity, uint k, uint sinks,
                                         uint recent, REF_PARAMS(const float, scores),
                                         uint score_stride, REF_PARAMS(int, pages),
                                         REF_PARAMS(int, count), uint capacity) {
    const uint owner = (uint)get_group_id(0);
    if (owner >= n_rows * n_kv_heads) return;
    scores = scores ? scores + scores_offset + (ulong)owner * score_stride : scores;
    count[count_offset + owner] =
        select_run(scores, (int)FIRST_SEEN(owner), visible[visible_offset + owner], granularity, k, sinks, recent,
                   pages + pages_offset + (ulong)owner * capacity);
}
