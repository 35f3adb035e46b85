/* SPDX-License-Identifier: Apache-2.0 */
/* THE CONTRACT between lib/ and the ways to drive devices: how memory and queues are driven, and
 * every op with its shapes, dtypes, ties, cost and tolerance. lib/ calls nothing else of host/. */
#ifndef TMS_BACKEND_H
#define TMS_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tamis/device.h>

/* ---- Driving a device ------------------------------------------------------------------------ */

typedef struct tms_backend tms_backend;
typedef struct tms_mem tms_mem;     /* device memory; each backend has its own */
typedef struct tms_event tms_event; /* a point in the queue */
typedef struct tms_graph tms_graph; /* a recording of what was enqueued */

/* Which form of an op runs. AUTO is the best one that takes the case; the others are for tests and
 * benches, and an op that has no such form for the case answers E_UNSUPPORTED with the reason. */
typedef enum tms_form { TMS_FORM_AUTO = 0, TMS_FORM_BASE = 1, TMS_FORM_CPU = 2 } tms_form;

/* Where log lines go; the core fills it from the context's callback and TAMIS_LOG. */
typedef struct tms_log {
    tamis_log_fn fn;
    void *user;
    int stderr_level; /* lines up to this level also go to stderr; -1: none */
} tms_log;

/* What every opened device begins with; a backend's own struct has it as first member. */
typedef struct tms_device {
    const tms_backend *backend;
    tamis_device_info info;
    tms_log log;
    tms_form form;       /* what the ops obey */
    tamis_error error;   /* text of the last failed call */
    tamis_status sticky; /* set by a late device error; every later call returns it */
} tms_device;

/* A place in device memory: `offset` is in bytes. mem == NULL: absent, where that is allowed. */
typedef struct tms_ref {
    tms_mem *mem;
    uint64_t offset;
} tms_ref;

/* ---- What the ops speak of ------------------------------------------------------------------- */

/* Paged K and V, and bounds beside them. In elements of `dtype`, with page id p, KV head h, slot s:
 *   K row at  p*page_stride + h*head_stride + s*slot_stride,   V row value_offset further on;
 *   lo row at p*bounds_page_stride + h*bounds_head_stride,     hi row head_dim further on.
 * The cache's own layout: page_stride = 2*page_size*head_dim, head_stride = 0,
 * slot_stride = head_dim, value_offset = page_size*head_dim, bounds_page_stride = 2*head_dim,
 * bounds_head_stride = 0. A caller's cache with one page list for all heads has head strides and a
 * list head stride of 0. A backend may refuse (E_UNSUPPORTED) rows that do not all begin at
 * multiples of 16 bytes. */
typedef struct tms_kv {
    tms_ref data;
    tms_ref bounds;     /* may be absent where an op does not read or write bounds */
    tamis_dtype dtype;  /* of K, V and bounds */
    uint32_t page_size; /* 8, 16, 32, 64 */
    uint32_t head_dim;  /* 64, 80, 96, 128, 256 */
    uint64_t page_stride, head_stride, slot_stride, value_offset;
    uint64_t bounds_page_stride, bounds_head_stride;
} tms_kv;

/* Most rows in a tile. */
#define TMS_TILE_ROWS 32

/* The query rows of one launch and the lanes they belong to, all tables in device memory, int32.
 *   tiles    [n_tiles][2]            (first row, number of rows 1..TMS_TILE_ROWS); the tiles cover
 *                                    every row once; rows of a tile are of one sequence, by
 *                                    ascending position
 *   row_seq  [n_rows]                index of the row's sequence in `table`
 *   visible  [n_rows][n_kv_heads]    leading slots of the lane that the row may see, 0 for none
 *   table    page ids: ordinal i of (sequence b, KV head h) at b*seq_stride + h*head_stride + i
 * n_rows == 0 is a valid launch of every op: it builds what the shape needs and computes nothing;
 * tables may be absent then. */
