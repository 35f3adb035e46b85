/* SPDX-License-Identifier: Apache-2.0 */
/* A store from inside: its tiers as shelves, each with an index and counters, and the mutex.
 *
 * The mutex guards every index, every counter, and the names in the tiers: a record gets or loses
 * its name together with its entry. Headers and planes are read and written without it. */
#ifndef TMS_STORE_SHELF_H
#define TMS_STORE_SHELF_H

#include "lib/store/index.h"
#include "lib/store/tier.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct tms_shelf {
    tms_tier *tier; /* NULL: memory, or no tier */
    tms_index index;
    tamis_tier_stats counts; /* what the index says is filled in when somebody asks */
    uint64_t written;        /* bytes since the last look at what other processes did */
} tms_shelf;

struct tamis_store {
    pthread_mutex_t mutex;
    tms_shelf shelves[TAMIS_TIERS]; /* by tier; a tier that the store lacks has the limit 0 */
    tamis_store_stats counts;       /* without tiers */
};

struct tamis_chunk {
    tamis_store *store;
    const tms_record *record; /* of the copy or the object */
    tms_entry *in_memory;     /* pinned; NULL: not in memory */
    tms_object *object;       /* NULL: all planes are in memory */
    tms_entry *behind;        /* the object's entry, pinned */
    tms_shelf *shelf;         /* where that is */
    atomic_bool damaged;
};

void tms_store_lock(tamis_store *store);
/* Frees what has been dropped since, when the mutex is free again. */
void tms_store_unlock(tamis_store *store);
/* Counts what a call is about to answer, if that is E_IO or E_FULL. */
void tms_store_note(tamis_store *store, tamis_status status);

/* ---- Under the mutex ------------------------------------------------------------------------- */

/* Removes what was not used for longest until so many bytes fit, and reserves them. E_FULL with the
 * numbers, and nothing is removed; E_IO. */
tamis_status tms_shelf_reserve(tms_shelf *shelf, uint64_t bytes, tamis_error *error);
void tms_shelf_unreserve(tms_shelf *shelf, uint64_t bytes);
/* Removes what is beyond the limit, as far as it is not pinned. */
void tms_shelf_trim(tms_shelf *shelf);
/* Removes a record that is damaged, and its entry. */
void tms_shelf_condemn(tms_shelf *shelf, const uint8_t *key, const tms_object *object);

/* ---- Without it ------------------------------------------------------------------------------ */

/* What a look into a tier behind memory has found: an object and its entry, pinned, or neither. */
typedef struct tms_look {
    tms_object *object;
    tms_entry *entry;
    bool mismatched; /* there is another chunk under this key */
} tms_look;

/* Looks for the chunk; what is damaged is removed, and it counts as used. E_IO, E_NO_MEMORY. */
tamis_status tms_shelf_look(tamis_store *store, tms_shelf *shelf, const tamis_chunk_id *id,
                            const uint8_t *key, tms_look *out, tamis_error *error);
/* Gives a look's object and pin back. */
void tms_look_end(tamis_store *store, tms_shelf *shelf, tms_look *look);

/* Takes in what other processes have written and removed. E_IO, E_NO_MEMORY. */
tamis_status tms_shelf_refresh(tamis_store *store, tms_shelf *shelf, tamis_error *error);

#endif
