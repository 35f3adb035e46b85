/* SPDX-License-Identifier: Apache-2.0 */
/* Rings of queries: assigning them to sequences, filling them, copying them for forks, reading them
 * in order. */
#include "lib/plan/query_ring.h"
#include "lib/plan/arena.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Row 0 of a ring. */
static tms_ref ring_ref(const tms_query_rings *rings, uint32_t layer, uint32_t ring) {
    uint64_t first = (uint64_t)layer * rings->setup->params.max_sequences + ring;
    return (tms_ref){rings->mem, first * rings->setup->needs.window * rings->row_bytes};
}

/* ---- Tables ---------------------------------------------------------------------------------- */

static void place(void *room, const tms_step_size *size, uint64_t *end) {
    tms_query_rings *rings = room;
    rings->places = tms_arena_place(end, rings->setup->needs.window ? size->rows : 0);
}

/* Rows are kept that are among the last of their sequence. */
static void fill(void *room, const tms_step *step) {
    const tms_query_rings *rings = room;
    const uint32_t window = rings->setup->needs.window;
    int32_t *place_of = step->tables.host + rings->places;
    for (uint32_t i = 0, row = 0; window && i < step->n_sequences; i++)
        for (uint32_t j = 0; j < step->n_kept[i]; j++, row++) {
            const uint32_t position = step->position[row];
            const bool kept =
                step->ring[i] != TMS_NO_RING && position + window >= step->sequences[i]->length;
            place_of[row] = kept ? (int32_t)(step->ring[i] * window + position % window) : -1;
        }
}

tms_step_room tms_query_rings_room(tms_query_rings *rings) {
    return (tms_step_room){rings, place, fill};
}

/* ---- Memory ---------------------------------------------------------------------------------- */

tamis_status tms_query_rings_create(tms_query_rings *rings, tamis_error *error) {
    const tms_setup *setup = rings->setup;
    uint32_t n = setup->params.max_sequences;
    uint64_t rows = (uint64_t)setup->cache->params.n_layers * n * setup->needs.window;
    rings->row_bytes = tms_setup_width(setup) * sizeof(float);
    if (rows == 0) return TAMIS_OK;
    rings->rings = tms_memory_host(setup->memory, n, sizeof *rings->rings);
    rings->kept = tms_memory_host(setup->memory, n, sizeof *rings->kept);
    TMS_REQUIRE(rings->rings && rings->kept, TAMIS_E_NO_MEMORY,
                "no host memory for the queries of %" PRIu32 " sequences", n);
    return tms_memory_take(setup->memory, rows * rings->row_bytes, &rings->mem, error);
}

void tms_query_rings_destroy(tms_query_rings *rings) {
    tms_device_free(rings->setup->dev, rings->mem);
    free(rings->rings);
    free(rings->kept);
}

/* ---- Which queries are known ----------------------------------------------------------------- */

static uint32_t find(const tms_query_rings *rings, tamis_sequence id) {
    uint32_t n = rings->setup->params.max_sequences, r = 0;
    while (r < n && rings->rings[r].id != id)
        r++;
    return r < n ? r : TMS_NO_RING;
}

/* The ring that holds queries of the sequence: its own, else that of its nearest ancestor whose
 * ring got no rows after a truncation later than the fork. The ring's rows of positions below *end
 * are the sequence's, too. */
static uint32_t holder_of(const tms_query_rings *rings, const tms_sequence *sequence,
                          uint32_t *end) {
    uint32_t r = find(rings, sequence->id);
    if (r != TMS_NO_RING && rings->rings[r].mark) {
        *end = tms_history_cut_since(sequence, TMS_KEEPS_QUERIES, rings->rings[r].mark);
        return r;
    }
    *end = tms_history_cut_since(sequence, TMS_KEEPS_QUERIES, 1);
    while (sequence && sequence->parent) {
        if (sequence->forked_at < *end) *end = sequence->forked_at;
        r = find(rings, sequence->parent);
        uint64_t mark = r == TMS_NO_RING ? 0 : rings->rings[r].mark;
        bool holds = mark > 0 && mark <= sequence->parent_cuts.n;
        uint32_t least =
            tms_history_parent_cut_since(sequence, TMS_KEEPS_QUERIES, holds ? mark : 1);
        if (least < *end) *end = least;
        if (holds) return r;
        sequence = tms_cache_find(rings->setup->cache, sequence->parent);
    }
    return TMS_NO_RING;
}

static tms_kept_queries kept_of(const tms_query_rings *rings, const tms_sequence *sequence) {
    const tms_kept_queries none = {.ring = TMS_NO_RING};
    uint32_t window = rings->setup->needs.window, end, r = holder_of(rings, sequence, &end);
    if (r == TMS_NO_RING) return none;
    const tms_query_ring *ring = &rings->rings[r];
    tms_kept_queries kept = {r, ring->to > window ? ring->to - window : 0, ring->to};
    if (kept.from < ring->from) kept.from = ring->from;
    if (kept.to > end) kept.to = end;
    return kept.from < kept.to ? kept : none;
}

