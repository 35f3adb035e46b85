/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis eval passkey` in parts: the texts with their questions, the answers, the report. */
#ifndef CLI_EVAL_PASSKEY_H
#define CLI_EVAL_PASSKEY_H

#include "eval/eval.h"

#define PASSKEY_KEYS_MAX 16
#define PASSKEY_DIGITS   5
/* " The white pass key is 12345. Remember it. " with the longest name, bytes. */
#define PASSKEY_PLANT_BYTES 43
/* Tokens of a question and its answer at most: "\nThe white pass key is 12345" has 28 bytes, and
 * "\nThe special magic number is 12345" is to be asked in vocabularies of few merges too. */
#define PASSKEY_ASKED_TOKENS 32
/* Tokens behind a text at most: a question and all but the last token of its answer. */
#define PASSKEY_TAIL_TOKENS (PASSKEY_ASKED_TOKENS - 1)
/* Of an answer at most: the digits with what their first token holds before them. */
#define PASSKEY_ANSWER_BYTES 15

typedef struct passkey_question {
    int32_t tokens[PASSKEY_ASKED_TOKENS]; /* of the question, then of its answer */
    uint32_t count, n_answer;             /* tokens of each */
    char key[PASSKEY_ANSWER_BYTES + 1];   /* the answer's bytes: " 12345", "12345" */
    uint32_t key_bytes;
} passkey_question;

/* A text with its keys planted, question i of the key at depth i. */
typedef struct passkey_text {
    cli_tokens tokens;
    uint32_t n_keys;
    passkey_question questions[PASSKEY_KEYS_MAX];
} passkey_text;

/* What texts are made from. */
typedef struct passkey_source {
    const tamis_vocab *vocab;
    const char *natural;
    size_t natural_bytes; /* > 0 */
    uint32_t n_keys;
    uint64_t seed;
} passkey_source;

/* Whether a vocabulary is one of bytes, whose texts have the words that the shipped model was trained
 * on. */
bool passkey_has_bytes(const tamis_vocab *vocab);

/* What the key of a name is called where there are several: "magic number of red", "red pass key".
 * name < PASSKEY_KEYS_MAX. */
typedef struct passkey_subject {
    char text[32];
} passkey_subject;
passkey_subject passkey_subject_of(const tamis_vocab *vocab, uint32_t name);

/* " The magic number of red is 12345. Remember it.", with its NUL, to PASSKEY_PLANT_ROOM bytes.
 * Returns its bytes. */
#define PASSKEY_PLANT_ROOM 64
size_t passkey_write_plant(const tamis_vocab *vocab, passkey_subject subject, const char *key,
                           char *to);

/* The least length for so many keys: each has a byte of text of its own. */
uint32_t passkey_least_length(uint32_t n_keys);

/* Text `index` of `length` tokens, which is at least passkey_least_length; bos counts where the file
 * wants it. Where a token may hold several bytes it may be shorter by up to a plant. Everything
 * follows from (seed, index). Vocabularies of bytes get the words that the shipped model was trained
 * on; in others keys stand between words, and text, question and answer are cut into tokens as one.
 * Errors: E_ARGUMENT (the vocabulary lacks a byte), E_UNSUPPORTED (it does not keep the text's bytes,
 * a question takes too many tokens), E_NO_MEMORY. Freed by passkey_text_free, also after an error. */
tamis_status passkey_text_make(const passkey_source *source, uint32_t length, uint32_t index,
                               passkey_text *out, tamis_error *error);
void passkey_text_free(passkey_text *text);

/* Asks an arm's runner all questions of a text that the cache holds as `parent`, each on a fork of
 * it, in one batch. right[i]: whether the answer has all digits of key i. Adds the tokens decoded
 * and the seconds that they took. */
tamis_status passkey_ask(const eval_rig *rig, uint32_t arm, const passkey_text *text,
                         tamis_sequence parent, bool right[PASSKEY_KEYS_MAX], uint64_t *tokens,
                         double *seconds, tamis_error *error);

/* Lets an arm's runner answer a question that `sequence` already holds, with `first` as the first
 * token of the answer. */
tamis_status passkey_answer(const eval_rig *rig, uint32_t arm, const passkey_question *question,
                            tamis_sequence sequence, int32_t first, bool *right,
                            tamis_error *error);

/* One arm at one length, over all texts. */
typedef struct passkey_result {
    uint64_t right[PASSKEY_KEYS_MAX]; /* by depth */
    uint64_t tokens;                  /* decoded */
    double seconds;                   /* of decode steps, wall time */
    tamis_plan_counters counters;     /* of decode steps */
    uint64_t bytes_held;              /* by the longest text before the questions */
} passkey_result;

typedef struct passkey_report {
    const eval_rig *rig;
    const cli_list *lengths;
    uint32_t n_texts, n_keys;
    const passkey_result *results; /* [lengths][arms] */
} passkey_report;

/* The table to stdout. Returns false if memory ran out. */
bool passkey_print(const passkey_report *report);
/* The rows of the JSON file; NULL if memory ran out. */
cJSON *passkey_rows(const passkey_report *report);

#endif
