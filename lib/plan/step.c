/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of a step: their places, and the contents of its own. */
#include "lib/plan/step.h"

#include <stdlib.h>
#include <string.h>

/* ---- Where the tables lie -------------------------------------------------------------------- */

/* The places of the tables in a step of that size, which fills so many pages and copies so many pairs
 * of pages. Only the copies lie behind the filled pages. */
static tms_step_layout lay_out(tms_step *step, const tms_step_size *size, uint64_t filled,
                               uint64_t copies) {
    const tms_setup *setup = step->setup;
    const uint64_t rows = size->rows, n_lanes = setup->cache->n_lanes;
    const bool positions = setup->cache->params.planes & TAMIS_PLANE_POSITIONS;
    tms_step_layout at;
    uint64_t end = 0;
    at.tiles = tms_arena_place(&end, 2 * rows);
    at.row_seq = tms_arena_place(&end, rows);
    at.positions = tms_arena_place(&end, positions ? rows : 0);
    at.visible = tms_arena_place(&end, rows * n_lanes);
    at.slots = tms_arena_place(&end, rows * n_lanes);
    for (uint32_t i = 0; i < step->n_rooms; i++)
        step->rooms[i].place(step->rooms[i].room, size, &end);
    at.filled = tms_arena_place(&end, filled);
    at.copies = tms_arena_place(&end, 2 * copies);
    at.end = end;
    return at;
}

/* Pairs of pages that a step may copy at most. */
static uint64_t most_copies(const tms_setup *setup) {
    const uint32_t sequences = setup->params.max_sequences;
    const bool scores = tms_needs_weights(&setup->needs);
    uint32_t cap = tms_setup_cap(setup, false);
    const uint64_t all = setup->cache->size.pages; /* each copy is a page of its own */
    if (cap > setup->params.max_context || scores) cap = setup->params.max_context;
    const uint64_t copies = tms_setup_cap(setup, false) == UINT32_MAX && !scores
                                ? (uint64_t)sequences * setup->cache->n_lanes
                                : tms_copies_room(setup->cache, sequences, cap);
    return copies < all ? copies : all;
}

/* Pages that a step may fill at most, of all lanes. */
static uint64_t most_filled(const tms_setup *setup) {
    const uint64_t pages =
        setup->params.max_rows / setup->cache->params.page_size + setup->params.max_sequences;
    return pages * setup->cache->n_lanes;
}

static size_t most_sections(const tms_setup *setup) {
    return setup->params.flags & TAMIS_PLAN_VERIFY ? setup->params.max_selected_rows + 1 : 2;
}

void tms_step_add(tms_step *step, tms_step_room room) {
    step->rooms[step->n_rooms++] = room;
}

tamis_status tms_step_create(tms_step *step, const tms_setup *setup, tamis_error *error) {
    const tms_step_size size = {setup->params.max_rows, setup->params.max_sequences, false};
    const uint64_t copies = most_copies(setup);
    const size_t n = setup->params.max_sequences;
    step->setup = setup;
    step->sequences = tms_memory_host(setup->memory, n, sizeof *step->sequences);
    step->growth = tms_memory_host(setup->memory, n, sizeof *step->growth);
    step->table_row = tms_memory_host(setup->memory, n, sizeof *step->table_row);
    step->ring = tms_memory_host(setup->memory, n, sizeof *step->ring);
    step->n_kept = tms_memory_host(setup->memory, n, sizeof *step->n_kept);
    step->begun = tms_memory_host(setup->memory, size.rows, sizeof *step->begun);
    step->position = tms_memory_host(setup->memory, size.rows, sizeof *step->position);
    step->layers =
        tms_memory_host(setup->memory, setup->cache->params.n_layers, sizeof *step->layers);
    step->sections = tms_memory_host(setup->memory, most_sections(setup), sizeof *step->sections);
    step->copies.pairs = tms_memory_host(setup->memory, copies, 2 * sizeof *step->copies.pairs);
    step->copies.count =
        tms_memory_host(setup->memory, setup->cache->size.pools + 1ull, sizeof *step->copies.count);
    TMS_REQUIRE(step->sequences && step->growth && step->table_row && step->ring && step->n_kept &&
                    step->begun && step->position && step->layers && step->sections &&
                    step->copies.pairs && step->copies.count,
                TAMIS_E_NO_MEMORY, "no host memory for a plan of %zu sequences", n);
    return tms_arena_create(&step->tables, setup->memory,
                            lay_out(step, &size, most_filled(setup), copies).end, "a step", error);
}

