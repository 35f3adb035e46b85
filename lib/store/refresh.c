/* SPDX-License-Identifier: Apache-2.0 */
/* Finding out what other processes did in a tier: records without an entry, entries without one. */
#include "lib/store/shelf.h"

#include <stdlib.h>
#include <string.h>

typedef struct newcomer {
    int64_t used;
    uint8_t key[TMS_KEY_BYTES];
    bool there;
} newcomer;

static int by_use(const void *a, const void *b) {
    const int64_t x = ((const newcomer *)a)->used, y = ((const newcomer *)b)->used;
    return (x > y) - (x < y);
}

/* Leaves the keys that have no entry, and drops entries that have no key any more. Entries that
 * were made since the walk began bear its generation. */
static void compare(tamis_store *store, tms_shelf *shelf, uint64_t generation, tms_keys *keys) {
    tms_index *index = &shelf->index;
    size_t left = 0;
    tms_store_lock(store);
    for (size_t i = 0; i < keys->count; i++) {
        tms_entry *entry = tms_index_find(index, keys->keys[i]);
        if (entry && entry->generation < generation) entry->generation = generation;
        if (!entry) memmove(keys->keys[left++], keys->keys[i], TMS_KEY_BYTES);
    }
    for (tms_entry *entry = index->oldest, *newer; entry; entry = newer) {
        newer = entry->newer;
        if (entry->generation < generation) tms_index_drop(index, entry);
    }
    tms_store_unlock(store);
    keys->count = left;
}

/* Adds the entry of a sound record, unless it has got one or lost its name meanwhile. */
static tamis_status add_newcomer(tamis_store *store, tms_shelf *shelf, const tms_record *record,
                                 uint64_t changes, tamis_error *error) {
    tms_entry *entry = tms_entry_new(record, NULL);
    TMS_REQUIRE(entry, TAMIS_E_NO_MEMORY, "no memory for a chunk's entry");
    tms_store_lock(store);
    if (tms_index_find(&shelf->index, entry->key) || tms_shelf_changed(shelf, changes, entry->key))
        tms_index_refuse(&shelf->index, entry);
    else
        tms_index_add(&shelf->index, entry);
    tms_store_unlock(store);
    return TAMIS_OK;
}

/* Reads the header of a file that is new here. *used stays 0 for what is no sound record, and for a
 * file that cannot be read: others can. */
static tamis_status meet(tamis_store *store, tms_shelf *shelf, newcomer *one, tamis_error *error) {
    const tms_tier_ops *ops = shelf->tier->ops;
    tms_object *object = NULL;
    tms_verdict verdict;
    tms_store_lock(store);
    const uint64_t changes = shelf->changes;
    tms_store_unlock(store);
    tamis_status status = ops->find(shelf->tier, one->key, &object, &verdict, error);
    if (status == TAMIS_E_IO) {
        tms_store_note(store, status);
        return TAMIS_OK;
    }
    if (!object) return status;
    one->there = true;
    one->used = object->used;
    if (verdict == TMS_SOUND)
        status = add_newcomer(store, shelf, &object->record, changes, error);
    else if (verdict == TMS_DAMAGED)
        (void)tms_shelf_condemn(store, shelf, one->key, object, NULL);
    else {
        tms_store_lock(store);
        store->counts.foreign++;
        tms_store_unlock(store);
    }
    ops->done(object);
    return status;
}

/* Puts the entry on the stack, after those before it in its prefix that are not on it. */
static void stack_line(const tms_index *index, tms_entry *entry, tms_entry **stack) {
    tms_entry *line = NULL;
    while (entry && !entry->stacked) {
        entry->stacked = true;
        entry->below = line;
        line = entry;
        entry = tms_key_none(entry->parent) ? NULL : tms_index_find(index, entry->parent);
    }
    while (line) {
        tms_entry *next = line->below;
        line->below = *stack;
        *stack = line;
        line = next;
    }
}

/* Puts those that were met in the order in which they were used, as if each had been used with those
 * before it in its prefix. What is then beyond the limit goes. */
static void welcome(tamis_store *store, tms_shelf *shelf, newcomer *all, size_t count) {
    if (count > 1) qsort(all, count, sizeof *all, by_use);
    tms_store_lock(store);
    tms_entry *stack = NULL;
    for (size_t i = count; i > 0; i--) {
        tms_entry *entry = tms_index_find(&shelf->index, all[i - 1].key);
        if (entry && entry->last_used < all[i - 1].used) entry->last_used = all[i - 1].used;
        stack_line(&shelf->index, entry, &stack);
    }
    for (; stack; stack = stack->below) {
        tms_index_touch(&shelf->index, stack);
        stack->stacked = false;
    }
    tms_shelf_trim(store, shelf);
    tms_store_unlock(store);
}

/* Meets all records without an entry. */
static tamis_status meet_all(tamis_store *store, tms_shelf *shelf, const tms_keys *keys,
                             tamis_error *error) {
    newcomer *all = calloc(keys->count, sizeof *all);
    size_t count = 0;
    TMS_REQUIRE(all, TAMIS_E_NO_MEMORY, "no memory for %zu entries", keys->count);
    tamis_status status = TAMIS_OK;
    double lost_us = 0;
    for (; status == TAMIS_OK && count < keys->count; count++) {
        const double began = tms_now_us();
        memcpy(all[count].key, keys->keys[count], TMS_KEY_BYTES);
        status = meet(store, shelf, &all[count], error);
        if (!all[count].there) lost_us += tms_now_us() - began;
        if (status == TAMIS_OK) status = tms_tier_patience(shelf->tier, lost_us, error);
    }
    welcome(store, shelf, all, count);
    free(all);
    return status;
}

tamis_status tms_shelf_refresh(tamis_store *store, tms_shelf *shelf, tamis_error *error) {
    tms_keys keys = {0};
    tms_store_lock(store);
    const uint64_t generation = ++shelf->index.generation;
    shelf->written = 0;
    tms_store_unlock(store);
    tamis_status status = shelf->tier->ops->walk(shelf->tier, &keys, error);
    if (status == TAMIS_OK) compare(store, shelf, generation, &keys);
    if (status == TAMIS_OK && keys.count > 0) status = meet_all(store, shelf, &keys, error);
    free(keys.keys);
    tms_store_lock(store);
    tms_shelf_trim(store, shelf);
    tms_store_unlock(store);
    return status;
}
