/* SPDX-License-Identifier: Apache-2.0 */
/* The gate of blends, for commands that blend, and where its file lies. Not in a build without the
 * store. */
#ifndef CLI_GATE_H
#define CLI_GATE_H

#include "cli/cli.h"

#include <tamis/blend_trials.h>

/* The file of trials: that of the flag --trials, or without one (NULL) the user's. */
#define CLI_TRIALS_BYTES 4096
tamis_status cli_trials_file(const char *flag, char path[CLI_TRIALS_BYTES], tamis_error *error);

/* Whether the file (NULL: the user's) has an entry that passed for a blend of these parameters with
 * a cache of this dtype. If not, the reason names the model's fingerprint and the command that
 * makes an entry; `model` is the model's file. */
tamis_status cli_gate(const char *trials, const char *model, const tamis_blend_params *params,
                      tamis_dtype cache_dtype, tamis_error *error);

/* The same where nobody has asked for the share: it is raised to the smallest one that passed. */
tamis_status cli_gate_share(const char *trials, const char *model, tamis_blend_params *params,
                            tamis_dtype cache_dtype, tamis_error *error);

#endif
