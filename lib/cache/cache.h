/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of the cache: pools, sequences with their lanes, and the changes that a plan's step
 * makes to them. */
#ifndef TMS_CACHE_H
#define TMS_CACHE_H

#include "lib/cache/changes.h"
#include "lib/cache/pages.h"
#include "lib/core/core.h"
#include <tamis/cache.h>

/* Memory that consecutive layers share; page ids are flat within it. */
typedef struct tms_pool {
    tms_mem *data;   /* [pages][K, V][page_size][head_dim] */
    tms_mem *bounds; /* [pages][lo, hi][head_dim] */
    /* [pages][page_size], 4 bytes a slot; NULL where the cache lacks the plane. */
    tms_mem *positions, *scores;
    uint32_t first_layer, n_layers;
    tms_pages pages;
} tms_pool;

/* The tokens of one (sequence, layer, KV head). Its list has ceil(length / page_size) pages, of which
 * it no longer holds the first `gone`: entries of these are ids of pages that others may hold. */
typedef struct tms_lane {
    uint32_t length; /* slots */
    uint32_t grown;  /* slots that the latest reserve added */
    uint32_t gone;   /* only in caches without planes, and of branches */
} tms_lane;

/* Who keeps something of a sequence beside the cache. Each has marks of its own, so that none makes
 * another forget. */
typedef enum tms_keeper { TMS_KEEPS_QUERIES, TMS_KEEPS_TOKENS, TMS_KEEPERS } tms_keeper;

/* Cuts: tokens that were truncated from a sequence's end. */
typedef struct tms_cuts {
    uint64_t n; /* from 1 on; grows with every cut */
    /* The least length that the sequence has had since n was `marked`; UINT32_MAX: not cut
     * since. */
    struct {
        uint64_t marked;
        uint32_t least;
    } of[TMS_KEEPERS];
} tms_cuts;

struct tms_sequence;

/* A tree that a sequence has, or has had (branches.c). Rows come depth first: a row stands behind the row
 * before it, or behind one that that row stands behind; so the rows of a branch that no earlier one
 * has are adjacent. */
typedef struct tms_tree {
    uint32_t n_rows;     /* 0: no path is to be chosen */
    uint32_t length;     /* of the sequence before them */
    uint32_t n_branches; /* leaves */
    /* [n_rows] The row behind which each stands, TAMIS_NO_ROW: the sequence's last token; rows before it
     * on its path; the first branch that has it. */
    uint32_t *parent, *depth, *branch;
    struct tms_sequence **branches;         /* [n_branches]; the first is the sequence itself */
    uint32_t row_capacity, branch_capacity; /* of the arrays; */
    uint32_t n_made;                        /* and how many branches there are objects for */
} tms_tree;

/* Lanes are numbered layer * n_kv_heads + KV head. */
typedef struct tms_sequence {
    tamis_sequence id;
    uint32_t length;       /* tokens: the next position */
    uint32_t stepped_from; /* its length before its last step, or a smaller one since */
    /* Its history, see history.c. */
    uint32_t evicted_at; /* length when a lane lost a token last; 0: none has */
    bool unordered;      /* some lane's slots are not in the order of their tokens */
    /* A call that chose among the slots of all layers failed half way: some layers hold the slots
     * that it chose, others still all. */
    bool torn;
    /* Rows that had replaced tokens could not be undone: what lanes hold is not known. */
    bool lost;
    /* Every lane ends with all tokens from that position on, in their order; at most evicted_at. */
    uint32_t intact_from;
    /* The least length at which what the next row sees is all held; 0 unless pages are gone. */
    uint32_t shortest;
    /* Not 0: lanes of this many slots may hold rows of a cancelled step, until the next step under
     * the same cap overwrites them. */
    uint32_t given_up;
    /* The origin of the plane of scores: `scored_by` is a number that the plan gave. The scores are
     * from the weights of all rows below scored_to; if scored_newest, of the newest of them
     * only. */
    uint32_t scored_by; /* 0: the plane holds no scores */
    bool scored_newest;
    uint32_t scored_to;
    tms_cuts cuts;
    tamis_sequence parent; /* that it was forked from; 0: it was added */
    uint32_t forked_at;    /* the parent's length at the fork, */
    tms_cuts parent_cuts;  /* and its cuts at the fork */
    tms_changes changes;   /* of its page lists */
    uint64_t branched;     /* of a branch: the state of its trunk's lists when it began last, */
    uint32_t least_gone;   /* and the least `gone` of its lanes then */
    bool in_step;
    tms_tree *tree; /* NULL: it has had none */
    /* Of a branch: the sequence whose pages it reads where its own are `gone`. Of a journal: its
     * sequence. */
    const struct tms_sequence *trunk;
    /* See journal.c. NULL: it has had none. Without slots: it has none now. */
    struct tms_sequence *journal;
    tms_lane *lanes; /* [n_lanes] */
    int32_t *pages;  /* [n_lists][list_pages] */
    uint32_t list_pages;
    bool one_list; /* of a view */
} tms_sequence;

