/* SPDX-License-Identifier: Apache-2.0 */
/* Windows of a text for evaluations that follow it token by token: a context, then the tokens that
 * are fed one at a time, then the last one, which is only foretold. */
#ifndef CLI_EVAL_WINDOWS_H
#define CLI_EVAL_WINDOWS_H

#include "eval/eval.h"

typedef struct eval_windows {
    cli_tokens tokens;     /* of the whole text */
    uint32_t longest, fed; /* tokens of the longest context; tokens fed after it */
    uint32_t texts;        /* windows */
    uint64_t seed;
} eval_windows;

/* Reads the file at `path`, or without one text.txt beside the model's file, and turns it into
 * tokens. Prints why and returns CLI_FAILED if it cannot, if the text is shorter than a window,
 * longest + fed + 1 tokens, or if it has fewer places for one than `texts`. */
int eval_windows_open(eval_windows *windows, const char *command, const tamis_model *model,
                      const char *model_path, const char *path, uint32_t longest, uint32_t fed,
                      uint32_t texts, uint64_t seed);
void eval_windows_close(eval_windows *windows);

/* The tokens of window `index` < texts with a context of `length` tokens: length + fed + 1 of them.
 * It begins anywhere in part `index` of `texts` equal parts of the places, which follows from
 * (seed, index); windows may overlap. The context ends at one place for every length, so that all
 * feed the same. */
const int32_t *eval_windows_at(const eval_windows *windows, uint32_t index, uint32_t length);

/* Lengths in their order, each once. */
void eval_merge_lengths(cli_list *lengths);
/* The longest of a list of lengths. */
uint32_t eval_longest(const cli_list *lengths);

#endif
