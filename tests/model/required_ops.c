/* SPDX-License-Identifier: Apache-2.0 */
/* A backend that has the required ops alone runs a model under full and quest, in steps of few rows and
 * of many, and on forks; whatever needs another op is refused with its name. */
#include "host/backend.h"
#include "lib/core/core.h"
#include "tests/model/rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT = 150, TOKENS = 24, BUDGET = 96, CONTEXT = 256 };

static tms_backend bare;

/* The device goes on with the required ops of its backend. */
static void take_required(tms_device *dev) {
    bare = *dev->backend;
#define LACK(with, op) bare.op = NULL;
    TMS_COMPOSED_OPS(LACK, )
    TMS_OPTIONAL_OPS(LACK, )
    TMS_FUSED_OPS(LACK, )
#undef LACK
    dev->backend = &bare;
}

static void open_small(rig *r, bool required) {
    const tamis_context_params context = {.device = rig_device};
    char path[1024];
    *r = (rig){0};
    snprintf(path, sizeof path, "%s/needle.gguf", rig_data);
    RIG_OK(r, tamis_context_create(&context, &r->context, &r->error));
    if (required) take_required(r->context->dev);
    RIG_OK(r, tamis_model_load(r->context, path, NULL, &r->model, &r->error));
    tamis_cache_params cache = {.planes = TAMIS_PLANE_POSITIONS | TAMIS_PLANE_SCORES,
                                .capacity_tokens = 2 * CONTEXT};
    tamis_model_cache_shape(r->model, &cache);
    RIG_OK(r, tamis_cache_create(r->context, &cache, &r->cache, &r->error));
}

static tamis_plan_params plan_of(tamis_selection_kind kind) {
    tamis_plan_params plan = {.max_context = CONTEXT, .max_rows = 64, .max_sequences = 2};
    tamis_selection_default(kind, &plan.selection);
    plan.selection.budget = kind == TAMIS_SELECT_FULL ? 0 : BUDGET;
    return plan;
}

/* ---- A model --------------------------------------------------------------------------------- */

typedef struct answer {
    int32_t tokens[2][TOKENS];
    float *logits; /* behind the last token, of both sequences */
    uint32_t n_vocab;
} answer;

/* A prompt, a fork of it, and tokens of both. */
static answer answer_of(tamis_selection_kind kind, bool required) {
    rig r;
    answer out;
    int32_t text[PROMPT], next[2];
    open_small(&r, required);
    const tamis_plan_params plan = plan_of(kind);
    RIG_OK(&r, tamis_runner_create(r.model, r.cache, &plan, &r.runner, &r.error));
    out.n_vocab = tamis_model_describe(r.model)->n_vocab;
    out.logits = calloc(2 * (size_t)out.n_vocab, sizeof *out.logits);
    assert_non_null(out.logits);
    tamis_sequence ids[2] = {rig_add(&r)};
    rig_text(&r, text, PROMPT);
    RIG_OK(&r, tamis_runner_prefill(r.runner, ids[0], text, PROMPT, next, &r.error));
    RIG_OK(&r, tamis_cache_fork(r.cache, ids[0], &ids[1], &r.error));
    next[1] = text[7]; /* another way on */
    for (uint32_t i = 0; i < TOKENS; i++) {
        for (uint32_t s = 0; s < 2; s++)
            out.tokens[s][i] = next[s];
        RIG_OK(&r, tamis_runner_decode(r.runner, ids, 2, next, next, &r.error));
    }
    for (uint32_t s = 0; s < 2; s++)
        RIG_OK(&r, tamis_runner_logits(r.runner, s, out.logits + s * out.n_vocab, &r.error));
    rig_close(&r);
    return out;
}

/* The reference composes what it has no other way to do: the same bits. Else sums differ in order. */
static void runs_under(tamis_selection_kind kind) {
    answer whole = answer_of(kind, false), own = answer_of(kind, true);
    const double allowed = strcmp(rig_device, "reference") == 0 ? 0 : 2e-3;
    double most = 0;
    for (uint32_t i = 0; i < 2 * whole.n_vocab; i++)
        most = fmax(most, fabs((double)whole.logits[i] - own.logits[i]));
    if (!(most <= allowed)) fail_msg("logits differ by %g", most);
    assert_memory_equal(whole.tokens, own.tokens, sizeof whole.tokens);
    free(whole.logits);
    free(own.logits);
}

static void full_runs(void **state) {
    (void)state;
    runs_under(TAMIS_SELECT_FULL);
}

static void quest_runs(void **state) {
    (void)state;
    runs_under(TAMIS_SELECT_QUEST);
}

/* ---- What is refused ------------------------------------------------------------------------- */

static void refused(rig *r, const tamis_plan_params *params, const char *op) {
    tamis_plan *plan = NULL;
    char wanted[64];
    snprintf(wanted, sizeof wanted, "%s: backend %s has no such op", op, bare.name);
    RIG_REFUSED(r, TAMIS_E_UNSUPPORTED, wanted,
                tamis_plan_create(r->cache, params, &plan, &r->error));
    assert_null(plan);
}

static void plans_name_the_op_that_is_missing(void **state) {
    (void)state;
    static const struct {
        tamis_eviction_kind kind;
        const char *op;
    } evictions[] = {{TAMIS_EVICT_H2O, "observe"},         {TAMIS_EVICT_TOVA, "observe"},
                     {TAMIS_EVICT_SNAPKV, "scatter_rows"}, {TAMIS_EVICT_KNORM, "score_rows"},
                     {TAMIS_EVICT_STREAMING, "replace"},   {TAMIS_EVICT_CALLER, "compact"}};
    rig r;
    open_small(&r, true);
    tamis_plan_params params = plan_of(TAMIS_SELECT_ORACLE);
    refused(&r, &params, "page_mass");
    params = plan_of(TAMIS_SELECT_FULL);
    params.load_dtypes = 1u << TAMIS_F16;
    refused(&r, &params, "load_rows");
    params = plan_of(TAMIS_SELECT_FULL);
    params.flags = TAMIS_PLAN_ROW_MASSES;
    refused(&r, &params, "observe");
    for (size_t i = 0; i < sizeof evictions / sizeof *evictions; i++) {
        params = plan_of(TAMIS_SELECT_FULL);
        tamis_eviction_default(evictions[i].kind, &params.eviction);
        params.eviction.budget = BUDGET;
        if (evictions[i].kind != TAMIS_EVICT_STREAMING) params.eviction.every = 0;
        refused(&r, &params, evictions[i].op);
    }
    /* All the others, whatever they lack first. */
    for (int kind = TAMIS_EVICT_STREAMING; kind <= TAMIS_EVICT_KNORM; kind++) {
        params = plan_of(TAMIS_SELECT_QUEST);
        tamis_plan *plan = NULL;
        tamis_eviction_default((tamis_eviction_kind)kind, &params.eviction);
        params.eviction.budget = BUDGET;
        RIG_REFUSED(&r, TAMIS_E_UNSUPPORTED, "has no such op",
                    tamis_plan_create(r.cache, &params, &plan, &r.error));
    }
    rig_close(&r);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(full_runs), cmocka_unit_test(quest_runs),
                                       cmocka_unit_test(plans_name_the_op_that_is_missing)};
    if (!rig_arguments(argc, argv)) return 2;
    return cmocka_run_group_tests_name("required_ops", tests, NULL, NULL);
}
