/* SPDX-License-Identifier: Apache-2.0 */
/* hkvd: the hits whose V deviates most from the stored one. CacheBlend's paper compares K and V;
 * its code, and ours, V alone, which needs no rotation. */
#include "lib/blend/selector.h"

static tamis_status check(const tamis_blend_params *params, tamis_error *error) {
    TMS_REQUIRE(params->check_layer != TAMIS_BLEND_NO_CHECK, TAMIS_E_ARGUMENT,
                "check_layer is TAMIS_BLEND_NO_CHECK, but hkvd measures in the check layer");
    return TAMIS_OK;
}

const tms_selector tms_selector_hkvd = {
    .name = "hkvd", .kind = TAMIS_BLEND_HKVD, .measured = true, .check = check};
