/* SPDX-License-Identifier: Apache-2.0 */
/* What an eviction takes in a plan: memory by what it asks, kernels launched once, and what callers
 * bind that is not a number. */
#include "lib/plan/plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Memory ---------------------------------------------------------------------------------- */

/* f32 rows of queries of all heads. */
static uint64_t row_bytes(const tamis_plan *plan) {
    return (uint64_t)plan->cache->params.n_heads * plan->cache->params.head_dim * sizeof(float);
}

static uint64_t lse_bytes(const tamis_plan *plan) {
    return plan->cache->params.n_heads * sizeof(float);
}

static tamis_status take(const tamis_plan *plan, uint64_t bytes, tms_mem **out,
                         tamis_error *error) {
    if (bytes == 0) return TAMIS_OK;
    return tms_forward(plan->dev, plan->dev->backend->alloc(plan->dev, bytes, out), error);
}

/* What steps need: the ring, weights on their way to scores, slots that change. */
static tamis_status take_for_steps(tamis_plan *plan, tamis_error *error) {
    tms_plan_eviction *e = &plan->eviction;
    const tamis_cache_params *c = &plan->cache->params;
    const tamis_plan_params *p = &plan->params;
    const tms_evicting *asked = &e->asked;
    uint64_t sequences = p->max_sequences, slot_row = e->stride * sizeof(float);
    uint64_t logit_row = e->logit_stride * sizeof(float);
    uint64_t rings = (uint64_t)c->n_layers * sequences * asked->window;
    bool fed = asked->feed != TMS_FEED_NONE, newest = asked->feed == TMS_FEED_NEWEST;
    tamis_status status = take(plan, rings * row_bytes(plan), &e->ring, error);
    if (status == TAMIS_OK)
        status = take(plan, fed ? p->max_rows * lse_bytes(plan) : 0, &e->lse, error);
    if (status == TAMIS_OK)
        status = take(plan, fed ? sequences * c->n_heads * logit_row : 0, &e->logits, error);
    if (status == TAMIS_OK)
        status = take(plan, newest ? sequences * c->n_kv_heads * slot_row : 0, &e->fed, error);
    if (status == TAMIS_OK)
        status = take(plan, asked->in_place ? sequences * c->n_kv_heads * sizeof(int32_t) : 0,
                      &e->changed, error);
    if (status == TAMIS_OK && asked->rotation)
        status = take(plan, p->max_rows * (4 * row_bytes(plan) + 2 * lse_bytes(plan)), &e->reindex,
                      error);
    return status;
}

/* Scratch of the ops that score and select, at the largest. */
static uint64_t scratch_bytes(tamis_plan *plan) {
    tms_eviction_work work = tms_plan_work(plan, 0, 1);
    uint32_t group = work.group;
    tms_attend attend = tms_plan_attend_all(plan, 0);
    tms_select select = {.batch = work.items, .granularity = 1, .k = plan->params.max_context};
    select.batch.max_visible = plan->params.max_context;
    select.batch.n_kv_heads *= (uint32_t)tms_plan_layers_at_once(plan);
    select.batch.n_heads = select.batch.n_kv_heads;
    select.wide.scope = TMS_SCOPE_ROW;
    tms_value_score value = {.kv = work.kv,
                             .batch = tms_work_head_items(&work, 0),
                             .n_lists = plan->eviction.asked.window * group,
                             .stride = plan->eviction.stride,
                             .out_stride = plan->eviction.stride};
    value.batch.max_visible = plan->params.max_context;
    attend.batch.n_rows = attend.batch.n_tiles = plan->eviction.asked.window;
    attend.batch.max_visible = plan->params.max_context;
    attend.batch.max_tile_rows = TMS_TILE_ROWS;
    attend.max_pages = plan->max_pages;
    uint64_t bytes[] = {tms_select_scratch(plan->dev, &select),
                        plan->eviction.asked.n_tiles ? tms_value_score_scratch(plan->dev, &value)
                                                     : 0,
                        plan->eviction.asked.window ? tms_attend_scratch(plan->dev, &attend) : 0};
    uint64_t most = 0;
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++)
        if (bytes[i] > most) most = bytes[i];
    return most;
}

