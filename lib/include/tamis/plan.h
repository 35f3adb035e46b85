/* SPDX-License-Identifier: Apache-2.0 */
/* The plan: runs steps, one batch after another, over a cache under a selection and an eviction. */
#ifndef TAMIS_PLAN_H
#define TAMIS_PLAN_H

#include <tamis/buffer.h>
#include <tamis/cache.h>
#include <tamis/layer.h>
#include <tamis/ops.h>
#include <tamis/policy.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Owns the page tables on the device, workspace and the step's batch. One step is:
 *   step_begin → for each layer: write (or load), attend → step_end.
 * Thread-safety: as its context. Several plans may use one cache, one step at a time. */
typedef struct tamis_plan tamis_plan;

/* Flags of a plan, or-ed. */
enum {
    /* Stage times are collected, and each stage is waited for. Without it the device collects no
     * times, since that makes some devices slower. */
    TAMIS_PLAN_TIMING = 1,
    /* The launches of a decode step depend only on its number of sequences, so that a graph (graph.h)
     * recorded between step_begin and step_end of one step serves later ones with as many sequences
     * (tamis_plan_step_mark_replayed). Launches are then sized for max_context, and short contexts use
     * lists too, with the same result. A step that is not exact must have one row per sequence. Not
     * with selection random, whose scores come from the host. */
    TAMIS_PLAN_FIXED_LAUNCHES = 2,
    /* Score, select and attend are launched one by one, also where the device can fuse them into one
     * launch or two (rows_fused stays 0). So is what an eviction adds to a step, with the same bits.
     * This is for measuring them: lists are the same, outputs differ by rounding only. */
    TAMIS_PLAN_UNFUSED = 4,
    /* tamis_plan_row_masses may be called; its kernels are built, and it has memory for one f32 of each
     * KV head and token of max_context. Not with reindexed streaming. */
    TAMIS_PLAN_ROW_MASSES = 8,
    /* Rows come by tamis_plan_write_rotated, _write_attend or tamis_plan_load_rows. The kernels of tamis_plan_write
     * are then built at its first call. */
    TAMIS_PLAN_ROTATED = 16,
    /* At a step's end, lanes of layers with a sliding window or chunks give back the pages of which no
     * row to come sees a token, nor would if the last TAMIS_KEPT_TOKENS tokens were truncated. What
     * such a lane holds is then bounded (tamis_layer_tokens). Not in a cache with planes
     * (E_UNSUPPORTED). A step whose rows would see tokens of such pages is E_STATE, as with a plan
     * whose windows are wider. */
    TAMIS_PLAN_GIVE_BACK = 32,
    /* Steps may have trees (tamis_step.parents). E_UNSUPPORTED under evictions that act within steps:
     * h2o, tova, reindexed streaming, and every kind with `every` 1; and with
     * TAMIS_PLAN_FIXED_LAUNCHES. */
    TAMIS_PLAN_TREES = 64,
    /* Under an eviction that acts within steps (h2o, tova, or every 1) sequences that are not exact may
     * bring several rows, to be verified, in steps whose layers are called by tamis_plan_write_attend.
     * Each row is attended in a layer before the next one of its sequence is written, so that it gets the
     * bits of a decode step, and which of them stay is said by tamis_plan_keep_path. max_selected_rows
     * then counts under every selection, and such a sequence counts twice among max_sequences. What rows
     * replace is kept in slots of the cache, one in each lane for each row; scores beside it, f32
     * [n_layers][max_selected_rows][n_kv_heads] of as many slots as a lane may hold. */
    TAMIS_PLAN_VERIFY = 128,
    /* q and out of attends may be f16 or bf16, each by itself: the plan has f32 rows for max_rows rows of
     * both, and the kernels that convert them. */
    TAMIS_PLAN_HALF_ROWS = 256,
    /* Under selection caller lists may be of tokens: the plan has memory for them, int32
     * [max_selected_rows][n_kv_heads][budget] for each of three tables, and the kernels that read slot by
     * slot. E_UNSUPPORTED in caches of q8, q4 and k8v4 and under h2o and tova. */
    TAMIS_PLAN_TOKEN_LISTS = 512
};