typedef struct tms_batch {
    uint32_t n_rows, n_tiles;
    uint32_t n_heads, n_kv_heads; /* group = n_heads / n_kv_heads, 1..16 */
    tms_ref tiles, row_seq, visible, table;
    uint64_t seq_stride, head_stride; /* elements of table */
    uint32_t max_visible; /* no entry of `visible` is larger; known to the host, sizes the launch */
    uint32_t max_tile_rows; /* no tile has more rows; 1 is a decode launch */
} tms_batch;

/* f32 rows of activations: element (row, i) at row*stride + i behind `ref`. */
typedef struct tms_matrix {
    tms_ref ref;
    uint64_t stride; /* elements */
} tms_matrix;

/* Page lists chosen for each (row, KV head): int32 ordinals, strictly ascending.
 *   pages  [n_rows][n_kv_heads][capacity]
 *   count  [n_rows][n_kv_heads]            entries of each list */
typedef struct tms_lists {
    tms_ref pages, count;
    uint32_t capacity;
} tms_lists;

/* ---- Ops on the cache ------------------------------------------------------------------------ */

/* write_rows: K and V rows into given slots of lanes; append, replace and scatter are one op.
 *   k, v   [n_rows][n_kv_heads][head_dim] at row*stride, dtype f32 or kv->dtype
 *   slots  int32 [n_rows][n_kv_heads]: slot in the lane, < 0 skips; no two rows of a launch name
 *          one slot
 * Of `batch`: n_rows, n_kv_heads, row_seq, table and its strides.
 * Conversion from f32 rounds to nearest even; f16 overflow gives infinity, NaN stays NaN.
 * Bytes: rows read and written once. Tolerance: exact, bit for bit (NaN as NaN). */
typedef struct tms_write_rows {
    tms_kv kv;
    tms_batch batch;
    tms_ref k, v, slots;
    uint64_t k_stride, v_stride; /* elements of `dtype` from row to row */
    tamis_dtype dtype;
} tms_write_rows;

/* read_rows: K and V rows out of given slots, widened to f32.
 *   seq, head, slot  int32 [n]: sequence index in table, KV head, slot
 *   k, v             f32 [n][head_dim]; either may be absent
 * Bytes: 2*n*head_dim*(size + 4). Tolerance: exact. */
typedef struct tms_read_rows {
    tms_kv kv;
    tms_ref table;
    uint64_t seq_stride, head_stride;
    uint32_t n;
    tms_ref seq, head, slot, k, v;
} tms_read_rows;

/* copy_pages: blocks of `bytes` (a multiple of 16) inside one memory: pairs int32 [n][2] (from, to)
 * of block indices. No block is both a source and a destination; destinations differ. Exact. */
typedef struct tms_copy_pages {
    tms_ref data;
    uint64_t bytes;
    uint32_t n;
    tms_ref pairs;
} tms_copy_pages;

/* write_table: entries int32 [n][2] (index, value): data[index] = value, int32; indices differ.
 * Exact. */
typedef struct tms_write_table {
    tms_ref data;
    uint32_t n;
    tms_ref entries;
} tms_write_table;

/* bounds: a pair (lo, hi) from the page_size keys of each page, channel by channel, for each of
 * n_kv_heads heads (1 in the cache's own layout, where the page id fixes the head).
 *   pages  int32 [n] page ids, all full pages; an id below 0 is passed over
 *   MINMAX    lo = min, hi = max (Quest, section 3.4): true bounds of a logit
 *   MEAN_STD  lo = mean - width·std, hi = mean + width·std, std over page_size, not page_size - 1
 *             (UNIQUE, arXiv 2605.27740); sums in fp32 in slot order, std from squares of
 *             differences to the mean, never below 0; where mean and width·std are finite in fp32,
 *             lo and hi are clamped to the dtype's largest finite value (f16: 65504), so that no
 *             infinity is stored
 *   MEAN      lo = hi = mean: a centroid
 * -0 and +0 are equal, either may be stored; a channel with a NaN key gets lo = hi = NaN, so that
 * its page scores NaN; infinite keys give what fp32 arithmetic gives.
 * Bytes: n*n_kv_heads*(page_size + 2)*head_dim*size. Tolerance: MINMAX exact (values); else
 * 2e-6 * (max|key| of the channel) * (1 + width) and the rounding to the dtype. */
