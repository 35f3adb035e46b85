/* SPDX-License-Identifier: Apache-2.0 */
/* The attention mass of rows: attend for their lse, then observe. */
#include "lib/plan/mass.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- Memory ---------------------------------------------------------------------------------- */

static tamis_status make_pairs(tms_masses *m, tamis_error *error) {
    TMS_TRY(tms_arena_create(&m->pairs, m->setup->memory, 2 * TMS_TILE_ROWS, "masses", error));
    for (uint32_t i = 0; i < TMS_TILE_ROWS; i++) {
        m->pairs.host[2 * i] = 0;
        m->pairs.host[2 * i + 1] = (int32_t)i + 1;
    }
    return TAMIS_OK;
}

tamis_status tms_masses_create(tms_masses *m, tamis_error *error) {
    const tms_setup *setup = m->setup;
    const tamis_cache_params *c = &setup->cache->params;
    if (!(setup->params.flags & TAMIS_PLAN_ROW_MASSES)) return TAMIS_OK;
    const uint64_t rows = TMS_TILE_ROWS * (tms_setup_width(setup) + c->n_heads);
    const uint64_t values = c->n_kv_heads * tms_align_ints(setup->params.max_context);
    m->host = tms_memory_host(setup->memory, values, sizeof *m->host);
    TMS_REQUIRE(m->host, TAMIS_E_NO_MEMORY, "no host memory for the masses of %" PRIu64 " slots",
                values);
    TMS_TRY(tms_memory_take(setup->memory, rows * sizeof(float), &m->rows, error));
    TMS_TRY(tms_memory_take(setup->memory, values * sizeof(float), &m->values, error));
    return make_pairs(m, error);
}

void tms_masses_destroy(tms_masses *m) {
    tms_device *dev = m->setup->dev;
    tms_mem *memories[] = {m->rows, m->values};
    for (size_t i = 0; i < sizeof memories / sizeof *memories; i++)
        tms_device_free(dev, memories[i]);
    if (m->pairs.host) tms_arena_destroy(&m->pairs, dev);
    free(m->host);
}

/* ---- Launches -------------------------------------------------------------------------------- */

/* The attend of rows [first, first + n) of the step's, a tile. */
static tms_attend attend_of(const tms_masses *m, uint32_t layer, const tms_matrix *q,
                            uint32_t first, uint32_t n) {
    const uint64_t width = tms_setup_width(m->setup);
    tms_attend attend = tms_template_attend(m->templates, layer, 0);
    tms_batch *batch = &attend.batch;
    const uint64_t owner = (uint64_t)first * batch->n_kv_heads;
    attend.q = *q;
    attend.q.ref.offset += first * q->stride * sizeof(float);
    attend.out = (tms_matrix){{m->rows, 0}, width};
    attend.lse = (tms_ref){m->rows, TMS_TILE_ROWS * width * sizeof(float)};
    batch->row_seq.offset += first * sizeof(int32_t);
    batch->visible.offset += owner * sizeof(int32_t);
    if (batch->first.mem) batch->first.offset += owner * sizeof(int32_t);
    batch->n_rows = n;
    batch->n_tiles = n > 0;
    batch->tiles = tms_arena_ref(&m->pairs, n ? 2 * (n - 1) : 0);
    batch->max_tile_rows = n ? n : 1;
    return attend;
}

/* What the rows of an attend give to the slots of their lanes. */
static tms_observe observe_of(const tms_masses *m, const tms_attend *attend) {
    const uint32_t n = attend->batch.n_rows;
    tms_observe observe = tms_template_observe(attend);
    observe.group = TAMIS_GROUP_SUM;
    observe.n_items = n > 0;
    observe.max_span = n ? n : 1;
    observe.spans = tms_arena_ref(&m->pairs, n ? 2 * (n - 1) : 0);
    observe.values = (tms_values){{m->values, 0}, tms_align_ints(attend->batch.max_visible)};
    return observe;
}

static tamis_status run(const tms_masses *m, const tms_attend *attend, bool more,
                        tamis_error *error) {
    tms_observe observe = observe_of(m, attend);
    observe.accumulate = more;
    TMS_TRY(tms_run_attend(m->setup->dev, attend, error));
    return tms_run_observe(m->setup->dev, &observe, error);
}

tamis_status tms_masses_warm(const tms_masses *m, tamis_error *error) {
    const tms_matrix q = {{NULL, 0}, tms_setup_width(m->setup)};
    if (!(m->setup->params.flags & TAMIS_PLAN_ROW_MASSES)) return TAMIS_OK;
    TMS_TRY(tms_arena_send(&m->pairs, m->setup->dev, 0, 2 * TMS_TILE_ROWS, error));
    for (uint32_t layer = 0; layer < m->setup->cache->params.n_layers; layer++) {
        if (!tms_setup_is_first(m->setup, layer)) continue;
        tms_attend attend = attend_of(m, layer, &q, 0, 0);
        TMS_TRY(run(m, &attend, false, error));
        attend.batch.max_tile_rows = TMS_TILE_ROWS;
        TMS_TRY(run(m, &attend, false, error));
    }
    return TAMIS_OK;
}

/* ---- Adding ---------------------------------------------------------------------------------- */

/* The step's rows as begun are the last slots of each lane. Nothing was written of those behind the
 * last row that the step still has: it does not see them. */
static void add_values(const tms_masses *m, uint32_t layer, uint64_t stride, double *mass) {
    const uint32_t heads = m->setup->cache->params.n_kv_heads, n = m->step->n_begun;
    const uint32_t seen = m->step->begun[m->step->n_rows - 1] + 1;
    for (uint32_t h = 0; h < heads; h++) {
        const tms_lane *lane = &m->step->sequences[0]->lanes[layer * heads + h];
        const float *of = m->host + h * stride + (lane->length - n);
        for (uint32_t i = 0; i < seen; i++)
            mass[i] += (double)of[i];
    }
}

tamis_status tms_masses_add(const tms_masses *m, uint32_t layer, const tms_matrix *q, uint32_t last,
                            double *mass, tamis_error *error) {
    const uint32_t heads = m->setup->cache->params.n_kv_heads, end = m->step->n_rows;
    const tms_batch all = tms_template_attend(m->templates, layer, 0).batch;
    const uint64_t stride = tms_align_ints(all.max_visible);
    TMS_TRY(tms_sight_find(m->templates->sight, m->step, layer, 0, &all, error));
    /* The newest rows first: their lane ends last, so they write every slot; the others add to these. */
    for (uint32_t left = last, n; left > 0; left -= n) {
        n = left < TMS_TILE_ROWS ? left : TMS_TILE_ROWS;
        const tms_attend attend = attend_of(m, layer, q, end - last + left - n, n);
        TMS_TRY(run(m, &attend, left < last, error));
    }
    TMS_TRY(tms_device_read(m->setup->dev, (tms_ref){m->values, 0}, m->host,
                            heads * stride * sizeof *m->host, error));
    add_values(m, layer, stride, mass);
    return TAMIS_OK;
}
