/* SPDX-License-Identifier: Apache-2.0 */
/* The flags of selections and of evictions, which several commands take. The names of kinds, presets
 * and options, and the default numbers of each kind, come from the library. */
#ifndef CLI_POLICIES_H
#define CLI_POLICIES_H

#include "cli/cli.h"

/* Words for flags, each at the value of the library's enum, ended by NULL. */
extern const char *const cli_group_rules[];
extern const char *const cli_dtypes[];
extern const char *const cli_stored_dtypes[]; /* of K and V in a store */
extern const char *const cli_bounds_dtypes[];
extern const char *const cli_page_sizes[];
extern const char *const cli_bounds[];
extern const char *const cli_poolings[];
/* The page size at an index of cli_page_sizes. */
uint32_t cli_page_size(uint32_t choice);

/* Entries of a command's table of options: `type` is its struct of flags, `member` a member of
 * it. */
/* clang-format off */
#define CLI_DTYPE_OPTION(name, type, member)                                                       \
    {name, "TYPE", "element type of the cache: {} (default f16)", CLI_CHOICE,                      \
     offsetof(type, member), 0, 0, cli_dtypes}
#define CLI_BOUNDS_DTYPE_OPTION(type, member)                                                      \
    {"--bounds-dtype", "TYPE",                                                                     \
     "element type of page bounds: {}; cache is the cache's own (default cache)", CLI_CHOICE,      \
     offsetof(type, member), 0, 0, cli_bounds_dtypes}
#define CLI_PAGE_SIZE_OPTION(type, member)                                                         \
    {"--page-size", "N", "slots of a page: {} (default 16)", CLI_CHOICE, offsetof(type, member),   \
     0, 0, cli_page_sizes}
/* clang-format on */

/* ---- Selections ------------------------------------------------------------------------------ */

/* Flags of a selection; CLI_UNSET leaves the selection's own default. */
typedef struct cli_selection_flags {
    uint32_t sinks, recent, dense_layers, group;
} cli_selection_flags;

#define CLI_SELECTION_UNSET                                                                        \
    { CLI_UNSET, CLI_UNSET, CLI_UNSET, CLI_UNSET }

/* clang-format off */
/* The options of a selection that are in cli_selection_flags; --select and --budget are the
 * command's. */
#define CLI_TOKENS_MAX (1u << 20)
#define CLI_SELECTION_OPTIONS(type, member)                                                        \
    {"--sinks", "N", "first tokens that are always read (default {default})", CLI_NUMBER,          \
     offsetof(type, member.sinks), 0, CLI_TOKENS_MAX, NULL},                                       \
        {"--recent", "N", "last tokens that are always read (default {default})", CLI_NUMBER,      \
         offsetof(type, member.recent), 0, CLI_TOKENS_MAX, NULL},                                  \
        {"--group", "RULE",                                                                        \
         "how the scores of the query heads of a KV head become one: {} (default max)",            \
         CLI_CHOICE, offsetof(type, member.group), 0, 0, cli_group_rules}
#define CLI_DENSE_LAYERS_OPTION(type, member)                                                      \
    {"--dense-layers", "N", "first layers, which read everything (default {default})", CLI_NUMBER, \
     offsetof(type, member.dense_layers), 0, 1024, NULL}
/* clang-format on */

/* The name and the kind of a selection that a flag gave. */
const char *cli_selection_name(uint32_t value);
tamis_selection_kind cli_selection_kind(uint32_t value);

/* The bounds by which a selection scores pages unless a flag says otherwise: meanstd, which finds
 * more on real models (docs/results/selection.md), but for quest-paper. */
tamis_bounds_kind cli_selection_bounds(uint32_t value);

/* The selection that the flags describe, with a budget or CLI_UNSET, checked against the page size.
 * If the selection is invalid it prints why and returns false. */
bool cli_selection(const char *command, uint32_t value, uint32_t budget,
                   const cli_selection_flags *flags, uint32_t page_size, tamis_selection *out);

