/* SPDX-License-Identifier: Apache-2.0 */
/* The arms of an evaluation: every selection with every budget and, for quest, every score;
 * evictions with their budgets. */
#include "eval/eval.h"

#include <math.h>
#include <string.h>

static const char *score_name(const eval_arm *arm) {
    switch (arm->selection.kind) {
    case TAMIS_SELECT_QUEST:
        return tamis_bounds_name(arm->bounds.kind);
    case TAMIS_SELECT_ORACLE:
        return "mass";
    case TAMIS_SELECT_RANDOM:
        return "random";
    default:
        return "-";
    }
}

static bool is_listed(const eval_arms *arms, const eval_arm *arm) {
    for (uint32_t i = 0; i < arms->count; i++) {
        const eval_arm *other = &arms->arms[i];
        if (strcmp(other->select.text, arm->select.text) == 0 &&
            other->selection.budget == arm->selection.budget &&
            other->bounds.kind == arm->bounds.kind &&
            other->eviction.budget == arm->eviction.budget)
            return true;
    }
    return false;
}

/* Adds an arm of that name unless it is there. */
static bool add_arm(const char *command, const char *name, eval_arm arm, eval_arms *out) {
    snprintf(arm.select.text, sizeof(arm.select.text), "%s", name);
    if (is_listed(out, &arm)) return true;
    if (out->count == EVAL_ARMS_MAX) {
        cli_fail(command, "--select, --score, --evict and budgets: more than %d combinations",
                 EVAL_ARMS_MAX);
        return false;
    }
    arm.score = score_name(&arm);
    out->arms[out->count++] = arm;
    return true;
}

/* A selection with bounds of one kind and every budget. */
static bool add_budgets(const char *command, const eval_arm_flags *flags, uint32_t selection,
                        tamis_bounds bounds, uint64_t seed, eval_arms *out) {
    for (uint32_t i = 0; i < flags->budgets.count; i++) {
        eval_arm arm = {.bounds = bounds};
        if (!cli_selection(command, selection, flags->budgets.values[i], &flags->selection,
                           cli_page_size(flags->page_size), &arm.selection))
            return false;
        if (selection == TAMIS_SELECT_RANDOM) arm.selection.seed = seed;
        if (!add_arm(command, cli_selection_name(selection), arm, out)) return false;
    }
    return true;
}

/* Quest with every score and every budget. */
static bool add_quest(const char *command, const eval_arm_flags *flags, uint32_t selection,
                      float width, uint64_t seed, eval_arms *out) {
    const cli_list by_default = {1, {cli_selection_bounds(selection)}};
    const cli_list *scores = flags->scores.count > 0 ? &flags->scores : &by_default;
    for (uint32_t i = 0; i < scores->count; i++) {
        tamis_bounds bounds = {.kind = (tamis_bounds_kind)scores->values[i]};
        if (bounds.kind == TAMIS_BOUNDS_MEAN_STD) bounds.width = width;
        if (!add_budgets(command, flags, selection, bounds, seed, out)) return false;
    }
    return true;
}

/* Whether --score and --width, if given, have an effect. */
static bool check_scores(const char *command, const eval_arm_flags *flags) {
    bool quest = false, meanstd = false;
    for (uint32_t i = 0; i < flags->selections.count; i++) {
        const uint32_t selection = flags->selections.values[i];
        if (cli_selection_kind(selection) != TAMIS_SELECT_QUEST) continue;
        quest = true;
        meanstd |=
            flags->scores.count == 0 && cli_selection_bounds(selection) == TAMIS_BOUNDS_MEAN_STD;
    }
    for (uint32_t i = 0; i < flags->scores.count; i++)
        meanstd |= flags->scores.values[i] == TAMIS_BOUNDS_MEAN_STD;
    if (flags->scores.count > 0 && !quest)
        cli_fail(command, "--score: is given without quest, which alone has one (see --select)");
    else if (flags->width != NULL && !(quest && meanstd))
        cli_fail(command, "--width: is given without meanstd's bounds (see --score)");
    else
        return true;
    return false;
}

bool eval_check_arms(const char *command, eval_arm_flags *flags, uint32_t budget) {
    uint32_t values[CLI_EVICTIONS_MAX];
    const bool evicts = cli_list_evictions(&flags->evictions, values) > 0;
    const bool of_evictions = evicts && flags->evict_budgets.count == 0;
    if (!cli_check_selections(command, &flags->selections,
                              flags->budgets.count > 0 && !of_evictions, &flags->selection))
        return false;
    if (!evicts &&
        !cli_check_no_eviction(command, flags->evict_budgets.count > 0, &flags->eviction))
        return false;
    if (flags->budgets.count == 0) flags->budgets = (cli_list){1, {budget}};
    return check_scores(command, flags);
}

bool eval_list_evictions(const char *command, const eval_arm_flags *flags, eval_arms *out) {
    const cli_list *budgets =
        flags->evict_budgets.count > 0 ? &flags->evict_budgets : &flags->budgets;
    uint32_t values[CLI_EVICTIONS_MAX], count = cli_list_evictions(&flags->evictions, values);
    for (uint32_t v = 0; v < count; v++)
        for (uint32_t b = 0; b < budgets->count; b++) {
            eval_arm arm = {0};
            tamis_selection_default(TAMIS_SELECT_FULL, &arm.selection);
            if (!cli_eviction(command, values[v], budgets->values[b], &flags->eviction, count > 1,
                              &arm.eviction) ||
                !add_arm(command, cli_eviction_name(&arm.eviction).text, arm, out))
                return false;
        }
    return true;
}

uint32_t eval_most_kept(const eval_arms *arms, uint32_t length) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < arms->count; i++) {
        const tamis_eviction *e = &arms->arms[i].eviction;
        if (e->kind == TAMIS_EVICT_NONE) continue;
        /* Some options keep more than the budget in all. */
        bool more = e->options & (TAMIS_EVICT_REFERENCE_SCHEDULE | TAMIS_EVICT_BLEND |
                                  TAMIS_EVICT_BUDGET_BESIDE_KEPT | TAMIS_EVICT_BUDGET_CHUNKS);
        uint32_t kept = more || e->budget > length ? length : e->budget;
        most = kept > most ? kept : most;
    }
    return most;
}

bool eval_list_arms(const char *command, const eval_arm_flags *flags, uint64_t seed,
                    eval_arms *out) {
    float width = 1;
    eval_arm full = {0};
    *out = (eval_arms){.bounds_dtype = (tamis_bounds_dtype)flags->bounds_dtype};
    if (flags->width != NULL &&
        !cli_decimal(command, "--width", flags->width, (cli_range){0, INFINITY, true}, &width))
        return false;
    tamis_selection_default(TAMIS_SELECT_FULL, &full.selection);
    if (!add_arm(command, cli_selection_name(TAMIS_SELECT_FULL), full, out)) return false;
    for (uint32_t s = 0; s < flags->selections.count; s++) {
        const uint32_t selection = flags->selections.values[s];
        bool added = true;
        if (cli_selection_kind(selection) == TAMIS_SELECT_QUEST)
            added = add_quest(command, flags, selection, width, seed, out);
        else if (selection != TAMIS_SELECT_FULL)
            added = add_budgets(command, flags, selection, (tamis_bounds){0}, seed, out);
        if (!added) return false;
    }
    return eval_list_evictions(command, flags, out);
}
