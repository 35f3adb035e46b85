/* SPDX-License-Identifier: Apache-2.0 */
/* What all commands of `tamis bench` share; and the parts of `tamis bench attention`: what is
 * measured, the filled cache, the samples, the report. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "cli/output.h"
#include "cli/policies.h"
#include "cli/random.h"
#include "cli/text.h"

typedef struct bench_shape {
    const char *name;
    uint32_t n_heads, n_kv_heads, head_dim, n_layers;
} bench_shape;

extern const bench_shape bench_shapes[];
extern const char *const bench_shape_names[]; /* in the same order, ended by NULL */

#define BENCH_CONTEXT_MAX (1u << 20)
#define BENCH_LAYERS_MAX  128u
#define BENCH_REPEAT_MAX  1000u

extern const cli_command bench_arrivals_command, bench_attention_command, bench_decode_command,
    bench_layers_command, bench_linear_command, bench_model_command, bench_portability_command,
    bench_throughput_command, tune_command;
/* In a build with the store. */
extern const cli_command bench_ttft_command;

/* What the flags ask for. */
typedef struct bench_params {
    const bench_shape *shape;
    tamis_dtype dtype;
    tamis_bounds_dtype bounds_dtype;
    uint32_t page_size, batch, repeat;
    uint32_t layers;      /* 0: chosen by bench_fill */
    uint32_t most_layers; /* that it chooses; 0: no bound */
    /* Rows of a filling step, which are attended as a prompt's are; 0: filling attends nothing but
     * what an eviction asks about. */
    uint32_t prefill_rows;
    uint32_t probe; /* MiB over which the read bandwidth is measured; 0: chosen by the device */
    bool shuffled;
    bool totals_alone; /* neither stages nor bandwidths are measured, but the page-read limit is */
} bench_params;

/* Of samples: their median and quartiles. */
typedef struct bench_spread {
    double median, low, high;
} bench_spread;

/* One measured way of attending: full, or a selection with a budget. */
typedef struct bench_arm {
    tamis_selection selection;
    bool apart;      /* score, select and attend launched one by one */
    char select[32]; /* "quest", "quest-apart" */
    double total_us; /* one attend of one layer, wall time, median of the samples */
    bench_spread spread_us; /* of the same */
    double graph_us; /* the same on the device's clock, from a graph replayed several times in a
                        row, median; 0: none is recorded */
    double gb_per_s; /* K, V and bounds read, over total_us */
    double share_of_read;         /* of the read bandwidth around each sample, median */
    double share_of_limit;        /* of the page-read limit around each sample, median */
    double share_of_copy;         /* of the run's copy bandwidth */
    double speedup_over_full;     /* over the full sample of the same round, median */
    tamis_plan_times stage_us;    /* one layer, from a plan of its own that waits for each stage */
    tamis_plan_counters counters; /* of the samples */
} bench_arm;

#define BENCH_ARMS_MAX (1 + 2 * CLI_LIST_MAX)
/* Launches of a graph in a row between two marks. */
#define BENCH_GRAPH_REPLAYS 10u

/* A cache filled with noise to `context - 1` tokens, so that a decode step sees `context`. */
typedef struct bench {
    tamis_context *device;
    bench_params params;
    uint32_t context, layers;
    /* How each of params.layers layers attends, at most BENCH_LAYERS_MAX: pages that their windows
     * have left are given back. NULL: all alike, without windows. */
    const tamis_layer *stack;
    tamis_eviction eviction; /* decode only: applied to each sequence at its end */
    tamis_cache *cache;
    tamis_sequence *sequences; /* [batch] */
    tamis_buffer *noise, *out; /* f32 */
    uint64_t noise_bytes;
    cli_random random;
    double fill_s;        /* what the filling steps took */
    double read_gb_per_s; /* median over the run; 0: totals alone */
    double copy_gb_per_s; /* bytes read and bytes written, median */
    /* The page-read limit: the order with the largest median over the run, and that median. */
    double limit_gb_per_s;
    const char *limit_order;
    uint32_t n_arms;
    bench_arm arms[BENCH_ARMS_MAX];
} bench;

/* Random f32 rows of `width` elements, `rows` of them, from a random place in the noise. */
tamis_rows bench_noise(bench *b, uint32_t rows, uint32_t width);

/* Creates and fills the cache; *b has device, params and context; eviction if it evicts, and stack
 * where layers differ. Destroyed by bench_destroy, also after a failure. */
tamis_status bench_fill(bench *b, tamis_error *error);
/* Tokens of each sequence afterwards: context - 1, of h2o at most its budget. */
uint32_t bench_tokens(const bench *b);
void bench_destroy(bench *b);

/* Binds to a plan what b->eviction needs beside its numbers: noise as output projections,
 * frequencies. */
