/* SPDX-License-Identifier: Apache-2.0 */
/* Shelves: claims and names, making room, looking for a record. */
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

void tms_shelf_note(tamis_store *store, tms_shelf *shelf, tamis_status status) {
    if (status != TAMIS_E_IO && status != TAMIS_E_FULL) return;
    tms_store_lock(store);
    shelf->counts.failed++;
    tms_store_unlock(store);
}

void tms_store_touch_line(tamis_store *store, const uint8_t *key) {
    tms_store_lock(store);
    for (int t = 0; t < TAMIS_TIERS; t++) {
        tms_index *index = &store->shelves[t].index;
        tms_entry *entry = index->limit > 0 ? tms_index_find(index, key) : NULL;
        if (entry) tms_index_touch_line(index, entry);
    }
    tms_store_unlock(store);
}

/* ---- Claims ---------------------------------------------------------------------------------- */

static bool claimed_by_others(const tamis_store *store, const uint8_t *key) {
    const tms_claim *claim = store->claims;
    while (claim && (memcmp(claim->key, key, TMS_KEY_BYTES) != 0 ||
                     pthread_equal(claim->owner, pthread_self())))
        claim = claim->next;
    return claim != NULL;
}

/* Under the mutex. */
static void add_claim(tamis_store *store, tms_claim *claim, const uint8_t *key) {
    *claim = (tms_claim){key, pthread_self(), store->claims};
    store->claims = claim;
}

static void take_claim(tamis_store *store, const tms_claim *claim) {
    tms_claim **at = &store->claims;
    while (*at != claim)
        at = &(*at)->next;
    *at = claim->next;
    pthread_cond_broadcast(&store->moved);
}

void tms_claim_begin(tamis_store *store, tms_claim *claim, const uint8_t *key) {
    tms_store_lock(store);
    while (claimed_by_others(store, key))
        pthread_cond_wait(&store->moved, &store->mutex);
    add_claim(store, claim, key);
    tms_store_unlock(store);
}

void tms_claim_end(tamis_store *store, tms_claim *claim) {
    tms_store_lock(store);
    take_claim(store, claim);
    tms_store_unlock(store);
}

/* ---- Names ----------------------------------------------------------------------------------- */

static void note_change(tms_shelf *shelf, const uint8_t *key) {
    memcpy(shelf->changed[shelf->changes++ % TMS_CHANGES], key, TMS_KEY_BYTES);
}

bool tms_shelf_changed(const tms_shelf *shelf, uint64_t changes, const uint8_t *key) {
    if (shelf->changes - changes > TMS_CHANGES) return true;
    for (; changes < shelf->changes; changes++)
        if (memcmp(shelf->changed[changes % TMS_CHANGES], key, TMS_KEY_BYTES) == 0) return true;
    return false;
}

void tms_shelf_named(tms_shelf *shelf, tms_entry *entry) {
    tms_entry *same = tms_index_find(&shelf->index, entry->key);
    note_change(shelf, entry->key);
    if (same && same->checksum == entry->checksum) { /* somebody has found it already */
        free(entry);
        entry = same;
    } else
        tms_index_add(&shelf->index, entry);
    tms_index_use(&shelf->index, entry);
}

void tms_shelf_unnamed(tms_shelf *shelf, const uint8_t *key) {
    tms_entry *entry = tms_index_find(&shelf->index, key);
    note_change(shelf, key);
    if (entry) tms_index_drop(&shelf->index, entry);
}

tamis_status tms_shelf_condemn(tamis_store *store, tms_shelf *shelf, const uint8_t *key,
                               const tms_object *object, tamis_error *error) {
    tms_claim claim;
    bool other = false;
    tms_claim_begin(store, &claim, key);
    const tamis_status status = shelf->tier->ops->erase(shelf->tier, key, object, &other, error);
    tms_store_lock(store);
    /* What cannot be removed is no record all the same: it is damaged at the next look too. */
    if (!other) tms_shelf_unnamed(shelf, key);
    shelf->counts.damaged++;
    shelf->counts.damaged_left += status != TAMIS_OK;
    take_claim(store, &claim);
    tms_store_unlock(store);
    return status;
}

/* ---- Room ------------------------------------------------------------------------------------ */

/* The record that was not used for longest. NULL: all are held, or others change their names. */
static tms_entry *victim_of(const tamis_store *store, const tms_shelf *shelf) {
    tms_entry *entry = shelf->index.oldest;
    while (entry && (entry->pins > 0 || (shelf->tier && claimed_by_others(store, entry->key))))
        entry = entry->newer;
    return entry;
}

/* Removes it. The mutex is free while its name is taken. */
static tamis_status evict(tamis_store *store, tms_shelf *shelf, tms_entry *victim,
                          tamis_error *error) {
    uint8_t key[TMS_KEY_BYTES];
    tms_claim claim;
    if (!shelf->tier) {
        tms_index_drop(&shelf->index, victim);
        shelf->counts.evicted++;
        return TAMIS_OK;
    }
    memcpy(key, victim->key, sizeof key);
    add_claim(store, &claim, key);
    shelf->leaving++;
    tms_store_unlock(store);
    const tamis_status status = shelf->tier->ops->erase(shelf->tier, key, NULL, NULL, error);
    tms_store_lock(store);
    shelf->leaving--;
    if (status == TAMIS_OK) {
        tms_shelf_unnamed(shelf, key);
        shelf->counts.evicted++;
    }
    take_claim(store, &claim);
    return status;
}

