/* SPDX-License-Identifier: Apache-2.0 */
/* A plan's making: parameters checked, workspace taken, every kernel built and launched once. */
#include "lib/plan/plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

static void fill_defaults(const tamis_cache *cache, tamis_plan_params *p) {
    if (p->max_sequences == 0) p->max_sequences = 1;
    if (p->max_rows == 0) p->max_rows = 512;
    if (p->max_selected_rows == 0) p->max_selected_rows = p->max_sequences;
    if (p->max_selected_rows > p->max_rows) p->max_selected_rows = p->max_rows;
    if (p->scale == 0) p->scale = (float)(1 / sqrt(cache->params.head_dim));
    p->selection.budget = tms_selection_budget(&p->selection);
    p->eviction = tms_eviction_filled(&p->eviction);
}

/* Where lanes stay at their length and that ends within a page, the page is read beside the one in
 * which the row's own token has got its place. */
static tamis_status check_own_page(const tamis_cache *cache, const tamis_plan_params *p,
                                   tamis_error *error) {
    const uint32_t page = cache->params.page_size, k = p->selection.budget / page;
    const uint64_t sinks = tms_divide_up(p->selection.sinks, page);
    TMS_REQUIRE(
        p->selection.kind == TAMIS_SELECT_FULL || p->eviction.budget % page == 0 || k >= sinks + 2,
        TAMIS_E_ARGUMENT,
        "budget %" PRIu32 " of selection %s is %" PRIu32 " pages of %" PRIu32
        " tokens; under %s with %" PRIu32 " tokens a lane sinks %" PRIu32 " take %" PRIu64
        ", the row's own token and the end of the lane one each: at least %" PRIu64 " tokens",
        p->selection.budget, tamis_selection_name(p->selection.kind), k, page,
        tamis_eviction_name(p->eviction.kind), p->eviction.budget, p->selection.sinks, sinks,
        (sinks + 2) * page);
    return TAMIS_OK;
}

/* What the eviction asks of the cache and of the plan beside it. */
static tamis_status check_eviction(const tamis_cache *cache, const tamis_plan_params *p,
                                   tamis_error *error) {
    uint32_t planes = tamis_eviction_planes(&p->eviction), have = cache->params.planes;
    const char *name = tamis_eviction_name(p->eviction.kind);
    tms_eviction_needs asked;
    tms_eviction_ask(&p->eviction, &asked);
    if (!asked.active) return TAMIS_OK;
    TMS_REQUIRE((planes & ~have) == 0, TAMIS_E_ARGUMENT,
                "eviction %s needs planes %" PRIu32 "; the cache has %" PRIu32, name, planes, have);
    TMS_REQUIRE(p->sliding_window == 0, TAMIS_E_UNSUPPORTED,
                "sliding_window %" PRIu32 " under eviction %s", p->sliding_window, name);
    TMS_REQUIRE(!p->fixed_launches || (!asked.in_place && !asked.feed && p->eviction.every == 0),
                TAMIS_E_UNSUPPORTED,
                "fixed_launches under eviction %s, which acts in every decode step; only evictions "
                "with every 0 that observe prompts alone go with it",
                name);
    TMS_REQUIRE(p->max_context < TMS_EVICT_LIMIT, TAMIS_E_UNSUPPORTED,
                "max_context %" PRIu32 " under eviction %s, which takes less than %u",
                p->max_context, name, TMS_EVICT_LIMIT);
    TMS_REQUIRE(!asked.rotation || p->max_context <= TMS_ROTATE_LIMIT, TAMIS_E_UNSUPPORTED,
                "max_context %" PRIu32 " under reindexed %s; queries are turned by less than %u",
                p->max_context, name, TMS_ROTATE_LIMIT);
    uint64_t competing =
        (uint64_t)cache->params.n_kv_heads * (asked.across ? cache->params.n_layers : 1);
    TMS_REQUIRE(!asked.shared || competing <= TMS_EVICT_HEADS, TAMIS_E_UNSUPPORTED,
                "%" PRIu64 " KV heads share a budget under eviction %s, more than %u", competing,
                name, TMS_EVICT_HEADS);
    TMS_REQUIRE(!asked.rotation || p->selection.kind == TAMIS_SELECT_FULL, TAMIS_E_UNSUPPORTED,
                "reindexed %s under selection %s; it goes with full only", name,
                tamis_selection_name(p->selection.kind));
    return asked.in_place ? check_own_page(cache, p, error) : TAMIS_OK;
}

