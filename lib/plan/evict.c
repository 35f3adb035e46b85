/* SPDX-License-Identifier: Apache-2.0 */
/* Evicting from a sequence between steps: layer after layer its slots are scored, selected and
 * compacted, and pages go back. */
#include "lib/plan/plan.h"

#include <inttypes.h>
#include <string.h>

/* What is done to one sequence. */
typedef struct evicting {
    tamis_plan *plan;
    tms_sequence *sequence;
    uint32_t row; /* of the page table */
    /* What the caller brings, or NULL. */
    const float *scores;
    const uint32_t *slots, *counts;
    uint64_t stride;
    tamis_evicted *out;
    uint32_t n_done; /* layers that hold what they shall keep */
} evicting;

/* ---- Before anything changes ----------------------------------------------------------------- */

static tamis_status check_call(const tamis_plan *plan, tamis_sequence id, bool by_caller,
                               tms_sequence **sequence, tamis_error *error) {
    TMS_REQUIRE(plan, TAMIS_E_ARGUMENT, "plan is NULL");
    TMS_REQUIRE(!plan->cache->step_open, TAMIS_E_STATE, "a step on the cache is open");
    TMS_REQUIRE((plan->params.eviction.kind == TAMIS_EVICT_CALLER) == by_caller &&
                    plan->eviction.asked.active,
                TAMIS_E_ARGUMENT, "the plan's eviction is %s",
                tamis_eviction_name(plan->params.eviction.kind));
    tamis_status status = tms_cache_check_bounds(plan->cache, error);
    if (status == TAMIS_OK) status = tms_cache_find_idle(plan->cache, id, sequence, error);
    if (status != TAMIS_OK) return status;
    TMS_REQUIRE(!(*sequence)->torn || !plan->eviction.asked.across, TAMIS_E_STATE,
                "an eviction from sequence %" PRIu64
                " failed between layers that share a budget; what they hold does not belong "
                "together, and %s cannot choose from it",
                id, tamis_eviction_name(plan->params.eviction.kind));
    TMS_REQUIRE((*sequence)->given_up == 0, TAMIS_E_STATE,
                "sequence %" PRIu64 " holds rows of a step that was given up; it must be repeated",
                id);
    TMS_REQUIRE((*sequence)->length <= plan->params.max_context, TAMIS_E_ARGUMENT,
                "the %" PRIu32 " tokens of sequence %" PRIu64 " exceed max_context %" PRIu32,
                (*sequence)->length, id, plan->params.max_context);
    for (uint32_t layer = 0; plan->eviction.asked.output && layer < plan->cache->params.n_layers;
         layer++)
        TMS_REQUIRE(plan->eviction.outputs[layer].w.mem, TAMIS_E_STATE,
                    "%s needs the output projection of layer %" PRIu32
                    ": tamis_plan_bind_output comes first",
                    tamis_eviction_name(plan->params.eviction.kind), layer);
    return TAMIS_OK;
}

/* Lengths and budgets of the lanes. */
static void set_budgets(tamis_plan *plan, const tms_sequence *sequence) {
    tms_plan_eviction *e = &plan->eviction;
    uint32_t heads = plan->cache->params.n_kv_heads, longest = 0;
    for (uint32_t lane = 0; lane < plan->cache->n_lanes; lane++) {
        e->slots[lane] = sequence->lanes[lane].length;
        if (e->slots[lane] > longest) longest = e->slots[lane];
    }
    tms_eviction_schedule(&plan->params.eviction, plan->cache->params.n_layers, sequence->length,
                          longest, e->layer_budgets);
    for (uint32_t lane = 0; lane < plan->cache->n_lanes; lane++)
        e->budgets[lane] = e->has_bound ? e->bound[lane] : e->layer_budgets[lane / heads];
}

/* Slots that lanes [first, end), which share, may hold in all. */
static uint64_t total(const tamis_plan *plan, uint32_t first, uint32_t end) {
    return tms_eviction_total(&plan->params.eviction, plan->eviction.slots + first, end - first);
}

/* Whether lanes [first, end) hold more than they may: each its own budget, or all together. */
static bool exceed(const tamis_plan *plan, uint32_t first, uint32_t end) {
    const tms_plan_eviction *e = &plan->eviction;
    uint64_t slots = 0;
    bool one = false;
    for (uint32_t lane = first; lane < end; lane++) {
        slots += e->slots[lane];
        one |= e->slots[lane] > e->budgets[lane];
    }
    return e->asked.shared ? slots > total(plan, first, end) : one;
}