typedef struct tamis_plan_params {
    tamis_selection selection;
    uint32_t max_sequences; /* of one step; 0 means 1 */
    uint32_t max_rows;      /* of one step, all sequences together; 0 means 512 */
    uint32_t max_context;   /* longest sequence, tokens; required */
    /* Of every layer, unless there are `layers`. A selection chooses from the pages of which a row sees
     * a token, and spends its budget there. With an eviction, sliding_window and chunk need the plane of
     * positions, and go neither with `every` 1 nor with reindexed streaming. A step with a sequence from
     * which another plan has evicted by `every` 1 is E_STATE. */
    tamis_attention attention;
    /* Most rows of a step that are not exact, under a selection with lists (not full); the lists are
     * sized for it. 0 means max_sequences, one row each. */
    uint32_t max_selected_rows;
    /* Which tokens lanes keep; all zero: all of them. Needs the cache's planes
     * (tamis_eviction_planes). With every 1 and a budget that is no multiple of the page size, a
     * selection's budget must hold the pages of its sinks and two more. With
     * TAMIS_PLAN_FIXED_LAUNCHES only if `every` is 0 and the eviction does not observe decode rows
     * (not h2o, tova); reindexed streaming only with selection full. h2o and tova score every token
     * in every step: at a sequence's first step all pages that it shares with forks are copied. Under
     * them, and with `every` 1, a sequence that is not exact in a step brings one row, unless there is
     * TAMIS_PLAN_VERIFY. The last `window` queries are kept for the max_sequences sequences that were in
     * a step last, where those that were removed make room first. */
    tamis_eviction eviction;
    /* The types of rows that tamis_plan_load_rows will take, as the sum of 1 << tamis_dtype; the kernels
     * of tamis_plan_load_rows and tamis_plan_row_deviations are built for them. 0: neither is called. */
    uint32_t load_dtypes;
    /* How each layer of the cache attends, [n_layers], which is copied; `attention` must then be 0.
     * NULL: all attend by that. tamis_plan_get_params gives the plan's own, which live as long as the
     * plan; there full includes dense layers. */
    const tamis_layer *layers;
    uint32_t flags;       /* TAMIS_PLAN_*, or-ed; any other bit is E_ARGUMENT */
    uint32_t reserved32;  /* 0, else E_ARGUMENT */
    uint64_t reserved[6]; /* 0, else E_ARGUMENT */
} tamis_plan_params;

/* Tokens by which a sequence can always be truncated after its pages were given back. */
#define TAMIS_KEPT_TOKENS 32

/* The most tokens that a lane of such a layer holds within a step of at most `rows` rows of a sequence
 * under TAMIS_PLAN_GIVE_BACK, for the cache's layer_tokens; UINT64_MAX where nothing bounds it. 0 for NULL.
 * Each leaf of a tree but the first takes the rows of its path beside that, and up to a page. */
TAMIS_API uint64_t tamis_layer_tokens(const tamis_attention *attention, uint32_t page_size,
                                      uint32_t rows);

/* Allocates workspace, builds every kernel the steps and evictions will need and launches each
 * once, with no rows. Waits. Errors: E_ARGUMENT naming the parameter and value, E_UNSUPPORTED (what
 * cannot be combined with an eviction, see `eviction` and `attention`; with an eviction, max_context from 2^22 on, reindexed above 2^20; more than 1024 KV
 * heads that share a budget), E_NO_MEMORY, E_DEVICE. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_plan_create(tamis_cache *cache,
                                                          const tamis_plan_params *params,
                                                          tamis_plan **out, tamis_error *error);
/* The memory of a plan, in bytes. Beside it an op may take scratch memory of its context (the reference does),
 * and drivers keep what they like. */
typedef struct tamis_plan_memory {
    uint64_t device_bytes;  /* all buffers on the device */
    uint64_t largest_bytes; /* the largest of them */
    uint64_t host_bytes;
    uint64_t reserved[5];
} tamis_plan_memory;

/* What tamis_plan_create would take for these parameters; nothing is taken on the device. Page tables are as
 * wide as the cache can hold tokens of a lane, or as max_context: a step or an eviction makes them
 * wider where others have left lanes of unequal lengths, some longer than that. Errors:
 * E_ARGUMENT, E_UNSUPPORTED and E_NO_MEMORY as tamis_plan_create, but for ops that the device lacks. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_plan_measure(tamis_cache *cache,
                                                           const tamis_plan_params *params,
                                                           tamis_plan_memory *out,
                                                           tamis_error *error);
/* What it has taken. E_ARGUMENT: NULL. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_plan_get_memory(const tamis_plan *plan,
                                                              tamis_plan_memory *out,
                                                              tamis_error *error);
/* Accepts NULL. Gives up an open step, as tamis_plan_step_cancel. Calls on a blend of the plan that
 * is left answer E_STATE. A sequence of a step
 * under TAMIS_PLAN_VERIFY of which it is not known yet which rows stay can then only be removed. */
TAMIS_API void tamis_plan_destroy(tamis_plan **plan);
/* The parameters that the plan was made with, defaults filled in. Does nothing without a plan or an
 * `out`. */
TAMIS_API void tamis_plan_get_params(const tamis_plan *plan, tamis_plan_params *out);
/* The cache over which it runs. NULL for NULL. */
TAMIS_API tamis_cache *tamis_plan_cache(const tamis_plan *plan);

