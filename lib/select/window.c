/* SPDX-License-Identifier: Apache-2.0 */
/* window: the pages of the sinks and the newest pages, up to the budget; nothing is scored. This is
 * the pattern in which StreamingLLM reads. */
#include "lib/select/select.h"

static void ask(const tamis_selection *selection, uint32_t page_size, tms_reading *out) {
    tms_selection_ask_lists(selection, page_size, TMS_SCORE_NONE, out);
}

const tms_selection_entry tms_selection_window = {
    .name = "window",
    .kind = TAMIS_SELECT_WINDOW,
    .defaults = {.kind = TAMIS_SELECT_WINDOW, .budget = TMS_DEFAULT_BUDGET, .sinks = 4},
    .check = tms_selection_check_budget,
    .ask = ask};
