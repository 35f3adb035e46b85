/* SPDX-License-Identifier: Apache-2.0 */
/* From which slot on rows see: the kinds of layers, their tables, and the lookup in planes. */
#include "lib/plan/sight.h"

#include <inttypes.h>
#include <stdlib.h>

static bool has_plane(const tms_sight *sight) {
    return sight->setup->cache->params.planes & TAMIS_PLANE_POSITIONS;
}

/* ---- Kinds ----------------------------------------------------------------------------------- */

static tms_sight_kind kind_of(const tamis_attention *a) {
    tms_sight_kind kind = {.window = a->sliding_window, .chunk = a->chunk};
    kind.most = kind.window;
    if (kind.chunk && (kind.most == 0 || kind.chunk < kind.most)) kind.most = kind.chunk;
    return kind;
}

static uint32_t find(const tms_sight *sight, const tms_sight_kind *kind) {
    uint32_t i = 0;
    while (i < sight->n &&
           (sight->kinds[i].window != kind->window || sight->kinds[i].chunk != kind->chunk))
        i++;
    return i;
}

uint32_t tms_sight_least(const tms_sight_kind *kind, uint32_t position) {
    uint32_t least = 0;
    if (kind->window && position >= kind->window) least = position - kind->window + 1;
    if (kind->chunk && position - position % kind->chunk > least)
        least = position - position % kind->chunk;
    return least;
}

uint32_t tms_sight_shortest(const tms_sight_kind *kind, uint32_t slot) {
    uint32_t shortest = UINT32_MAX;
    if (slot == 0) return 0;
    if (kind->window) shortest = slot + kind->window - 1;
    if (kind->chunk) {
        const uint32_t chunks = (uint32_t)tms_divide_up(slot, kind->chunk) * kind->chunk;
        if (chunks < shortest) shortest = chunks;
    }
    return shortest;
}

uint64_t tamis_layer_tokens(const tamis_attention *attention, uint32_t page_size, uint32_t rows) {
    if (!attention) return 0;
    const tms_sight_kind kind = kind_of(attention);
    if (kind.most == 0) return UINT64_MAX;
    /* What the first row sees, beside itself, what may be truncated, and a page that begins before. */
    const uint64_t size = page_size ? page_size : 16;
    return (kind.most - 1ull) + TAMIS_KEPT_TOKENS + size - 1 + rows;
}

tamis_status tms_sight_create(tms_sight *sight, tamis_error *error) {
    const tms_setup *setup = sight->setup;
    const uint32_t n_layers = setup->cache->params.n_layers;
    const uint64_t entries = (uint64_t)setup->params.max_rows * setup->cache->params.n_kv_heads;
    sight->kinds = tms_memory_host(setup->memory, n_layers, sizeof *sight->kinds);
    sight->kind_of = tms_memory_host(setup->memory, n_layers, sizeof *sight->kind_of);
    TMS_REQUIRE(sight->kinds && sight->kind_of, TAMIS_E_NO_MEMORY,
                "no host memory for what %" PRIu32 " layers see", n_layers);
    for (uint32_t layer = 0; layer < n_layers; layer++) {
        const tms_sight_kind kind = kind_of(&setup->layers[layer].attention);
        const uint32_t index = kind.most ? find(sight, &kind) : UINT32_MAX;
        if (index == sight->n) sight->kinds[sight->n++] = kind;
        sight->kind_of[layer] = index;
    }
    if (sight->n == 0 || !has_plane(sight)) return TAMIS_OK;
    return tms_memory_take(setup->memory, entries * sizeof(int32_t), &sight->first, error);
}

void tms_sight_destroy(tms_sight *sight) {
    if (sight->first) tms_device_free(sight->setup->dev, sight->first);
    free(sight->kinds);
    free(sight->kind_of);
}

/* ---- Tables ---------------------------------------------------------------------------------- */

static void place(void *room, const tms_step_size *size, uint64_t *end) {
    tms_sight *sight = room;
    const uint64_t heads = has_plane(sight) ? 1 : sight->setup->cache->params.n_kv_heads;
    for (uint32_t i = 0; i < sight->n; i++)
        sight->kinds[i].table = tms_arena_place(end, heads * size->rows);
}

static void fill(void *room, const tms_step *step) {
    const tms_sight *sight = room;
    const uint32_t heads = has_plane(sight) ? 1 : sight->setup->cache->params.n_kv_heads;
    for (uint32_t i = 0; i < sight->n; i++) {
        int32_t *to = step->tables.host + sight->kinds[i].table;
        for (uint32_t row = 0; row < step->n_rows; row++) {
            const uint32_t least = tms_sight_least(&sight->kinds[i], step->position[row]);
            for (uint32_t h = 0; h < heads; h++)
                *to++ = (int32_t)least;
        }
    }
}

tms_step_room tms_sight_room(tms_sight *sight) {
    return (tms_step_room){sight, place, fill};
}

/* ---- A layer --------------------------------------------------------------------------------- */