static bool layer_exceeds(const tamis_plan *plan, uint32_t layer) {
    uint32_t heads = plan->cache->params.n_kv_heads, first = layer * heads;
    return plan->eviction.asked.across ? exceed(plan, 0, plan->cache->n_lanes)
                                       : exceed(plan, first, first + heads);
}

/* The most that each lane may keep. */
static void set_most(tamis_plan *plan, const uint32_t *counts) {
    tms_plan_eviction *e = &plan->eviction;
    uint32_t heads = plan->cache->params.n_kv_heads;
    for (uint32_t lane = 0; lane < plan->cache->n_lanes; lane++) {
        uint32_t budget = e->asked.shared ? e->slots[lane] : e->budgets[lane];
        if (counts) budget = counts[lane];
        if (!counts && !layer_exceeds(plan, lane / heads)) budget = e->slots[lane];
        e->most[lane] = e->slots[lane] < budget ? e->slots[lane] : budget;
    }
}

/* Whether there are pages for the most that may be kept apart from other sequences. */
static tamis_status check_pages(tamis_plan *plan, const tms_sequence *sequence,
                                tamis_error *error) {
    tms_plan_eviction *e = &plan->eviction;
    uint32_t n = plan->cache->n_lanes;
    uint32_t run = (uint32_t)tms_plan_layers_at_once(plan) * plan->cache->params.n_kv_heads;
    const tms_keeping keeping = {
        .most = e->kept, .together = e->asked.shared ? e->together : NULL, .run = run};
    /* Until selects have run, e->kept is free for use. */
    for (uint32_t lane = 0; lane < n; lane++) {
        bool loses = e->asked.shared ? layer_exceeds(plan, lane / plan->cache->params.n_kv_heads)
                                     : e->most[lane] < e->slots[lane];
        e->kept[lane] = loses ? e->most[lane] : 0;
    }
    for (uint32_t first = 0; first < n && e->asked.shared; first += run)
        e->together[first / run] = total(plan, first, first + run) + (uint64_t)run * e->asked.slack;
    return tms_cache_compact_check(plan->cache, sequence, &keeping, error);
}

/* ---- A layer --------------------------------------------------------------------------------- */

static tamis_status send_scores(const evicting *v, const tms_evicted_layer *work,
                                tamis_error *error) {
    tamis_status status = TAMIS_OK;
    for (uint32_t h = 0; h < work->n_kv_heads && status == TAMIS_OK; h++) {
        uint64_t lane = (uint64_t)work->index * work->n_kv_heads + h;
        status = tms_plan_send(v->plan, tms_layer_head_values(work, 0, h),
                               v->scores + lane * v->stride, work->slots[h] * sizeof(float));
    }
    return tms_forward(work->dev, status, error);
}

static tamis_status send_lists(const evicting *v, const tms_evicted_layer *work,
                               tamis_error *error) {
    tamis_status status = TAMIS_OK;
    uint32_t first = work->index * work->n_kv_heads;
    for (uint32_t h = 0; h < work->n_kv_heads && status == TAMIS_OK; h++) {
        tms_ref list = work->kept.pages;
        list.offset += (uint64_t)h * work->kept.capacity * sizeof(int32_t);
        status = tms_plan_send(v->plan, list, v->slots + (first + h) * v->stride,
                               v->counts[first + h] * sizeof(int32_t));
    }
    if (status == TAMIS_OK)
        status = tms_plan_send(v->plan, work->kept.count, v->counts + first,
                               work->n_kv_heads * sizeof(int32_t));
    return tms_forward(work->dev, status, error);
}

/* Scores of the work's layer, and the select that they are for; it has not run. */
static tamis_status score_layer(evicting *v, tms_evicted_layer *work, tamis_error *error) {
    tamis_plan *plan = v->plan;
    tamis_status status = TAMIS_OK;
    TMS_TRY(plan->dev, tms_plan_send_layer(plan, v->sequence, work->index));
    if (plan->eviction.asked.window)
        TMS_TRY(plan->dev, tms_plan_attend_window(plan, work, v->row, v->sequence->length));
    work->length = v->sequence->length;
    work->select.granularity = 1;
    if (v->scores) status = send_scores(v, work, error);
    if (status != TAMIS_OK) return status;
    const tms_eviction_entry *entry = tms_eviction_find(plan->params.eviction.kind);
    if (!v->counts) TMS_TRY(plan->dev, entry->score(work));
fail:
    return status;
}

/* Slots that entries of a list stand for, the last of which may be cut. */
static uint32_t slots_of(uint32_t count, uint32_t granularity, uint32_t slots) {
    uint32_t entries = (uint32_t)tms_divide_up(slots, granularity);
    uint64_t whole = (uint64_t)count * granularity;
    /* The last entry is always protected where it is cut. */
    if (count == entries || slots % granularity) whole -= entries * (uint64_t)granularity - slots;
    return (uint32_t)whole;
}

