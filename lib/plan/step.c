/* SPDX-License-Identifier: Apache-2.0 */
/* A step's beginning and end: its rows checked and reserved, its tables laid out, filled and sent;
 * then kept or given up. */
#include "lib/plan/step.h"
#include "lib/plan/plan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- Where the tables lie -------------------------------------------------------------------- */

/* How much a step brings. */
typedef struct step_size {
    uint64_t rows, sequences;
    bool exact;
    uint64_t filled; /* pages */
    uint64_t copies; /* pairs of pages */
} step_size;

/* Those of a step of that size. Nothing but the copies lies behind the filled pages. */
static tms_step_layout lay_out(const tms_setup *setup, const step_size *n) {
    const tms_eviction_needs *needs = &setup->needs;
    const uint64_t rows = n->rows, n_lanes = setup->cache->n_lanes;
    const uint64_t sequences = needs->feed ? n->sequences : 0;
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
    const bool scores = setup->needs.feed != TMS_FEED_NONE;
    uint32_t cap = tms_setup_cap(setup, false);
    if (cap == UINT32_MAX && !scores) return (uint64_t)sequences * setup->cache->n_lanes;
    if (cap > setup->params.max_context || scores) cap = setup->params.max_context;
    return tms_copies_room(setup->cache, sequences, cap);
}

static step_size largest(const tms_setup *setup) {
    const uint64_t rows = setup->params.max_rows, sequences = setup->params.max_sequences;
    const uint64_t pages =
        rows / setup->cache->params.page_size + sequences; /* that a lane fills */
    return (step_size){rows, sequences, false, pages * setup->cache->n_lanes, most_copies(setup)};
}

tamis_status tms_step_create(tms_step *step, const tms_setup *setup, tamis_error *error) {
    const step_size size = largest(setup);
    const size_t n = setup->params.max_sequences;
    step->sequences = calloc(n, sizeof *step->sequences);
    step->growth = calloc(n, sizeof *step->growth);
    step->table_row = calloc(n, sizeof *step->table_row);
    step->ring = calloc(n, sizeof *step->ring);
    step->layers = calloc(setup->cache->params.n_layers, sizeof *step->layers);
    step->copies.pairs = calloc(size.copies, 2 * sizeof *step->copies.pairs);
    step->copies.count = calloc(setup->cache->size.pools, sizeof *step->copies.count);
    TMS_REQUIRE(step->sequences && step->growth && step->table_row && step->ring && step->layers &&
                    step->copies.pairs && step->copies.count,
                TAMIS_E_NO_MEMORY, "no host memory for a plan of %zu sequences", n);
    return tms_arena_create(&step->tables, setup->dev, lay_out(setup, &size).end, "a step", error);
}

