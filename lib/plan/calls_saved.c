/* SPDX-License-Identifier: Apache-2.0 */
/* Saving a sequence as a stream of bytes, and restoring it: the walk through its lanes, pages and
 * queries, which both ways take alike. */
#include "lib/core/bytes.h"
#include "lib/plan/plan.h"
#include "lib/plan/saved.h"

#include <inttypes.h>
#include <stdlib.h>

typedef struct transfer {
    tamis_plan *plan;
    tms_sequence *sequence;
    tms_stream stream;
    tms_saved_header header;
    tms_kept_queries queries;
    uint64_t section_bytes;
    uint8_t *section; /* [section_bytes] of the stream */
    void *work;       /* pages as the device has them; one layer's queries as the host has them */
    bool bounds;      /* those of the stream are taken */
} transfer;

/* ---- Both ways ------------------------------------------------------------------------------- */

static tamis_status check_params(const tamis_plan *plan, const tamis_save_params *params,
                                 tamis_error *error) {
    TMS_REQUIRE(plan, TAMIS_E_ARGUMENT, "plan is NULL");
    TMS_REQUIRE(params, TAMIS_E_ARGUMENT, "params is NULL");
    TMS_REQUIRE((params->flags & ~(uint32_t)TAMIS_SAVE_BOUNDS) == 0, TAMIS_E_ARGUMENT,
                "flags 0x%" PRIx32 ": 0x%x are all", params->flags, TAMIS_SAVE_BOUNDS);
    TMS_REQUIRE(params->reserved32 == 0, TAMIS_E_ARGUMENT,
                "reserved32 of tamis_save_params is %" PRIu32 "; it must be 0", params->reserved32);
    TMS_REQUIRE_RESERVED(params, tamis_save_params);
    TMS_REQUIRE(!plan->setup.cache->step_open, TAMIS_E_STATE, "a step on the cache is open");
    return tms_cache_check_bounds(plan->setup.cache, error);
}

static tamis_status take_memory(transfer *t, tamis_error *error) {
    const tms_setup *setup = &t->plan->setup;
    const uint64_t pages = tms_saved_work(setup->cache);
    t->section_bytes = tms_saved_section_bytes(setup);
    t->section = malloc(t->section_bytes);
    t->work = malloc(pages > t->section_bytes ? pages : t->section_bytes);
    TMS_REQUIRE(t->section && t->work, TAMIS_E_NO_MEMORY,
                "no host memory for sections of %" PRIu64 " bytes", t->section_bytes);
    return TAMIS_OK;
}

static void free_memory(transfer *t) {
    free(t->section);
    free(t->work);
}

/* Lane after lane, as many pages at once as a run has; pages that are gone are none. */
static tamis_status each_run(transfer *t,
                             tamis_status (*each)(transfer *t, const tms_page_run *run,
                                                  tamis_error *error),
                             tamis_error *error) {
    const tamis_cache *cache = t->plan->setup.cache;
    const uint32_t most = tms_saved_pages(cache);
    for (uint32_t lane = 0; lane < cache->n_lanes; lane++) {
        const uint32_t end = tms_pages_of(cache, t->sequence->lanes[lane].length);
        tms_page_run run = {.lane = lane, .first = t->sequence->lanes[lane].gone};
        for (; run.first < end; run.first += run.n) {
            run.n = end - run.first < most ? end - run.first : most;
            TMS_TRY(each(t, &run, error));
        }
    }
    return TAMIS_OK;
}

/* Layer after layer, as many rows at once as a section has. */
static tamis_status each_queries(transfer *t,
                                 tamis_status (*each)(transfer *t, uint32_t layer, uint32_t first,
                                                      uint32_t n, tamis_error *error),
                                 tamis_error *error) {
    const uint64_t most = t->section_bytes / (tms_setup_width(&t->plan->setup) * sizeof(float));
    const tms_kept_queries *q = &t->queries;
    for (uint32_t layer = 0; layer < t->plan->setup.cache->params.n_layers; layer++)
        for (uint32_t first = q->from, n; first < q->to; first += n) {
            n = q->to - first < most ? q->to - first : (uint32_t)most;
            TMS_TRY(each(t, layer, first, n, error));
        }
    return TAMIS_OK;
}

