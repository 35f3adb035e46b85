/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of the ops that weigh, score, choose and move slots. */
#ifndef TMS_OPS_EVICTION_H
#define TMS_OPS_EVICTION_H

#include "host/ops/attention.h"
#include "host/ops/rows.h"

/* In these ops a row of `batch` is an item: one sequence, where visible[i][h] is the number of
 * slots of its lane of KV head h; tiles are not read. Only observe has query rows in its batch, and
 * items beside them. */

/* A value for every slot of lanes, f32, in one of two places:
 *   beside the cache  slot s of (item i, KV head h) at (i*n_kv_heads + h)*stride + s; stride > 0
 *   in a plane        at page id * page_size + s % page_size, the page id from the batch's table;
 *                     stride == 0 */
typedef struct tms_values {
    tms_ref ref;
    uint64_t stride; /* elements */
} tms_values;

/* observe: the attention weights that query rows give to each key of their lane.
 *   w(t, g, s) = exp(logit - lse) for the slots first[t][h] <= s < visible[t][h] of row t, 0 for
 *   others; g is a query head of the group of KV head h; logit as in attend.
 * Item i owns rows spans[i] = (first, number >= 1), all of one sequence; n(i, h) is the largest
 * visible[t][h] among them.
 *   q       [n_rows][n_heads][head_dim] f32
 *   lse     f32 [n_rows][lse_stride], n_heads of each row
 *   spans   int32 [n_items][2]; no span is longer than max_span
 *   logits  f32 [n_rows][n_heads][logit_stride], may be absent. If given, they are the logits, and
 *           neither q nor K is read; -inf adds nothing
 *   values  may be absent; in a plane only if no KV heads share pages. For s < n(i, h): join over
 *           the rows of (join over the group of f(w)). For SQUARES f(w) = w² and rows are summed,
 *           else f(w) = w. accumulate: joined with the values that are there. Other values are not
 *           written
 *   tile    may be absent: w itself, f32 [n_items][n_kv_heads][max_span*group][tile_stride], row t
 *           of the span and head g in list t*group + g, s < n(i, h); lists beyond the span are not
 *           written
 * A NaN logit or lse gives NaN, and so does an infinite logit of q and K; a row with an lse of -inf
 * saw nothing and gives 0. No two items of a launch write one value. No memory of rows x slots is
 * used but `tile`.
 * Bytes: per (item, KV head) K once for every 32 rows of the span.
 * Tolerance: with T as in attend, each w to w * (4e-6 * (1 + max|logit|) + 2e-6 * T) + 1e-37; joins
 * to the sum of those of their terms and 3e-7 * (1 + log2 terms) of the result. */
typedef struct tms_observe {
    tms_kv kv;
    tms_batch batch; /* of query rows */
    uint32_t n_items, max_span;
    tms_ref spans;
    tms_matrix q;
    tms_ref lse;
    uint64_t lse_stride;
    tms_logit logit;
    tms_ref logits;
    uint64_t logit_stride;
    tamis_rows_join rows;
    tamis_group_rule group;
    bool accumulate;
    tms_values values; /* a plane or beside the cache */
    tms_ref tile;
    uint64_t tile_stride;
} tms_observe;

/* pool_values: pooling along slots, stride 1, as many values out as in. The first n =
 * max(visible - tail, 0) values of each list are pooled; out is written below n.
 *   AVERAGE  out(s) = Σ x(s + o) / kernel, |o| <= kernel/2, over places in [0, n): values beyond
 *            the ends are zeros, and the divisor is always kernel (torch's default)
 *   MAX      the largest of the same
 *   keep_sum (AVERAGE): out times Σx / Σout of its list, 1 where that is not finite; x >= 0
 *   x, out   f32 [n_items][n_kv_heads][n_lists][stride], not overlapping; kernel odd
 * A NaN among the pooled values gives NaN. Bytes: 8 per value. Tolerance: MAX exact; AVERAGE 1e-6 *
 * (mean of |x| over the pooled places), keep_sum 3e-6 of the result + that. */
typedef struct tms_pool_values {
    tms_batch batch;
    uint32_t n_lists, tail, kernel;
    tamis_pooling kind;
    bool keep_sum;
    tms_ref x, out;
    uint64_t stride;
} tms_pool_values;