tamis_status bench_bind(bench *b, tamis_plan *plan, tamis_error *error);

/* ---- Common (common.c) ----------------------------------------------------------------- */

/* As cli_open; PoCL's threads stay on their cores, unless the environment says otherwise. */
tamis_status bench_open(const char *device, tamis_context **out, tamis_error *error);
/* Sorts in place. */
double bench_median(double *values, uint32_t count);
bench_spread bench_spread_of(double *values, uint32_t count);
/* The least of the sorted values that so many of a hundred do not exceed (percentile.c). */
double bench_percentile(const double *sorted, uint32_t count, uint32_t percent);
/* Whether 3 samples of `sample_s` seconds, and one that warms up, take at most `most_s`. */
bool bench_is_affordable(double most_s, double sample_s);
/* How many samples of `sample_s` seconds take at most `most_s`: 3 or more, but at most `repeat`. */
uint32_t bench_affordable(double most_s, double sample_s, uint32_t repeat);
/* The read bandwidth over `mib` MiB; 0: as many as the device needs. */
tamis_status bench_read_bandwidth(tamis_context *device, uint32_t mib, double *gb_per_s,
                                  tamis_error *error);
/* The bytes over which it is measured. */
uint64_t bench_probe_bytes(const tamis_context *device, uint32_t mib);
/* "N" tokens, or "N%" of the context, rounded down. Prints why and returns false if it is neither
 * of them. */
bool bench_budget(const char *command, const char *text, uint32_t context, uint32_t *budget);
/* "full" for kind none, else cli_eviction_name. */
cli_eviction_text bench_arm_name(const tamis_eviction *eviction);
/* Lists full, then every eviction of the list with the budget. Returns how many; on an error 0,
 * after one line on stderr. `every` 2 and more is refused: only the model's runner evicts again,
 * and it is not used here. */
uint32_t bench_list_evictions(const char *command, const cli_list *list, uint32_t budget,
                              const cli_eviction_flags *flags,
                              tamis_eviction out[1 + CLI_EVICTIONS_MAX]);
/* Bytes that an eviction adds to a decode step in one layer whose lanes hold `slots` slots, all KV
 * heads and sequences together: planes, logits that become scores, keys of pages whose bounds
 * change. The page size of `shape` must be set. */
double bench_policy_bytes(const tamis_eviction *eviction, const tamis_cache_params *shape,
                          uint32_t batch, double slots);
/* What keeps a decode step's lanes at their length under b->eviction: *b as for bench_fill, without
 * a stack; filled, measured and destroyed here (decode.c). */
typedef struct bench_evicting {
    bench_spread us; /* of one layer of a step */
    double bytes;    /* that it reads and writes */
} bench_evicting;
tamis_status bench_measure_evicting(const bench *b, bench_evicting *out, tamis_error *error);

/* Products of a matrix in the layout that the device reads fastest (linear.c). */
typedef struct bench_product {
    tamis_weight_type type;
    uint32_t n_in, n_out, n_rows, repeat;
    double most_s;   /* that samples may take all together */
    double sample_s; /* out: of one sample; where it is not affordable, nothing more is measured */
    bench_spread us; /* out: of one matrix */
    uint32_t samples;
    double bytes;
} bench_product;
tamis_status bench_measure_product(tamis_context *device, bench_product *p, tamis_error *error);
/* Fills a buffer with random bytes that are neither large nor denormal numbers of any type. */
tamis_status bench_fill_numbers(tamis_buffer *buffer, uint64_t bytes, tamis_error *error);

/* A usual rotation of all channels, in a buffer of its own, which the caller destroys. */
tamis_status bench_rotation(const bench *b, tamis_rotation *rotation, tamis_error *error);

/* ---- Attention ------------------------------------------------------------------------------- */

/* A plan for the arm's selection. timing: as in tamis_plan_params. */
tamis_status bench_plan(bench *b, const bench_arm *arm, int timing, tamis_plan **out,
                        tamis_error *error);
/* One decode step of the batch: writes a token into every layer and waits; then attends every layer
 * once on the clock. *us is the time of one layer. The token is truncated away again. */
tamis_status bench_sample(bench *b, tamis_plan *plan, double *us, tamis_error *error);

/* Measures every arm of b->arms in turn, round after round, the read bandwidth and the page-read
 * limit between rounds. */
tamis_status bench_measure(bench *b, tamis_error *error);

/* The run's table to stdout. Returns false if memory ran out. */
bool bench_print(const bench *runs, uint32_t n_runs);
/* Completes `output` with the run as JSON. On failure prints one line and returns false. */
bool bench_write_json(const bench *runs, uint32_t n_runs, cli_output *output, const char *command);

#endif
