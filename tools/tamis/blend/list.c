/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis blend list`: the entries of a file of trials. */
#include "blend/blend.h"

#include <stdlib.h>
#include <string.h>

typedef struct list_flags {
    const char *trials, *json;
} list_flags;

static const cli_option options[] = {
    {"--trials", "FILE", "the file (default tamis/blend.trials in the user's folder for settings)",
     CLI_FILE, offsetof(list_flags, trials), 0, 0, NULL},
    CLI_JSON_OPTION(list_flags, json),
};

static int run_command(int argc, char *const *argv);

const cli_command blend_list_command = {
    "tamis blend list",
    "list what was measured for which models",
    "[OPTIONS]",
    "Prints an entry in each line: the model and its fingerprint, the settings, and the smallest\n"
    "share that passed with its figures. See tamis blend trial.",
    "  tamis blend list\n"
    "  tamis blend list --trials blend.trials --json -\n",
    options,
    sizeof(options) / sizeof(options[0]),
    run_command};

typedef struct entries {
    tamis_blend_trial *list;
    size_t count;
} entries;

static tamis_status read_entries(const char *path, entries *out, tamis_error *error) {
    tamis_status status = tamis_blend_trial_read(path, NULL, 0, &out->count, error);
    size_t room = out->count;
    while (status == TAMIS_OK && out->list == NULL) {
        out->list = calloc(room + 1, sizeof(*out->list));
        if (out->list == NULL) return cli_no_memory(error);
        status = tamis_blend_trial_read(path, out->list, room, &out->count, error);
        if (status != TAMIS_OK || out->count <= room) break;
        room = out->count; /* somebody has written meanwhile */
        free(out->list);
        out->list = NULL;
    }
    return status;
}

/* The figures of the share that passed; NULL: none has. */
static const tamis_blend_figures *passed(const tamis_blend_trial *p) {
    for (uint32_t i = 0; i < p->n_figures; i++)
        if (p->share > 0 && p->figures[i].share == p->share) return &p->figures[i];
    return NULL;
}

static void add_line(cli_table *table, const tamis_blend_trial *p) {
    const tamis_blend_figures *f = passed(p);
    cli_table_add(table, "%s", p->model);
    cli_table_add(table, "%s", cli_hex(p->fingerprint).text);
    cli_table_add(table, "%s", tamis_blend_selector_name(p->selector));
    cli_table_add(table, "%s", blend_schedules[p->schedule]);
    cli_table_add(table, p->check_layer == TAMIS_BLEND_NO_CHECK ? "-" : "%u", p->check_layer);
    cli_table_add(table, "%s", tamis_dtype_name(p->cache_dtype));
    cli_table_add(table, "%s", tamis_dtype_name(p->dtype));
    cli_table_add(table, "%u", p->n_sink);
    cli_table_add(table, f != NULL ? "%g" : "-", p->share);
    cli_table_add(table, f != NULL ? "%.5f" : "-", f != NULL ? f->kl_mean : 0);
    cli_table_add(table, f != NULL ? "%.3f" : "-", f != NULL ? f->agreement : 0);
}

static bool print(const entries *e) {
    static const char *const head[] = {"model", "fingerprint", "select",   "schedule",
                                       "check", "cache",       "stored",   "sink",
                                       "share", "KL",          "agreement"};
    cli_table table = {.columns = sizeof(head) / sizeof(head[0])};
    for (size_t i = 0; i < table.columns; i++)
        cli_table_add(&table, "%s", head[i]);
    for (size_t i = 0; i < e->count; i++)
        add_line(&table, &e->list[i]);
    const bool printed = cli_table_print(&table);
    cli_table_free(&table);
    return printed;
}

static bool add_row(cJSON *rows, const tamis_blend_trial *p) {
    const tamis_blend_figures *f = passed(p);
    const cli_number numbers[] = {{"sink", p->n_sink},
                                  {"prompts", p->prompts},
                                  {"chunks", p->chunks},
                                  {"chunk_tokens", p->chunk_tokens},
                                  {"max_kl", p->max_kl},
                                  {"min_agreement", p->min_agreement},
                                  {"answer_tokens", p->answer_tokens}};
    const cli_number figures[] = {{"share", p->share},
                                  {"kl_mean", f != NULL ? f->kl_mean : 0},
                                  {"agreement", f != NULL ? f->agreement : 0}};
    cJSON *row = cli_json_row(rows);
    return cJSON_AddStringToObject(row, "model", p->model) != NULL &&
           cJSON_AddStringToObject(row, "fingerprint", cli_hex(p->fingerprint).text) != NULL &&
           cJSON_AddStringToObject(row, "select", tamis_blend_selector_name(p->selector)) != NULL &&
           cJSON_AddStringToObject(row, "schedule", blend_schedules[p->schedule]) != NULL &&
           (p->check_layer == TAMIS_BLEND_NO_CHECK
                ? cJSON_AddNullToObject(row, "check_layer")
                : cJSON_AddNumberToObject(row, "check_layer", p->check_layer)) != NULL &&
           cJSON_AddStringToObject(row, "dtype", tamis_dtype_name(p->cache_dtype)) != NULL &&
           cJSON_AddStringToObject(row, "stored", tamis_dtype_name(p->dtype)) != NULL &&
           cli_json_numbers(row, numbers, sizeof(numbers) / sizeof(numbers[0])) &&
           (f == NULL || cli_json_numbers(row, figures, sizeof(figures) / sizeof(figures[0])));
}

static bool write_json(const entries *e, const char *path, cli_output *output) {
    cJSON *root = cli_json_begin(blend_list_command.name, NULL), *rows = cJSON_CreateArray();
    bool made = rows != NULL && cJSON_AddStringToObject(root, "trials", path) != NULL;
    for (size_t i = 0; made && i < e->count; i++)
        made = add_row(rows, &e->list[i]);
    if (!made) {
        cJSON_Delete(rows);
        rows = NULL;
    }
    return cli_json_write(root, rows, output, blend_list_command.name);
}

static int run_command(int argc, char *const *argv) {
    list_flags f = {0};
    entries e = {0};
    cli_output output = {0};
    tamis_error error = {0};
    char path[CLI_TRIALS_BYTES];
    int code = cli_parse(&blend_list_command, &f, argc, argv);
    if (code >= 0) return code;
    if (cli_trials_file(f.trials, path, &error) != TAMIS_OK)
        return cli_fail(blend_list_command.name, "%s", error.text);
    if (f.json != NULL && !cli_output_open(&output, blend_list_command.name, f.json))
        return CLI_FAILED;
    code = CLI_OK;
    if (read_entries(path, &e, &error) != TAMIS_OK)
        code = cli_fail(blend_list_command.name, "%s", error.text);
    if (code == CLI_OK && !print(&e))
        code = cli_fail(blend_list_command.name, "out of host memory");
    if (code == CLI_OK && f.json != NULL && !write_json(&e, path, &output)) code = CLI_FAILED;
    free(e.list);
    cli_output_discard(&output);
    return code;
}
