/* SPDX-License-Identifier: Apache-2.0 */
/* A model with a store of chunks, and what prompts that are blended from these are compared by: for
 * `tamis eval blend` and `tamis blend trial`. */
#ifndef CLI_EVAL_BLEND_RIG_H
#define CLI_EVAL_BLEND_RIG_H

#include "cli/commands.h"

#include <tamis/blend_model.h>
#include <tamis/record.h>

/* ---- Arms ------------------------------------------------------------------------------------ */

/* One way to compute a prompt. */
typedef struct blend_arm {
    const char *name; /* "full", "prefix", "reuse", or the selector's */
    tamis_blend_selector selector;
    uint32_t share; /* of the hits, percent; 0: the arm has none */
    bool prefix;    /* only the first chunk is looked up */
    bool unchecked; /* rows are selected before layer 0: there is no check layer */
    tamis_blend *blend;
} blend_arm;

/* What all arms have in common. */
typedef struct blend_settings {
    tamis_blend_schedule schedule;
    uint32_t check_layer;  /* of arms that have one */
    uint32_t chunk_tokens; /* of which `first` takes the arm's share */
    uint64_t seed;
    bool estimate; /* arms with a check layer say what their selection leaves there */
} blend_settings;

/* "hkvd at 15 %", "full". */
typedef struct blend_arm_text {
    char text[48];
} blend_arm_text;
blend_arm_text blend_arm_name(const blend_arm *arm);

/* ---- A model with a store -------------------------------------------------------------------- */

/* What stands before the chunks, while they are computed and in the prompt. */
typedef enum blend_sink { BLEND_SINK_FILE, BLEND_SINK_BOS, BLEND_SINK_NONE } blend_sink;
/* Words for flags, ended by NULL; by blend_sink and by tamis_blend_schedule. */
extern const char *const blend_sinks[], *const blend_schedules[];

/* clang-format off */
/* `type` is a command's struct of flags, `member` the place in it. */
#define BLEND_STORED_OPTION(type, member)                                                          \
    {"--stored", "TYPE", "element type of the stored chunks: {} (default f16)", CLI_CHOICE,        \
     offsetof(type, member), 0, 0, cli_stored_dtypes}
#define BLEND_SINK_OPTION(type, member)                                                            \
    {"--sink", "WORD", "what stands before chunks: {}; file: bos where the file wants it "         \
     "(default file)", CLI_CHOICE, offsetof(type, member), 0, 0, blend_sinks}
#define BLEND_SCHEDULE_OPTION(type, member)                                                        \
    {"--schedule", "WORD", "how the share goes on from layer to layer: {} (default falling)",      \
     CLI_CHOICE, offsetof(type, member), 0, 0, blend_schedules}
#define BLEND_CHECK_LAYER_OPTION(type, member)                                                     \
    {"--check-layer", "N", "the layer in which deviations are measured (default 1)", CLI_NUMBER,   \
     offsetof(type, member), 1, 1023, NULL}
/* clang-format on */

typedef struct blend_rig_params {
    const char *device, *model;
    tamis_dtype dtype, stored; /* of the cache and of the records */
    blend_sink sink;
    uint32_t page_size;
    uint32_t prompt;               /* tokens of a prompt at most, its sink included */
    uint32_t answer;               /* tokens behind it at most */
    uint32_t chunks, chunk_tokens; /* that the store must hold */
    uint32_t sequences;            /* whole prompts that the cache must hold, */
    uint32_t forks;                /* and forks of these with an answer of their own */
    bool asks;                     /* an arm selects by the question */
} blend_rig_params;

typedef struct blend_rig {
    tamis_context *context;
    tamis_model *model;
    tamis_cache *cache;
    tamis_runner *runner; /* one plan for all arms */
    tamis_store *store;   /* in memory */
    tamis_record_params record;
    int32_t sink[1]; /* bos, where there is a sink */
    uint32_t n_vocab, n_layers, n_kv_heads, head_dim, out_width;
} blend_rig;

