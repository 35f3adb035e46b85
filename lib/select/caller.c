/* SPDX-License-Identifier: Apache-2.0 */
/* caller: the pages or tokens of lists that the caller makes, and gives to each attend of a layer. Nothing
 * is protected: what a row reads is what its list names. */
#include "lib/core/core.h"
#include "lib/select/select.h"

#include <inttypes.h>

static tamis_status check(const tamis_selection *selection, uint32_t page_size,
                          tamis_error *error) {
    const uint32_t budget = tms_selection_budget(selection);
    TMS_REQUIRE(budget >= page_size, TAMIS_E_ARGUMENT,
                "budget %" PRIu32 " of selection caller is less than a page of %" PRIu32 " tokens",
                budget, page_size);
    TMS_REQUIRE(selection->sinks == 0 && selection->recent == 0, TAMIS_E_ARGUMENT,
                "sinks %" PRIu32 " and recent %" PRIu32
                " under selection caller, whose lists name all that is read",
                selection->sinks, selection->recent);
    return TAMIS_OK;
}

static void ask(const tamis_selection *selection, uint32_t page_size, tms_reading *out) {
    tms_selection_ask_lists(selection, page_size, TMS_SCORE_NONE, out);
    out->given = true;
}

const tms_selection_entry tms_selection_caller = {
    .name = "caller",
    .kind = TAMIS_SELECT_CALLER,
    .defaults = {.kind = TAMIS_SELECT_CALLER, .budget = TMS_DEFAULT_BUDGET},
    .check = check,
    .ask = ask};
