/* SPDX-License-Identifier: Apache-2.0 */
/* Policies as plain structs of numbers: which pages a query reads (selection), and which tokens a
 * lane keeps (eviction). */
#ifndef TAMIS_POLICY_H
#define TAMIS_POLICY_H

#include <tamis/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Values never change. */
typedef enum tamis_selection_kind {
    TAMIS_SELECT_FULL = 0, /* every page */
    TAMIS_SELECT_WINDOW =
        1, /* the sinks' pages and the newest pages (StreamingLLM's reading pattern) */
    TAMIS_SELECT_QUEST =
        2, /* sinks, recent, and the pages with the best bounds (Quest, section 3) */
    TAMIS_SELECT_ORACLE = 3, /* sinks, recent, and the pages with the largest true attention mass:
                                the ceiling of page selection. Masses below the range of fp32 are 0
                                and equal; the newer page then wins. Reads every key: not fast */
    TAMIS_SELECT_RANDOM = 4, /* sinks, recent, and random pages: the floor */
    TAMIS_SELECT_CALLER = 5  /* the pages or tokens of lists that the caller makes
                                (tamis_plan_attend_with) */
} tamis_selection_kind;

/* A selection decides at every decode row which pages of a lane are read; it drops nothing. The
 * page that holds the row's own token, the newest one, is always read, full or not, but under caller,
 * whose lists name all that is read. There is one list per (row, KV head). */
typedef struct tamis_selection {
    tamis_selection_kind kind;
    /* Tokens per lane, those that are always read included; whole pages are read, so at most
     * floor(budget / page_size) of them. Not used by full. Of caller the most that a list may name. */
    uint32_t budget;
    uint32_t sinks;        /* first tokens always read, rounded up to whole pages */
    uint32_t recent;       /* last tokens always read, with the whole page of the oldest of them; 0
                              means 1 */
    uint32_t dense_layers; /* layers [0, dense_layers) read everything */
    tamis_group_rule group;
    uint64_t seed; /* random: pages follow from (seed, layer, position, KV head) on every device */
    uint64_t reserved[8]; /* 0, else E_ARGUMENT */
} tamis_selection;

/* The defaults for a kind: full {}; window {sinks 4}; quest {sinks 4, recent 16, dense_layers 0,
 * group max}; oracle and random as quest; caller {}, which takes neither sinks nor recent. Budget 0 is filled with 2048. Quest's paper has others,
 * see tamis_selection_parse. */
TAMIS_API void tamis_selection_default(tamis_selection_kind kind, tamis_selection *out);

/* The selection that a name stands for: a kind's name for the kind's defaults; "quest-paper" for
 * quest as its paper runs it {sinks 0, recent 0, dense_layers 2, group max}: only the newest page
 * is always read, and the first two layers read everything. (The paper has one list per query
 * head.) Errors: E_ARGUMENT listing the known names. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_selection_parse(const char *name,
                                                              tamis_selection *out,
                                                              tamis_error *error);
/* The index-th name that tamis_selection_parse takes, kinds first; NULL after the last one. */
TAMIS_API const char *tamis_selection_name_at(uint32_t index);

/* "full", "window", "quest", "oracle", "random", "caller"; "unknown" outside the list. */
TAMIS_API const char *tamis_selection_name(tamis_selection_kind kind);

