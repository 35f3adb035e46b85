/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis devices`: every device of every backend, and why one cannot be used. */
#include "cli/devices.h"
#include "cli/commands.h"
#include "cli/json.h"
#include "cli/table.h"

#include <stdlib.h>
#include <string.h>

typedef struct devices_flags {
    const char *device, *json;
    uint32_t matrix, markdown;
} devices_flags;

static const cli_option options[] = {
    {"--device", "ID", "only this device, or the devices of this backend", CLI_TEXT,
     offsetof(devices_flags, device), 0, 0, NULL},
    {"--matrix", "", "which evictions, selections and dtypes work together by backend", CLI_FLAG,
     offsetof(devices_flags, matrix), 0, 0, NULL},
    {"--markdown", "", "the matrix as Markdown", CLI_FLAG, offsetof(devices_flags, markdown), 0, 0,
     NULL},
    CLI_JSON_OPTION(devices_flags, json),
};

static int run(int argc, char *const *argv);

const cli_command cli_devices_command = {
    "tamis devices",
    "list devices, why one cannot be used, and which policies work together",
    "[--device ID] [--matrix [--markdown]] [--json FILE]",
    "Lists the devices of all backends, best first: what can be used, and why the rest cannot.\n"
    "With --matrix, which evictions work with which selections: a small plan is made for each\n"
    "pair, with every dtype, on the first usable device of each backend.",
    "  tamis devices\n  tamis devices --device opencl --json -\n  tamis devices --matrix\n",
    options,
    sizeof(options) / sizeof(options[0]),
    run};

static const char *kind_name(tamis_device_kind kind) {
    switch (kind) {
    case TAMIS_DEVICE_CPU:
        return "cpu";
    case TAMIS_DEVICE_GPU:
        return "gpu";
    default:
        return "other";
    }
}

/* Where the settings of its kernels come from, or what is wrong with the file that says them. */
typedef struct settings_text {
    char text[1024];
} settings_text;
static settings_text settings_of(const tamis_device_info *info) {
    settings_text out;
    tamis_error error = {0};
    if (tamis_device_settings(info, out.text, sizeof(out.text), &error) != TAMIS_OK)
        snprintf(out.text, sizeof(out.text), "%s", error.text);
    return out;
}

static void add_row(cli_table *table, const tamis_device_info *info) {
    cli_table_add(table, "%s", info->id);
    cli_table_add(table, "%s", info->usable ? kind_name(info->kind) : "-");
    if (info->compute_units > 0)
        cli_table_add(table, "%u", info->compute_units);
    else
        cli_table_add(table, "-");
    cli_table_add(table, "%s",
                  info->memory_bytes > 0 ? cli_bytes((double)info->memory_bytes).text : "-");
    cli_table_add(table, "%s",
                  info->max_buffer_bytes > 0 ? cli_bytes((double)info->max_buffer_bytes).text
                                             : "-");
    cli_table_add(table, "%s", info->usable ? "usable" : "unusable");
}

/* What has no limit in length: why it cannot be used, or its names and, on a line of its own that
 * is never wrapped (it may end in a path), its settings. */
static void print_details(const tamis_device_info *info) {
    char text[2048];
    if (info->usable)
        snprintf(text, sizeof(text), "%s: %s, driver %s", info->id, info->name, info->driver);
    else
        snprintf(text, sizeof(text), "%s: not usable: %s", info->id, info->reason);
    cli_print_wrapped(text, 0);
    if (info->usable) printf("%s: settings: %s\n", info->id, settings_of(info).text);
}

static int print_devices(const tamis_device_info *infos, size_t count, const char *device) {
    static const char *const head[] = {"id", "kind", "units", "memory", "largest buffer", "state"};
    cli_table table = {.columns = sizeof(head) / sizeof(head[0])};
    int code = CLI_OK;
    for (size_t i = 0; i < table.columns; i++)
        cli_table_add(&table, "%s", head[i]);
    for (size_t i = 0; i < count; i++)
        if (devices_is_meant(&infos[i], device)) add_row(&table, &infos[i]);
    if (table.cells == table.columns)
        code = cli_fail(cli_devices_command.name, "--device %s: no such device", device);
    else if (!cli_table_print(&table))
        code = cli_fail(cli_devices_command.name, "out of host memory");
    if (code == CLI_OK) putchar('\n');
    for (size_t i = 0; code == CLI_OK && i < count; i++)
        if (devices_is_meant(&infos[i], device)) print_details(&infos[i]);
    cli_table_free(&table);
    return code;
}

static bool add_json_row(cJSON *rows, const tamis_device_info *info) {
    cJSON *row = cli_json_row(rows);
    return cJSON_AddStringToObject(row, "id", info->id) != NULL &&
           cJSON_AddStringToObject(row, "backend", info->backend) != NULL &&
           cJSON_AddStringToObject(row, "name", info->name) != NULL &&
           cJSON_AddStringToObject(row, "driver", info->driver) != NULL &&
           (info->usable ? cJSON_AddStringToObject(row, "kind", kind_name(info->kind))
                         : cJSON_AddNullToObject(row, "kind")) != NULL &&
           cJSON_AddNumberToObject(row, "compute_units", info->compute_units) != NULL &&
           cJSON_AddNumberToObject(row, "memory_bytes", (double)info->memory_bytes) != NULL &&
           cJSON_AddNumberToObject(row, "max_buffer_bytes", (double)info->max_buffer_bytes) !=
               NULL &&
           (info->usable ? cJSON_AddStringToObject(row, "settings", settings_of(info).text)
                         : cJSON_AddNullToObject(row, "settings")) != NULL &&
           cJSON_AddBoolToObject(row, "usable", info->usable) != NULL &&
           (info->usable || cJSON_AddStringToObject(row, "reason", info->reason) != NULL);
}

static bool write_json(const tamis_device_info *infos, size_t count, const char *device,
                       cli_output *output) {
    cJSON *rows = cJSON_CreateArray();
    bool made = rows != NULL;
    for (size_t i = 0; made && i < count; i++)
        if (devices_is_meant(&infos[i], device)) made = add_json_row(rows, &infos[i]);
    if (!made) {
        cJSON_Delete(rows);
        rows = NULL;
    }
    return cli_json_write(cli_json_begin(cli_devices_command.name, NULL), rows, output,
                          cli_devices_command.name);
}

static int list_devices(const tamis_device_info *infos, size_t count, const devices_flags *f) {
    cli_output output = {0};
    if (f->json != NULL && !cli_output_open(&output, cli_devices_command.name, f->json))
        return CLI_FAILED;
    int code = print_devices(infos, count, f->device);
    if (code == CLI_OK && f->json != NULL && !write_json(infos, count, f->device, &output))
        code = CLI_FAILED;
    cli_output_discard(&output);
    return code;
}

/* All devices; *infos is the caller's to free. */
static tamis_status find_devices(tamis_device_info **infos, size_t *count, tamis_error *error) {
    tamis_status status = tamis_device_list(NULL, 0, count, error);
    size_t capacity = *count;
    *infos = calloc(capacity > 0 ? capacity : 1, sizeof(**infos));
    if (*infos == NULL) return cli_no_memory(error);
    if (status == TAMIS_OK) status = tamis_device_list(*infos, capacity, count, error);
    if (*count > capacity) *count = capacity; /* the array has no room for a device added since */
    return status;
}

static int run(int argc, char *const *argv) {
    devices_flags f = {0};
    const char *name = cli_devices_command.name;
    int code = cli_parse(&cli_devices_command, &f, argc, argv);
    if (code >= 0) return code;
    if (!f.matrix && f.markdown) {
        cli_fail(name, "--markdown: is of --matrix, which is not given");
        return CLI_USAGE;
    }
    tamis_device_info *infos = NULL;
    size_t count = 0;
    tamis_error error = {0};
    tamis_status status = find_devices(&infos, &count, &error);
    if (status != TAMIS_OK)
        code = cli_fail(name, "%s", error.text);
    else if (f.matrix)
        code = devices_matrix(name, infos, count, f.device, f.markdown, f.json);
    else
        code = list_devices(infos, count, &f);
    free(infos);
    return code;
}