/* value_score: how well the direction of slots' values agrees with the output's (AnDPro, Algorithm
 * 1).
 *   y(l) = Σ a(l, s)·v_s over first <= s < end,   e(s) = Σ_l a(l, s)·(y(l)·v_s) for s < visible
 * for each (item, KV head), l over its lists.
 *   a       f32 [n_items][n_kv_heads][n_lists][stride]
 *   limits  int32 [n_items][n_kv_heads][2] (first, end) in [0, visible]
 *   out     f32 [n_items][n_kv_heads][out_stride]
 * A NaN gives NaN; an infinite term gives an infinite or a NaN score.
 * scratch: its size follows from n_rows, n_kv_heads, n_lists, max_visible and head_dim, and is
 * enough for launches of smaller numbers.
 * Bytes: V twice and a twice. f32 accumulation in blocks.
 * Tolerance: 4e-6 * Σ_l |a(l, s)| * Σ_d |v_sd| * Σ_s' |a(l, s')·v_s'd|. */
typedef struct tms_value_score {
    tms_kv kv;
    tms_batch batch;
    uint32_t n_lists;
    tms_ref a, limits, out;
    uint64_t stride, out_stride;
    tms_ref scratch;
} tms_value_score;

/* value_norm: the norm of a slot's value, or of what it adds to the output, for s < visible.
 *   L2            ‖v_s‖₂
 *   L1_PROJECTED  mean over the heads of the group of ‖v_s·W_O[head]‖₁ =
 *                 Σ_o |Σ_c w[o][head*head_dim + c]·v_s[c]|   (CriticalKV, section 4)
 *   w    [n_out][w_stride] of `w_dtype`, head 0 of the batch at column 0: as linear's, so the
 *        output projection of a model as it is. Only for L1_PROJECTED
 *   out  f32 [n_items][n_kv_heads][out_stride]
 * L2 squares in fp32: components are from about 1e-18 to 1e18 in size, or 0 (bf16, f32).
 * Bytes: V once; w once for every 16 slots at least. Tolerance: 3e-6 * (1 + log2 n) relative to the
 * sum of the absolute terms, n = head_dim or n_out*head_dim. */
typedef enum tms_value_norm_kind {
    TMS_VALUE_L2 = 0,
    TMS_VALUE_L1_PROJECTED = 1
} tms_value_norm_kind;
typedef struct tms_value_norm {
    tms_kv kv;
    tms_batch batch;
    tms_value_norm_kind kind;
    tms_ref w;
    tamis_dtype w_dtype;
    uint64_t w_stride; /* elements */
    uint32_t n_out;
    tms_ref out;
    uint64_t out_stride;
} tms_value_norm;

/* key_score: a score from a slot's key alone, without queries, for s < visible.
 *   NORM       ‖k‖₂                                                        (arXiv 2406.11430)
 *   COSINE     k·m / (‖k‖·‖m‖), m = mean of k_j/‖k_j‖ over the lane's visible slots; keys of norm 0
 *              add nothing to m and score 0; if ‖m‖ is 0, all score 0        (KeyDiff, 2504.15364)
 *   QUADRATIC  mean over the group of scale·μ·k + scale²/2·kᵀSk             (ExpectedAttention,
 *              2510.00636), mu f32 [n_heads][head_dim], cov f32 [n_heads][head_dim][head_dim]
 *   out  f32 [n_items][n_kv_heads][out_stride]
 * scratch: its size follows from n_rows, n_kv_heads, max_visible and head_dim, and is enough for
 * launches of smaller numbers.
 * Bytes: K once, COSINE twice.
 * NORM and COSINE square in fp32: components are from about 1e-18 to 1e18 in size, or 0 (bf16,
 * f32). A key with a NaN gives NaN; with COSINE for all keys of its lane but those of norm 0.
 * Tolerance: NORM 2e-6 relative; COSINE 4e-6 / ‖m‖, absolute, as m is a sum of rounded terms of
 * size 1/n; QUADRATIC 4e-6 * the sum of the absolute terms. */
typedef enum tms_key_score_kind {
    TMS_KEY_NORM = 0,
    TMS_KEY_COSINE = 1,
    TMS_KEY_QUADRATIC = 2
} tms_key_score_kind;
typedef struct tms_key_score {
    tms_kv kv;
    tms_batch batch;
    tms_key_score_kind kind;
    tms_ref mu, cov;
    float scale;
    tms_ref out;
    uint64_t out_stride;
    tms_ref scratch;
} tms_key_score;

