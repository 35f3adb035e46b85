/* SPDX-License-Identifier: Apache-2.0 */
/* Evicting between steps: the checks, the loop over a sequence's layers (or all at once), the
 * public calls. */
#include "lib/plan/plan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The eviction of one sequence. */
typedef struct evicting {
    tamis_plan *plan;
    tms_sequence *sequence;
    uint32_t row;  /* of the page table */
    uint32_t ring; /* of queries */
    /* The caller's scores or keep lists, or NULL. */
    const float *scores;
    const uint32_t *slots, *counts;
    uint64_t stride;
    tamis_evicted *out;
    uint32_t n_done; /* layers that have been evicted from */
} evicting;

/* ---- Before anything changes ----------------------------------------------------------------- */

static tamis_status check_call(const tamis_plan *plan, tamis_sequence id, bool by_caller,
                               tms_sequence **sequence, tamis_error *error) {
    TMS_REQUIRE(plan, TAMIS_E_ARGUMENT, "plan is NULL");
    TMS_REQUIRE(!plan->setup.cache->step_open, TAMIS_E_STATE, "a step on the cache is open");
    TMS_REQUIRE((plan->setup.params.eviction.kind == TAMIS_EVICT_CALLER) == by_caller &&
                    plan->setup.needs.active,
                TAMIS_E_ARGUMENT, "the plan's eviction is %s", plan->setup.needs.entry->name);
    TMS_TRY(tms_cache_check_bounds(plan->setup.cache, error));
    TMS_TRY(tms_cache_find_idle(plan->setup.cache, id, sequence, error));
    if (!tms_page_table_has(&plan->table, *sequence))
        TMS_TRY(tms_journals_check_settled(&plan->journals, error));
    TMS_REQUIRE(!(*sequence)->torn || !plan->setup.needs.across, TAMIS_E_STATE,
                "an eviction from sequence %" PRIu64
                " failed between layers that share a budget; what they hold does not belong "
                "together, and %s cannot choose from it",
                id, plan->setup.needs.entry->name);
    TMS_REQUIRE((*sequence)->given_up == 0, TAMIS_E_STATE,
                "sequence %" PRIu64 " holds rows of a step that was given up; it must be repeated",
                id);
    TMS_REQUIRE((*sequence)->length <= plan->setup.params.max_context, TAMIS_E_ARGUMENT,
                "the %" PRIu32 " tokens of sequence %" PRIu64 " exceed max_context %" PRIu32,
                (*sequence)->length, id, plan->setup.params.max_context);
    for (uint32_t layer = 0; plan->setup.needs.output && layer < plan->setup.cache->params.n_layers;
         layer++)
        TMS_REQUIRE(plan->between.outputs[layer].w.mem, TAMIS_E_STATE,
                    "%s needs the output projection of layer %" PRIu32
                    ": tamis_plan_bind_output comes first",
                    plan->setup.needs.entry->name, layer);
    return TAMIS_OK;
}

/* If the eviction protects tokens by their slots: whether the last slots hold the window's tokens,
 * and the first ones the sinks. */
static tamis_status check_order(const tamis_plan *plan, const tms_sequence *sequence,
                                tamis_error *error) {
    const tamis_eviction *e = &plan->setup.params.eviction;
    const char *name = plan->setup.needs.entry->name;
    if (!plan->setup.needs.by_slots) return TAMIS_OK;
    TMS_REQUIRE(e->window == 0 || sequence->length - e->window >= sequence->intact_from,
                TAMIS_E_STATE,
                "the window of %s is positions %" PRIu32 " to %" PRIu32 " of sequence %" PRIu64
                ", whose lanes hold all tokens in their order only from %" PRIu32 " on",
                name, sequence->length - e->window, sequence->length - 1, sequence->id,
                sequence->intact_from);
    TMS_REQUIRE(e->sinks == 0 || !sequence->unordered, TAMIS_E_STATE,
                "the slots of sequence %" PRIu64
                " are not in the order of their tokens; %s takes the first %" PRIu32
                " for its sinks",
                sequence->id, name, e->sinks);
    return TAMIS_OK;
}

/* Whether scores, queries and order of the sequence are as the eviction assumes. */
static tamis_status check_history(const tamis_plan *plan, const tms_sequence *sequence,
                                  tamis_error *error) {
    TMS_TRY(tms_in_step_check_scores(&plan->setup, sequence, error));
    TMS_TRY(tms_query_rings_check(&plan->rings, sequence, error));
    return check_order(plan, sequence, error);
}