static uint64_t queries_bytes(const transfer *t, uint32_t n) {
    return n * tms_setup_width(&t->plan->setup) * sizeof(float);
}

static uint64_t bounds_bytes(const transfer *t, const tms_page_run *run) {
    const tamis_cache *cache = t->plan->setup.cache;
    return tms_saved_bounds_bytes((tamis_dtype)t->header.numbers[TMS_SAVED_BOUNDS_DTYPE],
                                  cache->params.head_dim, tms_saved_full(cache, t->sequence, run));
}

/* ---- Save ------------------------------------------------------------------------------------ */

static tamis_status save_lanes(transfer *t, tamis_error *error) {
    const uint32_t n_lanes = t->plan->setup.cache->n_lanes;
    const uint32_t most = (uint32_t)(t->section_bytes / 8);
    for (uint32_t first = 0, n; first < n_lanes; first += n) {
        n = n_lanes - first < most ? n_lanes - first : most;
        for (uint32_t i = 0; i < n; i++) {
            tms_put_u32(t->section + 8ull * i, t->sequence->lanes[first + i].length);
            tms_put_u32(t->section + 8ull * i + 4, t->sequence->lanes[first + i].gone);
        }
        TMS_TRY(tms_saved_write_section(&t->stream, TMS_SAVED_LANES, t->section, 8ull * n, error));
    }
    return TAMIS_OK;
}

static tamis_status save_run(transfer *t, const tms_page_run *run, tamis_error *error) {
    const tamis_cache *cache = t->plan->setup.cache;
    const uint64_t bytes = tms_saved_bytes(cache, t->sequence, run);
    TMS_TRY(tms_cache_save_pages(cache, t->sequence, run, t->work, t->section, error));
    TMS_TRY(tms_saved_write_section(&t->stream, TMS_SAVED_PAGES, t->section, bytes, error));
    if (!t->bounds) return TAMIS_OK;
    TMS_TRY(tms_cache_save_bounds(cache, t->sequence, run, t->work, t->section, error));
    return tms_saved_write_section(&t->stream, TMS_SAVED_BOUNDS, t->section, bounds_bytes(t, run),
                                   error);
}

static tamis_status save_queries(transfer *t, uint32_t layer, uint32_t first, uint32_t n,
                                 tamis_error *error) {
    const uint64_t bytes = queries_bytes(t, n);
    TMS_TRY(
        tms_query_rings_read(&t->plan->rings, layer, t->queries.ring, first, n, t->work, error));
    tms_put_words(t->section, t->work, bytes, sizeof(float));
    return tms_saved_write_section(&t->stream, TMS_SAVED_QUERIES, t->section, bytes, error);
}

static tamis_status save_all(transfer *t, tamis_error *error) {
    TMS_TRY(take_memory(t, error));
    TMS_TRY(tms_saved_write_header(&t->stream, &t->header, error));
    TMS_TRY(save_lanes(t, error));
    TMS_TRY(each_run(t, save_run, error));
    TMS_TRY(each_queries(t, save_queries, error));
    return tms_saved_write_section(&t->stream, TMS_SAVED_END, t->section, 0, error);
}

static tamis_status find_whole(const tamis_plan *plan, tamis_sequence id, tms_sequence **out,
                               tamis_error *error) {
    TMS_TRY(tms_cache_find_idle(plan->setup.cache, id, out, error));
    TMS_REQUIRE(
        !(*out)->torn, TAMIS_E_STATE,
        "an eviction from sequence %" PRIu64
        " failed between layers that share a budget; what they hold does not belong together",
        id);
    TMS_REQUIRE((*out)->given_up == 0, TAMIS_E_STATE,
                "sequence %" PRIu64 " holds rows of a step that was given up at %" PRIu32
                " tokens a lane; it must be repeated",
                id, (*out)->given_up);
    return TAMIS_OK;
}

