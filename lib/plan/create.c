/* SPDX-License-Identifier: Apache-2.0 */
/* Creating and destroying a plan: checks parameters, makes its rooms one after another, builds
 * kernels. */
#include "lib/plan/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALL_FLAGS                                                                                  \
    (TAMIS_PLAN_TIMING | TAMIS_PLAN_FIXED_LAUNCHES | TAMIS_PLAN_UNFUSED | TAMIS_PLAN_ROW_MASSES |  \
     TAMIS_PLAN_ROTATED | TAMIS_PLAN_GIVE_BACK | TAMIS_PLAN_TREES | TAMIS_PLAN_VERIFY |            \
     TAMIS_PLAN_HALF_ROWS | TAMIS_PLAN_TOKEN_LISTS)

static void fill_defaults(tamis_plan_params *p) {
    if (p->max_sequences == 0) p->max_sequences = 1;
    if (p->max_rows == 0) p->max_rows = 512;
    if (p->max_selected_rows == 0) p->max_selected_rows = p->max_sequences;
    if (p->max_selected_rows > p->max_rows) p->max_selected_rows = p->max_rows;
    p->selection.budget = tms_selection_budget(&p->selection);
    p->eviction = tms_eviction_filled(&p->eviction);
}

/* If lanes stay at a length that ends within a page, two pages are always read: the partial one,
 * and the one that holds the row's own token. */
static tamis_status check_own_page(const tamis_cache *cache, const tamis_plan_params *p,
                                   tamis_error *error) {
    const uint32_t page = cache->params.page_size, k = p->selection.budget / page;
    const uint64_t sinks = tms_divide_up(p->selection.sinks, page);
    TMS_REQUIRE(
        p->selection.kind == TAMIS_SELECT_FULL || p->selection.kind == TAMIS_SELECT_CALLER ||
            p->eviction.budget % page == 0 || k >= sinks + 2,
        TAMIS_E_ARGUMENT,
        "budget %" PRIu32 " of selection %s is %" PRIu32 " pages of %" PRIu32
        " tokens; under %s with %" PRIu32 " tokens a lane sinks %" PRIu32 " take %" PRIu64
        ", the row's own token and the end of the lane one each: at least %" PRIu64 " tokens",
        p->selection.budget, tamis_selection_name(p->selection.kind), k, page,
        tamis_eviction_name(p->eviction.kind), p->eviction.budget, p->selection.sinks, sinks,
        (sinks + 2) * page);
    return TAMIS_OK;
}

/* Rows of trees may yet go: what they would do to tokens that branches share could not be undone. */
static tamis_status check_trees(const tamis_plan_params *p, const tms_eviction_needs *needs,
                                tamis_error *error) {
    const char *name = tamis_eviction_name(p->eviction.kind);
    if (!(p->flags & TAMIS_PLAN_TREES)) return TAMIS_OK;
    TMS_REQUIRE(!(p->flags & TAMIS_PLAN_FIXED_LAUNCHES), TAMIS_E_UNSUPPORTED,
                "TAMIS_PLAN_TREES with TAMIS_PLAN_FIXED_LAUNCHES: launches depend on the branches");
    TMS_REQUIRE(
        !needs->in_place, TAMIS_E_UNSUPPORTED,
        "TAMIS_PLAN_TREES under eviction %s with every 1: rows take the places of tokens that "
        "all branches read",
        name);
    TMS_REQUIRE(
        !tms_needs_weights(needs), TAMIS_E_UNSUPPORTED,
        "TAMIS_PLAN_TREES under eviction %s: the weights of rows go to the scores of tokens "
        "that all branches read",
        name);
    TMS_REQUIRE(!needs->rotation, TAMIS_E_UNSUPPORTED,
                "TAMIS_PLAN_TREES under reindexed %s, which moves sinks for each length", name);
    return TAMIS_OK;
}

/* Rows that are verified may be given up, which costs memory where evictions act within steps. */
static tamis_status check_verify(const tamis_plan_params *p, const tms_eviction_needs *needs,
                                 tamis_error *error) {
    if (!(p->flags & TAMIS_PLAN_VERIFY)) return TAMIS_OK;
    TMS_REQUIRE(
        needs->in_place || tms_needs_weights(needs), TAMIS_E_ARGUMENT,
        "TAMIS_PLAN_VERIFY under eviction %s, which does not act within steps: several rows of a "
        "sequence need no flag there",
        tamis_eviction_name(p->eviction.kind));
    return TAMIS_OK;
}