/* What tamis_plan_evict needs. */
static tamis_status take_for_evicting(tamis_plan *plan, tamis_error *error) {
    tms_plan_eviction *e = &plan->eviction;
    const tms_evicting *asked = &e->asked;
    uint64_t heads = plan->cache->params.n_kv_heads, at_once = tms_plan_layers_at_once(plan);
    uint64_t group = plan->cache->params.n_heads / heads, window = asked->window;
    uint64_t values = (at_once + asked->n_values - 1) * heads * e->stride;
    uint64_t tiles = asked->n_tiles * window * group * e->stride;
    uint64_t lists = 2 * at_once * heads * (plan->params.max_context + 1ull);
    tamis_status status = take(plan, values * sizeof(float), &e->values, error);
    if (status == TAMIS_OK) status = take(plan, tiles * sizeof(float), &e->tiles, error);
    if (status == TAMIS_OK) status = take(plan, lists * sizeof(int32_t), &e->lists, error);
    if (status == TAMIS_OK) status = take(plan, e->at.end * sizeof(int32_t), &e->tables, error);
    if (status == TAMIS_OK)
        status = take(plan, window * (2 * row_bytes(plan) + lse_bytes(plan)), &e->window, error);
    return status == TAMIS_OK ? take(plan, scratch_bytes(plan), &e->scratch, error) : status;
}

static tamis_status take_host(tamis_plan *plan, tamis_error *error) {
    tms_plan_eviction *e = &plan->eviction;
    size_t lanes = plan->cache->n_lanes, layers = plan->cache->params.n_layers;
    e->outputs = calloc(layers, sizeof *e->outputs);
    e->layer_budgets = calloc(layers, sizeof *e->layer_budgets);
    e->bound = calloc(lanes, sizeof *e->bound);
    e->slots = calloc(lanes, sizeof *e->slots);
    e->budgets = calloc(lanes, sizeof *e->budgets);
    e->most = calloc(lanes, sizeof *e->most);
    e->kept = calloc(lanes, sizeof *e->kept);
    e->together = calloc(layers, sizeof *e->together);
    e->host = calloc(e->at.end, sizeof *e->host);
    TMS_REQUIRE(e->outputs && e->layer_budgets && e->bound && e->slots && e->budgets && e->most &&
                    e->kept && e->together && e->host,
                TAMIS_E_NO_MEMORY, "no host memory to evict from %zu lanes", lanes);
    return TAMIS_OK;
}

tamis_status tms_plan_eviction_create(tamis_plan *plan, tamis_error *error) {
    tms_plan_eviction *e = &plan->eviction;
    if (!e->asked.active) return TAMIS_OK;
    TMS_REQUIRE(e->asked.window <= plan->params.max_context, TAMIS_E_ARGUMENT,
                "window %" PRIu32 " exceeds max_context %" PRIu32, e->asked.window,
                plan->params.max_context);
    uint32_t cap = tms_plan_cap(plan, false), most = plan->params.max_context;
    e->stride = tms_divide_up(most, 16) * 16;
    e->logit_stride = tms_divide_up(cap < most ? cap : most, 16) * 16;
    e->at = tms_plan_lay_out_work(plan);
    TMS_REQUIRE(e->at.end <= INT32_MAX, TAMIS_E_ARGUMENT,
                "the tables of evicting take %" PRIu64 " entries, which exceed %" PRId32, e->at.end,
                INT32_MAX);
    tamis_status status = take_host(plan, error);
    if (status == TAMIS_OK) status = take_for_steps(plan, error);
    return status == TAMIS_OK ? take_for_evicting(plan, error) : status;
}

void tms_plan_eviction_destroy(tamis_plan *plan) {
    tms_plan_eviction *e = &plan->eviction;
    tms_mem *memories[] = {e->ring,    e->window,  e->lse,      e->logits, e->fed,
                           e->changed, e->reindex, e->rotation, e->values, e->tiles,
                           e->lists,   e->tables,  e->scratch};
    for (size_t i = 0; i < sizeof memories / sizeof *memories; i++)
        plan->dev->backend->free(plan->dev, memories[i]);
    void *hosts[] = {e->outputs, e->layer_budgets, e->bound,    e->slots, e->budgets,
                     e->most,    e->kept,          e->together, e->host,  e->trace_scores};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++)
        free(hosts[i]);
}

/* ---- Kernels --------------------------------------------------------------------------------- */

