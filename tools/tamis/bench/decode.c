/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis bench decode`: the time of a decode step of attention over the tokens that evictions have
 * kept, beside full at the same batch, and beside the time that its bytes predict. */
#include "bench/bench.h"
#include "cli/commands.h"
#include "cli/json.h"
#include "cli/table.h"

#include <stdlib.h>
#include <string.h>

#define STAGE_PASSES 5u

typedef struct decode_flags {
    const char *device, *json, *budget;
    uint32_t context, dtype, page_size, batch, layers, repeat, probe;
    cli_list shapes, evictions;
    cli_eviction_flags eviction;
} decode_flags;

static const cli_option options[] = {
    {"--shape", "S[,S]", "heads and head dim of models: {} (default llama3-8b,llama2-7b)",
     CLI_CHOICES, offsetof(decode_flags, shapes), 0, 0, bench_shape_names},
    {"--context", "N", "tokens of each sequence (default 32768)", CLI_NUMBER,
     offsetof(decode_flags, context), 2, BENCH_CONTEXT_MAX, NULL},
    {"--evict", "K[,K]", "what is measured beside full: {} (default h2o,snapkv)", CLI_EVICTIONS,
     offsetof(decode_flags, evictions), 0, 0, NULL},
    {"--budget", "N|N%",
     "tokens of a lane that are kept, or their share of the context (default 20%)", CLI_TEXT,
     offsetof(decode_flags, budget), 0, 0, NULL},
    {"--batch", "N", "sequences of a step (default 1)", CLI_NUMBER, offsetof(decode_flags, batch),
     1, 256, NULL},
    CLI_DTYPE_OPTION("--dtype", decode_flags, dtype),
    CLI_PAGE_SIZE_OPTION(decode_flags, page_size),
    {"--layers", "N", "layers in turn (default: enough that one pass of full reads 1 GiB)",
     CLI_NUMBER, offsetof(decode_flags, layers), 1, 128, NULL},
    {"--repeat", "N", "samples (default 9)", CLI_NUMBER, offsetof(decode_flags, repeat), 1, 1000,
     NULL},
    {"--probe", "N", "MiB to measure the read bandwidth over (default 256, on a GPU up to 1024)",
     CLI_NUMBER, offsetof(decode_flags, probe), 1, 65536, NULL},
    CLI_EVICTION_OPTIONS_OF(decode_flags, eviction),
    CLI_JSON_OPTION(decode_flags, json),
    CLI_DEVICE_OPTION(decode_flags, device),
};

static int run(int argc, char *const *argv);

const cli_command bench_decode_command = {
    "tamis bench decode",
    "a layer of a decode step over what evictions keep",
    "[OPTIONS]",
    "Measures decode steps of attention over random keys and values: full, and what each\n"
    "eviction keeps of the same context, in turn, round after round. A sample is the wall time\n"
    "of writing and attending every layer, with what the eviction does in a step, divided by\n"
    "the number of layers; the step's begin and end are not part of it. The prediction beside\n"
    "it is the bytes that the step reads and writes, divided by the read bandwidth, which is\n"
    "measured between rounds.\n"
    "\n"
    "Which tokens are kept does not matter here. So h2o, whose sums need every row of a prompt,\n"
    "gets a prompt as long as the budget.",
    "  tamis bench decode --budget 20% --batch 4\n"
    "  tamis bench decode --shape llama2-7b --context 8192 --evict all --json decode.json\n",
    options,
    sizeof(options) / sizeof(options[0]),
    run};

/* One way to hold the context, and what its steps took. */
typedef struct decode_arm {
    bench rig;
    tamis_plan *plan;
    double *us; /* [repeat] of one layer */
    double total_us, speedup;
    double slots; /* of a layer, all KV heads and sequences together */
    double kv_bytes, bounds_bytes, policy_bytes, predicted_us, predicted_speedup; /* one layer */
    tamis_plan_times stage_us;
} decode_arm;

typedef struct decode_run {
    uint32_t n_arms, repeat, probe;
    bool quiet; /* nothing is said on stderr; neither stages nor bandwidths are measured */
    decode_arm *arms;
    double *read; /* [repeat + 1] */
    double read_gb_per_s;
} decode_run;

/* ---- Measuring ------------------------------------------------------------------------------- */

/* Whether lanes stay at their length; if not, each sample's token is truncated away again. */
static bool stays(const bench *b) {
    return b->eviction.every == 1;
}

static tamis_status sample(decode_arm *arm, tamis_plan *plan, double *us, tamis_error *error) {
    bench *b = &arm->rig;
    const bench_shape *shape = b->params.shape;
    const tamis_step step = {.sequences = b->sequences, .count = b->params.batch};
    const tamis_rows out = {.buffer = b->out, .dtype = TAMIS_F32};
    uint32_t batch = b->params.batch, width = shape->n_kv_heads * shape->head_dim;
    tamis_status status = tamis_plan_step_begin(plan, &step, error);
    if (status == TAMIS_OK) status = tamis_context_wait(b->device, error);
    double start = cli_seconds();
    for (uint32_t layer = 0; status == TAMIS_OK && layer < b->layers; layer++) {
        const tamis_rows k = bench_noise(b, batch, width), v = bench_noise(b, batch, width);
        const tamis_rows q = bench_noise(b, batch, shape->n_heads * shape->head_dim);
        status = tamis_plan_write(plan, layer, &k, &v, error);
        if (status == TAMIS_OK) status = tamis_plan_attend(plan, layer, &q, &out, error);
    }
    if (status == TAMIS_OK) status = tamis_context_wait(b->device, error);
    *us = (cli_seconds() - start) * 1e6 / b->layers;
    if (status == TAMIS_OK) status = tamis_plan_step_end(plan, error);
    for (uint32_t i = 0; status == TAMIS_OK && !stays(b) && i < batch; i++)
        status = tamis_cache_truncate(b->cache, b->sequences[i], bench_tokens(b), error);
    return status;
}

static tamis_status make_plan(decode_run *run, decode_arm *arm, int timing, tamis_plan **out,
                              tamis_error *error) {
    bench *b = &arm->rig;
    /* Where lanes stay at their length, every sample adds a position. */
    const tamis_plan_params params = {.max_sequences = b->params.batch,
                                      .max_rows = b->params.batch,
                                      .max_context =
                                          b->context + 2 * (run->repeat + STAGE_PASSES + 2),
                                      .flags = timing ? TAMIS_PLAN_TIMING : 0,
                                      .eviction = b->eviction};
    tamis_status status = tamis_plan_create(b->cache, &params, out, error);
    return status == TAMIS_OK ? bench_bind(b, *out, error) : status;
}

/* The times of the stages of one layer in one step, each of which is waited for here. */
static tamis_status measure_stages(decode_run *run, decode_arm *arm, tamis_error *error) {
    tamis_plan_times from, to;
    tamis_plan *plan = NULL;
    double us = 0, n = (double)STAGE_PASSES * arm->rig.layers;
    tamis_status status = make_plan(run, arm, 1, &plan, error);
    if (status == TAMIS_OK) status = sample(arm, plan, &us, error);
    tamis_plan_get_times(plan, &from);
    for (uint32_t i = 0; status == TAMIS_OK && i < STAGE_PASSES; i++)
        status = sample(arm, plan, &us, error);
    tamis_plan_get_times(plan, &to);
    arm->stage_us = (tamis_plan_times){.write_us = (to.write_us - from.write_us) / n,
                                       .bounds_us = (to.bounds_us - from.bounds_us) / n,
                                       .attend_us = (to.attend_us - from.attend_us) / n,
                                       .observe_us = (to.observe_us - from.observe_us) / n,
                                       .replace_us = (to.replace_us - from.replace_us) / n};
    tamis_plan_destroy(&plan);
    return status;
}

/* The bytes that a layer of a step reads and writes. */
static tamis_status count_bytes(decode_run *run, decode_arm *arm, tamis_error *error) {
    bench *b = &arm->rig;
    const tamis_cache_params shape = {.n_heads = b->params.shape->n_heads,
                                      .n_kv_heads = b->params.shape->n_kv_heads,
                                      .head_dim = b->params.shape->head_dim,
                                      .page_size = b->params.page_size,
                                      .dtype = b->params.dtype};
    tamis_plan_counters counters;
    double steps = (double)run->repeat * b->layers;
    arm->slots = 0;
    for (uint32_t i = 0; i < b->params.batch; i++) {
        tamis_sequence_stats stats;
        tamis_status status =
            tamis_cache_get_sequence_stats(b->cache, b->sequences[i], &stats, error);
        if (status != TAMIS_OK) return status;
        arm->slots += (double)stats.slots / b->layers;
    }
    tamis_plan_get_counters(arm->plan, &counters);
    arm->kv_bytes = (double)counters.kv_bytes_read / steps;
    arm->bounds_bytes = (double)counters.bounds_bytes_read / steps;
    arm->policy_bytes = bench_policy_bytes(&b->eviction, &shape, b->params.batch, arm->slots);
    return TAMIS_OK;
}

/* Before round `round`, or behind the last one. */
static tamis_status probe(decode_run *run, uint32_t round, tamis_error *error) {
    if (run->quiet) return TAMIS_OK;
    return bench_read_bandwidth(run->arms[0].rig.device, run->probe, &run->read[round], error);
}

static tamis_status take_samples(decode_run *run, tamis_error *error) {
    tamis_status status = TAMIS_OK;
    double warm_up;
    for (uint32_t a = 0; status == TAMIS_OK && a < run->n_arms; a++) {
        status = sample(&run->arms[a], run->arms[a].plan, &warm_up, error);
        tamis_plan_reset_counters(run->arms[a].plan);
    }
    for (uint32_t round = 0; status == TAMIS_OK && round < run->repeat; round++) {
        status = probe(run, round, error);
        for (uint32_t a = 0; status == TAMIS_OK && a < run->n_arms; a++)
            status = sample(&run->arms[a], run->arms[a].plan, &run->arms[a].us[round], error);
    }
    return status == TAMIS_OK ? probe(run, run->repeat, error) : status;
}

/* Takes ratios within each round, whose samples are close in time, and then their median. */
static void summarise(decode_run *run) {
    const decode_arm *full = &run->arms[0];
    run->read_gb_per_s = bench_median(run->read, run->repeat + 1);
    for (uint32_t a = run->n_arms; a-- > 0;) { /* full, which is sorted, last */
        decode_arm *arm = &run->arms[a];
        double bytes = arm->kv_bytes + arm->bounds_bytes + arm->policy_bytes;
        double ratios[1000];
        for (uint32_t i = 0; i < run->repeat; i++)
            ratios[i] = full->us[i] / arm->us[i];
        arm->speedup = bench_median(ratios, run->repeat);
        arm->total_us = bench_median(arm->us, run->repeat);
        if (!run->quiet) arm->predicted_us = bytes / run->read_gb_per_s * 1e-3;
        arm->predicted_speedup = (full->kv_bytes + full->bounds_bytes + full->policy_bytes) / bytes;
    }
}

static tamis_status measure(decode_run *run, tamis_error *error) {
    tamis_status status = TAMIS_OK;
    for (uint32_t a = 0; status == TAMIS_OK && a < run->n_arms; a++) {
        bench *b = &run->arms[a].rig;
        if (a > 0 && b->params.layers == 0) b->params.layers = run->arms[0].rig.layers;
        if (!run->quiet)
            fprintf(stderr, "%s, %s: filling the cache\n", b->params.shape->name,
                    bench_arm_name(&b->eviction).text);
        status = bench_fill(b, error);
        if (status == TAMIS_OK)
            status = make_plan(run, &run->arms[a], 0, &run->arms[a].plan, error);
    }
    if (status == TAMIS_OK && !run->quiet)
        fprintf(stderr, "%s: measuring\n", run->arms[0].rig.params.shape->name);
    if (status == TAMIS_OK) status = take_samples(run, error);
    for (uint32_t a = 0; status == TAMIS_OK && a < run->n_arms; a++)
        status = count_bytes(run, &run->arms[a], error);
    if (status == TAMIS_OK) summarise(run);
    for (uint32_t a = 0; status == TAMIS_OK && a < run->n_arms && !run->quiet; a++)
        status = measure_stages(run, &run->arms[a], error);
    for (uint32_t a = 0; a < run->n_arms; a++) {
        tamis_plan_destroy(&run->arms[a].plan);
        bench_destroy(&run->arms[a].rig);
    }
    return status;
}

tamis_status bench_measure_evicting(const bench *b, bench_evicting *out, tamis_error *error) {
    const uint32_t repeat = b->params.repeat;
    decode_arm arm = {.rig = *b, .us = calloc(repeat, sizeof(double))};
    decode_run run = {.n_arms = 1,
                      .repeat = repeat,
                      .quiet = true,
                      .arms = &arm,
                      .read = calloc(repeat + 1, sizeof(double))};
    tamis_status status = arm.us && run.read ? measure(&run, error) : cli_no_memory(error);
    if (status == TAMIS_OK)
        *out = (bench_evicting){.us = bench_spread_of(arm.us, repeat),
                                .bytes = arm.kv_bytes + arm.bounds_bytes + arm.policy_bytes};
    free(arm.us);
    free(run.read);
    return status;
}

/* ---- Saying ---------------------------------------------------------------------------------- */

static double policy_us(const decode_arm *arm) {
    return arm->stage_us.observe_us + arm->stage_us.replace_us;
}

static void add_row(cli_table *table, const decode_run *run, const decode_arm *arm) {
    const bench *b = &arm->rig;
    const double lanes = (double)b->params.shape->n_kv_heads * b->params.batch;
    cli_table_add(table, "%s", b->params.shape->name);
    cli_table_add(table, "%s", bench_arm_name(&b->eviction).text);
    cli_table_add(table, "%.0f", arm->slots / lanes);
    cli_table_add(table, "%.1f", arm->total_us);
    cli_table_add(table, "%.2f", arm->speedup);
    cli_table_add(table, "%.2f", arm->predicted_speedup);
    cli_table_add(table, "%.1f", arm->predicted_us);
    cli_table_add(table, "%.3f", (arm->kv_bytes + arm->bounds_bytes) / 1e6);
    cli_table_add(table, "%.3f", arm->policy_bytes / 1e6);
    cli_table_add(table, "%.1f", arm->stage_us.attend_us);
    cli_table_add(table, "%.1f", policy_us(arm));
    cli_table_add(table, "%.2f", run->read_gb_per_s);
}

static bool print(const decode_run *runs, uint32_t n_runs) {
    static const char *const head[] = {"shape",     "evict",     "held",      "step us",
                                       "over full", "by bytes",  "bytes us",  "KV MB",
                                       "policy MB", "attend us", "policy us", "read GB/s"};
    const bench *b = &runs[0].arms[0].rig;
    const tamis_device_info *device = tamis_context_device(b->device);
    cli_table table = {.columns = sizeof(head) / sizeof(head[0])};
    printf("context %u, batch %u, %s, pages of %u; one layer; medians of %u samples on %s (%s);\n"
           "attend and policy are timed apart, each stage waited for\n",
           b->context, b->params.batch, tamis_dtype_name(b->params.dtype), b->params.page_size,
           runs[0].repeat, device->id, device->name);
    for (size_t i = 0; i < table.columns; i++)
        cli_table_add(&table, "%s", head[i]);
    for (uint32_t r = 0; r < n_runs; r++)
        for (uint32_t a = 0; a < runs[r].n_arms; a++)
            add_row(&table, &runs[r], &runs[r].arms[a]);
    bool printed = cli_table_print(&table);
    cli_table_free(&table);
    return printed;
}

static bool add_json_row(cJSON *rows, const decode_run *run, const decode_arm *arm) {
    const bench *b = &arm->rig;
    const double lanes = (double)b->params.shape->n_kv_heads * b->params.batch;
    const cli_number numbers[] = {
        {"context", b->context},
        {"batch", b->params.batch},
        {"layers", b->layers},
        {"page_size", b->params.page_size},
        {"budget", b->eviction.kind == TAMIS_EVICT_NONE ? b->context : b->eviction.budget},
        {"tokens_held", arm->slots / lanes},
        {"step_us", arm->total_us},
        {"speedup_over_full", arm->speedup},
        {"predicted_us", arm->predicted_us},
        {"predicted_speedup", arm->predicted_speedup},
        {"kv_bytes", arm->kv_bytes},
        {"bounds_bytes", arm->bounds_bytes},
        {"policy_bytes", arm->policy_bytes},
        {"attend_us", arm->stage_us.attend_us},
        {"write_us", arm->stage_us.write_us},
        {"bounds_us", arm->stage_us.bounds_us},
        {"observe_us", arm->stage_us.observe_us},
        {"replace_us", arm->stage_us.replace_us},
        {"read_gb_per_s", run->read_gb_per_s}};
    cJSON *row = cli_json_row(rows);
    return cJSON_AddStringToObject(row, "shape", b->params.shape->name) != NULL &&
           cJSON_AddStringToObject(row, "dtype", tamis_dtype_name(b->params.dtype)) != NULL &&
           cJSON_AddStringToObject(row, "evict", bench_arm_name(&b->eviction).text) != NULL &&
           cli_json_numbers(row, numbers, sizeof(numbers) / sizeof(numbers[0]));
}

static bool write_json(const decode_run *runs, uint32_t n_runs, cli_output *output) {
    cJSON *root = cli_json_begin(bench_decode_command.name, runs[0].arms[0].rig.device);
    cJSON *rows = cJSON_CreateArray();
    bool made = rows != NULL;
    for (uint32_t r = 0; r < n_runs; r++)
        for (uint32_t a = 0; made && a < runs[r].n_arms; a++)
            made = add_json_row(rows, &runs[r], &runs[r].arms[a]);
    if (!made) {
        cJSON_Delete(rows);
        rows = NULL;
    }
    return cli_json_write(root, rows, output, bench_decode_command.name);
}

/* ---- The command ----------------------------------------------------------------------------- */

static void free_runs(decode_run *runs, uint32_t n_runs) {
    for (uint32_t r = 0; r < n_runs; r++) {
        for (uint32_t a = 0; runs[r].arms != NULL && a < runs[r].n_arms; a++)
            free(runs[r].arms[a].us);
        free(runs[r].arms);
        free(runs[r].read);
    }
    free(runs);
}

/* A run for each shape; NULL without memory. */
static decode_run *make_runs(const decode_flags *f, const tamis_eviction *evictions,
                             uint32_t n_arms) {
    decode_run *runs = calloc(f->shapes.count, sizeof(*runs));
    bool made = runs != NULL;
    for (uint32_t r = 0; made && r < f->shapes.count; r++) {
        runs[r] = (decode_run){.n_arms = n_arms,
                               .repeat = f->repeat,
                               .probe = f->probe,
                               .arms = calloc(n_arms, sizeof(*runs[r].arms)),
                               .read = calloc(f->repeat + 1, sizeof(double))};
        made = runs[r].arms != NULL && runs[r].read != NULL;
        for (uint32_t a = 0; made && a < n_arms; a++) {
            bench *b = &runs[r].arms[a].rig;
            runs[r].arms[a].us = calloc(f->repeat, sizeof(double));
            made = runs[r].arms[a].us != NULL;
            b->context = f->context;
            b->eviction = evictions[a];
            b->params = (bench_params){.shape = &bench_shapes[f->shapes.values[r]],
                                       .dtype = (tamis_dtype)f->dtype,
                                       .page_size = cli_page_size(f->page_size),
                                       .batch = f->batch,
                                       .repeat = f->repeat,
                                       .layers = f->layers,
                                       .probe = f->probe};
        }
    }
    if (made) return runs;
    if (runs != NULL) free_runs(runs, f->shapes.count);
    return NULL;
}

static int run_all(const decode_flags *f, decode_run *runs) {
    uint32_t n_runs = f->shapes.count;
    tamis_context *context = NULL;
    cli_output output = {0};
    tamis_error error = {0};
    if (f->json != NULL && !cli_output_open(&output, bench_decode_command.name, f->json))
        return CLI_FAILED;
    tamis_status status = bench_open(f->device, &context, &error);
    for (uint32_t r = 0; status == TAMIS_OK && r < n_runs; r++) {
        for (uint32_t a = 0; a < runs[r].n_arms; a++)
            runs[r].arms[a].rig.device = context;
        status = measure(&runs[r], &error);
    }
    int code = status == TAMIS_OK ? CLI_OK : cli_fail(bench_decode_command.name, "%s", error.text);
    if (code == CLI_OK && !print(runs, n_runs))
        code = cli_fail(bench_decode_command.name, "out of host memory");
    if (code == CLI_OK && f->json != NULL && !write_json(runs, n_runs, &output)) code = CLI_FAILED;
    tamis_context_destroy(&context);
    cli_output_discard(&output);
    return code;
}

static int run(int argc, char *const *argv) {
    decode_flags f = {.budget = "20%",
                      .context = 32768,
                      .dtype = TAMIS_F16,
                      .page_size = 1,
                      .batch = 1,
                      .repeat = 9,
                      .shapes = {2, {1, 0}},
                      .evictions = {2,
                                    {CLI_EVICTION_OF(TAMIS_EVICT_H2O, 0),
                                     CLI_EVICTION_OF(TAMIS_EVICT_SNAPKV, 0)}},
                      .eviction = CLI_EVICTION_UNSET};
    tamis_eviction evictions[1 + CLI_EVICTIONS_MAX];
    uint32_t budget = 0, n_arms = 0;
    int code = cli_parse(&bench_decode_command, &f, argc, argv);
    if (code >= 0) return code;
    if (bench_budget(bench_decode_command.name, f.budget, f.context, &budget))
        n_arms = bench_list_evictions(bench_decode_command.name, &f.evictions, budget, &f.eviction,
                                      evictions);
    if (n_arms == 0) return CLI_USAGE;
    decode_run *runs = make_runs(&f, evictions, n_arms);
    if (runs == NULL) return cli_fail(bench_decode_command.name, "out of host memory");
    code = run_all(&f, runs);
    free_runs(runs, f.shapes.count);
    return code;
}
