/* SPDX-License-Identifier: Apache-2.0 */
/* What every --json writes: {"tool", "version", "commit", "device", settings..., "rows": [...]}. */
#ifndef CLI_JSON_H
#define CLI_JSON_H

#include "cli/cli.h"
#include "cli/output.h"

#include <cjson/cJSON.h>

/* An object with tool, version, commit, device, device_name and driver, to which a command adds its
 * settings; a device of NULL is null, without a name. NULL if memory ran out. */
cJSON *cli_json_begin(const char *tool, const tamis_context *device);

/* A whole number of 64 bits, which a number of cJSON, a double, would not hold. False if memory ran
 * out. */
bool cli_json_seed(cJSON *object, uint64_t seed);

/* A new object at the end of `rows`; NULL if memory ran out. */
cJSON *cli_json_row(cJSON *rows);

/* Numbers by name; false if memory ran out. */
typedef struct cli_number {
    const char *name;
    double value;
} cli_number;
bool cli_json_numbers(cJSON *object, const cli_number *numbers, size_t count);

/* Ends `root` with the rows and completes the file. Takes both; one that is NULL means that memory
 * ran out. Prints why and returns false if it cannot. */
bool cli_json_write(cJSON *root, cJSON *rows, cli_output *output, const char *command);

#endif