/* Checks what the eviction needs of the cache and of the plan's other parameters. */
static tamis_status check_eviction(const tamis_cache *cache, const tamis_plan_params *p,
                                   tamis_error *error) {
    uint32_t planes = tamis_eviction_planes(&p->eviction), have = cache->params.planes;
    const char *name = tamis_eviction_name(p->eviction.kind);
    tms_eviction_needs needs;
    tms_eviction_ask(&p->eviction, &needs);
    TMS_TRY(check_trees(p, &needs, error));
    TMS_TRY(check_verify(p, &needs, error));
    if (!needs.active) return TAMIS_OK;
    TMS_REQUIRE((planes & ~have) == 0, TAMIS_E_ARGUMENT,
                "eviction %s needs planes %" PRIu32 "; the cache has %" PRIu32, name, planes, have);
    TMS_REQUIRE(!(p->flags & TAMIS_PLAN_FIXED_LAUNCHES) ||
                    (!needs.in_place && !tms_needs_weights(&needs) && p->eviction.every == 0),
                TAMIS_E_UNSUPPORTED,
                "TAMIS_PLAN_FIXED_LAUNCHES under eviction %s, which acts in every decode step; "
                "only evictions "
                "with every 0 that observe prompts alone go with it",
                name);
    TMS_REQUIRE(p->max_context < TMS_EVICT_LIMIT, TAMIS_E_UNSUPPORTED,
                "max_context %" PRIu32 " under eviction %s, which takes less than %u",
                p->max_context, name, TMS_EVICT_LIMIT);
    TMS_REQUIRE(!needs.rotation || p->max_context <= TMS_ROTATE_LIMIT, TAMIS_E_UNSUPPORTED,
                "max_context %" PRIu32 " under reindexed %s; queries are turned by less than %u",
                p->max_context, name, TMS_ROTATE_LIMIT);
    uint64_t competing =
        (uint64_t)cache->params.n_kv_heads * (needs.across ? cache->params.n_layers : 1);
    TMS_REQUIRE(!needs.shared || competing <= TMS_EVICT_HEADS, TAMIS_E_UNSUPPORTED,
                "%" PRIu64 " KV heads share a budget under eviction %s, more than %u", competing,
                name, TMS_EVICT_HEADS);
    TMS_REQUIRE(!needs.rotation || !(p->flags & TAMIS_PLAN_ROW_MASSES), TAMIS_E_UNSUPPORTED,
                "TAMIS_PLAN_ROW_MASSES under reindexed %s, whose rows attend twice", name);
    TMS_REQUIRE(!needs.rotation || p->selection.kind == TAMIS_SELECT_FULL, TAMIS_E_UNSUPPORTED,
                "reindexed %s under selection %s; it goes with full only", name,
                tamis_selection_name(p->selection.kind));
    return needs.in_place ? check_own_page(cache, p, error) : TAMIS_OK;
}

/* What writes K and V, or moves them, is the engine's part in a view. */
static tamis_status check_view(const tamis_cache *cache, const tamis_plan_params *p,
                               tamis_error *error) {
    static const struct {
        uint32_t flag;
        const char *name;
    } flags[] = {{TAMIS_PLAN_TREES, "TAMIS_PLAN_TREES"},
                 {TAMIS_PLAN_VERIFY, "TAMIS_PLAN_VERIFY"},
                 {TAMIS_PLAN_GIVE_BACK, "TAMIS_PLAN_GIVE_BACK"},
                 {TAMIS_PLAN_ROTATED, "TAMIS_PLAN_ROTATED"},
                 {TAMIS_PLAN_ROW_MASSES, "TAMIS_PLAN_ROW_MASSES"}};
    if (p->eviction.kind != TAMIS_EVICT_NONE)
        TMS_TRY(tms_view_refuse(cache, "a plan with an eviction", error));
    if (p->load_dtypes) TMS_TRY(tms_view_refuse(cache, "a plan with load_dtypes", error));
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (p->flags & flags[i].flag) TMS_TRY(tms_view_refuse(cache, flags[i].name, error));
    return TAMIS_OK;
}

