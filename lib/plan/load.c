/* SPDX-License-Identifier: Apache-2.0 */
/* What rows of the open step hold of what was loaded, and the tables of a load. */
#include "lib/plan/load.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The places of the tables of n rows. */
typedef struct load_layout {
    uint64_t row_seq, positions, slots, end;
} load_layout;

static load_layout lay_out(const tms_setup *setup, uint64_t n) {
    load_layout at;
    uint64_t end = 0;
    at.row_seq = tms_arena_place(&end, n);
    at.positions = tms_arena_place(&end, n);
    at.slots = tms_arena_place(&end, n * setup->cache->params.n_kv_heads);
    at.end = end;
    return at;
}

static uint64_t held_bytes(const tms_loads *loads) {
    return (uint64_t)loads->setup->cache->params.n_layers * loads->setup->params.max_rows;
}

tamis_status tms_loads_create(tms_loads *loads, tamis_error *error) {
    const tms_setup *setup = loads->setup;
    if (setup->params.load_dtypes == 0) return TAMIS_OK;
    loads->held = tms_memory_host(setup->memory, held_bytes(loads), sizeof *loads->held);
    TMS_REQUIRE(loads->held, TAMIS_E_NO_MEMORY,
                "no host memory for what %" PRIu32 " rows of %" PRIu32 " layers hold",
                setup->params.max_rows, setup->cache->params.n_layers);
    return tms_arena_create(&loads->tables, setup->memory,
                            lay_out(setup, setup->params.max_rows).end, "a load", error);
}

void tms_loads_destroy(tms_loads *loads) {
    if (loads->tables.host) tms_arena_destroy(&loads->tables, loads->setup->dev);
    free(loads->held);
}

/* What launches on rows of a layer take, their tables not filled in. */
static tms_write_rows write_of(const tms_loads *loads, uint32_t layer, uint32_t n) {
    const tms_setup *setup = loads->setup;
    const load_layout at = lay_out(setup, n);
    tms_write_rows write = {.kv = tms_cache_kv(setup->cache, layer),
                            .batch = {.n_rows = n,
                                      .n_heads = setup->cache->params.n_heads,
                                      .n_kv_heads = setup->cache->params.n_kv_heads,
                                      .row_seq = tms_arena_ref(&loads->tables, at.row_seq)},
                            .slots = tms_arena_ref(&loads->tables, at.slots),
                            .planes = tms_cache_planes(setup->cache, layer),
                            .positions = tms_arena_ref(&loads->tables, at.positions)};
    tms_page_table_place(loads->table, layer, &write.batch);
    return write;
}

tamis_status tms_loads_warm(const tms_loads *loads, tamis_error *error) {
    const tms_setup *setup = loads->setup;
    const uint64_t width =
        (uint64_t)setup->cache->params.n_kv_heads * setup->cache->params.head_dim;
    if (setup->params.load_dtypes == 0) return TAMIS_OK;
    const tms_write_rows write = write_of(loads, 0, 0);
    const tms_deviation deviation = {
        .kv = write.kv, .batch = write.batch, .x.stride = width, .slots = write.slots};
    for (int dtype = 0; setup->params.load_dtypes >> dtype; dtype++) {
        const tms_load_rows load = {.kv = write.kv,
                                    .batch = write.batch,
                                    .slots = write.slots,
                                    .k_stride = width,
                                    .v_stride = width,
                                    .dtype = (tamis_dtype)dtype,
                                    .planes = write.planes,
                                    .positions = write.positions,
                                    .n_rot = setup->cache->params.head_dim};
        if (setup->params.load_dtypes >> dtype & 1)
            TMS_TRY(tms_run_load_rows(setup->dev, &load, error));
    }
    return tms_run_deviation(setup->dev, &deviation, error);
}

static uint8_t *held_in(const tms_loads *loads, uint32_t layer) {
    return loads->held + (uint64_t)layer * loads->setup->params.max_rows;
}

/* ---- Tables ---------------------------------------------------------------------------------- */

