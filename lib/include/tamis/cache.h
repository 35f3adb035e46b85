/* SPDX-License-Identifier: Apache-2.0 */
/* The paged KV cache of one model: its shape, its memory, its sequences. */
#ifndef TAMIS_CACHE_H
#define TAMIS_CACHE_H

#include <tamis/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The paged KV cache. Each lane (sequence, layer, KV head) has a page list and a length of its own;
 * pages come from pools that all lanes share. Thread-safety: as its context. */
typedef struct tamis_cache tamis_cache;

/* A sequence's handle. It is never 0, and no other sequence of the process gets it, in this or
 * another cache: every call answers E_ARGUMENT for a handle of another cache, as for one of a
 * removed sequence. */
typedef uint64_t tamis_sequence;

typedef struct tamis_bounds {
    tamis_bounds_kind kind;
    float width;          /* of mean_std, in standard deviations; 0 means 1 */
    uint64_t reserved[2]; /* 0, else E_ARGUMENT */
} tamis_bounds;

/* How a pair is stored. Values never change. Bounds in q8 take about half the bytes of f16; minmax
 * and meanstd are rounded outward, so that true bounds stay true, mean to nearest. */
typedef enum tamis_bounds_dtype {
    TAMIS_BOUNDS_AS_CACHE = 0, /* in the dtype of the cache's keys */
    TAMIS_BOUNDS_Q8 = 1
} tamis_bounds_dtype;

/* "minmax", "meanstd", "mean" to the kind and back. Errors: E_ARGUMENT listing the known names. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_bounds_parse(const char *name, tamis_bounds_kind *out,
                                                           tamis_error *error);
TAMIS_API const char *tamis_bounds_name(tamis_bounds_kind kind);

/* Planes: 4 bytes beside every slot, which follow it wherever the cache moves, copies or frees it.
 */
enum {
    TAMIS_PLANE_POSITIONS = 1, /* the token's index in the text, once slots may be evicted */
    TAMIS_PLANE_SCORES = 2     /* a token's score that an eviction keeps from step to step */
};

typedef struct tamis_cache_params {
    uint32_t n_layers;
    uint32_t n_heads; /* query heads: n_kv_heads times the group, group 1 to 64 */
    uint32_t n_kv_heads;
    uint32_t head_dim;  /* 64, 80, 96, 112, 128, 160, 192, 256 or 512 */
    uint32_t page_size; /* slots a page: 8, 16, 32 or 64; 0 means 16 */
    tamis_dtype dtype;  /* of K and V, and of bounds unless bounds_dtype says otherwise */
    /* Exactly one of the two is not 0. Tokens: room for this many tokens in all layers and KV
     * heads, each lane rounded up to whole pages. Bytes: pages, bounds and planes together take at
     * most this many bytes. */
    uint64_t capacity_tokens;
    uint64_t capacity_bytes;
    tamis_bounds bounds; /* all zero: minmax */
    uint32_t planes;     /* TAMIS_PLANE_*, or-ed; a cache that evicts has positions at least */
    /* Of q8, k8v4 and q4, whose elements share scales, bounds are q8 in any case. */
    tamis_bounds_dtype bounds_dtype;
    /* With capacity_tokens: room for as many tokens in each layer, [n_layers], 0: capacity_tokens. For
     * layers whose lanes give pages back (TAMIS_PLAN_GIVE_BACK). It is read by the call alone. */
    const uint64_t *layer_tokens;
    uint64_t reserved[6]; /* 0, else E_ARGUMENT */
} tamis_cache_params;

/* The memory that a cache would take. */
typedef struct tamis_cache_size {
    uint64_t pages;          /* of all pools */
    uint64_t page_bytes;     /* K and V of one page */
    uint64_t bounds_bytes;   /* bounds of one page */
    uint64_t reserved_bytes; /* pages * (page_bytes + bounds_bytes + plane_bytes) */
    uint32_t pools;          /* buffers: as few as the device's largest allocation allows */
    uint64_t plane_bytes;    /* planes of one page */
    uint64_t reserved[7];
} tamis_cache_size;

