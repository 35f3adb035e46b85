/* SPDX-License-Identifier: Apache-2.0 */
/* Changes of page lists. */
#include "lib/cache/changes.h"

void tms_changes_note(tms_changes *changes, uint32_t ordinal) {
    uint32_t *least = &changes->least[changes->n % TMS_CHANGES];
    if (changes->n == changes->seen) {
        least = &changes->least[++changes->n % TMS_CHANGES];
        *least = ordinal;
    }
    if (ordinal < *least) *least = ordinal;
}

uint64_t tms_changes_see(tms_changes *changes) {
    return changes->seen = changes->n;
}

uint32_t tms_changes_since(const tms_changes *changes, uint64_t n) {
    uint32_t least = UINT32_MAX;
    if (n == 0 || changes->n - n > TMS_CHANGES) return 0;
    for (uint64_t state = n + 1; state <= changes->n; state++)
        if (changes->least[state % TMS_CHANGES] < least)
            least = changes->least[state % TMS_CHANGES];
    return least;
}
