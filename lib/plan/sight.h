/* SPDX-License-Identifier: Apache-2.0 */
/* What the rows of a step see of their lanes, beside the slots that are visible to them: under a
 * sliding window an interval of positions. */
#ifndef TMS_PLAN_SIGHT_H
#define TMS_PLAN_SIGHT_H

#include "lib/plan/step.h"

/* Layers with one window share a table. */
typedef struct tms_sight {
    const tms_setup *setup;
    uint32_t n, *windows; /* [n] that the layers have; */
    uint64_t *intervals;  /* [n] tables [n_rows][2] of positions */
    uint32_t *window_of;  /* [n_layers] index of a layer's window; n: it has none */
} tms_sight;

/* `setup` must be set. After a failure the caller must call destroy, too. */
tamis_status tms_sight_create(tms_sight *sight, tamis_error *error);
void tms_sight_destroy(tms_sight *sight);

/* Its tables in the step's. */
tms_step_room tms_sight_room(tms_sight *sight);

/* What an attend of a layer is told of it. */
void tms_sight_limit(const tms_sight *sight, const tms_step *step, uint32_t layer,
                     tms_attend *attend);

/* The first page of which a row sees a slot in a layer; 0 under a window where a plane says what
 * positions slots have, for then all pages are read. */
uint32_t tms_sight_first_page(const tms_sight *sight, const tms_step *step, uint32_t layer,
                              uint32_t row);

#endif
