/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis blend check` and `tamis blend list`, and the gate that asks what they wrote. */
#ifndef CLI_BLEND_BLEND_H
#define CLI_BLEND_BLEND_H

#include "cli/commands.h"
#include "cli/json.h"
#include "cli/table.h"
#include "eval/blend_rig.h"

#include <tamis/blend_policy.h>

extern const cli_command blend_check_command, blend_list_command;

/* The file of policies: that of the flag, or without one (NULL) the user's. Prints why and returns
 * false if there is none. */
#define BLEND_PATH_BYTES 4096
bool blend_policy_file(const char *command, const char *flag, char path[BLEND_PATH_BYTES]);

/* The model's fingerprint as 32 digits. */
typedef struct blend_hex {
    char text[33];
} blend_hex;
blend_hex blend_hex_of(const uint8_t fingerprint[16]);

/* The gate, for a command that blends: whether the file (NULL: the user's) has an entry that passed for
 * a blend of these parameters with a cache of this dtype. If not, prints why and the command that
 * makes one, and returns false; `unchecked` (--unchecked) lets everything pass. */
bool blend_gate(const char *command, const char *model, const char *policy,
                const tamis_blend_params *params, tamis_dtype cache_dtype, bool unchecked);

/* ---- Check ----------------------------------------------------------------------------------- */

/* What one share gave, over all prompts. */
typedef struct check_cell {
    double *divergences;                    /* [prompts * answer] */
    uint64_t tokens, agreed, prompts, same; /* same: whole answers */
    double rows, left;                      /* sum over prompts; largest of them */
    blend_sums *sums;                       /* [n_layers] */
} check_cell;

typedef struct check_report {
    const blend_rig *rig;
    const tamis_blend_policy *policy; /* with its figures */
    const check_cell *cells;          /* [n_figures] */
} check_report;

/* Fills in figures and share of the policy. Sorts the cells' divergences. */
void check_decide(const blend_rig *rig, check_cell *cells, tamis_blend_policy *policy);

/* The table to stdout. Returns false if memory ran out. */
bool check_print(const check_report *report);
/* Settings and rows of the JSON file; NULL if memory ran out. */
cJSON *check_json_settings(const check_report *report);
cJSON *check_json_rows(const check_report *report);

#endif
