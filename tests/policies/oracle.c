/* SPDX-License-Identifier: Apache-2.0 */
/* An independent answer in double precision to what a step attends and selects. */
#include "tests/policies/oracle.h"
#include "lib/select/select.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct candidate {
    uint32_t ordinal;
    double score, slack; /* slack: what fp32 sums may differ by */
} candidate;

/* ---- q8, k8v4 and q4 ------------------------------------------------------------------------- */

#define Q8_BLOCK 32u

/* The place of the last bit of an f16 of about the size of x > 0. */
static double f16_quantum(double x) {
    const int exponent = ilogb(x);
    return ldexp(1, (exponent > -14 ? exponent : -14) - 10);
}

/* The smallest f16 d with steps·d >= most; NaN stays. */
static double scale_of(double most, double steps) {
    if (!(most > 0)) return most;
    const double quantum = f16_quantum(most / steps);
    double d = floor(most / steps / quantum) * quantum;
    while (steps * d < most)
        d += quantum;
    return d;
}

static double q8_scale(double most) {
    return scale_of(most, 127);
}

/* A row in 4 bits: a minimum and a scale for a block. */
static void q4_row(float *row, uint32_t dim) {
    for (uint32_t first = 0; first < dim; first += Q8_BLOCK) {
        const uint32_t end = first + Q8_BLOCK < dim ? first + Q8_BLOCK : dim;
        double low = INFINITY, most = 0;
        for (uint32_t i = first; i < end; i++)
            low = isnan(row[i]) || isnan(low) ? NAN : fmin(low, row[i]);
        const double quantum = low == 0 || isnan(low) ? 1 : f16_quantum(fabs(low));
        const double m = floor(low / quantum) * quantum;
        for (uint32_t i = first; i < end; i++)
            most = isnan(row[i]) || isnan(most) ? NAN : fmax(most, (float)(row[i] - m));
        const double d = scale_of(most, 15);
        for (uint32_t i = first; i < end; i++)
            row[i] = (float)(m + (d == 0 ? 0 : d * nearbyint((float)(row[i] - m) / d)));
    }
}

static void q8_row(float *row, uint32_t dim) {
    for (uint32_t first = 0; first < dim; first += Q8_BLOCK) {
        const uint32_t end = first + Q8_BLOCK < dim ? first + Q8_BLOCK : dim;
        double most = 0;
        for (uint32_t i = first; i < end; i++)
            most = isnan(row[i]) || isnan(most) ? NAN : fmax(most, fabs(row[i]));
        const double d = q8_scale(most);
        for (uint32_t i = first; i < end; i++)
            row[i] = d == 0 ? 0 : (float)(d * nearbyint(row[i] / d));
    }
}

void oracle_hold(tamis_dtype dtype, bool value, float *row, uint32_t dim) {
    if (dtype == TAMIS_Q4 || (dtype == TAMIS_K8V4 && value))
        q4_row(row, dim);
    else if (dtype == TAMIS_Q8 || dtype == TAMIS_K8V4)
        q8_row(row, dim);
}

static void q8_bounds(double *lo, double *hi, uint32_t dim) {
    for (uint32_t first = 0; first < dim; first += Q8_BLOCK) {
        const uint32_t end = first + Q8_BLOCK < dim ? first + Q8_BLOCK : dim;
        double most = 0;
        for (uint32_t i = first; i < end; i++)
            most = isnan(lo[i]) || isnan(most) ? NAN : fmax(most, fmax(fabs(lo[i]), fabs(hi[i])));
        const double d = q8_scale(most);
        for (uint32_t i = first; i < end; i++) {
            lo[i] = d == 0 ? 0 : d * floor(lo[i] / d);
            hi[i] = d == 0 ? 0 : d * ceil(hi[i] / d);
        }
    }
}

/* ---- Scores ---------------------------------------------------------------------------------- */

/* The bounds of a page, as the cache stores them. */
static void bounds_of(const oracle_rule *rule, const float *keys, double *lo, double *hi) {
    for (uint32_t d = 0; d < rule->head_dim; d++) {
        lo[d] = INFINITY;
        hi[d] = -INFINITY;
        for (uint32_t s = 0; s < rule->page_size; s++) {
            double k = keys[s * rule->head_dim + d];
            lo[d] = isnan(k) ? NAN : fmin(lo[d], k);
            hi[d] = isnan(k) ? NAN : fmax(hi[d], k);
            if (isnan(k)) break;
        }
    }
    if (rule->q8_bounds) q8_bounds(lo, hi, rule->head_dim);
}