/* How many slots the lanes of `n_layers` layers from `layer` on keep, after their select. */
static tamis_status read_kept(evicting *v, const tms_evicted_layer *work, uint32_t n_layers,
                              tamis_error *error) {
    tms_plan_eviction *e = &v->plan->eviction;
    uint32_t heads = work->n_kv_heads, first = work->index * heads, n = n_layers * heads;
    tamis_status status = TAMIS_OK;
    uint32_t *kept = e->kept + first;
    if (!e->asked.shared) {
        memcpy(kept, e->most + first, n * sizeof *kept);
        return TAMIS_OK;
    }
    TMS_TRY(v->plan->dev,
            v->plan->dev->backend->read(v->plan->dev, work->kept.count, kept, n * sizeof *kept));
    for (uint32_t i = 0; i < n; i++)
        kept[i] = slots_of(kept[i], work->select.granularity, e->slots[first + i]);
fail:
    return status;
}

/* The full pages of `to`, as far as slots are kept, on the device. What their launch lacks is that
 * they hold the slots. */
static tamis_status send_full(const evicting *v, uint32_t layer, const int32_t *to,
                              tms_bounds *bounds) {
    tamis_plan *plan = v->plan;
    uint32_t heads = plan->cache->params.n_kv_heads;
    int32_t *pages = plan->eviction.host;
    *bounds = tms_cache_bounds(plan->cache, layer);
    bounds->pages = tms_plan_bounds_table(plan);
    for (uint32_t h = 0; h < heads; h++) {
        uint32_t full = plan->eviction.kept[layer * heads + h] / plan->cache->params.page_size;
        memcpy(pages + bounds->n, to + (uint64_t)h * plan->max_pages, full * sizeof *pages);
        bounds->n += full;
    }
    return tms_plan_send(plan, bounds->pages, pages, bounds->n * sizeof *pages);
}

/* The kept slots of a layer to the front of their pages, whose bounds are still to be computed. A
 * failure leaves them where they were: compact comes last. */
static tamis_status compact(const evicting *v, const tms_evicted_layer *work, const int32_t *to,
                            tms_bounds *bounds) {
    tamis_plan *plan = v->plan;
    const tms_compact p = {.kv = work->kv,
                           .planes = work->planes,
                           .batch = work->items,
                           .lists = work->kept,
                           .granularity = work->select.granularity,
                           .to = tms_plan_to_table(plan),
                           .to_stride = plan->max_pages};
    uint64_t bytes = (uint64_t)work->n_kv_heads * plan->max_pages * sizeof *to;
    tamis_status status = tms_plan_send(plan, p.to, to, bytes);
    if (status == TAMIS_OK) status = send_full(v, work->index, to, bounds);
    return status == TAMIS_OK ? tms_run_compact(plan->dev, &p) : status;
}

/* How many of their last slots the layer's lanes keep without a gap: of lanes that keep all, all.
 */
static uint32_t listed_tail(const evicting *v, uint32_t first, uint32_t heads) {
    uint32_t tail = UINT32_MAX;
    for (uint32_t lane = first; lane < first + heads; lane++) {
        const uint32_t *list = v->slots + lane * v->stride, count = v->counts[lane];
        const uint32_t length = v->plan->eviction.slots[lane];
        uint32_t n = 0;
        while (n < count && list[count - 1 - n] == length - 1 - n)
            n++;
        if (n < length && n < tail) tail = n;
    }
    return tail;
}

/* Compacts a layer whose lists and counts are known; lanes' lists and lengths follow. From then on
 * it is done: should bounds fail, the cache waits for them. */
static tamis_status move(evicting *v, const tms_evicted_layer *work, const uint32_t *kept,
                         tamis_error *error) {
    tamis_plan *plan = v->plan;
    tms_device *dev = plan->dev;
    /* Behind the ids that send_full gathers. */
    int32_t *to = plan->eviction.host + (uint64_t)work->n_kv_heads * plan->max_pages;
    const uint32_t first = work->index * work->n_kv_heads;
    tms_bounds bounds;
    tms_cache_compact_pages(plan->cache, v->sequence, work->index, kept, to, plan->max_pages);
    tamis_status status = tms_forward(dev, compact(v, work, to, &bounds), error);
    if (status != TAMIS_OK) {
        tms_cache_compact_undo(plan->cache, v->sequence, work->index, kept, to, plan->max_pages);
        return status;
    }
    tms_cache_compact_commit(plan->cache, v->sequence, work->index, kept, to, plan->max_pages,
                             &v->out->pages_returned);
    tms_history_evicted(v->sequence, v->counts ? listed_tail(v, first, work->n_kv_heads)
                                               : tms_plan_spared(plan));
    if (bounds.n > 0) status = tms_forward(dev, tms_run_bounds(dev, &bounds), error);
    plan->cache->bounds_missing |= status != TAMIS_OK;
    return status;
}

