/* SPDX-License-Identifier: Apache-2.0 */
/* Shares of budgets, in whole tokens. */
#include "lib/evict/evict.h"

uint32_t tms_eviction_floor(float share, uint32_t tokens) {
    /* The product is rounded to fp32, so that shares such as 0.2 give whole tokens (0.2·10 is
     * 2). */
    const float own = share * (float)tokens;
    return share > 0 ? (uint32_t)own : 0;
}