void tms_step_destroy(tms_step *step, const tms_setup *setup) {
    tms_arena_destroy(&step->tables, setup->dev);
    free(step->sequences);
    free(step->growth);
    free(step->table_row);
    free(step->ring);
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

/* What evicting knows of a row: its position, and its place in a ring if it is among the last of its
 * sequence. */
static void fill_position(const tamis_plan *plan, uint32_t i, uint32_t row, uint32_t position) {
    const tms_setup *setup = &plan->setup;
    const tms_step *step = &plan->step;
    int32_t *host = step->tables.host;
    if (setup->cache->params.planes & TAMIS_PLANE_POSITIONS)
        host[step->at.positions + row] = (int32_t)position;
    if (setup->needs.window == 0) return;
    bool kept = position + setup->needs.window >= step->sequences[i]->length;
    host[step->at.queries + row] =
        kept ? (int32_t)tms_query_rings_row(&plan->rings, step->ring[i], position) : -1;
}

static void fill_rows(tamis_plan *plan) {
    const uint32_t sliding_window = plan->setup.params.sliding_window;
    const tms_step *step = &plan->step;
    int32_t *host = step->tables.host;
    for (uint32_t i = 0, row = 0; i < step->n_sequences; i++) {
        uint32_t rows = step->growth[i].rows, first = step->sequences[i]->length - rows;
        for (uint32_t j = 0; j < rows; j++, row++) {
            uint32_t position = first + j;
            host[step->at.row_seq + row] = (int32_t)step->table_row[i];
            fill_position(plan, i, row, position);
            if (sliding_window == 0) continue;
            int32_t *interval = host + step->at.intervals + 2 * row;
            interval[0] = position < sliding_window ? 0 : (int32_t)(position - sliding_window + 1);
            interval[1] = (int32_t)position;
        }
    }
}

/* Rows whose weights feed the scores: all of a sequence, or its last. */
static void fill_items(const tms_setup *setup, tms_step *step) {
    uint32_t heads = setup->cache->params.n_kv_heads, n = step->n_sequences, first = 0;
    int32_t *host = step->tables.host, *spans = host + step->at.item_spans;
    step->max_span = 1;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t rows = step->growth[i].rows, fed = setup->needs.feed == TMS_FEED_SUM ? rows : 1;
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

/* How far each row's sinks are to come nearer, and what its two attends see. Lanes of a sequence
 * are alike. */
static void fill_reindexed(const tms_setup *setup, tms_step *step) {
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

/* Slots and visible slots of one layer's rows. */
static void fill_layer(const tms_setup *setup, tms_step *step, uint32_t layer) {
    uint32_t heads = setup->cache->params.n_kv_heads;
    uint64_t entry = (uint64_t)layer * step->n_rows * heads;
    int32_t *slot = step->tables.host + step->at.slots + entry;
    int32_t *visible = step->tables.host + step->at.visible + entry;
    int32_t *stays =
        setup->needs.in_place && !step->exact ? step->tables.host + step->at.stays + entry : NULL;
    step->layers[layer] = (tms_step_layer){0};
    for (uint32_t i = 0; i < step->n_sequences; i++) {
        uint32_t rows = step->growth[i].rows;
        const tms_lane *lanes = step->sequences[i]->lanes + layer * heads;
        for (uint32_t j = 0; j < rows; j++)
            for (uint32_t h = 0; h < heads; h++) {
                /* A lane that stays at its length takes one row, whose slot the device chooses. */
                bool same = lanes[h].grown < rows;
                *slot++ = same ? -1 : (int32_t)(lanes[h].length - rows + j);
                *visible++ = (int32_t)(lanes[h].length - (same ? 0 : rows - j - 1));
                if (stays) *stays++ = same;
                step->layers[layer].n_staying += same;
            }
        for (uint32_t h = 0; h < heads; h++)
            if (lanes[h].length > step->layers[layer].max_visible)
                step->layers[layer].max_visible = lanes[h].length;
    }
}

/* Collects the pages of a layer that the step fills, behind *n others. */
static void fill_filled(const tms_setup *setup, tms_step *step, uint32_t layer, uint32_t *n) {
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

/* Fills counts and tables, after the reserve. */
static void fill(tamis_plan *plan, bool exact) {
    const tms_setup *setup = &plan->setup;
    tms_step *step = &plan->step;
    step_size size = {.sequences = step->n_sequences, .exact = exact};
    uint32_t n_filled = 0;
    for (uint32_t i = 0; i < step->n_sequences; i++)
        size.rows += step->growth[i].rows;
    for (uint32_t p = 0; p < setup->cache->size.pools; p++)
        size.copies += step->copies.count[p];
    step->exact = exact;
    step->fixed = setup->params.fixed_launches && !exact;
    step->n_rows = (uint32_t)size.rows;
    step->at = lay_out(setup, &size);
    fill_tiles(step);
    fill_rows(plan);
    if (setup->needs.feed) fill_items(setup, step);
    if (setup->needs.rotation) fill_reindexed(setup, step);
    for (uint32_t layer = 0; layer < setup->cache->params.n_layers; layer++) {
        fill_layer(setup, step, layer);
        fill_filled(setup, step, layer, &n_filled);
    }
    size.filled = n_filled; /* which are known now, and what lies behind them moves */
    step->at = lay_out(setup, &size);
    memcpy(step->tables.host + step->at.copies, step->copies.pairs,
           2 * size.copies * sizeof *step->copies.pairs);
}

/* ---- Begin ----------------------------------------------------------------------------------- */

/* Checks the sequences and puts them into the step; marks the first `*n` as taken. */
static tamis_status collect(tamis_plan *plan, const tamis_step *in, uint32_t *n,
                            tamis_error *error) {
    const tamis_plan_params *p = &plan->setup.params;
    uint64_t total = 0;
    for (*n = 0; *n < in->count; ++*n) {
        tamis_sequence id = in->sequences[*n];
        uint32_t rows = in->rows ? in->rows[*n] : 1;
        tms_sequence *sequence = tms_cache_find(plan->setup.cache, id);
        TMS_REQUIRE(sequence, TAMIS_E_ARGUMENT, "there is no sequence %" PRIu64, id);
        TMS_REQUIRE(!sequence->in_step, TAMIS_E_ARGUMENT,
                    "sequence %" PRIu64 " comes twice in the step", id);
        TMS_REQUIRE(rows > 0, TAMIS_E_ARGUMENT, "sequence %" PRIu64 " brings no rows", id);
        TMS_REQUIRE(rows == 1 || in->exact || !p->fixed_launches, TAMIS_E_ARGUMENT,
                    "sequence %" PRIu64 " brings %" PRIu32
                    " rows: a step that is not exact brings one under fixed_launches",
                    id, rows);
        TMS_REQUIRE((uint64_t)sequence->length + rows <= p->max_context, TAMIS_E_ARGUMENT,
                    "%" PRIu32 " rows after the %" PRIu32 " tokens of sequence %" PRIu64
                    " exceed max_context %" PRIu32,
                    rows, sequence->length, id, p->max_context);
        total += rows;
        TMS_REQUIRE(total <= p->max_rows, TAMIS_E_ARGUMENT,
                    "the step's first %" PRIu32 " sequences bring %" PRIu64
                    " rows, which exceed max_rows %" PRIu32,
                    *n + 1, total, p->max_rows);
        plan->step.sequences[*n] = sequence;
        tamis_status status =
            tms_in_step_growth(plan, sequence, rows, in->exact, &plan->step.growth[*n], error);
        if (status != TAMIS_OK) return status;
        sequence->in_step = true;
    }
    TMS_REQUIRE(
        in->exact || !plan->setup.reading.listed || total <= p->max_selected_rows, TAMIS_E_ARGUMENT,
        "%" PRIu64 " rows go through the selection, which exceed max_selected_rows %" PRIu32, total,
        p->max_selected_rows);
    return TAMIS_OK;
}

static tamis_status check_step(tamis_plan *plan, const tamis_step *in, tamis_error *error) {
    TMS_REQUIRE(plan, TAMIS_E_ARGUMENT, "plan is NULL");
    TMS_REQUIRE(in, TAMIS_E_ARGUMENT, "step is NULL");
    TMS_REQUIRE_RESERVED(in, tamis_step);
    TMS_REQUIRE(!plan->setup.cache->step_open, TAMIS_E_STATE, "a step on the cache is open");
    TMS_REQUIRE(in->sequences, TAMIS_E_ARGUMENT, "sequences is NULL");
    TMS_REQUIRE(in->count > 0, TAMIS_E_ARGUMENT, "the step has no sequences");
    TMS_REQUIRE(in->count <= plan->setup.params.max_sequences, TAMIS_E_ARGUMENT,
                "%" PRIu32 " sequences exceed max_sequences %" PRIu32, in->count,
                plan->setup.params.max_sequences);
    uint32_t n = 0;
    tamis_status status = collect(plan, in, &n, error);
    for (uint32_t i = 0; i < n; i++)
        plan->step.sequences[i]->in_step = false;
    return status;
}

/* Copies what a pool has of each page of the pairs. Bounds stay behind unless tokens are replaced
 * or scored in place: else a copied page is a partial one, whose bounds come when it is full. */
static tamis_status copy_pool(const tms_setup *setup, const tms_pool *pool, tms_ref pairs,
                              uint32_t n, tamis_error *error) {
    tms_device *dev = setup->dev;
    const bool bounded = setup->needs.in_place || setup->needs.feed;
    const uint64_t plane_bytes = setup->cache->params.page_size * sizeof(int32_t);
    const struct {
        tms_mem *mem;
        uint64_t bytes;
    } parts[] = {{pool->data, setup->cache->size.page_bytes},
                 {bounded ? pool->bounds : NULL, setup->cache->size.bounds_bytes},
                 {pool->positions, plane_bytes},
                 {pool->scores, plane_bytes}};
    tamis_status status = TAMIS_OK;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const tms_copy_pages copy = {
            .data = {parts[i].mem, 0}, .bytes = parts[i].bytes, .n = n, .pairs = pairs};
        if (parts[i].mem) TMS_TRY(dev, tms_run_copy_pages(dev, &copy));
    }
fail:
    return status;
}

/* Enqueues the copies of shared pages. */
static tamis_status copy_shared(const tamis_plan *plan, tamis_error *error) {
    const tamis_cache *cache = plan->setup.cache;
    const tms_step *step = &plan->step;
    tamis_status status = TAMIS_OK;
    uint64_t at = step->at.copies;
    for (uint32_t p = 0; p < cache->size.pools && status == TAMIS_OK; p++) {
        uint32_t n = step->copies.count[p];
        tms_ref pairs = tms_step_table(step, at);
        if (n > 0) status = copy_pool(&plan->setup, &cache->pools[p], pairs, n, error);
        at += 2 * (uint64_t)n;
    }
    return status;
}

/* Everything that the device needs before the first layer. */
static tamis_status upload(tamis_plan *plan, bool exact, tamis_error *error) {
    tms_step *step = &plan->step;
    tms_device *dev = plan->setup.dev;
    uint32_t n = step->n_sequences;
    tamis_status status = TAMIS_OK;
    TMS_TRY(dev, tms_query_rings_bring(&plan->rings, step->sequences, n, step->ring));
    status = tms_page_table_bring(&plan->table, step->sequences, n, step->table_row, error);
    if (status != TAMIS_OK) return status;
    fill(plan, exact);
    TMS_TRY(dev, tms_arena_send(&step->tables, dev, 0, step->at.end));
    return copy_shared(plan, error);
fail:
    return status;
}

tamis_status tamis_plan_step_begin(tamis_plan *plan, const tamis_step *in, tamis_error *error) {
    tamis_status status = check_step(plan, in, error);
    if (status != TAMIS_OK) return status;
    tamis_cache *cache = plan->setup.cache;
    tms_step *step = &plan->step;
    status = tms_cache_reserve(cache, step->growth, in->count, &step->copies, error);
    if (status != TAMIS_OK) return status;
    step->n_sequences = in->count;
    plan->launches.attended = false;
    status = upload(plan, in->exact, error);
    if (status != TAMIS_OK) {
        tms_cache_rollback(cache, step->growth, step->n_sequences, false);
        return status;
    }
    for (uint32_t i = 0; i < step->n_sequences && tms_step_keeps_queries(step, &plan->setup); i++) {
        uint32_t end = step->sequences[i]->length;
        tms_query_rings_expect(&plan->rings, step->ring[i], end - step->growth[i].rows, end);
    }
    for (uint32_t p = 0; p < cache->size.pools; p++)
        plan->counters.pages_copied += step->copies.count[p];
    step->open = true;
    return TAMIS_OK;
}

/* ---- End ------------------------------------------------------------------------------------- */

static tamis_status check_open(const tamis_plan *plan, tamis_error *error) {
    TMS_REQUIRE(plan, TAMIS_E_ARGUMENT, "plan is NULL");
    TMS_REQUIRE(plan->step.open, TAMIS_E_STATE, "the plan has no open step");
    return TAMIS_OK;
}

static bool all_attended(const tamis_plan *plan) {
    bool all = true;
    for (uint32_t layer = 0; layer < plan->setup.cache->params.n_layers; layer++)
        all &= plan->step.layers[layer].attended;
    return all;
}

tamis_status tamis_plan_step_end(tamis_plan *plan, tamis_error *error) {
    tamis_status status = check_open(plan, error);
    if (status != TAMIS_OK) return status;
    const tms_setup *setup = &plan->setup;
    tms_step *step = &plan->step;
    for (uint32_t layer = 0; layer < setup->cache->params.n_layers; layer++)
        TMS_REQUIRE(step->layers[layer].written, TAMIS_E_STATE,
                    "layer %" PRIu32 " was not written in this step", layer);
    status = tms_forward(setup->dev, setup->dev->backend->flush(setup->dev), error);
    if (status != TAMIS_OK) return status;
    const bool whole = all_attended(plan);
    tms_cache_commit(setup->cache, step->growth, step->n_sequences);
    /* Layers that were not attended have brought no queries. */
    for (uint32_t i = 0; i < step->n_sequences && !whole && tms_step_keeps_queries(step, setup);
         i++)
        tms_query_rings_empty(&plan->rings, step->ring[i]);
    tms_in_step_note_scores(plan, whole, false);
    step->open = false;
    plan->counters.steps++;
    return TAMIS_OK;
}

/* Marks sequences of whose lanes one may have had a token overwritten. */
static void mark_given_up(tamis_plan *plan) {
    const tms_step *step = &plan->step;
    uint32_t heads = plan->setup.cache->params.n_kv_heads;
    for (uint32_t i = 0; i < step->n_sequences; i++)
        for (uint32_t lane = 0; lane < plan->setup.cache->n_lanes; lane++) {
            bool stayed = step->sequences[i]->lanes[lane].grown < step->growth[i].rows;
            if (stayed && step->layers[lane / heads].begun)
                step->sequences[i]->given_up = step->growth[i].cap;
        }
}

void tms_step_give_up(tamis_plan *plan) {
    tms_step *step = &plan->step;
    mark_given_up(plan);
    tms_cache_rollback(plan->setup.cache, step->growth, step->n_sequences, true);
    for (uint32_t i = 0; i < step->n_sequences; i++)
        if (step->sequences[i]->given_up) tms_history_replaced(step->sequences[i]);
    tms_in_step_note_scores(plan, false, true);
    step->open = false;
}

tamis_status tamis_plan_step_cancel(tamis_plan *plan, tamis_error *error) {
    tamis_status status = check_open(plan, error);
    if (status != TAMIS_OK) return status;
    tms_step_give_up(plan);
    plan->launches.attended = false;
    return TAMIS_OK;
}