/* Lengths and budgets of the lanes. */
static void set_budgets(tamis_plan *plan, const tms_sequence *sequence) {
    tms_between *b = &plan->between;
    uint32_t heads = plan->setup.cache->params.n_kv_heads, longest = 0;
    for (uint32_t lane = 0; lane < plan->setup.cache->n_lanes; lane++) {
        b->slots[lane] = sequence->lanes[lane].length;
        if (b->slots[lane] > longest) longest = b->slots[lane];
    }
    tms_eviction_schedule(&plan->setup.params.eviction, plan->setup.cache->params.n_layers,
                          sequence->length, longest, b->layer_budgets);
    for (uint32_t lane = 0; lane < plan->setup.cache->n_lanes; lane++)
        b->budgets[lane] = b->has_bound ? b->bound[lane] : b->layer_budgets[lane / heads];
}

/* The slots that lanes [first, end), which share a budget, may hold together. */
static uint64_t total(const tamis_plan *plan, uint32_t first, uint32_t end) {
    return tms_eviction_total(&plan->setup.params.eviction, plan->between.slots + first,
                              end - first);
}

/* Whether lanes [first, end) hold more than they may: each its own budget, or all together. */
static bool exceed(const tamis_plan *plan, uint32_t first, uint32_t end) {
    const tms_between *b = &plan->between;
    uint64_t slots = 0;
    bool one = false;
    for (uint32_t lane = first; lane < end; lane++) {
        slots += b->slots[lane];
        one |= b->slots[lane] > b->budgets[lane];
    }
    return plan->setup.needs.shared ? slots > total(plan, first, end) : one;
}

static bool layer_exceeds(const tamis_plan *plan, uint32_t layer) {
    uint32_t heads = plan->setup.cache->params.n_kv_heads, first = layer * heads;
    return plan->setup.needs.across ? exceed(plan, 0, plan->setup.cache->n_lanes)
                                    : exceed(plan, first, first + heads);
}

/* The most that each lane may keep. */
static void set_most(tamis_plan *plan, const uint32_t *counts) {
    tms_between *b = &plan->between;
    uint32_t heads = plan->setup.cache->params.n_kv_heads;
    for (uint32_t lane = 0; lane < plan->setup.cache->n_lanes; lane++) {
        uint32_t budget = plan->setup.needs.shared ? b->slots[lane] : b->budgets[lane];
        if (counts) budget = counts[lane];
        if (!counts && !layer_exceeds(plan, lane / heads)) budget = b->slots[lane];
        b->most[lane] = b->slots[lane] < budget ? b->slots[lane] : budget;
    }
}

/* Whether there are pages for the most that may be kept apart from other sequences. */
static tamis_status check_pages(tamis_plan *plan, const tms_sequence *sequence,
                                tamis_error *error) {
    tms_between *b = &plan->between;
    uint32_t n = plan->setup.cache->n_lanes;
    uint32_t run =
        (uint32_t)tms_between_layers_at_once(&plan->setup) * plan->setup.cache->params.n_kv_heads;
    const tms_keeping keeping = {
        .most = b->kept, .together = plan->setup.needs.shared ? b->together : NULL, .run = run};
    /* b->kept is unused until selects have run. */
    for (uint32_t lane = 0; lane < n; lane++) {
        bool loses = plan->setup.needs.shared
                         ? layer_exceeds(plan, lane / plan->setup.cache->params.n_kv_heads)
                         : b->most[lane] < b->slots[lane];
        b->kept[lane] = loses ? b->most[lane] : 0;
    }
    for (uint32_t first = 0; first < n && plan->setup.needs.shared; first += run)
        b->together[first / run] =
            total(plan, first, first + run) + (uint64_t)run * plan->setup.needs.slack;
    return tms_cache_compact_check(plan->setup.cache, sequence, &keeping, error);
}

/* ---- A layer --------------------------------------------------------------------------------- */

static tamis_status send_scores(const evicting *v, const tms_evicted_layer *layer,
                                tamis_error *error) {
    for (uint32_t h = 0; h < layer->n_kv_heads; h++) {
        uint64_t lane = (uint64_t)layer->index * layer->n_kv_heads + h;
        TMS_TRY(tms_memory_send(layer->dev, tms_layer_head_values(layer, 0, h),
                                v->scores + lane * v->stride, layer->slots[h] * sizeof(float),
                                error));
    }
    return TAMIS_OK;
}

