/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis compare` in parts: the tokens of text and questions, the answers of all arms, the
 * report. */
#ifndef CLI_COMPARE_H
#define CLI_COMPARE_H

#include "eval/eval.h"

extern const cli_command compare_command;

/* ---- Text and questions ---------------------------------------------------------------------- */

/* How text and question become what the model reads. */
typedef struct compare_form {
    bool plain;              /* one behind the other, whatever template the file has */
    const char *chat_format; /* NULL: the one that the file's template is recognised as */
    const char *system;      /* NULL: none */
    const char *date;        /* which a template is told; NULL: none */
} compare_form;

/* A text with its questions. The text is cut with each question as one text, since the tokens of a
 * piece depend on its neighbours. */
typedef struct compare_text {
    const char *form;         /* "plain", or a chat format's name */
    tamis_error unrecognised; /* E_UNSUPPORTED: why the form is plain though there is a template */
    int32_t ending;           /* the token that ends an answer in this form; -1: none */
    cli_tokens tokens;        /* with which the text begins, whatever is asked */
    uint32_t n_questions;
    cli_tokens questions[CLI_LIST_MAX]; /* what follows them; never empty */
} compare_text;

/* In a chat form the text is the beginning of the user's turn, an empty line stands between it and
 * the question. Without a recognised template the form is plain, unless a format or a system text
 * was asked for. Errors: those of cli_chat_open, cli_chat_turn and tamis_vocab_encode; E_ARGUMENT
 * (a text without a token that does not depend on the question). Freed by compare_text_free, also
 * after an error. */
tamis_status compare_text_cut(const tamis_vocab *vocab, const compare_form *form, const char *text,
                              size_t bytes, const cli_texts *questions, compare_text *out,
                              tamis_error *error);
void compare_text_free(compare_text *text);
/* Tokens of the longest question. */
uint32_t compare_longest_question(const compare_text *text);

/* ---- Answers --------------------------------------------------------------------------------- */

/* One question to one arm, in all rounds. */
typedef struct compare_result {
    char *answer;        /* of the first round, in one line */
    double *rates;       /* [rounds] tokens/s of decode steps; then in ascending order */
    uint64_t tokens;     /* decoded: of question and answer */
    uint64_t bytes_read; /* by them */
    uint64_t bytes_full; /* what full would have read of the same cache */
} compare_result;

typedef struct compare_run {
    eval_arms arms;
    eval_rig rig;
    compare_text text;
    uint32_t rounds, most; /* most tokens of an answer */
    double read_seconds;
    uint64_t held[EVAL_ARMS_MAX]; /* bytes that the text takes in the cache, by arm */
    compare_result *results;      /* [questions][arms] */
} compare_run;

/* Tokens that the cache of a run must hold. */
uint64_t compare_capacity(const compare_run *run, uint32_t page_size);

/* Reads the text once, exactly, evicts from a fork of it for each arm with an eviction, and lets
 * every arm answer every question in every round. */
tamis_status compare_measure(compare_run *run, tamis_error *error);

/* ---- The report ------------------------------------------------------------------------------ */

/* A table for each question, to stdout. False if memory ran out. */
bool compare_print(const compare_run *run, const cli_texts *questions);
/* The rows of the JSON file; NULL if memory ran out. */
cJSON *compare_rows(const compare_run *run, const cli_texts *questions);

#endif
