/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of a step: their places and their contents. */
#include "lib/plan/step.h"
#include "lib/plan/query_ring.h"

#include <stdlib.h>
#include <string.h>

/* ---- Where the tables lie -------------------------------------------------------------------- */

/* The sizes of a step. */
typedef struct step_size {
    uint64_t rows, sequences;
    bool exact;
    uint64_t filled; /* pages */
    uint64_t copies; /* pairs of pages */
} step_size;

/* The places of the tables in a step of that size. Only the copies lie behind the filled pages. */
static tms_step_layout lay_out(const tms_setup *setup, const step_size *n) {
    const tms_eviction_needs *needs = &setup->needs;
    const uint64_t rows = n->rows, n_lanes = setup->cache->n_lanes;
    const uint64_t sequences = tms_needs_weights(needs) ? n->sequences : 0;
    const uint64_t turned = needs->rotation ? rows : 0;
    const bool positions = setup->cache->params.planes & TAMIS_PLANE_POSITIONS;
    tms_step_layout at;
    uint64_t end = 0;
    at.tiles = tms_arena_place(&end, 2 * rows);
    at.row_seq = tms_arena_place(&end, rows);
    at.intervals = tms_arena_place(&end, setup->params.sliding_window ? 2 * rows : 0);
    at.positions = tms_arena_place(&end, positions ? rows : 0);
    at.queries = tms_arena_place(&end, needs->window ? rows : 0);
    at.stays = tms_arena_place(&end, needs->in_place && !n->exact ? rows * n_lanes : 0);
    at.item_seq = tms_arena_place(&end, sequences);
    at.item_spans = tms_arena_place(&end, 2 * sequences);
    at.item_visible = tms_arena_place(&end, sequences * n_lanes);
    at.index = tms_arena_place(&end, turned);
    at.delta = tms_arena_place(&end, turned);
    at.near = tms_arena_place(&end, 2 * turned);
    at.far = tms_arena_place(&end, 2 * turned);
    at.visible = tms_arena_place(&end, rows * n_lanes);
    at.slots = tms_arena_place(&end, rows * n_lanes);
    at.filled = tms_arena_place(&end, n->filled);
    at.copies = tms_arena_place(&end, 2 * n->copies);
    at.end = end;
    return at;
}

/* Pairs of pages that a step may copy at most. */
static uint64_t most_copies(const tms_setup *setup) {
    const uint32_t sequences = setup->params.max_sequences;
    const bool scores = tms_needs_weights(&setup->needs);
    uint32_t cap = tms_setup_cap(setup, false);
    if (cap == UINT32_MAX && !scores) return (uint64_t)sequences * setup->cache->n_lanes;
    if (cap > setup->params.max_context || scores) cap = setup->params.max_context;
    return tms_copies_room(setup->cache, sequences, cap);
}

static step_size largest(const tms_setup *setup) {
    const uint64_t rows = setup->params.max_rows, sequences = setup->params.max_sequences;
    const uint64_t pages =
        rows / setup->cache->params.page_size + sequences; /* filled, per layer and KV head */
    return (step_size){rows, sequences, false, pages * setup->cache->n_lanes, most_copies(setup)};
}

tamis_status tms_step_create(tms_step *step, const tms_setup *setup, tamis_error *error) {
    const step_size size = largest(setup);
    const size_t n = setup->params.max_sequences;
    step->setup = setup;
    step->sequences = calloc(n, sizeof *step->sequences);
    step->growth = calloc(n, sizeof *step->growth);
    step->table_row = calloc(n, sizeof *step->table_row);
    step->ring = calloc(n, sizeof *step->ring);
    step->n_kept = calloc(n, sizeof *step->n_kept);
    step->begun = calloc(size.rows, sizeof *step->begun);
    step->layers = calloc(setup->cache->params.n_layers, sizeof *step->layers);
    step->copies.pairs = calloc(size.copies, 2 * sizeof *step->copies.pairs);
    step->copies.count = calloc(setup->cache->size.pools, sizeof *step->copies.count);
    TMS_REQUIRE(step->sequences && step->growth && step->table_row && step->ring && step->n_kept &&
                    step->begun && step->layers && step->copies.pairs && step->copies.count,
                TAMIS_E_NO_MEMORY, "no host memory for a plan of %zu sequences", n);
    return tms_arena_create(&step->tables, setup->dev, lay_out(setup, &size).end, "a step", error);
}

void tms_step_destroy(tms_step *step) {
    tms_arena_destroy(&step->tables, step->setup->dev);
    free(step->sequences);
    free(step->growth);
    free(step->table_row);
    free(step->ring);
    free(step->n_kept);
    free(step->begun);
    free(step->layers);
    free(step->copies.pairs);
    free(step->copies.count);
}

/* ---- What the tables hold -------------------------------------------------------------------- */