static tamis_status send_lists(const evicting *v, const tms_evicted_layer *layer,
                               tamis_error *error) {
    uint32_t first = layer->index * layer->n_kv_heads;
    for (uint32_t h = 0; h < layer->n_kv_heads; h++) {
        tms_ref list = layer->kept.pages;
        list.offset += (uint64_t)h * layer->kept.capacity * sizeof(int32_t);
        TMS_TRY(tms_memory_send(layer->dev, list, v->slots + (first + h) * v->stride,
                                v->counts[first + h] * sizeof(int32_t), error));
    }
    return tms_memory_send(layer->dev, layer->kept.count, v->counts + first,
                           layer->n_kv_heads * sizeof(int32_t), error);
}

/* Enqueues the scores of a layer and fills in its select, which does not run yet. */
static tamis_status score_layer(evicting *v, tms_evicted_layer *layer, tamis_error *error) {
    tamis_plan *plan = v->plan;
    TMS_TRY(tms_between_send_layer(&plan->between, v->sequence, v->ring, layer, error));
    layer->length = v->sequence->length;
    layer->select.granularity = 1;
    if (v->scores) TMS_TRY(send_scores(v, layer, error));
    return v->counts ? TAMIS_OK : plan->setup.needs.entry->score(layer, error);
}

/* The slots of `count` entries of a list; the lane's last entry may be partial. */
static uint32_t slots_of(uint32_t count, uint32_t granularity, uint32_t slots) {
    uint32_t entries = (uint32_t)tms_divide_up(slots, granularity);
    uint64_t whole = (uint64_t)count * granularity;
    /* A partial last entry is always protected, and so in the list. */
    if (count == entries || slots % granularity) whole -= entries * (uint64_t)granularity - slots;
    return (uint32_t)whole;
}

/* Reads from the device how many slots the lanes of `n_layers` layers from this one on keep, after
 * their select. */
static tamis_status read_kept(evicting *v, const tms_evicted_layer *layer, uint32_t n_layers,
                              tamis_error *error) {
    const tms_between *b = &v->plan->between;
    uint32_t heads = layer->n_kv_heads, first = layer->index * heads, n = n_layers * heads;
    uint32_t *kept = b->kept + first;
    if (!v->plan->setup.needs.shared) {
        memcpy(kept, b->most + first, n * sizeof *kept);
        return TAMIS_OK;
    }
    TMS_TRY(tms_device_read(layer->dev, layer->kept.count, kept, n * sizeof *kept, error));
    for (uint32_t i = 0; i < n; i++)
        kept[i] = slots_of(kept[i], layer->select.granularity, b->slots[first + i]);
    return TAMIS_OK;
}

/* Uploads those pages to which slots move that will be full, and fills in the launch of their
 * bounds. It may run once the pages hold the slots. */
static tamis_status send_full(const evicting *v, uint32_t layer, tms_bounds *bounds,
                              tamis_error *error) {
    tamis_plan *plan = v->plan;
    const tms_between *b = &plan->between;
    uint32_t heads = plan->setup.cache->params.n_kv_heads;
    const int32_t *to = b->tables.host + b->at.to;
    int32_t *pages = b->tables.host + b->at.full;
    *bounds = tms_cache_bounds(plan->setup.cache, layer);
    bounds->pages = tms_arena_ref(&b->tables, b->at.full);
    for (uint32_t h = 0; h < heads; h++) {
        uint32_t full = plan->between.kept[layer * heads + h] / plan->setup.cache->params.page_size;
        memcpy(pages + bounds->n, to + (uint64_t)h * plan->setup.max_pages, full * sizeof *pages);
        bounds->n += full;
    }
    return tms_arena_send(&b->tables, plan->setup.dev, b->at.full, b->at.full + bounds->n, error);
}

/* Moves the kept slots of a layer to the front of their pages, whose bounds are still to be
 * computed. After a failure the slots are where they were, since the compact op comes last. */
