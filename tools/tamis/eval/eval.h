/* SPDX-License-Identifier: Apache-2.0 */
/* What the evaluations of `tamis eval` share, and `tamis compare` with them: arms, the texts that are
 * read, a model with a cache that all arms fork from, progress and JSON. */
#ifndef CLI_EVAL_H
#define CLI_EVAL_H

#include "cli/commands.h"
#include "cli/json.h"
#include "cli/random.h"
#include "cli/table.h"
#include "cli/text.h"

extern const cli_command eval_passkey_command, eval_recall_command, eval_perplexity_command,
    eval_eviction_command, eval_ruler_command, eval_blend_command;

/* ---- Arms ------------------------------------------------------------------------------------ */

/* One way to read: a selection with its budget, over bounds of one kind; or full over what an
 * eviction keeps. */
typedef struct eval_arm {
    tamis_selection selection;
    tamis_bounds bounds;      /* quest only */
    tamis_eviction eviction;  /* kind none: a selection */
    cli_eviction_text select; /* "quest", "quest-paper", "snapkv" */
    const char *score; /* "minmax", "meanstd", "mean" for quest; "mass", "random"; "-" else */
} eval_arm;

static inline bool eval_arm_evicts(const eval_arm *arm) {
    return arm->eviction.kind != TAMIS_EVICT_NONE;
}

#define EVAL_CONTEXT_MAX (1u << 20)

#define EVAL_ARMS_MAX 128
typedef struct eval_arms {
    uint32_t count;
    eval_arm arms[EVAL_ARMS_MAX];
    tamis_bounds_dtype bounds_dtype;
    bool timing; /* plans collect stage times, and wait for each stage */
} eval_arms;

/* The flags --select, --score, --budget, --sinks, --recent, --dense-layers, --group, --width,
 * --bounds-dtype, --page-size, which every evaluation takes. */
typedef struct eval_arm_flags {
    cli_list selections; /* as CLI_SELECTIONS gives them */
    cli_list scores;     /* tamis_bounds_kind, for quest */
    cli_list budgets;
    cli_selection_flags selection;
    uint32_t page_size;    /* index into cli_page_sizes */
    uint32_t bounds_dtype; /* tamis_bounds_dtype */
    const char *width;  /* of meanstd, a decimal number; NULL: 1 */
    /* --evict, --evict-budget and the flags of an eviction, of those that take them */
    cli_list evictions;     /* as cli_list_evictions takes them */
    cli_list evict_budgets; /* empty: budgets */
    cli_eviction_flags eviction;
} eval_arm_flags;

/* The flags before a command sets its own selections, and its own budgets for a command line
 * without
 * --budget: pages of 16, all else unset. */
/* clang-format off */
#define EVAL_ARM_DEFAULTS                                                                          \
    .page_size = 1, .selection = CLI_SELECTION_UNSET, .eviction = CLI_EVICTION_UNSET

/* Entries of a command's table of options: `type` is its struct of flags, `member` the
 * eval_arm_flags in it. Defaults of --select and --budget are the command's, and text. */
#define EVAL_ARM_OPTIONS(type, member, selects, budget)                                            \
    {"--select", "S[,S]",                                                                          \
     "selections that are measured beside full: {} (default " selects ")",                         \
     CLI_SELECTIONS, offsetof(type, member.selections), 0, 0, NULL},                               \
        {"--score", "S[,S]",                                                                       \
         "bounds by which quest scores pages: {} (default meanstd, minmax for quest-paper)",       \
         CLI_CHOICES, offsetof(type, member.scores), 0, 0, cli_bounds},                            \
        {"--width", "X", "half width of meanstd's bounds, in standard deviations (default 1)",     \
         CLI_TEXT, offsetof(type, member.width), 0, 0, NULL},                                      \
        {"--budget", "N[,N]", "tokens of a lane that a selection reads (default " budget ")",      \
         CLI_NUMBERS, offsetof(type, member.budgets), 1, EVAL_CONTEXT_MAX, NULL},                  \
        CLI_SELECTION_OPTIONS(type, member.selection),                                             \
        CLI_DENSE_LAYERS_OPTION(type, member.selection),                                           \
        CLI_BOUNDS_DTYPE_OPTION(type, member.bounds_dtype),                                        \
        CLI_PAGE_SIZE_OPTION(type, member.page_size)

/* The same for evictions as arms. */
#define EVAL_EVICT_OPTIONS(type, member)                                                           \
    {"--evict", "K[,K]",                                                                           \
     "evictions that are measured too: {}; a variant follows its kind, as in h2o+rerank",          \
     CLI_EVICTIONS, offsetof(type, member.evictions), 0, 0, NULL},                                 \
        {"--evict-budget", "N[,N]",                                                                \
         "tokens of a lane that they keep (default those of --budget)",                            \
         CLI_NUMBERS, offsetof(type, member.evict_budgets), 1, EVAL_CONTEXT_MAX, NULL},            \
        CLI_EVICTION_OPTIONS_OF(type, member.eviction)