void tms_step_destroy(tms_step *step) {
    tms_arena_destroy(&step->tables, step->setup->dev);
    free(step->sequences);
    free(step->growth);
    free(step->table_row);
    free(step->ring);
    free(step->n_kept);
    free(step->begun);
    free(step->position);
    free(step->layers);
    free(step->sections);
    free(step->copies.pairs);
    free(step->copies.count);
}

/* ---- What the tables hold -------------------------------------------------------------------- */

/* Cuts a section's rows into tiles, which lie at `tile`. */
static void fill_tiles(const tms_step *step, tms_section *section, int32_t *tile) {
    uint32_t first = 0;
    section->n_tiles = 0;
    section->max_tile_rows = 1;
    if (section->alone) {
        tile[0] = 0;
        tile[1] = (int32_t)(section->n_rows = section->n_tiles = 1);
        return;
    }
    for (uint32_t i = 0; i < section->n_sequences; i++) {
        uint32_t left = step->n_kept[section->first_sequence + i];
        while (left > 0) {
            uint32_t n = left < TMS_TILE_ROWS ? left : TMS_TILE_ROWS;
            tile[2 * section->n_tiles] = (int32_t)first;
            tile[2 * section->n_tiles++ + 1] = (int32_t)n;
            if (n > section->max_tile_rows) section->max_tile_rows = n;
            first += n;
            left -= n;
        }
    }
    section->n_rows = first;
}

static void fill_sections(tms_step *step) {
    uint32_t row = 0, tile = 0;
    for (uint32_t p = 0; p < step->n_sections; p++) {
        tms_section *section = &step->sections[p];
        section->first_row = row;
        section->first_tile = tile;
        fill_tiles(step, section, step->tables.host + step->at.tiles + 2 * (uint64_t)tile);
        row += section->n_rows;
        tile += section->n_tiles;
    }
}

uint32_t tms_step_most_visible(const tms_step *step, uint32_t layer, const tms_section *section) {
    const uint32_t heads = step->setup->cache->params.n_kv_heads;
    uint32_t most = 0;
    if (section->n_rows == 0) return step->setup->longest;
    for (uint32_t h = 0; h < heads && section->alone; h++) {
        const uint32_t visible = tms_step_visible(step, layer, section->first_row, h);
        if (visible > most) most = visible;
    }
    for (uint32_t i = 0; i < section->n_sequences && !section->alone; i++) {
        const tms_lane *lanes = step->sequences[section->first_sequence + i]->lanes + layer * heads;
        for (uint32_t h = 0; h < heads; h++)
            if (lanes[h].length > most) most = lanes[h].length;
    }
    return most;
}

