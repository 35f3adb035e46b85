/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis bench model`: the time of a whole model's decode step behind a long context, full against
 * selections, beside what the bytes of weights, keys and values predict. */
#include "bench/bench.h"
#include "cli/commands.h"
#include "cli/json.h"
#include "cli/table.h"

#include <stdlib.h>

#define ARMS_MAX (1 + CLI_LIST_MAX)

typedef struct model_flags {
    const char *device, *json, *model;
    uint32_t context, budget, dtype, bounds_dtype, page_size, batch, repeat, probe;
    cli_list selections;
    cli_selection_flags selection;
} model_flags;

static const cli_option options[] = {
    CLI_MODEL_OPTION(model_flags, model),
    {"--context", "N", "tokens that a decode step sees (default 32768)", CLI_NUMBER,
     offsetof(model_flags, context), 1, BENCH_CONTEXT_MAX, NULL},
    {"--select", "S[,S]", "what is measured beside full: {} (default quest)", CLI_SELECTIONS,
     offsetof(model_flags, selections), 0, 0, NULL},
    {"--budget", "N", "tokens of a lane that a selection reads (default 2048)", CLI_NUMBER,
     offsetof(model_flags, budget), 1, BENCH_CONTEXT_MAX, NULL},
    CLI_SELECTION_OPTIONS(model_flags, selection),
    CLI_DENSE_LAYERS_OPTION(model_flags, selection),
    {"--batch", "N", "sequences of a step (default 1)", CLI_NUMBER, offsetof(model_flags, batch), 1,
     256, NULL},
    CLI_DTYPE_OPTION("--dtype", model_flags, dtype),
    CLI_BOUNDS_DTYPE_OPTION(model_flags, bounds_dtype),
    CLI_PAGE_SIZE_OPTION(model_flags, page_size),
    {"--repeat", "N", "samples (default 9)", CLI_NUMBER, offsetof(model_flags, repeat), 1, 1000,
     NULL},
    {"--probe", "N", "MiB to measure the read bandwidth over (default 256, on a GPU up to 1024)",
     CLI_NUMBER, offsetof(model_flags, probe), 1, 65536, NULL},
    CLI_JSON_OPTION(model_flags, json),
    CLI_DEVICE_OPTION(model_flags, device),
};

static int run(int argc, char *const *argv);

const cli_command bench_model_command = {
    "tamis bench model",
    "a decode step of a whole model: full against selections",
    "--model FILE [OPTIONS]",
    "Measures decode steps of a model behind a context of random keys and values, which no prompt\n"
    "had to be read for: full and each selection in turn, round after round. A sample is the wall\n"
    "time of one step, from the tokens to the next ones. The prediction beside it is the ratio\n"
    "of the bytes that the steps read: weights, keys, values and page bounds. All weights are\n"
    "counted; an embedding that is not the output matrix too is read in one row only. The read\n"
    "bandwidth is measured between rounds.\n"
    "\n"
    "What is generated does not matter: random keys cost the same time as those of a text. The\n"
    "context may exceed what the model states.",
    "  tamis bench model --model model.gguf --context 32768 --budget 2048\n"
    "  tamis bench model --model model.gguf --context 8192 --select quest,window --json out.json\n",
    options,
    sizeof(options) / sizeof(options[0]),
    run};

/* One way of attending. */
typedef struct model_arm {
    uint32_t select; /* as --select gives it */
    tamis_selection selection;
    tamis_runner *runner;
    double *us; /* [repeat] */
    double step_us, speedup, predicted_speedup;
    double kv_bytes, bounds_bytes; /* of a step */
} model_arm;

typedef struct model_run {
    const char *command;
    bench rig;
    bench_shape shape; /* the model's, which rig.params names */
    tamis_model *model;
    int32_t *tokens; /* [batch] */
    double *read;    /* [repeat + 1] */
    double read_gb_per_s, weight_bytes;
    uint32_t n_arms;
    model_arm arms[ARMS_MAX];
} model_run;

/* ---- Measuring ------------------------------------------------------------------------------- */

/* One step, and the tokens truncated away again. */
static tamis_status sample(model_run *run, model_arm *arm, double *us, tamis_error *error) {
    bench *b = &run->rig;
    int32_t *next = run->tokens + b->params.batch;
    tamis_status status = tamis_context_wait(b->device, error);
    const double start = cli_seconds();
    if (status == TAMIS_OK)
        status = tamis_runner_decode(arm->runner, b->sequences, b->params.batch, run->tokens, next,
                                     error);
    *us = (cli_seconds() - start) * 1e6;
    for (uint32_t i = 0; status == TAMIS_OK && i < b->params.batch; i++)
        status = tamis_cache_truncate(b->cache, b->sequences[i], bench_tokens(b), error);
    return status;
}

static tamis_status make_runners(model_run *run, tamis_error *error) {
    tamis_status status = TAMIS_OK;
    for (uint32_t a = 0; status == TAMIS_OK && a < run->n_arms; a++) {
        const tamis_plan_params params = {.max_sequences = run->rig.params.batch,
                                          .max_rows = run->rig.params.batch,
                                          .max_context = run->rig.context,
                                          .selection = run->arms[a].selection};
        status =
            tamis_runner_create(run->model, run->rig.cache, &params, &run->arms[a].runner, error);
    }
    return status;
}

static tamis_status take_samples(model_run *run, tamis_error *error) {
    bench *b = &run->rig;
    tamis_status status = TAMIS_OK;
    double warm_up;
    for (uint32_t a = 0; status == TAMIS_OK && a < run->n_arms; a++) {
        status = sample(run, &run->arms[a], &warm_up, error);
        tamis_plan_reset_counters(tamis_runner_plan(run->arms[a].runner));
    }
    for (uint32_t r = 0; status == TAMIS_OK && r < b->params.repeat; r++) {
        status = bench_read_bandwidth(b->device, b->params.probe, &run->read[r], error);
        for (uint32_t a = 0; status == TAMIS_OK && a < run->n_arms; a++)
            status = sample(run, &run->arms[a], &run->arms[a].us[r], error);
    }
    if (status != TAMIS_OK) return status;
    return bench_read_bandwidth(b->device, b->params.probe, &run->read[b->params.repeat], error);
}

static double bytes_of(const model_run *run, const model_arm *arm) {
    return run->weight_bytes + arm->kv_bytes + arm->bounds_bytes;
}

/* Takes ratios within each round, whose samples are close in time, and then their median. */
static void summarise(model_run *run) {
    const model_arm *full = &run->arms[0];
    const uint32_t repeat = run->rig.params.repeat;
    run->read_gb_per_s = bench_median(run->read, repeat + 1);
    for (uint32_t a = 0; a < run->n_arms; a++) {
        tamis_plan_counters counters;
        tamis_plan_get_counters(tamis_runner_plan(run->arms[a].runner), &counters);
        run->arms[a].kv_bytes = (double)counters.kv_bytes_read / repeat;
        run->arms[a].bounds_bytes = (double)counters.bounds_bytes_read / repeat;
    }
    for (uint32_t a = run->n_arms; a-- > 0;) { /* full, which is sorted, last */
        model_arm *arm = &run->arms[a];
        double ratios[1000];
        for (uint32_t i = 0; i < repeat; i++)
            ratios[i] = full->us[i] / arm->us[i];
        arm->speedup = bench_median(ratios, repeat);
        arm->step_us = bench_median(arm->us, repeat);
        arm->predicted_speedup = bytes_of(run, full) / bytes_of(run, arm);
    }
}

static tamis_status measure(model_run *run, tamis_error *error) {
    fprintf(stderr, "context %u: filling the cache\n", run->rig.context);
    tamis_status status = bench_fill(&run->rig, error);
    if (status == TAMIS_OK) status = make_runners(run, error);
    if (status == TAMIS_OK) fprintf(stderr, "context %u: measuring\n", run->rig.context);
    if (status == TAMIS_OK) status = take_samples(run, error);
    if (status == TAMIS_OK) summarise(run);
    return status;
}

/* ---- Saying ---------------------------------------------------------------------------------- */

static double share_of_read(const model_run *run, const model_arm *arm) {
    return bytes_of(run, arm) / arm->step_us * 1e-3 / run->read_gb_per_s;
}

static bool print(const model_run *run) {
    static const char *const head[] = {"select",    "budget",   "step ms",    "tokens/s",
                                       "over full", "by bytes", "weights GB", "KV GB",
                                       "bounds GB", "of read"};
    const bench *b = &run->rig;
    const tamis_device_info *device = tamis_context_device(b->device);
    cli_table table = {.columns = sizeof(head) / sizeof(head[0])};
    printf("%s, %u layers, context %u, batch %u, %s, pages of %u; medians of %u samples on %s "
           "(%s), read bandwidth %.2f GB/s\n",
           cli_model_name(tamis_model_describe(run->model)), b->layers, b->context, b->params.batch,
           tamis_dtype_name(b->params.dtype), b->params.page_size, b->params.repeat, device->id,
           device->name, run->read_gb_per_s);
    for (size_t i = 0; i < table.columns; i++)
        cli_table_add(&table, "%s", head[i]);
    for (uint32_t a = 0; a < run->n_arms; a++) {
        const model_arm *arm = &run->arms[a];
        cli_table_add(&table, "%s", cli_selection_name(arm->select));
        cli_table_add(&table, "%u", a == 0 ? b->context : arm->selection.budget);
        cli_table_add(&table, "%.2f", arm->step_us * 1e-3);
        cli_table_add(&table, "%.2f", b->params.batch * 1e6 / arm->step_us);
        cli_table_add(&table, "%.2f", arm->speedup);
        cli_table_add(&table, "%.2f", arm->predicted_speedup);
        cli_table_add(&table, "%.3f", run->weight_bytes * 1e-9);
        cli_table_add(&table, "%.3f", arm->kv_bytes * 1e-9);
        cli_table_add(&table, "%.3f", arm->bounds_bytes * 1e-9);
        cli_table_add(&table, "%.2f", share_of_read(run, arm));
    }
    bool printed = cli_table_print(&table);
    cli_table_free(&table);
    return printed;
}

static bool add_json_row(cJSON *rows, const model_run *run, const model_arm *arm) {
    const bench *b = &run->rig;
    const bool full = arm == &run->arms[0];
    const cli_number numbers[] = {{"budget", full ? b->context : arm->selection.budget},
                                  {"step_us", arm->step_us},
                                  {"tokens_per_s", b->params.batch * 1e6 / arm->step_us},
                                  {"speedup_over_full", arm->speedup},
                                  {"predicted_speedup", arm->predicted_speedup},
                                  {"kv_bytes", arm->kv_bytes},
                                  {"bounds_bytes", arm->bounds_bytes},
                                  {"share_of_read", share_of_read(run, arm)}};
    cJSON *row = cli_json_row(rows);
    return cJSON_AddStringToObject(row, "select", cli_selection_name(arm->select)) != NULL &&
           cli_json_numbers(row, numbers, sizeof(numbers) / sizeof(numbers[0]));
}

static bool add_settings(cJSON *root, const model_run *run) {
    const bench *b = &run->rig;
    const cli_number numbers[] = {{"context", b->context},
                                  {"batch", b->params.batch},
                                  {"layers", b->layers},
                                  {"page_size", b->params.page_size},
                                  {"repeat", b->params.repeat},
                                  {"weight_bytes", run->weight_bytes},
                                  {"read_gb_per_s", run->read_gb_per_s}};
    return cJSON_AddStringToObject(root, "model",
                                   cli_model_name(tamis_model_describe(run->model))) != NULL &&
           cJSON_AddStringToObject(root, "dtype", tamis_dtype_name(b->params.dtype)) != NULL &&
           cJSON_AddStringToObject(root, "bounds_dtype",
                                   cli_bounds_dtypes[b->params.bounds_dtype]) != NULL &&
           cli_json_numbers(root, numbers, sizeof(numbers) / sizeof(numbers[0]));
}

static bool write_json(const model_run *run, cli_output *output) {
    cJSON *root = cli_json_begin(run->command, run->rig.device);
    cJSON *rows = add_settings(root, run) ? cJSON_CreateArray() : NULL;
    bool made = rows != NULL;
    for (uint32_t a = 0; made && a < run->n_arms; a++)
        made = add_json_row(rows, run, &run->arms[a]);
    if (!made) {
        cJSON_Delete(rows);
        rows = NULL;
    }
    return cli_json_write(root, rows, output, run->command);
}

/* ---- The command ----------------------------------------------------------------------------- */

static bool list_arms(model_run *run, const model_flags *f) {
    const uint32_t budget = f->budget != CLI_UNSET ? f->budget : 2048;
    if (!cli_check_selections(run->command, &f->selections, f->budget != CLI_UNSET, &f->selection))
        return false;
    model_arm *arm = &run->arms[run->n_arms++];
    arm->select = TAMIS_SELECT_FULL;
    tamis_selection_default(TAMIS_SELECT_FULL, &arm->selection);
    for (uint32_t s = 0; s < f->selections.count; s++) {
        if (f->selections.values[s] == TAMIS_SELECT_FULL) continue;
        arm = &run->arms[run->n_arms++];
        arm->select = f->selections.values[s];
        if (!cli_selection(run->command, arm->select, budget, &f->selection,
                           cli_page_size(f->page_size), &arm->selection))
            return false;
    }
    return true;
}

static tamis_status prepare(model_run *run, const model_flags *f, tamis_error *error) {
    bench *b = &run->rig;
    run->tokens = calloc(2 * f->batch, sizeof(*run->tokens)); /* those of a step, the next ones */
    run->read = calloc(f->repeat + 1, sizeof(*run->read));
    bool made = run->tokens != NULL && run->read != NULL;
    for (uint32_t a = 0; made && a < run->n_arms; a++)
        made = (run->arms[a].us = calloc(f->repeat, sizeof(*run->arms[a].us))) != NULL;
    if (!made) return cli_no_memory(error);
    tamis_status status = bench_open(f->device, &b->device, error);
    if (status == TAMIS_OK) status = cli_load(b->device, f->model, &run->model, error);
    if (status != TAMIS_OK) return status;
    const tamis_model_info *info = tamis_model_describe(run->model);
    run->weight_bytes = (double)info->weight_bytes;
    run->shape = (bench_shape){info->architecture, info->n_heads, info->n_kv_heads, info->head_dim,
                               info->n_layers};
    b->context = f->context;
    b->params = (bench_params){.shape = &run->shape,
                               .dtype = (tamis_dtype)f->dtype,
                               .bounds_dtype = (tamis_bounds_dtype)f->bounds_dtype,
                               .page_size = cli_page_size(f->page_size),
                               .batch = f->batch,
                               .repeat = f->repeat,
                               .layers = info->n_layers,
                               .probe = f->probe};
    return TAMIS_OK;
}

static void release(model_run *run) {
    for (uint32_t a = 0; a < run->n_arms; a++) {
        tamis_runner_destroy(&run->arms[a].runner);
        free(run->arms[a].us);
    }
    bench_destroy(&run->rig);
    tamis_model_destroy(&run->model);
    tamis_context_destroy(&run->rig.device);
    free(run->tokens);
    free(run->read);
}

static int measure_and_say(model_run *run, const model_flags *f) {
    cli_output output = {0};
    tamis_error error = {0};
    if (f->json != NULL && !cli_output_open(&output, run->command, f->json)) return CLI_FAILED;
    tamis_status status = prepare(run, f, &error);
    if (status == TAMIS_OK) status = measure(run, &error);
    int code = status == TAMIS_OK ? CLI_OK : cli_fail(run->command, "%s", error.text);
    if (code == CLI_OK && !print(run)) code = cli_fail(run->command, "out of host memory");
    if (code == CLI_OK && f->json != NULL && !write_json(run, &output)) code = CLI_FAILED;
    release(run);
    cli_output_discard(&output);
    return code;
}

static int run(int argc, char *const *argv) {
    model_flags f = {.context = 32768,
                     .budget = CLI_UNSET,
                     .dtype = TAMIS_F16,
                     .page_size = 1,
                     .batch = 1,
                     .repeat = 9,
                     .selections = {1, {TAMIS_SELECT_QUEST}},
                     .selection = CLI_SELECTION_UNSET};
    model_run run = {.command = bench_model_command.name};
    int code = cli_parse(&bench_model_command, &f, argc, argv);
    if (code >= 0) return code;
    if (f.model == NULL) {
        cli_fail(run.command, "--model: is missing (see %s --help)", run.command);
        return CLI_USAGE;
    }
    return list_arms(&run, &f) ? measure_and_say(&run, &f) : CLI_USAGE;
}
