/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis blend check` and `tamis blend list`. */
#ifndef CLI_BLEND_BLEND_H
#define CLI_BLEND_BLEND_H

#include "cli/commands.h"
#include "cli/gate.h"
#include "cli/json.h"
#include "cli/table.h"
#include "eval/blend_rig.h"

extern const cli_command blend_check_command, blend_list_command;

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