static void fill_rows(const tms_step *step) {
    const bool positions = step->setup->cache->params.planes & TAMIS_PLANE_POSITIONS;
    int32_t *host = step->tables.host;
    for (uint32_t i = 0, row = 0, begun = 0; i < step->n_sequences; i++) {
        const uint32_t first = tms_step_first(step, i);
        for (uint32_t j = 0; j < step->n_kept[i]; j++, row++) {
            step->position[row] = first + step->begun[row] - begun;
            host[step->at.row_seq + row] = (int32_t)step->table_row[i];
            if (positions) host[step->at.positions + row] = (int32_t)step->position[row];
        }
        begun += tms_step_begun(step, i);
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
    to->n_staying = 0;
    for (uint32_t i = 0, row = 0, begun = 0; i < step->n_sequences; i++) {
        const uint32_t shared = step->growth[i].shared;
        const tms_lane *lanes = step->sequences[i]->lanes + layer * heads;
        for (uint32_t n = 0; n < step->n_kept[i]; n++, row++)
            for (uint32_t h = 0; h < heads; h++) {
                /* The device chooses the slot of a row for which a lane does not grow. */
                const uint32_t index = shared + step->begun[row] - begun;
                const uint32_t slot = lanes[h].length - lanes[h].grown + index;
                const bool stays = index >= lanes[h].grown;
                *slots++ = stays ? -1 : (int32_t)slot;
                *visible++ = (int32_t)(stays ? lanes[h].length : slot + 1);
                to->n_staying += stays;
            }
        begun += tms_step_begun(step, i);
    }
}

/* Adds the pages of a layer that the step fills, after the *n that are there. */
static void fill_filled(tms_step *step, uint32_t layer, uint32_t *n) {
    const tms_setup *setup = step->setup;
    uint32_t heads = setup->cache->params.n_kv_heads, page_size = setup->cache->params.page_size;
    const uint32_t lists = setup->cache->view ? 1 : heads; /* with pages of their own */
    int32_t *filled = step->tables.host + step->at.filled;
    tms_step_layer *to = &step->layers[layer];
    to->filled = *n;
    for (uint32_t i = 0; i < step->n_sequences; i++) {
        const tms_sequence *sequence = step->sequences[i];
        if (tms_step_begun(step, i) == 0) continue; /* a journal */
        for (uint32_t lane = layer * heads; lane < layer * heads + lists; lane++) {
            uint32_t length = sequence->lanes[lane].length, rows = sequence->lanes[lane].grown;
            const int32_t *list = tms_lane_pages(sequence, lane);
            for (uint32_t o = (length - rows) / page_size; o < length / page_size; o++)
                filled[(*n)++] = list[o];
        }
    }
    to->n_filled = *n - to->filled;
    /* Each lane of a decode step fills one page at most. */
    uint32_t end = to->filled + step->n_rows * lists;
    while (step->fixed && *n < end)
        filled[(*n)++] = -1;
    to->n_bounded = *n - to->filled;
}

static void fill_tables(tms_step *step) {
    const tms_setup *setup = step->setup;
    const tms_step_size size = {step->n_rows, step->n_sequences, step->exact};
    uint64_t copies = 0;
    uint32_t n_filled = 0;
    for (uint32_t p = 0; p < setup->cache->size.pools; p++)
        copies += step->copies.count[p];
    step->at = lay_out(step, &size, 0, copies);
    fill_sections(step);
    fill_rows(step);
    for (uint32_t layer = 0; layer < setup->cache->params.n_layers; layer++) {
        fill_layer(step, layer);
        fill_filled(step, layer, &n_filled);
    }
    for (uint32_t i = 0; i < step->n_rooms; i++)
        step->rooms[i].fill(step->rooms[i].room, step);
    step->at = lay_out(step, &size, n_filled, copies); /* the copies move behind the filled pages */
    memcpy(step->tables.host + step->at.copies, step->copies.pairs,
           2 * copies * sizeof *step->copies.pairs);
}

static tms_section *add_section(tms_step *step, bool exact, uint32_t first, uint32_t n) {
    tms_section *section = &step->sections[step->n_sections++];
    *section = (tms_section){.exact = exact, .first_sequence = first, .n_sequences = n};
    return section;
}

/* Each row of a sequence that has several is a section, and the single rows in between. */
static void divide_into_turns(tms_step *step, uint32_t n_selected) {
    for (uint32_t i = 0, n = 0; i < n_selected; i += n) {
        const uint32_t rows = tms_step_begun(step, i);
        for (n = 1; rows == 1 && i + n < n_selected && tms_step_begun(step, i + n) == 1;)
            n++;
        if (rows == 1) (void)add_section(step, false, i, n);
        for (uint32_t row = 0; rows > 1 && row < rows; row++)
            add_section(step, false, i, 1)->alone = true;
    }
}

static void divide(tms_step *step, uint32_t n_selected, uint32_t n_exact) {
    step->n_sections = 0;
    if (step->in_turns)
        divide_into_turns(step, n_selected);
    else if (n_selected > 0)
        (void)add_section(step, false, 0, n_selected);
    if (n_exact > 0) (void)add_section(step, true, n_selected, n_exact);
}

void tms_step_fill(tms_step *step, uint32_t n_selected, uint32_t n_exact) {
    const tms_setup *setup = step->setup;
    step->exact = n_selected == 0;
    step->fixed = (setup->params.flags & TAMIS_PLAN_FIXED_LAUNCHES) && !step->exact;
    step->in_turns = n_selected + n_exact < step->n_sequences;
    divide(step, n_selected, n_exact);
    step->unsent = false;
    step->n_rows = 0;
    for (uint32_t i = 0; i < step->n_sequences; i++) {
        step->n_kept[i] = tms_step_begun(step, i);
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
        const uint32_t end = first + tms_step_begun(step, i), before = step->n_rows;
        while (step->n_rows < n && rows[step->n_rows] < end) {
            step->begun[step->n_rows] = rows[step->n_rows];
            step->n_rows++;
        }
        step->n_kept[i] = step->n_rows - before;
        first = end;
    }
    fill_tables(step);
}
