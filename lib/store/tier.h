/* SPDX-License-Identifier: Apache-2.0 */
/* A tier behind memory: a table of functions over whole records that are found by key. Disk is the
 * first, a Redis server the next. What is in it, for how long, and who counts is the store's
 * concern. */
#ifndef TMS_STORE_TIER_H
#define TMS_STORE_TIER_H

#include "lib/store/record.h"

typedef struct tms_tier_ops tms_tier_ops;

typedef struct tms_tier {
    const tms_tier_ops *ops;
    double
        patience_us; /* how long a walk may look for what it has named and is not there; 0: any */
} tms_tier;

/* A record that was found, open for reading, whatever becomes of its name. */
typedef struct tms_object {
    tms_tier *tier;
    tms_record record; /* empty unless it is sound */
    tms_source source;
    int64_t used; /* when it was last found, in nanoseconds of the tier's own clock */
} tms_object;

typedef struct tms_staged tms_staged; /* a record that is written, and not yet found */

typedef struct tms_keys {
    uint8_t (*keys)[TMS_KEY_BYTES];
    size_t count, room;
} tms_keys;

/* Whether a walk has looked for what is not there for so long that it ends: E_IO. */
tamis_status tms_tier_patience(const tms_tier *tier, double lost_us, tamis_error *error);

/* Adds a key. E_NO_MEMORY. */
tamis_status tms_keys_add(tms_keys *keys, const uint8_t key[TMS_KEY_BYTES], tamis_error *error);

struct tms_tier_ops {
    tamis_tier tier;
    /* It may be out of reach, and records go from it that are held: the store works without it, and
     * walks through it on opening only to keep a limit. */
    bool remote;
    uint64_t (*limit)(const tamis_store_params *params); /* bytes */
    tamis_status (*open)(const tamis_store_params *params, tms_tier **out, tamis_error *error);
    void (*close)(tms_tier *tier);

    /* These do I/O, which may take seconds: the store's mutex is free, and several threads may call
     * them at a time. Those that change a name, commit and erase, come one at a time for a key. */

    /* *out is NULL if there is none (TMS_ABSENT); else the caller gives it to `done`, whatever the
     * verdict. Errors: E_IO, E_NO_MEMORY. */
    tamis_status (*find)(tms_tier *tier, const uint8_t *key, tms_object **out, tms_verdict *verdict,
                         tamis_error *error);
    void (*touch)(tms_object *object); /* it has been used: other processes and later ones know */
    void (*done)(tms_object *object);
    /* Writes a record so that it needs only its name. E_FULL, E_IO, E_NO_MEMORY: nothing is left. */
    tamis_status (*stage)(tms_tier *tier, const tms_record *record, const uint8_t *head,
                          const tamis_chunk_planes *chunk, tms_staged **out, tamis_error *error);
    void (*discard)(tms_tier *tier, tms_staged *staged);
    /* Returns when all names that were given survive a loss of power. */
    tamis_status (*settle)(tms_tier *tier, tamis_error *error);
    /* The keys of all records; the caller frees them, after an error too. */
    tamis_status (*walk)(tms_tier *tier, tms_keys *out, tamis_error *error);
    /* Removes what writers that are gone have left; adds to *removed. */
    tamis_status (*sweep)(tms_tier *tier, uint64_t *removed, tamis_error *error);

    /* Gives the record its name, in place of another that may have it. Frees `staged`, after an
     * error too. */
    tamis_status (*commit)(tms_tier *tier, tms_staged *staged, tamis_error *error);
    /* Removes a record; one that is not there is no error. With an object: only that one. Then
     * *other (or NULL) says that somebody has put another in its place, which stays. */
    tamis_status (*erase)(tms_tier *tier, const uint8_t *key, const tms_object *only, bool *other,
                          tamis_error *error);
};

extern const tms_tier_ops tms_disk;
#ifdef TAMIS_HAVE_REDIS
extern const tms_tier_ops tms_redis_ops;
#endif

#endif
