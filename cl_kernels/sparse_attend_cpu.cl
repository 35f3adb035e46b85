/* SPDX-License-Identifier: Apache-2.0 */
/* sparse_attend on a CPU: score_pages, select and attend in one launch.
 * contract: host/ops/. The same loops as the three CPU forms, so the same bits.
 * A lane is one (row, KV head): the full pages of which the row sees a slot are scored into `scores`, selected into `pages`, and
 * attended, at most SPLIT_PAGES of them.
 * Work split: an item of the queue is a lane. If there are few lanes for the cores (score_runs > 0),
 * the first items are runs of pages of a lane to be scored, `score_runs` a lane; the core that ends
 * the last of a lane selects. The items behind them are pieces of the lanes' lists to be attended;
 * the core that ends the last of a lane joins them. With WRITES rows are written first
 * (write_sparse_attend): what is scored are full pages, which no row's own slot is in. */
#include "attend_cpu.clh"
#include "score_cpu.clh"
#include "select_cpu.clh"
#include "write_cpu.clh"

enum { SCORED, SELECTED, ATTENDED }; /* a lane's counters */

/* run_pages: a multiple of SCORE_PAGES. */
typedef struct sparse_numbers {
    KV_NUMBERS;
    BOUNDS_NUMBERS;
    BATCH_NUMBERS;
    MATRIX_NUMBERS(q);
    OWN_NUMBERS
    ulong scores_at;
    uint score_stride, k, sinks, recent;
    ulong pages_at, count_at;
    uint capacity;
    logit_rule logit;
    MATRIX_NUMBERS(out);
    ulong lse_at;
    uint score_runs, run_pages;
    PIECE_NUMBERS;
    QUEUE_NUMBERS;
} sparse_numbers;

__kernel ONE_ITEM void sparse_attend(
    KV_MEMORY MEMORY(bound_element, bounds) BATCH_MEMORY MEMORY(float, q)
    OWN_MEMORY MEMORY(float, scores) MEMORY(int, pages) MEMORY(int, count) MEMORY(float, out)
    MEMORY(float, lse) MEMORY(float, states) MEMORY(int, queue) const sparse_numbers arg) {
    const uint n_items = arg.n_items, n_kv_heads = arg.n_kv_heads, pieces = arg.pieces;
    const uint score_runs = arg.score_runs, n_runs = arg.n_rows * n_kv_heads * score_runs;
    score_state scoring;
    attend_state s;
    OPEN_NUMBERED_KV();
    OPEN(bound_element, bounds);
    OPEN_BATCH();
    OPEN(float, q);
#if WRITES
    OPEN_OWN();
#endif
    OPEN(float, scores);
    OPEN(int, pages);
    OPEN(int, count);
    OPEN(float, out);
    OPEN(float, lse);
    OPEN(float, states);
    OPEN(int, queue);
    FOR_EACH_QUEUED(item) {
        const bool whole = score_runs == 0, scored = whole || item < n_runs;
        const uint at = item < n_runs ? item : item - n_runs;
        const uint parts = item < n_runs ? score_runs : pieces, part = at % parts;
        const uint owner = at / parts, head = owner % n_kv_heads, row = owner / n_kv_heads;
        const int seen = visible[owner];
        const int hidden = HIDING ? (int)FIRST_SEEN_OF(owner) : 0;
        __global int *counters = COUNTERS_OF(owner);
        __global const int *ids = IDS_OF(row, head);
        __global const float *query = q + row * arg.q_stride + (ulong)head * GROUP * HEAD_DIM;
        __global int *list = pages + (ulong)owner * arg.capacity;
#if WRITES
        TURN_QUERIES(row, head);
        query = OWN_HEADS;
#endif

        if (scored) {
            /* 1. scores */
            const int full = seen / PAGE_SIZE;
            const int from = hidden / PAGE_SIZE + (whole ? 0 : (int)(part * arg.run_pages));
            __global float *score = scores + (ulong)owner * arg.score_stride;
            score_run(&scoring, query, bounds + head * arg.bounds_head_stride,
                      arg.bounds_page_stride, ids, from,
                      whole ? full : min(full, from + (int)arg.run_pages), score);
            if (!whole && !is_last(counters + SCORED, score_runs)) continue;

            /* 2. the list */
            count[owner] = select_run(score, hidden, seen, PAGE_SIZE, arg.k, arg.sinks, arg.recent,
                                      list);
            if (!whole) {
                tell(counters + SELECTED);
                continue;
            }
        } else
            wait_for(counters + SELECTED);

        /* 3. attention */
        const int entries = count[owner], first = whole ? 0 : part * PIECE_PAGES;
        const int n = max(0, min(entries - first, whole ? SPLIT_PAGES : (int)PIECE_PAGES));
        for (int i = 0; i < n; i++) {
            const int ordinal = list[first + i];
            attend_take(&s, i, ordinal, ids[ordinal]);
        }
#if WRITES
        if (n && first + n == entries) WRITE_OWN(row, head);
#endif
        const int last = n ? min(PAGE_SIZE, seen - list[first + n - 1] * PAGE_SIZE) : 0;
        const page_rows keys = {kv + head * arg.kv_head_stride, arg.page_stride, arg.slot_stride};
        __global float *kept = KEPT_OF(owner);
        const attend_row of = {.q = query,
                               .first_head = head * GROUP,
                               .n_heads = n_kv_heads * GROUP,
                               .hidden = hidden,
                               .seen = seen};
        attend_begin(&s, of, arg.logit);
        attend_pages(&s, keys, VALUES_BESIDE(keys, head), 0, n, last, arg.logit,
                     kept ? kept + part * arg.piece_segments * STATE : kept, arg.piece_segments);
        if (!whole) {
            if (!is_last(counters + ATTENDED, pieces)) continue;
            if (kept) attend_join_kept(&s, kept, pieces * arg.piece_segments);
            for (int i = 0; i < COUNTERS; i++) counters[i] = 0;
        }
        attend_end(&s, out + row * arg.out_stride + (ulong)head * GROUP * HEAD_DIM,
                   lse ? lse + (ulong)owner * GROUP : lse);
    }
    leave_queue(queue, 0);
}