static tamis_status compact(const evicting *v, const tms_evicted_layer *layer, tms_bounds *bounds,
                            tamis_error *error) {
    tamis_plan *plan = v->plan;
    const tms_between *b = &plan->between;
    const uint64_t end = b->at.to + (uint64_t)layer->n_kv_heads * plan->setup.max_pages;
    const tms_compact p = {.kv = layer->kv,
                           .planes = layer->planes,
                           .batch = layer->items,
                           .lists = layer->kept,
                           .granularity = layer->select.granularity,
                           .to = tms_arena_ref(&b->tables, b->at.to),
                           .to_stride = plan->setup.max_pages};
    TMS_TRY(tms_arena_send(&b->tables, plan->setup.dev, b->at.to, end, error));
    TMS_TRY(send_full(v, layer->index, bounds, error));
    return tms_run_compact(plan->setup.dev, &p, error);
}

/* How many of their last slots all lanes of the layer keep without a gap. A lane that keeps all
 * slots does not limit the number. */
static uint32_t listed_tail(const evicting *v, uint32_t first, uint32_t heads) {
    uint32_t tail = UINT32_MAX;
    for (uint32_t lane = first; lane < first + heads; lane++) {
        const uint32_t *list = v->slots + lane * v->stride, count = v->counts[lane];
        const uint32_t length = v->plan->between.slots[lane];
        uint32_t n = 0;
        while (n < count && list[count - 1 - n] == length - 1 - n)
            n++;
        if (n < length && n < tail) tail = n;
    }
    return tail;
}

/* Compacts a layer whose keep lists and counts are known, and updates its lanes' page lists and
 * lengths. The layer is then done: if its bounds fail, the cache is marked as missing bounds. */
static tamis_status move(evicting *v, const tms_evicted_layer *layer, const uint32_t *kept,
                         tamis_error *error) {
    tamis_plan *plan = v->plan;
    int32_t *to = plan->between.tables.host + plan->between.at.to;
    const uint32_t first = layer->index * layer->n_kv_heads;
    tms_bounds bounds;
    tms_cache_compact_pages(plan->setup.cache, v->sequence, layer->index, kept, to,
                            plan->setup.max_pages);
    tamis_status status = compact(v, layer, &bounds, error);
    if (status != TAMIS_OK) {
        tms_cache_compact_undo(plan->setup.cache, v->sequence, layer->index, kept, to,
                               plan->setup.max_pages);
        return status;
    }
    tms_cache_compact_commit(plan->setup.cache, v->sequence, layer->index, kept, to,
                             plan->setup.max_pages, &v->out->pages_returned);
    tms_history_evicted(v->sequence, v->counts ? listed_tail(v, first, layer->n_kv_heads)
                                               : plan->setup.needs.spares);
    if (bounds.n > 0) status = tms_run_bounds(plan->setup.dev, &bounds, error);
    plan->setup.cache->bounds_missing |= status != TAMIS_OK;
    return status;
}

/* Runs a layer's select and compacts the layer. */
static tamis_status shrink(evicting *v, const tms_evicted_layer *layer, tamis_error *error) {
    const uint32_t *kept = v->plan->between.kept + layer->index * layer->n_kv_heads;
    tamis_status status = TAMIS_OK;
    uint64_t before = 0, after = 0, now = 0;
    for (uint32_t h = 0; h < layer->n_kv_heads; h++) {
        before += layer->slots[h];
        after += kept[h];
    }
    if (before != after) status = move(v, layer, kept, error);
    for (uint32_t h = 0; h < layer->n_kv_heads; h++)
        now += v->sequence->lanes[layer->index * layer->n_kv_heads + h].length;
    v->out->tokens_before += before;
    v->out->tokens_kept += now;
    v->n_done += now == after;
    return status;
}

/* ---- All layers ------------------------------------------------------------------------------ */

/* Evicts from one layer, independently of others. */
static tamis_status evict_layer(evicting *v, uint32_t index, tamis_error *error) {
    tms_between *b = &v->plan->between;
    tms_evicted_layer layer = tms_between_layer(&v->plan->between, index, 1);
    uint32_t heads = layer.n_kv_heads, first = index * heads;
    if (!v->counts && !layer_exceeds(v->plan, index)) {
        memcpy(b->kept + first, b->slots + first, heads * sizeof *b->kept);
        return shrink(v, &layer, error);
    }
    TMS_TRY(score_layer(v, &layer, error));
    TMS_TRY(v->counts ? send_lists(v, &layer, error)
                      : tms_layer_select(&layer, &layer.select, error));
    TMS_TRY(read_kept(v, &layer, 1, error));
    return shrink(v, &layer, error);
}

