/* SPDX-License-Identifier: Apache-2.0 */
/* An eviction as the plan sees it: an entry, and a line in the list of all. Its `score` works on one
 * layer of one sequence and fills in the select that decides which slots are kept. */
#ifndef TMS_EVICT_H
#define TMS_EVICT_H

#include "lib/core/error.h"
#include <tamis/policy.h>

/* What steps put into the plane of scores. */
typedef enum tms_feed {
    TMS_FEED_NONE = 0,
    TMS_FEED_SUM = 1,    /* every row's weights, summed over the group */
    TMS_FEED_NEWEST = 2, /* the last row's weights replace the scores; mean of all heads */
    TMS_FEED_KEYS = 3    /* a score of every row's own key, when it has been written: score_rows */
} tms_feed;

/* What an eviction needs of the plan. */
typedef struct tms_eviction_needs {
    const struct tms_eviction_entry *entry;
    bool active;     /* false: nothing is evicted, and the fields below are not used */
    bool in_place;   /* decode rows of lanes at their budget take the slot of an evicted token */
    uint32_t recent; /* newest tokens that in_place does not evict: `recent` of the op replace */
    tms_feed feed;
    uint32_t window;    /* last query rows that the plan keeps; 0: none */
    uint32_t n_values;  /* arrays of values of a layer's slots, at least 1 */
    uint32_t n_weights; /* arrays of weights [window * group][slots] of one KV head */
    uint32_t spares;    /* newest tokens that it never evicts between steps, in any lane */
    bool by_slots;      /* assumes sinks and the window's tokens in the first and last slots */
    bool head_budgets;  /* its selects take budgets of single heads */
    bool output;        /* needs the layers' output projections */
    bool rotation;      /* needs to know how queries were rotated */
    bool shared;        /* the number of slots a lane keeps is known only after the select */
    bool across;        /* the lanes of all layers compete */
    uint32_t slack;     /* most tokens by which rounding may exceed a lane's part of the total */
} tms_eviction_needs;

/* Whether scores come of what rows weigh, and so of the step's attends. */
static inline bool tms_needs_weights(const tms_eviction_needs *needs) {
    return needs->feed == TMS_FEED_SUM || needs->feed == TMS_FEED_NEWEST;
}

#define TMS_EVICT_VALUES  3u
#define TMS_EVICT_WEIGHTS 2u
#define TMS_EVICT_HEADS   1024u /* most heads that may share a budget */
/* Positions and slots of a lane are below it, see select in host/ops/selection.h. */
#define TMS_EVICT_LIMIT (1u << 22)

/* For tests: gets the scores by which a select ranks, before it runs: f32 [n_kv_heads][stride]. */
typedef void (*tms_evict_trace)(void *user, uint32_t layer, uint32_t stage, const float *scores,
                                uint64_t stride, uint32_t granularity);

/* One layer of a sequence that is evicted from. The memory is the plan's; the launches are
 * templates that `score` completes. */
typedef struct tms_evicted_layer {
    tms_device *dev;
    const tamis_eviction *eviction;
    uint32_t index, n_kv_heads, group;
    uint32_t length;         /* tokens of the sequence */
    uint32_t longest;        /* largest of slots[] */
    const uint32_t *slots;   /* [n_kv_heads] that the lanes hold */
    const uint32_t *budgets; /* [n_kv_heads] */
    tms_ref budget_table;    /* int32, the same */
    tms_kv kv;
    tms_planes planes;
    tms_batch items;           /* the one sequence; all KV heads */
    tms_observe window;        /* the last rows; no values or weights yet */
    tms_ref window_visible;    /* int32 [n_kv_heads][window]: the rows' visible, head by head */
    tms_ref window_first;      /* and their first, if they have one */
    tms_value_norm value_norm; /* with the layer's output projection, if it is bound; no out yet */
    tms_ref values[TMS_EVICT_VALUES];   /* f32 [n_kv_heads][stride] */
    tms_ref weights[TMS_EVICT_WEIGHTS]; /* f32 [window * group][stride], of one KV head */
    uint64_t stride;
    tms_ref limits;  /* int32 [n_kv_heads][2] */
    tms_ref k_table; /* int32 [n_kv_heads], for any use */
    tms_ref now;     /* int32 [2]: positions of the newest token and of the next one */
    tms_ref scratch;
    tms_lists kept, forced; /* [n_kv_heads][capacity] */
    tms_select select;      /* set by score: the select that writes `kept` */
    uint32_t stage;         /* number of selects so far */
    tms_evict_trace trace;
    void *trace_user;
    float *trace_scores; /* [n_kv_heads][stride] */
} tms_evicted_layer;

typedef struct tms_eviction_entry {
    const char *name;
    tamis_eviction_kind kind;
    tamis_eviction defaults;
    uint32_t options; /* the options that it has */
    bool has_recent;  /* it uses tamis_eviction.recent */
    /* May be NULL: only the common rules are checked. Defaults are filled in before. */
    tamis_status (*check)(const tamis_eviction *eviction, tamis_error *error);
    void (*ask)(const tamis_eviction *eviction, tms_eviction_needs *out);
    /* Enqueues what a layer's slots are worth and leaves `select`. */
    tamis_status (*score)(tms_evicted_layer *layer, tamis_error *error);
    /* May be NULL: every layer has the budget. length: tokens of the sequence; longest: slots of
     * its longest lane. */
    void (*schedule)(const tamis_eviction *eviction, uint32_t n_layers, uint32_t length,
                     uint32_t longest, uint32_t *budgets);
    /* The slots that the lanes of a layer, which share a budget, may hold together without
     * evicting. May be NULL: the sum of their budgets. */
    uint64_t (*total)(const tamis_eviction *eviction, const uint32_t *slots, uint32_t n_lanes);
} tms_eviction_entry;

