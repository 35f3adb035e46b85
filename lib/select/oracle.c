/* SPDX-License-Identifier: Apache-2.0 */
/* oracle: sinks, recent, and the pages on which the largest share of the true attention falls, by
 * the group rule over the query heads of their KV head. Scoring reads every key. It is not a fast
 * path, but the ceiling of page selection, with which others are compared. */
#include "lib/select/select.h"

static void ask(const tamis_selection *selection, uint32_t page_size, tms_reading *out) {
    tms_selection_ask_lists(selection, page_size, TMS_SCORE_MASS, out);
}

const tms_selection_entry tms_selection_oracle = {.name = "oracle",
                                                  .kind = TAMIS_SELECT_ORACLE,
                                                  .defaults = {.kind = TAMIS_SELECT_ORACLE,
                                                               .budget = TMS_DEFAULT_BUDGET,
                                                               .sinks = 4,
                                                               .recent = 16},
                                                  .check = tms_selection_check_scored,
                                                  .ask = ask};
