/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of the ops that choose pages, or other entries: scores, masses, select. */
#ifndef TMS_OPS_SELECTION_H
#define TMS_OPS_SELECTION_H

#include "host/ops/types.h"

/* seek: for each (row, KV head) the first slot of its lane, from 0 to visible, whose position is at
 * least the row's `least`; `visible` if there is none. So `first` of a batch is found where lanes have
 * lost tokens. Positions must ascend in a lane, else the slot is one of those from 0 to visible.
 *   positions  int32 plane [page id][page_size];  least  int32 [n_rows]
 *   out        int32; (row, KV head) at row*row_stride + head*head_stride
 * `tiles` and `first` are not read. Bytes: 8·log2(visible) for each (row, KV head). Exact. */
typedef struct tms_seek {
    tms_batch batch;
    uint32_t page_size;
    tms_ref positions, least, out;
    uint64_t row_stride, head_stride; /* elements */
} tms_seek;
/* The elements of `out` up to the last that is written. */
static inline uint64_t tms_seek_extent(const tms_seek *p) {
    const uint64_t n = p->batch.n_rows, heads = p->batch.n_kv_heads;
    return n ? (n - 1) * p->row_stride + (heads - 1) * p->head_stride + 1 : 0;
}

/* score_pages: for each (row, KV head) and each full page of which it sees a slot, ordinal
 * first / page_size <= i < visible / page_size, by the bounds of the whole page:
 *   s_g(i) = sum_d max(q_gd·lo_id, q_gd·hi_id) per query head g of the group, fp32;
 *   score(i) = max, mean or sum of s_g over the group. A NaN product makes the score NaN.
 *   q       [n_rows][n_heads][head_dim] f32
 *   scores  f32 [n_rows][n_kv_heads][stride]; other entries are not written
 * Source: Quest, section 3.4, Algorithm 1; the (lo, hi) form works for every kind of bounds.
 * Bytes: n_rows*n_kv_heads*those pages*2*head_dim*size.
 * Tolerance: 1e-6 * sum_d |max term| (order of sums). */
typedef struct tms_score_pages {
    tms_kv kv;
    tms_batch batch;
    tms_matrix q;
    tamis_group_rule group;
    tms_ref scores;
    uint32_t stride;
} tms_score_pages;

/* page_mass: for the pages that score_pages scores, the share of the true attention that falls on
 * each; the selection oracle scores by it. It reads every key: not a fast path.
 *   m_g(i) = Σ exp(logit - lse_g) over the slots of page i that the row sees, logits and lse_g (over
 *   all slots that it sees, those of the partial page included) as in attend;
 *   score(i) = max, mean or sum of m_g over the group.
 *   q       [n_rows][n_heads][head_dim] f32
 *   scores  f32 [n_rows][n_kv_heads][stride]; other entries are not written
 * A NaN or infinite logit among those it sees makes every score of that (row, KV head) NaN.
 * Masses below the range of fp32 are 0 and so equal; select then takes the newer page. No lists.
 * scratch: its size follows from n_rows, n_heads, n_kv_heads and stride, and is enough for launches
 * of smaller numbers; contents need not be kept.
 * Bytes: per (row, KV head) every K that it sees once per query head. Tolerance: 4e-6 * (1 + max|logit|)
 * absolute for MAX and MEAN, group times that for SUM. */
typedef struct tms_page_mass {
    tms_kv kv;
    tms_batch batch;
    tms_matrix q;
    tamis_group_rule group;
    tms_ref scores;
    uint32_t stride;
    tms_logit logit;
    tms_ref scratch;
} tms_page_mass;

