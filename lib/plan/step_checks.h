/* SPDX-License-Identifier: Apache-2.0 */
/* What a step may be, over a cache and over a view alike: its sequences and how many rows they bring. */
#ifndef TMS_PLAN_STEP_CHECKS_H
#define TMS_PLAN_STEP_CHECKS_H

#include "lib/plan/setup.h"

/* How many sequences of a step, the first ones, are not exact. */
uint32_t tms_step_count_selected(uint32_t count, int exact, uint32_t exact_from);
/* All E_ARGUMENT. Of a step's sequences: how many there are, and from which one on it may be exact. */
tamis_status tms_step_check_count(const tms_setup *setup, uint32_t count, tamis_error *error);
tamis_status tms_step_check_mixed(const tms_setup *setup, uint32_t count, int exact,
                                  uint32_t exact_from, tamis_error *error);
/* Of its rows: those of one sequence, which messages name; all of the first n sequences; those that are
 * not exact. */
tamis_status tms_step_check_own_rows(const tms_setup *setup, uint64_t sequence, uint32_t rows,
                                     bool exact, tamis_error *error);
tamis_status tms_step_check_rows(const tms_setup *setup, uint32_t n, uint64_t rows,
                                 tamis_error *error);
tamis_status tms_step_check_selected(const tms_setup *setup, uint64_t selected, tamis_error *error);

#endif