/* The growth of one sequence in a step. A lane that has no room for all of the rows below its cap
 * stays at the cap, and the step may overwrite any of its slots. */
typedef struct tms_growth {
    tms_sequence *sequence;
    uint32_t rows;
    /* Of a branch: how many of these, the first ones, earlier branches bring. Of a journal: all. */
    uint32_t shared;
    uint32_t cap; /* most slots of a lane; UINT32_MAX: no limit */
    bool scores;  /* the step changes the scores of all slots: no page stays shared */
} tms_growth;

/* Page copies that must be made after a reserve and before anything is written: pairs (from, to) of
 * page ids, pool after pool. Room for tms_copies_room pairs; without caps, for every lane of every
 * sequence of the step. */
typedef struct tms_copies {
    int32_t *pairs;
    uint32_t *count; /* [pools] */
} tms_copies;

/* Of a view: memory of the caller's. */
typedef struct tms_view {
    tms_kv *layers;   /* [n_layers] */
    tms_mem **bounds; /* [n_layers], the view's own */
    uint32_t n_pages; /* page ids are below it */
} tms_view;

struct tamis_cache {
    tms_life life;
    tamis_context *context;
    tamis_cache_params params; /* with defaults filled in */
    tamis_cache_size size;
    uint32_t n_lanes; /* of one sequence */
    uint32_t n_lists; /* its page lists: n_lanes, or 1 in a view, where it serves all lanes */
    tms_pool *pools;  /* [size.pools]; a view has none */
    tms_view *view;   /* NULL: pages are the cache's own */
    /* An id is a serial number of the process * 2^24 + index in `sequences`, or TMS_UNLISTED; free
     * entries are NULL. */
    tms_sequence **sequences;
    uint32_t n_sequences, sequence_capacity;
    bool step_open;
    tms_copies copies; /* of the latest reserve, for a rollback if they were not made */
    /* Since a call failed, bounds of some full pages do not fit their keys or are of another kind:
     * no step may begin before all have been computed anew. */
    bool bounds_missing;
    uint64_t bounds_serial; /* from 1 on; grows with every change of the kind of bounds */
};

/* The last bits of an id, where a cache does not list the sequence, which is a branch. */
#define TMS_UNLISTED ((1u << 24) - 1)

/* Checks the parameters and computes the memory of such a cache; fills defaults into `params`. */
tamis_status tms_cache_measure(const tms_device *dev, tamis_cache_params *params,
                               tamis_cache_size *size, tamis_error *error);

/* The tokens for which a layer has room. */
static inline uint64_t tms_layer_capacity(const tamis_cache_params *params, uint32_t layer) {
    const uint64_t own = params->layer_tokens ? params->layer_tokens[layer] : 0;
    return own ? own : params->capacity_tokens;
}

/* Pages of layers [first, first + n), which have capacities of their own. */
uint64_t tms_layers_pages(const tamis_cache_params *params, uint32_t first, uint32_t n);

/* Layers [*first, *first + result) belong to pool `pool`. */
uint32_t tms_pool_layers(const tamis_cache_params *params, uint32_t n_pools, uint32_t pool,
                         uint32_t *first);

/* NULL if there is no such sequence. */
tms_sequence *tms_cache_find(const tamis_cache *cache, tamis_sequence id);

/* Finds a sequence that no open step works on; the second also refuses one that has a tree or a journal,
 * or is lost. E_ARGUMENT, E_STATE. */
tamis_status tms_cache_find_still(const tamis_cache *cache, tamis_sequence id, tms_sequence **out,
                                  tamis_error *error);
tamis_status tms_cache_find_idle(const tamis_cache *cache, tamis_sequence id, tms_sequence **out,
                                 tamis_error *error);

/* Keeps the first `length` tokens of an idle sequence, at most its present length and at least its
 * evicted_at. */
