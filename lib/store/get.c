/* SPDX-License-Identifier: Apache-2.0 */
/* Finding a chunk, reading its planes, giving it back. */
#include "lib/store/shelf.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- Memory ---------------------------------------------------------------------------------- */

static tms_shelf *memory_of(tamis_store *store) {
    return &store->shelves[TAMIS_TIER_MEMORY];
}

/* Pins the record in memory, if it is there; under no mutex. False: there is another chunk. */
static bool look_in_memory(tamis_chunk *chunk, const tamis_chunk_id *id, const uint8_t *key) {
    tms_index *index = &memory_of(chunk->store)->index;
    bool same = true;
    if (index->limit == 0) return true;
    tms_store_lock(chunk->store);
    tms_entry *entry = tms_index_find(index, key);
    if (entry) same = tms_record_is(tms_copy_record(entry->copy), id);
    if (entry && same) {
        tms_index_pin(index, entry);
        tms_index_use(index, entry);
        chunk->in_memory = entry;
        chunk->record = tms_copy_record(entry->copy);
    }
    tms_store_unlock(chunk->store);
    return same;
}

/* Gives the record in memory back; `drop`: it is of no use to anybody. */
static void leave_memory(tamis_chunk *chunk, bool drop) {
    tms_index *index = &memory_of(chunk->store)->index;
    if (!chunk->in_memory) return;
    tms_store_lock(chunk->store);
    if (drop && !chunk->in_memory->dead) tms_index_drop(index, chunk->in_memory);
    tms_index_unpin(index, chunk->in_memory);
    tms_store_unlock(chunk->store);
    chunk->in_memory = NULL;
}

/* Adds an entry whose bytes are reserved, unless another thread has been faster. */
static tms_entry *enter_memory(tamis_store *store, tms_entry *entry) {
    tms_shelf *shelf = memory_of(store);
    const tms_record *record = tms_copy_record(entry->copy);
    tms_store_lock(store);
    tms_shelf_unreserve(shelf, entry->bytes);
    tms_entry *same = tms_index_find(&shelf->index, record->key);
    if (same && tms_copy_record(same->copy)->checksum == record->checksum) {
        tms_index_refuse(&shelf->index, entry);
        entry = same;
    } else {
        tms_index_add(&shelf->index, entry);
        tms_index_use(&shelf->index, entry);
        shelf->counts.promoted++;
    }
    tms_index_pin(&shelf->index, entry);
    tms_store_unlock(store);
    return entry;
}

/* Makes room in memory for what was found behind it, which comes as it is read. A record for which
 * there is no room stays where it is. */
static void promote(tamis_chunk *chunk) {
    tms_shelf *shelf = memory_of(chunk->store);
    const tms_record *record = &chunk->object->record;
    tms_copy *copy = NULL;
    tms_entry *entry = NULL;
    if (shelf->index.limit == 0) return;
    tms_store_lock(chunk->store);
    const tamis_status status = tms_shelf_reserve(chunk->store, shelf, record->record_bytes, NULL);
    tms_store_unlock(chunk->store);
    if (status != TAMIS_OK) return;
    if (tms_copy_new(record, &copy, NULL) == TAMIS_OK) entry = tms_entry_new(record, copy);
    if (entry) {
        chunk->in_memory = enter_memory(chunk->store, entry);
        return;
    }
    tms_copy_free(copy);
    tms_store_lock(chunk->store);
    tms_shelf_unreserve(shelf, record->record_bytes);
    tms_store_unlock(chunk->store);
}

/* ---- Finding --------------------------------------------------------------------------------- */

static bool all_in_memory(const tamis_chunk *chunk) {
    return chunk->in_memory && tms_copy_complete(chunk->in_memory->copy);
}

/* Looks in the tiers behind memory, the nearest first. One that fails does not hide those behind it;
 * its reason is answered if none of these has the record. A remote one that fails has no record. */
static tamis_status look_behind(tamis_chunk *chunk, const tamis_chunk_id *id, const uint8_t *key,
                                bool *mismatched, tamis_error *error) {
    tms_look look = {0};
    tamis_error reason, *first = &reason;
    tamis_status failed = TAMIS_OK;
    for (int t = 0; t < TAMIS_TIERS && !look.object; t++) {
        tms_shelf *shelf = &chunk->store->shelves[t];
        if (!shelf->tier) continue;
        const tamis_status status = tms_shelf_look(chunk->store, shelf, id, key, &look, first);
        const bool missed = status == TAMIS_E_IO && shelf->tier->ops->remote;
        tms_shelf_note(chunk->store, shelf, status);
        if (status != TAMIS_OK && (failed != TAMIS_OK || missed))
            tms_store_note(chunk->store, status);
        else if (status != TAMIS_OK) {
            failed = status;
            first = NULL;
        }
        *mismatched = *mismatched || look.mismatched;
        chunk->shelf = shelf;
    }
    chunk->object = look.object;
    chunk->behind = look.entry;
    if (failed == TAMIS_OK) return TAMIS_OK;
    if (!look.object && error) *error = reason;
    if (look.object) tms_store_note(chunk->store, failed);
    return look.object ? TAMIS_OK : failed;
}