/* clang-format on */

/* Whether a listed selection or eviction uses each flag that was given; if none does, prints why
 * and returns false. Without --budget the budget becomes `budget`. */
bool eval_check_arms(const char *command, eval_arm_flags *flags, uint32_t budget);

/* Lists full, once and first; then every selection with every budget, quest with every score too;
 * then every eviction with every budget of its own. The selections are checked against the page
 * size. Arms of one bounds kind are adjacent. No arm is listed twice. On an error prints why and
 * returns false. */
bool eval_list_arms(const char *command, const eval_arm_flags *flags, uint64_t seed,
                    eval_arms *out);
/* Adds only the evictions, at the end of `out`. */
bool eval_list_evictions(const char *command, const eval_arm_flags *flags, eval_arms *out);

/* The most tokens that an arm with an eviction may keep of a sequence: the mean per lane over all
 * its lanes; 0 without such arms. */
uint32_t eval_most_kept(const eval_arms *arms, uint32_t length);

/* ---- A model with a cache -------------------------------------------------------------------- */

/* Owns context, model, cache, and a runner for each arm; all arms read one cache. */
typedef struct eval_rig {
    tamis_context *context;
    tamis_model *model;
    tamis_cache *cache;
    tamis_runner *runners[EVAL_ARMS_MAX]; /* by arm; arm 0 is full and prefills for all but those
                                             with an eviction, which prefill for themselves */
    const eval_arms *arms;
    uint32_t max_sequences;
} eval_rig;

/* Loads the model and makes a cache for `tokens` tokens in all, sequences of at most `context`
 * tokens, steps of at most `max_sequences` sequences. On an error prints why and returns
 * CLI_FAILED; even then the caller must call eval_rig_close. */
int eval_rig_open(eval_rig *rig, const char *command, const char *device, const char *model,
                  tamis_dtype dtype, uint32_t page_size, const eval_arms *arms, uint64_t tokens,
                  uint32_t context, uint32_t max_sequences);
void eval_rig_close(eval_rig *rig);

/* Changes the cache's bounds to those of the arm, if they differ. */
tamis_status eval_rig_bounds(eval_rig *rig, uint32_t arm, tamis_error *error);

/* How many tokens at the end of a text of `count` an eviction's own plan must run, so that it has what it
 * scores by: those of the last queries; all, where it sums scores. */
uint32_t eval_own_tokens(const tamis_eviction *eviction, uint32_t count);

/* A fork of `reading`, which holds the `count` tokens, as the arm's eviction leaves it. The arm runs its
 * own tokens again, exactly, and evicts. After an error *out may be there. */
tamis_status eval_rig_evict(eval_rig *rig, uint32_t arm, tamis_sequence reading,
                            const int32_t *tokens, uint32_t count, tamis_sequence *out,
                            tamis_error *error);

/* ---- Texts ----------------------------------------------------------------------------------- */

/* A file that texts are made from. */
typedef struct eval_text {
    char *path, *content; /* content has a NUL after its end */
    size_t bytes;
} eval_text;

/* Reads the file at `path`, or without one text.txt in the folder of the model's file. Prints why
 * and returns false if it cannot. */
bool eval_text_open(eval_text *text, const char *command, const char *path, const char *model_path);
void eval_text_close(eval_text *text);

/* ---- Figures --------------------------------------------------------------------------------- */

/* 95 % interval of a share of `right` in `trials` (Wilson); takes the trials for independent. Where a
 * trial may be right in part it is too wide rather than too narrow: nothing between 0 and 1 varies
 * more than what is either. */
void eval_interval(double right, uint64_t trials, double *low, double *high);

/* A bar on stderr, redrawn in place on a terminal, else a line for every tenth. `what` names the
 * part under way. done == total ends it. */
void eval_progress(const char *what, uint64_t done, uint64_t total);

/* An arm's budget. Full reads all: its budget is the length. */
uint32_t eval_arm_budget(const eval_arm *arm, uint32_t length);

/* Adds an arm's budget to a table, "-" for full. */
void eval_add_budget(cli_table *table, const eval_arm *arm);

/* Adds select, score, budget and length to a row. For an eviction it also adds evict; select and
 * evict are then both the eviction's name. */
bool eval_add_arm(cJSON *row, const eval_arm *arm, uint32_t length);

/* The settings that every evaluation has: dtype, page_size, width, and the flags that replace
 * defaults of selections and evictions. NULL if memory ran out. */
cJSON *eval_settings(const eval_arm_flags *flags, tamis_dtype dtype);

/* Writes the fields of cli_json_begin, model, parameters, seed, the settings and the rows, and
 * completes the file. Takes both objects; one that is NULL means that memory ran out. On an error
 * prints why and returns false. */
bool eval_write_json(const char *command, const eval_rig *rig, uint64_t seed, cJSON *settings,
                     cJSON *rows, cli_output *output);

#endif
