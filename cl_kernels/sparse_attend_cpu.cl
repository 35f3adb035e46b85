/* SPDX-License-Identifier: Apache-2.0 */
/* sparse_attend on a CPU: score_pages, select and attend in one launch.
 * contract: host/ops/. The same loops as the three CPU forms, so the same bits.
 * A lane is one (row, KV head): the full pages of which the row sees a slot are scored into `scores`, selected into `pages`, and
 * attended, at most SPLIT_PAGES of them.
 * Work split: an item of the queue is a lane. If there are few lanes for the cores (score_runs > 0),
 * the first items are runs of pages of a lane to be scored, `score_runs` a lane; the core that ends
 * the last of a lane selects. The items behind them are pieces of the lanes' lists to be attended;
 * the core that ends the last of a lane joins them. */
#include "attend_cpu.clh"
#include "score_cpu.clh"
#include "select_cpu.clh"

enum { SCORED, SELECTED, ATTENDED }; /* a lane's counters */

/* run_pages: a multiple of SCORE_PAGES. */
__kernel ONE_ITEM void sparse_attend(
    KV_PARAMS, BOUNDS_PARAMS, BATCH_PARAMS, MATRIX_PARAMS(q), REF_PARAMS(float, scores),
    uint score_stride, uint k, uint sinks, uint recent, REF_PARAMS(int, pages),
    REF_PARAMS(int, count), uint capacity, LOGIT_PARAMS, MATRIX_PARAMS(out),
    REF_PARAMS(float, lse), uint score_runs, uint run_pages, PIECE_PARAMS, QUEUE_PARAMS) {
    score_state scoring;
    attend_state s;
    const uint n_runs = n_rows * n_kv_heads * score_runs;
    FOR_EACH_QUEUED(item) {
        const bool whole = score_runs == 0, scored = whole || item < n_runs;
        const uint at = item < n_runs ? item : item - n_runs;
        const uint parts = item < n_runs ? score_runs : pieces, part = at % parts;
        const uint owner = at / parts, head = owner % n_kv_heads, row = owner / n_kv_heads;
        const int seen = visible[visible_offset + owner];
        const int hidden = HIDING ? (int)FIRST_SEEN(owner) : 0;
        __global int *counters = COUNTERS_OF(owner);
        __global const int *ids = table + table_offset +
                                  row_seq[row_seq_offset + row] * seq_stride + head * head_stride;
        __global const float *query =
            q + q_offset + row * q_stride + (ulong)head * GROUP * HEAD_DIM;
        __global int *list = pages + pages_offset + (ulong)owner * capacity;

        if (scored) {
            /* 1. scores */
            const int full = seen / PAGE_SIZE;
            const int from = hidden / PAGE_SIZE + (whole ? 0 : (int)(part * run_pages));
            __global float *score = scores + scores_offset + (ulong)owner * score_stride;
            score_run(&scoring, query, bounds + bounds_offset + head * bounds_head_stride,
                      bounds_page_stride, ids, from,
                      whole ? full : min(full, from + (int)run_pages), score);
            if (!whole && !is_last(counters + SCORED, score_runs)) continue;

            /* 2. the list */
            count[count_offset + owner] =
                select_run(score, hidden, seen, PAGE_SIZE, k, sinks, recent, list);
            if (!whole) {
                tell(counters + SELECTED);
                continue;
            }
        } else
            wait_for(counters + SELECTED);

        /* 3. attention */
        const int entries = count[count_offset + owner], first = whole ? 0 : part * PIECE_PAGES;
        const int n = max(0, min(entries - first, whole ? SPLIT_PAGES : (int)PIECE_PAGES));
        for (int i = 0; i < n; i++) {
            const int ordinal = list[first + i];
            attend_take(&s, i, ordinal, ids[ordinal]);
        }
        const int last = n ? min(PAGE_SIZE, seen - list[first + n - 1] * PAGE_SIZE) : 0;
        const page_rows keys = {kv + kv_offset + head * kv_head_stride, page_stride, slot_stride};
        __global float *kept = KEPT_OF(owner);
        const attend_row of = {.q = query,
                               .first_head = head * GROUP,
                               .n_heads = n_kv_heads * GROUP,
                               .hidden = hidden,
                               .seen = seen};
        attend_begin(&s, of, LOGIT_RULE);
        attend_pages(&s, keys, value_offset, 0, n, last, LOGIT_RULE,
                     kept ? kept + part * piece_segments * STATE : kept, piece_segments);
        if (!whole) {
            if (!is_last(counters + ATTENDED, pieces)) continue;
            if (kept) attend_join_kept(&s, kept, pieces * piece_segments);
            for (int i = 0; i < COUNTERS; i++) counters[i] = 0;
        }
        attend_end(&s, out + out_offset + row * out_stride + (ulong)head * GROUP * HEAD_DIM,
                   lse ? lse + lse_offset + (ulong)owner * GROUP : lse);
    }
    leave_queue(queue, 0);
}