static tamis_status warm_steps(tamis_plan *plan, tamis_error *error) {
    tms_device *dev = plan->dev;
    tamis_status status = TAMIS_OK;
    tms_attend attend = tms_plan_attend_all(plan, 0);
    attend.q.stride = attend.out.stride = row_bytes(plan) / sizeof(float);
    for (int exact = 0; exact <= 1; exact++) {
        tms_attend heard = attend;
        plan->step.exact = exact;
        plan->step.max_tile_rows = 1;
        if (plan->eviction.asked.in_place) TMS_TRY(dev, tms_plan_make_slots(plan, 0));
        TMS_TRY(dev, tms_plan_listen(plan, false, &heard));
        TMS_TRY(dev, tms_run_attend(dev, &heard));
        TMS_TRY(dev, tms_plan_feed(plan, 0, &heard));
    }
    if (plan->eviction.asked.rotation) TMS_TRY(dev, tms_plan_attend_reindexed(plan, 0, &attend));
fail:
    return status;
}

static bool takes_budgets(tamis_eviction_kind kind) {
    return kind == TAMIS_EVICT_SNAPKV || kind == TAMIS_EVICT_CRITICALKV ||
           kind == TAMIS_EVICT_CALLER;
}

/* The kind's score and its last select, empty. */
static tamis_status warm_score(tamis_plan *plan, tms_eviction_work *work) {
    const tms_eviction_entry *entry = tms_eviction_find(plan->params.eviction.kind);
    *work = tms_plan_work(plan, 0, 0);
    tamis_status status = entry->score(work);
    return status == TAMIS_OK ? tms_run_select(plan->dev, &work->select) : status;
}

static tamis_status warm_evicting(tamis_plan *plan, tamis_error *error) {
    tms_device *dev = plan->dev;
    uint32_t *budgets = plan->eviction.budgets;
    tms_eviction_work work;
    tamis_status status = TAMIS_OK;
    for (uint32_t lane = 0; lane < plan->cache->n_lanes; lane++)
        budgets[lane] = plan->params.eviction.budget;
    /* Budgets of single heads make other selects. */
    budgets[0] -= takes_budgets(plan->params.eviction.kind);
    if (takes_budgets(plan->params.eviction.kind)) TMS_TRY(dev, warm_score(plan, &work));
    budgets[0] = plan->params.eviction.budget;
    TMS_TRY(dev, warm_score(plan, &work));
    tms_compact compact = {.kv = work.kv,
                           .planes = work.planes,
                           .batch = work.items,
                           .lists = work.kept,
                           .granularity = work.select.granularity,
                           .to = tms_plan_to_table(plan),
                           .to_stride = plan->max_pages};
    TMS_TRY(dev, tms_run_compact(dev, &compact));
    TMS_TRY(dev, dev->backend->wait(dev));
fail:
    return status;
}

tamis_status tms_plan_eviction_warm(tamis_plan *plan, tamis_error *error) {
    if (!plan->eviction.asked.active) return TAMIS_OK;
    tamis_status status = warm_steps(plan, error);
    return status == TAMIS_OK ? warm_evicting(plan, error) : status;
}

/* ---- What is not a number -------------------------------------------------------------------- */

static tamis_status check_bind(const tamis_plan *plan, bool fits, const char *what,
                               tamis_error *error) {
    TMS_REQUIRE(plan, TAMIS_E_ARGUMENT, "plan is NULL");
    TMS_REQUIRE(!plan->step.open, TAMIS_E_STATE, "the plan has an open step");
    TMS_REQUIRE(fits, TAMIS_E_ARGUMENT, "eviction %s takes no %s",
                tamis_eviction_name(plan->params.eviction.kind), what);
    return TAMIS_OK;
}

tamis_status tamis_plan_bind_output(tamis_plan *plan, uint32_t layer, const tamis_rows *w,
                                    uint32_t n_rows, tamis_error *error) {
    tamis_status status =
        check_bind(plan, plan && plan->eviction.asked.output, "output projection", error);
    if (status != TAMIS_OK) return status;
    const tamis_cache_params *p = &plan->cache->params;
    uint64_t stride = 0, width = (uint64_t)p->n_heads * p->head_dim;
    TMS_REQUIRE(layer < p->n_layers, TAMIS_E_ARGUMENT, "layer %" PRIu32 " is not below %" PRIu32,
                layer, p->n_layers);
    TMS_REQUIRE(n_rows > 0, TAMIS_E_ARGUMENT, "the output projection has no rows");
    status = tms_rows_check(plan->cache->context, w, "w", n_rows, width, &stride, error);
    if (status != TAMIS_OK) return status;
    plan->eviction.outputs[layer] =
        (tms_output){{w->buffer->mem, w->offset}, w->dtype, stride, n_rows};
    return TAMIS_OK;
}

