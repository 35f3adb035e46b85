/* SPDX-License-Identifier: Apache-2.0 */
/* first: the first tokens of each chunk, which attend to it as to a sink where it was computed
 * alone (EPIC, ICML '25: LegoLink). */
#include "lib/blend/selector.h"

static bool takes(const tamis_blend_params *params, uint32_t row, uint32_t place) {
    (void)row;
    return place < params->first;
}

static tamis_status check(const tamis_blend_params *params, tamis_error *error) {
    TMS_REQUIRE(params->first > 0, TAMIS_E_ARGUMENT,
                "first is 0: selector first takes one token of each chunk at least");
    return TAMIS_OK;
}

const tms_selector tms_selector_first = {
    .name = "first", .kind = TAMIS_BLEND_FIRST, .takes = takes, .check = check};
