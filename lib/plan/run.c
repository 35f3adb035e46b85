/* SPDX-License-Identifier: Apache-2.0 */
/* A layer of the open step: write its rows, then attend them over all pages or the selected ones.
 */
#include "lib/plan/plan.h"

#include <inttypes.h>

tamis_status tms_plan_start_stage(const tamis_plan *plan, tms_event **from) {
    *from = NULL;
    return plan->params.timing ? plan->dev->backend->event_record(plan->dev, true, from) : TAMIS_OK;
}

tamis_status tms_plan_stop_stage(const tamis_plan *plan, tms_event *from, tamis_status status,
                                 double *us) {
    if (!from) return status;
    tms_device *dev = plan->dev;
    tms_event *to = NULL;
    double elapsed = 0;
    if (status == TAMIS_OK) status = dev->backend->event_record(dev, true, &to);
    if (status == TAMIS_OK) status = dev->backend->event_elapsed(dev, from, to, &elapsed);
    *us += elapsed;
    if (to) dev->backend->event_free(dev, to);
    dev->backend->event_free(dev, from);
    return status;
}

/* Makes a call of the device as TMS_TRY does; its time goes to the stage `stage`. */
#define TIME(plan, stage, call)                                                                    \
    do {                                                                                           \
        tms_event *from_ = NULL;                                                                   \
        TMS_TRY((plan)->dev, tms_plan_start_stage((plan), &from_));                                \
        status = (call);                                                                           \
        TMS_TRY((plan)->dev, tms_plan_stop_stage((plan), from_, status, &(plan)->times.stage));    \
    } while (0)
/* The same for an op. */
#define RUN(plan, stage, op, params) TIME(plan, stage, tms_run_##op((plan)->dev, (params)))

static tamis_status check_layer(const tamis_plan *plan, uint32_t layer, tamis_error *error) {
    TMS_REQUIRE(plan, TAMIS_E_ARGUMENT, "plan is NULL");
    TMS_REQUIRE(plan->step.open, TAMIS_E_STATE, "the plan has no open step");
    TMS_REQUIRE(layer < plan->cache->params.n_layers, TAMIS_E_ARGUMENT,
                "layer %" PRIu32 " is not below %" PRIu32, layer, plan->cache->params.n_layers);
    return TAMIS_OK;
}

static tamis_status check_write(const tamis_plan *plan, const tamis_rows *k, const tamis_rows *v,
                                tms_write_rows *write, tamis_error *error) {
    const tamis_cache_params *p = &plan->cache->params;
    const tamis_context *context = plan->cache->context;
    uint64_t width = (uint64_t)p->n_kv_heads * p->head_dim;
    tamis_status status =
        tms_rows_check(context, k, "k", plan->step.n_rows, width, &write->k_stride, error);
    if (status == TAMIS_OK)
        status = tms_rows_check(context, v, "v", plan->step.n_rows, width, &write->v_stride, error);
    if (status != TAMIS_OK) return status;
    TMS_REQUIRE(k->dtype == v->dtype, TAMIS_E_ARGUMENT, "k is %s but v is %s",
                tamis_dtype_name(k->dtype), tamis_dtype_name(v->dtype));
    TMS_REQUIRE(k->dtype == TAMIS_F32 || k->dtype == p->dtype, TAMIS_E_ARGUMENT,
                "k and v are %s; a cache of %s takes that or f32", tamis_dtype_name(k->dtype),
                tamis_dtype_name(p->dtype));
    write->k = (tms_ref){k->buffer->mem, k->offset};
    write->v = (tms_ref){v->buffer->mem, v->offset};
    write->dtype = k->dtype;
    return TAMIS_OK;
}

static void count_written(tamis_plan *plan, uint32_t layer) {
    plan->step.layers[layer].begun = plan->step.layers[layer].written = true;
    plan->counters.rows_written += plan->step.n_rows;
    plan->counters.pages_bounded += plan->step.layers[layer].n_filled;
    plan->counters.tokens_replaced += plan->step.layers[layer].n_turns;
}

tamis_status tamis_plan_write(tamis_plan *plan, uint32_t layer, const tamis_rows *k,
                              const tamis_rows *v, tamis_error *error) {
    tamis_status status = check_layer(plan, layer, error);
    if (status != TAMIS_OK) return status;
    tms_step_layer *state = &plan->step.layers[layer];
    TMS_REQUIRE(!state->written, TAMIS_E_STATE,
                "layer %" PRIu32 " has been written in this step already", layer);
    tms_write_rows write = tms_plan_write_rows(plan, layer);
    status = check_write(plan, k, v, &write, error);
    if (status != TAMIS_OK) return status;
    tms_bounds bounds = tms_cache_bounds(plan->cache, layer);
    bounds.n = state->n_bounded;
    bounds.pages = (tms_ref){plan->step_tables,
                             (plan->step.at.filled + (uint64_t)state->filled) * sizeof(int32_t)};
    state->begun = true;
    if (state->n_turns > 0) TIME(plan, replace_us, tms_plan_make_slots(plan, layer));
    RUN(plan, write_us, write_rows, &write);
    if (bounds.n > 0) RUN(plan, bounds_us, bounds, &bounds);
    if (state->n_turns > 0) TIME(plan, bounds_us, tms_plan_rebound(plan, layer));
    if (plan->step.fixed) plan->serials[plan->step.n_rows] = plan->cache->bounds_serial;
    count_written(plan, layer);
fail:
    return status;
}