/* Planes in memory are of the very record that is behind it, or of none: two records of a chunk,
 * of two devices say, are not mixed. */
static void join(tamis_chunk *chunk) {
    if (chunk->in_memory && (!chunk->object || tms_copy_record(chunk->in_memory->copy)->checksum !=
                                                   chunk->object->record.checksum))
        leave_memory(chunk, true);
    if (chunk->object && !chunk->in_memory) promote(chunk);
    chunk->record = chunk->object ? &chunk->object->record : NULL;
}

static tamis_status find(tamis_chunk *chunk, const tamis_chunk_id *id, const uint8_t *key,
                         bool *mismatched, tamis_error *error) {
    *mismatched = !look_in_memory(chunk, id, key);
    if (all_in_memory(chunk)) return TAMIS_OK;
    const tamis_status status = look_behind(chunk, id, key, mismatched, error);
    /* Another thread may have brought the last plane meanwhile. */
    if (status == TAMIS_OK && (chunk->object || !all_in_memory(chunk))) join(chunk);
    return status;
}

static void count(tamis_chunk *chunk, bool mismatched) {
    tamis_store *store = chunk->store;
    tms_store_lock(store);
    if (chunk->record) {
        store->counts.hits++;
        (chunk->object ? chunk->shelf : memory_of(store))->counts.hits++;
    } else {
        store->counts.misses++;
        store->counts.mismatched += mismatched;
    }
    tms_store_unlock(store);
}

static void end(tms_life *life) {
    tamis_chunk *chunk = (tamis_chunk *)life;
    leave_memory(chunk, false);
    if (chunk->object) {
        tms_look look = {.object = chunk->object, .entry = chunk->behind};
        tms_look_end(chunk->store, chunk->shelf, &look);
    }
    free(chunk);
}

/* Finds a chunk of an id that has been checked, pins and counts it. */
static tamis_status get(tamis_store *store, const tamis_chunk_id *id, const uint8_t *key,
                        tamis_chunk **out, tamis_error *error) {
    bool mismatched = false;
    tamis_chunk *chunk = calloc(1, sizeof *chunk);
    TMS_REQUIRE(chunk, TAMIS_E_NO_MEMORY, "no memory for a chunk");
    tms_life_begin(&chunk->life, "chunk", &store->life, NULL, end);
    chunk->store = store;
    const tamis_status status = find(chunk, id, key, &mismatched, error);
    if (status == TAMIS_OK) count(chunk, mismatched);
    if (status == TAMIS_OK && chunk->record)
        *out = chunk;
    else
        tamis_chunk_release(&chunk);
    tms_store_note(store, status);
    return status;
}

tamis_status tamis_store_get(tamis_store *store, const tamis_chunk_id *id, tamis_chunk **out,
                             tamis_error *error) {
    uint8_t key[TMS_KEY_BYTES];
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out: NULL");
    *out = NULL;
    TMS_ENTER(store);
    TMS_REQUIRE(store, TAMIS_E_ARGUMENT, "store: NULL");
    TMS_TRY(tms_id_check(id, error));
    tms_key_of(id, key);
    TMS_TRY(get(store, id, key, out, error));
    if (*out) tms_store_touch_line(store, key);
    return TAMIS_OK;
}

