/* SPDX-License-Identifier: Apache-2.0 */
/* Shelves: making room, looking for a record, finding out what other processes did. */
#include "lib/store/shelf.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- The mutex ------------------------------------------------------------------------------- */

void tms_store_lock(tamis_store *store) {
    pthread_mutex_lock(&store->mutex);
}

void tms_store_unlock(tamis_store *store) {
    tms_entry *garbage[TAMIS_TIERS];
    for (int t = 0; t < TAMIS_TIERS; t++) {
        garbage[t] = store->shelves[t].index.garbage;
        store->shelves[t].index.garbage = NULL;
    }
    pthread_mutex_unlock(&store->mutex);
    for (int t = 0; t < TAMIS_TIERS; t++)
        tms_garbage_free(garbage[t]);
}

void tms_store_note(tamis_store *store, tamis_status status) {
    if (status != TAMIS_E_IO && status != TAMIS_E_FULL) return;
    tms_store_lock(store);
    store->counts.failed++;
    tms_store_unlock(store);
}

/* ---- Room ------------------------------------------------------------------------------------ */

/* Removes the record that was not used for longest. */
static tamis_status evict(tms_shelf *shelf, tms_entry *victim, tamis_error *error) {
    if (shelf->tier) TMS_TRY(shelf->tier->ops->erase(shelf->tier, victim->key, NULL, error));
    tms_index_drop(&shelf->index, victim);
    shelf->counts.evicted++;
    return TAMIS_OK;
}

tamis_status tms_shelf_reserve(tms_shelf *shelf, uint64_t bytes, tamis_error *error) {
    const tms_index *index = &shelf->index;
    const char *name = tamis_tier_name(shelf->tier ? shelf->tier->ops->tier : TAMIS_TIER_MEMORY);
    TMS_REQUIRE(bytes <= index->limit, TAMIS_E_FULL,
                "a record of %" PRIu64 " bytes: the %s tier is limited to %" PRIu64, bytes, name,
                index->limit);
    TMS_REQUIRE(tms_index_may_fit(index, bytes), TAMIS_E_FULL,
                "a record of %" PRIu64 " bytes: of the %" PRIu64 " of the %s tier, %" PRIu64
                " are pinned and %" PRIu64 " are being written",
                bytes, index->limit, name, index->pinned, index->reserved);
    while (!tms_index_fits(index, bytes))
        TMS_TRY(evict(shelf, tms_index_victim(index), error));
    shelf->index.reserved += bytes;
    return TAMIS_OK;
}

void tms_shelf_unreserve(tms_shelf *shelf, uint64_t bytes) {
    shelf->index.reserved -= bytes;
}

void tms_shelf_trim(tms_shelf *shelf) {
    while (!tms_index_fits(&shelf->index, 0)) {
        tms_entry *victim = tms_index_victim(&shelf->index);
        if (!victim || evict(shelf, victim, NULL) != TAMIS_OK) return;
    }
}

void tms_shelf_condemn(tms_shelf *shelf, const uint8_t *key, const tms_object *object) {
    tms_entry *entry = tms_index_find(&shelf->index, key);
    /* A file that cannot be removed is damaged at the next look too. */
    (void)shelf->tier->ops->erase(shelf->tier, key, object, NULL);
    if (entry) tms_index_drop(&shelf->index, entry);
    shelf->counts.damaged++;
}

/* ---- Looking for a record -------------------------------------------------------------------- */

/* A sound record of the chunk is there; under the mutex. Its entry, which another process's record
 * does not have yet, is pinned and the newest. */
static tamis_status adopt(tms_shelf *shelf, tms_look *look, tamis_error *error) {
    if (!look->entry) {
        look->entry = tms_index_find(&shelf->index, look->object->record.key);
        if (!look->entry) {
            look->entry = tms_entry_new(&look->object->record, NULL);
            TMS_REQUIRE(look->entry, TAMIS_E_NO_MEMORY, "no memory for a chunk's entry");
            tms_index_add(&shelf->index, look->entry);
        }
        tms_index_pin(&shelf->index, look->entry);
        tms_shelf_trim(shelf);
    }
    tms_index_touch(&shelf->index, look->entry);
    return TAMIS_OK;
}

/* Under the mutex: what the verdict means for the index. */
static tamis_status judge(tamis_store *store, tms_shelf *shelf, const tamis_chunk_id *id,
                          const uint8_t *key, tms_verdict verdict, tms_look *look,
                          tamis_error *error) {
    if (verdict == TMS_SOUND && tms_record_is(&look->object->record, id))
        return adopt(shelf, look, error);
    if (verdict == TMS_DAMAGED)
        tms_shelf_condemn(shelf, key, look->object);
    else if (verdict == TMS_ABSENT && look->entry && !look->entry->dead)
        tms_index_drop(&shelf->index, look->entry);
    store->counts.foreign += verdict == TMS_FOREIGN;
    look->mismatched = verdict == TMS_SOUND;
    if (look->entry) tms_index_unpin(&shelf->index, look->entry);
    look->entry = NULL;
    return TAMIS_OK;
}

