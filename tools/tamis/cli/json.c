/* SPDX-License-Identifier: Apache-2.0 */
/* What every --json writes. The build defines the commit. */
#include "cli/json.h"

#include "cli/utf8.h"

#include <inttypes.h>
#include <stdlib.h>

#include <tamis_commit.h>

cJSON *cli_json_begin(const char *tool, const tamis_context *device) {
    cJSON *root = cJSON_CreateObject();
    bool made = cJSON_AddStringToObject(root, "tool", tool) != NULL &&
                cJSON_AddStringToObject(root, "version", tamis_version()) != NULL &&
                cJSON_AddStringToObject(root, "commit", TAMIS_COMMIT) != NULL;
    if (made && device == NULL) made = cJSON_AddNullToObject(root, "device") != NULL;
    if (made && device != NULL) {
        const tamis_device_info *info = tamis_context_device(device);
        made = cJSON_AddStringToObject(root, "device", info->id) != NULL &&
               cJSON_AddStringToObject(root, "device_name", info->name) != NULL &&
               cJSON_AddStringToObject(root, "driver", info->driver) != NULL;
    }
    if (made) return root;
    cJSON_Delete(root);
    return NULL;
}

cJSON *cli_json_row(cJSON *rows) {
    cJSON *row = cJSON_CreateObject();
    if (cJSON_AddItemToArray(rows, row)) return row;
    cJSON_Delete(row);
    return NULL;
}

bool cli_json_seed(cJSON *object, uint64_t seed) {
    char digits[32];
    snprintf(digits, sizeof(digits), "%" PRIu64, seed);
    return cJSON_AddRawToObject(object, "seed", digits) != NULL;
}

bool cli_json_numbers(cJSON *object, const cli_number *numbers, size_t count) {
    bool added = object != NULL;
    for (size_t i = 0; added && i < count; i++)
        added = cJSON_AddNumberToObject(object, numbers[i].name, numbers[i].value) != NULL;
    return added;
}

bool cli_json_write(cJSON *root, cJSON *rows, cli_output *output, const char *command) {
    char *text = NULL;
    bool written = false;
    if (root != NULL && rows != NULL && cJSON_AddItemToObject(root, "rows", rows)) {
        rows = NULL;
        text = cJSON_Print(root);
    }
    /* names and texts of the user may be of another encoding; JSON is UTF-8 */
    char *whole = text != NULL ? cli_utf8_repaired(text) : NULL;
    if (whole == NULL)
        cli_fail(command, "out of host memory");
    else
        written = cli_output_commit(output, command, whole);
    free(whole);
    cJSON_free(text);
    cJSON_Delete(root);
    cJSON_Delete(rows);
    return written;
}