typedef enum tms_bounds_kind {
    TMS_BOUNDS_MINMAX = 0,
    TMS_BOUNDS_MEAN_STD = 1,
    TMS_BOUNDS_MEAN = 2
} tms_bounds_kind;
typedef struct tms_bounds {
    tms_kv kv;
    uint32_t n, n_kv_heads;
    tms_ref pages;
    tms_bounds_kind kind;
    float width; /* of MEAN_STD, >= 0 and finite */
} tms_bounds;

/* rotate: RoPE on rows in place, f32 [n_rows][n_heads][head_dim] at row*stride.
 * Pair i (of n_rot/2) turns by angle position*frequency_i:
 *   (a, b) -> (a·cos - b·sin, a·sin + b·cos).
 *   pairing half: (x[i], x[i + n_rot/2]); adjacent: (x[2i], x[2i + 1]); channels from n_rot on
 *              stay.
 *   positions  int32 [n_rows], 0 <= |position| < 2^20; a negative one turns back, so the
 *              difference of two positions re-rotates a cached key
 *   table      f32 [2][1024][n_rot/2][2], made by tms_rotate_table: (cos, sin) of j*frequency_i and
 *              of 1024*j*frequency_i; the angle's cos and sin follow by the addition theorem, so
 *              large positions lose nothing on any device.
 * Bytes: 2*4*n_rows*n_heads*n_rot.
 * Tolerance: |x| * 4e-7 absolute per pair norm (three fp32 roundings). */
typedef enum tms_pairing { TMS_PAIR_HALF = 0, TMS_PAIR_ADJACENT = 1 } tms_pairing;
typedef struct tms_rotate {
    tms_matrix x;
    uint32_t n_rows, n_heads, head_dim, n_rot;
    tms_pairing pairing;
    tms_ref positions, table;
} tms_rotate;

/* ---- Selection ------------------------------------------------------------------------------- */

typedef enum tms_group { TMS_GROUP_MAX = 0, TMS_GROUP_MEAN = 1, TMS_GROUP_SUM = 2 } tms_group;

/* score_pages: for each (row, KV head) and each full page it sees, ordinal i < visible / page_size:
 *   s_g(i) = sum_d max(q_gd·lo_id, q_gd·hi_id) per query head g of the group, fp32;
 *   score(i) = max, mean or sum of s_g over the group. A NaN product makes the score NaN.
 *   q       [n_rows][n_heads][head_dim] f32
 *   scores  f32 [n_rows][n_kv_heads][stride]; entries from visible/page_size on are left alone
 * Source: Quest, section 3.4, Algorithm 1; the (lo, hi) form serves every bounds kind.
 * Bytes: n_rows*n_kv_heads*pages*2*head_dim*size.
 * Tolerance: 1e-6 * sum_d |max term| (order of sums). */
typedef struct tms_score_pages {
    tms_kv kv;
    tms_batch batch;
    tms_matrix q;
    tms_group group;
    tms_ref scores;
    uint32_t stride;
} tms_score_pages;

/* page_mass: for each (row, KV head) and each full page it sees, the share of the true attention
 * that falls on it; what the selection oracle scores by. No fast path: it reads every key.
 *   m_g(i) = Σ exp(logit - lse_g) over the slots of page i, logits and lse_g (over all visible
 *   slots, the partial page included) as in attend;
 *   score(i) = max, mean or sum of m_g over the group.
 *   q       [n_rows][n_heads][head_dim] f32
 *   scores  f32 [n_rows][n_kv_heads][stride]; entries from visible/page_size on are left alone
 * A NaN or infinite logit among the visible ones makes every score of that (row, KV head) NaN.
 * Masses below the range of fp32 are 0 and tie, so that select takes the newer page. No intervals,
 * no lists.
 * scratch: tms_backend.page_mass_scratch bytes; need not be kept.
 * Bytes: per (row, KV head) every visible K once a query head. Tolerance: 4e-6 * (1 + max|logit|)
 * absolute for MAX and MEAN, group times that for SUM. */