/* The rows of one step: sequence i has rows[i] new tokens, which get the next positions of the
 * sequence. Rows of a sequence are adjacent and in the order of `sequences`; no sequence twice. */
typedef struct tamis_step {
    const tamis_sequence *sequences;
    const uint32_t *rows; /* NULL: one row each */
    uint32_t count;
    /* Nonzero: every row reads every page that it may see (prefill). Zero: rows read the pages that
     * the selection selects. Under an eviction with `every` 1 a row of a step that is not exact
     * takes a token's place where a lane holds its budget. Rows of an exact step make lanes longer:
     * they are a prompt's, behind which tamis_plan_evict comes before the next decode step. So a
     * single row of a sequence that has been evicted from, and whose longest lane holds the budget,
     * is no part of an exact step (E_STATE). */
    int exact;
    /* A mixed step: sequences from this index on are exact, as prompts' chunks are, those before it are
     * not, as decode rows and rows to be verified are. Each attends and is evicted from as in a step
     * of its kind alone, with the same bits. 0: all are as `exact` says; else `exact` must be 0. Not
     * with TAMIS_PLAN_FIXED_LAUNCHES. */
    uint32_t exact_from;
    uint32_t reserved32; /* 0, else E_ARGUMENT */
    /* Trees, for speculative decoding: the row behind which each row stands, counted among the rows of
     * its sequence; TAMIS_NO_ROW: behind the sequence's last token. NULL: each stands behind the row before
     * it. A row sees the tokens of the sequence before the step, the rows on the path to it, and itself;
     * its position follows from how many these are. It gets the bits that it gets where its path is
     * run alone (on CUDA, those of tiles excepted). Rows come depth first: a row stands behind the row
     * before it or behind one that that row stands behind. Behind the step tamis_plan_keep_path says
     * which path stays.
     * A leaf but the first has a branch: pages of its own from the first that the step writes on, and
     * a row of the page tables. So it counts among max_sequences, and all rows of its path count among
     * max_rows. The queries of a tree's rows are not kept: an eviction with a window may come behind
     * it once `window` rows more have been run. */
    const uint32_t *parents;
    uint64_t reserved[2]; /* 0, else E_ARGUMENT */
} tamis_step;

/* The pages of the cache that a step would take, all pools together. */
typedef struct tamis_step_pages {
    uint64_t needed; /* for tokens that find no free slot in their lanes' pages, and for copies */
    uint64_t copied; /* of these, copies of shared pages into which the step writes */
    uint64_t free;   /* pages that no lane holds now */
    /* The pages that pools lack, summed over the pools. 0: the step fits. Else
     * tamis_plan_step_begin would answer E_FULL. */
    uint64_t missing;
    uint64_t reserved[4];
} tamis_step_pages;

/* Says which pages tamis_plan_step_begin would take for the step if it were called now, so that an
 * engine can choose which sequences to continue and which prompts to begin. Exact. Changes nothing,
 * calls no device and never waits. Errors: E_ARGUMENT and E_STATE as tamis_plan_step_begin; E_NO_MEMORY
 * where the host has none for a tree or for what is kept of rows that are verified. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_plan_step_pages(tamis_plan *plan,
                                                              const tamis_step *step,
                                                              tamis_step_pages *out,
                                                              tamis_error *error);

/* Reserves the pages of all layers and enqueues the step's tables. This is the only call of a step
 * that can run out of memory: E_FULL with the pages needed and free, E_NO_MEMORY where the host has
 * no memory for longer page lists or the driver none for the tables; then nothing has changed.
 * Errors: E_ARGUMENT (unknown sequence, more than max_rows or max_selected_rows, context exceeded,
 * with the numbers), E_STATE (a step is open, or a call that was to compute bounds failed half way:
 * then call tamis_cache_set_bounds first). Enqueues, as tamis_buffer_write. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_plan_step_begin(tamis_plan *plan,
                                                              const tamis_step *step,
                                                              tamis_error *error);

/* Writes the step's K and V rows of a layer: [rows][n_kv_heads][head_dim], already rotated, f32 or
 * the cache's dtype, f32 if that is q8, k8v4 or q4; then computes the bounds of pages that became
 * full. Errors: E_ARGUMENT (NULL; a layer that there is not; k or v without a buffer, of another
 * context, of another dtype, or past its buffer, with the numbers), E_STATE (no open step; the layer
 * has been written or attended; tamis_plan_step_keep_rows has failed and was not repeated, or has left out
 * rows that were not loaded); then nothing has changed. After E_NO_MEMORY and E_DEVICE the layer can
 * be written again. Enqueues. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_plan_write(tamis_plan *plan, uint32_t layer,
                                                         const tamis_rows *k, const tamis_rows *v,
                                                         tamis_error *error);

/* The step's rows of a layer as a model's matrices give them, not yet rotated; all f32. They
 * may be interleaved in one buffer, at equal strides, as those of one matrix product for q, k and v
 * are, but no two share an element. */
