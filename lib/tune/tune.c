/* SPDX-License-Identifier: Apache-2.0 */
/* tamis_context_tune: which way of reading rows attends fastest, measured within a given time on a
 * cache made for it. */
#include "lib/core/core.h"
#include <tamis/plan.h>
#include <tamis/settings.h>

#include <stdlib.h>
#include <string.h>

#define DEFAULT_SECONDS 2.0
#define SECONDS_MOST    3600.0
#define KV_BYTES        (128ull << 20) /* of all layers: more than the caches of most processors */
#define LEAST_TOKENS    4096u
#define MOST_TOKENS     8192u
#define BUDGET_SHARE    4u /* quest reads one of so many tokens */
#define FILL_ROWS       512u
#define PAIRS           3u   /* samples of either way in a race */
#define FASTER          0.97 /* times what was: less is noise */

/* A way of reading rows: values of settings. */
enum { MOST_SETTINGS = 3, MOST_WAYS = 6 };
typedef struct way {
    uint32_t value[MOST_SETTINGS];
} way;

/* The settings that are searched, and the ways in the order in which they are tried: those that differ
 * most between processors come first. */
typedef struct space {
    uint32_t n_settings, n_ways;
    tamis_setting settings[MOST_SETTINGS];
    way ways[MOST_WAYS];
} space;
static const space of_cpus = {
    3,
    6,
    {TAMIS_SETTING_FETCH_ROWS, TAMIS_SETTING_FETCH_LEVEL, TAMIS_SETTING_FETCH_NEAR},
    {{{16, 2, 0}}, {{4, 1, 0}}, {{16, 1, 0}}, {{16, 1, 4}}, {{1, 1, 0}}, {{0, 1, 0}}}};
static const space of_gpus = {1, 3, {TAMIS_SETTING_KEYS_AHEAD}, {{{2}}, {{1}}, {{4}}}};

/* What is measured: a filled cache and a plan that attends one more token of its sequence. */
typedef struct rig {
    tamis_context *context;
    tamis_setting_class of;
    const space *space;
    tamis_cache_params shape;
    uint32_t tokens;
    tamis_cache *cache;
    tamis_plan *plan;
    tamis_sequence sequence;
    tamis_buffer *rows, *out;
} rig;

/* ---- The rig --------------------------------------------------------------------------------- */

/* Tokens and layers that together have KV_BYTES of K and V, or a little more. The cache checks the
 * shape. */
static tamis_status measure_shape(rig *r, tamis_error *error) {
    tamis_cache_params *p = &r->shape;
    tamis_cache_size size;
    p->n_layers = 1;
    p->planes = 0;
    p->capacity_bytes = 0;
    p->capacity_tokens = LEAST_TOKENS;
    TMS_TRY(tamis_cache_measure(r->context, p, &size, error));
    const uint64_t bytes = size.pages * size.page_bytes / LEAST_TOKENS; /* a token */
    p->n_layers = (uint32_t)((KV_BYTES - 1) / (MOST_TOKENS * bytes)) + 1;
    r->tokens = (uint32_t)((KV_BYTES - 1) / (p->n_layers * bytes)) + 1;
    if (r->tokens < LEAST_TOKENS) r->tokens = LEAST_TOKENS;
    p->capacity_tokens = r->tokens;
    r->of.dtype = p->dtype;
    r->of.group = p->n_heads / p->n_kv_heads;
    return TAMIS_OK;
}

/* Whether its launches depend on settings: of CPUs those of the CPU forms do, which take these shapes. */
static bool has_settings(const rig *r) {
    const tamis_cache_params *p = &r->shape;
    if (!tms_settings_used_by(tms_device_info(r->context->dev), r->of.op)) return false;
    return r->of.op == TAMIS_SETTING_OF_GPU_ATTEND ||
           ((p->page_size == 0 || p->page_size == 16) &&
            (p->head_dim == 64 || p->head_dim == 128 || p->head_dim == 256 || p->head_dim == 512) &&
            r->of.group <= 16);
}

