/* SPDX-License-Identifier: Apache-2.0 */
/* The flags that say how the next token is chosen. */
#ifndef CLI_SAMPLING_H
#define CLI_SAMPLING_H

#include "cli/cli.h"

#include <tamis/sample.h>

typedef struct cli_sampling_flags {
    const char *temperature, *top_p, *min_p;
    uint32_t top_k;
    cli_seed seed;
} cli_sampling_flags;

#define CLI_SAMPLING_UNSET                                                                         \
    { .top_k = CLI_UNSET }

/* clang-format off */
/* `type` is a command's struct of flags, `member` a cli_sampling_flags in it. */
#define CLI_SAMPLING_OPTIONS(type, member)                                                         \
    {"--temperature", "T",                                                                         \
     "0: the most likely token is next; above: one is drawn, of logits that are divided by T "     \
     "(default 0)",                                                                                \
     CLI_TEXT, offsetof(type, member.temperature), 0, 0, NULL},                                    \
    {"--top-k", "N", "draw from the N most likely tokens; 0: from all (default 0)", CLI_NUMBER,    \
     offsetof(type, member.top_k), 0, INT32_MAX, NULL},                                            \
    {"--top-p", "P",                                                                               \
     "from the most likely ones that together have the share P of probability (default 1)",        \
     CLI_TEXT, offsetof(type, member.top_p), 0, 0, NULL},                                          \
    {"--min-p", "P",                                                                               \
     "of these, from those with at least P times the first one's probability (default 0)",         \
     CLI_TEXT, offsetof(type, member.min_p), 0, 0, NULL},                                          \
    {"--seed", "N", "number of 64 bits from which the draws follow (default 0)", CLI_SEED,         \
     offsetof(type, member.seed), 0, 0, NULL}
/* clang-format on */

/* What the flags mean; prints a line and returns false if they mean nothing. */
bool cli_sampling(const char *command, const cli_sampling_flags *flags, tamis_sampling *out);

#endif