typedef struct tms_page_mass {
    tms_kv kv;
    tms_batch batch;
    tms_matrix q;
    tms_group group;
    tms_ref scores;
    uint32_t stride;
    float scale, soft_cap;
    tms_ref scratch;
} tms_page_mass;

/* select: exact, deterministic top-k. For each (row, KV head) over the entries of its lane, an
 * entry being `granularity` consecutive slots (a page): n = ceil(visible / granularity) entries, of
 * which the first floor(visible / granularity) have scores.
 *   1. protected entries are taken: ordinals < ceil(sinks / granularity); ordinals >=
 *      floor(max(visible - recent, 0) / granularity) if recent > 0; and an entry without a score.
 *   2. the rest up to k entries in all by (score desc, ordinal desc); -0 = +0; NaN after
 *      everything, among NaN again ordinal desc. n <= k takes all. More than k protected: all of
 *      those (lists must have the capacity; the policy check rules it out).
 *   3. the list comes out ascending by ordinal.
 * scores absent: step 2 takes by ordinal desc alone (the newest), which is the window selection.
 *   scores  f32 as score_pages wrote them;  lists: capacity >= min(n, max(k, protected))
 * Bytes: 4*entries read once (device scratch aside). Tolerance: bit-equal lists everywhere. */
typedef struct tms_select {
    tms_batch batch;
    uint32_t granularity;
    uint32_t k, sinks, recent;
    tms_ref scores;
    uint32_t stride;
    tms_lists lists;
} tms_select;

/* ---- Attention ------------------------------------------------------------------------------- */

/* attend: softmax attention of query rows over their lanes' slots.
 * Row r of KV head h sees the slots s < visible[r][h] that lie in the pages of its list (all pages
 * if lists are absent) and whose position p satisfies lo <= p <= hi of the row's interval.
 *   logit = scale·q·k; soft_cap > 0: logit = cap·tanh(logit/cap), finite for an infinite one;
 *   out = Σ softmax(logit)·v, lse = natural log of Σ exp(logit).
 *   q, out     [n_rows][n_heads][head_dim] f32; query head = h*group + g; they do not overlap
 *   lse        f32 [n_rows][n_heads], may be absent
 *   positions  int32 plane [page id][page_size], may be absent: position = slot
 *   intervals  int32 [n_rows][2] (lo, hi), may be absent: all positions
 * A row that sees nothing: out = 0, lse = -inf. Keys are summed in splits that follow from the
 * row's own list, merged in order: in one form the result of a row depends on nothing but the row
 * and whether it is alone in its tile, not on the other rows of the launch; but where another row
 * of its tile sees a V that is not finite, last bits may. A NaN or infinite logit among the seen
 * gives NaN out for that (row, head). Weighted values are summed in fp32 before they are
 * normalized: with |v| above FLT_MAX / page_size a sum may overflow to infinity or NaN.
 * scratch: tms_backend.attend_scratch bytes; need not be kept.
 * Bytes: per (row, KV head) the seen pages' K and V once, not once a query head; a tile of rows
 * once.
 * Tolerance, with T = max over the seen of Σ_d |scale·q_d·k_d|, whose rounding (8 units of fp32)
 * stays in a logit where the terms cancel:
 *   |out - ref| <= max|v| * (2e-6 * (1 + max|logit|) + 1e-6 * T)
 * for f32 accumulation of up to 1M keys in blocks; K, V are read exactly;
 *   lse: 2e-6 * (1 + |lse| + max|logit|) + 5e-7 * T. */
