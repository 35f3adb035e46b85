/* SPDX-License-Identifier: Apache-2.0 */
/* all: full recompute, to measure against. The result is a prefill's. */
#include "lib/blend/selector.h"

const tms_selector tms_selector_all = {.name = "all", .kind = TAMIS_BLEND_ALL, .everything = true};
