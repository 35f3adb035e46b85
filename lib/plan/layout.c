/* SPDX-License-Identifier: Apache-2.0 */
/* The step's tables: laid out one behind the other and filled on the host, for one upload. */
#include "lib/plan/plan.h"

#include <string.h>

uint64_t tms_step_ints(const tamis_plan *plan) {
    const tamis_plan_params *p = &plan->params;
    uint64_t rows = p->max_rows, sequences = p->max_sequences, n_lanes = plan->cache->n_lanes;
    uint64_t filled = (rows / plan->cache->params.page_size + sequences) * n_lanes;
    uint64_t items = tms_align_ints(sequences) + tms_align_ints(2 * sequences) +
                     tms_align_ints(sequences * n_lanes);
    return tms_align_ints(2 * rows) + tms_align_ints(rows) + tms_align_ints(2 * rows) +
           2 * tms_align_ints(rows * n_lanes) + 2 * tms_align_ints(rows) +
           tms_align_ints(sequences * n_lanes) + items + tms_align_ints(6 * rows) +
           tms_align_ints(filled) + tms_align_ints(2 * tms_plan_copies(plan));
}

static void fill_tiles(tms_step *step) {
    int32_t *tile = step->host + step->at.tiles;
    uint32_t first = 0;
    step->n_tiles = 0;
    step->max_tile_rows = 1;
    for (uint32_t i = 0; i < step->n_sequences; i++) {
        uint32_t left = step->growth[i].rows;
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

/* What evicting knows of a row: its position, and its place in the ring if it is among the last of
 * its sequence. */
static void fill_position(const tamis_plan *plan, tms_step *step, uint32_t i, uint32_t row,
                          uint32_t position) {
    uint32_t window = plan->eviction.asked.window;
    if (plan->cache->params.planes & TAMIS_PLANE_POSITIONS)
        step->host[step->at.positions + row] = (int32_t)position;
    if (window == 0) return;
    bool kept = position + window >= step->growth[i].sequence->length;
    step->host[step->at.ring + row] =
        kept ? (int32_t)(step->table_row[i] * window + position % window) : -1;
}

static void fill_rows(const tamis_plan *plan, tms_step *step) {
    uint32_t row = 0, sliding_window = plan->params.sliding_window;
    for (uint32_t i = 0; i < step->n_sequences; i++) {
        uint32_t rows = step->growth[i].rows, first = step->growth[i].sequence->length - rows;
        for (uint32_t j = 0; j < rows; j++, row++) {
            uint32_t position = first + j;
            step->host[step->at.row_seq + row] = (int32_t)step->table_row[i];
            fill_position(plan, step, i, row, position);
            if (sliding_window == 0) continue;
            int32_t *interval = step->host + step->at.intervals + 2 * row;
            interval[0] = position < sliding_window ? 0 : (int32_t)(position - sliding_window + 1);
            interval[1] = (int32_t)position;
        }
    }
}

/* Rows whose weights feed the scores: all of a sequence, or its last. */
static void fill_items(const tamis_plan *plan, tms_step *step) {
    uint32_t heads = plan->cache->params.n_kv_heads, n = step->n_sequences, first = 0;
    int32_t *spans = step->host + step->at.item_spans;
    step->max_span = 1;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t rows = step->growth[i].rows;
        uint32_t fed = plan->eviction.asked.feed == TMS_FEED_SUM ? rows : 1;
        spans[2 * i] = (int32_t)(first + rows - fed);
        spans[2 * i + 1] = (int32_t)fed;
        step->host[step->at.item_seq + i] = (int32_t)step->table_row[i];
        for (uint32_t lane = 0; lane < plan->cache->n_lanes; lane++)
            step->host[step->at.item_visible + (lane / heads * n + i) * heads + lane % heads] =
                (int32_t)step->growth[i].sequence->lanes[lane].length;
        if (fed > step->max_span) step->max_span = fed;
        first += rows;
    }
}

/* How far each row's sinks are to come nearer, and what its two attends see. Lanes of a sequence
 * are alike. */
static void fill_reindex(const tamis_plan *plan, tms_step *step) {
    uint32_t n = step->n_rows, sinks = plan->params.eviction.sinks, row = 0;
    int32_t *index = step->host + step->at.reindex, *delta = index + n, *near = delta + n,
            *far = near + 2 * n;
    for (uint32_t i = 0; i < step->n_sequences; i++) {
        const tms_sequence *sequence = step->growth[i].sequence;
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

static bool has_turns(const tamis_plan *plan) {
    return plan->eviction.asked.in_place;
}

/* Slots and visible slots of one layer's rows. */
static void fill_layer(const tamis_plan *plan, tms_step *step, uint32_t layer) {
    uint32_t heads = plan->cache->params.n_kv_heads, entry = layer * step->n_rows * heads;
    int32_t *slot = step->host + step->at.slots + entry;
    int32_t *visible = step->host + step->at.visible + entry;
    int32_t *turns = has_turns(plan) && !step->exact ? step->host + step->at.turns + entry : NULL;
    step->layers[layer].max_visible = 0;
    step->layers[layer].n_turns = 0;
    for (uint32_t i = 0; i < step->n_sequences; i++) {
        uint32_t rows = step->growth[i].rows;
        const tms_lane *lanes = step->growth[i].sequence->lanes + layer * heads;
        for (uint32_t j = 0; j < rows; j++)
            for (uint32_t h = 0; h < heads; h++) {
                /* A lane that stays at its length takes one row, whose slot the device chooses. */
                bool stays = lanes[h].grown < rows;
                *slot++ = stays ? -1 : (int32_t)(lanes[h].length - rows + j);
                *visible++ = (int32_t)(lanes[h].length - (stays ? 0 : rows - j - 1));
                if (turns) *turns++ = stays;
                step->layers[layer].n_turns += stays;
            }
        for (uint32_t h = 0; h < heads; h++)
            if (lanes[h].length > step->layers[layer].max_visible)
                step->layers[layer].max_visible = lanes[h].length;
    }
}

/* Collects the pages of a layer that the step fills. */
static void fill_filled(const tamis_plan *plan, tms_step *step, uint32_t layer, uint32_t *n) {
    uint32_t heads = plan->cache->params.n_kv_heads, page_size = plan->cache->params.page_size;
    int32_t *filled = step->host + step->at.filled;
    step->layers[layer].filled = *n;
    for (uint32_t i = 0; i < step->n_sequences; i++) {
        const tms_sequence *sequence = step->growth[i].sequence;
        for (uint32_t lane = layer * heads; lane < (layer + 1) * heads; lane++) {
            uint32_t length = sequence->lanes[lane].length, rows = sequence->lanes[lane].grown;
            const int32_t *list = tms_lane_pages(sequence, lane);
            for (uint32_t o = (length - rows) / page_size; o < length / page_size; o++)
                filled[(*n)++] = list[o];
        }
    }
    step->layers[layer].n_filled = *n - step->layers[layer].filled;
    /* Each lane of a decode step fills one page at most. */
    uint32_t end = step->layers[layer].filled + step->n_rows * heads;
    while (step->fixed && *n < end)
        filled[(*n)++] = -1;
    step->layers[layer].n_bounded = *n - step->layers[layer].filled;
}

/* Puts the tables of evicting before those of the layers, which `visible` begins. */
static void place_eviction(const tamis_plan *plan, tms_step *step) {
    const tms_eviction_needs *asked = &plan->eviction.asked;
    tms_step_layout *at = &step->at;
    uint64_t rows = step->n_rows, n_lanes = plan->cache->n_lanes, n = step->n_sequences;
    uint64_t end = at->visible;
    at->positions = (uint32_t)end;
    if (plan->cache->params.planes & TAMIS_PLANE_POSITIONS) end += tms_align_ints(rows);
    at->ring = (uint32_t)end;
    if (asked->window) end += tms_align_ints(rows);
    at->turns = (uint32_t)end;
    if (asked->in_place && !step->exact) end += tms_align_ints(rows * n_lanes);
    at->item_seq = (uint32_t)end;
    at->item_spans = at->item_seq + (uint32_t)tms_align_ints(n);
    at->item_visible = at->item_spans + (uint32_t)tms_align_ints(2 * n);
    if (asked->feed) end = at->item_visible + tms_align_ints(n * n_lanes);
    at->reindex = (uint32_t)end;
    if (asked->rotation) end += tms_align_ints(6 * rows);
    at->visible = (uint32_t)end;
}

/* Sets the places of the tables, all but the end, which depends on what the last two hold. */
static void place(const tamis_plan *plan, tms_step *step) {
    uint32_t rows = step->n_rows, table = rows * plan->cache->n_lanes;
    tms_step_layout *at = &step->at;
    at->tiles = 0;
    at->row_seq = (uint32_t)tms_align_ints(2 * (uint64_t)rows);
    at->intervals = at->row_seq + (uint32_t)tms_align_ints(rows);
    at->visible = at->intervals;
    if (plan->params.sliding_window) at->visible += (uint32_t)tms_align_ints(2 * (uint64_t)rows);
    place_eviction(plan, step);
    at->slots = at->visible + (uint32_t)tms_align_ints(table);
    at->filled = at->slots + (uint32_t)tms_align_ints(table);
}

static void fill_copies(const tamis_plan *plan, tms_step *step, uint32_t n_filled) {
    uint32_t n = 0;
    for (uint32_t p = 0; p < plan->cache->size.pools; p++)
        n += 2 * plan->copies.count[p];
    step->at.copies = step->at.filled + (uint32_t)tms_align_ints(n_filled);
    step->at.end = step->at.copies + (uint32_t)tms_align_ints(n);
    memcpy(step->host + step->at.copies, plan->copies.pairs, n * sizeof(int32_t));
}

void tms_step_fill(tamis_plan *plan, const tamis_step *in) {
    tms_step *step = &plan->step;
    uint32_t n_layers = plan->cache->params.n_layers, n_filled = 0;
    step->exact = in->exact != 0;
    step->fixed = plan->params.fixed_launches && !step->exact;
    step->attended = false;
    step->n_rows = 0;
    for (uint32_t i = 0; i < step->n_sequences; i++)
        step->n_rows += step->growth[i].rows;
    place(plan, step);
    fill_tiles(step);
    fill_rows(plan, step);
    if (plan->eviction.asked.feed) fill_items(plan, step);
    if (plan->eviction.asked.rotation) fill_reindex(plan, step);
    for (uint32_t layer = 0; layer < n_layers; layer++) {
        step->layers[layer].begun = step->layers[layer].written = false;
        step->layers[layer].fed = step->layers[layer].attended = false;
        fill_layer(plan, step, layer);
        fill_filled(plan, step, layer, &n_filled);
    }
    fill_copies(plan, step, n_filled);
}