tamis_status tms_shelf_look(tamis_store *store, tms_shelf *shelf, const tamis_chunk_id *id,
                            const uint8_t *key, tms_look *out, tamis_error *error) {
    const tms_tier_ops *ops = shelf->tier->ops;
    tms_verdict verdict = TMS_ABSENT;
    *out = (tms_look){0};
    tms_store_lock(store);
    out->entry = tms_index_find(&shelf->index, key);
    if (out->entry) tms_index_pin(&shelf->index, out->entry);
    tms_store_unlock(store);
    tamis_status status = ops->find(shelf->tier, key, &out->object, &verdict, error);
    tms_store_lock(store);
    if (status == TAMIS_OK)
        status = judge(store, shelf, id, key, verdict, out, error);
    else if (out->entry) {
        tms_index_unpin(&shelf->index, out->entry);
        out->entry = NULL;
    }
    tms_store_unlock(store);
    if (out->object && !out->entry) {
        ops->done(out->object);
        out->object = NULL;
    }
    if (out->object) ops->touch(out->object);
    return status;
}

void tms_look_end(tamis_store *store, tms_shelf *shelf, tms_look *look) {
    if (!look->object) return;
    shelf->tier->ops->done(look->object);
    tms_store_lock(store);
    tms_index_unpin(&shelf->index, look->entry);
    tms_shelf_trim(shelf); /* what others wrote while everything was pinned */
    tms_store_unlock(store);
    *look = (tms_look){0};
}

/* ---- What other processes did ---------------------------------------------------------------- */

typedef struct newcomer {
    int64_t used;
    tms_entry *entry;
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

/* Reads the header of a file that is new here. *entry stays NULL for what is no sound record, and
 * for a file that cannot be read: others can. */
static tamis_status meet(tamis_store *store, tms_shelf *shelf, const uint8_t *key, newcomer *to,
                         tamis_error *error) {
    const tms_tier_ops *ops = shelf->tier->ops;
    tms_object *object = NULL;
    tms_verdict verdict;
    *to = (newcomer){0};
    tamis_status status = ops->find(shelf->tier, key, &object, &verdict, error);
    if (status == TAMIS_E_IO) {
        tms_store_note(store, status);
        return TAMIS_OK;
    }
    if (!object) return status;
    if (verdict == TMS_SOUND) {
        *to = (newcomer){object->used, tms_entry_new(&object->record, NULL)};
        if (!to->entry)
            status = tms_error_set(error, TAMIS_E_NO_MEMORY, "no memory for a chunk's entry");
    } else {
        tms_store_lock(store);
        if (verdict == TMS_DAMAGED) tms_shelf_condemn(shelf, key, object);
        store->counts.foreign += verdict == TMS_FOREIGN;
        tms_store_unlock(store);
    }
    ops->done(object);
    return status;
}

/* Adds them in the order in which they were used; one that has got an entry meanwhile is known.
 * What is then beyond the limit goes. */
static void welcome(tamis_store *store, tms_shelf *shelf, newcomer *all, size_t count) {
    if (count > 1) qsort(all, count, sizeof *all, by_use);
    tms_store_lock(store);
    for (size_t i = 0; i < count; i++) {
        if (tms_index_find(&shelf->index, all[i].entry->key))
            free(all[i].entry);
        else
            tms_index_add(&shelf->index, all[i].entry);
    }
    tms_shelf_trim(shelf);
    tms_store_unlock(store);
}

tamis_status tms_shelf_refresh(tamis_store *store, tms_shelf *shelf, tamis_error *error) {
    tms_keys keys = {0};
    tms_store_lock(store);
    const uint64_t generation = ++shelf->index.generation;
    shelf->written = 0;
    tms_store_unlock(store);
    newcomer *all = NULL;
    size_t count = 0;
    tamis_status status = shelf->tier->ops->walk(shelf->tier, &keys, error);
    if (status == TAMIS_OK) compare(store, shelf, generation, &keys);
    if (status == TAMIS_OK && keys.count > 0) {
        all = malloc(keys.count * sizeof *all);
        if (!all)
            status =
                tms_error_set(error, TAMIS_E_NO_MEMORY, "no memory for %zu entries", keys.count);
        for (size_t i = 0; status == TAMIS_OK && i < keys.count; i++) {
            status = meet(store, shelf, keys.keys[i], &all[count], error);
            if (status == TAMIS_OK && all[count].entry) count++;
        }
    }
    welcome(store, shelf, all, count);
    free(all);
    free(keys.keys);
    return status;
}