void tms_sequence_shorten(tamis_cache *cache, tms_sequence *sequence, uint32_t length);

/* An empty sequence that the cache does not list, with room for `list_pages` pages a lane; NULL: no
 * memory. */
tms_sequence *tms_sequence_new(const tamis_cache *cache, uint32_t list_pages);
/* Makes the host's page lists long enough for lanes of so many slots more; false: no memory. */
bool tms_sequence_make_room(const tamis_cache *cache, tms_sequence *sequence, uint32_t slots);
/* Keeps the first `length` tokens of an idle sequence. E_ARGUMENT, E_STATE: what it holds does not
 * allow that. */
tamis_status tms_sequence_truncate(tamis_cache *cache, tms_sequence *sequence, uint32_t length,
                                   tamis_error *error);

/* Frees the host's part of a sequence and of its branches, not their pages; accepts NULL. */
void tms_sequence_free(tms_sequence *sequence);

/* Pages that no lane holds, of all pools. */
uint64_t tms_cache_free_pages(const tamis_cache *cache);

/* The pool of a layer. */
tms_pool *tms_cache_pool(const tamis_cache *cache, uint32_t layer);

/* A layer's memory as the ops see it. */
tms_kv tms_cache_kv(const tamis_cache *cache, uint32_t layer);

/* The dtype of a cache's bounds. */
static inline tamis_dtype tms_cache_bounds_dtype(const tamis_cache_params *p) {
    return p->bounds_dtype == TAMIS_BOUNDS_Q8 ? TAMIS_Q8 : tms_bounds_dtype(p->dtype);
}

/* The planes of a layer's pages; a plane that the cache does not have is absent. */
tms_planes tms_cache_planes(const tamis_cache *cache, uint32_t layer);

/* A launch of bounds for a layer, with the cache's kind; the caller fills in the pages. */
tms_bounds tms_cache_bounds(const tamis_cache *cache, uint32_t layer);

/* E_STATE if bounds are missing. */
tamis_status tms_cache_check_bounds(const tamis_cache *cache, tamis_error *error);

/* Computes the bounds of a sequence's full pages from their keys. */
tamis_status tms_cache_renew_bounds(tamis_cache *cache, const tms_sequence *sequence,
                                    tamis_error *error);

/* Checks a kind and width; fills in the default width, 0 for kinds that have none. E_ARGUMENT. */
tamis_status tms_bounds_fill(tamis_bounds *bounds, tamis_error *error);

/* Lanes [first, end) of a sequence lie in a pool. */
static inline uint32_t tms_first_lane(const tamis_cache *cache, const tms_pool *pool) {
    return pool->first_layer * cache->params.n_kv_heads;
}
static inline uint32_t tms_end_lane(const tamis_cache *cache, const tms_pool *pool) {
    return (pool->first_layer + pool->n_layers) * cache->params.n_kv_heads;
}

static inline uint32_t tms_pages_of(const tamis_cache *cache, uint32_t slots) {
    return slots / cache->params.page_size + (slots % cache->params.page_size != 0);
}

static inline int32_t *tms_lane_pages(const tms_sequence *sequence, uint32_t lane) {
    return sequence->pages + (size_t)(sequence->one_list ? 0 : lane) * sequence->list_pages;
}

/* The list in which the page of an ordinal stands: a branch reads its trunk's. */
static inline const int32_t *tms_lane_reads(const tms_sequence *sequence, uint32_t lane,
                                            uint32_t ordinal) {
    const bool own = !sequence->trunk || ordinal >= sequence->lanes[lane].gone;
    return tms_lane_pages(own ? sequence : sequence->trunk, lane);
}

/* ---- Views (view.c) -------------------------------------------------------------------------- */

/* A cache over K and V of the caller's, as `view` says; its bounds are taken here. `params` has the shape;
 * capacity_tokens follows from the pages. */
tamis_status tms_view_create(tamis_context *context, const tamis_cache_params *params,
                             const tms_kv *layers, uint32_t n_pages, tamis_cache **out,
                             tamis_error *error);
/* E_UNSUPPORTED for what a view does not do: `what`. */
tamis_status tms_view_refuse(const tamis_cache *cache, const char *what, tamis_error *error);
/* A step of a view begins and ends: rows are the caller's. */
tamis_status tms_view_open_step(tamis_cache *view, tamis_error *error);

/* Gives a sequence of a view, which the view does not list, its pages and its length, of which the last
 * `rows` are a step's. E_NO_MEMORY: then it is as before. */
