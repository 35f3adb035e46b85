/* SPDX-License-Identifier: Apache-2.0 */
/* none: lanes keep every token. */
#include "lib/evict/evict.h"

const tms_eviction_entry tms_eviction_none = {
    .name = "none", .kind = TAMIS_EVICT_NONE, .defaults = {.kind = TAMIS_EVICT_NONE}};