/* score_rows: what the keys of rows say by themselves, into the plane of scores at the slots that the
 * rows have been written to.
 *   score   -‖k‖₂ of the slot's key as the cache holds it                  (arXiv 2406.11430)
 *   slots   int32 [n_rows][n_kv_heads], as write_rows's: < 0 skips; no two rows of a launch name one
 *           slot
 *   scores  a plane, so only for caches whose page id fixes the head
 * Of `batch`: n_rows, n_kv_heads, row_seq, table and its strides. Rotation keeps norms: keys may be
 * rotated or not. The same number as key_score's NORM has, for single rows instead of whole lanes.
 * Squares are formed in fp32: of keys whose components are from about 1e-18 to 1e18 in size, or 0. A
 * larger one (f32, bf16) or an infinite one gives -inf, one with a NaN gives NaN; replace and select
 * let NaN go first and -inf next. Smaller ones lose digits, down to 0.
 * Bytes: keys once. Tolerance: 2e-6 relative. */
typedef struct tms_score_rows {
    tms_kv kv;
    tms_batch batch;
    tms_ref slots, scores;
} tms_score_rows;

/* deviation: how far rows are from what the slots of their tokens hold, by which tokens are chosen
 * to be computed anew (CacheBlend, arXiv 2405.16444, section 4.3):
 *   out     f32 [n_rows]: Σ over KV heads and channels of (x - the slot's)²; +infinity for a NaN, so
 *           that such a row comes first
 *   norms   f32 [n_rows]: Σ x² over the same, likewise; may be absent
 *   x       f32 [n_rows][n_kv_heads][head_dim] at row*stride: what the slots would hold, K or V
 *   values  whether the slots' V rows are compared, else their K rows
 *   slots   int32 [n_rows][n_kv_heads], as write_rows's: < 0 adds nothing to out
 * Of `batch`: n_rows, n_kv_heads, row_seq, table and its strides. Differences and squares are formed
 * in fp32: what leaves its range is infinite.
 * Bytes: rows and x once. Tolerance: 1e-5 relative. */
typedef struct tms_deviation {
    tms_kv kv;
    tms_batch batch;
    tms_matrix x;
    tms_ref slots, out, norms;
    bool values;
} tms_deviation;

/* fuse: elementwise on the values of lanes, s < n = max(visible - tail, 0). out may be x or y.
 *   AXPBY           a·x + b·y;  without y: a·x + b
 *   MULTIPLY        (x + a)·y
 *   AT_LEAST_MEAN   max(x, a·mean of the lane's n values of x)           (DefensiveKV)
 *   LIFETIME        x / (now - position + 1), now int32 [n_items]         (H2O, normalised)
 *   MEAN_OF_HEADS   mean over the item's KV heads of x at s, to each of them; equal n     (TOVA)
 *   SHARE_OF_HEADS  x / Σ over the item's KV heads of x at s, 0 where that sum is 0; equal n
 *   CHUNK_SUM       out(c) = Σ x over the slots [c·chunk, (c + 1)·chunk) below n; out beside the
 *                   cache and not x
 *   LISTS_SUM, LISTS_MAX  out(s) = Σ or largest over lists l of x(l, s), x f32
 *                   [n_items][n_kv_heads][n_lists][x.stride], beside the cache, and not out
 * x, y, out: a plane or beside the cache, out in a plane only if no KV heads share pages; page_size
 * with planes. NaN: as fp32 arithmetic gives; a maximum over a NaN is NaN.
 * Bytes: 4 per value read and written. Tolerance: 1e-6 of the sum of the absolute terms; for
 * quotients 1e-6 of the result, for SHARE_OF_HEADS that times Σ|x| / |Σx|. */
typedef enum tms_fuse_kind {
    TMS_FUSE_AXPBY = 0,
    TMS_FUSE_MULTIPLY = 1,
    TMS_FUSE_AT_LEAST_MEAN = 2,
    TMS_FUSE_LIFETIME = 3,
    TMS_FUSE_MEAN_OF_HEADS = 4,
    TMS_FUSE_SHARE_OF_HEADS = 5,
    TMS_FUSE_CHUNK_SUM = 6,
    TMS_FUSE_LISTS_SUM = 7,
    TMS_FUSE_LISTS_MAX = 8
} tms_fuse_kind;
typedef struct tms_fuse {
    tms_batch batch;
    tms_fuse_kind kind;
    tms_values x, y, out; /* y.ref.mem == NULL: absent */
    float a, b;
    uint32_t tail, chunk, n_lists, page_size;
    tms_ref positions, now; /* of LIFETIME; positions is a plane */
} tms_fuse;