/* All layers are scored before one select of all their lanes; then each is compacted. */
static tamis_status evict_across(evicting *v, tamis_error *error) {
    const tms_setup *setup = &v->plan->setup;
    const uint32_t n_layers = setup->cache->params.n_layers, n_lanes = setup->cache->n_lanes;
    tms_evicted_layer all;
    for (uint32_t i = n_layers; i-- > 0;) {
        all = tms_between_layer(&v->plan->between, i, 1);
        TMS_TRY(score_layer(v, &all, error));
    }
    /* Layer 0 is scored last, and its tables, values and lists are the beginning of those of all
     * layers. */
    all.select.batch.n_kv_heads = all.select.batch.n_heads = n_lanes;
    all.select.batch.max_visible = 0;
    for (uint32_t lane = 0; lane < n_lanes; lane++)
        if (v->plan->between.slots[lane] > all.select.batch.max_visible)
            all.select.batch.max_visible = v->plan->between.slots[lane];
    all.select.wide.total = tms_eviction_saturated((uint64_t)all.select.wide.total * n_layers);
    TMS_TRY(tms_layer_select(&all, &all.select, error));
    tamis_status status = read_kept(v, &all, n_layers, error);
    for (uint32_t i = 0; i < n_layers && status == TAMIS_OK; i++) {
        tms_evicted_layer one = tms_between_layer(&v->plan->between, i, 1);
        one.select.granularity = all.select.granularity;
        status = shrink(v, &one, error);
    }
    v->sequence->torn = v->n_done < n_layers && v->out->tokens_kept < v->out->tokens_before;
    return status;
}

static tamis_status evict_all(evicting *v, tamis_error *error) {
    const tms_setup *setup = &v->plan->setup;
    TMS_TRY(tms_between_send_sequence(&v->plan->between, v->sequence, v->row, error));
    if (setup->needs.across) return evict_across(v, error);
    for (uint32_t layer = 0; layer < setup->cache->params.n_layers; layer++)
        TMS_TRY(evict_layer(v, layer, error));
    return TAMIS_OK;
}

static void count(const evicting *v) {
    const tamis_cache_size *size = &v->plan->setup.cache->size;
    tamis_evicted *out = v->out;
    tamis_plan_counters *counters = &v->plan->counters;
    out->bytes_returned =
        out->pages_returned * (size->page_bytes + size->bounds_bytes + size->plane_bytes);
    counters->evictions += out->tokens_kept < out->tokens_before;
    counters->tokens_evicted += out->tokens_before - out->tokens_kept;
}

/* Reports that nothing was evicted, since no lane exceeds its budget. */
static void keep_all(const evicting *v) {
    for (uint32_t lane = 0; lane < v->plan->setup.cache->n_lanes; lane++)
        v->out->tokens_before += v->plan->between.slots[lane];
    v->out->tokens_kept = v->out->tokens_before;
}

static tamis_status run(evicting *v, tamis_error *error) {
    tamis_plan *plan = v->plan;
    tms_event *from = NULL;
    bool some = v->counts != NULL;
    set_budgets(plan, v->sequence);
    for (uint32_t layer = 0; layer < plan->setup.cache->params.n_layers; layer++)
        some |= layer_exceeds(plan, layer);
    if (!some) {
        keep_all(v);
        return TAMIS_OK;
    }
    set_most(plan, v->counts);
    if (!v->counts) TMS_TRY(check_history(plan, v->sequence, error));
    TMS_TRY(check_pages(plan, v->sequence, error));
    TMS_TRY(tms_query_rings_bring(&plan->rings, &v->sequence, 1, &v->ring, error));
    TMS_TRY(tms_page_table_bring(&plan->table, &v->sequence, 1, &v->row, error));
    TMS_TRY(tms_stage_start(&plan->setup, &from, error));
    const tamis_status status = evict_all(v, error);
    const bool whole = status == TAMIS_OK;
    /* What was done has its time and its counts, even where the rest has failed. */
    const tamis_status stopped =
        tms_stage_stop(&plan->setup, from, TAMIS_OK, &plan->times.evict_us, whole ? error : NULL);
    count(v);
    return whole ? stopped : status;
}

/* ---- The calls ------------------------------------------------------------------------------- */