/* Whether the layer's rows go through lists; *path is the counter of rows that the answer feeds. */
static bool is_listed(tamis_plan *plan, uint32_t layer, uint64_t **path) {
    tamis_plan_counters *c = &plan->counters;
    uint32_t n = tms_pages_of(plan->cache, plan->step.layers[layer].max_visible);
    *path = &c->rows_selected;
    if (plan->step.exact)
        *path = &c->rows_exact;
    else if (!plan->reading.listed || layer < plan->params.selection.dense_layers)
        *path = &c->rows_full;
    else if (n <= plan->reading.k && !plan->step.fixed)
        *path = &c->rows_short;
    return *path == &c->rows_selected;
}

/* Bytes [first, end) from the first to the last element of rows that have been checked. */
typedef struct byte_range {
    uint64_t first, end;
} byte_range;

static byte_range range_of(const tamis_rows *rows, uint64_t n, uint64_t stride, uint64_t width) {
    return (byte_range){rows->offset, rows->offset + ((n - 1) * stride + width) * sizeof(float)};
}

static tamis_status check_attend(const tamis_plan *plan, const tamis_rows *q, const tamis_rows *out,
                                 tms_matrix *q_rows, tms_matrix *out_rows, tamis_error *error) {
    const tamis_context *context = plan->cache->context;
    const tamis_cache_params *p = &plan->cache->params;
    uint64_t width = (uint64_t)p->n_heads * p->head_dim;
    uint32_t n = plan->step.n_rows;
    tamis_status status = tms_rows_check(context, q, "q", n, width, &q_rows->stride, error);
    if (status == TAMIS_OK)
        status = tms_rows_check(context, out, "out", n, width, &out_rows->stride, error);
    if (status != TAMIS_OK) return status;
    TMS_REQUIRE(q->dtype == TAMIS_F32, TAMIS_E_ARGUMENT, "q is %s; it must be f32",
                tamis_dtype_name(q->dtype));
    TMS_REQUIRE(out->dtype == TAMIS_F32, TAMIS_E_ARGUMENT, "out is %s; it must be f32",
                tamis_dtype_name(out->dtype));
    byte_range from = range_of(q, n, q_rows->stride, width);
    byte_range to = range_of(out, n, out_rows->stride, width);
    TMS_REQUIRE(q->buffer != out->buffer || from.end <= to.first || to.end <= from.first,
                TAMIS_E_ARGUMENT,
                "q and out overlap: bytes %" PRIu64 " to %" PRIu64 " and %" PRIu64 " to %" PRIu64
                " of one buffer",
                from.first, from.end - 1, to.first, to.end - 1);
    q_rows->ref = (tms_ref){q->buffer->mem, q->offset};
    out_rows->ref = (tms_ref){out->buffer->mem, out->offset};
    return TAMIS_OK;
}

static void count_attended(tamis_plan *plan, uint32_t layer, bool listed, bool fused) {
    tms_step *step = &plan->step;
    tms_plan_count(plan, layer, listed, fused);
    step->attended = true;
    step->listed = listed;
    step->attended_layer = layer;
}

static tamis_status score(tamis_plan *plan, uint32_t layer, tms_sparse_attend *p,
                          tamis_error *error) {
    tamis_status status = TAMIS_OK;
    tms_page_mass mass = tms_plan_page_mass(plan, p);
    switch (plan->reading.scored) {
    case TMS_SCORE_NONE:
        break;
    case TMS_SCORE_BOUNDS:
        RUN(plan, score_us, score_pages, &p->score);
        break;
    case TMS_SCORE_MASS:
        RUN(plan, score_us, page_mass, &mass);
        break;
    case TMS_SCORE_RANDOM:
        TIME(plan, score_us, tms_plan_send_random(plan, layer, p));
        break;
    }
fail:
    return status;
}

/* Its two parts are timed apart where they are launched apart. Device's status. */
static tamis_status run_fused(tamis_plan *plan, tms_sparse_attend *p) {
    tms_device *dev = plan->dev;
    tms_event *from = NULL, *halfway = NULL;
    double selected = 0;
    tamis_status status = tms_plan_start_stage(plan, &from);
    if (status != TAMIS_OK) return status;
    if (from) p->halfway = &halfway;
    status = tms_run_sparse_attend(dev, p);
    p->halfway = NULL;
    if (status == TAMIS_OK && halfway)
        status = dev->backend->event_elapsed(dev, from, halfway, &selected);
    plan->times.fused_select_us += selected;
    if (halfway) dev->backend->event_free(dev, halfway);
    return tms_plan_stop_stage(plan, from, status, &plan->times.fused_us);
}

