/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `tamis eval eviction`: the rows of a full run are recorded; every arm replays them,
 * evicts, answers questions, and is compared with the full run. */
#ifndef CLI_EVAL_EVICTION_H
#define CLI_EVAL_EVICTION_H

#include "eval/passkey.h"
#include "eval/rows.h"

#define EVICTION_SEEDS_MAX 64

typedef struct eviction_flags {
    const char *device, *model, *text, *json;
    cli_seed seed;
    uint32_t length, n_texts, n_questions, n_seeds, dtype;
    eval_arm_flags arms; /* budgets and evictions only */
} eviction_flags;

/* The sums of one way to ask: after the eviction, or with the question at the prompt's end. */
typedef struct eviction_sums {
    double *error, *cosine;             /* [seed][layer], over rows */
    uint32_t right[EVICTION_SEEDS_MAX]; /* keys */
} eviction_sums;

/* The results of one arm; sums over texts. */
typedef struct eviction_result {
    eviction_sums after, within;
    double tokens_kept, bytes_returned; /* a lane; a sequence */
    double policy_us, step_us;          /* by a prompt's end; in decode steps after it */
} eviction_result;

/* The recorded rows of full attention for one text. A question's rows are those of its tokens and
 * of its answer's tokens without the last. */
typedef struct eviction_trace {
    tamis_sequence main;                /* the text */
    uint32_t length;                    /* of it, tokens */
    uint32_t taken;                     /* tokens of it that were observed */
    float *q, *k, *v;                   /* [layer][length][width] */
    float *tail;                        /* [question][PASSKEY_TAIL_TOKENS][layer]: q, k, v, out */
    uint32_t n_asked[PASSKEY_KEYS_MAX]; /* rows that are the question's own */
    uint32_t n_rows[PASSKEY_KEYS_MAX];
    int32_t tokens[PASSKEY_KEYS_MAX][PASSKEY_TAIL_TOKENS];
    int32_t first[PASSKEY_KEYS_MAX]; /* full's token after the question */
    uint32_t step;                   /* that is observed, and the questions in it */
    uint32_t n_active, active[PASSKEY_KEYS_MAX];
} eviction_trace;

typedef struct eviction_run {
    const eviction_flags *flags;
    eval_arms arms;
    eval_rig rig;
    eval_text natural;
    tamis_model_info shape;
    eval_rows rows;     /* on the device */
    eval_host_rows few; /* on the host, EVICTION_FEW of them */
    eviction_trace trace;
    uint32_t seed;                            /* under work, from 0 */
    uint64_t rows_after[EVICTION_SEEDS_MAX];  /* compared, in each layer */
    uint64_t rows_within[EVICTION_SEEDS_MAX]; /* the same */
    uint64_t steps;                           /* decode steps of an arm, over all texts */
    eviction_result results[EVAL_ARMS_MAX];
} eviction_run;

/* Rows of a step that are gathered on the host: a question, or a token of each question. */
#define EVICTION_FEW 32
_Static_assert(PASSKEY_TAIL_TOKENS <= EVICTION_FEW, "a question fits");
_Static_assert(PASSKEY_KEYS_MAX <= EVICTION_FEW, "a step fits");

/* Takes the memory that texts of the flags' length need. */
tamis_status eviction_create(eviction_run *run, tamis_error *error);
void eviction_destroy(eviction_run *run);

/* Reads the text under full into trace.main and records its rows, then those of every question with
 * its true answer, each on a fork. */
tamis_status eviction_record(eviction_run *run, const passkey_text *text, tamis_error *error);

/* Gives rows [from, to) of the text to a plan, in exact steps; without `attend` only their K and V.
 * */
tamis_status eviction_read_text(const eviction_run *run, tamis_plan *plan, tamis_sequence sequence,
                                uint32_t from, uint32_t to, bool attend, tamis_error *error);
/* Gives a question's own tokens, in one exact step. */
tamis_status eviction_read_question(const eviction_run *run, tamis_plan *plan,
                                    tamis_sequence sequence, uint32_t question, tamis_error *error);
/* Gives all rows of all questions in decode steps, each question on a fork of `parent`, in one
 * batch, and sums the differences of the arm's attention. E_DEVICE where they are not finite. */
tamis_status eviction_compare(eviction_run *run, uint32_t arm, tamis_sequence parent,
                              tamis_error *error);
/* The same with the rows of one question's answer, whose question `parent` holds. */
tamis_status eviction_compare_answer(eviction_run *run, uint32_t arm, tamis_sequence parent,
                                     uint32_t question, tamis_error *error);

/* The table to stdout. Returns false if memory ran out. */
bool eviction_print(const eviction_run *run);
/* The rows of the JSON file; NULL if memory ran out. */
cJSON *eviction_json_rows(const eviction_run *run);

#endif