/* What a layer keeps stays, the rest goes. */
static tamis_status shrink(evicting *v, const tms_evicted_layer *work, tamis_error *error) {
    const uint32_t *kept = v->plan->eviction.kept + work->index * work->n_kv_heads;
    tamis_status status = TAMIS_OK;
    uint64_t before = 0, after = 0, now = 0;
    for (uint32_t h = 0; h < work->n_kv_heads; h++) {
        before += work->slots[h];
        after += kept[h];
    }
    if (before != after) status = move(v, work, kept, error);
    for (uint32_t h = 0; h < work->n_kv_heads; h++)
        now += v->sequence->lanes[work->index * work->n_kv_heads + h].length;
    v->out->tokens_before += before;
    v->out->tokens_kept += now;
    v->n_done += now == after;
    return status;
}

/* ---- All layers ------------------------------------------------------------------------------ */

/* A layer by itself. */
static tamis_status evict_layer(evicting *v, uint32_t layer, tamis_error *error) {
    tms_plan_eviction *e = &v->plan->eviction;
    tms_evicted_layer work = tms_plan_work(v->plan, layer, 1);
    uint32_t heads = work.n_kv_heads, first = layer * heads;
    tamis_status status = TAMIS_OK;
    if (!v->counts && !layer_exceeds(v->plan, layer)) {
        memcpy(e->kept + first, e->slots + first, heads * sizeof *e->kept);
        return shrink(v, &work, error);
    }
    status = score_layer(v, &work, error);
    if (status == TAMIS_OK && v->counts) status = send_lists(v, &work, error);
    if (status != TAMIS_OK) return status;
    if (!v->counts) TMS_TRY(v->plan->dev, tms_layer_select(&work, &work.select));
    status = read_kept(v, &work, 1, error);
    if (status == TAMIS_OK) status = shrink(v, &work, error);
fail:
    return status;
}

/* All layers are scored before one select of all their lanes; then each is compacted. */
static tamis_status evict_across(evicting *v, tamis_error *error) {
    const uint32_t n_layers = v->plan->cache->params.n_layers;
    tms_evicted_layer work;
    tamis_status status = TAMIS_OK;
    for (uint32_t layer = n_layers; layer-- > 0 && status == TAMIS_OK;) {
        work = tms_plan_work(v->plan, layer, 1);
        status = score_layer(v, &work, error);
    }
    if (status != TAMIS_OK) return status;
    /* The last one scored is layer 0, whose tables, values and lists begin those of all. */
    work.select.batch.n_kv_heads = work.select.batch.n_heads = v->plan->cache->n_lanes;
    work.select.batch.max_visible = 0;
    for (uint32_t lane = 0; lane < v->plan->cache->n_lanes; lane++)
        if (v->plan->eviction.slots[lane] > work.select.batch.max_visible)
            work.select.batch.max_visible = v->plan->eviction.slots[lane];
    work.select.wide.total = tms_eviction_saturated((uint64_t)work.select.wide.total * n_layers);
    TMS_TRY(v->plan->dev, tms_layer_select(&work, &work.select));
    status = read_kept(v, &work, n_layers, error);
    for (uint32_t layer = 0; layer < n_layers && status == TAMIS_OK; layer++) {
        const uint32_t granularity = work.select.granularity;
        tms_evicted_layer one = tms_plan_work(v->plan, layer, 1);
        one.select.granularity = granularity;
        status = shrink(v, &one, error);
    }
    v->sequence->torn = v->n_done < n_layers && v->out->tokens_kept < v->out->tokens_before;
fail:
    return status;
}

static tamis_status evict_all(evicting *v, tamis_error *error) {
    tamis_status status =
        tms_forward(v->plan->dev, tms_plan_send_sequence(v->plan, v->sequence, v->row), error);
    if (status != TAMIS_OK || v->plan->eviction.asked.across)
        return status == TAMIS_OK ? evict_across(v, error) : status;
    for (uint32_t layer = 0; layer < v->plan->cache->params.n_layers && status == TAMIS_OK; layer++)
        status = evict_layer(v, layer, error);
    return status;
}