static tamis_status check_params(const tamis_cache *cache, const tamis_plan_params *p,
                                 tamis_error *error) {
    uint64_t pages = (uint64_t)tms_pages_of(cache, p->max_context) * cache->n_lists;
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
    for (uint32_t dtype = 0; dtype < 32; dtype++)
        TMS_REQUIRE(!(p->load_dtypes >> dtype & 1) || tms_dtype_of_rows(dtype), TAMIS_E_ARGUMENT,
                    "load_dtypes is %" PRIu32
                    ", more than the sum of 1 << dtype over f32, f16 and bf16",
                    p->load_dtypes);
    TMS_REQUIRE(!(p->flags & ~ALL_FLAGS), TAMIS_E_ARGUMENT, "flags 0x%" PRIx32 ": 0x%x are all",
                p->flags, ALL_FLAGS);
    TMS_REQUIRE(p->reserved32 == 0, TAMIS_E_ARGUMENT,
                "reserved32 of tamis_plan_params is %" PRIu32 "; it must be 0", p->reserved32);
    TMS_REQUIRE(!(p->flags & TAMIS_PLAN_GIVE_BACK) || cache->params.planes == 0,
                TAMIS_E_UNSUPPORTED,
                "TAMIS_PLAN_GIVE_BACK in a cache with planes (%" PRIu32
                "): what rows see there is found in pages that would be given back",
                cache->params.planes);
    TMS_TRY(tamis_selection_check(&p->selection, cache->params.page_size, error));
    TMS_TRY(tamis_eviction_check(&p->eviction, error));
    TMS_TRY(check_view(cache, p, error));
    return check_eviction(cache, p, error);
}

/* ---- Layers ---------------------------------------------------------------------------------- */

/* The beginning of a reason; empty where all layers are alike. */
typedef struct place {
    char text[32];
} place;

static place place_of(const tms_setup *setup, uint32_t layer) {
    place p = {""};
    if (setup->params.layers) snprintf(p.text, sizeof p.text, "layer %" PRIu32 ": ", layer);
    return p;
}

static tamis_status check_layer(const tms_setup *setup, uint32_t index, tamis_error *error) {
    const tamis_layer *layer = &setup->layers[index];
    uint64_t set = layer->reserved32;
    for (size_t i = 0; i < sizeof layer->reserved / sizeof *layer->reserved; i++)
        set |= layer->reserved[i];
    TMS_REQUIRE(set == 0, TAMIS_E_ARGUMENT, "a reserved field of layer %" PRIu32 " is not 0",
                index);
    return tms_attention_check(&layer->attention, place_of(setup, index).text, error);
}

/* How each layer attends: as it is given, or all alike. */
static tamis_status fill_layers(tms_setup *setup, tamis_error *error) {
    const tamis_plan_params *p = &setup->params;
    const tamis_cache_params *cache = &setup->cache->params;
    const tamis_attention *a = &p->attention;
    const tamis_layer alike = {.attention = *a};
    static const tamis_attention nothing;
    TMS_REQUIRE(!p->layers || memcmp(a, &nothing, sizeof nothing) == 0, TAMIS_E_ARGUMENT,
                "layers are given beside an attention: %s", tms_attention_say(a).text);
    setup->layers = tms_memory_host(setup->memory, cache->n_layers, sizeof *setup->layers);
    TMS_REQUIRE(setup->layers, TAMIS_E_NO_MEMORY, "no host memory for %" PRIu32 " layers",
                cache->n_layers);
    for (uint32_t layer = 0; layer < cache->n_layers; layer++) {
        tamis_layer *to = &setup->layers[layer];
        *to = p->layers ? p->layers[layer] : alike;
        TMS_TRY(check_layer(setup, layer, error));
        to->attention.scale = tms_attention_scale(&to->attention, cache->head_dim);
        to->full |= layer < p->selection.dense_layers;
    }
    if (p->layers)
        setup->params.layers = setup->layers;
    else
        setup->params.attention.scale = tms_attention_scale(a, cache->head_dim);
    return TAMIS_OK;
}

