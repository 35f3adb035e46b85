/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences that run through a plan beside an oracle that checks every step. */
#ifndef TEST_PIPELINE_H
#define TEST_PIPELINE_H

#include "tests/policies/oracle.h"

#define PIPE_SEQUENCES 8u

/* What a sequence has been given: rows [n_lanes][max_context][head_dim]. */
typedef struct pipe_sequence {
    tamis_sequence id;
    uint32_t length;
    float *k, *v;
} pipe_sequence;

typedef struct pipe {
    test_world world;
    tamis_plan_params plan;
    oracle_rule rule;
    uint32_t n_lanes, n_sequences;
    pipe_sequence sequences[PIPE_SEQUENCES];
    uint64_t random, next_token;
    bool narrow;     /* rows are handed over in bf16, the cache's dtype */
    float *q, *out;  /* of the step's last layer, [rows][n_heads][head_dim] */
    uint32_t nan_at; /* a slot of channel 3 of every lane's K that gets NaN; UINT32_MAX: none */
    /* What the counters must say, and how many lists had pages too close to call. */
    tamis_plan_counters wanted;
    uint64_t lists, contested;
    uint32_t builds; /* kernel builds until the plan stood; none may follow */
} pipe;

void pipe_open(pipe *p, const tamis_cache_params *shape, const tamis_plan_params *plan);
void pipe_close(pipe *p);
/* Adds an empty sequence; its index. */
uint32_t pipe_add(pipe *p);
/* Adds a fork of a sequence; its index. */
uint32_t pipe_fork(pipe *p, uint32_t parent);

/* A step of the sequences `who`, each with its rows: writes random rows, attends random queries in
 * every layer, and checks lists, outputs and counters. */
void pipe_step(pipe *p, const uint32_t *who, const uint32_t *rows, uint32_t count, bool exact);
/* The same with the queries made by the caller. */
void pipe_step_with(pipe *p, const uint32_t *who, const uint32_t *rows, uint32_t count, bool exact,
                    void (*change_q)(pipe *p, float *q, uint32_t n));
/* Exact steps until each sequence has its length. */
void pipe_prefill(pipe *p, const uint32_t *lengths, uint32_t chunk);

#endif