tms_kept_queries tms_query_rings_known(const tms_query_rings *rings, const tms_sequence *sequence) {
    return rings->mem ? kept_of(rings, sequence) : (tms_kept_queries){.ring = TMS_NO_RING};
}

tamis_status tms_query_rings_check(const tms_query_rings *rings, const tms_sequence *sequence,
                                   tamis_error *error) {
    const uint32_t window = rings->setup->needs.window;
    if (!rings->mem) return TAMIS_OK;
    const tms_kept_queries kept = kept_of(rings, sequence);
    if (kept.to == sequence->length && kept.from + window <= kept.to) return TAMIS_OK;
    char text[48] = "none is known";
    if (kept.ring != TMS_NO_RING)
        snprintf(text, sizeof text, "known are %" PRIu32 " to %" PRIu32, kept.from, kept.to - 1);
    return tms_error_set(error, TAMIS_E_STATE,
                         "the queries of positions %" PRIu32 " to %" PRIu32 " of sequence %" PRIu64
                         " are not all kept by this plan; %s",
                         sequence->length - window, sequence->length - 1, sequence->id, text);
}

/* ---- Who has which ring ---------------------------------------------------------------------- */

/* Marks the rings that hold queries of sequences of the cache. */
static void mark_needed(tms_query_rings *rings) {
    const tamis_cache *cache = rings->setup->cache;
    for (uint32_t r = 0; r < rings->setup->params.max_sequences; r++)
        rings->rings[r].needed = false;
    for (uint32_t i = 0; i < cache->sequence_capacity; i++) {
        uint32_t end;
        const uint32_t r =
            cache->sequences[i] ? holder_of(rings, cache->sequences[i], &end) : TMS_NO_RING;
        if (r != TMS_NO_RING) rings->rings[r].needed = true;
    }
}

/* Whether a ring is given away before another: if no sequence's queries are in it, or if it was not used
 * for longer. */
static bool goes_before(const tms_query_ring *a, const tms_query_ring *b) {
    return a->needed != b->needed ? !a->needed : a->used < b->used;
}

/* Makes a ring vacant that was not used in this call. */
static void vacate_one(tms_query_rings *rings, uint64_t now) {
    tms_query_ring *first = NULL;
    for (uint32_t r = 0; r < rings->setup->params.max_sequences; r++) {
        tms_query_ring *ring = &rings->rings[r];
        if (ring->used < now && (!first || goes_before(ring, first))) first = ring;
    }
    first->used = now;
    first->vacant = true;
}

/* Finds for every sequence the queries that rings hold of it, and the ring that it has. For those
 * without a ring, others become vacant. */
static void vacate(tms_query_rings *rings, tms_sequence *const *sequences, uint32_t n,
                   uint32_t *index) {
    uint64_t now = ++rings->n_brought;
    for (uint32_t i = 0; i < n; i++) {
        const bool none = tms_in_tree(sequences[i]);
        rings->kept[i] =
            none ? (tms_kept_queries){.ring = TMS_NO_RING} : kept_of(rings, sequences[i]);
        index[i] = none ? TMS_NO_RING : find(rings, sequences[i]->id);
        if (index[i] != TMS_NO_RING) rings->rings[index[i]].used = now;
    }
    bool marked = false;
    for (uint32_t i = 0; i < n; i++) {
        if (index[i] != TMS_NO_RING || tms_in_tree(sequences[i])) continue;
        if (!marked) mark_needed(rings);
        marked = true;
        vacate_one(rings, now);
    }
}

/* Assigns the vacant rings. If a sequence inherits the queries in a vacant ring, it gets that ring.
 * Other sequences that inherit them copy them afterwards; so no copy overwrites queries that
 * another sequence needs. */
static void give_out(tms_query_rings *rings, tms_sequence *const *sequences, uint32_t n,
                     uint32_t *index) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t r = rings->kept[i].ring;
        if (index[i] != TMS_NO_RING || r == TMS_NO_RING || !rings->rings[r].vacant) continue;
        index[i] = r;
        rings->rings[r] = (tms_query_ring){.id = sequences[i]->id, .used = rings->n_brought};
    }
    for (uint32_t i = 0, r = 0; i < n; i++) {
        if (index[i] != TMS_NO_RING || tms_in_tree(sequences[i])) continue;
        while (!rings->rings[r].vacant)
            r++;
        index[i] = r;
        rings->rings[r] = (tms_query_ring){.id = sequences[i]->id, .used = rings->n_brought};
    }
}