/* Checks the layers' sinks, and takes memory for copies of them. */
static tamis_status take_sinks(tms_setup *setup, tamis_error *error) {
    const tamis_cache_params *cache = &setup->cache->params;
    const uint64_t bytes = cache->n_heads * sizeof(float);
    for (uint32_t layer = 0; layer < cache->n_layers; layer++) {
        const tamis_place *sinks = &setup->layers[layer].attention.sinks;
        char name[48];
        tms_ref from;
        if (!sinks->buffer) continue;
        snprintf(name, sizeof name, "%ssinks", place_of(setup, layer).text);
        TMS_TRY(tms_place_check(setup->cache->context, sinks, name, bytes, &from, error));
        if (!setup->sunk)
            TMS_TRY(tms_memory_take(setup->memory, cache->n_layers * bytes, &setup->sinks, error));
        setup->sunk = true;
    }
    return TAMIS_OK;
}

/* So that the caller's buffers need not live on. */
static tamis_status copy_sinks(const tms_setup *setup, tamis_error *error) {
    const uint64_t bytes = setup->cache->params.n_heads * sizeof(float);
    for (uint32_t layer = 0; layer < setup->cache->params.n_layers; layer++) {
        const tamis_place *sinks = &setup->layers[layer].attention.sinks;
        const tms_ref to = {setup->sinks, layer * bytes};
        if (!sinks->buffer) continue;
        TMS_TRY(tms_device_copy(setup->dev, to, (tms_ref){sinks->buffer->mem, sinks->offset}, bytes,
                                error));
    }
    return TAMIS_OK;
}

/* What a row sees is found by the order of a lane's positions. */
static tamis_status check_sight(const tms_setup *setup, uint32_t layer, tamis_error *error) {
    const tms_eviction_needs *needs = &setup->needs;
    const tamis_attention *a = &setup->layers[layer].attention;
    const char *name = tamis_eviction_name(setup->params.eviction.kind);
    const char *what = a->sliding_window ? "sliding_window" : "chunk";
    const uint32_t value = a->sliding_window ? a->sliding_window : a->chunk;
    const place where = place_of(setup, layer);
    if (value == 0 || !needs->active) return TAMIS_OK;
    TMS_REQUIRE(!needs->in_place, TAMIS_E_UNSUPPORTED,
                "%s%s %" PRIu32
                " under eviction %s with every 1: rows take the places of tokens, so "
                "that those of a window no longer lie together",
                where.text, what, value, name);
    TMS_REQUIRE(!needs->rotation, TAMIS_E_UNSUPPORTED,
                "%s%s %" PRIu32
                " under reindexed %s, which moves its sinks nearer: into the window or "
                "not is not defined",
                where.text, what, value, name);
    TMS_REQUIRE(setup->cache->params.planes & TAMIS_PLANE_POSITIONS, TAMIS_E_ARGUMENT,
                "%s%s %" PRIu32
                " under eviction %s needs the cache's plane of positions (planes %d); "
                "the cache has %" PRIu32,
                where.text, what, value, name, TAMIS_PLANE_POSITIONS, setup->cache->params.planes);
    return TAMIS_OK;
}

/* What a lane may hold. Where no lane loses tokens, nor gives back pages that rows of the plan would see, a
 * sequence has as many pages in each lane: then no more than the cache has. A view has no pools: its lists
 * may name a page twice. */
static void limit_lanes(tms_setup *setup) {
    const tamis_cache *cache = setup->cache;
    uint64_t most = setup->params.max_context;
    bool whole = cache->params.planes == 0;
    for (uint32_t layer = 0; layer < cache->params.n_layers; layer++) {
        const tamis_attention *a = &setup->layers[layer].attention;
        whole &= a->sliding_window == 0 && a->chunk == 0;
    }
    for (uint32_t i = 0; whole && i < cache->size.pools; i++) {
        const tms_pool *pool = &cache->pools[i];
        const uint32_t lanes = tms_end_lane(cache, pool) - tms_first_lane(cache, pool);
        const uint64_t slots = (uint64_t)(pool->pages.n / lanes) * cache->params.page_size;
        if (slots < most) most = slots;
    }
    setup->longest = (uint32_t)most;
    setup->max_pages = tms_pages_of(cache, setup->longest);
}

