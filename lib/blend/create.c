/* SPDX-License-Identifier: Apache-2.0 */
/* Makes and destroys blends, and tells what they have done. */
#include "lib/blend/blend.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define ALL_FLAGS (TAMIS_BLEND_NO_THREAD | TAMIS_BLEND_TIMING)

/* ---- Checks ---------------------------------------------------------------------------------- */

/* Numbers that only some selectors have. */
static tamis_status check_fit(const tms_selector *selector, const tamis_blend_params *p,
                              tamis_error *error) {
    const bool shares = tms_selector_shares(selector);
    const struct {
        const char *name;
        double value;
        bool fits;
    } numbers[] = {{"share", p->share, shares},
                   {"n_shares", p->n_shares, shares},
                   {"schedule", p->schedule, shares},
                   {"least", p->least, shares},
                   {"most", p->most, shares},
                   {"bound", p->bound, !selector->everything},
                   {"first", p->first, p->selector == TAMIS_BLEND_FIRST},
                   {"n_rows", p->n_rows, p->selector == TAMIS_BLEND_LIST},
                   {"seed", (double)p->seed, p->selector == TAMIS_BLEND_RANDOM}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        TMS_REQUIRE(numbers[i].fits || numbers[i].value == 0, TAMIS_E_ARGUMENT,
                    "%s %g is given for selector %s, which has none", numbers[i].name,
                    numbers[i].value, selector->name);
    return TAMIS_OK;
}

static tamis_status check_shares(const tamis_blend_params *p, uint32_t n_layers, uint32_t from,
                                 tamis_error *error) {
    TMS_REQUIRE(p->schedule == TAMIS_BLEND_FALLING || p->schedule == TAMIS_BLEND_FLAT,
                TAMIS_E_ARGUMENT, "schedule is %d: there are 0 and 1", (int)p->schedule);
    TMS_REQUIRE(p->share >= 0 && p->share <= 1, TAMIS_E_ARGUMENT,
                "share is %g; it must be above 0 and at most 1", p->share);
    TMS_REQUIRE(p->most == 0 || p->least <= p->most, TAMIS_E_ARGUMENT,
                "least is %" PRIu32 ", most %" PRIu32, p->least, p->most);
    TMS_REQUIRE(p->bound >= 0, TAMIS_E_ARGUMENT, "bound is %g", p->bound);
    TMS_REQUIRE(p->shares || p->n_shares == 0, TAMIS_E_ARGUMENT, "shares is NULL for %" PRIu32,
                p->n_shares);
    if (!p->shares) return TAMIS_OK;
    TMS_REQUIRE(p->share == 0 && p->schedule == 0, TAMIS_E_ARGUMENT,
                "share %g and schedule %d are given beside a list of shares", p->share,
                (int)p->schedule);
    TMS_REQUIRE(p->n_shares > 0 && p->n_shares <= n_layers - from, TAMIS_E_ARGUMENT,
                "n_shares is %" PRIu32 " from layer %" PRIu32 " on; there are %" PRIu32 " layers",
                p->n_shares, from, n_layers);
    for (uint32_t i = 0; i < p->n_shares; i++) {
        TMS_REQUIRE(p->shares[i] > 0 && p->shares[i] <= 1, TAMIS_E_ARGUMENT,
                    "share %" PRIu32 " is %g; it must be above 0 and at most 1", i, p->shares[i]);
        TMS_REQUIRE(i == 0 || p->shares[i] <= p->shares[i - 1], TAMIS_E_ARGUMENT,
                    "share %" PRIu32 " is %g, above the one before, %g", i, p->shares[i],
                    p->shares[i - 1]);
    }
    return TAMIS_OK;
}

static tamis_status check_records(const tamis_blend_params *p, const tamis_plan_params *plan,
                                  tamis_error *error) {
    TMS_REQUIRE(p->sink || p->n_sink == 0, TAMIS_E_ARGUMENT, "sink is NULL for %" PRIu32 " tokens",
                p->n_sink);
    TMS_REQUIRE((unsigned)p->dtype < 32 && plan->load_dtypes >> p->dtype & 1, TAMIS_E_ARGUMENT,
                "dtype is %s, which is not in the plan's load_dtypes %" PRIu32,
                tamis_dtype_name(p->dtype), plan->load_dtypes);
    TMS_REQUIRE(p->rotation.table.buffer, TAMIS_E_ARGUMENT, "table is absent");
    return TAMIS_OK;
}

/* What cannot leave rows out of a step. */
static tamis_status check_eviction(const tamis_plan_params *plan, tamis_error *error) {
    const tamis_eviction *eviction = &plan->eviction;
    TMS_REQUIRE(!(eviction->options & TAMIS_EVICT_REINDEX), TAMIS_E_UNSUPPORTED,
                "a plan under reindexed %s cannot blend: its steps need all rows",
                tamis_eviction_name(eviction->kind));
    return TAMIS_OK;
}

static tamis_status check(tamis_blend *blend, const tamis_blend_params *p,
                          const tamis_plan_params *plan, tamis_error *error) {
    const uint32_t n_layers = blend->shape.n_layers;
    TMS_REQUIRE_RESERVED(p, tamis_blend_params);
    TMS_REQUIRE(!(p->flags & ~ALL_FLAGS), TAMIS_E_ARGUMENT, "flags 0x%" PRIx32 ": 0x%x are all",
                p->flags, ALL_FLAGS);
    blend->selector = tms_selector_find(p->selector);
    TMS_REQUIRE(blend->selector, TAMIS_E_ARGUMENT, "there is no selector %d", (int)p->selector);
    TMS_TRY(check_fit(blend->selector, p, error));
    if (blend->selector->check) TMS_TRY(blend->selector->check(p, error));
    blend->checked = p->check_layer != TAMIS_BLEND_NO_CHECK;
    blend->from = !blend->checked ? 0 : p->check_layer ? p->check_layer : 1;
    blend->everything = blend->selector->everything || p->share == 1 ||
                        (p->shares && p->n_shares && p->shares[p->n_shares - 1] == 1);
    TMS_REQUIRE(blend->from < n_layers || blend->selector->everything, TAMIS_E_ARGUMENT,
                "check_layer is %" PRIu32 "; there are %" PRIu32 " layers", blend->from, n_layers);
    TMS_TRY(check_shares(p, n_layers, blend->from, error));
    TMS_REQUIRE(
        !blend->selector->asks || blend->everything || plan->flags & TAMIS_PLAN_ROW_MASSES,
        TAMIS_E_ARGUMENT,
        "selector %s, but the plan was made without TAMIS_PLAN_ROW_MASSES: it weighs no rows",
        blend->selector->name);
    TMS_REQUIRE(blend->checked || p->bound == 0, TAMIS_E_ARGUMENT,
                "bound is %g, but check_layer is TAMIS_BLEND_NO_CHECK: nothing is measured",
                p->bound);
    if (blend->everything) return TAMIS_OK;
    TMS_TRY(check_records(p, plan, error));
    return check_eviction(plan, error);
}

/* ---- Parameters ------------------------------------------------------------------------------ */

/* A copy of n elements, or NULL for none; false without memory. */
static bool copy_of(const void *from, size_t n, size_t size, void *out) {
    void *copy = NULL;
    if (from && n > 0) {
        copy = malloc(n * size);
        if (!copy) return false;
        memcpy(copy, from, n * size);
    }
    memcpy(out, &copy, sizeof copy);
    return true;
}

/* The caller's buffers stay for as long as the blend needs them. */
static void hold_buffers(const tamis_blend *blend, void (*act)(tms_life *life)) {
    act(TMS_LIFE(blend->params.rotation.table.buffer));
    for (uint32_t i = 0; blend->k_norms && i < blend->shape.n_layers; i++)
        act(TMS_LIFE(blend->k_norms[i].buffer));
}

/* The schedule's shares in the place of a list. */
static bool fill_shares(tamis_blend *blend, const tamis_blend_params *p) {
    const double share = p->share == 0 ? TMS_DEFAULT_SHARE : p->share;
    const double falling[] = {1.5 * share, 1.25 * share, 1.1 * share, share};
    const bool flat = p->schedule == TAMIS_BLEND_FLAT;
    if (p->shares) return copy_of(p->shares, p->n_shares, sizeof *p->shares, &blend->shares);
    blend->params.n_shares = flat ? 1 : 4;
    if (!copy_of(flat ? &share : falling, flat ? 1 : 4, sizeof share, &blend->shares)) return false;
    for (uint32_t i = 0; i < blend->params.n_shares; i++)
        if (blend->shares[i] > 1) blend->shares[i] = 1;
    return true;
}

static tamis_status fill_params(tamis_blend *blend, const tamis_blend_params *p,
                                tamis_error *error) {
    blend->params = *p;
    const bool filled =
        fill_shares(blend, p) && copy_of(p->rows, p->n_rows, sizeof *p->rows, &blend->listed) &&
        copy_of(p->sink, p->n_sink, sizeof *p->sink, &blend->sink) &&
        copy_of(p->k_norms, blend->shape.n_layers, sizeof *p->k_norms, &blend->k_norms);
    blend->params.shares = blend->shares;
    blend->params.rows = blend->listed;
    blend->params.sink = blend->sink;
    blend->params.k_norms = blend->k_norms;
    memcpy(blend->model, p->fingerprint, sizeof blend->model);
    TMS_REQUIRE(filled, TAMIS_E_NO_MEMORY, "no memory for the parameters of a blend");
    hold_buffers(blend, tms_hold);
    blend->holds = true;
    return tamis_fingerprint_extend(p->fingerprint, p->sink, p->n_sink, blend->params.fingerprint,
                                    error);
}

/* ---- Create and destroy ---------------------------------------------------------------------- */

static tamis_status make_arrays(tamis_blend *blend, tamis_error *error) {
    const size_t n = blend->max_rows;
    blend->kinds = malloc(n * sizeof *blend->kinds);
    blend->rows = malloc(n * sizeof *blend->rows);
    blend->places = malloc(n * sizeof *blend->places);
    blend->deviations = malloc(n * sizeof *blend->deviations);
    blend->norms = blend->params.bound > 0 ? malloc(n * sizeof *blend->norms) : NULL;
    blend->candidates = malloc(n * sizeof *blend->candidates);
    blend->masses = blend->selector->asks ? calloc(n, sizeof *blend->masses) : NULL;
    blend->layers = calloc(blend->shape.n_layers, sizeof *blend->layers);
    TMS_REQUIRE(blend->kinds && blend->rows && blend->places && blend->deviations &&
                    blend->candidates && blend->layers &&
                    (blend->norms || blend->params.bound == 0) &&
                    (blend->masses || !blend->selector->asks),
                TAMIS_E_NO_MEMORY, "no memory for a blend of %zu rows", n);
    return TAMIS_OK;
}

static tamis_status make_buffers(tamis_blend *blend, tamis_error *error) {
    tamis_context *context = tamis_cache_context(blend->cache);
    if (blend->everything) return TAMIS_OK;
    if (!blend->selector->measured && blend->params.bound == 0) return TAMIS_OK;
    blend->norms_at = tms_divide_up(blend->max_rows * sizeof(float), 64) * 64;
    return tamis_buffer_create(context, 2 * blend->norms_at, &blend->deviation, error);
}

static tamis_status make(tamis_blend *blend, const tamis_blend_params *params, tamis_error *error) {
    tamis_plan_params plan;
    tamis_plan_get_params(blend->plan, &plan);
    tamis_cache_get_params(blend->cache, &blend->shape);
    blend->max_rows = plan.max_rows;
    blend->tail = plan.eviction.window ? plan.eviction.window : 1;
    TMS_TRY(check(blend, params, &plan, error));
    TMS_TRY(fill_params(blend, params, error));
    TMS_TRY(make_arrays(blend, error));
    return make_buffers(blend, error);
}

static void end(tms_life *life) {
    tamis_blend *b = (tamis_blend *)life;
    if (b->holds) hold_buffers(b, tms_let_go);
    tms_loader_free(&b->loader);
    tms_ring_free(&b->ring);
    tamis_buffer_destroy(&b->deviation);
    void *const memory[] = {b->shares, b->listed, b->sink,       b->k_norms, b->kinds,
                            b->rows,   b->places, b->deviations, b->norms,   b->candidates,
                            b->masses, b->layers, b->reads};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        free(memory[i]);
    free(b);
}

tamis_status tamis_blend_create(tamis_plan *plan, tamis_store *store,
                                const tamis_blend_params *params, tamis_blend **out,
                                tamis_error *error) {
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out is NULL");
    *out = NULL;
    TMS_ENTER(plan);
    TMS_REQUIRE(plan, TAMIS_E_ARGUMENT, "plan is NULL");
    TMS_REQUIRE(store, TAMIS_E_ARGUMENT, "store is NULL");
    TMS_REQUIRE(params, TAMIS_E_ARGUMENT, "params is NULL");
    tamis_blend *blend = calloc(1, sizeof *blend);
    TMS_REQUIRE(blend, TAMIS_E_NO_MEMORY, "no memory for a blend");
    blend->plan = plan;
    blend->store = store;
    blend->cache = tamis_plan_cache(plan);
    blend->ring.context = tamis_cache_context(blend->cache);
    tamis_status status =
        tms_loader_init(&blend->loader, params->reader, params->reader_user, error);
    if (status != TAMIS_OK) {
        free(blend);
        return status;
    }
    tms_life_begin(&blend->life, "blend", TMS_LIFE(plan), TMS_LIFE(store), end);
    status = make(blend, params, error);
    if (status != TAMIS_OK) tamis_blend_destroy(&blend);
    *out = blend;
    return status;
}

static void cancel(tms_life *life) {
    tms_blend_cancel((tamis_blend *)life);
}

void tamis_blend_destroy(tamis_blend **blend) {
    if (!blend || !*blend) return;
    tms_life_close(&(*blend)->life, cancel);
    *blend = NULL;
}

tamis_plan *tamis_blend_plan(const tamis_blend *blend) {
    return blend ? blend->plan : NULL;
}

void tamis_blend_get_stats(const tamis_blend *blend, tamis_blend_stats *out) {
    TMS_ENTER_WAITING(blend);
    if (blend && out) *out = blend->stats;
}

tamis_status tamis_blend_get_layer_stats(const tamis_blend *blend, uint32_t layer,
                                         tamis_blend_layer_stats *out, tamis_error *error) {
    TMS_ENTER(blend);
    TMS_REQUIRE(blend, TAMIS_E_ARGUMENT, "blend is NULL");
    TMS_REQUIRE(out, TAMIS_E_ARGUMENT, "out is NULL");
    TMS_REQUIRE(layer < blend->shape.n_layers, TAMIS_E_ARGUMENT,
                "layer %" PRIu32 " is not below %" PRIu32, layer, blend->shape.n_layers);
    *out = blend->layers[layer];
    return TAMIS_OK;
}
