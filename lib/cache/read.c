/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a lane back to the host: its rows, its positions, its length. */
#include "lib/cache/cache.h"

#include <inttypes.h>
#include <stdlib.h>

/* Slots of one launch; bounds the workspace. */
#define CHUNK_SLOTS 1024u

/* Offsets of a chunk's tables and rows in the workspace, in bytes: page ids, then sequence and head
 * indices (zeros), slots, K and V. */
typedef struct chunk_layout {
    uint64_t zeros, slots, k, v, total;
} chunk_layout;

static chunk_layout lay_out(const tamis_cache *cache) {
    uint64_t rows = (uint64_t)CHUNK_SLOTS * cache->params.head_dim * sizeof(float);
    uint64_t list = (CHUNK_SLOTS / cache->params.page_size + 16) / 16 * 16 * sizeof(int32_t);
    chunk_layout at = {.zeros = list};
    at.slots = at.zeros + CHUNK_SLOTS * sizeof(int32_t);
    at.k = at.slots + CHUNK_SLOTS * sizeof(int32_t);
    at.v = at.k + rows;
    at.total = at.v + rows;
    return at;
}

/* Reads the `n` slots from `first` on; n is at most CHUNK_SLOTS. */
static tamis_status read_chunk(const tamis_cache *cache, const int32_t *list, uint32_t layer,
                               uint32_t first, uint32_t n, tms_mem *work, float *k, float *v,
                               tamis_error *error) {
    tms_device *dev = cache->context->dev;
    chunk_layout at = lay_out(cache);
    uint32_t page_size = cache->params.page_size, first_page = first / page_size;
    uint32_t n_pages = tms_pages_of(cache, first + n) - first_page;
    uint64_t bytes = (uint64_t)n * cache->params.head_dim * sizeof(float);
    int32_t slots[CHUNK_SLOTS];
    for (uint32_t i = 0; i < n; i++)
        slots[i] = (int32_t)(first % page_size + i);
    tms_read_rows rows = {.kv = tms_cache_kv(cache, layer),
                          .table = {work, 0},
                          .n = n,
                          .seq = {work, at.zeros},
                          .head = {work, at.zeros},
                          .slot = {work, at.slots},
                          .k = {k ? work : NULL, at.k},
                          .v = {v ? work : NULL, at.v}};
    TMS_TRY(tms_device_write(dev, rows.table, list + first_page, n_pages * sizeof *list, error));
    TMS_TRY(tms_device_fill(dev, rows.seq, 0, n * sizeof *slots, error));
    TMS_TRY(tms_device_write(dev, rows.slot, slots, n * sizeof *slots, error));
    TMS_TRY(tms_run_read_rows(dev, &rows, error));
    if (k) TMS_TRY(tms_device_read(dev, rows.k, k, bytes, error));
    if (v) TMS_TRY(tms_device_read(dev, rows.v, v, bytes, error));
    return TAMIS_OK;
}

/* The number of a lane in its sequence. */
static tamis_status find_lane(const tamis_cache *cache, uint32_t layer, uint32_t kv_head,
                              uint32_t *index, tamis_error *error) {
    const tamis_cache_params *p = &cache->params;
    TMS_REQUIRE(layer < p->n_layers, TAMIS_E_ARGUMENT, "layer %" PRIu32 " is not below %" PRIu32,
                layer, p->n_layers);
    TMS_REQUIRE(kv_head < p->n_kv_heads, TAMIS_E_ARGUMENT,
                "kv_head %" PRIu32 " is not below %" PRIu32, kv_head, p->n_kv_heads);
    *index = layer * p->n_kv_heads + kv_head;
    return TAMIS_OK;
}

static tamis_status check_slots(const tamis_cache *cache, const tms_lane *lane, uint32_t first,
                                uint32_t count, tamis_error *error) {
    const uint32_t gone = lane->gone * cache->params.page_size;
    TMS_REQUIRE(first <= lane->length && count <= lane->length - first, TAMIS_E_ARGUMENT,
                "slots [%" PRIu32 ", %" PRIu64 ") are not in a lane of %" PRIu32 " slots", first,
                (uint64_t)first + count, lane->length);
    TMS_REQUIRE(count == 0 || first >= gone, TAMIS_E_STATE,
                "slot %" PRIu32 " is in a page that was given back; the lane holds slots from %" PRIu32
                " on",
                first, gone);
    return TAMIS_OK;
}

