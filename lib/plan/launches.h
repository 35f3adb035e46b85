/* SPDX-License-Identifier: Apache-2.0 */
/* The launches of a layer of the open step: its rows written, then attended over all pages or the
 * selected ones; and the time that stages take. */
#ifndef TMS_PLAN_LAUNCHES_H
#define TMS_PLAN_LAUNCHES_H

#include "lib/plan/setup.h"

typedef struct tms_launches {
    tms_mem *scores; /* f32 [max_selected_rows][n_kv_heads][max_pages] */
    tms_mem *lists;  /* int32 [max_selected_rows][n_kv_heads][k], then the counts */
    tms_mem *scratch;
    float *score_host; /* as many as scores, if they are random */
    /* [max_sequences + 1] under fixed launches: the cache's bounds_serial when a step of so many
     * rows was last written by calls, which a graph may hold; 0: never. */
    uint64_t *serials;
    /* The last attend, for reading what it selected. */
    bool attended, listed;
    uint32_t attended_layer;
} tms_launches;

/* Memory of the launches; the plan's step has been made. Then every kernel is built and launched
 * once, empty. */
tamis_status tms_launches_create(tamis_plan *plan, tamis_error *error);
tamis_status tms_launches_warm(tamis_plan *plan, tamis_error *error);
void tms_launches_destroy(tms_launches *launches, tms_device *dev);

/* Marks where a stage begins, if times are collected: else *from is NULL. Device's status. */
tamis_status tms_stage_start(const tms_setup *setup, tms_event **from);
/* Waits for the stage's end and adds its time to *us. Returns the stage's status, or the device's.
 */
tamis_status tms_stage_stop(const tms_setup *setup, tms_event *from, tamis_status status,
                            double *us);

#endif
