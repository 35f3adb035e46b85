/* SPDX-License-Identifier: Apache-2.0 */
/* A model with a cache, and a runner over it for each arm. */
#include "eval/eval.h"

/* Arm 0 and evictions take prompts in chunks; the others decode only. */
static tamis_status make_runners(eval_rig *rig, uint32_t context, tamis_error *error) {
    for (uint32_t i = 0; i < rig->arms->count; i++) {
        const eval_arm *arm = &rig->arms->arms[i];
        bool prefills = i == 0 || eval_arm_evicts(arm);
        const tamis_plan_params params = {.selection = arm->selection,
                                          .max_context = context,
                                          .max_sequences = rig->max_sequences,
                                          .max_rows = prefills ? 0 : rig->max_sequences,
                                          .flags = rig->arms->timing ? TAMIS_PLAN_TIMING : 0,
                                          .eviction = arm->eviction};
        tamis_status status =
            tamis_runner_create(rig->model, rig->cache, &params, &rig->runners[i], error);
        if (status != TAMIS_OK) return status;
    }
    return TAMIS_OK;
}

int eval_rig_open(eval_rig *rig, const char *command, const char *device, const char *model,
                  tamis_dtype dtype, uint32_t page_size, const eval_arms *arms, uint64_t tokens,
                  uint32_t context, uint32_t max_sequences) {
    tamis_error error = {0};
    tamis_cache_params cache = {.page_size = page_size,
                                .dtype = dtype,
                                .capacity_tokens = tokens,
                                .bounds = arms->arms[0].bounds,
                                .bounds_dtype = arms->bounds_dtype};
    for (uint32_t i = 0; i < arms->count; i++)
        cache.planes |= tamis_eviction_planes(&arms->arms[i].eviction);
    *rig = (eval_rig){.arms = arms, .max_sequences = max_sequences};
    tamis_status status = cli_open(device, &rig->context, &error);
    if (status == TAMIS_OK) status = cli_load(rig->context, model, &rig->model, &error);
    if (status == TAMIS_OK) {
        uint32_t stated = tamis_model_describe(rig->model)->context;
        if (context > stated)
            status = cli_error(&error, TAMIS_E_ARGUMENT,
                               "a text takes up to %u tokens with what follows it; the model "
                               "states a context of %u",
                               context, stated);
    }
    tamis_model_cache_shape(rig->model, &cache);
    if (status == TAMIS_OK) status = tamis_cache_create(rig->context, &cache, &rig->cache, &error);
    if (status == TAMIS_OK) status = make_runners(rig, context, &error);
    return status == TAMIS_OK ? CLI_OK : cli_fail(command, "%s", error.text);
}

void eval_rig_close(eval_rig *rig) {
    for (uint32_t i = 0; i < EVAL_ARMS_MAX; i++)
        tamis_runner_destroy(&rig->runners[i]);
    tamis_cache_destroy(&rig->cache);
    tamis_model_destroy(&rig->model);
    tamis_context_destroy(&rig->context);
}

static float width_in_force(const tamis_bounds *bounds) {
    if (bounds->kind != TAMIS_BOUNDS_MEAN_STD) return 0;
    return bounds->width > 0 ? bounds->width : 1;
}

tamis_status eval_rig_bounds(eval_rig *rig, uint32_t arm, tamis_error *error) {
    const tamis_bounds *want = &rig->arms->arms[arm].bounds;
    tamis_bounds have = {0};
    if (rig->arms->arms[arm].selection.kind != TAMIS_SELECT_QUEST) return TAMIS_OK;
    tamis_cache_get_bounds(rig->cache, &have);
    if (have.kind == want->kind && width_in_force(&have) == width_in_force(want)) return TAMIS_OK;
    return tamis_cache_set_bounds(rig->cache, want, error);
}

uint32_t eval_own_tokens(const tamis_eviction *e, uint32_t count) {
    const uint32_t least = e->window > 0 ? e->window : 1;
    if (tamis_eviction_planes(e) & TAMIS_PLANE_SCORES) return count;
    return least < count ? least : count;
}

tamis_status eval_rig_evict(eval_rig *rig, uint32_t arm, tamis_sequence reading,
                            const int32_t *tokens, uint32_t count, tamis_sequence *out,
                            tamis_error *error) {
    const eval_arm *a = &rig->arms->arms[arm];
    const uint32_t shared = count - eval_own_tokens(&a->eviction, count);
    tamis_error reason = {0};
    tamis_status status = tamis_cache_fork(rig->cache, reading, out, &reason);
    if (status == TAMIS_OK) status = tamis_cache_truncate(rig->cache, *out, shared, &reason);
    if (status == TAMIS_OK)
        status = tamis_runner_prefill(rig->runners[arm], *out, tokens + shared, count - shared,
                                      NULL, &reason);
    if (status == TAMIS_OK) return status;
    return cli_error(error, status, "%s, budget %u: %s", a->select.text, a->eviction.budget,
                     reason.text);
}
