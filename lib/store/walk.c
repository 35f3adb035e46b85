/* SPDX-License-Identifier: Apache-2.0 */
/* Walks through all records: verify and gc. */
#include "lib/store/shelf.h"

#include <stdlib.h>

/* Reads all planes; *verdict becomes TMS_DAMAGED where one is. */
static tamis_status read_planes(const tms_object *object, tms_verdict *verdict,
                                tamis_error *error) {
    void *plane = malloc(object->record.plane_bytes);
    TMS_REQUIRE(plane, TAMIS_E_NO_MEMORY, "no memory for a plane");
    tamis_status status = TAMIS_OK;
    for (uint32_t i = 0; status == TAMIS_OK && i < tms_record_planes(&object->record); i++)
        status = tms_record_read_plane(&object->source, &object->record, i, plane, error);
    free(plane);
    if (status != TAMIS_E_DAMAGED) return status;
    *verdict = TMS_DAMAGED;
    return TAMIS_OK;
}

/* Removes a record of another version, which no entry is for. */
static tamis_status remove_foreign(tamis_store *store, tms_shelf *shelf, const uint8_t *key,
                                   const tms_object *object, tamis_error *error) {
    tms_claim claim;
    tms_claim_begin(store, &claim, key);
    const tamis_status status = shelf->tier->ops->erase(shelf->tier, key, object, NULL, error);
    tms_claim_end(store, &claim);
    return status;
}

/* verify reads planes; gc removes what is foreign. *there: there was a record. */
static tamis_status inspect(tamis_store *store, tms_shelf *shelf, const uint8_t *key, bool verify,
                            bool *there, tamis_store_found *out, tamis_error *error) {
    const tms_tier_ops *ops = shelf->tier->ops;
    tms_object *object = NULL;
    tms_verdict verdict;
    tamis_error reason;
    TMS_TRY(ops->find(shelf->tier, key, &object, &verdict, error));
    *there = object != NULL;
    if (!object) return TAMIS_OK;
    tamis_status status = TAMIS_OK;
    if (verdict == TMS_SOUND && verify) {
        status = read_planes(object, &verdict, &reason);
        if (status != TAMIS_OK && error) *error = reason;
    }
    if (status == TAMIS_OK && verdict == TMS_FOREIGN && !verify)
        status = remove_foreign(store, shelf, key, object, error);
    if (status == TAMIS_OK) {
        out->records += verdict == TMS_SOUND;
        out->bytes += verdict == TMS_SOUND ? object->record.record_bytes : 0;
        out->damaged += verdict == TMS_DAMAGED;
        out->foreign += verdict == TMS_FOREIGN;
    }
    if (status == TAMIS_OK && verdict == TMS_DAMAGED) {
        status = tms_shelf_condemn(store, shelf, key, object, error);
        out->damaged_left += status != TAMIS_OK;
    }
    ops->done(object);
    return status;
}

/* A record that cannot be read keeps the walk from no other; the first reason is answered. */
static tamis_status inspect_all(tamis_store *store, tms_shelf *shelf, bool verify,
                                tamis_store_found *out, tamis_error *error) {
    tms_keys keys = {0};
    double lost_us = 0;
    tamis_status status = shelf->tier->ops->walk(shelf->tier, &keys, error);
    if (status != TAMIS_OK) keys.count = 0;
    for (size_t i = 0; i < keys.count; i++) {
        tamis_error *reason = status == TAMIS_OK ? error : NULL;
        const double began = tms_now_us();
        bool there = false;
        tamis_status one = inspect(store, shelf, keys.keys[i], verify, &there, out, reason);
        if (!there) lost_us += tms_now_us() - began;
        const tamis_status over = tms_tier_patience(shelf->tier, lost_us, one ? NULL : reason);
        if (one == TAMIS_OK) one = over;
        if (status == TAMIS_OK) status = one;
        if (over != TAMIS_OK) break;
    }
    free(keys.keys);
    return status;
}

tamis_status tamis_store_verify(tamis_store *store, tamis_store_found *out, tamis_error *error) {
    TMS_ENTER(store);
    TMS_REQUIRE(store, TAMIS_E_ARGUMENT, "store: NULL");
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out: NULL");
    *out = (tamis_store_found){0};
    tamis_status status = TAMIS_OK;
    for (int t = 0; t < TAMIS_TIERS; t++) {
        if (!store->shelves[t].tier) continue;
        tamis_error *reason = status == TAMIS_OK ? error : NULL;
        const tamis_status one = inspect_all(store, &store->shelves[t], true, out, reason);
        if (status == TAMIS_OK) status = one;
    }
    tms_store_note(store, status);
    return status;
}

static tamis_status gc(tamis_store *store, tms_shelf *shelf, tamis_store_found *out,
                       tamis_error *error) {
    uint64_t removed = 0;
    const tamis_status swept = shelf->tier->ops->sweep(shelf->tier, &removed, error);
    out->leftovers += removed;
    tms_store_lock(store);
    store->counts.leftovers += removed;
    tms_store_unlock(store);
    if (swept != TAMIS_OK) return swept;
    const tamis_status status = inspect_all(store, shelf, false, out, error);
    if (status == TAMIS_OK) return tms_shelf_refresh(store, shelf, error);
    (void)tms_shelf_refresh(store, shelf, NULL);
    return status;
}

tamis_status tamis_store_gc(tamis_store *store, tamis_store_found *out, tamis_error *error) {
    TMS_ENTER(store);
    TMS_REQUIRE(store, TAMIS_E_ARGUMENT, "store: NULL");
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out: NULL");
    *out = (tamis_store_found){0};
    tamis_status status = TAMIS_OK;
    for (int t = 0; t < TAMIS_TIERS; t++) {
        if (!store->shelves[t].tier) continue;
        const tamis_status one =
            gc(store, &store->shelves[t], out, status == TAMIS_OK ? error : NULL);
        if (status == TAMIS_OK) status = one;
    }
    tms_store_note(store, status);
    return status;
}
