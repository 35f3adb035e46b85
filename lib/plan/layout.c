/* SPDX-License-Identifier: Apache-2.0 */
/* The step's tables: laid out one behind the other and filled on the host, for one upload. */
#include "lib/plan/plan.h"

#include <string.h>

/* Ints of 64 bytes, where every table begins. */
#define ALIGN_INTS 16u

static uint64_t aligned(uint64_t n) {
    return (n + ALIGN_INTS - 1) / ALIGN_INTS * ALIGN_INTS;
}

uint64_t tms_step_ints(const tamis_plan *plan) {
    const tamis_plan_params *p = &plan->params;
    uint64_t rows = p->max_rows, sequences = p->max_sequences, n_lanes = plan->cache->n_lanes;
    uint64_t filled = (rows / plan->cache->params.page_size + sequences) * n_lanes;
    return aligned(2 * rows) + aligned(rows) + aligned(2 * rows) + 2 * aligned(rows * n_lanes) +
           aligned(filled) + aligned(2 * sequences * n_lanes);
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

static void fill_rows(tms_step *step, uint32_t sliding_window) {
    uint32_t row = 0;
    for (uint32_t i = 0; i < step->n_sequences; i++) {
        uint32_t rows = step->growth[i].rows, first = step->growth[i].sequence->length - rows;
        for (uint32_t j = 0; j < rows; j++, row++) {
            step->host[step->at.row_seq + row] = (int32_t)step->table_row[i];
            if (sliding_window == 0) continue;
            uint32_t position = first + j;
            int32_t *interval = step->host + step->at.intervals + 2 * row;
            interval[0] = position < sliding_window ? 0 : (int32_t)(position - sliding_window + 1);
            interval[1] = (int32_t)position;
        }
    }
}

/* Slots and visible slots of one layer's rows. */
static void fill_layer(const tamis_plan *plan, tms_step *step, uint32_t layer) {
    uint32_t heads = plan->cache->params.n_kv_heads, entry = layer * step->n_rows * heads;
    int32_t *slot = step->host + step->at.slots + entry;
    int32_t *visible = step->host + step->at.visible + entry;
    step->layers[layer].max_visible = 0;
    for (uint32_t i = 0; i < step->n_sequences; i++) {
        uint32_t rows = step->growth[i].rows;
        const tms_lane *lanes = step->growth[i].sequence->lanes + layer * heads;
        for (uint32_t j = 0; j < rows; j++)
            for (uint32_t h = 0; h < heads; h++) {
                *slot++ = (int32_t)(lanes[h].length - rows + j);
                *visible++ = (int32_t)(lanes[h].length - rows + j + 1);
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
            uint32_t length = sequence->lanes[lane].length, rows = step->growth[i].rows;
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

/* Sets the places of the tables, all but the end, which depends on what the last two hold. */
static void place(const tamis_plan *plan, tms_step *step) {
    uint32_t rows = step->n_rows, table = rows * plan->cache->n_lanes;
    tms_step_layout *at = &step->at;
    at->tiles = 0;
    at->row_seq = (uint32_t)aligned(2 * (uint64_t)rows);
    at->intervals = at->row_seq + (uint32_t)aligned(rows);
    at->visible = at->intervals;
    if (plan->params.sliding_window) at->visible += (uint32_t)aligned(2 * (uint64_t)rows);
    at->slots = at->visible + (uint32_t)aligned(table);
    at->filled = at->slots + (uint32_t)aligned(table);
}

static void fill_copies(const tamis_plan *plan, tms_step *step, uint32_t n_filled) {
    uint32_t n = 0;
    for (uint32_t p = 0; p < plan->cache->size.pools; p++)
        n += 2 * plan->copies.count[p];
    step->at.copies = step->at.filled + (uint32_t)aligned(n_filled);
    step->at.end = step->at.copies + (uint32_t)aligned(n);
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
    fill_rows(step, plan->params.sliding_window);
    for (uint32_t layer = 0; layer < n_layers; layer++) {
        step->layers[layer].written = false;
        fill_layer(plan, step, layer);
        fill_filled(plan, step, layer, &n_filled);
    }
    fill_copies(plan, step, n_filled);
}