typedef struct tms_attend {
    tms_kv kv;
    tms_batch batch;
    tms_lists lists;    /* pages.mem == NULL: all pages */
    uint32_t max_pages; /* no list is longer; without lists ceil(max_visible / page_size) */
    tms_matrix q, out;
    tms_ref lse, positions, intervals;
    float scale, soft_cap;
    tms_ref scratch;
} tms_attend;

/* sparse_attend: score_pages, select and attend in fewer launches than three, where the device
 * gains by it. Fields as there: select.batch, score.batch and attend.batch are the same;
 * attend.lists is select.lists and is written too, equal bit for bit to what select gives on the
 * fused scores. A backend may offer it for some shapes only: sparse_attend_refusal says why not,
 * and the caller then runs the three ops. Ties with unequal fp32 sums aside (score tolerance), the
 * result is that of the three ops. */
typedef struct tms_sparse_attend {
    tms_score_pages score;
    tms_select select;
    tms_attend attend;
} tms_sparse_attend;

/* merge: states of the same rows into one. lse = log Σ exp(lse_i); out = Σ exp(lse_i - lse)·out_i.
 *   outs  f32 [n_parts][n][dim]; lses f32 [n_parts][n];
 *   out   f32 [n][dim]; lse f32 [n], may be absent
 * Parts with lse -inf add nothing whatever their out holds; all -inf gives out 0, lse -inf. One
 * live part passes through bit for bit. Merged in part order. Tolerance: 1e-6 * max|out_i|, lse
 * 1e-6 * (1 + |lse|). */
typedef struct tms_merge {
    uint32_t n_parts, n, dim;
    tms_ref outs, lses, out, lse;
} tms_merge;

/* ---- What a model needs ---------------------------------------------------------------------- */

/* linear: y[r][j] = Σ_i x[r][i]·w[j][i] + bias[j] (+ y[r][j] if accumulate).
 *   x, y f32 at row strides; w [n_out][n_in] packed, dtype f32, f16 or bf16; bias f32 [n_out], may
 *   be absent. y must not overlap x.
 * Bytes at few rows: n_out*n_in*size. Up to TMS_FEW_ROWS rows a matrix-vector kernel serves, above
 * it a matrix-matrix kernel or a vendor's library, and the two may round differently: the one place
 * where a row's bits may depend on how many rows a launch has. Up to TMS_FEW_ROWS they do not.
 * A vendor's library may take and free memory inside a launch, by the number of rows.
 * Tolerance: 2e-6 * sum_i |x_i*w_i| * (1 + log2 n_in). */
#define TMS_FEW_ROWS 8
typedef struct tms_linear {
    tms_matrix x, y;
    tms_ref w, bias;
    tamis_dtype dtype;
    uint32_t n_rows, n_in, n_out;
    bool accumulate;
} tms_linear;

/* norm: RMSNorm, y = x / sqrt(mean(x²) + eps) · w; w f32 [dim]; y may be x.
 * Tolerance: 2e-6 relative. */
typedef struct tms_norm {
    tms_matrix x, y;
    tms_ref w;
    uint32_t n_rows, dim;
    float eps;
} tms_norm;

/* activate: y = silu(gate)·up, silu(z) = z / (1 + exp(-z)); y may be gate or up. Tolerance: 2e-6
 * relative + 1e-37. */
typedef struct tms_activate {
    tms_matrix gate, up, y;
    uint32_t n_rows, dim;
} tms_activate;

/* embed: y[r] = row tokens[r] of w [n_vocab][dim] as f32. tokens int32 [n_rows], each < n_vocab
 * (the caller checks). Exact. */
typedef struct tms_embed {
    tms_ref tokens, w;
    tamis_dtype dtype;
    tms_matrix y;
    uint32_t n_rows, dim, n_vocab;
} tms_embed;

/* argmax: index of the largest of each row, int32 [n_rows]; ties the lowest index; NaN after
 * everything. Exact. */
typedef struct tms_argmax {
    tms_matrix x;
    uint32_t n_rows, dim;
    tms_ref out;
} tms_argmax;

/* ---- The table ------------------------------------------------------------------------------- */

