/* SPDX-License-Identifier: Apache-2.0 */
/* The output of `tamis bench attention`: a table, and the same rows as JSON. */
#include "bench/bench.h"
#include "cli/json.h"
#include "cli/table.h"

#include <stdlib.h>

/* A machine that reads faster than this is compute-bound in attention; targets use the smaller of
 * the two. */
#define READ_CAP 45.0

static const char *pages_name(const bench *b) {
    return b->params.shuffled ? "shuffled" : "ordered";
}

static double smaller_read(const bench *b) {
    return b->read_gb_per_s < READ_CAP ? b->read_gb_per_s : READ_CAP;
}

static bool on_gpu(const bench *b) {
    return tamis_context_device(b->device)->kind == TAMIS_DEVICE_GPU;
}

/* "score 12 select 3 attend 40": only what took time. */
static void add_stages(cli_table *table, const tamis_plan_times *us) {
    const struct {
        const char *name;
        double us;
    } stages[] = {{"write", us->write_us},
                  {"bounds", us->bounds_us},
                  {"score", us->score_us},
                  {"select", us->select_us},
                  {"attend", us->attend_us},
                  {"fused", us->fused_us},
                  {"of it select", us->fused_select_us}};
    char text[256] = "";
    size_t used = 0;
    for (size_t i = 0; i < sizeof(stages) / sizeof(stages[0]); i++)
        if (stages[i].us > 0 && used < sizeof(text))
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s %.0f",
                                     used > 0 ? " " : "", stages[i].name, stages[i].us);
    cli_table_add(table, "%s", text);
}

static void add_row(cli_table *table, const bench *b, const bench_arm *arm) {
    bool full = arm->selection.kind == TAMIS_SELECT_FULL;
    cli_table_add(table, "%u", b->context);
    cli_table_add(table, "%s", arm->select);
    if (full)
        cli_table_add(table, "-");
    else
        cli_table_add(table, "%u", arm->selection.budget);
    cli_table_add(table, "%.1f", arm->total_us);
    cli_table_add(table, "%.2f", arm->gb_per_s);
    cli_table_add(table, "%.3f", arm->share_of_read);
    cli_table_add(table, "%.3f", arm->share_of_limit);
    if (!on_gpu(b))
        cli_table_add(table, "%.3f", arm->gb_per_s / smaller_read(b));
    else
        cli_table_add(table, "%.3f", arm->share_of_copy);
    cli_table_add(table, "%.2f", arm->speedup_over_full);
    add_stages(table, &arm->stage_us);
}

/* Prints the bandwidths of a run: read, the page-read limit, and on a GPU copy too. */
static void print_bandwidths(const bench *b) {
    printf("context %u: %u layers in turn, read bandwidth %.2f GB/s", b->context, b->layers,
           b->read_gb_per_s);
    printf(", page-read limit %.2f GB/s (%s)", b->limit_gb_per_s, b->limit_order);
    if (on_gpu(b))
        printf(", copy bandwidth %.2f GB/s\n", b->copy_gb_per_s);
    else
        printf(", min(read, %.0f) %.2f GB/s\n", READ_CAP, smaller_read(b));
}

bool bench_print(const bench *runs, uint32_t n_runs) {
    const char *const head[] = {"context",  "select",
                                "budget",   "total us",
                                "GB/s",     "of read",
                                "of limit", on_gpu(&runs[0]) ? "of copy" : "of min",
                                "speed-up", "stages, us (timed apart)"};
    const bench_params *p = &runs[0].params;
    const tamis_device_info *device = tamis_context_device(runs[0].device);
    cli_table table = {.columns = sizeof(head) / sizeof(head[0])};
    printf("%s, %s, pages of %u, %s; batch %u; medians of %u samples on %s (%s)\n", p->shape->name,
           tamis_dtype_name(p->dtype), p->page_size, pages_name(&runs[0]), p->batch, p->repeat,
           device->id, device->name);
    for (uint32_t i = 0; i < n_runs; i++)
        print_bandwidths(&runs[i]);
    for (size_t i = 0; i < table.columns; i++)
        cli_table_add(&table, "%s", head[i]);
    for (uint32_t i = 0; i < n_runs; i++)
        for (uint32_t a = 0; a < runs[i].n_arms; a++)
            add_row(&table, &runs[i], &runs[i].arms[a]);
    bool printed = cli_table_print(&table);
    cli_table_free(&table);
    return printed;
}

static bool add_stage_us(cJSON *row, const tamis_plan_times *us) {
    const cli_number stages[] = {{"write", us->write_us},
                                 {"bounds", us->bounds_us},
                                 {"score", us->score_us},
                                 {"select", us->select_us},
                                 {"attend", us->attend_us},
                                 {"fused", us->fused_us},
                                 {"fused_select", us->fused_select_us}};
    return cli_json_numbers(cJSON_AddObjectToObject(row, "stage_us"), stages,
                            sizeof(stages) / sizeof(stages[0]));
}

