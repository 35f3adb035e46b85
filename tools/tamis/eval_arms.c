/* SPDX-License-Identifier: Apache-2.0 */
/* The arms of an evaluation: every selection with every budget and, for quest, every score. */
#include "eval.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS "0123456789"

/* Digits, with a point among them or without. */
static bool is_decimal(const char *text) {
    size_t whole = strspn(text, DIGITS), point = text[whole] == '.';
    size_t part = point ? strspn(text + whole + 1, DIGITS) : 0;
    return whole + part > 0 && text[whole + point + part] == '\0';
}

/* A decimal number above 0. */
static bool parse_width(const char *command, const char *text, float *out) {
    float width = is_decimal(text) ? strtof(text, NULL) : INFINITY;
    if (!isfinite(width)) {
        cli_fail(command, "--width %s: not a decimal number", text);
        return false;
    }
    if (width <= 0) {
        cli_fail(command, "--width %s: must be above 0", text);
        return false;
    }
    *out = width;
    return true;
}

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
        if (other->selection.kind == arm->selection.kind &&
            other->selection.budget == arm->selection.budget &&
            other->bounds.kind == arm->bounds.kind)
            return true;
    }
    return false;
}

/* Adds an arm unless it is there. */
static bool add_arm(const char *command, eval_arm arm, eval_arms *out) {
    if (is_listed(out, &arm)) return true;
    if (out->count == EVAL_ARMS_MAX) {
        cli_fail(command, "--select, --score and --budget: more than %d combinations",
                 EVAL_ARMS_MAX);
        return false;
    }
    arm.select = tamis_selection_name(arm.selection.kind);
    arm.score = score_name(&arm);
    out->arms[out->count++] = arm;
    return true;
}

/* A selection with bounds of one kind and every budget. */
static bool add_budgets(const char *command, const eval_arm_flags *flags, tamis_selection_kind kind,
                        tamis_bounds bounds, uint64_t seed, eval_arms *out) {
    for (uint32_t i = 0; i < flags->budgets.count; i++) {
        eval_arm arm = {.bounds = bounds};
        if (!cli_selection(command, kind, flags->budgets.values[i], &flags->selection,
                           cli_page_size(flags->page_size), &arm.selection))
            return false;
        if (kind == TAMIS_SELECT_RANDOM) arm.selection.seed = seed;
        if (!add_arm(command, arm, out)) return false;
    }
    return true;
}

/* Quest with every score and every budget. */
static bool add_quest(const char *command, const eval_arm_flags *flags, float width, uint64_t seed,
                      eval_arms *out) {
    for (uint32_t i = 0; i < flags->scores.count; i++) {
        tamis_bounds bounds = {.kind = (tamis_bounds_kind)flags->scores.values[i]};
        if (bounds.kind == TAMIS_BOUNDS_MEAN_STD) bounds.width = width;
        if (!add_budgets(command, flags, TAMIS_SELECT_QUEST, bounds, seed, out)) return false;
    }
    return true;
}

bool eval_list_arms(const char *command, const eval_arm_flags *flags, uint64_t seed,
                    eval_arms *out) {
    float width = 1;
    eval_arm full = {0};
    *out = (eval_arms){0};
    if (flags->width != NULL && !parse_width(command, flags->width, &width)) return false;
    tamis_selection_default(TAMIS_SELECT_FULL, &full.selection);
    if (!add_arm(command, full, out)) return false;
    for (uint32_t s = 0; s < flags->selections.count; s++) {
        tamis_selection_kind kind = (tamis_selection_kind)flags->selections.values[s];
        bool added = true;
        if (kind == TAMIS_SELECT_QUEST)
            added = add_quest(command, flags, width, seed, out);
        else if (kind != TAMIS_SELECT_FULL)
            added = add_budgets(command, flags, kind, (tamis_bounds){0}, seed, out);
        if (!added) return false;
    }
    return true;
}
