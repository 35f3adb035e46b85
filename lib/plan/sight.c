/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/plan/sight.h"

static void place(void *room, const tms_step_size *size, uint64_t *end) {
    tms_sight *sight = room;
    const bool window = sight->setup->params.sliding_window;
    sight->intervals = tms_arena_place(end, window ? 2 * size->rows : 0);
}

static void fill(void *room, const tms_step *step) {
    const tms_sight *sight = room;
    const uint32_t window = sight->setup->params.sliding_window;
    int32_t *interval = step->tables.host + sight->intervals;
    for (uint32_t row = 0; window && row < step->n_rows; row++) {
        const uint32_t position = step->position[row];
        *interval++ = position < window ? 0 : (int32_t)(position - window + 1);
        *interval++ = (int32_t)position;
    }
}

tms_step_room tms_sight_room(tms_sight *sight) {
    return (tms_step_room){sight, place, fill};
}

void tms_sight_limit(const tms_sight *sight, const tms_step *step, uint32_t layer,
                     tms_attend *attend) {
    const tms_setup *setup = sight->setup;
    if (!setup->params.sliding_window) return;
    attend->intervals = tms_step_table(step, sight->intervals);
    attend->positions = tms_cache_planes(setup->cache, layer).positions;
    attend->window = setup->params.sliding_window;
}

uint32_t tms_sight_first_page(const tms_sight *sight, const tms_step *step, uint32_t row) {
    const tms_setup *setup = sight->setup;
    const tamis_cache_params *cache = &setup->cache->params;
    if (!setup->params.sliding_window || cache->planes & TAMIS_PLANE_POSITIONS) return 0;
    return (uint32_t)step->tables.host[sight->intervals + 2ull * row] / cache->page_size;
}
