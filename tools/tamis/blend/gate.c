/* SPDX-License-Identifier: Apache-2.0 */
/* The gate: no blend without an entry that passed. */
#include "blend/blend.h"

#include <string.h>

bool blend_policy_file(const char *command, const char *flag, char path[BLEND_PATH_BYTES]) {
    tamis_error error = {0};
    if (flag == NULL) {
        if (tamis_blend_policy_path(path, BLEND_PATH_BYTES, &error) == TAMIS_OK) return true;
        cli_fail(command, "--policy: is missing, and %s", error.text);
        return false;
    }
    if (strlen(flag) < BLEND_PATH_BYTES) {
        strcpy(path, flag);
        return true;
    }
    cli_fail(command, "--policy: the path has %zu bytes; %d are the most", strlen(flag),
             BLEND_PATH_BYTES - 1);
    return false;
}

blend_hex blend_hex_of(const uint8_t fingerprint[16]) {
    blend_hex out;
    for (int i = 0; i < 16; i++)
        snprintf(out.text + 2 * i, 3, "%02x", fingerprint[i]);
    return out;
}

bool blend_gate(const char *command, const char *model, const char *policy,
                const tamis_blend_params *params, tamis_dtype cache_dtype, bool unchecked) {
    char path[BLEND_PATH_BYTES];
    tamis_error error = {0};
    if (unchecked) return true;
    if (!blend_policy_file(command, policy, path)) return false;
    const tamis_status status = tamis_blend_policy_check(path, params, cache_dtype, NULL, &error);
    if (status == TAMIS_OK) return true;
    if (status == TAMIS_E_STATE)
        cli_fail(command, "%s: tamis blend check --model %s; or --unchecked blends all the same",
                 error.text, model);
    else
        cli_fail(command, "%s; --unchecked blends all the same", error.text);
    return false;
}
