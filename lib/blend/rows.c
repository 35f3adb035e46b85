/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of a prompt: which are fresh, hits and exact, and which of them stay. */
#include "lib/blend/blend.h"

#include <math.h>

static void count_hits(tamis_blend *blend) {
    blend->n_hits = 0;
    for (uint32_t row = 0; row < blend->n_rows; row++)
        blend->n_hits += blend->kinds[row] == TMS_ROW_HIT;
}

void tms_blend_fill_rows(tamis_blend *blend) {
    for (uint32_t p = 0; p < blend->n_parts; p++) {
        const tms_part *part = &blend->parts[p];
        const tms_row_kind kind = !part->chunk  ? TMS_ROW_FRESH
                                  : part->exact ? TMS_ROW_EXACT
                                                : TMS_ROW_HIT;
        for (uint32_t row = part->first; row < part->first + part->n; row++)
            blend->kinds[row] = row + blend->tail < blend->n_rows ? kind : TMS_ROW_FRESH;
    }
    count_hits(blend);
    blend->asking =
        blend->selector->asks && !blend->everything && !blend->ranked && blend->n_hits > 0;
    blend->n_present = 0;
    for (uint32_t row = 0; row < blend->n_rows; row++)
        if (blend->kinds[row] != TMS_ROW_EXACT) blend->rows[blend->n_present++] = row;
    if (!tms_blend_checks(blend) && !blend->everything)
        blend->n_present = tms_blend_choose(blend, 0);
}

void tms_blend_make_fresh(tamis_blend *blend, const tms_part *part) {
    for (uint32_t row = part->first; row < part->first + part->n; row++)
        blend->kinds[row] = TMS_ROW_FRESH;
    count_hits(blend);
}

/* ---- Which layers ---------------------------------------------------------------------------- */

bool tms_blend_checks(const tamis_blend *blend) {
    return blend->checked && !blend->asking;
}

static bool in_schedule(const tamis_blend *blend, uint32_t layer) {
    const uint32_t n = tms_selector_shares(blend->selector) ? blend->params.n_shares : 1;
    return !blend->everything && !blend->asking && layer >= blend->from && layer - blend->from < n;
}

bool tms_blend_measures(const tamis_blend *blend, uint32_t layer) {
    const bool gated = blend->params.bound > 0 && layer == blend->from;
    return (blend->selector->measured || gated) && blend->n_hits > 0 && in_schedule(blend, layer);
}

bool tms_blend_selects(const tamis_blend *blend, uint32_t layer) {
    /* Without a check layer the first selection is before layer 0. */
    return in_schedule(blend, layer) && (tms_blend_checks(blend) || layer > 0);
}

bool tms_blend_gates(const tamis_blend *blend, uint32_t layer) {
    return blend->params.bound > 0 && layer == blend->from && tms_blend_measures(blend, layer);
}

/* ---- Choosing -------------------------------------------------------------------------------- */

/* How many of n candidates the layer's share is. */
static uint32_t budget(const tamis_blend *blend, uint32_t layer, uint32_t n) {
    const tamis_blend_params *p = &blend->params;
    uint32_t k = tms_share_of(blend->shares[layer - blend->from], blend->n_hits);
    if (k < p->least) k = p->least;
    if (p->most && k > p->most) k = p->most;
    return k < n ? k : n;
}

/* What ranks the hit at place i of the present rows. What is not a number ranks first. */
static float value_of(const tamis_blend *blend, uint32_t i) {
    const uint32_t row = blend->rows[i];
    if (blend->selector->measured) return blend->deviations[i];
    if (!blend->selector->asks) return blend->selector->value(&blend->params, row);
    return isnan(blend->masses[row]) ? INFINITY : (float)blend->masses[row];
}

/* The hits among the present rows that a share takes, ascending, at the front of the candidates. */
static uint32_t choose_share(tamis_blend *blend, uint32_t layer) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < blend->n_present; i++) {
        const uint32_t row = blend->rows[i];
        if (blend->kinds[row] != TMS_ROW_HIT) continue;
        blend->candidates[n++] = (tms_candidate){value_of(blend, i), row};
    }
    const uint32_t k = budget(blend, layer, n);
    tms_candidates_top(blend->candidates, n, k);
    return k;
}

/* The same where the selector says of each hit whether it takes it. */
static uint32_t choose_each(tamis_blend *blend) {
    uint32_t n = 0, p = 0;
    for (uint32_t i = 0; i < blend->n_present && blend->selector->takes; i++) {
        const uint32_t row = blend->rows[i];
        while (row >= blend->parts[p].first + blend->parts[p].n)
            p++;
        if (blend->kinds[row] == TMS_ROW_HIT &&
            blend->selector->takes(&blend->params, row, row - blend->parts[p].first))
            blend->candidates[n++] = (tms_candidate){0, row};
    }
    return n;
}

uint32_t tms_blend_choose(tamis_blend *blend, uint32_t layer) {
    const bool shares = tms_selector_shares(blend->selector);
    /* The question attends to hits that are all reused. */
    const uint32_t k = blend->asking ? 0 : shares ? choose_share(blend, layer) : choose_each(blend);
    uint32_t n = 0;
    for (uint32_t i = 0, next = 0; i < blend->n_present; i++) {
        const uint32_t row = blend->rows[i];
        const bool chosen = next < k && blend->candidates[next].row == row;
        next += chosen;
        if (!chosen && blend->kinds[row] == TMS_ROW_HIT) continue;
        blend->rows[n] = row;
        blend->places[n++] = i;
    }
    return n;
}

double tms_blend_left(const tamis_blend *blend, uint32_t n) {
    double left = 0, whole = 0;
    /* All rows but the exact ones have been measured. */
    for (uint32_t row = 0, i = 0, next = 0; row < blend->n_rows; row++) {
        if (blend->kinds[row] == TMS_ROW_EXACT) continue;
        const bool kept = next < n && blend->rows[next] == row;
        next += kept;
        if (blend->kinds[row] == TMS_ROW_HIT) {
            if (!kept) left += (double)blend->deviations[i];
            whole += (double)blend->norms[i];
        }
        i++;
    }
    if (left == 0) return 0;
    return isfinite(left) && isfinite(whole) ? sqrt(left / whole) : INFINITY;
}