tamis_status tms_loads_place(const tms_loads *loads, uint32_t layer, uint32_t first, uint32_t n,
                             tms_write_rows *out, tamis_error *error) {
    const tms_step *step = loads->step;
    const uint32_t heads = loads->setup->cache->params.n_kv_heads;
    const load_layout at = lay_out(loads->setup, n);
    int32_t *host = loads->tables.host, *slots = host + at.slots;
    for (uint32_t i = 0, row = 0, to = 0; i < step->n_sequences; i++) {
        const uint32_t rows = step->growth[i].rows;
        const tms_sequence *sequence = step->sequences[i];
        for (uint32_t j = 0; j < rows; j++, row++) {
            if (row < first || row >= first + n) continue;
            host[at.row_seq + to] = (int32_t)step->table_row[i];
            host[at.positions + to++] = (int32_t)(sequence->length - rows + j);
            for (uint32_t lane = layer * heads; lane < (layer + 1) * heads; lane++)
                *slots++ = (int32_t)(sequence->lanes[lane].length - rows + j);
        }
    }
    *out = write_of(loads, layer, n);
    return tms_arena_send(&loads->tables, loads->setup->dev, 0, at.end, error);
}

tamis_status tms_loads_place_held(const tms_loads *loads, uint32_t layer, uint32_t parts,
                                  tms_write_rows *out, tamis_error *error) {
    const tms_step *step = loads->step;
    const uint32_t heads = loads->setup->cache->params.n_kv_heads;
    const load_layout at = lay_out(loads->setup, step->n_rows);
    int32_t *host = loads->tables.host, *slots = host + at.slots;
    for (uint32_t i = 0, row = 0, to = 0; i < step->n_sequences; i++) {
        const uint32_t rows = step->growth[i].rows;
        for (uint32_t j = 0; j < rows && to < step->n_rows; j++, row++) {
            if (step->begun[to] != row) continue;
            host[at.row_seq + to++] = (int32_t)step->table_row[i];
            const bool held = (held_in(loads, layer)[row] & parts) == parts;
            for (uint32_t lane = layer * heads; lane < (layer + 1) * heads; lane++)
                *slots++ = held ? (int32_t)(step->sequences[i]->lanes[lane].length - rows + j) : -1;
        }
    }
    *out = write_of(loads, layer, step->n_rows);
    return tms_arena_send(&loads->tables, loads->setup->dev, 0, at.end, error);
}

/* ---- What rows hold -------------------------------------------------------------------------- */

void tms_loads_clear(tms_loads *loads) {
    if (loads->held) memset(loads->held, 0, held_bytes(loads));
}

void tms_loads_hold(const tms_loads *loads, uint32_t layer, uint32_t first, uint32_t n,
                    uint32_t parts) {
    for (uint32_t row = first; row < first + n; row++)
        held_in(loads, layer)[row] |= (uint8_t)parts;
}

void tms_loads_lose(const tms_loads *loads, uint32_t layer, uint32_t first, uint32_t n,
                    uint32_t parts) {
    for (uint32_t row = first; row < first + n; row++)
        held_in(loads, layer)[row] &= (uint8_t)~parts;
}

void tms_loads_lose_present(const tms_loads *loads, uint32_t layer) {
    for (uint32_t i = 0; loads->held && i < loads->step->n_rows; i++)
        held_in(loads, layer)[loads->step->begun[i]] = 0;
}

bool tms_loads_lacking(const tms_loads *loads, uint32_t layer, tms_rows_of which, uint32_t parts,
                       uint32_t *row, const char **lacks) {
    const tms_step *step = loads->step;
    for (uint32_t r = 0, next = 0; r < step->n_begun; r++) {
        const bool present = next < step->n_rows && step->begun[next] == r;
        const uint32_t held = loads->held ? held_in(loads, layer)[r] : 0;
        next += present;
        if (which != TMS_ROWS_BEGUN && present != (which == TMS_ROWS_PRESENT)) continue;
        if ((held & parts) == parts) continue;
        *row = r;
        *lacks = parts & ~held & TMS_HELD_K ? "K" : "V";
        return true;
    }
    return false;
}