/* Whether one of the selections uses the flags. Full reads everything and uses none of them: if
 * full is the only selection, this prints a flag that was given and returns false. `budget`:
 * --budget is given and applies only to selections. */
bool cli_check_selections(const char *command, const cli_list *selections, bool budget,
                          const cli_selection_flags *flags);

/* ---- Evictions ------------------------------------------------------------------------------- */

/* Numbers of an eviction; CLI_UNSET, NULL and an empty list leave its own defaults. */
typedef struct cli_eviction_flags {
    uint32_t sinks, recent, window, kernel, pooling, chunk, every;
    const char *floor, *beta; /* decimal numbers */
    cli_list options;         /* an index i means 1 << i */
} cli_eviction_flags;

/* clang-format off */
#define CLI_EVICTION_UNSET                                                                         \
    {.sinks = CLI_UNSET, .recent = CLI_UNSET, .window = CLI_UNSET, .kernel = CLI_UNSET,            \
     .pooling = CLI_UNSET, .chunk = CLI_UNSET, .every = CLI_UNSET}

/* The options that are in cli_eviction_flags. Each command has its own --evict and budget. */
#define CLI_EVICTION_OPTIONS_OF(type, member)                                                      \
    {"--evict-sinks", "N", "first tokens that are always kept (default {default})", CLI_NUMBER,    \
     offsetof(type, member.sinks), 0, CLI_TOKENS_MAX, NULL},                                       \
        {"--evict-recent", "N",                                                                    \
         "last tokens that h2o or knorm always keeps (default half of the budget for h2o, else 0)", \
         CLI_NUMBER, offsetof(type, member.recent), 1, CLI_TOKENS_MAX, NULL},                      \
        {"--evict-window", "N",                                                                    \
         "last queries, which score the tokens before them (default {default})", CLI_NUMBER,       \
         offsetof(type, member.window), 1, CLI_TOKENS_MAX, NULL},                                  \
        {"--evict-kernel", "N",                                                                    \
         "neighbouring tokens whose scores are pooled, an odd number (default {default})",         \
         CLI_NUMBER, offsetof(type, member.kernel), 1, CLI_TOKENS_MAX, NULL},                      \
        {"--evict-pool", "RULE", "how scores are pooled: {} (default {default})", CLI_CHOICE,      \
         offsetof(type, member.pooling), 0, 0, cli_poolings},                                      \
        {"--evict-chunk", "N",                                                                     \
         "neighbouring tokens kept or evicted together (default {default})", CLI_NUMBER,           \
         offsetof(type, member.chunk), 1, CLI_TOKENS_MAX, NULL},                                   \
        {"--evict-floor", "X",                                                                     \
         "where heads share a budget, the part of it that each head has for itself, from 0 to 1 "  \
         "(default {default})",                                                                    \
         CLI_TEXT, offsetof(type, member.floor), 0, 0, NULL},                                      \
        {"--evict-beta", "X",                                                                      \
         "pyramid of budgets: the last layer has 1/X of the mean (default {default})", CLI_TEXT,   \
         offsetof(type, member.beta), 0, 0, NULL},                                                 \
        {"--evict-every", "N",                                                                     \
         "when: 0 at the prompt's end only, 1 in every decode step too, N again every N steps "    \
         "(default {default})",                                                                    \
         CLI_NUMBER, offsetof(type, member.every), 0, CLI_TOKENS_MAX, NULL},                       \
        {"--evict-options", "W[,W]",                                                               \
         "variants, each for one kind; as in --evict h2o+rerank: {}", CLI_OPTIONS,                 \
         offsetof(type, member.options), 0, 0, NULL}
/* clang-format on */

/* The eviction that a value (CLI_EVICTION_OF, not of "all") and the flags describe, with a budget
 * or CLI_UNSET, checked. `listed`: it is one of a list, and ignores flags that its kind does not
 * have; otherwise such a flag is an error. On an error it prints why and returns false. */
