/* SPDX-License-Identifier: Apache-2.0 */
/* Storing a chunk: prepared in memory, written behind it, and then found in both. */
#include "lib/core/core.h"
#include "lib/store/shelf.h"

#include <inttypes.h>
#include <stdlib.h>

/* A put on its way. */
typedef struct put {
    tamis_store *store;
    const tamis_chunk_planes *chunk;
    tms_record record;
    uint8_t *head;
    uint32_t must;    /* tiers that must take it, as bits */
    uint32_t may;     /* tiers that take it if they can */
    tms_entry *entry; /* for memory, complete; its bytes are reserved. NULL: nothing to add */
} put;

static uint32_t bit_of(int tier) {
    return 1u << tier;
}

/* ---- What is asked for ----------------------------------------------------------------------- */

static tamis_status check_tiers(put *p, tamis_error *error) {
    const uint32_t asked = p->chunk->tiers;
    uint32_t had = 0, last = 0;
    for (int t = 0; t < TAMIS_TIERS; t++) {
        if (p->store->shelves[t].index.limit == 0) continue;
        const bool remote = p->store->shelves[t].tier && p->store->shelves[t].tier->ops->remote;
        had |= bit_of(t);
        if (!remote || last == 0) last = bit_of(t);
    }
    TMS_REQUIRE((asked & ~had) == 0, TAMIS_E_ARGUMENT,
                "tiers of the chunk: 0x%" PRIx32 ", but the store has 0x%" PRIx32, asked, had);
    p->must = asked ? asked : last;
    p->may = asked ? 0 : had & ~last;
    return TAMIS_OK;
}

static tamis_status check(put *p, tamis_error *error) {
    TMS_REQUIRE(p->store, TAMIS_E_ARGUMENT, "store: NULL");
    TMS_REQUIRE(p->chunk, TAMIS_E_ARGUMENT, "chunk: NULL");
    TMS_REQUIRE(p->chunk->reserved32 == 0, TAMIS_E_ARGUMENT,
                "reserved32 of tamis_chunk_planes is %" PRIu32 "; it must be 0",
                p->chunk->reserved32);
    TMS_REQUIRE_RESERVED(p->chunk, tamis_chunk_planes);
    TMS_TRY(tms_id_check(&p->chunk->id, error));
    return check_tiers(p, error);
}