/* select: exact, deterministic top-k. For each (row, KV head) over the entries of its lane of which
 * it sees a slot, an entry being `granularity` consecutive slots (a page, a chunk, a token): n
 * entries, the ordinals from floor(first / granularity) to below ceil(visible / granularity), of
 * which those below floor(visible / granularity) have scores.
 *   1. protected entries are taken: ordinals < ceil(sinks / granularity); ordinals >=
 *      floor(max(visible - recent, 0) / granularity) if recent > 0; and an entry without a score.
 *   2. the rest, up to k entries in all, by (score desc, ordinal desc); -0 = +0; NaN after
 *      everything, equal ones again by ordinal desc. If n <= k, all are taken. If more than k are
 *      protected, all of those are taken (lists must have the capacity; the check of a selection
 *      excludes this case).
 *   3. the list is ascending by ordinal.
 * scores absent: step 2 goes by ordinal desc alone (the newest), which is the selection window.
 * Selections of pages ask for recent >= 1, so that a row's own page is taken, full or not.
 *   scores  f32 as score_pages wrote them;  lists: capacity >= min(n, max(k, protected))
 * That is the plain selection. `wide`, in which rows see from slot 0 on, adds the following, each
 * part zero or absent if not used:
 *   forced     lists of another select on the same entries, which are protected, too. That select
 *              has the same sinks and recent, or `lists` have room for the protected entries of
 *              both. Entries without room are an error of the reference and cut off elsewhere
 *   k_table    int32 [n_rows][n_kv_heads]: a lane takes floor(k_table·k_share / TMS_SHARE_ONE) in
 *              place of k; below 0 counts as 0. LANE scope only. k is its upper limit, by which the
 *              lists are sized
 *   scope ROW  the lanes of a row compete: `total` entries of all of them. 1. protected entries;
 *              2. of each lane the best `floor` others; 3. the rest up to `total` by (score desc,
 *              ordinal desc, KV head asc). More than `total` after step 2: all of those. k is not
 *              read. KV heads may be those of all layers of a sequence
 *   mass       > 0, LANE scope: step 2 ends early, as soon as the scores of the taken entries,
 *              protected ones included, sum to `mass`. Summed exactly, in integers: a score counts
 *              as floor(score·2^32), one below 0 or NaN as 0, one above 1024 as 1024
 *   positions  int32 plane [page id][page_size] with row_positions int32 [n_rows], the positions of
 *              the rows: slots need not be in the order of their tokens, and protection goes by
 *              position: position < sinks, or > row position - recent, for any visible slot of the
 *              entry, and the entry that holds the row's own position. LANE scope. k is then never
 *              exceeded: first come the own entry, those without score, sinks and forced, by
 *              ordinal desc; then recent ones, the one with the newest position first. scores
 *              absent: the rest by largest position desc. Positions are from 0 and below 2^22
 * At most 2^22 entries per lane, 2^32 - 1 in a row whose lanes compete. `tiles` may be absent; in
 * wide selections without positions row_seq and table, too.
 * scratch: only for wide launches; its size follows from n_rows, n_kv_heads, max_visible and
 * granularity, and is enough for launches of smaller numbers.
 * Bytes: 4*entries read once (device scratch aside). Tolerance: bit-equal lists everywhere. */
typedef enum tms_scope { TMS_SCOPE_LANE = 0, TMS_SCOPE_ROW = 1 } tms_scope;
#define TMS_SHARE_ONE 65536u
typedef struct tms_select_wide {
    tms_scope scope;
    uint32_t total, floor;
    tms_lists forced; /* pages.mem == NULL: none */
    tms_ref k_table;
    uint32_t k_share; /* of TMS_SHARE_ONE; 0 stands for TMS_SHARE_ONE */
    float mass;
    tms_ref positions, row_positions;
    uint32_t page_size; /* with positions */
} tms_select_wide;
typedef struct tms_select {
    tms_batch batch;
    uint32_t granularity;
    uint32_t k, sinks, recent;
    tms_ref scores;
    uint32_t stride;
    tms_lists lists;
    tms_select_wide wide;
    tms_ref scratch;
} tms_select;
/* Whether any part of `wide` is used. */
static inline bool tms_select_is_wide(const tms_select *p) {
    const tms_select_wide *w = &p->wide;
    return w->scope != TMS_SCOPE_LANE || w->forced.pages.mem || w->k_table.mem || w->mass > 0 ||
           w->positions.mem;
}

/* take_lists: makes valid lists of lists that a caller has made, whatever they hold. For each (row, KV
 * head), over entries of `granularity` slots of its lane (a page, a token), of which it sees those from
 * floor(first / granularity) to below ceil(visible / granularity):
 *   1. count: below 0 it is taken as 0, above raw.capacity as that; either is counted as one
 *   2. the entries before count, in order: one that the row sees and that lies above every entry taken
 *      before it is taken; any other is skipped and counted
 *   3. skipped += what was counted, modulo 2^32
 *   raw      int32 lists of any numbers
 *   lists    capacity >= min(raw.capacity, ceil(max_visible / granularity)); behind `count` they are not
 *            written. Ascending
 *   ids      int32 [n_rows][n_kv_heads][lists.capacity], may be absent; only with granularity 1: beside
 *            slot s of a list its id, table[s / page_size] * page_slots + s % page_size, the page id of
 *            the slot where every slot is a page
 *   skipped  int32, one number of all launches: other launches on the queue may add to it, too
 * `tiles` is not read. lists and ids share no byte with raw.
 * Bytes: 4*count read, 4 or 8 for each entry taken written. Bit-equal everywhere. */
typedef struct tms_take_lists {
    tms_batch batch;
    uint32_t granularity;
    tms_lists raw, lists;
    tms_ref ids;
    uint32_t page_size, page_slots; /* with ids */
    tms_ref skipped;
} tms_take_lists;
/* Entries that a list of the launch can have. */
static inline uint32_t tms_take_lists_most(const tms_take_lists *p) {
    const uint64_t seen = tms_divide_up(p->batch.max_visible, p->granularity);
    return p->raw.capacity < seen ? p->raw.capacity : (uint32_t)seen;
}

#endif