static void fill_tiles(tms_step *step) {
    int32_t *tile = step->tables.host + step->at.tiles;
    uint32_t first = 0;
    step->n_tiles = 0;
    step->max_tile_rows = 1;
    for (uint32_t i = 0; i < step->n_sequences; i++) {
        uint32_t left = step->n_kept[i];
        while (left > 0) {
            uint32_t n = left < TMS_TILE_ROWS ? left : TMS_TILE_ROWS;
            tile[2 * step->n_tiles] = (int32_t)first;
            tile[2 * step->n_tiles++ + 1] = (int32_t)n;
            if (n > step->max_tile_rows) step->max_tile_rows = n;
            first += n;
            left -= n;
        }
    }
}

/* Fills in what an eviction needs of a row: its position, and its place in a ring if it is one of
 * the last rows of its sequence. */
static void fill_position(const tms_step *step, uint32_t i, uint32_t row, uint32_t position) {
    const tms_setup *setup = step->setup;
    int32_t *host = step->tables.host;
    if (setup->cache->params.planes & TAMIS_PLANE_POSITIONS)
        host[step->at.positions + row] = (int32_t)position;
    if (setup->needs.window == 0) return;
    bool kept = position + setup->needs.window >= step->sequences[i]->length;
    host[step->at.queries + row] =
        kept ? (int32_t)tms_query_rings_row(setup, step->ring[i], position) : -1;
}

static void fill_rows(const tms_step *step) {
    const uint32_t sliding_window = step->setup->params.sliding_window;
    int32_t *host = step->tables.host;
    for (uint32_t i = 0, row = 0, begun = 0; i < step->n_sequences; i++) {
        uint32_t first = step->sequences[i]->length - step->growth[i].rows;
        for (uint32_t j = 0; j < step->n_kept[i]; j++, row++) {
            uint32_t position = first + step->begun[row] - begun;
            host[step->at.row_seq + row] = (int32_t)step->table_row[i];
            fill_position(step, i, row, position);
            if (sliding_window == 0) continue;
            int32_t *interval = host + step->at.intervals + 2 * row;
            interval[0] = position < sliding_window ? 0 : (int32_t)(position - sliding_window + 1);
            interval[1] = (int32_t)position;
        }
        begun += step->growth[i].rows;
    }
}

/* Lists the rows whose weights go to scores: all rows of a sequence, or its last. */
static void fill_items(tms_step *step) {
    const tms_setup *setup = step->setup;
    uint32_t heads = setup->cache->params.n_kv_heads, n = step->n_sequences, first = 0;
    int32_t *host = step->tables.host, *spans = host + step->at.item_spans;
    step->max_span = 1;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t rows = step->n_kept[i], fed = setup->needs.feed == TMS_FEED_SUM ? rows : 1;
        spans[2 * i] = (int32_t)(first + rows - fed);
        spans[2 * i + 1] = (int32_t)fed;
        host[step->at.item_seq + i] = (int32_t)step->table_row[i];
        for (uint32_t lane = 0; lane < setup->cache->n_lanes; lane++)
            host[step->at.item_visible + (lane / heads * n + i) * heads + lane % heads] =
                (int32_t)step->sequences[i]->lanes[lane].length;
        if (fed > step->max_span) step->max_span = fed;
        first += rows;
    }
}

/* Fills in by how many positions each row's sinks move nearer, and the intervals of its two
 * attends. All lanes of a sequence hold the same positions. */
static void fill_reindexed(tms_step *step) {
    const tms_setup *setup = step->setup;
    const uint32_t sinks = setup->params.eviction.sinks;
    int32_t *index = step->tables.host + step->at.index,
            *delta = step->tables.host + step->at.delta;
    int32_t *near = step->tables.host + step->at.near, *far = step->tables.host + step->at.far;
    for (uint32_t i = 0, row = 0; i < step->n_sequences; i++) {
        const tms_sequence *sequence = step->sequences[i];
        uint32_t rows = step->growth[i].rows, gap = sequence->length - sequence->lanes[0].length;
        for (uint32_t j = 0; j < rows; j++, row++) {
            index[row] = (int32_t)row;
            delta[row] = -(int32_t)gap;
            near[2 * row] = 0;
            near[2 * row + 1] = (int32_t)sinks - 1;
            far[2 * row] = (int32_t)sinks;
            far[2 * row + 1] = (int32_t)(sequence->length - rows + j);
        }
    }
}