tamis_status tamis_plan_save(tamis_plan *plan, tamis_sequence sequence,
                             const tamis_save_params *params, tamis_saved_write write, void *user,
                             tamis_error *error) {
    TMS_ENTER(plan);
    TMS_TRY(check_params(plan, params, error));
    TMS_REQUIRE(write, TAMIS_E_ARGUMENT, "write is NULL");
    transfer t = {.plan = plan, .stream = {.write = write, .user = user}};
    TMS_TRY(find_whole(plan, sequence, &t.sequence, error));
    const tms_past past = tms_history_give(t.sequence);
    t.bounds = params->flags & TAMIS_SAVE_BOUNDS;
    t.queries = tms_query_rings_known(&plan->rings, t.sequence);
    tms_saved_header_of(&plan->setup, params->fingerprint, t.bounds, &t.header);
    tms_saved_put_past(&t.header, &past);
    t.header.numbers[TMS_SAVED_QUERIES_FROM] = t.queries.from;
    t.header.numbers[TMS_SAVED_QUERIES_TO] = t.queries.to;
    t.sequence->in_step = true; /* no call of the callback changes it */
    const tamis_status status = save_all(&t, error);
    t.sequence->in_step = false;
    free_memory(&t);
    return status;
}

/* ---- Restore --------------------------------------------------------------------------------- */

static tamis_status read_lanes(transfer *t, tms_lane *lanes, tamis_error *error) {
    const uint32_t n_lanes = t->plan->setup.cache->n_lanes;
    const uint32_t most = (uint32_t)(t->section_bytes / 8);
    for (uint32_t first = 0, n; first < n_lanes; first += n) {
        n = n_lanes - first < most ? n_lanes - first : most;
        TMS_TRY(tms_saved_read_section(&t->stream, TMS_SAVED_LANES, t->section, 8ull * n, error));
        for (uint32_t i = 0; i < n; i++)
            lanes[first + i] = (tms_lane){.length = tms_get_u32(t->section + 8ull * i),
                                          .gone = tms_get_u32(t->section + 8ull * i + 4)};
    }
    return TAMIS_OK;
}

/* Reads the lanes and takes their pages. */
static tamis_status seat(transfer *t, tamis_error *error) {
    tamis_cache *cache = t->plan->setup.cache;
    const tms_past past = tms_saved_get_past(&t->header);
    tms_lane *lanes = calloc(cache->n_lanes, sizeof *lanes);
    TMS_REQUIRE(lanes, TAMIS_E_NO_MEMORY, "no host memory for %" PRIu32 " lanes", cache->n_lanes);
    tamis_status status = read_lanes(t, lanes, error);
    if (status == TAMIS_OK) status = tms_history_check(cache, &past, lanes, error);
    if (status == TAMIS_OK) status = tms_cache_seat(cache, lanes, &t->sequence, error);
    free(lanes);
    return status;
}

static tamis_status restore_run(transfer *t, const tms_page_run *run, tamis_error *error) {
    tamis_cache *cache = t->plan->setup.cache;
    const tms_past past = tms_saved_get_past(&t->header);
    const uint64_t bytes = tms_saved_bytes(cache, t->sequence, run);
    TMS_TRY(tms_saved_read_section(&t->stream, TMS_SAVED_PAGES, t->section, bytes, error));
    TMS_TRY(tms_cache_check_positions(cache, t->sequence, run, &past, t->section, error));
    TMS_TRY(tms_cache_restore_pages(cache, t->sequence, run, t->work, t->section, error));
    if (!t->header.numbers[TMS_SAVED_HAS_BOUNDS]) return TAMIS_OK;
    TMS_TRY(tms_saved_read_section(&t->stream, TMS_SAVED_BOUNDS, t->section, bounds_bytes(t, run),
                                   error));
    if (!t->bounds) return TAMIS_OK;
    return tms_cache_restore_bounds(cache, t->sequence, run, t->work, t->section, error);
}

