/* SPDX-License-Identifier: Apache-2.0 */
/* `tamis blend trial` and `tamis blend list`. */
#ifndef CLI_BLEND_BLEND_H
#define CLI_BLEND_BLEND_H

#include "cli/commands.h"
#include "cli/gate.h"
#include "cli/json.h"
#include "cli/table.h"
#include "eval/blend_rig.h"

extern const cli_command blend_trial_command, blend_list_command;

/* ---- Check ----------------------------------------------------------------------------------- */

/* What one share gave, over all prompts. */
typedef struct trial_cell {
    double *divergences;                    /* [prompts * answer] */
    uint64_t tokens, agreed, prompts, same; /* same: whole answers */
    double rows, left;                      /* sum over prompts; largest of them */
    blend_sums *sums;                       /* [n_layers] */
} trial_cell;

typedef struct trial_report {
    const blend_rig *rig;
    const tamis_blend_trial *trial; /* with its figures */
    const trial_cell *cells;        /* [n_figures] */
} trial_report;

/* Fills in figures and share of the trial. Sorts the cells' divergences. */
void trial_decide(const blend_rig *rig, trial_cell *cells, tamis_blend_trial *trial);

/* The table to stdout. Returns false if memory ran out. */
bool trial_print(const trial_report *report);
/* Settings and rows of the JSON file; NULL if memory ran out. */
cJSON *trial_json_settings(const trial_report *report);
cJSON *trial_json_rows(const trial_report *report);

#endif
