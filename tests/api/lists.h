/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences under a selection whose lists a test makes or reads, and what rows attend to by the formula. */
#ifndef TEST_LISTS_H
#define TEST_LISTS_H

#include "tests/api/fixture.h"

enum { SEQUENCES = 3, BUDGET = 48, MOST_ROWS = 64, CONTEXT = 256, MOST = 256, DIM = 64 };

/* A world with the tokens that its sequences have. */
typedef struct lists_world {
    test_world w;
    tamis_sequence ids[SEQUENCES];
    uint64_t tokens[SEQUENCES][CONTEXT];
    uint32_t length[SEQUENCES];
    uint64_t random, next;
    tamis_buffer *lse, *entries, *count, *sinks;
    uint32_t window;         /* sliding, of every layer */
    const uint32_t *parents; /* of the next steps' rows; NULL: lines */
} lists_world;

typedef struct lists_case {
    tamis_dtype dtype;
    tamis_selection selection;
    uint32_t flags, window;
    bool sunk; /* query heads have sink logits */
    tamis_eviction_kind eviction;
} lists_case;

typedef struct layer_result {
    float q[MOST_ROWS * 4 * DIM], out[MOST_ROWS * 4 * DIM], lse[MOST_ROWS * 4];
} layer_result;

/* Lists of at most 8 rows and 2 KV heads. */
typedef struct host_lists {
    int32_t entries[8 * 2 * MOST], count[8 * 2];
    uint32_t capacity;
    tamis_list_unit unit;
} host_lists;

/* A row of the step: its sequence, and how many slots it sees. */
typedef struct row_of_step {
    uint32_t sequence, visible;
} row_of_step;

tamis_selection lists_selection(uint32_t budget);
tamis_plan_params lists_plan(const lists_case *c);
void lists_open(lists_world *l, const lists_case *c);
void lists_close(lists_world *l);

/* A buffer with what is `from`, which may be NULL. */
void lists_fill(tamis_buffer **buffer, tamis_context *context, const void *from, uint64_t bytes);

/* The tokens of the rows of a step of all sequences, in its order, which these then have. */
uint64_t *lists_tokens(lists_world *l, const uint32_t *rows);

/* Prompts of three lengths, which nobody attends. */
void lists_prefill(lists_world *l);

/* Begins a step of all sequences. */
void lists_begin(lists_world *l, const uint32_t *rows, uint32_t exact_from);

/* Random queries for n rows, on the host and in the buffer. */
void lists_queries(lists_world *l, uint32_t n, float *q);

/* Lists for tamis_plan_attend_with, of the host or sent to the device. */
tamis_caller_lists lists_give(lists_world *l, const host_lists *h, bool on_host);

/* Attends n rows, and reads what comes of it. */
void lists_attend(lists_world *l, uint32_t layer, uint32_t n, const tamis_caller_lists *lists,
                  layer_result *r);

/* The list that was read for a row and KV head. */
uint32_t lists_read(lists_world *l, uint32_t row, uint32_t head, uint32_t *list);
uint64_t lists_skipped(lists_world *l);

/* Which row of the open step it is; the first slot that it sees. */
row_of_step lists_row(const lists_world *l, const uint32_t *rows, uint32_t row);
uint32_t lists_first(const lists_world *l, row_of_step of);

/* All heads of a row by the lists that the plan says it has read, against the formula in fp64. */
void lists_check_row(lists_world *l, uint32_t layer, row_of_step of, uint32_t row,
                     tamis_list_unit unit, const layer_result *r, bool sunk);

#endif