/* Every function but list and open takes an opened device. Status other than OK leaves the reason
 * in dev->error. Ops enqueue on the device's one in-order queue and return; their params struct may
 * be reused at once. `optional` entries may be NULL. */
struct tms_backend {
    const char *name; /* "opencl" */

    /* Devices, best first; *count is the full number, even beyond `capacity`. A backend without any
     * gives one entry with usable 0 and the reason. */
    tamis_status (*list)(tamis_device_info *infos, size_t capacity, size_t *count);
    /* `id` is an id from list. Calls tms_device_init. */
    tamis_status (*open)(const char *id, const tms_log *log, tms_device **out, tamis_error *error);
    /* On the caller's native context and queue or stream, which it keeps. optional */
    tamis_status (*open_on)(void *context, void *queue, const tms_log *log, tms_device **out,
                            tamis_error *error);
    void (*close)(tms_device *dev); /* waits */

    /* Uninitialised memory, aligned to 64 bytes; E_NO_MEMORY with size and limit. */
    tamis_status (*alloc)(tms_device *dev, uint64_t bytes, tms_mem **out);
    /* After what is enqueued, and not before a recording has ended; accepts NULL. */
    void (*free)(tms_device *dev, tms_mem *mem);
    /* The caller's own device memory at a native address, which free only lets go. optional */
    tamis_status (*wrap)(tms_device *dev, uint64_t native, uint64_t bytes, tms_mem **out);
    /* The host's bytes are consumed when it returns; small ones (<= 1 MiB) without waiting, as long
     * as not too many are on their way. */
    tamis_status (*write)(tms_device *dev, tms_ref to, const void *from, uint64_t bytes);
    tamis_status (*read)(tms_device *dev, tms_ref from, void *to, uint64_t bytes); /* waits */
    tamis_status (*copy)(tms_device *dev, tms_ref to, tms_ref from, uint64_t bytes);
    tamis_status (*fill)(tms_device *dev, tms_ref to, uint32_t word,
                         uint64_t bytes); /* multiple of 4 */

    tamis_status (*event_record)(tms_device *dev, tms_event **out);
    tamis_status (*event_wait)(tms_device *dev, tms_event *event);
    /* Device time between two marks in microseconds; waits for the later one. */
    tamis_status (*event_elapsed)(tms_device *dev, tms_event *from, tms_event *to, double *us);
    void (*event_free)(tms_device *dev, tms_event *event);
    /* Between begin and end what is enqueued is recorded in place of running; a failed end ends it,
     * too. E_UNSUPPORTED for a queue that cannot be recorded. optional, all four */
    tamis_status (*capture_begin)(tms_device *dev);
    tamis_status (*capture_end)(tms_device *dev, tms_graph **out);
    tamis_status (*graph_launch)(tms_device *dev, tms_graph *graph);
    void (*graph_free)(tms_device *dev, tms_graph *graph);
    tamis_status (*flush)(tms_device *dev);
    tamis_status (*wait)(tms_device *dev);

    /* Best read bandwidth over `bytes` (>= 1 MiB; 96 MiB for an honest one) from `from`, GB/s
     * (1e9), all compute units, the best of several kernels and the median of several runs of it.
     * Waits. */
    tamis_status (*read_bandwidth)(tms_device *dev, tms_ref from, uint64_t bytes, double *gb_per_s);