/* A record that some tier can never take is refused before any has it. */
static tamis_status check_limits(const put *p, tamis_error *error) {
    for (int t = 0; t < TAMIS_TIERS; t++)
        TMS_REQUIRE(
            !(p->must & bit_of(t)) || p->record.record_bytes <= p->store->shelves[t].index.limit,
            TAMIS_E_FULL, "a record of %" PRIu64 " bytes: the %s tier is limited to %" PRIu64,
            p->record.record_bytes, tamis_tier_name((tamis_tier)t),
            p->store->shelves[t].index.limit);
    return TAMIS_OK;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Reserves the bytes, unless memory has the whole record: *known. */
static tamis_status reserve_memory(put *p, bool *known, tamis_error *error) {
    tms_shelf *shelf = &p->store->shelves[TAMIS_TIER_MEMORY];
    tamis_status status = TAMIS_OK;
    tms_store_lock(p->store);
    tms_entry *entry = tms_index_find(&shelf->index, p->record.key);
    *known = entry && tms_record_is(tms_copy_record(entry->copy), &p->chunk->id) &&
             tms_copy_complete(entry->copy);
    if (*known) {
        shelf->counts.known++;
        tms_index_use(&shelf->index, entry);
    } else
        status = tms_shelf_reserve(p->store, shelf, p->record.record_bytes, error);
    tms_store_unlock(p->store);
    return status;
}

static void end_memory(put *p, bool keep) {
    tms_shelf *shelf = &p->store->shelves[TAMIS_TIER_MEMORY];
    if (!p->entry) return;
    tms_store_lock(p->store);
    tms_shelf_unreserve(shelf, p->record.record_bytes);
    if (keep) {
        tms_index_add(&shelf->index, p->entry);
        tms_index_use(&shelf->index, p->entry);
        shelf->counts.puts++;
    } else
        tms_index_refuse(&shelf->index, p->entry);
    tms_store_unlock(p->store);
    p->entry = NULL;
}

/* Makes the copy and leaves it in p->entry. */
static tamis_status begin_memory(put *p, tamis_error *error) {
    bool known;
    tms_copy *copy = NULL;
    TMS_TRY(reserve_memory(p, &known, error));
    if (known) return TAMIS_OK;
    tamis_status status = tms_copy_new(&p->record, &copy, error);
    if (status == TAMIS_OK) p->entry = tms_entry_new(&p->record, copy);
    if (status == TAMIS_OK && !p->entry)
        status = tms_error_set(error, TAMIS_E_NO_MEMORY, "no memory for a chunk's entry");
    if (status != TAMIS_OK) {
        tms_copy_free(copy);
        tms_store_lock(p->store);
        tms_shelf_unreserve(&p->store->shelves[TAMIS_TIER_MEMORY], p->record.record_bytes);
        tms_store_unlock(p->store);
        return status;
    }
    for (uint32_t i = 0; i < p->record.shape.n_layers; i++) {
        tms_copy_fill(copy, 2 * i, p->chunk->k[i]);
        tms_copy_fill(copy, 2 * i + 1, p->chunk->v[i]);
    }
    return TAMIS_OK;
}

/* ---- Behind it ------------------------------------------------------------------------------- */

/* Gives the record its name, and then its entry. Takes both over. */
static tamis_status commit(put *p, tms_shelf *shelf, tms_staged *staged, tms_entry *entry,
                           tamis_error *error) {
    const tamis_status status = shelf->tier->ops->commit(shelf->tier, staged, error);
    tms_store_lock(p->store);
    tms_shelf_unreserve(shelf, p->record.record_bytes);
    if (status == TAMIS_OK) {
        tms_shelf_named(shelf, entry);
        shelf->counts.puts++;
        shelf->written += p->record.record_bytes;
    } else
        tms_index_refuse(&shelf->index, entry);
    tms_store_unlock(p->store);
    return status;
}

static tamis_status write_behind(put *p, tms_shelf *shelf, tamis_error *error) {
    tms_staged *staged = NULL;
    tms_store_lock(p->store);
    tamis_status status = tms_shelf_reserve(p->store, shelf, p->record.record_bytes, error);
    tms_store_unlock(p->store);
    if (status != TAMIS_OK) return status;
    tms_entry *entry = tms_entry_new(&p->record, NULL);
    if (!entry)
        status = tms_error_set(error, TAMIS_E_NO_MEMORY, "no memory for a chunk's entry");
    else
        status =
            shelf->tier->ops->stage(shelf->tier, &p->record, p->head, p->chunk, &staged, error);
    if (status == TAMIS_OK) return commit(p, shelf, staged, entry, error);
    free(entry);
    tms_store_lock(p->store);
    tms_shelf_unreserve(shelf, p->record.record_bytes);
    tms_store_unlock(p->store);
    return status;
}

/* Writes the record, unless it is there; *known says so. */
static tamis_status put_behind(put *p, tms_shelf *shelf, bool *known, tamis_error *error) {
    tms_look look;
    TMS_TRY(tms_shelf_look(p->store, shelf, &p->chunk->id, p->record.key, &look, error));
    const bool there = look.object;
    tms_look_end(p->store, shelf, &look);
    *known = *known || there;
    tms_store_lock(p->store);
    shelf->counts.known += there;
    tms_store_unlock(p->store);
    if (!there) TMS_TRY(write_behind(p, shelf, error));
    /* What another process has just written must be settled too before it is answered for. */
    return shelf->tier->ops->settle(shelf->tier, error);
}

/* Other processes fill a tier too: from time to time it is looked at anew. */
static tamis_status refresh_late(const put *p, tms_shelf *shelf, tamis_error *error) {
    tms_store_lock(p->store);
    const bool late = shelf->written > shelf->index.limit / 16;
    tms_store_unlock(p->store);
    return late ? tms_shelf_refresh(p->store, shelf, error) : TAMIS_OK;
}

/* Does that for each tier behind memory that takes the record, the last first. What fails where it
 * may is counted. */
static tamis_status each_behind(put *p, bool refresh, bool *known, tamis_error *error) {
    for (int t = TAMIS_TIERS - 1; t > TAMIS_TIER_MEMORY; t--) {
        tms_shelf *shelf = &p->store->shelves[t];
        const bool must = p->must & bit_of(t);
        tamis_error *reason = must ? error : NULL;
        if (!must && !(p->may & bit_of(t))) continue;
        const tamis_status status =
            refresh ? refresh_late(p, shelf, reason) : put_behind(p, shelf, known, reason);
        tms_shelf_note(p->store, shelf, status);
        if (must && status != TAMIS_OK) return status;
        if (status == TAMIS_E_IO) tms_store_note(p->store, status);
        if (status != TAMIS_OK) p->may &= ~bit_of(t);
    }
    return TAMIS_OK;
}

/* Nobody else puts or removes the record meanwhile: who comes second finds it. */
static tamis_status run_claimed(put *p, tamis_error *error) {
    const bool must = p->must & bit_of(TAMIS_TIER_MEMORY);
    bool known = false;
    tamis_status status = TAMIS_OK;
    if (must || p->may & bit_of(TAMIS_TIER_MEMORY)) status = begin_memory(p, must ? error : NULL);
    if (!must) status = TAMIS_OK;
    if (status == TAMIS_OK) status = each_behind(p, false, &known, error);
    /* What a later tier has had before stays the record; it comes to memory when it is read. */
    end_memory(p, status == TAMIS_OK && !(known && !must));
    return status;
}

static tamis_status run(put *p, tamis_error *error) {
    tms_claim claim;
    TMS_TRY(each_behind(p, true, NULL, error));
    tms_claim_begin(p->store, &claim, p->record.key);
    const tamis_status status = run_claimed(p, error);
    tms_claim_end(p->store, &claim);
    if (status == TAMIS_OK && !tms_key_none(p->record.parent))
        tms_store_touch_line(p->store, p->record.key);
    return status;
}

tamis_status tamis_store_put(tamis_store *store, const tamis_chunk_planes *chunk,
                             tamis_error *error) {
    TMS_ENTER(store);
    put p = {.store = store, .chunk = chunk};
    TMS_TRY(check(&p, error));
    TMS_TRY(tms_record_describe(chunk, &p.record, error));
    tamis_status status = check_limits(&p, error);
    if (status == TAMIS_OK) {
        p.head = tms_record_encode(&p.record);
        if (!p.head) status = tms_error_set(error, TAMIS_E_NO_MEMORY, "no memory for a header");
    }
    if (status == TAMIS_OK) status = run(&p, error);
    free(p.head);
    tms_record_free(&p.record);
    tms_store_note(store, status);
    return status;
}
