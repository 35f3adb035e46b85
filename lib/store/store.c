/* SPDX-License-Identifier: Apache-2.0 */
/* Stores: opening and closing, what is in them, removing chunks. */
#include "lib/core/core.h"
#include "lib/store/shelf.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Tiers behind memory. */
static const tms_tier_ops *const tiers[] = {
    &tms_disk,
#ifdef TAMIS_HAVE_REDIS
    &tms_redis_ops,
#endif
};

/* ---- Opening and closing --------------------------------------------------------------------- */

/* Fields of a tier that is not asked for, or that this build lacks, are an error. */
static tamis_status check_redis(const tamis_store_params *params, tamis_error *error) {
    const bool more = params->redis_bytes || params->redis_prefix || params->redis_password ||
                      params->redis_database || params->redis_timeout_ms || params->redis_walk_ms;
    TMS_REQUIRE(params->redis || !more, TAMIS_E_ARGUMENT,
                "redis is NULL, but another field of it is given");
    if (!params->redis) return TAMIS_OK;
    TMS_REQUIRE(*params->redis, TAMIS_E_ARGUMENT, "redis: empty");
#ifndef TAMIS_HAVE_REDIS
    return tms_error_set(error, TAMIS_E_UNSUPPORTED, "redis: %s: this build is without it",
                         params->redis);
#else
    return TAMIS_OK;
#endif
}

static tamis_status check_params(const tamis_store_params *params, tamis_error *error) {
    TMS_REQUIRE(params, TAMIS_E_ARGUMENT, "params: NULL");
    TMS_REQUIRE_RESERVED(params, tamis_store_params);
    TMS_REQUIRE(params->reserved32 == 0, TAMIS_E_ARGUMENT,
                "reserved32 of tamis_store_params is %" PRIu32 "; it must be 0",
                params->reserved32);
    TMS_REQUIRE(params->folder || params->disk_bytes == 0, TAMIS_E_ARGUMENT,
                "disk_bytes is %" PRIu64 ", but there is no folder", params->disk_bytes);
    TMS_TRY(check_redis(params, error));
    TMS_REQUIRE(params->folder || params->redis || params->memory_bytes > 0, TAMIS_E_ARGUMENT,
                "a store without a tier: memory_bytes is 0, folder and redis are NULL");
    TMS_REQUIRE(!params->folder || *params->folder, TAMIS_E_ARGUMENT, "folder: empty");
    return TAMIS_OK;
}

/* Opens a tier behind memory, sweeps it, and reads what is there. To read all headers of a server
 * that others fill takes long and disturbs its own order of use, so that is done only to keep a
 * limit; one that is out of reach may be there later. */
static tamis_status open_tier(tamis_store *store, const tms_tier_ops *ops,
                              const tamis_store_params *params, tamis_error *error) {
    tms_shelf *shelf = &store->shelves[ops->tier];
    uint64_t removed = 0;
    if (ops->limit(params) == 0) return TAMIS_OK;
    TMS_TRY(ops->open(params, &shelf->tier, error));
    TMS_TRY(tms_index_init(&shelf->index, ops->limit(params), error));
    TMS_TRY(ops->sweep(shelf->tier, &removed, error));
    store->counts.leftovers += removed;
    if (!ops->remote) return tms_shelf_refresh(store, shelf, error);
    if (shelf->index.limit == UINT64_MAX) return TAMIS_OK;
    const tamis_status status = tms_shelf_refresh(store, shelf, error);
    tms_shelf_note(store, shelf, status);
    tms_store_note(store, status);
    return status == TAMIS_E_IO ? TAMIS_OK : status;
}

static bool init_mutex(tamis_store *store) {
    if (pthread_mutex_init(&store->mutex, NULL) != 0) return false;
    if (pthread_cond_init(&store->moved, NULL) == 0) return true;
    pthread_mutex_destroy(&store->mutex);
    return false;
}

static void end(tms_life *life) {
    tamis_store *store = (tamis_store *)life;
    for (int t = 0; t < TAMIS_TIERS; t++) {
        tms_shelf *shelf = &store->shelves[t];
        tms_index_free(&shelf->index);
        if (shelf->tier) shelf->tier->ops->close(shelf->tier);
    }
    pthread_cond_destroy(&store->moved);
    pthread_mutex_destroy(&store->mutex);
    free(store);
}

