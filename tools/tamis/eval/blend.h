/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis eval blend` in parts: chunks with keys and their questions, the answers, the report. */
#ifndef CLI_EVAL_BLEND_H
#define CLI_EVAL_BLEND_H

#include "eval/blend_rig.h"
#include "eval/eval.h"
#include "eval/passkey.h"

/* ---- Texts ----------------------------------------------------------------------------------- */

/* What a question needs: a key; two keys, of two chunks; a key whose name stands in another chunk
 * than the key. */
typedef enum blend_ask { BLEND_ASK_ONE, BLEND_ASK_TWO, BLEND_ASK_CHAIN, BLEND_ASKS } blend_ask;
extern const char *const blend_ask_names[BLEND_ASKS + 1]; /* ended by NULL */

/* Tokens of a question at most, and those of its answer. */
#define BLEND_ASKED_TOKENS 64

/* A key that is asked for. */
typedef struct blend_step {
    int32_t tokens[BLEND_ASKED_TOKENS]; /* the question's */
    uint32_t n_question, n_answer;
    char key[PASSKEY_DIGITS + 1];
} blend_step;

/* The second step is asked behind the answer to the first. */
#define BLEND_STEPS_MAX 2
typedef struct blend_question {
    blend_step steps[BLEND_STEPS_MAX];
    uint32_t n_steps;
} blend_question;

/* Tokens behind the chunks at most. */
#define BLEND_TAIL_TOKENS (BLEND_STEPS_MAX * BLEND_ASKED_TOKENS)

typedef struct blend_text {
    int32_t *chunks; /* [n_chunks][chunk_tokens] */
    uint32_t n_chunks;
    blend_question questions[BLEND_ASKS][BLEND_CHUNKS_MAX]; /* question k: of key k */
} blend_text;

/* What texts are made from. */
typedef struct blend_source {
    const tamis_vocab *vocab;
    const cli_tokens *natural; /* not empty */
    uint32_t chunk_tokens;
    uint32_t n_keys; /* 0: one in each chunk; else in so many of them, if there are more */
    bool chain;      /* chunks with a key hold a name of another key, too */
    uint64_t seed;
} blend_source;

/* Keys of a text, and questions of each kind. */
uint32_t blend_text_keys(const blend_source *source, uint32_t n_chunks);

/* Text `index` of n_chunks chunks: natural text with keys, at most one in each. Everything follows
 * from (seed, n_chunks, index). Errors: E_ARGUMENT (a chunk is too short for its key; the
 * vocabulary lacks a byte), E_UNSUPPORTED (a question takes too many tokens), E_NO_MEMORY. Freed by
 * blend_text_free, also after an error. */
tamis_status blend_text_make(const blend_source *source, uint32_t n_chunks, uint32_t index,
                             blend_text *out, tamis_error *error);
void blend_text_free(blend_text *text);

/* ---- Answers --------------------------------------------------------------------------------- */

/* The tokens of an answer, of all steps. */
typedef struct blend_answer {
    int32_t tokens[BLEND_TAIL_TOKENS];
    uint32_t count;
    bool right; /* each step's text holds its key */
} blend_answer;

/* Answers greedily on a sequence that holds the question's first step, with `first` as the first
 * token: as many tokens in each step as the right answer has. */
tamis_status blend_ask_question(const blend_rig *rig, const blend_question *question,
                                tamis_sequence sequence, int32_t first, blend_answer *out,
                                tamis_error *error);

/* ---- Results --------------------------------------------------------------------------------- */

/* An arm with prompts of so many chunks. */
typedef struct blend_cell {
    uint64_t asked[BLEND_ASKS], right[BLEND_ASKS], agreed[BLEND_ASKS];
    double *divergences[BLEND_ASKS]; /* [questions] of the next token from full's, nats */
    double *seconds;                 /* [prompts] to the first token */
    double rows;                     /* sum over prompts */
    uint64_t prompts, measured;      /* measured: those whose deviations were taken */
    blend_sums *sums;                /* [n_layers] */
} blend_cell;

#define BLEND_SHARES_MAX 8
/* Of full reuse, layer by layer, over all measured prompts of one number of chunks. */
typedef struct blend_layer {
    double correlation;            /* sum: of rows' deviations with those of the next layer */
    double held[BLEND_SHARES_MAX]; /* sums: of the sum of squares, what the top share holds */
} blend_layer;

#define BLEND_ARMS_MAX 80

/* ---- Prompts --------------------------------------------------------------------------------- */

/* What arms compute one after the other: a text, and what full, arm 0, made of it. */
typedef struct blend_prompts {
    const blend_rig *rig;
    const blend_arm *arms;
    const cli_list *asks, *shares;
    blend_source source;
    blend_text text;
    float *logits;         /* of full, [BLEND_ASKS][BLEND_CHUNKS_MAX][n_vocab]; then an arm's own */
    blend_answer *answers; /* of full, [BLEND_ASKS][BLEND_CHUNKS_MAX] */
    float *attention;      /* of full, then of an arm */
    double *tokens;        /* [n_layers][rows] squared differences of V */
} blend_prompts;

/* Makes room; rig, source, arms and lists are there. E_NO_MEMORY. The text is the caller's. */
tamis_status blend_prompts_open(blend_prompts *p, tamis_error *error);
void blend_prompts_close(blend_prompts *p);

/* Puts the text's chunks into the store. */
tamis_status blend_prompts_record(const blend_prompts *p, tamis_error *error);

/* The text's prompt by an arm, with the first n_questions questions of each kind; full first. The
 * first question is the prompt's. The others follow on forks, but for an arm that selects by the
 * question: there each is a prompt of its own, whose time is not counted. `measured`: how far it is from full is added to the cell, and for full reuse to
 * `layers`, else NULL. *full is the sequence of full, which stays. */
tamis_status blend_prompts_run(const blend_prompts *p, uint32_t arm, uint32_t n_questions,
                               bool measured, tamis_sequence *full, blend_cell *cell,
                               blend_layer *layers, tamis_error *error);

/* ---- Report ---------------------------------------------------------------------------------- */

typedef struct blend_report {
    const blend_rig *rig;
    const cli_list *counts; /* of chunks */
    const cli_list *asks, *shares;
    uint32_t chunk_tokens, n_arms;
    const blend_arm *arms;
    const blend_cell *cells;   /* [counts][arms] */
    const blend_layer *layers; /* [counts][n_layers]; NULL unless full reuse is an arm */
    const uint64_t *layered;   /* [counts] prompts in them */
} blend_report;

/* The tables to stdout. Returns false if memory ran out. */
bool blend_print(const blend_report *report);
/* The rows of the JSON file, and what it says of layers; NULL if memory ran out. */
cJSON *blend_json_rows(const blend_report *report);
cJSON *blend_json_layers(const blend_report *report);

#endif