/* Score of one query head: the largest q·k that any key between the bounds could have. */
static double head_score(const oracle_rule *rule, const double *lo, const double *hi,
                         const float *q, double *slack) {
    double score = 0;
    for (uint32_t d = 0; d < rule->head_dim; d++) {
        double at_lo = q[d] * lo[d], at_hi = q[d] * hi[d];
        double term = isnan(at_lo) || isnan(at_hi) ? NAN : fmax(at_lo, at_hi);
        score += term;
        *slack += 2e-6 * fabs(term);
    }
    return score;
}

/* The scores of a group's query heads, joined by its rule. */
static double join(const oracle_rule *rule, const double *scores) {
    double most = -INFINITY, sum = 0;
    for (uint32_t g = 0; g < rule->group; g++) {
        most = isnan(scores[g]) || isnan(most) ? NAN : fmax(most, scores[g]);
        sum += scores[g];
    }
    if (rule->selection.group == TAMIS_GROUP_MAX) return most;
    return rule->selection.group == TAMIS_GROUP_MEAN ? sum / rule->group : sum;
}

static candidate quest_page(const oracle_rule *rule, const oracle_lane *lane, uint32_t ordinal,
                            const float *q) {
    const float *keys = lane->k + (size_t)ordinal * rule->page_size * rule->head_dim;
    candidate c = {.ordinal = ordinal};
    double scores[TMS_MOST_GROUP], lo[TMS_MOST_HEAD_DIM], hi[TMS_MOST_HEAD_DIM];
    bounds_of(rule, keys, lo, hi);
    for (uint32_t g = 0; g < rule->group; g++)
        scores[g] = head_score(rule, lo, hi, q + g * rule->head_dim, &c.slack);
    c.score = join(rule, scores);
    return c;
}

static double logit_of(const oracle_rule *rule, const float *q, const float *k) {
    double logit = 0;
    for (uint32_t d = 0; d < rule->head_dim; d++)
        logit += (double)q[d] * k[d];
    logit *= rule->scale;
    return rule->soft_cap > 0 ? rule->soft_cap * tanh(logit / rule->soft_cap) : logit;
}

/* Σ exp(logit) of every query head over slots [first, end); the largest |logit| so far. */
static void sum_slots(const oracle_rule *rule, const oracle_lane *lane, uint32_t first,
                      uint32_t end, const float *q, double *sums, double *largest) {
    for (uint32_t g = 0; g < rule->group; g++) {
        sums[g] = 0;
        for (uint32_t s = first; s < end; s++) {
            double logit =
                logit_of(rule, q + g * rule->head_dim, lane->k + (size_t)s * rule->head_dim);
            sums[g] += exp(logit);
            *largest = fmax(*largest, fabs(logit));
        }
    }
}

/* `sums` and `largest` are those of all visible slots: a NaN among them spoils every page. */
static candidate mass_page(const oracle_rule *rule, const oracle_lane *lane, uint32_t ordinal,
                           const float *q, const double *sums, double largest) {
    const uint32_t first = ordinal * rule->page_size;
    candidate c = {.ordinal = ordinal, .slack = 4e-6 * (1 + largest)};
    double scores[TMS_MOST_GROUP];
    sum_slots(rule, lane, first, first + rule->page_size, q, scores, &largest);
    for (uint32_t g = 0; g < rule->group; g++)
        scores[g] /= sums[g];
    if (rule->selection.group == TAMIS_GROUP_SUM) c.slack *= rule->group;
    c.score = join(rule, scores);
    return c;
}

/* Candidates of all full pages, by ordinal. */
static void score_pages(const oracle_rule *rule, const oracle_lane *lane, uint32_t visible,
                        const float *q, candidate *pages) {
    const tamis_selection *s = &rule->selection;
    double sums[TMS_MOST_GROUP], largest = 0;
    if (s->kind == TAMIS_SELECT_ORACLE) sum_slots(rule, lane, 0, visible, q, sums, &largest);
    for (uint32_t i = 0; i < visible / rule->page_size; i++) {
        pages[i] = (candidate){.ordinal = i};
        if (s->kind == TAMIS_SELECT_QUEST)
            pages[i] = quest_page(rule, lane, i, q);
        else if (s->kind == TAMIS_SELECT_ORACLE)
            pages[i] = mass_page(rule, lane, i, q, sums, largest);
        else if (s->kind == TAMIS_SELECT_RANDOM)
            pages[i].score = (double)tms_selection_random_score(s->seed, lane->layer, visible - 1,
                                                                lane->kv_head, i);
    }
}

/* Best first: numbers before NaN, the higher score, then the newer page. */
static int by_rank(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    if (isnan(x->score) != isnan(y->score)) return isnan(x->score) ? 1 : -1;
    if (x->score > y->score) return -1;
    if (x->score < y->score) return 1;
    return x->ordinal > y->ordinal ? -1 : 1;
}

