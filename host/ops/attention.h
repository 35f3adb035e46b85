/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of attend, of sparse_attend and of both behind a write, of merge and of sink. */
#ifndef TMS_OPS_ATTENTION_H
#define TMS_OPS_ATTENTION_H

#include "host/ops/rows.h"
#include "host/ops/selection.h"

/* attend: softmax attention of query rows over their lanes' slots.
 * Row r of KV head h sees the slots first[r][h] <= s < visible[r][h] that lie in the pages of its
 * list (all pages if lists are absent).
 *   logit by tms_logit;  out = Σ softmax(logit)·v, lse = natural log of Σ exp(logit).
 *   q, out     [n_rows][n_heads][head_dim] f32; query head = h*group + g; they do not overlap
 *   lse        f32 [n_rows][n_heads], may be absent where there are no sinks
 *   logits     f32 [n_rows][n_heads][logit_stride], may be absent; only in launches with one row
 *              per tile: the logit of every slot that the row sees, NaN if it is not finite.
 *              Others may become -inf or stay as they are
 * A row that sees nothing: out = 0, lse = -inf. Keys are summed in splits that depend only on the
 * row's own list and are merged in order. So within one form the result of a row depends only on
 * the row and on whether it is alone in its tile, not on the other rows of the launch. There is one
 * exception: its last bits may change if another row of its tile sees a V that is not finite. A NaN
 * or infinite logit of a slot that the row sees gives NaN out for that (row, head). Weighted values
 * are summed in fp32 before they are normalized: if |v| exceeds FLT_MAX divided by the number of
 * slots seen, a sum may overflow to infinity or NaN.
 * scratch: its size follows from n_rows, n_heads, n_kv_heads, head_dim, page_size, dtype,
 * max_tile_rows, max_pages and whether there are lists, and is enough for launches of smaller
 * numbers of rows and pages; contents need not be kept.
 * Bytes: per (row, KV head) the seen pages' K and V once, not once per query head; for a tile of
 * rows once. Of the entries before the one that holds a row's first slot, in a tile the first of
 * its rows', no more than 64 slots are read.
 * Tolerance, with T = max over the seen slots of Σ_d |scale·q_d·k_d|, whose rounding (8 units of
 * fp32) remains in a logit where the terms cancel:
 *   |out - ref| <= max|v| * (2e-6 * (1 + max|logit|) + 1e-6 * T)
 * for f32 accumulation of up to 1M keys in blocks; K, V are read exactly. Minima of q4 rows may be
 * multiplied and weighed apart from what is above them. So of keys of q4 |k_d| counts as |m| + d·n,
 * and max|v| of values of q4 is 2^-24 at least: elements of 0 may have that minimum;
 *   lse: 2e-6 * (1 + |lse| + max|logit|) + 5e-7 * T;
 *   logits: 1e-6 * T. */
typedef struct tms_attend {
    tms_kv kv;
    tms_batch batch;
    tms_lists lists;    /* pages.mem == NULL: all pages */
    uint32_t max_pages; /* no list is longer; without lists ceil(max_visible / page_size) */
    tms_matrix q, out;
    tms_ref lse;
    tms_logit logit;
    tms_ref scratch;
    tms_ref logits;
    uint64_t logit_stride; /* elements, >= max_visible */
} tms_attend;

/* sparse_attend: score_pages, select and attend in fewer launches than three, where that is faster.
 * Fields as in those ops: select.batch, score.batch and attend.batch are the same; attend.lists is
 * select.lists and is written too, equal bit for bit to the lists that select gives for the fused
 * scores. A backend may offer it for some shapes only: sparse_attend_refusal says why not, and the
 * caller then runs the three ops. The result is that of the three ops, except where scores that
 * differ within their tolerance change the selected pages. If `halfway` is not NULL and attend is a
 * launch of its own, *halfway gets a timed mark before it; the caller sets it to NULL before and
 * frees it. */
typedef struct tms_sparse_attend {
    tms_score_pages score;
    tms_select select;
    tms_attend attend;
    tms_event **halfway;
} tms_sparse_attend;

/* write_attend: write_rotated, then attend of its rows, in one launch; write_sparse_attend: the same
 * with sparse_attend. attend.q is write.rotation.q. Each row is the only one of its sequence. A slot
 * that is not skipped is the last one that its row sees, in a page that only this lane has and that is
 * in the row's list; under write_sparse_attend it does not fill the page. No row of `out` shares an
 * element with q, k or v. Unlike write_rotated they leave q and k as they are. A backend may offer them
 * for some cases only: the refusals say why not, and the caller then runs the ops one by one, whose
 * result is this, bit for bit. */
typedef struct tms_write_attend {
    tms_write_rotated write;
    tms_attend attend;
} tms_write_attend;
typedef struct tms_write_sparse_attend {
    tms_write_rotated write;
    tms_sparse_attend sparse;
} tms_write_sparse_attend;

/* merge: states of the same rows into one. lse = log Σ exp(lse_i); out = Σ exp(lse_i - lse)·out_i.
 *   outs  f32 [n_parts][n][dim]; lses f32 [n_parts][n];
 *   out   f32 [n][dim]; lse f32 [n], may be absent
 * Parts with lse -inf add nothing, whatever their out holds; if all are -inf, out is 0 and lse
 * -inf. If only one part is not, it is copied bit for bit. Merged in part order. Tolerance: 1e-6 *
 * max|out_i|, lse 1e-6 * (1 + |lse|). */
typedef struct tms_merge {
    uint32_t n_parts, n, dim;
    tms_ref outs, lses, out, lse;
} tms_merge;

/* sink: adds a logit that has no value to the softmax of each query head, in place:
 *   lse' = ln(exp(lse) + exp(sink)),  out' = out·exp(lse - lse').
 *   out   [n_rows][n_heads][dim] f32; lse f32 [n_rows][n_heads]; sinks f32 [n_heads], finite or -inf
 * It is what merge gives with a state of out 0 and lse sink. A sink of -inf changes nothing; a state
 * with lse -inf, which is 0, gets lse sink. A NaN stays. tms_run_attend and tms_run_sparse_attend
 * launch it behind the backend's op where logit.sinks is there, so that no form of attend knows sinks.
 * Tolerance: |out| * (1e-6 + 2e-7 * (|lse| + |sink|)), lse 1e-6 * (1 + |lse'|). With sinks attend's out
 * may be off by max|v| times the tolerance of lse, besides. */
typedef struct tms_sink {
    uint32_t n_rows, n_heads, dim;
    tms_matrix out;
    tms_ref lse, sinks;
} tms_sink;

#endif