void tms_sight_limit(const tms_sight *sight, const tms_step *step, uint32_t layer,
                     tms_batch *batch) {
    const tms_sight_kind *kind = tms_sight_of(sight, layer);
    if (!kind) return;
    batch->first = sight->first ? (tms_ref){sight->first, 0} : tms_step_table(step, kind->table);
    batch->max_seen = kind->most;
}

tamis_status tms_sight_seek(const tms_sight *sight, uint32_t layer, const tms_batch *batch,
                            tms_ref least, tms_ref out, uint64_t row_stride, uint64_t head_stride,
                            tamis_error *error) {
    const tms_seek seek = {.batch = *batch,
                           .page_size = sight->setup->cache->params.page_size,
                           .positions = tms_cache_planes(sight->setup->cache, layer).positions,
                           .least = least,
                           .out = out,
                           .row_stride = row_stride,
                           .head_stride = head_stride};
    return tms_run_seek(sight->setup->dev, &seek, error);
}

tamis_status tms_sight_find(const tms_sight *sight, const tms_step *step, uint32_t layer,
                            uint32_t section, const tms_batch *batch, tamis_error *error) {
    const tms_sight_kind *kind = tms_sight_of(sight, layer);
    if (!kind || !sight->first) return TAMIS_OK;
    return tms_sight_seek(sight, layer, batch,
                          tms_step_table(step, kind->table + step->sections[section].first_row),
                          batch->first, batch->n_kv_heads, 1, error);
}

/* ---- Pages ----------------------------------------------------------------------------------- */

tamis_status tms_sight_check_held(const tms_sight *sight, const tms_sequence *sequence,
                                  uint32_t position, tamis_error *error) {
    const tamis_cache_params *cache = &sight->setup->cache->params;
    TMS_REQUIRE(sight->n == 0 || !sequence->unordered, TAMIS_E_STATE,
                "the slots of sequence %" PRIu64
                " are not in the order of their tokens, by which a "
                "sliding window or a chunk is found",
                sequence->id);
    for (uint32_t lane = 0; sequence->shortest && lane < sight->setup->cache->n_lanes; lane++) {
        const uint32_t layer = lane / cache->n_kv_heads, gone = sequence->lanes[lane].gone;
        const tms_sight_kind *kind = tms_sight_of(sight, layer);
        const uint32_t least = kind ? tms_sight_least(kind, position) : 0;
        TMS_REQUIRE(least >= gone * cache->page_size, TAMIS_E_STATE,
                    "the row at position %" PRIu32 " of sequence %" PRIu64 " sees positions from %" PRIu32
                    " on in layer %" PRIu32 ", whose pages before position %" PRIu32
                    " were given back",
                    position, sequence->id, least, layer, gone * cache->page_size);
    }
    return TAMIS_OK;
}

void tms_sight_give_back(const tms_sight *sight, tms_sequence *sequence) {
    tamis_cache *cache = sight->setup->cache;
    const uint32_t size = cache->params.page_size;
    if (sequence->length <= TAMIS_KEPT_TOKENS) return;
    for (uint32_t lane = 0; lane < cache->n_lanes; lane++) {
        const tms_sight_kind *kind = tms_sight_of(sight, lane / cache->params.n_kv_heads);
        if (!kind) continue;
        const uint32_t least = tms_sight_least(kind, sequence->length - TAMIS_KEPT_TOKENS);
        tms_lane_give_back(cache, sequence, lane, least,
                           tms_sight_shortest(kind, least / size * size));
    }
}

/* ---- What they say --------------------------------------------------------------------------- */

uint32_t tms_sight_first_page(const tms_sight *sight, const tms_step *step, uint32_t layer,
                              uint32_t row, uint32_t kv_head) {
    const tamis_cache_params *cache = &sight->setup->cache->params;
    const tms_sight_kind *kind = tms_sight_of(sight, layer);
    if (!kind) return 0;
    if (!sight->first)
        return (uint32_t)step->tables
                   .host[kind->table + (uint64_t)row * cache->n_kv_heads + kv_head] /
               cache->page_size;
    const uint32_t visible = tms_step_visible(step, layer, row, kv_head);
    return visible > kind->most ? (visible - kind->most) / cache->page_size : 0;
}

tamis_status tms_sight_read_first_page(const tms_sight *sight, const tms_step *step,
                                       uint32_t layer, uint32_t row, uint32_t kv_head,
                                       uint32_t *page, tamis_error *error) {
    const tamis_cache_params *cache = &sight->setup->cache->params;
    int32_t slot = 0;
    *page = tms_sight_first_page(sight, step, layer, row, kv_head);
    if (!tms_sight_of(sight, layer) || !sight->first) return TAMIS_OK;
    const tms_ref at = {sight->first,
                        ((uint64_t)row * cache->n_kv_heads + kv_head) * sizeof slot};
    TMS_TRY(tms_device_read(sight->setup->dev, at, &slot, sizeof slot, error));
    *page = (uint32_t)slot / cache->page_size;
    return TAMIS_OK;
}