tamis_status tms_view_set_sequence(const tamis_cache *view, tms_sequence *sequence,
                                   const int32_t *pages, uint32_t length, uint32_t rows,
                                   tamis_error *error);

/* ---- History of a sequence (history.c) ------------------------------------------------------- */

/* The history of a new sequence; and of a fork, which continues its parent's. */
void tms_history_begin(tms_sequence *sequence);
void tms_history_fork(tms_sequence *fork, const tms_sequence *parent);

/* Records that the sequence now ends at `length`, at most its present one. The caller shortens the
 * lanes. */
void tms_history_cut(tms_sequence *sequence, uint32_t length);

/* A mark, above 0, for a keeper: cuts are counted from now on. */
uint64_t tms_history_mark(tms_sequence *sequence, tms_keeper keeper);
/* The least length that the sequence has had since it gave the keeper the mark; with mark 1, since
 * it began. UINT32_MAX: not cut since. 0: not known, since the keeper got another mark after a
 * cut. */
uint32_t tms_history_cut_since(const tms_sequence *sequence, tms_keeper keeper, uint64_t mark);
/* The same for a fork's parent, up to the fork; cuts of the parent after it do not count. */
uint32_t tms_history_parent_cut_since(const tms_sequence *fork, tms_keeper keeper, uint64_t mark);

/* Whether every lane holds all tokens of the sequence, in their order. Once it does not, it never
 * will. */
bool tms_history_whole(const tms_sequence *sequence);

/* Records that, between steps, lanes have lost tokens, but none of their last `tail` tokens. */
void tms_history_evicted(tms_sequence *sequence, uint32_t tail);
/* Records that the newest row of a step, or a row of a cancelled step, has overwritten tokens of
 * lanes. */
void tms_history_replaced(tms_sequence *sequence);

/* Records that the weights of the latest `rows` rows went to the plane of scores, by the plan's
 * number `by`. whole: in every layer, and the rows stay. newest: they replaced the scores that were
 * there, else they were added. */
void tms_history_scored(tms_sequence *sequence, uint32_t by, bool newest, uint32_t rows,
                        bool whole);
/* All positions below the result have scores by the plan's number `by`. */
uint32_t tms_history_scored_to(const tms_sequence *sequence, uint32_t by);

/* A history as it is saved, or as it was before a step: without forks and cuts, which are of other
 * sequences and of keepers. */
typedef struct tms_past {
    uint32_t length, evicted_at, intact_from, shortest;
    uint32_t given_up; /* 0 where it is saved */
    bool unordered, scored_newest;
    uint32_t scored_by, scored_to;
} tms_past;
tms_past tms_history_give(const tms_sequence *sequence);
/* Of a sequence that begins with such a history. */
void tms_history_take(tms_sequence *sequence, const tms_past *past);
/* Whether a sequence of these lanes, [n_lanes], can have that history in this cache. E_FORMAT. */
tamis_status tms_history_check(const tamis_cache *cache, const tms_past *past,
                               const tms_lane *lanes, tamis_error *error);

/* ---- Saved sequences (saved.c) --------------------------------------------------------------- */

/* Adds a sequence whose lanes have these lengths and pages gone, [n_lanes], and takes the pages. Until
 * the caller has filled them, it is `in_step`. E_FULL, E_NO_MEMORY: then nothing has changed. */
tamis_status tms_cache_seat(tamis_cache *cache, const tms_lane *lanes, tms_sequence **out,
                            tamis_error *error);
/* Removes a sequence, in whatever state. */
void tms_sequence_remove(tamis_cache *cache, tms_sequence *sequence);

/* Pages of one lane, which are saved together: ordinals [first, first + n). */
typedef struct tms_page_run {
    uint32_t lane, first, n;
} tms_page_run;

/* The most pages of a run. */
uint32_t tms_saved_pages(const tamis_cache *cache);
/* The full pages of a run. */
uint32_t tms_saved_full(const tamis_cache *cache, const tms_sequence *sequence,
                        const tms_page_run *run);
/* Bytes of a run's slots as they are saved: K and V of its pages, then each plane. Only slots that hold
 * a token are saved. */
uint64_t tms_saved_bytes(const tamis_cache *cache, const tms_sequence *sequence,
                         const tms_page_run *run);
