/* SPDX-License-Identifier: Apache-2.0 */
/* quest: sinks, recent, and the pages whose bounds promise the largest logits (Quest, section 3). A
 * page's score is the group rule over the query heads of its KV head. */
#include "lib/select/select.h"

static void ask(const tamis_selection *selection, uint32_t page_size, tms_reading *out) {
    tms_selection_ask_lists(selection, page_size, TMS_SCORE_BOUNDS, out);
}

const tms_selection_entry tms_selection_quest = {.name = "quest",
                                                 .kind = TAMIS_SELECT_QUEST,
                                                 .defaults = {.kind = TAMIS_SELECT_QUEST,
                                                              .budget = TMS_DEFAULT_BUDGET,
                                                              .sinks = 4,
                                                              .recent = 16},
                                                 .check = tms_selection_check_scored,
                                                 .ask = ask};
