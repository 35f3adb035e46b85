/* SPDX-License-Identifier: Apache-2.0 */
/* The sequences of a step over a view: what the engine says of them, in the form that steps take. */
#ifndef TMS_PLAN_VIEWING_H
#define TMS_PLAN_VIEWING_H

#include "lib/plan/setup.h"
#include <tamis/view.h>

typedef struct tms_viewing {
    const tms_setup *setup;
    /* [max_sequences] in a view, by the place in the step: a list that stays as it was in the step
     * before is not sent again. */
    tms_sequence **sequences;
} tms_viewing;

/* Takes memory if the cache is a view. After a failure the caller must call destroy, too. */
tamis_status tms_viewing_create(tms_viewing *viewing, tamis_error *error);
void tms_viewing_destroy(tms_viewing *viewing);

/* Checks the forms of a step's page lists, not what is in them. E_ARGUMENT. */
tamis_status tms_viewing_check(const tamis_view_step *in, tamis_error *error);
/* The sequence at a place of the step, which has been checked, with `rows` rows in it. E_ARGUMENT,
 * E_NO_MEMORY. */
tamis_status tms_viewing_take(tms_viewing *viewing, const tamis_view_step *in, uint32_t place,
                              uint32_t rows, tms_sequence **out, tamis_error *error);

#endif