/* On an error prints why and returns CLI_FAILED; even then the caller must call blend_rig_close. */
int blend_rig_open(blend_rig *rig, const char *command, const blend_rig_params *params);
void blend_rig_close(blend_rig *rig);

/* Makes the arm's blend, which is destroyed before the rig is closed. */
tamis_status blend_arm_open(const blend_rig *rig, const blend_settings *settings, blend_arm *arm,
                            tamis_error *error);

/* ---- Prompts --------------------------------------------------------------------------------- */

#define BLEND_CHUNKS_MAX 16

/* A prompt: the sink, chunks of equal length, and what follows them. */
typedef struct blend_prompt {
    const int32_t *chunks; /* [n_chunks][chunk_tokens] */
    uint32_t n_chunks, chunk_tokens;
    const int32_t *suffix;
    uint32_t n_suffix; /* > 0 */
} blend_prompt;

/* Tokens before the suffix; the first row behind the first chunk, which is exact. */
uint32_t blend_prompt_context(const blend_rig *rig, const blend_prompt *prompt);
uint32_t blend_prompt_hits(const blend_rig *rig, const blend_prompt *prompt);

/* Puts the chunks into the store, each computed behind the sink. */
tamis_status blend_record(const blend_rig *rig, const blend_prompt *prompt, tamis_error *error);

/* What one prompt cost. */
typedef struct blend_cost {
    double seconds;         /* to the first token */
    double rows;            /* computed, over layers, of all of the prompt: 0 to 1 */
    double left;            /* the estimate, where the arm makes one; else 0 */
    tamis_blend_stats last; /* of the blend, since it was made */
} blend_cost;

/* Computes a prompt on a new sequence. Its logits are the runner's row 0. */
tamis_status blend_run(const blend_rig *rig, const blend_arm *arm, const blend_prompt *prompt,
                       tamis_sequence *out, int32_t *next, blend_cost *cost, tamis_error *error);

/* A fork of a computed prompt, `from`, whose suffix gives way to that of `prompt`, which is
 * computed whole: what an ordinary prefill makes of it behind the same chunks. */
tamis_status blend_follow(const blend_rig *rig, const blend_prompt *prompt, tamis_sequence from,
                          tamis_sequence *out, int32_t *next, tamis_error *error);

/* ---- Comparing ------------------------------------------------------------------------------- */

/* Sums of squares in one layer: of differences, and of what they are the difference to. */
typedef struct blend_sums {
    double k, k_full, v, v_full, out, out_full;
} blend_sums;

/* sqrt(difference / full); 0 where both are 0. */
double blend_relative(double difference, double full);

/* Adds to sums[layer] how far K and V of `sequence` are from those of `full` in rows [first, end).
 * tokens, unless it is NULL, is [n_layers][end - first]: the squared differences of a row's V. */
tamis_status blend_compare_rows(const blend_rig *rig, tamis_sequence full, tamis_sequence sequence,
                                uint32_t first, uint32_t end, blend_sums *sums, double *tokens,
                                tamis_error *error);

/* The output of attention, before its projection, of all rows of the suffix: [n_layers][n_suffix]
 * [n_heads * head_dim], for the suffix behind a computed prompt. */
tamis_status blend_attention(const blend_rig *rig, const blend_prompt *prompt, tamis_sequence from,
                             float *out, tamis_error *error);
/* Adds to sums[layer] how far attention's outputs are from those of full, n floats in each layer.
 */
void blend_compare_attention(const blend_rig *rig, const float *full, const float *other, size_t n,
                             blend_sums *sums);

/* Σ p·ln(p/q) for p = softmax(full), q = softmax(other), in double. */
double blend_divergence(const float *full, const float *other, uint32_t n);
/* The largest of n logits, of equal ones the first. */
uint32_t blend_likeliest(const float *logits, uint32_t n);

/* Spearman's rank correlation; equal values share their mean rank. NaN where one side has one value
 * alone. *failed: memory ran out. */
double blend_rank_correlation(const double *x, const double *y, size_t n, bool *failed);

/* Of n values, the smallest one that at least `share` of them do not exceed; 0 of none. Sorts them.
 */
double blend_quantile(double *values, size_t n, double share);

#endif