typedef struct tamis_rotated_rows {
    tamis_rows q;   /* [rows][n_heads][head_dim], changed in place */
    tamis_rows k;   /* [rows][n_kv_heads][head_dim], changed in place */
    tamis_rows v;   /* [rows][n_kv_heads][head_dim] */
    tamis_rotation rotation;
    tamis_place positions; /* int32 [rows]; absolute values below TAMIS_ROTATE_LIMIT */
    /* RMSNorm of each head of q and of k before it is rotated, as tamis_op_norm's (Qwen3): f32
     * [head_dim]; either may be absent: no norm. */
    tamis_place q_norm, k_norm;
    float eps;
    uint32_t reserved32;  /* 0, else E_ARGUMENT */
    uint64_t reserved[4]; /* 0, else E_ARGUMENT */
} tamis_rotated_rows;

/* tamis_op_rotate on q and on k, then tamis_plan_write of k and v, as one launch with the same bits;
 * with norms, tamis_op_norm on each head before that. q is then what tamis_plan_attend takes. Where
 * the call fails after E_ARGUMENT and E_STATE have been ruled out, q and k may be as they were or
 * changed: compute them again before it is repeated. Errors: as tamis_plan_write; E_ARGUMENT also
 * for rows that are not f32 or share elements, for n_rot, pairing and places. Enqueues. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_plan_write_rotated(tamis_plan *plan, uint32_t layer,
                                                                 const tamis_rotated_rows *rows,
                                                                 tamis_error *error);

/* Attends the step's rows of a layer: q and out are [rows][n_heads][head_dim] f32, with
 * TAMIS_PLAN_HALF_ROWS each of f32, f16 or bf16; out is then rounded to nearest even. Rows see the
 * tokens before them and themselves. In one buffer the bytes from the first to the last element of
 * q and those of out must not overlap (E_ARGUMENT). Under h2o, which sums the weights of rows, a
 * second call for the same layer and step is E_STATE, also if the first one failed after it had
 * begun to add weights. q·k is summed in fp32: where Σ|q_d·k_d|, or scale times it, exceeds 3.4e38
 * the row's out of that head may be NaN, though queries and keys are finite. Enqueues. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_plan_attend(tamis_plan *plan, uint32_t layer,
                                                          const tamis_rows *q,
                                                          const tamis_rows *out,
                                                          tamis_error *error);

/* What the entries of a caller's lists are. */
typedef enum tamis_list_unit {
    TAMIS_LIST_PAGES = 0, /* ordinals of pages of the lane */
    TAMIS_LIST_TOKENS = 1 /* slots of the lane; with TAMIS_PLAN_TOKEN_LISTS */
} tamis_list_unit;

/* Lists of selection caller: which pages or tokens each (row, KV head) reads, for the rows of a step that
 * are not exact, which come first. A list may name any it sees, in ascending order, or none: then out is
 * 0 and lse -infinity. Nothing is read beside it, not even the row's own token. An entry that is negative,
 * at or behind the end of what the row sees, before the page or slot in which its sliding window begins, or not
 * above every entry that was taken before it, is skipped and counted (tamis_plan_read_skipped); so is a
 * count below 0 or above capacity, in whose place 0 or capacity is taken. In a page that reaches beyond
 * what the row sees it reads what it sees. */
typedef struct tamis_caller_lists {
    tamis_place entries; /* int32 [rows][n_kv_heads][capacity], on the device */
    tamis_place count;   /* int32 [rows][n_kv_heads] */
    /* Or the same on the host, in their place; they may be reused when the call returns. E_UNSUPPORTED in
     * steps with TAMIS_PLAN_FIXED_LAUNCHES, whose graphs would repeat them. */
    const int32_t *host_entries, *host_count;
    uint32_t capacity;    /* from 1 to the budget, in pages rounded down */
    tamis_list_unit unit; /* of all lists of the call */
    uint64_t reserved[4]; /* 0, else E_ARGUMENT */
} tamis_caller_lists;

typedef struct tamis_plan_attend_params {
    tamis_rows q, out; /* as tamis_plan_attend's */
    /* f32 [rows][n_heads], may be absent: the natural log of the sum of each softmax, sink logits among
     * it, by which states of several attends merge (tamis_op_merge). Of a row that sees nothing -infinity. */
    tamis_place lse;
    /* Under selection caller; NULL where no row of the layer reads lists: in exact steps and layers that are
     * full or dense. There they are not looked at. */
    const tamis_caller_lists *lists;
    uint64_t reserved[6]; /* 0, else E_ARGUMENT */
} tamis_plan_attend_params;