/* Rows of noise in [-1, 1), one for each of FILL_ROWS tokens of a layer or for one token's queries. */
static tamis_status create_rows(rig *r, tamis_error *error) {
    const tamis_cache_params *p = &r->shape;
    const uint64_t kv = (uint64_t)FILL_ROWS * p->n_kv_heads * p->head_dim,
                   q = (uint64_t)p->n_heads * p->head_dim, n = kv > q ? kv : q;
    float *noise = malloc(n * sizeof *noise);
    TMS_REQUIRE(noise, TAMIS_E_NO_MEMORY, "no host memory for rows to tune with");
    uint32_t random = 1;
    for (uint64_t i = 0; i < n; i++) {
        random = random * 1664525u + 1013904223u;
        noise[i] = (float)(random >> 8) / 0x1p23f - 1;
    }
    tamis_status status = tamis_buffer_create(r->context, n * sizeof *noise, &r->rows, error);
    if (status == TAMIS_OK)
        status = tamis_buffer_write(r->rows, 0, noise, n * sizeof *noise, error);
    free(noise);
    if (status != TAMIS_OK) return status;
    return tamis_buffer_create(r->context, q * sizeof *noise, &r->out, error);
}

static tamis_status write_layers(const rig *r, tamis_error *error) {
    const tamis_rows rows = {.buffer = r->rows};
    for (uint32_t layer = 0; layer < r->shape.n_layers; layer++)
        TMS_TRY(tamis_plan_write(r->plan, layer, &rows, &rows, error));
    return TAMIS_OK;
}

/* All tokens but one. */
static tamis_status fill(rig *r, tamis_error *error) {
    for (uint32_t left = r->tokens - 1; left > 0;) {
        const uint32_t n = left < FILL_ROWS ? left : FILL_ROWS;
        const tamis_step step = {.sequences = &r->sequence, .rows = &n, .count = 1, .exact = 1};
        TMS_TRY(tamis_plan_step_begin(r->plan, &step, error));
        TMS_TRY(write_layers(r, error));
        TMS_TRY(tamis_plan_step_end(r->plan, error));
        left -= n;
    }
    return TAMIS_OK;
}

static tamis_status create(rig *r, tamis_error *error) {
    tamis_plan_params plan = {.max_rows = FILL_ROWS, .max_context = r->tokens};
    const bool sparse = r->of.op == TAMIS_SETTING_OF_SPARSE;
    tamis_selection_default(sparse ? TAMIS_SELECT_QUEST : TAMIS_SELECT_FULL, &plan.selection);
    if (sparse) plan.selection.budget = r->tokens / BUDGET_SHARE;
    TMS_TRY(create_rows(r, error));
    TMS_TRY(tamis_cache_create(r->context, &r->shape, &r->cache, error));
    TMS_TRY(tamis_plan_create(r->cache, &plan, &r->plan, error));
    TMS_TRY(tamis_cache_add(r->cache, &r->sequence, error));
    return fill(r, error);
}

static void destroy(rig *r) {
    tamis_plan_destroy(&r->plan);
    tamis_cache_destroy(&r->cache);
    tamis_buffer_destroy(&r->out);
    tamis_buffer_destroy(&r->rows);
}

/* ---- Samples --------------------------------------------------------------------------------- */

static tamis_status get(const rig *r, way *out, tamis_error *error) {
    *out = (way){{0}};
    for (uint32_t i = 0; i < r->space->n_settings; i++)
        TMS_TRY(tamis_context_get_setting(r->context, &r->of, r->space->settings[i], &out->value[i],
                                          error));
    return TAMIS_OK;
}

static tamis_status set(const rig *r, const way *to, tamis_error *error) {
    for (uint32_t i = 0; i < r->space->n_settings; i++)
        TMS_TRY(tamis_context_set_setting(r->context, &r->of, r->space->settings[i], to->value[i],
                                          error));
    return TAMIS_OK;
}

static tamis_status attend_layers(const rig *r, double *us, tamis_error *error) {
    const tamis_rows q = {.buffer = r->rows}, out = {.buffer = r->out};
    TMS_TRY(write_layers(r, error));
    TMS_TRY(tamis_context_wait(r->context, error));
    const double begun = tms_now_us();
    for (uint32_t layer = 0; layer < r->shape.n_layers; layer++)
        TMS_TRY(tamis_plan_attend(r->plan, layer, &q, &out, error));
    TMS_TRY(tamis_context_wait(r->context, error));
    *us = (tms_now_us() - begun) / r->shape.n_layers;
    return TAMIS_OK;
}

