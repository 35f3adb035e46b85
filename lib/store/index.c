/* SPDX-License-Identifier: Apache-2.0 */
/* The index of a tier: a hash table with chains, and a list in the order of last use. */
#include "lib/store/index.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FIRST_BUCKETS 64 /* a power of two, as all later numbers */

tamis_status tms_index_init(tms_index *index, uint64_t limit, tamis_error *error) {
    *index = (tms_index){.limit = limit, .n_buckets = FIRST_BUCKETS};
    index->buckets = calloc(FIRST_BUCKETS, sizeof *index->buckets);
    TMS_REQUIRE(index->buckets, TAMIS_E_NO_MEMORY, "no memory for the index of a store");
    return TAMIS_OK;
}

void tms_garbage_free(tms_entry *garbage) {
    while (garbage) {
        tms_entry *next = garbage->next;
        tms_copy_free(garbage->copy);
        free(garbage);
        garbage = next;
    }
}

void tms_index_free(tms_index *index) {
    for (size_t i = 0; i < index->n_buckets && index->buckets; i++)
        tms_garbage_free(index->buckets[i]);
    tms_garbage_free(index->garbage);
    free(index->buckets);
    *index = (tms_index){0};
}

tms_entry *tms_entry_new(const tms_record *record, tms_copy *copy) {
    tms_entry *entry = calloc(1, sizeof *entry);
    if (!entry) return NULL;
    memcpy(entry->key, record->key, sizeof entry->key);
    memcpy(entry->fingerprint, record->fingerprint, sizeof entry->fingerprint);
    memcpy(entry->salt, record->salt, sizeof entry->salt);
    memcpy(entry->parent, record->parent, sizeof entry->parent);
    entry->n_tokens = record->n_tokens;
    entry->shape = record->shape;
    entry->bytes = record->record_bytes;
    entry->checksum = record->checksum;
    entry->copy = copy;
    return entry;
}

/* ---- The table ------------------------------------------------------------------------------- */

/* A key is a hash already. */
static tms_entry **bucket_of(const tms_index *index, const uint8_t *key) {
    uint64_t word;
    memcpy(&word, key, sizeof word);
    return &index->buckets[word & (index->n_buckets - 1)];
}

tms_entry *tms_index_find(const tms_index *index, const uint8_t key[TMS_KEY_BYTES]) {
    tms_entry *entry = *bucket_of(index, key);
    while (entry && memcmp(entry->key, key, TMS_KEY_BYTES) != 0)
        entry = entry->next;
    return entry;
}

/* Twice as many buckets; without memory for them chains grow longer, which is only slower. */
static void grow(tms_index *index) {
    tms_entry **old = index->buckets;
    const size_t n = index->n_buckets;
    tms_entry **more = calloc(2 * n, sizeof *more);
    if (!more) return;
    index->buckets = more;
    index->n_buckets = 2 * n;
    for (size_t i = 0; i < n; i++) {
        for (tms_entry *entry = old[i], *next; entry; entry = next) {
            next = entry->next;
            tms_entry **bucket = bucket_of(index, entry->key);
            entry->next = *bucket;
            *bucket = entry;
        }
    }
    free(old);
}

/* ---- The order of last use ------------------------------------------------------------------- */

static void unlink_entry(tms_index *index, tms_entry *entry) {
    *(entry->older ? &entry->older->newer : &index->oldest) = entry->newer;
    *(entry->newer ? &entry->newer->older : &index->newest) = entry->older;
}

static void append_entry(tms_index *index, tms_entry *entry) {
    entry->older = index->newest;
    entry->newer = NULL;
    *(index->newest ? &index->newest->newer : &index->oldest) = entry;
    index->newest = entry;
}

void tms_index_touch(tms_index *index, tms_entry *entry) {
    if (entry->dead) return;
    unlink_entry(index, entry);
    append_entry(index, entry);
}

void tms_index_use(tms_index *index, tms_entry *entry) {
    struct timespec now = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    entry->last_used = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    tms_index_touch(index, entry);
}

void tms_index_touch_line(tms_index *index, tms_entry *entry) {
    for (size_t left = index->count; entry && left > 0; left--) {
        tms_index_touch(index, entry);
        entry = tms_key_none(entry->parent) ? NULL : tms_index_find(index, entry->parent);
    }
}

/* ---- In and out ------------------------------------------------------------------------------ */

void tms_index_refuse(tms_index *index, tms_entry *entry) {
    entry->next = index->garbage;
    index->garbage = entry;
}

static void discard(tms_index *index, tms_entry *entry) {
    index->used -= entry->bytes;
    tms_index_refuse(index, entry);
}

void tms_index_drop(tms_index *index, tms_entry *entry) {
    tms_entry **at = bucket_of(index, entry->key);
    while (*at != entry)
        at = &(*at)->next;
    *at = entry->next;
    unlink_entry(index, entry);
    index->count--;
    entry->dead = true;
    if (entry->pins == 0) discard(index, entry);
}

void tms_index_add(tms_index *index, tms_entry *entry) {
    tms_entry *same = tms_index_find(index, entry->key);
    if (same) tms_index_drop(index, same);
    if (index->count >= index->n_buckets) grow(index);
    tms_entry **bucket = bucket_of(index, entry->key);
    entry->next = *bucket;
    *bucket = entry;
    entry->generation = index->generation;
    append_entry(index, entry);
    index->count++;
    index->used += entry->bytes;
}

void tms_index_add_dead(tms_index *index, tms_entry *entry) {
    entry->dead = true;
    index->used += entry->bytes;
    tms_index_pin(index, entry);
}

void tms_index_pin(tms_index *index, tms_entry *entry) {
    if (entry->pins++ == 0) index->pinned += entry->bytes;
}

void tms_index_unpin(tms_index *index, tms_entry *entry) {
    if (--entry->pins > 0) return;
    index->pinned -= entry->bytes;
    if (entry->dead) discard(index, entry);
}

/* ---- Room ------------------------------------------------------------------------------------ */

static bool within(const tms_index *index, uint64_t taken, uint64_t bytes) {
    return taken <= index->limit && bytes <= index->limit - taken;
}

bool tms_index_may_fit(const tms_index *index, uint64_t bytes) {
    return within(index, index->pinned + index->reserved, bytes);
}

bool tms_index_fits(const tms_index *index, uint64_t bytes) {
    return within(index, index->used + index->reserved, bytes);
}