/* tamis_plan_attend with what else may be given. Errors: as that call; E_ARGUMENT also for an lse that does
 * not fit or overlaps q or out, for lists under another selection, for rows that lack theirs, with the
 * layer, and for lists that do not fit or are longer than the budget. What lists hold is never an error.
 * Enqueues. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_plan_attend_with(
    tamis_plan *plan, uint32_t layer, const tamis_plan_attend_params *params, tamis_error *error);
/* Selection caller: how many entries and counts of lists were skipped since the plan was made, modulo 2^32;
 * a layer that is attended again counts again.
 * E_ARGUMENT: NULL; E_STATE: another selection. Waits. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_plan_read_skipped(tamis_plan *plan, uint64_t *count,
                                                                tamis_error *error);

/* tamis_plan_write_rotated of the rows, then tamis_plan_attend of their q: out has the same bits. Both
 * are one launch where the device has one for that: on CPUs by OpenCL, in decode steps of plans with
 * TAMIS_PLAN_ROTATED, unless an eviction takes part in the step or the selection waits for the bounds of
 * a page that has become full. q and k are then not changed, else as by tamis_plan_write_rotated: what
 * they hold behind the call is not said. The bytes of out from the first to the last element must not
 * overlap those of q, k and v (E_ARGUMENT). Under selection caller it serves steps alone whose rows read no
 * lists (else E_ARGUMENT). Errors: as both calls; what either would refuse is refused
 * before anything is enqueued. Where the call fails after that, compute q and k again before it is
 * repeated; it answers E_STATE if the layer has been written and only attending failed: cancel the step
 * then. Enqueues.
 *
 * A layer of a step with several rows of a sequence under TAMIS_PLAN_VERIFY takes this call alone; rows that
 * are rotated already come with rotation.table absent. Repeated after a failure it goes on with the
 * row at which it failed: out must be the same, q and k those of all rows. Under h2o it answers E_STATE
 * once weights may have been added: cancel the step then. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_plan_write_attend(tamis_plan *plan, uint32_t layer,
                                                                const tamis_rotated_rows *rows,
                                                                const tamis_rows *out,
                                                                tamis_error *error);

/* Leaves rows out of an open step that is exact: from now on write and attend take only the rows
 * that are named, in this order; q, k, v and out of later calls have n rows. Rows are indices into
 * the step's rows as begun, ascending; a further call may leave out more of them. Each row keeps its
 * position and its slots, and sees what it saw before. A sequence may be left without rows, the step
 * may not.
 *
 * For what is computed for few rows of a prompt: a layer's K and V are written for all of them, and
 * the rest of the layer is computed for those whose output is needed. In a layer that was not written
 * before, the other rows would hold nothing: there their K and V must be loaded (tamis_plan_load_rows)
 * before the layer can be written or attended, else E_STATE.
 *
 * An eviction with a window scores by the last `window` rows of a sequence, tova by its last row:
 * they must stay (E_ARGUMENT), under h2o the last row, too. h2o sums the weights of the rows that are
 * attended: rows that were left out add nothing. Reindexed streaming attends twice: E_UNSUPPORTED.
 * Other errors: E_ARGUMENT (rows that are not ascending, not of the step, or left out
 * before), E_STATE (no open step, or one that is not exact); then nothing has changed. After E_DEVICE
 * calls on layers answer E_STATE until the call has been repeated. Enqueues, as tamis_buffer_write. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_plan_step_keep_rows(tamis_plan *plan,
                                                                  const uint32_t *rows, uint32_t n,
                                                                  tamis_error *error);

/* Rows of a layer that were stored, as tamis_plan_load_rows takes them. */
typedef struct tamis_stored_rows {
    /* [n_rows][n_kv_heads][head_dim], f32, f16 or bf16, one type for both. k as the model's matrix
     * gives it, before a norm of its heads and before its rotation. Either may be absent (its buffer
     * NULL): then the slots keep what they hold of it. */
    tamis_rows k, v;
    tamis_rotation rotation; /* of k; not needed without k */
    tamis_place k_norm; /* as in tamis_rotated_rows, with eps; may be absent */
    float eps;
    uint32_t reserved32;  /* 0, else E_ARGUMENT */
    uint64_t reserved[4]; /* 0, else E_ARGUMENT */
} tamis_stored_rows;

