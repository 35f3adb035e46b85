/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis bench layers`: the attention of all layers of a model of which most have a sliding window:
 * a decode step, a prefill, and the cache's memory, beside the same layers without windows. */
#include "bench/bench.h"
#include "cli/commands.h"
#include "cli/json.h"
#include "cli/table.h"

#define GEMMA3_270M 3u /* in bench_shapes */

typedef struct layers_flags {
    const char *device, *json;
    uint32_t shape, context, window, global_every, budget, dtype, page_size, repeat, probe;
    uint32_t prefill_rows; /* 0: no prefill */
} layers_flags;

static const cli_option options[] = {
    {"--shape", "NAME", "layers, heads and head dim of a model: {} (default gemma3-270m)",
     CLI_CHOICE, offsetof(layers_flags, shape), 0, 0, bench_shape_names},
    {"--context", "N", "tokens that a decode step sees (default 32768)", CLI_NUMBER,
     offsetof(layers_flags, context), 2, BENCH_CONTEXT_MAX, NULL},
    {"--window", "N", "sliding window of the layers that are not global (default 512)", CLI_NUMBER,
     offsetof(layers_flags, window), 1, BENCH_CONTEXT_MAX, NULL},
    {"--global-every", "N", "every N-th layer is global (default 6)", CLI_NUMBER,
     offsetof(layers_flags, global_every), 2, BENCH_LAYERS_MAX, NULL},
    {"--budget", "N", "tokens of a lane that quest reads in global layers (default 2048)",
     CLI_NUMBER, offsetof(layers_flags, budget), 1, BENCH_CONTEXT_MAX, NULL},
    CLI_DTYPE_OPTION("--dtype", layers_flags, dtype),
    CLI_PAGE_SIZE_OPTION(layers_flags, page_size),
    {"--prefill-rows", "N",
     "measures a prefill, too, in steps of N rows (default: the caches are filled without "
     "attention)",
     CLI_NUMBER, offsetof(layers_flags, prefill_rows), 1, 4096, NULL},
    {"--repeat", "N", "samples (default 9)", CLI_NUMBER, offsetof(layers_flags, repeat), 1,
     BENCH_REPEAT_MAX, NULL},
    {"--probe", "N", "MiB to measure the read bandwidth over (default 256, on a GPU up to 1024)",
     CLI_NUMBER, offsetof(layers_flags, probe), 1, 65536, NULL},
    CLI_JSON_OPTION(layers_flags, json),
    CLI_DEVICE_OPTION(layers_flags, device),
};

static int run(int argc, char *const *argv);

const cli_command bench_layers_command = {
    "tamis bench layers",
    "all layers of a model, most of which have a sliding window",
    "[OPTIONS]",
    "Measures the attention of all layers of a model of which every N-th is global and the others\n"
    "have a sliding window, over random keys and values. Three arms: full, where no layer has a\n"
    "window; windows, where the layers with a window give back the pages that no row will see;\n"
    "windows+quest, where quest reads the global layers, too. The last two read one cache, whose\n"
    "memory is bounded by the windows.\n"
    "\n"
    "A sample is the wall time of attending all layers once in a decode step. The arms alternate,\n"
    "round after round; figures are medians, and ratios are taken within a round. Before each\n"
    "sample the read bandwidth is measured, over memory that takes the place in the processor's\n"
    "caches of what the arm before has read. \"by bytes\" is the ratio of the bytes that a step\n"
    "reads. \"KV\" is K and V of the pages that the context holds, \"held\" these pages with "
    "their\n"
    "bounds, \"reserved\" the memory of the cache, in which a step of a prefill must fit, too.\n"
    "\n"
    "With --prefill-rows the context is a prompt that is read from an empty cache, in steps that\n"
    "write and attend. Their time, which grows with the square of the context, is measured once.\n"
    "The rows of a prompt read all that they see, whatever the selection is: so windows+quest has\n"
    "the prefill of windows.",
    "  tamis bench layers --shape gemma3-270m --context 32768 --budget 2048\n"
    "  tamis bench layers --shape gemma3-270m --context 4096 --prefill-rows 512 --json out.json\n"
    "  tamis bench layers --shape llama3-8b --context 8192 --window 1024 --global-every 4\n",
    options,
    sizeof(options) / sizeof(options[0]),
    run};

enum { FULL, WINDOWS, WINDOWS_QUEST, ARMS };

/* One way to attend all layers. */
typedef struct layers_arm {
    const char *name;
    bench *rig; /* the cache that it reads */
    tamis_selection selection;
    tamis_plan *plan;
    double us[BENCH_REPEAT_MAX]; /* of all layers */
    double step_us, speedup, predicted_speedup;
    double kv_bytes, bounds_bytes, rows_selected; /* of a step */
    tamis_cache_stats held;                       /* behind the prefill */
    double page_bytes;                            /* K and V of the pages held */
} layers_arm;

typedef struct layers_run {
    const char *command;
    const layers_flags *flags;
    tamis_context *device;
    bench alike, windowed;               /* the caches */
    tamis_layer stack[BENCH_LAYERS_MAX]; /* of `windowed` */
    layers_arm arms[ARMS];
    uint32_t n_read;
    double read[ARMS * BENCH_REPEAT_MAX];
    double read_gb_per_s;
} layers_run;

static uint32_t n_global(const layers_run *run) {
    return run->alike.params.shape->n_layers / run->flags->global_every;
}

/* ---- Measuring ------------------------------------------------------------------------------- */

static tamis_status sample(layers_run *run, layers_arm *arm, double *us, tamis_error *error) {
    tamis_status status =
        bench_read_bandwidth(run->device, run->flags->probe, &run->read[run->n_read++], error);
    if (status == TAMIS_OK) status = bench_sample(arm->rig, arm->plan, us, error);
    *us *= arm->rig->layers;
    return status;
}

static tamis_status take_samples(layers_run *run, tamis_error *error) {
    tamis_status status = TAMIS_OK;
    double warm_up;
    for (uint32_t a = 0; status == TAMIS_OK && a < ARMS; a++) {
        status = bench_sample(run->arms[a].rig, run->arms[a].plan, &warm_up, error);
        tamis_plan_reset_counters(run->arms[a].plan);
    }
    for (uint32_t round = 0; status == TAMIS_OK && round < run->flags->repeat; round++)
        for (uint32_t a = 0; status == TAMIS_OK && a < ARMS; a++)
            status = sample(run, &run->arms[a], &run->arms[a].us[round], error);
    return status;
}

/* What the cache holds now, and what its pages are without bounds. */
static tamis_status count_pages(layers_arm *arm, tamis_error *error) {
    tamis_cache_params params;
    tamis_cache_size size;
    tamis_cache_get_params(arm->rig->cache, &params);
    tamis_cache_get_stats(arm->rig->cache, &arm->held);
    const tamis_status status = tamis_cache_measure(arm->rig->device, &params, &size, error);
    if (status != TAMIS_OK) return status;
    arm->page_bytes = (double)arm->held.pages_held * (double)size.page_bytes;
    return TAMIS_OK;
}

/* The bytes of a step. A sample that read other rows by lists than those of global layers under
 * quest has measured something else. */
static tamis_status count_reads(const layers_run *run, layers_arm *arm, tamis_error *error) {
    const uint32_t repeat = run->flags->repeat;
    const uint64_t wanted = arm == &run->arms[WINDOWS_QUEST] ? n_global(run) : 0;
    tamis_plan_counters c;
    tamis_plan_get_counters(arm->plan, &c);
    arm->kv_bytes = (double)c.kv_bytes_read / repeat;
    arm->bounds_bytes = (double)c.bounds_bytes_read / repeat;
    arm->rows_selected = (double)c.rows_selected / repeat;
    if (c.rows_selected == wanted * repeat) return TAMIS_OK;
    return cli_error(error, TAMIS_E_STATE, "%s: %g layers of a step were read by lists, not %u",
                     arm->name, arm->rows_selected, (uint32_t)wanted);
}

static double bytes_of(const layers_arm *arm) {
    return arm->kv_bytes + arm->bounds_bytes;
}

/* Takes ratios within each round, whose samples are close in time, and then their median. */
static void summarise(layers_run *run) {
    const layers_arm *full = &run->arms[FULL];
    const uint32_t repeat = run->flags->repeat;
    run->read_gb_per_s = bench_median(run->read, run->n_read);
    for (uint32_t a = ARMS; a-- > 0;) { /* full, which is sorted, last */
        layers_arm *arm = &run->arms[a];
        double ratios[BENCH_REPEAT_MAX];
        for (uint32_t i = 0; i < repeat; i++)
            ratios[i] = full->us[i] / arm->us[i];
        arm->speedup = bench_median(ratios, repeat);
        arm->step_us = bench_median(arm->us, repeat);
        arm->predicted_speedup = bytes_of(full) / bytes_of(arm);
    }
}

static tamis_status fill(layers_run *run, bench *rig, tamis_error *error) {
    fprintf(stderr, "%s: %s\n", rig->stack == NULL ? "full" : "windows",
            run->flags->prefill_rows > 0 ? "prefilling" : "filling the cache");
    rig->device = run->device;
    return bench_fill(rig, error);
}

static tamis_status measure(layers_run *run, tamis_error *error) {
    tamis_status status = fill(run, &run->alike, error);
    if (status == TAMIS_OK) status = fill(run, &run->windowed, error);
    for (uint32_t a = 0; status == TAMIS_OK && a < ARMS; a++) {
        const bench_arm way = {.selection = run->arms[a].selection};
        status = count_pages(&run->arms[a], error);
        if (status == TAMIS_OK)
            status = bench_plan(run->arms[a].rig, &way, 0, &run->arms[a].plan, error);
    }
    if (status == TAMIS_OK) fprintf(stderr, "measuring decode steps\n");
    if (status == TAMIS_OK) status = take_samples(run, error);
    for (uint32_t a = 0; status == TAMIS_OK && a < ARMS; a++)
        status = count_reads(run, &run->arms[a], error);
    if (status == TAMIS_OK) summarise(run);
    return status;
}

/* ---- Saying ---------------------------------------------------------------------------------- */

static void print_settings(const layers_run *run) {
    const bench *b = &run->windowed;
    const tamis_device_info *device = tamis_context_device(run->device);
    printf(
        "%s, context %u, %s, pages of %u; medians of %u samples on %s (%s)\n"
        "%u layers, of which %u are global, the others have a sliding window of %u; quest with a "
        "budget of %u\n",
        b->params.shape->name, b->context, tamis_dtype_name(b->params.dtype), b->params.page_size,
        run->flags->repeat, device->id, device->name, b->layers, n_global(run), run->flags->window,
        run->flags->budget);
    if (b->params.prefill_rows > 0) printf("prefill in steps of %u rows; ", b->params.prefill_rows);
    printf("read bandwidth %.2f GB/s\n", run->read_gb_per_s);
}

static void add_row(cli_table *table, const layers_run *run, const layers_arm *arm) {
    cli_table_add(table, "%s", arm->name);
    cli_table_add(table, "%.1f", arm->step_us);
    cli_table_add(table, "%.2f", arm->speedup);
    cli_table_add(table, "%.2f", arm->predicted_speedup);
    cli_table_add(table, "%.3f", bytes_of(arm) / 1e6);
    if (run->flags->prefill_rows > 0) {
        cli_table_add(table, "%.2f", arm->rig->fill_s);
        cli_table_add(table, "%.2f", run->alike.fill_s / arm->rig->fill_s);
    } else {
        cli_table_add(table, "-");
        cli_table_add(table, "-");
    }
    cli_table_add(table, "%.3f", arm->page_bytes / 1e6);
    cli_table_add(table, "%.3f", (double)arm->held.bytes_held / 1e6);
    cli_table_add(table, "%.3f", (double)arm->held.bytes_reserved / 1e6);
}

static bool print(const layers_run *run) {
    static const char *const head[] = {"arm",     "step us",    "over full", "by bytes",
                                       "read MB", "prefill s",  "over full", "KV MB",
                                       "held MB", "reserved MB"};
    cli_table table = {.columns = sizeof(head) / sizeof(head[0])};
    print_settings(run);
    for (size_t i = 0; i < table.columns; i++)
        cli_table_add(&table, "%s", head[i]);
    for (uint32_t a = 0; a < ARMS; a++)
        add_row(&table, run, &run->arms[a]);
    bool printed = cli_table_print(&table);
    cli_table_free(&table);
    return printed;
}

/* null where nothing was prefilled. */
static bool add_prefill(cJSON *object, const layers_run *run, const char *name, double value) {
    return (run->flags->prefill_rows > 0 ? cJSON_AddNumberToObject(object, name, value)
                                         : cJSON_AddNullToObject(object, name)) != NULL;
}

static bool add_json_row(cJSON *rows, const layers_run *run, const layers_arm *arm) {
    const cli_number numbers[] = {{"step_us", arm->step_us},
                                  {"speedup_over_full", arm->speedup},
                                  {"predicted_speedup", arm->predicted_speedup},
                                  {"kv_bytes", arm->kv_bytes},
                                  {"bounds_bytes", arm->bounds_bytes},
                                  {"rows_selected", arm->rows_selected},
                                  {"page_bytes_held", arm->page_bytes},
                                  {"bytes_held", (double)arm->held.bytes_held},
                                  {"bytes_reserved", (double)arm->held.bytes_reserved}};
    cJSON *row = cli_json_row(rows);
    return cJSON_AddStringToObject(row, "arm", arm->name) != NULL &&
           cli_json_numbers(row, numbers, sizeof(numbers) / sizeof(numbers[0])) &&
           add_prefill(row, run, "prefill_s", arm->rig->fill_s) &&
           add_prefill(row, run, "prefill_speedup_over_full", run->alike.fill_s / arm->rig->fill_s);
}

static bool add_settings(cJSON *root, const layers_run *run) {
    const bench *b = &run->windowed;
    const cli_number numbers[] = {
        {"context", b->context},          {"layers", b->layers},
        {"global_layers", n_global(run)}, {"window", run->flags->window},
        {"budget", run->flags->budget},   {"page_size", b->params.page_size},
        {"repeat", run->flags->repeat},   {"read_gb_per_s", run->read_gb_per_s}};
    return cJSON_AddStringToObject(root, "shape", b->params.shape->name) != NULL &&
           cJSON_AddStringToObject(root, "dtype", tamis_dtype_name(b->params.dtype)) != NULL &&
           cli_json_numbers(root, numbers, sizeof(numbers) / sizeof(numbers[0])) &&
           add_prefill(root, run, "prefill_rows", b->params.prefill_rows);
}

static bool write_json(const layers_run *run, cli_output *output) {
    cJSON *root = cli_json_begin(run->command, run->device);
    cJSON *rows = add_settings(root, run) ? cJSON_CreateArray() : NULL;
    bool made = rows != NULL;
    for (uint32_t a = 0; made && a < ARMS; a++)
        made = add_json_row(rows, run, &run->arms[a]);
    if (!made) {
        cJSON_Delete(rows);
        rows = NULL;
    }
    return cli_json_write(root, rows, output, run->command);
}

/* ---- The command ----------------------------------------------------------------------------- */

/* A window or a budget of the whole context would measure nothing beside full. */
static bool is_below_context(const char *flag, uint32_t value, uint32_t context) {
    if (value < context) return true;
    cli_fail(bench_layers_command.name, "%s %u: must be below the context of %u", flag, value,
             context);
    return false;
}

/* Whether the flags go together. */
static bool check(const layers_flags *f) {
    const bench_shape *shape = &bench_shapes[f->shape];
    if (f->global_every > shape->n_layers) {
        cli_fail(bench_layers_command.name,
                 "--global-every %u: must be at most the %u layers of %s", f->global_every,
                 shape->n_layers, shape->name);
        return false;
    }
    return is_below_context("--window", f->window, f->context) &&
           is_below_context("--budget", f->budget, f->context);
}

static void set_rigs(layers_run *run, const layers_flags *f) {
    const bench_shape *shape = &bench_shapes[f->shape];
    run->alike = (bench){.context = f->context,
                         .params = {.shape = shape,
                                    .dtype = (tamis_dtype)f->dtype,
                                    .page_size = cli_page_size(f->page_size),
                                    .batch = 1,
                                    .layers = shape->n_layers,
                                    .prefill_rows = f->prefill_rows}};
    run->windowed = run->alike;
    run->windowed.stack = run->stack;
    for (uint32_t i = 0; i < shape->n_layers; i++)
        if ((i + 1) % f->global_every != 0)
            run->stack[i] = (tamis_layer){.attention.sliding_window = f->window, .full = 1};
}

static bool list_arms(layers_run *run, const layers_flags *f) {
    static const cli_selection_flags defaults = CLI_SELECTION_UNSET;
    static const char *const names[ARMS] = {"full", "windows", "windows+quest"};
    for (uint32_t a = 0; a < ARMS; a++) {
        layers_arm *arm = &run->arms[a];
        arm->name = names[a];
        arm->rig = a == FULL ? &run->alike : &run->windowed;
        tamis_selection_default(TAMIS_SELECT_FULL, &arm->selection);
    }
    tamis_selection *quest = &run->arms[WINDOWS_QUEST].selection;
    if (!cli_selection(run->command, TAMIS_SELECT_QUEST, f->budget, &defaults,
                       cli_page_size(f->page_size), quest))
        return false;
    quest->dense_layers = 0; /* every global layer is read by quest */
    return true;
}

static void release(layers_run *run) {
    for (uint32_t a = 0; a < ARMS; a++)
        tamis_plan_destroy(&run->arms[a].plan);
    bench_destroy(&run->alike);
    bench_destroy(&run->windowed);
    tamis_context_destroy(&run->device);
}

static int measure_and_say(layers_run *run, const layers_flags *f) {
    cli_output output = {0};
    tamis_error error = {0};
    if (f->json != NULL && !cli_output_open(&output, run->command, f->json)) return CLI_FAILED;
    tamis_status status = bench_open(f->device, &run->device, &error);
    if (status == TAMIS_OK) status = measure(run, &error);
    int code = status == TAMIS_OK ? CLI_OK : cli_fail(run->command, "%s", error.text);
    if (code == CLI_OK && !print(run)) code = cli_fail(run->command, "out of host memory");
    if (code == CLI_OK && f->json != NULL && !write_json(run, &output)) code = CLI_FAILED;
    release(run);
    cli_output_discard(&output);
    return code;
}

static int run(int argc, char *const *argv) {
    layers_flags f = {.shape = GEMMA3_270M,
                      .context = 32768,
                      .window = 512,
                      .global_every = 6,
                      .budget = 2048,
                      .dtype = TAMIS_F16,
                      .page_size = 1,
                      .repeat = 9};
    static layers_run run; /* samples of all arms: too large for a stack */
    int code = cli_parse(&bench_layers_command, &f, argc, argv);
    if (code >= 0) return code;
    if (!check(&f)) return CLI_USAGE;
    run.command = bench_layers_command.name;
    run.flags = &f;
    set_rigs(&run, &f);
    return list_arms(&run, &f) ? measure_and_say(&run, &f) : CLI_USAGE;
}