tamis_status tms_query_rings_bring(tms_query_rings *rings, tms_sequence *const *sequences,
                                   uint32_t n, uint32_t *index, tamis_error *error) {
    const tms_setup *setup = rings->setup;
    const uint64_t bytes = setup->needs.window * rings->row_bytes;
    if (!rings->mem) return TAMIS_OK;
    vacate(rings, sequences, n, index);
    give_out(rings, sequences, n, index);
    for (uint32_t i = 0; i < n; i++) {
        if (index[i] == TMS_NO_RING) continue;
        const tms_kept_queries *kept = &rings->kept[i];
        tms_query_ring *ring = &rings->rings[index[i]];
        const bool copies = kept->ring != TMS_NO_RING && kept->ring != index[i];
        for (uint32_t layer = 0; copies && layer < setup->cache->params.n_layers; layer++) {
            tms_ref from = ring_ref(rings, layer, kept->ring);
            tms_ref to = ring_ref(rings, layer, index[i]);
            TMS_TRY(tms_device_copy(setup->dev, to, from, bytes, error));
        }
        ring->from = kept->from;
        ring->to = kept->to;
        ring->mark = tms_history_mark(sequences[i], TMS_KEEPS_QUERIES);
    }
    return TAMIS_OK;
}

/* ---- What is in them ------------------------------------------------------------------------- */

void tms_query_rings_expect(tms_query_rings *rings, uint32_t ring, uint32_t first, uint32_t end) {
    if (rings->rings[ring].to != first) rings->rings[ring].from = first;
    rings->rings[ring].to = end;
}

void tms_query_rings_empty(tms_query_rings *rings, uint32_t ring) {
    rings->rings[ring].from = rings->rings[ring].to;
}

void tms_query_rings_drop(tms_query_rings *rings, uint32_t ring) {
    rings->rings[ring] = (tms_query_ring){.id = 0};
}

tamis_status tms_query_rings_keep(const tms_query_rings *rings, const tms_step *step,
                                  uint32_t layer, uint32_t section, tms_matrix q,
                                  tamis_error *error) {
    const tms_section *rows = &step->sections[section];
    uint64_t width = tms_setup_width(rings->setup);
    const tms_scatter_rows scatter = {.x = q,
                                      .y = {ring_ref(rings, layer, 0), width},
                                      .n_rows = rows->n_rows,
                                      .width = (uint32_t)width,
                                      .index =
                                          tms_step_table(step, rings->places + rows->first_row)};
    return tms_run_scatter_rows(rings->setup->dev, &scatter, error);
}

/* The place of position `first` in a ring, and how many of `left` positions from it on lie one behind
 * another there. */
static tms_ref piece(const tms_query_rings *rings, uint32_t layer, uint32_t ring, uint32_t first,
                     uint32_t left, uint32_t *n) {
    const uint32_t window = rings->setup->needs.window, place_of = first % window;
    tms_ref at = ring_ref(rings, layer, ring);
    *n = window - place_of < left ? window - place_of : left;
    at.offset += place_of * rings->row_bytes;
    return at;
}

tamis_status tms_query_rings_unroll(const tms_query_rings *rings, uint32_t layer, uint32_t ring,
                                    uint32_t length, tms_ref to, tamis_error *error) {
    for (uint32_t first = length - rings->setup->needs.window, n; first < length; first += n) {
        const tms_ref from = piece(rings, layer, ring, first, length - first, &n);
        TMS_TRY(tms_device_copy(rings->setup->dev, to, from, n * rings->row_bytes, error));
        to.offset += n * rings->row_bytes;
    }
    return TAMIS_OK;
}

tamis_status tms_query_rings_read(const tms_query_rings *rings, uint32_t layer, uint32_t ring,
                                  uint32_t first, uint32_t n, float *to, tamis_error *error) {
    const uint64_t width = tms_setup_width(rings->setup);
    for (uint32_t m; n > 0; first += m, n -= m, to += m * width) {
        const tms_ref from = piece(rings, layer, ring, first, n, &m);
        TMS_TRY(tms_device_read(rings->setup->dev, from, to, m * rings->row_bytes, error));
    }
    return TAMIS_OK;
}

tamis_status tms_query_rings_write(const tms_query_rings *rings, uint32_t layer, uint32_t ring,
                                   uint32_t first, uint32_t n, const float *from,
                                   tamis_error *error) {
    const uint64_t width = tms_setup_width(rings->setup);
    for (uint32_t m; n > 0; first += m, n -= m, from += m * width) {
        const tms_ref to = piece(rings, layer, ring, first, n, &m);
        TMS_TRY(tms_device_write(rings->setup->dev, to, from, m * rings->row_bytes, error));
    }
    return TAMIS_OK;
}