/* Asks the policies what they need, and checks that the plan's parameters allow it. */
static tamis_status ask_policies(tms_setup *setup, tamis_error *error) {
    const tamis_plan_params *p = &setup->params;
    tms_selection_ask(&p->selection, setup->cache->params.page_size, &setup->reading);
    TMS_REQUIRE(
        !(p->flags & TAMIS_PLAN_FIXED_LAUNCHES) || setup->reading.scored != TMS_SCORE_RANDOM,
        TAMIS_E_UNSUPPORTED,
        "TAMIS_PLAN_FIXED_LAUNCHES under selection %s: its scores come from the host in every step",
        tamis_selection_name(p->selection.kind));
    tms_eviction_ask(&p->eviction, &setup->needs);
    /* A list of max_pages entries holds every page of the longest lane. */
    if (setup->reading.k > setup->max_pages) setup->reading.k = setup->max_pages;
    for (uint32_t layer = 0; layer < setup->cache->params.n_layers; layer++)
        TMS_TRY(check_sight(setup, layer, error));
    return tms_caller_lists_check_plan(setup, error);
}

/* Sets each room's pointers to the rooms that it uses, and lists those that have tables in the step's;
 * then allocates their memory, first that of rooms whose sizes others need. */
static tamis_status make_rooms(tamis_plan *plan, tamis_error *error) {
    const tms_setup *setup = &plan->setup;
    plan->sight = (tms_sight){.setup = setup};
    plan->trees = (tms_trees){.setup = setup};
    plan->viewing = (tms_viewing){.setup = setup};
    plan->rings = (tms_query_rings){.setup = setup};
    plan->templates = (tms_templates){
        .setup = setup, .step = &plan->step, .table = &plan->table, .sight = &plan->sight};
    plan->loads = (tms_loads){.setup = setup, .step = &plan->step, .table = &plan->table};
    plan->masses = (tms_masses){.setup = setup, .step = &plan->step, .templates = &plan->templates};
    plan->in_step = (tms_in_step){
        .setup = setup, .step = &plan->step, .rings = &plan->rings, .counters = &plan->counters};
    plan->journals = (tms_journals){.setup = setup, .step = &plan->step, .in_step = &plan->in_step};
    plan->reindex = (tms_reindex){.setup = setup, .step = &plan->step};
    plan->half_rows = (tms_half_rows){.setup = setup};
    plan->lists =
        (tms_caller_lists){.setup = setup, .step = &plan->step, .templates = &plan->templates};
    plan->between = (tms_between){
        .setup = setup, .table = &plan->table, .rings = &plan->rings, .sight = &plan->sight};
    TMS_TRY(tms_sight_create(&plan->sight, error));
    TMS_TRY(tms_viewing_create(&plan->viewing, error));
    tms_trees_create(&plan->trees);
    tms_step_add(&plan->step, tms_sight_room(&plan->sight));
    tms_step_add(&plan->step, tms_query_rings_room(&plan->rings));
    tms_step_add(&plan->step, tms_trees_room(&plan->trees));
    tms_step_add(&plan->step, tms_in_step_room(&plan->in_step));
    tms_step_add(&plan->step, tms_reindex_room(&plan->reindex));
    tms_step_add(&plan->step, tms_journals_room(&plan->journals));
    TMS_TRY(tms_step_create(&plan->step, setup, error));
    TMS_TRY(tms_page_table_create(&plan->table, setup, error));
    TMS_TRY(tms_query_rings_create(&plan->rings, error));
    TMS_TRY(tms_templates_create(&plan->templates, error));
    TMS_TRY(tms_caller_lists_create(&plan->lists, error));
    TMS_TRY(tms_half_rows_create(&plan->half_rows, error));
    TMS_TRY(tms_loads_create(&plan->loads, error));
    TMS_TRY(tms_masses_create(&plan->masses, error));
    TMS_TRY(tms_in_step_create(&plan->in_step, error));
    TMS_TRY(tms_journals_create(&plan->journals, error));
    TMS_TRY(tms_reindex_create(&plan->reindex, error));
    return tms_between_create(&plan->between, error);
}

/* Both ways to write rows to the slots of evicted tokens, with no rows. */
static tamis_status warm_replace(tms_device *dev, const tms_replace_rows *p, tamis_error *error) {
    TMS_TRY(tms_run_replace(dev, &p->replace, error));
    return tms_replace_rows_refusal(dev, p) ? TAMIS_OK : tms_run_replace_rows(dev, p, error);
}