bool cli_eviction(const char *command, uint32_t value, uint32_t budget,
                  const cli_eviction_flags *flags, bool listed, tamis_eviction *out);

/* For a command line without an eviction: if a flag of evictions is given, prints it and returns
 * false. `budget`: --evict-budget is given. */
bool cli_check_no_eviction(const char *command, bool budget, const cli_eviction_flags *flags);

/* The name of an eviction with its options: "andpro+anchor-all". */
typedef struct cli_eviction_text {
    char text[160];
} cli_eviction_text;
cli_eviction_text cli_eviction_name(const tamis_eviction *eviction);

/* The index-th kind of eviction that needs no scores from the caller, in the library's order,
 * beginning with "none"; false after the last one. */
bool cli_eviction_kind(uint32_t index, tamis_eviction_kind *out);

/* Every value of `list` in its order, with all kinds in the place of "all"; kind none and repeated
 * values are left out. At most CLI_EVICTIONS_MAX values result. */
#define CLI_EVICTIONS_MAX (CLI_LIST_MAX + 32)
uint32_t cli_list_evictions(const cli_list *list, uint32_t values[CLI_EVICTIONS_MAX]);

/* The library's defaults for `flag` as text: "0 for quest-paper, else 4". Empty if the flag belongs
 * neither to selections nor to evictions. */
typedef struct cli_default {
    char text[128];
} cli_default;
cli_default cli_default_text(const char *flag);

/* ---- Both ------------------------------------------------------------------------------------ */

/* The flags of a command that has one selection and one eviction. */
typedef struct cli_policy_flags {
    uint32_t select, score, budget, evict, evict_budget;
    cli_selection_flags selection;
    cli_eviction_flags eviction;
} cli_policy_flags;

#define CLI_POLICY_UNSET                                                                           \
    {                                                                                              \
        .select = TAMIS_SELECT_FULL, .score = CLI_UNSET, .budget = CLI_UNSET,                      \
        .evict = CLI_EVICTION_OF(TAMIS_EVICT_NONE, 0), .evict_budget = CLI_UNSET,                  \
        .selection = CLI_SELECTION_UNSET, .eviction = CLI_EVICTION_UNSET                           \
    }

/* clang-format off */
#define CLI_POLICY_OPTIONS(type, member)                                                           \
    {"--select", "NAME", "which pages a query reads: {} (default full)", CLI_SELECTION,            \
     offsetof(type, member.select), 0, 0, NULL},                                                   \
    {"--score", "KIND",                                                                            \
     "bounds by which quest scores pages: {} (default meanstd, minmax for quest-paper)",           \
     CLI_CHOICE, offsetof(type, member.score), 0, 0, cli_bounds},                                  \
    {"--budget", "N", "tokens of a lane that the selection reads (default 2048)", CLI_NUMBER,      \
     offsetof(type, member.budget), 1, CLI_TOKENS_MAX, NULL},                                      \
    CLI_SELECTION_OPTIONS(type, member.selection),                                                 \
    CLI_DENSE_LAYERS_OPTION(type, member.selection),                                               \
    {"--evict", "KIND", "which tokens the cache keeps at the prompt's end: {} (default none)",     \
     CLI_EVICTION, offsetof(type, member.evict), 0, 0, NULL},                                      \
    {"--evict-budget", "N", "tokens of a lane that are kept (default 2048)", CLI_NUMBER,           \
     offsetof(type, member.evict_budget), 1, CLI_TOKENS_MAX, NULL},                                \
    CLI_EVICTION_OPTIONS_OF(type, member.eviction)
/* clang-format on */

/* What the flags mean; prints why and returns false where they mean nothing. *bounds is the kind of
 * the cache's bounds. */
bool cli_policies(const char *command, const cli_policy_flags *flags, uint32_t page_size,
                  tamis_selection *selection, tamis_eviction *eviction, tamis_bounds_kind *bounds);

#endif
