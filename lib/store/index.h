/* SPDX-License-Identifier: Apache-2.0 */
/* What is in a tier: entries by key, in the order of their last use, with pins and a limit. The
 * store's mutex guards it; nothing here does I/O. */
#ifndef TMS_STORE_INDEX_H
#define TMS_STORE_INDEX_H

#include "lib/store/memory.h"

typedef struct tms_entry tms_entry;
struct tms_entry {
    uint8_t key[TMS_KEY_BYTES], fingerprint[16], salt[16], parent[TMS_KEY_BYTES];
    uint32_t n_tokens;
    tamis_chunk_shape shape;
    uint64_t bytes, checksum; /* of the record, and of its header */
    uint64_t generation;      /* of the walk that has seen it last */
    int64_t last_used;        /* nanoseconds since 1970 */
    uint32_t pins;
    bool dead;                /* no longer in the index; counts until nobody holds it */
    tms_copy *copy;           /* its content; of the memory tier alone */
    tms_entry *next;          /* in its bucket, or in the list of what is to be freed */
    tms_entry *older, *newer; /* by last use */
    tms_entry *below;         /* on a stack while entries are put in order */
    bool stacked;
};

typedef struct tms_index {
    tms_entry **buckets;
    size_t n_buckets, count; /* entries that are not dead */
    tms_entry *oldest, *newest;
    uint64_t limit;
    uint64_t used;       /* bytes of all entries, dead ones that are held included */
    uint64_t pinned;     /* of these, held */
    uint64_t reserved;   /* for records that are being written */
    uint64_t generation; /* of the newest walk */
    tms_entry *garbage;  /* what nobody holds and no table has: tms_garbage_free, without mutex */
} tms_index;

tamis_status tms_index_init(tms_index *index, uint64_t limit, tamis_error *error);
void tms_index_free(tms_index *index); /* with all entries */

/* An entry of that record, of no index yet. NULL: no memory. */
tms_entry *tms_entry_new(const tms_record *record, tms_copy *copy);
void tms_garbage_free(tms_entry *garbage);

tms_entry *tms_index_find(const tms_index *index, const uint8_t key[TMS_KEY_BYTES]);
/* Puts an entry in as the one used last; one of the same key is dropped. */
void tms_index_add(tms_index *index, tms_entry *entry);
/* Takes an entry out; it is freed when nobody holds it. */
void tms_index_drop(tms_index *index, tms_entry *entry);
/* Does not put an entry in: it becomes garbage. */
void tms_index_refuse(tms_index *index, tms_entry *entry);
/* Counts an entry that is held and in no table: what it is of has lost its name. */
void tms_index_add_dead(tms_index *index, tms_entry *entry);
/* Puts an entry last in the order of use; _use: it is used now. */
void tms_index_touch(tms_index *index, tms_entry *entry);
void tms_index_use(tms_index *index, tms_entry *entry);
/* An entry, and then those before it in its prefix: what others depend on was used last. */
void tms_index_touch_line(tms_index *index, tms_entry *entry);

void tms_index_pin(tms_index *index, tms_entry *entry);
void tms_index_unpin(tms_index *index, tms_entry *entry);

/* Whether so many bytes fit once all that nobody holds is gone. */
bool tms_index_may_fit(const tms_index *index, uint64_t bytes);
bool tms_index_fits(const tms_index *index, uint64_t bytes); /* as it is */

#endif