static tamis_status restore_queries(transfer *t, uint32_t layer, uint32_t first, uint32_t n,
                                    tamis_error *error) {
    const uint64_t bytes = queries_bytes(t, n);
    TMS_TRY(tms_saved_read_section(&t->stream, TMS_SAVED_QUERIES, t->section, bytes, error));
    tms_get_words(t->work, t->section, bytes, sizeof(float));
    return tms_query_rings_write(&t->plan->rings, layer, t->queries.ring, first, n, t->work, error);
}

/* Whether the stream's bounds are those that the cache would compute. */
static bool same_bounds(const tms_saved_header *own, const tms_saved_header *header) {
    bool same = header->numbers[TMS_SAVED_HAS_BOUNDS] == 1;
    for (int i = TMS_SAVED_BOUNDS_KIND; i <= TMS_SAVED_BOUNDS_DTYPE; i++)
        same &= header->numbers[i] == own->numbers[i];
    return same;
}

/* A ring of the sequence's own gets the queries; it holds them once all have arrived. */
static tamis_status fill_ring(transfer *t, tamis_error *error) {
    TMS_TRY(each_queries(t, restore_queries, error));
    TMS_TRY(tms_saved_read_section(&t->stream, TMS_SAVED_END, t->section, 0, error));
    return tms_device_wait(t->plan->setup.dev, error);
}

/* What the lanes hold, into their pages; then the queries. */
static tamis_status fill(transfer *t, tamis_error *error) {
    tms_query_rings *rings = &t->plan->rings;
    tms_kept_queries *q = &t->queries;
    TMS_TRY(each_run(t, restore_run, error));
    if (!t->bounds) TMS_TRY(tms_cache_renew_bounds(t->plan->setup.cache, t->sequence, error));
    q->from = t->header.numbers[TMS_SAVED_QUERIES_FROM];
    q->to = t->header.numbers[TMS_SAVED_QUERIES_TO];
    const bool some = q->from < q->to;
    if (some) TMS_TRY(tms_query_rings_bring(rings, &t->sequence, 1, &q->ring, error));
    const tamis_status status = fill_ring(t, error);
    if (some && status == TAMIS_OK) tms_query_rings_expect(rings, q->ring, q->from, q->to);
    if (some && status != TAMIS_OK) tms_query_rings_drop(rings, q->ring);
    return status;
}

static tamis_status restore_all(transfer *t, const tms_saved_header *own, tamis_error *error) {
    TMS_TRY(take_memory(t, error));
    TMS_TRY(tms_saved_read_header(&t->stream, &t->header, error));
    TMS_TRY(tms_saved_check_header(&t->plan->setup, own, &t->header, error));
    t->bounds = same_bounds(own, &t->header);
    TMS_TRY(seat(t, error));
    const tamis_status status = fill(t, error);
    if (status != TAMIS_OK) tms_sequence_remove(t->plan->setup.cache, t->sequence);
    return status;
}

tamis_status tamis_plan_restore(tamis_plan *plan, const tamis_save_params *params,
                                tamis_saved_read read, void *user, tamis_sequence *out,
                                tamis_error *error) {
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out is NULL");
    *out = 0;
    TMS_ENTER(plan);
    TMS_TRY(check_params(plan, params, error));
    TMS_REQUIRE(read, TAMIS_E_ARGUMENT, "read is NULL");
    TMS_TRY(tms_view_refuse(plan->setup.cache, "tamis_plan_restore", error));
    transfer t = {.plan = plan, .stream = {.read = read, .user = user}};
    tms_saved_header own;
    tms_saved_header_of(&plan->setup, params->fingerprint, false, &own);
    const tamis_status status = restore_all(&t, &own, error);
    free_memory(&t);
    if (status != TAMIS_OK) return status;
    const tms_past past = tms_saved_get_past(&t.header);
    tms_history_take(t.sequence, &past);
    t.sequence->in_step = false;
    *out = t.sequence->id;
    return TAMIS_OK;
}