static tamis_status attend_listed(tamis_plan *plan, uint32_t layer, tms_sparse_attend *p,
                                  bool fused, tamis_error *error) {
    tamis_status status = TAMIS_OK;
    if (fused) return tms_forward(plan->dev, run_fused(plan, p), error);
    status = score(plan, layer, p, error);
    if (status != TAMIS_OK) return status;
    RUN(plan, select_us, select, &p->select);
    RUN(plan, attend_us, attend, &p->attend);
fail:
    return status;
}

tamis_status tamis_plan_attend(tamis_plan *plan, uint32_t layer, const tamis_rows *q,
                               const tamis_rows *out, tamis_error *error) {
    tamis_status status = check_layer(plan, layer, error);
    if (status != TAMIS_OK) return status;
    tms_step *step = &plan->step;
    TMS_REQUIRE(step->layers[layer].written, TAMIS_E_STATE,
                "layer %" PRIu32 " has not been written in this step", layer);
    TMS_REQUIRE(plan->eviction.asked.feed != TMS_FEED_SUM || !step->layers[layer].fed,
                TAMIS_E_STATE,
                "layer %" PRIu32 " has been attended in this step already: %s would count its rows "
                "twice",
                layer, tamis_eviction_name(plan->params.eviction.kind));
    tms_matrix q_rows, out_rows;
    status = check_attend(plan, q, out, &q_rows, &out_rows, error);
    if (status != TAMIS_OK) return status;
    uint64_t *path = NULL;
    bool listed = is_listed(plan, layer, &path), fused = false;
    tms_sparse_attend p = {.attend = tms_plan_attend_all(plan, layer)};
    if (listed) {
        p = tms_plan_attend_listed(plan, layer);
        p.score.q = q_rows;
    }
    p.attend.q = q_rows;
    p.attend.out = out_rows;
    step->attended = false;
    if (tms_plan_feeds(plan)) TIME(plan, observe_us, tms_plan_listen(plan, listed, &p.attend));
    if (listed) {
        fused = tms_plan_fuses(plan, &p);
        status = attend_listed(plan, layer, &p, fused, error);
        if (status != TAMIS_OK) return status;
    } else if (plan->eviction.asked.rotation) {
        TIME(plan, attend_us, tms_plan_attend_reindexed(plan, layer, &p.attend));
    } else {
        RUN(plan, attend_us, attend, &p.attend);
    }
    step->layers[layer].fed = plan->eviction.asked.feed != TMS_FEED_NONE;
    if (tms_plan_feeds(plan)) TIME(plan, observe_us, tms_plan_feed(plan, layer, &p.attend));
    step->layers[layer].attended = true;
    *path += step->n_rows;
    count_attended(plan, layer, listed, fused);
fail:
    return status;
}

/* Where the tables lie follows from the number of rows; what bounds hold is in their launch. */
static tamis_status check_replayed(const tamis_plan *plan, tamis_error *error) {
    const tms_step *step = &plan->step;
    TMS_REQUIRE(plan->params.fixed_launches, TAMIS_E_STATE,
                "the plan has no fixed_launches: a graph of one step does not serve another");
    TMS_REQUIRE(!step->exact, TAMIS_E_STATE, "the step is exact: it has no fixed launches");
    for (uint32_t layer = 0; layer < plan->cache->params.n_layers; layer++)
        TMS_REQUIRE(!step->layers[layer].written, TAMIS_E_STATE,
                    "layer %" PRIu32 " has been written in this step already", layer);
    TMS_REQUIRE(plan->serials[step->n_rows] != 0, TAMIS_E_STATE,
                "no step with %" PRIu32 " sequences was called layer by layer: no graph serves it",
                step->n_rows);
    TMS_REQUIRE(plan->serials[step->n_rows] == plan->cache->bounds_serial, TAMIS_E_STATE,
                "what bounds hold has changed since a step with %" PRIu32
                " sequences was called layer by layer: an older graph would compute the old ones",
                step->n_rows);
    return TAMIS_OK;
}

tamis_status tamis_plan_step_replayed(tamis_plan *plan, tamis_error *error) {
    tamis_status status = check_layer(plan, 0, error);
    if (status == TAMIS_OK) status = check_replayed(plan, error);
    if (status != TAMIS_OK) return status;
    for (uint32_t layer = 0; layer < plan->cache->params.n_layers; layer++) {
        uint64_t *path = NULL;
        bool listed = is_listed(plan, layer, &path);
        tms_sparse_attend p = tms_plan_attend_listed(plan, layer);
        *path += plan->step.n_rows;
        count_written(plan, layer);
        count_attended(plan, layer, listed, listed && tms_plan_fuses(plan, &p));
    }
    return TAMIS_OK;
}