/* Loads K, V or both of rows [first_row, first_row + n_rows) of an open step that is exact into their
 * slots in a layer. Rows are counted as the step was begun, also where it has been narrowed since. K
 * is normalised and rotated on its way, each row to the position that it has in its sequence; loaded
 * f32 rows have the bits that tamis_plan_write_rotated leaves of the same rows. Rows may be loaded in
 * any number of calls, and again. A layer takes loads until it is written or attended:
 *
 * - tamis_plan_write and tamis_plan_write_rotated write the rows that the step still has, over what
 *   was loaded of them. Both K and V of all others must have been loaded.
 * - tamis_plan_attend and tamis_plan_step_end take a layer that was not written if both K and V of
 *   all rows, as begun, have been loaded. The step's end then computes its bounds.
 *
 * Errors: E_ARGUMENT (no rows, or rows past the step's, with the numbers; neither k nor v; two types,
 * or one that is not in load_dtypes; as tamis_plan_write_rotated for n_rot, pairing and places; a
 * position from TAMIS_ROTATE_LIMIT on), E_STATE (no open step, or one that is not exact; the plan was
 * made without load_dtypes; the layer has been written or attended); then nothing has changed. After
 * E_DEVICE what was to be loaded counts as not loaded. Enqueues, as tamis_buffer_write. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_plan_load_rows(tamis_plan *plan, uint32_t layer,
                                                             uint32_t first_row, uint32_t n_rows,
                                                             const tamis_stored_rows *rows,
                                                             tamis_error *error);

/* How far rows that were computed are from those that the layer holds in their slots: out is f32
 * [rows], for each row that the open exact step still has the sum of squares of the differences over
 * KV heads and channels, +infinity for a NaN; 0 for a row of which the layer holds nothing, as it was
 * neither written nor loaded (also after a load that failed): who ranks rows puts these first by
 * itself. norms, which may be NULL, is f32 [rows]: the sum of squares of the row
 * itself, likewise. rows is f32 [rows][n_kv_heads][head_dim]: V if `values` is nonzero, else K,
 * rotated. Errors: as tamis_plan_load_rows; E_ARGUMENT also where bytes of two of rows, out and
 * norms overlap. Enqueues, as tamis_buffer_write. */
TAMIS_API TAMIS_MUST_CHECK tamis_status
tamis_plan_row_deviations(tamis_plan *plan, uint32_t layer, const tamis_rows *rows, int values,
                          const tamis_place *out, const tamis_place *norms, tamis_error *error);

/* How much the last rows of an open exact step of one sequence attend to each of its rows: adds to
 * mass[i], i a row as the step was begun, the attention weights of row i's token, summed over query
 * heads and over the `last` last rows that the step still has. A row's weights over all tokens that
 * it sees sum to 1 for each query head; tokens of the sequence before the step take their part. A
 * token that a row does not see, behind it or outside its sliding window, gets 0. q is f32
 * [rows][n_heads][head_dim], of all rows that the step still has, as tamis_plan_attend takes it;
 * mass is on the host, [rows as begun]. The layer must hold all rows: written, or loaded as a whole.
 * The rows are attended for this alone: beside tamis_plan_attend K is read twice and V once. Sums
 * over rows and the query heads of a KV head are f32, those over KV heads and calls fp64. A NaN in q
 * or K gives NaN.
 *
 * Errors: E_ARGUMENT (`last` is 0 or more than the step's rows; q that is not f32 or does not fit;
 * mass is NULL), E_STATE (no open step, or one that is not exact or has several sequences; the plan
 * was made without TAMIS_PLAN_ROW_MASSES; the layer does not hold all rows), E_DEVICE; then nothing has been
 * added. Waits. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_plan_row_masses(tamis_plan *plan, uint32_t layer,
                                                              const tamis_rows *q, uint32_t last,
                                                              double *mass, tamis_error *error);

/* Tells the plan that a replayed graph writes and attends every layer of the open step, in the
 * place of the calls above. The plan counts them as done, so that the step can be closed. The graph
 * must have been recorded under this plan in a step with as many sequences, with the same buffers,
 * since bounds last changed (tamis_cache_set_bounds). Launch it after step_begin, best after this
 * call, which may refuse. Errors: E_STATE (no open step; a layer was written already; the step is
 * exact; the plan has no TAMIS_PLAN_FIXED_LAUNCHES; no step with as many sequences was called layer by layer
 * since bounds last changed). Calls no device. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_plan_step_mark_replayed(tamis_plan *plan,
                                                                      tamis_error *error);

/* Closes the step. Errors: E_STATE if a layer was neither written nor loaded as a whole, E_DEVICE; the
 * step then stays open and can be cancelled. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_plan_step_end(tamis_plan *plan, tamis_error *error);

/* Gives up an open step: its rows are truncated away. Where lanes stay at their length (evictions
 * with `every` 1), rows whose write was begun have replaced tokens. The sequence's next step must
 * then be a decode step under the same budget, whose rows replace those rows; until then other
 * steps and evictions answer E_STATE. But the rows of a sequence that has brought several
 * (TAMIS_PLAN_VERIFY) are undone; where the device fails at that, the sequence can only be removed. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_plan_step_cancel(tamis_plan *plan,
                                                               tamis_error *error);

/* Of the rows that a sequence brought to its last step, keeps those on the path to `row`, counted among
 * them, and the row itself; the others are truncated away. TAMIS_NO_ROW: keeps none.
 *
 * - Where the rows were a tree, the path's pages become the sequence's: nothing is moved. Any plan of the
 *   cache may be given. Until the call the sequence has the length of the first path.
 * - Where they have taken the places of tokens (TAMIS_PLAN_VERIFY), the tokens, their scores and bounds
 *   come back, so that the sequence is what steps of the kept rows alone would have left. Only the plan
 *   whose step it was can do so. Until the call this plan's steps answer E_STATE, and so may
 *   evictions of it from a sequence that was not in the step. After E_DEVICE the call may be
 *   repeated, with as many rows or fewer.
 *
 * Until the call, a sequence of either kind can only be removed: what would read or change it answers
 * E_STATE. Other errors: E_ARGUMENT (unknown sequence; no such row, with the numbers), E_STATE (the
 * sequence is in an open step; for rows that are neither as tamis_cache_truncate), E_DEVICE.
 * Enqueues. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_plan_keep_path(tamis_plan *plan,
                                                             tamis_sequence sequence, uint32_t row,
                                                             tamis_error *error);

/* What an eviction needs beside its numbers; tamis_eviction_needs says which of these must be
 * bound. Each may be called between steps only (E_STATE), and replaces what was bound before. */