static tamis_status check_params(const tamis_cache *cache, const tamis_plan_params *p,
                                 tamis_error *error) {
    uint64_t pages = (uint64_t)tms_pages_of(cache, p->max_context) * cache->n_lanes;
    TMS_REQUIRE(p->max_context > 0, TAMIS_E_ARGUMENT, "max_context is 0");
    TMS_REQUIRE(p->max_context <= INT32_MAX, TAMIS_E_ARGUMENT,
                "max_context %" PRIu32 " exceeds %" PRId32, p->max_context, INT32_MAX);
    TMS_REQUIRE(pages <= INT32_MAX / p->max_sequences, TAMIS_E_ARGUMENT,
                "page tables for %" PRIu32 " sequences of %" PRIu64 " pages exceed %" PRId32
                " entries",
                p->max_sequences, pages, INT32_MAX);
    TMS_REQUIRE(p->max_rows <= INT32_MAX / 4 / cache->n_lanes, TAMIS_E_ARGUMENT,
                "max_rows %" PRIu32 " over %" PRIu32 " lanes make tables of more than %" PRId32
                " entries",
                p->max_rows, cache->n_lanes, INT32_MAX);
    TMS_REQUIRE(isfinite(p->scale), TAMIS_E_ARGUMENT, "scale %g is not finite", (double)p->scale);
    TMS_REQUIRE(isfinite(p->soft_cap) && p->soft_cap >= 0, TAMIS_E_ARGUMENT,
                "soft_cap %g is not a number from 0 on", (double)p->soft_cap);
    tamis_status status = tamis_selection_check(&p->selection, cache->params.page_size, error);
    if (status == TAMIS_OK) status = tamis_eviction_check(&p->eviction, error);
    return status == TAMIS_OK ? check_eviction(cache, p, error) : status;
}

uint64_t tms_plan_copies(const tamis_plan *plan) {
    uint32_t sequences = plan->params.max_sequences, cap = tms_plan_cap(plan, false);
    bool scores = plan->eviction.asked.feed != TMS_FEED_NONE;
    if (cap == UINT32_MAX && !scores) return (uint64_t)sequences * plan->cache->n_lanes;
    if (cap > plan->params.max_context || scores) cap = plan->params.max_context;
    return tms_copies_room(plan->cache, sequences, cap);
}

/* Lists, and rows of scores, of the largest step that is not exact. */
static uint64_t n_selected_lanes(const tamis_plan *plan) {
    return (uint64_t)plan->params.max_selected_rows * plan->cache->params.n_kv_heads;
}

static tamis_status take_host(tamis_plan *plan, tamis_error *error) {
    const tamis_cache *cache = plan->cache;
    size_t sequences = plan->params.max_sequences, n_lanes = cache->n_lanes;
    tms_step *step = &plan->step;
    step->growth = calloc(sequences, sizeof *step->growth);
    step->heirs = calloc(sequences, sizeof *step->heirs);
    step->table_row = calloc(sequences, sizeof *step->table_row);
    step->layers = calloc(cache->params.n_layers, sizeof *step->layers);
    step->host = calloc(plan->step_ints, sizeof *step->host);
    plan->entry_host = calloc(TMS_ENTRY_CHUNK, 2 * sizeof *plan->entry_host);
    plan->copies.pairs = calloc(tms_plan_copies(plan), 2 * sizeof *plan->copies.pairs);
    plan->copies.count = calloc(cache->size.pools, sizeof *plan->copies.count);
    plan->rows = calloc(sequences, sizeof *plan->rows);
    plan->serials = calloc(sequences + 1, sizeof *plan->serials);
    if (plan->reading.scored == TMS_SCORE_RANDOM)
        plan->score_host =
            calloc(n_selected_lanes(plan), plan->max_pages * sizeof *plan->score_host);
    bool ok = step->growth && step->heirs && step->table_row && step->layers && step->host &&
              plan->entry_host && plan->copies.pairs && plan->copies.count && plan->rows &&
              plan->serials && (plan->score_host || plan->reading.scored != TMS_SCORE_RANDOM);
    for (size_t i = 0; i < sequences && ok; i++) {
        plan->rows[i].pages = calloc(n_lanes, sizeof *plan->rows[i].pages);
        ok = plan->rows[i].pages != NULL;
    }
    TMS_REQUIRE(ok, TAMIS_E_NO_MEMORY, "no host memory for a plan of %zu sequences", sequences);
    return TAMIS_OK;
}