/* Checks against a page size. Errors: E_ARGUMENT if the budget is below the pages of sinks + recent
 * + one page, naming the numbers. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_selection_check(const tamis_selection *selection,
                                                              uint32_t page_size,
                                                              tamis_error *error);

/* Values never change. */
typedef enum tamis_eviction_kind {
    TAMIS_EVICT_NONE = 0,
    TAMIS_EVICT_STREAMING = 1, /* sinks and the newest tokens (StreamingLLM, arXiv 2309.17453) */
    TAMIS_EVICT_H2O = 2,       /* recent tokens and those with the largest attention so far (H2O,
                                    arXiv 2306.14048) */
    TAMIS_EVICT_TOVA = 3,      /* the tokens that the newest query weighs most, one set for all
                                    heads of a layer (TOVA, arXiv 2401.06104) */
    TAMIS_EVICT_SNAPKV = 4,    /* those that the last queries weigh most, weights pooled (SnapKV,
                                    arXiv 2404.14469) */
    TAMIS_EVICT_PYRAMIDKV = 5, /* as snapkv; budgets fall from layer to layer (PyramidKV, arXiv
                                    2406.02069) */
    TAMIS_EVICT_ADAKV = 6,     /* as snapkv; the heads of a layer share its budget (Ada-KV, arXiv
                                    2407.11550) */
    TAMIS_EVICT_CRITICALKV =
        7, /* as snapkv, then weighed by the value's projected norm (CriticalKV,
                                    arXiv 2502.03805) */
    TAMIS_EVICT_CRITICAL_ADAKV = 8, /* criticalkv with adakv's budgets */
    TAMIS_EVICT_ANDPRO = 9,         /* chunks whose values point where the output points (AnDPro,
                                    NeurIPS 2025) */
    TAMIS_EVICT_DEFENSIVEKV = 10,   /* the worst case over last queries and heads, weighed by values
                                    (DefensiveKV, arXiv 2510.13334) */
    TAMIS_EVICT_CALLER = 11,        /* by scores or keep lists that the caller computes */
    TAMIS_EVICT_KNORM = 12          /* the tokens with the smallest keys by L2 norm, without queries
                              (Devoto et al., arXiv 2406.11430) */
} tamis_eviction_kind;

/* Options of an eviction, or-ed; one that a kind does not have is E_ARGUMENT. */
enum {
    /* streaming: sinks are read as if they stood right before the recent tokens, as far from the
     * query as they are in the cache. No key is rewritten: the query is rotated, and two states are
     * merged. Needs tamis_plan_bind_rotation. */
    TAMIS_EVICT_REINDEX = 1,
    /* h2o: the oldest recent token competes with the others (h2o_hf) instead of always taking the
     * evicted token's place (h2o_flexgen) */
    TAMIS_EVICT_RERANK = 2,
    /* h2o: a token's accumulated attention is divided by the number of queries that could see it */
    TAMIS_EVICT_LIFETIME = 4,
    /* pyramidkv: the published integer schedule, whose layers hold more than the budget in all */
    TAMIS_EVICT_REFERENCE_SCHEDULE = 8,
    /* adakv: the published blend of budgets, rounded head by head, in place of guaranteed floors;
     * the layer's total may then fall short of the budget by less than 1.5 tokens a head, or exceed
     * it by half a token a head */
    TAMIS_EVICT_BLEND = 16,
    /* andpro: the anchor is the output over all tokens, not over those that may be evicted */
    TAMIS_EVICT_ANCHOR_ALL = 32,
    /* andpro: two other meanings of the budget. By default it counts tokens, those that are always
     * kept included, as in one version of the published code. BESIDE_KEPT: (budget - window) tokens
     * per head in addition to those that are always kept, which no published code does. CHUNKS:
     * (budget - window) chunks per head, those that are always kept included, as in the other
     * version of the published code */
    TAMIS_EVICT_BUDGET_BESIDE_KEPT = 64,
    TAMIS_EVICT_BUDGET_CHUNKS = 128,
    /* defensivekv: heads of all layers share one budget (Layer-DefensiveKV) */
    TAMIS_EVICT_ACROSS_LAYERS = 256
};

/* An eviction decides which tokens a lane keeps; the others' memory goes back to the cache's pool.
 * A lane of at most `budget` tokens keeps all. Zero means the kind's default for budget, window,
 * kernel (and then for pooling, too, unless that is average), chunk, floor and beta; for sinks and
 * every it means zero. h2o's sums still contain the weights of rows that were truncated away or
 * cancelled. tova, which has only the newest row's weights, then needs another row before it
 * evicts. */