static bool add_counters(cJSON *row, const tamis_plan_counters *c) {
    const cli_number numbers[] = {{"steps", (double)c->steps},
                                  {"rows_written", (double)c->rows_written},
                                  {"rows_exact", (double)c->rows_exact},
                                  {"rows_full", (double)c->rows_full},
                                  {"rows_short", (double)c->rows_short},
                                  {"rows_selected", (double)c->rows_selected},
                                  {"rows_fused", (double)c->rows_fused},
                                  {"pages_copied", (double)c->pages_copied},
                                  {"pages_bounded", (double)c->pages_bounded},
                                  {"kv_bytes_read", (double)c->kv_bytes_read},
                                  {"bounds_bytes_read", (double)c->bounds_bytes_read},
                                  {"kv_bytes_full", (double)c->kv_bytes_full}};
    return cli_json_numbers(cJSON_AddObjectToObject(row, "counters"), numbers,
                            sizeof(numbers) / sizeof(numbers[0]));
}

/* 0, which nothing measures, becomes null. */
static bool add_measured(cJSON *to, const char *name, double value) {
    return (value > 0 ? cJSON_AddNumberToObject(to, name, value)
                      : cJSON_AddNullToObject(to, name)) != NULL;
}

static bool add_json_row(cJSON *rows, const bench *b, const bench_arm *arm) {
    bool full = arm->selection.kind == TAMIS_SELECT_FULL;
    cJSON *row = cli_json_row(rows);
    return cJSON_AddStringToObject(row, "shape", b->params.shape->name) != NULL &&
           cJSON_AddNumberToObject(row, "batch", b->params.batch) != NULL &&
           cJSON_AddNumberToObject(row, "context", b->context) != NULL &&
           cJSON_AddNumberToObject(row, "layers", b->layers) != NULL &&
           cJSON_AddStringToObject(row, "dtype", tamis_dtype_name(b->params.dtype)) != NULL &&
           cJSON_AddStringToObject(row, "bounds_dtype",
                                   cli_bounds_dtypes[b->params.bounds_dtype]) != NULL &&
           cJSON_AddStringToObject(row, "select", arm->select) &&
           cJSON_AddNumberToObject(row, "budget", full ? b->context : arm->selection.budget) &&
           cJSON_AddStringToObject(row, "pages", pages_name(b)) != NULL &&
           cJSON_AddNumberToObject(row, "total_us", arm->total_us) != NULL &&
           add_measured(row, "graph_us", arm->graph_us) &&
           add_measured(row, "graph_replays", arm->graph_us > 0 ? BENCH_GRAPH_REPLAYS : 0) &&
           add_stage_us(row, &arm->stage_us) &&
           cJSON_AddNumberToObject(row, "gb_per_s", arm->gb_per_s) != NULL &&
           cJSON_AddNumberToObject(row, "share_of_read", arm->share_of_read) != NULL &&
           cJSON_AddStringToObject(row, "limit_order", b->limit_order) != NULL &&
           cJSON_AddNumberToObject(row, "limit_gb_per_s", b->limit_gb_per_s) != NULL &&
           cJSON_AddNumberToObject(row, "share_of_limit", arm->share_of_limit) != NULL &&
           cJSON_AddNumberToObject(row, "share_of_copy", arm->share_of_copy) != NULL &&
           cJSON_AddNumberToObject(row, "speedup_over_full", arm->speedup_over_full) != NULL &&
           add_counters(row, &arm->counters);
}

/* One read and one copy bandwidth for the run: the means over its contexts. */
static bool add_settings(cJSON *root, const bench *runs, uint32_t n_runs) {
    double read = 0, copy = 0;
    for (uint32_t i = 0; i < n_runs; i++) {
        read += runs[i].read_gb_per_s / n_runs;
        copy += runs[i].copy_gb_per_s / n_runs;
    }
    const cli_number numbers[] = {{"threads", tamis_context_device(runs[0].device)->compute_units},
                                  {"read_gb_per_s", read},
                                  {"copy_gb_per_s", copy}};
    return cli_json_numbers(root, numbers, sizeof(numbers) / sizeof(numbers[0]));
}

bool bench_write_json(const bench *runs, uint32_t n_runs, cli_output *output, const char *command) {
    cJSON *root = cli_json_begin(command, runs[0].device);
    cJSON *rows = add_settings(root, runs, n_runs) ? cJSON_CreateArray() : NULL;
    bool made = rows != NULL;
    for (uint32_t i = 0; i < n_runs; i++)
        for (uint32_t a = 0; made && a < runs[i].n_arms; a++)
            made = add_json_row(rows, &runs[i], &runs[i].arms[a]);
    if (!made) {
        cJSON_Delete(rows);
        rows = NULL;
    }
    return cli_json_write(root, rows, output, command);
}
