/* SPDX-License-Identifier: Apache-2.0 */
/* The prompt and the cases of blends/, written by tests/blend/make_blends.py, whose head states the
 * rule. */
#ifndef TEST_BLEND_CASES_H
#define TEST_BLEND_CASES_H

#include <stddef.h>
#include <stdint.h>

enum { BLEND_LAYERS = 5, BLEND_VOCABULARY = 48, BLEND_CONTEXT = 192, BLEND_CHECK = 1 };
enum { BLEND_SINKS = 1, BLEND_PARTS = 8, BLEND_ROWS = 91, BLEND_HITS = 60 };
enum { BLEND_CASES = 10, BLEND_MODELS = 3 };

/* A missed part is a chunk that the store does not have. */
typedef enum blend_kind { BLEND_FRESH, BLEND_STORED, BLEND_MISSED } blend_kind;

/* Tokens [first, first + n) of blend_tokens. Two stored parts may be one chunk. */
typedef struct blend_part {
    blend_kind kind;
    uint32_t first, n;
    int exact; /* stored, and right where it stands */
} blend_part;

typedef struct blend_case {
    const char *name, *selector; /* all, none, reuse, list, first, hkvd, question, asked */
    uint32_t first;              /* of selector first: tokens of each chunk */
    const uint32_t *listed;      /* of selector list: rows */
    uint32_t n_listed;
    double shares[3]; /* of hkvd and question, from the check layer on; of asked, from layer 0 on */
    uint32_t n_shares;
} blend_case;

/* The model is blends/<name>.gguf, and what its blends give stands in blends/<name>.logits. */
static const char *const blend_models[BLEND_MODELS] = {"llama", "qwen3", "window"};
/* The tokens of the sink, behind which chunks are computed. */
static const int32_t blend_sink[BLEND_SINKS] = {1};
static const int32_t blend_tokens[BLEND_ROWS] = {
    1, 17, 36, 21, 38, 28, 8, 25, 21, 28, 29, 28, 28, 42, 16, 15, 42, 19, 17, 21, 35, 34, 11, 4, 12,
    4, 9, 24, 39, 36, 11, 34, 14, 23, 12, 17, 8, 20, 27, 10, 16, 31, 5, 22, 41, 35, 42, 19, 47, 5,
    21, 35, 40, 35, 35, 6, 21, 23, 37, 23, 32, 44, 26, 29, 25, 16, 15, 42, 19, 17, 21, 35, 34, 11,
    4, 12, 4, 9, 24, 39, 36, 11, 34, 14, 23, 12, 38, 39, 37, 25, 39,
};
static const blend_part blend_parts[BLEND_PARTS] = {
    {BLEND_FRESH, 0, 1, 0},
    {BLEND_STORED, 1, 13, 1},
    {BLEND_STORED, 14, 21, 0},
    {BLEND_FRESH, 35, 3, 0},
    {BLEND_MISSED, 38, 9, 0},
    {BLEND_STORED, 47, 18, 0},
    {BLEND_STORED, 65, 21, 0},
    {BLEND_FRESH, 86, 5, 0},
};
static const uint32_t blend_listed[] = {
    14, 17, 18, 23, 31, 34, 48, 50, 53, 56, 61, 64, 65, 66, 79, 84,
};
static const blend_case blend_cases[BLEND_CASES] = {
    {.name = "all", .selector = "all"},
    {.name = "none", .selector = "none"},
    {.name = "reuse", .selector = "reuse"},
    {.name = "list", .selector = "list", .listed = blend_listed, .n_listed = 16},
    {.name = "first", .selector = "first", .first = 3},
    {.name = "flat", .selector = "hkvd", .shares = {0.16}, .n_shares = 1},
    {.name = "falling", .selector = "hkvd", .shares = {0.36, 0.23, 0.11}, .n_shares = 3},
    {.name = "two", .selector = "hkvd", .shares = {0.31, 0.21}, .n_shares = 2},
    {.name = "question", .selector = "question", .shares = {0.41, 0.14, 0.04}, .n_shares = 3},
    {.name = "asked", .selector = "asked", .shares = {0.41, 0.13}, .n_shares = 2},
};

#endif
