/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis tune`: measures how the kernels of a device read memory fastest, and keeps it. */
#include "bench/tune.h"
#include "cli/commands.h"
#include "cli/json.h"
#include "cli/table.h"

#include <stdlib.h>
#include <string.h>

#define SEARCHES_MAX (2 * CLI_LIST_MAX * CLI_LIST_MAX)

typedef struct tune_flags {
    const char *device, *json;
    uint32_t context, budget, rounds, dry_run;
    cli_list shapes, dtypes;
} tune_flags;

static const cli_option options[] = {
    {"--shape", "NAME[,NAME]",
     "heads and head dim of models: {} (default llama2-7b,llama3-8b: one query head for each KV "
     "head, and several)",
     CLI_CHOICES, offsetof(tune_flags, shapes), 0, 0, bench_shape_names},
    {"--dtype", "TYPE[,TYPE]", "element types of the cache: {} (default f16,q8,k8v4,q4)",
     CLI_CHOICES, offsetof(tune_flags, dtypes), 0, 0, cli_dtypes},
    {"--context", "N", "tokens that a decode step sees (default 32768)", CLI_NUMBER,
     offsetof(tune_flags, context), 1, BENCH_CONTEXT_MAX, NULL},
    {"--budget", "N", "tokens of a lane that quest reads (default 2048)", CLI_NUMBER,
     offsetof(tune_flags, budget), 1, BENCH_CONTEXT_MAX, NULL},
    {"--rounds", "N", "samples of a value at most (default 9)", CLI_NUMBER,
     offsetof(tune_flags, rounds), 1, 1000, NULL},
    {"--dry-run", "", "measures and writes no file", CLI_FLAG, offsetof(tune_flags, dry_run), 0, 0,
     NULL},
    CLI_JSON_OPTION(tune_flags, json),
    CLI_DEVICE_OPTION(tune_flags, device),
};

static int run(int argc, char *const *argv);

const cli_command tune_command = {
    "tamis tune",
    "measure how this device's kernels read memory fastest, and keep it",
    "[OPTIONS]",
    "Measures one layer of decode attention over random keys and values with every value of the\n"
    "kernels' settings: attend over all pages (full), and sparse, which scores, selects and\n"
    "attends (quest); on a GPU gpu_attend, over all pages. One setting after another, all of its\n"
    "values in turn, round after round; values that are clearly slower drop out after three\n"
    "rounds. In the end the settings found and those from before are measured in turn, and kept\n"
    "if they are 1 % faster. Results of attention do not depend on settings, bit for bit: a value\n"
    "that changes one is an error.\n"
    "\n"
    "The settings go into the file named by TAMIS_SETTINGS, else into tamis/settings in\n"
    "$XDG_CONFIG_HOME or ~/.config. Every context on a device of this name takes them from there.\n"
    "tamis devices shows whose settings serve.",
    "  tamis tune\n  tamis tune --shape llama3-8b --dtype f16 --dry-run\n",
    options,
    sizeof(options) / sizeof(options[0]),
    run};

typedef struct tune_result {
    const bench_shape *shape;
    tune_search search;
} tune_result;

typedef struct tune {
    const tune_flags *flags;
    tamis_context *device;
    cli_progress progress;
    size_t done, total, n_results;
    const tamis_setting_op *ops; /* of this kind of device */
    uint32_t n_ops;
    tune_result results[SEARCHES_MAX];
} tune;

static uint32_t group_of(const bench_shape *shape) {
    return shape->n_heads / shape->n_kv_heads;
}

static tamis_status search(tune *t, bench *cache, tamis_setting_op op, tamis_error *error) {
    const bench_shape *shape = cache->params.shape;
    tune_result *r = &t->results[t->n_results];
    *r = (tune_result){.shape = shape,
                       .search = {.cache = cache,
                                  .of = {op, cache->params.dtype, group_of(shape)},
                                  .rounds = t->flags->rounds,
                                  .progress = &t->progress,
                                  .done = &t->done,
                                  .total = t->total}};
    const bool sparse = op == TAMIS_SETTING_OF_SPARSE;
    tamis_selection *selection = &r->search.arm.selection;
    tamis_selection_default(sparse ? TAMIS_SELECT_QUEST : TAMIS_SELECT_FULL, selection);
    if (sparse) selection->budget = t->flags->budget;
    const tamis_status status = tune_run(&r->search, error);
    t->n_results += status == TAMIS_OK;
    return status;
}

static tamis_status tune_cache(tune *t, uint32_t shape, tamis_dtype dtype, tamis_error *error) {
    bench *cache = calloc(1, sizeof(*cache));
    if (cache == NULL) return cli_no_memory(error);
    cache->device = t->device;
    cache->context = t->flags->context;
    cache->params =
        (bench_params){.shape = &bench_shapes[shape], .dtype = dtype, .page_size = 16, .batch = 1};
    tamis_status status = bench_fill(cache, error);
    for (uint32_t i = 0; status == TAMIS_OK && i < t->n_ops; i++)
        status = search(t, cache, t->ops[i], error);
    bench_destroy(cache);
    free(cache);
    return status;
}

static tamis_status tune_all(tune *t, tamis_error *error) {
    const cli_list *shapes = &t->flags->shapes, *dtypes = &t->flags->dtypes;
    tamis_status status = TAMIS_OK;
    for (uint32_t i = 0; i < t->n_ops; i++)
        t->total += shapes->count * dtypes->count * tune_values(t->ops[i]);
    cli_progress_begin(&t->progress, "values");
    for (uint32_t s = 0; status == TAMIS_OK && s < shapes->count; s++)
        for (uint32_t d = 0; status == TAMIS_OK && d < dtypes->count; d++)
            status = tune_cache(t, shapes->values[s], (tamis_dtype)dtypes->values[d], error);
    cli_progress_end(&t->progress);
    return status;
}

/* ---- Report ---------------------------------------------------------------------------------- */

static double gain_of(const tune_search *s) {
    return s->after_us > 0 ? s->before_us / s->after_us : 1;
}

/* "fetch_rows=4 fetch_level=1" */
typedef struct values_text {
    char text[128];
} values_text;
static values_text values_of(const tune_search *s, const uint32_t *values) {
    values_text out = {""};
    const tamis_setting_info *info;
    size_t at = 0;
    TUNE_EACH_SETTING(i, info, s->of.op) {
        if (at < sizeof(out.text))
            at += (size_t)snprintf(out.text + at, sizeof(out.text) - at, "%s%s=%u", at ? " " : "",
                                   info->name, values[i]);
    }
    return out;
}

static bool print(const tune *t) {
    static const char *const head[] = {"shape",     "dtype",    "op",   "before",
                                       "before us", "after us", "gain", "after"};
    cli_table table = {.columns = sizeof(head) / sizeof(head[0])};
    for (size_t i = 0; i < table.columns; i++)
        cli_table_add(&table, "%s", head[i]);
    for (size_t i = 0; i < t->n_results; i++) {
        const tune_search *s = &t->results[i].search;
        cli_table_add(&table, "%s", t->results[i].shape->name);
        cli_table_add(&table, "%s", tamis_dtype_name(s->of.dtype));
        cli_table_add(&table, "%s", tamis_setting_op_name(s->of.op));
        cli_table_add(&table, "%s", values_of(s, s->before).text);
        cli_table_add(&table, "%.1f", s->before_us);
        cli_table_add(&table, "%.1f", s->after_us);
        cli_table_add(&table, "%.2f", gain_of(s));
        cli_table_add(&table, "%s", values_of(s, s->after).text);
    }
    const bool printed = cli_table_print(&table);
    cli_table_free(&table);
    return printed;
}

static bool add_values(cJSON *to, const tune_search *s, const uint32_t *values) {
    const tamis_setting_info *info;
    bool made = to != NULL;
    TUNE_EACH_SETTING(i, info, s->of.op) {
        if (made) made = cJSON_AddNumberToObject(to, info->name, values[i]) != NULL;
    }
    return made;
}

static bool add_json_row(cJSON *rows, const tune_result *r) {
    const tune_search *s = &r->search;
    cJSON *row = cli_json_row(rows);
    const cli_number numbers[] = {
        {"before_us", s->before_us}, {"after_us", s->after_us}, {"gain", gain_of(s)}};
    return cJSON_AddStringToObject(row, "shape", r->shape->name) != NULL &&
           cJSON_AddStringToObject(row, "dtype", tamis_dtype_name(s->of.dtype)) != NULL &&
           cJSON_AddStringToObject(row, "op", tamis_setting_op_name(s->of.op)) != NULL &&
           cJSON_AddNumberToObject(row, "group", s->of.group) != NULL &&
           add_values(cJSON_AddObjectToObject(row, "before"), s, s->before) &&
           add_values(cJSON_AddObjectToObject(row, "after"), s, s->after) &&
           cli_json_numbers(row, numbers, sizeof(numbers) / sizeof(numbers[0]));
}

static bool write_json(const tune *t, cli_output *output) {
    cJSON *root = cli_json_begin(tune_command.name, t->device);
    const cli_number numbers[] = {{"context", t->flags->context}, {"budget", t->flags->budget}};
    cJSON *rows = cli_json_numbers(root, numbers, sizeof(numbers) / sizeof(numbers[0]))
                      ? cJSON_CreateArray()
                      : NULL;
    bool made = rows != NULL;
    for (size_t i = 0; made && i < t->n_results; i++)
        made = add_json_row(rows, &t->results[i]);
    if (!made) {
        cJSON_Delete(rows);
        rows = NULL;
    }
    return cli_json_write(root, rows, output, tune_command.name);
}

/* ---- The command ----------------------------------------------------------------------------- */

/* E_UNSUPPORTED where there is nothing to tune. A file that cannot be understood was refused when
 * the context was made. */
static tamis_status open_device(tune *t, tamis_error *error) {
    char from[1024];
    tamis_status status = bench_open(t->flags->device, &t->device, error);
    if (status != TAMIS_OK) return status;
    const tamis_device_info *info = tamis_context_device(t->device);
    static const tamis_setting_op of_gpus[] = {TAMIS_SETTING_OF_GPU_ATTEND},
                                  of_cpus[] = {TAMIS_SETTING_OF_ATTEND, TAMIS_SETTING_OF_SPARSE};
    t->ops = info->kind == TAMIS_DEVICE_GPU ? of_gpus : of_cpus;
    t->n_ops = info->kind == TAMIS_DEVICE_GPU ? 1 : 2;
    status = tamis_device_settings(info, from, sizeof(from), error);
    if (status != TAMIS_OK) return status;
    if (strcmp(from, "none") == 0)
        return cli_error(error, TAMIS_E_UNSUPPORTED, "%s (%s): its kernels have no settings",
                         info->id, info->name);
    /* If the file cannot be written, that is known before minutes of measuring. */
    if (!t->flags->dry_run) status = tamis_context_write_settings(t->device, error);
    if (status != TAMIS_OK) return status;
    printf("%s (%s), context %u, budget %u; settings before: %s\n", info->id, info->name,
           t->flags->context, t->flags->budget, from);
    return TAMIS_OK;
}

static int finish(tune *t, cli_output *output) {
    tamis_error error = {0};
    if (!print(t)) return cli_fail(tune_command.name, "out of host memory");
    if (t->flags->json != NULL && !write_json(t, output)) return CLI_FAILED;
    if (!t->flags->dry_run && tamis_context_write_settings(t->device, &error) != TAMIS_OK)
        return cli_fail(tune_command.name, "%s", error.text);
    if (!t->flags->dry_run) {
        char path[1024];
        if (tamis_device_settings(tamis_context_device(t->device), path, sizeof(path), &error) !=
            TAMIS_OK)
            return cli_fail(tune_command.name, "%s", error.text);
        printf("settings written to %s\n", path);
    }
    return CLI_OK;
}

static bool check(const tune_flags *f) {
    if (f->budget >= f->context) {
        cli_fail(tune_command.name, "--budget %u: must be below the context of %u", f->budget,
                 f->context);
        return false;
    }
    for (uint32_t i = 0; i < f->shapes.count; i++)
        for (uint32_t j = 0; j < i; j++) {
            const bench_shape *a = &bench_shapes[f->shapes.values[j]],
                              *b = &bench_shapes[f->shapes.values[i]];
            if ((group_of(a) > 1) != (group_of(b) > 1)) continue;
            cli_fail(tune_command.name, "--shape %s,%s: they share their settings: take one",
                     a->name, b->name);
            return false;
        }
    return true;
}

static int run(int argc, char *const *argv) {
    tune_flags f = {.context = 32768,
                    .budget = 2048,
                    .rounds = 9,
                    .shapes = {2, {0, 1}},
                    .dtypes = {4, {TAMIS_F16, TAMIS_Q8, TAMIS_K8V4, TAMIS_Q4}}};
    cli_output output = {0};
    tamis_error error = {0};
    int code = cli_parse(&tune_command, &f, argc, argv);
    if (code >= 0) return code;
    if (!check(&f)) return CLI_USAGE;
    if (f.json != NULL && !cli_output_open(&output, tune_command.name, f.json)) return CLI_FAILED;
    tune *t = calloc(1, sizeof(*t));
    if (t == NULL) {
        cli_output_discard(&output);
        return cli_fail(tune_command.name, "out of host memory");
    }
    t->flags = &f;
    tamis_status status = open_device(t, &error);
    if (status == TAMIS_OK) status = tune_all(t, &error);
    code = status == TAMIS_OK ? finish(t, &output) : cli_fail(tune_command.name, "%s", error.text);
    tamis_context_destroy(&t->device);
    free(t);
    cli_output_discard(&output);
    return code;
}
