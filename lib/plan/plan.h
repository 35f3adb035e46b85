/* SPDX-License-Identifier: Apache-2.0 */
/* The plan: its rooms, each with its own header. Only the files of its public calls, calls_*.c and
 * create.c, see the whole plan; a room's struct points to the rooms that it uses. */
#ifndef TMS_PLAN_H
#define TMS_PLAN_H

#include "lib/plan/caller_lists.h"
#include "lib/plan/evict_between.h"
#include "lib/plan/evict_in_step.h"
#include "lib/plan/half_rows.h"
#include "lib/plan/journal.h"
#include "lib/plan/load.h"
#include "lib/plan/mass.h"
#include "lib/plan/page_table.h"
#include "lib/plan/query_ring.h"
#include "lib/plan/reindex.h"
#include "lib/plan/step.h"
#include "lib/plan/step_checks.h"
#include "lib/plan/templates.h"
#include "lib/plan/trees.h"
#include "lib/plan/viewing.h"

struct tamis_plan {
    tms_life life;
    tms_memory memory;
    tms_setup setup;
    tms_page_table table;
    tms_query_rings rings;
    tms_step step;
    tms_trees trees;
    tms_viewing viewing;
    tms_sight sight;
    tms_templates templates;
    tms_caller_lists lists;
    tms_half_rows half_rows;
    tms_loads loads;
    tms_masses masses;
    tms_in_step in_step;
    tms_journals journals;
    tms_reindex reindex;
    tms_between between;
    tamis_plan_counters counters;
    tamis_plan_times times;
};

/* Makes a call as TMS_TRY does; its time goes to the stage `stage`. */
#define TIME(plan, stage, call)                                                                    \
    do {                                                                                           \
        tms_event *from_ = NULL;                                                                   \
        TMS_TRY(tms_stage_start(&(plan)->setup, &from_, error));                                   \
        const tamis_status called_ = (call);                                                       \
        TMS_TRY(tms_stage_stop(&(plan)->setup, from_, called_, &(plan)->times.stage, error));      \
    } while (0)
/* The same for an op. */
#define RUN(plan, stage, op, params)                                                               \
    TIME(plan, stage, tms_run_##op((plan)->setup.dev, (params), error))

/* E_STATE unless a step is open whose tables the device has, E_ARGUMENT unless it has the layer. */
tamis_status tms_plan_check_layer(const tamis_plan *plan, uint32_t layer, tamis_error *error);
/* E_STATE unless every row, as begun, has its K and V in the layer. */
tamis_status tms_plan_check_held(const tamis_plan *plan, uint32_t layer, tamis_error *error);
/* How a caller rotates K: how many channels, and their table, into *ref. */
tamis_status tms_plan_check_turns(const tamis_plan *plan, const tamis_rotation *rotation,
                                  uint32_t *channels, tms_ref *table, tamis_error *error);

/* Uploads everything that the device needs before the first layer of a step, of which the sequences and
 * their growth are set. */
tamis_status tms_plan_send_step(tamis_plan *plan, uint32_t n_selected, uint32_t n_exact,
                                tamis_error *error);
/* E_STATE where rows of the open step are trees. */
tamis_status tms_plan_check_lines(const tamis_plan *plan, tamis_error *error);

/* Cancels the open step. */
void tms_plan_give_up(tamis_plan *plan);

/* For tests: a callback that gets the scores of every select of tamis_plan_evict. NULL removes
 * it. */
void tms_plan_trace_evict(tamis_plan *plan, tms_evict_trace trace, void *user);

#endif
