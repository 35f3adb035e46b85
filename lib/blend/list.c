/* SPDX-License-Identifier: Apache-2.0 */
/* list: the hits that the caller lists. Fresh and exact rows may be listed, which changes nothing.
 */
#include "lib/blend/selector.h"

#include <inttypes.h>
#include <stdlib.h>

static int compare(const void *a, const void *b) {
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static bool takes(const tamis_blend_params *params, uint32_t row, uint32_t place) {
    (void)place;
    return params->n_rows > 0 &&
           bsearch(&row, params->rows, params->n_rows, sizeof row, compare) != NULL;
}

static tamis_status check(const tamis_blend_params *params, tamis_error *error) {
    TMS_REQUIRE(params->rows || params->n_rows == 0, TAMIS_E_ARGUMENT,
                "rows is NULL for %" PRIu32 " rows", params->n_rows);
    for (uint32_t i = 1; i < params->n_rows; i++)
        TMS_REQUIRE(params->rows[i] > params->rows[i - 1], TAMIS_E_ARGUMENT,
                    "rows are not ascending: %" PRIu32 " comes after %" PRIu32, params->rows[i],
                    params->rows[i - 1]);
    return TAMIS_OK;
}

const tms_selector tms_selector_list = {
    .name = "list", .kind = TAMIS_BLEND_LIST, .takes = takes, .check = check};
