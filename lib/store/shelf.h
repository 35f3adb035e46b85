/* SPDX-License-Identifier: Apache-2.0 */
/* A store from inside: its tiers as shelves, each with an index and counters, and the mutex.
 *
 * The mutex guards every index and every counter, and no tier is called under it. Names in the tiers
 * are guarded by claims: who gives a key's record its name, or takes it, claims the key, and another
 * thread that wants to waits. Between a name's change and its entry's, others may find the record
 * without an entry or an entry without the record: a look that began before says so (`changed`). */
#ifndef TMS_STORE_SHELF_H
#define TMS_STORE_SHELF_H

#include "lib/core/life.h"
#include "lib/store/index.h"
#include "lib/store/tier.h"

#include <pthread.h>
#include <stdatomic.h>

/* A key whose names a thread is changing; lies on its stack. */
typedef struct tms_claim tms_claim;
struct tms_claim {
    const uint8_t *key;
    pthread_t owner;
    tms_claim *next;
};

#define TMS_CHANGES 64

typedef struct tms_shelf {
    tms_tier *tier; /* NULL: memory, or no tier */
    tms_index index;
    tamis_tier_stats counts; /* what the index says is filled in when somebody asks */
    uint64_t written;        /* bytes since the last look at what other processes did */
    unsigned leaving;        /* records whose names are being taken to make room */
    uint64_t changes;        /* how many names were given and taken */
    uint8_t changed[TMS_CHANGES][TMS_KEY_BYTES]; /* the last of these keys */
} tms_shelf;

struct tamis_store {
    tms_life life; /* any thread may be in it: nobody owns it */
    pthread_mutex_t mutex;
    pthread_cond_t moved; /* a claim has ended, or a record has left */
    tms_claim *claims;
    tms_shelf shelves[TAMIS_TIERS]; /* by tier; a tier that the store lacks has the limit 0 */
    tamis_store_stats counts;       /* without tiers */
};

struct tamis_chunk {
    tms_life life;
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
/* Counts what a tier could not do, if that is E_IO or E_FULL. */
void tms_shelf_note(tamis_store *store, tms_shelf *shelf, tamis_status status);

/* ---- Under the mutex ------------------------------------------------------------------------- */

/* Removes what was not used for longest until so many bytes fit, and reserves them; gives the mutex
 * back meanwhile. E_FULL with the numbers, and nothing is removed unless others took the room
 * meanwhile; E_IO. */
tamis_status tms_shelf_reserve(tamis_store *store, tms_shelf *shelf, uint64_t bytes,
                               tamis_error *error);
void tms_shelf_unreserve(tms_shelf *shelf, uint64_t bytes);
/* Removes what is beyond the limit, as far as it is not pinned; gives the mutex back meanwhile. */
void tms_shelf_trim(tamis_store *store, tms_shelf *shelf);
/* A name has been given: the record's entry, which it takes over. */
void tms_shelf_named(tms_shelf *shelf, tms_entry *entry);
/* A name has been taken. */
void tms_shelf_unnamed(tms_shelf *shelf, const uint8_t *key);
/* Whether the key's name may have changed since there were so many changes. */
bool tms_shelf_changed(const tms_shelf *shelf, uint64_t changes, const uint8_t *key);

/* ---- Without it ------------------------------------------------------------------------------ */

/* Waits until no other thread claims the key; the thread itself may. A thread that claims one key
 * waits for no other. */
void tms_claim_begin(tamis_store *store, tms_claim *claim, const uint8_t *key);
void tms_claim_end(tamis_store *store, tms_claim *claim);

/* The record has been used, in each tier that has it, and so have those before it in its prefix: a
 * tier behind memory keeps what memory serves, and what others depend on goes after them. */
void tms_store_touch_line(tamis_store *store, const uint8_t *key);

/* Removes a record that is damaged, and its entry, and counts it. E_IO: the record is there still. */
tamis_status tms_shelf_condemn(tamis_store *store, tms_shelf *shelf, const uint8_t *key,
                               const tms_object *object, tamis_error *error);

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