static uint64_t mass_scratch_bytes(const tamis_plan *plan) {
    if (plan->reading.scored != TMS_SCORE_MASS) return 0;
    tms_sparse_attend listed = tms_plan_attend_listed(plan, 0);
    listed.score.batch.n_rows = plan->params.max_selected_rows;
    tms_page_mass mass = tms_plan_page_mass(plan, &listed);
    return tms_page_mass_scratch(plan->dev, &mass);
}

/* Scratch of the select that lists pages: where lanes stay at their length, one of the wide forms.
 */
static uint64_t list_scratch_bytes(const tamis_plan *plan) {
    if (!plan->reading.listed) return 0;
    tms_select select = tms_plan_attend_listed(plan, 0).select;
    select.batch.n_rows = plan->params.max_selected_rows;
    select.batch.max_visible = plan->params.max_context;
    return tms_select_scratch(plan->dev, &select);
}

/* Scratch of the largest attend: decode rows or prefill tiles, over all pages; of page_mass and of
 * select. */
static uint64_t scratch_bytes(const tamis_plan *plan) {
    tms_attend attend = tms_plan_attend_all(plan, 0);
    uint64_t most = mass_scratch_bytes(plan), lists = list_scratch_bytes(plan);
    most = lists > most ? lists : most;
    attend.max_pages = plan->max_pages;
    attend.batch.n_rows = attend.batch.n_tiles = plan->params.max_rows;
    attend.batch.max_visible = plan->params.max_context;
    for (uint32_t rows = 1; rows <= TMS_TILE_ROWS; rows *= TMS_TILE_ROWS) {
        attend.batch.max_tile_rows = rows;
        uint64_t bytes = tms_attend_scratch(plan->dev, &attend);
        most = bytes > most ? bytes : most;
    }
    return most;
}

static tamis_status take_device(tamis_plan *plan, tamis_error *error) {
    tms_device *dev = plan->dev;
    const tms_backend *backend = dev->backend;
    tamis_status status = TAMIS_OK;
    uint64_t entries = n_selected_lanes(plan);
    uint64_t table = (uint64_t)plan->params.max_sequences * plan->cache->n_lanes * plan->max_pages;
    uint64_t scratch = scratch_bytes(plan);
    TMS_TRY(dev, backend->alloc(dev, table * sizeof(int32_t), &plan->table));
    TMS_TRY(dev, backend->fill(dev, (tms_ref){plan->table, 0}, 0, table * sizeof(int32_t)));
    TMS_TRY(dev, backend->alloc(dev, TMS_ENTRY_CHUNK * 2 * sizeof(int32_t), &plan->entries));
    TMS_TRY(dev, backend->alloc(dev, plan->step_ints * sizeof(int32_t), &plan->step_tables));
    if (scratch > 0) TMS_TRY(dev, backend->alloc(dev, scratch, &plan->scratch));
    if (plan->reading.listed)
        TMS_TRY(dev, backend->alloc(dev, entries * (plan->reading.k + 1) * sizeof(int32_t),
                                    &plan->lists));
    if (plan->reading.scored)
        TMS_TRY(dev, backend->alloc(dev, entries * plan->max_pages * sizeof(float), &plan->scores));
fail:
    return status;
}

