/* SPDX-License-Identifier: Apache-2.0 */
/* The tables, memory and launches that score and move the slots of one layer when a sequence is
 * evicted from between steps. calls_evict.c has the loop over the layers. */
#ifndef TMS_PLAN_EVICT_BETWEEN_H
#define TMS_PLAN_EVICT_BETWEEN_H

#include "lib/plan/arena.h"
#include "lib/plan/page_table.h"
#include "lib/plan/query_ring.h"
#include "lib/plan/sight.h"

/* A layer's output projection as it was bound. */
typedef struct tms_output {
    tms_ref w;
    tamis_dtype dtype;
    uint64_t stride;
    uint32_t n_rows;
    tms_life *held; /* the buffer's; NULL: nothing is bound */
} tms_output;

/* Offsets in the arena of the tables of a sequence, and of one layer of it. */
typedef struct tms_between_layout {
    uint64_t visible;    /* [n_layers][n_kv_heads] slots of the lanes */
    uint64_t budgets;    /* [n_layers][n_kv_heads] */
    uint64_t row_seq;    /* [max(window, 1)] row of the page table */
    uint64_t now;        /* [2] position of the newest token and of the next one */
    uint64_t spans;      /* [1][2] the window's rows */
    uint64_t tiles;      /* of the window's rows */
    uint64_t end_shared; /* up to here: one upload per sequence */
    uint64_t rows;       /* [window][n_kv_heads] slots that the window's rows see */
    uint64_t by_head;    /* [n_kv_heads][window] the same */
    uint64_t least;      /* [window] least positions that the window's rows see, */
    uint64_t end_layer;  /* from `rows` to here: one upload per layer */
    uint64_t first;      /* [window][n_kv_heads] and the slots that these are at, */
    uint64_t first_by_head; /* [n_kv_heads][window] the same */
    uint64_t limits;     /* [n_kv_heads][2] */
    uint64_t k_table;    /* [n_kv_heads] */
    uint64_t to;         /* [n_kv_heads][max_pages] pages that kept slots move to */
    uint64_t full;       /* [n_kv_heads * max_pages] those of them that are full */
    uint64_t end;
} tms_between_layout;

/* Strides in elements; absent memory is NULL. */
typedef struct tms_between {
    const tms_setup *setup;
    const tms_page_table *table;
    const tms_query_rings *rings;
    const tms_sight *sight;
    uint64_t stride;  /* of values and weights, which have one element per slot */
    tms_mem *window;  /* f32 the last rows in order: q, out [window][n_heads][head_dim], then lse */
    tms_mem *values;  /* f32 [n_layers if across][n_kv_heads][stride], then others without layers */
    tms_mem *weights; /* f32 [n_weights][window * group][stride], of one KV head */
    tms_mem *lists;   /* int32 kept, forced: [n_layers if across][n_kv_heads][capacity], counts */
    tms_mem *scratch;
    tms_arena tables;
    tms_between_layout at;
    tms_output *outputs; /* [n_layers] */
    uint32_t *bound;     /* [n_lanes] budgets of the caller's, if has_bound */
    bool has_bound;
    uint32_t *layer_budgets;                 /* [n_layers] */
    uint32_t *slots, *budgets, *most, *kept; /* [n_lanes] of the sequence being evicted from */
    uint64_t *together; /* [n_layers] most slots that the lanes of a layer, or of all, keep */
    float *trace_scores;
    tms_evict_trace trace;
    void *trace_user;
} tms_between;

/* Allocates the memory that the eviction needs; the pointers to other rooms must be set. The second
 * call builds the kernels and launches each once, with no items. */
tamis_status tms_between_create(tms_between *b, tamis_error *error);
tamis_status tms_between_warm(tms_between *b, tamis_error *error);
void tms_between_destroy(tms_between *b);

/* The number of layers whose values and lists are in memory at the same time. */
static inline uint32_t tms_between_layers_at_once(const tms_setup *setup) {
    return setup->needs.across ? setup->cache->params.n_layers : 1;
}

/* One layer of the sequence; the caller fills the tables. n_items 0: an empty layer. */
tms_evicted_layer tms_between_layer(const tms_between *b, uint32_t index, uint32_t n_items);
/* Uploads what all layers of the sequence share. */
tamis_status tms_between_send_sequence(const tms_between *b, const tms_sequence *sequence,
                                       uint32_t row, tamis_error *error);
/* Uploads what one layer needs; then the last queries in order, from the sequence's ring, and their
 * lse over all that the layer's lanes hold. */
tamis_status tms_between_send_layer(const tms_between *b, const tms_sequence *sequence,
                                    uint32_t ring, const tms_evicted_layer *layer,
                                    tamis_error *error);

#endif