static tamis_status send_rotation(tamis_plan *plan, const double *frequencies, uint32_t n_rot,
                                  tamis_error *error) {
    uint64_t n = 2ull * TMS_ROTATE_STEPS * n_rot;
    tms_device *dev = plan->dev;
    tms_mem *mem = NULL;
    tamis_status status = TAMIS_OK;
    float *table = malloc(n * sizeof *table);
    TMS_REQUIRE(table, TAMIS_E_NO_MEMORY, "no host memory for a table of %" PRIu32 " channels",
                n_rot);
    tms_rotate_table(frequencies, n_rot, table);
    TMS_TRY(dev, dev->backend->alloc(dev, n * sizeof *table, &mem));
    TMS_TRY(dev, tms_plan_send(plan, (tms_ref){mem, 0}, table, n * sizeof *table));
    dev->backend->free(dev, plan->eviction.rotation);
    plan->eviction.rotation = mem;
    mem = NULL;
fail:
    dev->backend->free(dev, mem);
    free(table);
    return status;
}

tamis_status tamis_plan_bind_rotation(tamis_plan *plan, const double *frequencies, uint32_t n_rot,
                                      int adjacent, tamis_error *error) {
    tamis_status status =
        check_bind(plan, plan && plan->eviction.asked.rotation, "rotation", error);
    if (status != TAMIS_OK) return status;
    TMS_REQUIRE(frequencies, TAMIS_E_ARGUMENT, "frequencies is NULL");
    TMS_REQUIRE(n_rot > 0 && n_rot % 2 == 0 && n_rot <= plan->cache->params.head_dim,
                TAMIS_E_ARGUMENT, "n_rot %" PRIu32 " is not an even number up to %" PRIu32, n_rot,
                plan->cache->params.head_dim);
    for (uint32_t i = 0; i < n_rot / 2; i++)
        TMS_REQUIRE(isfinite(frequencies[i]), TAMIS_E_ARGUMENT, "frequency %" PRIu32 " is %g", i,
                    frequencies[i]);
    status = send_rotation(plan, frequencies, n_rot, error);
    if (status != TAMIS_OK) return status;
    plan->eviction.n_rot = n_rot;
    plan->eviction.pairing = adjacent ? TMS_PAIR_ADJACENT : TMS_PAIR_HALF;
    return TAMIS_OK;
}

tamis_status tamis_plan_bind_budgets(tamis_plan *plan, const uint32_t *budgets,
                                     tamis_error *error) {
    tamis_status status = check_bind(plan, plan && takes_budgets(plan->params.eviction.kind),
                                     "budgets of single heads", error);
    if (status != TAMIS_OK) return status;
    tms_plan_eviction *e = &plan->eviction;
    for (uint32_t lane = 0; budgets && lane < plan->cache->n_lanes; lane++) {
        tamis_eviction one = plan->params.eviction;
        one.budget = budgets[lane];
        TMS_REQUIRE(one.budget > 0, TAMIS_E_ARGUMENT, "the budget of lane %" PRIu32 " is 0", lane);
        status = tamis_eviction_check(&one, error);
        if (status != TAMIS_OK) return status;
    }
    e->has_bound = budgets != NULL;
    if (budgets) memcpy(e->bound, budgets, plan->cache->n_lanes * sizeof *budgets);
    return TAMIS_OK;
}

void tms_plan_trace_evict(tamis_plan *plan, tms_evict_trace trace, void *user) {
    tms_plan_eviction *e = &plan->eviction;
    uint64_t n = tms_plan_layers_at_once(plan) * plan->cache->params.n_kv_heads * e->stride;
    if (trace && !e->trace_scores) e->trace_scores = malloc(n * sizeof *e->trace_scores);
    e->trace = e->trace_scores ? trace : NULL;
    e->trace_user = user;
}
