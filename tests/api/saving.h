/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of saved sequences share: kinds of sequences, and their streams. */
#ifndef TEST_SAVING_H
#define TEST_SAVING_H

#include "tests/api/evicting.h"
#include "tests/saved_stream.h"

#define PROMPT  40u
#define BEFORE  24u /* decode steps before a sequence is saved */
#define CONTEXT 256u

typedef struct kind {
    const char *name;
    tamis_selection_kind selection;
    tamis_eviction_kind eviction;
    uint32_t options;
    bool forked, windowed;
    tamis_dtype dtype;
    uint32_t head_dim;
} kind;

extern const kind saved_kinds[];
extern const size_t n_saved_kinds;
const kind *saved_named(const char *name);

/* Of one fingerprint, without bounds and with them. */
extern const tamis_save_params saved_bare, saved_bounded;

/* A world of that kind on a device. */
void saved_open(evict_world *e, const char *device, const kind *k);
/* A sequence that has lived: a prompt, which is evicted from, and decode steps; tokens from 0 on. A
 * fork has lost the sequence that it came from. */
tamis_sequence saved_live(evict_world *e, const kind *k);

/* Saves a sequence; restores one of the fingerprint, from the stream's first byte to its last. */
saved_stream saved_save(evict_world *e, tamis_sequence id, const tamis_save_params *how);
tamis_sequence saved_restore(evict_world *e, saved_stream *s);
void saved_same(const saved_stream *a, const saved_stream *b);

#endif
