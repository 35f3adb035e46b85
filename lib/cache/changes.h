/* SPDX-License-Identifier: Apache-2.0 */
/* Which entries of a sequence's page lists have changed since somebody copied them, so that only these
 * are copied again. Entries that are appended are no changes. */
#ifndef TMS_CACHE_CHANGES_H
#define TMS_CACHE_CHANGES_H

#include <stdint.h>

#define TMS_CHANGES 16u /* states that are remembered */

typedef struct tms_changes {
    uint64_t n;    /* the present state, from 1 on */
    uint64_t seen; /* the last one that somebody copied */
    /* The least ordinal of any lane at which a state differs from the one before; of the last states. */
    uint32_t least[TMS_CHANGES];
} tms_changes;

static inline void tms_changes_begin(tms_changes *changes) {
    *changes = (tms_changes){.n = 1, .seen = 1};
}

/* Entries of some lanes from an ordinal on change, or are removed. */
void tms_changes_note(tms_changes *changes, uint32_t ordinal);

/* The number of the present state, for somebody who copies it; above 0. */
uint64_t tms_changes_see(tms_changes *changes);

/* The least ordinal at which entries may have changed since state n; UINT32_MAX: none has. */
uint32_t tms_changes_since(const tms_changes *changes, uint64_t n);

#endif