/* criticalkv, critical-adakv, defensivekv: the output projection of a layer, f32, f16 or bf16,
 * [n_rows][n_heads*head_dim], the model's matrix that multiplies the attention's out. The buffer
 * stays the caller's, who keeps its content; where it is destroyed, its memory stays for the plan.
 * Errors of the three: E_ARGUMENT (NULL; a kind that does not take it; a layer, rows or numbers that
 * do not fit, with the value), E_STATE, E_NO_MEMORY, E_DEVICE. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_plan_bind_output(tamis_plan *plan, uint32_t layer,
                                                               const tamis_rows *w, uint32_t n_rows,
                                                               tamis_error *error);
/* streaming with TAMIS_EVICT_REINDEX: how queries were rotated. The table stays the caller's, who
 * keeps its content; where its buffer is destroyed, its memory stays for the plan. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_plan_bind_rotation(tamis_plan *plan,
                                                                 const tamis_rotation *rotation,
                                                                 tamis_error *error);
/* A budget for each KV head, [n_layers][n_kv_heads], in place of the eviction's (such as HeadKV's
 * tables); for snapkv, criticalkv and caller. Each must pass tamis_eviction_check. Copied; NULL
 * removes them. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_plan_bind_budgets(tamis_plan *plan,
                                                                const uint32_t *budgets,
                                                                tamis_error *error);

/* What an eviction did. Tokens and pages over all lanes. */
typedef struct tamis_evicted {
    uint64_t tokens_before, tokens_kept;
    uint64_t pages_returned; /* to the pool: pages that no other sequence holds */
    uint64_t bytes_returned; /* of these pages, with their bounds and planes */
    /* The pages that the pools have gained: pages_returned, less the new pages taken for kept
     * tokens whose pages other sequences share. Negative where the new ones are more. */
    int64_t pages_net;
    uint64_t reserved[8];
} tamis_evicted;

/* Evicts from one sequence, between steps: at its prompt's end, or when the caller wants. Lanes of
 * at most their budget keep all tokens. A sequence that shares pages with this one is never
 * changed.
 *
 * Evictions with a window need the queries of the last `window` rows. These rows must have been
 * attended under this plan, in any steps, under TAMIS_PLAN_FIXED_LAUNCHES in exact ones; otherwise E_STATE
 * names the positions whose queries the plan has. A fork inherits its parent's queries up to the
 * fork. Until the fork's own first step or eviction, each new row of the parent overwrites the
 * oldest of them.
 *
 * h2o, tova and knorm need scores from all rows but those that were left out: E_STATE names the
 * positions of rows without scores, which were run under a plan with another eviction or, for h2o
 * and tova, not attended in every layer. A decode step that would replace a token gives the same error.
 *
 * E_STATE also if the window's tokens are not the last slots of every lane, or if the sinks (of an
 * eviction with a window, or of caller) are not the first: after decode steps with `every` 1, or
 * after evictions that have removed some of these tokens.
 *
 * Other errors: E_FULL (copies of shared pages), before anything has changed; E_ARGUMENT (unknown
 * sequence; kind none or caller); E_STATE (a step is open; something that the kind needs is not
 * bound); E_DEVICE. After a failure half way each layer is either evicted from or unchanged, and
 * another call evicts from the rest, with the same result. There are two exceptions: where all
 * layers share one budget the next call answers E_STATE, since the layers no longer hold the same
 * tokens; and where the failed call was to compute bounds, tamis_cache_set_bounds must be called
 * first.
 *
 * Enqueues; where heads share a budget it waits for the counts. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_plan_evict(tamis_plan *plan, tamis_sequence sequence,
                                                         tamis_evicted *out, tamis_error *error);
/* Kind caller: keeps the tokens of each lane with the best scores, by (score desc, slot desc), and
 * always the sinks and the last `window` tokens. scores f32 [n_layers][n_kv_heads][stride], slot by
 * slot; they may be reused when the call returns. Errors: those of tamis_plan_evict; E_ARGUMENT also
 * for scores NULL, a stride below a lane's slots, and a plan of another kind. */