/* Bytes of n pairs of bounds as they are saved. */
uint64_t tms_saved_bounds_bytes(tamis_dtype dtype, uint32_t head_dim, uint32_t n);
/* Bytes of the memory that the calls below need beside what they read or write. */
uint64_t tms_saved_work(const tamis_cache *cache);

/* From the device to bytes that do not depend on the host, and back; what no token holds becomes
 * zeros. Reading waits, writing enqueues. */
tamis_status tms_cache_save_pages(const tamis_cache *cache, const tms_sequence *sequence,
                                  const tms_page_run *run, void *work, uint8_t *to,
                                  tamis_error *error);
tamis_status tms_cache_restore_pages(const tamis_cache *cache, const tms_sequence *sequence,
                                     const tms_page_run *run, void *work, const uint8_t *from,
                                     tamis_error *error);
/* The same of the bounds of its full pages, in the cache's dtype. */
tamis_status tms_cache_save_bounds(const tamis_cache *cache, const tms_sequence *sequence,
                                   const tms_page_run *run, void *work, uint8_t *to,
                                   tamis_error *error);
tamis_status tms_cache_restore_bounds(const tamis_cache *cache, const tms_sequence *sequence,
                                      const tms_page_run *run, void *work, const uint8_t *from,
                                      tamis_error *error);
/* Whether the positions of a run's slots, as they are saved, can be those of a sequence with that
 * history. E_FORMAT. */
tamis_status tms_cache_check_positions(const tamis_cache *cache, const tms_sequence *sequence,
                                       const tms_page_run *run, const tms_past *past,
                                       const uint8_t *from, tamis_error *error);

/* ---- Trees (branches.c) ---------------------------------------------------------------------- */

/* A tree: rows of one step and sequence of which several may stand behind one. The path to the first leaf
 * lies in the sequence itself. Each other leaf has a branch, which holds pages of its own from the first
 * page on that the step writes, and else reads the sequence's, until one path is chosen. */

/* The sequence's tree, if a path is to be chosen; else NULL. */
static inline const tms_tree *tms_tree_of(const tms_sequence *sequence) {
    return sequence->tree && sequence->tree->n_rows ? sequence->tree : NULL;
}

/* Whether it has such a tree, or is one of its branches; a journal counts as one. */
static inline bool tms_in_tree(const tms_sequence *sequence) {
    return sequence->trunk || tms_tree_of(sequence);
}

/* Makes branches for rows that stand behind `parents`, [n_rows], of an idle sequence; none if each
 * stands behind the one before it. E_ARGUMENT, E_NO_MEMORY: then there are none. */
tamis_status tms_branches_begin(tamis_cache *cache, tms_sequence *sequence, const uint32_t *parents,
                                uint32_t n_rows, tamis_error *error);

/* What a branch brings to a step: all rows of its path, and how many of these are rows of earlier
 * branches. The caller fills in the rest. */
tms_growth tms_branch_growth(const tms_tree *tree, uint32_t branch);

/* Keeps the first n_rows rows of a branch; the others' pages go back to the pool, and there is no tree any
 * more. */
void tms_branches_choose(tamis_cache *cache, tms_sequence *sequence, uint32_t branch,
                         uint32_t n_rows);

/* Removes the branches but the first, which stays as it is. Does nothing where there are none. */
void tms_branches_end(tamis_cache *cache, tms_sequence *sequence);

/* ---- Journals (journal.c) --------------------------------------------------------------------- */

/* Where rows of a sequence take the places of tokens, and it is not known yet which of them stay, its
 * journal has a slot in every lane for each row: there the plan keeps what the row has replaced. */

/* The sequence's journal, if it has one; else NULL. */
static inline tms_sequence *tms_journal_of(const tms_sequence *sequence) {
    return sequence->journal && sequence->journal->length ? sequence->journal : NULL;
}

/* Whether it is known what the sequence holds: tms_cache_find_idle finds it. */
static inline bool tms_is_idle(const tms_sequence *sequence) {
    return !sequence->in_step && !sequence->lost && !tms_tree_of(sequence) &&
           !tms_journal_of(sequence);
}

/* An empty journal, whose lanes grow by the step's rows; NULL: no memory. */
tms_sequence *tms_journal_begin(tamis_cache *cache, tms_sequence *sequence);
/* Gives back what the journal holds. Does nothing where there is none. */
void tms_journal_end(tamis_cache *cache, tms_sequence *sequence);

