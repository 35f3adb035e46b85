/* SPDX-License-Identifier: Apache-2.0 */
/* How far a blended prompt is from one that was computed whole. */
#include "eval/blend_rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double blend_relative(double difference, double full) {
    return difference == 0 ? 0 : sqrt(difference / full);
}

/* ---- K and V --------------------------------------------------------------------------------- */

/* Rows of one lane, [4][rows][head_dim]: K and V of full, K and V of the other. */
typedef struct lane_rows {
    float *all, *k_full, *v_full, *k, *v;
} lane_rows;

static tamis_status make_lane(const blend_rig *rig, uint32_t rows, lane_rows *out,
                              tamis_error *error) {
    const size_t n = (size_t)rows * rig->head_dim;
    out->all = malloc(4 * n * sizeof(float));
    if (out->all == NULL) return cli_no_memory(error);
    out->k_full = out->all;
    out->v_full = out->all + n;
    out->k = out->all + 2 * n;
    out->v = out->all + 3 * n;
    return TAMIS_OK;
}

static double squares(const float *x, const float *y, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = (double)x[i] - (y != NULL ? (double)y[i] : 0);
        sum += d * d;
    }
    return sum;
}

static void add_lane(const blend_rig *rig, const lane_rows *lane, uint32_t rows, blend_sums *sums,
                     double *tokens) {
    const size_t dim = rig->head_dim, n = rows * dim;
    sums->k += squares(lane->k, lane->k_full, n);
    sums->k_full += squares(lane->k_full, NULL, n);
    sums->v_full += squares(lane->v_full, NULL, n);
    for (uint32_t row = 0; row < rows; row++) {
        const double v = squares(lane->v + row * dim, lane->v_full + row * dim, dim);
        sums->v += v;
        if (tokens != NULL) tokens[row] += v;
    }
}

tamis_status blend_compare_rows(const blend_rig *rig, tamis_sequence full, tamis_sequence sequence,
                                uint32_t first, uint32_t end, blend_sums *sums, double *tokens,
                                tamis_error *error) {
    const uint32_t rows = end - first;
    lane_rows lane = {0};
    tamis_status status = make_lane(rig, rows, &lane, error);
    if (tokens != NULL) memset(tokens, 0, (size_t)rig->n_layers * rows * sizeof(*tokens));
    for (uint32_t i = 0; status == TAMIS_OK && i < rig->n_layers * rig->n_kv_heads; i++) {
        const uint32_t layer = i / rig->n_kv_heads, head = i % rig->n_kv_heads;
        status = tamis_cache_read(rig->cache, full, layer, head, first, rows, lane.k_full,
                                  lane.v_full, error);
        if (status == TAMIS_OK)
            status = tamis_cache_read(rig->cache, sequence, layer, head, first, rows, lane.k,
                                      lane.v, error);
        if (status == TAMIS_OK)
            add_lane(rig, &lane, rows, &sums[layer],
                     tokens != NULL ? tokens + (size_t)layer * rows : NULL);
    }
    free(lane.all);
    return status;
}

/* ---- Attention ------------------------------------------------------------------------------- */

typedef struct recorder {
    float *out;
    size_t layer_floats;
} recorder;

static tamis_status record(void *user, const tamis_attention_rows *rows, tamis_error *error) {
    const recorder *r = user;
    return tamis_buffer_read(rows->out.buffer, rows->out.offset,
                             r->out + rows->layer * r->layer_floats,
                             r->layer_floats * sizeof(float), error);
}

tamis_status blend_attention(const blend_rig *rig, const blend_prompt *prompt, tamis_sequence from,
                             float *out, tamis_error *error) {
    recorder r = {out, (size_t)prompt->n_suffix * rig->out_width};
    tamis_sequence fork;
    tamis_runner_observe(rig->runner, record, &r);
    tamis_status status = blend_follow(rig, prompt, from, &fork, NULL, error);
    tamis_runner_observe(rig->runner, NULL, NULL);
    return status == TAMIS_OK ? tamis_cache_remove(rig->cache, fork, error) : status;
}

void blend_compare_attention(const blend_rig *rig, const float *full, const float *other, size_t n,
                             blend_sums *sums) {
    for (uint32_t layer = 0; layer < rig->n_layers; layer++, full += n, other += n) {
        sums[layer].out += squares(other, full, n);
        sums[layer].out_full += squares(full, NULL, n);
    }
}

/* ---- Logits ---------------------------------------------------------------------------------- */

uint32_t blend_likeliest(const float *logits, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* ln Σ exp(logit) */
static double log_sum(const float *logits, uint32_t n) {
    const double largest = logits[blend_likeliest(logits, n)];
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += exp(logits[i] - largest);
    return log(sum) + largest;
}

double blend_divergence(const float *full, const float *other, uint32_t n) {
    const double of_full = log_sum(full, n), of_other = log_sum(other, n);
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        const double p = full[i] - of_full, q = other[i] - of_other;
        sum += exp(p) * (p - q);
    }
    return sum > 0 ? sum : isnan(sum) ? sum : 0; /* what rounding leaves below 0 is 0 */
}

/* ---- Ranks ----------------------------------------------------------------------------------- */

typedef struct ranked {
    double value;
    size_t place;
} ranked;

static int by_value(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    return (x->value > y->value) - (x->value < y->value);
}

/* Ranks from 1 on. */
static bool rank(const double *values, size_t n, double *ranks) {
    ranked *sorted = malloc((n > 0 ? n : 1) * sizeof(*sorted));
    if (sorted == NULL) return false;
    for (size_t i = 0; i < n; i++)
        sorted[i] = (ranked){values[i], i};
    qsort(sorted, n, sizeof(*sorted), by_value);
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && sorted[end].value == sorted[i].value;)
            end++;
        for (size_t j = i; j < end; j++)
            ranks[sorted[j].place] = 0.5 * (double)(i + 1 + end);
    }
    free(sorted);
    return true;
}

/* Of Pearson, for ranks, whose mean is (n + 1) / 2. */
static double correlation(const double *x, const double *y, size_t n) {
    const double mean = 0.5 * (double)(n + 1);
    double xy = 0, xx = 0, yy = 0;
    for (size_t i = 0; i < n; i++) {
        xy += (x[i] - mean) * (y[i] - mean);
        xx += (x[i] - mean) * (x[i] - mean);
        yy += (y[i] - mean) * (y[i] - mean);
    }
    return xy / sqrt(xx * yy);
}

double blend_rank_correlation(const double *x, const double *y, size_t n, bool *failed) {
    double *ranks = malloc((n > 0 ? 2 * n : 1) * sizeof(*ranks)), out = NAN;
    *failed = ranks == NULL || !rank(x, n, ranks) || !rank(y, n, ranks + n);
    if (!*failed) out = correlation(ranks, ranks + n, n);
    free(ranks);
    return out;
}

static int by_size(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

double blend_quantile(double *values, size_t n, double share) {
    if (n == 0) return 0;
    qsort(values, n, sizeof(*values), by_size);
    const double place = ceil(share * (double)n);
    return values[place < 1 ? 0 : (size_t)place - 1];
}