/* The time of one layer's attention of one more token, which is taken away again. */
static tamis_status sample(const rig *r, const way *by, double *us, tamis_error *error) {
    const tamis_step step = {.sequences = &r->sequence, .count = 1};
    TMS_TRY(set(r, by, error));
    TMS_TRY(tamis_plan_step_begin(r->plan, &step, error));
    TMS_TRY(attend_layers(r, us, error));
    return tamis_plan_step_cancel(r->plan, error);
}

/* Medians of samples of two ways in turn. Their kernels have been built. */
static tamis_status race(const rig *r, const way *a, const way *b, double *a_us, double *b_us,
                         tamis_error *error) {
    double us[2][PAIRS];
    for (uint32_t i = 0; i < PAIRS; i++) {
        TMS_TRY(sample(r, a, &us[0][i], error));
        TMS_TRY(sample(r, b, &us[1][i], error));
    }
    *a_us = tms_median(us[0], PAIRS);
    *b_us = tms_median(us[1], PAIRS);
    return TAMIS_OK;
}

/* ---- The search ------------------------------------------------------------------------------ */

/* The fastest of `before` and of the ways that there is time for. */
static tamis_status search(const rig *r, const way *before, way *best, double seconds,
                           tamis_tune_result *found, tamis_error *error) {
    double us, begun = tms_now_us();
    const double end = begun + 1e6 * seconds;
    *best = *before;
    TMS_TRY(sample(r, before, &us, error));
    double took = tms_now_us() - begun;
    found->tried = 1;
    for (uint32_t i = 0; i < r->space->n_ways; i++) {
        const way *other = &r->space->ways[i];
        double best_us, other_us;
        if (memcmp(other, before, sizeof *before) == 0) continue;
        begun = tms_now_us();
        if (begun + took > end) break;
        TMS_TRY(sample(r, other, &us, error)); /* builds its kernel */
        TMS_TRY(race(r, best, other, &best_us, &other_us, error));
        if (other_us < FASTER * best_us) *best = *other;
        took = tms_now_us() - begun;
        found->tried++;
    }
    return race(r, before, best, &found->before_us, &found->after_us, error);
}

/* Leaves the settings as they are to be. */
static tamis_status tune(rig *r, double seconds, tamis_tune_result *found, tamis_error *error) {
    way before, best;
    TMS_TRY(get(r, &before, error));
    tamis_status status = create(r, error);
    if (status == TAMIS_OK) status = search(r, &before, &best, seconds, found, error);
    if (status != TAMIS_OK || memcmp(&best, &before, sizeof best) == 0 ||
        found->after_us > FASTER * found->before_us) {
        best = before;
        found->after_us = found->before_us;
    }
    const tamis_status kept = set(r, &best, status == TAMIS_OK ? error : NULL);
    return status == TAMIS_OK ? kept : status;
}

static tamis_status check(const tamis_context *context, const tamis_tune_params *params,
                          tamis_error *error) {
    TMS_REQUIRE(context, TAMIS_E_ARGUMENT, "context: NULL");
    TMS_REQUIRE(params, TAMIS_E_ARGUMENT, "params: NULL");
    TMS_REQUIRE_RESERVED(params, tamis_tune_params);
    TMS_REQUIRE(tamis_setting_op_name((uint32_t)params->op), TAMIS_E_ARGUMENT,
                "op %d: known are 0 to 2", (int)params->op);
    TMS_REQUIRE(params->seconds >= 0 && params->seconds <= SECONDS_MOST, TAMIS_E_ARGUMENT,
                "seconds %g: 0 to %g", params->seconds, SECONDS_MOST);
    return TAMIS_OK;
}

tamis_status tamis_context_tune(tamis_context *context, const tamis_tune_params *params,
                                tamis_tune_result *result, tamis_error *error) {
    TMS_ENTER(context);
    tamis_tune_result found = {0};
    bool known = false;
    TMS_TRY(check(context, params, error));
    rig r = {.context = context, .of.op = params->op, .shape = params->cache};
    r.space = params->op == TAMIS_SETTING_OF_GPU_ATTEND ? &of_gpus : &of_cpus;
    TMS_TRY(measure_shape(&r, error));
    if (!params->always) TMS_TRY(tms_settings_known(context, &known, error));
    if (has_settings(&r) && !known) {
        const double seconds = params->seconds > 0 ? params->seconds : DEFAULT_SECONDS;
        const tamis_status status = tune(&r, seconds, &found, error);
        destroy(&r);
        if (status != TAMIS_OK) return status;
    }
    if (result) *result = found;
    return TAMIS_OK;
}