static bool is_protected(const oracle_rule *rule, uint32_t ordinal, uint32_t visible) {
    const tamis_selection *s = &rule->selection;
    uint32_t first = ordinal * rule->page_size, end = first + rule->page_size;
    bool newest = end >= visible; /* the row's own page, full or not */
    bool sink = first < s->sinks;
    bool recent = s->recent > 0 && (uint64_t)end + s->recent > visible;
    return newest || sink || recent;
}

/* Takes the best `places` of the ranked; near the threshold anything goes. */
static void take_best(const candidate *ranked, uint32_t n, uint32_t places, bool scored,
                      signed char *chosen) {
    double threshold = places ? ranked[places - 1].score : INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        const candidate *c = &ranked[i];
        bool close = scored && places > 0 && places < n &&
                     fabs(c->score - threshold) <= c->slack + ranked[places - 1].slack &&
                     c->score != threshold;
        chosen[c->ordinal] = close ? -1 : i < places;
    }
    /* The page at the threshold itself may lose against one that is close to it. */
    bool contested = false;
    for (uint32_t i = 0; i < n; i++)
        contested |= chosen[ranked[i].ordinal] < 0;
    for (uint32_t i = 0; i < n && contested; i++)
        if (ranked[i].score == threshold) chosen[ranked[i].ordinal] = -1;
}

/* The first slot that a row at position visible - 1 sees. */
static uint32_t first_slot(const oracle_rule *rule, uint32_t visible) {
    const uint32_t window = rule->sliding_window;
    return window && visible > window ? visible - window : 0;
}

uint32_t oracle_select(const oracle_rule *rule, const oracle_lane *lane, uint32_t visible,
                       const float *q, signed char *chosen) {
    const tamis_selection *s = &rule->selection;
    uint32_t n = (visible + rule->page_size - 1) / rule->page_size;
    uint32_t k = s->budget / rule->page_size, taken = 0, n_ranked = 0;
    bool scored = s->kind != TAMIS_SELECT_WINDOW;
    memset(chosen, 1, n);
    if (s->kind == TAMIS_SELECT_FULL || n <= k) {
        const uint32_t first = first_slot(rule, visible) / rule->page_size;
        memset(chosen, 0, first);
        return n - first;
    }
    candidate *ranked = calloc(2 * n, sizeof *ranked), *pages = ranked + n;
    assert_non_null(ranked);
    score_pages(rule, lane, visible, q, pages);
    for (uint32_t i = 0; i < n; i++) {
        if (is_protected(rule, i, visible))
            taken++;
        else
            ranked[n_ranked++] = pages[i];
    }
    qsort(ranked, n_ranked, sizeof *ranked, by_rank);
    take_best(ranked, n_ranked, k - taken, scored, chosen);
    free(ranked);
    return k;
}

bool oracle_attends(const oracle_rule *rule, const oracle_lane *lane, uint32_t visible,
                    const uint32_t *pages, uint32_t n_pages, const float *q, const float *out) {
    double sum[TMS_MOST_HEAD_DIM] = {0}, total = 0, most = -INFINITY, largest_logit = 0,
           largest_v = 0;
    uint32_t dim = rule->head_dim, lo = first_slot(rule, visible);
    bool spoiled = false;
    for (uint32_t pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < n_pages; i++)
            for (uint32_t j = 0; j < rule->page_size; j++) {
                uint32_t slot = pages[i] * rule->page_size + j;
                if (slot >= visible || slot < lo) continue;
                double logit = logit_of(rule, q, lane->k + (size_t)slot * dim);
                spoiled |= isnan(logit);
                if (pass == 0) {
                    most = fmax(most, logit);
                    largest_logit = fmax(largest_logit, fabs(logit));
                    continue;
                }
                double weight = exp(logit - most);
                total += weight;
                for (uint32_t d = 0; d < dim; d++) {
                    double v = lane->v[(size_t)slot * dim + d];
                    sum[d] += weight * v;
                    largest_v = fmax(largest_v, fabs(v));
                }
            }
    double bound = 2e-6 * largest_v * (1 + largest_logit);
    for (uint32_t d = 0; d < dim; d++) {
        double wanted = total > 0 ? sum[d] / total : 0;
        if (spoiled ? isnan(out[d]) : fabs(out[d] - wanted) <= bound) continue;
        print_error("channel %u: %.9g, wanted %.9g within %.2g\n", d, (double)out[d], wanted,
                    bound);
        return false;
    }
    return true;
}