/* Fills in the slots and visible slots of one layer's rows. */
static void fill_layer(tms_step *step, uint32_t layer) {
    const tms_setup *setup = step->setup;
    uint32_t heads = setup->cache->params.n_kv_heads;
    uint64_t entry = tms_step_entry(step, layer);
    tms_step_layer *to = &step->layers[layer];
    int32_t *slots = step->tables.host + step->at.slots + entry;
    int32_t *visible = step->tables.host + step->at.visible + entry;
    int32_t *stays =
        setup->needs.in_place && !step->exact ? step->tables.host + step->at.stays + entry : NULL;
    to->n_staying = to->max_visible = 0;
    for (uint32_t i = 0, row = 0, begun = 0; i < step->n_sequences; i++) {
        uint32_t rows = step->growth[i].rows;
        const tms_lane *lanes = step->sequences[i]->lanes + layer * heads;
        for (uint32_t n = 0; n < step->n_kept[i]; n++, row++)
            for (uint32_t h = 0; h < heads; h++) {
                /* A lane that stays at its length takes one row, whose slot the device chooses. */
                bool same = lanes[h].grown < rows;
                uint32_t slot = lanes[h].length - rows + step->begun[row] - begun;
                *slots++ = same ? -1 : (int32_t)slot;
                *visible++ = (int32_t)(same ? lanes[h].length : slot + 1);
                if (stays) *stays++ = same;
                to->n_staying += same;
            }
        for (uint32_t h = 0; h < heads; h++)
            if (lanes[h].length > to->max_visible) to->max_visible = lanes[h].length;
        begun += rows;
    }
}

/* Adds the pages of a layer that the step fills, after the *n that are there. */
static void fill_filled(tms_step *step, uint32_t layer, uint32_t *n) {
    const tms_setup *setup = step->setup;
    uint32_t heads = setup->cache->params.n_kv_heads, page_size = setup->cache->params.page_size;
    int32_t *filled = step->tables.host + step->at.filled;
    tms_step_layer *to = &step->layers[layer];
    to->filled = *n;
    for (uint32_t i = 0; i < step->n_sequences; i++) {
        const tms_sequence *sequence = step->sequences[i];
        for (uint32_t lane = layer * heads; lane < (layer + 1) * heads; lane++) {
            uint32_t length = sequence->lanes[lane].length, rows = sequence->lanes[lane].grown;
            const int32_t *list = tms_lane_pages(sequence, lane);
            for (uint32_t o = (length - rows) / page_size; o < length / page_size; o++)
                filled[(*n)++] = list[o];
        }
    }
    to->n_filled = *n - to->filled;
    /* Each lane of a decode step fills one page at most. */
    uint32_t end = to->filled + step->n_rows * heads;
    while (step->fixed && *n < end)
        filled[(*n)++] = -1;
    to->n_bounded = *n - to->filled;
}

static void fill_tables(tms_step *step) {
    const tms_setup *setup = step->setup;
    step_size size = {.rows = step->n_rows, .sequences = step->n_sequences, .exact = step->exact};
    uint32_t n_filled = 0;
    for (uint32_t p = 0; p < setup->cache->size.pools; p++)
        size.copies += step->copies.count[p];
    step->at = lay_out(setup, &size);
    fill_tiles(step);
    fill_rows(step);
    if (tms_needs_weights(&setup->needs)) fill_items(step);
    if (setup->needs.rotation) fill_reindexed(step);
    for (uint32_t layer = 0; layer < setup->cache->params.n_layers; layer++) {
        fill_layer(step, layer);
        fill_filled(step, layer, &n_filled);
    }
    size.filled = n_filled; /* now known exactly: the tables behind them move */
    step->at = lay_out(setup, &size);
    memcpy(step->tables.host + step->at.copies, step->copies.pairs,
           2 * size.copies * sizeof *step->copies.pairs);
}

void tms_step_fill(tms_step *step, bool exact) {
    const tms_setup *setup = step->setup;
    step->exact = exact;
    step->fixed = setup->params.fixed_launches && !exact;
    step->unsent = false;
    step->n_rows = 0;
    for (uint32_t i = 0; i < step->n_sequences; i++) {
        step->n_kept[i] = step->growth[i].rows;
        step->n_rows += step->n_kept[i];
    }
    for (uint32_t row = 0; row < step->n_rows; row++)
        step->begun[row] = row;
    step->n_begun = step->n_rows;
    for (uint32_t layer = 0; layer < setup->cache->params.n_layers; layer++)
        step->layers[layer] = (tms_step_layer){0};
    fill_tables(step);
}

void tms_step_narrow(tms_step *step, const uint32_t *rows, uint32_t n) {
    step->n_rows = 0;
    for (uint32_t i = 0, first = 0; i < step->n_sequences; i++) {
        const uint32_t end = first + step->growth[i].rows, before = step->n_rows;
        while (step->n_rows < n && rows[step->n_rows] < end) {
            step->begun[step->n_rows] = rows[step->n_rows];
            step->n_rows++;
        }
        step->n_kept[i] = step->n_rows - before;
        first = end;
    }
    fill_tables(step);
}
