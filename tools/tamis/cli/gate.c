/* SPDX-License-Identifier: Apache-2.0 */
/* The gate: no blend without an entry that passed. */
#include "cli/gate.h"

#include <string.h>

tamis_status cli_trials_file(const char *flag, char path[CLI_TRIALS_BYTES], tamis_error *error) {
    tamis_error why = {0};
    if (flag == NULL) {
        const tamis_status status = tamis_blend_trial_path(path, CLI_TRIALS_BYTES, &why);
        return status == TAMIS_OK
                   ? status
                   : cli_error(error, status, "--trials: is missing, and %s", why.text);
    }
    if (strlen(flag) >= CLI_TRIALS_BYTES)
        return cli_error(error, TAMIS_E_ARGUMENT,
                         "--trials: the path has %zu bytes; %d are the most", strlen(flag),
                         CLI_TRIALS_BYTES - 1);
    strcpy(path, flag);
    return TAMIS_OK;
}

/* *found becomes the entry, all 0 where none is needed. */
static tamis_status ask(const char *trials, const char *model, const tamis_blend_params *params,
                        tamis_dtype cache_dtype, tamis_blend_trial *found, tamis_error *error) {
    char path[CLI_TRIALS_BYTES];
    tamis_error why = {0};
    tamis_status status = cli_trials_file(trials, path, error);
    if (status != TAMIS_OK) return status;
    status = tamis_blend_trial_passed(path, params, cache_dtype, found, &why);
    if (status == TAMIS_E_STATE)
        return cli_error(error, status, "%s (--model %s); --unchecked blends all the same",
                         why.text, model);
    if (status == TAMIS_E_UNSUPPORTED)
        return cli_error(error, status, "%s; --unchecked blends all the same", why.text);
    return status == TAMIS_OK ? status : cli_error(error, status, "%s", why.text);
}

tamis_status cli_gate(const char *trials, const char *model, const tamis_blend_params *params,
                      tamis_dtype cache_dtype, tamis_error *error) {
    return ask(trials, model, params, cache_dtype, NULL, error);
}

tamis_status cli_gate_share(const char *trials, const char *model, tamis_blend_params *params,
                            tamis_dtype cache_dtype, tamis_error *error) {
    tamis_blend_params most = *params;
    tamis_blend_trial found = {0};
    if (most.share < 1) most.share = 0.999999999; /* whatever share has passed is below */
    const tamis_status status = ask(trials, model, &most, cache_dtype, &found, error);
    if (status == TAMIS_OK && params->share < found.share) params->share = found.share;
    return status;
}