    tamis_status (*write_rows)(tms_device *dev, const tms_write_rows *p);
    tamis_status (*read_rows)(tms_device *dev, const tms_read_rows *p);
    tamis_status (*copy_pages)(tms_device *dev, const tms_copy_pages *p);
    tamis_status (*write_table)(tms_device *dev, const tms_write_table *p);
    tamis_status (*bounds)(tms_device *dev, const tms_bounds *p);
    tamis_status (*rotate)(tms_device *dev, const tms_rotate *p);
    tamis_status (*score_pages)(tms_device *dev, const tms_score_pages *p);
    tamis_status (*page_mass)(tms_device *dev, const tms_page_mass *p);
    /* Scratch bytes for launches up to p's shape (n_rows, n_heads, n_kv_heads, stride count). */
    uint64_t (*page_mass_scratch)(tms_device *dev, const tms_page_mass *p);
    tamis_status (*select)(tms_device *dev, const tms_select *p);
    tamis_status (*attend)(tms_device *dev, const tms_attend *p);
    /* Scratch bytes for launches up to p's shape (n_rows, n_heads, head_dim, max_pages count). */
    uint64_t (*attend_scratch)(tms_device *dev, const tms_attend *p);
    tamis_status (*sparse_attend)(tms_device *dev, const tms_sparse_attend *p); /* optional */
    /* NULL: sparse_attend takes the shape; else a static reason. optional with sparse_attend. */
    const char *(*sparse_attend_refusal)(tms_device *dev, const tms_sparse_attend *p);
    tamis_status (*merge)(tms_device *dev, const tms_merge *p);
    tamis_status (*linear)(tms_device *dev, const tms_linear *p);
    tamis_status (*norm)(tms_device *dev, const tms_norm *p);
    tamis_status (*activate)(tms_device *dev, const tms_activate *p);
    tamis_status (*embed)(tms_device *dev, const tms_embed *p);
    tamis_status (*argmax)(tms_device *dev, const tms_argmax *p);
};

/* The ordered list of backends built in, ended by NULL (host/backends.c). */
extern const tms_backend *const tms_backends[];

/* ---- Helpers shared by backends (backends.c, checks.c) -------------------------------------------- */

/* n / by, rounded up. */
static inline uint64_t tms_divide_up(uint64_t n, uint64_t by) {
    return n / by + (n % by != 0);
}

/* Fills what every device begins with. */
void tms_device_init(tms_device *dev, const tms_backend *backend, const tamis_device_info *info,
                     const tms_log *log);
/* Sets dev->error and returns `status`. printf form; name the offending value. Once dev->sticky is
 * set its text stays and it is what returns. */
tamis_status tms_device_fail(tms_device *dev, tamis_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Sets *error if it is not NULL and returns `status`. */
tamis_status tms_error_set(tamis_error *error, tamis_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void tms_log_line(const tms_log *log, tamis_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Fills the table of `rotate`: f32 [2][1024][n_rot/2][2]. frequencies: [n_rot/2], in radians a
 * position. */
#define TMS_ROTATE_STEPS 1024u
#define TMS_ROTATE_LIMIT (TMS_ROTATE_STEPS * TMS_ROTATE_STEPS)
void tms_rotate_table(const double *frequencies, uint32_t n_rot, float *table);

/* checks.c: the rules of the contract, checked alike by every backend before it launches. OK, or the
 * first broken rule with its value in dev->error. */
tamis_status tms_check_kv(tms_device *dev, const tms_kv *kv);
tamis_status tms_check_batch(tms_device *dev, const tms_batch *batch);
tamis_status tms_check_bounds(tms_device *dev, const tms_bounds *p); /* its kv included */
tamis_status tms_check_dtype(tms_device *dev, const char *op, tamis_dtype dtype);
/* `used`: bytes that the device has given out already. */
tamis_status tms_check_allocation(tms_device *dev, uint64_t bytes, uint64_t used);
tamis_status tms_check_write_rows(tms_device *dev, const tms_write_rows *p);
/* What score_pages and page_mass have in common: kv, batch and the stride of the scores. */
tamis_status tms_check_scores(tms_device *dev, const char *op, const tms_kv *kv,
                              const tms_batch *batch, uint32_t stride);
tamis_status tms_check_select(tms_device *dev, const tms_select *p);
tamis_status tms_check_attend(tms_device *dev, const tms_attend *p);
tamis_status tms_check_sparse_attend(tms_device *dev, const tms_sparse_attend *p);
/* The most entries that a list of the launch may get. */
uint32_t tms_select_most(const tms_select *p);

#endif
