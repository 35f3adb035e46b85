/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the store share: a folder of their own, and chunks that are made from a number,
 * so that whatever is read can be checked. */
#ifndef STORE_RIG_H
#define STORE_RIG_H

#include "tests/api/fixture.h"
#include <tamis/store.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RIG_LAYERS    3u
#define RIG_MOST      600u /* tokens of a chunk */
#define RIG_MOST_PATH 256u

/* A chunk and its planes; too large for a stack of threads only in number. */
typedef struct rig_chunk {
    int32_t tokens[RIG_MOST];
    uint8_t *bytes; /* planes, K and V of each layer */
    const void *k[RIG_LAYERS], *v[RIG_LAYERS];
    uint64_t plane_bytes, record_bytes;
    tamis_chunk_planes put; /* ready for tamis_store_put */
} rig_chunk;

void rig_nap(long ms); /* sleeps */

/* The chunk of that number: tokens, fingerprint and planes follow from it. f16, 2 KV heads of 8
 * channels: 32 bytes a token and plane. */
void rig_chunk_make(rig_chunk *chunk, uint64_t number, uint32_t n_tokens);
void rig_chunk_free(rig_chunk *chunk);

/* Folders are made in memory from now on, where there is /dev/shm: nothing waits for a disk. */
void rig_in_memory(void);
/* A folder under TMPDIR or /tmp, and the name of a store's folder in it, which is not made. */
const char *rig_folder(void);
void rig_cleanup(void); /* with everything in it */
/* The file of a chunk in the store's folder. */
const char *rig_file(const rig_chunk *chunk);
/* How many files of the store's folder have names that end so. */
unsigned rig_count(const char *ending);
/* Bytes of all records there. */
uint64_t rig_bytes(void);

tamis_store *rig_open(uint64_t memory_bytes, uint64_t disk_bytes, bool disk);
tamis_store_stats rig_stats(tamis_store *store);

/* Gets the chunk; NULL for a miss. */
tamis_chunk *rig_get(tamis_store *store, const rig_chunk *chunk);
/* All planes of a chunk that was found are what was stored. */
void rig_check(tamis_chunk *found, const rig_chunk *chunk);
/* Gets, checks, releases; false for a miss. */
bool rig_has(tamis_store *store, const rig_chunk *chunk);
/* The same for a store that others damage at the same time; E_DAMAGED is a miss too. */
bool rig_has_or_damaged(tamis_store *store, const rig_chunk *chunk);

#endif