tamis_status tamis_store_create(const tamis_store_params *params, tamis_store **out,
                                tamis_error *error) {
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out: NULL");
    *out = NULL;
    TMS_TRY(check_params(params, error));
    tamis_store *store = calloc(1, sizeof *store);
    TMS_REQUIRE(store, TAMIS_E_NO_MEMORY, "no memory for a store");
    if (!init_mutex(store)) {
        free(store);
        return tms_error_set(error, TAMIS_E_NO_MEMORY, "no memory for a mutex");
    }
    tms_life_begin(&store->life, "store", NULL, NULL, end);
    tamis_status status = TAMIS_OK;
    if (params->memory_bytes > 0)
        status =
            tms_index_init(&store->shelves[TAMIS_TIER_MEMORY].index, params->memory_bytes, error);
    for (size_t i = 0; status == TAMIS_OK && i < sizeof tiers / sizeof *tiers; i++)
        status = open_tier(store, tiers[i], params, error);
    if (status != TAMIS_OK) tamis_store_destroy(&store);
    *out = store;
    return status;
}

void tamis_store_destroy(tamis_store **store) {
    if (!store || !*store) return;
    tms_life_close(&(*store)->life, NULL);
    *store = NULL;
}

/* ---- What is there --------------------------------------------------------------------------- */

void tamis_store_get_stats(tamis_store *store, tamis_store_stats *out) {
    if (!store || !out) return;
    tms_store_lock(store);
    *out = store->counts;
    for (int t = 0; t < TAMIS_TIERS; t++) {
        const tms_index *index = &store->shelves[t].index;
        out->tiers[t] = store->shelves[t].counts;
        out->tiers[t].limit = index->limit;
        out->tiers[t].records = index->count;
        out->tiers[t].bytes = index->used;
        out->tiers[t].pinned_bytes = index->pinned;
    }
    tms_store_unlock(store);
}

/* The entry of a key in a tier, NULL for none or for no such tier. */
static tms_entry *find_in(const tamis_store *store, int t, const uint8_t *key) {
    const tms_index *index = &store->shelves[t].index;
    return index->limit > 0 ? tms_index_find(index, key) : NULL;
}

static tamis_chunk_info info_of(const tamis_store *store, const tms_entry *entry) {
    tamis_chunk_info info = {.n_tokens = entry->n_tokens,
                             .shape = entry->shape,
                             .plane_bytes = tamis_chunk_plane_bytes(&entry->shape, entry->n_tokens),
                             .record_bytes = entry->bytes};
    memcpy(info.key, entry->key, sizeof info.key);
    memcpy(info.fingerprint, entry->fingerprint, sizeof info.fingerprint);
    memcpy(info.salt, entry->salt, sizeof info.salt);
    memcpy(info.parent, entry->parent, sizeof info.parent);
    for (int t = 0; t < TAMIS_TIERS; t++) {
        const tms_entry *same = find_in(store, t, entry->key);
        if (!same) continue;
        info.tiers |= 1u << t;
        if (same->pins > info.pins) info.pins = same->pins;
        if (same->last_used > info.last_used) info.last_used = same->last_used;
    }
    return info;
}

/* Whether a tier before the t-th has lists it too. */
static bool listed_before(const tamis_store *store, int t, const tms_entry *entry) {
    for (int before = 0; before < t; before++)
        if (find_in(store, before, entry->key)) return true;
    return false;
}