typedef struct tamis_eviction {
    tamis_eviction_kind kind;
    /* Tokens per lane, those that are always kept included; where heads or layers share a budget,
     * the average. */
    uint32_t budget;
    uint32_t sinks; /* first tokens always kept; 0: none, for streaming as well */
    /* Last tokens always kept, of h2o (0: half of the budget) and of knorm (0: none). */
    uint32_t recent;
    uint32_t window;       /* last queries, which score other tokens; their own are always kept */
    uint32_t kernel;       /* width of the pooling, odd; 1 means no pooling */
    tamis_pooling pooling; /* defensivekv: average */
    /* andpro: number of neighbouring tokens that are kept or evicted together; chunks that hold a
     * token of the window are kept */
    uint32_t chunk;
    /* adakv, critical-adakv, defensivekv, andpro: share of the budget that every head has for
     * itself, 0 to 1; below 0 means none */
    float floor;
    float beta; /* pyramidkv: the last layer's share is 1/beta of the mean, >= 1 */
    /* When: 0 at the prompt's end only (tamis_plan_evict); 1 also in every decode step, at fixed
     * lane lengths, without a host wait (only streaming, h2o, tova and knorm, where it is the
     * default); n: the model's runner evicts again every n decode steps. Caller takes only 0. */
    uint32_t every;
    uint32_t options;     /* TAMIS_EVICT_*, or-ed */
    uint64_t reserved[8]; /* 0, else E_ARGUMENT */
} tamis_eviction;

/* The defaults for a kind:
 *   streaming    budget 2048, sinks 4, every 1
 *   h2o          budget 2048, every 1           tova         budget 2048, every 1
 *   snapkv       budget 2048, window 32, kernel 7, pooling max
 *   pyramidkv    as snapkv, beta 20             adakv        as snapkv, floor 0.2
 *   criticalkv   as snapkv                      critical-adakv  as adakv
 *   andpro       budget 2048, window 32, kernel 7, pooling max, chunk 4, no floor
 *   defensivekv  budget 2048, window 32, kernel 5, pooling average, no floor
 *   caller       budget 2048                    knorm        budget 2048, every 1 */
TAMIS_API void tamis_eviction_default(tamis_eviction_kind kind, tamis_eviction *out);

/* A kind's defaults by its name: "none", "streaming", "h2o", "tova", "snapkv", "pyramidkv", "adakv",
 * "criticalkv", "critical-adakv", "andpro", "defensivekv", "caller", "knorm". Errors: E_ARGUMENT
 * listing the known names. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_eviction_parse(const char *name, tamis_eviction *out,
                                                             tamis_error *error);
/* The name of a kind; "unknown" outside the list. */
TAMIS_API const char *tamis_eviction_name(tamis_eviction_kind kind);
/* The name of the option 1 << index: "reindex", "rerank", ...; NULL after the last one. */
TAMIS_API const char *tamis_eviction_option_name(uint32_t index);

/* Checks the numbers. Errors: E_ARGUMENT, naming the numbers, if the budget is below sinks + recent
 * or window + 1 token, or if an option or a number does not fit the kind (with kind none only 0
 * does). */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_eviction_check(const tamis_eviction *eviction,
                                                             tamis_error *error);

/* The planes that a cache needs for the eviction: tamis_cache_params.planes. */
TAMIS_API uint32_t tamis_eviction_planes(const tamis_eviction *eviction);

/* What a plan must be given before it evicts, or attends. */
enum {
    TAMIS_NEEDS_OUTPUT = 1,  /* each layer's output projection: tamis_plan_bind_output */
    TAMIS_NEEDS_ROTATION = 2 /* how queries are rotated: tamis_plan_bind_rotation */
};
/* TAMIS_NEEDS_* of an eviction, or-ed; 0 for NULL and for kinds that do not exist. */
TAMIS_API uint32_t tamis_eviction_needs(const tamis_eviction *eviction);

#ifdef __cplusplus
}
#endif
#endif