/* Launches what the eviction adds to decode steps and to other steps in a layer, with no rows. */
static tamis_status warm_in_step(tamis_plan *plan, uint32_t layer, tamis_error *error) {
    tms_write_rows write = tms_template_write(&plan->templates, layer);
    tms_attend attend = tms_template_attend(&plan->templates, layer, 0);
    const tms_write_rows first = tms_template_write_section(&plan->templates, layer, 0, &write);
    const tms_replace_rows replace = tms_in_step_replace(&plan->in_step, layer, 0, &first);
    attend.q.stride = attend.out.stride = tms_setup_width(&plan->setup);
    for (int exact = 0; exact <= 1; exact++) {
        tms_attend observed = attend;
        plan->step.exact = plan->step.sections[0].exact = exact;
        if (plan->setup.needs.in_place) TMS_TRY(warm_replace(plan->setup.dev, &replace, error));
        TMS_TRY(tms_in_step_score_rows(&plan->in_step, &write, error));
        TMS_TRY(tms_in_step_ask_weights(&plan->in_step, 0, false, &observed, error));
        TMS_TRY(tms_run_attend(plan->setup.dev, &observed, error));
        TMS_TRY(tms_in_step_use_weights(&plan->in_step, layer, 0, &observed, false, error));
    }
    if (plan->setup.needs.rotation) TMS_TRY(tms_reindex_attend(&plan->reindex, 0, &attend, error));
    return TAMIS_OK;
}

/* Launches the copies of rows to branches, with no rows. */
static tamis_status warm_trees(tamis_plan *plan, tamis_error *error) {
    const tms_write_rows write = tms_template_write(&plan->templates, 0);
    plan->trees.n = 0;
    if (!(plan->setup.params.flags & TAMIS_PLAN_TREES)) return TAMIS_OK;
    const tms_copy_slots copies = tms_trees_copies(&plan->trees, &plan->step, 0, &write);
    return tms_run_copy_slots(plan->setup.dev, &copies, error);
}

/* Builds every kernel and launches it once. */
static tamis_status warm_rooms(tamis_plan *plan, tamis_error *error) {
    TMS_TRY(tms_page_table_warm(&plan->table, error));
    TMS_TRY(tms_templates_warm(&plan->templates, &plan->step, error));
    TMS_TRY(tms_caller_lists_warm(&plan->lists, error));
    TMS_TRY(tms_half_rows_warm(&plan->half_rows, error));
    TMS_TRY(warm_trees(plan, error));
    const tms_write_rows write = tms_template_write(&plan->templates, 0);
    TMS_TRY(tms_journals_warm(&plan->journals, &write, error));
    TMS_TRY(tms_loads_warm(&plan->loads, error));
    TMS_TRY(tms_masses_warm(&plan->masses, error));
    for (uint32_t layer = 0; layer < plan->setup.cache->params.n_layers; layer++)
        if (plan->setup.needs.active && tms_setup_is_first(&plan->setup, layer))
            TMS_TRY(warm_in_step(plan, layer, error));
    return tms_between_warm(&plan->between, error);
}

/* Whether the device has all ops that the plan needs, before any of them runs. */
static tamis_status rehearse(tamis_plan *plan, tamis_error *error) {
    tms_device_rehearse(plan->setup.dev, true);
    const tamis_status status = warm_rooms(plan, error);
    tms_device_rehearse(plan->setup.dev, false);
    return status;
}

/* Runs one timed stage, since the device begins to collect times only with the first one. */
static tamis_status warm_times(const tms_setup *setup, tamis_error *error) {
    tms_event *from = NULL;
    double us = 0;
    TMS_TRY(tms_stage_start(setup, &from, error));
    return tms_stage_stop(setup, from, TAMIS_OK, &us, error);
}

/* All memory that the plan takes. */
static tamis_status take_memory(tamis_plan *plan, tamis_error *error) {
    TMS_TRY(fill_layers(&plan->setup, error));
    limit_lanes(&plan->setup);
    TMS_TRY(take_sinks(&plan->setup, error));
    TMS_TRY(ask_policies(&plan->setup, error));
    return make_rooms(plan, error);
}

static tamis_status make(tamis_plan *plan, tamis_error *error) {
    TMS_TRY(take_memory(plan, error));
    TMS_TRY(rehearse(plan, error));
    TMS_TRY(copy_sinks(&plan->setup, error));
    TMS_TRY(warm_times(&plan->setup, error));
    TMS_TRY(warm_rooms(plan, error));
    return tms_device_wait(plan->setup.dev, error);
}

