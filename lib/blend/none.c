/* SPDX-License-Identifier: Apache-2.0 */
/* none: no hit is computed behind the check layer; without a check layer in none, which is full
 * reuse. */
#include "lib/blend/selector.h"

const tms_selector tms_selector_none = {.name = "none", .kind = TAMIS_BLEND_NONE};