/* Errors: E_ARGUMENT or E_UNSUPPORTED naming the field and value; E_NO_MEMORY if one layer alone
 * exceeds the device's largest allocation, with both numbers. Allocates nothing. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_cache_measure(tamis_context *context,
                                                            const tamis_cache_params *params,
                                                            tamis_cache_size *out,
                                                            tamis_error *error);

/* Allocates the memory. Errors: as tamis_cache_measure, and E_NO_MEMORY. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_cache_create(tamis_context *context,
                                                           const tamis_cache_params *params,
                                                           tamis_cache **out, tamis_error *error);
/* Accepts NULL. Where plans or prefixes of the cache are left, its memory is freed with the last of
 * them, and until then their calls answer E_STATE. */
TAMIS_API void tamis_cache_destroy(tamis_cache **cache);

/* The context that the cache was made from. NULL for NULL. */
TAMIS_API tamis_context *tamis_cache_context(const tamis_cache *cache);
/* The parameters that the cache was made with, defaults filled in. Does nothing without a cache or
 * an `out`. */
TAMIS_API void tamis_cache_get_params(const tamis_cache *cache, tamis_cache_params *out);

/* Changes the kind of bounds: those of every full page are computed again from its keys, for all
 * sequences. Errors: E_ARGUMENT (kind, or a width that is negative or not finite) and E_STATE (a
 * plan has an open step over the cache) change nothing; E_NO_MEMORY and E_DEVICE may leave some
 * pages with the old bounds: then no step begins (E_STATE) until a call of this function, with any
 * kind, succeeds. Graphs recorded before it cannot be used for steps any more
 * (tamis_plan_step_mark_replayed). Enqueues; may wait for earlier uploads. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_cache_set_bounds(tamis_cache *cache,
                                                               const tamis_bounds *bounds,
                                                               tamis_error *error);
/* The kind and width in force; after a change that failed half way, the new ones. The width is 0
 * for kinds without one. */
TAMIS_API void tamis_cache_get_bounds(const tamis_cache *cache, tamis_bounds *out);

/* Fork, truncate, remove and read answer E_ARGUMENT for NULL, for an unknown sequence and for what
 * it does not have (a length, layer, KV head or slots, with the numbers), and E_STATE for one in an
 * open step of a plan; forks also E_NO_MEMORY, reads E_NO_MEMORY and E_DEVICE. */

/* Adds an empty sequence. Errors: E_ARGUMENT (NULL), E_NO_MEMORY. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_cache_add(tamis_cache *cache, tamis_sequence *out,
                                                        tamis_error *error);
/* Adds a sequence with the same content. It shares its parent's pages; a page is copied when one of
 * its sequences writes into it (copy on write, at that step's step_begin), or when
 * it is evicted from (in that call). Takes no pages. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_cache_fork(tamis_cache *cache, tamis_sequence parent,
                                                         tamis_sequence *out, tamis_error *error);
/* Keeps the first `length` tokens (<= the present length); pages behind them go back to the pool.
 * Evicted tokens do not come back: E_STATE for a length below the length at the last eviction, and for
 * one at which the next row would see tokens whose pages were given back. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_cache_truncate(tamis_cache *cache,
                                                             tamis_sequence sequence,
                                                             uint32_t length, tamis_error *error);
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_cache_remove(tamis_cache *cache,
                                                           tamis_sequence sequence,
                                                           tamis_error *error);

/* Copies one lane's K and V rows of slots [first, first + count) to the host as f32,
 * [count][head_dim] each, in slot order. Either of k and v may be NULL. E_STATE for slots whose page
 * was given back. Waits. For tests; saved.h saves a
 * sequence as it is. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_cache_read(tamis_cache *cache,
                                                         tamis_sequence sequence, uint32_t layer,
                                                         uint32_t kv_head, uint32_t first,
                                                         uint32_t count, float *k, float *v,
                                                         tamis_error *error);

/* Copies the positions in the text of one lane's slots [first, first + count) to the host; without
 * a plane of positions, the slots themselves. After an eviction they are those of the tokens that
 * the lane has kept, in ascending order, unless decode steps at fixed lane lengths (`every` 1) have
 * put tokens into slots of evicted ones. Waits. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_cache_read_positions(
    tamis_cache *cache, tamis_sequence sequence, uint32_t layer, uint32_t kv_head, uint32_t first,
    uint32_t count, int32_t *positions, tamis_error *error);

/* One order in which pages can be read. */
typedef struct tamis_read_order {
    const char *name; /* static: "pages", "rows-4-near" */
    double gb_per_s;  /* 1e9 bytes a second */
} tamis_read_order;

