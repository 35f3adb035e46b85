/* SPDX-License-Identifier: Apache-2.0 */
/* The attention mass of rows: attend for their lse, then observe. Under a sliding window observe
 * goes by attend's logits, which are -inf where a row does not see; it has no intervals itself. */
#include "lib/plan/mass.h"

#include <inttypes.h>
#include <stdlib.h>

#define LOGIT_ROWS 4u /* at once, since logits take memory for each */

static bool by_logits(const tms_masses *m, uint32_t layer) {
    return tms_setup_window(m->setup, layer) > 0;
}
static bool any_by_logits(const tms_masses *m) {
    bool any = false;
    for (uint32_t layer = 0; layer < m->setup->cache->params.n_layers; layer++)
        any |= by_logits(m, layer);
    return any;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static tamis_status make_pairs(tms_masses *m, tamis_error *error) {
    TMS_TRY(tms_arena_create(&m->pairs, m->setup->dev, 4 * m->at_once, "masses", error));
    for (uint32_t i = 0; i < m->at_once; i++) {
        int32_t *whole = m->pairs.host + 2 * i, *single = whole + 2 * m->at_once;
        whole[0] = 0;
        whole[1] = (int32_t)i + 1;
        single[0] = (int32_t)i;
        single[1] = 1;
    }
    return tms_arena_send(&m->pairs, m->setup->dev, 0, 4 * m->at_once, error);
}

tamis_status tms_masses_create(tms_masses *m, tamis_error *error) {
    const tms_setup *setup = m->setup;
    const tamis_cache_params *c = &setup->cache->params;
    if (!setup->params.masses) return TAMIS_OK;
    m->at_once = any_by_logits(m) ? LOGIT_ROWS : TMS_TILE_ROWS;
    m->stride = tms_align_ints(setup->params.max_context);
    const uint64_t rows = m->at_once * (tms_setup_width(setup) + c->n_heads);
    const uint64_t logits = any_by_logits(m) ? m->at_once * c->n_heads * m->stride : 0;
    const uint64_t values = c->n_kv_heads * m->stride;
    m->host = calloc(values, sizeof *m->host);
    TMS_REQUIRE(m->host, TAMIS_E_NO_MEMORY, "no host memory for the masses of %" PRIu64 " slots",
                values);
    TMS_TRY(tms_memory_take(setup->dev, rows * sizeof(float), &m->rows, error));
    TMS_TRY(tms_memory_take(setup->dev, logits * sizeof(float), &m->logits, error));
    TMS_TRY(tms_memory_take(setup->dev, values * sizeof(float), &m->values, error));
    return make_pairs(m, error);
}

void tms_masses_destroy(tms_masses *m) {
    tms_device *dev = m->setup->dev;
    tms_mem *memories[] = {m->rows, m->logits, m->values};
    for (size_t i = 0; i < sizeof memories / sizeof *memories; i++)
        tms_device_free(dev, memories[i]);
    if (m->pairs.host) tms_arena_destroy(&m->pairs, dev);
    free(m->host);
}

/* ---- Launches -------------------------------------------------------------------------------- */

/* The attend of rows [first, first + n) of the step's. Tiles are one, or with logits one for each
 * row. */
static tms_attend attend_of(const tms_masses *m, uint32_t layer, const tms_matrix *q,
                            uint32_t first, uint32_t n) {
    const uint64_t width = tms_setup_width(m->setup);
    tms_attend attend = tms_launch_attend(m->launches, layer);
    tms_batch *batch = &attend.batch;
    const uint32_t n_tiles = by_logits(m, layer) ? n : n > 0;
    attend.q = *q;
    attend.q.ref.offset += first * q->stride * sizeof(float);
    attend.out = (tms_matrix){{m->rows, 0}, width};
    attend.lse = (tms_ref){m->rows, m->at_once * width * sizeof(float)};
    if (attend.intervals.mem) attend.intervals.offset += 2ull * first * sizeof(int32_t);
    batch->row_seq.offset += first * sizeof(int32_t);
    batch->visible.offset += (uint64_t)first * batch->n_kv_heads * sizeof(int32_t);
    batch->n_rows = n;
    batch->n_tiles = n_tiles;
    batch->tiles = tms_arena_ref(&m->pairs, by_logits(m, layer) ? 2 * m->at_once
                                            : n                 ? 2 * (n - 1)
                                                                : 0);
    batch->max_tile_rows = by_logits(m, layer) || n == 0 ? 1 : n;
    if (!by_logits(m, layer)) return attend;
    attend.logits = (tms_ref){m->logits, 0};
    attend.logit_stride = tms_align_ints(batch->max_visible);
    return attend;
}

/* What the rows of an attend give to the slots of their lanes. */
static tms_observe observe_of(const tms_masses *m, const tms_attend *attend) {
    const uint32_t n = attend->batch.n_rows;
    tms_observe observe = tms_launch_observe(attend);
    observe.group = TMS_GROUP_SUM;
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
    for (uint32_t layer = 0; layer < m->setup->cache->params.n_layers; layer++) {
        if (!m->setup->params.masses || !tms_setup_is_first(m->setup, layer)) continue;
        tms_attend attend = attend_of(m, layer, &q, 0, 0);
        TMS_TRY(run(m, &attend, false, error));
        attend.batch.max_tile_rows = by_logits(m, layer) ? 1 : TMS_TILE_ROWS;
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
    const uint64_t stride = tms_align_ints(m->step->layers[layer].max_visible);
    /* The newest rows first: they see, and so write, every slot; the others add to these. */
    for (uint32_t left = last, n; left > 0; left -= n) {
        n = left < m->at_once ? left : m->at_once;
        const tms_attend attend = attend_of(m, layer, q, end - last + left - n, n);
        TMS_TRY(run(m, &attend, left < last, error));
    }
    TMS_TRY(tms_device_read(m->setup->dev, (tms_ref){m->values, 0}, m->host,
                            heads * stride * sizeof *m->host, error));
    add_values(m, layer, stride, mass);
    return TAMIS_OK;
}