static void count(const evicting *v) {
    const tamis_cache_size *size = &v->plan->cache->size;
    tamis_evicted *out = v->out;
    tamis_plan_counters *counters = &v->plan->counters;
    out->bytes_returned =
        out->pages_returned * (size->page_bytes + size->bounds_bytes + size->plane_bytes);
    counters->evictions += out->tokens_kept < out->tokens_before;
    counters->tokens_evicted += out->tokens_before - out->tokens_kept;
}

/* Nothing exceeds its budget. */
static void keep_all(const evicting *v) {
    for (uint32_t lane = 0; lane < v->plan->cache->n_lanes; lane++)
        v->out->tokens_before += v->plan->eviction.slots[lane];
    v->out->tokens_kept = v->out->tokens_before;
}

static tamis_status run(evicting *v, tamis_error *error) {
    tamis_plan *plan = v->plan;
    tms_event *from = NULL;
    bool some = v->counts != NULL;
    set_budgets(plan, v->sequence);
    for (uint32_t layer = 0; layer < plan->cache->params.n_layers; layer++)
        some |= layer_exceeds(plan, layer);
    if (!some) {
        keep_all(v);
        return TAMIS_OK;
    }
    set_most(plan, v->counts);
    tamis_status status = v->counts ? TAMIS_OK : tms_plan_check_history(plan, v->sequence, error);
    if (status == TAMIS_OK) status = check_pages(plan, v->sequence, error);
    if (status == TAMIS_OK) status = tms_plan_row_of(plan, v->sequence, &v->row, error);
    if (status == TAMIS_OK)
        status = tms_forward(plan->dev, tms_plan_start_stage(plan, &from), error);
    if (status != TAMIS_OK) return status;
    status = evict_all(v, error);
    tamis_status stopped = tms_plan_stop_stage(plan, from, TAMIS_OK, &plan->times.evict_us);
    if (status == TAMIS_OK) status = tms_forward(plan->dev, stopped, error);
    count(v);
    return status;
}

/* ---- The calls ------------------------------------------------------------------------------- */

static tamis_status evict(evicting *v, tamis_sequence sequence, bool by_caller, tamis_evicted *out,
                          tamis_error *error) {
    tamis_evicted unread;
    v->out = out ? out : &unread;
    *v->out = (tamis_evicted){0};
    tamis_status status = check_call(v->plan, sequence, by_caller, &v->sequence, error);
    return status == TAMIS_OK ? run(v, error) : status;
}

tamis_status tamis_plan_evict(tamis_plan *plan, tamis_sequence sequence, tamis_evicted *out,
                              tamis_error *error) {
    evicting v = {.plan = plan};
    return evict(&v, sequence, false, out, error);
}

static tamis_status check_stride(const tamis_plan *plan, tamis_sequence id, uint64_t stride,
                                 tamis_error *error) {
    const tms_sequence *sequence = plan ? tms_cache_find(plan->cache, id) : NULL;
    for (uint32_t lane = 0; sequence && lane < plan->cache->n_lanes; lane++)
        TMS_REQUIRE(stride >= sequence->lanes[lane].length, TAMIS_E_ARGUMENT,
                    "a stride of %" PRIu64 " for lane %" PRIu32 " of %" PRIu32 " slots", stride,
                    lane, sequence->lanes[lane].length);
    return TAMIS_OK;
}

tamis_status tamis_plan_evict_by_scores(tamis_plan *plan, tamis_sequence sequence,
                                        const float *scores, uint64_t stride, tamis_evicted *out,
                                        tamis_error *error) {
    evicting v = {.plan = plan, .scores = scores, .stride = stride};
    TMS_REQUIRE(scores, TAMIS_E_ARGUMENT, "scores is NULL");
    tamis_status status = check_stride(plan, sequence, stride, error);
    return status == TAMIS_OK ? evict(&v, sequence, true, out, error) : status;
}

static tamis_status check_lists(const tamis_plan *plan, tamis_sequence id, const uint32_t *slots,
                                const uint32_t *counts, uint64_t stride, tamis_error *error) {
    const tms_sequence *sequence = plan ? tms_cache_find(plan->cache, id) : NULL;
    for (uint32_t lane = 0; sequence && lane < plan->cache->n_lanes; lane++) {
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
    evicting v = {.plan = plan, .slots = slots, .counts = counts, .stride = stride};
    TMS_REQUIRE(slots, TAMIS_E_ARGUMENT, "slots is NULL");
    TMS_REQUIRE(counts, TAMIS_E_ARGUMENT, "counts is NULL");
    tamis_status status = check_lists(plan, sequence, slots, counts, stride, error);
    return status == TAMIS_OK ? evict(&v, sequence, true, out, error) : status;
}
