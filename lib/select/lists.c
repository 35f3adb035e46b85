/* SPDX-License-Identifier: Apache-2.0 */
/* What the kinds of selections with lists share: their budgets, and what they ask. */
#include "lib/core/core.h"
#include "lib/select/select.h"

#include <inttypes.h>

uint32_t tms_selection_budget(const tamis_selection *selection) {
    return selection->budget ? selection->budget : TMS_DEFAULT_BUDGET;
}

tamis_status tms_selection_check_budget(const tamis_selection *selection, uint32_t page_size,
                                        tamis_error *error) {
    uint64_t budget = tms_selection_budget(selection), page = page_size;
    uint64_t sinks = (selection->sinks + page - 1) / page;
    uint64_t recent = selection->recent ? (selection->recent + page - 2) / page + 1 : 0;
    TMS_REQUIRE(budget / page >= sinks + recent + 1, TAMIS_E_ARGUMENT,
                "budget %" PRIu64 " is %" PRIu64 " pages of %" PRIu64 " tokens; sinks %" PRIu32
                " take %" PRIu64 ", recent %" PRIu32 " up to %" PRIu64
                ", and one more is needed: at least %" PRIu64 " tokens",
                budget, budget / page, page, selection->sinks, sinks, selection->recent, recent,
                (sinks + recent + 1) * page);
    return TAMIS_OK;
}

tamis_status tms_selection_check_scored(const tamis_selection *selection, uint32_t page_size,
                                        tamis_error *error) {
    TMS_REQUIRE(selection->group >= TAMIS_GROUP_MAX && selection->group <= TAMIS_GROUP_SUM,
                TAMIS_E_ARGUMENT, "group rule %d is none of max, mean and sum",
                (int)selection->group);
    return tms_selection_check_budget(selection, page_size, error);
}

void tms_selection_ask_lists(const tamis_selection *selection, uint32_t page_size,
                             tms_scoring scored, tms_reading *out) {
    *out = (tms_reading){.listed = true,
                         .scored = scored,
                         .k = tms_selection_budget(selection) / page_size,
                         .sinks = selection->sinks,
                         /* A row's own token is always read, also when its page is full. */
                         .recent = selection->recent ? selection->recent : 1,
                         .group = scored == TMS_SCORE_NONE ? TAMIS_GROUP_MAX : selection->group};
}