/* Launches the ops that come before attending, empty. */
static tamis_status warm_writes(tamis_plan *plan, tamis_error *error) {
    tms_device *dev = plan->dev;
    tamis_status status = TAMIS_OK;
    tms_write_rows write = tms_plan_write_rows(plan, 0);
    tms_bounds bounds = {.kv = write.kv, .n_kv_heads = 1, .pages = {plan->step_tables, 0}};
    tms_write_table table = {.data = {plan->table, 0}, .entries = {plan->entries, 0}};
    tms_copy_pages copy = {.data = write.kv.data,
                           .bytes = plan->cache->size.page_bytes,
                           .pairs = {plan->step_tables, 0}};
    write.k_stride = write.v_stride =
        (uint64_t)plan->cache->params.n_kv_heads * plan->cache->params.head_dim;
    write.dtype = TAMIS_F32;
    TMS_TRY(dev, tms_run_write_rows(dev, &write));
    write.dtype = plan->cache->params.dtype;
    TMS_TRY(dev, tms_run_write_rows(dev, &write));
    TMS_TRY(dev, tms_run_bounds(dev, &bounds));
    TMS_TRY(dev, tms_run_write_table(dev, &table));
    TMS_TRY(dev, tms_run_copy_pages(dev, &copy));
fail:
    return status;
}

/* Launches the ways to attend tiles of the step's size, empty. */
static tamis_status warm_attends(tamis_plan *plan, tamis_error *error) {
    tms_device *dev = plan->dev;
    tamis_status status = TAMIS_OK;
    uint64_t width = (uint64_t)plan->cache->params.n_heads * plan->cache->params.head_dim;
    tms_attend all = tms_plan_attend_all(plan, 0);
    all.q.stride = all.out.stride = width;
    TMS_TRY(dev, tms_run_attend(dev, &all));
    if (!plan->reading.listed) return TAMIS_OK;
    tms_sparse_attend listed = tms_plan_attend_listed(plan, 0);
    listed.score.q.stride = listed.attend.q.stride = listed.attend.out.stride = width;
    if (tms_plan_fuses(plan, &listed)) TMS_TRY(dev, tms_run_sparse_attend(dev, &listed));
    tms_page_mass mass = tms_plan_page_mass(plan, &listed);
    if (plan->reading.scored == TMS_SCORE_BOUNDS)
        TMS_TRY(dev, tms_run_score_pages(dev, &listed.score));
    if (plan->reading.scored == TMS_SCORE_MASS) TMS_TRY(dev, tms_run_page_mass(dev, &mass));
    TMS_TRY(dev, tms_run_select(dev, &listed.select));
    TMS_TRY(dev, tms_run_attend(dev, &listed.attend));
fail:
    return status;
}

/* The device begins to collect times with the first stage. */
static tamis_status warm_times(const tamis_plan *plan, tamis_error *error) {
    tms_event *from = NULL;
    double us = 0;
    tamis_status status = tms_plan_start_stage(plan, &from);
    return tms_forward(plan->dev, tms_plan_stop_stage(plan, from, status, &us), error);
}

static tamis_status warm_up(tamis_plan *plan, tamis_error *error) {
    tms_device *dev = plan->dev;
    tamis_status status = warm_times(plan, error);
    if (status == TAMIS_OK) status = warm_writes(plan, error);
    plan->step.layers[0].max_visible = plan->params.max_context;
    for (uint32_t rows = 1; rows <= TMS_TILE_ROWS && status == TAMIS_OK; rows *= TMS_TILE_ROWS) {
        plan->step.max_tile_rows = rows;
        status = warm_attends(plan, error);
    }
    return status != TAMIS_OK ? status : tms_forward(dev, dev->backend->wait(dev), error);
}