static void end(tms_life *life) {
    tamis_plan *p = (tamis_plan *)life;
    /* The setup of a room that was not made is NULL. */
    if (p->between.setup) tms_between_destroy(&p->between);
    if (p->reindex.setup) tms_reindex_destroy(&p->reindex);
    if (p->journals.setup) tms_journals_destroy(&p->journals);
    if (p->in_step.setup) tms_in_step_destroy(&p->in_step);
    if (p->masses.setup) tms_masses_destroy(&p->masses);
    if (p->loads.setup) tms_loads_destroy(&p->loads);
    if (p->half_rows.setup) tms_half_rows_destroy(&p->half_rows);
    if (p->lists.setup) tms_caller_lists_destroy(&p->lists);
    if (p->templates.setup) tms_templates_destroy(&p->templates);
    if (p->rings.setup) tms_query_rings_destroy(&p->rings);
    if (p->table.setup) tms_page_table_destroy(&p->table);
    if (p->step.setup) tms_step_destroy(&p->step);
    if (p->viewing.setup) tms_viewing_destroy(&p->viewing);
    if (p->sight.setup) tms_sight_destroy(&p->sight);
    tms_device_free(p->setup.dev, p->setup.sinks);
    free(p->setup.layers);
    free(p);
}

/* A plan of parameters that have been checked, without memory so far. */
static tamis_status begin(tamis_cache *cache, const tamis_plan_params *params, bool measures,
                          tamis_plan **out, tamis_error *error) {
    TMS_REQUIRE(cache, TAMIS_E_ARGUMENT, "cache is NULL");
    TMS_REQUIRE(params, TAMIS_E_ARGUMENT, "params is NULL");
    TMS_REQUIRE_RESERVED(params, tamis_plan_params);
    tamis_plan_params filled = *params;
    fill_defaults(&filled);
    TMS_TRY(check_params(cache, &filled, error));
    tamis_plan *plan = calloc(1, sizeof *plan);
    TMS_REQUIRE(plan, TAMIS_E_NO_MEMORY, "no host memory for a plan");
    tms_life_begin(&plan->life, "plan", &cache->life, NULL, end);
    plan->memory = (tms_memory){
        .dev = cache->context->dev, .measures = measures, .taken = {.host_bytes = sizeof *plan}};
    plan->setup = (tms_setup){
        .cache = cache, .dev = cache->context->dev, .memory = &plan->memory, .params = filled};
    *out = plan;
    return TAMIS_OK;
}

tamis_status tamis_plan_create(tamis_cache *cache, const tamis_plan_params *params,
                               tamis_plan **out, tamis_error *error) {
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out is NULL");
    *out = NULL;
    TMS_ENTER(cache);
    tamis_plan *plan = NULL;
    TMS_TRY(begin(cache, params, false, &plan, error));
    const tamis_status status = make(plan, error);
    if (status != TAMIS_OK) tamis_plan_destroy(&plan);
    *out = plan;
    return status;
}

tamis_status tamis_plan_measure(tamis_cache *cache, const tamis_plan_params *params,
                                tamis_plan_memory *out, tamis_error *error) {
    TMS_ENTER(cache);
    tamis_plan *plan = NULL;
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out is NULL");
    TMS_TRY(begin(cache, params, true, &plan, error));
    const tamis_status status = take_memory(plan, error);
    if (status == TAMIS_OK) *out = plan->memory.taken;
    tamis_plan_destroy(&plan);
    return status;
}

tamis_status tamis_plan_get_memory(const tamis_plan *plan, tamis_plan_memory *out,
                                   tamis_error *error) {
    TMS_ENTER(plan);
    TMS_REQUIRE(plan && out, TAMIS_E_ARGUMENT, "%s is NULL", plan ? "out" : "plan");
    *out = plan->memory.taken;
    return TAMIS_OK;
}

static void give_up(tms_life *life) {
    tamis_plan *plan = (tamis_plan *)life;
    if (plan->step.open) tms_plan_give_up(plan);
}

void tamis_plan_destroy(tamis_plan **plan) {
    if (!plan || !*plan) return;
    tms_life_close(&(*plan)->life, give_up);
    *plan = NULL;
}