tamis_status tamis_cache_read(tamis_cache *cache, tamis_sequence sequence, uint32_t layer,
                              uint32_t kv_head, uint32_t first, uint32_t count, float *k, float *v,
                              tamis_error *error) {
    TMS_ENTER(cache);
    tms_sequence *s = NULL;
    TMS_TRY(tms_cache_find_idle(cache, sequence, &s, error));
    uint32_t index = 0, dim = cache->params.head_dim;
    TMS_TRY(find_lane(cache, layer, kv_head, &index, error));
    TMS_TRY(check_slots(cache, &s->lanes[index], first, count, error));
    tms_device *dev = cache->context->dev;
    tms_mem *work = NULL;
    if (count == 0 || (!k && !v)) return TAMIS_OK;
    tamis_status status = tms_device_alloc(dev, lay_out(cache).total, &work, error);
    for (uint32_t done = 0; done < count && status == TAMIS_OK; done += CHUNK_SLOTS) {
        uint32_t n = count - done < CHUNK_SLOTS ? count - done : CHUNK_SLOTS;
        size_t at = (size_t)done * dim;
        status = read_chunk(cache, tms_lane_pages(s, index), layer, first + done, n, work,
                            k ? k + at : NULL, v ? v + at : NULL, error);
    }
    tms_device_free(dev, work);
    return status;
}

/* Reads a plane's entries of slots [first, first + count), with one read for consecutive pages. */
static tamis_status read_plane(const tamis_cache *cache, tms_ref plane, const int32_t *list,
                               uint32_t first, uint32_t count, int32_t *to, tamis_error *error) {
    tms_device *dev = cache->context->dev;
    uint32_t page_size = cache->params.page_size, n = 0;
    for (uint32_t done = 0; done < count; done += n) {
        uint32_t ordinal = (first + done) / page_size, slot = (first + done) % page_size;
        uint64_t entry = (uint64_t)list[ordinal] * page_size + slot;
        n = page_size - slot;
        for (; n < count - done && list[ordinal + 1] == list[ordinal] + 1; ordinal++)
            n += page_size;
        if (n > count - done) n = count - done;
        tms_ref from = {plane.mem, plane.offset + entry * sizeof *to};
        TMS_TRY(tms_device_read(dev, from, to + done, (uint64_t)n * sizeof *to, error));
    }
    return TAMIS_OK;
}

tamis_status tamis_cache_read_positions(tamis_cache *cache, tamis_sequence sequence, uint32_t layer,
                                        uint32_t kv_head, uint32_t first, uint32_t count,
                                        int32_t *positions, tamis_error *error) {
    TMS_ENTER(cache);
    tms_sequence *s = NULL;
    uint32_t index = 0;
    TMS_TRY(tms_cache_find_idle(cache, sequence, &s, error));
    TMS_TRY(find_lane(cache, layer, kv_head, &index, error));
    TMS_TRY(check_slots(cache, &s->lanes[index], first, count, error));
    TMS_REQUIRE(positions, TAMIS_E_ARGUMENT, "positions is NULL");
    tms_ref plane = tms_cache_planes(cache, layer).positions;
    if (plane.mem)
        return read_plane(cache, plane, tms_lane_pages(s, index), first, count, positions, error);
    for (uint32_t i = 0; i < count; i++)
        positions[i] = (int32_t)(first + i);
    return TAMIS_OK;
}

tamis_status tamis_cache_lane_length(const tamis_cache *cache, tamis_sequence sequence,
                                     uint32_t layer, uint32_t kv_head, uint32_t *length,
                                     tamis_error *error) {
    TMS_ENTER(cache);
    TMS_REQUIRE(cache, TAMIS_E_ARGUMENT, "cache is NULL");
    TMS_REQUIRE(length, TAMIS_E_ARGUMENT, "length is NULL");
    const tms_sequence *s = tms_cache_find(cache, sequence);
    uint32_t index = 0;
    TMS_REQUIRE(s, TAMIS_E_ARGUMENT, "the cache has no sequence %" PRIu64, sequence);
    TMS_TRY(find_lane(cache, layer, kv_head, &index, error));
    *length = s->lanes[index].length;
    return TAMIS_OK;
}