TAMIS_API TAMIS_MUST_CHECK tamis_status
tamis_plan_evict_by_scores(tamis_plan *plan, tamis_sequence sequence, const float *scores,
                           uint64_t stride, tamis_evicted *out, tamis_error *error);
/* Kind caller: keeps exactly the listed slots, ascending, at least one per lane: slots uint32
 * [n_layers][n_kv_heads][stride], counts [n_layers][n_kv_heads]; the budget is ignored.
 * E_ARGUMENT names the lane and entry that break the rule; then nothing has changed. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_plan_evict_to(tamis_plan *plan,
                                                            tamis_sequence sequence,
                                                            const uint32_t *slots,
                                                            const uint32_t *counts, uint64_t stride,
                                                            tamis_evicted *out, tamis_error *error);

/* The page ordinals (indices in the lane's page list) that the last attend since step_begin read
 * for (row, kv_head), ascending; *count is always the full number. They are all pages if the
 * selection was not needed; under a sliding window those from its first token on. By lists of tokens:
 * the slots. Errors: E_ARGUMENT
 * (NULL; a row or KV head that there is not), E_STATE (no layer has been attended in this step),
 * E_DEVICE. Waits. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_plan_read_selected(tamis_plan *plan, uint32_t row,
                                                                 uint32_t kv_head, uint32_t *pages,
                                                                 uint32_t capacity, uint32_t *count,
                                                                 tamis_error *error);

/* Counters that prove which path ran, since creation or the last reset. One "row" here is one query
 * token in one layer. */
typedef struct tamis_plan_counters {
    uint64_t steps;
    uint64_t rows_written;
    uint64_t rows_exact;    /* attended in exact steps */
    uint64_t rows_full;     /* selection is full, or the layer is dense */
    uint64_t rows_short;    /* context within the budget: all pages are read, without lists */
    uint64_t rows_selected; /* attended by lists */
    uint64_t rows_fused;    /* of rows_selected, those in a fused launch */
    uint64_t pages_copied;  /* copy on write */
    uint64_t pages_bounded; /* bounds computed */
    uint64_t
        kv_bytes_read; /* K and V of the pages read, by decode rows (steps that are not exact); by lists of
                          the caller as many as the budget has, but no more than there are */
    uint64_t bounds_bytes_read; /* by scoring: bounds; for oracle the keys, once per KV head */
    uint64_t kv_bytes_full;   /* what full would have read for the same rows, under the same sliding
                               window */
    uint64_t evictions;       /* calls that evicted a token */
    uint64_t tokens_evicted;  /* by those, over all lanes */
    uint64_t tokens_replaced; /* in decode steps at fixed lane lengths */
    uint64_t rows_observed;   /* rows whose weights were added to scores, in steps */
    uint64_t rows_loaded;     /* by tamis_plan_load_rows: their K, their V or both, each time */
    uint64_t reserved[16];
} tamis_plan_counters;

TAMIS_API void tamis_plan_get_counters(const tamis_plan *plan, tamis_plan_counters *out);
TAMIS_API void tamis_plan_reset_counters(tamis_plan *plan);

/* Device time of the stages since creation or reset, in microseconds; zero without TAMIS_PLAN_TIMING.
 * Where an OpenCL driver gives no times, the host's time from one wait to the next is taken, and an
 * info line says so. */
typedef struct tamis_plan_times {
    /* write_us: also loading. Where one launch writes and attends, attend_us or fused_us has both. */
    double write_us, bounds_us, score_us, select_us, attend_us, fused_us;
    /* Evicting: observing rows or scoring their keys and replacing in steps, and tamis_plan_evict as
     * a whole. Where one launch does more, replace_us has writing and bounds, too, and attend_us
     * observing. */
    double observe_us, replace_us, evict_us;
    /* The part of fused_us that scores and selects; 0 where one launch does all. */
    double fused_select_us;
    double reserved[16];
} tamis_plan_times;
TAMIS_API void tamis_plan_get_times(const tamis_plan *plan, tamis_plan_times *out);

#ifdef __cplusplus
}
#endif
#endif
