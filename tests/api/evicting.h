/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of evicting through plans share: a world that evicts, whole steps with their
 * outputs, and what a sequence holds, read back. Token t of a sequence stands at position t -
 * first. */
#ifndef TEST_EVICTING_H
#define TEST_EVICTING_H

#include "lib/cache/cache.h"
#include "lib/plan/plan.h"
#include "tests/api/fixture.h"

#define SINKS  3u
#define WINDOW 8u

typedef struct evict_world {
    test_world w;
    tamis_buffer *projection; /* of every layer, for kinds that need one */
    float sinks[64];          /* [n_layers][n_heads], where layers have any */
} evict_world;

/* An eviction of small numbers: window 8, kernel 3, chunk 4, every 1 where the kind does that. */
tamis_eviction test_eviction(tamis_eviction_kind kind, uint32_t budget, uint32_t options);

/* The kinds that keep scores between steps, of all that there are; how many. */
uint32_t test_scored_evictions(tamis_eviction_kind kinds[64]);

/* As test_open, with the planes that the plan's eviction needs and all bound that it asks. */
void evict_open(evict_world *e, const tamis_cache_params *shape, const tamis_plan_params *plan);
/* Makes the cache, which is still empty, and the plan anew: one pool a layer. */
void evict_split(evict_world *e, const tamis_plan_params *plan);
/* Makes the plan anew: layers of `sunk`, a bit each, have sinks. The caller's memory of them is gone
 * before the first step. */
void evict_sink(evict_world *e, const tamis_plan_params *plan, uint32_t sunk);
/* That of a query head of all layers', -inf if there is none. */
double evict_sink_of(const evict_world *e, uint32_t head);
void evict_close(evict_world *e);

/* Makes another plan over the world's cache the one that steps go through; returns the last. */
tamis_plan *evict_swap_plan(evict_world *e, tamis_plan *plan);

/* Puts the query rows of the tokens into the world's buffer. */
void evict_fill_queries(evict_world *e, uint32_t layer, const uint64_t *tokens, uint32_t n_rows);
/* A layer of the open step, attended. outs may be NULL: [rows][n_heads][head_dim]. */
void evict_layer(evict_world *e, uint32_t layer, const uint64_t *tokens, uint32_t n_rows,
                 float *outs);
/* A whole step. outs may be NULL: [n_layers][rows][n_heads][head_dim]. The status of step_begin. */
tamis_status evict_step(evict_world *e, const tamis_step *step, const uint64_t *tokens,
                        float *outs);
/* Appends tokens [first, first + n) to one sequence: exact, or as decode steps of one row each. */
void evict_prompt(evict_world *e, tamis_sequence id, uint64_t first, uint32_t n);
void evict_decode(evict_world *e, tamis_sequence id, uint64_t first, uint32_t n, float *outs);
/* Adds a sequence with a prompt. */
tamis_sequence evict_add(evict_world *e, uint64_t first, uint32_t n);

uint64_t evict_out_floats(const evict_world *e, uint32_t rows);
uint32_t evict_length(const evict_world *e, tamis_sequence id, uint32_t layer, uint32_t head);

/* All that the cache holds of a sequence, lane after lane. */
typedef struct held {
    uint32_t n_lanes, n_slots, dim;
    uint32_t *lengths, *first; /* [n_lanes]; first: of a lane's slots in what follows */
    int32_t *positions;        /* [n_slots] */
    float *scores;             /* [n_slots], 0 without the plane */
    float *k, *v;              /* [n_slots][dim] */
} held;
held evict_read(const evict_world *e, tamis_sequence id);
void held_free(held *h);
/* Bit for bit the same. */
void held_same(const held *a, const held *b);
/* As many slots of the same positions, place by place. */
void held_same_positions(const held *a, const held *b);
bool held_has(const held *h, uint32_t lane, int32_t position);
/* Each slot's K and V are those of the token at its position, below `length`; no position twice. */
void held_check(const held *h, uint64_t first, uint32_t length);
/* Each slot's score is that of its key's norm. */
void held_norms(const held *h);
/* Positions ascend in every lane. */
void held_ordered(const held *h);

/* The outs of a sequence's newest row in a layer are attention over those slots of the lanes that it
 * sees; of the listed pages alone if `listed` is true (as tamis_plan_read_selected tells). */
void evict_dense(const evict_world *e, const held *h, uint32_t layer, uint64_t token,
                 const float *outs, bool listed);

/* scale·q·k of a token's query of a head (of all layers' query heads) and a slot of `held`. */
double evict_logit(const evict_world *e, const held *h, uint32_t slot, uint64_t token,
                   uint32_t head);

/* The bounds of every full page of the sequence are those that its keys give. */
void evict_check_bounds(evict_world *e, tamis_sequence id);

/* 1, 2 or 5: how much the reference, PoCL and the CUDA driver on the CPU take their time. */
uint32_t test_slowness(void);

#endif
