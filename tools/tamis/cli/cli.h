/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands share: messages, the device, flags of a selection and of an
 * eviction, output. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include "cli/options.h"

#include <stdbool.h>
#include <stdio.h>
#include <tamis/tamis.h>

/* The commands: arguments after the command's name; the exit status is returned. */
int cli_devices(int argc, char *const *argv);
int cli_run(int argc, char *const *argv);
int cli_bench(int argc, char *const *argv);
int cli_eval(int argc, char *const *argv);

/* Prints "<command>: <text>" in one line to stderr. Returns CLI_FAILED. */
int cli_fail(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Opens a device; lines of the library's log from info up go to stderr. NULL: auto. */
tamis_status cli_open(const char *device, tamis_context **out, tamis_error *error);

/* Sets *error. Returns the status. */
tamis_status cli_error(tamis_error *error, tamis_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* E_NO_MEMORY for host memory. */
tamis_status cli_no_memory(tamis_error *error);

/* Words for flags, each at the value of the library's enum, ended by NULL. */
extern const char *const cli_groups[];
extern const char *const cli_dtypes[];
extern const char *const cli_page_sizes[];
extern const char *const cli_bounds[];
extern const char *const cli_poolings[];
/* The page size behind an index into cli_page_sizes. */
uint32_t cli_page_size(uint32_t choice);

/* Flags of a selection; CLI_UNSET leaves the selection's own default. */
typedef struct cli_selection_flags {
    uint32_t sinks, recent, dense_layers, group;
} cli_selection_flags;

/* For help. */
#define CLI_SELECTION_NAMES "full, window, quest, oracle, random, quest-paper"

/* The name and the kind of a selection that a flag gave. */
const char *cli_selection_name(uint32_t value);
tamis_selection_kind cli_selection_kind(uint32_t value);

/* The selection that the flags mean, with a budget or CLI_UNSET, checked against the page size.
 * Prints why and returns false if it cannot be. */
bool cli_selection(const char *command, uint32_t value, uint32_t budget,
                   const cli_selection_flags *flags, uint32_t page_size, tamis_selection *out);

/* Numbers of an eviction; CLI_UNSET, NULL and an empty list leave its own defaults. */
typedef struct cli_eviction_flags {
    uint32_t sinks, recent, window, kernel, pooling, chunk, every;
    const char *floor, *beta; /* decimal numbers */
    cli_list options;         /* indices into cli_eviction_options */
} cli_eviction_flags;

#define CLI_EVICTION_UNSET                                                                         \
    {                                                                                              \
        CLI_UNSET, CLI_UNSET, CLI_UNSET, CLI_UNSET, CLI_UNSET, CLI_UNSET, CLI_UNSET, NULL, NULL, { \
            0                                                                                      \
        }                                                                                          \
    }

#define CLI_EVICTION_MAX (1u << 20)

/* clang-format off */
/* Entries of a command's table of options: `type` is its struct of flags, `member` the
 * cli_eviction_flags in it. --evict and its budget are the command's. */
#define CLI_EVICTION_OPTIONS_OF(type, member)                                                      \
    {"--evict-sinks", "N", "first tokens always kept (default: streaming 4, others 0)",            \
     CLI_NUMBER, offsetof(type, member.sinks), 0, CLI_EVICTION_MAX, NULL},                         \
        {"--evict-recent", "N", "h2o: last tokens always kept (default: half of the budget)",      \
         CLI_NUMBER, offsetof(type, member.recent), 1, CLI_EVICTION_MAX, NULL},                    \
        {"--evict-window", "N", "last queries that score the others (default 32)", CLI_NUMBER,     \
         offsetof(type, member.window), 1, CLI_EVICTION_MAX, NULL},                                \
        {"--evict-kernel", "N", "width of the pooling, odd (default: defensivekv 5, others 7)",    \
         CLI_NUMBER, offsetof(type, member.kernel), 1, CLI_EVICTION_MAX, NULL},                    \
        {"--evict-pool", "RULE", "max, average (default: defensivekv average, others max)",        \
         CLI_CHOICE, offsetof(type, member.pooling), 0, 0, cli_poolings},                          \
        {"--evict-chunk", "N", "andpro: tokens that stay or go together (default 4)", CLI_NUMBER,  \
         offsetof(type, member.chunk), 1, CLI_EVICTION_MAX, NULL},                                 \
        {"--evict-floor", "X", "share of the budget that each head has for itself, 0 to 1",        \
         CLI_TEXT, offsetof(type, member.floor), 0, 0, NULL},                                      \
        {"--evict-beta", "X", "pyramidkv: the last layer's share is 1/X of the mean (default 20)", \
         CLI_TEXT, offsetof(type, member.beta), 0, 0, NULL},                                       \
        {"--evict-every", "N", "0: at the prompt's end only; 1: in each step, too (default of\n"   \
         "                           streaming, h2o, tova); N: again each N steps", CLI_NUMBER,    \
         offsetof(type, member.every), 0, CLI_EVICTION_MAX, NULL},                                 \
        {"--evict-options", "W[,W]", "reindex, rerank, lifetime, reference-schedule, blend,\n"     \
         "                           anchor-all, budget-beside-kept, budget-chunks, across-layers", \
         CLI_CHOICES, offsetof(type, member.options), 0, 0, cli_eviction_options}
/* clang-format on */

/* "streaming, h2o, ...", for help. */
#define CLI_EVICTION_NAMES                                                                         \
    "streaming, h2o, tova, snapkv, pyramidkv, adakv, criticalkv,\n"                                \
    "                           critical-adakv, andpro, defensivekv"

/* The eviction that a value (CLI_EVICTION_OF, not of "all") and the flags mean, with a budget or
 * CLI_UNSET, checked. `listed`: beside others, so that it takes only those flags that are for its
 * kind; else one that is not is an error. Prints why and returns false if it cannot be. */
bool cli_eviction(const char *command, uint32_t value, uint32_t budget,
                  const cli_eviction_flags *flags, bool listed, tamis_eviction *out);

/* The name of an eviction with its options: "andpro+anchor-all". */
typedef struct cli_eviction_text {
    char text[160];
} cli_eviction_text;
cli_eviction_text cli_eviction_name(const tamis_eviction *eviction);

/* Every value of `list` in its place, "all" as all kinds; none and what is there already left out.
 * At most CLI_EVICTIONS_MAX come of it. */
#define CLI_EVICTIONS_MAX (CLI_LIST_MAX + TAMIS_EVICT_CALLER)
uint32_t cli_list_evictions(const cli_list *list, uint32_t values[CLI_EVICTIONS_MAX]);

/* A decimal number that is not negative: digits, with a point among them or without. Prints
 * "FLAG TEXT: not a decimal number" and returns false if it is none. */
bool cli_decimal(const char *command, const char *flag, const char *text, float *out);

/* Seconds of a clock that never goes back. */
double cli_seconds(void);

/* Bytes in a readable unit, e.g. "1.5 GiB", into `text`. Returns `text`. */
typedef struct cli_text {
    char text[32];
} cli_text;
cli_text cli_bytes(double bytes);

#endif
