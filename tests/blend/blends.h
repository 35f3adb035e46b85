/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of blends with a model share: the oracle's prompt, its chunks in a store, and which
 * rows the layers of a blend were attended for. */
#ifndef TEST_BLENDS_H
#define TEST_BLENDS_H

#include "tests/data/blend_cases.h"
#include "tests/model/rig.h"
#include <stdbool.h>
#include <tamis/blend_model.h>
#include <tamis/record.h>

typedef struct blends {
    rig r;
    tamis_store *store;
    char folder[256];                    /* of the store's disk tier; empty: memory */
    tamis_dtype dtype;                   /* of the records */
    tamis_dtype cache_dtype;             /* of the runner's cache */
    tamis_blend_part parts[BLEND_PARTS]; /* the oracle's prompt */
} blends;

/* A runner of blends/<name>.gguf over params, with load_dtypes of `dtype`, and a store, in memory
 * or on disk, with the prompt's chunks. */
void blends_open(blends *b, const char *name, const rig_params *params, tamis_dtype dtype,
                 bool on_disk);
void blends_close(blends *b);

/* The case of this name, and what the oracle says of it: how many rows each layer attends for, these
 * rows, layer after layer, and the logits of the last row, [BLEND_VOCABULARY]. */
const blend_case *blends_case(const char *name);
typedef struct blends_answer {
    int32_t *counts, *rows; /* [BLEND_LAYERS], [their sum] */
    float *logits;
} blends_answer;
blends_answer blends_answer_of(const char *model, const blend_case *c);
void blends_answer_free(blends_answer *answer);

/* The parameters of a case: selector, shares, sink, dtype. */
tamis_blend_params blends_params(const blends *b, const blend_case *c);
tamis_blend *blends_make(blends *b, const tamis_blend_params *params);
/* The prompt on a new sequence. */
tamis_sequence blends_run(blends *b, tamis_blend *blend);
void blends_logits(blends *b, float *logits);

/* The rows that stayed in each layer of the last prompt, as tms_blend_select told. */
typedef struct blends_seen {
    uint32_t counts[BLEND_LAYERS], rows[BLEND_LAYERS][BLEND_ROWS];
} blends_seen;
extern blends_seen blends_last;

#endif