#define TAMIS_READ_ORDERS 24u /* at most */

/* The page-read limit: how fast the pages of sequences can be read by a loop that does nothing
 * else. */
typedef struct tamis_read_limit {
    double gb_per_s;   /* of the best order */
    uint32_t best;     /* its index in `orders` */
    uint32_t n_orders; /* that the device knows, 1 at least */
    uint64_t bytes;    /* of one pass over the layers: K and V of whole pages */
    tamis_read_order orders[TAMIS_READ_ORDERS];
    uint64_t reserved[7];
} tamis_read_limit;

/* Measures the page-read limit of `count` sequences: reads K and V of every page of all of their
 * lanes, layer after layer, as attention over all pages does with one row of each sequence, on as
 * many compute units. Nothing changes. Each order is measured `passes` times, at most 1000, all
 * orders in turn, and its figure is the median; 0 means 5. Which order is best depends on the
 * machine and on how the pages lie:
 *   pages    page after page, K then V
 *   fours    K of four pages, one after another, then their V
 *   rows-N   K of N pages (4, 8, 16), a row of each in turn, then their V likewise
 * Each of them comes without prefetch, and with prefetch of what is read one (-near) or two (-far)
 * such steps later. GPUs and the reference know pages alone. A page that sequences share is read
 * for each of them. Let a pass read at least 96 MiB: less fits into caches. Waits. Errors:
 * E_ARGUMENT (NULL, no sequence, an unknown or an empty one), E_STATE (one is in an open step, or a
 * graph is being recorded), E_NO_MEMORY, E_DEVICE; *out then stays as it was. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_cache_read_limit(tamis_cache *cache,
                                                               const tamis_sequence *sequences,
                                                               uint32_t count, uint32_t passes,
                                                               tamis_read_limit *out,
                                                               tamis_error *error);

/* Slots that a lane holds. Costs no device call. E_ARGUMENT: no such sequence, layer or KV head. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_cache_lane_length(const tamis_cache *cache,
                                                                tamis_sequence sequence,
                                                                uint32_t layer, uint32_t kv_head,
                                                                uint32_t *length,
                                                                tamis_error *error);

/* *length gets the sequence's length in tokens, which is the position of its next row; *evicted_at
 * gets its length at the last eviction that removed a token, 0 for none. Either may be NULL. Takes
 * the same time for every length, and costs no device call. E_ARGUMENT: no such sequence. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_cache_length(const tamis_cache *cache,
                                                           tamis_sequence sequence,
                                                           uint32_t *length, uint32_t *evicted_at,
                                                           tamis_error *error);

typedef struct tamis_cache_stats {
    uint32_t sequences;
    uint64_t pages_total;
    uint64_t pages_held;     /* held by at least one lane; a shared page counts once */
    uint64_t pages_shared;   /* held by more than one lane */
    uint64_t bytes_reserved; /* pools, exact */
    uint64_t bytes_held;     /* pages_held with their bounds and planes */
    uint64_t reserved[8];
} tamis_cache_stats;

typedef struct tamis_sequence_stats {
    uint64_t slots;        /* tokens that lanes hold, those of pages given back included */
    uint64_t pages;        /* over all lanes; shared ones included */
    uint64_t pages_shared; /* of these, pages that other sequences hold too */
    uint64_t bytes_held;   /* pages with their bounds and planes; shared ones included */
    uint32_t shortest;     /* to which it can be truncated for the pages that were given back */
    uint32_t reserved32;
    uint64_t reserved[8];
} tamis_sequence_stats;

/* Both are exact and cost no device call. The rows of an open step count from its begin on. Without a
 * cache or an `out` the first does nothing; where another thread is in the context, it waits until
 * that thread's call returns, and the second answers E_STATE. Errors of the second: E_ARGUMENT (NULL; a sequence that
 * the cache does not have). */
TAMIS_API void tamis_cache_get_stats(const tamis_cache *cache, tamis_cache_stats *out);
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_cache_get_sequence_stats(const tamis_cache *cache,
                                                                       tamis_sequence sequence,
                                                                       tamis_sequence_stats *out,
                                                                       tamis_error *error);

#ifdef __cplusplus
}
#endif
#endif