tamis_status tms_shelf_reserve(tamis_store *store, tms_shelf *shelf, uint64_t bytes,
                               tamis_error *error) {
    const tms_index *index = &shelf->index;
    const char *name = tamis_tier_name(shelf->tier ? shelf->tier->ops->tier : TAMIS_TIER_MEMORY);
    TMS_REQUIRE(bytes <= index->limit, TAMIS_E_FULL,
                "a record of %" PRIu64 " bytes: the %s tier is limited to %" PRIu64, bytes, name,
                index->limit);
    while (!tms_index_fits(index, bytes)) {
        tms_entry *victim = victim_of(store, shelf);
        TMS_REQUIRE(tms_index_may_fit(index, bytes) && (victim || shelf->leaving > 0), TAMIS_E_FULL,
                    "a record of %" PRIu64 " bytes: of the %" PRIu64 " of the %s tier, %" PRIu64
                    " are pinned and %" PRIu64 " are being written",
                    bytes, index->limit, name, index->pinned, index->reserved);
        if (victim)
            TMS_TRY(evict(store, shelf, victim, error));
        else
            pthread_cond_wait(&store->moved, &store->mutex);
    }
    shelf->index.reserved += bytes;
    return TAMIS_OK;
}

void tms_shelf_unreserve(tms_shelf *shelf, uint64_t bytes) {
    shelf->index.reserved -= bytes;
}

void tms_shelf_trim(tamis_store *store, tms_shelf *shelf) {
    while (!tms_index_fits(&shelf->index, 0)) {
        tms_entry *victim = victim_of(store, shelf);
        if (!victim || evict(store, shelf, victim, NULL) != TAMIS_OK) return;
    }
}

/* ---- Looking for a record -------------------------------------------------------------------- */

/* The entry of a record that was found when there were so many changes, pinned; under the mutex.
 * What another process has written has none yet, and what it has replaced is another record's. A
 * name that this process has changed since is not the found record's any more, or nobody knows.
 * NULL: no memory. */
static tms_entry *entry_of(tms_shelf *shelf, uint64_t changes, const tms_record *record) {
    tms_index *index = &shelf->index;
    tms_entry *entry = tms_index_find(index, record->key);
    if (!entry || entry->checksum != record->checksum) {
        entry = tms_entry_new(record, NULL);
        if (!entry) return NULL;
        if (tms_shelf_changed(shelf, changes, record->key)) {
            tms_index_add_dead(index, entry);
            return entry;
        }
        tms_index_add(index, entry);
    }
    tms_index_pin(index, entry);
    return entry;
}

/* Under the mutex: what the verdict means for the index. */
static tamis_status judge(tamis_store *store, tms_shelf *shelf, const tamis_chunk_id *id,
                          const uint8_t *key, uint64_t changes, tms_verdict verdict, tms_look *look,
                          tamis_error *error) {
    tms_entry *before = look->entry;
    const bool gone = verdict == TMS_ABSENT || verdict == TMS_FOREIGN;
    look->entry = NULL;
    store->counts.foreign += verdict == TMS_FOREIGN;
    if (gone && before && !before->dead && !tms_shelf_changed(shelf, changes, key))
        tms_index_drop(&shelf->index, before);
    if (verdict == TMS_SOUND) look->entry = entry_of(shelf, changes, &look->object->record);
    if (before) tms_index_unpin(&shelf->index, before);
    if (verdict != TMS_SOUND) return TAMIS_OK;
    TMS_REQUIRE(look->entry, TAMIS_E_NO_MEMORY, "no memory for a chunk's entry");
    look->mismatched = !tms_record_is(&look->object->record, id);
    if (look->mismatched) {
        tms_index_unpin(&shelf->index, look->entry);
        look->entry = NULL;
    } else
        tms_index_use(&shelf->index, look->entry);
    tms_shelf_trim(store, shelf);
    return TAMIS_OK;
}

tamis_status tms_shelf_look(tamis_store *store, tms_shelf *shelf, const tamis_chunk_id *id,
                            const uint8_t *key, tms_look *out, tamis_error *error) {
    const tms_tier_ops *ops = shelf->tier->ops;
    tms_verdict verdict = TMS_ABSENT;
    *out = (tms_look){0};
    tms_store_lock(store);
    const uint64_t changes = shelf->changes;
    out->entry = tms_index_find(&shelf->index, key);
    if (out->entry) tms_index_pin(&shelf->index, out->entry);
    tms_store_unlock(store);
    tamis_status status = ops->find(shelf->tier, key, &out->object, &verdict, error);
    if (status == TAMIS_OK && verdict == TMS_DAMAGED)
        (void)tms_shelf_condemn(store, shelf, key, out->object, NULL);
    tms_store_lock(store);
    if (status == TAMIS_OK)
        status = judge(store, shelf, id, key, changes, verdict, out, error);
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
    tms_shelf_trim(store, shelf); /* what others wrote while everything was pinned */
    tms_store_unlock(store);
    *look = (tms_look){0};
}