/* The first `kept` rows of a sequence's last step stay, of which some have replaced tokens, the others
 * have been undone in the cache's memory: lanes and history, which was `before`, become those of a
 * step of as many rows. */
void tms_journal_return(tamis_cache *cache, tms_sequence *sequence, const tms_past *before,
                        uint32_t kept);

/* ---- Steps ----------------------------------------------------------------------------------- */

/* Gives back the pages of a lane that lie before a slot; the sequence cannot be shorter than `shortest`
 * from now on. */
void tms_lane_give_back(tamis_cache *cache, tms_sequence *sequence, uint32_t lane, uint32_t slot,
                        uint32_t shortest);

/* Removes `slots` slots from the end of a lane; pages that hold no slot any more go back to the
 * pool. */
void tms_lane_shorten(tamis_cache *cache, tms_sequence *sequence, uint32_t lane, uint32_t slots);

/* The most pages that a step under a cap may copy: every page of every lane of this many sequences,
 * whose lanes have at most `max_context` slots. */
uint64_t tms_copies_room(const tamis_cache *cache, uint32_t sequences, uint32_t max_context);

/* Opens a step; the cache has at most one open step. Every lane of every sequence grows by its
 * rows, or up to its cap. Afterwards it alone holds each page that it will write, which is every
 * page if it stays at the cap. E_FULL, E_NO_MEMORY, or E_STATE if a step is open or bounds are
 * missing: then nothing has changed. */
tamis_status tms_cache_reserve(tamis_cache *cache, const tms_growth *growth, uint32_t count,
                               const tms_copies *copies, tamis_error *error);

/* The pages that a step would take, of all pools. */
typedef struct tms_demand {
    uint64_t needed, copied; /* copied are among the needed */
    uint64_t missing;        /* the pages that pools lack, summed over the pools */
} tms_demand;

/* The pages that tms_cache_reserve would take now. Nothing has changed when it returns. */
tms_demand tms_cache_demand(tamis_cache *cache, const tms_growth *growth, uint32_t count);

/* Closes the step and keeps its rows. A lane that stayed at its cap has lost tokens. */
void tms_cache_commit(tamis_cache *cache, const tms_growth *growth, uint32_t count);

/* Closes the step and removes its rows. copied: the copies have been enqueued. If they have not,
 * the lanes get their shared pages back; only the call that reserved may ask for this. If rows were
 * written, lanes at their cap have lost a token: then the caller calls tms_history_replaced. */
void tms_cache_rollback(tamis_cache *cache, const tms_growth *growth, uint32_t count, bool copied);

/* Compaction, between steps: the kept slots of one sequence's lanes move to the front, layer after
 * layer. Pages that other sequences hold too are not written: a new page takes their place in the
 * lane, unless the lane keeps all slots. The order of calls is: check, once; then for each layer
 * pages, the device's compact, commit or undo.
 *   kept  [n_kv_heads] slots that a layer's lanes keep, at most their length
 *   to    [n_kv_heads][stride] page ids for as many slots */

/* Upper limits of the slots that lanes will keep. */
typedef struct tms_keeping {
    const uint32_t *most; /* [n_lanes] most slots of a lane that loses some; 0: it loses none */
    /* Most slots of each `run` consecutive lanes together, [n_lanes / run]; NULL: only `most`
     * limits.
     */
    const uint64_t *together;
    uint32_t run;
} tms_keeping;

/* E_FULL if the pools lack new pages for the upper limits; changes nothing. */
tamis_status tms_cache_compact_check(const tamis_cache *cache, const tms_sequence *sequence,
                                     const tms_keeping *keeping, tamis_error *error);

/* Fills `to`: pages that only this lane holds keep their place; new pages are taken in the place of
 * shared ones. The page lists do not change yet. */
void tms_cache_compact_pages(tamis_cache *cache, tms_sequence *sequence, uint32_t layer,
                             const uint32_t *kept, int32_t *to, uint64_t stride);

/* The device has moved the kept slots to the pages of `to`, which become the lanes' page lists.
 * Adds to *returned the pages that became free. */
void tms_cache_compact_commit(tamis_cache *cache, tms_sequence *sequence, uint32_t layer,
                              const uint32_t *kept, const int32_t *to, uint64_t stride,
                              uint64_t *returned);

/* In place of a commit: frees the new pages. */
void tms_cache_compact_undo(tamis_cache *cache, tms_sequence *sequence, uint32_t layer,
                            const uint32_t *kept, const int32_t *to, uint64_t stride);

#endif
