/* SPDX-License-Identifier: Apache-2.0 */
/* quest: sinks, recent, and the pages whose bounds promise the largest logits (Quest, section 3). A
 * page's score is the group rule over the query heads of its KV head. */
#include "lib/core/core.h"
#include "lib/select/select.h"

static tamis_status check(const tamis_selection *selection, uint32_t page_size,
                          tamis_error *error) {
    TMS_REQUIRE(selection->group >= TAMIS_GROUP_MAX && selection->group <= TAMIS_GROUP_SUM,
                TAMIS_E_ARGUMENT, "group rule %d is none of max, mean and sum",
                (int)selection->group);
    return tms_selection_check_budget(selection, page_size, error);
}

static void ask(const tamis_selection *selection, uint32_t page_size, tms_reading *out) {
    static const tms_group groups[] = {[TAMIS_GROUP_MAX] = TMS_GROUP_MAX,
                                       [TAMIS_GROUP_MEAN] = TMS_GROUP_MEAN,
                                       [TAMIS_GROUP_SUM] = TMS_GROUP_SUM};
    out->listed = true;
    out->scored = true;
    out->k = tms_selection_budget(selection) / page_size;
    out->sinks = selection->sinks;
    out->recent = selection->recent;
    out->group = groups[selection->group];
}

const tms_selection_entry tms_selection_quest = {.name = "quest",
                                                 .kind = TAMIS_SELECT_QUEST,
                                                 .defaults = {.kind = TAMIS_SELECT_QUEST,
                                                              .budget = TMS_DEFAULT_BUDGET,
                                                              .sinks = 4,
                                                              .recent = 64},
                                                 .check = check,
                                                 .ask = ask};