/* compact: moves the kept slots of lanes, in the order of their list, to the front of a page list.
 *   lists  entries of `granularity` slots, ascending, of (item, KV head), as select gives them;
 *          slots from visible on are skipped. The j-th kept slot goes to slot j of `to`
 *   to     int32 [n_items][n_kv_heads][to_stride] page ids, for as many slots as are kept. The page
 *          at an ordinal is the one that the lane has there already (in place), or one that no lane
 *          of the launch reads
 * Moves K, V and the planes that are given. Slots behind the kept ones are not written; the caller
 * must recompute bounds. In place is safe because a kept slot never moves to a later slot: pages of
 * a lane are filled in order, and the slots for a page are read before the page is written. It is
 * one launch: if it fails, nothing has moved.
 * Bytes: per kept slot 4*head_dim*size. Exact, bit for bit. */
typedef struct tms_compact {
    tms_kv kv;
    tms_planes planes;
    tms_batch batch;
    tms_lists lists;
    uint32_t granularity;
    tms_ref to;
    uint64_t to_stride;
} tms_compact;

/* replace: chooses a slot for a row in lanes that stay at their length. For each (row, KV head)
 * whose turn is not 0, slots[row][h] becomes the slot of the evicted token (the victim), into which
 * write_rows then writes the row. No token moves.
 *   turns      int32 [n_rows][n_kv_heads]; 0: the lane has grown for the row, nothing happens
 *   positions  int32 [n_rows], the rows' own, above those of all older tokens of their sequence
 *   slots      int32 [n_rows][n_kv_heads]
 *   changed    int32 [n_rows][n_kv_heads]: page id of the victim's slot if its page is full (lies
 *              below visible / page_size), for bounds; else, and without a turn, -1
 * Candidates are the slots below visible with sinks <= position < row position - recent; the victim
 * is the lowest of them by (score asc, position asc), NaN before everything, -0 = +0; lifetime: the
 * score divided by (row position - position), below 2^29, compared exactly: no quotient is rounded.
 * Without a plane of scores the lowest position. A slot whose position is >= the row's was written
 * by a cancelled step: such slots are victims before all others, the lowest position first. Without
 * a candidate the victim has the lowest position >= sinks; if there is none, it is the last slot,
 * visible - 1. Of equal positions the lower slot is the victim.
 * H2O with r recent tokens, the row's own included: as published, the oldest recent token, at row
 * position - r, is kept in any case: recent = r; with re-ranking it competes: recent = r - 1. TOVA:
 * recent 0. StreamingLLM: no scores.
 * `visible` counts the lane's slots as the row will see them. Bytes: 8 per slot. Exact. */
typedef struct tms_replace {
    tms_kv kv; /* checked like any other; its K and V are not read */
    tms_planes planes;
    tms_batch batch;
    tms_ref turns, slots, changed, positions;
    uint32_t sinks, recent;
    bool lifetime;
} tms_replace;

/* observed_attend: attend of rows that are alone in their tiles, and observe of each by the logits
 * that attend leaves, in fewer launches than two. Fields as in those ops: observe's kv, batch, logits,
 * logit_stride and lse are attend's; n_items is n_rows, span i is (i, 1), and there is no tile. A
 * backend may offer it for some cases only: observed_attend_refusal says why not, and the caller then
 * runs the two ops, whose result this is. With sinks, which change lse behind attend, it is refused. */
typedef struct tms_observed_attend {
    tms_attend attend;
    tms_observe observe;
} tms_observed_attend;

/* replace_rows: replace; write_rows, or write_rotated where rotation.n_rot > 0; and bounds of the
 * pages that have changed; in fewer launches than three. Fields as in those ops: the two have the same
 * kv, batch, slots, positions and planes, but that replace may lack scores; bounds.pages is replace.changed, bounds.n is
 * n_rows*n_kv_heads, bounds.n_kv_heads 1. No two rows are of one sequence. A backend may offer it for
 * some cases only: replace_rows_refusal says why not, and the caller then runs the three ops, whose
 * result this is, bit for bit. */
typedef struct tms_replace_rows {
    tms_replace replace;
    tms_write_rows write;
    tms_bounds bounds;
} tms_replace_rows;

/* scatter_rows: y[index[r]] = x[r] for rows of `width` f32 elements; an index below 0 skips;
 * indices differ. x and y do not overlap. Exact. */
typedef struct tms_scatter_rows {
    tms_matrix x, y;
    uint32_t n_rows, width;
    tms_ref index; /* int32 [n_rows] */
} tms_scatter_rows;

#endif
