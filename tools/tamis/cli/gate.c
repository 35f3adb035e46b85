/* SPDX-License-Identifier: Apache-2.0 */
/* The gate: no blend without an entry that passed. */
#include "cli/gate.h"

#include <string.h>

tamis_status cli_policy_file(const char *flag, char path[CLI_POLICY_BYTES], tamis_error *error) {
    tamis_error why = {0};
    if (flag == NULL) {
        const tamis_status status = tamis_blend_policy_path(path, CLI_POLICY_BYTES, &why);
        return status == TAMIS_OK
                   ? status
                   : cli_error(error, status, "--policy: is missing, and %s", why.text);
    }
    if (strlen(flag) >= CLI_POLICY_BYTES)
        return cli_error(error, TAMIS_E_ARGUMENT,
                         "--policy: the path has %zu bytes; %d are the most", strlen(flag),
                         CLI_POLICY_BYTES - 1);
    strcpy(path, flag);
    return TAMIS_OK;
}

/* *found becomes the entry, all 0 where none is needed. */
static tamis_status ask(const char *policy, const char *model, const tamis_blend_params *params,
                        tamis_dtype cache_dtype, tamis_blend_policy *found, tamis_error *error) {
    char path[CLI_POLICY_BYTES];
    tamis_error why = {0};
    tamis_status status = cli_policy_file(policy, path, error);
    if (status != TAMIS_OK) return status;
    status = tamis_blend_policy_check(path, params, cache_dtype, found, &why);
    if (status == TAMIS_E_STATE)
        return cli_error(error, status, "%s (--model %s); --unchecked blends all the same",
                         why.text, model);
    if (status == TAMIS_E_UNSUPPORTED)
        return cli_error(error, status, "%s; --unchecked blends all the same", why.text);
    return status == TAMIS_OK ? status : cli_error(error, status, "%s", why.text);
}

tamis_status cli_gate(const char *policy, const char *model, const tamis_blend_params *params,
                      tamis_dtype cache_dtype, tamis_error *error) {
    return ask(policy, model, params, cache_dtype, NULL, error);
}

tamis_status cli_gate_share(const char *policy, const char *model, tamis_blend_params *params,
                            tamis_dtype cache_dtype, tamis_error *error) {
    tamis_blend_params most = *params;
    tamis_blend_policy found = {0};
    if (most.share < 1) most.share = 0.999999999; /* whatever share has passed is below */
    const tamis_status status = ask(policy, model, &most, cache_dtype, &found, error);
    if (status == TAMIS_OK && params->share < found.share) params->share = found.share;
    return status;
}
