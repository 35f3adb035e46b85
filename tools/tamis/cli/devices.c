/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis devices`: every device of every backend, and why one cannot be used. */
#include "cli/devices.h"
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
    {"--matrix", "", "which evictions, selections and dtypes go together on each backend", CLI_FLAG,
     offsetof(devices_flags, matrix), 0, 0, NULL},
    {"--markdown", "", "the matrix as Markdown", CLI_FLAG, offsetof(devices_flags, markdown), 0, 0,
     NULL},
    {"--json", "FILE", "every cell of the matrix as JSON; the file appears only when complete",
     CLI_TEXT, offsetof(devices_flags, json), 0, 0, NULL},
};

static const cli_command devices_command = {
    "tamis devices",
    "[--device ID] [--matrix [--markdown] [--json FILE]]",
    "Lists the devices of all backends, best first: what can be used, and why the rest cannot.\n"
    "With --matrix, which evictions go with which selections: a small plan is made of each, with\n"
    "every dtype, on the first usable device of each backend.",
    "  tamis devices\n  tamis devices --device opencl\n  tamis devices --matrix\n",
    options,
    sizeof(options) / sizeof(options[0])};

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

bool devices_is_meant(const tamis_device_info *info, const char *device) {
    return device == NULL || strcmp(device, "auto") == 0 || strcmp(device, info->id) == 0 ||
           strcmp(device, info->backend) == 0;
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
    cli_table_add(table, "%s", info->name[0] != '\0' ? info->name : "-");
    cli_table_add(table, "%s", info->driver[0] != '\0' ? info->driver : "-");
    cli_table_add(table, "%s%s",
                  info->usable ? "usable" : "not usable: ", info->usable ? "" : info->reason);
}

static int print_devices(const tamis_device_info *infos, size_t count, const char *device) {
    static const char *const head[] = {"id",   "kind",   "units", "memory", "largest buffer",
                                       "name", "driver", "state"};
    cli_table table = {.columns = sizeof(head) / sizeof(head[0])};
    int code = CLI_OK;
    for (size_t i = 0; i < table.columns; i++)
        cli_table_add(&table, "%s", head[i]);
    for (size_t i = 0; i < count; i++)
        if (devices_is_meant(&infos[i], device)) add_row(&table, &infos[i]);
    if (table.cells == table.columns)
        code = cli_fail(devices_command.name, "--device %s: no such device", device);
    else if (!cli_table_print(&table))
        code = cli_fail(devices_command.name, "out of host memory");
    cli_table_free(&table);
    return code;
}

int cli_devices(int argc, char *const *argv) {
    devices_flags f = {0};
    int code = cli_parse(&devices_command, &f, argc, argv);
    if (code >= 0) return code;
    if (!f.matrix && (f.markdown || f.json != NULL)) {
        cli_fail(devices_command.name, "%s: is of --matrix, which is not given",
                 f.markdown ? "--markdown" : "--json");
        return CLI_USAGE;
    }
    size_t count = 0;
    tamis_error error = {0};
    tamis_status status = tamis_device_list(NULL, 0, &count, &error);
    tamis_device_info *infos = calloc(count > 0 ? count : 1, sizeof(*infos));
    if (infos == NULL) return cli_fail(devices_command.name, "out of host memory");
    size_t capacity = count;
    if (status == TAMIS_OK) status = tamis_device_list(infos, capacity, &count, &error);
    if (status != TAMIS_OK) code = cli_fail(devices_command.name, "%s", error.text);
    if (count > capacity) count = capacity; /* one that came since has no place */
    if (status == TAMIS_OK && f.matrix)
        code = devices_matrix(devices_command.name, infos, count, f.device, f.markdown, f.json);
    else if (status == TAMIS_OK)
        code = print_devices(infos, count, f.device);
    free(infos);
    return code;
}