/* Every eviction as X(name), in the order in which they are told: tms_eviction_<name>. */
#define TMS_EVICTIONS(X)                                                                           \
    X(none)                                                                                        \
    X(streaming)                                                                                   \
    X(h2o)                                                                                         \
    X(tova)                                                                                        \
    X(snapkv)                                                                                      \
    X(pyramidkv)                                                                                   \
    X(adakv)                                                                                       \
    X(criticalkv)                                                                                  \
    X(critical_adakv)                                                                              \
    X(andpro)                                                                                      \
    X(defensivekv)                                                                                 \
    X(caller)                                                                                      \
    X(knorm)
#define TMS_DECLARE_EVICTION(name) extern const tms_eviction_entry tms_eviction_##name;
TMS_EVICTIONS(TMS_DECLARE_EVICTION)

const tms_eviction_entry *tms_eviction_find(tamis_eviction_kind kind);

/* The eviction with defaults in the place of zeros. */
tamis_eviction tms_eviction_filled(const tamis_eviction *eviction);

/* The needs of a checked and filled eviction. */
void tms_eviction_ask(const tamis_eviction *eviction, tms_eviction_needs *out);

/* Budgets of the layers, [n_layers]. */
void tms_eviction_schedule(const tamis_eviction *eviction, uint32_t n_layers, uint32_t length,
                           uint32_t longest, uint32_t *budgets);

/* The slots that lanes that share a budget may hold together. */
uint64_t tms_eviction_total(const tamis_eviction *eviction, const uint32_t *slots,
                            uint32_t n_lanes);

/* floor of the fp32 product, 0 for a share below 0. */
uint32_t tms_eviction_floor(float share, uint32_t tokens);

/* A total of many heads as the selects take it, at most UINT32_MAX. No row has that many slots, so
 * a larger total would evict nothing either. */
static inline uint32_t tms_eviction_saturated(uint64_t total) {
    return total < UINT32_MAX ? (uint32_t)total : UINT32_MAX;
}

/* adakv's published budget of a head without the window. best: how many of the layer's best slots
 * are the head's; base: the mean budget without the window. */
uint32_t tms_adakv_blended(uint32_t best, float share, uint32_t base);

/* The score of snapkv, which pyramidkv uses, too. */
tamis_status tms_snapkv_score(tms_evicted_layer *layer, tamis_error *error);

/* ---- Steps of a score (layer_scores.c); each enqueues ----------------------------------------- */

/* A select over the layer's slots into `lists`, by the scores values[index]: each lane keeps its
 * own budget, with sinks and the last `recent` slots protected. The caller completes it and runs it
 * by tms_layer_select. */
tms_select tms_layer_budget(const tms_evicted_layer *layer, uint32_t recent, uint32_t values,
                            tms_lists lists);
/* The same for slots that need not be in the order of their tokens. */
tms_select tms_layer_budget_by_position(const tms_evicted_layer *layer, uint32_t recent,
                                        uint32_t values, tms_lists lists);
/* Makes the heads of the layer share the sum of their budgets; each has a floor of `share` of its
 * own. */
void tms_layer_share(const tms_evicted_layer *layer, tms_select *select, float share);
/* Runs the select, after the trace got its scores. */
tamis_status tms_layer_select(tms_evicted_layer *layer, const tms_select *select,
                              tamis_error *error);

/* values[to] = Σ over the window's rows of the group's mean weight. */
tamis_status tms_layer_observe(tms_evicted_layer *layer, uint32_t to, tamis_error *error);

/* SnapKV's scores: the same, pooled over the slots before the window. Uses values[spare]. */
tamis_status tms_layer_pooled(tms_evicted_layer *layer, uint32_t to, uint32_t spare,
                              tamis_error *error);

/* values[to] = the plane of scores, or that divided by the queries that could give it. */
tamis_status tms_layer_plane(tms_evicted_layer *layer, uint32_t to, bool lifetime,
                             tamis_error *error);

/* values[to] = mean over the group of ‖v·W_O‖₁. */
tamis_status tms_layer_norms(tms_evicted_layer *layer, uint32_t to, tamis_error *error);

/* A launch of fuse on values[x], values[y] into values[to], to be completed. */
tms_fuse tms_layer_fuse(const tms_evicted_layer *layer, tms_fuse_kind kind, uint32_t x, uint32_t y,
                        uint32_t to);
/* For one KV head of the layer: its lane as a batch; the weights of each row of the window to
 * weights[to]. */
tms_batch tms_layer_head_items(const tms_evicted_layer *layer, uint32_t head);
tamis_status tms_layer_head_weights(tms_evicted_layer *layer, uint32_t head, uint32_t to,
                                    tamis_error *error);
/* values[index] of one head. */
tms_ref tms_layer_head_values(const tms_evicted_layer *layer, uint32_t index, uint32_t head);
/* Pools weights[from] of a head's lane into weights[to], over all slots but the last `tail`. */
tamis_status tms_layer_head_pooled(tms_evicted_layer *layer, uint32_t head, uint32_t from,
                                   uint32_t to, uint32_t tail, bool keep_sum, tamis_error *error);

#endif
