/* SPDX-License-Identifier: Apache-2.0 */
/* What is reserved in a caller's struct. */
#include "lib/core/core.h"

#include <inttypes.h>

tamis_status tms_reserved_check(const uint64_t *reserved, size_t n, const char *type,
                                tamis_error *error) {
    for (size_t i = 0; i < n; i++)
        TMS_REQUIRE(reserved[i] == 0, TAMIS_E_ARGUMENT,
                    "reserved[%zu] of %s is %" PRIu64 "; it must be 0", i, type, reserved[i]);
    return TAMIS_OK;
}