static tamis_status evict(evicting *v, tamis_sequence sequence, bool by_caller, tamis_evicted *out,
                          tamis_error *error) {
    tamis_evicted unread;
    v->out = out ? out : &unread;
    *v->out = (tamis_evicted){0};
    TMS_TRY(check_call(v->plan, sequence, by_caller, &v->sequence, error));
    tamis_cache *cache = v->plan->setup.cache;
    const uint64_t before = tms_cache_free_pages(cache);
    const tamis_status status = run(v, error);
    v->out->pages_net = (int64_t)(tms_cache_free_pages(cache) - before);
    return status;
}

tamis_status tamis_plan_evict(tamis_plan *plan, tamis_sequence sequence, tamis_evicted *out,
                              tamis_error *error) {
    TMS_ENTER(plan);
    evicting v = {.plan = plan};
    return evict(&v, sequence, false, out, error);
}

static tamis_status check_stride(const tamis_plan *plan, tamis_sequence id, uint64_t stride,
                                 tamis_error *error) {
    const tms_sequence *sequence = plan ? tms_cache_find(plan->setup.cache, id) : NULL;
    for (uint32_t lane = 0; sequence && lane < plan->setup.cache->n_lanes; lane++)
        TMS_REQUIRE(stride >= sequence->lanes[lane].length, TAMIS_E_ARGUMENT,
                    "a stride of %" PRIu64 " for lane %" PRIu32 " of %" PRIu32 " slots", stride,
                    lane, sequence->lanes[lane].length);
    return TAMIS_OK;
}

tamis_status tamis_plan_evict_by_scores(tamis_plan *plan, tamis_sequence sequence,
                                        const float *scores, uint64_t stride, tamis_evicted *out,
                                        tamis_error *error) {
    TMS_ENTER(plan);
    evicting v = {.plan = plan, .scores = scores, .stride = stride};
    TMS_REQUIRE(scores, TAMIS_E_ARGUMENT, "scores is NULL");
    TMS_TRY(check_stride(plan, sequence, stride, error));
    return evict(&v, sequence, true, out, error);
}

static tamis_status check_lists(const tamis_plan *plan, tamis_sequence id, const uint32_t *slots,
                                const uint32_t *counts, uint64_t stride, tamis_error *error) {
    const tms_sequence *sequence = plan ? tms_cache_find(plan->setup.cache, id) : NULL;
    for (uint32_t lane = 0; sequence && lane < plan->setup.cache->n_lanes; lane++) {
        const uint32_t *list = slots + lane * stride, length = sequence->lanes[lane].length;
        TMS_REQUIRE(counts[lane] > 0 || length == 0, TAMIS_E_ARGUMENT,
                    "lane %" PRIu32 " is to keep nothing", lane);
        TMS_REQUIRE(counts[lane] <= length && counts[lane] <= stride, TAMIS_E_ARGUMENT,
                    "lane %" PRIu32 " is to keep %" PRIu32 " of %" PRIu32
                    " slots, in a list of %" PRIu64,
                    lane, counts[lane], length, stride);
        for (uint32_t i = 0; i < counts[lane]; i++)
            TMS_REQUIRE(list[i] < length && (i == 0 || list[i] > list[i - 1]), TAMIS_E_ARGUMENT,
                        "slot %" PRIu32 " at place %" PRIu32 " of lane %" PRIu32
                        " is not above the one before and below %" PRIu32,
                        list[i], i, lane, length);
    }
    return TAMIS_OK;
}

tamis_status tamis_plan_evict_to(tamis_plan *plan, tamis_sequence sequence, const uint32_t *slots,
                                 const uint32_t *counts, uint64_t stride, tamis_evicted *out,
                                 tamis_error *error) {
    TMS_ENTER(plan);
    evicting v = {.plan = plan, .slots = slots, .counts = counts, .stride = stride};
    TMS_REQUIRE(slots, TAMIS_E_ARGUMENT, "slots is NULL");
    TMS_REQUIRE(counts, TAMIS_E_ARGUMENT, "counts is NULL");
    TMS_TRY(check_lists(plan, sequence, slots, counts, stride, error));
    return evict(&v, sequence, true, out, error);
}

void tms_plan_trace_evict(tamis_plan *plan, tms_evict_trace trace, void *user) {
    tms_between *b = &plan->between;
    uint64_t n = (uint64_t)tms_between_layers_at_once(&plan->setup) *
                 plan->setup.cache->params.n_kv_heads * b->stride;
    if (trace && !b->trace_scores) b->trace_scores = malloc(n * sizeof *b->trace_scores);
    b->trace = b->trace_scores ? trace : NULL;
    b->trace_user = user;
}
