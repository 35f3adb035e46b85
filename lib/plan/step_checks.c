/* SPDX-License-Identifier: Apache-2.0 */
/* What a step may be, over a cache and over a view alike: its sequences and how many rows they bring. */
#include "lib/plan/step_checks.h"

#include <inttypes.h>

uint32_t tms_step_count_selected(uint32_t count, int exact, uint32_t exact_from) {
    if (exact) return 0;
    return exact_from ? exact_from : count;
}

tamis_status tms_step_check_count(const tms_setup *setup, uint32_t count, tamis_error *error) {
    const uint32_t most = setup->params.max_sequences;
    TMS_REQUIRE(count > 0, TAMIS_E_ARGUMENT, "the step has no sequences");
    TMS_REQUIRE(count <= most, TAMIS_E_ARGUMENT,
                "%" PRIu32 " sequences exceed max_sequences %" PRIu32, count, most);
    return TAMIS_OK;
}

tamis_status tms_step_check_own_rows(const tms_setup *setup, uint64_t sequence, uint32_t rows,
                                     bool exact, tamis_error *error) {
    const bool fixed = setup->params.flags & TAMIS_PLAN_FIXED_LAUNCHES;
    TMS_REQUIRE(rows == 1 || exact || !fixed, TAMIS_E_ARGUMENT,
                "sequence %" PRIu64 " brings %" PRIu32
                " rows: a step that is not exact brings one under TAMIS_PLAN_FIXED_LAUNCHES",
                sequence, rows);
    return TAMIS_OK;
}

tamis_status tms_step_check_rows(const tms_setup *setup, uint32_t n, uint64_t rows,
                                 tamis_error *error) {
    const uint32_t most = setup->params.max_rows;
    TMS_REQUIRE(rows <= most, TAMIS_E_ARGUMENT,
                "the step's first %" PRIu32 " sequences bring %" PRIu64
                " rows, which exceed max_rows %" PRIu32,
                n, rows, most);
    return TAMIS_OK;
}

tamis_status tms_step_check_selected(const tms_setup *setup, uint64_t selected,
                                     tamis_error *error) {
    const tamis_plan_params *p = &setup->params;
    const bool bounded = setup->reading.listed || p->flags & TAMIS_PLAN_VERIFY;
    TMS_REQUIRE(!bounded || selected <= p->max_selected_rows, TAMIS_E_ARGUMENT,
                "%" PRIu64
                " rows go through the selection, which exceed max_selected_rows %" PRIu32,
                selected, p->max_selected_rows);
    return TAMIS_OK;
}

tamis_status tms_step_check_mixed(const tms_setup *setup, uint32_t count, int exact,
                                  uint32_t exact_from, tamis_error *error) {
    if (exact_from == 0) return TAMIS_OK;
    TMS_REQUIRE(!exact, TAMIS_E_ARGUMENT,
                "exact_from is %" PRIu32 " in a step that is exact as a whole", exact_from);
    TMS_REQUIRE(exact_from < count, TAMIS_E_ARGUMENT,
                "exact_from is %" PRIu32 ": the step has %" PRIu32 " sequences", exact_from, count);
    TMS_REQUIRE(!(setup->params.flags & TAMIS_PLAN_FIXED_LAUNCHES), TAMIS_E_ARGUMENT,
                "exact_from is %" PRIu32 ": under TAMIS_PLAN_FIXED_LAUNCHES a step is exact as a "
                "whole or not at all",
                exact_from);
    return TAMIS_OK;
}
