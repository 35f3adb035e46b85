/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of an attend with sinks moved nearer, and how queries were rotated. */
#include "lib/plan/reindex.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- Tables ---------------------------------------------------------------------------------- */

static void place(void *room, const tms_step_size *size, uint64_t *end) {
    tms_reindex *reindex = room;
    const uint64_t rows = reindex->setup->needs.rotation ? size->rows : 0;
    const uint64_t heads = reindex->setup->cache->params.n_kv_heads;
    reindex->index = tms_arena_place(end, rows);
    reindex->delta = tms_arena_place(end, rows);
    reindex->near = tms_arena_place(end, rows * heads);
    reindex->far = tms_arena_place(end, rows * heads);
}

/* By how many positions each row's sinks move nearer, and the slots of its two attends. All lanes of a
 * sequence hold the same positions, sinks in the first slots. */
static void fill(void *room, const tms_step *step) {
    const tms_reindex *reindex = room;
    const tms_setup *setup = reindex->setup;
    const uint32_t sinks = setup->params.eviction.sinks, heads = setup->cache->params.n_kv_heads;
    int32_t *host = step->tables.host;
    int32_t *index = host + reindex->index, *delta = host + reindex->delta;
    int32_t *near = host + reindex->near, *far = host + reindex->far;
    if (!setup->needs.rotation) return;
    for (uint32_t i = 0, row = 0; i < step->n_sequences; i++) {
        for (uint32_t j = 0; j < step->n_kept[i]; j++, row++) {
            const uint32_t seen = tms_step_visible(step, 0, row, 0);
            index[row] = (int32_t)(row - tms_step_section_of(step, row)->first_row);
            delta[row] = -(int32_t)(step->position[row] + 1 - seen);
            for (uint32_t h = 0; h < heads; h++) {
                const uint32_t visible = tms_step_visible(step, 0, row, h);
                *near++ = (int32_t)(visible < sinks ? visible : sinks);
                *far++ = (int32_t)sinks;
            }
        }
    }
}

tms_step_room tms_reindex_room(tms_reindex *reindex) {
    return (tms_step_room){reindex, place, fill};
}

tamis_status tms_reindex_create(tms_reindex *reindex, tamis_error *error) {
    const tms_setup *setup = reindex->setup;
    const uint64_t row = 4 * tms_setup_width(setup) + 2ull * setup->cache->params.n_heads;
    const uint64_t bytes = setup->params.max_rows * row * sizeof(float);
    return tms_memory_take(setup->memory, setup->needs.rotation ? bytes : 0, &reindex->rows, error);
}

void tms_reindex_destroy(tms_reindex *reindex) {
    tms_device *dev = reindex->setup->dev;
    tms_device_free(dev, reindex->rows);
    tms_let_go(reindex->held);
}

/* ---- A layer --------------------------------------------------------------------------------- */

/* Places in the rows' memory: rotated queries, two outs, the merged out, two lse. */
typedef struct reindex_parts {
    tms_matrix turned, outs[2], merged;
    tms_ref lses[2];
} reindex_parts;

static reindex_parts lay_out(const tms_reindex *reindex, const tms_attend *attend) {
    uint64_t width = (uint64_t)attend->batch.n_heads * attend->kv.head_dim;
    uint64_t block = attend->batch.n_rows * width * sizeof(float);
    uint64_t lse = (uint64_t)attend->batch.n_rows * attend->batch.n_heads * sizeof(float);
    tms_mem *mem = reindex->rows;
    return (reindex_parts){.turned = {{mem, 0}, width},
                           .outs = {{{mem, block}, width}, {{mem, 2 * block}, width}},
                           .merged = {{mem, 3 * block}, width},
                           .lses = {{mem, 4 * block}, {mem, 4 * block + lse}}};
}

static tamis_status turn(const tms_reindex *reindex, const tms_attend *attend,
                         const reindex_parts *parts, tms_ref index, tms_ref delta,
                         tamis_error *error) {
    const tms_scatter_rows copy = {.x = attend->q,
                                   .y = parts->turned,
                                   .n_rows = attend->batch.n_rows,
                                   .width = (uint32_t)parts->turned.stride,
                                   .index = index};
    const tms_rotate rotate = {.x = parts->turned,
                               .n_rows = attend->batch.n_rows,
                               .n_heads = attend->batch.n_heads,
                               .head_dim = attend->kv.head_dim,
                               .n_rot = reindex->n_rot ? reindex->n_rot : attend->kv.head_dim,
                               .pairing = reindex->pairing,
                               .positions = delta,
                               .table = reindex->rotation};
    TMS_TRY(tms_run_scatter_rows(reindex->setup->dev, &copy, error));
    return tms_run_rotate(reindex->setup->dev, &rotate, error);
}

/* One of the two attends: over the sinks, or over what is behind them. entry: of the first row in tables
 * of (row, KV head). */
static tamis_status attend_half(const tms_reindex *reindex, const tms_attend *attend,
                                const reindex_parts *parts, uint64_t entry, int half,
                                tamis_error *error) {
    tms_attend p = *attend;
    p.out = parts->outs[half];
    p.lse = parts->lses[half];
    if (half == 0) {
        p.q = parts->turned;
        p.batch.visible = tms_step_table(reindex->step, reindex->near + entry);
    } else {
        p.batch.first = tms_step_table(reindex->step, reindex->far + entry);
        p.logit.sinks = (tms_ref){NULL, 0}; /* the merged state has those of the other part */
    }
    return tms_run_attend(reindex->setup->dev, &p, error);
}

tamis_status tms_reindex_attend(const tms_reindex *reindex, uint32_t section,
                                const tms_attend *attend, tamis_error *error) {
    const reindex_parts parts = lay_out(reindex, attend);
    const tms_step *step = reindex->step;
    const uint64_t first = step->sections[section].first_row,
                   entry = first * attend->batch.n_kv_heads;
    const tms_ref index = tms_step_table(step, reindex->index + first);
    const tms_ref delta = tms_step_table(step, reindex->delta + first);
    const tms_merge merge = {.n_parts = 2,
                             .n = attend->batch.n_rows * attend->batch.n_heads,
                             .dim = attend->kv.head_dim,
                             .outs = parts.outs[0].ref,
                             .lses = parts.lses[0],
                             .out = parts.merged.ref,
                             .lse = attend->lse};
    const tms_scatter_rows copy = {.x = parts.merged,
                                   .y = attend->out,
                                   .n_rows = attend->batch.n_rows,
                                   .width = (uint32_t)parts.merged.stride,
                                   .index = index};
    TMS_TRY(turn(reindex, attend, &parts, index, delta, error));
    TMS_TRY(attend_half(reindex, attend, &parts, entry, 0, error));
    TMS_TRY(attend_half(reindex, attend, &parts, entry, 1, error));
    TMS_TRY(tms_run_merge(reindex->setup->dev, &merge, error));
    return tms_run_scatter_rows(reindex->setup->dev, &copy, error);
}
