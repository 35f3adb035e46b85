/* SPDX-License-Identifier: Apache-2.0 */
/* page_mass: the share of the true attention that falls on every full page:
 *   lse_g = ln Σ exp(logit_g) over the slots seen, and the sink if there is one;
 *   m_g(i) = Σ exp(logit_g - lse_g) over those of page i;
 *   score(i) = max, mean or sum of m_g over the group.
 * Contract: host/ops/, page_mass. Scores for ordinals from first / page_size to below
 * visible / page_size; the others are not written. A logit that is NaN or infinite in fp32 makes every score of its (row, KV head)
 * NaN. */
#include "host/reference/convert.h"
#include "host/reference/logit.h"
#include "host/reference/reference.h"

#include <math.h>

/* One (row, KV head): its page ids, the query heads of its group, and where its scores go. */
typedef struct lane {
    const void *data;
    const int32_t *pages;
    const float *q, *sinks; /* of the group; NULL: none */
    float *scores;
    uint32_t head, group, first, visible;
} lane;

static void load_key(const tms_kv *kv, const lane *l, uint32_t slot, float *k) {
    tms_load_slot(kv, l->data, tms_slot_at(kv, l->pages, l->head, slot), k);
}

/* lse of every query head over all that the row sees; NaN if a logit is. */
static void find_lse(const tms_page_mass *p, const lane *l, double *lse) {
    float k[TMS_MOST_HEAD_DIM];
    double most[TMS_MOST_GROUP], sum[TMS_MOST_GROUP] = {0};
    for (uint32_t g = 0; g < l->group; g++)
        most[g] = -INFINITY;
    for (uint32_t slot = l->first; slot < l->visible; slot++) {
        load_key(&p->kv, l, slot, k);
        for (uint32_t g = 0; g < l->group; g++) {
            const double logit =
                tms_logit_of(&p->logit, l->q + g * p->kv.head_dim, k, p->kv.head_dim);
            if (!(logit <= most[g])) { /* a new largest, or a NaN, which stays in the sum */
                sum[g] *= exp(most[g] - logit);
                most[g] = logit;
            }
            sum[g] += exp(logit - most[g]);
        }
    }
    for (uint32_t g = 0; g < l->group; g++)
        lse[g] = tms_with_sink(most[g] + log(sum[g]), l->sinks ? l->sinks[g] : -INFINITY);
}

/* The masses of one page, of which the row sees slots from l->first on, joined by the group's rule. */
static double score_page(const tms_page_mass *p, const lane *l, uint32_t ordinal,
                         const double *lse) {
    float k[TMS_MOST_HEAD_DIM];
    double mass[TMS_MOST_GROUP] = {0}, score = 0;
    const uint32_t begin = ordinal * p->kv.page_size, end = begin + p->kv.page_size;
    for (uint32_t slot = l->first > begin ? l->first : begin; slot < end; slot++) {
        load_key(&p->kv, l, slot, k);
        for (uint32_t g = 0; g < l->group; g++)
            mass[g] +=
                exp(tms_logit_of(&p->logit, l->q + g * p->kv.head_dim, k, p->kv.head_dim) - lse[g]);
    }
    for (uint32_t g = 0; g < l->group; g++) {
        if (p->group != TAMIS_GROUP_MAX)
            score += mass[g];
        else if (mass[g] > score || isnan(mass[g]))
            score = mass[g];
    }
    return p->group == TAMIS_GROUP_MEAN ? score / l->group : score;
}

static void score_lane(const tms_page_mass *p, const lane *l) {
    const uint32_t pages = l->visible / p->kv.page_size;
    double lse[TMS_MOST_GROUP];
    bool spoiled = false;
    /* 1. The lse of each query head, by which the masses are normalised. */
    find_lse(p, l, lse);
    for (uint32_t g = 0; g < l->group; g++)
        spoiled |= isnan(lse[g]);
    /* 2. Every full page's masses, joined. */
    for (uint32_t i = l->first / p->kv.page_size; i < pages; i++)
        l->scores[i] = spoiled ? NAN : (float)score_page(p, l, i, lse);
}

tamis_status tms_reference_page_mass(tms_device *dev, const tms_page_mass *p) {
    const tms_kv *kv = &p->kv;
    const tms_batch *batch = &p->batch;
    const uint32_t n = batch->n_rows, heads = batch->n_kv_heads, dim = kv->head_dim;
    const uint32_t group = batch->n_heads / heads;
    tms_views views = tms_views_begin(dev);
    const float *q = tms_view_matrix(&views, "q", p->q, n, (uint64_t)batch->n_heads * dim);
    float *scores = tms_view(&views, "scores", p->scores, (uint64_t)n * heads * p->stride * 4);
    const int32_t *visible = tms_view_visible(&views, batch);
    const int32_t *first = tms_view_first(&views, batch);
    const int32_t *row_seq = tms_view(&views, "row_seq", batch->row_seq, (uint64_t)n * 4);
    const int32_t *table = n ? tms_view_rest(&views, "table", batch->table) : NULL;
    const void *data = n ? tms_view_rest(&views, "kv data", kv->data) : NULL;
    const float *sinks =
        n ? tms_view_optional(&views, "sinks", p->logit.sinks, batch->n_heads * 4ull) : NULL;
    if (views.status != TAMIS_OK) return views.status;
    for (uint64_t i = 0; i < (uint64_t)n * heads; i++) {
        const uint64_t row = i / heads;
        const uint32_t head = (uint32_t)(i % heads);
        const lane l = {
            .data = data,
            .pages = tms_lane(table, batch->seq_stride, batch->head_stride, row_seq[row], head),
            .q = q + row * p->q.stride + (uint64_t)head * group * dim,
            .sinks = sinks ? sinks + head * group : NULL,
            .scores = scores + i * p->stride,
            .head = head,
            .group = group,
            .first = tms_first_slot(first, i, (uint32_t)visible[i]),
            .visible = (uint32_t)visible[i]};
        score_lane(p, &l);
    }
    return TAMIS_OK;
}