tamis_status tamis_store_list(tamis_store *store, tamis_chunk_info *infos, size_t capacity,
                              size_t *count, tamis_error *error) {
    TMS_ENTER(store);
    TMS_REQUIRE(store, TAMIS_E_ARGUMENT, "store: NULL");
    TMS_REQUIRE(count, TAMIS_E_ARGUMENT, "count: NULL");
    TMS_REQUIRE(infos || capacity == 0, TAMIS_E_ARGUMENT, "infos: NULL for %zu entries", capacity);
    *count = 0;
    tamis_status status = TAMIS_OK;
    for (int t = 0; status == TAMIS_OK && t < TAMIS_TIERS; t++)
        if (store->shelves[t].tier) status = tms_shelf_refresh(store, &store->shelves[t], error);
    tms_store_note(store, status);
    if (status != TAMIS_OK) return status;
    tms_store_lock(store);
    for (int t = 0; t < TAMIS_TIERS; t++) {
        const tms_entry *entry = store->shelves[t].index.oldest;
        for (; entry; entry = entry->newer) {
            if (listed_before(store, t, entry)) continue;
            if (*count < capacity) infos[*count] = info_of(store, entry);
            ++*count;
        }
    }
    tms_store_unlock(store);
    return TAMIS_OK;
}

/* ---- Removing -------------------------------------------------------------------------------- */

static bool remove_from_memory(tamis_store *store, const tamis_chunk_id *id, const uint8_t *key) {
    tms_store_lock(store);
    tms_entry *entry = find_in(store, TAMIS_TIER_MEMORY, key);
    const bool found = entry && tms_record_is(tms_copy_record(entry->copy), id);
    if (found) tms_index_drop(&store->shelves[TAMIS_TIER_MEMORY].index, entry);
    tms_store_unlock(store);
    return found;
}

/* A record that cannot be read goes by its name. */
static tamis_status remove_from(tamis_store *store, tms_shelf *shelf, const tamis_chunk_id *id,
                                const uint8_t *key, bool *found, tamis_error *error) {
    tms_look look;
    bool other = false;
    tamis_status status = tms_shelf_look(store, shelf, id, key, &look, error);
    const bool unread = status == TAMIS_E_IO;
    tms_shelf_note(store, shelf, status);
    if (status != TAMIS_OK && !unread) return status;
    if (!look.object && !unread) return TAMIS_OK;
    status = shelf->tier->ops->erase(shelf->tier, key, look.object, &other, error);
    tms_store_lock(store);
    const bool there = look.object || tms_index_find(&shelf->index, key);
    if (status == TAMIS_OK && !other) tms_shelf_unnamed(shelf, key);
    tms_store_unlock(store);
    tms_look_end(store, shelf, &look);
    if (status == TAMIS_OK) status = shelf->tier->ops->settle(shelf->tier, error);
    *found = *found || (there && status == TAMIS_OK);
    return status;
}

/* Without an id: whatever record has the key. */
static tamis_status remove_all(tamis_store *store, const tamis_chunk_id *id, const uint8_t *key,
                               int *removed, tamis_error *error) {
    tms_claim claim;
    tms_claim_begin(store, &claim, key);
    bool found = remove_from_memory(store, id, key);
    tamis_status status = TAMIS_OK;
    for (int t = 0; t < TAMIS_TIERS; t++) {
        if (!store->shelves[t].tier) continue;
        tamis_error *reason = status == TAMIS_OK ? error : NULL;
        const tamis_status one = remove_from(store, &store->shelves[t], id, key, &found, reason);
        if (status == TAMIS_OK) status = one;
    }
    tms_claim_end(store, &claim);
    if (removed) *removed = found;
    tms_store_note(store, status);
    return status;
}

tamis_status tamis_store_remove(tamis_store *store, const tamis_chunk_id *id, int *removed,
                                tamis_error *error) {
    TMS_ENTER(store);
    uint8_t key[TMS_KEY_BYTES];
    if (removed) *removed = 0;
    TMS_REQUIRE(store, TAMIS_E_ARGUMENT, "store: NULL");
    TMS_TRY(tms_id_check(id, error));
    tms_key_of(id, key);
    return remove_all(store, id, key, removed, error);
}

tamis_status tamis_store_remove_key(tamis_store *store, const uint8_t key[16], int *removed,
                                    tamis_error *error) {
    TMS_ENTER(store);
    if (removed) *removed = 0;
    TMS_REQUIRE(store, TAMIS_E_ARGUMENT, "store: NULL");
    TMS_REQUIRE(key, TAMIS_E_ARGUMENT, "key: NULL");
    return remove_all(store, NULL, key, removed, error);
}
