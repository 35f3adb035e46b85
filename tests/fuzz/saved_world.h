/* SPDX-License-Identifier: Apache-2.0 */
/* The small plans whose saved sequences are fuzzed, of one layer. */
#ifndef FUZZ_SAVED_WORLD_H
#define FUZZ_SAVED_WORLD_H

#include <tamis/tamis.h>

#define SAVED_ROWS    16u /* most of a step */
#define SAVED_CONTEXT 48u

typedef enum saved_plan {
    SAVED_PLAIN,    /* q4, no planes */
    SAVED_WINDOWED, /* q4; lanes give pages back */
    SAVED_SNAPKV,   /* f16; queries */
    SAVED_H2O,      /* q8; scores, slots out of order */
    SAVED_PLANS
} saved_plan;

typedef struct saved_world {
    tamis_cache *cache;
    tamis_plan *plan;
    tamis_buffer *rows; /* of every step: q, k, v in turn, then out */
} saved_world;

/* On the reference. Aborts where something fails. */
tamis_context *saved_world_context(void);
void saved_world_open(saved_world *world, tamis_context *context, saved_plan plan);
void saved_world_close(saved_world *world);
/* A step of so many rows, written and attended: exact, or one decode row. The status of its
 * first call that fails; then the step is cancelled. */
tamis_status saved_world_step(saved_world *world, tamis_sequence id, uint32_t rows, int exact);

#endif