static tamis_status set_up(tamis_plan *plan, tamis_error *error) {
    plan->max_pages = tms_pages_of(plan->cache, plan->params.max_context);
    tms_selection_ask(&plan->params.selection, plan->cache->params.page_size, &plan->reading);
    TMS_REQUIRE(!plan->reading.listed || plan->params.sliding_window == 0, TAMIS_E_UNSUPPORTED,
                "sliding_window %" PRIu32
                " under selection %s: its budget would go to pages outside "
                "the window; only full takes one",
                plan->params.sliding_window, tamis_selection_name(plan->params.selection.kind));
    TMS_REQUIRE(!plan->params.fixed_launches || plan->reading.scored != TMS_SCORE_RANDOM,
                TAMIS_E_UNSUPPORTED,
                "fixed_launches under selection %s: its scores come from the host in every step",
                tamis_selection_name(plan->params.selection.kind));
    tms_eviction_ask(&plan->params.eviction, &plan->eviction.asked);
    /* A list as long as the longest lane never leaves a page out. */
    if (plan->reading.k > plan->max_pages) plan->reading.k = plan->max_pages;
    uint64_t ints = tms_step_ints(plan);
    TMS_REQUIRE(ints <= INT32_MAX, TAMIS_E_ARGUMENT,
                "the tables of a step take %" PRIu64 " entries, which exceed %" PRId32, ints,
                INT32_MAX);
    plan->step_ints = (uint32_t)ints;
    tamis_status status = take_host(plan, error);
    if (status == TAMIS_OK) status = take_device(plan, error);
    if (status == TAMIS_OK) status = tms_plan_eviction_create(plan, error);
    if (status == TAMIS_OK) status = warm_up(plan, error);
    return status == TAMIS_OK ? tms_plan_eviction_warm(plan, error) : status;
}

tamis_status tamis_plan_create(tamis_cache *cache, const tamis_plan_params *params,
                               tamis_plan **out, tamis_error *error) {
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out is NULL");
    *out = NULL;
    TMS_REQUIRE(cache, TAMIS_E_ARGUMENT, "cache is NULL");
    TMS_REQUIRE(params, TAMIS_E_ARGUMENT, "params is NULL");
    TMS_REQUIRE_RESERVED(params, tamis_plan_params);
    TMS_REQUIRE(params->reserved32 == 0, TAMIS_E_ARGUMENT,
                "reserved32 of tamis_plan_params is %" PRIu32 "; it must be 0", params->reserved32);
    tamis_plan_params filled = *params;
    fill_defaults(cache, &filled);
    tamis_status status = check_params(cache, &filled, error);
    if (status != TAMIS_OK) return status;
    tamis_plan *plan = calloc(1, sizeof *plan);
    TMS_REQUIRE(plan, TAMIS_E_NO_MEMORY, "no host memory for a plan");
    plan->cache = cache;
    plan->dev = cache->context->dev;
    plan->params = filled;
    status = set_up(plan, error);
    if (status != TAMIS_OK)
        tamis_plan_destroy(&plan);
    else
        *out = plan;
    return status;
}

static void free_host(tamis_plan *plan) {
    for (uint32_t i = 0; plan->rows && i < plan->params.max_sequences; i++)
        free(plan->rows[i].pages);
    free(plan->rows);
    free(plan->copies.count);
    free(plan->copies.pairs);
    free(plan->entry_host);
    free(plan->score_host);
    free(plan->serials);
    free(plan->step.host);
    free(plan->step.layers);
    free(plan->step.table_row);
    free(plan->step.heirs);
    free(plan->step.growth);
    free(plan);
}

void tamis_plan_destroy(tamis_plan **plan) {
    if (!plan || !*plan) return;
    tamis_plan *p = *plan;
    tms_device *dev = p->dev;
    if (p->step.open) tms_plan_give_up(p);
    tms_mem *memories[] = {p->table, p->entries, p->step_tables, p->scores, p->lists, p->scratch};
    for (size_t i = 0; i < sizeof memories / sizeof *memories; i++)
        dev->backend->free(dev, memories[i]);
    tms_plan_eviction_destroy(p);
    free_host(p);
    *plan = NULL;
}