tamis_status tamis_store_get_prefix(tamis_store *store, const tamis_chunk_id *id,
                                    uint32_t page_tokens, tamis_chunk **out, size_t capacity,
                                    size_t *n_pages, tamis_error *error) {
    TMS_ENTER(store);
    TMS_REQUIRE(n_pages, TAMIS_E_ARGUMENT, "n_pages: NULL");
    *n_pages = 0;
    TMS_REQUIRE(store, TAMIS_E_ARGUMENT, "store: NULL");
    TMS_REQUIRE(out || capacity == 0, TAMIS_E_ARGUMENT, "out: NULL for %zu pages", capacity);
    TMS_TRY(tms_prefix_check(id, page_tokens, error));
    tamis_chunk_id page = *id;
    tamis_status status = TAMIS_OK;
    page.n_tokens = page_tokens;
    size_t n = 0;
    for (; n < capacity && n < id->n_tokens / page_tokens; n++) {
        uint8_t key[TMS_KEY_BYTES];
        page.tokens = id->tokens + n * page_tokens;
        tms_key_of(&page, key);
        out[n] = NULL;
        status = get(store, &page, key, &out[n], error);
        if (!out[n]) break;
        memcpy(page.parent, key, sizeof key);
    }
    if (n > 0) tms_store_touch_line(store, page.parent);
    for (size_t i = n; i > 0; i--) /* later processes go by the order of the files */
        if (out[i - 1]->object) out[i - 1]->shelf->tier->ops->touch(out[i - 1]->object);
    *n_pages = n;
    return status;
}

void tamis_chunk_release(tamis_chunk **chunk) {
    if (!chunk || !*chunk) return;
    tms_life_close(&(*chunk)->life, NULL);
    *chunk = NULL;
}

/* ---- Reading --------------------------------------------------------------------------------- */

void tamis_chunk_get_info(const tamis_chunk *chunk, tamis_chunk_info *out) {
    if (!chunk || !out) return;
    const tms_record *record = chunk->record;
    *out = (tamis_chunk_info){.tokens = record->tokens,
                              .n_tokens = record->n_tokens,
                              .shape = record->shape,
                              .plane_bytes = record->plane_bytes,
                              .record_bytes = record->record_bytes,
                              .damaged = atomic_load(&chunk->damaged)};
    memcpy(out->key, record->key, sizeof out->key);
    memcpy(out->fingerprint, record->fingerprint, sizeof out->fingerprint);
    memcpy(out->salt, record->salt, sizeof out->salt);
    memcpy(out->parent, record->parent, sizeof out->parent);
    if (chunk->in_memory) out->tiers |= 1u << TAMIS_TIER_MEMORY;
    if (chunk->object) out->tiers |= 1u << chunk->object->tier->ops->tier;
}

/* The record is of no use any more, in any tier; the first thread to see it removes it. */
static void condemn(tamis_chunk *chunk) {
    if (atomic_exchange(&chunk->damaged, true)) return;
    tms_index *memory = &memory_of(chunk->store)->index;
    (void)tms_shelf_condemn(chunk->store, chunk->shelf, chunk->record->key, chunk->object, NULL);
    tms_store_lock(chunk->store);
    if (chunk->in_memory && !chunk->in_memory->dead) tms_index_drop(memory, chunk->in_memory);
    tms_store_unlock(chunk->store);
}

static tamis_status read_plane(tamis_chunk *chunk, uint32_t plane, void *to, tamis_error *error) {
    tms_copy *copy = chunk->in_memory ? chunk->in_memory->copy : NULL;
    if (!to || (copy && tms_copy_read(copy, plane, to))) return TAMIS_OK;
    const tamis_status status =
        tms_record_read_plane(&chunk->object->source, chunk->record, plane, to, error);
    if (status == TAMIS_E_DAMAGED) condemn(chunk);
    tms_shelf_note(chunk->store, chunk->shelf, status);
    if (status == TAMIS_OK && copy) tms_copy_fill(copy, plane, to);
    return status;
}

tamis_status tamis_chunk_read(tamis_chunk *chunk, uint32_t layer, void *k, void *v,
                              tamis_error *error) {
    TMS_ENTER(chunk);
    TMS_REQUIRE(chunk, TAMIS_E_ARGUMENT, "chunk: NULL");
    TMS_REQUIRE(layer < chunk->record->shape.n_layers, TAMIS_E_ARGUMENT,
                "layer %" PRIu32 " of a chunk that has %" PRIu32, layer,
                chunk->record->shape.n_layers);
    TMS_REQUIRE(k || v, TAMIS_E_ARGUMENT, "layer %" PRIu32 ": neither k nor v", layer);
    if (atomic_load(&chunk->damaged)) {
        char key[TMS_KEY_TEXT];
        tms_hex(chunk->record->key, key);
        return tms_error_set(error, TAMIS_E_DAMAGED,
                             "chunk %s: an earlier read has found it damaged", key);
    }
    tamis_status status = read_plane(chunk, 2 * layer, k, error);
    if (status == TAMIS_OK) status = read_plane(chunk, 2 * layer + 1, v, error);
    tms_store_note(chunk->store, status);
    return status;
}
