/* SPDX-License-Identifier: Apache-2.0 */
/* The windows of a plan's layers, and their tables. */
#include "lib/plan/sight.h"

#include <inttypes.h>
#include <stdlib.h>

static uint32_t find(const tms_sight *sight, uint32_t window) {
    uint32_t i = 0;
    while (i < sight->n && sight->windows[i] != window)
        i++;
    return i;
}

tamis_status tms_sight_create(tms_sight *sight, tamis_error *error) {
    const uint32_t n_layers = sight->setup->cache->params.n_layers;
    sight->windows = calloc(n_layers, sizeof *sight->windows);
    sight->intervals = calloc(n_layers, sizeof *sight->intervals);
    sight->window_of = calloc(n_layers, sizeof *sight->window_of);
    TMS_REQUIRE(sight->windows && sight->intervals && sight->window_of, TAMIS_E_NO_MEMORY,
                "no host memory for the windows of %" PRIu32 " layers", n_layers);
    for (uint32_t layer = 0; layer < n_layers; layer++) {
        const uint32_t window = tms_setup_window(sight->setup, layer);
        if (window && find(sight, window) == sight->n) sight->windows[sight->n++] = window;
    }
    for (uint32_t layer = 0; layer < n_layers; layer++)
        sight->window_of[layer] = find(sight, tms_setup_window(sight->setup, layer));
    return TAMIS_OK;
}

void tms_sight_destroy(tms_sight *sight) {
    free(sight->windows);
    free(sight->intervals);
    free(sight->window_of);
}

/* ---- Tables ---------------------------------------------------------------------------------- */

static void place(void *room, const tms_step_size *size, uint64_t *end) {
    tms_sight *sight = room;
    for (uint32_t i = 0; i < sight->n; i++)
        sight->intervals[i] = tms_arena_place(end, 2 * size->rows);
}

static void fill(void *room, const tms_step *step) {
    const tms_sight *sight = room;
    for (uint32_t i = 0; i < sight->n; i++) {
        const uint32_t window = sight->windows[i];
        int32_t *interval = step->tables.host + sight->intervals[i];
        for (uint32_t row = 0; row < step->n_rows; row++) {
            const uint32_t position = step->position[row];
            *interval++ = position < window ? 0 : (int32_t)(position - window + 1);
            *interval++ = (int32_t)position;
        }
    }
}

tms_step_room tms_sight_room(tms_sight *sight) {
    return (tms_step_room){sight, place, fill};
}

/* ---- What they say --------------------------------------------------------------------------- */

void tms_sight_limit(const tms_sight *sight, const tms_step *step, uint32_t layer,
                     tms_attend *attend) {
    const uint32_t i = sight->window_of[layer];
    if (i == sight->n) return;
    attend->intervals = tms_step_table(step, sight->intervals[i]);
    attend->positions = tms_cache_planes(sight->setup->cache, layer).positions;
    attend->window = sight->windows[i];
}

uint32_t tms_sight_first_page(const tms_sight *sight, const tms_step *step, uint32_t layer,
                              uint32_t row) {
    const tamis_cache_params *cache = &sight->setup->cache->params;
    const uint32_t i = sight->window_of[layer];
    if (i == sight->n || cache->planes & TAMIS_PLANE_POSITIONS) return 0;
    return (uint32_t)step->tables.host[sight->intervals[i] + 2ull * row] / cache->page_size;
}
